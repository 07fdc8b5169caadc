"""Eager PyTorch, and what it shares with Inductor: precision, device, unsupported operators."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from artifact.errors import UserError
from artifact.plan import TrialSpec
from artifact.trial.clock import Clock
from artifact.trial.stacks import Placement, Unsupported, _torch
from artifact.trial.stacks.eager import Adapter

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

DRIVER = Path(__file__).with_name("torch_cold_process.py")

Spec = Callable[..., TrialSpec]


def run_cold(spec: TrialSpec, scratch: Path, *, toy: bool = False) -> dict[str, Any]:
    request = {"spec": asdict(spec), "scratch": str(scratch), "variables": {}, "toy": toy}
    root = Path(__file__).parents[3]
    finished = subprocess.run(
        [sys.executable, str(DRIVER), json.dumps(request)],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    seen: dict[str, Any] = json.loads(finished.stdout.splitlines()[-1])
    return seen


def eager_spec(make_spec: Spec, **changes: Any) -> TrialSpec:
    fields = {"stack": "eager", "configuration": "eager", "options": {}, "model": "resnet18"}
    fields |= {"architecture": "resnet18", "family": "resnet", "input": "1x3x64x64"}
    return make_spec(**(fields | changes))


@pytest.fixture
def placement(tmp_path: Path) -> Placement:
    return Placement(scratch=tmp_path, threads=1, compile_threads=1)


@pytest.fixture
def torch_settings() -> Iterator[None]:
    """Puts torch's process-wide settings back."""
    precision, cudnn = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    grad, threads = torch.is_grad_enabled(), torch.get_num_threads()
    yield
    torch.set_float32_matmul_precision(precision)
    torch.backends.cudnn.allow_tf32 = cudnn
    torch.set_grad_enabled(grad)
    torch.set_num_threads(threads)


def test_cold_resnet_has_no_graph_and_ends_within_fp32(make_spec: Spec, tmp_path: Path) -> None:
    seen = run_cold(eager_spec(make_spec, cpus=1), tmp_path)
    assert list(seen["phases"]) == ["interpreter", "binding", "first_call"]
    assert seen["graphs"] == 0
    assert seen["violations"] == []
    assert seen["code"] == {}
    assert seen["facts"]["torch_threads"] == 1
    assert seen["facts"]["torch_interop_threads"] == 1
    assert seen["facts"]["precision"] == "fp32"
    assert seen["facts"]["autograd"] == "off (no_grad)"
    assert seen["facts"]["layout"] == "contiguous"
    assert seen["max_error"] < 1e-4
    assert seen["versions"]["torch"] == torch.__version__.partition("+")[0]


def test_batch_norm_uses_running_statistics(make_spec: Spec, tmp_path: Path) -> None:
    """Case N1: running statistics give 3, batch statistics would give 1."""
    seen = run_cold(eager_spec(make_spec), tmp_path, toy=True)
    assert seen["output"] == [3.0] * 4


def test_avx2_ceiling_reaches_aten(make_spec: Spec, placement: Placement) -> None:
    if os.uname().machine != "x86_64":
        pytest.skip("the ceiling is one of x86-64")
    capped = Adapter.environment(eager_spec(make_spec, isa="avx2"), placement)
    native = Adapter.environment(eager_spec(make_spec, isa="native"), placement)
    on_gpu = Adapter.environment(eager_spec(make_spec, isa="avx2", device="cuda"), placement)
    assert capped == {"ATEN_CPU_CAPABILITY": "avx2"}
    assert native == {}
    assert on_gpu == {}


def test_cuda_asked_for_and_absent_is_one_line() -> None:
    blind = SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: False))
    with pytest.raises(UserError) as caught:
        _torch.require_device(blind, "cuda")
    assert "no CUDA device" in str(caught.value)
    assert "\n" not in str(caught.value)
    _torch.require_device(blind, "cpu")


