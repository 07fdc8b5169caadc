"""`artifact audit` on the host: which command it runs, what it prints, what it refuses."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from artifact.errors import UserError
from artifact.host import audit as auditing
from artifact.host import images, machine

ROOT = Path(__file__).resolve().parents[2]
TABLE = """site  verdict  reason  [consumers]
ln_f  illegal  tied  [lm_head]
1 LayerNorms: 0 legal, 1 illegal, 0 unmatched
"""


class Recorder:
    """A runner that keeps the command and answers as told."""

    def __init__(self, stdout: str = TABLE, stderr: str = "", code: int = 0) -> None:
        self.answer = (stdout, stderr, code)
        self.command: list[str] = []
        self.environment: dict[str, str] = {}

    def __call__(
        self, command: Sequence[str], environment: Mapping[str, str]
    ) -> subprocess.CompletedProcess[str]:
        self.command, self.environment = list(command), dict(environment)
        stdout, stderr, code = self.answer
        return subprocess.CompletedProcess(self.command, code, stdout, stderr)


@pytest.fixture(autouse=True)
def machine_with_docker(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Docker engine that holds the image; no PyTorch in this process; no DOCKER variable."""
    monkeypatch.setattr(auditing, "has_torch", lambda: False)
    monkeypatch.setattr(machine, "why_no_docker", lambda: None)
    monkeypatch.setattr(images, "image_for", lambda stack: SimpleNamespace(tag=f"gaps/{stack}:1"))
    monkeypatch.delenv("DOCKER", raising=False)


@pytest.fixture
def interpreter(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No Docker engine; the process engine's interpreter is a link to this one."""
    link = tmp_path / "python3"
    link.symlink_to(sys.executable)
    monkeypatch.setattr(machine, "why_no_docker", lambda: "no Docker engine answers")
    monkeypatch.setenv("GAPS_PYTHON_INDUCTOR", str(link))
    return link


def run(model: str, runner: Any, engine: str = "auto") -> list[str]:
    said: list[str] = []
    auditing.audit(model, engine, said.append, runner)
    return said


def test_in_a_container_without_network_and_without_a_bundle() -> None:
    runner = Recorder()
    assert run("gpt2", runner) == ["audit of gpt2 in gaps/inductor:1", *TABLE.splitlines()]
    options = runner.command[: runner.command.index("gaps/inductor:1")]
    assert options[:3] == ["docker", "run", "--rm"]
    assert options[options.index("--network") + 1] == "none"
    assert options[options.index("--cap-drop") + 1] == "ALL"
    assert options[options.index("--entrypoint") + 1] == "python3"
    assert f"gaps.owner=uid-{os.getuid()}" in options and "gaps.container=1" in options
    assert "--read-only" in options
    assert not {"--volume", "-v", "--mount"} & set(options)
    assert runner.command[-4:] == ["-c", auditing.PROGRAM, "/opt/artifact", "gpt2"]


def test_another_docker_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER", "/opt/docker")
    runner = Recorder()
    run("bert", runner)
    assert runner.command[0] == "/opt/docker"


def test_without_docker_in_the_environment_of_the_process_engine(
    interpreter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    runner = Recorder()
    assert run("bert", runner)[0] == f"audit of bert in {interpreter}"
    assert runner.command == [
        *(str(interpreter), "-I", "-B", "-c", auditing.PROGRAM, str(ROOT), "bert"),
    ]
    assert "PYTHONPATH" not in runner.environment
    assert runner.environment["PATH"].startswith(str(interpreter.parent))


def test_the_program_prints_what_audit_cli_gives(tmp_path: Path) -> None:
    """Run for real, with a stand-in for the package that needs PyTorch."""
    folds = tmp_path / "artifact" / "folds"
    folds.mkdir(parents=True)
    for package in (folds.parent, folds):
        (package / "__init__.py").write_text("", encoding="utf-8")
    (folds / "audit_cli.py").write_text(
        "def run(model):\n    return [model, 'end']\n\ndef lines(audited):\n    return audited\n",
        encoding="utf-8",
    )
    command = [sys.executable, "-I", "-B", "-c", auditing.PROGRAM, str(tmp_path), "gpt2"]
    assert auditing.run_command(command, {}).stdout == "gpt2\nend\n"


def test_the_models_are_those_of_the_audit_itself() -> None:
    text = (ROOT / "artifact" / "folds" / "audit_cli.py").read_text(encoding="utf-8")
    (value,) = [
        node.value
        for node in ast.parse(text).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "MODELS"
    ]
    assert ast.literal_eval(value) == auditing.MODELS


def test_inside_the_image_it_runs_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auditing, "has_torch", lambda: True)
    monkeypatch.setattr(auditing, "_audited_here", lambda model: [f"{model} here"])
    assert run("bert", Recorder(code=1)) == ["bert here"]
    runner = Recorder()
    run("bert", runner, engine="docker")
    assert runner.command  # an engine that was asked for is used


def raising(error: Exception) -> Callable[..., Any]:
    def runner(command: Sequence[str], environment: Mapping[str, str]) -> Any:
        raise error

    return runner


@pytest.mark.parametrize(
    ("runner", "words"),
    [
        (
            Recorder("", "Traceback\n  ...\nModuleNotFoundError: No module named 'torch'\n", 1),
            "the audit of gpt2 failed: ModuleNotFoundError: No module named 'torch'",
        ),
        (Recorder("", "", 137), "the audit of gpt2 failed: no message"),
        (Recorder("half a table\n"), "ended without its counts"),
        (Recorder(""), "ended without its counts"),
        (
            raising(FileNotFoundError(2, "No such file or directory")),
            "cannot run docker: No such file or directory; install it, or use another --engine",
        ),
        (
            raising(subprocess.TimeoutExpired("docker", 600)),
            "did not end in 600 s; run `artifact clean`",
        ),
    ],
)
def test_what_fails_is_one_line(runner: Any, words: str) -> None:
    with pytest.raises(UserError) as caught:
        run("gpt2", runner)
    assert words in str(caught.value) and "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("model", "engine", "words"),
    [
        ("resnet18", "auto", "no LayerNorm-Linear audit for model 'resnet18'; use bert, gpt2"),
        ("bert", "fake", "the engine fake has no PyTorch; use docker or process"),
    ],
)
def test_what_is_refused_runs_nothing(model: str, engine: str, words: str) -> None:
    runner = Recorder()
    with pytest.raises(UserError, match=words):
        run(model, runner, engine)
    assert runner.command == []


def test_a_missing_image_says_how_to_make_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(stack: str) -> Any:
        raise images.ImageMissing("no up-to-date image", next_step="run `make build`")

    monkeypatch.setattr(images, "image_for", missing)
    with pytest.raises(UserError, match="no up-to-date image; run `make build`"):
        run("bert", Recorder())


def test_the_command_line_refuses_in_one_line_and_needs_no_engine() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "artifact", "audit", "--model", "resnet50"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 2
    assert ended.stderr == (
        "artifact: no LayerNorm-Linear audit for model 'resnet50'; use bert, gpt2\n"
    )
