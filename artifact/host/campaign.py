"""A campaign: the plan's trials, one fresh process each, one after another, all on disk.

Order of a session: lock; folder and identity checked; strays of a killed session removed; plan and
manifest on disk; bundles; priming; then block after block, a calibration before each. Every attempt
that started becomes a record with a status. A signal ends the running process, keeps what is
finished, and leaves as `Interrupted`.
"""

from __future__ import annotations

import errno
import shutil
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any

from artifact.errors import UserError
from artifact.host import manifest as manifests
from artifact.host.collect import Rejected, collect_calibration
from artifact.host.engines import Engine, Limits, Outcome, Request
from artifact.host.lock import LOCK_PATH, campaign_lock
from artifact.host.outcome import to_record
from artifact.host.progress import PlainReporter, Remaining, Reporter
from artifact.host.schedule import (
    BlockRun,
    foreign,
    is_finished,
    remaining_blocks,
    remaining_priming,
)
from artifact.host.store import (
    Broken,
    Calibration,
    Cell,
    Store,
    attempts_by_cell,
    disk_errors,
    now_utc,
)
from artifact.plan import Plan, TrialSpec
from artifact.records import Record
from artifact.strict_json import write_atomic
from artifact.study import Study, image_of
from artifact.trial import cold
from artifact.trial.cpus import effective_cpus

#: A campaign stops, with everything kept, before the disk is so full that a record may not fit.
FREE_BYTES = 32 * 1024 * 1024

#: The image that holds g++ and torch: bundles are made and the machine is calibrated in it.
TOOLS_STACK = "inductor"

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

#: Faults of the disk under the campaign, wherever they show, are one line for the person.
DISK_FAULTS = (
    errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EACCES, errno.EPERM,
)  # fmt: skip

EnsureBundles = Callable[[Engine], Path]


