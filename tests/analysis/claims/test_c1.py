"""C1 names every trial that is missing, repeated, warm, mixed or not the planned one."""

from __future__ import annotations

from dataclasses import replace

import fabricated
import pytest
from fabricated import R18, changed

from artifact.records import Cold

XLA = (*R18, "xla")


def _round_one(alter):
    return lambda record: alter(record) if record.spec.round == 1 else record


def _identity(**fields):
    return lambda record: replace(record, identity=replace(record.identity, **fields))


def _cold(**fields):
    return lambda record: replace(record, cold=replace(record.cold, **fields))


def _spec(**fields):
    return lambda record: replace(record, spec=replace(record.spec, **fields))


@pytest.mark.parametrize(
    ("alter", "item", "word"),
    [
        (lambda record: None, "trials", "resnet18 1x3x224x224 xla: 4 of 5"),
        (
            lambda record: replace(record, status="timeout"),
            "trials",
            "xla: 4 of 5 (1 timeout)",
        ),
        (
            lambda record: replace(record, environment={"TORCH_LOGS": "+inductor"}),
            "trials",
            "xla: 4 of 5 (1 with TORCH_LOGS, left out)",
        ),
        (_spec(round=2), "trials", "round 2 twice"),
        (_spec(trial_id="r1.other"), "trials", "r1.other: not in the plan"),
        (_spec(input="16x3x224x224"), "protocol", "ran another trial than the one planned"),
        (_spec(options={"batch": 16}), "protocol", "ran another trial than the one planned"),
        (_cold(directories={"TMPDIR": 3}), "cold", "TMPDIR held 3 entries"),
        (_cold(counters={"inductor.fxgraph_cache_hit": 2}), "cold", "fxgraph_cache_hit is 2"),
        (_cold(counters={"cache_hits": 1}), "cold", "cache_hits is 1"),
        (_cold(directories={}), "cold", "no cache folder was looked at"),
        (_cold(counters={}), "cold", "no counter was read"),
        (_cold(compiled_graphs=0), "cold", "0 graphs compiled, expected 1"),
        (_cold(compiled_graphs=2), "cold", "2 graphs compiled, expected 1"),
        (_identity(process_id=""), "trials", "xla.b1.a1: no process id"),
        (_identity(boot_id="later"), "pooling", "r1.resnet18.1x3x224x224: 2 boots"),
        (_identity(lock_hash="older"), "pooling", "lock_hash of xla differs: lock-xla, older"),
        (_identity(code_hash="older"), "pooling", "code_hash differs: code, older"),
        (_identity(cpu_model="another CPU"), "pooling", "cpu_model differs: a CPU, another CPU"),
        (_identity(versions={"jax": "0.1"}), "", ""),
        (_spec(isa="native"), "pooling", "isa differs: avx2, native"),
    ],
)
def test_each_fault_of_one_trial_is_named(lines, alter, item: str, word: str) -> None:
    found = lines("C1", changed(fabricated.campaign(), _round_one(alter), XLA))
    if not item:  # a version that the other trials do not record is no contradiction
        assert {line.verdict for line in found.values()} == {"holds"}
        return
    assert found[item].verdict == "fails"
    assert word in found[item].reason


def test_two_versions_of_a_framework_are_named(lines) -> None:
    both = changed(fabricated.campaign(), _identity(versions={"jax": "0.2"}), XLA)
    both = changed(both, _round_one(_identity(versions={"jax": "0.1"})), XLA)
    assert lines("C1", both)["pooling"].reason == "jax of xla differs: 0.1, 0.2"


def test_one_container_for_two_trials_of_a_cell(lines) -> None:
    again = changed(fabricated.campaign(), _identity(process_id="same"), XLA)
    assert "process id same used twice" in lines("C1", again)["trials"].reason


def test_a_process_id_may_come_back_after_another_start(lines) -> None:
    engine = changed(fabricated.campaign(), _identity(engine="process", process_id="17"))
    assert lines("C1", engine)["trials"].verdict == "holds"


def test_what_a_stack_does_not_count_is_not_asked_for(lines) -> None:
    """TVM counts nothing; eager compiles no graph, and its folders are looked at all the same."""
    campaign = fabricated.campaign()
    proofs = {r.spec.stack: r.cold for r in campaign.records}
    assert proofs["tvm"].counters == proofs["eager"].counters == {}
    assert proofs["eager"].compiled_graphs == 0
    assert lines("C1", campaign)["cold"].verdict == "holds"
    blind = changed(campaign, _cold(directories={}), (*R18, "eager"))
    assert lines("C1", blind)["cold"].verdict == "fails"


@pytest.mark.parametrize("role", ["measured", "priming"])
def test_one_container_for_two_attempts_of_different_cells(lines, role: str) -> None:
    """Also for one that is in no estimate: a primed process would not be cold."""
    campaign = fabricated.campaign()
    one = next(r for r in campaign.records if r.spec.configuration == "tvm")
    spec = replace(one.spec, role=role, round=0, trial_id="priming.resnet.tvm")
    twin = replace(one, spec=spec if role == "priming" else one.spec)
    others = [r for r in campaign.records if r is not one]
    first = replace(others[0], identity=replace(others[0].identity, process_id="same"))
    twin = replace(twin, identity=replace(twin.identity, process_id="same"))
    kept = [one] if role == "priming" else []
    both = replace(campaign, records=(first, *others[1:], *kept, twin))
    line = lines("C1", both)["trials"]
    assert (line.verdict, line.reason) == ("fails", "process id same used twice")


def test_records_that_no_checksum_vouches_for_are_counted_and_named(lines) -> None:
    names = ("records/a.json", "records/b.json", "code/a.x.xz", "code/b.x.xz")
    line = lines("C1", replace(fabricated.campaign(), unlisted=names))["files"]
    assert (line.verdict, line.measured) == ("fails", "93 of 95 records verified")
    assert line.reason == (
        "93 of 95 records verified, no checksum of records/a.json, records/b.json, code/a.x.xz "
        "and 1 more"
    )


def test_every_fault_is_listed_not_only_the_first(lines) -> None:
    both = changed(fabricated.campaign(), lambda record: None, XLA, (*R18, "tvm"))
    reason = lines("C1", both)["trials"].reason
    assert "xla: 0 of 5" in reason and "tvm: 0 of 5" in reason


def test_an_unsupported_cell_is_no_missing_one(lines) -> None:
    """Case N2: the stack said so in every attempt."""
    cannot = changed(
        fabricated.campaign(), lambda r: replace(r, status="unsupported"), (*R18, "tvm")
    )
    assert lines("C1", cannot)["trials"].verdict == "holds"
    assert cannot.unsupported == ((*R18, "tvm"),)


def test_a_broken_file_is_a_failure_by_name(lines) -> None:
    broken = replace(fabricated.campaign(), broken=("records/x.json: not valid JSON",))
    assert lines("C1", broken)["files"].reason == "records/x.json: not valid JSON"


def test_no_plan_and_no_record_is_no_evidence(lines) -> None:
    empty = replace(fabricated.campaign(), records=(), planned={})
    assert lines("C1", empty) == {}


def test_a_record_without_a_cold_proof_cannot_be_usable() -> None:
    """What C1 need not look for: such a record refuses to be made."""
    record = fabricated.campaign().records[0]
    with pytest.raises(ValueError, match="warm trial"):
        replace(record, cold=Cold({}, {}, {}, 1, ("cache hit",)))
