"""Tables: one small module each (`tab4.py`), found by its name; pure functions of a `Source`.

A table module offers

    PAPER      the table's name in the paper, or "beyond the paper"
    TITLE      one line: what it shows
    CAPTION    how to read it
    PUBLISHED  campaigns of `expected/published/timings.csv` to make it from; empty without numbers
    GRID       the cells it needs (`artifact.tables.source.Grid`)
    ROW        the dataclass of one row of its CSV
    rows(study, source) -> list[ROW]
    sheet(rows) -> Sheet     what Markdown and LaTeX show

Adding a table is adding one file; nothing else changes. `summary` is the closing table of a run.
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

if TYPE_CHECKING:
    from artifact.tables.sheet import Sheet
    from artifact.tables.source import Grid, Source

_TABLE_FILE = re.compile(r"tab(\d+)")


@dataclass(frozen=True)
class Table:
    """One table as its module describes it."""

    name: str
    paper: str
    title: str
    caption: str
    published: tuple[str, ...]
    grid: Grid
    row: type
    rows: Callable[[Study, Source], list[Any]]
    sheet: Callable[[Sequence[Any]], Sheet]


def names() -> list[str]:
    """`tab1`, `tab2`, ... in number order."""
    found = [m.name for m in pkgutil.iter_modules(__path__) if _TABLE_FILE.fullmatch(m.name)]
    return sorted(found, key=lambda name: int(name[3:]))


def load(name: str) -> Table:
    """The table called `name`; an unknown name is one line that lists the known ones."""
    if name not in names():
        raise UserError(f"unknown table {name!r}", next_step=f"known: {', '.join(names())}")
    module = importlib.import_module(f"{__name__}.{name}")
    return Table(
        name,
        module.PAPER,
        module.TITLE,
        module.CAPTION,
        module.PUBLISHED,
        module.GRID,
        module.ROW,
        module.rows,
        module.sheet,
    )
