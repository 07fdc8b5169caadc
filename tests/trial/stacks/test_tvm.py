"""The TVM stack: parity, real fusion, schedules, precision, cold reading, CUDA code generation."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from artifact import study
from artifact.census import tvmscript
from artifact.models import fill
from artifact.models.architecture import model_tensors
from artifact.plan import TrialSpec, make_plan
from artifact.trial.clock import Clock
from artifact.trial.cpus import effective_cpus
from artifact.trial.parity import judge
from artifact.trial.stacks import Placement, Unsupported
from artifact.trial.stacks.tvm import Adapter

# As in a trial: otherwise TVM's thread pool pins this process to one CPU for all tests to come.
os.environ["TVM_BIND_THREADS"] = "0"

torch = pytest.importorskip("torch")
tvm = pytest.importorskip("tvm")

from artifact.errors import UserError  # noqa: E402
from artifact.trial.stacks import _tvm_pipeline as pipeline  # noqa: E402
from artifact.trial.stacks import _tvm_schedules as schedules  # noqa: E402

pytestmark = pytest.mark.tvm

MakeSpec = Callable[..., TrialSpec]


@pytest.fixture(autouse=True)
def keep_autograd() -> Iterator[None]:
    """The adapter switches autograd off for its whole process; a test process goes on."""
    before = torch.is_grad_enabled()
    yield
    torch.set_grad_enabled(before)


@pytest.fixture
def spec(make_spec: MakeSpec) -> MakeSpec:
    """A TVM trial on the CPU with any field replaced."""

    def build(**changes: Any) -> TrialSpec:
        fields: dict[str, Any] = {"stack": "tvm", "configuration": "tvm", "binding": "frozen"}
        return make_spec(**(fields | {"options": {}} | changes))

    return build


@pytest.fixture
def placement(tmp_path: Path) -> Placement:
    return Placement(scratch=tmp_path, threads=2, compile_threads=2)


class Run:
    """An adapter taken through the steps of a trial up to the first call."""

    def __init__(self, adapter: Adapter, program: Callable[[], Any], clock: Clock) -> None:
        self.adapter = adapter
        self.program = program
        self.phases = [phase.name for phase in clock.phases]
        self.output = adapter.to_numpy(program())


def run_model(spec: TrialSpec, placement: Placement) -> tuple[Run, Any]:
    """A model of the study with the study's weights; returns the run and the torch model."""
    options, seed = spec.model_options, spec.seed
    bundle: Any = SimpleNamespace(
        weights=fill.weights(spec.architecture, options, seed),
        aliases=model_tensors(spec.architecture, options).aliases,
        inputs=fill.inputs(spec.architecture, options, spec.input, seed),
    )
    adapter = Adapter(spec, placement)
    adapter.import_framework()
    adapter.build_model(bundle)
    return _finish(adapter), adapter._model


def run_toy(spec: TrialSpec, placement: Placement, module: Any, *inputs: np.ndarray) -> Run:
    adapter = Adapter(spec, placement)
    adapter.import_framework()
    adapter._model, adapter._host_inputs = module.eval(), inputs
    return _finish(adapter)


def _finish(adapter: Adapter) -> Run:
    clock = Clock()
    adapter.start_runtime()
    return Run(adapter, adapter.compile(clock), clock)


def verdict(run: Run, model: Any) -> Any:
    """The parity rule against float64, with eager's own error at fp32 as the yardstick."""
    inputs = [torch.from_numpy(a.copy()) for a in run.adapter._host_inputs]
    eager = model(*inputs).numpy()
    double = [t.double() if t.is_floating_point() else t for t in inputs]
    reference = copy.deepcopy(model).double()(*double).numpy()
    return judge(run.output, reference, float(np.sqrt(np.mean((eager - reference) ** 2))))


@pytest.fixture(scope="module")
def resnet(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, tuple[Run, Any]]:
    """ResNet-18 at a small input, compiled with and without fusion."""
    plan = make_plan(study.load(), "smoke")
    found = next(t for t in plan.trials() if t.stack == "tvm" and t.input == "1x3x64x64")
    place = Placement(tmp_path_factory.mktemp("tvm"), threads=2, compile_threads=2)
    return {
        fusion: run_model(replace(found, options={"fusion": fusion}), place)
        for fusion in (True, False)
    }


def test_resnet_agrees_with_float64(resnet: dict[bool, tuple[Run, Any]]) -> None:
    for run, model in resnet.values():
        judged = verdict(run, model)
        assert judged.passed, judged.reason


