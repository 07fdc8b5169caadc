"""Lines, crossovers, envelopes, confidence sets and resampling."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as reference

from artifact.analysis import cost
from artifact.analysis.cost import Line, ProcessPoint, Range, Segment

COSTS = st.one_of(
    st.integers(min_value=0, max_value=6).map(float),
    # Smaller costs make lines meet where n times a cost overflows; that has a test of its own.
    st.floats(min_value=1e-9, max_value=1e6),
)
LINES = st.builds(Line, COSTS, COSTS)
NAMED_LINES = st.dictionaries(st.sampled_from("abcdefgh"), LINES, min_size=1)


@pytest.mark.parametrize(
    ("first", "second", "regime", "n"),
    [
        (Line(1, 2), Line(3, 1), "first-then-second", 2.0),
        (Line(3, 1), Line(1, 2), "second-then-first", 2.0),
        (Line(1, 1), Line(3, 2), "first", None),
        (Line(3, 2), Line(1, 1), "second", None),
        (Line(1, 1), Line(1, 2), "first", None),
        (Line(1, 2), Line(1, 1), "second", None),
        (Line(1, 1), Line(2, 1), "first", None),
        (Line(2, 1), Line(1, 1), "second", None),
        (Line(2, 1), Line(2, 1), "tie", None),
        (Line(0, 0), Line(0, 0), "tie", None),
    ],
)
def test_every_regime(first: Line, second: Line, regime: str, n: float | None) -> None:
    found = cost.crossover(first, second)
    assert (found.regime, found.n) == (regime, n)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, -1.0, None])
@pytest.mark.parametrize("key", ["fixed_ms", "per_execution_ms"])
def test_what_is_no_cost_gives_an_unknown_regime_with_its_reason(bad: float, key: str) -> None:
    line = Line(**{"fixed_ms": 1.0, "per_execution_ms": 1.0, key: bad})
    for found in (cost.crossover(line, Line(1, 2)), cost.crossover(Line(1, 2), line)):
        assert (found.regime, found.n) == ("unknown", None)
        assert found.reason is not None and key in found.reason
    with pytest.raises(cost.CostError, match=f"x: {key}"):
        cost.envelope({"x": line, "y": Line(1, 2)})


def test_meeting_points_that_no_float_holds_are_no_crossover() -> None:
    far = cost.crossover(Line(1.0, 5e-324), Line(1e300, 0.0))
    near = cost.crossover(Line(5e-324, 1.0), Line(0.0, 1e300))
    assert (far.regime, far.n) == ("first", None)
    assert (near.regime, near.n) == ("first", None)


@given(LINES, LINES)
def test_worse_on_both_terms_is_second_never_a_tie(first: Line, second: Line) -> None:
    regime = cost.crossover(first, second).regime
    worse = first.fixed_ms > second.fixed_ms and first.per_execution_ms > second.per_execution_ms
    if worse:
        assert regime == "second"
    assert (regime == "tie") == (first == second)


@given(LINES, LINES)
def test_swapping_the_lines_mirrors_the_answer(first: Line, second: Line) -> None:
    mirror = {
        "first": "second",
        "second": "first",
        "first-then-second": "second-then-first",
        "second-then-first": "first-then-second",
        "tie": "tie",
    }
    one, other = cost.crossover(first, second), cost.crossover(second, first)
    assert (mirror[one.regime], one.n) == (other.regime, other.n)


@given(LINES, LINES)
def test_each_line_is_cheaper_on_its_side_of_the_crossover(first: Line, second: Line) -> None:
    found = cost.crossover(first, second)
    if found.n is None:
        return
    before, after = found.n / 2, found.n * 2 + 1
    early, late = (first, second) if found.regime == "first-then-second" else (second, first)
    slack = 1e-9 * (1 + first.total_ms(after) + second.total_ms(after))
    assert early.total_ms(before) <= late.total_ms(before) + slack
    assert late.total_ms(after) <= early.total_ms(after) + slack


@given(NAMED_LINES, st.floats(min_value=0, max_value=1e7))
def test_envelope_is_the_minimum_everywhere(lines: dict[str, Line], n: float) -> None:
    segments = cost.envelope(lines)
    ends = [s.to_n for s in segments if s.to_n is not None]
    for x in (0.0, n, *ends, *(2 * end + 1 for end in ends)):
        segment = next(s for s in segments if s.to_n is None or x <= s.to_n)
        lowest = min(line.total_ms(x) for line in lines.values())
        assert lines[segment.name].total_ms(x) == pytest.approx(lowest, rel=1e-9, abs=1e-9)


@given(NAMED_LINES)
def test_envelope_has_no_gap_no_repeat_and_an_open_end(lines: dict[str, Line]) -> None:
    segments = cost.envelope(lines)
    assert segments[0].from_n == 0.0 and segments[-1].to_n is None
    for left, right in itertools.pairwise(segments):
        assert left.to_n == right.from_n and left.to_n > left.from_n
        assert lines[left.name].per_execution_ms > lines[right.name].per_execution_ms
    assert len({s.name for s in segments}) == len(segments)


@given(NAMED_LINES, st.randoms())
def test_envelope_does_not_depend_on_the_order_given(
    lines: dict[str, Line], random: object
) -> None:
    shuffled = list(lines.items())
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert cost.envelope(dict(shuffled)) == cost.envelope(lines)


@given(NAMED_LINES)
def test_a_line_worse_on_both_terms_is_never_on_the_envelope(lines: dict[str, Line]) -> None:
    best = cost.envelope(lines)[0]
    worse = Line(lines[best.name].fixed_ms + 1, lines[best.name].per_execution_ms + 1)
    assert "z" not in {s.name for s in cost.envelope({**lines, "z": worse})}


def test_identical_lines_are_one_segment_that_names_them_all() -> None:
    lines = {"b": Line(1, 1), "a": Line(1, 1), "c": Line(0, 3)}
    assert cost.envelope(lines) == [
        Segment("c", 0.0, 0.5),
        Segment("a", 0.5, None, ("b",)),
    ]


def test_three_lines_through_one_point_leave_out_the_middle_one() -> None:
    lines = {"steep": Line(0, 3), "middle": Line(2, 2), "flat": Line(4, 1)}
    assert cost.envelope(lines) == [Segment("steep", 0.0, 2.0), Segment("flat", 2.0, None)]


def test_equal_at_zero_leaves_no_empty_segment() -> None:
    assert cost.envelope({"a": Line(5, 2), "b": Line(5, 1)}) == [Segment("b", 0.0, None)]
    assert cost.envelope({}) == []


def test_break_even_against_eager_in_all_words() -> None:
    eager = Line(1.0, 10.0)
    assert cost.break_even(Line(91.0, 1.0), eager) == cost.BreakEven("from-n", 10.0)
    assert cost.break_even(Line(91.0, 11.0), eager).verdict == "never"
    assert cost.break_even(Line(0.5, 9.0), eager).verdict == "always"
    assert cost.break_even(Line(0.0, 11.0), eager) == cost.BreakEven("until-n", 1.0)
    assert cost.break_even(eager, eager).verdict == "tie"
    assert cost.break_even(Line(math.nan, 1.0), eager).verdict == "unknown"


def test_further_processes_pay_the_warm_start() -> None:
    line = cost.with_warm_starts(Line(100.0, 2.0), processes=4, warm_start_ms=7.0)
    assert line.total_ms(10) == 100 + 3 * 7 + 20
    assert cost.with_warm_starts(Line(100.0, 2.0), 1, 7.0) == Line(100.0, 2.0)
    for processes, warm in ((0, 1.0), (2, -1.0), (2, math.nan)):
        with pytest.raises(cost.CostError):
            cost.with_warm_starts(Line(1, 1), processes, warm)


def _points(fixed: list[float], slope: list[float]) -> list[ProcessPoint]:
    return [ProcessPoint(i, f, s) for i, (f, s) in enumerate(zip(fixed, slope, strict=True), 1)]


FAST_START = _points([10.0, 11.0, 9.0, 10.5, 9.5], [5.0, 5.1, 4.9, 5.05, 4.95])
SLOW_START = _points([100.0, 104.0, 97.0, 99.0, 103.0], [1.0, 1.02, 0.99, 1.0, 0.98])
CLOSE = _points([10.3, 10.1, 9.6, 10.9, 9.4], [4.95, 5.02, 5.1, 4.9, 5.0])


def _t_statistic(
    first: list[ProcessPoint], second: list[ProcessPoint], n: float, method: str
) -> tuple[float, float]:
    """|t(n)| and its critical value, straight from scipy on the totals T(n) of each process."""
    a, b = ([p.fixed_ms + n * p.per_execution_ms for p in side] for side in (first, second))
    if method == "paired":
        test, df = reference.ttest_rel(a, b), len(a) - 1
    else:
        test = reference.ttest_ind(a, b, equal_var=False)
        df = test.df if method == "welch-satterthwaite" else min(len(a), len(b)) - 1
    return abs(float(test.statistic)), float(reference.t.ppf(0.975, df))


@pytest.mark.parametrize("method", ["welch", "welch-satterthwaite", "paired"])
@pytest.mark.parametrize("second", [SLOW_START, CLOSE], ids=["apart", "close"])
def test_the_set_holds_exactly_the_n_that_the_test_does_not_reject(
    method: str, second: list[ProcessPoint]
) -> None:
    found = cost.crossover_set(FAST_START, second, method)
    for n in np.concatenate([[0.0], np.geomspace(0.01, 1e6, 400)]):
        statistic, critical = _t_statistic(FAST_START, second, float(n), method)
        if abs(statistic / critical - 1) < 1e-9:
            continue
        inside = any(
            part.from_n <= n and (part.to_n is None or n <= part.to_n) for part in found.ranges
        )
        assert inside == (statistic <= critical), n


def test_bounded_set_holds_the_crossover_of_the_means() -> None:
    meeting = cost.crossover(cost.mean_line(FAST_START), cost.mean_line(SLOW_START)).n
    assert meeting is not None
    for method in cost.METHODS:
        found = cost.crossover_set(FAST_START, SLOW_START, method)
        assert found.kind == "bounded"
        (part,) = found.ranges
        assert part.to_n is not None and part.from_n < meeting < part.to_n
        assert found.words.startswith("bounded: ")


def test_equal_slopes_within_noise_give_an_unbounded_set() -> None:
    dearer = _points([30.0, 31.0, 29.0, 30.5, 29.5], [4.95, 5.02, 5.1, 4.9, 5.0])
    found = cost.crossover_set(FAST_START, dearer)
    assert found.kind == "unbounded"
    assert found.ranges[0].from_n > 0 and found.ranges[0].to_n is None


def test_indistinguishable_lines_give_every_n() -> None:
    found = cost.crossover_set(FAST_START, CLOSE)
    assert (found.kind, found.ranges) == ("unbounded", (Range(0.0, None),))
    assert "no n tells the two apart" in found.words


def test_resolved_on_both_terms_gives_an_empty_set() -> None:
    better = _points([1.0, 1.1, 0.9, 1.05, 0.95], [0.5, 0.51, 0.49, 0.505, 0.495])
    found = cost.crossover_set(better, FAST_START)
    assert (found.kind, found.ranges) == ("empty", ())
    assert found.words.startswith("empty")


def test_told_apart_only_in_the_middle_gives_a_two_sided_set() -> None:
    # T_C and T_X vary against each other: their sum is sharp near n = 1, their ends are not.
    swing = [5.0, -5.0, 3.0, -3.0, 0.0]
    first = _points([100 + x for x in swing], [100 - x + 0.001 * i for i, x in enumerate(swing)])
    second = _points([102 - x for x in swing], [102 + x for x in swing])
    found = cost.crossover_set(first, second)
    assert found.kind == "two-sided"
    low, high = found.ranges
    assert low.from_n == 0.0 and high.to_n is None
    assert low.to_n is not None and low.to_n < 1 < high.from_n
    assert " and " in found.words


def test_sets_in_strict_json_hold_no_infinity() -> None:
    for second in (SLOW_START, CLOSE):
        json.dumps(asdict(cost.crossover_set(FAST_START, second)), allow_nan=False)


@pytest.mark.parametrize(
    ("first", "second", "word"),
    [
        (FAST_START[:1], SLOW_START, "fewer than two processes"),
        (_points([math.nan, 1.0], [1.0, 1.0]), SLOW_START, "not a finite number"),
        (_points([1.0, 1.0], [-1.0, 1.0]), SLOW_START, "negative"),
        (_points([-9.0, 1.0], [1.0, 1.0]), SLOW_START, "negative"),
        ([FAST_START[0], FAST_START[0]], SLOW_START, "share a round"),
        (_points([1.0, 1.0], [1.0, 1.0]), _points([2.0, 2.0], [3.0, 3.0]), "constant"),
    ],
)
@pytest.mark.parametrize("method", ["welch", "paired"])
def test_sets_that_cannot_be_made_are_unknown_by_name(
    first: list[ProcessPoint], second: list[ProcessPoint], word: str, method: str
) -> None:
    found = cost.crossover_set(first, second, method)
    assert (found.kind, found.ranges) == ("unknown", ())
    assert found.reason is not None and word in found.reason


def test_paired_needs_common_rounds_and_pairs_by_round() -> None:
    later = [ProcessPoint(p.round + 10, p.fixed_ms, p.per_execution_ms) for p in SLOW_START]
    apart = cost.crossover_set(FAST_START, later, "paired")
    assert apart.kind == "unknown" and "common rounds" in (apart.reason or "")
    shuffled = cost.crossover_set(FAST_START[::-1], SLOW_START, "paired")
    assert shuffled == cost.crossover_set(FAST_START, SLOW_START, "paired")


def test_unknown_method_is_refused() -> None:
    with pytest.raises(cost.CostError, match="method"):
        cost.crossover_set(FAST_START, SLOW_START, "bayes")


def test_a_first_call_faster_than_the_mean_execution_is_kept_and_the_line_starts_at_zero() -> None:
    eager = _points([-0.4, 0.1, -0.3], [2.0, 2.1, 1.9])
    assert cost.mean_line(eager) == Line(0.0, 2.0)
    assert cost.crossover_set(eager, SLOW_START).kind == "bounded"


def test_shares_sum_to_one_and_follow_the_lines() -> None:
    processes = {"fast-start": FAST_START, "slow-start": SLOW_START}
    share = cost.cheapest_share(processes, [0, 22.5, 1000], draws=500, seed=3)
    assert share.shares["fast-start"][0] == 1.0 and share.shares["slow-start"][2] == 1.0
    assert 0 < share.shares["fast-start"][1] < 1
    for i in range(3):
        assert sum(values[i] for values in share.shares.values()) == pytest.approx(1.0)


def test_shares_are_seeded_and_independent_of_order() -> None:
    processes = {"fast-start": FAST_START, "slow-start": SLOW_START}
    reverse = dict(reversed(processes.items()))
    one = cost.cheapest_share(processes, [22.0], draws=200, seed=1)
    assert one == cost.cheapest_share(reverse, [22.0], draws=200, seed=1)
    assert one != cost.cheapest_share(processes, [22.0], draws=200, seed=2)


def test_resampling_keeps_the_two_terms_of_a_process_together() -> None:
    swing = _points([100.0, 200.0], [2.0, 1.0])
    lines = cost.resampled_lines({"x": swing}, draws=200, seed=0)["x"]
    assert lines.shape == (200, 2)
    assert np.allclose(lines[:, 0] + 100 * lines[:, 1], 300.0)


def test_envelope_band_encloses_the_envelope() -> None:
    processes = {"fast-start": FAST_START, "slow-start": SLOW_START}
    band = cost.envelope_band(processes, [0, 10, 1000], draws=500)
    for n, low, high in zip(band.executions, band.low_ms, band.high_ms, strict=True):
        lowest = min(cost.mean_line(p).total_ms(n) for p in processes.values())
        assert low < lowest < high


@pytest.mark.parametrize("executions", [[-1.0], [math.nan], [math.inf]])
def test_shares_refuse_what_is_no_number_of_executions(executions: list[float]) -> None:
    with pytest.raises(cost.CostError, match="executions"):
        cost.cheapest_share({"a": FAST_START}, executions)


def test_recommendation_names_the_range_in_which_it_holds() -> None:
    processes = {"fast-start": FAST_START, "slow-start": SLOW_START, "close": CLOSE}
    found = cost.recommend(processes, 500)
    meeting = cost.crossover(cost.mean_line(CLOSE), cost.mean_line(SLOW_START)).n
    assert (found.name, found.runner_up) == ("slow-start", "close")
    assert found.holds == Range(pytest.approx(meeting), None)
    assert found.total_ms == pytest.approx(cost.mean_line(SLOW_START).total_ms(500))
    assert found.ratio is not None and found.ratio.high is not None and found.ratio.high < 1
    assert found.ratio.ratio == pytest.approx(599.6 / 2507.0, rel=0.01)


def test_recommendation_without_common_rounds_says_so() -> None:
    later = [ProcessPoint(p.round + 10, p.fixed_ms, p.per_execution_ms) for p in SLOW_START]
    found = cost.recommend({"a": FAST_START, "b": later}, 5)
    assert (found.name, found.ratio) == ("a", None)
    assert found.reason == "the two share no round"
    alone = cost.recommend({"a": FAST_START}, 5)
    assert (alone.runner_up, alone.holds) == (None, Range(0.0, None))
    for bad in (-1.0, math.nan):
        with pytest.raises(cost.CostError):
            cost.recommend({"a": FAST_START}, bad)
