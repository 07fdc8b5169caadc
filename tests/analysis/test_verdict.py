"""The whole verdict: exit codes, tiers, mutants by name, noise, mixtures, and its text."""

from __future__ import annotations

import json
from dataclasses import replace

import fabricated
import pytest
from fabricated import BERT, R18, R50, changed, scaled
from mutants import BASE, FOLD, MUTANTS, TVM, XLA, metric_names

from artifact.analysis import reference
from artifact.analysis.claims.line import FAILS
from artifact.analysis.evidence import Campaign, limited_to
from artifact.analysis.reference import Reference
from artifact.analysis.verdict import Verdict, judge
from artifact.analysis.verdict_text import markdown, plain
from artifact.strict_json import dumps, loads


@pytest.fixture(scope="module")
def expected() -> Reference:
    """Bands made from two campaigns, neither of which is the one that is judged."""
    return reference.of_campaigns("fake-class", [fabricated.campaign(2), fabricated.campaign(3)])


def _judge(campaign: Campaign, chosen: Reference | None = None, strict: bool = False) -> Verdict:
    verdict = judge(campaign, chosen, strict=strict)
    assert loads(dumps(plain(verdict)))["exit_code"] == verdict.exit_code  # strict JSON, always
    markdown(verdict).encode("ascii")
    return verdict


def _failing(verdict: Verdict) -> set[str]:
    """Claims and metrics that the failures name."""
    return {failure.split(":")[0] for failure in verdict.failures}


def _census(**fields):
    return lambda record: replace(record, census=replace(record.census, **fields))


# --- a campaign passes the bands of others, and every mutant fails by name --------------------


def test_campaign_a_passes_the_bands_made_from_b(expected) -> None:
    verdict = _judge(fabricated.campaign(1), expected)
    assert (verdict.tier.name, verdict.exit_code, verdict.failures) == ("same", 0, ())
    assert verdict.comparison.summary == "64 of 64 compared: 64 pass"
    one = reference.of_campaigns("B", [fabricated.campaign(2)])
    assert _judge(fabricated.campaign(1), one).exit_code == 0


