"""The guarded pass: legal folds only, and never a stale output whatever changes afterwards.

`Seen` compiles with a compiler that runs the rewritten graph as it is, so that nothing but the pass
and Dynamo is under test; one test runs Inductor itself.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from artifact.folds.guarded import GuardedBackend, compile_guarded  # noqa: E402


@pytest.fixture(autouse=True)
def clean_dynamo() -> Iterator[None]:
    """Autograd off, Dynamo's caches empty, the same random values in every test."""
    torch._dynamo.reset()
    torch.manual_seed(7)
    with torch.no_grad():
        yield
    torch._dynamo.reset()


def lively(model: nn.Module) -> nn.Module:
    """Every norm gets statistics and parameters that are not the trivial ones; eval mode."""
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                if module.running_mean is not None:
                    module.running_mean.normal_(0.0, 0.5)
                    module.running_var.uniform_(0.5, 2.0)
                if module.affine:
                    module.weight.normal_(0.0, 1.0)  # negative gammas too
                    module.bias.normal_(0.0, 0.5)
    return model.eval()


class Seen:
    """A model compiled with the pass, and what the compiler behind the pass was given."""

    def __init__(self, model: nn.Module, **arguments: Any) -> None:
        self.model = model
        self.graphs: list[torch.fx.GraphModule] = []
        self.backend = GuardedBackend(self._compile)
        self._compiled = compile_guarded(model, backend=self.backend, fullgraph=True, **arguments)

    def _compile(self, graph: Any, inputs: Any) -> Callable[..., Any]:
        assert len(inputs) == len(list(graph.graph.find_nodes(op="placeholder")))
        self.graphs.append(graph)
        return graph.forward

    def __call__(self, *inputs: Any) -> Any:
        return self._compiled(*inputs)

    @property
    def report(self) -> Any:
        return self.backend.reports[-1]

    def norms(self, graph: int = -1) -> int:
        """BatchNorms left in a compiled graph."""
        return sum("batch_norm" in str(node.target) for node in self.graphs[graph].graph.nodes)

    def agrees(self, *inputs: Any) -> bool:
        """Compiled and eager agree; eager runs on a deep copy, training changes statistics."""
        expected = copy.deepcopy(self.model)(*inputs)
        return torch.allclose(self(*inputs), expected, rtol=1e-4, atol=1e-5)


class TwoSites(nn.Module):
    """conv (no bias) - norm - relu - conv (bias) - norm, with a residual around the second."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.conv2, self.norm2 = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)

    def forward(self, x: Any) -> Any:
        first = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(first + self.norm2(self.conv2(first)))


@pytest.fixture
def x() -> Any:
    return torch.randn(2, 3, 6, 6)


@pytest.fixture
def seen(x: Any) -> Seen:
    """Two folded sites, called once."""
    seen = Seen(lively(TwoSites()))
    assert seen.agrees(x)
    return seen


def test_both_sites_are_folded_and_unread_inputs_are_gone(seen: Seen) -> None:
    assert seen.report.folded_names == ("norm1", "norm2")
    assert seen.report.refused == []
    assert seen.report.guarded_tensors == 5 + 6
    assert seen.norms() == 0
    # x, and weight and bias of either convolution.
    assert len(list(seen.graphs[0].graph.find_nodes(op="placeholder"))) == 5


@pytest.mark.parametrize(("name", "sites"), [("resnet18", 20), ("resnet50", 53)])
def test_resnets(name: str, sites: int) -> None:
    """Claim X2: 20 and 53 folded."""
    torchvision = pytest.importorskip("torchvision")
    seen = Seen(lively(getattr(torchvision.models, name)(weights=None)))
    image = torch.randn(1, 3, 32, 32)
    expected = seen.model(image)
    assert (seen(image) - expected).norm() < 1e-5 * expected.norm()
    assert len(seen.report.folded_names) == sites
    assert seen.report.refused == []
    assert seen.norms() == 0
    assert "layer1.0.bn1" in seen.report.folded_names


# A change after compiling is seen, without compiling again


def _load(model: Any, **arguments: Any) -> None:
    model.load_state_dict(lively(TwoSites()).state_dict(), **arguments)


def _replace(model: Any) -> None:
    model.conv1.weight = nn.Parameter(torch.randn_like(model.conv1.weight))


def _new_memory(model: Any) -> None:
    model.norm1.weight.data = torch.randn(4)


def _new_weight_memory(model: Any) -> None:
    model.conv1.weight.data = torch.randn_like(model.conv1.weight)


def _same_memory_and_count(model: Any) -> None:
    """Another parameter on the old memory, whose own counter says what the old one's said."""
    old = model.conv1.weight
    old.data.add_(1.0)  # not counted
    model.conv1.weight = nn.Parameter(old.data)
    while model.conv1.weight._version < old._version:
        model.conv1.weight.mul_(1.0)
    assert model.conv1.weight._version == old._version


