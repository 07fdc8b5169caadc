"""Table 7 (beyond the paper): every configuration of a cell side by side, and when it pays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from artifact.analysis.cost import BreakEven, break_even, cheapest_share, crossover_set
from artifact.analysis.fit import fit_of_record
from artifact.analysis.stats import StatsError
from artifact.study import Study
from artifact.tables.csv_text import interval_columns
from artifact.tables.sheet import Sheet, Text, mean_sd, number
from artifact.tables.source import (
    Block,
    Grid,
    Source,
    View,
    model_titles,
    noise_words,
    paper_blocks,
)

PAPER = "beyond the paper"
TITLE = "Every configuration side by side, with the n from which it pays against eager"
CAPTION = (
    "Times in ms, mean and sample sd over processes. T_C by boundary: native is the paper's window "
    "of the stack (fold left out), aligned runs from the evaluated model in memory to the first "
    "output (fold and one-time C++ tool chain included), process from the start of the process; "
    "native and aligned are also shown without the tool chain. p50 and p95 describe executions "
    "within a process. Pays: n from which the configuration is cheaper than eager (aligned), with "
    "its 95 % set (welch). Cheapest: per cent of resampled lines (aligned) in which it is the "
    "cheapest of its block at n = 1, 1000 and 1 000 000; descriptive, no probability. Goodness of "
    "fit of T_C + n T_X in the paper's window, over the trials: smallest R2 and largest relative "
    "error. Not settled: executions drift by over 5 %. First-sample outlier: the first timed "
    "execution took over 5 times the median; it is kept."
)
PUBLISHED = ()
GRID = Grid(paper_blocks())
EAGER = "eager"
#: Stands for every configuration of a block without any trial.
ALL = "all"
METHOD = "welch"
BOUNDARY = "aligned"

#: Numbers of executions at which the share of resampled lines is given.
SHARE_AT = (1, 1_000, 1_000_000)


@dataclass(frozen=True)
class ConfigurationRow:
    """One cell. Break-even is against eager; `pays` is a verdict of `cost.break_even`.

    `low` and `high` are the ends of the 95 % interval over processes. `quiet_*` leave noisy trials
    out: equal to the others without any, empty when all were noisy. `cheapest_share_<n>` is the
    share of resampled lines in which the configuration is cheapest of its block (descriptive;
    empty where a configuration has one process only). `fit_r2` is the smallest R2 and `fit_error`
    the largest relative error of T_C + n T_X in any trial, `not_settled` counts trials whose
    executions drift, `first_sample_outliers` those whose first timed execution stands out.
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
    native_low_ms: float | None = None
    native_high_ms: float | None = None
    native_without_toolchain_mean_ms: float | None = None
    native_without_toolchain_sd_ms: float | None = None
    native_without_toolchain_low_ms: float | None = None
    native_without_toolchain_high_ms: float | None = None
    aligned_mean_ms: float | None = None
    aligned_sd_ms: float | None = None
    aligned_low_ms: float | None = None
    aligned_high_ms: float | None = None
    aligned_without_toolchain_mean_ms: float | None = None
    aligned_without_toolchain_sd_ms: float | None = None
    aligned_without_toolchain_low_ms: float | None = None
    aligned_without_toolchain_high_ms: float | None = None
    process_mean_ms: float | None = None
    process_sd_ms: float | None = None
    process_low_ms: float | None = None
    process_high_ms: float | None = None
    process_without_toolchain_mean_ms: float | None = None
    process_without_toolchain_sd_ms: float | None = None
    process_without_toolchain_low_ms: float | None = None
    process_without_toolchain_high_ms: float | None = None
    toolchain_mean_ms: float | None = None
    fold_mean_ms: float | None = None
    latency_mean_ms: float | None = None
    latency_sd_ms: float | None = None
    latency_low_ms: float | None = None
    latency_high_ms: float | None = None
    latency_p50_ms: float | None = None
    latency_p95_ms: float | None = None
    quiet_processes: int | None = None
    quiet_native_mean_ms: float | None = None
    quiet_native_sd_ms: float | None = None
    quiet_native_low_ms: float | None = None
    quiet_native_high_ms: float | None = None
    quiet_aligned_mean_ms: float | None = None
    quiet_aligned_sd_ms: float | None = None
    quiet_aligned_low_ms: float | None = None
    quiet_aligned_high_ms: float | None = None
    quiet_process_mean_ms: float | None = None
    quiet_process_sd_ms: float | None = None
    quiet_process_low_ms: float | None = None
    quiet_process_high_ms: float | None = None
    quiet_latency_mean_ms: float | None = None
    quiet_latency_sd_ms: float | None = None
    quiet_latency_low_ms: float | None = None
    quiet_latency_high_ms: float | None = None
    pays: str = ""
    break_even_n: float | None = None
    break_even_set: str = ""
    native_pays: str = ""
    native_break_even_n: float | None = None
    cheapest_share_1: float | None = None
    cheapest_share_1000: float | None = None
    cheapest_share_1000000: float | None = None
    fit_r2: float | None = None
    fit_error: float | None = None
    not_settled: int = 0
    first_sample_outliers: int = 0
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
        shares = _shares(source, block, names)
        made += [_row(source, block, name, shares.get(name, {})) for name in names]
    return made


