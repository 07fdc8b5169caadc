"""What the person sees while a campaign runs: a bar on a terminal, plain ASCII lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from statistics import median
from typing import Protocol, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from artifact.plan import TrialSpec
from artifact.records import Record


class Reporter(Protocol):
    """The campaign's four messages to the person."""

    def begin(self, total: int, already_done: int) -> None:
        """`total` measured trials are planned, `already_done` of them have been run before."""
        ...

    def trial(self, spec: TrialSpec, index: int, total: int, remaining_s: float | None) -> None:
        """Trial `index` of `total` starts; `remaining_s` is None while nobody can know."""
        ...

    def ended(self, record: Record) -> None:
        """An attempt ended."""
        ...

    def note(self, text: str) -> None:
        """Something the person should know."""
        ...

    def close(self) -> None:
        """The campaign is over, one way or another."""
        ...


class Remaining:
    """Remaining time from medians of what has run so far."""

    def __init__(self) -> None:
        self._seconds: dict[tuple[str, str, str], list[float]] = {}

    def add(self, spec: TrialSpec, wall_s: float) -> None:
        """A trial took `wall_s` seconds on the host's monotonic clock."""
        self._seconds.setdefault(_cell(spec), []).append(wall_s)

    def estimate_s(self, left: Sequence[TrialSpec]) -> float | None:
        """Seconds for `left`: a cell's own median, else the median of all; None without any."""
        everything = [value for values in self._seconds.values() for value in values]
        if not everything:
            return None
        overall = median(everything)
        own = {cell: median(values) for cell, values in self._seconds.items()}
        return sum(own.get(_cell(spec), overall) for spec in left)


def _cell(spec: TrialSpec) -> tuple[str, str, str]:
    return spec.model, spec.input, spec.configuration


def clock_text(seconds: float | None) -> str:
    """`"1:02:03"`, `"2:03"`, or `"?"` when nobody can know."""
    if seconds is None:
        return "?"
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"


def describe(record: Record) -> str:
    """One line about an attempt that ended: times of an ok one, the reason of any other."""
    name = f"{record.spec.model} {record.spec.input} {record.spec.configuration}"
    if record.status == "ok":
        cost_s = record.compile_cost_ms() / 1e3
        return f"{name}: ok, T_C {cost_s:.2f} s, T_X {record.latency_ms:.2f} ms"
    return f"{name}: {record.status} (attempt {record.spec.attempt}) {record.message}".rstrip()


def _title(spec: TrialSpec) -> str:
    role = "" if spec.role == "measured" else f"{spec.role} "
    again = f", attempt {spec.attempt}" if spec.attempt > 1 else ""
    return f"{role}{spec.model} {spec.input} {spec.configuration}, round {spec.round}{again}"


class PlainReporter:
    """One ASCII line per event; for pipes, logs and continuous integration."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr

    def begin(self, total: int, already_done: int) -> None:
        """See `Reporter`."""
        self.note(f"{total} trials, {already_done} of them already done")

    def trial(self, spec: TrialSpec, index: int, total: int, remaining_s: float | None) -> None:
        """See `Reporter`."""
        self.note(f"[{index}/{total}] {_title(spec)}; remaining {clock_text(remaining_s)}")

    def ended(self, record: Record) -> None:
        """See `Reporter`."""
        self.note(f"  {describe(record)}")

    def note(self, text: str) -> None:
        """See `Reporter`."""
        line = text.encode("ascii", errors="backslashreplace").decode("ascii")
        print(line, file=self._stream, flush=True)

    def close(self) -> None:
        """See `Reporter`."""


class BarReporter:
    """A progress bar; lines that matter scroll above it.

    It is redrawn when something happens, never by a timer: a thread that wakes up ten times a
    second would run beside the process that is being timed.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[position]}"),
            TimeElapsedColumn(),
            TextColumn("remaining {task.fields[remaining]}"),
            console=console or Console(stderr=True),
            auto_refresh=False,
        )
        self._task: TaskID | None = None

    def begin(self, total: int, already_done: int) -> None:
        """See `Reporter`."""
        self._bar.start()
        self._task = self._bar.add_task(
            "starting", total=total, completed=already_done, position="", remaining="?"
        )
        self._bar.refresh()

    def trial(self, spec: TrialSpec, index: int, total: int, remaining_s: float | None) -> None:
        """See `Reporter`."""
        if self._task is not None:
            self._bar.update(
                self._task,
                description=_title(spec),
                completed=max(index - 1, 0),
                position=f"{index}/{total}",
                remaining=clock_text(remaining_s),
                refresh=True,
            )

    def ended(self, record: Record) -> None:
        """See `Reporter`."""
        self.note(describe(record))

    def note(self, text: str) -> None:
        """See `Reporter`."""
        self._bar.console.print(text, markup=False, highlight=False)

    def close(self) -> None:
        """See `Reporter`."""
        if self._task is not None:
            self._bar.refresh()
        self._bar.stop()


def reporter() -> Reporter:
    """A bar where standard error is a terminal, plain lines elsewhere."""
    return BarReporter() if sys.stderr.isatty() else PlainReporter()