def _set_memory(model: Any) -> None:
    model.norm1.bias.set_(torch.randn(4))


def _optimise(model: Any) -> None:
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    torch.optim.SGD(model.parameters(), lr=0.5).step()


def _train_eagerly(model: Any) -> None:
    """A BatchNorm's own writes to its statistics do not move their version counters."""
    model.train()
    model(torch.randn(2, 3, 6, 6) * 3.0)
    model.eval()


def _in_inference_mode(model: Any) -> None:
    with torch.inference_mode():
        model.norm2.running_var.mul_(3.0)


CHANGES: dict[str, Callable[[Any], Any]] = {
    "running mean in place": lambda m: m.norm1.running_mean.add_(1.0),
    "running variance in place": lambda m: m.norm2.running_var.mul_(3.0),
    "gamma": lambda m: m.norm1.weight.neg_(),
    "beta": lambda m: m.norm2.bias.add_(1.0),
    "convolution weight": lambda m: m.conv1.weight.mul_(2.0),
    "convolution bias": lambda m: m.conv2.bias.add_(1.0),
    "one element through a view": lambda m: m.norm1.running_mean[1:2].fill_(9.0),
    "load_state_dict": _load,
    "load_state_dict, assign": lambda m: _load(m, assign=True),
    "another parameter": _replace,
    "another buffer": lambda m: setattr(m.norm1, "running_mean", torch.randn(4)),
    "other memory through .data": _new_memory,
    "other memory of a weight through .data": _new_weight_memory,
    "another parameter on the same memory": _same_memory_and_count,
    "other memory through set_": _set_memory,
    "optimiser step": _optimise,
    "eager training step": _train_eagerly,
    "running mean in place through .data": lambda m: m.norm1.running_mean.data.add_(1.0),
    "gamma in place through .data": lambda m: m.norm1.weight.data.neg_(),
    "convolution bias in place through .data": lambda m: m.conv2.bias.data.add_(1.0),
    "in inference mode": _in_inference_mode,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_change_is_seen_and_refolded_in_place(
    seen: Seen, x: Any, change: Callable[[Any], Any]
) -> None:
    before = seen(x)
    change(seen.model)
    assert seen.agrees(x)
    assert not torch.allclose(seen(x), before, atol=1e-3)
    assert (seen.report.refolds, seen.report.fallbacks) == (1, 0)
    assert len(seen.graphs) == 1  # nothing was compiled again


def test_no_change_folds_nothing_anew(seen: Seen, x: Any) -> None:
    for _ in range(3):
        seen(x + 1.0)
    assert seen.report.refolds == 0


def test_every_later_change_is_seen(seen: Seen, x: Any) -> None:
    for round_number in range(1, 4):
        seen.model.norm1.running_mean.add_(1.0)
        assert seen.agrees(x)
        assert seen.report.refolds == round_number


def test_folded_values_stay_in_the_same_memory(x: Any) -> None:
    """CUDA graphs hold addresses."""
    pointers: list[set[int]] = []

    def compiler(graph: Any, inputs: Any) -> Callable[..., Any]:
        def run(*values: Any) -> Any:
            pointers.append({value.data_ptr() for value in values if value is not x})
            return graph.forward(*values)

        return run

    model = lively(TwoSites())
    compiled = compile_guarded(model, backend=GuardedBackend(compiler))
    compiled(x)
    model.conv1.weight = nn.Parameter(torch.randn_like(model.conv1.weight))
    compiled(x)
    assert pointers[0] == pointers[1]


def test_write_to_a_weight_through_data_is_not_seen_until_refold(seen: Seen, x: Any) -> None:
    """The documented limit: PyTorch counts no such write."""
    seen.model.conv1.weight.data.add_(1.0)
    assert not seen.agrees(x)
    seen.backend.refold()
    assert seen.agrees(x)
    assert seen.report.refolds == 1


def test_the_parameters_are_never_written(seen: Seen, x: Any) -> None:
    state = {name: tensor.clone() for name, tensor in seen.model.state_dict().items()}
    seen.model.norm1.running_mean.add_(1.0)
    seen(x)
    state["norm1.running_mean"] += 1.0
    for name, tensor in seen.model.state_dict().items():
        assert torch.equal(tensor, state[name]), name


# What the compiled code does not fit


def test_train_uses_batch_statistics_and_eval_the_new_running_ones(seen: Seen, x: Any) -> None:
    seen.model.train()
    expected = copy.deepcopy(seen.model)
    assert torch.allclose(seen(x), expected(x), atol=1e-5)
    assert torch.allclose(seen.model.norm1.running_mean, expected.norm1.running_mean)
    assert [r.reason for r in seen.report.refused] == [
        "training mode: batch statistics are not constants"
    ] * 2
    assert seen.norms() == 2
    seen.model.eval()
    assert seen.agrees(x)  # the statistics that training moved
    assert seen.backend.reports[0].refolds == 1


def test_another_eps_is_seen(seen: Seen, x: Any) -> None:
    seen.model.norm1.eps = 0.5
    assert seen.agrees(x)


def test_values_that_overflow_later_run_unfolded(seen: Seen, x: Any) -> None:
    seen.model.norm1.running_var.fill_(-1.0)  # eager gives NaN
    assert torch.isnan(seen(x)).any()
    assert seen.report.fallbacks == 1
    seen.model.norm1.running_var.fill_(1.0)
    assert seen.agrees(x)
    assert (seen.report.refolds, seen.report.fallbacks) == (1, 1)


def test_another_dtype_is_right(seen: Seen, x: Any) -> None:
    seen.model.double()
    expected = copy.deepcopy(seen.model)(x.double())
    assert torch.allclose(seen(x.double()), expected, rtol=1e-9)


def test_a_norm_that_becomes_half_precision_later_is_right() -> None:
    """Legal on either side of the change; values of two dtypes cannot be compared."""
    model = lively(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))).to(torch.bfloat16)
    model[1].float()
    seen, value = Seen(model), torch.randn(2, 3, 8, 8).to(torch.bfloat16)
    seen(value)
    model[1].to(torch.bfloat16)
    model[1].bias.add_(4.0)
    assert torch.allclose(seen(value).float(), model(value).float(), rtol=0.05, atol=0.05)


