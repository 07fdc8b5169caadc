"""One trial, in order (DESIGN: "A trial, in order"): environment, cold proof, phases, executions.

Everything that can go wrong inside becomes a record with a status; only a fault that prevents any
record (an unreadable spec, an output folder that cannot be written) leaves as an exception.
"""

from __future__ import annotations

import datetime
import importlib
import lzma
import platform
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from artifact.census import Census, total
from artifact.errors import UserError
from artifact.plan import TrialSpec
from artifact.records import (
    SCHEMA_VERSION,
    Cold,
    Identity,
    Output,
    Record,
    Telemetry,
)
from artifact.strict_json import SchemaError, from_plain, read, write_atomic, write_bytes_atomic
from artifact.trial import bundle as bundles
from artifact.trial import cold, parity, telemetry
from artifact.trial.clock import Clock, time_executions
from artifact.trial.cpus import effective_cpus
from artifact.trial.identity import code_hash
from artifact.trial.stacks import GeneratedCode, Placement, Stack, Unsupported, adapter

RECORD_NAME = "record.json"
CODE_FOLDER = "code"
LOG_TAIL_CHARACTERS = 4000

#: Frameworks that must not be in the process before the environment is set (case K3).
FRAMEWORKS = ("torch", "jax", "jaxlib", "tvm")

#: Census parsers: `GeneratedCode.kind` is the name of the module in `artifact.census`.
CENSUS_KINDS = ("inductor", "hlo", "tvmscript")


@dataclass
class Evidence:
    """What a trial has gathered so far; it becomes the record whenever the trial ends."""

    clock: Clock
    environment: dict[str, str] = field(default_factory=dict)
    folder_counts: dict[str, int] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)
    warmup_ms: tuple[float, ...] = ()
    execution_ms: tuple[float, ...] = ()
    output: Output | None = None
    telemetry: Telemetry | None = None


def read_spec(path: Path) -> TrialSpec:
    """Read `trial.json`; a malformed one is one line that names the file and the key."""
    try:
        return from_plain(TrialSpec, read(path), "trial")
    except SchemaError as error:
        raise UserError(f"{path}: {error}", next_step="write one trial, as in plan.json") from error
    except OSError as error:
        raise UserError(f"cannot read the trial {path}: {error.strerror}") from error


def run(spec: TrialSpec, *, out: Path, bundle_root: Path, scratch: Path, clock: Clock) -> Record:
    """Run one trial and write `record.json` (atomically) and the generated code below `out`.

    `bundle_root` is the folder that holds the bundle named by `spec.bundle`; `scratch` is private
    to this trial and must be empty.
    """
    evidence = Evidence(clock=clock)
    placement = cold.placement_for(spec, scratch)
    started = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
    stack: Stack | None = None
    status, message, log_tail = "failed", "", ""
    try:
        _start_cold(spec, placement, evidence)
        stack = adapter(spec.stack)(spec, placement)
        status, message = _measure(spec, stack, bundle_root / spec.bundle, evidence)
    except Unsupported as error:
        status, message = "unsupported", str(error)
    except UserError as error:
        message = str(error)
    except Exception as error:  # noqa: BLE001 - the edge of the trial: a fault becomes a record
        message = f"{type(error).__name__}: {_first_line(error)}"
        log_tail = traceback.format_exc()[-LOG_TAIL_CHARACTERS:]
    try:
        record = _finish(spec, placement, stack, evidence, status, message, log_tail, started, out)
    except Exception as error:  # noqa: BLE001 - reading back failed: the times are worth nothing
        message = f"{type(error).__name__} after the executions: {_first_line(error)}"
        log_tail = traceback.format_exc()[-LOG_TAIL_CHARACTERS:]
        record = _finish(spec, placement, None, evidence, "failed", message, log_tail, started, out)
    write_atomic(out / RECORD_NAME, record)
    return record


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or ["no message"])[0][:500]


def _start_cold(spec: TrialSpec, placement: Placement, evidence: Evidence) -> None:
    """Set the environment before any framework import and prove the caches empty."""
    imported = [name for name in FRAMEWORKS if name in sys.modules]
    if imported:
        evidence.violations.append(f"{', '.join(imported)} imported before the environment was set")
    evidence.environment = cold.environment(spec, placement)
    cold.apply(evidence.environment)
    folders = cold.directories(spec, placement)
    evidence.folder_counts = cold.count_entries(folders)
    evidence.violations += cold.violations_of(evidence.folder_counts, folders)


def _measure(
    spec: TrialSpec, stack: Stack, bundle_path: Path, evidence: Evidence
) -> tuple[str, str]:
    """Compile, check the first output, warm up, execute; returns (status, message)."""
    clock = evidence.clock
    bundles.check_files(bundle_path, spec.input)  # in no phase: a program would not do it
    before = telemetry.snapshot()
    with clock.phase("framework_import"):
        stack.import_framework()
    with clock.phase("bundle_load"):
        bundle = bundles.load(bundle_path, spec.input, verify=False)
    if spec.weights_sha256 and bundle.weights_sha256 != spec.weights_sha256:
        raise UserError(
            f"bundle {bundle_path.name} holds other weights than study.toml names for {spec.model}",
            next_step="remove it; the next run makes it again",
        )
    with clock.phase("model_build"):
        stack.build_model(bundle)
    bundle.weights.clear()  # the model holds them; keeping both would double the memory
    with clock.phase("runtime_start"):
        stack.start_runtime()
    execute = stack.compile(clock)
    with clock.phase("first_call"):
        first = execute()
        stack.synchronize(first)
    peak = telemetry.peak_memory_bytes()
    evidence.output = _check_output(stack, first, bundle, spec.precision)
    if not evidence.output.passed:  # the gate: nothing is timed on a wrong program (case N1)
        evidence.telemetry = telemetry.difference(before, telemetry.snapshot(), 0, peak)
        return "wrong-output", evidence.output.reason
    children = telemetry.count_children()
    last = _execute(spec, stack, execute, evidence)
    evidence.telemetry = telemetry.difference(before, telemetry.snapshot(), children, peak)
    evidence.output = _check_output(stack, last, bundle, spec.precision)
    return _judge(spec, evidence)


