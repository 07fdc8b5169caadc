"""Intervals, tests and ratios over process values (paper, protocol: the process is the unit).

Faulty input (nothing, NaN, infinity) raises `StatsError` with one line; input that is sound but
too little to infer from (n = 1, no spread) gives a result whose inferred fields are None and whose
`reason` says why. Nothing returned ever holds NaN or infinity.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Generic, TypeVar

from artifact.analysis.distributions import detectable_shift, t_critical, t_upper_tail

#: Values whose range is below this part of their size count as constant. It lies far above
#: floating-point rounding and below what a nanosecond clock resolves in a minute.
CONSTANT_RELATIVE_RANGE = 1e-12

#: Larger magnitudes overflow when they are squared.
LARGEST_VALUE = 1e100

ONE_VALUE = "one value: no spread can be estimated"
CONSTANT = "constant to rounding: no spread can be estimated"

Key = TypeVar("Key", bound=Hashable)


class StatsError(ValueError):
    """Values that no statistic can be made of; the message names the first fault."""


@dataclass(frozen=True)
class Interval:
    """Mean of `n` process values, sample sd (n - 1) and two-sided Student-t interval.

    Units are those of the values. `sd`, `low` and `high` are None for n = 1. Constant values
    have sd 0 and an interval without width. `reason` names either case.
    """

    mean: float
    sd: float | None
    low: float | None
    high: float | None
    n: int
    reason: str | None = None
    level: float = 0.95


@dataclass(frozen=True)
class Welch:
    """Two-sided Welch test of mean(a) - mean(b), with the unadjusted interval of the difference.

    `low`, `high`, `t`, `df` and `p` are None when they are not defined; `reason` says why.
    """

    difference: float
    low: float | None
    high: float | None
    t: float | None
    df: float | None
    p: float | None
    reason: str | None = None
    level: float = 0.95


@dataclass(frozen=True)
class Holm:
    """One p-value, Holm's adjusted value and the decision; all None where there was no test."""

    p: float | None
    adjusted: float | None
    reject: bool | None


@dataclass(frozen=True)
class PairedRatio:
    """Geometric mean of first / second over `n` pairs, with its log-scale t interval.

    `resolvable_ratio` (> 1) is the smallest true ratio, upwards, that this design would have found
    with the stated power; downwards it is the reciprocal. None fields are explained by `reason`.
    """

    ratio: float
    low: float | None
    high: float | None
    n: int
    resolvable_ratio: float | None
    reason: str | None = None
    level: float = 0.95


@dataclass(frozen=True)
class Equivalence:
    """Two one-sided t tests of the paired log ratio against [1 / (1 + margin), 1 + margin].

    `low` and `high` are the ends of the interval that decides, of level 1 - 2 alpha. `verdict` is
    "equivalent" (interval inside the margin), "different" (wholly outside), "inconclusive"
    (neither) or "unknown" (see `reason`). `p` is the larger of the two one-sided p-values.
    """

    verdict: str
    ratio: float
    low: float | None
    high: float | None
    n: int
    margin: float
    p: float | None
    reason: str | None = None
    alpha: float = 0.05


@dataclass(frozen=True)
class FamilyRow:
    """One comparison of a family: first - second, also in per cent of the second mean."""

    first_mean: float
    second_mean: float
    relative_percent: float | None
    welch: Welch
    holm: Holm


@dataclass(frozen=True)
class Family(Generic[Key]):
    """Welch tests adjusted together; `size` counts the tests that gave a p-value."""

    size: int
    alpha: float
    rows: Mapping[Key, FamilyRow]


def checked(values: Sequence[float], what: str = "process values") -> tuple[float, ...]:
    """The values as floats; nothing, None, NaN, infinity or > 1e100 raises `StatsError`."""
    if len(values) == 0:
        raise StatsError(f"{what}: none given")
    for index, value in enumerate(values):
        if value is None or not math.isfinite(value):
            raise StatsError(f"{what}[{index}] is not a finite number: {value}")
        if abs(value) > LARGEST_VALUE:
            raise StatsError(f"{what}[{index}] is out of range: {value}")
    return tuple(float(value) for value in values)


