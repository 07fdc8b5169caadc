"""The predicates against the paper itself: its own process values must give its own claims."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import fabricated
import pytest

from artifact import study
from artifact.analysis import published
from artifact.analysis.evidence import Campaign
from artifact.plan import TrialSpec, make_plan
from artifact.records import Record

INPUTS = ("1x3x224x224", "16x3x224x224", "64x3x224x224", "1x3x512x512", "1x3x1024x1024")
CONFIGURATIONS = ("inductor", "inductor-fold", "xla", "tvm")
DEVICE = "NVIDIA GeForce RTX 3050"


@pytest.fixture(scope="module")
def paper() -> Campaign:
    """The ResNet campaign of the paper as records: five processes of each of 40 cells."""
    blocks = [study.BlockChoice(m, INPUTS, CONFIGURATIONS) for m in ("resnet18", "resnet50")]
    profile = replace(fabricated.PROFILES["cpu"], device="cuda", blocks=tuple(blocks))
    plan = make_plan(replace(study.load(), profiles={"paper": profile}), "paper")
    records = tuple(_record(spec, number) for number, spec in enumerate(plan.trials()))
    planned = {spec.trial_id: spec for spec in plan.trials()}
    return replace(fabricated.campaign(), records=records, planned=planned)


def _record(spec: TrialSpec, number: int) -> Record:
    made = fabricated.record_of(spec, random.Random(number), number)
    latency_ms = _value(spec, "exec_ms")
    durations = {
        "fold": _value(spec, "fold_ms"),
        "compile": _value(spec, "compile_ms"),
        "first_call": latency_ms,
    }
    phases = tuple(
        replace(p, duration_ms=durations.get(p.name, p.duration_ms)) for p in made.phases
    )
    times: dict[str, Any] = {"warmup_ms": (latency_ms,) * 10, "execution_ms": (latency_ms,) * 50}
    identity = replace(made.identity, device_name=DEVICE)
    return replace(made, phases=phases, identity=identity, **times)


def _value(spec: TrialSpec, metric: str) -> float:
    timing = published.timing("resnet", spec.configuration, spec.model, spec.input, metric)
    return timing.process_values[spec.round - 1] if timing else 0.0


def test_c2_the_fold_lowers_t_c(lines, paper) -> None:
    assert {line.verdict for line in lines("C2", paper).values()} == {"reproduced"}


@pytest.mark.parametrize("family", ["T_C", "T_C + fold_ms"])
def test_c3_nine_of_ten_and_the_exception_is_lack_of_power(lines, paper, family: str) -> None:
    line = lines("C3", paper)[family]
    assert (line.verdict, line.published) == ("reproduced", "9 of 10 resolved")
    assert line.measured == "9 of 10 resolved (Holm over 10)"
    assert line.reason == "below the resolvable ratio: resnet50 64x3x224x224"


def test_c4_no_cell_is_slowed_and_one_has_no_larger_effect_on_t_c(lines, paper) -> None:
    found = lines("C4", paper)
    open_ones = [item for item, line in found.items() if line.verdict != "reproduced"]
    assert len(found) == 10 and open_ones == ["resnet50 64x3x224x224"]
    assert all(
        line.ratio.ratio == pytest.approx(float(line.published), abs=2e-3)
        for line in found.values()
    )


def test_c7_the_envelope_and_the_crossover_of_the_paper(lines, paper) -> None:
    found = lines("C7", paper)
    envelope = found["resnet18 1x3x224x224 envelope"]
    # XLA is first, resolved; five processes do not tell folded from unfolded Inductor in T_X.
    assert envelope.verdict == "inconclusive"
    assert envelope.reason.startswith(
        "the order is open: r(T_X inductor-fold / inductor) = 0.991 ["
    )
    assert envelope.measured.startswith("xla from n = 0, inductor-fold from n = 19380; r(T_X ")
    crossover = found["resnet18 1x3x224x224 crossover"]
    assert crossover.verdict == "reproduced"
    assert crossover.measured.endswith("bounded: 16073.1 <= n <= 24319.0")
    others = {item: line.verdict for item, line in found.items() if " < " in item}
    assert len(others) == 18
    assert [i for i, v in others.items() if v != "reproduced"] == [
        "resnet50 64x3x224x224 inductor-fold < inductor"
    ]
