"""Table 7 (beyond the paper): every configuration of a cell side by side, and when it pays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from artifact.analysis.cost import BreakEven, break_even, crossover_set
from artifact.analysis.fit import fit_of_record
from artifact.analysis.stats import StatsError
from artifact.study import Study
from artifact.tables.sheet import Sheet, Text, mean_sd, number
from artifact.tables.source import Block, Grid, Source, View, model_titles, paper_blocks

PAPER = "beyond the paper"
TITLE = "Every configuration side by side, with the n from which it pays against eager"
CAPTION = (
    "Times in ms, mean and sample sd over processes. T_C by boundary: native is the paper's window "
    "of the stack (fold left out), aligned runs from the evaluated model in memory to the first "
    "output (fold and one-time C++ tool chain included; also shown without it), process "
    "from the start of the process. p50 and p95 describe executions within a process. Pays: n from "
    "which the configuration is cheaper than eager (aligned), with its 95 % set (welch)."
)
PUBLISHED = ()
GRID = Grid(paper_blocks())
EAGER = "eager"
#: Stands for every configuration of a block without any trial.
ALL = "all"
METHOD = "welch"
BOUNDARY = "aligned"


@dataclass(frozen=True)
class ConfigurationRow:
    """One cell. Break-even is against eager; `pays` is a verdict of `cost.break_even`.

    `quiet_*` leave noisy trials out (empty when all were noisy). `fit_error` is the largest
    relative error of T_C + n T_X in any trial, `not_settled` counts trials whose executions drift.
    `binding` tells whether the compiler knew the weights; eager's is `runtime`.
    """

    source: str
    model: str
    input: str
    configuration: str
    binding: str
    processes: int
    noisy: int
    native_mean_ms: float | None = None
    native_sd_ms: float | None = None
    aligned_mean_ms: float | None = None
    aligned_sd_ms: float | None = None
    aligned_without_toolchain_mean_ms: float | None = None
    aligned_without_toolchain_sd_ms: float | None = None
    process_mean_ms: float | None = None
    process_sd_ms: float | None = None
    fold_mean_ms: float | None = None
    latency_mean_ms: float | None = None
    latency_sd_ms: float | None = None
    latency_p50_ms: float | None = None
    latency_p95_ms: float | None = None
    quiet_aligned_mean_ms: float | None = None
    quiet_latency_mean_ms: float | None = None
    pays: str = ""
    break_even_n: float | None = None
    break_even_set: str = ""
    native_pays: str = ""
    native_break_even_n: float | None = None
    fit_error: float | None = None
    not_settled: int = 0
    note: str = ""


ROW = ConfigurationRow


def rows(study: Study, source: Source) -> list[ConfigurationRow]:
    """One row per configuration of every block that the source knows of."""
    made = []
    for block in GRID.shown(study, source):
        names = source.configurations(study, block)
        if not names:
            words = source.why_absent((*block, ""))
            made.append(ConfigurationRow(source.label, *block, ALL, "", 0, 0, note=words))
        made += [_row(source, block, name) for name in names]
    return made


def _row(source: Source, block: Block, name: str) -> ConfigurationRow:
    cell = (*block, name)
    view, eager = source.view(cell), source.view((*block, EAGER))
    if view is None or view.estimate is None:
        return ConfigurationRow(source.label, *cell, "", 0, 0, note=source.why_absent(cell))
    metrics, quiet = view.estimate.all, view.estimate.quiet
    warm = metrics.fixed_cost_without_toolchain_ms[BOUNDARY]
    aligned, native = (_pays(view, eager, boundary) for boundary in (BOUNDARY, "native"))
    fit_error, not_settled, fit_fault = _fit(view)
    return ConfigurationRow(
        source.label,
        *cell,
        binding=view.records[0].spec.binding,
        processes=view.n,
        noisy=view.noisy,
        native_mean_ms=metrics.compile_cost_ms["native"].mean,
        native_sd_ms=metrics.compile_cost_ms["native"].sd,
        aligned_mean_ms=metrics.fixed_cost_ms[BOUNDARY].mean,
        aligned_sd_ms=metrics.fixed_cost_ms[BOUNDARY].sd,
        aligned_without_toolchain_mean_ms=warm.mean,
        aligned_without_toolchain_sd_ms=warm.sd,
        process_mean_ms=metrics.fixed_cost_ms["process"].mean,
        process_sd_ms=metrics.fixed_cost_ms["process"].sd,
        fold_mean_ms=metrics.fold_ms.mean,
        latency_mean_ms=metrics.latency_ms.mean,
        latency_sd_ms=metrics.latency_ms.sd,
        latency_p50_ms=metrics.within_process.p50_ms,
        latency_p95_ms=metrics.within_process.p95_ms,
        quiet_aligned_mean_ms=quiet.fixed_cost_ms[BOUNDARY].mean if quiet else None,
        quiet_latency_mean_ms=quiet.latency_ms.mean if quiet else None,
        pays=aligned.verdict if aligned else "",
        break_even_n=aligned.n if aligned else None,
        break_even_set=_set(view, eager) if aligned else "",
        native_pays=native.verdict if native else "",
        native_break_even_n=native.n if native else None,
        fit_error=fit_error,
        not_settled=not_settled,
        note=_note(view, eager, name) or fit_fault,
    )


def _fit(view: View) -> tuple[float | None, int, str]:
    """Largest relative error of the line in any trial, trials that drift, and what is at fault."""
    try:
        fits = [fit_of_record(record) for record in view.records]
    except StatsError as error:
        return None, 0, f"no goodness of fit: {error}"
    worst = max(fit.largest_relative_error for fit in fits)
    return worst, sum(fit.not_settled for fit in fits), ""


def _pays(view: View, eager: View | None, boundary: str) -> BreakEven | None:
    """Break-even against eager; None for eager itself and without eager."""
    if eager is None or view is eager:
        return None
    return break_even(view.line(boundary), eager.line(boundary))


def _set(view: View, eager: View | None) -> str:
    if eager is None:
        return ""
    return crossover_set(eager.points(BOUNDARY), view.points(BOUNDARY), METHOD).words


def _note(view: View, eager: View | None, name: str) -> str:
    if name == EAGER:
        return ""
    if eager is None:
        return "eager was not measured"
    same = eager.records[0].spec.binding == view.records[0].spec.binding
    return "" if same else "contracts differ: the weights are frozen, eager's are not"


def sheet(rows: Sequence[ConfigurationRow]) -> Sheet:
    """One line a configuration, blocks one below the other."""
    headings = (
        "model", "input", "configuration", "binding", "n",
        "T_C native", "T_C aligned", "T_C aligned, no tool chain", "T_C process",
        "T_X", "p50", "p95", "pays", "95 % set of n", "fit error (%)",
    )  # fmt: skip
    body = tuple(_line(row) for row in rows if row.configuration != ALL)
    missing = [f"{row.model} {row.input}" for row in rows if row.configuration == ALL]
    noisy, total = sum(row.noisy for row in rows), sum(row.processes for row in rows)
    notes = [CAPTION]
    if missing:
        notes.append(f"Not measured: {', '.join(missing)}.")
    if noisy:
        notes.append(f"{noisy} of {total} trials were noisy; the CSV has means without them.")
    if any(row.note.startswith("contracts differ") for row in rows):
        notes.append(
            "Binding frozen: the compiler knew the weights; eager does not (contracts differ)."
        )
    return Sheet(headings, body, (*notes, f"Source: {rows[0].source}."))


def _line(row: ConfigurationRow) -> tuple[Text, ...]:
    names = [model_titles().get(row.model, row.model), row.input, row.configuration, row.binding]
    if row.latency_mean_ms is None:
        return tuple(Text(t) for t in [*names, "0", row.note, *[""] * 9])
    n = row.processes
    texts = [
        *names,
        str(n),
        mean_sd(row.native_mean_ms, row.native_sd_ms, n),
        mean_sd(row.aligned_mean_ms, row.aligned_sd_ms, n),
        mean_sd(row.aligned_without_toolchain_mean_ms, row.aligned_without_toolchain_sd_ms, n),
        mean_sd(row.process_mean_ms, row.process_sd_ms, n),
        mean_sd(row.latency_mean_ms, row.latency_sd_ms, n),
        number(row.latency_p50_ms),
        number(row.latency_p95_ms),
        _pays_words(row),
        row.break_even_set,
        "" if row.fit_error is None else f"{100 * row.fit_error:.1f}",
    ]
    return tuple(Text(text) for text in texts)


def _pays_words(row: ConfigurationRow) -> str:
    if row.configuration == EAGER:
        return "-"
    if row.break_even_n is None:
        return row.pays or row.note
    return f"{row.pays.replace('-n', '')} n = {row.break_even_n:.0f}"
