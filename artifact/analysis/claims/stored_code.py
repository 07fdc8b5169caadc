"""Generated code as evidence: every compiled trial names its files, one copy a cell can be read."""

from __future__ import annotations

from artifact.analysis.claims.line import in_rounds
from artifact.analysis.evidence import Cell, Evidence


def code_faults(evidence: Evidence, *cells: Cell) -> list[str]:
    """What the code of these cells lacks.

    A shipped reference keeps one copy a cell, so more is not asked for here; a campaign folder that
    lost one of its files fails C1.
    """
    faults = []
    for cell in cells:
        trials = evidence.trials(cell)
        without = [trial for trial in trials if not trial.record.code_files]
        faults += in_rounds((t.round, f"{cell[2]}: no generated code is named") for t in without)
        if len(without) < len(trials) and not any(trial.read_code() for trial in trials):
            faults.append(f"{cell[2]}: no generated code is stored")
    return faults
