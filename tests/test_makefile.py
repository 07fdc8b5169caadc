"""The Makefile and .ci/run: every target, in a path with spaces, with stand-ins for what they call.

The stand-in for `.host/bin/python` writes its working folder and arguments into a log.
"""

from __future__ import annotations

import inspect
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from artifact import cli

CHECKOUT = Path(__file__).parents[1]
MAKEFILE = (CHECKOUT / "Makefile").read_text(encoding="utf-8")

if shutil.which("make") is None:
    pytest.skip("no make on this machine", allow_module_level=True)

STAND_IN = """#!/bin/sh
printf 'start %s: %s\\n' "$PWD" "$*" >> "$LOG"
case " $* " in *" $FAIL "*) exit 3 ;; esac
[ -n "$SLOW" ] && sleep 0.1
printf 'end %s: %s\\n' "$PWD" "$*" >> "$LOG"
"""


def write_command(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)


def database() -> str:
    """What make knows of its targets (`make -p`), in English."""
    result = subprocess.run(
        ["make", "-pRrq", "-f", str(CHECKOUT / "Makefile"), "help"],
        capture_output=True,
        text=True,
        env={"PATH": os.environ["PATH"], "LC_ALL": "C"},
    )
    return result.stdout


def phony() -> set[str]:
    (line,) = re.findall(r"^\.PHONY: (.*)$", database(), re.MULTILINE)
    return set(line.split())


class Clone:
    """A clone in a path with spaces; `make` runs with its stand-ins."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder.parent / "log"
        folder.mkdir()
        shutil.copy(CHECKOUT / "Makefile", folder)
        for name in ("python", "ruff", "mypy"):
            write_command(folder / ".host" / "bin" / name, STAND_IN)
        for name in ("docker/host/setup.sh", "docker/lock.sh"):
            write_command(folder / name, STAND_IN)

    def make(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """`make` from elsewhere, as `make -C`; neither options nor variables of this process."""
        base = {"PATH": os.environ["PATH"], "LC_ALL": "C", "LOG": str(self.log), "FAIL": "none"}
        return subprocess.run(
            ["make", "--no-print-directory", "-C", str(self.folder), *words],
            env=base | environment,
            capture_output=True,
            text=True,
        )

    def lines(self) -> list[str]:
        return self.log.read_text(encoding="utf-8").splitlines() if self.log.exists() else []

    def artifact_calls(self) -> list[str]:
        """What was asked of `python -m artifact`, in order."""
        marks = (line.partition(": -m artifact ") for line in self.lines())
        return [words for start, mark, words in marks if mark and start.startswith("start")]


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    return Clone(tmp_path / "a clone  with spaces")


def test_phony_names_are_exactly_the_targets_with_a_recipe() -> None:
    blocks = re.findall(r"^([^\s#:]+):(?!=).*\n((?:#.*\n)*)", database(), re.MULTILINE)
    with_recipe = {name for name, comments in blocks if "recipe to execute" in comments}
    assert "drill" in with_recipe
    assert phony() == with_recipe


@pytest.mark.parametrize("target", sorted(phony()))
def test_target_works_in_a_path_with_spaces(clone: Clone, target: str) -> None:
    result = clone.make(target)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    assert {line.partition(": ")[0].partition(" ")[2] for line in clone.lines()} <= {
        str(clone.folder)
    }
    if target != "help":
        assert clone.lines()


def test_path_variables_stand_in_double_quotes() -> None:
    recipes = [line for line in MAKEFILE.splitlines() if line.startswith("\t")]
    names = r"\$[({](?:here|host|CURDIR)[)}]"
    uses = [(line, m.start()) for line in recipes for m in re.finditer(names, line)]
    assert len(uses) > 20
    assert [line for line, at in uses if line[:at].count('"') % 2 == 0] == []


def test_files_named_like_targets_stop_nothing(clone: Clone) -> None:
    for name in ("results", "fig3", "reproduce"):
        (clone.folder / name).mkdir()
    (clone.folder / "clean").touch()
    assert clone.make("reproduce", "fig3", "clean").returncode == 0
    assert [call.split()[0] for call in clone.artifact_calls()] == ["reproduce", "figure", "clean"]


@pytest.mark.parametrize("how", [{"MAKEFLAGS": "-j8"}, {"MAKEFLAGS": "j"}])
def test_parallel_make_never_runs_two_at_once(clone: Clone, how: dict[str, str]) -> None:
    """Two campaigns at once would disturb each other's times."""
    assert clone.make("fig1", "fig2", "tab1", SLOW="1", **how).returncode == 0
    states = [line.split()[0] for line in clone.lines()]
    assert states == ["start", "end"] * 4


@pytest.mark.parametrize(("failing", "calls"), [("run", 0), ("fig1", 1)])
def test_a_failing_recipe_ends_make_with_an_error(clone: Clone, failing: str, calls: int) -> None:
    result = clone.make("fig1", "fig2", FAIL=failing)
    assert result.returncode == 2
    assert len(clone.artifact_calls()) == calls


