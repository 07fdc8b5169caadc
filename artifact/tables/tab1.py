"""Table 1: compile cost and latency of the ResNets in three stacks."""

from __future__ import annotations

from collections.abc import Sequence

from artifact.study import Study
from artifact.tables import timings
from artifact.tables.sheet import Sheet
from artifact.tables.source import Grid, Source, blocks_of, model_titles
from artifact.tables.timings import TimingRow

PAPER = "Table 1"
TITLE = "ResNet-18 and ResNet-50: T_C and T_X in three stacks"
CAPTION = timings.CAPTION
PUBLISHED = ("resnet",)
GRID = Grid(blocks_of("resnet18", "resnet50"), timings.STACKS)
ROW = TimingRow


def rows(study: Study, source: Source) -> list[TimingRow]:
    """One row per input and stack."""
    return timings.timing_rows(study, source, GRID)


def sheet(rows: Sequence[TimingRow]) -> Sheet:
    """One line an input, the lowest bold by the paper's rule."""
    return timings.timing_sheet(rows, model_titles())
