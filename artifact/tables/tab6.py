"""Table 6: the BERT audit, base against an unchanged control."""

from __future__ import annotations

from collections.abc import Sequence

from artifact.study import Study
from artifact.tables import changes
from artifact.tables.changes import ChangeRow
from artifact.tables.sheet import Sheet
from artifact.tables.source import Grid, Source, blocks_of, model_titles

PAPER = "Table 6"
TITLE = "BERT audit: T_C and T_X of base and control"
CAPTION = (
    "Times in ms, mean and sample sd over processes; T_C native. The control is an unchanged copy "
    "in its own cold process: no difference is expected. Differences in per cent of the base, with "
    "Welch's 95 % interval (unadjusted)."
)
PUBLISHED = ("bert_audit",)
GRID = Grid(blocks_of("bert"), ("inductor", "inductor-control"))
ROW = ChangeRow


def rows(study: Study, source: Source) -> list[ChangeRow]:
    """Two rows an input: T_C and T_X (nothing is folded)."""
    return changes.change_rows(study, source, GRID, ("compile", "latency"))


def sheet(rows: Sequence[ChangeRow]) -> Sheet:
    """One line an input."""
    return changes.change_sheet(rows, model_titles(), ("base", "control"), (CAPTION,))
