"""The trial's environment: computed, complete, and nothing of the caller's (cases K2, K4)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from artifact.trial import cold
from artifact.trial.stacks import Placement

LEAKS = {
    "TORCHINDUCTOR_FX_GRAPH_REMOTE_CACHE": "1",
    "TORCHINDUCTOR_CACHE_DIR": "/some/warm",
    "TRITON_CACHE_DIR": "/some/warm",
    "JAX_COMPILATION_CACHE_DIR": "/some/warm",
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "TVM_LOG_DEBUG": "1",
    "TORCH_LOGS": "+inductor",
    "XLA_FLAGS": "--xla_dump_to=/some/warm",
    "LD_PRELOAD": "/some/lib.so",
}


@pytest.fixture
def caller_environment(monkeypatch):
    for name, value in LEAKS.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize("stack", ["eager", "inductor", "xla", "tvm"])
def test_nothing_of_the_caller_reaches_the_trial(caller_environment, make_spec, tmp_path, stack):
    placement = Placement(tmp_path, 2, 2)
    environment = cold.environment(make_spec(stack=stack), placement)
    assert not [name for name, value in environment.items() if "/some/" in value]
    for name in ("HOME", "TMPDIR", "XDG_CACHE_HOME"):
        assert Path(environment[name]).is_relative_to(tmp_path)
    assert environment["USER"] == environment["LOGNAME"] == "artifact"
    assert environment["OMP_NUM_THREADS"] == environment["MKL_NUM_THREADS"] == "2"
    assert "TORCH_LOGS" not in environment


@pytest.mark.parametrize("stack", ["eager", "inductor", "xla", "tvm"])
def test_apply_drops_every_compiler_switch_that_we_did_not_set(
    caller_environment, monkeypatch, make_spec, tmp_path, stack
):
    monkeypatch.setattr(os, "environ", dict(os.environ))
    environment = cold.environment(make_spec(stack=stack), Placement(tmp_path, 2, 2))
    cold.apply(environment)
    assert {k: v for k, v in os.environ.items() if "/some/" in v} == {}
    assert {k: os.environ[k] for k in environment} == environment


def test_inductor_caches_are_off_and_fresh(make_spec, tmp_path):
    """Case K2: explicit off values, private directories."""
    environment = cold.environment(make_spec(stack="inductor"), Placement(tmp_path, 2, 2))
    assert environment["TORCHINDUCTOR_FX_GRAPH_REMOTE_CACHE"] == "0"
    assert environment["TORCHINDUCTOR_FORCE_DISABLE_CACHES"] == "1"
    assert environment["TORCHINDUCTOR_COMPILE_THREADS"] == "2"
    for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        assert Path(environment[name]).is_relative_to(tmp_path)


def test_xla_cache_is_off_and_isa_capped(make_spec, tmp_path):
    placement = Placement(tmp_path, 2, 2)
    capped = cold.environment(make_spec(stack="xla", isa="avx2"), placement)
    assert capped["JAX_ENABLE_COMPILATION_CACHE"] == "false"
    assert "--xla_cpu_max_isa=AVX2" in capped["XLA_FLAGS"]
    free = cold.environment(make_spec(stack="xla", isa="native"), placement)
    assert "max_isa" not in free.get("XLA_FLAGS", "")


def test_cpu_trials_never_see_a_gpu(make_spec, tmp_path):
    placement = Placement(tmp_path, 2, 2)
    assert cold.environment(make_spec(stack="xla"), placement)["CUDA_VISIBLE_DEVICES"] == ""
    cuda = cold.environment(make_spec(stack="xla", device="cuda"), placement)
    assert "CUDA_VISIBLE_DEVICES" not in cuda


def test_a_planted_file_is_a_violation_that_names_its_folder(make_spec, tmp_path):
    placement = Placement(tmp_path, 2, 2)
    folders = cold.directories(make_spec(stack="inductor"), placement)
    assert set(cold.count_entries(folders).values()) == {0}
    (folders["TMPDIR"] / "torchinductor_artifact").mkdir()
    counts = cold.count_entries(folders)
    found = cold.violations_of(counts, folders)
    assert len(found) == 1
    assert "TMPDIR" in found[0]
    assert "1 entries" in found[0]


def test_threads_never_exceed_what_the_process_may_use(monkeypatch, make_spec, tmp_path):
    monkeypatch.setattr(cold, "effective_cpus", lambda: 3)
    assert cold.placement_for(make_spec(cpus=2), tmp_path).threads == 2
    assert cold.placement_for(make_spec(cpus=8), tmp_path).threads == 3
    assert cold.placement_for(make_spec(cpus=0), tmp_path).threads == 3
