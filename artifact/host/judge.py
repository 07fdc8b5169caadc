"""`artifact check` and `artifact recommend`: read files, call the analysis, say and store it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Container, Mapping
from pathlib import Path
from typing import Any

from artifact.analysis import bands
from artifact.analysis import recommend as advice
from artifact.analysis import reference as references
from artifact.analysis.bands import BandError, Comparison
from artifact.analysis.evidence import (
    Campaign,
    evidence_of,
    limited_to,
    read_campaign,
    why_unusable,
)
from artifact.analysis.reference import Reference
from artifact.analysis.verdict import Verdict, judge
from artifact.analysis.verdict_text import markdown, plain
from artifact.errors import UserError
from artifact.host.manifest import cpu_model
from artifact.host.store import campaign_folders, disk_errors
from artifact.strict_json import SchemaError, write_atomic, write_bytes_atomic
from artifact.trial.cpus import effective_cpus

VERDICT = "verdict"
PROPOSED = "expected.proposed.json"

Say = Callable[[str], None]


def check(
    name: str = "",
    *,
    results: Path = Path("results"),
    strict: bool = False,
    expected_file: Path | None = None,
    measured_file: Path | None = None,
    reference: Path | None = None,
    propose: bool = False,
    say: Say = print,
    root: Path = references.DEFAULT_ROOT,
    only: Container[tuple[str, str]] | None = None,
    label: str = "part",
) -> int:
    """Judge a campaign, or compare two bare JSON files; returns the exit code (0, 1 or 2).

    `only` limits the judgement to blocks of the given (model, input) pairs; it is then stored as
    `verdict-<label>.md` and `.json`, and the campaign's own verdict stays.

    The campaign is the folder `measured_file`, else `results/<name>`. `reference` is a campaign
    folder or a machine class's; without it the nearest class below `root` is taken. With
    `expected_file` its bands are compared with `measured_file`, a bare file or a campaign folder.
    `propose` also writes the expected file that the measured values would give. The verdict is
    said first; a folder that is read-only or belongs to a shipped reference is not written into.
    """
    if expected_file is not None:
        if measured_file is None and not name:
            raise UserError("--expected needs --measured", next_step="name the measured JSON file")
        measured = measured_file or results / name
        return check_files(expected_file, measured, propose=propose, say=say, root=root)
    if measured_file is not None:
        campaign_folder = _found(measured_file, results)
    else:
        campaign_folder = chosen_folder(name, results)
    campaign = read_campaign(campaign_folder)
    if {record.identity.engine for record in campaign.usable} == {"fake"}:
        say("engine fake: nothing was measured, so nothing is judged")
        return 2
    if only is not None:
        campaign = limited_to(campaign, only)
    if reference is not None:
        chosen: Reference | None = references.load(_found(reference, results))
    else:
        chosen = references.nearest(campaign, root)
    verdict = judge(campaign, chosen, strict=strict)
    say(markdown(verdict).rstrip("\n"))
    _store(verdict, campaign_folder, VERDICT if only is None else f"{VERDICT}-{label}", root, say)
    if propose:
        _propose_campaign(campaign, chosen, campaign_folder / PROPOSED, root, say)
    return verdict.exit_code


def _store(verdict: Verdict, folder: Path, stem: str, root: Path, say: Say) -> None:
    """Write the verdict beside the records, or say why that is not done."""
    reason = _why_not_written(folder, root)
    if reason:
        say(f"warning: {stem}.md and {stem}.json were not written: {reason}")
        return
    with disk_errors(str(folder / f"{stem}.md")):
        write_bytes_atomic(folder / f"{stem}.md", markdown(verdict).encode("utf-8"))
        write_atomic(folder / f"{stem}.json", plain(verdict))


def _why_not_written(folder: Path, root: Path) -> str:
    """Why nothing may be written into a folder; empty when something may."""
    here = folder.resolve()
    if any(here.is_relative_to(shipped.resolve()) for shipped in (root, references.DEFAULT_ROOT)):
        return f"{folder} belongs to a shipped reference"
    return "" if os.access(folder, os.W_OK | os.X_OK) else f"{folder} is read-only"


def _found(path: Path, results: Path) -> Path:
    """The path itself, or the campaign of that name below `results`."""
    return path if path.exists() or not (results / path).is_dir() else results / path


def chosen_folder(name: str, results: Path) -> Path:
    """`results/<name>`; without a name the only campaign there, looks at a crossover aside."""
    if name:
        return results / name
    found = campaign_folders(results)
    if len(found) == 1:
        return found[0]
    known = ", ".join(folder.name for folder in found) or "none"
    raise UserError(f"{results} holds {len(found)} campaigns", next_step=f"--name one of: {known}")


def _propose_campaign(
    campaign: Campaign, chosen: Reference | None, path: Path, root: Path, say: Say
) -> None:
    measured = _metrics_of(campaign)
    try:
        fresh = references.make_bands([measured])
    except BandError as error:
        raise UserError(f"nothing is proposed from {campaign.name}: {error}") from error
    known = chosen.expected if chosen else {}
    expected = {**{name: fresh[name] for name in fresh if name not in known}, **known}
    _write_proposed(bands.propose(expected, measured), path, root, say)


def _metrics_of(campaign: Campaign) -> dict[str, float]:
    """The metrics of a campaign as a whole; one that is mixed, broken or empty is a `UserError`."""
    faults = why_unusable(campaign)
    if not faults and not campaign.usable:
        faults = ["it has no usable trial"]
    if faults:
        raise UserError(
            f"campaign {campaign.name} has no values to compare: {'; '.join(faults)}",
            next_step="measure again under another --name",
        )
    return references.metrics(evidence_of(campaign))


def _write_proposed(proposed: Mapping[str, Any], path: Path, root: Path, say: Say) -> None:
    reason = _why_not_written(path.parent, root)
    if reason:
        say(f"warning: {path.name} was not written: {reason}")
        return
    with disk_errors(str(path)):
        write_atomic(path, proposed)
    say(f"proposed expected file: {path}")


def check_files(
    expected_file: Path,
    measured_file: Path,
    *,
    propose: bool,
    say: Say,
    root: Path = references.DEFAULT_ROOT,
) -> int:
    """Compare `{metric: {"value", "rel_tol", "abs_tol"}}` with `{metric: value}` or a campaign.

    0: everything in its band; 1: something is not, each said by name; 2: a file cannot be used, or
    neither names a metric. A campaign that is mixed or broken is refused.
    """
    expected = _bare(expected_file)
    measured: Mapping[str, Any]
    if measured_file.is_dir():
        measured = _metrics_of(read_campaign(measured_file))
    else:
        measured = _bare(measured_file)
    try:
        compared = bands.compare(expected, measured)
    except BandError as error:
        raise UserError(f"{expected_file}: {error}", next_step="mend the expected file") from error
    for result in compared.failures:
        say(f"{result.metric}: {result.verdict}: {result.reason}")
    say(compared.summary)
    if propose:
        _propose_files(expected, measured, measured_file, root, say)
    return _exit_code(compared)


def _exit_code(compared: Comparison) -> int:
    if compared.total == 0:
        return 2
    return 0 if compared.passed else 1


def _propose_files(
    expected: Mapping[str, Any],
    measured: Mapping[str, Any],
    measured_file: Path,
    root: Path,
    say: Say,
) -> None:
    directory = measured_file if measured_file.is_dir() else measured_file.parent
    stem = "expected" if measured_file.is_dir() else measured_file.stem
    proposed = bands.propose(expected, measured)
    _write_proposed(proposed, directory / f"{stem}.proposed.json", root, say)


def _bare(path: Path) -> Mapping[str, Any]:
    """One JSON object. NaN and Infinity are let in, so that the comparison can name the metric."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_without_repeats)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except (json.JSONDecodeError, UnicodeDecodeError, SchemaError, RecursionError) as error:
        raise UserError(f"{path} is not valid JSON: {error}", next_step="mend the file") from error
    if not isinstance(found, Mapping):
        raise UserError(f"{path} is no JSON object of metrics", next_step="mend the file")
    return found


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise SchemaError("a key occurs twice")
    return found


