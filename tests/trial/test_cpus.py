"""Case D8: the quota counts, not the number of processors."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from artifact.trial.cpus import effective_cpus


@pytest.fixture
def four_cpus(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})


def write(root: Path, name: str, text: str) -> None:
    path = root / "sys/fs/cgroup" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="ascii")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("200000 100000\n", 2),
        ("max 100000\n", 4),
        ("50000 100000\n", 1),
        ("250000 100000\n", 3),
        ("900000 100000\n", 4),
        ("nonsense\n", 4),
    ],
)
def test_cgroup_v2(four_cpus, tmp_path, text, expected):
    write(tmp_path, "cpu.max", text)
    assert effective_cpus(tmp_path) == expected


@pytest.mark.parametrize("folder", ["cpu", "cpu,cpuacct"])
@pytest.mark.parametrize(("quota", "expected"), [("200000", 2), ("-1", 4), ("50000", 1)])
def test_cgroup_v1(four_cpus, tmp_path, folder, quota, expected):
    write(tmp_path, f"{folder}/cpu.cfs_quota_us", quota)
    write(tmp_path, f"{folder}/cpu.cfs_period_us", "100000")
    assert effective_cpus(tmp_path) == expected


def test_missing_files_mean_affinity(four_cpus, tmp_path):
    assert effective_cpus(tmp_path) == 4


def test_a_quota_of_an_outer_cgroup_counts(four_cpus, tmp_path):
    """A systemd slice or a job of a cluster: the quota stands at the process's own path."""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/slice/job/step\n", encoding="ascii")
    write(tmp_path, "slice/job/step/cpu.max", "max 100000\n")
    write(tmp_path, "slice/job/cpu.max", "100000 100000\n")
    write(tmp_path, "slice/cpu.max", "300000 100000\n")
    assert effective_cpus(tmp_path) == 1


def test_a_v1_quota_at_the_processes_own_path(four_cpus, tmp_path):
    (tmp_path / "proc/self").mkdir(parents=True)
    text = "4:memory:/other\n3:cpu,cpuacct:/docker/abc\n"
    (tmp_path / "proc/self/cgroup").write_text(text, encoding="ascii")
    write(tmp_path, "cpu/docker/abc/cpu.cfs_quota_us", "200000")
    write(tmp_path, "cpu/docker/abc/cpu.cfs_period_us", "100000")
    assert effective_cpus(tmp_path) == 2


def test_a_path_that_the_container_cannot_see_falls_back_to_its_own_root(four_cpus, tmp_path):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/not/here\n", encoding="ascii")
    write(tmp_path, "cpu.max", "200000 100000\n")
    assert effective_cpus(tmp_path) == 2
