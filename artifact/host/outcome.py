"""From how a process ended and what it left behind to the one record that is kept."""

from __future__ import annotations

import dataclasses
import platform
import time
from collections.abc import Mapping

from artifact.errors import UserError
from artifact.host.collect import Rejected, collect
from artifact.host.engines import Outcome, Request, judge_exit, one_line, tail
from artifact.host.manifest import cpu_model
from artifact.plan import TrialSpec
from artifact.records import SCHEMA_VERSION, Identity, Record
from artifact.trial.cpus import effective_cpus


def to_record(
    request: Request,
    outcome: Outcome,
    spec: TrialSpec,
    engine: str,
    boot_id: str,
    started_utc: str,
    asked_ns: int,
) -> tuple[Record, Mapping[str, bytes]]:
    """The record of one attempt and its code files.

    A process that left no valid record still gives one, with the reason as its status. Identity
    fields that the host knows better than the process are filled in by the host. `overhead_ms` is
    the host's time from asking the engine (`asked_ns`, `perf_counter_ns`) until the record is
    ready to be written, less `process_ms`, the life of the process as its engine saw it. It leaves
    out what comes after: removing the trial's folders and writing record, code files and
    checksums. `overheads.csv` beside the records has the time with these in it.
    """
    try:
        collected = collect(request.out, spec)
        fault = ""
    except Rejected as error:
        collected, fault = None, str(error)
    if collected is None:
        record, code = _without_record(request, outcome, spec, fault, started_utc), {}
    else:
        _require_same_code(collected.record, outcome, request.stack)
        record, code = _judged(_harmless(collected.record), outcome), dict(collected.code)
    record = _identified(record, outcome, engine, boot_id)
    if outcome.process_ms is not None:
        wall_ms = (time.perf_counter_ns() - asked_ns) / 1e6
        record = dataclasses.replace(record, overhead_ms=wall_ms - outcome.process_ms)
    return record, code


def _harmless(record: Record) -> Record:
    """The record with its free text filtered: a process wrote it, and a person will read it."""
    return dataclasses.replace(
        record, message=one_line(record.message), log_tail=tail(record.log_tail)
    )


def _judged(record: Record, outcome: Outcome) -> Record:
    """The process's own record, overruled where its end says otherwise.

    A record that was whole before the interpreter was killed at the deadline counts (case K5: slow
    interpreter exit); one of a process that ended badly otherwise is kept but does not.
    """
    if outcome.timed_out:
        return _with_message(record, record.status, "killed at the deadline after its record")
    verdict = judge_exit(outcome.exit_code, outcome.oom)
    if verdict.status is None:
        return _with_message(record, record.status, verdict.message)
    ended = outcome.fault or verdict.message
    status = verdict.status if record.status == "ok" else record.status
    return dataclasses.replace(
        _with_message(record, status, f"{ended}, after its record"),
        log_tail=record.log_tail or outcome.log_tail,
    )


def _with_message(record: Record, status: str, more: str) -> Record:
    message = "; ".join(part for part in (record.message, more) if part)
    return dataclasses.replace(record, status=status, message=message)


def _without_record(
    request: Request, outcome: Outcome, spec: TrialSpec, fault: str, started_utc: str
) -> Record:
    status, message = _why(outcome, spec, fault)
    cpus = effective_cpus()
    threads = min(spec.cpus, cpus) if spec.cpus else cpus
    return Record(
        schema=SCHEMA_VERSION,
        spec=spec,
        status=status,
        message=message,
        log_tail=outcome.log_tail,
        environment=dict(request.environment),
        identity=Identity(
            lock_hash="",
            code_hash=outcome.identity.code_hash,
            image_id="",
            engine="",
            process_id="",
            boot_id="",
            started_utc=started_utc,
            cpu_model=cpu_model(),
            architecture=platform.machine(),
            effective_cpus=cpus,
            threads=threads,
            compile_threads=threads,
        ),
    )


def _why(outcome: Outcome, spec: TrialSpec, fault: str) -> tuple[str, str]:
    """Status and message of a process without a valid record."""
    if outcome.timed_out:
        return "timeout", f"no record after {spec.deadline_s:.0f} s; killed"
    verdict = judge_exit(outcome.exit_code, outcome.oom)
    reasons = [outcome.fault, verdict.message if not outcome.fault else "", one_line(fault)]
    return verdict.status or "failed", "; ".join(r for r in reasons if r) or "left no record"


def _identified(record: Record, outcome: Outcome, engine: str, boot_id: str) -> Record:
    known = dataclasses.replace(
        record.identity,
        lock_hash=outcome.identity.lock_hash,
        image_id=outcome.identity.image_id,
        process_id=outcome.process_id,
        engine=engine,
        boot_id=boot_id,
    )
    return dataclasses.replace(record, identity=known)


def _require_same_code(record: Record, outcome: Outcome, stack: str) -> None:
    """The code that ran must be the code that the image's label (or the checkout) names."""
    if record.identity.code_hash != outcome.identity.code_hash:
        raise UserError(
            f"the {stack} image ran other code ({record.identity.code_hash[:12]}) than it is "
            f"labelled with ({outcome.identity.code_hash[:12]})",
            next_step="run `artifact build`",
        )