def recommend(
    model: str,
    shape: str,
    executions: float,
    boundary: str = "aligned",
    *,
    name: str = "",
    results: Path = Path("results"),
    root: Path = references.DEFAULT_ROOT,
) -> str:
    """The cheapest configuration for n executions, as text.

    Records of `results/<name>`; without a name those of the campaign there that measured this cell
    last; without any the shipped reference's, which are then called another machine's.
    """
    campaign, source, shipped = _records_for(model, shape, name, results, root)
    whose = _whose(campaign)
    found = advice.advise(
        campaign,
        model,
        shape,
        executions,
        boundary,
        source=source,
        other_machine=whose if shipped or not _made_here(campaign) else "",
    )
    return advice.render(found)


def _records_for(
    model: str, shape: str, name: str, results: Path, root: Path
) -> tuple[Campaign, str, bool]:
    """The campaign, its name for the reader, and whether it was shipped and not measured here."""
    if name:
        return read_campaign(results / name), str(results / name), False
    own = [read_campaign(folder) for folder in campaign_folders(results)]
    usable = [c for c in own if _is_real(c) and advice.measured_here(c, model, shape)]
    if usable:
        newest = max(usable, key=lambda c: max(r.identity.started_utc for r in c.usable))
        return newest, str(results / newest.name), False
    for directory in references.classes(root):
        for campaign in reversed(references.load(directory).campaigns):
            if advice.measured_here(campaign, model, shape):
                return campaign, f"reference {directory.name}, {campaign.name}", True
    raise UserError(
        f"no records of {model} {shape}, neither in {results} nor among the references",
        next_step="run `artifact reproduce` with a profile that holds it",
    )


def _is_real(campaign: Campaign) -> bool:
    return all(record.identity.engine != "fake" for record in campaign.usable)


def _whose(campaign: Campaign) -> str:
    """The machine that made these records, in words."""
    models = sorted({r.identity.cpu_model for r in campaign.usable})
    cpus = sorted({r.identity.effective_cpus for r in campaign.usable})
    return f"{', '.join(models)}, {', '.join(map(str, cpus))} CPUs"


def _made_here(campaign: Campaign) -> bool:
    """True when every record names this machine's processor and no more CPUs than it has.

    A profile may use fewer CPUs than there are, so fewer in the record do not contradict.
    """
    made = [record.identity for record in campaign.usable]
    most = max((one.effective_cpus for one in made), default=0)
    return {one.cpu_model for one in made} == {cpu_model()} and most <= effective_cpus()
