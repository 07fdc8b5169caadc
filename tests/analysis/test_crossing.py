"""Hand-made curves: where they cross, that they never do, and what the predicted set makes of it.

Lines used throughout: first 0 + 10 n, second 95 + 1 n, which meet at n = 95 / 9 = 10.56.
"""

from __future__ import annotations

import math

import pytest

from artifact.analysis.cost import CrossoverSet, Line, ProcessPoint, Range
from artifact.analysis.crossing import (
    CrossingError,
    Curve,
    Prediction,
    RoundRow,
    compare,
    conclusion,
    curve,
    measured_crossing,
    order_words,
    predict,
    verdict,
)

MEETING = 95 / 9


def points(fixed: float, slope: float, spread: float = 0.01) -> list[ProcessPoint]:
    return [
        ProcessPoint(i + 1, fixed * (1 + spread * e), slope * (1 + spread * e))
        for i, e in enumerate((-1, 1, 0))
    ]


def prediction(low: float = 9.0, high: float | None = 12.0, regime="first-then-second"):
    kind = "bounded" if high else "unbounded"
    around = CrossoverSet("welch", kind, (Range(low, high),))
    return Prediction("a", "b", regime, MEETING, around, Line(0, 10), Line(95, 1), 3, 3)


def straight(fixed: float, slope: float, executions: int = 21, round_number: int = 1) -> Curve:
    return curve(round_number, fixed, [slope] * executions)


# --- prediction -------------------------------------------------------------------------------
def test_the_prediction_is_the_crossing_of_the_means_and_its_set() -> None:
    found = predict("a", points(100.0, 10.0), "b", points(1000.0, 1.0))
    assert found.n == pytest.approx(100.0)
    assert found.regime == "first-then-second"
    assert found.order == "a, then b"
    assert found.set.method == "welch" and found.set.kind == "bounded"
    assert found.set.ranges[0].from_n < 100.0 < found.set.ranges[0].to_n
    swapped = predict("b", points(1000.0, 1.0), "a", points(100.0, 10.0))
    assert (swapped.regime, swapped.order) == ("second-then-first", "a, then b")
    assert swapped.set.ranges[0].to_n == pytest.approx(found.set.ranges[0].to_n)


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        ((1.0, 1.0), (2.0, 2.0), "a is never dearer than b"),
        ((2.0, 2.0), (1.0, 1.0), "b is never dearer than a"),
        ((1.0, 1.0), (1.0, 1.0), "the lines are identical"),
        ((1.0, 5.0), (1.0, 2.0), "b is never dearer than a"),  # they meet at n = 0
    ],
)
def test_lines_that_do_not_cross_are_refused_in_one_line(first, second, words) -> None:
    with pytest.raises(CrossingError, match=words) as caught:
        predict("a", points(*first), "b", points(*second))
    assert "\n" not in str(caught.value)


def test_one_process_gives_no_set_to_look_inside() -> None:
    with pytest.raises(CrossingError, match=r"no set around n = 100\.0: fewer than two processes"):
        predict("a", [ProcessPoint(1, 100.0, 10.0)], "b", [ProcessPoint(1, 1000.0, 1.0)])


# --- curves -----------------------------------------------------------------------------------
def test_a_curve_begins_with_t_c_and_adds_every_execution() -> None:
    assert curve(2, 100.0, [12.0, 10.0, 10.5]) == Curve(2, (100.0, 112.0, 122.0, 132.5))


@pytest.mark.parametrize(
    ("fixed", "executions", "words"),
    [
        (1.0, [], "no executions"),
        (math.nan, [1.0], "nan is no time"),
        (1.0, [1.0, math.inf], "inf is no time"),
        (1.0, [1.0, 0.0], r"an execution of 0\.0 ms"),
        (1.0, [-1.0], r"an execution of -1\.0 ms"),
    ],
)
def test_what_is_no_time_is_refused_with_its_round(fixed, executions, words) -> None:
    with pytest.raises(CrossingError, match=f"round 4: {words}"):
        curve(4, fixed, executions)


def test_an_eager_first_call_that_was_faster_is_a_curve() -> None:
    assert curve(1, -2.0, [45.0]).totals_ms == (-2.0, 43.0)


# --- crossings --------------------------------------------------------------------------------
def test_straight_curves_cross_where_their_lines_do() -> None:
    found = measured_crossing(straight(0, 10).totals_ms, straight(95, 1).totals_ms)
    assert found.n == pytest.approx(MEETING)
    assert (found.regime, found.changes, found.executions) == ("first-then-second", 1, 21)
    turned = measured_crossing(straight(95, 1).totals_ms, straight(0, 10).totals_ms)
    assert (turned.regime, turned.n) == ("second-then-first", pytest.approx(MEETING))


def test_slow_warm_ups_move_the_crossing() -> None:
    """30 ms more in the warm-ups of the flat curve: it catches up 30 / 9 executions later."""
    slow = curve(1, 95.0, [16.0, 16.0] + [1.0] * 19)
    found = measured_crossing(straight(0, 10).totals_ms, slow.totals_ms)
    assert found.n == pytest.approx(125 / 9)