#: What the great distance between fabricated stacks lets the bands name as well.
MORE_NAMES = {
    "stacks swapped": metric_names(XLA, "latency_ms") | metric_names(TVM, "latency_ms"),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_every_mutant_fails_by_name(mutant: str, expected) -> None:
    made = MUTANTS[mutant]
    verdict = _judge(made.make(fabricated.campaign(1)), expected)
    assert verdict.exit_code == 1
    missing = (made.names | MORE_NAMES.get(mutant, set())) - _failing(verdict)
    assert not missing, f"{missing} not caught"


@pytest.mark.parametrize("field", ["internal", "external", "code_bytes"])
def test_one_trial_of_five_with_other_counts_leaves_the_bands(field: str, expected) -> None:
    """The median of five would hide it, and so would the first trial."""
    name = {"code_bytes": "code_bytes"}.get(field, f"{field}_units")

    def once(record):
        if record.spec.round != 4:
            return record
        return _census(**{field: 2 * getattr(record.census, field)})(record)

    verdict = _judge(changed(fabricated.campaign(1), once, BASE), expected)
    assert metric_names(BASE, name) <= _failing(verdict)


def test_a_trial_without_counts_is_no_value_in_the_bands(expected) -> None:
    def once(record):
        return replace(record, census=None) if record.spec.round == 4 else record

    verdict = _judge(changed(fabricated.campaign(1), once, TVM), expected)
    counts = ("internal_units", "external_units", "code_bytes")
    assert metric_names(TVM, *counts) | {f"C8 {' '.join(R18)} tvm external"} == _failing(verdict)
    assert any("not-a-value" in failure for failure in verdict.failures)


def test_a_batch_size_that_the_record_admits_is_integrity() -> None:
    """Without any band: the record is not of the planned trial."""

    def other_batch(record):
        return replace(record, spec=replace(record.spec, input="16x3x224x224"))

    verdict = _judge(changed(fabricated.campaign(1), other_batch, XLA))
    assert verdict.exit_code == 1
    assert {"C1 trials", "C1 protocol"} <= _failing(verdict)


def test_a_better_metric_is_never_a_silent_pass(expected) -> None:
    verdict = _judge(changed(fabricated.campaign(1), scaled(latency=0.5), XLA), expected)
    (failure,) = verdict.failures
    assert failure.startswith("resnet18/1x3x224x224/xla/latency_ms: better: below the band")
    assert "out of band (better)" in markdown(verdict)


def test_a_value_that_is_none_is_named_in_the_bands(expected, monkeypatch) -> None:
    made = reference.metrics

    def broken(evidence):
        return made(evidence) | {"resnet18/1x3x224x224/xla/latency_ms": float("nan")}

    monkeypatch.setattr(reference, "metrics", broken)
    verdict = _judge(fabricated.campaign(1), expected)
    assert _failing(verdict) == metric_names(XLA, "latency_ms")
    assert "not-a-value: the measured value is NaN" in verdict.failures[0]


# --- each claim contradicted in turn ----------------------------------------------------------

CONTRADICTIONS = {
    "C1": (lambda r: None, XLA),
    "C2": (scaled(1.6), FOLD),
    "C3": (scaled(1.6), (*R50, "inductor-fold")),
    "C4": (scaled(latency=1.15), FOLD),
    "C5": (_census(external=22), FOLD),
    "C6": (
        lambda r: replace(r, facts={"audit": {"sites": 25, "legal": 1}}),
        (*BERT, "inductor-control"),
    ),
    "C7": (scaled(30.0), (*BERT, "xla")),
    "C8": (_census(external=3), TVM),
}


@pytest.mark.parametrize("claim", CONTRADICTIONS)
def test_a_contradicted_claim_is_named_with_its_exit_code(claim: str, expected) -> None:
    campaign = changed(fabricated.campaign(1), *CONTRADICTIONS[claim])
    verdict = _judge(campaign)
    lines = [j for j in verdict.lines if j.claim == claim]
    integrity = claim in ("C1", "C5", "C6", "C8")
    word = "fails" if integrity else "not reproduced here"
    assert word in {j.line.verdict for j in lines}
    # Tier other: integrity decides the exit code, a finding is reported only ...
    said = verdict.failures if integrity else verdict.reported
    assert any(item.startswith(f"{claim} ") for item in said)
    assert verdict.exit_code == (1 if integrity else 0)
    # ... unless strict, or on the reference's own machine.
    assert _judge(campaign, strict=True).exit_code == 1
    same = _judge(campaign, expected)
    assert same.exit_code == 1 and any(item.startswith(f"{claim} ") for item in same.failures)


def test_what_the_reference_did_not_reproduce_either_is_in_band() -> None:
    def cheaper(campaign):
        return changed(campaign, scaled(1.0, 0.1), XLA)

    chosen = reference.of_campaigns("B", [cheaper(fabricated.campaign(2))])
    verdict = _judge(cheaper(fabricated.campaign(1)), chosen)
    (line,) = [j for j in verdict.lines if j.line.item.endswith("envelope")]
    assert line.line.verdict == "not reproduced here"
    assert verdict.exit_code == 0
    assert _judge(cheaper(fabricated.campaign(1)), chosen, strict=True).exit_code == 1


def test_values_that_no_claim_can_use_are_named_not_a_crash(expected) -> None:
    def without_phases(record):
        return replace(record, phases=(), native=replace(record.native, phases=()))

    verdict = _judge(changed(fabricated.campaign(1), without_phases, FOLD), expected)
    (line,) = [j.line for j in verdict.lines if j.claim == "C2" and "resnet18" in j.line.item]
    assert line.verdict == "inconclusive"
    assert "r1.resnet18.1x3x224x224.inductor-fold.b1.a1" in line.reason
    assert metric_names(FOLD, "compile_cost_ms") <= _failing(verdict)


# --- tiers ------------------------------------------------------------------------------------


def _identity(**fields):
    return lambda record: replace(record, identity=replace(record.identity, **fields))


def test_another_lock_is_tier_other_and_has_no_bands(expected) -> None:
    other = changed(
        fabricated.campaign(1),
        lambda r: _identity(lock_hash=f"new-{r.identity.lock_hash}")(scaled(3.0, 3.0)(r)),
    )
    verdict = _judge(other, expected)
    assert (verdict.tier.name, verdict.comparison, verdict.exit_code) == ("other", None, 0)
    assert "lock_hash is" in verdict.tier.reasons[0]


def test_tier_similar_compares_every_paired_ratio_and_reports(expected) -> None:
    """By sign: the fold's T_C and XLA's T_X change their side of 1. By the factor of 2: eager's
    T_X, which the reference has within [0.9, 1.1] of Inductor's. Times alone say nothing."""
    slower = replace(fabricated.campaign(1), calibration_ms={"compile_ms": 4000.0})
    agreeing = _judge(changed(slower, scaled(3.0, 3.0)), expected)
    assert (agreeing.tier.name, agreeing.comparison, agreeing.reported) == ("similar", None, ())
    assert len(agreeing.ratios) == 2 * (4 + 4 + 4 + 3) - 4  # eager has no T_C to compare
    for alter, cell in (
        (scaled(1.6), FOLD),
        (scaled(latency=0.3), XLA),
        (scaled(latency=2.5), (*R18, "eager")),
    ):
        slower = changed(slower, alter, cell)
    verdict = _judge(slower, expected)
    assert verdict.exit_code == 0
    out = [item.split(":")[0] for item in verdict.reported if item.startswith("ratio ")]
    assert out == [
        "ratio resnet18 1x3x224x224 eager / inductor T_X",
        "ratio resnet18 1x3x224x224 inductor-fold / inductor T_C",
        "ratio resnet18 1x3x224x224 xla / inductor T_X",
    ]
    assert "out of band (fail)" in markdown(verdict)
    rules = {check.name: check.result.rule for check in verdict.ratios}
    assert rules["resnet18 1x3x224x224 eager / inductor T_X"] == "factor"
    assert rules["resnet18 1x3x224x224 xla / inductor T_X"] == "sign"


def test_a_cpu_is_never_compared_with_a_gpu(expected) -> None:
    def on_cuda(record):
        return replace(record, spec=replace(record.spec, device="cuda"))

    verdict = _judge(changed(fabricated.campaign(1), on_cuda), expected)
    assert verdict.tier.name == "other" and verdict.comparison is None
    assert "device_kind is cuda, the reference has cpu" in verdict.tier.reasons
    assert all(j.reference is None for j in verdict.lines)


def test_no_reference_is_said() -> None:
    verdict = _judge(fabricated.campaign(1))
    assert verdict.tier.reasons == ("there is no reference to compare with",)
    assert verdict.exit_code == 0


# --- partial, empty, mixed --------------------------------------------------------------------


def test_an_empty_campaign_is_no_pass() -> None:
    empty = replace(fabricated.campaign(1), records=(), planned={})
    verdict = _judge(empty)
    assert verdict.summary.startswith(f"0 of {len(verdict.claims)} compared")
    assert verdict.exit_code == 2
    assert {j.line.verdict for j in verdict.lines} == {"not measured"}


def test_a_planned_cell_that_is_missing_fails_by_name(expected) -> None:
    verdict = _judge(changed(fabricated.campaign(1), lambda r: None, TVM), expected)
    assert {"C1 trials", *metric_names(TVM, "latency_ms", "compile_cost_ms")} <= _failing(verdict)
    assert any("missing-measured" in failure for failure in verdict.failures)


def test_a_part_of_the_plan_is_compared_as_far_as_it_goes(expected) -> None:
    """A figure's campaign plans fewer cells; what it did not plan is not missing."""
    full = fabricated.campaign(1)
    part = {i: s for i, s in full.planned.items() if (s.model, s.input) == R18}
    few = changed(replace(full, planned=part), lambda r: r if r.spec.trial_id in part else None)
    verdict = _judge(few, expected)
    assert verdict.exit_code == 0
    assert verdict.comparison.summary == "21 of 21 compared: 21 pass"


def test_blocks_that_the_reference_never_saw_are_not_compared(expected) -> None:
    verdict = _judge(fabricated.campaign(1, profile="smoke"), expected)
    assert (verdict.tier.name, verdict.exit_code) == ("same", 0)
    assert verdict.comparison.total == 0
    text = markdown(verdict)
    assert "- bands: 0 of 0 compared\n" in text
    assert "- no band for: bert-2layer 1x64, resnet18 1x3x64x64\n" in text
    (row,) = [line for line in text.splitlines() if line.startswith("| bands")]
    assert "| not compared " in row and "out of band" not in row


def test_cells_of_another_profile_have_no_band_and_miss_none(expected) -> None:
    """The reference measured ResNet-18, but not every route to a fold."""
    folds = fabricated.campaign(1, profile="folds")
    verdict = _judge(folds, expected)
    assert (verdict.tier.name, verdict.exit_code, verdict.failures) == ("same", 0, ())
    routes = ("inductor-bneval", "inductor-freeze", "inductor-guard")
    assert verdict.without_band == (
        "gpt2 1x16 inductor-fold",
        *(" ".join((*block, route)) for block in (R18, R50) for route in routes),
    )
    assert verdict.comparison.compared == verdict.comparison.total > 20
    slow = _judge(changed(folds, scaled(latency=2.0), BASE), expected)
    assert metric_names(BASE, "latency_ms") <= _failing(slow)


def test_a_family_with_a_block_that_the_reference_never_saw_does_not_count() -> None:
    """C3 is one line over all blocks: its item does not say which."""
    small = changed(fabricated.campaign(2), lambda r: r if r.spec.model == "resnet18" else None)
    dearer = changed(fabricated.campaign(1), scaled(1.6), (*R50, "inductor-fold"))
    verdict = _judge(dearer, reference.of_campaigns("R18", [small]))
    (family,) = [j for j in verdict.lines if j.name == "C3 T_C"]
    assert family.line.verdict == "not reproduced here"
    assert family.reference.verdict == "reproduced"
    assert (verdict.tier.name, verdict.exit_code, verdict.failures) == ("same", 0, ())
    both = _judge(dearer, reference.of_campaigns("both", [fabricated.campaign(2)]))
    assert "C3 T_C" in _failing(both)


def test_a_limited_verdict_says_so() -> None:
    verdict = _judge(limited_to(fabricated.campaign(1), {R18}))
    assert "\n- limited to blocks resnet18 1x3x224x224\n" in markdown(verdict)
    assert plain(verdict)["limited_to"] == ["resnet18 1x3x224x224"]
    assert verdict.exit_code == 0
    whole = _judge(fabricated.campaign(1))
    assert "limited to" not in markdown(whole) and plain(whole)["limited_to"] is None


def test_bands_of_one_campaign_are_called_that(expected) -> None:
    words = "- bands of one campaign: smallest tolerances\n"
    one = reference.of_campaigns("B", [fabricated.campaign(2)])
    assert words in markdown(_judge(fabricated.campaign(1), one))
    assert words not in markdown(_judge(fabricated.campaign(1), expected))


def test_strictly_a_finding_that_was_not_measured_is_reported_and_no_failure() -> None:
    folds = fabricated.campaign(1, profile="folds")
    without = changed(folds, lambda r: None, ("gpt2", "1x16", "inductor"))
    verdict = _judge(without, strict=True)
    said = "X1 gpt2 1x16 T_X: not measured: gpt2 1x16 inductor was not measured"
    assert said in verdict.reported and said not in verdict.failures
    assert said not in _judge(without).reported


def test_findings_of_blocks_that_the_reference_never_saw_do_not_count(expected) -> None:
    """Two trials of a small model say little about the study, on the reference's machine too."""
    control = ("bert-2layer", "1x64", "inductor-control")
    smoke = changed(fabricated.campaign(1, profile="smoke"), scaled(1.6), control)
    verdict = _judge(smoke, expected)
    assert verdict.tier.name == "same"
    assert "not reproduced here" in {j.line.verdict for j in verdict.lines if j.claim == "C6"}
    assert (verdict.exit_code, verdict.failures) == (0, ())
    assert _judge(smoke, expected, strict=True).exit_code == 1


def test_unsupported_cells_count_only_when_strict(expected) -> None:
    """Case N2."""
    cannot = changed(fabricated.campaign(1), lambda r: replace(r, status="unsupported"), TVM)
    assert _judge(cannot, None).exit_code == 0
    strict = _judge(cannot, None, strict=True)
    assert strict.exit_code == 1 and "resnet18 1x3x224x224 tvm" in _failing(strict)
    assert "resnet18 1x3x224x224 tvm" in markdown(strict)


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"versions": {"jax": "0.1"}}, "jax of xla differs: 0.1, 0.2"),
        ({"cpu_model": "another CPU"}, "cpu_model differs: a CPU, another CPU"),
        ({"code_hash": "other"}, "code_hash differs: code, other"),
    ],
)
def test_mixed_versions_and_machines_are_refused_by_name(fields, word: str, expected) -> None:
    mixed = changed(fabricated.campaign(1), _identity(versions={"jax": "0.2"}), XLA)
    mixed = changed(mixed, lambda r: _identity(**fields)(r) if r.spec.round == 1 else r, XLA)
    verdict = _judge(mixed, expected)
    assert verdict.exit_code == 1 and "C1 pooling" in _failing(verdict)
    others = [j.line for j in verdict.lines if j.claim != "C1"]
    assert {line.verdict for line in others} == {"not comparable"}
    assert all(word in line.reason for line in others)
    assert verdict.comparison is None


