"""C5: the fold shrinks the generated code and leaves the number of calls as it was."""

from __future__ import annotations

from collections.abc import Mapping

from artifact.analysis import published
from artifact.analysis.claims.line import (
    FAILS,
    FINDING,
    HOLDS,
    INTEGRITY,
    NOT_REPRODUCED,
    REPRODUCED,
    Line,
    integrity,
    unmeasured,
)
from artifact.analysis.evidence import Cell, Evidence
from artifact.census import Census
from artifact.records import Record

KIND = INTEGRITY
TITLE = "after the fold: no BatchNorm left, equal external units, smaller code"
NEEDS = "ResNet cells with inductor and inductor-fold and their census"

INTERNAL_TOLERANCE = 0.05

#: BatchNorms of an architecture (paper, fold section); other architectures are not known here.
BATCH_NORMS = {"resnet18": 20, "resnet50": 53}

#: Inductor names the operations of every kernel; all of PyTorch's BatchNorms hold this.
BATCH_NORM_MARK = "batch_norm"


def evaluate(evidence: Evidence) -> list[Line]:
    """Three lines for each measured ResNet block: BatchNorms, external and code, internal."""
    lines = []
    for block in evidence.blocks("resnet", "inductor", "inductor-fold"):
        base, fold = (*block, "inductor"), (*block, "inductor-fold")
        lines.append(_batch_norm_line(evidence, block, base, fold))
        lines += _unit_lines(evidence, block, base, fold)
    return lines


def _batch_norm_line(evidence: Evidence, block: tuple[str, str], base: Cell, fold: Cell) -> Line:
    record = evidence.first(fold)
    faults = [f for t in evidence.trials(fold) for f in fold_faults(t.record)]
    texts = evidence.code(base), evidence.code(fold)
    facts = record.facts.get("fold") or {}
    found = f"{facts.get('folded', 0)} folded"
    if all(texts):
        left = [_marks(text) for text in texts]
        found += f", {left[1]} named in the code ({left[0]} before)"
        if left[1]:
            faults.append(f"the folded code names BatchNorm {left[1]} times")
        if not left[0]:
            faults.append("the code before the fold names no BatchNorm")
    band = "all BatchNorms folded, 0 left in the generated code"
    expected = BATCH_NORMS.get(record.spec.architecture)
    shown = f"{expected} folded" if expected else ""
    item = f"{' '.join(block)} BatchNorm"
    return integrity(item, faults, measured=found, band=band, published=shown)


def fold_faults(record: Record) -> list[str]:
    """What the trial's own account of its fold says against it."""
    name, facts = record.spec.record_id, record.facts.get("fold")
    if not isinstance(facts, Mapping) or not facts.get("folded"):
        return [f"{name}: nothing was folded"]
    faults = []
    if facts.get("refused"):
        faults.append(f"{name}: {len(facts['refused'])} BatchNorms refused")
    expected = BATCH_NORMS.get(record.spec.architecture)
    if expected is not None and facts["folded"] != expected:
        faults.append(f"{name}: {facts['folded']} folded, {record.spec.model} has {expected}")
    return faults


def _marks(texts: Mapping[str, str]) -> int:
    return sum(text.count(BATCH_NORM_MARK) for text in texts.values())


def _unit_lines(evidence: Evidence, block: tuple[str, str], base: Cell, fold: Cell) -> list[Line]:
    before, after = evidence.first(base).census, evidence.first(fold).census
    item = " ".join(block)
    band = "external units equal, code_bytes smaller"
    if before is None or after is None:
        return [unmeasured(f"{item} units", INTEGRITY, band, _no_census(evidence, base, fold))]
    faults = []
    if before.external != after.external:
        faults.append(f"external units {before.external} before, {after.external} after")
    if not after.code_bytes < before.code_bytes:
        faults.append(f"code_bytes {before.code_bytes} before, {after.code_bytes} after")
    change = 100 * (after.code_bytes / before.code_bytes - 1)
    measured = f"external {before.external} -> {after.external}, code {change:+.1f} %"
    units = integrity(
        f"{item} units", faults, measured=measured, band=band, published=_published(block, "code")
    )
    return [units, _internal_line(evidence, block, base, before, after)]


def _internal_line(
    evidence: Evidence, block: tuple[str, str], base: Cell, before: Census, after: Census
) -> Line:
    """Internal units within 5 %. On CUDA autotuning chooses the kernels, and the paper's own
    ResNet-50 goes from 50 to 65 units, so there it is a finding and not integrity."""
    kind = FINDING if evidence.first(base).spec.device == "cuda" else INTEGRITY
    close = abs(after.internal - before.internal) <= INTERNAL_TOLERANCE * before.internal
    words = (REPRODUCED, NOT_REPRODUCED) if kind == FINDING else (HOLDS, FAILS)
    measured = f"{before.internal} -> {after.internal}"
    return Line(
        item=f"{' '.join(block)} internal units",
        kind=kind,
        verdict=words[0] if close else words[1],
        measured=measured,
        band="internal units within 5 %",
        reason="" if close else f"internal units {measured}",
        published=_published(block, "internal"),
    )


def _no_census(evidence: Evidence, base: Cell, fold: Cell) -> str:
    notes = [evidence.first(cell).census_note for cell in (base, fold)]
    return "; ".join(note for note in notes if note) or "no census in the record"


def _published(block: tuple[str, str], what: str) -> str:
    found = {
        row.variant: row
        for row in published.units()
        if (row.backend, row.model, row.input) == ("inductor", *block)
    }
    base, fold = found.get("fused_inductor"), found.get("fused_fold_inductor")
    if base is None or fold is None:
        return ""
    if what == "internal":
        return f"{base.internal} -> {fold.internal}"
    change = 100 * (fold.code_bytes / base.code_bytes - 1)
    return f"external {base.external} -> {fold.external}, code {change:+.1f} %"
