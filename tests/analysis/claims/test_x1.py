"""X1: the LayerNorm-Linear fold of GPT-2, in what its trials say and in what they cost."""

from __future__ import annotations

from dataclasses import replace

import fabricated
import pytest
from fabricated import GPT2, changed, scaled

from artifact.analysis import claims
from artifact.analysis.evidence import evidence_of
from artifact.analysis.stats import paired_ratio

FOLD, BASE = (*GPT2, "inductor-fold"), (*GPT2, "inductor")
ITEM = " ".join(GPT2)
TIED = "lm_head is tied: lm_head.weight is also transformer.wte.weight"
LAST = {"name": "transformer.ln_f", "reason": TIED}


def _campaign():
    return fabricated.campaign(profile="folds")


def _facts(**fold):
    return lambda record: replace(record, facts={"fold": {**record.facts["fold"], **fold}})


def _wrong(record):
    output = replace(record.output, rmse=0.5, passed=False, reason="rmse 0.5, allowed 1e-05")
    return replace(record, status="wrong-output", output=output, message=output.reason)


def test_holds_and_tells_where_compile_cost_goes(lines) -> None:
    found = lines("X1", _campaign())
    assert {item: line.verdict for item, line in found.items()} == {
        f"{ITEM} sites": "holds",
        f"{ITEM} outputs": "holds",
        f"{ITEM} T_X": "reproduced",
    }
    assert found[f"{ITEM} sites"].measured == "24 folded, 1 refused (model.transformer.ln_f)"
    assert found[f"{ITEM} outputs"].measured == "5 of 5 within parity, largest error 1.0e-06"
    assert found[f"{ITEM} T_X"].reason.startswith("r(T_C fold + fold_ms / base) = 0.8")
    assert found[f"{ITEM} T_X"].reason.endswith("]: lower")


@pytest.mark.parametrize(
    ("alter", "word"),
    [
        (_facts(folded=0), "nothing was folded"),
        (_facts(folded=23), "23 folded, expected 24"),
        (_facts(folded=25, refused=[]), "25 folded, expected 24; r1.gpt2"),
        (_facts(refused=[]), "ln_f was not refused"),
        (_facts(kind="conv-batchnorm"), "the fold is conv-batchnorm"),
        (
            _facts(refused=[{**LAST, "reason": "the folded values are not finite"}]),
            "ln_f refused for another reason: the folded values are not finite",
        ),
        (
            _facts(refused=[{"name": "transformer.h.3.ln_1", "reason": "a hook"}, LAST]),
            "transformer.h.3.ln_1 refused: a hook",
        ),
        (_facts(refused=["ln_f"]), "ln_f refused for another reason: ?"),
        (lambda record: replace(record, facts={}), "nothing was folded"),
    ],
)
def test_sites_contradicted(lines, alter, word: str) -> None:
    line = lines("X1", changed(_campaign(), alter, FOLD))[f"{ITEM} sites"]
    assert line.verdict == "fails" and word in line.reason


def test_one_trial_of_five_that_folds_otherwise_is_named(lines) -> None:
    def once(record):
        return _facts(folded=22)(record) if record.spec.round == 4 else record

    line = lines("X1", changed(_campaign(), once, FOLD))[f"{ITEM} sites"]
    assert line.reason == "r4.gpt2.1x16.inductor-fold.b1.a1: 22 folded, expected 24"


def test_two_layers_have_four_legal_sites(lines) -> None:
    def small(record):
        spec = replace(record.spec, model_options={"layers": 2})
        return replace(_facts(folded=4)(record), spec=spec)

    line = lines("X1", changed(_campaign(), small, FOLD))[f"{ITEM} sites"]
    assert (line.verdict, line.band[:7]) == ("holds", "4 legal")


def test_a_wrong_output_is_no_estimate_and_still_contradicts(lines) -> None:
    def once(record):
        return _wrong(record) if record.spec.round == 2 else record

    line = lines("X1", changed(_campaign(), once, FOLD))[f"{ITEM} outputs"]
    assert (line.verdict, line.measured[:18]) == ("fails", "4 of 5 within pari")
    assert line.reason == "r2.gpt2.1x16.inductor-fold.b1.a1: rmse 0.5, allowed 1e-05"
    found = lines("X1", changed(_campaign(), _wrong, FOLD))
    assert {item: line.verdict for item, line in found.items()} == {f"{ITEM} outputs": "fails"}


@pytest.mark.parametrize(("rmse", "word"), [(1e-4, "allowed 1.0e-05"), (None, "no error")])
def test_a_pass_that_its_own_numbers_deny_contradicts(lines, rmse, word: str) -> None:
    def alter(record):
        return replace(record, output=replace(record.output, rmse=rmse))

    line = lines("X1", changed(_campaign(), alter, FOLD))[f"{ITEM} outputs"]
    assert line.verdict == "fails" and word in line.reason


@pytest.mark.parametrize(
    ("latency", "verdict", "word"),
    [
        (1.2, "not reproduced here", "the whole interval lies above 1.05"),
        (1.08, "inconclusive", "the interval holds 1.05"),
    ],
)
def test_a_slower_fold(lines, latency: float, verdict: str, word: str) -> None:
    line = lines("X1", changed(_campaign(), scaled(latency=latency), FOLD))[f"{ITEM} T_X"]
    assert line.verdict == verdict and word in line.reason


@pytest.mark.parametrize(
    ("factor", "word"), [(1.4, "]: higher"), (33 / 27, "]: no direction resolved")]
)
def test_a_dearer_compilation_is_told_and_does_not_contradict(lines, factor, word) -> None:
    line = lines("X1", changed(_campaign(), scaled(compile_cost=factor), FOLD))[f"{ITEM} T_X"]
    assert line.verdict == "reproduced" and line.reason.endswith(word)


def test_the_direction_of_compile_cost_counts_the_fold(lines) -> None:
    cells = evidence_of(_campaign())
    fold = [p.compile_cost_ms["native"] + p.fold_ms for p in cells.processes(FOLD)]
    base = [p.compile_cost_ms["native"] for p in cells.processes(BASE)]
    ratio = paired_ratio(fold, base)
    told = f"= {ratio.ratio:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]: lower"
    assert cells.processes(FOLD)[0].fold_ms > 0
    assert told in lines("X1", _campaign())[f"{ITEM} T_X"].reason


def test_without_the_base_the_ratio_is_not_measured(lines) -> None:
    found = lines("X1", changed(_campaign(), lambda record: None, BASE))
    assert found[f"{ITEM} sites"].verdict == "holds"
    line = found[f"{ITEM} T_X"]
    assert (line.verdict, line.reason) == (
        "not measured",
        "gpt2 1x16 inductor was not measured",
    )


def test_without_the_fold_nothing_is_said() -> None:
    (claim,) = [claim for claim in claims.load_all() if claim.id == "X1"]
    assert claim.evaluate(evidence_of(fabricated.campaign())) == []
