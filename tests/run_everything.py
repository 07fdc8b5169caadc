"""`make test`: every test that this machine can run, each in the environment that it needs.

Host tests run here. Tests of a stack run inside that stack's image (build target `test`, no
network), or in its virtual environment where no Docker engine answers. Tests of isolation and
failure use real containers. What cannot run is listed with the reason, never silently left out;
with --complete (CI) it is a failure too.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
STACK_MARKERS = {"inductor": "torch", "xla": "jax", "tvm": "tvm"}
BUILD = ROOT / "results" / "build"
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
    duration_s: float = 0.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all parts; 0 when nothing failed (and, with --complete, everything ran)."""
    parser = argparse.ArgumentParser(description="Every test that this machine can run.")
    parser.add_argument("--complete", action="store_true", help="fail when a part cannot run")
    complete = parser.parse_args(arguments).complete
    parts = [run_host()]
    missing = _why_no_docker()
    for stack, marker in STACK_MARKERS.items():
        parts.append(
            run_in_venv(stack, marker, missing) if missing else run_in_image(stack, marker)
        )
    parts.append(run_containers(missing))
    report(parts)
    return exit_code(parts, complete=complete)


def exit_code(parts: Sequence[Part], *, complete: bool) -> int:
    """1 when a test failed; with `complete` also when a part has not one test that passed."""
    if any(part.failed for part in parts):
        return 1
    missing = [part.name for part in parts if part.not_run or not part.passed]
    if complete and missing:
        print(f"not complete: {', '.join(missing)}")
        return 1
    return 0


def run_host() -> Part:
    """Host tests, with the coverage of the code that they reach."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", HOST_EXPRESSION]
    command += ["--cov=artifact", "--cov-report=term"]
    return _finish(Part("host", "this interpreter"), command)


def run_in_image(stack: str, marker: str) -> Part:
    """A stack's tests in its image's `test` target: no network, any uid, scratch in a tmpfs."""
    from artifact.errors import UserError
    from artifact.host import images

    part = Part(marker, f"image of {stack}")
    try:
        (built,) = images.build([stack], target="test", log_directory=BUILD)
    except UserError as error:
        part.not_run, part.failed = str(error), 1
        return part
    BUILD.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=BUILD) as folder:
        checkout = readable_copy(ROOT, Path(folder, "checkout"))
        command = [
            *(os.environ.get("DOCKER") or "docker", "run", "--rm", "--network", "none"),
            *("--user", "54321:54321", "--label", "gaps.test=1", "--read-only"),
            *("--shm-size", "1g", "--tmpfs", "/tmp:exec,size=8g"),
            *("--env", "HOME=/tmp", "--env", "USER=artifact", "--env", "TMPDIR=/tmp"),
            *("--mount", f'type=bind,"source={checkout}",target=/checkout,readonly'),
            *("--workdir", "/checkout", built.image.tag, "-q", "-m", marker, *files_with(marker)),
        ]
        return _finish(part, command)


def readable_copy(root: Path, target: Path) -> Path:
    """What tests in a container read of the checkout `root`, readable for any uid.

    Under umask 077 the checkout itself is not, and no test should ask to change it.
    """
    shutil.copytree(root / "tests", target / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(root / "pyproject.toml", target)
    for path in (target, *target.rglob("*")):
        path.chmod(path.stat().st_mode | (0o555 if path.is_dir() else 0o444))
    return target


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


def report(parts: Sequence[Part]) -> None:
    """One line per part with its seconds, then the closing line."""
    print("\nmake test:")
    for part in parts:
        counts = f"{part.passed} passed, {part.failed} failed, {part.skipped} skipped"
        outcome = f"NOT RUN: {part.not_run}" if part.not_run else counts
        print(f"  {part.name:8} in {part.where}: {outcome} ({part.duration_s:.0f} s)")
    passed = sum(part.passed for part in parts)
    failed = sum(part.failed for part in parts)
    skipped = sum(part.skipped for part in parts)
    duration_s = sum(part.duration_s for part in parts)
    print(f"{passed} passed, {failed} failed, {skipped} skipped in {duration_s:.0f} s")


def _finish(part: Part, command: list[str]) -> Part:
    """Run one pytest, show its output, read its closing counts."""
    print(f"\n--- {part.name} tests in {part.where}", flush=True)
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    started = time.monotonic()
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
    part.duration_s = time.monotonic() - started
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
