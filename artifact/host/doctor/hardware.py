"""Checks of the machine: room, CPUs and their settings, load, clocks. All of it is only read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from artifact.host.doctor.finding import Finding
from artifact.host.doctor.system import Situation, System

GB = 1_000_000_000
GIB = 1 << 30

#: What the three images take together, shared layers once, and the base and build cache with them.
IMAGES_BYTES = 9_500_000_000
#: The process engine's three virtual environments hold the same packages.
VENVS_BYTES = 9_500_000_000
#: Bundles of all models (about 1 GB), and the records and generated texts of some campaigns.
RESULTS_BYTES = 2_000_000_000

#: The memory limit of a trial in the profiles `smoke` and `cpu`.
SMOKE_MEMORY_BYTES, CPU_MEMORY_BYTES = 8 * GIB, 12 * GIB

#: CPUs that the CPU profiles give to a trial.
WANTED_CPUS = 2

#: Load of the last minute, as a part of the CPUs, that is quiet, and that disturbs.
QUIET_LOAD, BUSY_LOAD = 0.2, 0.5

#: How long the two clocks are compared, and how far they may drift apart in that time.
CLOCK_INTERVAL_S, CLOCK_TOLERANCE_S = 0.2, 0.05
SLOW_CLOCK_SOURCES = ("hpet", "acpi_pm", "refined-jiffies", "jiffies")

CPU = "sys/devices/system/cpu"


def disk(at: Situation) -> Finding:
    """Is there room for images (or virtual environments) and results?"""
    needs = {at.results: RESULTS_BYTES}
    unseen = []
    to_build = at.engine == "docker" and not at.has_images()
    if at.engine == "docker":
        root = _docker_root(at)
        if root is None:
            unseen.append("where Docker keeps images")
        else:
            needs[root] = IMAGES_BYTES if to_build else 0
    else:
        needs[Path(__file__).resolve().parents[3] / ".venvs"] = VENVS_BYTES
    wanted: dict[int, int] = {}
    free: dict[int, int] = {}
    for path, need_bytes in needs.items():
        found = at.system.disk(path)
        if found is None:
            unseen.append("the disk of the results" if path == at.results else "another disk")
        else:
            wanted[found.device] = wanted.get(found.device, 0) + need_bytes
            free[found.device] = found.free_bytes
    parts = [f"{free[d] / GB:.1f} GB free, {wanted[d] / GB:.1f} GB needed" for d in sorted(wanted)]
    words = "; ".join([*parts, *(f"cannot see {name}" for name in unseen)])
    facts = {"free_bytes": [free[d] for d in sorted(free)], "unseen": unseen}
    if any(free[d] < wanted[d] for d in wanted):
        step = "make room (`docker system df` shows images), or put the results elsewhere"
        # Without room for the images nothing starts; what was made before needs none again.
        return Finding("error" if to_build else "warning", words, step, facts)
    return Finding("advice" if unseen else "ok", words, facts=facts)


def _docker_root(at: Situation) -> Path | None:
    """The folder of the engine's images, where it is on this machine (not in a VM, not remote)."""
    root = str(at.information.get("DockerRootDir") or "")
    remote = at.system.environment.get("DOCKER_HOST", "").startswith(("tcp:", "ssh:", "http"))
    seen = root and not remote and (at.system.root / root.lstrip("/")).is_dir()
    return Path(root) if seen else None


def memory(at: Situation) -> Finding:
    """Is there memory for the largest trial?"""
    fields = _memory_fields(at.system)
    total, available = fields.get("MemTotal"), fields.get("MemAvailable")
    limit = _cgroup_limit(at.system)
    facts = {"total_bytes": total, "available_bytes": available, "limit_bytes": limit}
    if total is None or available is None:
        return Finding("advice", "unknown: this kernel does not say", facts=facts)
    usable = min(total, limit) if limit else total
    words = f"{usable / GIB:.1f} GiB, {min(available, usable) / GIB:.1f} GiB of them available"
    if min(available, usable) < SMOKE_MEMORY_BYTES:
        step = "end other programs; a trial may use 8 GiB (smoke) or 12 GiB (cpu)"
        return Finding("warning", f"{words}: trials may be killed", step, facts)
    if usable < CPU_MEMORY_BYTES:
        step = "enough for the profile smoke; cpu lets a trial use 12 GiB"
        return Finding("advice", words, step, facts)
    return Finding("ok", words, facts=facts)


def _memory_fields(system: System) -> dict[str, int]:
    """/proc/meminfo in bytes."""
    found = {}
    for line in (system.read("proc/meminfo") or "").splitlines():
        name, _, value = line.partition(":")
        words = value.split()
        if words and words[0].isdigit():
            found[name] = int(words[0]) * 1024
    return found


def _cgroup_limit(system: System) -> int | None:
    """The memory limit of our cgroup in bytes; None without one (v1 writes a huge number)."""
    for path in ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory/memory.limit_in_bytes"):
        text = system.read(path)
        if text is not None and text.isdigit() and int(text) < 1 << 60:
            return int(text)
    return None


