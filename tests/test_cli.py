"""The command line as a person meets it: one line per fault, no traceback, the right exit code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def artifact(*arguments: str, cwd: Path | None = None, **environment: str):
    """Run `python -m artifact` in a fresh process."""
    return subprocess.run(
        [sys.executable, "-m", "artifact", *arguments],
        capture_output=True,
        text=True,
        cwd=cwd or ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "100", **environment},
        check=False,
    )


def fake(results: Path, *more: str, **environment: str):
    command = ("reproduce", "--engine", "fake", "--profile", "smoke", "--results", str(results))
    return artifact(*command, *more, **environment)


def is_one_line(process) -> bool:
    lines = process.stderr.strip().splitlines()
    return len(lines) == 1 and lines[0].startswith("artifact: ") and "Traceback" not in lines[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("plan", "--profile", "gpu"),
            "unknown profile 'gpu'; known: cpu, cpu-paper, folds, paper, smoke",
        ),
        (("reproduce", "--engine", "podman"), "unknown engine 'podman'"),
        (
            ("reproduce", "--engine", "fake", "--profile", "smoke", "--device", "cuda"),
            "not for cuda",
        ),
        (("reproduce", "--engine", "fake", "--name", "../x"), "not a folder name"),
        (
            ("trial", "--spec", "/absent.json", "--out", "x", "--bundle", "x", "--scratch", "x"),
            "absent",
        ),
        (("reproduce", "--engine", "fake", "--device", "gpu"), "unknown device 'gpu'"),
        (("reproduce", "--engine", "fake", "--precision", "bf16"), "precision"),
        (("reproduce", "--engine", "fake", "--precision", "tf32"), "cuda only"),
        (("reproduce", "--engine", "fake", "--isa", "sse"), "isa"),
        (("reproduce", "--engine", "fake", "--results", "/dev/null"), "/dev/null"),
        (("bundle", "--model", "resnet18", "--out", "x", "--input", "1x3x8x8"), "torch"),
        (("summary", "--name", "absent"), "absent"),
    ],
)
def test_faults_are_one_line_and_exit_2(arguments, message):
    process = artifact(*arguments)
    assert process.returncode == 2
    assert message in process.stderr
    assert is_one_line(process)


def test_a_run_ends_with_a_summary_and_a_second_one_needs_resume(tmp_path):
    first = fake(tmp_path)
    assert first.returncode == 0, first.stderr
    assert "14 of 14 trials done; 14 run now" in first.stdout
    assert "engine fake" in first.stdout
    second = fake(tmp_path)
    assert second.returncode == 2
    assert "is not empty" in second.stderr
    assert "--resume" in second.stderr
    third = fake(tmp_path, "--resume")
    assert third.returncode == 0
    assert "0 run now" in third.stdout
    assert artifact("summary", "--name", "smoke", "--results", str(tmp_path)).returncode == 0


def test_a_results_path_with_spaces_works(tmp_path):
    """Case D9."""
    results = tmp_path / "my results" / "r 1"
    assert fake(results).returncode == 0
    assert len(list((results / "smoke" / "records").glob("r*.json"))) == 14


@pytest.mark.parametrize(
    "locale",
    [
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"},
        {"LC_ALL": "de_DE.UTF-8"},
    ],
)
def test_every_locale_gives_the_same_answer(tmp_path, locale):
    """Case A2."""
    assert artifact("--help", **locale).returncode == 0
    assert fake(tmp_path, **locale).returncode == 0
    plain = artifact("summary", "--name", "smoke", "--results", str(tmp_path))
    odd = artifact("summary", "--name", "smoke", "--results", str(tmp_path), **locale)
    assert odd.stdout == plain.stdout
    assert "UnicodeEncodeError" not in odd.stderr


def test_a_time_zone_changes_nothing(tmp_path):
    """Case A3."""
    assert fake(tmp_path).returncode == 0
    texts = {
        artifact("summary", "--name", "smoke", "--results", str(tmp_path), TZ=zone).stdout
        for zone in ("UTC", "Asia/Kolkata", "America/St_Johns")
    }
    assert len(texts) == 1


def test_plan_lists_every_trial():
    process = artifact("plan", "--profile", "cpu")
    assert process.returncode == 0
    assert "100 measured trials in 20 blocks" in process.stdout
    assert process.stdout.count("priming  ") == 12


def test_the_host_imports_no_framework(tmp_path):
    """Importing any host module must not import torch, jax or tvm."""
    code = (
        "import sys, pkgutil, importlib, artifact\n"
        "for name in ('cli', 'host', 'analysis', 'figures', 'tables', 'census'):\n"
        "    module = importlib.import_module('artifact.' + name)\n"
        "    path = getattr(module, '__path__', [])\n"
        "    for item in pkgutil.walk_packages(path, module.__name__ + '.'):\n"
        "        importlib.import_module(item.name)\n"
        "bad = {'torch', 'jax', 'tvm', 'transformers'} & set(sys.modules)\n"
        "assert not bad, bad\n"
    )
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert process.returncode == 0, process.stderr


def test_trial_modules_import_no_heavy_host_package():
    """Imports inside a trial would pollute its timing."""
    code = (
        "import sys, pkgutil, importlib, artifact.trial, artifact.census\n"
        "for package in (artifact.trial, artifact.census):\n"
        "    for item in pkgutil.walk_packages(package.__path__, package.__name__ + '.'):\n"
        "        if not item.name.rpartition('.')[2].startswith('_'):  # helpers of one stack\n"
        "            importlib.import_module(item.name)\n"
        "bad = {'pandas', 'scipy', 'matplotlib', 'docker', 'pydantic'} & set(sys.modules)\n"
        "assert not bad, bad\n"
    )
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert process.returncode == 0, process.stderr
