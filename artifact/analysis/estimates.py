"""Estimates of one cell from its processes: T_C per boundary, T_X, with and without noisy trials.

The process is the experimental unit (paper, protocol). Percentiles of single executions are given
too, but only as what they are: a description of the spread within a process.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from artifact.analysis.cost import Line, ProcessPoint
from artifact.analysis.stats import Interval, StatsError, process_interval
from artifact.records import BOUNDARIES, Record

#: Boundaries whose T_C leaves the fold out, so that a fixed cost must add it (DESIGN: a trial).
BOUNDARIES_WITHOUT_FOLD = ("native",)


@dataclass(frozen=True)
class ProcessValues:
    """What one cold process contributes to its cell; times in ms.

    `compile_cost_ms` maps each boundary to T_C, tool chain included. `toolchain_ms` and `fold_ms`
    are zero where there was none. `latency_ms` is T_X, the mean of `executions_ms`. NaN, infinite
    or negative times, and a T_X or execution of zero, raise `StatsError` when it is made. T_C may
    fall below zero, but not below -T_X: it is T_first - T_X, and without compiling (`eager`) noise
    can make the first call the faster one.
    """

    round: int
    compile_cost_ms: Mapping[str, float]
    toolchain_ms: float
    fold_ms: float
    latency_ms: float
    executions_ms: Sequence[float]
    noisy: bool = False

    def __post_init__(self) -> None:
        if not self.executions_ms:
            raise StatsError(f"round {self.round}: no executions")
        for value in (self.latency_ms, *self.executions_ms):
            if not (math.isfinite(value) and value > 0):
                raise StatsError(f"round {self.round}: an execution is no positive time: {value}")
        for name in ("toolchain_ms", "fold_ms"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise StatsError(f"round {self.round}: {name} is no time: {value}")
        for name, value in self.compile_cost_ms.items():
            if not (math.isfinite(value) and value >= -self.latency_ms):
                raise StatsError(f"round {self.round}: T_C ({name}) is no time: {value}")

    def fixed_cost_ms(self, boundary: str) -> float:
        """T_C with the fold in it exactly once: what n executions are added to."""
        fold = self.fold_ms if boundary in BOUNDARIES_WITHOUT_FOLD else 0.0
        return self._cost_ms(boundary) + fold

    def without_toolchain_ms(self, boundary: str) -> float:
        """The fixed cost less the one-time work of the C++ tool chain."""
        return self.fixed_cost_ms(boundary) - self.toolchain_ms

    def compile_cost_without_toolchain_ms(self, boundary: str) -> float:
        """T_C less the one-time work of the C++ tool chain; `native` still leaves the fold out."""
        return self._cost_ms(boundary) - self.toolchain_ms

    def point(self, boundary: str) -> ProcessPoint:
        """This process as a point of the cost model."""
        return ProcessPoint(self.round, self.fixed_cost_ms(boundary), self.latency_ms)

    def _cost_ms(self, boundary: str) -> float:
        if boundary not in self.compile_cost_ms:
            known = ", ".join(sorted(self.compile_cost_ms)) or "none"
            raise StatsError(f"round {self.round}: no T_C for boundary {boundary!r}, has {known}")
        return self.compile_cost_ms[boundary]


@dataclass(frozen=True)
class WithinProcess:
    """p50 and p95 of the executions: the mean over processes of each process's own percentile.

    Within-process: it describes single executions and carries no interval over processes.
    """

    p50_ms: float
    p95_ms: float
    processes: int
    executions: int


@dataclass(frozen=True)
class Metrics:
    """Intervals of one cell over some of its processes, in ms; keys are boundaries.

    `compile_cost_ms` is T_C and `fixed_cost_ms` T_C with the fold in it once; each is also
    given less the one-time work of the tool chain (`*_without_toolchain_ms`).
    """

    compile_cost_ms: Mapping[str, Interval]
    compile_cost_without_toolchain_ms: Mapping[str, Interval]
    fixed_cost_ms: Mapping[str, Interval]
    fixed_cost_without_toolchain_ms: Mapping[str, Interval]
    toolchain_ms: Interval
    fold_ms: Interval
    latency_ms: Interval
    within_process: WithinProcess

    def line(self, boundary: str) -> Line:
        """The cost line through the means; it starts at zero where noise put T_C below."""
        return Line(max(0.0, self.fixed_cost_ms[boundary].mean), self.latency_ms.mean)


@dataclass(frozen=True)
class CellEstimate:
    """One cell: over all processes, and over those that were not noisy.

    `quiet` is None when every process was noisy (see `quiet_reason`); without noisy processes it
    equals `all`. `points` holds the fixed cost and T_X of every process per boundary.
    """

    processes: int
    noisy: int
    all: Metrics
    quiet: Metrics | None
    points: Mapping[str, tuple[ProcessPoint, ...]]
    quiet_reason: str | None = None


def from_record(record: Record, *, noisy: bool) -> ProcessValues:
    """The values of one pooled record; whether it is noisy is decided by its campaign."""
    return ProcessValues(
        round=record.spec.round,
        compile_cost_ms={name: record.compile_cost_ms(name) for name in BOUNDARIES},
        toolchain_ms=record.toolchain_ms,
        fold_ms=record.fold_ms,
        latency_ms=record.latency_ms,
        executions_ms=record.execution_ms,
        noisy=noisy,
    )


def estimate_cell(processes: Sequence[ProcessValues], level: float = 0.95) -> CellEstimate:
    """Estimate one cell.

    No process, two of one round, or differing boundaries raise `StatsError`; one process gives
    means whose sd and interval are None with the reason.
    """
    ordered = sorted(processes, key=lambda process: process.round)
    boundaries = _boundaries(ordered)
    quiet = [process for process in ordered if not process.noisy]
    over_all = _metrics(ordered, boundaries, level)
    if len(quiet) == len(ordered):
        over_quiet: Metrics | None = over_all
    else:
        over_quiet = _metrics(quiet, boundaries, level) if quiet else None
    points = {name: tuple(p.point(name) for p in ordered) for name in boundaries}
    reason = None if quiet else "every process was noisy"
    noisy = len(ordered) - len(quiet)
    return CellEstimate(len(ordered), noisy, over_all, over_quiet, points, reason)


def percentile(ordered: Sequence[float], fraction: float) -> float:
    """Percentile of sorted values, linear between order statistics (numpy's default)."""
    position = fraction * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (position - below) * (ordered[above] - ordered[below])


def _boundaries(processes: Sequence[ProcessValues]) -> tuple[str, ...]:
    if not processes:
        raise StatsError("no process values: the cell was not measured")
    names = tuple(processes[0].compile_cost_ms)
    seen: set[int] = set()
    for process in processes:
        if set(process.compile_cost_ms) != set(names):
            raise StatsError(f"round {process.round}: other boundaries than in the first process")
        if process.round in seen:
            raise StatsError(f"round {process.round}: more than one process")
        seen.add(process.round)
    return names


def _metrics(
    processes: Sequence[ProcessValues], boundaries: Sequence[str], level: float
) -> Metrics:
    def interval(values: list[float]) -> Interval:
        return process_interval(values, level)

    return Metrics(
        compile_cost_ms={
            b: interval([p.compile_cost_ms[b] for p in processes]) for b in boundaries
        },
        compile_cost_without_toolchain_ms={
            b: interval([p.compile_cost_without_toolchain_ms(b) for p in processes])
            for b in boundaries
        },
        fixed_cost_ms={b: interval([p.fixed_cost_ms(b) for p in processes]) for b in boundaries},
        fixed_cost_without_toolchain_ms={
            b: interval([p.without_toolchain_ms(b) for p in processes]) for b in boundaries
        },
        toolchain_ms=interval([p.toolchain_ms for p in processes]),
        fold_ms=interval([p.fold_ms for p in processes]),
        latency_ms=interval([p.latency_ms for p in processes]),
        within_process=_within(processes),
    )


def _within(processes: Sequence[ProcessValues]) -> WithinProcess:
    ordered = [sorted(process.executions_ms) for process in processes]
    return WithinProcess(
        p50_ms=fmean(percentile(values, 0.5) for values in ordered),
        p95_ms=fmean(percentile(values, 0.95) for values in ordered),
        processes=len(ordered),
        executions=sum(len(values) for values in ordered),
    )
