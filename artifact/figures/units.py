"""Static call-like units per stack (fig1, fig2, fig3): rows and their bars."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from artifact.figures import style
from artifact.study import Study
from artifact.tables.source import Grid, Source, Units

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GRID = Grid(
    blocks=(("resnet18", "1x3x224x224"), ("resnet50", "1x3x224x224")),
    configurations=("inductor", "tvm", "xla"),
)
PUBLISHED = ("resnet",)
CAPTION = (
    "Units are counted statically in the program that each stack generated; they are not a launch "
    "count. A bar is the median over processes, its ends are marked where processes differ."
)
NO_CENSUS = "no census"


@dataclass(frozen=True)
class UnitRow:
    """One bar: the median count over `processes`, the smallest and the largest."""

    source: str
    model: str
    input: str
    configuration: str
    units: float | None
    lowest: int | None
    highest: int | None
    processes: int
    note: str


def unit_rows(study: Study, source: Source, count: Callable[[Units], int | None]) -> list[UnitRow]:
    """One row per block and stack; without a count `units` is None and `note` says why."""
    return [
        _row(source, (*block, configuration), count)
        for block in GRID.shown(study, source)
        for configuration in GRID.configurations
    ]


def _row(
    source: Source, cell: tuple[str, str, str], count: Callable[[Units], int | None]
) -> UnitRow:
    counts = [c for c in (count(units) for units in source.units_of(cell)) if c is not None]
    if counts:
        return UnitRow(
            source.label, *cell, float(median(counts)), min(counts), max(counts), len(counts), ""
        )
    measured = source.view(cell) is not None
    words = NO_CENSUS if measured else source.why_absent(cell)
    return UnitRow(source.label, *cell, None, None, None, 0, words)


def draw_units(rows: Sequence[UnitRow], ylabel: str) -> Figure:
    """Grouped bars, one group a block, in the order of the rows."""
    figure = style.new_figure(2.35)
    axes = figure.add_subplot()
    blocks = list(dict.fromkeys((row.model, row.input) for row in rows))
    configurations = list(dict.fromkeys(row.configuration for row in rows))
    width = 0.8 / len(configurations)
    for row in rows:
        place = blocks.index((row.model, row.input))
        shift = configurations.index(row.configuration) - (len(configurations) - 1) / 2
        _bar(axes, place + shift * width, width, row)
    axes.set_xticks(range(len(blocks)), [f"{style.model_name(m)}\n{s}" for m, s in blocks])
    axes.set_xlim(-0.5, len(blocks) - 0.5)
    axes.set_ylabel(ylabel)
    highest = max((row.units for row in rows if row.units is not None), default=1.0)
    axes.set_ylim(0, max(1.0, highest * 1.12))
    handles = [_swatch(configuration) for configuration in configurations]
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles))
    style.note(figure, rows[0].source)
    return figure


def _bar(axes: Axes, x: float, width: float, row: UnitRow) -> None:
    if row.units is None:
        style.say_absent(axes, x, row.note)
        return
    colour, _, _ = style.look(row.configuration)
    axes.bar(x, row.units, width * 0.92, color=colour, edgecolor=style.BLACK, linewidth=0.4)
    top = row.units
    if row.lowest is not None and row.highest is not None and row.lowest != row.highest:
        reach = [[row.units - row.lowest], [row.highest - row.units]]
        axes.errorbar(x, row.units, yerr=reach, color=style.BLACK, capsize=2, linewidth=0.8)
        top = row.highest
    axes.annotate(
        f"{row.units:g}",
        (x, top),
        xytext=(0, 1.5),
        textcoords="offset points",
        ha="center",
        va="bottom",
        fontsize=style.SMALL_POINTS,
    )


def _swatch(configuration: str) -> object:
    from matplotlib.patches import Patch

    colour, _, _ = style.look(configuration)
    return Patch(
        facecolor=colour,
        edgecolor=style.BLACK,
        linewidth=0.4,
        label=style.short_name(configuration),
    )