def test_another_statistic_of_the_same_values_is_no_error(seen: Seen, x: Any) -> None:
    seen.model.norm1.running_mean = seen.model.norm1.running_mean.clone()
    assert seen.agrees(x)


def test_other_strides_of_a_weight_run_unfolded(seen: Seen, x: Any) -> None:
    """The compiled code was made for the old strides."""
    seen.model.conv1.to(memory_format=torch.channels_last)
    assert seen.agrees(x)


def test_gradients_reach_the_parameters_when_autograd_is_on(seen: Seen, x: Any) -> None:
    with torch.enable_grad():
        seen(x).sum().backward()
        expected = copy.deepcopy(seen.model)
        expected.zero_grad()
        expected(x).sum().backward()
    for name, parameter in seen.model.named_parameters():
        assert torch.allclose(
            parameter.grad, expected.get_parameter(name).grad, rtol=1e-3, atol=1e-4
        ), name
    assert {r.reason for r in seen.report.refused} == {"autograd would see a parameter: not frozen"}


def test_a_parameter_thawed_later_gets_its_gradient(x: Any) -> None:
    seen = Seen(lively(TwoSites()).requires_grad_(False))
    with torch.enable_grad():
        assert seen.agrees(x)
        assert len(seen.report.folded_names) == 2
        seen.model.norm1.bias.requires_grad_(True)
        seen(x).sum().backward()
    assert seen.model.norm1.bias.grad is not None


# Legality


class Reused(nn.Module):
    """The convolution's value goes to the norm and to the output."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)

    def forward(self, x: Any) -> Any:
        value = self.conv(x)
        return self.norm(value) + value


class TiedWeight(Reused):
    def forward(self, x: Any) -> Any:
        return self.norm(self.conv(x)) + functional.conv2d(x * 2, self.conv.weight)


class TwiceCalled(Reused):
    def forward(self, x: Any) -> Any:
        return self.norm(self.conv(x)) + self.conv(x + 1)


class SharedNorm(Reused):
    def forward(self, x: Any) -> Any:
        return self.norm(self.conv(x)) + self.norm(x[:, :1].expand(-1, 4, -1, -1))


class NormFirst(Reused):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(3)

    def forward(self, x: Any) -> Any:
        return self.conv(self.norm(x))


class OwnWrites(Reused):
    """The forward itself moves a statistic before the norm reads it."""

    def forward(self, x: Any) -> Any:
        self.norm.running_mean.add_(1.0)
        return self.norm(self.conv(x))


class WritesThroughView(Reused):
    """As `OwnWrites`, through another tensor on the same memory."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("view", self.norm.running_mean.view(2, 2))

    def forward(self, x: Any) -> Any:
        self.view.add_(1.0)
        return self.norm(self.conv(x))


