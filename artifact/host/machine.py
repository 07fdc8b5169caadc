"""What this machine offers: a Docker engine, a CUDA device that containers can reach, venvs' needs.

Only reads. Each question answers with None (yes) or one line that says why not.
"""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from typing import Any

from artifact.errors import UserError

DOCKER_TIMEOUT_S = 10
GPU_QUERY_TIMEOUT_S = 30

PROCESS_ENGINE_NEEDS = "Python 3.11, g++, python3-dev and openssl"


@dataclass(frozen=True)
class Choice:
    """What a campaign will use, and why, in one line each (stored in the manifest)."""

    engine: str
    profile: str
    device: str
    reasons: tuple[str, ...]


def why_no_docker() -> str | None:
    """None when a Docker engine answers; else why not."""
    import requests
    from docker.client import DockerClient
    from docker.errors import DockerException

    try:
        client = DockerClient.from_env(timeout=DOCKER_TIMEOUT_S)
        client.ping()
        client.close()
    except (DockerException, requests.exceptions.RequestException) as error:
        text = str(error)
        if "Permission denied" in text:
            return "no permission to use the Docker engine (add yourself to the group docker)"
        if "No such file" in text or "Connection refused" in text:
            return "no Docker engine answers"
        return f"no Docker engine answers ({text.splitlines()[0][:200]})"
    return None


def docker_information() -> dict[str, Any]:
    """`docker info` of the engine that answers."""
    from docker.client import DockerClient

    client = DockerClient.from_env(timeout=DOCKER_TIMEOUT_S)
    try:
        information: dict[str, Any] = client.info()
        return information
    finally:
        client.close()


def why_no_cuda(engine: str) -> str | None:
    """None when a CUDA device is there and the engine can hand it to a trial; else why not."""
    query = shutil.which("nvidia-smi")
    if query is None:
        return "no NVIDIA driver (nvidia-smi is not on PATH)"
    listed = subprocess.run(
        [query, "--query-gpu=name", "--format=csv,noheader"],
        capture_output=True,
        text=True,
        timeout=GPU_QUERY_TIMEOUT_S,
        check=False,
    )
    if listed.returncode != 0 or not listed.stdout.strip():
        return "nvidia-smi finds no GPU"
    return why_no_gpu_in_containers() if engine == "docker" else None


def why_no_gpu_in_containers() -> str | None:
    """Start one short container with a GPU request; None when it works, else why not."""
    from artifact.host.engines.docker import connect, probe_gpu

    client = connect()
    try:
        return probe_gpu(client)
    finally:
        client.close()


def has_container_toolkit(information: dict[str, Any]) -> bool:
    """What the engine says about itself (`docker info`); only a started container proves it."""
    devices = information.get("DiscoveredDevices") or []
    return "nvidia" in (information.get("Runtimes") or {}) or any(
        "nvidia.com/gpu" in str(device) for device in devices
    )


def choose(engine: str, profile: str, device: str, profile_device: str | None) -> Choice:
    """Resolve `auto` for engine, device and profile.

    `profile_device` is the device of the profile asked for (None when the profile is `auto`).
    Asking for something that is not there is a `UserError`; `auto` falls back and says so.
    """
    if device not in ("auto", "cpu", "cuda"):
        raise UserError(f"unknown device {device!r}", next_step="use auto, cpu or cuda")
    reasons = []
    if engine == "auto":
        missing = why_no_docker()
        engine = "process" if missing else "docker"
        reasons.append(
            f"{missing}: using the process engine, which needs {PROCESS_ENGINE_NEEDS}"
            if missing
            else "a Docker engine answers: one fresh container per trial"
        )
    elif engine == "docker":
        missing = why_no_docker()
        if missing:
            raise UserError(missing, next_step="start it, or use ENGINE=process")
    wanted = profile_device if device == "auto" else device
    if profile_device and wanted != profile_device:
        raise UserError(
            f"profile {profile!r} is for {profile_device}, not for {wanted}",
            next_step="choose a profile for that device, or leave --device auto",
        )
    if wanted == "cpu" or engine == "fake":
        return Choice(engine, "cpu" if profile == "auto" else profile, "cpu", tuple(reasons))
    missing = why_no_cuda(engine)
    if missing and wanted == "cuda":
        raise UserError(
            f"device cuda: {missing}",
            next_step="install the driver and the NVIDIA Container Toolkit, or use --device cpu",
        )
    if missing:
        reasons.append(f"{missing}: measuring on the CPU")
        return Choice(engine, "cpu", "cpu", tuple(reasons))
    reasons.append("a CUDA device is reachable")
    return Choice(engine, "paper" if profile == "auto" else profile, "cuda", tuple(reasons))
