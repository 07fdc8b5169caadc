"""Everything the doctor reads, in one object, so that a test can pretend any machine."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from artifact.errors import UserError
from artifact.host import machine, venvs
from artifact.trial.cpus import effective_cpus


@dataclass(frozen=True)
class Ran:
    """A command that was run. `code` is None when it is not there or did not end in time."""

    code: int | None
    output: str = ""
    errors: str = ""


@dataclass(frozen=True)
class Disk:
    """The file system under a path: its device number, and what this user may still write."""

    device: int
    free_bytes: int


def run_command(command: Sequence[str], timeout_s: float) -> Ran:
    """Run a command that only reads; its output is kept."""
    try:
        done = subprocess.run(
            list(command),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except OSError as error:
        return Ran(None, errors=error.strerror or str(error))
    except subprocess.TimeoutExpired:
        return Ran(None, errors=f"no answer in {timeout_s:.0f} s")
    return Ran(done.returncode, done.stdout, done.stderr)


def docker_answer() -> Mapping[str, Any] | str:
    """`docker info` of the engine, or one line that says why there is none."""
    import requests
    from docker.errors import DockerException

    missing = machine.why_no_docker()
    if missing:
        return missing
    try:
        return machine.docker_information()
    except (DockerException, requests.exceptions.RequestException) as error:
        return f"the Docker engine stopped answering ({str(error).splitlines()[0][:200]})"


def disk_at(path: Path) -> Disk | None:
    """The disk that holds `path`, or would hold it; None where that cannot be seen."""
    try:
        found = path.absolute()
        while not found.exists():
            found = found.parent
        return Disk(found.stat().st_dev, shutil.disk_usage(found).free)
    except OSError:
        return None


def all_on_path(name: str) -> tuple[str, ...]:
    """Every executable `name` on PATH, in order, each file once."""
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    found = [shutil.which(name, path=folder) for folder in folders if folder]
    return tuple(dict.fromkeys(os.path.realpath(one) for one in found if one))


def is_importable(module: str) -> bool:
    """True when the host program could import `module`."""
    return importlib.util.find_spec(module) is not None


def lacking_for_processes() -> str | None:
    """What the process engine lacks on this machine, in one line; None when it has everything."""
    for stack in sorted(venvs.TOOLS):
        try:
            if not os.environ.get(f"GAPS_PYTHON_{stack.upper()}"):
                venvs.require_tools(stack)
        except UserError as error:
            return str(error)
    return None


def allowed_cpus() -> int:
    """CPUs that the affinity of this process allows, whatever a quota makes of them."""
    return len(os.sched_getaffinity(0))


def read_clocks() -> tuple[float, float]:
    """Wall clock and monotonic clock, in seconds, read together."""
    return time.time(), time.monotonic()


@dataclass(frozen=True)
class System:
    """The machine as the doctor sees it. `root` holds proc/ and sys/; the rest are questions."""

    root: Path = Path("/")
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    uid: int = field(default_factory=os.getuid)
    run: Callable[[Sequence[str], float], Ran] = run_command
    docker: Callable[[], Mapping[str, Any] | str] = docker_answer
    disk: Callable[[Path], Disk | None] = disk_at
    on_path: Callable[[str], tuple[str, ...]] = all_on_path
    importable: Callable[[str], bool] = is_importable
    lacking_for_processes: Callable[[], str | None] = lacking_for_processes
    effective_cpus: Callable[[Path], int] = effective_cpus
    allowed_cpus: Callable[[], int] = allowed_cpus
    clocks: Callable[[], tuple[float, float]] = read_clocks
    sleep: Callable[[float], None] = time.sleep

    def read(self, path: str) -> str | None:
        """The stripped text of a file below `root` (`"proc/loadavg"`), None where unreadable."""
        try:
            return (self.root / path).read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            return None

    def read_number(self, path: str) -> float | None:
        """The first word of such a file as a number; None where it is none."""
        words = (self.read(path) or "").split()
        try:
            return float(words[0])
        except (IndexError, ValueError):
            return None

    @property
    def is_virtual(self) -> bool:
        """True when the processor says that a hypervisor runs it."""
        return "hypervisor" in (self.read("proc/cpuinfo") or "").split()


@dataclass(frozen=True)
class Situation:
    """One examination: the machine, what is wanted of it, and which engine that comes to.

    `docker` is `docker info`, or why no engine answers. `engine` is never `auto`.
    """

    system: System
    asked_engine: str
    device: str
    results: Path
    offline: bool
    docker: Mapping[str, Any] | str

    @property
    def information(self) -> Mapping[str, Any]:
        """`docker info`; empty where no engine answers."""
        return {} if isinstance(self.docker, str) else self.docker

    @property
    def engine(self) -> str:
        """The engine that a campaign would use."""
        if self.asked_engine != "auto":
            return self.asked_engine
        return "process" if isinstance(self.docker, str) else "docker"

    def has_images(self) -> bool:
        """True when every stack has an image of ours, of this checkout or of an older one."""
        name = self.system.environment.get("DOCKER") or "docker"
        command = [name, "image", "ls", "--filter", "label=gaps.stack"]
        listed = self.system.run([*command, "--format", "{{.Repository}}"], 10.0)
        found = {line.rpartition("/")[2] for line in listed.output.split()}
        return listed.code == 0 and set(venvs.TOOLS) <= found
