"""Cumulative time T(n) of the configurations of a block (fig5, fig7): rows and curves."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from artifact.analysis.cost import (
    CrossoverSet,
    Line,
    ProcessPoint,
    Segment,
    cheapest_share,
    crossover_set,
    envelope,
    envelope_band,
)
from artifact.analysis.stats import Interval, process_interval
from artifact.figures import style
from artifact.tables.source import Block, Source, View

if TYPE_CHECKING:
    from matplotlib.axes import Axes

METHOD = "welch"
POINTS_PER_DECADE = 12

#: The axis ends at this many executions, or a decade beyond the last crossover.
LEAST_LAST_N = 1e4
MOST_LAST_N = 1e7

BAND_LABEL = "its band (95 % of resamples)"

TOTAL, ENVELOPE, CROSSOVER, ABSENT = "total", "envelope", "crossover", "absent"


@dataclass(frozen=True)
class CostRow:
    """One point of a curve, one crossover, or one configuration without a curve.

    `what`: "total" (T(n) of a configuration: line through the means, t interval over the processes'
    own totals), "envelope" (the cheapest at n; interval: resampled, descriptive), "crossover" (n
    with its 95 % set from `low_n` to `high_n`, empty `high_n` without end) or "absent".
    `cheapest_share` is the share of resampled lines in which the configuration is cheapest at n;
    descriptive, no probability. `binding` says whether the compiler knew the weights (frozen or
    runtime); of a crossover both where they differ.
    """

    source: str
    model: str
    input: str
    boundary: str
    what: str
    configuration: str
    n: float | None = None
    total_ms: float | None = None
    low_ms: float | None = None
    high_ms: float | None = None
    ratio_to_cheapest: float | None = None
    cheapest_share: float | None = None
    low_n: float | None = None
    high_n: float | None = None
    processes: int | None = None
    binding: str = ""
    note: str = ""


def cost_rows(
    source: Source,
    block: Block,
    configurations: Sequence[str],
    boundary: str,
    *,
    band: bool,
    until_n: float | None = None,
) -> list[CostRow]:
    """All rows of one block, up to `until_n` executions (default: `last_n` of the block).

    `band` adds the envelope with its resampled band, and the shares of resampled lines.
    """
    views = _views(source, block, configurations)
    maker = _Maker(source.label, *block, boundary)
    made = [
        maker.row(ABSENT, name, note=source.why_absent((*block, name)))
        for name in configurations
        if name not in views
    ]
    if not views:
        return made
    lines = {name: view.line(boundary) for name, view in views.items()}
    segments = envelope(lines)
    grid = _grid(segments, until_n or _last_n(segments))
    resampled = _resampled(views, boundary) if band else {}
    shares = cheapest_share(resampled, grid).shares if resampled else {}
    for name, view in views.items():
        made += maker.totals(name, view, lines, grid, shares.get(name))
    if band:
        made += maker.envelope(resampled, lines, grid)
    made += [maker.crossover(views, *pair) for pair in pairwise(segments)]
    return made


def last_n(source: Source, block: Block, configurations: Sequence[str], boundary: str) -> float:
    """Where the axis of a block ends: a power of ten, a decade or more beyond its crossovers."""
    views = _views(source, block, configurations)
    return _last_n(envelope({name: view.line(boundary) for name, view in views.items()}))


def _views(source: Source, block: Block, configurations: Sequence[str]) -> dict[str, View]:
    views = {name: source.view((*block, name)) for name in configurations}
    return {name: view for name, view in views.items() if view is not None}


def _resampled(views: Mapping[str, View], boundary: str) -> dict[str, tuple[ProcessPoint, ...]]:
    """The processes to resample; none where a configuration has one only."""
    points = {name: view.points(boundary) for name, view in views.items()}
    return points if all(len(processes) > 1 for processes in points.values()) else {}


def _last_n(segments: Sequence[Segment]) -> float:
    wanted = max([LEAST_LAST_N, *(10 * segment.from_n for segment in segments)])
    return float(10 ** math.ceil(math.log10(min(wanted, MOST_LAST_N)) - 1e-9))


def _grid(segments: Sequence[Segment], end: float) -> list[float]:
    """Numbers of executions from 1 to `end`, evenly apart on a log axis, crossovers among them."""
    decades = math.log10(end)
    steps = round(decades * POINTS_PER_DECADE)
    regular = [10 ** (decades * step / steps) for step in range(steps)]
    return sorted({*regular, end, *(s.from_n for s in segments if 1 <= s.from_n < end)})


@dataclass(frozen=True)
class _Maker:
    source: str
    model: str
    input: str
    boundary: str

    def row(self, what: str, configuration: str, **values: float | int | str | None) -> CostRow:
        return CostRow(
            self.source,
            self.model,
            self.input,
            self.boundary,
            what,
            configuration,
            **values,  # type: ignore[arg-type]
        )

    def totals(
        self,
        name: str,
        view: View,
        lines: Mapping[str, Line],
        grid: Sequence[float],
        shares: Sequence[float] | None,
    ) -> list[CostRow]:
        made = []
        points = view.points(self.boundary)
        for i, n in enumerate(grid):
            total = lines[name].total_ms(n)
            spread: Interval | None = None
            if points:
                spread = process_interval([p.fixed_ms + n * p.per_execution_ms for p in points])
            made.append(
                self.row(
                    TOTAL,
                    name,
                    n=n,
                    total_ms=total,
                    low_ms=spread.low if spread else None,
                    high_ms=spread.high if spread else None,
                    ratio_to_cheapest=total / min(line.total_ms(n) for line in lines.values()),
                    cheapest_share=shares[i] if shares else None,
                    processes=view.n,
                    binding=view.binding,
                )
            )
        return made

    def envelope(
        self,
        resampled: Mapping[str, Sequence[ProcessPoint]],
        lines: Mapping[str, Line],
        grid: Sequence[float],
    ) -> list[CostRow]:
        found = envelope_band(resampled, grid) if resampled else None
        made = []
        for i, n in enumerate(grid):
            cheapest = min(sorted(lines), key=lambda name: lines[name].total_ms(n))
            made.append(
                self.row(
                    ENVELOPE,
                    cheapest,
                    n=n,
                    total_ms=lines[cheapest].total_ms(n),
                    low_ms=found.low_ms[i] if found else None,
                    high_ms=found.high_ms[i] if found else None,
                    note="" if found else "one process: no band",
                )
            )
        return made

    def crossover(self, views: Mapping[str, View], left: Segment, right: Segment) -> CostRow:
        n = right.from_n
        found = crossover_set(
            views[left.name].points(self.boundary),
            views[right.name].points(self.boundary),
            METHOD,
        )
        low, high = _around(found, n)
        bindings = dict.fromkeys((views[left.name].binding, views[right.name].binding))
        return self.row(
            CROSSOVER,
            f"{left.name} -> {right.name}",
            n=n,
            total_ms=views[left.name].line(self.boundary).total_ms(n),
            low_n=low,
            high_n=high,
            binding=" -> ".join(bindings),
            note=f"95 % set ({METHOD}) {found.words}",
        )


def _around(found: CrossoverSet, n: float) -> tuple[float | None, float | None]:
    """The range of the set that holds n."""
    for part in found.ranges:
        if part.from_n <= n and (part.to_n is None or n <= part.to_n):
            return part.from_n, part.to_n
    return None, None


# --- drawing --------------------------------------------------------------------------------------
def draw_totals(axes: Axes, rows: Sequence[CostRow]) -> None:
    """T(n) of each configuration in seconds with its interval, envelope below it, log-log."""
    configurations = list(dict.fromkeys(row.configuration for row in rows if row.what == TOTAL))
    _draw_envelope(axes, rows)
    for name in configurations:
        curve = [row for row in rows if row.what == TOTAL and row.configuration == name]
        colour, dashes, _ = style.look(name)
        n = _numbers(row.n for row in curve)
        axes.plot(
            n,
            [_seconds(row.total_ms) for row in curve],
            color=colour,
            linestyle=dashes,
            label=style.short_name(name),
            zorder=_order(dashes),
        )
        if all(row.low_ms is not None for row in curve):
            axes.fill_between(
                n,
                # A logarithmic axis has no place for an interval that reaches below zero.
                [max(_seconds(row.low_ms), 1e-9) for row in curve],
                [_seconds(row.high_ms) for row in curve],
                color=colour,
                alpha=0.22,
                linewidth=0,
            )
    axes.set_xscale("log")
    axes.set_yscale("log")
    drawn = [row for row in rows if row.what == TOTAL]
    totals = [_seconds(row.total_ms) for row in drawn]
    axes.set_xlim(1, max(row.n or 1.0 for row in drawn))
    axes.set_ylim(min(totals) * 0.7, max(totals) * 1.4)
    axes.set_ylabel("T(n) in s")
    style.decades(axes.xaxis, axes.yaxis)


def _draw_envelope(axes: Axes, rows: Sequence[CostRow]) -> None:
    """A broad grey line below the cheapest stretches, and the band where there is one."""
    totals: dict[float, float] = {}
    for row in rows:
        if row.what == TOTAL and row.n is not None and row.total_ms is not None:
            totals[row.n] = min(row.total_ms, totals.get(row.n, math.inf))
    ordered = sorted(totals)
    axes.plot(
        ordered,
        [_seconds(totals[n]) for n in ordered],
        color="#BBBBBB",
        linewidth=4.5,
        solid_capstyle="butt",
        label="lower envelope",
        zorder=0.5,
    )
    band = [row for row in rows if row.what == ENVELOPE and row.low_ms is not None]
    if band:
        low = [_seconds(row.low_ms) for row in band]
        high = [_seconds(row.high_ms) for row in band]
        _fill_band(axes, _numbers(row.n for row in band), low, high)


def _fill_band(axes: Axes, n: Sequence[float], low: Sequence[float], high: Sequence[float]) -> None:
    axes.fill_between(n, low, high, color="#888888", linewidth=0, label=BAND_LABEL, zorder=0.7)


def draw_ratios(axes: Axes, rows: Sequence[CostRow], top: float = 2.0) -> None:
    """T(n) over the cheapest: shows the band, and crossings of nearly parallel lines."""
    band = [r for r in rows if r.what == ENVELOPE and r.low_ms is not None and r.total_ms]
    if band:
        low = [(r.low_ms or 0.0) / (r.total_ms or 1.0) for r in band]
        high = [(r.high_ms or 0.0) / (r.total_ms or 1.0) for r in band]
        _fill_band(axes, _numbers(row.n for row in band), low, high)
    for name in dict.fromkeys(row.configuration for row in rows if row.what == TOTAL):
        curve = [row for row in rows if row.what == TOTAL and row.configuration == name]
        colour, dashes, _ = style.look(name)
        axes.plot(
            _numbers(row.n for row in curve),
            _numbers(row.ratio_to_cheapest for row in curve),
            color=colour,
            linestyle=dashes,
            zorder=_order(dashes),
        )
    axes.set_xscale("log")
    axes.set_ylim(0.85 if band else 0.97, top)
    style.decades(axes.xaxis)


def mark_crossovers(axes: Axes, rows: Sequence[CostRow], *, words: bool) -> None:
    """A line at each crossover, its 95 % set shaded; `words` adds n beside the line."""
    right_end = max((row.n for row in rows if row.what == TOTAL and row.n), default=1.0)
    marked = 0
    crossings = [row.n for row in rows if row.what == CROSSOVER and row.n is not None]
    for row in rows:
        if row.what != CROSSOVER or row.n is None or not 1 <= row.n <= right_end:
            continue
        axes.axvline(row.n, color=style.BLACK, linewidth=0.8, linestyle=(0, (4, 2)), zorder=2.5)
        if row.low_n is not None:
            high = right_end if row.high_n is None else min(row.high_n, right_end)
            axes.axvspan(max(row.low_n, 1.0), high, color=style.BLACK, alpha=0.10, linewidth=0)
        if words:
            left = _label_is_left(row.n, crossings, right_end)
            axes.annotate(
                f"n = {style.executions(row.n)}",
                (row.n, 0.04),
                xycoords=axes.get_xaxis_transform(),
                # Each on a line of its own: crossovers may lie close together.
                xytext=(-4 if left else 4, 9 * marked),
                textcoords="offset points",
                ha="right" if left else "left",
                va="bottom",
                fontsize=style.SMALL_POINTS,
            )
            marked += 1


def _label_is_left(n: float, crossings: Sequence[float], right_end: float) -> bool:
    """Whether the words stand before their line: no room, or another line, lies behind it."""
    place = math.log(n) / math.log(right_end)
    return place > 0.8 or (place > 0.25 and n < max(crossings))


def crossover_words(rows: Sequence[CostRow]) -> list[str]:
    """One line a crossover: which to which, n, and its 95 % set."""
    found = []
    for row in rows:
        if row.what == CROSSOVER and row.n is not None:
            names = [style.short_name(name) for name in row.configuration.split(" -> ")]
            found.append(
                f"{names[0]} to {names[1]} at n = {style.executions(row.n)}; {_set_words(row)}"
            )
    return found


def _set_words(row: CostRow) -> str:
    if row.low_n is None:
        return row.note
    low = style.executions(row.low_n)
    if row.high_n is None:
        return f"95 % set from {low} on, without end"
    return f"95 % set {low} to {style.executions(row.high_n)}"


def contract_words(rows: Sequence[CostRow]) -> list[str]:
    """One line a difference: the blocks whose curves bind the weights differently."""
    return style.contract_lines(
        (row.model, row.input, row.configuration, row.binding) for row in rows if row.what == TOTAL
    )


def absent_words(rows: Sequence[CostRow]) -> list[str]:
    """One line a reason: which configurations have no curve."""
    return style.grouped(
        (style.short_name(row.configuration), row.note) for row in rows if row.what == ABSENT
    )


def _order(dashes: str) -> float:
    """A dashed line that lies on a solid one is drawn above it, so that both are seen."""
    return 2.0 if dashes == "-" else 2.2


def _numbers(values: Iterable[float | None]) -> list[float]:
    return [math.nan if value is None else value for value in values]


def _seconds(value_ms: float | None) -> float:
    return math.nan if value_ms is None else value_ms / 1000
