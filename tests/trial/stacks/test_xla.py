"""The XLA adapter in real cold processes: phases, cold proof, bindings, and CUDA with fakes."""

from __future__ import annotations

import lzma
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("jax")
pytestmark = pytest.mark.jax

from artifact import census, records  # noqa: E402
from artifact.census import hlo  # noqa: E402
from artifact.errors import UserError  # noqa: E402
from artifact.strict_json import write_atomic  # noqa: E402
from artifact.trial.clock import Clock  # noqa: E402
from artifact.trial.stacks import Placement, Unsupported, xla  # noqa: E402

HERE = Path(__file__).resolve().parent
REFERENCES = HERE.parents[1] / "models" / "references"
SMALL = {"layers": 2, "vocabulary": 512}


@pytest.fixture
def run_trial(make_spec, tmp_path):
    """One XLA trial in a fresh process; returns its record."""

    def run(*, jax_cache: Path | None = None, run_name: str = "a", **changes) -> records.Record:
        defaults = {
            "stack": "xla",
            "configuration": "xla",
            "architecture": "resnet18",
            "input": "1x3x64x64",
            "binding": "frozen",
            "options": {},
            "weights_sha256": "",
            "page_cold_bytes": 10**12,
        }
        spec = make_spec(**(defaults | changes))
        out = tmp_path / run_name
        spec_path = tmp_path / f"{run_name}.json"
        write_atomic(spec_path, spec)
        command = [sys.executable, HERE / "xla_cold_process.py", spec_path, out]
        command += [tmp_path / f"scratch-{run_name}", REFERENCES / f"{spec.architecture}.npz"]
        finished = subprocess.run(
            [*command, *([jax_cache] if jax_cache else [])],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert finished.returncode == 0, finished.stderr
        return records.load(out / "record.json")

    return run


def test_a_frozen_resnet_trial(run_trial, tmp_path):
    record = run_trial()
    assert record.status == "ok", record.message + record.log_tail
    names = [p.name for p in record.phases]
    assert names[-3:] == ["capture", "compile", "first_call"]
    assert "binding" not in names
    assert record.cold.compiled_graphs == 1
    assert record.cold.flags["jax_enable_compilation_cache"] == "False"
    assert record.cold.counters["cache_hits"] == 0
    assert record.facts["matmul_precision"] == "highest"
    assert record.detail_ms["backend_compile"] <= record.phase_ms("compile")
    # native window: trace and lower, compile, first call, less one latency
    whole = sum(record.phase_ms(n) for n in ("capture", "compile", "first_call"))
    assert record.compile_cost_ms() == pytest.approx(whole - record.latency_ms)
    text = lzma.decompress((tmp_path / "a" / "code" / "optimized.hlo.xz").read_bytes()).decode()
    assert census.external_operations(hlo.units(text), "convolution") == 20  # claim C8
    assert record.census == hlo.count(text)


@pytest.mark.parametrize("architecture", ["bert", "gpt2"])
def test_transformers_bind_their_weights_at_run_time(run_trial, architecture):
    record = run_trial(
        architecture=architecture, family=architecture, input="2x8", model_options=SMALL,
        binding="runtime",
    )  # fmt: skip
    assert record.status == "ok", record.message + record.log_tail
    assert [p.name for p in record.phases][-4:] == ["binding", "capture", "compile", "first_call"]
    assert record.facts["binding"] == "runtime"


def test_the_callers_persistent_cache_stays_empty(run_trial, tmp_path, monkeypatch):
    """Case K4: the caller switches JAX's cache on; two trials leave it empty and say it is off."""
    warm = tmp_path / "warm"
    warm.mkdir()
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(warm))
    monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    for name in ("one", "two"):
        record = run_trial(run_name=name)
        assert record.status == "ok"
        assert record.cold.flags["jax_compilation_cache_dir"] == "None"
    assert list(warm.iterdir()) == []


def test_a_planted_warm_cache_is_caught(run_trial, tmp_path):
    cache = tmp_path / "planted"
    first = run_trial(run_name="fill", jax_cache=cache)
    assert first.status == "warm"  # the switch alone is a violation
    assert any(cache.iterdir())
    second = run_trial(run_name="hit", jax_cache=cache)
    assert second.status == "warm"
    assert second.cold.counters["cache_hits"] > 0
    assert "cache hits" in second.message


def test_a_cpu_record_says_fp32_whatever_the_default_would_be(run_trial):
    """Case N5: the mode is explicit and read back, never the framework's default."""
    record = run_trial()
    assert record.facts["precision"] == "fp32"
    assert record.facts["matmul_precision"] == "highest"


def test_a_primitive_without_a_lowering_is_unsupported(make_spec, tmp_path):
    """Case N2: the cell is `unsupported`, with the primitive and the version in its message."""
    from types import SimpleNamespace

    import jax.extend
    import numpy as np

    primitive = jax.extend.core.Primitive("frobnicate")
    primitive.def_abstract_eval(lambda x: x)
    adapter = xla.Adapter(make_spec(stack="xla", binding="frozen"), Placement(tmp_path, 2, 2))
    adapter.import_framework()
    adapter._program = SimpleNamespace(apply=lambda _, x: primitive.bind(x), params={})
    adapter._host_inputs = (np.ones(3, np.float32),)
    adapter.start_runtime()
    with pytest.raises(Unsupported, match=r"jax .*frobnicate"):
        adapter.compile(Clock())


def test_cuda_asked_for_and_absent_is_one_line(make_spec, tmp_path):
    import jax

    if any(device.platform == "gpu" for device in jax.devices()):
        pytest.skip("this machine has a GPU")
    adapter = xla.Adapter(make_spec(stack="xla", device="cuda"), Placement(tmp_path, 2, 2))
    with pytest.raises(UserError, match="no cuda device") as caught:
        adapter.import_framework()
    assert "\n" not in str(caught.value)


def test_cuda_environment_names_the_platform(make_spec, tmp_path):
    placement = Placement(tmp_path, 2, 2)
    environment = xla.Adapter.environment(make_spec(stack="xla", device="cuda"), placement)
    assert environment["JAX_PLATFORMS"] == "cuda"
    assert "XLA_FLAGS" not in environment


def test_synchronize_waits_for_the_output(make_spec, tmp_path):
    class Output:
        waited = 0

        def block_until_ready(self) -> None:
            self.waited += 1

    output = Output()
    xla.Adapter(make_spec(stack="xla"), Placement(tmp_path, 2, 2)).synchronize(output)
    assert output.waited == 1
