"""Noise seen while a trial ran: read from the kernel before and after, never acted on."""

from __future__ import annotations

import os
import resource
import time
from dataclasses import dataclass
from pathlib import Path

from artifact.records import Telemetry


@dataclass(frozen=True)
class Snapshot:
    """Counters of this process, its ended children, and the machine at one moment."""

    wall_ns: int
    cpu_s: float
    involuntary_switches: int
    major_faults: int
    read_bytes: int | None
    steal_ticks: int | None
    total_ticks: int | None
    pressure_us: int | None
    throttled_ns: int | None


def snapshot() -> Snapshot:
    """Read all counters now; what this kernel does not offer is None."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    steal, total = _cpu_ticks()
    return Snapshot(
        wall_ns=time.perf_counter_ns(),
        cpu_s=own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime,
        involuntary_switches=own.ru_nivcsw + children.ru_nivcsw,
        major_faults=own.ru_majflt + children.ru_majflt,
        read_bytes=_keyed(Path("/proc/self/io"), "read_bytes:"),
        steal_ticks=steal,
        total_ticks=total,
        pressure_us=_pressure_us(),
        throttled_ns=_throttled_ns(),
    )


def peak_memory_bytes() -> int:
    """Largest resident memory so far of this process, or of one of its ended children.

    The trial asks for it after the first output and before the output check, whose float64 copies
    are not the program's memory.
    """
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return max(own, children) * 1024


def difference(
    before: Snapshot, after: Snapshot, children_at_steady_state: int, peak_bytes: int
) -> Telemetry:
    """What happened between two snapshots."""
    steal = _minus(after.steal_ticks, before.steal_ticks)
    total = _minus(after.total_ticks, before.total_ticks)
    pressure = _minus(after.pressure_us, before.pressure_us)
    throttled = _minus(after.throttled_ns, before.throttled_ns)
    return Telemetry(
        cpu_s=after.cpu_s - before.cpu_s,
        wall_s=(after.wall_ns - before.wall_ns) / 1e9,
        involuntary_switches=after.involuntary_switches - before.involuntary_switches,
        major_faults=after.major_faults - before.major_faults,
        read_bytes=_minus(after.read_bytes, before.read_bytes),
        steal_fraction=None if steal is None or not total else steal / total,
        pressure_cpu_ms=None if pressure is None else pressure / 1e3,
        throttled_ms=None if throttled is None else throttled / 1e6,
        peak_memory_bytes=peak_bytes,
        children_at_steady_state=children_at_steady_state,
        load_before=None,
    )


def count_children() -> int:
    """Live descendants of this process, zombies left out."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                after_name = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
            except OSError:
                continue  # it ended while we looked
            if after_name[0] != "Z":
                parents[int(entry.name)] = int(after_name[1])
    found = {os.getpid()}
    grown = True
    while grown:
        more = {pid for pid, parent in parents.items() if parent in found and pid not in found}
        grown = bool(more)
        found |= more
    return len(found) - 1


def _minus(after: int | None, before: int | None) -> int | None:
    return None if after is None or before is None else after - before


def _keyed(path: Path, key: str) -> int | None:
    """The integer after `key` at the start of a line of a /proc file."""
    try:
        for line in path.read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith(key):
                return int(line[len(key) :].split()[0])
    except (OSError, ValueError, IndexError):
        return None
    return None


def _cpu_ticks() -> tuple[int | None, int | None]:
    try:
        first = Path("/proc/stat").read_text(encoding="ascii", errors="replace").splitlines()[0]
        ticks = [int(value) for value in first.split()[1:9]]
    except (OSError, ValueError, IndexError):
        return None, None
    return ticks[7], sum(ticks)


def _pressure_us() -> int | None:
    try:
        first = Path("/proc/pressure/cpu").read_text(encoding="ascii").splitlines()[0]
        return int(first.rpartition("total=")[2])
    except (OSError, ValueError, IndexError):
        return None


def _throttled_ns() -> int | None:
    microseconds = _keyed(Path("/sys/fs/cgroup/cpu.stat"), "throttled_usec ")
    if microseconds is not None:
        return microseconds * 1000
    return _keyed(Path("/sys/fs/cgroup/cpu/cpu.stat"), "throttled_time ")
