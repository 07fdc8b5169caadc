"""A look with the fake engine: what is said, run, written and refused."""

from __future__ import annotations

import csv
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

# The fabricated campaign lives with the analysis tests, which this file may run without.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "analysis"))
import fabricated
from fabricated import changed, scaled, write

from artifact.analysis import reference
from artifact.analysis.evidence import evidence_of
from artifact.analysis.fit import fit_of_record
from artifact.cli import app
from artifact.errors import UserError
from artifact.host import crossover
from artifact.host.crossover import Question
from artifact.host.engines import fake
from artifact.host.store import Store
from artifact.strict_json import read

PAIR = {"model": "resnet18", "input": "1x3x224x224", "first": "xla", "second": "inductor"}
NO_REFERENCES = Path("no-references")
FOLDER = "crossover-resnet18-xla-inductor"

#: T_C and T_X in ms that make few executions enough: they cross at 60 / (3 - 1) = 30.
QUICK_MS = {"xla": (40.0, 3.0), "inductor": (100.0, 1.0)}


def _campaign(name: str = "cpu", alter=lambda r: r, keep=("xla", "inductor", "tvm")):
    """The ResNet-18 block of the fabricated campaign, its times replaced by the quick ones."""
    full = fabricated.campaign(1)

    def quick(record):
        cell = fabricated.cell_of(record.spec)
        if cell[:2] != ("resnet18", "1x3x224x224") or cell[2] not in keep:
            return None
        if cell[2] not in QUICK_MS:
            return record
        before, (compile_ms, latency_ms) = fabricated.TIMES_MS[cell[2]], QUICK_MS[cell[2]]
        made = scaled(compile_ms / before[0], latency_ms / before[1])(record)
        phases = tuple(
            replace(p, duration_ms=latency_ms) if p.name == "first_call" else p for p in made.phases
        )
        return alter(replace(made, phases=phases))

    return replace(changed(full, quick), name=name)


@pytest.fixture(scope="module")
def predicting(tmp_path_factory) -> Path:
    return write(tmp_path_factory.mktemp("predicting") / "cpu", _campaign(), code=lambda r: {})


@pytest.fixture
def results(tmp_path, predicting) -> Path:
    folder = tmp_path / "results"
    folder.mkdir()
    (folder / "cpu").symlink_to(predicting)
    return folder


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def look(results, said, monkeypatch):
    """Go and look with the fake engine, whose xla and inductor cost what is given."""

    def run(xla=QUICK_MS["xla"], inductor=QUICK_MS["inductor"], **more) -> int:
        times = {"xla": xla, "inductor": inductor, "tvm": (10.0, 5.0)}
        monkeypatch.setattr(fake, "_SCALE_MS", times)
        question = Question(**(PAIR | {"engine": "fake", "results": results} | more))
        return crossover.go_and_look(question, said.append, NO_REFERENCES)

    return run


def _rows(results: Path) -> list[dict[str, str]]:
    return list(csv.DictReader((results / FOLDER / "crossing.csv").read_text().splitlines()))


def test_the_crossing_is_predicted_measured_compared_and_stored(look, results, said) -> None:
    assert look() == 0
    found = read(results / FOLDER / "crossing.json")
    predicted = found["predicted"]
    assert predicted["n"] == pytest.approx(30.0, rel=0.05)
    assert predicted["regime"] == "first-then-second"
    assert predicted["set"]["method"] == "welch"
    assert (found["records"], found["boundary"]) == (str(results / "cpu"), "native")
    rows = _rows(results)
    assert [row["round"] for row in rows] == ["1", "2", "3", "mean"]
    assert float(rows[-1]["n"]) == pytest.approx(30.0, rel=0.1) == found["mean"]["n"]
    assert said[-1].splitlines()[-1] == found["conclusion"]
    assert "predicted n = " in said[2] and "set bounded" in said[2]
    assert said[3].startswith("method welch: unpaired")
    (part,) = predicted["set"]["ranges"]
    for row in rows:
        inside = part["from_n"] <= float(row["n"]) <= part["to_n"]
        assert row["verdict"] == ("inside" if inside else "outside")


