"""One campaign at a time: the lock is the kernel's, names its holder and dies with it."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from artifact.errors import UserError
from artifact.host.lock import LOCK_PATH, campaign_lock

HOLDER = """
import sys, time
from pathlib import Path
from artifact.host.lock import campaign_lock
with campaign_lock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def hold(path: Path) -> subprocess.Popen[str]:
    child = subprocess.Popen(
        [sys.executable, "-B", "-c", HOLDER, str(path)],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "held\n"
    return child


def test_a_second_holder_is_refused_with_the_pid_and_kill_9_frees_the_lock(
    tmp_path: Path,
) -> None:
    path = tmp_path / "lock"
    child = hold(path)
    with pytest.raises(UserError, match=f"process {child.pid}"), campaign_lock(path):
        pytest.fail("two holders at once")
    child.kill()
    child.communicate()
    with campaign_lock(path):
        assert path.read_text() == f"{os.getpid()}\n"


def test_the_lock_is_free_again_after_an_error(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with pytest.raises(ValueError, match="inside"), campaign_lock(path):
        raise ValueError("inside")
    with campaign_lock(path):
        pass


def test_another_users_file_can_be_locked_though_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "lock"
    path.write_text("4711\n")
    real_open = os.open

    def protected(name: str, flags: int, *rest: int, **more: int) -> int:
        if Path(name) == path and flags & os.O_CREAT:
            raise PermissionError(13, "Permission denied")
        return real_open(name, flags, *rest, **more)

    monkeypatch.setattr(os, "open", protected)
    with campaign_lock(path):
        assert path.read_text() == "4711\n"
        child_sees_it = subprocess.run(
            ["flock", "--nonblock", str(path), "true"], check=False, capture_output=True
        )
        assert child_sees_it.returncode == 1


def test_a_link_in_the_lock_files_place_is_refused(tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_text("keep")
    (tmp_path / "lock").symlink_to(target)
    with (
        pytest.raises(UserError, match="cannot open the lock file"),
        campaign_lock(tmp_path / "lock"),
    ):
        pytest.fail("followed a link")
    assert target.read_text() == "keep"


def test_the_default_place_does_not_depend_on_the_shell() -> None:
    assert LOCK_PATH.is_absolute()
    assert stat.S_IMODE(LOCK_PATH.parent.stat().st_mode) & 0o1002 == 0o1002
