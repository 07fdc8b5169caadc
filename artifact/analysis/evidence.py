"""What a claim sees: the usable trials of a campaign by cell, with noise, census and code.

A campaign folder (`results/<name>/` or one below `expected/reference/<machine class>/`) becomes a
`Campaign`; a campaign becomes `Evidence`, with all of its usable trials or without the noisy ones.
Nothing here judges.
"""

from __future__ import annotations

import lzma
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from artifact.analysis.bands import Facts
from artifact.analysis.estimates import ProcessValues, from_record
from artifact.analysis.stats import PairedRatio, StatsError, pair_by_round, paired_ratio
from artifact.errors import UserError
from artifact.host import noise
from artifact.host.collect import decompress
from artifact.host.store import PLAN, RECORDS, Calibration, Store
from artifact.plan import TrialSpec
from artifact.records import Record, current
from artifact.study import image_of

#: (model, input, configuration)
Cell = tuple[str, str, str]
Quantity = Callable[[ProcessValues], float]
Pairs = tuple[list[float], list[float]]
T = TypeVar("T")

#: Stacks without a compiler: nothing is cached or generated, and their T_C is noise around zero.
UNCOMPILED = ("eager",)

#: Rounds of the second, third ... campaign of a reference start this far apart when merged.
ROUND_OFFSET = 1000


@dataclass(frozen=True)
class Trial:
    """One usable trial. `noisy` holds the reasons; `read_code` gives file name -> generated text,
    empty where no copy was kept. `round` pairs it, and differs between merged campaigns."""

    record: Record
    round: int
    noisy: tuple[str, ...]
    read_code: Callable[[], Mapping[str, str]]


@dataclass(frozen=True)
class Campaign:
    """One campaign as it was found on disk.

    `records` are all attempts that can be read, `planned` the measured trials of the plan by trial
    id, `broken` one line for each file that cannot be trusted, `unlisted` files that no checksum
    vouches for, `noisy` the reasons by record id, `calibration_ms` the medians of its calibrations.
    `limited` are the (model, input) pairs that it was limited to; None when it is whole.
    """

    name: str
    profile: str
    records: tuple[Record, ...]
    planned: Mapping[str, TrialSpec]
    broken: tuple[str, ...]
    noisy: Mapping[str, tuple[str, ...]]
    calibration_ms: Mapping[str, float]
    read_code: Callable[[Record], Mapping[str, str]]
    unlisted: tuple[str, ...] = ()
    limited: tuple[tuple[str, str], ...] | None = None

    @cached_property
    def usable(self) -> tuple[Record, ...]:
        """Pooled records of the newest run of each block; debug records are never among them."""
        return tuple(current(self.records))

    @cached_property
    def planned_trials(self) -> Mapping[Cell, int]:
        """How many trials the plan holds for each cell."""
        counts: dict[Cell, int] = {}
        for spec in self.planned.values():
            counts[cell_of(spec)] = counts.get(cell_of(spec), 0) + 1
        return counts

    @cached_property
    def unsupported(self) -> tuple[Cell, ...]:
        """Planned cells that their stack said it cannot run, in every attempt (case N2)."""
        seen: dict[Cell, set[str]] = {}
        for record in self.records:
            if record.spec.role == "measured":
                seen.setdefault(cell_of(record.spec), set()).add(record.status)
        return tuple(sorted(cell for cell, status in seen.items() if status == {"unsupported"}))


def cell_of(spec: TrialSpec) -> Cell:
    """(model, input, configuration) of a trial."""
    return spec.model, spec.input, spec.configuration


def read_campaign(directory: Path) -> Campaign:
    """Read a campaign folder. An empty folder is an empty campaign; none at all a `UserError`."""
    if not directory.is_dir():
        raise UserError(
            f"no campaign at {directory}", next_step="run `artifact reproduce`, or give --name"
        )
    store = Store(directory)
    records, broken = store.scan()
    plan = store.plan() if (directory / PLAN).exists() else None
    calibrations = store.calibrations()
    return Campaign(
        name=directory.name,
        profile=plan.profile if plan else "",
        records=tuple(records),
        planned={spec.trial_id: spec for spec in plan.trials()} if plan else {},
        broken=tuple(_without(directory, item.reason) for item in broken),
        noisy=_noisy(records, calibrations),
        calibration_ms=noise.calibration_medians(calibrations),
        read_code=lambda record: _read_code(store, record),
        unlisted=tuple(store.unlisted(records)),
    )


def limited_to(campaign: Campaign, blocks: Container[tuple[str, str]]) -> Campaign:
    """The campaign as if only these (model, input) pairs had been planned."""
    records = tuple(r for r in campaign.records if _pair(r.spec) in blocks)
    planned = {i: spec for i, spec in campaign.planned.items() if _pair(spec) in blocks}
    held = {*map(_pair, planned.values()), *(_pair(record.spec) for record in records)}
    others = tuple(f"{r.spec.record_id}." for r in campaign.records if _pair(r.spec) not in blocks)
    unlisted = (name for name in campaign.unlisted if not Path(name).name.startswith(others))
    return replace(
        campaign,
        records=records,
        planned=planned,
        unlisted=tuple(unlisted),
        limited=tuple(sorted(held)),
    )


