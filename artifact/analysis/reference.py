"""Reference results that are shipped: `expected/reference/<machine class>/`.

facts.json    what decides the tier, and where the records come from (edit: the facts)
bands.json    {metric: {"value", "rel_tol"}}, a bare expected file (edit: values and tolerances)
campaign-1/   a campaign folder as in `results/<name>/`: plan.json, records/, calibrations/,
campaign-2/   code/ with one compressed copy a cell, checksums.txt

Metrics are named `<model>/<input>/<configuration>/<quantity>`; times are ms.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import lzma
import math
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

from artifact.analysis import bands
from artifact.analysis.bands import BandError, Facts, Tier
from artifact.analysis.claims.ratios import fixed_cost_ms, latency_ms
from artifact.analysis.evidence import (
    UNCOMPILED,
    Campaign,
    Cell,
    Evidence,
    Quantity,
    Trial,
    cell_of,
    evidence_of,
    facts_of,
    lock_hashes,
    merged,
    read_campaign,
    untrusted,
    why_unusable,
)
from artifact.analysis.stats import StatsError
from artifact.errors import UserError
from artifact.host.collect import decompress
from artifact.host.store import CALIBRATIONS, CHECKSUMS, CODE, PLAN, RECORDS, Store
from artifact.strict_json import SchemaError, from_plain, read, write_atomic, write_bytes_atomic

DEFAULT_ROOT = Path(__file__).resolve().parents[2] / "expected" / "reference"
FACTS, BANDS = "facts.json", "bands.json"

#: Quantities with bands: those of T_C and T_X come from the spread between campaigns; counts are
#: the compiler's own and deterministic at one lock, up to choices that it makes by timing.
TIMES = {"compile_cost_ms": "compile_cost", "latency_ms": "latency"}
COUNT_TOLERANCE = {"external_units": 0.0, "internal_units": 0.05, "code_bytes": 0.05}

TIER_ORDER = ("same", "similar", "other")


@dataclass(frozen=True)
class StoredFacts:
    """`facts.json`: the tier's facts with one lock hash an image, and words for the reader."""

    lock_hashes: Mapping[str, str]
    device_kind: str | None
    architecture: str | None
    isa_ceiling: str | None
    cpus: int | None
    threads: int | None
    compile_threads: int | None
    precision: str | None
    calibration_ms: Mapping[str, float]
    machine: str = ""
    campaigns: tuple[str, ...] = ()

    def facts(self, images: Sequence[str]) -> Facts:
        """As `bands.Facts`, with the lock hashes of `images` only."""
        fields = dataclasses.asdict(self)
        chosen = {i: h for i, h in sorted(self.lock_hashes.items()) if i in images}
        fields["lock_hash"] = " ".join(f"{i}:{h}" for i, h in chosen.items()) or None
        known = {field.name for field in dataclasses.fields(Facts)}
        return Facts(**{key: value for key, value in fields.items() if key in known})


@dataclass(frozen=True)
class Reference:
    """Reference campaigns of one machine class, their bands as a bare expected file, facts."""

    name: str
    facts: StoredFacts
    expected: Mapping[str, Any]
    campaigns: tuple[Campaign, ...]

    @property
    def evidence(self) -> Evidence:
        """All its campaigns as one."""
        return merged(self.campaigns)

    def tier(self, campaign: Campaign) -> Tier:
        """How strictly a campaign's results are compared with this reference."""
        return _tier(self.facts, campaign)


def _tier(stored: StoredFacts, campaign: Campaign) -> Tier:
    images = sorted(stored.lock_hashes.keys() & lock_hashes(campaign).keys())
    return bands.tier(stored.facts(images), facts_of(campaign, images))


def metrics(evidence: Evidence) -> dict[str, float]:
    """Every banded quantity of every measured cell; means over processes, times in ms."""
    found: dict[str, float] = {}
    for cell, trials in sorted(evidence.cells.items()):
        found |= {f"{'/'.join(cell)}/{key}": value for key, value in _of(evidence, cell, trials)}
    return found


