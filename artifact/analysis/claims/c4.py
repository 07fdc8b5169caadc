"""C4: the fold does not slow execution, and changes it less than it changes T_C."""

from __future__ import annotations

import math

from artifact.analysis.claims.c2 import published_ratio
from artifact.analysis.claims.line import FINDING, INCONCLUSIVE, REPRODUCED, Line
from artifact.analysis.claims.ratios import at_most, compile_cost_ms, latency_ms, text
from artifact.analysis.evidence import Evidence
from artifact.analysis.stats import PairedRatio

KIND = FINDING
TITLE = "the fold's effect on T_X is small"
NEEDS = "ResNet cells with inductor and inductor-fold"

LIMIT = 1.05
BAND = f"upper r(T_X fold / base) <= {LIMIT:g}, and a smaller effect than on T_C"


def evaluate(evidence: Evidence) -> list[Line]:
    """One line for each measured ResNet block."""
    blocks = evidence.blocks("resnet", "inductor", "inductor-fold")
    return [_line(evidence, block) for block in blocks]


def _line(evidence: Evidence, block: tuple[str, str]) -> Line:
    fold, base = (*block, "inductor-fold"), (*block, "inductor")
    item, shown = " ".join(block), published_ratio(block, "execution")
    latency = evidence.ratio(fold, base, latency_ms)
    if isinstance(latency, str):
        return Line(item, FINDING, INCONCLUSIVE, "", BAND, latency, shown)
    verdict, reason = at_most(latency, LIMIT)
    if verdict == REPRODUCED:
        verdict, reason = _smaller(latency, evidence.ratio(fold, base, compile_cost_ms))
    return Line(item, FINDING, verdict, text(latency), BAND, reason, shown, latency)


def _smaller(latency: PairedRatio, compile_cost: PairedRatio | str) -> tuple[str, str]:
    if isinstance(compile_cost, str):
        return INCONCLUSIVE, f"no ratio of T_C: {compile_cost}"
    if abs(math.log(latency.ratio)) < abs(math.log(compile_cost.ratio)):
        return REPRODUCED, f"r(T_C) = {compile_cost.ratio:.3f}"
    return INCONCLUSIVE, f"the effect on T_C is not larger: r(T_C) = {compile_cost.ratio:.3f}"
