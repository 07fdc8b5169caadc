"""One line of the verdict table, and the words that it may hold (CLAIMS)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from artifact.analysis.stats import Equivalence, PairedRatio

INTEGRITY, FINDING = "I", "C"

REPRODUCED = "reproduced"
NOT_REPRODUCED = "not reproduced here"
INCONCLUSIVE = "inconclusive"
NOT_COMPARABLE = "not comparable"
NOT_MEASURED = "not measured"
HOLDS = "holds"
FAILS = "fails"

INTEGRITY_WORDS = (HOLDS, FAILS, NOT_COMPARABLE, NOT_MEASURED)
FINDING_WORDS = (REPRODUCED, NOT_REPRODUCED, INCONCLUSIVE, NOT_COMPARABLE, NOT_MEASURED)


@dataclass(frozen=True)
class Line:
    """What one claim says of one item (a cell, a pair of cells, a check).

    `band` is the predicate in words; `ratio` is there when the line rests on a paired ratio;
    `blocks` are the (model, input) pairs of a line over several, which `item` does not name.
    """

    item: str
    kind: str
    verdict: str
    measured: str
    band: str
    reason: str = ""
    published: str = ""
    ratio: PairedRatio | None = None
    equivalence: Equivalence | None = None
    blocks: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        words = INTEGRITY_WORDS if self.kind == INTEGRITY else FINDING_WORDS
        if self.verdict not in words:
            raise ValueError(f"verdict {self.verdict!r} is not one of {', '.join(words)}")

    @property
    def interval(self) -> tuple[float, float] | None:
        """Ends of the interval that decides, if there is one.

        Its level is 95 % for a ratio, 90 % for an equivalence or a one-sided bound.
        """
        source = self.equivalence or self.ratio
        if source is None or source.low is None or source.high is None:
            return None
        return source.low, source.high

    @property
    def resolvable_ratio(self) -> float | None:
        """Smallest ratio that the design could have resolved with 80 % power."""
        return self.ratio.resolvable_ratio if self.ratio else None


def integrity(
    item: str, faults: list[str], *, measured: str, band: str, published: str = ""
) -> Line:
    """An integrity line: it holds without faults, and names every fault else."""
    verdict = FAILS if faults else HOLDS
    return Line(item, INTEGRITY, verdict, measured, band, "; ".join(faults), published)


def in_rounds(found: Iterable[tuple[int, str]]) -> list[str]:
    """Each fault once, with the rounds of the trials that have it: "22 calls (rounds 2, 3)"."""
    rounds: dict[str, list[int]] = {}
    for number, fault in found:
        rounds.setdefault(fault, []).append(number)
    return [
        f"{fault} (round{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))})"
        for fault, numbers in rounds.items()
    ]


def span(values: Iterable[float], form: str = "d") -> str:
    """The value that all trials have, or the smallest and the largest: "21", "20 to 21"."""
    words = [format(value, form) for value in sorted(values)]
    return words[0] if words[0] == words[-1] else f"{words[0]} to {words[-1]}"