class Interrupted(BaseException):
    """A signal ended the campaign. Not an `Exception`: nothing may swallow it on the way out."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(
            f"stopped by {signal.Signals(signal_number).name}; finished records are kept, "
            "continue with --resume"
        )
        self.exit_code = 128 + signal_number


@dataclass
class Summary:
    """What one session did. `attempts` counts statuses per cell over the whole campaign.

    `attempts_each` is how often one session tries a trial.
    """

    directory: Path
    planned: int
    already_done: int
    ran: int = 0
    given_up: list[str] = field(default_factory=list)
    unsupported: list[str] = field(default_factory=list)
    attempts: dict[Cell, Counter[str]] = field(default_factory=dict)
    wall_s: float = 0.0
    attempts_each: int = 1

    @property
    def advice(self) -> str:
        """What to do about trials that were given up, for the closing line; "" without any."""
        if not self.given_up:
            return ""
        return f"--resume (RESUME=1) tries each of them up to {self.attempts_each} more times"

    @property
    def complete(self) -> bool:
        """True when every planned trial has an ok record or is unsupported by its stack."""
        return not self.given_up


def run_campaign(
    plan: Plan,
    directory: Path,
    engine: Engine,
    *,
    study: Study,
    resume: bool = False,
    progress: Reporter | None = None,
    ensure_bundles: EnsureBundles | None = None,
    doctor: Mapping[str, Any] | None = None,
    calibrate: bool = True,
    lock_path: Path = LOCK_PATH,
    only: frozenset[tuple[str, str]] | None = None,
) -> Summary:
    """Run what is missing of `plan` into `directory`.

    `only` limits this session to whole blocks of the given (model, input) pairs; the plan on disk
    stays the whole one, so that a later session can complete it.

    `ensure_bundles` gets the engine and returns the folder of the reference bundles; without it
    trials get none (fake engine). Raises `UserError` for what the person can mend (folder not
    empty, other identity, engine, disk, second campaign) and `Interrupted` after a signal.
    """
    reporter = progress or PlainReporter()
    with campaign_lock(lock_path), _signals_raise():
        session = _Session(plan, Store(directory), engine, study, reporter, calibrate, only)
        try:
            return session.run(resume, ensure_bundles, doctor)
        except KeyboardInterrupt:
            raise Interrupted(signal.SIGINT) from None
        except OSError as error:
            if error.errno not in DISK_FAULTS:
                raise
            with disk_errors(str(directory)):
                raise
        finally:
            reporter.close()


def clean(engine: Engine, lock_path: Path = LOCK_PATH) -> int:
    """Remove what killed campaigns left running; returns how many. Refused while one runs."""
    with campaign_lock(lock_path):
        return engine.remove_strays()


@contextmanager
def _signals_raise() -> Iterator[None]:
    """Turn the first SIGINT, SIGTERM or SIGHUP into `Interrupted`; later ones wait for cleanup."""
    if threading.current_thread() is not threading.main_thread():
        yield  # Python delivers signals to the main thread only
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        for each in _SIGNALS:
            signal.signal(each, signal.SIG_IGN)
        raise Interrupted(number)

    caught = [n for n in _SIGNALS if n != signal.SIGHUP or signal.getsignal(n) != signal.SIG_IGN]
    before = {number: signal.signal(number, interrupt) for number in caught}  # nohup stays nohup
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Session:
    """One run of the campaign program: from the lock to the summary."""

    def __init__(
        self,
        plan: Plan,
        store: Store,
        engine: Engine,
        study: Study,
        reporter: Reporter,
        calibrate: bool,
        only: frozenset[tuple[str, str]] | None,
    ) -> None:
        self.plan = plan
        self.asked = [s for s in plan.trials() if only is None or (s.model, s.input) in only]
        self.store = store
        self.engine = engine
        self.protocol = study.protocol
        self.reporter = reporter
        self.calibrate = calibrate
        self.boot_id = manifests.boot_id()
        self.bundles: Path | None = None
        self.records: list[Record] = []
        self.manifest: dict[str, Any] = {}
        self.remaining = Remaining()
        self.index = 0
        self.start_s = time.monotonic()

    # --- a session from start to end ----------------------------------------------------------
    def run(
        self,
        resume: bool,
        ensure_bundles: EnsureBundles | None,
        doctor: Mapping[str, Any] | None,
    ) -> Summary:
        self._open(resume, doctor)
        asked = {spec.block_id for spec in self.asked}
        blocks = [
            block
            for block in remaining_blocks(self.plan, self.records, self.boot_id)
            if block.block_id in asked
        ]
        total = len(self.asked)
        left = sum(len(block.trials) for block in blocks)
        summary = Summary(
            self.store.directory, total, total - left, attempts_each=self.protocol.attempts
        )
        self.index = total - left
        self.reporter.begin(total, total - left)
        end = "failed"
        try:
            if blocks:
                self._run_blocks(blocks, total, ensure_bundles)
            end = "complete"
        except (Interrupted, KeyboardInterrupt) as stop:
            end = str(stop) or str(Interrupted(signal.SIGINT))
            self.engine.remove_strays(self._name)
            raise
        finally:
            self._close_session(end)
        return self._summarise(summary, left)

    @property
    def _name(self) -> str:
        return self.store.directory.name

    def _open(self, resume: bool, doctor: Mapping[str, Any] | None) -> None:
        """Check folder and identity, put plan and manifest on disk, read what is there."""
        fresh = self.store.is_empty()
        if not fresh and not resume:
            raise UserError(
                f"{self.store.directory} is not empty",
                next_step="continue it with --resume (RESUME=1), or choose another --name",
            )
        stacks = {image_of(spec.stack) for spec in self.plan.trials()}
        prepared = self.engine.prepare(
            sorted(stacks | ({TOOLS_STACK} if self.calibrate else set()))
        )
        identity = manifests.identity(self.plan, self.protocol, self.engine.name, prepared)
        strays = self.engine.remove_strays()  # we hold the lock: whatever runs is left over
        if fresh:
            scratch = self.engine.layout(self.store.work, self.store.work, None).scratch
            self.manifest = manifests.first_manifest(
                self.plan, identity, prepared, doctor, scratch, _limits_of(self.plan)
            )
            self.store.create(self.plan, self.manifest)
        else:
            self.manifest = self.store.manifest()
            manifests.refuse_difference(self._name, self.manifest["identity"], identity)
            self.store.create(self.plan, self.manifest)
            self._read_back()
        self._start_session(strays)

    def _start_session(self, strays: int) -> None:
        self.manifest["sessions"].append(
            {"started_utc": now_utc(), "boot_id": self.boot_id, "end": "running"}
        )
        self.store.write_manifest(self.manifest)
        if strays:
            self._note(f"removed {strays} left over from a session that was killed")

    def _close_session(self, end: str) -> None:
        duration_s = round(time.monotonic() - self.start_s, 3)
        ended = {"end": end, "ended_utc": now_utc(), "duration_s": duration_s}
        self.manifest["sessions"][-1] |= ended
        self.store.write_manifest(self.manifest)

    def _read_back(self) -> None:
        """Records on disk; those that cannot be trusted are moved aside, each with a line."""
        shutil.rmtree(self.store.work, ignore_errors=True)
        records, broken = self.store.scan()
        strangers = foreign(self.plan, records)
        for record in strangers:
            path = self.store.records / f"{record.spec.record_id}.json"
            broken.append(Broken(path, f"{path}: its trial is not the planned one"))
        for item in broken:
            target = self.store.set_aside(item)
            self._note(f"moved aside as {target.name}: {item.reason}")
        self.records = [record for record in records if record not in strangers]

    def _summarise(self, summary: Summary, left: int) -> Summary:
        summary.ran = left
        for spec in self.asked:
            statuses = {r.status for r in self._attempts(spec.trial_id)}
            if "unsupported" in statuses:
                summary.unsupported.append(spec.trial_id)
            elif "ok" not in statuses:
                summary.given_up.append(spec.trial_id)
        summary.attempts = attempts_by_cell(self.records)
        summary.wall_s = time.monotonic() - self.start_s
        return summary

    def _attempts(self, trial_id: str, block_run: int | None = None) -> list[Record]:
        """This trial's records of one run of its block (the newest by default)."""
        own = [r for r in self.records if r.spec.trial_id == trial_id]
        run = block_run or max((r.spec.block_run for r in own), default=1)
        return [r for r in own if r.spec.block_run == run]

    # --- blocks and trials --------------------------------------------------------------------
    def _run_blocks(
        self, blocks: Sequence[BlockRun], total: int, ensure_bundles: EnsureBundles | None
    ) -> None:
        if ensure_bundles is not None:
            self.bundles = ensure_bundles(self.engine)
        needed = {(image_of(s.stack), s.family) for block in blocks for s in block.trials}
        for spec in remaining_priming(self.plan, self.records, self.boot_id):
            if (image_of(spec.stack), spec.family) in needed:
                self.reporter.trial(spec, self.index, total, None)
                self._attempt(spec)
        for number, block in enumerate(blocks):
            if self.calibrate:
                self._calibrate(block)
            for position, spec in enumerate(block.trials):
                later = [s for b in blocks[number + 1 :] for s in b.trials]
                left_s = self.remaining.estimate_s([*block.trials[position:], *later])
                self.index += 1
                self._run_trial(spec, total, left_s)

    def _run_trial(self, spec: TrialSpec, total: int, left_s: float | None) -> None:
        """Try one trial until it is finished or this session's attempts are used up."""
        start_s = time.monotonic()
        for attempt in range(spec.attempt, spec.attempt + self.protocol.attempts):
            spec = spec.again(attempt, spec.block_run)
            self.reporter.trial(spec, self.index, total, left_s)
            self._attempt(spec)
            if is_finished(self._attempts(spec.trial_id, spec.block_run)):
                break
        self.remaining.add(spec, time.monotonic() - start_s)

    def _attempt(self, spec: TrialSpec) -> None:
        """One process that ran, one record.

        A process that never started says nothing about its trial: it leaves no record and uses up
        no attempt. When that happens again and again, the next trials would fail just the same, so
        the campaign stops.
        """
        for _ in range(self.protocol.attempts):
            outcome = self._run_process(spec)
            if outcome.started:
                return
            self._note(f"{spec.record_id} was not started: {outcome.fault}")
        raise UserError(
            f"the engine could not start {spec.trial_id}: {outcome.fault}",
            next_step="mend it and run again with --resume",
        )

    def _run_process(self, spec: TrialSpec) -> Outcome:
        """Ask the engine for one process; the record of one that started is on disk afterwards."""
        self._require_space()
        asked_ns = time.perf_counter_ns()
        started_utc = now_utc()
        request = self._trial_request(spec)
        self.store.log(f"start {spec.record_id}")
        try:
            outcome = self.engine.run(request, spec.deadline_s)
            if not outcome.started:
                return outcome
            record, code = to_record(
                request, outcome, spec, self.engine.name, self.boot_id, started_utc, asked_ns
            )
        finally:
            shutil.rmtree(request.work, ignore_errors=True)
        if record.status != "ok":
            self._require_space()
        self.store.write_record(record, code)
        if outcome.process_ms is not None:
            wall_ms = (time.perf_counter_ns() - asked_ns) / 1e6
            self.store.write_overhead(spec.record_id, wall_ms - outcome.process_ms)
        self.records.append(record)
        self.store.log(f"end {spec.record_id} {record.status}")
        self.reporter.ended(record)
        return outcome

    def _trial_request(self, spec: TrialSpec) -> Request:
        work = self.store.work / spec.record_id
        request = self._request(
            work, spec.record_id, image_of(spec.stack), spec.device, spec.cpus, spec.memory_mib
        )
        layout = request.layout
        with disk_errors(str(work)):
            write_atomic(request.inputs / "trial.json", spec)
        bundle = self.bundles / spec.bundle if self.bundles and spec.bundle else None
        if bundle is not None and not bundle.is_dir():  # no trial of this model could succeed
            raise UserError(f"the reference bundle {bundle} is gone", next_step="run with --resume")
        return replace(
            request,
            arguments=(
                "trial",
                *("--spec", str(layout.inputs / "trial.json")),
                *("--out", str(layout.out)),
                *("--bundle", str(layout.bundles)),
                *("--scratch", str(layout.scratch)),
            ),
            environment=cold.environment(spec, cold.placement_for(spec, layout.scratch)),
            bundle=bundle,
        )

    def _request(
        self, work: Path, request_id: str, stack: str, device: str, cpus: int, memory_mib: int
    ) -> Request:
        """Fresh folders and the frame of a request."""
        with disk_errors(str(work)):
            shutil.rmtree(work, ignore_errors=True)
            (work / "in").mkdir(parents=True)
            (work / "in").chmod(0o755)  # whatever the umask: processes may run as another uid
            (work / "out").mkdir()
        return Request(
            campaign=self._name,
            request_id=request_id,
            stack=stack,
            arguments=(),
            environment={},
            layout=self.engine.layout(work, work / "out", self.bundles),
            work=work,
            out=work / "out",
            bundle=None,
            device=device,
            limits=Limits(cpus=cpus, memory_mib=memory_mib),
        )

    def _calibrate(self, block: BlockRun) -> None:
        """Time the fixed work before a block. A failure is a note: the block can still be run."""
        first = block.trials[0]
        session = len(self.manifest["sessions"])
        work = self.store.work / f"calibration.{block.block_id}"
        request = self._request(work, work.name, TOOLS_STACK, "cpu", first.cpus, first.memory_mib)
        threads = str(min(first.cpus or effective_cpus(), effective_cpus()))
        layout = request.layout
        request = replace(
            request,
            arguments=(
                "calibrate",
                *("--out", str(layout.out), "--scratch", str(layout.scratch)),
                *("--threads", threads),
            ),
            environment=tool_environment(layout.scratch, threads),
        )
        started_utc = now_utc()
        self.store.log(f"calibrate {block.block_id}")
        try:
            outcome = self.engine.run(request, self.protocol.calibration_deadline_s)
            values = collect_calibration(request.out)
        except Rejected as error:
            self._note(
                f"no calibration before {block.block_id}: {error}; {outcome.log_tail[-300:]}"
            )
            return
        finally:
            shutil.rmtree(work, ignore_errors=True)
        self.store.write_calibration(
            Calibration(block.block_id, block.block_run, session, self.boot_id, started_utc, values)
        )

    def _require_space(self) -> None:
        free = shutil.disk_usage(self.store.directory).free
        if free < FREE_BYTES:
            raise UserError(
                f"the disk is full: {free // 2**20} MiB left at {self.store.directory}",
                next_step="finished records are kept; make room and run again with --resume",
            )

    def _note(self, text: str) -> None:
        self.reporter.note(text)
        self.store.log(f"note {text}")


def _limits_of(plan: Plan) -> dict[str, Limits]:
    """Bounds of each configuration's processes (those of its first trial, like environments)."""
    return {
        spec.configuration: Limits(cpus=spec.cpus, memory_mib=spec.memory_mib)
        for spec in reversed(list(plan.trials()))
    }


def tool_environment(scratch: Path, threads: str) -> dict[str, str]:
    """Environment of processes that are not trials (bundles, calibration): nothing inherited."""
    return {
        "HOME": str(scratch.parent),
        "TMPDIR": str(scratch.parent),
        "USER": cold.USER,
        "LOGNAME": cold.USER,
        "LC_ALL": "C.UTF-8",
        "TZ": "UTC",
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": threads,
        "OPENBLAS_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
    }
