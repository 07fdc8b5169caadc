"""Figure 3: static calls of compiler-generated code per stack."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from artifact.figures import units
from artifact.study import Study
from artifact.tables.source import Source

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAPER = "Figure 3"
TITLE = "Static calls of compiler-generated code"
CAPTION = (
    f"{units.CAPTION} Shown: calls of kernels, fusions or functions that the compiler generated."
)
PUBLISHED = units.PUBLISHED
GRID = units.GRID
ROW = units.UnitRow


def rows(study: Study, source: Source) -> list[units.UnitRow]:
    """Internal units of both ResNets at the paper's smallest input."""
    return units.unit_rows(study, source, lambda counted: counted.internal)


def draw(rows: Sequence[units.UnitRow]) -> Figure:
    """One bar a stack, two groups: ResNet-18 and ResNet-50."""
    return units.draw_units(rows, "internal units")