def _shares(source: Source, block: Block, names: Sequence[str]) -> dict[str, dict[str, float]]:
    """Configuration -> its columns `cheapest_share_<n>`; empty where one has a single process."""
    views = {name: source.view((*block, name)) for name in names}
    points = {name: view.points(BOUNDARY) for name, view in views.items() if view is not None}
    if not points or any(len(processes) < 2 for processes in points.values()):
        return {}
    shares = cheapest_share(points, SHARE_AT).shares
    return {
        name: {f"cheapest_share_{n}": share for n, share in zip(SHARE_AT, found, strict=True)}
        for name, found in shares.items()
    }


def _row(source: Source, block: Block, name: str, shares: Mapping[str, Any]) -> ConfigurationRow:
    cell = (*block, name)
    view, eager = source.view(cell), source.view((*block, EAGER))
    if view is None or view.estimate is None:
        return ConfigurationRow(source.label, *cell, "", 0, 0, note=source.why_absent(cell))
    aligned, native = (_pays(view, eager, boundary) for boundary in (BOUNDARY, "native"))
    fit, fit_fault = _fit(view)
    return replace(
        ConfigurationRow(source.label, *cell, view.binding, view.n, view.noisy),
        **_times(view),
        **_quiet(view.quiet),
        pays=aligned.verdict if aligned else "",
        break_even_n=aligned.n if aligned else None,
        break_even_set=_set(view, eager) if aligned else "",
        native_pays=native.verdict if native else "",
        native_break_even_n=native.n if native else None,
        **shares,
        **fit,
        first_sample_outliers=view.first_sample_outliers,
        note=_note(view, eager, name) or fit_fault,
    )


def _times(view: View) -> dict[str, Any]:
    """The columns of T_C by boundary, with and without the tool chain, and of T_X."""
    if view.estimate is None:
        return {}
    metrics = view.estimate.all
    native, fixed = metrics.compile_cost_ms, metrics.fixed_cost_ms
    bare = metrics.compile_cost_without_toolchain_ms
    bare_fixed = metrics.fixed_cost_without_toolchain_ms
    return {
        **interval_columns("native", native["native"]),
        **interval_columns("native_without_toolchain", bare["native"]),
        **interval_columns("aligned", fixed["aligned"]),
        **interval_columns("aligned_without_toolchain", bare_fixed["aligned"]),
        **interval_columns("process", fixed["process"]),
        **interval_columns("process_without_toolchain", bare_fixed["process"]),
        "toolchain_mean_ms": metrics.toolchain_ms.mean,
        "fold_mean_ms": metrics.fold_ms.mean,
        **interval_columns("latency", metrics.latency_ms),
        "latency_p50_ms": metrics.within_process.p50_ms,
        "latency_p95_ms": metrics.within_process.p95_ms,
    }


