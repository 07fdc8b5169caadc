"""Figure 5: cost lines and lower envelope of ResNet-18 at 1x3x224x224."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from artifact.figures import cumulative, style
from artifact.figures.cumulative import CostRow
from artifact.study import Study
from artifact.tables.source import Grid, Source

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAPER = "Figure 5"
TITLE = "T(n) = T_C + n T_X of ResNet-18, with the lower envelope"
CAPTION = (
    "Lines through the means, native T_C, fold time included; bands are 95 % intervals over "
    "processes. Below: the same relative to the cheapest at n. Crossovers of the envelope are "
    "marked, their 95 % sets shaded."
)
PUBLISHED = ("resnet",)
GRID = Grid((("resnet18", "1x3x224x224"),), ("inductor", "inductor-fold", "xla", "tvm"))
ROW = CostRow
BOUNDARY = "native"


def rows(study: Study, source: Source) -> list[CostRow]:
    """Curves and crossovers of the paper's cell; of the source's own one where that is absent."""
    shown = GRID.measured(study, source)
    block = GRID.blocks[0] if GRID.blocks[0] in shown or not shown else shown[0]
    return cumulative.cost_rows(source, block, GRID.configurations, BOUNDARY, band=False)


def draw(rows: Sequence[CostRow]) -> Figure:
    """T(n) above, T(n) over the cheapest below."""
    drawn = any(row.what == cumulative.TOTAL for row in rows)
    figure = style.new_figure(3.9 if drawn else 1.0)
    lines = [*cumulative.crossover_words(rows), *cumulative.absent_words(rows), rows[0].source]
    style.note(figure, "\n".join(lines))
    if drawn:
        upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
        cumulative.draw_totals(upper, rows)
        cumulative.draw_ratios(lower, rows)
        for axes in (upper, lower):
            cumulative.mark_crossovers(axes, rows, words=axes is upper)
        upper.set_title(style.block_name(rows[0].model, rows[0].input), loc="left", pad=3)
        lower.set_ylabel("T(n) / cheapest")
        lower.set_xlabel("executions n")
        figure.legend(*upper.get_legend_handles_labels(), loc="outside upper center", ncols=3)
    return figure
