"""An engine that starts nothing: it writes a valid record from the trial's spec, in milliseconds.

It exists so that the campaign's order, retries, resume and failure paths are tested without Docker
or a framework. Its numbers are seeded nonsense; every record says `engine: fake`, and pooling it
with real ones is refused because identities differ.
"""

from __future__ import annotations

import lzma
import os
import random
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from artifact.host.engines import SIGKILL_EXIT, Layout, Outcome, Request, StackIdentity
from artifact.plan import TrialSpec
from artifact.records import SCHEMA_VERSION, Cold, Identity, NativeWindow, Output, Phase, Record
from artifact.records import Telemetry as RecordTelemetry
from artifact.strict_json import from_plain, read, write_atomic, write_bytes_atomic
from artifact.trial.identity import code_hash

#: What a scripted attempt can do. "ok" and the record statuses write a record with that status.
BEHAVIOURS = (
    "ok", "failed", "wrong-output", "warm", "page-cold", "unsupported",
    "timeout", "oom", "killed", "no-record", "truncated", "symlink", "other-trial",
)  # fmt: skip

#: Rough (compile cost, latency) in ms per stack, so that figures drawn from fakes look plausible.
_SCALE_MS = {
    "eager": (2.0, 45.0),
    "inductor": (30_000.0, 41.0),
    "xla": (1_800.0, 90.0),
    "tvm": (10_000.0, 850.0),
}


class FakeEngine:
    """`script` maps a configuration (or a trial id) to what its attempts do, in order.

    The last behaviour of a list repeats; without an entry every attempt is "ok". `duration_s` is
    how long each process "runs"; `log`, if given, gets a line at each start and end. `stack_ids`
    overrides the identity of a stack.
    """

    name = "fake"

    def __init__(
        self,
        script: Mapping[str, tuple[str, ...]] | None = None,
        *,
        duration_s: float = 0.0,
        log: Path | None = None,
        stack_ids: Mapping[str, StackIdentity] | None = None,
    ) -> None:
        self.script = dict(script or {})
        self.duration_s = duration_s
        self.log = log
        self.stack_ids = dict(stack_ids or {})
        self.requests: list[Request] = []
        self.on_run: Callable[[Request], None] | None = None

    def prepare(self, stacks: Iterable[str]) -> Mapping[str, StackIdentity]:
        """Every stack can run."""
        return {stack: self._identity(stack) for stack in stacks}

    def layout(self, work: Path, out: Path, bundles: Path | None) -> Layout:
        """Folders as the host sees them; the scratch folder is never made."""
        return Layout(work / "in", out, bundles or work / "no-bundle", work / "scratch")

    def run(self, request: Request, deadline_s: float) -> Outcome:
        """Do what the script says for this attempt."""
        self.requests.append(request)
        self._note(f"start {request.request_id}")
        try:
            if self.on_run is not None:
                self.on_run(request)
            time.sleep(self.duration_s)
            return self._act(request)
        finally:
            self._note(f"end {request.request_id}")

    def remove_strays(self, campaign: str | None = None) -> int:
        """There are none."""
        return 0

    def close(self) -> None:
        """Nothing to let go of."""

    def _note(self, line: str) -> None:
        if self.log is not None:
            with self.log.open("a", encoding="utf-8") as stream:
                stream.write(f"{line} {os.getpid()}\n")

    def _identity(self, stack: str) -> StackIdentity:
        made = StackIdentity(f"fake-{stack}", "fake-lock", code_hash(), f"fake:{stack}")
        return self.stack_ids.get(stack, made)

    def _act(self, request: Request) -> Outcome:
        behaviour = "ok"
        if request.arguments[0] == "trial":
            spec = from_plain(TrialSpec, read(request.inputs / "trial.json"), "trial")
            behaviour = self._behaviour(spec)
            _write(request.out, spec, behaviour)
        elif request.arguments[0] == "calibrate":
            values = {"compile_ms": 2000.0, "matmul_ms": 100.0, "memory_ms": 50.0}
            write_atomic(request.out / "calibration.json", values)
        exit_codes = {"timeout": None, "oom": SIGKILL_EXIT, "killed": SIGKILL_EXIT, "no-record": 1}
        return Outcome(
            exit_code=exit_codes.get(behaviour, 0),
            oom=behaviour == "oom",
            timed_out=behaviour == "timeout",
            log_tail=f"fake {behaviour}",
            process_id=f"fake-{len(self.requests)}-{os.getpid()}",
            identity=self._identity(request.stack),
            process_ms=self.duration_s * 1e3,
        )

    def _behaviour(self, spec: TrialSpec) -> str:
        steps = self.script.get(spec.trial_id) or self.script.get(spec.configuration) or ("ok",)
        behaviour = steps[min(spec.attempt, len(steps)) - 1]
        if behaviour not in BEHAVIOURS:
            raise ValueError(f"unknown behaviour {behaviour!r}")
        return behaviour


