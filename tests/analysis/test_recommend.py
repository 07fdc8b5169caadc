"""The cheapest configuration at n, its runner-up, how sure, how far, and from whose records."""

from __future__ import annotations

from dataclasses import replace

import fabricated
import pytest
from fabricated import R18, changed, scaled

from artifact.analysis.recommend import advise, render
from artifact.errors import UserError


def _advise(executions: float, boundary: str = "native", campaign=None, **more):
    made = campaign or fabricated.campaign()
    return advise(made, *R18, executions, boundary, source="results/x", **more)


@pytest.mark.parametrize(
    ("executions", "name", "runner_up"),
    [(0, "eager", "xla"), (10, "eager", "xla"), (10_000, "inductor-fold", "inductor")],
)
def test_the_cheapest_depends_on_n(executions: float, name: str, runner_up: str) -> None:
    found = _advise(executions).found
    assert (found.name, found.runner_up) == (name, runner_up)


def test_total_ratio_range_and_boundary_are_said() -> None:
    """At n = 10 000: 27 060 ms + 10 000 x 40.5 ms = 432 s against 33 000 + 416 000 = 449 s."""
    text = render(_advise(10_000))
    assert "n = 10000 executions: inductor-fold, 43" in text
    assert "total time inductor-fold / inductor = 0.96" in text and "(95 %), resolved" in text
    assert "the answer holds for n >= " in text
    assert "boundary native; processes: eager 5, inductor 5, inductor-fold 5, tvm 5, xla 5" in text
    assert "records: results/x" in text
    assert "inductor-fold is cheaper than eager from n = " in text


def test_the_range_ends_where_another_takes_over() -> None:
    """eager 45 ms an execution, inductor-fold 40.5 and 27 055 ms more at the start: n = 6 012."""
    advice = _advise(100)
    assert advice.found.name == "eager" and advice.against_eager is None
    assert advice.found.holds.from_n == 0
    assert advice.found.holds.to_n == pytest.approx(6012, rel=0.05)
    assert "the answer holds for 0 <= n <= " in render(advice)


def test_an_open_comparison_is_called_open() -> None:
    same = changed(
        fabricated.campaign(), scaled(33_000 / 27_000, 41.6 / 40.5), (*R18, "inductor-fold")
    )
    text = render(_advise(10_000, campaign=same))
    assert "not resolved: the two may be equal" in text


def test_another_machine_is_named() -> None:
    text = render(_advise(100, other_machine="a CPU, 2 CPUs"))
    assert "these are another machine's records (a CPU, 2 CPUs)" in text
    assert "another machine" not in render(_advise(100))


def test_different_bindings_are_said() -> None:
    """Weights known to the compiler change both T_C and T_X (DESIGN: boundaries)."""
    without = changed(fabricated.campaign(), lambda r: None, (*R18, "eager"))
    text = render(_advise(100, campaign=without))
    assert "contracts differ: xla has frozen weights, inductor-fold runtime ones" in text


def test_one_configuration_alone_has_no_runner_up() -> None:
    only = changed(fabricated.campaign(), lambda r: r if r.spec.configuration == "xla" else None)
    assert "no runner-up: only one configuration was measured" in render(_advise(9, campaign=only))


def test_values_that_are_no_times_leave_a_configuration_out() -> None:
    """A record without any phase has no compile cost."""

    def without_phases(record):
        return replace(record, phases=(), native=replace(record.native, phases=()))

    advice = _advise(100, campaign=changed(fabricated.campaign(), without_phases, (*R18, "xla")))
    assert "xla" not in advice.processes
    assert "left out: xla (r1.resnet18.1x3x224x224.xla.b1.a1: " in render(advice)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ((*R18, 100, "mine"), "unknown boundary 'mine'"),
        (("resnet18", "9x9", 100, "native"), "no usable trial of resnet18 9x9"),
        ((*R18, -1, "native"), "executions must be finite and not negative"),
        ((*R18, float("nan"), "native"), "executions must be finite and not negative"),
    ],
)
def test_bad_questions_are_one_line(arguments, word: str) -> None:
    with pytest.raises(UserError, match=word):
        advise(fabricated.campaign(), *arguments, source="results/x")


def test_mixed_records_give_no_advice() -> None:
    def other(record):
        return replace(record, identity=replace(record.identity, cpu_model="another"))

    with pytest.raises(UserError, match="may not be pooled: cpu_model differs"):
        _advise(100, campaign=changed(fabricated.campaign(), other, (*R18, "xla")))


@pytest.mark.parametrize(("rounds", "pairs"), [((1, 2), 3), ((1, 2, 3, 4), 1)])
def test_rounds_of_different_boots_are_not_paired(rounds, pairs: int) -> None:
    """The order of the boots' ids does not matter, nor which of the two ran later."""

    def rebooted(record):
        if record.spec.round not in rounds:
            return record
        return replace(record, identity=replace(record.identity, boot_id="a later boot"))

    campaign = changed(fabricated.campaign(), rebooted, (*R18, "eager"))
    advice = _advise(10, campaign=campaign)
    assert (advice.found.name, advice.found.runner_up) == ("eager", "xla")
    assert advice.found.ratio.n == pairs
    assert advice.processes["eager"] == advice.processes["xla"] == 5


def test_without_a_round_of_one_boot_there_is_no_ratio() -> None:
    def rebooted(record):
        return replace(record, identity=replace(record.identity, boot_id="later"))

    text = render(_advise(10, campaign=changed(fabricated.campaign(), rebooted, (*R18, "eager"))))
    assert "runner-up xla; no ratio: " in text


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"broken": ("records/x.json: cut short",)}, "may not be pooled: records/x.json: cut"),
        ({"unlisted": ("records/x.json",)}, "94 of 95 records verified, no checksum of records/x"),
    ],
)
def test_files_that_are_not_what_was_written_give_no_advice(fields, word: str) -> None:
    with pytest.raises(UserError, match=word):
        _advise(100, campaign=replace(fabricated.campaign(), **fields))