@pytest.mark.usefixtures("torch_settings")
def test_precision_is_explicit_on_cuda_and_read_back() -> None:
    """Case N5: cuDNN's own default would be TF32."""
    torch.backends.cudnn.allow_tf32 = True
    _torch.set_precision(torch, "fp32")
    strict = _torch.read_precision(torch, "cuda")
    assert strict["precision"] == "fp32"
    assert strict["cudnn_allow_tf32"] == "False"
    assert strict["cuda_matmul_fp32_precision"] == "ieee"
    _torch.set_precision(torch, "tf32")
    assert _torch.read_precision(torch, "cuda")["precision"] == "tf32"
    assert _torch.read_precision(torch, "cuda")["float32_matmul_precision"] == "high"


@pytest.mark.usefixtures("torch_settings")
def test_half_set_precision_is_called_mixed_and_a_cpu_is_fp32() -> None:
    _torch.set_precision(torch, "fp32")
    torch.backends.cudnn.allow_tf32 = True
    assert _torch.read_precision(torch, "cuda")["precision"] == "mixed"
    assert _torch.read_precision(torch, "cpu")["precision"] == "fp32"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.usefixtures("torch_settings")
def test_eleven_fraction_bits_survive_on_cuda() -> None:
    """Case N5: 2049 needs 11 fraction bits, TF32 has 10."""
    _torch.set_precision(torch, "fp32")
    matrix = 2049.0 * torch.eye(64, device="cuda")
    assert torch.equal(matrix @ torch.eye(64, device="cuda"), matrix)


def test_operator_without_kernel_is_unsupported_and_named(
    make_spec: Spec, placement: Placement
) -> None:
    """Case N2, by an operator that exists for CUDA only."""
    library = torch.library.Library("toyeager", "DEF")
    library.define("gpu_only(Tensor x) -> Tensor")
    library.impl("gpu_only", lambda x: x, "CUDA")
    adapter = Adapter(eager_spec(make_spec), placement)
    adapter._inputs = (torch.ones(2),)
    execute = adapter.guarded(torch.ops.toyeager.gpu_only, (NotImplementedError,), "eager PyTorch")
    with pytest.raises(Unsupported) as caught:
        execute()
    assert "toyeager::gpu_only" in str(caught.value)
    assert torch.__version__.partition("+")[0] in str(caught.value)
    assert "\n" not in str(caught.value)


def test_other_failures_of_the_program_are_not_unsupported(
    make_spec: Spec, placement: Placement
) -> None:
    adapter = Adapter(eager_spec(make_spec), placement)
    adapter._inputs = (torch.ones(2), torch.ones(3))
    with pytest.raises(RuntimeError, match="size of tensor"):
        adapter.guarded(torch.add, (NotImplementedError,), "eager PyTorch")()


def test_cuda_paths_move_weights_and_wait_for_the_device(
    make_spec: Spec, placement: Placement
) -> None:
    waited: list[Any] = []
    moved: list[Any] = []
    model = SimpleNamespace(to=lambda device: moved.append(device) or model, modules=lambda: [])
    adapter = Adapter(eager_spec(make_spec, device="cuda"), placement)
    device = SimpleNamespace(type="cuda")
    cuda = SimpleNamespace(synchronize=waited.append, get_device_name=lambda d: "a GPU")
    adapter._torch, adapter._device, adapter._model = SimpleNamespace(cuda=cuda), device, model
    adapter.bind(clock := Clock())
    assert moved == [device]
    assert waited == [device]
    assert [phase.name for phase in clock.phases] == ["interpreter", "binding"]
    adapter.synchronize(None)
    assert waited == [device, device]
    assert adapter._device_name() == "a GPU"


def test_a_missing_package_is_absent_not_an_error() -> None:
    found = _torch.package_versions(["torch", "no-such-package-here"])
    assert found["no-such-package-here"] == "absent"
    assert found["torch"] == torch.__version__.partition("+")[0]