class NoStatistics(Reused):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(4, track_running_stats=False)

    def forward(self, x: Any) -> Any:
        return self.norm(self.conv(x))


class Autocast(Reused):
    def forward(self, x: Any) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.norm(self.conv(x)).float()


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (Reused, "the convolution's value is used elsewhere"),
        (TiedWeight, "is shared: 2 operations use it"),
        (TwiceCalled, "is shared: 2 operations use it"),
        (SharedNorm, "is shared: 2 operations use it"),
        (NormFirst, "not a convolution"),
        (OwnWrites, "is shared: 2 operations use it"),
        (WritesThroughView, "shares memory with another input"),
        (NoStatistics, "no running statistics"),
        (Autocast, "dtypes change on the way"),
    ],
)
def test_illegal_site_is_left_alone_with_its_reason(kind: Any, reason: str, x: Any) -> None:
    seen = Seen(lively(kind()))
    expected = copy.deepcopy(seen.model)
    for _ in range(2):
        assert torch.allclose(seen(x), expected(x), rtol=1e-3, atol=1e-3)
    assert seen.report.folded_names == ()
    assert any(reason in refusal.reason for refusal in seen.report.refused)
    assert seen.report.guarded_tensors == 0


def test_an_unbatched_value_is_not_folded() -> None:
    """BatchNorm1d reads the (channels, length) of an unbatched Conv1d as (batch, channels)."""
    seen = Seen(lively(nn.Sequential(nn.Conv1d(3, 4, 1), nn.BatchNorm1d(4))))
    assert seen.agrees(torch.randn(3, 4))
    assert seen.report.refused[0].reason == "the convolution's value is not batched"


def test_a_legal_site_beside_an_illegal_one_is_folded(x: Any) -> None:
    seen = Seen(nn.Sequential(lively(Reused()), nn.Conv2d(4, 2, 1), lively(nn.BatchNorm2d(2))))
    seen.model.eval()
    assert seen.agrees(x)
    assert seen.report.folded_names == ("2",)
    assert [refusal.name for refusal in seen.report.refused] == ["0.norm"]
    assert seen.norms() == 1


def test_weights_that_are_arguments_are_not_frozen(x: Any) -> None:
    class Functional(nn.Module):
        def forward(self, x: Any, w: Any, mean: Any, variance: Any) -> Any:
            return functional.batch_norm(functional.conv2d(x, w), mean, variance)

    seen = Seen(Functional().eval())
    weight, mean, variance = torch.randn(4, 3, 1, 1), torch.randn(4), torch.rand(4) + 0.5
    assert seen.agrees(x, weight, mean, variance)
    assert "not a parameter or buffer of the model" in seen.report.refused[0].reason


def test_model_without_batch_norm_goes_to_the_compiler_untouched() -> None:
    given: list[Any] = []
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)).eval()

    def compiler(graph: Any, inputs: Any) -> Callable[..., Any]:
        given.append(graph)
        return graph.forward

    backend = GuardedBackend(compiler)
    value = torch.randn(2, 4)
    output = compile_guarded(model, backend=backend)(value)
    assert torch.equal(output, model(value))
    assert (backend.reports[0].folded_names, backend.reports[0].refused) == ((), [])
    assert len(given) == 1


def test_a_graph_break_gives_two_graphs_each_folded_and_guarded(x: Any) -> None:
    class Broken(TwoSites):
        def forward(self, x: Any) -> Any:
            first = self.norm1(self.conv1(x))
            torch._dynamo.graph_break()
            return self.norm2(self.conv2(first))

    backend = GuardedBackend(lambda graph, inputs: graph.forward)
    model = lively(Broken())
    compiled = compile_guarded(model, backend=backend)
    assert torch.allclose(compiled(x), model(x), atol=1e-5)
    model.norm2.running_mean.add_(1.0)
    assert torch.allclose(compiled(x), model(x), atol=1e-5)
    names = [report.folded_names for report in backend.reports if report.folded_names]
    assert names == [("norm1",), ("norm2",)]


# Formula


@pytest.mark.parametrize("dimensions", [1, 2, 3])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(("bias", "affine", "groups"), [(True, True, 2), (False, False, 1)])
def test_every_kind_of_convolution(
    dimensions: int, transposed: bool, bias: bool, affine: bool, groups: int
) -> None:
    name = f"Conv{'Transpose' if transposed else ''}{dimensions}d"
    convolution = getattr(nn, name)(4, 6, 3, stride=2, bias=bias, groups=groups)
    norm = getattr(nn, f"BatchNorm{dimensions}d")(6, eps=0.1, affine=affine)
    seen = Seen(lively(nn.Sequential(convolution, norm)).double())
    value = torch.randn(2, 4, *(7,) * dimensions, dtype=torch.float64)
    assert torch.allclose(seen(value), seen.model(value), rtol=1e-10, atol=1e-12)
    assert seen.report.folded_names == ("1",)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("norm_dtype", ["same", "float32"])
