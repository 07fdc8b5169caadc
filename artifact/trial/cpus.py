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
    quotas = []
    for folder in _own_folders(root, root / "sys/fs/cgroup", ""):
        text = _read(folder / "cpu.max")
        if text is not None and not text.startswith("max"):
            quota, _, period = text.partition(" ")
            quotas.append(_ratio(quota, period))
    return _smallest(quotas)


def _quota_v1(root: Path) -> float | None:
    quotas = []
    for mount in ("cpu", "cpu,cpuacct"):
        for folder in _own_folders(root, root / "sys/fs/cgroup" / mount, "cpu"):
            quota = _read(folder / "cpu.cfs_quota_us")
            period = _read(folder / "cpu.cfs_period_us")
            if quota is not None and period is not None:
                quotas.append(_ratio(quota, period))
    return _smallest(quotas)


def _own_folders(root: Path, mount: Path, controller: str) -> list[Path]:
    """This process's cgroup and all above it, up to the mount point: every one can set a quota.

    `controller` is "" for cgroup v2. Inside a container the path of /proc/self/cgroup may not
    exist below the mount; the mount point is then the container's own cgroup.
    """
    own = "/"
    for line in (_read(root / "proc/self/cgroup") or "").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controller in controllers.split(",") and (controller or number == "0"):
            own = path
    parts = [part for part in own.split("/") if part]
    return [mount.joinpath(*parts[:end]) for end in range(len(parts), -1, -1)]


def _smallest(quotas: list[float | None]) -> float | None:
    found = [quota for quota in quotas if quota is not None]
    return min(found) if found else None


def _ratio(quota: str, period: str) -> float | None:
    """Quota in CPUs; a negative quota means none, an unreadable one is treated as none."""
    try:
        cpus = int(quota) / int(period)
    except (ValueError, ZeroDivisionError):
        return None
    return cpus if cpus > 0 else None
