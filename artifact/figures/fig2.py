"""Figure 2: static calls into external libraries per stack."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from artifact.figures import units
from artifact.study import Study
from artifact.tables.source import Source

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAPER = "Figure 2"
TITLE = "Static calls into external libraries"
CAPTION = f"{units.CAPTION} Shown: calls into cuDNN, cuBLAS, oneDNN or another library."
PUBLISHED = units.PUBLISHED
GRID = units.GRID
ROW = units.UnitRow


def rows(study: Study, source: Source) -> list[units.UnitRow]:
    """External units of both ResNets at the paper's smallest input."""
    return units.unit_rows(study, source, lambda counted: counted.external)


def draw(rows: Sequence[units.UnitRow]) -> Figure:
    """One bar a stack, two groups: ResNet-18 and ResNet-50."""
    return units.draw_units(rows, "external units")
