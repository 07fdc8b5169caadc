"""Where two measured cumulative curves cross, against the set that their lines predict.

CLAIMS, crossover set: run 2 n_hat executions of both configurations and see whether the measured
curves cross inside the set. A curve is T_C (native, fold included), then the first call's own
execution (n = 1, as in `fit`), every warm-up and every execution of one trial, in order; n counts
them. All times are ms.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from statistics import fmean

from artifact.analysis.cost import (
    Crossover,
    CrossoverSet,
    Line,
    ProcessPoint,
    crossover,
    crossover_set,
    mean_line,
)

METHOD = "welch"
BOUNDARY = "native"

MEAN = "mean"

#: inside, outside: the curves cross in the predicted order, where the set is or elsewhere.
#: reversed: they cross in the other order. not-found: they do not cross in the executions run.
VERDICTS = ("inside", "outside", "reversed", "not-found")


class CrossingError(ValueError):
    """There is no crossing to look for, or nothing to look at; one line says why."""


@dataclass(frozen=True)
class Prediction:
    """The two lines of the means, the n at which they meet, and its confidence set.

    `regime` says which one is cheaper before `n` (see `cost.Crossover`).
    """

    first: str
    second: str
    regime: str
    n: float
    set: CrossoverSet
    first_line: Line
    second_line: Line
    first_processes: int
    second_processes: int

    @property
    def order(self) -> str:
        """The regime with the names of the configurations."""
        return order_words(self.regime, self.first, self.second)


@dataclass(frozen=True)
class Curve:
    """Cumulative time of one trial: `totals_ms[n]` when n executions have ended; [0] is T_C."""

    round: int
    totals_ms: tuple[float, ...]


@dataclass(frozen=True)
class Measured:
    """How two curves lie to each other over the executions that both have.

    `regime` is a word of `cost.Crossover`. `n` is where the order changes for the last time,
    between whole executions by a straight line; None where the order at the end is that of the
    start. `changes` counts all changes, so that a curve that goes to and fro is seen.
    """

    regime: str
    n: float | None
    changes: int
    executions: int


@dataclass(frozen=True)
class RoundRow:
    """One row of `crossing.csv`: a round ("1", "2", ...) or the mean of all rounds ("mean")."""

    round: str
    verdict: str
    n: float | None
    regime: str
    order: str
    changes: int
    executions: int


def predict(
    first: str,
    first_points: Sequence[ProcessPoint],
    second: str,
    second_points: Sequence[ProcessPoint],
    method: str = METHOD,
) -> Prediction:
    """n_hat and its set from the process values of two configurations.

    Lines that do not cross, and processes too few for a set, raise `CrossingError`.
    """
    lines = mean_line(first_points), mean_line(second_points)
    found = crossover(*lines)
    if found.n is None:
        raise CrossingError(_no_crossing(found, first, second))
    around = crossover_set(first_points, second_points, method)
    if around.kind == "unknown":
        raise CrossingError(f"no set around n = {found.n:.1f}: {around.reason}")
    return Prediction(
        first=first,
        second=second,
        regime=found.regime,
        n=found.n,
        set=around,
        first_line=lines[0],
        second_line=lines[1],
        first_processes=len(first_points),
        second_processes=len(second_points),
    )


def _no_crossing(found: Crossover, first: str, second: str) -> str:
    if found.regime in ("first", "second"):
        cheaper, dearer = (first, second) if found.regime == "first" else (second, first)
        return f"{cheaper} is never dearer than {dearer} by their means: no crossing to look for"
    return f"{first} and {second} have no crossing to look for: {found.reason}"


def order_words(regime: str, first: str, second: str) -> str:
    """Which configuration is cheaper, in words: `xla, then inductor`."""
    words = {
        "first": f"{first} throughout",
        "second": f"{second} throughout",
        "first-then-second": f"{first}, then {second}",
        "second-then-first": f"{second}, then {first}",
    }
    return words.get(regime, "equal throughout")


def curve(round_number: int, fixed_ms: float, execution_ms: Sequence[float]) -> Curve:
    """The curve of one trial; `execution_ms`: first call's own execution, warm-ups, executions.

    A time that is not finite, an execution that is not positive, or none at all raises
    `CrossingError`. T_C may lie a little below zero (see `ProcessPoint`).
    """
    if not execution_ms:
        raise CrossingError(f"round {round_number}: no executions")
    for value in (fixed_ms, *execution_ms):
        if not math.isfinite(value):
            raise CrossingError(f"round {round_number}: {value} is no time")
    if min(execution_ms) <= 0:
        raise CrossingError(f"round {round_number}: an execution of {min(execution_ms)} ms")
    return Curve(round_number, tuple(accumulate(execution_ms, initial=fixed_ms)))


def measured_crossing(first_ms: Sequence[float], second_ms: Sequence[float]) -> Measured:
    """Compare two cumulative series over the n that both have.

    Points at which they are equal belong to no order; a series without two points raises
    `CrossingError`.
    """
    differences = [a - b for a, b in zip(first_ms, second_ms, strict=False)]
    if len(differences) < 2:
        raise CrossingError("a curve needs its T_C and one execution")
    ordered = [(n, d) for n, d in enumerate(differences) if d != 0]
    last = len(differences) - 1
    if not ordered:
        return Measured("tie", None, 0, last)
    changes = [(a, b) for a, b in pairwise(ordered) if (a[1] < 0) != (b[1] < 0)]
    begins_first, ends_first = ordered[0][1] < 0, ordered[-1][1] < 0
    if begins_first == ends_first:
        return Measured("first" if begins_first else "second", None, len(changes), last)
    regime = "first-then-second" if begins_first else "second-then-first"
    return Measured(regime, _meeting_n(*changes[-1]), len(changes), last)


def _meeting_n(before: tuple[int, float], after: tuple[int, float]) -> float:
    """Where the difference is zero between two points of opposite sign."""
    (n, difference), (later_n, later) = before, after
    if later_n - n > 1:  # equal in between: they meet at the first such point
        return float(n + 1)
    return n + difference / (difference - later)


def verdict(prediction: Prediction, found: Measured) -> str:
    """One of `VERDICTS` for a measured pair of curves."""
    if found.n is None:
        return "not-found"
    if found.regime != prediction.regime:
        return "reversed"
    n = found.n
    inside = any(
        part.from_n <= n and (part.to_n is None or n <= part.to_n) for part in prediction.set.ranges
    )
    return "inside" if inside else "outside"


def compare(
    prediction: Prediction, first: Sequence[Curve], second: Sequence[Curve]
) -> list[RoundRow]:
    """A row for each round that both configurations have, then one for the mean of these rounds.

    The set is about the crossing of means, so single rounds scatter more widely than it; the last
    row is the one to judge by, and has a spread of its own that the set does not hold. No common
    round, or two curves of one round, raise `CrossingError`.
    """
    sides = [_by_round(prediction.first, first), _by_round(prediction.second, second)]
    rounds = sorted(sides[0].keys() & sides[1].keys())
    if not rounds:
        raise CrossingError(
            f"no round in which both {prediction.first} and {prediction.second} were measured"
        )
    pairs = [(sides[0][r].totals_ms, sides[1][r].totals_ms) for r in rounds]
    rows = [
        _row(str(r), prediction, measured_crossing(*pair))
        for r, pair in zip(rounds, pairs, strict=True)
    ]
    means = [_mean_totals([pair[side] for pair in pairs]) for side in (0, 1)]
    return [*rows, _row(MEAN, prediction, measured_crossing(*means))]


def _by_round(name: str, curves: Sequence[Curve]) -> dict[int, Curve]:
    found = {one.round: one for one in curves}
    if len(found) < len(curves):
        raise CrossingError(f"two curves of {name} share a round")
    return found


def _mean_totals(totals_ms: Sequence[Sequence[float]]) -> list[float]:
    return [fmean(column) for column in zip(*totals_ms, strict=False)]


def _row(name: str, prediction: Prediction, found: Measured) -> RoundRow:
    return RoundRow(
        round=name,
        verdict=verdict(prediction, found),
        n=found.n,
        regime=found.regime,
        order=order_words(found.regime, prediction.first, prediction.second),
        changes=found.changes,
        executions=found.executions,
    )


def conclusion(prediction: Prediction, rows: Sequence[RoundRow]) -> str:
    """What was found, in one sentence; `rows` as `compare` gives them."""
    mean, rounds = rows[-1], rows[:-1]
    inside = sum(row.verdict == "inside" for row in rounds)
    tail = f"; single rounds: {inside} of {len(rounds)} inside"
    if mean.n is None:
        return f"not found: {mean.order} up to n = {mean.executions}{tail}"
    where = {
        "inside": "inside the predicted set",
        "outside": "outside the predicted set",
        "reversed": f"in the order not predicted ({mean.order})",
    }[mean.verdict]
    return f"the mean curves of {len(rounds)} rounds cross at n = {mean.n:.1f}, {where}{tail}"
