"""X2: the guarded pass costs and runs like the offline fold, and sees what is changed afterwards.

A record can prove what was folded, which tensors every call checks and that no call fell back. That
a changed statistic is then really seen is a behaviour: `tests/folds/test_guarded.py` shows it.
"""

from __future__ import annotations

from collections.abc import Mapping

from artifact.analysis.claims.c5 import BATCH_NORMS
from artifact.analysis.claims.line import INTEGRITY, Line, integrity
from artifact.analysis.claims.outputs import blocks_with, output_line
from artifact.analysis.claims.ratios import at_most_line, fixed_cost_ms, latency_ms
from artifact.analysis.evidence import Cell, Evidence, Quantity
from artifact.analysis.stats import PairedRatio, paired_ratio
from artifact.records import Record

KIND = INTEGRITY
TITLE = "the guarded pass folds all BatchNorms at the offline fold's T_C and T_X"
NEEDS = "a ResNet cell with inductor-guard (and inductor-fold, for the ratios)"

#: Largest ratio of guard to offline fold, and the quantity; the fold's time counts on both sides.
LIMITS: dict[str, tuple[float, Quantity]] = {
    "T_C": (1.10, fixed_cost_ms),
    "T_X": (1.03, latency_ms),
}
#: A one-sided 95 % bound is the end of the two-sided interval of this level.
LEVEL = 0.90

#: What a fold reads: the convolution's weight; scale, bias, running mean and variance of the norm.
TENSORS_OF_A_FOLD = 5
STATISTICS = "statistics"


def evaluate(evidence: Evidence) -> list[Line]:
    """Guards, outputs, T_C and T_X of each measured ResNet block."""
    lines = []
    for block in blocks_with(evidence, "resnet", "inductor-guard"):
        guard = (*block, "inductor-guard")
        if evidence.trials(guard):
            lines.append(_guard_line(evidence, guard))
        lines.append(output_line(evidence, guard))
        if evidence.trials(guard):
            lines += [_ratio_line(evidence, guard, name) for name in LIMITS]
    return lines


def _guard_line(evidence: Evidence, guard: Cell) -> Line:
    records = [trial.record for trial in evidence.trials(guard)]
    faults = [fault for record in records for fault in guard_faults(record)]
    facts = records[0].facts.get("route")
    measured = ""
    if isinstance(facts, Mapping):
        measured = f"{facts.get('folded')} folded, {facts.get('guarded_tensors')} tensors guarded"
    expected = BATCH_NORMS.get(records[0].spec.architecture, "all")
    band = (
        f"{expected} folded, {TENSORS_OF_A_FOLD} tensors of each guarded, no fallback "
        "(that a change is seen: a test)"
    )
    return integrity(f"{' '.join(guard[:2])} guard", faults, measured=measured, band=band)


def guard_faults(record: Record) -> list[str]:
    """What the trial's own account of the guarded pass says against it."""
    name, facts = record.spec.record_id, record.facts.get("route")
    if not isinstance(facts, Mapping) or facts.get("name") != "guard" or not facts.get("folded"):
        return [f"{name}: the guarded pass folded nothing"]
    faults, folded = [], facts["folded"]
    expected = BATCH_NORMS.get(record.spec.architecture, folded)
    if folded != expected:
        faults.append(f"{folded} folded, {record.spec.model} has {expected}")
    if facts.get("refused"):
        faults.append(f"{len(facts['refused'])} BatchNorms refused")
    if facts.get("guarded_tensors") != TENSORS_OF_A_FOLD * folded:
        wanted = TENSORS_OF_A_FOLD * folded
        faults.append(f"{facts.get('guarded_tensors')} tensors guarded, expected {wanted}")
    if STATISTICS not in str(facts.get("guards", "")):
        faults.append(f"its guards do not name the {STATISTICS}: {facts.get('guards', 'none')}")
    if facts.get("fallbacks") != 0:
        faults.append(f"{facts.get('fallbacks')} calls ran unfolded")
    return [f"{name}: {fault}" for fault in faults]


def _ratio_line(evidence: Evidence, guard: Cell, term: str) -> Line:
    limit, quantity = LIMITS[term]
    fold = (*guard[:2], "inductor-fold")
    of_fold = "fold + fold_ms" if term == "T_C" else "fold"
    band = f"upper r({term} guard / {of_fold}) <= {limit:g}, one-sided 95 %"
    ratio = _ratio(evidence, guard, fold, quantity)
    return at_most_line(f"{' '.join(guard[:2])} {term}", ratio, limit, band)


def _ratio(evidence: Evidence, guard: Cell, fold: Cell, quantity: Quantity) -> PairedRatio | str:
    """As `evidence.ratio`, with the interval whose ends are the one-sided bounds."""
    found = evidence.ratio(guard, fold, quantity)
    if isinstance(found, str):
        return found
    return paired_ratio(*evidence.pairs(guard, fold, quantity), level=LEVEL)
