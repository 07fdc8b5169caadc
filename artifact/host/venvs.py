"""Environments of the process engine: one virtual environment for each stack, from the same locks.

A virtual environment holds absolute paths, so it cannot be made under another name and renamed: a
marker file, written last, says that it is complete. One without the marker is made anew.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from artifact.errors import UserError
from artifact.host.locks import CHECKOUT, lock_files, lock_hash

COMPLETE = "complete"
PYTHON_VERSION = "3.11"

#: What each stack compiles with, beyond its wheels.
TOOLS = {"inductor": ("g++", "openssl"), "xla": (), "tvm": ("g++",)}
DEBIAN_PACKAGES = {"g++": "g++", "openssl": "openssl"}


class EnvironmentMissing(UserError):
    """A stack's environment is not there, not complete, or cannot be made here."""


def venv_directory(
    stack: str, accelerator: str = "cpu", *, root: Path = CHECKOUT, parent: Path | None = None
) -> Path:
    """`<parent>/<stack>-<lock hash>`; the parent is `.venvs/` in the checkout unless given."""
    folder = root / ".venvs" if parent is None else parent
    return folder / f"{stack}-{lock_hash(stack, accelerator, root)[:12]}"


def interpreter_for(
    stack: str,
    accelerator: str = "cpu",
    *,
    root: Path = CHECKOUT,
    parent: Path | None = None,
    environment: Mapping[str, str] = os.environ,
) -> Path:
    """The interpreter that runs trials of `stack`.

    `GAPS_PYTHON_INDUCTOR`, `GAPS_PYTHON_XLA` and `GAPS_PYTHON_TVM` name existing interpreters, for
    machines where nothing can be installed; else it is the one that `make_venv` made.
    Raises `EnvironmentMissing`.
    """
    variable = f"GAPS_PYTHON_{stack.upper()}"
    if environment.get(variable):
        named = Path(environment[variable])
        if not (named.is_file() and os.access(named, os.X_OK)):
            raise EnvironmentMissing(
                f"{variable} names {named}, which is no executable file",
                next_step=f"correct or unset {variable}",
            )
        # Not resolved: a virtual environment's interpreter is a link to one without its packages.
        return named.absolute()
    directory = venv_directory(stack, accelerator, root=root, parent=parent)
    if not (directory / COMPLETE).is_file():
        raise EnvironmentMissing(
            f"no complete environment of {stack} in {directory}",
            next_step=f"run `make build ENGINE=process`, or set {variable} to an interpreter",
        )
    return directory / "bin" / "python3"


def search_path(interpreter: Path, path: str) -> str:
    """`path` with the folders of the interpreter's own programs before it, as in the images.

    nvcc comes in a wheel and finds its headers from its own place, so that place goes on PATH.
    """
    environment = interpreter.parent.parent
    wheels = environment / "lib" / f"python{PYTHON_VERSION}" / "site-packages"
    folders = [interpreter.parent, wheels / "nvidia" / "cu13" / "bin"]
    return os.pathsep.join([*(str(folder) for folder in folders if folder.is_dir()), path])


def make_venv(
    stack: str,
    accelerator: str = "cpu",
    *,
    root: Path = CHECKOUT,
    parent: Path | None = None,
    extra_locks: Sequence[Path] = (),
    environment: Mapping[str, str] = os.environ,
    say: Callable[[str], None] = print,
) -> Path:
    """Make the environment of `stack` if it is not complete, and return its interpreter.

    `extra_locks` are installed too (`docker/test/requirements.lock` for tests). A second call does
    nothing unless it asks for a lock that is not in yet. Raises `EnvironmentMissing` with what the
    machine lacks.
    """
    if environment.get(f"GAPS_PYTHON_{stack.upper()}"):
        return interpreter_for(stack, environment=environment)
    directory = venv_directory(stack, accelerator, root=root, parent=parent)
    interpreter = directory / "bin" / "python3"
    marker = directory / COMPLETE
    locks = [*lock_files(stack, accelerator, root), *extra_locks]
    wanted = [path.relative_to(root).as_posix() for path in locks]
    done = marker.read_text(encoding="utf-8").split() if marker.is_file() else []
    if set(wanted) <= set(done):
        return interpreter
    python = require_tools(stack, environment)
    if not done and directory.exists():
        shutil.rmtree(directory)
    if not done:
        directory.parent.mkdir(parents=True, exist_ok=True)
        _run([python, "-m", "venv", str(directory)], f"making {directory}", environment)
    for path, name in zip(locks, wanted, strict=True):
        if name not in done:
            say(f"{stack}: installing {name} into {directory}")
            install = ["-m", "pip", "install", "--quiet", "--require-hashes", "-r", str(path)]
            _run([str(interpreter), *install], f"installing {name}", environment)
    marker.write_text(
        "".join(f"{name}\n" for name in dict.fromkeys(done + wanted)), encoding="utf-8"
    )
    return interpreter


def require_tools(stack: str, environment: Mapping[str, str] = os.environ) -> str:
    """The Python 3.11 to make `stack`'s environment with.

    Raises `EnvironmentMissing` naming everything that the machine lacks for it.
    """
    path = environment.get("PATH", os.defpath)
    python = _python(path)
    lacking = [] if python else [f"python{PYTHON_VERSION}"]
    if python and not _has_ensurepip(python):
        lacking.append("ensurepip")
    packages = [f"python{PYTHON_VERSION}-venv"] if lacking else []
    for tool in TOOLS[stack]:
        if shutil.which(tool, path=path) is None:
            lacking.append(tool)
            packages.append(DEBIAN_PACKAGES[tool])
    if stack == "inductor" and python and not _has_headers(python):
        lacking.append("Python.h")
        packages.append("python3-dev")
    if lacking or python is None:
        raise EnvironmentMissing(
            f"the process engine lacks {', '.join(lacking)} for {stack}",
            next_step=f"install {' '.join(packages)} (Debian's names)",
        )
    return python


def _python(path: str) -> str | None:
    """A Python of the locks' version: the one running, else the one on PATH."""
    if f"{sys.version_info.major}.{sys.version_info.minor}" == PYTHON_VERSION:
        return sys.executable
    return shutil.which(f"python{PYTHON_VERSION}", path=path)


def _has_ensurepip(python: str) -> bool:
    """Whether the interpreter can make environments; Debian ships that part separately."""
    question = [python, "-c", "import ensurepip, venv"]
    return subprocess.run(question, capture_output=True).returncode == 0


def _has_headers(python: str) -> bool:
    """Whether the interpreter's C headers are there; Inductor compiles against them."""
    if python == sys.executable:
        include = sysconfig.get_path("include")
    else:
        question = "import sysconfig; print(sysconfig.get_path('include'))"
        include = subprocess.run(
            [python, "-c", question], capture_output=True, text=True, check=True
        ).stdout.strip()
    return Path(include, "Python.h").is_file()


def _run(command: Sequence[str], doing: str, environment: Mapping[str, str]) -> None:
    """Run a command; raise `EnvironmentMissing` with the last line it wrote where it fails."""
    result = subprocess.run(
        command,
        env={**environment, "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
        capture_output=True,
        text=True,
    )
    if result.returncode != 0:
        lines = [line for line in (result.stderr + result.stdout).splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith(("ERROR", "Error"))] or lines
        raise EnvironmentMissing(
            f"{doing} failed: {errors[0].strip() if errors else 'no message'}",
            next_step="check network and disk space, then run it again",
        )
