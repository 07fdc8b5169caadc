"""What figures and tables are drawn from: cells of a campaign, of a reference, or of the paper.

A `Source` holds one `View` for every cell that has usable trials, and words for those that have
none. Figures and tables are pure functions of it, whatever it was made from. Times are ms.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from artifact.analysis import published
from artifact.analysis.cost import Line, ProcessPoint
from artifact.analysis.estimates import CellEstimate, ProcessValues, estimate_cell
from artifact.analysis.evidence import Campaign, Cell, Evidence
from artifact.analysis.published import PublishedTiming
from artifact.analysis.stats import Interval, StatsError, process_interval
from artifact.records import Record
from artifact.study import Profile, Study
from artifact.study import load as load_study

#: (model, input)
Block = tuple[str, str]

NOT_MEASURED = "not measured"
UNSUPPORTED = "n/a (unsupported)"
NOT_PUBLISHED = "not in the paper"

#: The paper's campaigns that hold its grid of cells (`expected/published/timings.csv`).
PAPER_GRID = ("resnet", "transformer")

#: The variants of `expected/published/units.csv` that the paper's own counts are of.
PUBLISHED_VARIANTS = {
    "fused_inductor": "inductor",
    "fused_fold_inductor": "inductor-fold",
    "fused_jit_optimized": "xla",
    "fused": "tvm",
}


@dataclass(frozen=True)
class Units:
    """Static counts of the program that one process generated; None where no number is given."""

    internal: int | None
    external: int | None
    code_bytes: int

    @property
    def total(self) -> int | None:
        """Call-like units, internal and external (paper, section on units)."""
        if self.internal is None or self.external is None:
            return None
        return self.internal + self.external


@dataclass(frozen=True)
class View:
    """One cell as figures and tables show it.

    `compile_cost_ms` and `fixed_cost_ms` (the fold in it once) map a boundary to an interval over
    processes; the paper has `native` only. `units` are in round order, one a process that has a
    census (one in all for the paper). `estimate` and `records` are there for measured cells only.
    """

    cell: Cell
    noisy: int
    compile_cost_ms: Mapping[str, Interval]
    fixed_cost_ms: Mapping[str, Interval]
    latency_ms: Interval
    fold_ms: Interval | None
    processes: tuple[ProcessValues, ...]
    units: tuple[Units, ...]
    estimate: CellEstimate | None = None
    records: tuple[Record, ...] = ()

    @property
    def n(self) -> int:
        """Number of processes."""
        return self.latency_ms.n

    @property
    def binding(self) -> str:
        """Whether the compiler knew the weights: frozen or runtime; empty where nobody says."""
        return self.records[0].spec.binding if self.records else ""

    @property
    def first_sample_outliers(self) -> int:
        """Trials whose first timed execution is flagged (case K9); they are kept."""
        return sum(record.first_sample_outlier for record in self.records)

    @property
    def quiet(self) -> View | None:
        """The same cell without its noisy trials; None when all were noisy, or nobody says."""
        if self.estimate is None or self.noisy == self.n:
            return None
        if not self.noisy:
            return self
        both = zip(self.processes, self.records, strict=True)
        kept = [(process, record) for process, record in both if not process.noisy]
        return _measured_view(self.cell, [p for p, _ in kept], tuple(r for _, r in kept))

    def line(self, boundary: str) -> Line:
        """The cost line through the means; it starts at zero where noise put T_C below."""
        return Line(max(0.0, self.fixed_cost_ms[boundary].mean), self.latency_ms.mean)

    def points(self, boundary: str) -> tuple[ProcessPoint, ...]:
        """Fixed cost and T_X of every process."""
        return tuple(process.point(boundary) for process in self.processes)


@dataclass(frozen=True)
class Source:
    """Cells to draw from. `label` says what they are, and stands in every row.

    `units` holds counts of cells that have no times here (the paper's census). `paired` says
    whether rounds pair processes in time; in the paper they do not.
    """

    label: str
    views: Mapping[Cell, View]
    absent: Mapping[Cell, str]
    units: Mapping[Cell, tuple[Units, ...]]
    otherwise: str = NOT_MEASURED
    paired: bool = True

    def view(self, cell: Cell) -> View | None:
        """The cell's view, or None when it has no usable trial."""
        return self.views.get(cell)

    def why_absent(self, cell: Cell) -> str:
        """Words for a cell without usable trials."""
        return self.absent.get(cell, self.otherwise)

    def configurations(self, study: Study, block: Block) -> list[str]:
        """The configurations that this source knows of for a block, in the study's order."""
        return [
            name
            for name in study.configurations
            if (*block, name) in self.views or (*block, name) in self.absent
        ]

    def units_of(self, cell: Cell) -> tuple[Units, ...]:
        """Static counts of the cell's programs; empty without a census."""
        view = self.views.get(cell)
        return view.units if view else self.units.get(cell, ())


def of_evidence(evidence: Evidence, label: str) -> Source:
    """The cells of one campaign. Values that are no times make their cell absent, with words."""
    views: dict[Cell, View] = {}
    absent = _absent(evidence.campaign) if evidence.campaign else {}
    for cell, trials in evidence.cells.items():
        records = tuple(trial.record for trial in trials)
        try:
            views[cell] = _measured_view(cell, evidence.processes(cell), records)
        except StatsError as error:
            absent[cell] = f"faulty: {error}"
    return Source(label, views, absent, {})


def _absent(campaign: Campaign) -> dict[Cell, str]:
    """Why planned cells without a usable trial have none (case N2: never a missing row)."""
    ended: dict[Cell, Counter[str]] = {}
    for record in campaign.records:
        if record.spec.role == "measured":
            spec = record.spec
            ended.setdefault((spec.model, spec.input, spec.configuration), Counter())[
                record.status
            ] += 1
    words = dict.fromkeys(campaign.planned_trials, NOT_MEASURED)
    for cell, statuses in ended.items():
        counted = ", ".join(f"{count} {status}" for status, count in sorted(statuses.items()))
        words[cell] = (
            UNSUPPORTED if set(statuses) == {"unsupported"} else f"no usable trial: {counted}"
        )
    return words


def _measured_view(
    cell: Cell, processes: Sequence[ProcessValues], records: tuple[Record, ...]
) -> View:
    estimate = estimate_cell(processes)
    metrics = estimate.all
    counted = [record.census for record in records if record.census is not None]
    return View(
        cell=cell,
        noisy=estimate.noisy,
        compile_cost_ms=metrics.compile_cost_ms,
        fixed_cost_ms=metrics.fixed_cost_ms,
        latency_ms=metrics.latency_ms,
        fold_ms=metrics.fold_ms if metrics.fold_ms.mean else None,
        processes=tuple(processes),
        units=tuple(Units(c.internal, c.external, c.code_bytes) for c in counted),
        estimate=estimate,
        records=records,
    )


def of_paper(campaigns: Sequence[str], directory: Path = published.DEFAULT_DIRECTORY) -> Source:
    """The paper's numbers of the named campaigns of `timings.csv`, and its static counts."""
    found: dict[Cell, dict[str, PublishedTiming]] = {}
    for row in published.timings(directory):
        if row.campaign in campaigns:
            found.setdefault((row.model, row.input, row.configuration), {})[row.metric] = row
    return Source(
        label="published: Kamei and Costa 2026 (RTX 3050)",
        views={cell: _published_view(cell, rows) for cell, rows in found.items()},
        absent={},
        units=_published_units(directory),
        otherwise=NOT_PUBLISHED,
        paired=False,
    )


def _published_view(cell: Cell, rows: Mapping[str, PublishedTiming]) -> View:
    compile_ms, latency_ms, fold_ms = rows["compile_ms"], rows["exec_ms"], rows.get("fold_ms")
    folds = fold_ms.process_values if fold_ms else (0.0,) * compile_ms.k
    values = zip(compile_ms.process_values, folds, latency_ms.process_values, strict=True)
    processes = tuple(
        ProcessValues(number, {"native": t_c}, 0.0, fold, t_x, (t_x,))
        for number, (t_c, fold, t_x) in enumerate(values, start=1)
    )
    # The interval comes from the process values (four decimals), the mean is the one printed.
    fixed = process_interval([process.fixed_cost_ms("native") for process in processes])
    mean_ms = compile_ms.mean + (fold_ms.mean if fold_ms else 0.0)
    return View(
        cell=cell,
        noisy=0,
        compile_cost_ms={"native": _published_interval(compile_ms)},
        fixed_cost_ms={"native": replace(fixed, mean=mean_ms)},
        latency_ms=_published_interval(latency_ms),
        fold_ms=_published_interval(fold_ms) if fold_ms else None,
        processes=processes,
        units=_published_units(published.DEFAULT_DIRECTORY).get(cell, ()),
    )


def _published_interval(row: PublishedTiming) -> Interval:
    if row.sd is None or row.ci95_half is None:
        return Interval(row.mean, None, None, None, row.k, "the paper gives the mean only")
    return Interval(row.mean, row.sd, row.mean - row.ci95_half, row.mean + row.ci95_half, row.k)


@lru_cache(maxsize=8)
def _published_units(directory: Path) -> Mapping[Cell, tuple[Units, ...]]:
    return {
        (row.model, row.input, PUBLISHED_VARIANTS[row.variant]): (
            Units(row.internal, row.external, row.code_bytes),
        )
        for row in published.units(directory)
        if row.variant in PUBLISHED_VARIANTS
    }


def noise_words(noisy: int, total: int) -> list[str]:
    """How many of the trials behind a table were noisy; nothing when none was."""
    words = f"{noisy} of {total} trials were noisy; they are included"
    return [f"{words}, the CSV has the same without them."] if noisy else []


def contracts_differ(bindings: Mapping[str, str]) -> str:
    """Words for configurations compared within one window that bind weights differently.

    `bindings` maps a name as shown to `frozen` or `runtime`; empty words where all are equal.
    """
    frozen = [name for name, binding in bindings.items() if binding == "frozen"]
    if len(set(bindings.values()) - {""}) < 2:
        return ""
    return f"contracts differ (weights frozen: {' and '.join(frozen)})"


# --- which cells belong to a figure or table ------------------------------------------------------
@dataclass(frozen=True)
class Grid:
    """The cells of a figure or table: the paper's blocks and the configurations to compare.

    A block that is not in the paper's grid at all (profile `smoke`) belongs to it as well when its
    model has the architecture of one of `blocks`. Empty `configurations` means all.
    """

    blocks: tuple[Block, ...]
    configurations: tuple[str, ...] = ()

    def cells(self, study: Study, profile_name: str) -> list[Cell]:
        """The cells of a profile that are needed, in the profile's order."""
        return [
            cell
            for cell in _profile_cells(study, study.profile(profile_name))
            if self.needs(study, cell)
        ]

    def shown(self, study: Study, source: Source) -> list[Block]:
        """The paper's blocks, measured or not, and then the source's own ones."""
        extra = {cell[:2] for cell in source.views if self.needs(study, cell)}
        return [*self.blocks, *sorted(extra - set(self.blocks))]

    def measured(self, study: Study, source: Source) -> list[Block]:
        """Those of `shown` that have a usable trial."""
        have = {cell[:2] for cell in source.views}
        return [block for block in self.shown(study, source) if block in have]

    def needs(self, study: Study, cell: Cell) -> bool:
        """Whether the cell is one to show."""
        model, shape, configuration = cell
        if self.configurations and configuration not in self.configurations:
            return False
        if (model, shape) in self.blocks:
            return True
        architectures = {study.models[name].architecture for name, _ in self.blocks}
        outside = (model, shape) not in paper_blocks()
        return (
            outside and model in study.models and study.models[model].architecture in architectures
        )


@lru_cache(maxsize=1)
def paper_blocks() -> tuple[Block, ...]:
    """The (model, input) pairs of the paper's grid, in its order."""
    return tuple(published.cells(PAPER_GRID))


def blocks_of(*models: str) -> tuple[Block, ...]:
    """The paper's blocks of the named models."""
    return tuple(block for block in paper_blocks() if block[0] in models)


@lru_cache(maxsize=1)
def model_titles() -> Mapping[str, str]:
    """Model id -> its title in the study."""
    return {name: model.title for name, model in load_study().models.items()}


def _profile_cells(study: Study, profile: Profile) -> Iterable[Cell]:
    for choice in profile.blocks:
        inputs = study.models[choice.model].inputs if choice.inputs == ("*",) else choice.inputs
        for shape in inputs:
            for configuration in choice.configurations:
                yield choice.model, shape, configuration
