"""Environments of the process engine: found, made once, refused with what is missing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from artifact.host import venvs
from artifact.host.locks import CHECKOUT, lock_hash


def test_directory_is_named_after_stack_and_locks(tmp_path: Path) -> None:
    expected = f"xla-{lock_hash('xla', 'cuda')[:12]}"
    assert venvs.venv_directory("xla", "cuda", parent=tmp_path) == tmp_path / expected
    assert venvs.venv_directory("tvm").parent == CHECKOUT / ".venvs"


def test_named_interpreter_is_taken_unresolved(tmp_path: Path) -> None:
    """Following the link of a virtual environment's python would lose its packages."""
    link = tmp_path / "python"
    link.symlink_to(sys.executable)
    environment = {"GAPS_PYTHON_XLA": str(link)}
    assert venvs.interpreter_for("xla", environment=environment) == link
    assert venvs.make_venv("xla", environment=environment) == link


def test_named_interpreter_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(venvs.EnvironmentMissing, match="GAPS_PYTHON_TVM"):
        venvs.interpreter_for("tvm", environment={"GAPS_PYTHON_TVM": str(tmp_path)})


def test_environment_without_marker_is_not_used(tmp_path: Path) -> None:
    directory = venvs.venv_directory("inductor", parent=tmp_path)
    (directory / "bin").mkdir(parents=True)
    (directory / "bin" / "python3").symlink_to(sys.executable)
    with pytest.raises(venvs.EnvironmentMissing, match="GAPS_PYTHON_INDUCTOR"):
        venvs.interpreter_for("inductor", parent=tmp_path, environment={})
    (directory / venvs.COMPLETE).touch()
    found = venvs.interpreter_for("inductor", parent=tmp_path, environment={})
    assert found == directory / "bin" / "python3"


def test_missing_programs_are_all_named(tmp_path: Path) -> None:
    with pytest.raises(venvs.EnvironmentMissing, match=r"g\+\+, openssl") as caught:
        venvs.require_tools("inductor", {"PATH": str(tmp_path)})
    assert "install g++ openssl" in str(caught.value)
    venvs.require_tools("xla", {"PATH": str(tmp_path)})


def test_python_without_ensurepip_is_named_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\ncase "$*" in *ensurepip*) exit 1 ;; esac\n', encoding="utf-8")
    python.chmod(0o755)
    monkeypatch.setattr(venvs, "_python", lambda path: str(python))
    with pytest.raises(venvs.EnvironmentMissing, match=r"lacks ensurepip for xla") as caught:
        venvs.require_tools("xla", {"PATH": str(tmp_path)})
    assert "install python3.11-venv" in str(caught.value)


@pytest.fixture
def small_checkout(tmp_path: Path) -> Path:
    """A checkout whose xla lock is empty, so that making its environment needs no index."""
    for name in ("xla/requirements-cpu.lock", "test/requirements.lock"):
        (tmp_path / "docker" / name).parent.mkdir(parents=True)
        (tmp_path / "docker" / name).write_text("# nothing\n", encoding="utf-8")
    return tmp_path


@pytest.mark.slow
def test_environment_is_made_once_and_again_after_a_broken_try(small_checkout: Path) -> None:
    said: list[str] = []
    directory = venvs.venv_directory("xla", root=small_checkout)
    (directory / "bin").mkdir(parents=True)
    (directory / "left-over").touch()
    python = venvs.make_venv("xla", root=small_checkout, environment=os.environ, say=said.append)
    assert python.resolve().is_file()
    assert not (directory / "left-over").exists()
    assert len(said) == 1
    venvs.make_venv("xla", root=small_checkout, environment=os.environ, say=said.append)
    assert len(said) == 1
    extra = [small_checkout / "docker/test/requirements.lock"]
    venvs.make_venv("xla", root=small_checkout, extra_locks=extra, say=said.append)
    assert "docker/test/requirements.lock" in said[1]
    assert len(said) == 2


@pytest.mark.slow
def test_failed_install_leaves_no_complete_environment(small_checkout: Path) -> None:
    lock = small_checkout / "docker/xla/requirements-cpu.lock"
    lock.write_text("unhashed==1\n", encoding="utf-8")
    with pytest.raises(venvs.EnvironmentMissing, match=r"installing docker/xla/.* failed: ERROR"):
        venvs.make_venv("xla", root=small_checkout, environment=os.environ, say=lambda line: None)
    with pytest.raises(venvs.EnvironmentMissing, match="no complete environment"):
        venvs.interpreter_for("xla", root=small_checkout, environment={})


def test_search_path_puts_nvcc_of_the_wheel_first(tmp_path: Path) -> None:
    wheel = tmp_path / "lib" / "python3.11" / "site-packages" / "nvidia" / "cu13" / "bin"
    (tmp_path / "bin").mkdir()
    interpreter = tmp_path / "bin" / "python3"
    assert venvs.search_path(interpreter, "/usr/bin") == f"{tmp_path / 'bin'}:/usr/bin"
    wheel.mkdir(parents=True)
    assert venvs.search_path(interpreter, "/usr/bin") == f"{tmp_path / 'bin'}:{wheel}:/usr/bin"


# docker/host/setup.sh


@pytest.fixture
def host_setup(tmp_path: Path) -> Path:
    """docker/host of a checkout whose lock is empty, so that it needs no index."""
    folder = tmp_path / "a checkout" / "docker" / "host"
    folder.mkdir(parents=True)
    shutil.copy(CHECKOUT / "docker" / "host" / "setup.sh", folder)
    (folder / "requirements.lock").write_text("# nothing\n", encoding="utf-8")
    return folder


def run_setup(folder: Path, python: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [folder / "setup.sh", "run"],
        env=os.environ | {"PYTHON": str(python)},
        capture_output=True,
        text=True,
    )


def test_python_without_ensurepip_is_refused_in_one_line(host_setup: Path, tmp_path: Path) -> None:
    """Debian's python3.11 has the module venv, but cannot make one without python3.11-venv."""
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\ncase "$*" in *ensurepip*) exit 1 ;; esac\n', encoding="utf-8")
    python.chmod(0o755)
    result = run_setup(host_setup, python)
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1
    assert "python3.11-venv" in result.stderr
    assert not (host_setup.parents[1] / ".host").exists()


@pytest.mark.slow
def test_host_environment_without_pip_is_made_anew(host_setup: Path) -> None:
    """What a stopped `python -m venv` leaves: an interpreter, but no pip."""
    environment = host_setup.parents[1] / ".host"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    result = run_setup(host_setup, sys.executable)
    assert result.returncode == 0, result.stderr
    subprocess.run([environment / "bin" / "python", "-c", "import pip"], check=True)
    assert run_setup(host_setup, "/no/python").returncode == 0
