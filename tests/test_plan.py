"""The plan is a pure function of study, profile and seed; blocks stay whole."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from artifact.errors import UserError
from artifact.plan import TrialSpec, make_plan
from artifact.strict_json import SchemaError, from_plain, to_plain


def test_same_seed_same_plan_other_seed_other_order(the_study):
    first, again = make_plan(the_study, "cpu"), make_plan(the_study, "cpu")
    other = make_plan(the_study, "cpu", seed=1)
    assert first == again
    assert [t.trial_id for t in first.trials()] != [t.trial_id for t in other.trials()]
    assert {t.trial_id for t in first.trials()} == {t.trial_id for t in other.trials()}


def test_cpu_profile_has_five_trials_of_each_cell(the_study):
    plan = make_plan(the_study, "cpu")
    cells = Counter((t.model, t.input, t.configuration) for t in plan.trials())
    assert len(cells) == 5 + 5 + 5 + 5
    assert set(cells.values()) == {5}
    assert all((t.warmups, t.executions) == (10, 50) for t in plan.trials())


def test_paper_profile_has_the_papers_cells(the_study):
    """30 + 21 cells of the three stacks, the fold on ten inputs, the audit control on three."""
    cells = Counter(t.configuration for t in make_plan(the_study, "paper").trials())
    per_cell = {name: count // 5 for name, count in cells.items()}
    assert per_cell["inductor"] + per_cell["xla"] + per_cell["tvm"] == 51
    assert per_cell["inductor-fold"] == 10
    assert per_cell["inductor-control"] == 3


def test_folds_profile_compares_every_fold_in_one_block(the_study):
    plan = make_plan(the_study, "folds")
    every = {"eager", "inductor", "inductor-fold"}
    builtin = {"inductor-guard", "inductor-freeze", "inductor-bneval"}
    for block in plan.blocks:
        chosen = {t.configuration for t in block.trials}
        assert chosen == (every if block.model == "gpt2" else every | builtin)
    assert {b.model for b in plan.blocks} == {"resnet18", "resnet50", "gpt2"}
    bindings = {t.binding for t in plan.trials() if t.configuration == "inductor-freeze"}
    assert bindings == {"frozen"}


def test_an_option_per_family_reaches_the_trial_as_one_word(the_study):
    folds = {
        t.family: t.options for t in make_plan(the_study, "folds").trials() if "fold" in t.options
    }
    assert folds["resnet"] == {"fold": "conv-batchnorm"}
    assert folds["gpt2"] == {"fold": "layernorm-linear"}
    with pytest.raises(SchemaError, match=r"options\.fold: has no value for family 'bert'"):
        the_study.configurations["inductor-fold"].options_for("bert")


def test_each_round_holds_each_block_once_and_never_k_in_a_row(the_study):
    plan = make_plan(the_study, "cpu")
    for number in range(1, 6):
        blocks = [b for b in plan.blocks if b.round == number]
        assert len({(b.model, b.input) for b in blocks}) == len(blocks) == 4
    for block in plan.blocks:
        assert {t.round for t in block.trials} == {block.round}
        assert len({t.configuration for t in block.trials}) == len(block.trials)


def test_orders_differ_between_rounds(the_study):
    plan = make_plan(the_study, "cpu")
    assert len({tuple(b.model for b in plan.blocks if b.round == r) for r in range(1, 6)}) > 1


def test_one_priming_trial_per_stack_and_family(the_study):
    plan = make_plan(the_study, "cpu")
    keys = [(t.stack, t.family) for t in plan.priming]
    assert len(keys) == len(set(keys)) == 4 * 3
    assert {t.role for t in plan.priming} == {"priming"}


def test_binding_follows_the_paper(the_study):
    bindings = {(t.stack, t.family): t.binding for t in make_plan(the_study, "cpu").trials()}
    assert bindings["xla", "resnet"] == "frozen"
    assert bindings["xla", "bert"] == bindings["xla", "gpt2"] == "runtime"
    assert bindings["tvm", "resnet"] == "frozen"


def test_cells_keep_only_what_a_figure_needs(the_study):
    wanted = [("resnet18", "1x3x224x224", "xla")]
    plan = make_plan(the_study, "cpu", cells=wanted)
    assert {(t.model, t.input, t.configuration) for t in plan.trials()} == set(wanted)
    assert len(list(plan.trials())) == 5


def test_unknown_cell_and_profile_are_one_line(the_study):
    with pytest.raises(UserError, match="none of the cells"):
        make_plan(the_study, "cpu", cells=[("resnet18", "1x3x9x9", "xla")])
    with pytest.raises(UserError, match=r"unknown profile 'gpu'; known: cpu, cpu-paper"):
        make_plan(the_study, "gpu")


def test_a_spec_survives_json(make_spec):
    spec = make_spec()
    assert from_plain(TrialSpec, to_plain(spec)) == spec


@pytest.mark.parametrize("shapes", ["1x64,8x64", "1x64 8x64", "", "axb", "0x64"])
def test_a_trial_measures_exactly_one_shape(make_spec, shapes):
    """Case K7."""
    with pytest.raises(SchemaError, match="exactly one shape"):
        make_spec(input=shapes)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("role", "measure"),
        ("device", "gpu"),
        ("precision", "bf16"),
        ("precision", "tf32"),  # case N5: exists on cuda only, this spec is for a CPU
        ("isa", "avx"),
        ("executions", 0),
        ("warmups", -1),
    ],
)
def test_malformed_specs_are_refused_by_name(make_spec, field, value):
    with pytest.raises(SchemaError):
        make_spec(**{field: value})


def test_an_unknown_key_in_a_trial_file_is_refused(make_spec):
    with pytest.raises(SchemaError, match="unknown key 'inputs'"):
        from_plain(TrialSpec, to_plain(make_spec()) | {"inputs": ["1x64", "8x64"]})


def test_record_ids_tell_attempts_and_block_runs_apart(make_spec):
    spec = make_spec()
    ids = {spec.record_id, spec.again(2, 1).record_id, spec.again(1, 2).record_id}
    assert len(ids) == 3
    assert replace(spec, attempt=1).record_id == spec.record_id
