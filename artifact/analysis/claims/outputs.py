"""Outputs of a rewritten model: within parity of the float64 reference in every trial.

The reference is one for all configurations of a block, so two that both pass are equal within what
eager PyTorch itself loses at that precision (DESIGN, parity).
"""

from __future__ import annotations

from artifact.analysis.claims.line import Line, integrity
from artifact.analysis.evidence import Cell, Evidence, cell_of
from artifact.records import Record

BAND = "every output within parity of the float64 reference"


def blocks_with(evidence: Evidence, family: str, configuration: str) -> list[tuple[str, str]]:
    """Blocks in which the configuration was measured, or ended with a wrong output instead."""
    wrong = {
        (record.spec.model, record.spec.input)
        for record in _wrong(evidence)
        if (record.spec.family, record.spec.configuration) == (family, configuration)
    }
    return sorted(wrong.union(evidence.blocks(family, configuration)))


def output_line(evidence: Evidence, cell: Cell) -> Line:
    """An integrity line: no attempt at the cell gave a wrong output."""
    usable = [trial.record for trial in evidence.trials(cell)]
    wrong = [record for record in _wrong(evidence) if cell_of(record.spec) == cell]
    faults = [f"{record.spec.record_id}: {record.message or 'wrong output'}" for record in wrong]
    faults += [fault for record in usable for fault in _faults(record)]
    errors = [record.output.max_abs for record in usable if record.output is not None]
    found = f"{len(usable)} of {len(usable) + len(wrong)} within parity"
    known = [error for error in errors if error is not None]
    if known:
        found += f", largest error {max(known):.1e}"
    item = f"{' '.join(cell[:2])} outputs"
    return integrity(item, faults, measured=found, band=BAND)


def _wrong(evidence: Evidence) -> list[Record]:
    """Attempts at measured trials that ended with a wrong output; they are in no estimate."""
    records = evidence.campaign.records if evidence.campaign else ()
    return [r for r in records if r.status == "wrong-output" and r.spec.role == "measured"]


def _faults(record: Record) -> list[str]:
    """What the stored numbers say against an output that the trial itself let pass."""
    output = record.output
    if output is None or output.rmse is None:
        return [f"{record.spec.record_id}: no error is stored"]
    if output.rmse <= output.allowed_rmse:
        return []
    return [f"{record.spec.record_id}: rmse {output.rmse:.1e}, allowed {output.allowed_rmse:.1e}"]
