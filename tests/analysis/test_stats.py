"""Intervals, Welch, Holm, paired ratios and equivalence against independent computations."""

from __future__ import annotations

import json
import math
from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as reference

from artifact.analysis import stats
from artifact.analysis.distributions import detectable_shift, t_critical

TIMES = st.floats(min_value=1e-3, max_value=1e6)


def test_interval_of_five_processes_uses_four_degrees_of_freedom() -> None:
    values = [10.0, 12.0, 11.0, 13.0, 9.0]
    interval = stats.process_interval(values)
    low, high = reference.t.interval(0.95, 4, loc=11.0, scale=np.std(values, ddof=1) / math.sqrt(5))
    assert interval.mean == 11.0
    assert interval.sd == pytest.approx(math.sqrt(2.5), rel=1e-14)
    assert (interval.low, interval.high) == pytest.approx((low, high), rel=1e-12)
    assert (interval.n, interval.reason, interval.level) == (5, None, 0.95)


def test_interval_widens_with_level() -> None:
    narrow, wide = (stats.process_interval([1.0, 2.0, 4.0], level) for level in (0.9, 0.99))
    assert narrow.high is not None and wide.high is not None
    assert (wide.high - wide.mean) / (narrow.high - narrow.mean) == pytest.approx(
        t_critical(0.99, 2) / t_critical(0.9, 2)
    )


def test_case_s6_one_process_has_a_mean_and_named_gaps_in_strict_json() -> None:
    interval = stats.process_interval([7.0])
    text = json.dumps(asdict(interval), allow_nan=False)
    plain = json.loads(text, parse_constant=lambda name: pytest.fail(name))
    assert (plain["mean"], plain["sd"], plain["low"], plain["high"]) == (7.0, None, None, None)
    assert "one value" in plain["reason"]


def test_constant_values_have_no_width_and_say_so() -> None:
    interval = stats.process_interval([0.1 + 0.2, 0.3, 0.3])
    assert (interval.sd, interval.low, interval.high) == (0.0, interval.mean, interval.mean)
    assert interval.reason is not None and "constant" in interval.reason


@pytest.mark.parametrize("bad", [[], [1.0, math.nan], [math.inf, 1.0], [1.0, None], [1e200, 1.0]])
def test_faulty_values_are_one_named_error(bad: list[float]) -> None:
    for call in (
        lambda: stats.process_interval(bad),
        lambda: stats.welch(bad, [1.0, 2.0]),
        lambda: stats.welch([1.0, 2.0], bad),
        lambda: stats.paired_ratio(bad, bad),
        lambda: stats.equivalence(bad, bad, 0.1),
    ):
        with pytest.raises(stats.StatsError) as caught:
            call()
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("level", [0.0, 1.0, 95.0, math.nan])
def test_a_level_that_is_no_probability_is_refused(level: float) -> None:
    with pytest.raises(stats.StatsError, match="level"):
        stats.process_interval([1.0, 2.0], level)


@given(st.lists(TIMES, min_size=2, max_size=8), st.lists(TIMES, min_size=2, max_size=8))
def test_welch_agrees_with_scipy(a: list[float], b: list[float]) -> None:
    found = stats.welch(a, b)
    if np.ptp(a) < 1e-6 * max(a) or np.ptp(b) < 1e-6 * max(b):
        return  # scipy loses digits there
    expected = reference.ttest_ind(a, b, equal_var=False)
    interval = expected.confidence_interval(0.95)
    scale = max(*a, *b)
    assert found.difference == pytest.approx(np.mean(a) - np.mean(b), rel=1e-9, abs=1e-9 * scale)
    assert found.t == pytest.approx(expected.statistic, rel=1e-6, abs=1e-9)
    assert found.df == pytest.approx(expected.df, rel=1e-9)
    assert found.p == pytest.approx(expected.pvalue, rel=1e-6)
    assert (found.low, found.high) == pytest.approx(
        (interval.low, interval.high), rel=1e-8, abs=1e-8 * scale
    )


def test_welch_difference_is_first_minus_second() -> None:
    found = stats.welch([1.0, 2.0, 3.0], [11.0, 12.0, 13.0])
    assert found.difference == -10.0
    assert found.t is not None and found.t < 0
    assert found.high is not None and found.high < 0


@pytest.mark.parametrize("other", [3.0, 5.0])
def test_welch_of_two_constant_groups_has_no_p(other: float) -> None:
    found = stats.welch([3.0, 3.0, 3.0], [other, other, other])
    assert found.p is None and found.t is None and found.low is None
    assert found.reason is not None and "constant" in found.reason
    assert found.difference == 3.0 - other


