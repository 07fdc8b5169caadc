"""The calibration: three medians of fixed work, and one line where g++ is missing or fails."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from artifact.errors import UserError
from artifact.trial import calibration


@pytest.fixture(autouse=True)
def small_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "MATRIX_SIDE", 32)
    monkeypatch.setattr(calibration, "COPY_BYTES", 4096)
    monkeypatch.setattr(calibration, "SOURCE", "int work() { return 1; }\n")


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_three_positive_numbers_in_a_folder_that_it_makes(tmp_path: Path) -> None:
    values = calibration.calibrate(tmp_path / "new" / "folder", 1)
    assert sorted(values) == ["compile_ms", "matmul_ms", "memory_ms"]
    assert all(value > 0 for value in values.values())
    assert (tmp_path / "new" / "folder" / "calibration.o").stat().st_size > 0


def test_the_median_leaves_the_first_run_out(monkeypatch: pytest.MonkeyPatch) -> None:
    stamps_ns = iter([0, 9_000_000, 0, 1_000_000, 0, 2_000_000])
    monkeypatch.setattr(calibration.time, "perf_counter_ns", lambda: next(stamps_ns))
    runs: list[int] = []
    assert calibration._median_ms(lambda: runs.append(1), 3) == 2.0
    assert len(runs) == 4


def test_no_compiler_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match=r"g\+\+ is not installed"):
        calibration.calibrate(tmp_path, 1)


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_a_compiler_that_fails_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "SOURCE", "int work( {\n")
    with pytest.raises(UserError, match="error") as caught:
        calibration.calibrate(tmp_path, 1)
    assert len(str(caught.value).splitlines()) == 1
