"""The whole verdict: exit codes, tiers, mutants by name, noise, mixtures, and its text."""

from __future__ import annotations

import json
from dataclasses import replace

import fabricated
import pytest
from fabricated import BERT, R18, R50, changed, scaled

from artifact.analysis import reference
from artifact.analysis.claims.line import FAILS
from artifact.analysis.evidence import Campaign, cell_of
from artifact.analysis.reference import Reference
from artifact.analysis.verdict import Verdict, judge
from artifact.analysis.verdict_text import markdown, plain
from artifact.strict_json import dumps, loads

FOLD, BASE, XLA, TVM = ((*R18, c) for c in ("inductor-fold", "inductor", "xla", "tvm"))


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


def _fold_skipped(record):
    """The configuration is called inductor-fold, but what was compiled is the base."""
    base = fabricated.census_of("inductor", "inductor_cpp_resnet18.py.xz")
    return replace(scaled(33 / 27)(record), facts={"fold": {"folded": 0}}, census=base)


def _norms_dropped(record):
    """A base model without its BatchNorms: the code of the folded one."""
    folded = fabricated.census_of("inductor", "inductor_cpp_resnet18_fold.py.xz")
    return replace(record, census=folded)


def _warm(record):
    return scaled(compile_cost=0.4)(record)


def _as(source_cell):
    """Times of another configuration under this one's name."""
    times = {
        r.spec.round: r for r in fabricated.campaign(1).records if cell_of(r.spec) == source_cell
    }

    def alter(record):
        other = times[record.spec.round]
        return replace(
            record,
            phases=other.phases,
            warmup_ms=other.warmup_ms,
            execution_ms=other.execution_ms,
            census=other.census,
        )

    return alter


def _named(cell, *quantities: str) -> set[str]:
    return {f"{'/'.join(cell)}/{quantity}" for quantity in quantities}


MUTANTS = {
    "fold skipped": (
        [(_fold_skipped, FOLD)],
        {f"C5 {' '.join(R18)} BatchNorm", f"C5 {' '.join(R18)} units"},
    ),
    "BatchNorm dropped": (
        [(_norms_dropped, BASE)],
        {f"C5 {' '.join(R18)} units"} | _named(BASE, "code_bytes"),
    ),
    "unfused sold as fused": (
        [(_census(internal=165), BASE), (_census(internal=90), XLA)],
        _named(BASE, "internal_units") | _named(XLA, "internal_units"),
    ),
    "warm cache": (
        [(_warm, BASE), (_warm, (*R50, "inductor"))],
        _named(BASE, "compile_cost_ms") | _named((*R50, "inductor"), "compile_cost_ms"),
    ),
    "stacks swapped": (
        [(_as(TVM), XLA), (_as(XLA), TVM)],
        _named(XLA, "compile_cost_ms", "latency_ms")
        | _named(TVM, "compile_cost_ms", "latency_ms")
        | {f"C8 {' '.join(R18)} tvm external"},
    ),
    "T_X doubled": ([(scaled(latency=2.0), XLA)], _named(XLA, "latency_ms")),
    "another batch size": (
        [(scaled(latency=15.0), c) for c in (BASE, XLA, TVM)],
        set.union(*(_named(c, "latency_ms") for c in (BASE, XLA, TVM))),
    ),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_every_mutant_fails_by_name(mutant: str, expected) -> None:
    alterations, names = MUTANTS[mutant]
    campaign = fabricated.campaign(1)
    for alter, cell in alterations:
        campaign = changed(campaign, alter, cell)
    verdict = _judge(campaign, expected)
    assert verdict.exit_code == 1
    assert names <= _failing(verdict), f"{names - _failing(verdict)} not caught"


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
    assert _failing(verdict) == _named(XLA, "latency_ms")
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
    assert _named(FOLD, "compile_cost_ms") <= _failing(verdict)


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
    assert {"C1 trials", *_named(TVM, "latency_ms", "compile_cost_ms")} <= _failing(verdict)
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
    assert verdict.tier.name == "same"
    assert verdict.comparison.total == 0
    assert "bands: 0 of 0 compared" in markdown(verdict)


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