def cpus(at: Situation) -> Finding:
    """How many CPUs may be used, and does a quota cut them?"""
    system = at.system
    usable = system.effective_cpus(system.root)
    online = system.read(f"{CPU}/online")
    allowed = system.allowed_cpus()
    # A group above ours may hold the quota; then only what it leaves is seen.
    quota = _quota(system) or (f"{usable} of {allowed} CPUs" if usable < allowed else None)
    facts = {"usable": usable, "online": online, "quota": quota}
    words = f"{usable} usable (online: {online or 'unknown'})"
    if usable < WANTED_CPUS:
        step = "allow this process two CPUs: the CPU profiles give two to every trial"
        return Finding("warning", words, step, facts)
    if quota:
        step = "lift the CPU quota: a trial that is throttled counts as noisy"
        return Finding("advice", f"{words}, under a quota ({quota})", step, facts)
    return Finding("ok", words, facts=facts)


def _quota(system: System) -> str | None:
    """The CPU quota of our cgroup as the kernel writes it; None without one."""
    text = system.read("sys/fs/cgroup/cpu.max")
    if text is not None:
        return None if text.startswith("max") else text
    for folder in ("cpu", "cpu,cpuacct"):
        text = system.read(f"sys/fs/cgroup/{folder}/cpu.cfs_quota_us")
        if text is not None:
            return None if text.startswith("-") else text
    return None


def governor(at: Situation) -> Finding:
    """Do the CPUs keep their frequency?"""
    paths = sorted((at.system.root / CPU).glob("cpu[0-9]*/cpufreq/scaling_governor"))
    read = (at.system.read(str(path.relative_to(at.system.root))) for path in paths)
    found = sorted({text for text in read if text})
    facts = {"governors": found}
    if not found:
        return _unknown(at, facts)
    if found == ["performance"]:
        return Finding("ok", "performance", facts=facts)
    step = "`cpupower frequency-set -g performance` as root, for steadier times"
    return Finding("advice", ", ".join(found), step, facts)


def turbo(at: Situation) -> Finding:
    """Do the CPUs raise their frequency while they are cool?"""
    off = at.system.read_number(f"{CPU}/intel_pstate/no_turbo")
    boost = at.system.read_number(f"{CPU}/cpufreq/boost")
    if off is None and boost is None:
        return _unknown(at, {"turbo": None})
    active = off == 0 if off is not None else boost == 1
    if not active:
        return Finding("ok", "off", facts={"turbo": False})
    step = "switch it off in the firmware or below /sys, for steadier times"
    return Finding("advice", "on: the first trials may be faster", step, {"turbo": True})


def smt(at: Situation) -> Finding:
    """Do two CPUs share a core?"""
    active = at.system.read_number(f"{CPU}/smt/active")
    if active is None:
        return _unknown(at, {"smt": None})
    if active == 0:
        return Finding("ok", "off: every CPU is a core of its own", facts={"smt": False})
    step = "with two CPUs a trial, choose CPUs of two cores (taskset), or switch SMT off"
    return Finding("advice", "on: two CPUs may be one core", step, {"smt": True})


def _unknown(at: Situation, facts: Mapping[str, Any]) -> Finding:
    why = "a virtual machine hides it" if at.system.is_virtual else "this kernel does not say"
    return Finding("advice", f"unknown: {why}", facts=facts)


def load(at: Situation) -> Finding:
    """Does anything else use the CPUs now?"""
    last_minute = at.system.read_number("proc/loadavg")
    facts = {"load_1min": last_minute}
    if last_minute is None:
        return Finding("advice", "unknown: this kernel does not say", facts=facts)
    part = last_minute / at.system.effective_cpus(at.system.root)
    words = f"{last_minute:.2f} in the last minute"
    if part > BUSY_LOAD:
        step = "end other programs and wait a minute: they disturb every time that is measured"
        return Finding("warning", words, step, facts)
    if part > QUIET_LOAD:
        return Finding("advice", words, "wait a minute for a quieter machine", facts)
    return Finding("ok", words, facts=facts)


def clock(at: Situation) -> Finding:
    """Do the clocks run alike, finely, and is the wall clock set?"""
    system = at.system
    wall_s, monotonic_s = system.clocks()
    system.sleep(CLOCK_INTERVAL_S)
    later_wall_s, later_monotonic_s = system.clocks()
    drift_s = (later_wall_s - wall_s) - (later_monotonic_s - monotonic_s)
    source = system.read("sys/devices/system/clocksource/clocksource0/current_clocksource")
    asked = system.run(["timedatectl", "show", "-p", "NTPSynchronized", "--value"], 5.0)
    synchronised = {"yes": True, "no": False}.get(asked.output.strip())
    facts = {"drift_s": drift_s, "source": source, "synchronised": synchronised}
    if abs(drift_s) > CLOCK_TOLERANCE_S:
        step = "let time synchronisation finish; durations are safe, stamps of records are not"
        words = f"the wall clock moved {drift_s:+.2f} s against the monotonic one"
        return Finding("warning", words, step, facts)
    if source in SLOW_CLOCK_SOURCES:
        step = "boot with a faster clock source (tsc, kvm-clock)"
        return Finding("advice", f"the clock source {source} is slow to read", step, facts)
    if synchronised is False:
        return Finding("advice", "steady, not synchronised", "enable time synchronisation", facts)
    known = "synchronised" if synchronised else "synchronisation unknown"
    return Finding("ok", f"steady, source {source or 'unknown'}, {known}", facts=facts)