def test_operators_are_really_fused(resnet: dict[bool, tuple[Run, Any]]) -> None:
    """Every convolution takes its BatchNorm with it: 20 convolutions, 25 calls in all."""
    fused, unfused = resnet[True][0].adapter, resnet[False][0].adapter
    facts, without = fused.facts(), unfused.facts()
    assert facts["calls_after_fusion"] == 25
    assert without["calls_after_fusion"] == without["calls_before_fusion"] > 100
    assert facts["calls_before_fusion"] == without["calls_before_fusion"]
    assert facts["tir_functions_after_fusion"] < facts["tir_functions_before_fusion"]
    names = list(tvmscript.blocks(fused.generated_code().texts["main.py"]))
    assert sum("conv2d" in name and "add" in name for name in names) == sum(
        "conv2d" in name for name in names
    )


def test_census_counts_the_generated_code(resnet: dict[bool, tuple[Run, Any]]) -> None:
    code = resnet[True][0].adapter.generated_code()
    counted = tvmscript.count(code.texts["main.py"])
    assert code.kind == "tvmscript"
    assert (counted.internal, counted.external, counted.fallback) == (25, 0, 0)
    assert "GenericConst" in code.texts["main.py"] and counted.code_bytes < 300_000


def test_without_fusion_each_unit_is_one_operation(resnet: dict[bool, tuple[Run, Any]]) -> None:
    text = resnet[False][0].adapter.generated_code().texts["main.py"]
    internal = [unit for unit in tvmscript.units(text) if unit.kind == "internal"]
    assert len(tvmscript.single_op_units(text)) == len(internal) > 40


def test_every_function_of_the_resnet_is_scheduled(resnet: dict[bool, tuple[Run, Any]]) -> None:
    for run, _ in resnet.values():
        assert run.adapter.facts()["unscheduled"] == []


def test_phases_of_a_trial(resnet: dict[bool, tuple[Run, Any]]) -> None:
    run = resnet[True][0]
    assert run.phases[1:] == ["capture", "import", "passes", "codegen", "load"]
    assert Adapter.native.phases == ("passes", "codegen")
    assert not Adapter.native.subtract_latency
    assert set(run.adapter.detail_ms()) >= {"pass.FoldConstant", "pass.FuseOps", "pass.FuseTIR"}