def test_welch_with_one_constant_group_still_tests() -> None:
    found = stats.welch([3.0, 3.0, 3.0], [4.0, 5.0, 6.0])
    assert found.df == pytest.approx(2.0)
    assert found.p == pytest.approx(float(2 * reference.t.sf(2 / math.sqrt(1 / 3), 2)))


def test_welch_of_one_value_names_the_reason() -> None:
    found = stats.welch([1.0], [2.0, 3.0])
    assert (found.difference, found.p) == (-1.5, None)
    assert found.reason is not None and "fewer than two" in found.reason


def test_holm_by_hand() -> None:
    adjusted = stats.holm([0.01, 0.04, 0.03, 0.005])
    assert [h.adjusted for h in adjusted] == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert [h.reject for h in adjusted] == [True, False, False, True]


def test_holm_leaves_untested_out_of_the_family() -> None:
    results = stats.holm([0.02, None, math.nan, 0.03])
    assert [h.adjusted for h in results] == [pytest.approx(0.04), None, None, pytest.approx(0.04)]
    assert [h.reject for h in results] == [True, None, None, True]
    assert results[2].p is None
    assert stats.holm([]) == [] and stats.holm([None]) == [stats.Holm(None, None, None)]


@pytest.mark.parametrize("p", [-0.1, 1.1, math.inf])
def test_holm_refuses_what_is_no_probability(p: float) -> None:
    with pytest.raises(stats.StatsError, match=r"p_values\[1\]"):
        stats.holm([0.5, p])


def test_family_states_its_size_and_skips_constants() -> None:
    family = stats.family(
        {
            "a": ([1.0, 1.1, 1.2], [2.0, 2.1, 2.2]),
            "flat": ([5.0, 5.0], [5.0, 5.0]),
            "b": ([3.0, 3.5, 3.2], [3.1, 3.4, 3.3]),
        }
    )
    assert family.size == 2
    assert family.rows["flat"].holm == stats.Holm(None, None, None)
    a = family.rows["a"]
    assert a.relative_percent == pytest.approx(-100 * 1.0 / 2.1)
    assert a.holm.adjusted == pytest.approx(2 * a.welch.p)


def test_paired_ratio_is_the_t_interval_of_the_log_ratios() -> None:
    first, second = [8.0, 9.0, 11.0, 10.0], [10.0, 10.0, 12.0, 13.0]
    found = stats.paired_ratio(first, second)
    logs = np.log(np.array(first) / np.array(second))
    low, high = reference.t.interval(0.95, 3, logs.mean(), reference.sem(logs))
    assert found.ratio == pytest.approx(float(np.exp(logs.mean())))
    assert (found.low, found.high) == pytest.approx((np.exp(low), np.exp(high)))
    assert found.n == 4


def test_swapping_the_two_inverts_the_ratio_only() -> None:
    first, second = [8.0, 9.0, 11.0, 10.0], [10.0, 10.0, 12.0, 13.0]
    one, other = stats.paired_ratio(first, second), stats.paired_ratio(second, first)
    assert one.high is not None and other.high is not None and other.low is not None
    assert (1 / other.ratio, 1 / other.high, 1 / other.low) == pytest.approx(
        (one.ratio, one.low, one.high)
    )
    assert one.resolvable_ratio == pytest.approx(other.resolvable_ratio)


def test_a_true_effect_of_the_resolvable_ratio_is_found_four_times_in_five() -> None:
    generator = np.random.default_rng(1)
    sd, n, trials = 0.05, 5, 20_000
    shift = detectable_shift(n - 1, 0.95, 0.8) * sd / math.sqrt(n)
    logs = generator.normal(shift, sd, size=(trials, n))
    found = np.abs(logs.mean(axis=1)) > t_critical(0.95, n - 1) * logs.std(
        axis=1, ddof=1
    ) / math.sqrt(n)
    assert found.mean() == pytest.approx(0.8, abs=0.01)


@pytest.mark.parametrize("df", [1, 2, 4, 9, 99])
@pytest.mark.parametrize("power", [0.5, 0.8, 0.95])
def test_detectable_shift_solves_the_noncentral_t(df: int, power: float) -> None:
    shift, critical = detectable_shift(df, 0.95, power), t_critical(0.95, df)
    assert reference.nct.sf(critical, df, shift) == pytest.approx(power, abs=1e-9)


