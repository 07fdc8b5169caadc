"""X2: the guarded pass against the offline fold, and what its trials prove of its guards."""

from __future__ import annotations

from dataclasses import replace

import fabricated
import pytest
from fabricated import R18, R50, changed, scaled

from artifact.analysis import claims
from artifact.analysis.evidence import evidence_of
from artifact.analysis.stats import paired_ratio
from artifact.analysis.verdict import judge
from artifact.analysis.verdict_text import table

GUARD, FOLD = (*R18, "inductor-guard"), (*R18, "inductor-fold")
ITEM, ITEM50 = " ".join(R18), " ".join(R50)


def _campaign():
    return fabricated.campaign(profile="folds")


def _facts(**route):
    return lambda record: replace(record, facts={"route": {**record.facts["route"], **route}})


def test_holds_on_both_resnets(lines) -> None:
    found = lines("X2", _campaign())
    assert {item: line.verdict for item, line in found.items()} == {
        f"{item} {part}": verdict
        for item in (ITEM, ITEM50)
        for part, verdict in (
            ("guard", "holds"),
            ("outputs", "holds"),
            ("T_C", "reproduced"),
            ("T_X", "reproduced"),
        )
    }
    assert found[f"{ITEM} guard"].measured == "20 folded, 100 tensors guarded"
    assert found[f"{ITEM50} guard"].measured == "53 folded, 265 tensors guarded"


@pytest.mark.parametrize(
    ("alter", "word"),
    [
        (_facts(folded=19, guarded_tensors=95), "19 folded, resnet18 has 20"),
        (_facts(folded=0), "the guarded pass folded nothing"),
        (_facts(name="freezing"), "the guarded pass folded nothing"),
        (_facts(refused=[{"name": "bn1", "reason": "?"}]), "1 BatchNorms refused"),
        (_facts(guarded_tensors=20), "20 tensors guarded, expected 100"),
        (_facts(guards="weights: identity"), "do not name the statistics: weights: identity"),
        (_facts(guards=""), "do not name the statistics"),
        (_facts(fallbacks=60), "60 calls ran unfolded"),
        (lambda record: replace(record, facts={}), "the guarded pass folded nothing"),
    ],
)
def test_guard_contradicted(lines, alter, word: str) -> None:
    found = lines("X2", changed(_campaign(), alter, GUARD))
    assert found[f"{ITEM} guard"].verdict == "fails" and word in found[f"{ITEM} guard"].reason
    assert found[f"{ITEM50} guard"].verdict == "holds"


def test_a_wrong_output_contradicts(lines) -> None:
    def wrong(record):
        output = replace(record.output, passed=False, reason="stale")
        return replace(record, status="wrong-output", output=output, message="stale")

    found = lines("X2", changed(_campaign(), wrong, GUARD))
    assert found[f"{ITEM} outputs"].verdict == "fails"
    assert f"{ITEM} T_C" not in found and found[f"{ITEM50} T_C"].verdict == "reproduced"


@pytest.mark.parametrize(
    ("factors", "term", "verdict", "word"),
    [
        ({"compile_cost": 1.3}, "T_C", "not reproduced here", "lies above 1.1"),
        ({"compile_cost": 1.12}, "T_C", "inconclusive", "the interval holds 1.1"),
        ({"latency": 1.08}, "T_X", "not reproduced here", "lies above 1.03"),
        ({"latency": 1.038}, "T_X", "inconclusive", "the interval holds 1.03"),
    ],
)
def test_margins(lines, factors, term: str, verdict: str, word: str) -> None:
    found = lines("X2", changed(_campaign(), scaled(**factors), GUARD))
    assert found[f"{ITEM} {term}"].verdict == verdict
    assert word in found[f"{ITEM} {term}"].reason
    other = "T_X" if term == "T_C" else "T_C"
    assert found[f"{ITEM} {other}"].verdict == "reproduced"


def test_the_bound_is_one_sided_and_the_fold_time_counts(lines) -> None:
    """Upper end of the 90 % interval of guard / (fold + fold_ms)."""
    campaign = _campaign()
    cells = evidence_of(campaign)
    guard = [p.compile_cost_ms["native"] for p in cells.processes(GUARD)]
    fold = [p.compile_cost_ms["native"] + p.fold_ms for p in cells.processes(FOLD)]
    line = lines("X2", campaign)[f"{ITEM} T_C"]
    assert line.ratio == paired_ratio(guard, fold, level=0.90)
    assert line.interval[1] < paired_ratio(guard, fold).high
    shown = [row for row in table(judge(campaign, None)).splitlines() if f"{ITEM} T_C" in row]
    assert "] (90 %)" in next(row for row in shown if "| X2 " in row)


def test_without_the_offline_fold_the_ratios_are_not_measured(lines) -> None:
    found = lines("X2", changed(_campaign(), lambda record: None, FOLD))
    assert found[f"{ITEM} guard"].verdict == "holds"
    for term in ("T_C", "T_X"):
        line = found[f"{ITEM} {term}"]
        assert line.verdict == "not measured"
        assert line.reason == "resnet18 1x3x224x224 inductor-fold was not measured"


def test_one_round_gives_no_interval(lines) -> None:
    one = changed(_campaign(), lambda r: r if r.spec.round == 1 else None)
    assert lines("X2", one)[f"{ITEM} T_X"].verdict == "inconclusive"


def test_without_the_guard_nothing_is_said() -> None:
    (claim,) = [claim for claim in claims.load_all() if claim.id == "X2"]
    assert claim.evaluate(evidence_of(fabricated.campaign())) == []
