"""C7: which stack is cheapest depends on n (paper, cost lines of ResNet-18 at 1x3x224x224).

Envelope of the four configurations of the paper within its own windows; elsewhere the order of
T_C; and the crossover itself, which the paper's machine alone can be compared with.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
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
from artifact.analysis.evidence import Evidence, Quantity
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

ENVELOPE_BAND = f"{FIRST} first on the envelope (least T_C), {LAST} last (least T_X), both resolved"


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
    names = [segment.name for segment in segments]
    verdict, reason, decisive = _judge_envelope(names, _duels(evidence))
    return Line(
        item=f"{' '.join(CELL)} envelope",
        kind=FINDING,
        verdict=verdict,
        measured=f"{words}; {decisive.ratio_words}",
        band=ENVELOPE_BAND,
        reason=reason,
        published=f"{FIRST} to n = {PUBLISHED_N}, then {LAST}",
        ratio=None if isinstance(decisive.ratio, str) else decisive.ratio,
    )


@dataclass(frozen=True)
class _Duel:
    """One end of the envelope: the predicate's configuration over one of the other three.

    The lowest T_C of all is first on the envelope, the lowest T_X last; so a ratio below 1 is the
    paper's order. `ratio` is words where there is none.
    """

    term: str
    name: str
    rival: str
    ratio: PairedRatio | str

    @property
    def side(self) -> str:
        return _side(self.ratio)

    @property
    def ratio_words(self) -> str:
        told = f"r({self.term} {self.name} / {self.rival})"
        if isinstance(self.ratio, str):
            return f"no {told}: {self.ratio}"
        return f"{told} = {self.ratio.ratio:.3f}"

    @property
    def words(self) -> str:
        told = self.ratio_words
        if isinstance(self.ratio, str):
            return told
        if self.ratio.low is None or self.ratio.high is None:
            return f"{told}, no interval: {self.ratio.reason}"
        told += f" [{self.ratio.low:.3f}, {self.ratio.high:.3f}]"
        return f"{told}; {power(self.ratio)}" if self.side == "unresolved" else told


def _duels(evidence: Evidence) -> list[_Duel]:
    """XLA over every other in T_C (fold included), folded Inductor over every other in T_X."""
    ends: tuple[tuple[str, str, Quantity], ...] = (
        ("T_C", FIRST, fixed_cost_ms),
        ("T_X", LAST, latency_ms),
    )
    return [
        _Duel(term, name, rival, evidence.ratio((*CELL, name), (*CELL, rival), quantity))
        for term, name, quantity in ends
        for rival in FOUR
        if rival != name
    ]


def _judge_envelope(names: list[str], duels: list[_Duel]) -> tuple[str, str, _Duel]:
    """Verdict, reason and the duel that decides: reproduced when each end is resolved against
    every other configuration, contradicted when one of them is resolved to be there instead."""
    lost = [duel for duel in duels if duel.side == "above"]
    if lost:
        decisive = _nearest(lost)
        reason = f"{_order(names, lost)}; {decisive.words}"
        return NOT_REPRODUCED, reason, decisive
    unresolved = [duel for duel in duels if duel.side == "unresolved"]
    if unresolved:
        nearest = [_nearest(d) for t in ("T_C", "T_X") if (d := _of_term(unresolved, t))]
        reason = f"the order is open: {'; '.join(duel.words for duel in nearest)}"
        return INCONCLUSIVE, reason, nearest[-1]
    nearest = [_nearest(_of_term(duels, term)) for term in ("T_C", "T_X")]
    decisive = max(nearest, key=_upper_end)
    return REPRODUCED, f"nearest: {decisive.words}", decisive


def _order(names: list[str], lost: list[_Duel]) -> str:
    """What is there instead of the paper's order."""
    pairs = {(duel.name, duel.rival) for duel in lost}
    if {(FIRST, LAST), (LAST, FIRST)} <= pairs:
        return "the reverse order, resolved"
    if len(names) == 1:
        return f"{names[0]} is cheapest for every n"
    return f"{names[0]} is first and {names[-1]} last"


def _of_term(duels: list[_Duel], term: str) -> list[_Duel]:
    return [duel for duel in duels if duel.term == term]


def _nearest(duels: list[_Duel]) -> _Duel:
    """The duel that comes nearest to contradicting the paper's order, or does so most."""
    return max(duels, key=_upper_end)


def _upper_end(duel: _Duel) -> float:
    if isinstance(duel.ratio, str):
        return math.inf
    return duel.ratio.ratio if duel.ratio.high is None else duel.ratio.high


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
