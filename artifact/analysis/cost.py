"""The cost model T(n) = T_C + n T_X: lines, crossovers, lower envelope, confidence sets.

All times are milliseconds; n is a number of executions, n >= 0, not rounded to whole ones. An end
that does not exist is None, never infinity. Sources: paper, question and protocol; CLAIMS,
crossover set.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
import numpy.typing as npt

from artifact.analysis.distributions import t_critical
from artifact.analysis.stats import (
    CONSTANT_RELATIVE_RANGE,
    PairedRatio,
    StatsError,
    is_constant,
    pair_by_round,
    paired_ratio,
)

#: How a crossover set treats the process values; the words go into the output.
METHODS = {
    "welch": "unpaired, with the covariance of T_C and T_X; degrees of freedom: smaller group - 1",
    "welch-satterthwaite": "unpaired, with the covariance of T_C and T_X; degrees of freedom: "
    "Welch-Satterthwaite of the combined variance at each n",
    "welch-uncorrelated": "unpaired, T_C and T_X taken as uncorrelated; degrees of freedom: "
    "Welch-Satterthwaite of the combined variance at each n",
    "paired": "differences within each round; degrees of freedom: rounds - 1",
}

#: Points of the scan for sign changes where the degrees of freedom vary with n.
SCAN_POINTS = 2001

TOO_FEW = "fewer than two processes"


class CostError(ValueError):
    """A line or a set of processes that no cost can be computed from; one line says which."""


@dataclass(frozen=True)
class Line:
    """T(n) = fixed_ms + n * per_execution_ms; what is fixed includes fold time and boundary."""

    fixed_ms: float
    per_execution_ms: float

    def total_ms(self, executions: float) -> float:
        """T(n) in ms for n = `executions`."""
        return self.fixed_ms + executions * self.per_execution_ms


@dataclass(frozen=True)
class Crossover:
    """Which of two lines is cheaper over n >= 0.

    `regime`: "first" or "second" (never dearer, somewhere cheaper), "first-then-second",
    "second-then-first" (they cross at `n` > 0), "tie" (the same line) or "unknown" (a line is not
    a cost; `reason` says why). `n` is None unless the lines cross.
    """

    n: float | None
    regime: str
    reason: str | None = None


@dataclass(frozen=True)
class Segment:
    """`name` is cheapest from `from_n` to `to_n` (None: for ever).

    `tied_with` names lines identical with it; the name that sorts first stands for them.
    """

    name: str
    from_n: float
    to_n: float | None
    tied_with: tuple[str, ...] = ()


@dataclass(frozen=True)
class ProcessPoint:
    """One cold process: its fixed cost and its mean latency, with the round that pairs it.

    `fixed_ms` may lie below zero, but not below -per_execution_ms: it is T_first - T_X, and without
    compiling (`eager`) noise can make the first call the faster one.
    """

    round: int
    fixed_ms: float
    per_execution_ms: float


@dataclass(frozen=True)
class Range:
    """From `from_n` to `to_n` executions; `to_n` None means without end."""

    from_n: float
    to_n: float | None


@dataclass(frozen=True)
class CrossoverSet:
    """Confidence set {n >= 0 : |t(n)| <= t_crit(n)} of the n at which two lines meet.

    `kind`: "bounded", "unbounded" (one range without end), "two-sided" (from 0, and again without
    end), "empty" (no n), or "unknown" (see `reason`). `method` is a key of `METHODS`, `rule` its
    words.
    """

    method: str
    kind: str
    ranges: tuple[Range, ...]
    level: float = 0.95
    reason: str | None = None

    @property
    def rule(self) -> str:
        """What the method assumes and which degrees of freedom it uses."""
        return METHODS[self.method]

    @property
    def words(self) -> str:
        """The set in words, for a table or a verdict."""
        if self.kind == "unknown":
            return f"unknown: {self.reason}"
        if self.kind == "empty":
            return "empty: the two are told apart at every n"
        if self.ranges == (Range(0.0, None),):
            return "unbounded: no n tells the two apart"
        return f"{self.kind}: " + " and ".join(_range_words(r) for r in self.ranges)


@dataclass(frozen=True)
class BreakEven:
    """Does compiling pay against eager, and from which n.

    `verdict`: "always", "from-n", "until-n", "never", "tie" or "unknown".
    """

    verdict: str
    n: float | None
    reason: str | None = None


@dataclass(frozen=True)
class CheapestShare:
    """Share of resampled lines in which each configuration is cheapest, per number of executions.

    Descriptive: it is no probability that a configuration is cheapest.
    """

    executions: tuple[float, ...]
    shares: Mapping[str, tuple[float, ...]]
    draws: int
    seed: int


@dataclass(frozen=True)
class EnvelopeBand:
    """Quantiles of the lower envelope of resampled lines, in ms, per number of executions."""

    executions: tuple[float, ...]
    low_ms: tuple[float, ...]
    high_ms: tuple[float, ...]
    level: float
    draws: int
    seed: int


@dataclass(frozen=True)
class Recommendation:
    """The cheapest configuration at n, and the evidence.

    `ratio` is cheapest / runner-up of the total time, paired by round; None without a runner-up or
    without common rounds (see `reason`). `holds` is the range of n in which the means give the
    same answer.
    """

    name: str
    runner_up: str | None
    executions: float
    total_ms: float
    ratio: PairedRatio | None
    holds: Range
    reason: str | None = None


def crossover(first: Line, second: Line) -> Crossover:
    """Compare two lines over n >= 0 (paper: n_cross = (b_b - b_f) / (a_f - a_b))."""
    fault = line_fault(first) or line_fault(second)
    if fault:
        return Crossover(None, "unknown", fault)
    fixed = first.fixed_ms - second.fixed_ms
    slope = first.per_execution_ms - second.per_execution_ms
    if fixed == 0 and slope == 0:
        return Crossover(None, "tie", "the lines are identical")
    if fixed <= 0 and slope <= 0:
        return Crossover(None, "first")
    if fixed >= 0 and slope >= 0:
        return Crossover(None, "second")
    n = -fixed / slope
    if n == 0:
        return Crossover(None, "first" if slope < 0 else "second", "they meet at n = 0")
    if math.isinf(n):
        return Crossover(None, "first" if fixed < 0 else "second", "they meet beyond 1e308")
    return Crossover(n, "first-then-second" if fixed < 0 else "second-then-first")


def line_fault(line: Line) -> str | None:
    """Why a line is not a cost (None, NaN, infinite or negative terms), or None when it is."""
    for key in ("fixed_ms", "per_execution_ms"):
        value = getattr(line, key)
        if value is None:
            return f"{key} is missing"
        if not math.isfinite(value):
            return f"{key} is not a finite number: {value}"
        if value < 0:
            return f"{key} is negative: {value}"
    return None


def break_even(compiled: Line, eager: Line) -> BreakEven:
    """Where compiling is cheaper than running eagerly; both are measured lines."""
    crossing = crossover(eager, compiled)
    verdict = {
        "first": "never",
        "second": "always",
        "first-then-second": "from-n",
        "second-then-first": "until-n",
    }.get(crossing.regime, crossing.regime)
    return BreakEven(verdict, crossing.n, crossing.reason)


def with_warm_starts(line: Line, processes: int, warm_start_ms: float) -> Line:
    """The line of `processes` processes: T = T_C + (p - 1) T_W + n T_X.

    n counts the executions of all of them together; T_W is what each further process pays to
    start with warm compiler caches. `processes` < 1 or a T_W that is no time raises `CostError`.
    """
    if processes < 1:
        raise CostError(f"processes must be at least 1, is {processes}")
    if not math.isfinite(warm_start_ms) or warm_start_ms < 0:
        raise CostError(f"warm_start_ms must be finite and not negative, is {warm_start_ms}")
    return Line(line.fixed_ms + (processes - 1) * warm_start_ms, line.per_execution_ms)


def envelope(lines: Mapping[str, Line]) -> list[Segment]:
    """Lower envelope over n >= 0: segments without gaps, the last one without end.

    Independent of the mapping's order. A name appears at most once; a line that only touches the
    envelope does not appear. No lines give no segments; a faulty line raises `CostError`.
    """
    for name, line in lines.items():
        fault = line_fault(line)
        if fault:
            raise CostError(f"{name}: {fault}")
    tied = _ties(lines)
    if not tied:
        return []
    name = min(tied, key=lambda key: (lines[key].fixed_ms, lines[key].per_execution_ms))
    segments: list[Segment] = []
    start = 0.0
    while True:
        following = _next_on_envelope(lines, tied, name, start)
        if following is None:
            return [*segments, Segment(name, start, None, tied[name])]
        end, successor = following
        if end > start:
            segments.append(Segment(name, start, end, tied[name]))
        name, start = successor, end


def _ties(lines: Mapping[str, Line]) -> dict[str, tuple[str, ...]]:
    """Each distinct line under the name that sorts first, with the other names of that line."""
    names: dict[tuple[float, float], list[str]] = {}
    for name in sorted(lines):
        line = lines[name]
        names.setdefault((line.fixed_ms, line.per_execution_ms), []).append(name)
    return {same[0]: tuple(same[1:]) for same in names.values()}


def _next_on_envelope(
    lines: Mapping[str, Line], candidates: Mapping[str, object], name: str, start: float
) -> tuple[float, str] | None:
    """The nearest crossing after which another line is cheaper; flattest line where several meet.

    Rounding may put a crossing just before `start`; it is then moved to `start`.
    """
    crossings = []
    for other in candidates:
        if lines[other].per_execution_ms < lines[name].per_execution_ms:
            n = (lines[other].fixed_ms - lines[name].fixed_ms) / (
                lines[name].per_execution_ms - lines[other].per_execution_ms
            )
            if math.isfinite(n):
                crossings.append((max(n, start), lines[other].per_execution_ms, other))
    if not crossings:
        return None
    end, _, successor = min(crossings)
    return end, successor


@dataclass(frozen=True)
class _Spread:
    """Variance of one mean of (fixed + n slope): fixed + 2 n cross + n^2 slope, on `df`."""

    fixed: float
    cross: float
    slope: float
    df: int

    def at(self, one: float, n: float) -> float:
        """The variance in homogeneous coordinates: n executions are (1, n), without end (0, 1)."""
        return max(0.0, self.fixed * one * one + 2 * self.cross * one * n + self.slope * n * n)


@dataclass(frozen=True)
class _Difference:
    """Mean difference (fixed + n slope) of two lines with the spreads of its means."""

    fixed: float
    slope: float
    spreads: tuple[_Spread, ...]

    def degrees_of_freedom(self, one: float, n: float) -> float:
        """Welch-Satterthwaite of the combined variance at n."""
        parts = [spread.at(one, n) for spread in self.spreads]
        total = sum(parts)
        if total == 0:
            return float(self.smallest_df)
        pairs = zip(parts, self.spreads, strict=True)
        return float(1 / sum((part / total) ** 2 / spread.df for part, spread in pairs))

    @property
    def smallest_df(self) -> int:
        return min(spread.df for spread in self.spreads)

    def excess(self, one: float, n: float, critical: float) -> float:
        """(difference)^2 - (critical * standard error)^2: not positive inside the set."""
        mean = self.fixed * one + self.slope * n
        return mean * mean - critical**2 * sum(spread.at(one, n) for spread in self.spreads)


def crossover_set(
    first: Sequence[ProcessPoint],
    second: Sequence[ProcessPoint],
    method: str = "welch",
    level: float = 0.95,
) -> CrossoverSet:
    """The n at which the two lines cannot be told apart (CLAIMS, crossover set).

    `method` is a key of `METHODS`. Fewer than two processes (or common rounds, for "paired"),
    values that are no times, or values without spread give kind "unknown" with the reason.
    """
    if method not in METHODS:
        raise CostError(f"method: expected one of {', '.join(METHODS)}, got {method!r}")
    if not 0 < level < 1:
        raise CostError(f"level must lie between 0 and 1, is {level}")
    reason = _points_fault(first) or _points_fault(second)
    if reason:
        return CrossoverSet(method, "unknown", (), level, reason)
    difference = _paired(first, second) if method == "paired" else _unpaired(first, second, method)
    if isinstance(difference, str):
        return CrossoverSet(method, "unknown", (), level, difference)
    fixed_df = method in ("welch", "paired")
    ranges = _fixed_df_set(difference, level) if fixed_df else _varying_df_set(difference, level)
    return CrossoverSet(method, _kind(ranges), ranges, level)


def _points_fault(points: Sequence[ProcessPoint]) -> str | None:
    for point in points:
        dips = -point.per_execution_ms <= point.fixed_ms < 0
        fault = line_fault(Line(0.0 if dips else point.fixed_ms, point.per_execution_ms))
        if fault:
            return f"round {point.round}: {fault}"
    rounds = [point.round for point in points]
    if len(set(rounds)) < len(rounds):
        return "two processes of one configuration share a round"
    return TOO_FEW if len(points) < 2 else None


def _unpaired(
    first: Sequence[ProcessPoint], second: Sequence[ProcessPoint], method: str
) -> _Difference | str:
    sides = [_columns(first), _columns(second)]
    if all(is_constant(column) for side in sides for column in side):
        return "constant to rounding: no spread can be estimated"
    spreads = [_spread(fixed, slope) for fixed, slope in sides]
    if method == "welch-uncorrelated":
        spreads = [_Spread(s.fixed, 0.0, s.slope, s.df) for s in spreads]
    means = [(fmean(fixed), fmean(slope)) for fixed, slope in sides]
    return _Difference(means[0][0] - means[1][0], means[0][1] - means[1][1], tuple(spreads))


def _paired(first: Sequence[ProcessPoint], second: Sequence[ProcessPoint]) -> _Difference | str:
    fixed = _differences(first, second, lambda point: point.fixed_ms)
    slope = _differences(first, second, lambda point: point.per_execution_ms)
    if len(fixed) < 2:
        return f"fewer than two common rounds ({len(fixed)})"
    columns = [*_columns(first), *_columns(second)]
    largest = [max(columns[i] + columns[i + 2]) for i in (0, 1)]
    # Rounding of a difference is relative to the values, not to the difference.
    if all(
        max(column) - min(column) <= CONSTANT_RELATIVE_RANGE * size
        for column, size in zip((fixed, slope), largest, strict=True)
    ):
        return "differences constant to rounding: no spread can be estimated"
    return _Difference(fmean(fixed), fmean(slope), (_spread(fixed, slope),))


def _differences(
    first: Sequence[ProcessPoint],
    second: Sequence[ProcessPoint],
    value: Callable[[ProcessPoint], float],
) -> list[float]:
    a, b = pair_by_round({p.round: value(p) for p in first}, {p.round: value(p) for p in second})
    return [x - y for x, y in zip(a, b, strict=True)]


def _columns(points: Sequence[ProcessPoint]) -> tuple[list[float], list[float]]:
    return [p.fixed_ms for p in points], [p.per_execution_ms for p in points]


def _spread(fixed: Sequence[float], slope: Sequence[float]) -> _Spread:
    n = len(fixed)
    f, s = [x - fmean(fixed) for x in fixed], [x - fmean(slope) for x in slope]
    scale = n * (n - 1)
    cross = math.fsum(x * y for x, y in zip(f, s, strict=True)) / scale
    return _Spread(
        math.fsum(x * x for x in f) / scale, cross, math.fsum(x * x for x in s) / scale, n - 1
    )


def _fixed_df_set(difference: _Difference, level: float) -> tuple[Range, ...]:
    critical = t_critical(level, difference.smallest_df)
    cuts = _quadratic_cuts(difference, critical)
    return _ranges(cuts, lambda one, n: difference.excess(one, n, critical) <= 0)


def _quadratic_cuts(difference: _Difference, critical: float) -> list[float]:
    """The positive n at which `excess` changes sign for a constant critical value."""
    t2 = critical**2
    a = difference.slope**2 - t2 * sum(s.slope for s in difference.spreads)
    b = 2 * (difference.fixed * difference.slope - t2 * sum(s.cross for s in difference.spreads))
    c = difference.fixed**2 - t2 * sum(s.fixed for s in difference.spreads)
    if a == 0:
        roots = [-c / b] if b else []
    else:
        discriminant = b * b - 4 * a * c
        if discriminant <= 0:
            return []
        # The sum that does not cancel, then the other root from the product of the roots.
        q = -(b + math.copysign(math.sqrt(discriminant), b)) / 2
        roots = [q / a, c / q] if q else []
    return sorted(root for root in roots if root > 0 and math.isfinite(root))


def _varying_df_set(difference: _Difference, level: float) -> tuple[Range, ...]:
    """Scan n = scale * u / (1 - u) over u in [0, 1], then bisect each change of sign."""
    all_df = sum(spread.df for spread in difference.spreads)
    # The set lies between those of the smallest and the largest df, so their ends refine the scan.
    nearby = [
        cut
        for df in (difference.smallest_df, all_df)
        for cut in _quadratic_cuts(difference, t_critical(level, df))
    ]
    meeting = -difference.fixed / difference.slope if difference.slope else 0.0
    scale = meeting if meeting > 0 else (max(nearby) if nearby else 1.0)

    def inside(one: float, n: float) -> bool:
        critical = t_critical(level, difference.degrees_of_freedom(one, n))
        return difference.excess(one, n, critical) <= 0

    def inside_at(u: float) -> bool:
        return inside(1 - u, scale * u)

    grid = {i / (SCAN_POINTS - 1) for i in range(SCAN_POINTS)}
    points = sorted(grid | {cut / (cut + scale) for cut in nearby})
    cuts = []
    states = [inside_at(u) for u in points]
    for i in range(len(points) - 1):
        if states[i] != states[i + 1]:
            u = _bisect(inside_at, points[i], points[i + 1])
            if u < 1:
                cuts.append(scale * u / (1 - u))
    return _ranges(cuts, inside)


def _bisect(inside: Callable[[float], bool], low: float, high: float) -> float:
    state = inside(low)
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if inside(middle) == state else (low, middle)
    return high


def _ranges(cuts: Sequence[float], inside: Callable[[float, float], bool]) -> tuple[Range, ...]:
    """The stretches between cuts (and after the last) that lie in the set."""
    found = []
    starts = [0.0, *cuts]
    for start, end in zip(starts, [*cuts, None], strict=True):
        middle = (1.0, 2 * start + 1) if end is None else (1.0, (start + end) / 2)
        if inside(*middle):
            found.append(Range(start, end))
    return tuple(found)


def _kind(ranges: Sequence[Range]) -> str:
    if not ranges:
        return "empty"
    if len(ranges) > 1:
        return "two-sided"
    return "unbounded" if ranges[0].to_n is None else "bounded"


def _range_words(part: Range) -> str:
    if part.to_n is None:
        return f"n >= {part.from_n:.1f}"
    return f"{part.from_n:.1f} <= n <= {part.to_n:.1f}"


def mean_line(points: Sequence[ProcessPoint]) -> Line:
    """The line through the means of the processes (ms); none or a faulty one raises `CostError`.

    It starts at zero where noise put the mean of T_first - T_X below, since no cost is negative.
    """
    reason = _points_fault(points) if points else "no process to draw a line from"
    if reason and reason != TOO_FEW:
        raise CostError(reason)
    fixed_ms = max(0.0, fmean(p.fixed_ms for p in points))
    return Line(fixed_ms, fmean(p.per_execution_ms for p in points))


def resampled_lines(
    processes: Mapping[str, Sequence[ProcessPoint]], draws: int, seed: int
) -> dict[str, npt.NDArray[np.float64]]:
    """Bootstrap over processes: per configuration an array of shape (draws, 2) of lines in ms.

    Each configuration's processes are drawn with replacement and on their own, T_C and T_X of a
    process together. The same arguments give the same lines, whatever the mapping's order.
    """
    if draws < 1:
        raise CostError(f"draws must be at least 1, is {draws}")
    generator = np.random.Generator(np.random.PCG64(seed))
    lines = {}
    for name in sorted(processes):
        reason = _points_fault(processes[name]) if processes[name] else "no process"
        if reason and reason != TOO_FEW:
            raise CostError(f"{name}: {reason}")
        values = np.array([(p.fixed_ms, p.per_execution_ms) for p in processes[name]])
        chosen = generator.integers(0, len(values), size=(draws, len(values)))
        lines[name] = values[chosen].mean(axis=1)
    return lines


def cheapest_share(
    processes: Mapping[str, Sequence[ProcessPoint]],
    executions: Sequence[float],
    draws: int = 2000,
    seed: int = 0,
) -> CheapestShare:
    """Descriptive: share of bootstrap draws in which each configuration is cheapest at each n.

    With five processes a cell the bootstrap understates the spread, so this is a picture of the
    data and not an inference. Exact ties go to the name that sorts first.
    """
    lines = resampled_lines(processes, draws, seed)
    totals = _totals_ms(lines, executions)
    winner = totals.argmin(axis=0)
    shares = {
        name: tuple(float(share) for share in (winner == i).mean(axis=0))
        for i, name in enumerate(lines)
    }
    return CheapestShare(tuple(float(n) for n in executions), shares, draws, seed)


def envelope_band(
    processes: Mapping[str, Sequence[ProcessPoint]],
    executions: Sequence[float],
    level: float = 0.95,
    draws: int = 2000,
    seed: int = 0,
) -> EnvelopeBand:
    """Descriptive: central `level` of the resampled lower envelope at each n (fig7)."""
    best = _totals_ms(resampled_lines(processes, draws, seed), executions).min(axis=0)
    low, high = np.quantile(best, [0.5 - level / 2, 0.5 + level / 2], axis=0)
    ns = tuple(float(n) for n in executions)
    return EnvelopeBand(ns, tuple(low.tolist()), tuple(high.tolist()), level, draws, seed)


def _totals_ms(
    lines: Mapping[str, npt.NDArray[np.float64]], executions: Sequence[float]
) -> npt.NDArray[np.float64]:
    """T(n) of every resampled line: shape (configurations, draws, executions)."""
    if not lines:
        raise CostError("no configuration given")
    if any(not (math.isfinite(n) and n >= 0) for n in executions):
        raise CostError("numbers of executions must be finite and not negative")
    n = np.asarray(executions, dtype=np.float64)
    return np.stack([line[:, :1] + line[:, 1:] * n for line in lines.values()])


def recommend(
    processes: Mapping[str, Sequence[ProcessPoint]], executions: float, level: float = 0.95
) -> Recommendation:
    """The cheapest configuration for `executions`, the runner-up and how sure that is."""
    if not math.isfinite(executions) or executions < 0:
        raise CostError(f"executions must be finite and not negative, is {executions}")
    if not processes:
        raise CostError("no configuration given")
    lines = {name: mean_line(points) for name, points in processes.items()}
    segments = envelope(lines)
    holds = next(s for s in segments if s.to_n is None or executions <= s.to_n)
    order = sorted(
        lines, key=lambda name: (name != holds.name, lines[name].total_ms(executions), name)
    )
    runner_up = order[1] if len(order) > 1 else None
    ratio: PairedRatio | None = None
    reason: str | None = "only one configuration was measured"
    if runner_up is not None:
        ratio, reason = _total_ratio(processes[holds.name], processes[runner_up], executions, level)
    total = lines[holds.name].total_ms(executions)
    within = Range(holds.from_n, holds.to_n)
    return Recommendation(holds.name, runner_up, executions, total, ratio, within, reason)


def _total_ratio(
    first: Sequence[ProcessPoint], second: Sequence[ProcessPoint], executions: float, level: float
) -> tuple[PairedRatio | None, str | None]:
    def total_ms(point: ProcessPoint) -> float:
        return Line(point.fixed_ms, point.per_execution_ms).total_ms(executions)

    pairs = pair_by_round(
        {p.round: total_ms(p) for p in first}, {p.round: total_ms(p) for p in second}
    )
    if not pairs[0]:
        return None, "the two share no round"
    try:
        ratio = paired_ratio(*pairs, level=level)
    except StatsError as error:
        return None, str(error)
    return ratio, ratio.reason
