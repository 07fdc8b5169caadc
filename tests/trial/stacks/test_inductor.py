"""TorchInductor: how it is called, that it is cold, that `toolchain` holds the one-time work."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
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
from artifact.trial import cold
from artifact.trial.clock import Clock
from artifact.trial.stacks import Placement, Unsupported, _inductor_toolchain, inductor
from artifact.trial.stacks.inductor import Adapter, compile_arguments

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

DRIVER = Path(__file__).with_name("torch_cold_process.py")

#: Caches on, for the planted warm trial; the ISA probes are skipped, they are not its subject.
WARM = {
    "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "0",
    "TORCHINDUCTOR_FX_GRAPH_CACHE": "1",
    "TORCHINDUCTOR_AUTOGRAD_CACHE": "1",
    "TORCHINDUCTOR_VEC_ISA_OK": "1",
}

#: Registers that only AVX-512 has: 512-bit ones, numbers 16 to 31 of all widths, and masks.
AVX512_REGISTER = re.compile(r"%zmm|%[xy]mm(?:1[6-9]|2[0-9]|3[01])\b|%k[0-7]\b")

Spec = Callable[..., TrialSpec]


def run_cold(
    spec: TrialSpec, scratch: Path, *, toy: bool = False, variables: dict[str, str] | None = None
) -> dict[str, Any]:
    request = {
        "spec": asdict(spec),
        "scratch": str(scratch),
        "variables": variables or {},
        "toy": toy,
    }
    root = Path(__file__).parents[3]
    finished = subprocess.run(
        [sys.executable, str(DRIVER), json.dumps(request)],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    seen: dict[str, Any] = json.loads(finished.stdout.splitlines()[-1])
    return seen


def inductor_spec(make_spec: Spec, **changes: Any) -> TrialSpec:
    fields = {"stack": "inductor", "configuration": "inductor", "options": {}, "model": "resnet18"}
    fields |= {"architecture": "resnet18", "family": "resnet", "input": "1x3x64x64"}
    return make_spec(**(fields | changes))


@pytest.fixture
def placement(tmp_path: Path) -> Placement:
    return Placement(scratch=tmp_path, threads=2, compile_threads=2)


@pytest.fixture
def clean_dynamo() -> Iterator[None]:
    """Dynamo's caches and counters empty before and after, autograd off during the test."""
    from torch._dynamo.utils import clear_compilation_metrics, counters

    def clear() -> None:
        torch._dynamo.reset()
        counters.clear()
        clear_compilation_metrics()

    clear()
    with torch.no_grad():
        yield
    clear()


# Cold processes


