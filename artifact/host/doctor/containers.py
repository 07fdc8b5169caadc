"""Checks of the Docker engine: there, allowed, able to build, to limit, and to hand out a GPU."""

from __future__ import annotations

import re

from artifact.host import machine
from artifact.host.doctor.finding import Finding
from artifact.host.doctor.system import Situation

COMMAND_TIMEOUT_S = 15.0
GPU_TIMEOUT_S = 30.0

#: Docker command lines from 18.09 to 22 have BuildKit inside; newer ones need the buildx plug-in.
FIRST_WITH_BUILDKIT, FIRST_WITHOUT_IT_INSIDE = (18, 9), (23, 0)

NOT_NEEDED = "not needed by the process engine"

#: What `docker info` calls the limits that every container of ours gets.
LIMITS = {"MemoryLimit": "memory", "PidsLimit": "number of processes", "CPUSet": "CPU set"}


def engine(at: Situation) -> Finding:
    """Does a Docker engine answer, and which?"""
    if isinstance(at.docker, str):
        if at.asked_engine == "process":
            return Finding("ok", f"{at.docker}; {NOT_NEEDED}")
        if at.asked_engine == "docker":
            return Finding("error", at.docker, "start it, or use ENGINE=process")
        return Finding(
            "warning",
            f"{at.docker}; the process engine would be used, one fresh process per trial",
            "start Docker to measure in the pinned containers",
        )
    version, system = at.docker.get("ServerVersion"), at.docker.get("OperatingSystem")
    facts = {
        "version": version,
        "system": system,
        "storage": at.docker.get("Driver"),
        "cgroup_version": at.docker.get("CgroupVersion"),
        "kind": at.docker.get("OSType"),
    }
    if at.docker.get("OSType", "linux") != "linux":
        return Finding(
            "error" if at.engine == "docker" else "advice",
            f"the engine runs {at.docker.get('OSType')} containers",
            "switch it to Linux containers",
            facts,
        )
    return Finding("ok", f"Docker {version} on {system}", facts=facts)


def permission(at: Situation) -> Finding:
    """May this user talk to the engine?"""
    who = "root" if at.system.uid == 0 else f"user {at.system.uid}"
    facts = {"uid": at.system.uid}
    if not isinstance(at.docker, str):
        inside = "; containers run as an unprivileged user" if at.system.uid == 0 else ""
        return Finding("ok", f"{who} may use the engine{inside}", facts=facts)
    if "permission" not in at.docker:
        return Finding("ok", "not seen: no engine answers", facts=facts)
    if at.asked_engine == "process":
        return Finding("ok", f"{who} may not use the engine; {NOT_NEEDED}", facts=facts)
    return Finding(
        "error" if at.asked_engine == "docker" else "warning",
        f"{who} may not use the engine",
        "add this user to the group docker and log in again, or run a rootless engine",
        facts,
    )


def buildkit(at: Situation) -> Finding:
    """Can a docker command here build with BuildKit? Told by its version; nothing is built."""
    if at.engine != "docker":
        return Finding("ok", NOT_NEEDED)
    named = at.system.environment.get("DOCKER")
    commands = (named,) if named else at.system.on_path("docker")
    answers = {command: _builder_words(at, command) for command in commands}
    able = [command for command, words in answers.items() if words.startswith("BuildKit")]
    if able:
        return Finding("ok", f"{able[0]}: {answers[able[0]]}", facts={"command": able[0]})
    reasons = "; ".join(f"{command}: {words}" for command, words in answers.items())
    return Finding(
        "warning" if at.has_images() else "error",
        f"no docker command that can build ({reasons or 'none on PATH'})",
        "install docker-buildx, or set DOCKER to another docker command",
    )