def test_detectable_shift_of_two_processes_by_simulation() -> None:
    generator = np.random.default_rng(2)
    values = generator.normal(size=(100_000, 2)) + detectable_shift(1, 0.95, 0.8) / math.sqrt(2)
    t = values.mean(axis=1) / (values.std(axis=1, ddof=1) / math.sqrt(2))
    assert (t > t_critical(0.95, 1)).mean() == pytest.approx(0.8, abs=0.01)


def test_resolvable_ratio_from_the_observed_spread() -> None:
    found = stats.paired_ratio([1.0, 1.1, 0.95, 1.02, 1.08], [1.0] * 5)
    logs = np.log([1.0, 1.1, 0.95, 1.02, 1.08])
    expected = math.exp(detectable_shift(4, 0.95, 0.8) * reference.sem(logs))
    assert found.resolvable_ratio == pytest.approx(expected)


def test_paired_ratio_without_spread_names_the_reason() -> None:
    one = stats.paired_ratio([2.0], [4.0])
    flat = stats.paired_ratio([0.3, 3.3, 33.3], [0.1, 1.1, 11.1])
    assert (one.ratio, one.low, one.resolvable_ratio) == (0.5, None, None)
    assert one.reason is not None and "one pair" in one.reason
    assert flat.ratio == pytest.approx(3.0) and flat.high is None
    assert flat.reason is not None and "constant" in flat.reason


@pytest.mark.parametrize("bad", [0.0, -1.0, 1e-300])
def test_ratio_refuses_what_is_no_positive_time(bad: float) -> None:
    with pytest.raises(stats.StatsError, match=r"second\[1\]"):
        stats.paired_ratio([1.0, 2.0], [1.0, bad])


def test_ratio_refuses_values_without_partner() -> None:
    with pytest.raises(stats.StatsError, match="3 values cannot be paired with 2"):
        stats.paired_ratio([1.0, 2.0, 3.0], [1.0, 2.0])


def test_pairing_is_by_round_and_not_by_position() -> None:
    pairs = stats.pair_by_round({3: 30.0, 1: 10.0, 2: 20.0}, {1: 1.0, 3: 3.0, 9: 9.0})
    assert pairs == ([10.0, 30.0], [1.0, 3.0])


def test_equivalence_tells_alike_from_unresolved_from_different() -> None:
    base = [100.0, 101.0, 99.0, 100.5, 99.5]
    alike = stats.equivalence([x * 1.01 for x in (100.2, 100.9, 99.1, 100.4, 99.6)], base, 0.05)
    wild = stats.equivalence([60.0, 150.0, 99.0, 130.0, 80.0], base, 0.05)
    apart = stats.equivalence(
        [x * 1.2 + d for x, d in zip(base, (0, 1, 0, 1, 0), strict=True)], base, 0.05
    )
    assert (alike.verdict, wild.verdict, apart.verdict) == (
        "equivalent",
        "inconclusive",
        "different",
    )
    assert alike.p is not None and alike.p < 0.05 < 0.5 < (apart.p or 0)


def test_equivalence_p_agrees_with_its_interval_and_with_scipy() -> None:
    first, second = [1.00, 1.03, 0.99, 1.02, 1.01], [1.0] * 5
    found = stats.equivalence(first, second, 0.05)
    logs = np.log(first)
    upper = reference.ttest_1samp(logs, math.log(1.05), alternative="less").pvalue
    lower = reference.ttest_1samp(logs, -math.log(1.05), alternative="greater").pvalue
    assert found.p == pytest.approx(max(upper, lower))
    low, high = reference.t.interval(0.90, 4, logs.mean(), reference.sem(logs))
    assert (found.low, found.high) == pytest.approx((math.exp(low), math.exp(high)))
    assert (found.verdict == "equivalent") == (found.p < 0.05)


def test_equivalence_without_spread_decides_nothing() -> None:
    found = stats.equivalence([1.0, 1.0], [1.0, 1.0], 0.1)
    assert (found.verdict, found.p) == ("unknown", None)
    assert found.reason is not None and "constant" in found.reason


@pytest.mark.parametrize(
    ("margin", "alpha"), [(0.0, 0.05), (-0.1, 0.05), (math.nan, 0.05), (0.1, 0.5)]
)
def test_equivalence_refuses_a_margin_or_alpha_without_meaning(margin: float, alpha: float) -> None:
    with pytest.raises(stats.StatsError):
        stats.equivalence([1.0, 2.0], [1.0, 2.1], margin, alpha)
