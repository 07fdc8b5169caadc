"""`artifact audit`: the LayerNorm-Linear audit of one study model, where PyTorch is.

On the host that is the inductor image (no network, read-only, no bundle: the verdicts depend on the
data flow, not on the weights) or the process engine's environment; inside the image it is here.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence

from artifact.errors import UserError

#: As in `artifact.folds.audit_cli`, which cannot be imported without PyTorch.
MODELS = ("bert", "gpt2")
STACK = "inductor"
TIMEOUT_S = 600

#: Run with `python3 -c`, folder of the package and model as arguments: an image may hold an older
#: command line than this checkout, but never other measuring code.
PROGRAM = (
    "import sys; sys.path.insert(0, sys.argv[1]); from artifact.folds import audit_cli; "
    "print('\\n'.join(audit_cli.lines(audit_cli.run(sys.argv[2]))))"
)
IMAGE_PACKAGE = "/opt/artifact"

#: A finished audit ends with its counts.
_COUNTS = re.compile(r"\d+ LayerNorms: \d+ legal, \d+ illegal, \d+ unmatched")

Say = Callable[[str], None]
#: Runs a command in an environment and returns what it wrote, as text.
Runner = Callable[[Sequence[str], Mapping[str, str]], "subprocess.CompletedProcess[str]"]


def audit(model: str, engine: str = "auto", say: Say = print, runner: Runner | None = None) -> None:
    """Print the audit of `model` (`MODELS`): one line a LayerNorm, then the counts.

    With engine `auto` and PyTorch importable it runs in this process.

    Raises:
        UserError: another model, no engine, image or environment, or an audit that failed.
    """
    if model not in MODELS:
        raise UserError(
            f"no LayerNorm-Linear audit for model {model!r}", next_step=f"use {', '.join(MODELS)}"
        )
    if engine == "auto" and has_torch():
        for line in _audited_here(model):
            say(line)
        return
    where, command, environment = command_for(model, engine)
    say(f"audit of {model} in {where}")
    for line in _audited_there(model, command, environment, runner or run_command):
        say(line)


def has_torch() -> bool:
    """True where the audit can run in this process (inside the inductor image)."""
    return all(importlib.util.find_spec(name) for name in ("torch", "transformers"))


def _audited_here(model: str) -> list[str]:
    from artifact.folds import audit_cli

    return audit_cli.lines(audit_cli.run(model))


def command_for(model: str, engine: str) -> tuple[str, list[str], dict[str, str]]:
    """Where the audit runs (an image's tag, an interpreter), its command and its environment."""
    from artifact.host import machine

    chosen = machine.choose(engine, "cpu", "cpu", "cpu").engine
    if chosen == "docker":
        return _in_container(model)
    if chosen == "process":
        return _in_environment(model)
    raise UserError(f"the engine {chosen} has no PyTorch", next_step="use docker or process")


def _in_container(model: str) -> tuple[str, list[str], dict[str, str]]:
    """A container that is removed at its end; labelled, so that `artifact clean` finds a stray."""
    from artifact.host import images
    from artifact.host.engines.docker import LABEL, LABEL_OWNER

    tag = images.image_for(STACK).tag
    command = [os.environ.get("DOCKER") or "docker", "run", "--rm", "--network", "none"]
    command += ["--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL"]
    command += ["--security-opt", "no-new-privileges:true", "--pids-limit", "1024"]
    command += ["--label", f"{LABEL}=1", "--label", f"{LABEL_OWNER}=uid-{os.getuid()}"]
    for variable in ("HOME=/tmp", "TMPDIR=/tmp", "USER=artifact"):
        command += ["--env", variable]
    command += ["--entrypoint", "python3", tag, "-c", PROGRAM, IMAGE_PACKAGE, model]
    return tag, command, dict(os.environ)


def _in_environment(model: str) -> tuple[str, list[str], dict[str, str]]:
    """The process engine's interpreter, isolated (-I) and with nothing written beside the code."""
    from artifact.host import venvs
    from artifact.trial.identity import PACKAGE

    interpreter = venvs.interpreter_for(STACK)
    command = [str(interpreter), "-I", "-B", "-c", PROGRAM, str(PACKAGE.parent), model]
    known = ("HOME", "USER", "TMPDIR")
    environment = {name: os.environ[name] for name in known if name in os.environ}
    path = venvs.search_path(interpreter, os.environ.get("PATH", os.defpath))
    return str(interpreter), command, {**environment, "PATH": path}


def run_command(
    command: Sequence[str], environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, with what it writes kept as text."""
    return subprocess.run(
        command,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def _audited_there(
    model: str, command: Sequence[str], environment: Mapping[str, str], runner: Runner
) -> list[str]:
    """The lines of an audit in another process; one line says why there are none."""
    try:
        ended = runner(command, environment)
    except subprocess.TimeoutExpired as error:
        raise UserError(
            f"the audit of {model} did not end in {TIMEOUT_S} s",
            next_step="run `artifact clean`, then try again on a quiet machine",
        ) from error
    except OSError as error:
        raise UserError(
            f"cannot run {command[0]}: {error.strerror or error}",
            next_step="install it, or use another --engine",
        ) from error
    lines = ended.stdout.splitlines()
    if ended.returncode != 0:
        raise UserError(f"the audit of {model} failed: {_last_line(ended.stderr)}")
    if not lines or not _COUNTS.fullmatch(lines[-1]):
        raise UserError(f"the audit of {model} ended without its counts")
    return lines


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no message"
