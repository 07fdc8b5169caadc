"""Table 2: compile cost and latency of BERT in three stacks."""

from __future__ import annotations

from collections.abc import Sequence

from artifact.study import Study
from artifact.tables import timings
from artifact.tables.sheet import Sheet
from artifact.tables.source import Grid, Source, blocks_of, model_titles
from artifact.tables.timings import TimingRow

PAPER = "Table 2"
TITLE = "BERT: T_C and T_X in three stacks"
CAPTION = f"{timings.CAPTION} {timings.BORROWED_RULE}"
PUBLISHED = ("transformer",)
GRID = Grid(blocks_of("bert"), timings.STACKS)
ROW = TimingRow


def rows(study: Study, source: Source) -> list[TimingRow]:
    """One row per input and stack."""
    return timings.timing_rows(study, source, GRID)


def sheet(rows: Sequence[TimingRow]) -> Sheet:
    """One line an input, the lowest bold by the paper's rule."""
    return timings.timing_sheet(rows, model_titles(), CAPTION)
