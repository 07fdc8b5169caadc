"""Table 4: the Conv-BatchNorm fold on ResNet-18 in Inductor."""

from __future__ import annotations

from collections.abc import Sequence

from artifact.study import Study
from artifact.tables import changes
from artifact.tables.changes import ChangeRow
from artifact.tables.sheet import Sheet
from artifact.tables.source import Grid, Source, blocks_of, model_titles

PAPER = "Table 4"
TITLE = "Conv-BatchNorm fold on ResNet-18: T_C and T_X, original and folded"
CAPTION = (
    "Times in ms, mean and sample sd over processes; T_C native. Differences in per cent of the "
    "original, with Welch's 95 % interval (unadjusted). T_C + fold adds the fold's own time."
)
PUBLISHED = ("resnet",)
GRID = Grid(blocks_of("resnet18"), ("inductor", "inductor-fold"))
ROW = ChangeRow


def rows(study: Study, source: Source) -> list[ChangeRow]:
    """Three rows an input: T_C, T_C with the fold in it, T_X."""
    return changes.change_rows(study, source, GRID, tests=changes.FOLD_FAMILY)


def sheet(rows: Sequence[ChangeRow]) -> Sheet:
    """One line an input."""
    return changes.change_sheet(rows, model_titles(), ("original", "folded"), (CAPTION,))
