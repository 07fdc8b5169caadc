"""Bands, tiers and the comparison of expected with measured values."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace

import pytest

from artifact.analysis import bands
from artifact.analysis.bands import Facts
from artifact.analysis.stats import PairedRatio


def _entry(value: float, rel_tol: float = 0.1) -> dict[str, float]:
    return {"value": value, "rel_tol": rel_tol, "abs_tol": 0.0}


def _verdicts(expected: dict[str, object], measured: dict[str, object]) -> dict[str, str]:
    return {r.metric: r.verdict for r in bands.compare(expected, measured).results}


def test_each_verdict_by_name_and_none_hides_another() -> None:
    expected = {name: _entry(100.0) for name in ("ok", "slow", "fast", "gone", "nan", "neg")}
    measured = {
        "ok": 109.9,
        "slow": 110.1,
        "fast": 89.9,
        "nan": math.nan,
        "neg": -100.0,
        "new": 1.0,
    }
    comparison = bands.compare(expected, measured)
    assert {r.metric: r.verdict for r in comparison.results} == {
        "ok": "pass",
        "slow": "worse",
        "fast": "better",
        "gone": "missing-measured",
        "nan": "not-a-value",
        "neg": "not-a-value",
        "new": "missing-expected",
    }
    assert not comparison.passed
    assert len(comparison.failures) == 6
    assert comparison.summary.startswith("3 of 7 compared")


@pytest.mark.parametrize("value", [90.0, 100.0, 110.0, 100])
def test_the_ends_of_a_band_pass(value: float) -> None:
    assert bands.compare({"m": _entry(100.0)}, {"m": value}).passed


@pytest.mark.parametrize("other", ["slow", "fast", "gone", "new"])
def test_one_metric_outside_its_band_fails_the_whole(other: str) -> None:
    expected = {"ok": _entry(1.0), "slow": _entry(1.0), "fast": _entry(1.0), "gone": _entry(1.0)}
    measured = {"ok": 1.0, "slow": 2.0, "fast": 0.5, "new": 1.0}
    assert not bands.compare(
        {k: v for k, v in expected.items() if k in ("ok", other)},
        {k: v for k, v in measured.items() if k in ("ok", other)},
    ).passed


@pytest.mark.parametrize(
    ("value", "word"),
    [
        (None, "null"),
        (math.nan, "NaN"),
        (math.inf, "infinite"),
        (-1.0, "negative"),
        ("1.0", "not a number"),
        (True, "not a number"),
        ([1.0], "not a number"),
        (10**400, "too large"),
    ],
)
def test_a_measured_value_that_is_none_is_named(value: object, word: str) -> None:
    (result,) = bands.compare({"m": _entry(1.0, 1e9)}, {"m": value}).results
    assert result.verdict == "not-a-value" and word in result.reason


def test_nothing_compared_never_passes() -> None:
    for expected, measured in (({}, {}), ({"a": _entry(1.0)}, {}), ({}, {"a": 1.0})):
        comparison = bands.compare(expected, measured)
        assert not comparison.passed
        assert comparison.summary.startswith(f"0 of {comparison.total} compared")


def test_the_larger_tolerance_counts_and_one_may_be_left_out() -> None:
    wide = {"m": {"value": 10.0, "rel_tol": 0.01, "abs_tol": 5.0}}
    assert _verdicts(wide, {"m": 14.9}) == {"m": "pass"}
    assert _verdicts({"m": {"value": 10.0, "abs_tol": 1.0}}, {"m": 11.5}) == {"m": "worse"}
    assert _verdicts({"m": {"value": 10.0, "rel_tol": 0.2}}, {"m": 11.5}) == {"m": "pass"}
    assert _verdicts({"m": {"value": 0.0, "abs_tol": 0.0}}, {"m": 0}) == {"m": "pass"}


@pytest.mark.parametrize(
    ("entry", "word"),
    [
        ({"value": 1.0, "rel_tol": -0.1}, "rel_tol is negative"),
        ({"value": 1.0, "abs_tol": math.nan}, "abs_tol is NaN"),
        ({"value": 1.0, "abs_tol": math.inf}, "abs_tol is infinite"),
        ({"value": math.nan, "rel_tol": 0.1}, "value is NaN"),
        ({"value": None, "rel_tol": 0.1}, "value is null"),
        ({"value": -1.0, "rel_tol": 0.1}, "value is negative"),
        ({"rel_tol": 0.1}, "no value"),
        ({"value": 1.0}, "neither rel_tol nor abs_tol"),
        ({"value": 1.0, "reltol": 0.1, "abs_tol": 0.0}, "unknown key 'reltol'"),
        (1.0, "a band is an object"),
    ],
)
def test_a_faulty_band_file_is_named_and_never_used(entry: object, word: str) -> None:
    with pytest.raises(bands.BandError) as caught:
        bands.compare({"good": _entry(1.0), "bad": entry}, {"good": 1.0, "bad": 1.0})
    assert f"bad: {word}" in str(caught.value)


def test_every_fault_of_a_band_file_is_listed() -> None:
    with pytest.raises(bands.BandError, match=r"a: rel_tol is negative.*b: no value"):
        bands.bands_from({"a": _entry(1.0, -1.0), "b": {"rel_tol": 0.1}})


def test_the_proposed_file_passes_and_is_strict_json() -> None:
    expected = {"a": _entry(1.0, 0.05), "gone": _entry(7.0)}
    measured = {"a": 3.0, "new": 5.0, "bad": math.nan}
    proposed = bands.propose(expected, measured)
    assert proposed["a"] == {"value": 3.0, "rel_tol": 0.05, "abs_tol": 0.0}
    assert proposed["new"] == {"value": 5.0, "rel_tol": 0.25}
    assert proposed["gone"] == expected["gone"] and "bad" not in proposed
    json.dumps(proposed, allow_nan=False)
    assert bands.compare(proposed, {"a": 3.0, "new": 5.0, "gone": 7.0}).passed
    assert expected["a"]["value"] == 1.0


def test_equal_campaigns_still_get_the_smallest_tolerance() -> None:
    campaigns = [{"xla": 100.0, "tvm": 900.0}, {"xla": 100.0, "tvm": 900.0}]
    compile_cost = bands.prediction_bands(campaigns, "compile_cost")
    latency = bands.prediction_bands(campaigns, "latency")
    assert (compile_cost["xla"].low, compile_cost["xla"].high) == pytest.approx((75.0, 125.0))
    assert (latency["tvm"].low, latency["tvm"].high) == pytest.approx((720.0, 1080.0))


def test_prediction_band_of_one_metric_by_hand() -> None:
    campaigns = [{"m": math.exp(1.0)}, {"m": math.exp(1.4)}, {"m": math.exp(1.2)}]
    band = bands.prediction_bands(campaigns, "latency")["m"]
    half = 4.302652729911275 * 0.2 * math.sqrt(1 + 1 / 3)  # t(0.975, 2), sd 0.2
    assert band.value == pytest.approx(math.exp(1.2))
    assert (band.low, band.high) == pytest.approx((math.exp(1.2 - half), math.exp(1.2 + half)))


def test_metrics_share_their_degrees_of_freedom() -> None:
    """Two campaigns of one metric have one degree of freedom, of six metrics six."""
    one = bands.prediction_bands([{"a": 100.0}, {"a": 110.0}], "latency")["a"]
    many = [dict.fromkeys("abcdef", v) for v in (100.0, 110.0)]
    pooled = bands.prediction_bands(many, "latency")["a"]
    assert one.high / one.value > 2.0 > 1.5 > pooled.high / pooled.value


def test_a_metric_of_one_campaign_alone_shares_the_spread_of_the_others() -> None:
    campaigns = [{"a": 100.0, "b": 60.0}, {"a": 110.0}, {"a": 105.0}]
    made = bands.prediction_bands(campaigns, "latency")
    logs = [math.log(value) for value in (100.0, 110.0, 105.0)]
    sd = math.sqrt(sum((x - sum(logs) / 3) ** 2 for x in logs) / 2)
    t = 6.205346816570  # t(1 - 0.05 / 4, 2): two metrics, two degrees of freedom
    for metric, value, count in (("a", math.exp(sum(logs) / 3), 3), ("b", 60.0, 1)):
        high = value * math.exp(t * sd * math.sqrt(1 + 1 / count))
        assert made[metric].value == pytest.approx(value)
        assert made[metric].high == pytest.approx(high, rel=1e-6)


def test_what_names_no_metric_is_not_compared() -> None:
    words = [
        bands.compare({}, {}).word,
        bands.compare({"a": {"value": 1, "rel_tol": 0.1}}, {"a": 1}).word,
        bands.compare({"a": {"value": 1, "rel_tol": 0.1}}, {}).word,
    ]
    assert words == ["not compared", "in band", "out of band"]


def test_a_doubled_latency_leaves_bands_of_campaigns_ten_percent_apart() -> None:
    first = {"xla": 100.0, "tvm": 800.0, "inductor": 40.0, "inductor-fold": 41.0}
    second = {"xla": 108.0, "tvm": 760.0, "inductor": 43.0, "inductor-fold": 39.0}
    made = bands.prediction_bands([first, second], "latency")
    assert bands.compare_bands(made, first).passed
    mutant = {**first, "tvm": 1600.0}
    assert [r.metric for r in bands.compare_bands(made, mutant).failures] == ["tvm"]
    halved = {**first, "xla": 50.0}
    assert [r.verdict for r in bands.compare_bands(made, halved).failures] == ["better"]


@pytest.mark.parametrize(
    ("campaigns", "word"),
    [
        ([{"a": 1.0}], "at least two campaigns"),
        ([], "at least two campaigns"),
        ([{}, {}], "at least one metric"),
        ([{"a": 1.0}, {"b": 1.0}], "no metric is in two campaigns"),
        ([{"a": 1.0}, {"a": 1.0, "b": 0.0}], "campaign 2: b is no positive time"),
        ([{"a": 1.0}, {"a": 0.0}], "campaign 2: a is no positive time"),
        ([{"a": math.nan}, {"a": 1.0}], "campaign 1: a is no positive time"),
    ],
)
def test_campaigns_that_make_no_band_are_named(
    campaigns: list[dict[str, float]], word: str
) -> None:
    with pytest.raises(bands.BandError, match=word):
        bands.prediction_bands(campaigns, "latency")


REFERENCE = Facts(
    lock_hash="abc",
    device_kind="cpu",
    architecture="x86_64",
    isa_ceiling="avx2",
    cpus=2,
    threads=2,
    compile_threads=2,
    precision="fp32",
    calibration_ms={"compile": 1000.0, "matmul": 50.0, "memory": 20.0},
)


def test_equal_facts_are_the_same_tier_whatever_the_cpu_is_called() -> None:
    close = {"compile": 1099.0, "matmul": 46.0, "memory": 20.0}
    assert bands.tier(REFERENCE, replace(REFERENCE, calibration_ms=close)).name == "same"


@pytest.mark.parametrize(
    ("changes", "name", "reason"),
    [
        ({"lock_hash": "def"}, "other", "lock_hash"),
        ({"device_kind": "cuda"}, "other", "device_kind is cuda, the reference has cpu"),
        ({"architecture": "aarch64"}, "other", "architecture"),
        ({"cpus": 4}, "other", "cpus is 4"),
        ({"cpus": None}, "other", "cpus is not recorded"),
        ({"lock_hash": ""}, "other", "lock_hash is not recorded"),
        ({"isa_ceiling": "native"}, "similar", "isa_ceiling"),
        ({"threads": 1}, "similar", "threads"),
        ({"compile_threads": 1}, "similar", "compile_threads"),
        ({"precision": "tf32"}, "similar", "precision"),
        ({"precision": None}, "similar", "precision is not recorded"),
        ({"calibration_ms": {}}, "similar", "calibration"),
        (
            {"calibration_ms": {"compile": 1101.0, "matmul": 50.0, "memory": 20.0}},
            "similar",
            r"calibration compile differs by \+10.1 %",
        ),
        (
            {"calibration_ms": {"compile": 1000.0, "matmul": math.nan, "memory": 20.0}},
            "similar",
            "calibration matmul is not recorded",
        ),
    ],
)
def test_each_fact_decides_the_tier(changes: dict[str, object], name: str, reason: str) -> None:
    found = bands.tier(REFERENCE, replace(REFERENCE, **changes))  # type: ignore[arg-type]
    assert found.name == name
    assert any(re.search(reason, found_reason) for found_reason in found.reasons)


def test_unrecorded_facts_on_both_sides_are_not_equal() -> None:
    blank = replace(REFERENCE, lock_hash=None)
    assert bands.tier(blank, blank).name == "other"


def _ratio(ratio: float, low: float | None, high: float | None) -> PairedRatio:
    return PairedRatio(ratio, low, high, 5, 1.1)


@pytest.mark.parametrize(
    ("reference", "measured", "verdict", "rule"),
    [
        (_ratio(0.6, 0.5, 0.7), 0.99, "pass", "sign"),
        (_ratio(0.6, 0.5, 0.7), 1.01, "fail", "sign"),
        (_ratio(1.5, 1.2, 1.9), 5.0, "pass", "sign"),
        (_ratio(1.5, 1.2, 1.9), 0.99, "fail", "sign"),
        (_ratio(0.8, 0.7, 0.95), 1.5, "pass", "factor"),
        (_ratio(0.8, 0.7, 0.95), 1.7, "fail", "factor"),
        (_ratio(1.0, 0.95, 1.05), 0.49, "fail", "factor"),
        (_ratio(0.6, None, None), 1.01, "pass", "factor"),
        (_ratio(0.6, 0.5, 0.7), math.nan, "unknown", "factor"),
        (_ratio(0.6, 0.5, 0.7), -1.0, "unknown", "factor"),
    ],
)
def test_similar_machines_compare_ratios_by_sign_or_factor(
    reference: PairedRatio, measured: float, verdict: str, rule: str
) -> None:
    found = bands.compare_ratio(reference, _ratio(measured, None, None))
    assert (found.verdict, found.rule) == (verdict, rule)