def _write(out: Path, spec: TrialSpec, behaviour: str) -> None:
    """Leave in `out` what a process with this behaviour would leave."""
    if behaviour in ("timeout", "oom", "killed", "no-record"):
        return
    path = out / "record.json"
    if behaviour == "symlink":
        path.symlink_to("/etc/hostname")
    elif behaviour == "truncated":
        path.write_text('{"schema": 1, "spec": {', encoding="utf-8")
    elif behaviour == "other-trial":
        write_atomic(path, fake_record(spec.again(spec.attempt + 7, spec.block_run), "ok"))
    else:
        write_bytes_atomic(out / "code" / "program.xz", lzma.compress(b"fake program\n"))
        write_atomic(path, fake_record(spec, behaviour))


def fake_record(spec: TrialSpec, status: str) -> Record:
    """A complete record with the given status; the same spec always gives the same numbers."""
    source = random.Random(f"{spec.seed}/{spec.record_id}")
    compile_ms, latency_ms = _SCALE_MS.get(spec.stack, (1_000.0, 50.0))
    compile_ms *= source.uniform(0.95, 1.05)
    steps = (("interpreter", 20.0), ("framework_import", 900.0), ("compile", compile_ms))
    return Record(
        schema=SCHEMA_VERSION,
        spec=spec,
        status=status,
        identity=_fake_identity(),
        message="" if status == "ok" else f"fake {status}",
        phases=_phases((*steps, ("first_call", latency_ms))),
        native=NativeWindow(("compile", "first_call"), subtract_latency=True),
        warmup_ms=tuple(latency_ms * source.uniform(1.0, 1.2) for _ in range(spec.warmups)),
        execution_ms=tuple(latency_ms * source.gauss(1.0, 0.01) for _ in range(spec.executions)),
        cold=Cold({"TMPDIR": 0}, {}, {}, 1, ("cache hit",) if status == "warm" else ()),
        output=Output(1e-7, 1e-5, 1e-6, status != "wrong-output", "" if status == "ok" else status),
        code_files=("program.xz",),
        telemetry=RecordTelemetry(1.0, 1.0, 0, 0, 0, 0.0, 0.0, 0.0, 1_000_000, 0),
    )


def _phases(steps: Iterable[tuple[str, float]]) -> tuple[Phase, ...]:
    phases, start_ms = [], 0.0
    for name, duration_ms in steps:
        phases.append(Phase(name, start_ms, duration_ms))
        start_ms += duration_ms
    return tuple(phases)


def _fake_identity() -> Identity:
    return Identity(
        lock_hash="",
        code_hash=code_hash(),
        image_id="",
        engine="",
        process_id="",
        boot_id="",
        started_utc="2000-01-01T00:00:00.000+00:00",
        cpu_model="fake",
        architecture="fake",
        effective_cpus=2,
        threads=2,
        compile_threads=2,
    )
