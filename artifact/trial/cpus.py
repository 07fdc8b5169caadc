"""How many CPUs this process may really use: cgroup quota and affinity, not `cpu_count`."""

from __future__ import annotations

import math
import os
from pathlib import Path


def effective_cpus(root: Path = Path("/")) -> int:
    """CPUs allowed by affinity (cpuset) and by the cgroup quota (v2 or v1), at least 1.

    `root` is the root of the file system that holds sys/fs/cgroup (tests pass a fake one).
    """
    available = len(os.sched_getaffinity(0))
    quota = _quota_v2(root)
    if quota is None:
        quota = _quota_v1(root)
    if quota is None:
        return available
    return max(1, min(available, math.ceil(quota)))


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None


def _quota_v2(root: Path) -> float | None:
    text = _read(root / "sys/fs/cgroup/cpu.max")
    if text is None or text.startswith("max"):
        return None
    quota, _, period = text.partition(" ")
    return _ratio(quota, period)


def _quota_v1(root: Path) -> float | None:
    for folder in ("cpu", "cpu,cpuacct"):
        quota = _read(root / "sys/fs/cgroup" / folder / "cpu.cfs_quota_us")
        period = _read(root / "sys/fs/cgroup" / folder / "cpu.cfs_period_us")
        if quota is not None and period is not None:
            return _ratio(quota, period)
    return None


def _ratio(quota: str, period: str) -> float | None:
    """Quota in CPUs; a negative quota means none, an unreadable one is treated as none."""
    try:
        cpus = int(quota) / int(period)
    except (ValueError, ZeroDivisionError):
        return None
    return cpus if cpus > 0 else None