def test_debug_records_are_left_out_not_averaged(expected) -> None:
    """Case K8: one such record among five, with a T_C that would move the mean out of its band."""

    def debug(record):
        if record.spec.round > 1:
            return record
        return replace(scaled(9.0)(record), environment={"TORCH_COMPILE_DEBUG": "1"})

    verdict = _judge(changed(fabricated.campaign(1), debug, BASE), expected)
    assert _failing(verdict) == {"C1 trials"}
    assert "4 of 5 (1 with TORCH_COMPILE_DEBUG, left out)" in verdict.failures[0]
    assert verdict.comparison.passed


def test_one_process_a_cell_has_means_and_no_interval() -> None:
    """Case S6: null and a reason in the JSON, no crash and no `reproduced`."""
    one = changed(fabricated.campaign(1), lambda r: r if r.spec.round == 1 else None)
    found = loads(dumps(plain(_judge(one))))
    (line,) = [x for x in found["lines"] if x["claim"] == "C2" and "resnet18" in x["item"]]
    assert line["verdict"] == "inconclusive" and line["ratio"]["low"] is None
    assert "one pair" in line["ratio"]["reason"]


# --- noise ------------------------------------------------------------------------------------


def test_verdicts_with_and_without_noisy_trials(expected) -> None:
    """Two disturbed rounds hide the fold's effect; without them it is there."""
    bad = (2, 4)

    def disturbed(record):
        return scaled(1.5)(record) if record.spec.round in bad else record

    campaign = changed(fabricated.campaign(1), disturbed, FOLD)
    noisy = {r.spec.record_id: ("steal 9.0%",) for r in campaign.records if r.spec.round in bad}
    verdict = _judge(replace(campaign, noisy=noisy), expected)
    (line,) = [j for j in verdict.lines if j.claim == "C2" and "resnet18" in j.line.item]
    assert (line.line.verdict, line.quiet) == ("inconclusive", "reproduced")
    # Three of five rounds are left, and what they gave is told beside the verdict.
    assert (line.line.ratio.n, line.quiet_line.ratio.n) == (5, 3)
    (stored,) = [
        x for x in plain(verdict)["lines"] if x["claim"] == "C2" and x["item"] == " ".join(R18)
    ]
    quiet = stored["without_noisy"]
    assert (quiet["verdict"], quiet["ratio"]["n"]) == ("reproduced", 3)
    assert quiet["interval"] == [line.quiet_line.ratio.low, line.quiet_line.ratio.high]
    assert stored["interval"] != quiet["interval"]
    told = f"- C2 resnet18 1x3x224x224: {quiet['measured']} [{quiet['interval'][0]:.3f}, "
    assert told in markdown(verdict).partition("## Without noisy trials")[2]
    assert verdict.quiet_comparison.passed
    (trials,) = [j for j in verdict.lines if j.name == "C1 trials"]
    assert (trials.line.verdict, trials.quiet) == ("holds", "holds")
    assert "steal 9.0%" in markdown(verdict)