def test_twice_n_and_never_less_than_the_protocol(look, results) -> None:
    look()
    plan = Store(results / FOLDER).plan()
    assert [block.round for block in plan.blocks] == [1, 2, 3]
    assert {t.configuration for t in plan.trials()} == {"xla", "inductor"}
    n = read(results / FOLDER / "crossing.json")["predicted"]["n"]
    assert {t.executions for t in plan.trials()} == {max(50, -int(-2 * n // 1))}
    assert {t.warmups for t in plan.trials()} == {10}
    assert all(len(block.trials) == 2 for block in plan.blocks)


def test_executions_may_be_given_and_first_call_and_warm_ups_count(look, results) -> None:
    look(executions=70)
    assert {t.executions for t in Store(results / FOLDER).plan().trials()} == {70}
    assert {row["executions"] for row in _rows(results)} == {"81"}


def test_a_crossing_elsewhere_is_said_to_be_outside(look, results, said) -> None:
    assert look(inductor=(140.0, 1.0)) == 0  # 50 instead of 30
    assert {row["verdict"] for row in _rows(results)} == {"outside"}
    assert "outside the predicted set; single rounds: 0 of 3 inside" in said[-1]


def test_a_crossing_that_is_not_found_is_no_failure(look, results, said) -> None:
    assert look(inductor=(1000.0, 1.0)) == 0
    assert {(row["verdict"], row["n"]) for row in _rows(results)} == {("not-found", "")}
    assert read(results / FOLDER / "crossing.json")["mean"]["n"] is None
    assert said[-1].splitlines()[-1].startswith("not found: xla throughout up to n = ")


def test_what_differs_between_prediction_and_look_is_noted_once(look, said) -> None:
    look()
    assert "xla, inductor: predicted with engine docker, measured with fake" in said[-1]
    assert "contracts differ: xla has frozen weights, inductor has runtime weights" in said[-1]
    assert any(line.startswith("these are another machine's records (a CPU)") for line in said)


# --- refused, in one line, before anything runs -----------------------------------------------
def _refused(look, results, words: str, **more) -> None:
    with pytest.raises(UserError, match=words) as caught:
        look(**more)
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)
    assert not list(results.glob("crossover-*"))


def test_lines_that_do_not_cross_are_refused(look, results) -> None:
    _refused(look, results, "inductor is never dearer than tvm", first="tvm")


def test_what_takes_too_long_is_refused_after_its_estimate(look, results, said) -> None:
    _refused(look, results, "more than --max-minutes 0.5; raise it", max_minutes=0.5)
    minutes = float(re.search(r"about ([\d.]+) min", said[4])[1])
    # 6 trials and 2 priming ones of about 1 + 5 s, three calibrations of 15 s
    assert minutes == pytest.approx((8 * 6.0 + 45) / 60, rel=0.1)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"second": "xla"}, "xla does not cross itself"),
        ({"model": "vgg"}, "unknown model 'vgg'"),
        ({"second": "onnx"}, "unknown configuration 'onnx'"),
        ({"input": "224"}, "is not a shape"),
        ({"executions": 0}, "at least 1"),
        ({"profile": "tpu"}, "unknown profile 'tpu'"),
        ({"name": "absent"}, "no campaign at"),
        ({"second": "eager"}, "holds both xla and eager of resnet18"),
        ({"second": "eager", "name": "cpu"}, "no usable trial of eager"),
    ],
)
def test_questions_without_an_answer(look, results, more, words) -> None:
    _refused(look, results, words, **more)


def test_records_that_may_not_be_pooled_predict_nothing(look, results) -> None:
    def patched(record):
        other = replace(record.identity, code_hash=f"code of round {record.spec.round}")
        return replace(record, identity=other)

    write(results / "mixed", _campaign(alter=patched), code=lambda r: {})
    _refused(look, results, "may not be pooled: code_hash differs", name="mixed")


def _prepared(results, executions: int) -> crossover.Look:
    question = Question(**PAIR, engine="fake", results=results, executions=executions)
    return crossover.prepare(question, NO_REFERENCES)


def test_long_trials_get_a_longer_deadline(results) -> None:
    """190 000 executions of 3 ms take 570 s; the protocol's deadline is 1200 s."""
    short, long = (_prepared(results, n).prepared.plan for n in (100, 190_000))
    assert {t.deadline_s for t in short.trials()} == {1200.0}
    (deadline_s,) = {t.deadline_s for t in long.trials()}
    assert deadline_s == pytest.approx(3 * (570 + 6), rel=0.02)


def test_more_executions_than_a_record_can_hold_are_refused(look, results) -> None:
    _refused(look, results, "200001 executions are more than a record holds", executions=200_001)


def test_one_process_cannot_predict_a_set(look, results, tmp_path) -> None:
    one = _campaign(alter=lambda r: r if r.spec.round == 1 else None)
    write(results / "one", one, code=lambda r: {})
    _refused(look, results, "no set around n = .*fewer than two processes", name="one")


