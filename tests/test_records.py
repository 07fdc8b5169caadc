"""The record refuses nonsense, and its compile costs follow the paper's windows."""

from __future__ import annotations

import math
from dataclasses import FrozenInstanceError, replace
from pathlib import Path

import pytest

from artifact.records import Cold, NativeWindow, Output, Phase, current, load
from artifact.strict_json import SchemaError, write_atomic


def test_three_boundaries_of_the_compile_cost(make_record):
    record = make_record()
    assert record.latency_ms == 10.0
    assert record.compile_cost_ms("native") == pytest.approx(320.0)
    assert record.compile_cost_ms("aligned") == pytest.approx(370.0)
    assert record.compile_cost_ms("process") == pytest.approx(990.0)
    assert (record.toolchain_ms, record.fold_ms) == (100.0, 50.0)


def test_native_window_without_latency_is_a_plain_sum(make_record):
    record = make_record(native=NativeWindow(("compile",), subtract_latency=False))
    assert record.compile_cost_ms("native") == 200.0


def test_unknown_boundary_is_an_error(make_record):
    with pytest.raises(ValueError, match="native, aligned, process"):
        make_record().compile_cost_ms("paper")


def test_record_is_frozen(make_record):
    with pytest.raises(FrozenInstanceError):
        make_record().status = "failed"


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_execution_times_must_be_finite_and_positive(make_record, value):
    with pytest.raises(SchemaError, match=r"execution_ms\[2\]"):
        make_record(execution_ms=(1.0, 1.0, value, 1.0, 1.0))


@pytest.mark.parametrize("value", [-0.1, math.nan])
def test_phase_times_must_be_finite_and_not_negative(value):
    with pytest.raises(SchemaError, match="duration_ms"):
        Phase("compile", 0.0, value)


def test_phase_names_are_a_closed_set():
    with pytest.raises(SchemaError, match="'compiling'"):
        Phase("compiling", 0.0, 1.0)


def test_ok_needs_the_whole_protocol(make_record):
    with pytest.raises(SchemaError, match=r"2 \+ 4 executions"):
        make_record(execution_ms=(10.0,) * 4)


def test_ok_cannot_be_warm_or_wrong(make_record):
    warm = Cold({"TMPDIR": 3}, {}, {}, 1, ("TMPDIR held 3 entries",))
    with pytest.raises(SchemaError, match="warm"):
        make_record(cold=warm)
    wrong = Output(1.0, 1e-5, 3.0, False, "rmse too large")
    with pytest.raises(SchemaError, match="rmse too large"):
        make_record(output=wrong)
    assert make_record(status="warm", cold=warm).pooled is False


@pytest.mark.parametrize("missing", ["native", "cold", "output", "telemetry"])
def test_ok_needs_its_evidence(make_record, missing):
    with pytest.raises(SchemaError, match="without"):
        make_record(**{missing: None})


@pytest.mark.parametrize(
    "environment",
    [
        {"TORCH_COMPILE_DEBUG": "1"},
        {"TORCH_LOGS": "+inductor"},
        {"XLA_FLAGS": "--xla_dump_to=/tmp/x"},
    ],
)
def test_debug_switches_keep_a_record_out_of_the_pool(make_record, environment):
    """Case K8."""
    assert make_record().pooled
    assert not make_record(environment=environment).pooled


def test_priming_trials_are_never_pooled(make_record, make_spec):
    assert not make_record(spec=make_spec(role="priming", warmups=2, executions=5)).pooled


def test_first_sample_outlier_is_flagged_and_kept(make_record):
    """Case K9: no silent trimming."""
    record = make_record(execution_ms=(400.0, 10.0, 10.0, 10.0, 10.0))
    assert record.first_sample_outlier
    assert record.latency_ms == 88.0
    assert not make_record().first_sample_outlier


def test_round_trip_through_a_file(make_record, tmp_path: Path):
    record = make_record()
    write_atomic(tmp_path / "r.json", record)
    assert load(tmp_path / "r.json") == record


def test_truncated_and_unknown_content_name_the_file(make_record, tmp_path: Path):
    path = tmp_path / "r.json"
    write_atomic(path, make_record())
    text = path.read_text(encoding="utf-8")
    path.write_text(text[: len(text) // 2], encoding="utf-8")
    with pytest.raises(SchemaError, match=r"r\.json"):
        load(path)
    path.write_text(text.replace('"status"', '"state"'), encoding="utf-8")
    with pytest.raises(SchemaError, match="unknown key 'state'"):
        load(path)
    path.write_text(text.replace('"schema": 1', '"schema": 99', 1), encoding="utf-8")
    with pytest.raises(SchemaError, match="99"):
        load(path)


def test_current_takes_the_newest_run_of_each_block(make_record, make_spec):
    old = make_record(spec=make_spec(block_run=1))
    new = make_record(spec=replace(old.spec, block_run=2))
    other = make_record(spec=replace(old.spec, round=2, block_run=1))
    assert current([old, new, other]) == [new, other]