def _builder_words(at: Situation, command: str) -> str:
    plugin = at.system.run([command, "buildx", "version"], COMMAND_TIMEOUT_S)
    if plugin.code == 0:
        return f"BuildKit by {plugin.output.strip().splitlines()[0] if plugin.output else 'buildx'}"
    asked = at.system.run(
        [command, "version", "--format", "{{.Client.Version}}"], COMMAND_TIMEOUT_S
    )
    numbers = re.match(r"(\d+)\.(\d+)", asked.output.strip())
    if numbers is None:
        return "does not say its version"
    version = (int(numbers[1]), int(numbers[2]))
    if FIRST_WITH_BUILDKIT <= version < FIRST_WITHOUT_IT_INSIDE:
        return f"BuildKit inside docker {asked.output.strip()}"
    return f"docker {asked.output.strip()} without its buildx plug-in"


def rootless(at: Situation) -> Finding:
    """Does the engine run without root, and what follows?"""
    if at.engine != "docker" or not at.information:
        return Finding("ok", NOT_NEEDED if at.engine == "process" else "not seen")
    found = any("rootless" in str(o) for o in at.information.get("SecurityOptions") or [])
    facts = {"rootless": found}
    if not found:
        return Finding("ok", "the engine runs as root", facts=facts)
    if str(at.information.get("CgroupVersion")) == "1":
        return Finding(
            "warning",
            "a rootless engine on cgroup v1 cannot limit memory, processes or CPUs",
            "boot with cgroup v2, or use an engine that runs as root",
            facts,
        )
    return Finding(
        "advice",
        "a rootless engine: limits need the controllers cpuset, memory and pids delegated to it",
        "compare the check `limits`",
        facts,
    )


def limits(at: Situation) -> Finding:
    """Can the engine limit what a container uses?"""
    if at.engine != "docker" or not at.information:
        return Finding("ok", NOT_NEEDED if at.engine == "process" else "not seen")
    lacking = [words for key, words in LIMITS.items() if at.information.get(key) is False]
    facts = {"lacking": lacking}
    if lacking:
        return Finding(
            "warning",
            f"the engine cannot limit: {', '.join(lacking)}",
            "enable these cgroup controllers (kernel command line, or delegation when rootless)",
            facts,
        )
    return Finding("ok", "memory, processes and CPUs of a container can be limited", facts=facts)


def selinux(at: Situation) -> Finding:
    """Would SELinux keep a container from its output folder?"""
    mode = at.system.read("sys/fs/selinux/enforce")
    options = at.information.get("SecurityOptions") or []
    facts = {"enforcing": None if mode is None else mode == "1"}
    if mode is None:
        return Finding("ok", "not in use", facts=facts)
    if mode != "1":
        return Finding("ok", "permissive", facts=facts)
    if at.engine != "docker" or not any("selinux" in str(option) for option in options):
        return Finding("ok", "enforcing, but not for containers", facts=facts)
    return Finding(
        "warning",
        "enforcing: a container may not write to an output folder without a label",
        "give `artifact reproduce --selinux z`",
        facts,
    )


def gpu(at: Situation) -> Finding:
    """Is there a CUDA device that the engine can hand to a trial?"""
    if at.device == "cpu":
        return Finding("ok", "not asked for")
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    asked = at.system.run(query, GPU_TIMEOUT_S)
    devices = [line.strip() for line in asked.output.splitlines() if line.strip()]
    facts = {"devices": devices}
    if asked.code != 0 or not devices:
        reason = "no NVIDIA driver answers" if asked.code != 0 else "the driver finds no GPU"
        if at.device == "cuda":
            return Finding("error", reason, "install the driver, or use --device cpu")
        return Finding("ok", f"{reason}: the CPU is measured", facts={"devices": []})
    names = "; ".join(devices)
    if at.engine != "docker" or _has_toolkit(at):
        return Finding("ok", names, facts=facts)
    return Finding(
        "error" if at.device == "cuda" else "warning",
        f"{names}, but Docker has no NVIDIA Container Toolkit"
        + ("" if at.device == "cuda" else ": the CPU would be measured"),
        "install the NVIDIA Container Toolkit and restart Docker, or use --device cpu",
        facts,
    )


def _has_toolkit(at: Situation) -> bool:
    # One rule for both: the doctor must not promise what `choose` then refuses.
    return machine.has_container_toolkit(dict(at.information))