def test_curves_that_never_cross_have_no_n() -> None:
    found = measured_crossing(straight(0, 10, 10).totals_ms, straight(95, 1, 10).totals_ms)
    assert (found.regime, found.n, found.executions) == ("first", None, 10)
    parallel = measured_crossing(straight(5, 1).totals_ms, straight(0, 1).totals_ms)
    assert (parallel.regime, parallel.n, parallel.changes) == ("second", None, 0)
    same = measured_crossing(straight(5, 1).totals_ms, straight(5, 1).totals_ms)
    assert (same.regime, same.n) == ("tie", None)


def test_to_and_fro_is_counted_and_the_last_change_is_the_crossing() -> None:
    found = measured_crossing([0, 2, 2, 6, 9], [1, 1, 3, 5, 5])  # -1 +1 -1 +1 +4
    assert (found.regime, found.changes, found.n) == ("first-then-second", 3, 2.5)
    back = measured_crossing([0, 2, 2], [1, 1, 3])
    assert (back.regime, back.n, back.changes) == ("first", None, 2)


def test_curves_that_touch_do_not_cross_and_equal_points_are_where_they_meet() -> None:
    touch = measured_crossing([0, 3, 4], [1, 3, 5])
    assert (touch.regime, touch.n, touch.changes) == ("first", None, 0)
    through = measured_crossing([0, 3, 4, 9], [1, 3, 4, 5])
    assert (through.regime, through.n) == ("first-then-second", 1.0)
    from_equal = measured_crossing([1, 3, 9], [1, 2, 3])
    assert (from_equal.regime, from_equal.n) == ("second", None)


def test_curves_of_unequal_length_are_compared_as_far_as_both_go() -> None:
    found = measured_crossing(straight(0, 10, 40).totals_ms, straight(95, 1, 10).totals_ms)
    assert (found.n, found.executions) == (None, 10)
    with pytest.raises(CrossingError, match="one execution"):
        measured_crossing([1.0], [2.0, 3.0])


# --- verdicts ---------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("low", "high", "regime", "expected"),
    [
        (9.0, 12.0, "first-then-second", "inside"),
        (MEETING, 12.0, "first-then-second", "inside"),
        (10.6, 12.0, "first-then-second", "outside"),
        (2.0, 10.5, "first-then-second", "outside"),
        (9.0, None, "first-then-second", "inside"),
        (9.0, 12.0, "second-then-first", "reversed"),
    ],
)
def test_a_crossing_against_its_set(low, high, regime, expected) -> None:
    found = measured_crossing(straight(0, 10).totals_ms, straight(95, 1).totals_ms)
    if low == MEETING:
        low = found.n
    assert verdict(prediction(low, high, regime), found) == expected


def test_a_two_sided_set_has_a_gap() -> None:
    ranges = (Range(0.0, 5.0), Range(20.0, None))
    around = CrossoverSet("welch", "two-sided", ranges)
    two = Prediction("a", "b", "first-then-second", 30.0, around, Line(0, 10), Line(9, 1), 3, 3)
    found = measured_crossing(straight(0, 10).totals_ms, straight(95, 1).totals_ms)
    assert verdict(two, found) == "outside"


def test_rounds_are_paired_and_the_mean_comes_last() -> None:
    first = [straight(0, 10, 30, r) for r in (1, 2, 3)]
    second = [straight(fixed, 1, 30, r) for r, fixed in ((3, 135), (1, 45), (4, 45))]
    rows = compare(prediction(), first, second)
    assert [row.round for row in rows] == ["1", "3", "mean"]
    assert [row.n for row in rows] == [pytest.approx(5), pytest.approx(15), pytest.approx(10)]
    assert [row.verdict for row in rows] == ["outside", "outside", "inside"]
    assert rows[0].order == "a, then b"
    assert conclusion(prediction(), rows) == (
        "the mean curves of 2 rounds cross at n = 10.0, inside the predicted set; "
        "single rounds: 0 of 2 inside"
    )


def test_not_found_says_who_was_cheaper_and_how_far_it_was_looked() -> None:
    rows = compare(prediction(), [straight(0, 10, 8)], [straight(95, 1, 8)])
    assert [row.verdict for row in rows] == ["not-found", "not-found"]
    assert conclusion(prediction(), rows).startswith("not found: a throughout up to n = 8")


def test_another_order_than_predicted_is_said() -> None:
    rows = compare(prediction(), [straight(95, 1)], [straight(0, 10)])
    assert "in the order not predicted (b, then a)" in conclusion(prediction(), rows)


def test_nothing_in_common_is_an_error() -> None:
    with pytest.raises(CrossingError, match="no round in which both a and b were measured"):
        compare(prediction(), [straight(0, 10, 5, 1)], [straight(95, 1, 5, 2)])
    with pytest.raises(CrossingError, match="two curves of a share a round"):
        compare(prediction(), [straight(0, 10)] * 2, [straight(95, 1)])


def test_equal_curves_have_no_cheaper_one() -> None:
    assert order_words("tie", "a", "b") == "equal throughout"
    rows = compare(prediction(), [straight(5, 1)], [straight(5, 1)])
    assert rows[-1] == RoundRow("mean", "not-found", None, "tie", "equal throughout", 0, 21)
