"""What one change of the program does to T_C and T_X (tab4, tab5, tab6): rows and layout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from artifact.analysis.estimates import ProcessValues
from artifact.analysis.evidence import Quantity
from artifact.analysis.stats import (
    Family,
    Interval,
    PairedRatio,
    StatsError,
    Welch,
    family,
    pair_by_round,
    paired_ratio,
    welch,
)
from artifact.study import Study
from artifact.tables.csv_text import interval_columns
from artifact.tables.sheet import Sheet, Text, mean_sd, percent
from artifact.tables.source import Block, Grid, Source, View, blocks_of, noise_words

BOUNDARY = "native"
SYMBOLS = {"compile": "T_C", "fixed": "T_C + fold", "latency": "T_X"}

#: The paper adjusts the tests of its ten ResNet inputs together, one family a metric.
FOLD_FAMILY = Grid(blocks_of("resnet18", "resnet50"), ("inductor", "inductor-fold"))
ALPHA = 0.05


@dataclass(frozen=True)
class ChangeRow:
    """One cell pair and metric: `changed` against `base`, times in ms.

    `metric`: "compile" (T_C, native), "fixed" (T_C with the fold in it) or "latency" (T_X).
    `percent` is the difference of means in per cent of the base, `percent_low` and `percent_high`
    the ends of Welch's 95 % interval (unadjusted) in the same unit; `t`, `df` and `p` are of that
    test. `p_holm` is adjusted over the `family_size` tests of the metric (`FOLD_FAMILY`; empty
    where the paper adjusts none). `ratio` with its ends is changed / base paired by round; empty
    where rounds do not pair (the paper). `quiet_*` leave noisy trials out: equal to the others
    without any, empty when all of a side were noisy.
    """

    source: str
    model: str
    input: str
    metric: str
    base: str
    changed: str
    base_processes: int
    changed_processes: int
    noisy: int = 0
    base_mean_ms: float | None = None
    base_sd_ms: float | None = None
    base_low_ms: float | None = None
    base_high_ms: float | None = None
    changed_mean_ms: float | None = None
    changed_sd_ms: float | None = None
    changed_low_ms: float | None = None
    changed_high_ms: float | None = None
    percent: float | None = None
    percent_low: float | None = None
    percent_high: float | None = None
    t: float | None = None
    df: float | None = None
    p: float | None = None
    p_holm: float | None = None
    family_size: int | None = None
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    quiet_base_processes: int | None = None
    quiet_base_mean_ms: float | None = None
    quiet_base_sd_ms: float | None = None
    quiet_base_low_ms: float | None = None
    quiet_base_high_ms: float | None = None
    quiet_changed_processes: int | None = None
    quiet_changed_mean_ms: float | None = None
    quiet_changed_sd_ms: float | None = None
    quiet_changed_low_ms: float | None = None
    quiet_changed_high_ms: float | None = None
    quiet_percent: float | None = None
    quiet_percent_low: float | None = None
    quiet_percent_high: float | None = None
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
    study: Study,
    source: Source,
    grid: Grid,
    metrics: Sequence[str] = tuple(QUANTITIES),
    tests: Grid | None = None,
) -> list[ChangeRow]:
    """Rows of every block of the grid; its configurations are (base, changed).

    `tests` holds the blocks whose tests are adjusted together, those of the grid among them.
    """
    base, changed = grid.configurations
    families = {m: _family(study, source, tests, m) for m in metrics} if tests else {}
    return [
        _row(source, block, base, changed, metric, families.get(metric))
        for block in grid.shown(study, source)
        for metric in metrics
    ]


def _family(study: Study, source: Source, tests: Grid, metric: str) -> Family[Block]:
    """Welch and Holm over every block of `tests` that has both configurations."""
    pairs: dict[Block, tuple[list[float], list[float]]] = {}
    for block in tests.shown(study, source):
        base, changed = (source.view((*block, name)) for name in tests.configurations)
        if base is not None and changed is not None:
            pairs[block] = (_values(changed, metric), _values(base, metric))
    return family(pairs, ALPHA)


def _values(view: View, metric: str) -> list[float]:
    return [QUANTITIES[metric](process) for process in view.processes]


def _row(
    source: Source,
    block: Block,
    base: str,
    changed: str,
    metric: str,
    tests: Family[Block] | None,
) -> ChangeRow:
    names = (source.label, *block, metric, base, changed)
    first, second = source.view((*block, base)), source.view((*block, changed))
    if first is None or second is None:
        lacking = base if first is None else changed
        words = source.why_absent((*block, lacking))
        return ChangeRow(*names, *_counts(first, second), note=words)
    found = _change(first, second, metric)
    ratio = _ratio(first, second, QUANTITIES[metric]) if source.paired else None
    tested = tests.rows.get(block) if tests else None
    return replace(
        ChangeRow(*names, *_counts(first, second)),
        noisy=first.noisy + second.noisy,
        **interval_columns("base", found.base),
        **interval_columns("changed", found.changed),
        percent=found.percent,
        percent_low=found.percent_low,
        percent_high=found.percent_high,
        t=found.test.t,
        df=found.test.df,
        p=found.test.p,
        p_holm=tested.holm.adjusted if tested else None,
        family_size=tests.size if tests and tested else None,
        ratio=ratio.ratio if ratio else None,
        ratio_low=ratio.low if ratio else None,
        ratio_high=ratio.high if ratio else None,
        **_quiet(first.quiet, second.quiet, metric),
        note=found.note,
    )


@dataclass(frozen=True)
class _Change:
    """The two sides of a metric in ms, Welch's test of their difference, and it in per cent."""

    base: Interval
    changed: Interval
    test: Welch
    percent: float | None
    percent_low: float | None
    percent_high: float | None
    note: str


