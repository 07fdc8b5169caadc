"""Figures: one small module each (`fig3.py`), found by its name; pure functions of a `Source`.

A figure module offers

    PAPER      the figure's name in the paper, or "beyond the paper"
    TITLE      one line: what it shows
    CAPTION    how to read it
    PUBLISHED  campaigns of `expected/published/timings.csv` to draw it from; empty without numbers
    GRID       the cells it needs (`artifact.tables.source.Grid`)
    ROW        the dataclass of one row of its CSV: exactly what is drawn
    rows(study, source) -> list[ROW]
    draw(rows) -> matplotlib Figure

Adding a figure is adding one file; nothing else changes.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from artifact.errors import UserError
from artifact.study import Study
from artifact.tables.source import Grid, Source

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_FIGURE_FILE = re.compile(r"fig(\d+)")


@dataclass(frozen=True)
class Drawing:
    """One figure as its module describes it."""

    name: str
    paper: str
    title: str
    caption: str
    published: tuple[str, ...]
    grid: Grid
    row: type
    rows: Callable[[Study, Source], list[Any]]
    draw: Callable[[Sequence[Any]], Figure]


def names() -> list[str]:
    """`fig1`, `fig2`, ... in number order."""
    found = [m.name for m in pkgutil.iter_modules(__path__) if _FIGURE_FILE.fullmatch(m.name)]
    return sorted(found, key=lambda name: int(name[3:]))


def load(name: str) -> Drawing:
    """The figure called `name`; an unknown name is one line that lists the known ones."""
    if name not in names():
        raise UserError(f"unknown figure {name!r}", next_step=f"known: {', '.join(names())}")
    module = importlib.import_module(f"{__name__}.{name}")
    return Drawing(
        name,
        module.PAPER,
        module.TITLE,
        module.CAPTION,
        module.PUBLISHED,
        module.GRID,
        module.ROW,
        module.rows,
        module.draw,
    )
