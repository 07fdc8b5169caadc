"""From records of the trial room to process values and fits."""

from __future__ import annotations

import pytest

from artifact.analysis import estimates, fit
from artifact.plan import TrialSpec
from artifact.records import (
    Cold,
    Identity,
    NativeWindow,
    Output,
    Phase,
    Record,
    Telemetry,
)

SPEC = TrialSpec(
    schema=1,
    trial_id="r3.resnet18.1x3x64x64.tvm",
    role="measured",
    round=3,
    model="resnet18",
    architecture="resnet18",
    family="resnet",
    model_options={},
    input="1x3x64x64",
    configuration="tvm",
    stack="tvm",
    options={},
    binding="frozen",
    device="cpu",
    precision="fp32",
    contract="equal",
    isa="avx2",
    cpus=2,
    memory_mib=0,
    warmups=2,
    executions=4,
    deadline_s=60.0,
    page_cold_bytes=50_000_000,
    seed=1,
)

IDENTITY = Identity(
    lock_hash="lock",
    code_hash="code",
    image_id="image",
    engine="fake",
    process_id="1",
    boot_id="boot",
    started_utc="2026-01-01T00:00:00+00:00",
    cpu_model="cpu",
    architecture="x86_64",
    effective_cpus=2,
    threads=2,
    compile_threads=2,
)


def _record(phases: list[tuple[str, float]], window: NativeWindow) -> Record:
    made, start = [], 0.0
    for name, duration in phases:
        made.append(Phase(name, start, duration))
        start += duration
    return Record(
        schema=1,
        spec=SPEC,
        status="ok",
        identity=IDENTITY,
        phases=tuple(made),
        native=window,
        warmup_ms=(2.5, 2.0),
        execution_ms=(2.0, 2.0, 2.0, 2.0),
        cold=Cold({}, {}, {}, 1, ()),
        output=Output(0.0, 1.0, 0.0, True),
        telemetry=Telemetry(1.0, 1.0, 0, 0, 0, 0.0, None, None, 1, 0),
    )


def test_a_window_that_ends_before_the_first_call_keeps_that_call_in_the_series() -> None:
    record = _record(
        [("fold", 7.0), ("passes", 30.0), ("codegen", 60.0), ("load", 1.0), ("first_call", 12.0)],
        NativeWindow(("passes", "codegen"), subtract_latency=False),
    )
    found = fit.fit_of_record(record)
    # measured 102, 104.5, 106.5, ... against 92, 94, 96, ...
    assert (found.worst_n, found.largest_relative_error) == (2, pytest.approx(10.5 / 104.5))


def test_a_window_of_the_first_call_meets_its_line_at_n_1() -> None:
    record = _record([("first_call", 82.0)], NativeWindow(("first_call",), subtract_latency=True))
    found = fit.fit_of_record(record)
    assert (found.worst_n, found.largest_relative_error) == (2, pytest.approx(0.5 / 84.5))


def test_process_values_of_a_record_in_all_boundaries() -> None:
    record = _record(
        [
            ("interpreter", 100.0),
            ("fold", 7.0),
            ("toolchain", 20.0),
            ("first_call", 82.0),
        ],
        NativeWindow(("toolchain", "first_call"), subtract_latency=True),
    )
    values = estimates.from_record(record, noisy=True)
    assert (values.round, values.noisy, values.latency_ms) == (3, True, 2.0)
    assert values.compile_cost_ms == {"native": 100.0, "aligned": 107.0, "process": 207.0}
    assert [values.fixed_cost_ms(b) for b in ("native", "aligned")] == [107.0, 107.0]
    assert values.without_toolchain_ms("native") == 87.0
