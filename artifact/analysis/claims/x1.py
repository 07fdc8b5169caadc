"""X1: GPT-2 is the positive case of the LayerNorm-Linear fold (the paper has BERT's negative one).

Every LayerNorm of a layer is folded; `ln_f` is not, since its consumer `lm_head` shares its weight
with the token embedding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from artifact.analysis.claims.line import INTEGRITY, Line, integrity
from artifact.analysis.claims.outputs import blocks_with, output_line
from artifact.analysis.claims.ratios import at_most_line, fixed_cost_ms, latency_ms
from artifact.analysis.evidence import Cell, Evidence
from artifact.analysis.stats import PairedRatio
from artifact.plan import TrialSpec
from artifact.records import Record

KIND = INTEGRITY
TITLE = "GPT-2: the legal LayerNorms are folded, ln_f is not; T_X does not grow"
NEEDS = "a GPT-2 cell with inductor-fold (and inductor, for the ratios)"

KIND_OF_FOLD = "layernorm-linear"
LIMIT = 1.05

#: GPT-2 small has twelve layers of two LayerNorms each, and `ln_f` after the last.
SMALL_LAYERS = 12
LAST_NORM = "ln_f"
#: What the audit says of a weight that belongs to another module too.
REASON = "tied"


def evaluate(evidence: Evidence) -> list[Line]:
    """Sites, outputs and T_X (with the direction of T_C) of each measured GPT-2 block."""
    lines = []
    for block in blocks_with(evidence, "gpt2", "inductor-fold"):
        fold = (*block, "inductor-fold")
        if evidence.trials(fold):
            lines.append(_sites_line(evidence, fold))
        lines.append(output_line(evidence, fold))
        if evidence.trials(fold):
            lines.append(_latency_line(evidence, fold, (*block, "inductor")))
    return lines


def legal_sites(spec: TrialSpec) -> int:
    """LayerNorms in front of linear layers of their own: two a layer."""
    return 2 * int(spec.model_options.get("layers", SMALL_LAYERS))


def _sites_line(evidence: Evidence, fold: Cell) -> Line:
    records = [trial.record for trial in evidence.trials(fold)]
    sites = legal_sites(records[0].spec)
    faults = [fault for record in records for fault in site_faults(record, sites)]
    band = f"{sites} legal and folded, {LAST_NORM} refused because it is {REASON}"
    measured = _told(records[0].facts.get("fold"))
    return integrity(f"{' '.join(fold[:2])} sites", faults, measured=measured, band=band)


def _told(facts: object) -> str:
    """What the first trial says of its fold, in short."""
    if not isinstance(facts, Mapping):
        return ""
    refused = _refusals(facts)
    names = ", ".join(name for name, _ in refused)
    return f"{facts.get('folded')} folded, {len(refused)} refused ({names or '-'})"


def _refusals(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(name, reason) of every LayerNorm that was not folded."""
    return [
        (str(r.get("name")), str(r.get("reason"))) if isinstance(r, Mapping) else (str(r), "?")
        for r in facts.get("refused") or []
    ]


def site_faults(record: Record, sites: int) -> list[str]:
    """What the trial's own account of its fold says against `sites` folded and `ln_f` refused."""
    name, facts = record.spec.record_id, record.facts.get("fold")
    if not isinstance(facts, Mapping) or not facts.get("folded"):
        return [f"{name}: nothing was folded"]
    faults = []
    if facts.get("kind") != KIND_OF_FOLD:
        faults.append(f"{name}: the fold is {facts.get('kind')}, expected {KIND_OF_FOLD}")
    if facts["folded"] != sites:
        faults.append(f"{name}: {facts['folded']} folded, expected {sites}")
    return faults + [f"{name}: {fault}" for fault in _refusal_faults(_refusals(facts))]


def _refusal_faults(refused: list[tuple[str, str]]) -> list[str]:
    last = [pair for pair in refused if pair[0].rpartition(".")[2] == LAST_NORM]
    faults = [f"{name} refused: {reason}" for name, reason in refused if (name, reason) not in last]
    if not last:
        faults.append(f"{LAST_NORM} was not refused")
    faults += [
        f"{LAST_NORM} refused for another reason: {reason}"
        for _, reason in last
        if REASON not in reason
    ]
    return faults


def _latency_line(evidence: Evidence, fold: Cell, base: Cell) -> Line:
    ratio = evidence.ratio(fold, base, latency_ms)
    item, band = f"{' '.join(fold[:2])} T_X", f"upper r(T_X fold / base) <= {LIMIT:g}"
    line = at_most_line(item, ratio, LIMIT, band)
    if isinstance(ratio, str):
        return line
    direction = _direction(evidence.ratio(fold, base, fixed_cost_ms))
    return replace(line, reason="; ".join(filter(None, (line.reason, direction))))


def _direction(ratio: PairedRatio | str) -> str:
    """Where T_C goes, the fold's time in it; reported, and not judged."""
    if isinstance(ratio, str):
        return f"no ratio of T_C: {ratio}"
    told = f"r(T_C fold + fold_ms / base) = {ratio.ratio:.3f}"
    if ratio.low is None or ratio.high is None:
        return f"{told}, no interval: {ratio.reason}"
    told += f" [{ratio.low:.3f}, {ratio.high:.3f}]"
    if ratio.high < 1:
        return f"{told}: lower"
    return f"{told}: higher" if ratio.low > 1 else f"{told}: no direction resolved"
