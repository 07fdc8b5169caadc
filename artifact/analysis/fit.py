"""How well T_C + n T_X describes the time that one trial really took (issue: goodness of fit).

The measured series is cumulative: after the first call n = 1, then every warm-up and every
execution adds one. T_C and T_X are the trial's own, so nothing is fitted here and R2 may be
negative.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import fmean, median

from artifact.analysis.stats import StatsError, checked
from artifact.records import Record

#: The series has not settled when the medians of its first and last third differ by more than
#: this part of the median of all executions ...
SETTLED_RELATIVE_CHANGE = 0.05
#: ... and by more than this many standard errors of the difference of the two medians.
SETTLED_STANDARD_ERRORS = 3.0
#: Fewer executions than this give no thirds worth comparing.
SETTLED_MINIMUM_EXECUTIONS = 6

# Standard error of a median of m normal values: 1.2533 sd / sqrt(m), with sd = 1.4826 MAD.
_MEDIAN_ERROR = 1.2533 * 1.4826


@dataclass(frozen=True)
class Fit:
    """Measured cumulative time of one trial against its line T_C + n T_X.

    `r2` is 1 - residual / total sum of squares of the cumulative time; `largest_relative_error` is
    the largest |line - measured| / measured, met at `worst_n`. `relative_drift` is (median of the
    last third - median of the first third) / median of all executions; `not_settled` flags it by
    the rule of `settling`. `drift_reason` says why the drift is None.
    """

    r2: float | None
    largest_relative_error: float
    worst_n: int
    relative_drift: float | None
    not_settled: bool
    drift_reason: str | None = None


def goodness_of_fit(
    compile_cost_ms: float,
    first_ms: float,
    warmup_ms: Sequence[float],
    execution_ms: Sequence[float],
) -> Fit:
    """Compare one trial's cumulative time with T_C + n T_X, T_X the mean of `execution_ms`.

    `first_ms` is the time from the start of the T_C window to the end of the first call (n = 1);
    where T_C = T_first - T_X it equals T_C + T_X. Times are ms, finite and positive, T_C finite;
    else `StatsError`.
    """
    executions = _times(execution_ms, "execution_ms")
    warmups = _times(warmup_ms, "warmup_ms") if warmup_ms else ()
    (first,) = _times([first_ms], "first_ms")
    (compile_cost,) = checked([compile_cost_ms], "compile_cost_ms")
    latency = fmean(executions)
    measured = list(accumulate((*warmups, *executions), initial=first))
    modelled = [compile_cost + n * latency for n in range(1, len(measured) + 1)]
    errors = [abs(m - t) / t for m, t in zip(modelled, measured, strict=True)]
    worst = max(range(len(errors)), key=errors.__getitem__)
    drift, unsettled, reason = settling(executions)
    return Fit(_r2(measured, modelled), errors[worst], worst + 1, drift, unsettled, reason)


def fit_of_record(record: Record) -> Fit:
    """`goodness_of_fit` of one record in the paper's own window (boundary `native`)."""
    compile_cost_ms = record.compile_cost_ms("native")
    first_ms = compile_cost_ms + first_execution_ms(record)
    return goodness_of_fit(compile_cost_ms, first_ms, record.warmup_ms, record.execution_ms)


def first_execution_ms(record: Record) -> float:
    """What the first call's own execution (n = 1) adds to T_C within the paper's window, in ms.

    T_X where T_C is T_first - T_X; else (TVM) all of the first call: the window ends before it.
    """
    if record.native is None or record.native.subtract_latency:
        return record.latency_ms
    return record.phase_ms("first_call")


def settling(execution_ms: Sequence[float]) -> tuple[float | None, bool, str | None]:
    """Relative drift, the not-settled flag, and why there is no drift.

    Rule: not settled when the medians of the first and the last third of the executions differ by
    more than 5 % of the overall median and by more than 3 standard errors of their difference
    (from the median absolute deviation of each third). Medians, so that one slow execution is no
    drift.
    """
    third = len(execution_ms) // 3
    if len(execution_ms) < SETTLED_MINIMUM_EXECUTIONS:
        return None, False, f"fewer than {SETTLED_MINIMUM_EXECUTIONS} executions"
    parts = (execution_ms[:third], execution_ms[-third:])
    centres = [median(part) for part in parts]
    change = centres[1] - centres[0]
    deviations = [
        median(abs(value - centre) for value in part)
        for part, centre in zip(parts, centres, strict=True)
    ]
    error = _MEDIAN_ERROR * math.hypot(*deviations) / math.sqrt(third)
    drift = change / median(execution_ms)
    unsettled = (
        abs(drift) > SETTLED_RELATIVE_CHANGE and abs(change) > SETTLED_STANDARD_ERRORS * error
    )
    return drift, unsettled, None


def _r2(measured: Sequence[float], modelled: Sequence[float]) -> float | None:
    mean = fmean(measured)
    total = math.fsum((value - mean) ** 2 for value in measured)
    residual = math.fsum((t - m) ** 2 for t, m in zip(measured, modelled, strict=True))
    return 1 - residual / total if total > 0 else None


def _times(values: Sequence[float], what: str) -> tuple[float, ...]:
    numbers = checked(values, what)
    for index, value in enumerate(numbers):
        if value <= 0:
            raise StatsError(f"{what}[{index}] must be positive, is {value}")
    return numbers
