"""`artifact doctor`: what this machine can do, and what to mend. Reads, never changes anything.

Each check reads a few facts and answers with a `Finding`: ok, advice, warning or error, one line,
and the next step. Exit codes: 0 ok or advice only, 1 a warning, 2 an error that keeps the engine
in question from running.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from artifact.errors import UserError
from artifact.host.doctor import containers, hardware, software
from artifact.host.doctor.finding import STATES, Finding, Report
from artifact.host.doctor.system import Disk, Ran, Situation, System

__all__ = ["CHECKS", "STATES", "Check", "Disk", "Finding", "Ran", "Report", "System", "run"]


ENGINES = ("auto", "docker", "process")
DEVICES = ("auto", "cpu", "cuda")


@dataclass(frozen=True)
class Check:
    """One question about the machine: its name, and how it is answered."""

    name: str
    examine: Callable[[Situation], Finding]


#: In the order in which they are shown.
CHECKS = (
    Check("host packages", software.host_packages),
    Check("docker", containers.engine),
    Check("permission", containers.permission),
    Check("buildkit", containers.buildkit),
    Check("rootless", containers.rootless),
    Check("limits", containers.limits),
    Check("selinux", containers.selinux),
    Check("process tools", software.process_tools),
    Check("package index", software.package_index),
    Check("disk", hardware.disk),
    Check("memory", hardware.memory),
    Check("cpus", hardware.cpus),
    Check("governor", hardware.governor),
    Check("turbo", hardware.turbo),
    Check("smt", hardware.smt),
    Check("load", hardware.load),
    Check("gpu", containers.gpu),
    Check("clock", hardware.clock),
)


def run(
    engine: str = "auto",
    device: str = "auto",
    results: Path = Path("results"),
    *,
    offline: bool = False,
    system: System | None = None,
) -> Report:
    """Examine the machine for one engine (auto, docker, process) and device (auto, cpu, cuda).

    `results` is where campaigns would go; `offline` leaves the package index alone. Another word
    for engine or device is a `UserError`; whatever the machine lacks is a finding.
    """
    for what, word, known in (("engine", engine, ENGINES), ("device", device, DEVICES)):
        if word not in known:
            raise UserError(f"unknown {what} {word!r}", next_step=f"use {', '.join(known)}")
    seen = system or System()
    # Without its package nothing can ask the engine; that check names what is missing.
    docker = seen.docker() if seen.importable("docker") else "the docker package is missing"
    at = Situation(seen, engine, device, results, offline, docker)
    return Report(at.engine, device, {check.name: check.examine(at) for check in CHECKS})
