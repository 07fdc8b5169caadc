"""Fabricated campaigns to draw from: round numbers that a test can check by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from artifact import study as studies
from artifact.analysis.evidence import Campaign, evidence_of
from artifact.census import Census
from artifact.host.engines.fake import fake_record
from artifact.host.store import Store
from artifact.plan import Plan, TrialSpec, make_plan
from artifact.records import NativeWindow, Phase, Record
from artifact.tables.source import Source, of_evidence

#: Configuration -> (phases in ms, native window, T_X in ms). Native T_C, by hand: eager 60 - 40,
#: inductor 9000 + 1040 - 40, fold 9000 + 540 - 36 (and 100 of fold), xla 2100 - 90, tvm 14000.
TIMES: dict[str, tuple[dict[str, float], NativeWindow, float]] = {
    "eager": (
        {"binding": 1.0, "first_call": 60.0},
        NativeWindow(("first_call",), True),
        40.0,
    ),
    "inductor": (
        {"binding": 1.0, "toolchain": 9000.0, "first_call": 1040.0},
        NativeWindow(("toolchain", "first_call"), True),
        40.0,
    ),
    "inductor-fold": (
        {"fold": 100.0, "binding": 1.0, "toolchain": 9000.0, "first_call": 536.0},
        NativeWindow(("toolchain", "first_call"), True),
        36.0,
    ),
    "inductor-control": (
        {"binding": 1.0, "toolchain": 9000.0, "first_call": 1040.0},
        NativeWindow(("toolchain", "first_call"), True),
        40.0,
    ),
    "xla": (
        {"capture": 500.0, "compile": 1500.0, "first_call": 100.0},
        NativeWindow(("capture", "compile", "first_call"), True),
        90.0,
    ),
    "tvm": (
        {
            "capture": 1000.0,
            "import": 500.0,
            "passes": 5000.0,
            "codegen": 9000.0,
            "load": 10.0,
            "first_call": 900.0,
        },
        NativeWindow(("passes", "codegen"), False),
        850.0,
    ),
}

UNITS = {"inductor": (21, 20), "inductor-fold": (21, 20), "xla": (8, 20), "tvm": (60, 0)}

Bend = Callable[[Record], Record | None]


def record_of(spec: TrialSpec) -> Record:
    """The record of a trial: round r is (r - 3) per cent off, so that K = 5 has known means."""
    durations, native, latency_ms = TIMES.get(spec.configuration) or TIMES[spec.stack]
    factor = 1 + 0.01 * (spec.round - 3)
    phases, start_ms = [Phase("interpreter", 0.0, 300.0)], 300.0
    for name, duration_ms in durations.items():
        phases.append(Phase(name, start_ms, duration_ms * factor))
        start_ms += duration_ms * factor
    units = UNITS.get(spec.configuration)
    census = Census(units[0], units[0], units[1], 2, 0, 0, 1000, 10) if units else None
    return replace(
        fake_record(spec, "ok"),
        phases=tuple(phases),
        native=native,
        warmup_ms=(latency_ms * factor,) * spec.warmups,
        execution_ms=(latency_ms * factor,) * spec.executions,
        code_files=(),
        census=census,
    )


def scaled(record: Record, compiling: float, latency: float) -> Record:
    """The record with phases and executions multiplied."""
    return replace(
        record,
        phases=tuple(replace(p, duration_ms=p.duration_ms * compiling) for p in record.phases),
        warmup_ms=tuple(ms * latency for ms in record.warmup_ms),
        execution_ms=tuple(ms * latency for ms in record.execution_ms),
    )


def campaign(
    profile: str = "cpu",
    bend: Bend = lambda record: record,
    *,
    rounds: Iterable[int] = range(1, 6),
    noisy: Mapping[str, tuple[str, ...]] | None = None,
) -> Campaign:
    """A campaign in memory; `bend` changes a record, or drops it by returning None."""
    plan = make_plan(studies.load(), profile)
    kept = set(rounds)
    made = [bend(record_of(spec)) for spec in plan.trials() if spec.round in kept]
    records = tuple(record for record in made if record is not None)
    return Campaign(
        name="made-up",
        profile=profile,
        records=records,
        planned={spec.trial_id: spec for spec in plan.trials()},
        broken=(),
        noisy=noisy or {},
        calibration_ms={},
        read_code=lambda record: {},
    )


def source(profile: str = "cpu", bend: Bend = lambda record: record, **options: object) -> Source:
    """`campaign` as a source to draw from."""
    return of_evidence(evidence_of(campaign(profile, bend, **options)), "measured: made-up")


def write_campaign(
    directory: Path, profile: str = "smoke", bend: Bend = lambda record: record
) -> Plan:
    """A campaign folder on disk; returns its plan."""
    plan = make_plan(studies.load(), profile)
    store = Store(directory)
    store.create(plan, {})
    for spec in plan.trials():
        record = bend(record_of(spec))
        if record is not None:
            store.write_record(record, {})
    return plan
