"""Figure 7: cumulative time per configuration with envelope, its uncertainty, and eager."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from artifact.figures import cumulative, style
from artifact.figures.cumulative import CostRow
from artifact.study import Study
from artifact.tables.source import Grid, Source, paper_blocks

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PAPER = "beyond the paper"
TITLE = "Cumulative time of every configuration, compiling or not, with the lower envelope"
CAPTION = (
    "T(n) on logarithmic axes within the aligned boundary, the same window for every stack (from "
    "the evaluated model in host memory to the first output, fold and tool chain included). Eager "
    "is measured like the others. Below each panel: the same over the cheapest. Band: central 95 % "
    "of the envelope of resampled lines; the CSV has the share of resampled lines in which each "
    "configuration is cheapest. Both are descriptive, no test."
)
PUBLISHED = ()
#: The first input of each model of the paper.
GRID = Grid(
    tuple({model: (model, shape) for model, shape in reversed(paper_blocks())}.values())[::-1]
)
ROW = CostRow
BOUNDARY = "aligned"


def rows(study: Study, source: Source) -> list[CostRow]:
    """Curves of every measured block of the grid, and "absent" for blocks without a trial."""
    measured = GRID.measured(study, source)
    names = {block: source.configurations(study, block) for block in measured}
    last_n = max(
        (cumulative.last_n(source, block, names[block], BOUNDARY) for block in measured),
        default=cumulative.LEAST_LAST_N,
    )
    made: list[CostRow] = []
    for block in GRID.shown(study, source):
        if block in measured:
            made += cumulative.cost_rows(
                source, block, names[block], BOUNDARY, band=True, until_n=last_n
            )
        else:
            note = source.why_absent((*block, "eager"))
            made.append(
                CostRow(source.label, *block, BOUNDARY, cumulative.ABSENT, "all", note=note)
            )
    return made


def draw(rows: Sequence[CostRow]) -> Figure:
    """Two panels a measured block on a common axis: T(n), and T(n) over the cheapest."""
    drawn = list(dict.fromkeys((r.model, r.input) for r in rows if r.what == cumulative.TOTAL))
    figure = style.new_figure(1.2 + 1.75 * len(drawn))
    lines = [*_absent(rows, drawn), *cumulative.contract_words(rows), rows[0].source]
    style.note(figure, "\n".join(lines))
    if not drawn:
        return figure
    heights = (1.9, 1.0) * len(drawn)
    panels = figure.subplots(2 * len(drawn), 1, sharex=True, height_ratios=heights)
    for upper, lower, block in zip(panels[::2], panels[1::2], drawn, strict=True):
        part = [row for row in rows if (row.model, row.input) == block]
        cumulative.draw_totals(upper, part)
        cumulative.draw_ratios(lower, part, top=1.8)
        cumulative.mark_crossovers(upper, part, words=True)
        cumulative.mark_crossovers(lower, part, words=False)
        upper.set_title(style.block_name(*block), loc="left", pad=3)
        lower.set_ylabel("T / best")
    figure.align_ylabels(panels)
    panels[-1].set_xlim(1, max(row.n for row in rows if row.what == cumulative.TOTAL and row.n))
    panels[-1].set_xlabel("executions n")
    handles = _handles(panels[::2])
    figure.legend(list(handles.values()), list(handles), loc="outside upper center", ncols=2)
    return figure


def _handles(panels: Sequence[Axes]) -> dict[str, Artist]:
    """One legend entry a label, over all panels."""
    found: dict[str, Artist] = {}
    for axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    return found


def _absent(rows: Sequence[CostRow], drawn: Sequence[tuple[str, str]]) -> list[str]:
    """One line a reason: whole blocks, and configurations of drawn blocks, without a curve."""
    found = []
    for row in rows:
        if row.what == cumulative.ABSENT:
            block = style.block_name(row.model, row.input)
            inside = (row.model, row.input) in drawn
            name = f"{block} {style.short_name(row.configuration)}" if inside else block
            found.append((name, row.note))
    return style.grouped(found)