def _quiet(view: View | None) -> dict[str, Any]:
    """The columns `quiet_*` of a cell without its noisy trials."""
    if view is None:
        return {}
    return {
        "quiet_processes": view.n,
        **interval_columns("quiet_native", view.compile_cost_ms["native"]),
        **interval_columns("quiet_aligned", view.fixed_cost_ms["aligned"]),
        **interval_columns("quiet_process", view.fixed_cost_ms["process"]),
        **interval_columns("quiet_latency", view.latency_ms),
    }


def _fit(view: View) -> tuple[dict[str, Any], str]:
    """The columns of goodness of fit over all trials, and what is at fault where there is none."""
    try:
        fits = [fit_of_record(record) for record in view.records]
    except StatsError as error:
        return {}, f"no goodness of fit: {error}"
    determined = [fit.r2 for fit in fits if fit.r2 is not None]
    return {
        "fit_r2": min(determined, default=None),
        "fit_error": max(fit.largest_relative_error for fit in fits),
        "not_settled": sum(fit.not_settled for fit in fits),
    }, ""


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
        "T_C native", "T_C native, no tool chain", "T_C aligned", "T_C aligned, no tool chain",
        "T_C process", "T_X", "p50", "p95", "pays", "95 % set of n",
        "cheapest (%) at n = 1, 1k, 1M", "R2", "fit error (%)", "not settled",
        "first-sample outlier",
    )  # fmt: skip
    body = tuple(_line(row) for row in rows if row.configuration != ALL)
    missing = [f"{row.model} {row.input}" for row in rows if row.configuration == ALL]
    notes = [CAPTION]
    if missing:
        notes.append(f"Not measured: {', '.join(missing)}.")
    notes += noise_words(sum(row.noisy for row in rows), sum(row.processes for row in rows))
    if any(row.note.startswith("contracts differ") for row in rows):
        notes.append(
            "Binding frozen: the compiler knew the weights; eager does not (contracts differ)."
        )
    return Sheet(headings, body, (*notes, f"Source: {rows[0].source}."))


def _line(row: ConfigurationRow) -> tuple[Text, ...]:
    names = [model_titles().get(row.model, row.model), row.input, row.configuration, row.binding]
    if row.latency_mean_ms is None:
        return tuple(Text(t) for t in [*names, "0", row.note, *[""] * 14])
    n = row.processes
    texts = [
        *names,
        str(n),
        mean_sd(row.native_mean_ms, row.native_sd_ms, n),
        mean_sd(row.native_without_toolchain_mean_ms, row.native_without_toolchain_sd_ms, n),
        mean_sd(row.aligned_mean_ms, row.aligned_sd_ms, n),
        mean_sd(row.aligned_without_toolchain_mean_ms, row.aligned_without_toolchain_sd_ms, n),
        mean_sd(row.process_mean_ms, row.process_sd_ms, n),
        mean_sd(row.latency_mean_ms, row.latency_sd_ms, n),
        number(row.latency_p50_ms),
        number(row.latency_p95_ms),
        _pays_words(row),
        row.break_even_set,
        _share_words(row),
        "" if row.fit_r2 is None else f"{row.fit_r2:.4f}",
        "" if row.fit_error is None else f"{100 * row.fit_error:.1f}",
        "" if row.fit_error is None else f"{row.not_settled} of {n}",
        f"{row.first_sample_outliers} of {n}",
    ]
    return tuple(Text(text) for text in texts)


def _share_words(row: ConfigurationRow) -> str:
    shares = (row.cheapest_share_1, row.cheapest_share_1000, row.cheapest_share_1000000)
    return ", ".join(f"{100 * share:.0f}" for share in shares if share is not None)


def _pays_words(row: ConfigurationRow) -> str:
    if row.configuration == EAGER:
        return "-"
    if row.break_even_n is None:
        return row.pays or row.note
    return f"{row.pays.replace('-n', '')} n = {row.break_even_n:.0f}"
