"""C7: which stack is cheapest depends on n (paper, cost lines of ResNet-18 at 1x3x224x224).

Envelope of the four configurations of the paper within its own windows; elsewhere the order of
T_C; and the crossover itself, which the paper's machine alone can be compared with.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from artifact.analysis import cost, published
from artifact.analysis.claims.line import (
    FINDING,
    INCONCLUSIVE,
    NOT_COMPARABLE,
    NOT_REPRODUCED,
    REPRODUCED,
    Line,
)
from artifact.analysis.claims.ratios import fixed_cost_ms, latency_ms, power, text
from artifact.analysis.cost import (
    CrossoverSet,
    ProcessPoint,
    crossover,
    crossover_set,
    envelope,
    mean_line,
)
from artifact.analysis.evidence import Evidence
from artifact.analysis.stats import PairedRatio

KIND = FINDING
TITLE = "the cheapest stack depends on n: XLA first, folded Inductor last"
NEEDS = "cells with xla and inductor"

CELL = ("resnet18", "1x3x224x224")
FOUR = ("inductor", "inductor-fold", "xla", "tvm")
FIRST, LAST = "xla", "inductor-fold"
METHOD = "welch"
PUBLISHED_DEVICE = "RTX 3050"
PUBLISHED_N = 19_378

ENVELOPE_BAND = f"envelope: {FIRST} first, {LAST} last (native boundary)"


def evaluate(evidence: Evidence) -> list[Line]:
    """Envelope and crossover of ResNet-18 at 1x3x224x224, order of T_C everywhere else."""
    lines = []
    if all((*CELL, name) in evidence.cells for name in FOUR):
        lines += [_envelope_line(evidence), _crossover_line(evidence)]
    for family in ("resnet", "bert", "gpt2"):
        order = ("xla", "inductor-fold", "inductor") if family == "resnet" else ("xla", "inductor")
        blocks = evidence.blocks(family, *order)
        lines += [
            _pair_line(evidence, block, cheaper, dearer)
            for block in blocks
            if block != CELL
            for cheaper, dearer in pairwise(order)
        ]
    return lines


def _points(evidence: Evidence, name: str) -> list[ProcessPoint]:
    return [process.point("native") for process in evidence.processes((*CELL, name))]


def _lines(evidence: Evidence, names: Iterable[str]) -> dict[str, cost.Line]:
    return {name: mean_line(_points(evidence, name)) for name in names}


def _envelope_line(evidence: Evidence) -> Line:
    segments = envelope(_lines(evidence, FOUR))
    words = ", ".join(f"{s.name} from n = {s.from_n:.0f}" for s in segments)
    verdict, reason = _judge_envelope(evidence, [segment.name for segment in segments])
    shown = f"{FIRST} to n = {PUBLISHED_N}, then {LAST}"
    return Line(f"{' '.join(CELL)} envelope", FINDING, verdict, words, ENVELOPE_BAND, reason, shown)


def _judge_envelope(evidence: Evidence, names: list[str]) -> tuple[str, str]:
    """Each end of the envelope: the paper's configuration against the one that is there instead,
    or against the other end where it is there itself. A ratio below 1 is the paper's order."""
    if len(names) == 1:
        return NOT_REPRODUCED, f"{names[0]} is cheapest for every n"
    rivals = (names[0] if names[0] != FIRST else LAST, names[-1] if names[-1] != LAST else FIRST)
    ends = (
        _side(evidence.ratio((*CELL, FIRST), (*CELL, rivals[0]), fixed_cost_ms)),
        _side(evidence.ratio((*CELL, LAST), (*CELL, rivals[1]), latency_ms)),
    )
    if ends == ("above", "above") and rivals == (LAST, FIRST):
        return NOT_REPRODUCED, "the reverse order, resolved"
    if "above" in ends:
        return NOT_REPRODUCED, f"{names[0]} is first and {names[-1]} last"
    if ends == ("below", "below") and (names[0], names[-1]) == (FIRST, LAST):
        return REPRODUCED, ""
    orders = zip(("T_C", "T_X"), (FIRST, LAST), rivals, ends, strict=True)
    open_ends = [f"{a} and {b} in {term}" for term, a, b, end in orders if end != "below"]
    return INCONCLUSIVE, f"the order is open: {'; '.join(open_ends) or 'means and ratios differ'}"


def _side(ratio: PairedRatio | str) -> str:
    if isinstance(ratio, str) or ratio.low is None or ratio.high is None:
        return "unresolved"
    if ratio.high < 1:
        return "below"
    return "above" if ratio.low > 1 else "unresolved"


def _crossover_line(evidence: Evidence) -> Line:
    lines = _lines(evidence, (FIRST, LAST))
    meeting = crossover(lines[FIRST], lines[LAST])
    found = crossover_set(_points(evidence, FIRST), _points(evidence, LAST), METHOD)
    n = f"n = {meeting.n:.0f}" if meeting.n is not None else f"no crossover ({meeting.regime})"
    device = evidence.first((*CELL, FIRST)).identity.device_name
    verdict, reason = _judge_crossover(device, found)
    return Line(
        item=f"{' '.join(CELL)} crossover",
        kind=FINDING,
        verdict=verdict,
        measured=f"{n}; set ({METHOD}) {found.words}",
        band=f"published n in the set, on an {PUBLISHED_DEVICE} only",
        reason=reason,
        published=_published_crossover(),
    )


def _judge_crossover(device: str, found: CrossoverSet) -> tuple[str, str]:
    if PUBLISHED_DEVICE not in device:
        return (
            NOT_COMPARABLE,
            f"published for its own GPU, measured on {device or 'no named device'}",
        )
    if found.kind == "unknown":
        return INCONCLUSIVE, found.reason or "no set"
    inside = any(
        part.from_n <= PUBLISHED_N and (part.to_n is None or part.to_n >= PUBLISHED_N)
        for part in found.ranges
    )
    return (REPRODUCED, "") if inside else (NOT_REPRODUCED, "the published n is outside the set")


def _published_crossover() -> str:
    points = published.points("resnet", *CELL)
    found = crossover_set(points[FIRST], points[LAST], METHOD)
    return f"n = {PUBLISHED_N}; set ({METHOD}) {found.words}"


def _pair_line(evidence: Evidence, block: tuple[str, str], cheaper: str, dearer: str) -> Line:
    item, band = f"{' '.join(block)} {cheaper} < {dearer}", f"upper r(T_C {cheaper} / {dearer}) < 1"
    ratio = evidence.ratio((*block, cheaper), (*block, dearer), fixed_cost_ms)
    shown = _published_ratio(block, cheaper, dearer)
    if isinstance(ratio, str):
        return Line(item, FINDING, INCONCLUSIVE, "", band, ratio, shown)
    side = _side(ratio)
    verdict, reason = {
        "below": (REPRODUCED, ""),
        "above": (NOT_REPRODUCED, "the reverse order, resolved"),
        "unresolved": (INCONCLUSIVE, ratio.reason or f"the interval holds 1; {power(ratio)}"),
    }[side]
    return Line(item, FINDING, verdict, text(ratio), band, reason, shown, ratio)


def _published_ratio(block: tuple[str, str], cheaper: str, dearer: str) -> str:
    for campaign in ("resnet", "transformer"):
        lines = published.lines(campaign, *block)
        if cheaper in lines and dearer in lines:
            return f"{lines[cheaper].fixed_ms / lines[dearer].fixed_ms:.3f}"
    return ""