def _pair(spec: TrialSpec) -> tuple[str, str]:
    return spec.model, spec.input


def _noisy(
    records: Sequence[Record], calibrations: Sequence[Calibration]
) -> dict[str, tuple[str, ...]]:
    """`noise.reasons` of every record, with medians and blocks looked up once."""
    medians = noise.calibration_medians(calibrations)
    blocks: dict[noise.BlockKey, list[Calibration]] = {}
    for calibration in calibrations:
        blocks.setdefault((calibration.block_id, calibration.block_run), []).append(calibration)
    return {
        record.spec.record_id: (
            *noise.seen_in(record),
            *noise.off_in(blocks.get(noise.block_key(record), []), medians),
        )
        for record in records
    }


def _without(directory: Path, text: str) -> str:
    """The text with paths relative to the campaign, so that a verdict reads the same anywhere."""
    return text.replace(f"{directory.absolute()}/", "")


def _read_code(store: Store, record: Record) -> Mapping[str, str]:
    texts = {}
    for name in record.code_files:
        path = store.code_path(record, name)
        if path.exists():
            try:
                texts[name] = decompress(path.read_bytes()).decode("utf-8")
            except (lzma.LZMAError, UnicodeDecodeError, OSError) as error:
                raise UserError(f"cannot read the generated code {path}: {error}") from error
    return texts


@dataclass(frozen=True)
class Evidence:
    """Usable trials by cell, and the campaign that they come from.

    `campaign` is None for a reference merged from several campaigns.
    """

    cells: Mapping[Cell, tuple[Trial, ...]]
    campaign: Campaign | None

    def blocks(self, family: str, *configurations: str) -> list[tuple[str, str]]:
        """(model, input) pairs of a model family for which every configuration was measured."""
        found = {
            (model, shape)
            for (model, shape, _), trials in self.cells.items()
            if trials[0].record.spec.family == family
        }
        return sorted(b for b in found if all((*b, c) in self.cells for c in configurations))

    def trials(self, cell: Cell) -> tuple[Trial, ...]:
        """Usable trials of a cell in round order; empty when it was not measured."""
        return self.cells.get(cell, ())

    def first(self, cell: Cell) -> Record:
        """The record of the cell's first usable trial."""
        return self.cells[cell][0].record

    def processes(self, cell: Cell) -> list[ProcessValues]:
        """Process values of a cell; `StatsError` when a value is no time."""
        return [_process_values(trial) for trial in self.trials(cell)]

    def values(self, cell: Cell, quantity: Quantity) -> list[float]:
        """One number per process of the cell."""
        return [quantity(process) for process in self.processes(cell)]

    def pairs(self, first: Cell, second: Cell, quantity: Quantity) -> Pairs:
        """Values of both cells in the rounds that both have, same boot only."""
        left, right = self._boots(first), self._boots(second)
        same = {r for r in left.keys() & right.keys() if left[r] == right[r]}
        sides = [
            {p.round: quantity(p) for p in self.processes(cell) if p.round in same}
            for cell in (first, second)
        ]
        return pair_by_round(sides[0], sides[1])

    def _boots(self, cell: Cell) -> dict[int, str]:
        return {trial.round: trial.record.identity.boot_id for trial in self.trials(cell)}

    def ratio(self, first: Cell, second: Cell, quantity: Quantity) -> PairedRatio | str:
        """r = first / second paired by round (CLAIMS: r), or in words why there is none."""
        for cell in (first, second):
            if cell not in self.cells:
                return f"{' '.join(cell)} was not measured"
        try:
            numerators, denominators = self.pairs(first, second, quantity)
            if not numerators:
                return "the two share no round of one boot"
            return paired_ratio(numerators, denominators)
        except StatsError as error:
            return str(error)

    def code(self, cell: Cell) -> Mapping[str, str]:
        """Generated text of the cell's first trial that has a stored copy; empty without one."""
        for trial in self.trials(cell):
            texts = trial.read_code()
            if texts:
                return texts
        return {}


def evidence_of(campaign: Campaign, *, quiet: bool = False) -> Evidence:
    """All usable trials of a campaign, or (`quiet`) only those that were not noisy."""
    return Evidence(_by_cell([(campaign, 0)], quiet), campaign)


def merged(campaigns: Sequence[Campaign]) -> Evidence:
    """Usable trials of several campaigns as one: rounds of different campaigns never pair."""
    numbered = [(campaign, i * ROUND_OFFSET) for i, campaign in enumerate(campaigns)]
    return Evidence(_by_cell(numbered, False), None)