def is_constant(values: Sequence[float]) -> bool:
    """True when the values differ by rounding at most (`CONSTANT_RELATIVE_RANGE`)."""
    largest = max(abs(value) for value in values)
    return max(values) - min(values) <= CONSTANT_RELATIVE_RANGE * largest


def sample_variance(values: Sequence[float]) -> float:
    """Sample variance (n - 1) of at least two values."""
    mean = fmean(values)
    return math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)


def process_interval(values: Sequence[float], level: float = 0.95) -> Interval:
    """Mean, sample sd and two-sided t interval of process values (paper, protocol)."""
    _check_level(level)
    numbers = checked(values)
    n = len(numbers)
    if n == 1:
        return Interval(numbers[0], None, None, None, 1, ONE_VALUE, level)
    mean = fmean(numbers)
    if is_constant(numbers):
        return Interval(mean, 0.0, mean, mean, n, CONSTANT, level)
    sd = math.sqrt(sample_variance(numbers))
    half = t_critical(level, n - 1) * sd / math.sqrt(n)
    return Interval(mean, sd, mean - half, mean + half, n, None, level)


def welch(a: Sequence[float], b: Sequence[float], level: float = 0.95) -> Welch:
    """Welch's test of mean(a) - mean(b) with the Welch-Satterthwaite degrees of freedom (paper)."""
    _check_level(level)
    first, second = checked(a, "first group"), checked(b, "second group")
    difference = fmean(first) - fmean(second)
    if len(first) < 2 or len(second) < 2:
        return _no_welch(difference, "fewer than two values in a group", level)
    if is_constant(first) and is_constant(second):
        return _no_welch(difference, "both groups are constant to rounding", level)
    parts = [sample_variance(group) / len(group) for group in (first, second)]
    error = math.sqrt(sum(parts))
    if error == 0:
        return _no_welch(difference, "both groups are constant to rounding", level)
    # Shares of the variance instead of the variances: the squares of tiny ones would underflow.
    shares = [part / sum(parts) for part in parts]
    groups = (first, second)
    df = 1 / sum(s**2 / (len(g) - 1) for s, g in zip(shares, groups, strict=True))
    t = difference / error
    half = t_critical(level, df) * error
    p = 2 * t_upper_tail(abs(t), df)
    return Welch(difference, difference - half, difference + half, t, df, p, None, level)


def _no_welch(difference: float, reason: str, level: float) -> Welch:
    return Welch(difference, None, None, None, None, None, reason, level)


def holm(p_values: Sequence[float | None], alpha: float = 0.05) -> list[Holm]:
    """Holm's step-down adjustment; None and NaN stay None and do not count in the family's size.

    A p-value outside [0, 1] raises `StatsError`.
    """
    tested = [(i, p) for i, p in enumerate(p_values) if p is not None and not math.isnan(p)]
    for index, p in tested:
        if not 0 <= p <= 1:
            raise StatsError(f"p_values[{index}] is not a probability: {p}")
    results = [Holm(None, None, None) for _ in p_values]
    if tested:
        # Imported here: statsmodels takes two seconds, and only the paper's own tests need it.
        from statsmodels.stats.multitest import multipletests

        reject, adjusted, *_ = multipletests([p for _, p in tested], alpha=alpha, method="holm")
        for (index, p), decided, value in zip(tested, reject, adjusted, strict=True):
            results[index] = Holm(float(p), float(value), bool(decided))
    return results


def family(
    pairs: Mapping[Key, tuple[Sequence[float], Sequence[float]]],
    alpha: float = 0.05,
) -> Family[Key]:
    """Welch over each (first, second) pair, Holm over all of them (paper: one family a metric)."""
    tests = {key: welch(first, second) for key, (first, second) in pairs.items()}
    adjusted = holm([test.p for test in tests.values()], alpha)
    rows = {}
    for (key, test), decision in zip(tests.items(), adjusted, strict=True):
        first_mean, second_mean = fmean(pairs[key][0]), fmean(pairs[key][1])
        percent = 100 * test.difference / second_mean if second_mean else None
        rows[key] = FamilyRow(first_mean, second_mean, percent, test, decision)
    return Family(sum(row.holm.p is not None for row in rows.values()), alpha, rows)