@pytest.fixture(scope="module")
def folded(the_study: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One cold ResNet-18 with the fold and two compile threads; `scratch` is its private folder."""
    from artifact.plan import make_plan

    spec = next(
        s for s in make_plan(the_study, "smoke").trials() if s.configuration == "inductor-fold"
    )
    scratch = tmp_path_factory.mktemp("folded")
    return run_cold(spec, scratch) | {"scratch": scratch}


@pytest.mark.slow
class TestFoldedResNet:
    def test_it_is_cold(self, folded: dict[str, Any]) -> None:
        assert set(folded["counts"].values()) == {0}
        assert folded["violations"] == []
        assert folded["graphs"] == 1
        assert folded["counters"]["inductor.fxgraph_cache_hit"] == 0
        assert folded["counters"]["aot_autograd.autograd_cache_hit"] == 0
        assert folded["counters"]["graph_breaks"] == folded["counters"]["recompiles"] == 0

    def test_the_first_call_makes_no_further_header(self, folded: dict[str, Any]) -> None:
        assert len(folded["after_compile"]["headers"]) == 1
        assert folded["after_first_call"]["headers"] == folded["after_compile"]["headers"]

    def test_the_first_call_starts_no_further_worker_pool(self, folded: dict[str, Any]) -> None:
        assert len(folded["after_compile"]["pools"]) == 1
        assert folded["after_first_call"]["pools"] == folded["after_compile"]["pools"]
        assert folded["after_first_call"]["children"] == folded["after_compile"]["children"]

    def test_phases_and_details(self, folded: dict[str, Any]) -> None:
        names = ["interpreter", "fold", "binding", "toolchain", "first_call"]
        assert list(folded["phases"]) == names
        steps = [k for k in folded["detail_ms"] if k.startswith("toolchain.")]
        within = sum(folded["detail_ms"][step] for step in steps)
        assert 0.9 * folded["phases"]["toolchain"] < within <= folded["phases"]["toolchain"]
        whole = folded["detail_ms"]["_compile.compile_inner"]
        assert 0 < whole <= folded["phases"]["first_call"]

    def test_no_batch_norm_is_left(self, folded: dict[str, Any]) -> None:
        assert folded["facts"]["fold"]["folded"] == 20
        assert folded["facts"]["fold"]["refused"] == []
        assert folded["code_kind"] == "inductor"
        assert "batch_norm" not in folded["code"]["wrapper.py"]
        assert "convolution" in folded["code"]["wrapper.py"]
        assert folded["max_error"] < 1e-4

    @pytest.mark.skipif(platform.machine() != "x86_64", reason="the ceiling is one of x86-64")
    def test_kernels_stay_below_the_avx2_ceiling(self, folded: dict[str, Any]) -> None:
        """g++ -march=native would put AVX-512 into an AVX2 trial on a machine that has it."""
        assert folded["facts"]["inductor_isa"] == "avx2"
        assert folded["facts"]["inductor_probed_isas"] == ["avx2"]
        assert folded["facts"]["inductor_march"] == "x86-64-v3"
        assert folded["facts"]["aten_cpu_capability"] == "AVX2"
        if shutil.which("objdump") is None:
            pytest.skip("no objdump")
        kernels = list((folded["scratch"] / "cache" / "inductor").glob("tmp*/**/*.so"))
        assert len(kernels) >= 5
        for kernel in kernels:
            listing = subprocess.run(
                ["objdump", "-d", str(kernel)], capture_output=True, text=True, check=True
            ).stdout
            assert not AVX512_REGISTER.search(listing), kernel.name

    def test_how_it_was_called_is_recorded(self, folded: dict[str, Any]) -> None:
        facts = folded["facts"]
        assert facts["torch_compile"] == {"fullgraph": True, "dynamic": False}
        assert facts["precision"] == "fp32"
        assert facts["precompiled_headers"] == {
            "before_toolchain": 0,
            "after_toolchain": 1,
            "after_executions": 1,
        }
        assert folded["versions"]["g++"].startswith("g++")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("route", "folded", "unit"),
    [
        ("guard", 20, "BatchNorm"),
        ("bn-eval", 20, "BatchNorm"),
        ("freezing", 80, "operation, four to a BatchNorm"),
    ],
)
def test_routes_inside_the_compiler_fold_every_batch_norm(
    make_spec: Spec, tmp_path: Path, route: str, folded: int, unit: str
) -> None:
    """Claim X2, configurations inductor-guard, inductor-bneval and inductor-freeze."""
    seen = run_cold(inductor_spec(make_spec, options={"route": route}), tmp_path)
    assert seen["violations"] == []
    assert seen["graphs"] == 1
    assert seen["counters"]["recompiles"] == 0
    assert "fold" not in seen["phases"]  # its time is inside the first call
    did = seen["facts"]["route"]
    assert (did["name"], did["folded"], did["unit"]) == (route, folded, unit)
    assert seen["facts"]["inductor_freezing"] is (route == "freezing")
    wrapper = seen["code"]["wrapper.py"]
    assert "batch_norm" not in wrapper
    assert ("_frozen_param" in wrapper) is (route == "freezing")
    assert 0 < seen["max_error"] < 1e-4
    assert counted_calls(wrapper) > 20
    if route == "guard":
        assert did["refused"] == []
        assert did["guarded_tensors"] == 5 * 20
        assert did["refolds"] == did["fallbacks"] == 0
        assert 0 < did["fold_ms"] < seen["phases"]["first_call"]
    else:
        assert did["efficient_conv_bn_eval_fx_passes"] is (route == "bn-eval")


def counted_calls(wrapper: str) -> int:
    """Library calls that the census finds: one convolution each, at least."""
    from artifact.census import inductor as census

    return census.count(wrapper).external


@pytest.mark.slow
def test_gpt2_with_the_layer_norm_fold(make_spec: Spec, tmp_path: Path) -> None:
    """Claim X1 on two layers: both LayerNorms of each are folded, the last one is refused."""
    spec = inductor_spec(
        make_spec,
        configuration="inductor-fold",
        options={"fold": "layernorm-linear"},
        model="gpt2",
        architecture="gpt2",
        family="gpt2",
        model_options={"layers": 2},
        input="1x16",
    )
    seen = run_cold(spec, tmp_path)
    assert seen["violations"] == []
    assert list(seen["phases"])[1:3] == ["fold", "binding"]
    did = seen["facts"]["fold"]
    assert (did["kind"], did["folded"]) == ("layernorm-linear", 4)
    assert [refused["name"].rpartition(".")[2] for refused in did["refused"]] == ["ln_f"]
    assert "tied" in did["refused"][0]["reason"]
    assert 0 < did["fold_ms"] <= seen["phases"]["fold"]
    assert seen["max_error"] < 1e-3


@pytest.mark.slow
def test_control_copy_with_one_compile_thread_has_no_children(
    make_spec: Spec, tmp_path: Path
) -> None:
    """Case K5: with one compile thread nothing but this process is there."""
    spec = inductor_spec(
        make_spec,
        configuration="inductor-control",
        options={"copy": True},
        model="bert-2layer",
        architecture="bert",
        family="bert",
        model_options={"layers": 2},
        input="1x64",
        cpus=1,
    )
    seen = run_cold(spec, tmp_path)
    assert seen["violations"] == []
    assert seen["after_first_call"]["children"] == []
    assert seen["after_first_call"]["headers"] == seen["after_compile"]["headers"]
    assert "fold" not in seen["phases"]
    assert seen["facts"]["copy"] is True
    assert seen["facts"]["attention"] == "sdpa"
    assert seen["facts"]["inductor_compile_threads"] == 1
    assert seen["max_error"] < 1e-3


@pytest.mark.slow
def test_planted_warm_caches_are_caught(make_spec: Spec, tmp_path: Path) -> None:
    """The same folder twice, caches on: second process finds header, graph and switches warm."""
    spec = inductor_spec(make_spec)
    first = run_cold(spec, tmp_path, toy=True, variables=WARM)
    assert first["output"] == [3.0] * 4  # case N1 under Inductor
    assert first["counters"]["precompiled_headers_before"] == 0
    second = run_cold(spec, tmp_path, toy=True, variables=WARM)
    assert second["counts"]["TORCHINDUCTOR_CACHE_DIR"] > 0
    assert second["counts"]["TMPDIR"] > 0
    assert second["counters"]["precompiled_headers_before"] == 1
    assert second["phases"]["toolchain"] < first["phases"]["toolchain"]
    hits = ("inductor.fxgraph_cache_hit", "aot_autograd.autograd_cache_hit")
    assert any(second["counters"][name] > 0 for name in hits)
    said = " | ".join(second["violations"])
    assert "precompiled_headers_before is 1" in said
    assert "cache_hit is 1" in said
    assert "torch._inductor.config.fx_graph_cache is True" in said


# One process


def test_mode_is_max_autotune_only_for_the_papers_contract_on_cuda_resnets(
    make_spec: Spec,
) -> None:
    plain = {"fullgraph": True, "dynamic": False}
    on_cuda = {"device": "cuda", "contract": "paper"}
    paper = compile_arguments(inductor_spec(make_spec, **on_cuda))
    assert paper == plain | {"mode": "max-autotune"}
    assert compile_arguments(inductor_spec(make_spec, **on_cuda, family="bert")) == plain
    assert compile_arguments(inductor_spec(make_spec, device="cuda", contract="equal")) == plain
    assert compile_arguments(inductor_spec(make_spec, device="cpu", contract="paper")) == plain


def test_environment_overrides_the_callers_caches(
    make_spec: Spec, placement: Placement, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case K2: host values never reach the trial."""
    monkeypatch.setenv("TORCHINDUCTOR_FX_GRAPH_REMOTE_CACHE", "1")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/some/warm")
    variables = cold.environment(inductor_spec(make_spec), placement)
    assert variables["TORCHINDUCTOR_FX_GRAPH_REMOTE_CACHE"] == "0"
    assert variables["TORCHINDUCTOR_FORCE_DISABLE_CACHES"] == "1"
    assert variables["TORCHINDUCTOR_COMPILE_THREADS"] == "2"
    folders = Adapter.cache_directories(placement)
    for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        assert variables[name] == str(folders[name])
        assert Path(variables[name]).is_relative_to(placement.scratch)


def test_every_private_folder_differs_between_trials(make_spec: Spec, tmp_path: Path) -> None:
    """Case K1 (a)."""
    one = Adapter.cache_directories(Placement(tmp_path / "a", 1, 1))
    two = Adapter.cache_directories(Placement(tmp_path / "b", 1, 1))
    assert not set(one.values()) & set(two.values())


@pytest.mark.parametrize("name", ["fx_graph_cache", "enable_autograd_cache", "caching_precompile"])
def test_a_switch_that_is_on_is_a_violation(name: str) -> None:
    flags = {f"{m}.{n}": str(wanted) for (m, n), wanted in inductor.CACHE_FLAGS.items()}
    assert inductor.flag_violations(flags) == []
    (key,) = (k for k in flags if k.endswith(f".{name}"))
    assert inductor.flag_violations(flags | {key: "True"}) == [
        f"{key} is True, a cold trial needs False"
    ]
    # Unset is not off: PyTorch may decide for itself later.
    assert inductor.flag_violations(flags | {key: "None"}) != []


@pytest.mark.parametrize("value", [True, False])
def test_flags_are_read_from_the_modules_not_echoed(value: bool) -> None:
    import torch._inductor.config

    with torch._inductor.config.patch(autotune_local_cache=value):
        flags = inductor.read_flags()
    assert flags["torch._inductor.config.autotune_local_cache"] == str(value)


@pytest.mark.usefixtures("clean_dynamo")
def test_two_shapes_in_one_process_are_a_violation(make_spec: Spec, placement: Placement) -> None:
    """Case K7: a second shape is a second graph and a recompilation."""
    program = torch.compile(torch.nn.ReLU(), backend="eager", fullgraph=True, dynamic=False)
    program(torch.ones(2))
    adapter = Adapter(inductor_spec(make_spec), placement)
    once = adapter.read_cold()
    assert once.compiled_graphs == 1
    assert once.counters["recompiles"] == 0
    program(torch.ones(3))
    twice = adapter.read_cold()
    assert twice.compiled_graphs == 2
    assert "Dynamo captured 2 graphs, expected exactly 1" in twice.violations
    assert "recompiles is 1, expected 0" in twice.violations


@pytest.mark.usefixtures("clean_dynamo")
def test_a_hit_is_a_violation(make_spec: Spec, placement: Placement) -> None:
    from torch._dynamo.utils import counters

    counters["aot_autograd"]["autograd_cache_hit"] = 1
    reading = Adapter(inductor_spec(make_spec), placement).read_cold()
    assert reading.counters["aot_autograd.autograd_cache_hit"] == 1
    assert "aot_autograd.autograd_cache_hit is 1, expected 0" in reading.violations


@pytest.mark.usefixtures("clean_dynamo")
def test_operator_that_cannot_be_traced_is_unsupported_and_named(
    make_spec: Spec, placement: Placement
) -> None:
    """Case N2: an operator that eager runs and the compiler lacks."""

    @torch.library.custom_op("toyinductor::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    adapter = ready(make_spec, placement, lambda x: torch.ops.toyinductor.twice(x) + 1)
    with pytest.raises(Unsupported) as caught:
        adapter.compile(Clock())()
    assert "toyinductor::twice" in str(caught.value)
    assert torch.__version__.partition("+")[0] in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("clean_dynamo")
def test_a_fault_of_the_model_itself_is_not_unsupported(
    make_spec: Spec, placement: Placement
) -> None:
    adapter = ready(make_spec, placement, lambda x: x + torch.ones(7))
    execute = adapter.compile(Clock())
    with pytest.raises(torch._dynamo.exc.TorchRuntimeError):
        execute()


def ready(
    make_spec: Spec, placement: Placement, forward: Callable[[Any], Any], **changes: Any
) -> Adapter:
    """An adapter whose model is `forward`, just before `compile`, without tool-chain work."""

    class Toy(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return forward(x)

    # The trial's device is "cuda" so that no C++ work is done; tensors stay where torch has them.
    spec = inductor_spec(make_spec, device="cuda", family="bert", **changes)
    adapter = Adapter(spec, placement)
    adapter._torch, adapter._device = torch, torch.device("cpu")
    adapter._model, adapter._inputs = Toy().eval(), (torch.ones(2, 2),)
    return adapter


def test_fold_that_folds_nothing_is_an_error(make_spec: Spec, placement: Placement) -> None:
    pytest.importorskip("artifact.folds.conv_batchnorm")
    from artifact.folds import conv_batchnorm

    adapter = ready(make_spec, placement, lambda x: x, options={"fold": "conv-batchnorm"})
    adapter._folder = conv_batchnorm
    with pytest.raises(UserError, match="found nothing to fold in resnet18"):
        adapter._fold(Clock())


@pytest.mark.parametrize("route", inductor.ROUTES)
def test_a_route_that_folds_nothing_is_an_error(
    make_spec: Spec, placement: Placement, route: str
) -> None:
    from torch._dynamo.utils import counters

    counters.clear()
    adapter = ready(make_spec, placement, lambda x: x, options={"route": route})
    with pytest.raises(UserError, match=f"route {route} folded nothing in resnet18"):
        adapter._route_facts()


def test_cuda_leaves_the_one_time_work_to_the_first_call(
    make_spec: Spec, placement: Placement
) -> None:
    called: list[dict[str, Any]] = []
    spec = inductor_spec(make_spec, device="cuda", contract="paper", options={})
    adapter = Adapter(spec, placement)
    exceptions = SimpleNamespace(
        Unsupported=ValueError, TorchRuntimeError=ValueError, BackendCompilerFailed=ValueError
    )
    model = SimpleNamespace(to=lambda device: model)
    adapter._torch = SimpleNamespace(
        compile=lambda program, **arguments: called.append(arguments) or (lambda: "output"),
        cuda=SimpleNamespace(synchronize=lambda device: None),
        _dynamo=SimpleNamespace(exc=exceptions),
    )
    adapter._device, adapter._model = SimpleNamespace(type="cuda"), model
    execute = adapter.compile(clock := Clock())
    assert called == [{"fullgraph": True, "dynamic": False, "mode": "max-autotune"}]
    assert [phase.name for phase in clock.phases] == ["interpreter", "binding", "toolchain"]
    assert list(adapter.detail_ms())[:1] == ["toolchain.wrapper"]
    assert adapter._toolchain.isa == ""
    assert execute() == "output"


@pytest.mark.parametrize("options", [{"freezign": True}, {"fold": "conv-bn"}, {"route": "freeze"}])
def test_unknown_option_is_one_line(
    make_spec: Spec, placement: Placement, options: dict[str, Any]
) -> None:
    with pytest.raises(UserError) as caught:
        Adapter(inductor_spec(make_spec, options=options), placement)
    assert "unknown" in str(caught.value)
    assert "known: " in str(caught.value)


@pytest.mark.parametrize("missing", ["g++", "openssl"])
def test_missing_program_is_named(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None if name == missing else f"/bin/{name}")
    with pytest.raises(UserError, match=f"install {missing.replace('+', '[+]')}"):
        _inductor_toolchain.require_programs()


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the ceiling is one of x86-64")
def test_inductor_passes_the_ceiling_to_the_compiler() -> None:
    """The variable `TORCHINDUCTOR_CPP_MARCH` of `environment` becomes this setting."""
    import torch._inductor.config
    from torch._inductor import cpp_builder

    with torch._inductor.config.patch({"cpp.march": "x86-64-v3"}):
        options = cpp_builder.CppTorchOptions()
    command = cpp_builder.CppBuilder("o", "i.cpp", options).get_command_line()
    assert "-march=x86-64-v3" in command
    assert "-march=native" not in command


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the ceiling is one of x86-64")
def test_another_isa_than_the_ceiling_is_refused(make_spec: Spec, placement: Placement) -> None:
    adapter = Adapter(inductor_spec(make_spec, isa="avx2"), placement)
    adapter._toolchain.isa = "INVALID_VEC_ISA"
    with pytest.raises(UserError, match="INVALID_VEC_ISA"):
        adapter._check_isa()
    adapter._toolchain.isa = "avx2"
    adapter._check_isa()