def _by_cell(
    campaigns: Iterable[tuple[Campaign, int]], quiet: bool
) -> dict[Cell, tuple[Trial, ...]]:
    cells: dict[Cell, dict[int, Trial]] = {}
    for campaign, offset in campaigns:
        for record in sorted(campaign.usable, key=lambda r: (r.spec.round, r.spec.attempt)):
            trial = _trial(campaign, record, offset)
            if not (quiet and trial.noisy):
                # Two usable attempts of one round are a fault that C1 names; the later one counts.
                cells.setdefault(cell_of(record.spec), {})[trial.round] = trial
    return {cell: tuple(trials[r] for r in sorted(trials)) for cell, trials in cells.items()}


def _trial(campaign: Campaign, record: Record, offset: int) -> Trial:
    return Trial(
        record=record,
        round=record.spec.round + offset,
        noisy=campaign.noisy.get(record.spec.record_id, ()),
        read_code=lambda: campaign.read_code(record),
    )


def _process_values(trial: Trial) -> ProcessValues:
    try:
        return replace(from_record(trial.record, noisy=bool(trial.noisy)), round=trial.round)
    except ValueError as error:
        raise StatsError(f"{trial.record.spec.record_id}: {error}") from error


def mixtures(campaign: Campaign) -> list[str]:
    """What differs among the usable records although it must not when they are pooled.

    One line a key with every value found: versions, lock and code hashes, machine, threads,
    precision, weights (DESIGN: records may be pooled only when ... agree).
    """
    values: dict[str, set[str]] = {}
    for record in campaign.usable:
        for key, value in _must_agree(record).items():
            values.setdefault(key, set()).add(value)
    return [
        f"{key} differs: {', '.join(sorted(found))}"
        for key, found in sorted(values.items())
        if len(found) > 1
    ]


def _must_agree(record: Record) -> dict[str, str]:
    spec, made = record.spec, record.identity
    image = image_of(spec.stack)
    per_machine = {
        "code_hash": made.code_hash,
        "engine": made.engine,
        "cpu_model": made.cpu_model,
        "architecture": made.architecture,
        "effective_cpus": str(made.effective_cpus),
        "threads": str(made.threads),
        "compile_threads": str(made.compile_threads),
        "device": spec.device,
        "precision": spec.precision,
        "contract": spec.contract,
        "isa": spec.isa,
    }
    per_stack = {
        f"lock_hash of {image}": made.lock_hash,
        f"device of {image}": made.device_name,
        f"weights of {spec.model}": f"{spec.bundle} {spec.weights_sha256}".strip(),
    }
    versions = {f"{name} of {spec.stack}": text for name, text in made.versions.items()}
    return per_machine | per_stack | versions


#: How many files without a checksum are named one by one.
UNLISTED_SHOWN = 3


def untrusted(campaign: Campaign) -> list[str]:
    """What says that files of a campaign are not what was written, one line each."""
    faults = list(campaign.broken)
    if campaign.unlisted:
        shown = ", ".join(campaign.unlisted[:UNLISTED_SHOWN])
        more = len(campaign.unlisted) - UNLISTED_SHOWN
        told = f"{shown} and {more} more" if more > 0 else shown
        faults.append(f"{verified_words(campaign)}, no checksum of {told}")
    return faults


def verified_words(campaign: Campaign) -> str:
    """How many of the record files were read and are what `checksums.txt` says."""
    unlisted = sum(name.startswith(f"{RECORDS}/") for name in campaign.unlisted)
    total = len(campaign.records) + len(campaign.broken)
    return f"{len(campaign.records) - unlisted} of {total} records verified"


def why_unusable(campaign: Campaign) -> list[str]:
    """Why nothing may be computed from a campaign as a whole; empty when something may."""
    return [*mixtures(campaign), *untrusted(campaign)]


def lock_hashes(campaign: Campaign) -> dict[str, str]:
    """Image -> lock hash of the usable records; several are joined, which equals no other."""
    found: dict[str, set[str]] = {}
    for record in campaign.usable:
        found.setdefault(image_of(record.spec.stack), set()).add(record.identity.lock_hash)
    return {image: "+".join(sorted(hashes)) for image, hashes in sorted(found.items())}


def facts_of(campaign: Campaign, images: Iterable[str] | None = None) -> Facts:
    """The facts that decide the tier; a fact that is not one value counts as not recorded.

    `images` restricts the lock hash to those images, since a figure's campaign may lack one.
    """
    hashes = lock_hashes(campaign)
    chosen = sorted(hashes if images is None else set(images) & hashes.keys())
    return Facts(
        lock_hash=" ".join(f"{image}:{hashes[image]}" for image in chosen) or None,
        device_kind=_single(r.spec.device for r in campaign.usable),
        architecture=_single(r.identity.architecture for r in campaign.usable),
        isa_ceiling=_single(r.spec.isa for r in campaign.usable),
        cpus=_single(r.identity.effective_cpus for r in campaign.usable),
        threads=_single(r.identity.threads for r in campaign.usable),
        compile_threads=_single(r.identity.compile_threads for r in campaign.usable),
        precision=_single(r.spec.precision for r in campaign.usable),
        calibration_ms=dict(campaign.calibration_ms),
    )


def _single(values: Iterable[T]) -> T | None:
    found = set(values)
    return found.pop() if len(found) == 1 else None