def pair_by_round(
    first: Mapping[int, float], second: Mapping[int, float]
) -> tuple[list[float], list[float]]:
    """The values of the rounds that both configurations have, in round order.

    Rounds of one side only have no partner and are left out; compare `len` to tell.
    """
    rounds = sorted(first.keys() & second.keys())
    return [first[r] for r in rounds], [second[r] for r in rounds]


def paired_ratio(
    first: Sequence[float], second: Sequence[float], level: float = 0.95, power: float = 0.8
) -> PairedRatio:
    """Ratio first / second of values paired by position (one pair a round of a block).

    The interval is Student's t on the log ratios, df = n - 1 (CLAIMS: r). For a one-sided 95 %
    bound take the end of the interval at level 0.90. Values must be positive.
    """
    logs = _log_ratios(first, second)
    _check_level(level)
    _check_level(power, "power")
    n, mean = len(logs), fmean(logs)
    reason = _no_spread(logs)
    if reason:
        return PairedRatio(math.exp(mean), None, None, n, None, reason, level)
    error = math.sqrt(sample_variance(logs) / n)
    half = t_critical(level, n - 1) * error
    low, high = _exp(mean - half), _exp(mean + half)
    resolvable = _exp(detectable_shift(n - 1, level, power) * error)
    if low is None or high is None or resolvable is None:
        reason = "the interval is too wide for a floating-point number"
        return PairedRatio(math.exp(mean), None, None, n, None, reason, level)
    return PairedRatio(math.exp(mean), low, high, n, resolvable, None, level)


def equivalence(
    first: Sequence[float], second: Sequence[float], margin: float, alpha: float = 0.05
) -> Equivalence:
    """Two one-sided tests that first / second lies within a margin (0.1 means 10 per cent).

    The limits are 1 / (1 + margin) and 1 + margin, so that swapping the two changes nothing; the
    lower one is a little stricter than 1 - margin. Values must be positive, paired by position.
    """
    if not (math.isfinite(margin) and margin > 0):
        raise StatsError(f"margin must be positive and finite, is {margin}")
    _check_level(2 * alpha, "2 alpha")
    logs = _log_ratios(first, second)
    n, mean = len(logs), fmean(logs)
    ratio = math.exp(mean)
    reason = _no_spread(logs)
    if reason:
        return Equivalence("unknown", ratio, None, None, n, margin, None, reason, alpha)
    error = math.sqrt(sample_variance(logs) / n)
    limit = math.log1p(margin)
    p = t_upper_tail((limit - abs(mean)) / error, n - 1)
    half = t_critical(1 - 2 * alpha, n - 1) * error
    verdict = _equivalence_verdict(mean, half, limit)
    low, high = _exp(mean - half), _exp(mean + half)
    return Equivalence(verdict, ratio, low, high, n, margin, p, None, alpha)


def _equivalence_verdict(mean: float, half: float, limit: float) -> str:
    if abs(mean) + half < limit:
        return "equivalent"
    return "different" if abs(mean) - half > limit else "inconclusive"


def _log_ratios(first: Sequence[float], second: Sequence[float]) -> list[float]:
    """Logs of first / second; values must be positive and as many on both sides."""
    numerators, denominators = checked(first, "first"), checked(second, "second")
    if len(numerators) != len(denominators):
        raise StatsError(f"{len(numerators)} values cannot be paired with {len(denominators)}")
    for name, values in (("first", numerators), ("second", denominators)):
        for index, value in enumerate(values):
            if value < 1 / LARGEST_VALUE:
                raise StatsError(f"{name}[{index}] must be positive for a ratio, is {value}")
    return [math.log(a) - math.log(b) for a, b in zip(numerators, denominators, strict=True)]


def _no_spread(logs: Sequence[float]) -> str | None:
    """Why no interval can be made of these log ratios, or None when one can."""
    if len(logs) == 1:
        return "one pair: no spread can be estimated"
    # A relative error of the values is an absolute error of their logs.
    if max(logs) - min(logs) <= CONSTANT_RELATIVE_RANGE:
        return CONSTANT
    return None


def _exp(value: float) -> float | None:
    """`exp`, or None beyond 1e-300 .. 1e300."""
    return math.exp(value) if abs(value) < 690 else None


def _check_level(level: float, name: str = "level") -> None:
    if not 0 < level < 1:
        raise StatsError(f"{name} must lie between 0 and 1, is {level}")
