"""The clock of a trial: named phases from process start, and the timed executions."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from artifact.records import Phase

T = TypeVar("T")


def process_age_ms() -> float:
    """Milliseconds since the kernel started this process (resolution: one clock tick, 10 ms)."""
    fields = Path("/proc/self/stat").read_text(encoding="ascii", errors="replace")
    start_ticks = int(fields.rpartition(")")[2].split()[19])
    uptime_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    return max(0.0, (uptime_s - start_ticks / os.sysconf("SC_CLK_TCK")) * 1e3)


class Clock:
    """Collects phases. Durations come from `perf_counter_ns` only, never from the wall clock."""

    def __init__(self) -> None:
        age_ms = process_age_ms()
        self._origin_ns = time.perf_counter_ns() - int(age_ms * 1e6)
        self.phases: list[Phase] = [Phase("interpreter", 0.0, age_ms)]

    def now_ms(self) -> float:
        """Milliseconds since the process started."""
        return (time.perf_counter_ns() - self._origin_ns) / 1e6

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time the body as one phase. A phase may occur more than once; durations add up."""
        start_ns = time.perf_counter_ns()
        yield
        end_ns = time.perf_counter_ns()
        self.add(name, start_ns, end_ns)

    def add(self, name: str, start_ns: int, end_ns: int) -> None:
        """Record a phase whose two `perf_counter_ns` stamps were taken elsewhere."""
        self.phases.append(
            Phase(name, (start_ns - self._origin_ns) / 1e6, (end_ns - start_ns) / 1e6)
        )


def time_executions(
    execute: Callable[[], T], synchronize: Callable[[T], None], count: int
) -> tuple[list[float], T | None]:
    """Run `execute` `count` times, each synchronised and timed alone.

    Returns the durations in ms, in order, and the last output (None when count is 0). The
    synchronisation is inside the timed interval: an execution that has not finished on the
    device has not been measured.
    """
    stamps_ns = [0] * (2 * count)
    now = time.perf_counter_ns
    output: T | None = None
    for index in range(0, 2 * count, 2):
        stamps_ns[index] = now()
        output = execute()
        synchronize(output)
        stamps_ns[index + 1] = now()
    return [(stamps_ns[i + 1] - stamps_ns[i]) / 1e6 for i in range(0, 2 * count, 2)], output
