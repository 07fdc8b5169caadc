"""C3: the fold's effect on T_C survives Holm in every cell where it is large enough to be seen."""

from __future__ import annotations

import math
from collections.abc import Mapping

from artifact.analysis import stats
from artifact.analysis.claims.line import (
    FINDING,
    INCONCLUSIVE,
    NOT_REPRODUCED,
    REPRODUCED,
    Line,
)
from artifact.analysis.claims.ratios import compile_cost_ms, fixed_cost_ms
from artifact.analysis.evidence import Evidence, Quantity
from artifact.analysis.stats import FamilyRow, PairedRatio

KIND = FINDING
TITLE = "every ResNet cell whose effect could be resolved is resolved (Welch + Holm)"
NEEDS = "ResNet cells with inductor and inductor-fold"

BAND = "every effect that reaches the resolvable ratio is resolved, none is an increase"
FAMILIES: dict[str, Quantity] = {"T_C": compile_cost_ms, "T_C + fold_ms": fixed_cost_ms}

#: The paper's family: "9 of 10" may be compared only when as many cells were measured.
PUBLISHED_SIZE, PUBLISHED = 10, "9 of 10 resolved"


def evaluate(evidence: Evidence) -> list[Line]:
    """One line a family: T_C, and T_C with the fold time."""
    blocks = evidence.blocks("resnet", "inductor", "inductor-fold")
    if not blocks:
        return []
    return [_line(evidence, blocks, name, quantity) for name, quantity in FAMILIES.items()]


def _line(evidence: Evidence, blocks: list[tuple[str, str]], name: str, quantity: Quantity) -> Line:
    sides = {
        " ".join(block): (
            evidence.values((*block, "inductor-fold"), quantity),
            evidence.values((*block, "inductor"), quantity),
        )
        for block in blocks
    }
    family = stats.family(sides)
    ratios = {
        " ".join(b): evidence.ratio((*b, "inductor-fold"), (*b, "inductor"), quantity)
        for b in blocks
    }
    resolved = [key for key, row in family.rows.items() if row.holm.reject]
    measured = f"{len(resolved)} of {len(blocks)} resolved (Holm over {family.size})"
    verdict, reason = _judge(family.rows, ratios)
    published = PUBLISHED if len(blocks) == PUBLISHED_SIZE else f"{PUBLISHED} (other family)"
    return Line(name, FINDING, verdict, measured, BAND, reason, published, blocks=tuple(blocks))


def _judge(
    rows: Mapping[str, FamilyRow], ratios: Mapping[str, PairedRatio | str]
) -> tuple[str, str]:
    rises = [key for key, row in rows.items() if row.holm.reject and row.welch.difference > 0]
    if rises:
        return NOT_REPRODUCED, f"resolved increase: {', '.join(rises)}"
    visible = [key for key, ratio in ratios.items() if _reaches(ratio)]
    missed = [key for key in visible if not rows[key].holm.reject]
    if missed:
        return INCONCLUSIVE, f"large enough, but not resolved: {', '.join(missed)}"
    if not visible:
        return INCONCLUSIVE, "no effect reaches what this design can resolve"
    small = sorted(ratios.keys() - set(visible))
    return REPRODUCED, f"below the resolvable ratio: {', '.join(small)}" if small else ""


def _reaches(ratio: PairedRatio | str) -> bool:
    """True when the observed effect is at least the smallest that the design could resolve."""
    if isinstance(ratio, str) or ratio.resolvable_ratio is None:
        return False
    return abs(math.log(ratio.ratio)) >= math.log(ratio.resolvable_ratio)