def _change(base: View, changed: View, metric: str) -> _Change:
    sides = _interval(base, metric), _interval(changed, metric)
    values = _values(base, metric)
    test = welch(_values(changed, metric), values)
    base_mean = fmean(values)
    if base_mean <= 0:
        note = f"the base is not positive: {base_mean:g} ms"
        return _Change(*sides, test, None, None, None, note)
    return _Change(
        *sides,
        test,
        100 * (sides[1].mean - sides[0].mean) / sides[0].mean,
        None if test.low is None else 100 * test.low / base_mean,
        None if test.high is None else 100 * test.high / base_mean,
        test.reason or "",
    )


def _quiet(base: View | None, changed: View | None, metric: str) -> dict[str, Any]:
    """The columns `quiet_*`; none where one side has noisy trials only."""
    if base is None or changed is None:
        return {}
    found = _change(base, changed, metric)
    return {
        "quiet_base_processes": base.n,
        **interval_columns("quiet_base", found.base),
        "quiet_changed_processes": changed.n,
        **interval_columns("quiet_changed", found.changed),
        "quiet_percent": found.percent,
        "quiet_percent_low": found.percent_low,
        "quiet_percent_high": found.percent_high,
    }


def _counts(first: View | None, second: View | None) -> tuple[int, int]:
    return first.n if first else 0, second.n if second else 0


def _interval(view: View, metric: str) -> Interval:
    """Mean, sd and interval of a metric, as the source gives them."""
    return {
        "compile": view.compile_cost_ms[BOUNDARY],
        "fixed": view.fixed_cost_ms[BOUNDARY],
        "latency": view.latency_ms,
    }[metric]


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
        symbol = SYMBOLS[metric]
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
    below = (*notes, *_test_words(rows), *_noise_words(rows), f"Source: {rows[0].source}.")
    return Sheet(tuple(headings), tuple(body), below)


def _test_words(rows: Sequence[ChangeRow]) -> list[str]:
    """Which tests were adjusted together, and how many of those shown are below 5 %."""
    sizes = {row.metric: row.family_size for row in rows if row.family_size is not None}
    if not sizes:
        return []
    found = []
    for metric, size in sizes.items():
        adjusted = [row.p_holm for row in rows if row.metric == metric and row.p_holm is not None]
        resolved = sum(p < ALPHA for p in adjusted)
        found.append(f"{SYMBOLS[metric]} {resolved} of {len(adjusted)} (family of {size})")
    return [
        "Welch's tests adjusted by Holm over the ResNet inputs of this source, ResNet-18 and "
        f"ResNet-50 together, one family a metric. Below 5 % here: {', '.join(found)}; "
        "p, p_holm and df are in the CSV."
    ]


def _noise_words(rows: Sequence[ChangeRow]) -> list[str]:
    """Each trial counted once, although it stands in a row of every metric."""
    once = [row for row in rows if row.metric == rows[0].metric]
    total = sum(row.base_processes + row.changed_processes for row in once)
    return noise_words(sum(row.noisy for row in once), total)


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