@pytest.mark.parametrize("target", ["reproduce", "smoke"])
def test_isa_and_precision_reach_the_command_line(clone: Clone, target: str) -> None:
    clone.make(target)
    clone.make(target, "ISA=native", "PRECISION=tf32")
    plain, special = clone.artifact_calls()
    assert "--isa" not in plain
    assert "--precision" not in plain
    assert special == f"{plain} --isa native --precision tf32"
    assert {"isa", "precision"} <= inspect.signature(cli.reproduce).parameters.keys()


def test_a_figure_refuses_an_isa_that_it_would_not_hear(clone: Clone) -> None:
    for target in ("fig3", "tab2"):
        result = clone.make(target, "ISA=native")
        assert result.returncode == 2
        assert "ISA and PRECISION are for reproduce and smoke" in result.stderr
    assert clone.artifact_calls() == []


def test_complete_reaches_make_test(clone: Clone) -> None:
    clone.make("test")
    clone.make("test", "COMPLETE=1")
    runs = [line for line in clone.lines() if line.startswith("start") and "run_every" in line]
    assert [line.endswith("run_everything.py --complete") for line in runs] == [False, True]


# .ci/run

CI_COMMANDS = {
    "docker": 'case "$1" in --version) echo "Docker version $DOCKER_VERSION" ;;\n'
    'buildx) [ -n "$HAS_BUILDX" ] ;; esac',
    "dockerd": "",
    "mmdebstrap": "",
    "g++": "",
    "openssl": "",
    "python3.11": '[ "$1 $2" = "-c import ensurepip, venv" ] && [ -n "$HAS_ENSUREPIP" ]',
    "make": 'echo "make $*" >> "$LOG"; [ "$*" != "$FAIL" ]',
    "apt-get": 'echo "apt-get $*" >> "$LOG"',
    "apt-cache": 'case " $APT_KNOWS " in *" $2 "*) echo "$2 | 1 | x" ;; esac',
}
CI_TOOLS = ("bash", "cat", "date", "dirname", "grep", "head")
MAKES = ["make lint", "make build", "make test COMPLETE=1", "make smoke"]


def run_ci(
    folder: Path, *, without: tuple[str, ...] = (), **environment: str
) -> tuple[int, list[str]]:
    """Exit code of .ci/run and what it asked of apt-get and make; only stand-ins are on PATH."""
    tools = folder / "bin"
    for name, text in CI_COMMANDS.items():
        if name not in without:
            write_command(tools / name, f"#!/bin/sh\n{text}\n")
    for name in CI_TOOLS:
        (tools / name).symlink_to(str(shutil.which(name)))
    base = {"PATH": str(tools), "LOG": str(folder / "log"), "DOCKER_VERSION": "20.10.24"}
    result = subprocess.run(
        [str(tools / "bash"), str(CHECKOUT / ".ci" / "run")],
        env=base | {"HAS_ENSUREPIP": "1"} | environment,
        capture_output=True,
        text=True,
    )
    log = folder / "log"
    lines = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
    return result.returncode, [re.sub(r" NAME=ci-\d+$", "", line) for line in lines]


def test_ci_installs_nothing_where_all_is_there_and_wants_every_test(tmp_path: Path) -> None:
    assert run_ci(tmp_path) == (0, MAKES)


@pytest.mark.parametrize(
    ("without", "environment", "packages"),
    [
        ((), {"HAS_ENSUREPIP": ""}, "python3.11-venv python3-dev"),
        (("dockerd", "docker"), {}, "docker.io"),
        (
            ("dockerd", "docker"),
            {"APT_KNOWS": "docker-cli docker-buildx"},
            "docker.io docker-cli docker-buildx",
        ),
        ((), {"DOCKER_VERSION": "28.2", "APT_KNOWS": "docker-cli docker-buildx"}, "docker-buildx"),
    ],
)
def test_ci_installs_what_is_missing_under_the_names_of_this_release(
    tmp_path: Path, without: tuple[str, ...], environment: dict[str, str], packages: str
) -> None:
    """`python3.11` alone says nothing: Debian's lacks ensurepip without python3.11-venv."""
    _, lines = run_ci(tmp_path, without=without, **environment)
    assert lines[0] == "apt-get update -qq"
    assert lines[1] == f"apt-get install -y -qq --no-install-recommends {packages}"


@pytest.mark.parametrize(
    "environment", [{"DOCKER_VERSION": "28.2", "HAS_BUILDX": "1"}, {"DOCKER_VERSION": "20.10"}]
)
def test_ci_takes_a_builder_that_is_there(tmp_path: Path, environment: dict[str, str]) -> None:
    assert run_ci(tmp_path, APT_KNOWS="docker-buildx", **environment) == (0, MAKES)


@pytest.mark.parametrize("failing", ["lint", "build", "test COMPLETE=1"])
def test_ci_ends_at_the_first_step_that_fails(tmp_path: Path, failing: str) -> None:
    code, lines = run_ci(tmp_path, FAIL=failing)
    assert code != 0
    assert lines[-1] == f"make {failing}"
