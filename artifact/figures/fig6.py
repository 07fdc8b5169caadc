"""Figure 6: what T_C is made of, per stack, with the paper's own window marked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from artifact.analysis.stats import process_interval
from artifact.figures import style
from artifact.records import ALIGNED_PHASES, Record
from artifact.study import Study
from artifact.tables.source import Block, Grid, Source, View, paper_blocks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PAPER = "beyond the paper"
TITLE = "Phases from the evaluated model to the first output, per stack"
CAPTION = (
    "Bars are means over processes, the whisker is the 95 % interval of their sum. The bracket is "
    "the window of the paper's T_C for this stack (for all but TVM less one execution). Inductor "
    "compiles inside its first call; PyTorch's own timers split it. Its one-time C++ tool chain "
    "work stands apart."
)
PUBLISHED = ()
GRID = Grid(
    tuple({model: (model, shape) for model, shape in reversed(paper_blocks())}.values())[::-1]
)

#: Parts in the order in which they are stacked, and the phases of a record in each.
PARTS: Mapping[str, tuple[str, ...]] = {
    "fold": ("fold",),
    "binding, load": ("binding", "load"),
    "tool chain": ("toolchain",),
    "front end": ("capture", "import"),
    "passes + codegen": ("passes", "codegen", "compile"),
    "first call": ("first_call",),
}

#: PyTorch's timers (`detail_ms`): all of one graph's compilation, and of it what the back end took.
COMPILE_TIMER = "_compile.compile_inner"
BACKEND_TIMER = "OutputGraph.call_user_compiler"

COLOURS = {
    "fold": style.PURPLE,
    "binding, load": style.GREY,
    "tool chain": "#FFFFFF",
    "front end": style.SKY,
    "passes + codegen": style.BLUE,
    "first call": style.YELLOW,
}


@dataclass(frozen=True)
class PhaseRow:
    """One part of one configuration's bar, mean over processes; `part` "sum" is the whole bar.

    `native` says whether the paper's window holds the part. `low_ms` and `high_ms` are the ends of
    the 95 % interval. `binding`: whether the compiler knew the weights (frozen or runtime).
    """

    source: str
    model: str
    input: str
    configuration: str
    part: str
    mean_ms: float | None
    low_ms: float | None
    high_ms: float | None
    native: bool
    processes: int
    note: str
    binding: str = ""


ROW = PhaseRow
SUM = "sum"


def rows(study: Study, source: Source) -> list[PhaseRow]:
    """Every part of every configuration of the first input of each model."""
    made: list[PhaseRow] = []
    for block in GRID.shown(study, source):
        names = source.configurations(study, block)
        if not names:
            words = source.why_absent((*block, ""))
            made.append(
                PhaseRow(source.label, *block, "all", SUM, None, None, None, False, 0, words)
            )
        for name in names:
            made += _of_cell(source, block, name)
    return made


def _of_cell(source: Source, block: Block, configuration: str) -> list[PhaseRow]:
    view = source.view((*block, configuration))
    cell = (source.label, *block, configuration)
    if view is None:
        words = source.why_absent((*block, configuration))
        return [PhaseRow(*cell, SUM, None, None, None, False, 0, words)]
    return [_row(cell, view, part) for part in [*PARTS, SUM]]


def _row(cell: tuple[str, str, str, str], view: View, part: str) -> PhaseRow:
    values = [_part_ms(record, part) for record in view.records]
    interval = process_interval(values)
    native = view.records[0].native
    window = _parts_of(view.records[0], native.phases if native else ())
    return PhaseRow(
        *cell,
        part,
        interval.mean,
        interval.low,
        interval.high,
        part in window,
        view.n,
        "" if interval.mean else "none",
        view.binding,
    )


def split_first_call(record: Record) -> dict[str, float]:
    """Parts of a first call (ms) in which the compiler ran, by PyTorch's own timers.

    Front end: a graph's compilation less its back end. Passes and codegen: the back end. First
    call: the rest. Without the timers, or when they exceed the call, all of it is "first call".
    """
    whole = record.phase_ms("first_call")
    compiling = record.detail_ms.get(COMPILE_TIMER)
    backend = record.detail_ms.get(BACKEND_TIMER)
    if compiling is None or backend is None or not 0 <= backend <= compiling <= whole:
        return {"front end": 0.0, "passes + codegen": 0.0, "first call": whole}
    return {
        "front end": compiling - backend,
        "passes + codegen": backend,
        "first call": whole - compiling,
    }


def _part_ms(record: Record, part: str) -> float:
    if part == SUM:
        return record.phase_ms(*ALIGNED_PHASES)
    outside = tuple(name for name in PARTS[part] if name != "first_call")
    return record.phase_ms(*outside) + split_first_call(record).get(part, 0.0)


def _parts_of(record: Record, phases: Sequence[str]) -> set[str]:
    """The parts that a window over `phases` holds."""
    inside = {part for part, names in PARTS.items() if set(names) & set(phases)}
    if "first_call" in phases:
        inside |= {part for part, ms in split_first_call(record).items() if ms > 0}
    return inside


def draw(rows: Sequence[PhaseRow]) -> Figure:
    """One panel a block, one horizontal bar a configuration; absent ones keep their line."""
    from matplotlib.patches import Patch

    blocks = list(dict.fromkeys((row.model, row.input) for row in rows))
    drawn = [b for b in blocks if any(_is_bar(row) for row in rows if (row.model, row.input) == b)]
    counts = [len(_configurations(rows, block)) for block in drawn]
    figure = style.new_figure(1.2 + 0.42 * len(drawn) + 0.2 * sum(counts))
    missing = style.grouped(
        (style.block_name(row.model, row.input), row.note)
        for row in rows
        if (row.model, row.input) not in drawn
    )
    differing = style.contract_lines(
        (row.model, row.input, row.configuration, row.binding) for row in rows if _is_bar(row)
    )
    style.note(figure, "\n".join([*missing, *differing, rows[0].source]))
    if not drawn:
        return figure
    panels = figure.subplots(len(drawn), 1, squeeze=False, height_ratios=[c + 0.4 for c in counts])
    for axes, block in zip(panels[:, 0], drawn, strict=True):
        _panel(axes, [row for row in rows if (row.model, row.input) == block])
        axes.set_title(style.block_name(*block), loc="left", pad=3)
    panels[-1, 0].set_xlabel("time to the first output, in s")
    handles = [_patch(part) for part in PARTS]
    handles.append(Patch(facecolor="none", edgecolor="none", label="bracket: T_C"))
    figure.legend(
        handles=handles, loc="outside upper center", ncols=3, columnspacing=0.8, handlelength=1.2
    )
    return figure


def _is_bar(row: PhaseRow) -> bool:
    return row.part == SUM and row.mean_ms is not None


def _configurations(rows: Sequence[PhaseRow], block: tuple[str, str]) -> list[str]:
    return list(dict.fromkeys(r.configuration for r in rows if (r.model, r.input) == block))


def _patch(part: str) -> object:
    from matplotlib.patches import Patch

    hatch = "////" if part == "tool chain" else None
    return Patch(
        facecolor=COLOURS[part], edgecolor=style.BLACK, linewidth=0.4, hatch=hatch, label=part
    )


def _panel(axes: Axes, rows: Sequence[PhaseRow]) -> None:
    names = _configurations(rows, (rows[0].model, rows[0].input))
    longest = max(row.high_ms or row.mean_ms or 0.0 for row in rows if row.part == SUM) / 1000
    for place, name in enumerate(names):
        parts = {row.part: row for row in rows if row.configuration == name}
        if parts[SUM].mean_ms is None:
            axes.text(
                0.01 * longest,
                place,
                parts[SUM].note,
                va="center",
                fontsize=style.SMALL_POINTS,
                color=style.GREY,
            )
        else:
            _stack(axes, place, parts, longest)
    axes.set_yticks(range(len(names)), [style.short_name(name) for name in names])
    axes.set_ylim(len(names) - 0.35, -0.65)
    axes.set_xlim(0, longest * 1.16)
    axes.tick_params(axis="y", length=0)


def _stack(axes: Axes, place: int, parts: Mapping[str, PhaseRow], longest: float) -> None:
    """The parts of one bar, its whisker, its bracket and its sum in words."""
    start, window = 0.0, []
    for part in PARTS:
        width = (parts[part].mean_ms or 0.0) / 1000
        axes.barh(
            place,
            width,
            left=start,
            height=0.5,
            facecolor=COLOURS[part],
            edgecolor=style.BLACK,
            linewidth=0.4,
            hatch="////" if part == "tool chain" else None,
        )
        if parts[part].native and width:
            window += [start, start + width]
        start += width
    whole = parts[SUM]
    end = start
    if whole.low_ms is not None and whole.high_ms is not None:
        reach = [[start - whole.low_ms / 1000], [whole.high_ms / 1000 - start]]
        axes.errorbar(start, place, xerr=reach, color=style.BLACK, capsize=2, linewidth=0.8)
        end = max(start, whole.high_ms / 1000)
    if window:
        low, high = min(window), max(window)
        top, tip = place - 0.38, place - 0.29
        axes.plot([low, low, high, high], [tip, top, top, tip], color=style.BLACK, linewidth=0.9)
    axes.text(
        end + 0.012 * longest,
        place,
        style.milliseconds(start * 1000),
        va="center",
        fontsize=style.SMALL_POINTS,
    )
