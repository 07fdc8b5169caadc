"""`make test`: every test that this machine can run, each in the environment that it needs.

Host tests run here. Tests of a stack run inside that stack's image (build target `test`, no
network), or in its virtual environment where no Docker engine answers. Tests of isolation and
failure use real containers. What cannot run is listed with the reason, never silently left out.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
STACK_MARKERS = {"inductor": "torch", "xla": "jax", "tvm": "tvm"}
HOST_EXPRESSION = "not torch and not jax and not tvm and not docker"
_COUNT = re.compile(r"(\d+) (passed|failed|skipped|error|errors)\b")


@dataclass
class Part:
    """One pytest run: what it covered, how it ended."""

    name: str
    where: str
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    not_run: str = ""


def main() -> int:
    """Run all parts; 0 when nothing failed."""
    parts = [run_host()]
    missing = _why_no_docker()
    for stack, marker in STACK_MARKERS.items():
        parts.append(
            run_in_venv(stack, marker, missing) if missing else run_in_image(stack, marker)
        )
    parts.append(run_containers(missing))
    report(parts)
    return 1 if any(part.failed for part in parts) else 0


def run_host() -> Part:
    """Host tests, with the coverage of the code that they reach."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", HOST_EXPRESSION]
    command += ["--cov=artifact", "--cov-report=term"]
    return _finish(Part("host", "this interpreter"), command)


def run_in_image(stack: str, marker: str) -> Part:
    """A stack's tests in its image's `test` target: no network, any uid, scratch in a tmpfs."""
    from artifact.host import images

    part = Part(marker, f"image of {stack}")
    (built,) = images.build([stack], target="test", log_directory=ROOT / "results" / "build")
    command = [
        *("docker", "run", "--rm", "--network", "none", "--user", "54321:54321"),
        *("--label", "gaps.test=1", "--read-only", "--shm-size", "1g"),
        *("--tmpfs", "/tmp:exec,size=8g"),
        *("--env", "HOME=/tmp", "--env", "USER=artifact", "--env", "TMPDIR=/tmp"),
        *_mounted("tests"),
        *_mounted("pyproject.toml"),
        *("--workdir", "/checkout", built.image.tag, "-q", "-m", marker, *files_with(marker)),
    ]
    return _finish(part, command)


def _mounted(name: str) -> tuple[str, str]:
    """The checkout's `name`, read-only, at the same place below /checkout."""
    return "--mount", f"type=bind,source={ROOT / name},target=/checkout/{name},readonly"


def run_in_venv(stack: str, marker: str, why_no_docker: str) -> Part:
    """Without Docker: the process engine's environment, if it has been made."""
    from artifact.errors import UserError
    from artifact.host import venvs

    part = Part(marker, f"virtual environment of {stack}")
    try:
        venvs.interpreter_for(stack)
        python = venvs.make_venv(stack, extra_locks=[ROOT / "docker/test/requirements.lock"])
    except UserError as error:
        part.not_run = f"{why_no_docker}; {error}"
        return part
    command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", marker]
    return _finish(part, [*command, *files_with(marker)])


def run_containers(why_no_docker: str | None) -> Part:
    """Isolation and failure tests against the real engine."""
    part = Part("docker", "real containers")
    if why_no_docker:
        part.not_run = why_no_docker
        return part
    return _finish(part, [sys.executable, "-m", "pytest", "-q", "-m", "docker"])


def files_with(marker: str) -> list[str]:
    """Test files that carry a stack's marker, relative to the checkout.

    Only these are given to pytest: the others import what an image does not hold.
    """
    word = f"pytest.mark.{marker}"
    found = [p for p in sorted((ROOT / "tests").rglob("test_*.py")) if word in p.read_text("utf-8")]
    return [p.relative_to(ROOT).as_posix() for p in found]


def report(parts: Iterable[Part]) -> None:
    """One line per part, then the closing line."""
    print("\nmake test:")
    for part in parts:
        counts = f"{part.passed} passed, {part.failed} failed, {part.skipped} skipped"
        outcome = f"NOT RUN: {part.not_run}" if part.not_run else counts
        print(f"  {part.name:8} in {part.where}: {outcome}")
    passed = sum(part.passed for part in parts)
    failed = sum(part.failed for part in parts)
    skipped = sum(part.skipped for part in parts)
    print(f"{passed} passed, {failed} failed, {skipped} skipped")


def _finish(part: Part, command: list[str]) -> Part:
    """Run one pytest, show its output, read its closing counts."""
    print(f"\n--- {part.name} tests in {part.where}", flush=True)
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    last = ""
    for line in process.stdout:
        print(line, end="", flush=True)
        if _COUNT.search(line) and " in " in line:
            last = line
    code = process.wait()
    for number, word in _COUNT.findall(last):
        key = {"passed": "passed", "skipped": "skipped"}.get(word, "failed")
        setattr(part, key, getattr(part, key) + int(number))
    if code != 0 and not part.failed:
        part.failed = 1  # ended badly without saying how many: never reported as a success
    return part


def _why_no_docker() -> str | None:
    from artifact.host.machine import why_no_docker

    return why_no_docker()


if __name__ == "__main__":
    sys.exit(main())