def _of(evidence: Evidence, cell: Cell, trials: Sequence[Trial]) -> list[tuple[str, float]]:
    compiled = trials[0].record.spec.stack not in UNCOMPILED
    values = [("latency_ms", _mean(evidence, cell, latency_ms))]
    if compiled:
        values.append(("compile_cost_ms", _mean(evidence, cell, fixed_cost_ms)))
    return values + _counts(trials)


def _counts(trials: Sequence[Trial]) -> list[tuple[str, float]]:
    """Counts of a cell's code: of all trials the value that lies farthest from their median, so
    that one trial that differs is seen. NaN, which no band accepts, where some were not counted."""
    counted = [trial.record.census for trial in trials if trial.record.census is not None]
    if not counted:
        return []
    sides = {
        "internal_units": [census.internal for census in counted],
        "external_units": [census.external for census in counted],
        "code_bytes": [census.code_bytes for census in counted],
    }
    whole = len(counted) == len(trials)
    return [(key, _farthest(counts) if whole else math.nan) for key, counts in sides.items()]


def _farthest(counts: Sequence[int]) -> int:
    middle = median(counts)
    return max(counts, key=lambda count: (abs(count - middle), count))


def _mean(evidence: Evidence, cell: Cell, quantity: Quantity) -> float:
    """Mean over processes; NaN where a process value is no time, which no band accepts."""
    try:
        return fmean(evidence.values(cell, quantity))
    except StatsError:
        return math.nan


