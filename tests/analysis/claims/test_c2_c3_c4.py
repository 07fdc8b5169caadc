"""C2-C4: what the fold does to T_C and T_X."""

from __future__ import annotations

import fabricated
import pytest
from fabricated import R18, R50, changed, scaled

FOLD18, FOLD50 = (*R18, "inductor-fold"), (*R50, "inductor-fold")
ITEM18, ITEM50 = " ".join(R18), " ".join(R50)


def _jitter(*factors: float):
    """Another factor of T_C in each round, so that the paired ratio gets a known spread."""
    return lambda record: scaled(compile_cost=factors[record.spec.round - 1])(record)


def test_c2_shows_the_ratio_its_interval_and_what_it_resolves(lines) -> None:
    line = lines("C2", fabricated.campaign())[ITEM18]
    assert line.ratio is not None and line.interval is not None
    assert line.interval[0] < line.ratio.ratio < line.interval[1] < 1
    assert 1 < line.resolvable_ratio < 1.1
    assert line.published == "0.598"  # 7031.16 / 11765.43 ms


@pytest.mark.parametrize(
    ("factors", "verdict", "word"),
    [
        ((1.6,) * 5, "not reproduced here", "the fold raises T_C, resolved"),
        ((1.25, 1.2, 1.3, 1.1, 1.4), "inconclusive", "this design resolves"),
    ],
)
def test_c2_contradicted_and_open(lines, factors, verdict: str, word: str) -> None:
    found = lines("C2", changed(fabricated.campaign(), _jitter(*factors), FOLD18))
    assert found[ITEM18].verdict == verdict and word in found[ITEM18].reason
    assert found[ITEM50].verdict == "reproduced"


def test_c2_counts_the_fold_time(lines, monkeypatch) -> None:
    """T_C alone falls by 6 s; a fold that takes 8 s makes the whole dearer."""
    monkeypatch.setattr(fabricated, "FOLD_MS", 8_000.0)
    fabricated.campaign.cache_clear()
    try:
        assert lines("C2", fabricated.campaign())[ITEM18].verdict == "not reproduced here"
    finally:
        fabricated.campaign.cache_clear()


def test_c2_of_one_process_has_no_interval(lines) -> None:
    one = changed(fabricated.campaign(), lambda r: r if r.spec.round == 1 else None)
    line = lines("C2", one)[ITEM18]
    assert (line.verdict, line.interval) == ("inconclusive", None)
    assert "one pair" in line.reason


def test_c2_of_constant_ratios_has_no_interval(lines) -> None:
    def constant(record):
        first = next(r for r in fabricated.campaign().records if _cell(r) == _cell(record))
        return type(record)(**{**vars(record), "phases": first.phases, **_times(first)})

    line = lines("C2", changed(fabricated.campaign(), constant))[ITEM18]
    assert line.verdict == "inconclusive" and "constant to rounding" in line.reason


def _cell(record):
    return record.spec.model, record.spec.input, record.spec.configuration


def _times(record):
    return {"warmup_ms": record.warmup_ms, "execution_ms": record.execution_ms}


def test_c3_names_the_family_and_its_size(lines) -> None:
    line = lines("C3", fabricated.campaign())["T_C"]
    assert line.measured == "2 of 2 resolved (Holm over 2)"
    assert line.published == "9 of 10 resolved (other family)"


def test_c3_contradicted_by_a_resolved_increase(lines) -> None:
    found = lines("C3", changed(fabricated.campaign(), scaled(1.6), FOLD50))
    assert found["T_C"].verdict == "not reproduced here"
    assert found["T_C"].reason == f"resolved increase: {ITEM50}"


def test_c3_tells_a_small_effect_from_a_missed_one(lines) -> None:
    small = changed(fabricated.campaign(), scaled(33_000 / 27_000), FOLD50)
    found = lines("C3", small)["T_C"]
    assert found.verdict == "reproduced"
    assert found.reason == f"below the resolvable ratio: {ITEM50}"
    none = changed(small, scaled(33_000 / 27_000), FOLD18)
    assert lines("C3", none)["T_C"].verdict == "inconclusive"


@pytest.mark.parametrize(
    ("latency", "verdict"),
    [(1.10, "not reproduced here"), (1.08, "inconclusive"), (0.5, "inconclusive")],
)
def test_c4_contradicted_only_by_a_resolved_slowdown(lines, latency: float, verdict: str) -> None:
    """0.5: T_X changes more than T_C, which is not the paper's claim and not its contradiction."""
    found = lines("C4", changed(fabricated.campaign(), scaled(latency=latency), FOLD18))
    assert found[ITEM18].verdict == verdict
    assert found[ITEM50].verdict == "reproduced"
