"""Case A4: a copy of the checkout, elsewhere and another user's, redraws a figure from its records.

The copy lies in a path with a space. An audit hook in the process that draws refuses every socket
and every write outside the copy, TMPDIR and the interpreter's own environment.
"""

from __future__ import annotations

import csv
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

import pytest

from artifact.analysis import reference
from artifact.records import load

ROOT = Path(__file__).resolve().parents[1]
OTHER_UID = 54321
#: What a person's checkout holds beside the project itself.
NOT_COPIED = shutil.ignore_patterns("results", ".git", ".host", ".venv", "__pycache__", ".*_cache")

pytestmark = pytest.mark.skipif(
    not reference.classes(), reason="no reference records are shipped in expected/reference"
)

WATCHED = """
import os, runpy, sys
allowed = [os.path.realpath(path) for path in os.environ["WRITABLE"].split("\\n")]
WRITES = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.symlink", "os.link"}
def watch(event, arguments):
    if event.startswith("socket."):
        raise RuntimeError(f"{event} while drawing")
    if event == "open" and isinstance(arguments[0], (str, bytes)):
        flags = arguments[2] or 0
        targets = arguments[:1] if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) else ()
    else:
        targets = arguments[:1] if event in WRITES else ()
    for target in targets:
        path = os.path.realpath(os.fsdecode(target))
        if path != os.devnull and not any(path.startswith(root + os.sep) for root in allowed):
            raise RuntimeError(f"{event} of {path} while drawing")
sys.addaudithook(watch)
sys.argv = ["artifact", *sys.argv[1:]]
runpy.run_module("artifact", run_name="__main__")
"""


@pytest.fixture
def place():
    """A folder that every user may enter; pytest's own belong to one user alone."""
    folder = Path(tempfile.mkdtemp(prefix="artifact copy "))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def checkout(place):
    """The copy, whole and writable, with an empty TMPDIR beside it."""
    copy = place / "a b" / "artifact"
    shutil.copytree(ROOT, copy, ignore=NOT_COPIED, symlinks=True)
    (place / "tmp").mkdir()
    return copy


def _user(place: Path) -> dict[str, object]:
    """The options that run a process as another user, who then owns the copy; none if we may not.

    An interpreter or a TMPDIR below a private home is out of another user's reach.
    """
    if os.geteuid() != 0:
        return {}
    for path in [place, *place.rglob("*")]:
        os.chown(path, OTHER_UID, OTHER_UID, follow_symlinks=False)
    other = {"user": OTHER_UID, "group": OTHER_UID, "extra_groups": []}
    try:
        command = [sys.executable, "-c", "import numpy"]
        subprocess.run(command, check=True, cwd=place, capture_output=True, **other)
    except (OSError, subprocess.CalledProcessError):
        return {}
    return other


def _draw(checkout: Path, name: str = "fig3") -> subprocess.CompletedProcess[str]:
    place = checkout.parents[1]
    user = _user(place)
    return subprocess.run(
        [sys.executable, "-c", WATCHED, "figure", name, "--from", "reference"],
        cwd=checkout,
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(place / "home"),
            "TMPDIR": str(place / "tmp"),
            "PYTHONDONTWRITEBYTECODE": "1",
            "WRITABLE": "\n".join([str(checkout), str(place / "tmp"), sys.prefix]),
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        **user,
    )


def _shipped(checkout: Path) -> list[Path]:
    """The folders of all shipped campaigns of the copy."""
    return sorted(p.parent for p in (checkout / "expected" / "reference").glob("*/*/plan.json"))


def test_the_figure_appears_from_shipped_records_and_nothing_is_written_elsewhere(checkout):
    before = {path for path in checkout.rglob("*") if path.is_file()}
    done = _draw(checkout)
    assert done.returncode == 0, done.stderr
    folder = checkout / "results" / "figures" / "reference"
    made = {path for path in checkout.rglob("*") if path.is_file()} - before
    assert made == {folder / f"fig3.{suffix}" for suffix in ("csv", "png", "pdf")}
    assert not (checkout.parents[1] / "home").exists()
    assert list((checkout.parents[1] / "tmp").iterdir()) == []
    with (folder / "fig3.csv").open(encoding="utf-8", newline="") as stream:
        bars = [row for row in csv.DictReader(stream) if row["units"]]
    assert bars
    for bar in bars:
        assert float(bar["units"]) == _internal_units(checkout, bar)


def _internal_units(checkout: Path, bar: dict[str, str]) -> float:
    """Median of the records' own counts, read without the code that draws."""
    label = bar["source"].removeprefix("reference: ")
    records = [
        load(path) for path in (checkout / "expected" / "reference" / label / "records").iterdir()
    ]
    return median(
        r.census.internal
        for r in records
        if r.pooled
        and r.census is not None
        and (r.spec.model, r.spec.input, r.spec.configuration)
        == (bar["model"], bar["input"], bar["configuration"])
    )


def test_every_shipped_file_has_the_hash_that_was_noted(checkout):
    checked = 0
    for folder in _shipped(checkout):
        lines = (folder / "checksums.txt").read_text(encoding="ascii").splitlines()
        for digest, name in (line.split("  ", 1) for line in lines):
            assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest, name
            checked += 1
        assert {f"records/{path.name}" for path in (folder / "records").iterdir()} <= {
            line.split("  ", 1)[1] for line in lines
        }
    assert checked


def test_a_tampered_record_is_named_and_nothing_is_drawn(checkout):
    record = sorted((_shipped(checkout)[-1] / "records").iterdir())[-1]
    text = record.read_text(encoding="utf-8")
    record.write_text(text.replace('"seed": ', '"seed": 1', 1), encoding="utf-8")
    assert record.read_text(encoding="utf-8") != text
    done = _draw(checkout)
    assert done.returncode != 0
    assert record.name in done.stderr
    assert "Traceback" not in done.stderr
    assert not (checkout / "results").exists()


def test_a_record_that_is_gone_is_named(checkout):
    record = sorted((_shipped(checkout)[0] / "records").iterdir())[0]
    record.unlink()
    done = _draw(checkout)
    assert done.returncode != 0
    assert f"{record.name}: is not there" in done.stderr
