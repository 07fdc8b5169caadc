"""Figure 4: where the Conv-BatchNorm fold pays in Inductor, over the ResNet cells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from artifact.analysis.cost import Crossover, CrossoverSet, crossover, crossover_set
from artifact.figures import style
from artifact.study import Study
from artifact.tables.source import Block, Grid, Source, blocks_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PAPER = "Figure 4"
TITLE = "Folded against original Inductor: which is cheaper for n executions"
CAPTION = (
    "Colour says which of the two mean cost lines T(n) is lower (native T_C, fold time included): "
    "the fold dominates, pays until or from some n, or never pays. Hatched: the n at which the two "
    "cannot be told apart (95 % set of the difference, method welch)."
)
PUBLISHED = ("resnet",)
BASE, FOLD = "inductor", "inductor-fold"
GRID = Grid(blocks_of("resnet18", "resnet50"), (BASE, FOLD))
METHOD = "welch"
BOUNDARY = "native"

#: The strip runs from one execution to this many.
LAST_N = 1e6

VERDICTS = {
    "first": "dominates",
    "second": "never",
    "first-then-second": "until n",
    "second-then-first": "from n",
    "tie": "tie",
    "unknown": "unknown",
}


@dataclass(frozen=True)
class FoldRow:
    """One cell: `verdict` says when the fold is cheaper, `n` where the mean lines cross.

    The set of n that are not told apart is at most two ranges; an empty end means without end.
    """

    source: str
    model: str
    input: str
    verdict: str = ""
    n: float | None = None
    set_kind: str = ""
    first_from_n: float | None = None
    first_to_n: float | None = None
    second_from_n: float | None = None
    second_to_n: float | None = None
    processes: int = 0
    note: str = ""


ROW = FoldRow


def rows(study: Study, source: Source) -> list[FoldRow]:
    """One row per ResNet cell, in the paper's order; cells that lack a side say so."""
    return [_row(source, block) for block in GRID.shown(study, source)]


def _row(source: Source, block: Block) -> FoldRow:
    folded, base = source.view((*block, FOLD)), source.view((*block, BASE))
    if folded is None or base is None:
        lacking = FOLD if folded is None else BASE
        words = source.why_absent((*block, lacking))
        return FoldRow(source.label, *block, note=words)
    meeting = crossover(folded.line(BOUNDARY), base.line(BOUNDARY))
    found = crossover_set(folded.points(BOUNDARY), base.points(BOUNDARY), METHOD)
    ranges = [(part.from_n, part.to_n) for part in found.ranges]
    (first_from, first_to), (second_from, second_to) = [*ranges, (None, None), (None, None)][:2]
    return FoldRow(
        source.label,
        *block,
        verdict=VERDICTS[meeting.regime],
        n=meeting.n,
        set_kind=found.kind,
        first_from_n=first_from,
        first_to_n=first_to,
        second_from_n=second_from,
        second_to_n=second_to,
        processes=min(folded.n, base.n),
        note=_note(meeting, found),
    )


def _note(meeting: Crossover, found: CrossoverSet) -> str:
    if meeting.regime == "unknown":
        return meeting.reason or ""
    return found.reason or ""


def draw(rows: Sequence[FoldRow]) -> Figure:
    """One strip a cell over n (logarithmic) below its model's name, the verdict beside it."""
    from matplotlib.patches import Patch

    models = list(dict.fromkeys(row.model for row in rows))
    ordered = [row for model in models for row in rows if row.model == model]
    figure = style.new_figure(0.95 + 0.2 * (len(rows) + len(models)))
    axes = figure.add_subplot()
    names: list[str] = []
    for row in ordered:
        if style.model_name(row.model) not in names:
            names.append(style.model_name(row.model))
        _strip(axes, len(names), row)
        names.append(f"({row.input.replace('x', ',')})")
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_xscale("log")
    axes.set_xlim(1, LAST_N)
    style.decades(axes.xaxis)
    axes.set_xlabel("executions n")
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    handles = [
        Patch(facecolor=style.look(FOLD)[0], label="folded cheaper"),
        Patch(facecolor=style.look(BASE)[0], label="original cheaper"),
        Patch(facecolor="white", edgecolor=style.BLACK, hatch="////", label="not told apart"),
    ]
    figure.legend(
        handles=handles, loc="outside upper center", ncols=3, columnspacing=0.8, handlelength=1.4
    )
    single = ["one process a cell: no set"] if any(row.processes == 1 for row in rows) else []
    style.note(figure, "\n".join([*single, rows[0].source]))
    return figure


def _strip(axes: Axes, place: int, row: FoldRow) -> None:
    if not row.verdict:
        axes.text(1.3, place, row.note, va="center", fontsize=style.SMALL_POINTS, color=style.GREY)
        return
    for start, end, configuration in _stretches(row):
        axes.barh(place, end - start, left=start, height=0.62, color=style.look(configuration)[0])
    for low, high in _open_ranges(row):
        axes.barh(
            place,
            high - low,
            left=low,
            height=0.62,
            facecolor="none",
            edgecolor=style.BLACK,
            hatch="/////",
            linewidth=0,
        )
    words = row.verdict if row.n is None else f"{row.verdict} = {style.executions(row.n)}"
    axes.text(LAST_N * 1.4, place, words, va="center", fontsize=style.SMALL_POINTS)


def _stretches(row: FoldRow) -> list[tuple[float, float, str]]:
    """(from n, to n, cheaper configuration) over the strip."""
    if row.verdict in ("dominates", "never"):
        return [(1.0, LAST_N, FOLD if row.verdict == "dominates" else BASE)]
    if row.n is None:
        return []
    order = (FOLD, BASE) if row.verdict == "until n" else (BASE, FOLD)
    cut = min(max(row.n, 1.0), LAST_N)
    return [(1.0, cut, order[0]), (cut, LAST_N, order[1])]


def _open_ranges(row: FoldRow) -> list[tuple[float, float]]:
    """The stretches of the strip at which the two are not told apart."""
    ranges = [(row.first_from_n, row.first_to_n), (row.second_from_n, row.second_to_n)]
    clipped = [
        (max(start, 1.0), LAST_N if end is None else min(end, LAST_N))
        for start, end in ranges
        if start is not None
    ]
    return [(start, end) for start, end in clipped if start < end]
