"""The record of one trial: the only thing that passes from a container to the analysis.

History of the schema
  1  first version
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from artifact.census import Census
from artifact.plan import TrialSpec
from artifact.strict_json import SchemaError, from_plain, read

SCHEMA_VERSION = 1

#: How a trial can end. Only `ok` trials enter an estimate; the others are kept and shown.
STATUSES = (
    "ok",
    "failed",
    "timeout",
    "oom",
    "wrong-output",
    "warm",
    "page-cold",
    "unsupported",
)

#: Phases of a trial in the order in which they can occur. A stack uses the ones it has.
PHASES = (
    "interpreter",  # process start to the first line of the trial
    "framework_import",
    "bundle_load",  # weights and inputs from disk into host memory
    "model_build",  # the evaluated model, holding the weights, in host memory
    "runtime_start",  # one untimed one-element operation
    "fold",
    "binding",  # weights to the device, or into the program
    "capture",  # trace, export or lower, the front end's own work
    "import",  # exported program to the compiler's own representation (TVM)
    "toolchain",  # one-time work of the C++ tool chain (Inductor on CPU)
    "passes",
    "codegen",
    "compile",  # passes and code generation where the stack cannot tell them apart
    "load",
    "first_call",
)

#: The `aligned` boundary: everything after the evaluated model is in host memory.
ALIGNED_PHASES = PHASES[PHASES.index("fold") :]

BOUNDARIES = ("native", "aligned", "process")


@dataclass(frozen=True)
class Phase:
    """One timed step; `start_ms` counts from the start of the process."""

    name: str
    start_ms: float
    duration_ms: float

    def __post_init__(self) -> None:
        if self.name not in PHASES:
            raise SchemaError(f"phase {self.name!r} is not one of {', '.join(PHASES)}")
        for key in ("start_ms", "duration_ms"):
            value = getattr(self, key)
            if not math.isfinite(value) or value < 0:
                raise SchemaError(f"phase {self.name}: {key} must be finite and >= 0, is {value}")


@dataclass(frozen=True)
class NativeWindow:
    """What the paper's T_C covers for this stack: a sum of phases, less one latency or not."""

    phases: tuple[str, ...]
    subtract_latency: bool


@dataclass(frozen=True)
class Cold:
    """Proof that no compiler cache was used.

    `directories` maps each cache directory to the number of entries found in it before the
    framework was imported. `counters` are read back from the framework after the executions;
    `flags` are its own settings, read back, not echoed. `violations` is empty for a cold trial.
    """

    directories: Mapping[str, int]
    counters: Mapping[str, int]
    flags: Mapping[str, str]
    compiled_graphs: int
    violations: tuple[str, ...]


@dataclass(frozen=True)
class Output:
    """The comparison of the trial's output with the float64 reference (`trial/parity.py`).

    `rmse` and `max_abs` are None where no difference exists (wrong shape, NaN).
    """

    rmse: float | None
    allowed_rmse: float
    max_abs: float | None
    passed: bool
    reason: str = ""


@dataclass(frozen=True)
class Telemetry:
    """Noise seen during the trial. None means that this kernel does not say.

    CPU seconds, faults and bytes include children that have ended.
    """

    cpu_s: float
    wall_s: float
    involuntary_switches: int
    major_faults: int
    read_bytes: int | None
    steal_fraction: float | None
    pressure_cpu_ms: float | None
    throttled_ms: float | None
    peak_memory_bytes: int
    children_at_steady_state: int
    load_before: float | None = None


@dataclass(frozen=True)
class Identity:
    """Which code and which machine made the record; pooling needs equal hashes and one boot."""

    lock_hash: str
    code_hash: str
    image_id: str
    engine: str
    process_id: str
    boot_id: str
    started_utc: str
    cpu_model: str
    architecture: str
    effective_cpus: int
    threads: int
    compile_threads: int
    versions: Mapping[str, str] = field(default_factory=dict)
    device_name: str = ""


