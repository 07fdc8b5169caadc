"""Figures and tables from records or from the paper's numbers: find the source, make, write.

Nothing is measured here. `missing_cells` says what a figure or table would need first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from artifact import figures, tables
from artifact import study as studies
from artifact.analysis import reference as references
from artifact.analysis.evidence import (
    Campaign,
    Cell,
    evidence_of,
    mixtures,
    read_campaign,
    untrusted,
)
from artifact.errors import UserError
from artifact.host.store import PLAN, Store, campaign_folders
from artifact.strict_json import write_bytes_atomic
from artifact.study import Study
from artifact.tables import sheet as sheets
from artifact.tables.csv_text import csv_text
from artifact.tables.sheet import to_ascii
from artifact.tables.source import Source, of_evidence, of_paper

SOURCES = ("measured", "reference", "published")

#: What stands in the line that refuses a source without any record of a figure or table.
NO_RECORD = "has no usable record of what"

Say = Callable[[str], None]


@dataclass(frozen=True)
class Where:
    """Folders: all campaigns, the shipped references, and which one of each ("" finds it)."""

    results: Path
    campaign: str = ""
    reference: str = ""
    references: Path = references.DEFAULT_ROOT


def names() -> list[str]:
    """Every figure and every table that can be made."""
    return [*figures.names(), *tables.names()]


def load(name: str) -> figures.Drawing | tables.Table:
    """The figure or table called `name`; an unknown name is one line with the known ones."""
    if name in figures.names():
        return figures.load(name)
    if name in tables.names():
        return tables.load(name)
    raise UserError(f"unknown figure or table {name!r}", next_step=f"known: {', '.join(names())}")


# --- what is missing ------------------------------------------------------------------------------
def missing_cells(name: str, directory: Path, study: Study, profile: str) -> list[Cell]:
    """Cells of a profile that `name` needs and that have fewer than K usable trials so far.

    A campaign folder that does not exist has none. Cells that their stack cannot run are not
    missing. The order is the profile's.
    """
    needed = load(name).grid.cells(study, profile)
    if not (directory / PLAN).exists():
        return needed
    campaign = read_campaign(directory)
    usable = Counter((r.spec.model, r.spec.input, r.spec.configuration) for r in campaign.usable)
    wanted = study.profile(profile).processes or study.protocol.processes
    return [c for c in needed if usable[c] < wanted and c not in campaign.unsupported]


# --- sources --------------------------------------------------------------------------------------
def find_source(described: figures.Drawing | tables.Table, source: str, where: Where) -> Source:
    """The cells to draw from. No records, or records that may not be pooled, are a `UserError`."""
    if source == "published":
        return _published(described)
    if source == "measured":
        return _measured(campaign_folder(where))
    if source == "reference":
        return _reference(described, where)
    raise UserError(f"unknown source {source!r}", next_step=f"known: {', '.join(SOURCES)}")


def _published(described: figures.Drawing | tables.Table) -> Source:
    if not described.published:
        raise UserError(
            f"the paper has no numbers for {described.name}",
            next_step="use measured or reference",
        )
    return of_paper(described.published)


def campaign_folder(where: Where) -> Path:
    """The campaign asked for, or the only one there is; several or none are a `UserError`."""
    from artifact.host.judge import chosen_folder

    if not where.campaign and not campaign_folders(where.results):
        raise UserError(
            f"no campaign in {where.results}",
            next_step="measure one with `artifact run`, or draw from reference or published",
        )
    return chosen_folder(where.campaign, where.results)


def _measured(folder: Path) -> Source:
    campaign, label = read_campaign(folder), f"measured: {folder.name}"
    _require_whole(label, untrusted(campaign), "continue it with --resume, which sets them aside")
    return _of_campaign(campaign, label)


def _reference(described: figures.Drawing | tables.Table, where: Where) -> Source:
    """The campaign of a machine class that holds most of what is shown, the largest of equals.

    Processes of two campaigns are never pooled here. A file of the class that is not the one that
    was shipped is a `UserError` also where another campaign would be drawn: with fewer trusted
    records the choice itself would be another.

    `where.reference` names a class, or one campaign in it (`cpu-x86_64-2cpu-avx2/campaign-2`).
    """
    folder, campaigns = _reference_campaigns(where)
    for path, campaign in campaigns.items():
        label = f"reference: {folder.name}/{campaign.name}"
        gone = (f"{name}: is not there" for name in Store(path).gone())
        faults = [*untrusted(campaign), *gone]
        _require_whole(label, faults, "restore the files that were shipped")
    best = max(campaigns.values(), key=lambda c: (_shown_cells(described, c), len(c.usable)))
    return _of_campaign(best, f"reference: {folder.name}/{best.name}")


def _shown_cells(described: figures.Drawing | tables.Table, campaign: Campaign) -> int:
    """How many cells of a figure or table the campaign has usable trials of."""
    study = studies.load()
    cells = {(r.spec.model, r.spec.input, r.spec.configuration) for r in campaign.usable}
    return sum(described.grid.needs(study, cell) for cell in cells)


def _reference_campaigns(where: Where) -> tuple[Path, dict[Path, Campaign]]:
    """The machine class to draw from and its campaigns by folder, each read once."""
    if where.reference:
        folder = where.references / where.reference
        if (folder / PLAN).exists():
            return folder.parent, {folder: read_campaign(folder)}
        campaigns = _campaigns_of(folder)
        if not campaigns:
            raise UserError(
                f"{folder} holds no reference records",
                next_step=f"known: {', '.join(_class_names(where)) or 'none'}",
            )
        return folder, campaigns
    found = {path: _campaigns_of(path) for path in references.classes(where.references)}
    found = {path: campaigns for path, campaigns in found.items() if campaigns}
    if not found:
        raise UserError(
            f"no reference records in {where.references}",
            next_step="draw from measured or published",
        )
    newest = max(found, key=lambda path: (_newest_stamp(found[path].values()), path.name))
    return newest, found[newest]


def _campaigns_of(folder: Path) -> dict[Path, Campaign]:
    """The campaigns of a machine class by folder, in name order."""
    return {path.parent: read_campaign(path.parent) for path in sorted(folder.glob(f"*/{PLAN}"))}


def _newest_stamp(campaigns: Iterable[Campaign]) -> str:
    """When the newest of these campaigns was started; plans hold no time, so a record says."""
    stamps = [r.identity.started_utc for campaign in campaigns for r in campaign.usable]
    return max(stamps, default="")


def _class_names(where: Where) -> list[str]:
    return [path.name for path in references.classes(where.references)]


def _require_whole(label: str, faults: Sequence[str], remedy: str) -> None:
    """Refuse records of which some cannot be trusted; the first of them is named."""
    if faults:
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        raise UserError(
            f"{label} has files that cannot be trusted: {faults[0]}{more}", next_step=remedy
        )


def _of_campaign(campaign: Campaign, label: str) -> Source:
    differing = mixtures(campaign)
    if differing:
        raise UserError(
            f"{label}: its records may not be pooled, {differing[0]}",
            next_step="measure again under another --name",
        )
    return of_evidence(evidence_of(campaign), label)


# --- making ---------------------------------------------------------------------------------------
def figure(
    name: str,
    source: str,
    *,
    results: Path,
    campaign: str = "",
    reference: str = "",
    out: Path | None = None,
    say: Say = print,
) -> int:
    """Draw one figure into `out` as CSV, PNG and PDF; returns the exit code (0)."""
    described = figures.load(name)
    where = Where(results, campaign, reference)
    found, rows = _rows(described, source, where)
    from artifact.figures import style

    files = {"csv": csv_text(described.row, rows).encode("utf-8")}
    say(to_ascii(f"{_title(described)}\n{described.caption}"))
    files |= style.files(lambda: described.draw(rows), _title(described))
    _write(described, files, out or _folder("figures", source, where), found, say)
    return 0


def table(
    name: str,
    source: str,
    *,
    results: Path,
    campaign: str = "",
    reference: str = "",
    out: Path | None = None,
    say: Say = print,
) -> int:
    """Write one table into `out` as CSV, Markdown and LaTeX, and show it; returns 0."""
    described = tables.load(name)
    where = Where(results, campaign, reference)
    found, rows = _rows(described, source, where)
    sheet = described.sheet(rows)
    title = _title(described)
    texts = {
        "csv": csv_text(described.row, rows),
        "md": sheets.markdown(sheet, title),
        "tex": sheets.latex(sheet, title),
    }
    files = {suffix: text.encode("utf-8") for suffix, text in texts.items()}
    say(sheets.markdown(sheets.ascii_sheet(sheet), to_ascii(title)))
    _write(described, files, out or _folder("tables", source, where), found, say)
    return 0


def _title(described: figures.Drawing | tables.Table) -> str:
    return f"{described.name} ({described.paper}): {described.title}"


def _rows(
    described: figures.Drawing | tables.Table, source: str, where: Where
) -> tuple[Source, list[object]]:
    """The source and its rows; a source that holds nothing of the figure is a `UserError`."""
    study = studies.load()
    found = find_source(described, source, where)
    if not described.grid.measured(study, found):
        raise UserError(
            f"{found.label} {NO_RECORD} {described.name} shows",
            next_step="measure its cells first, or draw from reference or published",
        )
    return found, described.rows(study, found)


def _folder(room: str, source: str, where: Where) -> Path:
    """Beside the records for a campaign, in a folder of its own for the other sources."""
    if source == "measured":
        return campaign_folder(where) / room
    return where.results / room / source


def _write(
    described: figures.Drawing | tables.Table,
    files: Mapping[str, bytes],
    out: Path,
    source: Source,
    say: Say,
) -> None:
    """All files were made before the first is written, so a fault leaves the old set whole."""
    for suffix, data in files.items():
        path = out / f"{described.name}.{suffix}"
        try:
            write_bytes_atomic(path, data)
        except OSError as error:
            raise UserError(
                f"cannot write {path}: {error.strerror or error}", next_step="choose another --out"
            ) from error
    say(to_ascii(f"source: {source.label}{_noise(described, source)}"))
    for words in _absent_words(described, source):
        say(to_ascii(words))
    suffixes = ", ".join(f".{suffix}" for suffix in files)
    say(to_ascii(f"wrote {out / described.name}{suffixes}"))


def _noise(described: figures.Drawing | tables.Table, source: Source) -> str:
    blocks = set(described.grid.measured(studies.load(), source))
    views = [view for cell, view in source.views.items() if cell[:2] in blocks]
    noisy, total = sum(view.noisy for view in views), sum(view.n for view in views)
    return f" ({noisy} of {total} trials of its blocks were noisy; they are drawn)" if noisy else ""


def _absent_words(described: figures.Drawing | tables.Table, source: Source) -> list[str]:
    """One line a reason: the cells that are shown without a value."""
    reasons: dict[str, list[str]] = {}
    for block in described.grid.shown(studies.load(), source):
        for configuration in described.grid.configurations:
            cell = (*block, configuration)
            if source.view(cell) is None and not source.units_of(cell):
                reasons.setdefault(source.why_absent(cell), []).append(" ".join(cell))
    return [f"{words}: {_shortened(cells)}" for words, cells in reasons.items()]


def _shortened(cells: list[str], most: int = 4) -> str:
    rest = f" and {len(cells) - most} more" if len(cells) > most else ""
    return ", ".join(cells[:most]) + rest