def make_bands(campaigns: Sequence[Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """The expected file that these campaigns' metrics give; a metric from those that have it.

    Times: from the first metric that two campaigns have on, the prediction interval of
    `bands.prediction_bands`; before that nothing tells a spread, so the tolerances are the smallest
    ones. Counts: `COUNT_TOLERANCE` around the median. No campaign, or a value that is none, is a
    `BandError`.
    """
    if not campaigns:
        raise BandError("bands need at least one campaign")
    expected: dict[str, dict[str, float]] = {}
    for quantity, kind in TIMES.items():
        expected |= _time_bands([_ending(campaign, quantity) for campaign in campaigns], kind)
    for quantity, tolerance in COUNT_TOLERANCE.items():
        having = [_ending(campaign, quantity) for campaign in campaigns]
        for name in {name for campaign in having for name in campaign}:
            value = median(campaign[name] for campaign in having if name in campaign)
            expected[name] = {"value": value, "rel_tol": tolerance}
    bands.bands_from(expected)
    return dict(sorted(expected.items()))


def _ending(campaign: Mapping[str, float], quantity: str) -> dict[str, float]:
    """The campaign's metrics of one quantity."""
    return {name: value for name, value in campaign.items() if name.endswith(f"/{quantity}")}


def _time_bands(campaigns: Sequence[Mapping[str, float]], kind: str) -> dict[str, dict[str, float]]:
    shared = Counter(name for campaign in campaigns for name in campaign)
    if max(shared.values(), default=0) < 2:
        floor = bands.SMALLEST_TOLERANCE[kind]
        return {n: {"value": v, "rel_tol": floor} for c in campaigns for n, v in c.items()}
    made = bands.prediction_bands(campaigns, kind)
    # One tolerance for both sides keeps the file easy to edit; the upper one is the larger.
    return {
        name: {"value": band.value, "rel_tol": _rounded_up(band.high / band.value - 1)}
        for name, band in made.items()
    }


def _rounded_up(tolerance: float) -> float:
    # The difference of two floats may come out as 0.25 + 1e-16; that is 0.25.
    return math.ceil(tolerance * 1e4 - 1e-6) / 1e4


def of_campaigns(name: str, campaigns: Sequence[Campaign]) -> Reference:
    """A reference made from campaigns now; one that may not be pooled is a `UserError`."""
    for campaign in campaigns:
        faults = why_unusable(campaign)
        if faults or not campaign.usable:
            why = "; ".join(faults) or "it has no usable trial"
            raise UserError(f"campaign {campaign.name} cannot be a reference: {why}")
    try:
        expected = make_bands([metrics(evidence_of(campaign)) for campaign in campaigns])
    except BandError as error:
        raise UserError(f"no bands from {name}: {error}") from error
    return Reference(name, stored_facts(campaigns), expected, tuple(campaigns))


def stored_facts(campaigns: Sequence[Campaign]) -> StoredFacts:
    """Facts of campaigns of one machine; calibrations are the medians over the campaigns.

    Lock hashes are those of every image that a campaign ran in: profiles need different ones.
    """
    first = facts_of(campaigns[0])
    calibrations = [campaign.calibration_ms for campaign in campaigns]
    names = sorted(set(calibrations[0]).intersection(*calibrations[1:]))
    identity = campaigns[0].usable[0].identity
    hashes: dict[str, str] = {}
    for campaign in reversed(campaigns):
        hashes |= lock_hashes(campaign)
    return StoredFacts(
        lock_hashes=dict(sorted(hashes.items())),
        device_kind=first.device_kind,
        architecture=first.architecture,
        isa_ceiling=first.isa_ceiling,
        cpus=first.cpus,
        threads=first.threads,
        compile_threads=first.compile_threads,
        precision=first.precision,
        calibration_ms={name: median(c[name] for c in calibrations) for name in names},
        machine=f"{identity.cpu_model}, {identity.effective_cpus} CPUs, engine {identity.engine}",
        campaigns=tuple(campaign.name for campaign in campaigns),
    )


def machine_class(campaign: Campaign) -> str:
    """The suggested folder name, such as `cpu-x86_64-2cpu-avx2`."""
    facts = facts_of(campaign)
    return f"{facts.device_kind}-{facts.architecture}-{facts.cpus}cpu-{facts.isa_ceiling}"


def load(directory: Path) -> Reference:
    """Read a machine class's folder, or one campaign folder as a reference of its own.

    A record that is not what was shipped is a `UserError` that names its file.
    """
    if (directory / FACTS).exists():
        folders = sorted(path.parent for path in directory.glob(f"*/{PLAN}"))
        return Reference(
            directory.name,
            _read_facts(directory),
            _read_expected(directory / BANDS),
            tuple(_read_shipped(folder) for folder in folders),
        )
    if (directory / PLAN).exists():
        return of_campaigns(directory.name, [read_campaign(directory)])
    raise UserError(
        f"{directory} is no reference",
        next_step="give a campaign folder or one of expected/reference/",
    )


def _read_shipped(folder: Path) -> Campaign:
    campaign = read_campaign(folder)
    gone = (f"{name}: is not there" for name in Store(folder).gone())
    faults = [*untrusted(campaign), *gone]
    if faults:
        raise UserError(
            f"reference {folder} is not what was shipped: {'; '.join(faults)}",
            next_step="restore it from the repository",
        )
    return campaign


def _read_facts(directory: Path) -> StoredFacts:
    try:
        return from_plain(StoredFacts, read(directory / FACTS), FACTS)
    except (SchemaError, OSError) as error:
        raise UserError(f"{directory / FACTS}: {error}", next_step="mend the file") from error


def _read_expected(path: Path) -> Mapping[str, Any]:
    try:
        expected = read(path)
        if not isinstance(expected, Mapping):
            raise BandError("a band file is one object")
        bands.bands_from(expected)
    except (SchemaError, BandError, OSError) as error:
        raise UserError(f"{path}: {error}", next_step="mend the file") from error
    return expected


def nearest(campaign: Campaign, root: Path = DEFAULT_ROOT) -> Reference | None:
    """The shipped machine class with the strictest tier for this campaign; None without any.

    Of equal tiers the one of the same device, then the one that sorts first.
    """
    best: tuple[tuple[int, bool, str], Path] | None = None
    device = facts_of(campaign).device_kind
    for directory in classes(root):
        stored = _read_facts(directory)
        tier = TIER_ORDER.index(_tier(stored, campaign).name)
        key = (tier, stored.device_kind != device, directory.name)
        if best is None or (key, directory) < best:
            best = (key, directory)
    return load(best[1]) if best else None


def classes(root: Path = DEFAULT_ROOT) -> list[Path]:
    """Folders of all shipped machine classes, in name order."""
    return sorted(path.parent for path in root.glob(f"*/{FACTS}"))


def ship(results_dir: Path, machine_class_: str, root: Path = DEFAULT_ROOT) -> Path:
    """Copy a campaign into a machine class and make its facts and bands anew; returns the copy.

    Copied are plan, records, calibrations and one code copy a cell. A campaign that another
    machine, lock or protocol made is refused, and so is one whose records cannot be pooled.
    """
    campaign = read_campaign(results_dir)
    directory = root / machine_class_
    earlier = load(directory).campaigns if (directory / FACTS).exists() else ()
    made = of_campaigns(machine_class_, [*earlier, campaign])
    if earlier:
        _require_same_machine(earlier, campaign)
    target = _next_folder(directory)
    _copy(Store(results_dir), campaign, target)
    shipped = (*(c.name for c in earlier), target.name)
    write_atomic(directory / BANDS, made.expected)
    write_atomic(directory / FACTS, dataclasses.replace(made.facts, campaigns=shipped))
    return target


def _next_folder(directory: Path) -> Path:
    paths = (directory / f"campaign-{number}" for number in itertools.count(1))
    return next(path for path in paths if not path.exists())


def _require_same_machine(earlier: Sequence[Campaign], campaign: Campaign) -> None:
    """Refuse what differs in a fact of the class; of the locks those of images that both ran in."""
    tier = _tier(stored_facts(earlier), campaign)
    # Calibrations of two days may differ; whether they do is what the tier of a check decides.
    hard = [reason for reason in tier.reasons if not reason.startswith("calibration")]
    if hard:
        raise UserError(f"{campaign.name} is of another machine class: {'; '.join(hard)}")


def _copy(store: Store, campaign: Campaign, target: Path) -> None:
    files = [store.directory / PLAN]
    files += sorted((store.directory / CALIBRATIONS).glob("*.json"))
    files += [store.records / f"{r.spec.record_id}.json" for r in campaign.records]
    seen: set[Cell] = set()
    for record in campaign.usable:
        cell = cell_of(record.spec)
        paths = [store.code_path(record, name) for name in record.code_files]
        if cell not in seen and paths and all(path.exists() for path in paths):
            seen.add(cell)
            files += paths
    _require_anonymous(files)
    sums = {}
    for path in files:
        relative = path.relative_to(store.directory)
        (target / relative).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target / relative)
        if relative.parts[0] in (RECORDS, CODE):
            sums[relative.as_posix()] = hashlib.sha256(path.read_bytes()).hexdigest()
    text = "".join(f"{digest}  {name}\n" for name, digest in sorted(sums.items()))
    write_bytes_atomic(target / CHECKSUMS, text.encode("ascii"))


def _require_anonymous(files: Sequence[Path]) -> None:
    """Refuse to ship files that name this person's home or this checkout."""
    here = Path(__file__).resolve().parents[2]
    private = [f"{path}/".encode() for path in (Path.home(), here) if path != Path("/")]
    named = [path.name for path in files if any(p in _content(path) for p in private)]
    if named:
        raise UserError(
            f"{len(named)} files name a folder of this machine, the first is {named[0]}",
            next_step="ship a campaign of the docker engine",
        )


def _content(path: Path) -> bytes:
    try:
        data = path.read_bytes()
        return decompress(data) if path.suffix == ".xz" else data
    except (OSError, lzma.LZMAError) as error:
        raise UserError(f"cannot ship {path}: {error}") from error