def test_cold_reading(
    resnet: dict[bool, tuple[Run, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TVM_CACHE_DIR", str(tmp_path))
    adapter = resnet[True][0].adapter
    clean = adapter.read_cold()
    assert clean.compiled_graphs == 1 and clean.violations == ()
    (tmp_path / "planted").write_bytes(b"warm")
    assert "1 files" in adapter.read_cold().violations[0]
    with tvm.s_tir.meta_schedule.database.MemoryDatabase():
        assert "a tuning database was active" in adapter.read_cold().violations


def test_facts_say_strict_fp32(resnet: dict[bool, tuple[Run, Any]]) -> None:
    facts = resnet[True][0].adapter.facts()
    assert facts["precision"] == "fp32" and facts["fast_math"] == "off"
    assert facts["tvm_threads"] >= 1 and facts["layout"].startswith("NHWC")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("architecture", "shape"),
    [
        ("resnet18", "1x3x224x224"),
        ("resnet50", "1x3x224x224"),
        ("bert", "1x64"),
        ("gpt2", "1x16"),
    ],
)
def test_models_agree_with_float64(
    spec: MakeSpec, placement: Placement, architecture: str, shape: str
) -> None:
    family = "resnet" if architecture.startswith("resnet") else architecture
    trial = spec(model=architecture, architecture=architecture, family=family, input=shape)
    run, model = run_model(trial, placement)
    judged = verdict(run, model)
    assert judged.passed, judged.reason


def test_batch_norm_uses_its_running_statistics(spec: MakeSpec, placement: Placement) -> None:
    """N1: mean 5, variance 4, gamma 2, beta 1 at x = 7 give 3; batch statistics would give 1."""
    norm = torch.nn.BatchNorm2d(1, eps=0.0)
    for name, value in (
        ("running_mean", 5.0),
        ("running_var", 4.0),
        ("weight", 2.0),
        ("bias", 1.0),
    ):
        getattr(norm, name).data.fill_(value)
    run = run_toy(spec(), placement, norm, np.full((1, 1, 2, 2), 7.0, dtype=np.float32))
    np.testing.assert_allclose(run.output, 3.0, rtol=1e-6)


@pytest.mark.parametrize("size", [8, 9])
def test_explicit_padding(spec: MakeSpec, placement: Placement, size: int) -> None:
    """N3: 7x7, stride 2, padding 3, all ones, against PyTorch."""
    convolution = torch.nn.Conv2d(1, 1, 7, stride=2, padding=3, bias=False)
    convolution.weight.data.fill_(1.0)
    image = np.arange(size * size, dtype=np.float32).reshape(1, 1, size, size)
    run = run_toy(spec(), placement, convolution, image)
    with torch.no_grad():
        expected = convolution(torch.from_numpy(image)).numpy()
    np.testing.assert_allclose(run.output, expected, atol=1e-4)


def test_layer_norm_eps_and_gelu_forms(spec: MakeSpec, placement: Placement) -> None:
    """N4: eps 1e-12 at scale 1e-4 keeps unit variance; exact and tanh GELU differ at -2."""

    class Toy(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = torch.nn.LayerNorm(64, eps=1e-12)

        def forward(self, x: Any, y: Any) -> Any:
            gelu = torch.nn.functional.gelu
            return torch.cat([self.norm(x), gelu(y), gelu(y, approximate="tanh")], dim=0)

    noise = np.random.default_rng(0).normal(scale=1e-4, size=(1, 64)).astype(np.float32)
    run = run_toy(spec(), placement, Toy(), noise, np.full((1, 64), -2.0, dtype=np.float32))
    assert abs(float(run.output[0].var()) - 1.0) < 1e-3
    np.testing.assert_allclose(run.output[1], -0.0455003, atol=1e-6)
    np.testing.assert_allclose(run.output[2], -0.0454023, atol=1e-6)


def test_unknown_operators_are_named(spec: MakeSpec, placement: Placement) -> None:
    """N2: the cell is unsupported, with the operator and both versions."""

    class Toy(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.special.bessel_j0(x) + 1

    with pytest.raises(Unsupported) as refused:
        run_toy(spec(), placement, Toy(), np.ones((2, 2), dtype=np.float32))
    for part in ("special_bessel_j0", tvm.__version__, torch.__version__):
        assert part in str(refused.value)


def test_operators_left_after_legalisation_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator without a TIR form is refused when compiling, not at the first execution."""
    monkeypatch.setattr(pipeline, "STRUCTURAL", frozenset())
    builder = tvm.relax.BlockBuilder()
    x = tvm.relax.Var("x", tvm.relax.TensorType((2, 2), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            out = builder.emit_output(builder.emit(tvm.relax.op.nn.relu(x)))
        builder.emit_func_output(out)
    with pytest.raises(Unsupported, match=r"no TIR form of relax\.call_tir"):
        pipeline.lower(builder.get(), pipeline.cpu_target("avx2"))


@pytest.mark.parametrize(
    "change", [{"binding": "runtime"}, {"precision": "tf32", "device": "cuda"}]
)
def test_refuses_what_it_cannot_do(
    spec: MakeSpec, placement: Placement, change: dict[str, str]
) -> None:
    with pytest.raises(Unsupported, match=next(iter(change.values()))):
        Adapter(spec(**change), placement)


def test_environment(spec: MakeSpec, placement: Placement) -> None:
    cpu = Adapter.environment(spec(), placement)
    assert cpu["TVM_NUM_THREADS"] == "2"
    assert cpu["TVM_CACHE_DIR"] == str(Adapter.cache_directories(placement)["TVM_CACHE_DIR"])
    cuda = Adapter.environment(spec(device="cuda"), placement)
    assert cuda["TVM_CUDA_NVCC_NO_FAST_MATH"] == "1" and cuda["TVM_CUDA_COMPILE_MODE"] == "nvcc"


def test_process_keeps_its_cpus(spec: MakeSpec, placement: Placement) -> None:
    """TVM left to itself pins the main thread, which then reports one effective CPU."""
    assert Adapter.environment(spec(), placement)["TVM_BIND_THREADS"] == "0"
    before = os.sched_getaffinity(0)
    run_toy(spec(), placement, torch.nn.ReLU(), np.ones((64, 64), dtype=np.float32))
    assert os.sched_getaffinity(0) == before


@pytest.mark.parametrize("threads", ["1", "2"])
def test_thread_count_is_honoured(threads: str) -> None:
    if effective_cpus() < int(threads):
        pytest.skip("TVM never starts more threads than there are CPUs")
    code = "import tvm; print(tvm.runtime.num_threads())"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"TVM_NUM_THREADS": threads, "TVM_BIND_THREADS": "0"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [threads]


def test_isa_ceiling_is_in_the_machine_code() -> None:
    """AVX2 code has ymm and FMA and no zmm register, also on a CPU that has AVX-512."""
    function = _matrix_product(16, 48, 32)
    target = pipeline.cpu_target("avx2")
    with target:
        module = tvm.s_tir.dlight.ApplyDefaultSchedule(*schedules.rules())(function)
    library = tvm.compile(module, target=target).mod
    assembly = library.inspect_source("asm")
    assert "ymm" in assembly and "vfmadd" in assembly and "zmm" not in assembly


@pytest.mark.parametrize(
    ("rows", "columns", "expected"),
    [
        (56, 64, (4, 2)),  # one vector of weights less would need twice the loads
        (16, 768, (4, 3)),
        (7, 512, (7, 1)),  # 7 x 2 would need 17 registers
        (1, 1000, (1, 1)),
        (16, 50257, None),
    ],
)
def test_tile_shape(rows: int, columns: int, expected: tuple[int, int] | None) -> None:
    found = schedules.tile_shape(rows, columns, lanes=8, registers=16)
    assert found == expected
    if found:
        tile_rows, vectors = found
        assert tile_rows * vectors + vectors + 1 <= 16
        assert rows % tile_rows == 0 and columns % (8 * vectors) == 0


def _matrix_product(rows: int, columns: int, inner: int) -> Any:
    te = tvm.te
    left = te.placeholder((rows, inner), name="left")
    right = te.placeholder((inner, columns), name="right")
    k = te.reduce_axis((0, inner), name="k")
    product = te.compute(
        (rows, columns), lambda i, j: te.sum(left[i, k] * right[k, j], axis=k), name="product"
    )
    return tvm.IRModule({"main": te.create_prim_func([left, right, product])})


@pytest.mark.parametrize("columns", [64, 61, 7], ids=["whole", "ragged", "narrow"])
def test_scheduled_matrix_product_is_right(columns: int) -> None:
    target = pipeline.cpu_target("avx2")
    with target:
        rules = tvm.s_tir.dlight.ApplyDefaultSchedule(*schedules.rules())
        module = rules(_matrix_product(12, columns, 33))
    assert (pipeline.unscheduled(module) == ["main"]) == (columns == 7)
    generator = np.random.default_rng(1)
    left = generator.normal(size=(12, 33)).astype(np.float32)
    right = generator.normal(size=(33, columns)).astype(np.float32)
    product = tvm.runtime.tensor(np.full((12, columns), np.nan, dtype=np.float32))
    main = tvm.compile(module, target=target)["main"]
    main(tvm.runtime.tensor(left), tvm.runtime.tensor(right), product)
    np.testing.assert_allclose(product.numpy(), left @ right, rtol=1e-4, atol=1e-5)


def test_nvcc_is_found_in_the_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    monkeypatch.setattr(pipeline.sysconfig, "get_path", lambda _name: str(tmp_path))
    with pytest.raises(UserError, match="nvcc"):
        pipeline.require_nvcc()
    nvcc = tmp_path / "nvidia" / "cu13" / "bin" / "nvcc"
    nvcc.parent.mkdir(parents=True)
    nvcc.touch()
    assert pipeline.require_nvcc() == nvcc
    assert os.environ["PATH"].split(os.pathsep)[0] == str(nvcc.parent)


def test_nvcc_fast_mathematics_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    target = pipeline.cuda_target("sm_86", pipeline.cpu_target("avx2"))
    monkeypatch.delenv("TVM_CUDA_NVCC_NO_FAST_MATH", raising=False)
    assert pipeline.fast_math(target) == "nvcc --use_fast_math"
    monkeypatch.setenv("TVM_CUDA_NVCC_NO_FAST_MATH", "1")
    assert pipeline.fast_math(target) == "off"


@pytest.mark.slow
def test_resnet_compiles_for_cuda_without_a_device(
    spec: MakeSpec, placement: Placement, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The CUDA path really generates code for sm_86; nothing is run."""
    if pipeline.find_nvcc() is None:
        pytest.skip("no nvcc on PATH or among the NVIDIA packages")
    monkeypatch.setenv("PATH", os.environ["PATH"])
    pipeline.require_nvcc()
    for name, value in Adapter.environment(spec(device="cuda"), placement).items():
        monkeypatch.setenv(name, value)
    from tvm.relax.frontend.torch import from_exported_program

    from artifact.models import torch_models

    model = torch_models.build("resnet18", {}, (1, 3, 64, 64))
    exported = torch.export.export(model, (torch.zeros(1, 3, 64, 64),), strict=False)
    module = from_exported_program(exported, unwrap_unit_return_tuple=True)
    target = pipeline.cuda_target("sm_86", pipeline.cpu_target("avx2"))
    lowered = pipeline.lower(module, target)
    assert pipeline.unscheduled(lowered.module) == []
    executable = pipeline.build(lowered.module, target)
    kinds = {m.kind for m in executable.mod._collect_from_import_tree(lambda _m: True)}
    assert "cuda" in kinds
    source = lowered.module.script(show_meta=False)
    assert 'thread="threadIdx.x"' in source and "conv2d" in source
