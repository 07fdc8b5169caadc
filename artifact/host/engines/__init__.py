"""Engines: how one process of a stack is started, limited, awaited and cleaned up.

The campaign knows only this file. An engine runs exactly one process per request, enforces the
deadline with its own clock, and leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

#: Characters of a process's output that are kept (the end of it).
LOG_TAIL_CHARACTERS = 8000

#: Characters of a process's own message that are kept (the start of it).
MESSAGE_CHARACTERS = 2000

SIGKILL_EXIT = 137  # 128 + SIGKILL, what a shell and Docker report for a killed process


@dataclass(frozen=True)
class StackIdentity:
    """What a stack's processes run: image id (or interpreter), lock hash, hash of our code."""

    image_id: str
    lock_hash: str
    code_hash: str
    tag: str = ""


@dataclass(frozen=True)
class Layout:
    """The folders of one process, as the process itself sees them."""

    inputs: Path
    out: Path
    bundles: Path
    scratch: Path


@dataclass(frozen=True)
class Limits:
    """Bounds of one process. `cpus` = 0 and `memory_mib` = 0 mean no limit."""

    cpus: int
    memory_mib: int
    pids: int = 2048
    tmpfs_mib: int = 4096
    shm_mib: int = 1024
    file_mib: int = 8192


@dataclass(frozen=True)
class Request:
    """One process to run.

    `work` is a folder of this process alone, with `in/` (read by it); `out` is the one folder it
    may write. `arguments` follow the word `artifact`; `environment` is complete, an engine adds
    PATH only. `bundle` is one bundle's folder or None.
    """

    campaign: str
    request_id: str
    stack: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    layout: Layout
    work: Path
    out: Path
    bundle: Path | None
    device: str
    limits: Limits

    @property
    def inputs(self) -> Path:
        """Host folder with `trial.json`."""
        return self.work / "in"


@dataclass(frozen=True)
class Timing:
    """Where the host's time around one process went, in ms."""

    create_ms: float = 0.0
    start_ms: float = 0.0
    wait_ms: float = 0.0
    remove_ms: float = 0.0


@dataclass(frozen=True)
class Outcome:
    """How one process ended.

    `exit_code` is None when nobody could tell; `fault` then says why. `started` is False when the
    engine never got the process to run. `process_ms` is the life of the process as the engine saw
    it (start of the process to its end), without the engine's own work around it.
    """

    exit_code: int | None
    oom: bool
    timed_out: bool
    log_tail: str
    process_id: str
    identity: StackIdentity
    process_ms: float | None = None
    timing: Timing = field(default_factory=Timing)
    fault: str = ""
    started: bool = True


class Engine(Protocol):
    """The five things a campaign asks of an engine."""

    name: str

    def prepare(self, stacks: Iterable[str]) -> Mapping[str, StackIdentity]:
        """Check that each stack can run; a `UserError` says what is missing and what to do."""
        ...

    def layout(self, work: Path, out: Path, bundles: Path | None) -> Layout:
        """The folders of the next process as it will see them. Called once per request."""
        ...

    def run(self, request: Request, deadline_s: float) -> Outcome:
        """Run one process to its end, or kill it at the deadline; nothing of it is left after."""
        ...

    def remove_strays(self, campaign: str | None = None) -> int:
        """Remove what a killed campaign of ours left running; returns how many there were."""
        ...

    def close(self) -> None:
        """Let go of connections."""
        ...


@dataclass(frozen=True)
class ExitVerdict:
    """What an exit code and the kernel's out-of-memory mark mean together.

    `status` is None when the process ended well and its record decides.
    """

    status: str | None
    message: str


def judge_exit(exit_code: int | None, oom: bool) -> ExitVerdict:
    """The rule table for (exit code, out-of-memory mark); case D7.

    A process that ended with 0 although the kernel killed something inside it keeps its record,
    with a warning.
    """
    if exit_code is None:
        return ExitVerdict("failed", "the engine could not say how the process ended")
    if exit_code == 0:
        return ExitVerdict(None, "warning: the kernel killed a child for memory" if oom else "")
    if oom:
        return ExitVerdict("oom", f"out of memory (exit code {exit_code})")
    if exit_code == SIGKILL_EXIT:
        return ExitVerdict("failed", "killed (137), possible OOM")
    return ExitVerdict("failed", f"exit code {exit_code}")


def tail(text: str) -> str:
    """The end of a log, bounded, without characters that a terminal would obey."""
    end = text[-LOG_TAIL_CHARACTERS:]
    return "".join(c if c.isprintable() or c in "\n\t" else "?" for c in end).strip()


def one_line(text: str) -> str:
    """The start of a message as one bounded line, harmless like `tail`."""
    return " ".join(tail(text[:MESSAGE_CHARACTERS]).split())