@dataclass(frozen=True)
class Record:
    """One attempt at one trial. Immutable; refuses nonsense when it is made.

    Times are milliseconds. `warmup_ms` and `execution_ms` keep every single call in order.
    """

    schema: int
    spec: TrialSpec
    status: str
    identity: Identity
    message: str = ""
    log_tail: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    phases: tuple[Phase, ...] = ()
    native: NativeWindow | None = None
    warmup_ms: tuple[float, ...] = ()
    execution_ms: tuple[float, ...] = ()
    detail_ms: Mapping[str, float] = field(default_factory=dict)
    cold: Cold | None = None
    output: Output | None = None
    census: Census | None = None
    census_note: str = ""
    code_files: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    telemetry: Telemetry | None = None
    overhead_ms: float | None = None

    def __post_init__(self) -> None:
        if self.schema != SCHEMA_VERSION:
            raise SchemaError(
                f"record schema: this version reads {SCHEMA_VERSION}, got {self.schema}"
            )
        if self.status not in STATUSES:
            raise SchemaError(f"status: expected one of {', '.join(STATUSES)}, got {self.status!r}")
        for name in ("warmup_ms", "execution_ms"):
            for index, value in enumerate(getattr(self, name)):
                if not math.isfinite(value) or value <= 0:
                    raise SchemaError(f"{name}[{index}] must be finite and positive, is {value}")
        if self.status == "ok":
            self._check_complete()

    def _check_complete(self) -> None:
        """An `ok` record holds the full protocol, a cold proof and a passed output check."""
        spec = self.spec
        if len(self.warmup_ms) != spec.warmups or len(self.execution_ms) != spec.executions:
            raise SchemaError(
                f"ok record with {len(self.warmup_ms)} + {len(self.execution_ms)} executions, "
                f"the trial asked for {spec.warmups} + {spec.executions}"
            )
        if self.native is None or self.cold is None or self.output is None:
            raise SchemaError("ok record without native window, cold proof or output check")
        if self.telemetry is None:
            raise SchemaError("ok record without telemetry")
        if self.cold.violations:
            raise SchemaError(f"ok record of a warm trial: {self.cold.violations[0]}")
        if not self.output.passed:
            raise SchemaError(f"ok record with a wrong output: {self.output.reason}")
        missing = set(self.native.phases) - {p.name for p in self.phases}
        if missing:
            raise SchemaError(f"ok record without phase {sorted(missing)[0]!r}")

    @property
    def pooled(self) -> bool:
        """True for a measured, ok trial that ran without any compiler debug switch (case K8)."""
        return self.status == "ok" and self.spec.role == "measured" and not self.debug_flags

    @property
    def debug_flags(self) -> tuple[str, ...]:
        """Compiler debug switches found in the trial's environment."""
        found = [name for name in ("TORCH_COMPILE_DEBUG", "TORCH_LOGS") if name in self.environment]
        if "dump" in self.environment.get("XLA_FLAGS", ""):
            found.append("XLA_FLAGS")
        return tuple(found)

    @property
    def latency_ms(self) -> float:
        """T_X of this process: the mean of its timed executions (paper, protocol)."""
        return fmean(self.execution_ms)

    def phase_ms(self, *names: str) -> float:
        """Total duration of the named phases; a phase that did not occur counts zero."""
        return sum(p.duration_ms for p in self.phases if p.name in names)

    @property
    def toolchain_ms(self) -> float:
        """One-time C++ tool-chain work inside T_C (zero where the stack has none)."""
        return self.phase_ms("toolchain")

    @property
    def fold_ms(self) -> float:
        """Time of the fold before capture (zero where nothing was folded)."""
        return self.phase_ms("fold")

    def compile_cost_ms(self, boundary: str = "native") -> float:
        """T_C of this process in ms under one of the three boundaries (DESIGN: a trial).

        `native` follows the paper and leaves the fold out, `aligned` and `process` contain it.
        `process` adds all phases up, from the start of the process; the harness's own work between
        phases (checksums, the control's copy) is in none of them.
        """
        if self.native is None or not self.phases:
            raise ValueError("a trial that did not compile has no compile cost")
        if boundary == "native":
            total = self.phase_ms(*self.native.phases)
            return total - self.latency_ms if self.native.subtract_latency else total
        if boundary == "aligned":
            return self.phase_ms(*ALIGNED_PHASES) - self.latency_ms
        if boundary == "process":
            return self.phase_ms(*PHASES) - self.latency_ms
        raise ValueError(f"boundary: expected one of {', '.join(BOUNDARIES)}, got {boundary!r}")

    @property
    def first_sample_outlier(self) -> bool:
        """True when the first timed execution is over 5 times the median: kept, but flagged."""
        ordered = sorted(self.execution_ms)
        return bool(ordered) and self.execution_ms[0] > 5 * ordered[len(ordered) // 2]


def load(path: Path) -> Record:
    """Read one record; a fault is a `SchemaError` naming file and key."""
    plain = read(path)
    try:
        return from_plain(Record, plain, "record")
    except SchemaError as error:
        raise SchemaError(f"{path}: {error}") from error


def load_all(directory: Path) -> list[Record]:
    """Every record under `directory`, in name order."""
    return [load(path) for path in sorted(directory.rglob("*.json"))]


def current(records: Sequence[Record]) -> list[Record]:
    """Pooled records of the newest run of each block (an interrupted block is run again whole)."""
    newest: dict[str, int] = {}
    for record in records:
        if record.pooled:
            block = record.spec.block_id
            newest[block] = max(newest.get(block, 0), record.spec.block_run)
    return [r for r in records if r.pooled and r.spec.block_run == newest[r.spec.block_id]]