def _execute(spec: TrialSpec, stack: Stack, execute: Callable[[], Any], evidence: Evidence) -> Any:
    """Warm-ups, then timed executions; every single time is kept."""
    warmups, _ = time_executions(execute, stack.synchronize, spec.warmups)
    executions, last = time_executions(execute, stack.synchronize, spec.executions)
    evidence.warmup_ms, evidence.execution_ms = tuple(warmups), tuple(executions)
    return last


def _check_output(stack: Stack, output: Any, bundle: bundles.Bundle, precision: str) -> Output:
    verdict = parity.judge(
        stack.to_numpy(output), bundle.reference, bundle.eager_rmse_by_precision[precision]
    )
    return Output(
        rmse=verdict.rmse,
        allowed_rmse=verdict.allowed_rmse,
        max_abs=verdict.max_abs,
        passed=verdict.passed,
        reason=verdict.reason,
    )


def _judge(spec: TrialSpec, evidence: Evidence) -> tuple[str, str]:
    output, seen = evidence.output, evidence.telemetry
    assert output is not None and seen is not None  # set by _measure just before
    if not output.passed:
        return "wrong-output", output.reason
    read_bytes = seen.read_bytes or 0
    if spec.role == "measured" and read_bytes > spec.page_cold_bytes:
        return "page-cold", f"read {read_bytes} bytes from disk; run again with files in memory"
    return "ok", ""


def _finish(
    spec: TrialSpec,
    placement: Placement,
    stack: Stack | None,
    evidence: Evidence,
    status: str,
    message: str,
    log_tail: str,
    started: str,
    out: Path,
) -> Record:
    """Read back what the framework says and assemble the record."""
    proof: Cold | None = None
    counted: Census | None = None
    note, files = "", tuple[str, ...]()
    versions: dict[str, str] = {}
    facts: dict[str, Any] = {}
    detail: dict[str, float] = {}
    if stack is not None and status in ("ok", "page-cold", "wrong-output"):
        proof = _read_cold(stack, evidence)
        if proof.violations and status != "wrong-output":
            status, message = "warm", "; ".join(proof.violations)[:1000]
        counted, note, files = _census(stack.generated_code(), out)
        facts, detail = stack.facts(), stack.detail_ms()
        versions = stack.versions()
    return Record(
        schema=SCHEMA_VERSION,
        spec=spec,
        status=status,
        identity=_identity(placement, started, versions, facts),
        message=message,
        log_tail=log_tail,
        environment=evidence.environment,
        phases=tuple(evidence.clock.phases),
        native=stack.native if stack is not None else None,
        warmup_ms=evidence.warmup_ms,
        execution_ms=evidence.execution_ms,
        detail_ms=detail,
        cold=proof,
        output=evidence.output,
        census=counted,
        census_note=note,
        code_files=files,
        facts=facts,
        telemetry=evidence.telemetry,
    )


def _read_cold(stack: Stack, evidence: Evidence) -> Cold:
    reading = stack.read_cold()
    return Cold(
        directories=evidence.folder_counts,
        counters=reading.counters,
        flags=reading.flags,
        compiled_graphs=reading.compiled_graphs,
        violations=(*evidence.violations, *reading.violations),
    )


def _census(code: GeneratedCode, out: Path) -> tuple[Census | None, str, tuple[str, ...]]:
    """Store the generated text compressed and count its units; a text that cannot be counted is
    a note in the record, never a zero."""
    names = []
    for name, text in sorted(code.texts.items()):
        path = out / CODE_FOLDER / f"{name}.xz"
        write_bytes_atomic(path, lzma.compress(text.encode("utf-8")))
        names.append(path.name)
    if not code.texts:
        return None, "nothing was generated", ()
    if code.kind not in CENSUS_KINDS:
        return None, f"no census parser for {code.kind!r}", tuple(names)
    parser = importlib.import_module(f"artifact.census.{code.kind}")
    try:
        return total([parser.count(text) for text in code.texts.values()]), "", tuple(names)
    except ValueError as error:
        return None, f"not counted: {error}", tuple(names)


def _identity(
    placement: Placement, started: str, versions: dict[str, str], facts: dict[str, Any]
) -> Identity:
    """What the process knows of itself; the host adds image, engine, lock and container."""
    return Identity(
        lock_hash="",
        code_hash=code_hash(),
        image_id="",
        engine="",
        process_id="",
        boot_id=Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip(),
        started_utc=started,
        cpu_model=_cpu_model(),
        architecture=platform.machine(),
        effective_cpus=effective_cpus(),
        threads=placement.threads,
        compile_threads=placement.compile_threads,
        versions=versions,
        device_name=str(facts.get("device_name", "")),
    )


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "unknown"