def test_a_cell_of_noisy_trials_only_is_not_measured_without_them() -> None:
    campaign = fabricated.campaign(1)
    noisy = {r.spec.record_id: ("throttled for 9 ms",) for r in campaign.records}
    verdict = _judge(replace(campaign, noisy=noisy))
    assert {j.quiet for j in verdict.lines if j.line.kind == "C"} == {"not measured"}
    integrity = [j for j in verdict.lines if j.line.kind == "I"]
    assert all(j.quiet == j.line.verdict for j in integrity)
    assert {j.quiet for j in integrity if j.claim.startswith("C")} == {"holds"}
    assert FAILS not in {j.line.verdict for j in verdict.lines}


# --- text -------------------------------------------------------------------------------------


def test_the_verdict_as_a_reader_sees_it(snapshot, expected) -> None:
    campaign = changed(fabricated.campaign(1), scaled(latency=2.0), XLA)
    campaign = changed(campaign, _census(external=22), FOLD)
    noisy = {"r1.resnet18.1x3x224x224.xla.b1.a1": ("steal 3.0%",)}
    assert markdown(_judge(replace(campaign, noisy=noisy), expected)) == snapshot


def test_a_bar_in_a_text_does_not_break_the_table() -> None:
    broken = replace(fabricated.campaign(1), name="a", broken=("records/a|b.json: cut\nshort",))
    text = markdown(_judge(broken))
    rows = [line for line in text.splitlines() if line.startswith("| C1")]
    assert len({row.count(" | ") for row in rows}) == 1


def test_the_same_campaign_gives_the_same_bytes(expected) -> None:
    texts = {markdown(judge(fabricated.campaign(1), expected)) for _ in range(2)}
    assert len(texts) == 1
    assert json.dumps(plain(judge(fabricated.campaign(1), None))).count("NaN") == 0
