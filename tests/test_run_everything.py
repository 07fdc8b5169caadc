"""`make test`: what it counts as a failure, and what it gives to the containers."""

from __future__ import annotations

import stat
import sys
from pathlib import Path

import pytest

from tests import run_everything
from tests.run_everything import Part, exit_code, readable_copy, report

RAN = Part("host", "here", passed=3, duration_s=2.4)
NOT_RUN = Part("tvm", "there", not_run="no Docker engine answers")


@pytest.mark.parametrize(
    ("part", "code", "complete_code"),
    [
        (RAN, 0, 0),
        (NOT_RUN, 0, 1),
        (Part("jax", "there", skipped=4), 0, 1),
        (Part("jax", "there", passed=4, failed=1), 1, 1),
    ],
)
def test_what_cannot_run_is_a_failure_only_when_everything_must(
    part: Part, code: int, complete_code: int
) -> None:
    assert exit_code([RAN, part], complete=False) == code
    assert exit_code([RAN, part], complete=True) == complete_code


def test_option_complete_reaches_the_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_everything, "run_host", lambda: RAN)
    monkeypatch.setattr(run_everything, "_why_no_docker", lambda: "no engine")
    monkeypatch.setattr(run_everything, "run_in_venv", lambda *_: NOT_RUN)
    assert run_everything.main([]) == 0
    assert run_everything.main(["--complete"]) == 1


def test_each_part_says_its_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    report([RAN, NOT_RUN])
    lines = capsys.readouterr().out.splitlines()
    assert "  host     in here: 3 passed, 0 failed, 0 skipped (2 s)" in lines
    assert "  tvm      in there: NOT RUN: no Docker engine answers (0 s)" in lines
    assert lines[-1] == "3 passed, 0 failed, 0 skipped in 2 s"


def test_a_run_that_ends_badly_without_a_count_is_a_failure() -> None:
    program = "import sys, time; time.sleep(0.1); sys.exit(3)"
    part = run_everything._finish(Part("x", "here"), [sys.executable, "-c", program])
    assert part.failed == 1
    assert part.duration_s >= 0.1


def test_an_image_that_cannot_be_built_fails_its_part_only(monkeypatch: pytest.MonkeyPatch) -> None:
    from artifact.host import images

    def refuse(*_: object, **__: object) -> None:
        raise images.BuildFailed("no space left")

    monkeypatch.setattr(images, "build", refuse)
    part = run_everything.run_in_image("xla", "jax")
    assert (part.not_run, part.failed) == ("no space left", 1)


def test_containers_get_tests_that_any_uid_can_read(tmp_path: Path) -> None:
    """A checkout made under umask 077 lets nobody but its owner in."""
    deep = tmp_path / "clone" / "tests" / "data" / "x.txt"
    deep.parent.mkdir(parents=True)
    deep.write_text("x", encoding="utf-8")
    (deep.parent / "__pycache__").mkdir()
    (tmp_path / "clone" / "pyproject.toml").touch()
    for path in (tmp_path / "clone").rglob("*"):
        path.chmod(0o700 if path.is_dir() else 0o600)
    copy = readable_copy(tmp_path / "clone", tmp_path / "copy")
    found = {
        p.relative_to(copy).as_posix(): stat.S_IMODE(p.stat().st_mode) for p in copy.rglob("*")
    }
    assert found == {
        "tests": 0o755,
        "tests/data": 0o755,
        "tests/data/x.txt": 0o644,
        "pyproject.toml": 0o644,
    }
    assert stat.S_IMODE(copy.stat().st_mode) & 0o555 == 0o555
    assert stat.S_IMODE(deep.stat().st_mode) == 0o600
