"""Figure 1: all static call-like units per stack."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from artifact.figures import units
from artifact.study import Study
from artifact.tables.source import Source

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAPER = "Figure 1"
TITLE = "Static call-like units, internal and external"
CAPTION = f"{units.CAPTION} Shown: internal and external units together."
PUBLISHED = units.PUBLISHED
GRID = units.GRID
ROW = units.UnitRow


def rows(study: Study, source: Source) -> list[units.UnitRow]:
    """Internal and external units of both ResNets at the paper's smallest input."""
    return units.unit_rows(study, source, lambda counted: counted.total)


def draw(rows: Sequence[units.UnitRow]) -> Figure:
    """One bar a stack, two groups: ResNet-18 and ResNet-50."""
    return units.draw_units(rows, "call-like units")