# --- where records come from ------------------------------------------------------------------
def test_a_second_look_needs_resume_and_never_predicts_from_the_first(look, results, said) -> None:
    look()
    with pytest.raises(UserError, match=f"{FOLDER} is not empty; continue it with --resume"):
        look()
    said.clear()
    assert look(resume=True) == 0
    assert said[0].endswith(f"records: {results / 'cpu'}")
    assert any("0 run now" in line for line in said)


@pytest.mark.parametrize(("folder", "engine"), [("crossover-other", "docker"), ("try", "fake")])
def test_neither_an_earlier_look_nor_a_fake_campaign_predicts(results, folder, engine) -> None:
    def newer(record):
        stamp = {"started_utc": "2030-01-01T00:00:00.000+00:00", "engine": engine}
        return replace(record, identity=replace(record.identity, **stamp))

    write(results / folder, _campaign(alter=newer), code=lambda r: {})
    found = crossover.find_records(Question(**PAIR, results=results), NO_REFERENCES)
    assert found.label == str(results / "cpu")
    write(results / "real", _campaign(alter=newer), code=lambda r: {})
    found = crossover.find_records(Question(**PAIR, results=results), NO_REFERENCES)
    assert (found.label == str(results / "real")) is (engine == "docker")


def test_the_time_of_the_fold_is_part_of_the_measured_curve() -> None:
    full = fabricated.campaign(1)
    cell = ("resnet18", "1x3x224x224", "inductor-fold")
    (trial, *_), (made, *_) = (
        evidence_of(full).trials(cell),
        crossover._curves(evidence_of(full), cell),
    )
    native_ms = trial.record.compile_cost_ms("native")
    assert made.totals_ms[0] == pytest.approx(native_ms + fabricated.FOLD_MS)
    # n = 1 is the first call: T_C is T_first - T_X here, so its own execution took T_X.
    assert made.totals_ms[1] - made.totals_ms[0] == pytest.approx(trial.record.latency_ms)
    assert made.totals_ms[2] - made.totals_ms[1] == pytest.approx(trial.record.warmup_ms[0])
    assert len(made.totals_ms) == 1 + 1 + 10 + 50


def test_curve_and_goodness_of_fit_see_the_same_series() -> None:
    """n = 1 is the first call in both: the largest error of the fit is that of the curve."""
    full = evidence_of(fabricated.campaign(1))
    cell = ("resnet18", "1x3x224x224", "xla")
    trial, made = full.trials(cell)[0], crossover._curves(full, cell)[0]
    found = fit_of_record(trial.record)
    fixed_ms, latency_ms = trial.record.compile_cost_ms("native"), trial.record.latency_ms
    errors = [
        abs(fixed_ms + n * latency_ms - total) / total for n, total in enumerate(made.totals_ms)
    ]
    assert max(errors[1:]) == pytest.approx(found.largest_relative_error)
    assert errors.index(max(errors[1:])) == found.worst_n


def test_without_own_records_the_shipped_reference_predicts(tmp_path, said, monkeypatch) -> None:
    root = tmp_path / "reference"
    folder = write(tmp_path / "made" / "cpu", _campaign(), code=lambda r: {})
    reference.ship(folder, "a-class", root)
    question = Question(**PAIR, engine="fake", results=tmp_path / "none", max_minutes=0.0)
    with pytest.raises(UserError, match="max-minutes"):
        crossover.go_and_look(question, said.append, root)
    assert said[0].endswith("records: reference a-class, campaign-1")
    assert said[1].startswith("these are another machine's records")


def test_when_every_trial_fails_the_look_could_not_run(look, results, monkeypatch) -> None:
    monkeypatch.setattr(fake.FakeEngine, "_behaviour", lambda self, spec: "failed")
    with pytest.raises(UserError, match="no round in which both xla and inductor were measured"):
        look()
    assert not (results / FOLDER / "crossing.json").exists()


def test_the_command_looks_and_exits_0_whether_found_or_not(results, monkeypatch) -> None:
    monkeypatch.setattr(fake, "_SCALE_MS", QUICK_MS | {"inductor": (1000.0, 1.0)})
    pair = ["--model", "resnet18", "--input", "1x3x224x224", "--first", "xla"]
    options = ["--second", "inductor", "--engine", "fake", "--results", str(results)]
    done = CliRunner().invoke(app, ["crossover", *pair, *options])
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[-1].startswith("not found: xla throughout up to n = ")
