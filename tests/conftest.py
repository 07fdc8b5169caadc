"""Shared builders: a valid trial spec and a valid record that a test can bend."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from artifact import study
from artifact.plan import TrialSpec, make_plan
from artifact.records import Cold, Identity, NativeWindow, Output, Phase, Record, Telemetry


@pytest.fixture(scope="session")
def the_study() -> study.Study:
    return study.load()


@pytest.fixture
def make_spec(the_study: study.Study) -> Callable[..., TrialSpec]:
    """A spec of the smoke profile (2 + 5 executions) with any field replaced."""
    spec = next(iter(make_plan(the_study, "smoke").trials()))

    def build(**changes: Any) -> TrialSpec:
        return replace(spec, **changes)

    return build


@pytest.fixture
def make_record(make_spec: Callable[..., TrialSpec]) -> Callable[..., Record]:
    """An ok record whose numbers are easy to check by hand; any field can be replaced.

    Native T_C = 100 + 200 + 30 - 10 = 320 ms, aligned adds the fold (50 ms): 370 ms, process
    ends at 1000 ms: 990 ms. T_X = 10 ms.
    """

    def build(**changes: Any) -> Record:
        spec = changes.pop("spec", None) or make_spec(warmups=2, executions=5)
        fields: dict[str, Any] = {
            "schema": 1,
            "spec": spec,
            "status": "ok",
            "identity": Identity(
                lock_hash="lock",
                code_hash="code",
                image_id="image",
                engine="fake",
                process_id="1",
                boot_id="boot",
                started_utc="2026-01-01T00:00:00.000+00:00",
                cpu_model="a CPU",
                architecture="x86_64",
                effective_cpus=2,
                threads=2,
                compile_threads=2,
            ),
            "phases": (
                Phase("interpreter", 0.0, 120.0),
                Phase("framework_import", 120.0, 500.0),
                Phase("fold", 620.0, 50.0),
                Phase("toolchain", 670.0, 100.0),
                Phase("compile", 770.0, 200.0),
                Phase("first_call", 970.0, 30.0),
            ),
            "native": NativeWindow(("toolchain", "compile", "first_call"), True),
            "warmup_ms": (12.0,) * spec.warmups,
            "execution_ms": (10.0,) * spec.executions,
            "cold": Cold({"TMPDIR": 0}, {"hits": 0}, {"cache": "off"}, 1, ()),
            "output": Output(1e-6, 1e-5, 1e-5, True),
            "telemetry": Telemetry(1.0, 1.0, 0, 0, 0, 0.0, None, None, 1, 0),
        }
        return Record(**(fields | changes))

    return build
