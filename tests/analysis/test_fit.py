"""Goodness of fit of T_C + n T_X and the not-settled flag."""

from __future__ import annotations

import math

import pytest

from artifact.analysis import fit
from artifact.analysis.stats import StatsError


def test_a_trial_on_its_line_fits_exactly() -> None:
    found = fit.goodness_of_fit(100.0, 102.0, [2.0] * 10, [2.0] * 50)
    assert found.r2 == pytest.approx(1.0)
    assert found.largest_relative_error == pytest.approx(0.0, abs=1e-12)
    assert (found.not_settled, found.relative_drift) == (False, 0.0)


def test_slow_warmups_show_as_the_largest_error_by_hand() -> None:
    found = fit.goodness_of_fit(0.0, 1.0, [4.0], [1.0, 1.0])
    # measured 1, 5, 6, 7 against 1, 2, 3, 4
    assert (found.largest_relative_error, found.worst_n) == (pytest.approx(3 / 5), 2)
    mean = 19 / 4
    total = sum((t - mean) ** 2 for t in (1, 5, 6, 7))
    assert found.r2 == pytest.approx(1 - 27 / total)


def test_first_call_outside_the_window_counts_as_measured() -> None:
    """TVM's T_C ends before the first call, whose time then differs from T_X."""
    found = fit.goodness_of_fit(100.0, 150.0, [], [1.0] * 6)
    assert (found.worst_n, found.largest_relative_error) == (1, pytest.approx(49 / 150))


def test_drifting_executions_are_flagged() -> None:
    drift, unsettled, reason = fit.settling([2.0 - 0.01 * i for i in range(50)])
    assert unsettled and reason is None
    # thirds of 16: medians 1.925 and 1.585 around an overall median of 1.755
    assert drift == pytest.approx((1.585 - 1.925) / 1.755)


def test_one_slow_execution_is_no_drift() -> None:
    assert fit.settling([100.0] + [1.0] * 49) == (0.0, False, None)


def test_noise_without_trend_is_settled_even_when_wide() -> None:
    wide = [1.0 + 0.3 * ((7 * i) % 11 - 5) / 5 for i in range(50)]
    drift, unsettled, _ = fit.settling(wide)
    assert drift is not None and not unsettled


def test_a_small_drift_is_not_flagged() -> None:
    drift, unsettled, _ = fit.settling([1.0] * 25 + [1.04] * 25)
    assert drift == pytest.approx(0.04 / 1.02)
    assert not unsettled
    assert fit.settling([1.0] * 25 + [1.06] * 25)[1]


def test_too_few_executions_say_so() -> None:
    drift, unsettled, reason = fit.settling([1.0] * 5)
    assert (drift, unsettled) == (None, False)
    assert reason is not None and "fewer than 6" in reason


@pytest.mark.parametrize(
    ("compile_cost", "first", "warmups", "executions"),
    [
        (math.nan, 1.0, [1.0], [1.0]),
        (1.0, 0.0, [1.0], [1.0]),
        (1.0, 1.0, [-1.0], [1.0]),
        (1.0, 1.0, [1.0], []),
        (1.0, 1.0, [1.0], [1.0, math.inf]),
    ],
)
def test_what_is_no_time_is_refused(
    compile_cost: float, first: float, warmups: list[float], executions: list[float]
) -> None:
    with pytest.raises(StatsError):
        fit.goodness_of_fit(compile_cost, first, warmups, executions)
