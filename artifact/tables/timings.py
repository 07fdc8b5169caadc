"""T_C and T_X of three stacks, mean +- sd (tab1, tab2, tab3): rows and layout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from artifact.analysis.stats import Interval
from artifact.study import Study
from artifact.tables.csv_text import interval_columns
from artifact.tables.sheet import Sheet, Text, bold_name, mean_sd
from artifact.tables.source import Block, Grid, Source, View, noise_words

STACKS = ("inductor", "xla", "tvm")
STACK_NAMES = {"inductor": "Inductor", "xla": "XLA", "tvm": "TVM"}
BOUNDARY = "native"
CAPTION = (
    "T_C within the paper's own window of each stack (native), T_X per execution, both in ms: mean "
    "and sample sd over processes. Bold: lowest mean of the input whose 95 % interval overlaps no "
    "competitor's."
)
#: Below the tables to which the paper does not apply its rule for bold type.
BORROWED_RULE = "The paper sets only its ResNet table (Table 1) by this rule."


@dataclass(frozen=True)
class TimingRow:
    """One cell; times in ms, `low` and `high` the ends of the 95 % interval over processes.

    `quiet_*` leave noisy trials out: equal to the others without any, empty when all were noisy.
    """

    source: str
    model: str
    input: str
    configuration: str
    processes: int = 0
    noisy: int = 0
    compile_mean_ms: float | None = None
    compile_sd_ms: float | None = None
    compile_low_ms: float | None = None
    compile_high_ms: float | None = None
    compile_bold: bool = False
    latency_mean_ms: float | None = None
    latency_sd_ms: float | None = None
    latency_low_ms: float | None = None
    latency_high_ms: float | None = None
    latency_bold: bool = False
    quiet_processes: int | None = None
    quiet_compile_mean_ms: float | None = None
    quiet_compile_sd_ms: float | None = None
    quiet_compile_low_ms: float | None = None
    quiet_compile_high_ms: float | None = None
    quiet_latency_mean_ms: float | None = None
    quiet_latency_sd_ms: float | None = None
    quiet_latency_low_ms: float | None = None
    quiet_latency_high_ms: float | None = None
    note: str = ""


def timing_rows(study: Study, source: Source, grid: Grid) -> list[TimingRow]:
    """One row per block of the grid and stack, measured or not."""
    made: list[TimingRow] = []
    for block in grid.shown(study, source):
        views = {c: source.view((*block, c)) for c in STACKS}
        have = {c: view for c, view in views.items() if view is not None}
        fastest = {
            "compile": bold_name({c: v.compile_cost_ms[BOUNDARY] for c, v in have.items()}),
            "latency": bold_name({c: v.latency_ms for c, v in have.items()}),
        }
        made += [_row(source, block, c, view, fastest) for c, view in views.items()]
    return made


def _row(
    source: Source,
    block: Block,
    configuration: str,
    view: View | None,
    fastest: Mapping[str, str | None],
) -> TimingRow:
    cell = (*block, configuration)
    if view is None:
        return TimingRow(source.label, *cell, note=source.why_absent(cell))
    return TimingRow(
        source.label,
        *cell,
        view.n,
        view.noisy,
        *_numbers(view.compile_cost_ms[BOUNDARY]),
        fastest["compile"] == configuration,
        *_numbers(view.latency_ms),
        fastest["latency"] == configuration,
        note=view.latency_ms.reason or "",
        **_quiet(view.quiet),
    )


def _quiet(view: View | None) -> dict[str, Any]:
    """The columns `quiet_*` of a cell without its noisy trials."""
    if view is None:
        return {}
    return {
        "quiet_processes": view.n,
        **interval_columns("quiet_compile", view.compile_cost_ms[BOUNDARY]),
        **interval_columns("quiet_latency", view.latency_ms),
    }


def _numbers(interval: Interval) -> tuple[float, float | None, float | None, float | None]:
    return interval.mean, interval.sd, interval.low, interval.high


def timing_sheet(
    rows: Sequence[TimingRow], model_names: Mapping[str, str], caption: str = CAPTION
) -> Sheet:
    """One line an input: T_C of each stack, then T_X of each stack."""
    headings = ["model", "input"]
    headings += [f"T_C {STACK_NAMES[c]} (ms)" for c in STACKS]
    headings += [f"T_X {STACK_NAMES[c]} (ms)" for c in STACKS]
    blocks = list(dict.fromkeys((row.model, row.input) for row in rows))
    by_cell = {(row.model, row.input, row.configuration): row for row in rows}
    body = []
    for model, shape in blocks:
        cells = [by_cell[(model, shape, c)] for c in STACKS]
        line = [Text(model_names.get(model, model)), Text(shape)]
        line += [_compile(row) for row in cells]
        line += [_latency(row) for row in cells]
        body.append(tuple(line))
    notes = (caption, *noise_notes(rows), f"Source: {rows[0].source}.")
    return Sheet(tuple(headings), tuple(body), notes)


def _compile(row: TimingRow) -> Text:
    if row.compile_mean_ms is None:
        return Text(row.note)
    text = mean_sd(row.compile_mean_ms, row.compile_sd_ms, row.processes)
    return Text(text, row.compile_bold)


def _latency(row: TimingRow) -> Text:
    if row.latency_mean_ms is None:
        return Text(row.note)
    text = mean_sd(row.latency_mean_ms, row.latency_sd_ms, row.processes)
    return Text(text, row.latency_bold)


def noise_notes(rows: Sequence[TimingRow]) -> list[str]:
    """How many of the trials behind the table were noisy; nothing when none was."""
    return noise_words(sum(row.noisy for row in rows), sum(row.processes for row in rows))