def test_half_precision(dtype: Any, norm_dtype: str) -> None:
    model = lively(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))).to(dtype)
    if norm_dtype == "float32":
        model[1].float()
    exact = copy.deepcopy(model).double()
    seen, value = Seen(model), torch.randn(2, 3, 8, 8).to(dtype)
    output = seen(value)
    assert output.dtype == dtype
    wide = exact(value.double())
    error = (output.double() - wide).norm() / wide.norm()
    assert error < (0.01 if dtype == torch.bfloat16 else 0.002)
    assert seen.report.folded_names == ("1",)


def test_same_values_as_the_offline_fold(seen: Seen, x: Any) -> None:
    from artifact.folds import conv_batchnorm

    offline = conv_batchnorm.fold(seen.model).model
    # Folded values may differ in the last bit: the scale is rounded from another expression.
    assert torch.allclose(seen(x), offline(x), rtol=1e-6, atol=1e-6)


def test_channels_last_weights_stay_so(x: Any) -> None:
    given: list[Any] = []

    def compiler(graph: Any, inputs: Any) -> Callable[..., Any]:
        given.extend(inputs)
        return graph.forward

    model = lively(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)))
    model.to(memory_format=torch.channels_last)
    output = compile_guarded(model, backend=GuardedBackend(compiler))(x)
    assert torch.allclose(output, model(x), atol=1e-5)
    (weight,) = (t for t in given if t.dim() == 4 and t.shape[0] == 4)
    assert weight.is_contiguous(memory_format=torch.channels_last)


# Inductor itself


@pytest.mark.slow
def test_with_inductor(x: Any) -> None:
    model = lively(TwoSites())
    backend = GuardedBackend()
    compiled = compile_guarded(model, backend=backend, fullgraph=True, dynamic=False)
    assert torch.allclose(compiled(x), model(x), atol=1e-5)
    assert backend.reports[0].folded_names == ("norm1", "norm2")
    model.norm1.running_mean.add_(1.0)
    _replace(model)
    assert torch.allclose(compiled(x), model(x), atol=1e-5)
    assert (len(backend.reports), backend.reports[0].refolds) == (1, 1)
    model.train()
    expected = copy.deepcopy(model)
    assert torch.allclose(compiled(x), expected(x), atol=1e-5)


# Arguments


def test_what_is_not_a_module_is_refused() -> None:
    with pytest.raises(TypeError, match="got int"):
        compile_guarded(3)


def test_mode_beside_a_backend_is_refused() -> None:
    with pytest.raises(ValueError, match="backend's own compiler"):
        compile_guarded(nn.ReLU(), mode="max-autotune", backend=GuardedBackend())


def test_mode_and_options_reach_inductor() -> None:
    from artifact.folds.guarded import inductor_backend

    assert inductor_backend("max-autotune").config["max_autotune"] is True
    assert inductor_backend(options={"epilogue_fusion": False}).config == {"epilogue_fusion": False}
    with pytest.raises(RuntimeError):
        inductor_backend("max-autotune-typo")


def test_the_guards_hold_without_dynamos_own(x: Any) -> None:
    """Dynamo compiles again for a weight of other strides or dtype; the pass would be right too."""

    class Kept(GuardedBackend):
        def __call__(self, captured: Any, example_inputs: Any) -> Any:
            self.captured, self.inputs = captured, list(example_inputs)
            self.program = super().__call__(captured, example_inputs)
            return self.program

    backend = Kept(lambda graph, inputs: graph.forward)
    compile_guarded(lively(TwoSites()), backend=backend)(x)
    (place,) = (i for i, value in enumerate(backend.inputs) if value.shape == (4, 3, 3, 3))
    inputs = list(backend.inputs)
    inputs[place] = torch.randn(4, 3, 3, 3).to(memory_format=torch.channels_last)
    expected = backend.captured.forward(*inputs)[0]
    assert torch.allclose(backend.program(*inputs)[0], expected, atol=1e-5)
    assert (backend.reports[0].refolds, backend.reports[0].fallbacks) == (0, 1)
    restored = backend.captured.forward(*backend.inputs)[0]
    assert torch.allclose(backend.program(*backend.inputs)[0], restored, atol=1e-5)
    assert (backend.reports[0].refolds, backend.reports[0].fallbacks) == (1, 1)
