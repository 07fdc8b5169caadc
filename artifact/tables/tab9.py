"""Table 9 (beyond the paper): every way to fold Conv-BatchNorm with Inductor, side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from artifact.analysis.cost import BreakEven, break_even, crossover_set
from artifact.analysis.stats import Interval, process_interval
from artifact.study import Study
from artifact.tables.sheet import Sheet, Text, mean_sd, number
from artifact.tables.source import Block, Grid, Source, View, blocks_of, model_titles

PAPER = "beyond the paper"
TITLE = "Plain, offline fold, guarded pass, freezing and bn-eval in Inductor"
CAPTION = (
    "Times in ms, mean and sample sd over processes. T_C native is the paper's window, without the "
    "offline fold; T_C aligned runs from the evaluated model in memory to the first output, fold "
    "included, and is also shown without the one-time C++ tool chain. Fold time: the offline fold "
    "lies before T_C native, the guard's within it; Inductor does not time its own. Pays: n from "
    "which the configuration is cheaper than eager (aligned), with its 95 % set (welch)."
)
PUBLISHED = ()
EAGER, PLAIN = "eager", "inductor"
#: What the table names each way to fold.
WAYS = {
    PLAIN: "plain",
    "inductor-fold": "offline fold",
    "inductor-guard": "guard",
    "inductor-freeze": "freezing",
    "inductor-bneval": "bn-eval",
}
GRID = Grid(blocks_of("resnet18", "resnet50"), (EAGER, *WAYS))
PROFILE = "folds"
BOUNDARY, METHOD = "aligned", "welch"
#: Said where a route's trials do not say themselves what it guards against.
NOTHING_FOLDED = "nothing folded, nothing to guard"
OFFLINE_GUARDS = "none: a changed parameter needs a new fold and a new compilation"
DIFFER = "contracts differ"


@dataclass(frozen=True)
class FoldRow:
    """One way to fold in one block; times in ms.

    `fold_within` says whether `fold_mean_ms` is part of T_C native. `unit` is what `folded` counts.
    `guards` are the words of the trial itself, where it has any. `pays` is a verdict of
    `cost.break_even` against eager, `binding` whether the compiler knew the weights, `contract` is
    "contracts differ" where that is not so for the plain configuration or eager.
    """

    source: str
    model: str
    input: str
    configuration: str
    way: str
    binding: str = ""
    processes: int = 0
    noisy: int = 0
    native_mean_ms: float | None = None
    native_sd_ms: float | None = None
    aligned_mean_ms: float | None = None
    aligned_sd_ms: float | None = None
    aligned_without_toolchain_mean_ms: float | None = None
    aligned_without_toolchain_sd_ms: float | None = None
    toolchain_mean_ms: float | None = None
    latency_mean_ms: float | None = None
    latency_sd_ms: float | None = None
    fold_mean_ms: float | None = None
    fold_sd_ms: float | None = None
    fold_within: bool | None = None
    folded: int | None = None
    unit: str = ""
    guards: str = ""
    pays: str = ""
    break_even_n: float | None = None
    break_even_set: str = ""
    contract: str = ""
    note: str = ""


ROW = FoldRow


def rows(study: Study, source: Source) -> list[FoldRow]:
    """One row per way to fold of every block with a usable trial, measured or not."""
    return [_row(source, block, name) for block in GRID.measured(study, source) for name in WAYS]


def _row(source: Source, block: Block, name: str) -> FoldRow:
    cell = (*block, name)
    view, eager = source.view(cell), source.view((*block, EAGER))
    if view is None or view.estimate is None:
        return FoldRow(source.label, *cell, WAYS[name], note=source.why_absent(cell))
    metrics = view.estimate.all
    warm = metrics.fixed_cost_without_toolchain_ms[BOUNDARY]
    fold, within = _fold_ms(view)
    folded, unit, guards = _said(view)
    pays = _pays(view, eager)
    return FoldRow(
        source.label,
        *cell,
        WAYS[name],
        binding=_binding(view),
        processes=view.n,
        noisy=view.noisy,
        native_mean_ms=metrics.compile_cost_ms["native"].mean,
        native_sd_ms=metrics.compile_cost_ms["native"].sd,
        aligned_mean_ms=metrics.fixed_cost_ms[BOUNDARY].mean,
        aligned_sd_ms=metrics.fixed_cost_ms[BOUNDARY].sd,
        aligned_without_toolchain_mean_ms=warm.mean,
        aligned_without_toolchain_sd_ms=warm.sd,
        toolchain_mean_ms=metrics.toolchain_ms.mean,
        latency_mean_ms=metrics.latency_ms.mean,
        latency_sd_ms=metrics.latency_ms.sd,
        fold_mean_ms=fold.mean if fold else None,
        fold_sd_ms=fold.sd if fold else None,
        fold_within=within,
        folded=folded,
        unit=unit,
        guards=guards,
        pays=pays.verdict if pays else "",
        break_even_n=pays.n if pays else None,
        break_even_set=_set(view, eager),
        contract=_contract(view, source.view((*block, PLAIN)), eager),
        note="" if eager else "eager was not measured",
    )


def _binding(view: View) -> str:
    return view.records[0].spec.binding


def _fold_ms(view: View) -> tuple[Interval | None, bool | None]:
    """Time of the fold and whether it is part of T_C native; None where nobody measures it."""
    if view.fold_ms is not None:
        return view.fold_ms, False
    reported = [_route(record.facts).get("fold_ms") for record in view.records]
    times_ms = [float(ms) for ms in reported if isinstance(ms, (int, float))]
    if len(times_ms) < len(reported):
        return None, None
    return process_interval(times_ms), True


def _route(facts: Mapping[str, Any]) -> Mapping[str, Any]:
    found = facts.get("route")
    return found if isinstance(found, Mapping) else {}


def _said(view: View) -> tuple[int | None, str, str]:
    """What the first trial says: how many were folded, of what, and what guards them."""
    facts = view.records[0].facts
    route, fold = _route(facts), facts.get("fold")
    if route:
        return route.get("folded"), str(route.get("unit", "")), str(route.get("guards", ""))
    if isinstance(fold, Mapping) and fold:
        return fold.get("folded"), "BatchNorm", OFFLINE_GUARDS
    return None, "", NOTHING_FOLDED


def _pays(view: View, eager: View | None) -> BreakEven | None:
    return None if eager is None else break_even(view.line(BOUNDARY), eager.line(BOUNDARY))


def _set(view: View, eager: View | None) -> str:
    if eager is None:
        return ""
    return crossover_set(eager.points(BOUNDARY), view.points(BOUNDARY), METHOD).words


def _contract(view: View, plain: View | None, eager: View | None) -> str:
    """Aligned comparisons pair equal bindings; others are said (DESIGN, a trial)."""
    others = {_binding(other) for other in (plain, eager) if other is not None}
    return DIFFER if others - {_binding(view)} else ""


def sheet(rows: Sequence[FoldRow]) -> Sheet:
    """One line a way to fold, blocks one below the other."""
    headings = (
        "model", "input", "way", "binding", "n", "T_C native", "T_C aligned",
        "T_C aligned, no tool chain", "T_X", "fold", "folded", "guards", "pays", "95 % set of n",
    )  # fmt: skip
    noisy, total = sum(row.noisy for row in rows), sum(row.processes for row in rows)
    notes = [CAPTION]
    if any(row.contract for row in rows):
        notes.append(
            f"{DIFFER.capitalize()}: the compiler knew the weights of this configuration, which "
            "the plain one and eager take at run time; only T_C and T_X of one binding compare."
        )
    if noisy:
        notes.append(f"{noisy} of {total} trials were noisy; they are included.")
    if any(row.latency_mean_ms is None for row in rows):
        notes.append(f"The profile `{PROFILE}` measures every way to fold.")
    if any(row.note == "eager was not measured" for row in rows):
        notes.append("Where eager was not measured, nothing is said to pay.")
    body = tuple(tuple(Text(text) for text in _line(row)) for row in rows)
    return Sheet(headings, body, (*notes, f"Source: {rows[0].source}."))


def _line(row: FoldRow) -> list[str]:
    names = [model_titles().get(row.model, row.model), row.input, row.way]
    if row.latency_mean_ms is None:
        return [*names, "", "0", row.note, *[""] * 8]
    n = row.processes
    return [
        *names,
        f"{row.binding} ({row.contract})" if row.contract else row.binding,
        str(n),
        mean_sd(row.native_mean_ms, row.native_sd_ms, n),
        mean_sd(row.aligned_mean_ms, row.aligned_sd_ms, n),
        mean_sd(row.aligned_without_toolchain_mean_ms, row.aligned_without_toolchain_sd_ms, n),
        mean_sd(row.latency_mean_ms, row.latency_sd_ms, n),
        _fold_words(row),
        "-" if row.folded is None else f"{row.folded} ({row.unit})",
        row.guards,
        _pays_words(row),
        row.break_even_set,
    ]


def _fold_words(row: FoldRow) -> str:
    if row.fold_mean_ms is None:
        return "-" if row.folded is None else "not timed"
    where = "within T_C" if row.fold_within else "before T_C native"
    return f"{number(row.fold_mean_ms)} ({where})"


def _pays_words(row: FoldRow) -> str:
    if row.break_even_n is None:
        return row.pays or "-"
    return f"{row.pays.replace('-n', '')} n = {row.break_even_n:.0f}"
