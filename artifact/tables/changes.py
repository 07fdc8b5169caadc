"""What one change of the program does to T_C and T_X (tab4, tab5, tab6): rows and layout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from artifact.analysis.estimates import ProcessValues
from artifact.analysis.evidence import Quantity
from artifact.analysis.stats import PairedRatio, StatsError, pair_by_round, paired_ratio, welch
from artifact.study import Study
from artifact.tables.sheet import Sheet, Text, mean_sd, percent
from artifact.tables.source import Block, Grid, Source, View

BOUNDARY = "native"


@dataclass(frozen=True)
class ChangeRow:
    """One cell pair and metric: `changed` against `base`, times in ms.

    `metric`: "compile" (T_C, native), "fixed" (T_C with the fold in it) or "latency" (T_X).
    `percent` is the difference of means in per cent of the base, `percent_low` and `percent_high`
    the ends of Welch's 95 % interval (unadjusted) in the same unit. `ratio` with its ends is
    changed / base paired by round; empty where rounds do not pair (the paper).
    """

    source: str
    model: str
    input: str
    metric: str
    base: str
    changed: str
    base_processes: int
    changed_processes: int
    base_mean_ms: float | None = None
    base_sd_ms: float | None = None
    changed_mean_ms: float | None = None
    changed_sd_ms: float | None = None
    percent: float | None = None
    percent_low: float | None = None
    percent_high: float | None = None
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    note: str = ""


def _compile_ms(process: ProcessValues) -> float:
    return process.compile_cost_ms[BOUNDARY]


def _fixed_ms(process: ProcessValues) -> float:
    return process.fixed_cost_ms(BOUNDARY)


def _latency_ms(process: ProcessValues) -> float:
    return process.latency_ms


QUANTITIES: Mapping[str, Quantity] = {
    "compile": _compile_ms,
    "fixed": _fixed_ms,
    "latency": _latency_ms,
}


def change_rows(
    study: Study, source: Source, grid: Grid, metrics: Sequence[str] = tuple(QUANTITIES)
) -> list[ChangeRow]:
    """Rows of every block of the grid; its configurations are (base, changed)."""
    base, changed = grid.configurations
    return [
        _row(source, block, base, changed, metric)
        for block in grid.shown(study, source)
        for metric in metrics
    ]


def _row(source: Source, block: Block, base: str, changed: str, metric: str) -> ChangeRow:
    names = (source.label, *block, metric, base, changed)
    first, second = source.view((*block, base)), source.view((*block, changed))
    if first is None or second is None:
        lacking = base if first is None else changed
        words = source.why_absent((*block, lacking))
        return ChangeRow(*names, *_counts(first, second), note=words)
    quantity = QUANTITIES[metric]
    values = [[quantity(p) for p in view.processes] for view in (first, second)]
    intervals = [_interval(view, metric) for view in (first, second)]
    means = [mean for mean, _ in intervals]
    difference = welch(values[1], values[0])
    ratio = _ratio(first, second, quantity) if source.paired else None
    row = ChangeRow(
        *names,
        *_counts(first, second),
        *intervals[0],
        *intervals[1],
        ratio=ratio.ratio if ratio else None,
        ratio_low=ratio.low if ratio else None,
        ratio_high=ratio.high if ratio else None,
        note=difference.reason or "",
    )
    base_mean = fmean(values[0])
    if base_mean <= 0:
        return replace(row, note=f"the base is not positive: {base_mean:g} ms")
    return replace(
        row,
        percent=100 * (means[1] - means[0]) / means[0],
        percent_low=None if difference.low is None else 100 * difference.low / base_mean,
        percent_high=None if difference.high is None else 100 * difference.high / base_mean,
    )


def _counts(first: View | None, second: View | None) -> tuple[int, int]:
    return first.n if first else 0, second.n if second else 0


def _interval(view: View, metric: str) -> tuple[float, float | None]:
    """Mean and sd of a metric, as the source gives them."""
    interval = {
        "compile": view.compile_cost_ms[BOUNDARY],
        "fixed": view.fixed_cost_ms[BOUNDARY],
        "latency": view.latency_ms,
    }[metric]
    return interval.mean, interval.sd


def _ratio(base: View, changed: View, quantity: Quantity) -> PairedRatio | None:
    """changed / base over common rounds of one boot; None where there is no positive pair."""
    sides = []
    for view in (changed, base):
        boots = {r.spec.round: r.identity.boot_id for r in view.records}
        sides.append({(p.round, boots.get(p.round, "")): quantity(p) for p in view.processes})
    common = sides[0].keys() & sides[1].keys()
    pairs = pair_by_round(*({key[0]: side[key] for key in common} for side in sides))
    try:
        return paired_ratio(*pairs) if common else None
    except StatsError:
        # T_C is not positive: there is a difference, shown in the row, but no ratio.
        return None


def change_sheet(
    rows: Sequence[ChangeRow],
    model_names: Mapping[str, str],
    labels: tuple[str, str],
    notes: Sequence[str],
) -> Sheet:
    """One line an input: both means and the difference in per cent, for each metric."""
    metrics = list(dict.fromkeys(row.metric for row in rows))
    headings = ["model", "input"]
    for metric in metrics:
        symbol = {"compile": "T_C", "fixed": "T_C + fold", "latency": "T_X"}[metric]
        # The original has no fold, so its T_C + fold would repeat its T_C.
        sides = [f" {label}" for label in labels] if metric != "fixed" else [""]
        headings += [f"{symbol}{side} (ms)" for side in sides] + [f"Δ {symbol} (%)"]
    body = []
    for model, shape in dict.fromkeys((row.model, row.input) for row in rows):
        line = [Text(model_names.get(model, model)), Text(shape)]
        for row in rows:
            if (row.model, row.input) == (model, shape):
                line += _texts(row)
        body.append(tuple(line))
    return Sheet(tuple(headings), tuple(body), (*notes, f"Source: {rows[0].source}."))


def _texts(row: ChangeRow) -> list[Text]:
    base = (
        []
        if row.metric == "fixed"
        else [_mean(row, row.base_mean_ms, row.base_sd_ms, row.base_processes)]
    )
    changed = _mean(row, row.changed_mean_ms, row.changed_sd_ms, row.changed_processes)
    change = Text(percent(row.percent, row.percent_low, row.percent_high) or row.note)
    return [*base, changed, change]


def _mean(row: ChangeRow, mean: float | None, sd: float | None, n: int) -> Text:
    return Text(row.note) if mean is None else Text(mean_sd(mean, sd, n))
