"""Conv-BatchNorm fold: formula, layouts, dtypes, every refusal, and an argument left untouched."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from fold_models import content, largest_error, randomise, run, state  # noqa: E402
from torch import nn  # noqa: E402

from artifact.folds.conv_batchnorm import fold  # noqa: E402
from artifact.folds.verify import verify  # noqa: E402

pytestmark = pytest.mark.torch

IMAGE = (2, 4, 6, 6)


class Net(nn.Module):
    """conv, bn and a forward that a test supplies as `wire(net, x)`."""

    def __init__(self, wire: Callable[..., Any], **modules: nn.Module) -> None:
        super().__init__()
        for name, module in modules.items():
            self.add_module(name, module)
        self.wire = wire

    def forward(self, x: Any) -> Any:
        return self.wire(self, x)


def conv_bn(**conv_options: Any) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(4, 4, 3, **conv_options), nn.BatchNorm2d(4))


def only_reason(model: nn.Module) -> str:
    """The reason of the only refusal; nothing folded, the argument returned untouched."""
    before = state(model)
    outcome = fold(model)
    assert outcome.folded == 0
    assert outcome.model is model
    assert state(model) == before
    (refusal,) = outcome.refused
    return refusal.reason


def test_the_formula_on_numbers_done_by_hand() -> None:
    # Conv weight 3, bias 1; mean 5, var 4 (eps 0 -> sd 2), gamma 4, beta 1: scale 2.
    model = nn.Sequential(nn.Conv2d(1, 1, 1), nn.BatchNorm2d(1, eps=0.0)).eval()
    model[0].weight.data.fill_(3.0)
    model[0].bias.data.fill_(1.0)
    model[1].running_mean.fill_(5.0)
    model[1].running_var.fill_(4.0)
    model[1].weight.data.fill_(4.0)
    model[1].bias.data.fill_(1.0)
    folded = fold(model).model
    assert folded[0].weight.item() == 6.0  # 4 / 2 * 3
    assert folded[0].bias.item() == -7.0  # 4 / 2 * (1 - 5) + 1
    assert folded(torch.full((1, 1, 1, 1), 7.0)).item() == 35.0  # ((3*7 + 1) - 5) / 2 * 4 + 1


@pytest.mark.parametrize("eps", [1e-5, 1e-3, 0.5])
def test_eps_is_part_of_the_scale(eps: float) -> None:
    model = randomise(nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4, eps=eps)).double())
    x = torch.randn(IMAGE, dtype=torch.float64)
    assert largest_error(run(model, x), run(fold(model).model, x)) < 1e-12


LAYERS = {
    "conv1d": (nn.Conv1d(4, 6, 3), nn.BatchNorm1d(6), (2, 4, 9)),
    "conv2d": (nn.Conv2d(4, 6, 3, stride=2), nn.BatchNorm2d(6), (2, 4, 9, 9)),
    "conv3d": (nn.Conv3d(4, 6, 2), nn.BatchNorm3d(6), (2, 4, 4, 4, 4)),
    "groups": (nn.Conv2d(4, 6, 3, groups=2, bias=False), nn.BatchNorm2d(6), IMAGE),
    "depthwise": (nn.Conv2d(8, 8, 3, groups=8), nn.BatchNorm2d(8), (2, 8, 6, 6)),
    "dilated, reflected": (
        nn.Conv2d(4, 6, 3, dilation=2, padding=2, padding_mode="reflect"),
        nn.BatchNorm2d(6),
        IMAGE,
    ),
    "no affine": (nn.Conv2d(4, 6, 3, bias=False), nn.BatchNorm2d(6, affine=False), IMAGE),
    "transposed": (
        nn.ConvTranspose2d(4, 6, 3, output_padding=1, stride=2),
        nn.BatchNorm2d(6),
        IMAGE,
    ),
    "transposed, grouped": (nn.ConvTranspose2d(4, 4, 3, groups=2), nn.BatchNorm2d(4), IMAGE),
    "transposed 1d": (nn.ConvTranspose1d(4, 6, 3, groups=2), nn.BatchNorm1d(6), (2, 4, 9)),
}


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_every_kind_of_convolution_folds(name: str, dtype: torch.dtype) -> None:
    conv, norm, shape = LAYERS[name]
    model = randomise(copy.deepcopy(nn.Sequential(conv, norm)).to(dtype))
    x = torch.randn(shape, dtype=dtype)
    before = state(model)
    outcome = fold(model)
    assert (outcome.folded, outcome.refused) == (1, [])
    assert outcome.folded_names == ("1",)
    error = largest_error(run(model, x), run(outcome.model, x))
    assert error < (1e-12 if dtype == torch.float64 else 1e-5)
    assert outcome.model[0].weight.dtype == outcome.model[0].bias.dtype == dtype
    assert state(model) == before


def test_conv1d_fold_refuses_an_unbatched_value_whose_axes_mean_something_else() -> None:
    # (4, 9) -> conv (7, 7): BatchNorm1d normalises the last axis, the fold would the first.
    model = randomise(nn.Sequential(nn.Conv1d(4, 7, 3), nn.BatchNorm1d(7)))
    assert run(model, torch.randn(4, 9))[0].shape == (7, 7)
    with pytest.raises(AssertionError, match="batched"):
        run(fold(model).model, torch.randn(4, 9))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("norm_stays_float32", [False, True])
def test_half_precision_is_the_float64_fold_rounded_once(
    dtype: torch.dtype, norm_stays_float32: bool
) -> None:
    model = randomise(conv_bn(bias=False))
    model[0].to(dtype)
    if not norm_stays_float32:
        model[1].to(dtype)
    conv, norm = model
    scale = norm.weight.double() / torch.sqrt(norm.running_var.double() + norm.eps)
    weight = (conv.weight.double() * scale.view(-1, 1, 1, 1)).to(dtype)
    bias = (norm.bias.double() - scale * norm.running_mean.double()).to(dtype)
    folded = fold(model).model[0]
    assert folded.weight.dtype == folded.bias.dtype == dtype
    assert folded.bias.equal(bias)
    ulps = (folded.weight.view(torch.int16) - weight.view(torch.int16)).abs()
    assert int(ulps.max()) <= 1
    # A scale that was itself rounded to half would be within one ulp too, but off in many places.
    assert float((ulps > 0).double().mean()) < 0.01


def test_float32_bias_is_computed_in_float64() -> None:
    # In float32 the difference 1e8 + 1 - 1e8 is 0; in float64 it is 1.
    model = nn.Sequential(nn.Conv2d(1, 1, 1), nn.BatchNorm2d(1, eps=0.0)).eval()
    model[0].bias.data.fill_(1e8)
    model[1].running_mean.fill_(1e8 - 8)
    model[1].running_var.fill_(9.0)
    assert fold(model).model[0].bias.item() == pytest.approx(8 / 3, rel=1e-7)


def test_float16_overflow_is_refused_not_folded_to_infinity() -> None:
    model = randomise(conv_bn()).half()
    model[0].weight.data.fill_(2.0)
    model[1].weight.data.fill_(6e4)
    assert "not finite" in only_reason(model)


def test_a_negative_variance_is_refused() -> None:
    model = randomise(conv_bn())
    model[1].running_var[2] = -1.0
    assert "not finite" in only_reason(model)


@pytest.mark.parametrize("kernel", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_channels_last_strides_are_kept(kernel: int, dtype: torch.dtype) -> None:
    model = nn.Sequential(nn.Conv2d(4, 6, kernel), nn.BatchNorm2d(6))
    model = randomise(model).to(dtype).to(memory_format=torch.channels_last)
    assert fold(model).model[0].weight.stride() == model[0].weight.stride()


def test_folded_tensors_own_their_storage_and_keep_requires_grad() -> None:
    model = randomise(nn.Sequential(*conv_bn(), *conv_bn()))
    model[0].requires_grad_(False)
    folded = fold(model).model
    tensors = [folded[0].weight, folded[0].bias, folded[2].weight, folded[2].bias]
    assert [tensor.requires_grad for tensor in tensors] == [False, False, True, True]
    for tensor in tensors:
        assert tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()


# Refusals


def wired(wire: Callable[..., Any], **modules: nn.Module) -> nn.Module:
    if not modules:
        modules = {"conv": nn.Conv2d(4, 4, 3, padding=1), "bn": nn.BatchNorm2d(4)}
    return randomise(Net(wire, **modules))


def test_value_used_elsewhere() -> None:
    def wire(net: Any, x: Any) -> Any:
        value = net.conv(x)
        return net.bn(value) + F.relu(value)

    assert "used elsewhere: relu" in only_reason(wired(wire))


def test_value_returned() -> None:
    def wire(net: Any, x: Any) -> Any:
        value = net.conv(x)
        return net.bn(value), value

    assert "used elsewhere: output" in only_reason(wired(wire))


def test_value_modified_in_place_before_the_norm() -> None:
    def wire(net: Any, x: Any) -> Any:
        value = net.conv(x)
        value.relu_()
        return net.bn(value)

    assert "used elsewhere" in only_reason(wired(wire))


def test_two_norms_on_one_value() -> None:
    def wire(net: Any, x: Any) -> Any:
        value = net.conv(x)
        return net.bn(value) + net.other(value)

    modules = {"conv": nn.Conv2d(4, 4, 1), "bn": nn.BatchNorm2d(4), "other": nn.BatchNorm2d(4)}
    outcome = fold(wired(wire, **modules))
    assert outcome.folded == 0
    assert [refusal.name for refusal in outcome.refused] == ["bn", "other"]


def test_convolution_called_twice() -> None:
    model = wired(lambda net, x: net.bn(net.conv(x)) + net.conv(x))
    assert "convolution conv is shared: called 2 times" in only_reason(model)


def test_norm_called_twice() -> None:
    def wire(net: Any, x: Any) -> Any:
        return net.bn(net.conv(x)) + net.bn(net.other(x))

    modules = {"conv": nn.Conv2d(4, 4, 1), "other": nn.Conv2d(4, 4, 1), "bn": nn.BatchNorm2d(4)}
    assert "BatchNorm is shared: called 2 times" in only_reason(wired(wire, **modules))


def test_norm_before_the_convolution() -> None:
    model = wired(lambda net, x: net.conv(net.bn(F.relu(x))))
    assert "BatchNorm comes before the convolution: its input is relu" in only_reason(model)
    model = randomise(nn.Sequential(nn.ReLU(), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 1)))
    assert "BatchNorm comes before the convolution" in only_reason(model)


def test_registration_order_does_not_decide() -> None:
    modules = {"bn": nn.BatchNorm2d(4), "conv": nn.Conv2d(4, 4, 1)}
    assert fold(wired(lambda net, x: net.bn(net.conv(x)), **modules)).folded == 1
    modules = {"conv": nn.Conv2d(4, 4, 1), "bn": nn.BatchNorm2d(4)}
    assert fold(wired(lambda net, x: net.conv(net.bn(x)), **modules)).folded == 0


@pytest.mark.parametrize("tied", ["conv", "statistic", "storage"])
def test_tied_tensors(tied: str) -> None:
    model = randomise(nn.Sequential(*conv_bn(padding=1), *conv_bn(padding=1)))
    if tied == "conv":
        model[2].weight = model[0].weight
    elif tied == "statistic":
        model[3].running_var = model[1].running_var
    else:
        model[2].weight = nn.Parameter(model[0].weight.data)
    outcome = fold(model)
    assert outcome.folded == 0
    assert all("tied" in refusal.reason for refusal in outcome.refused)
    assert len(outcome.refused) == 2


@pytest.mark.parametrize("attribute", ["conv.weight", "bn.running_mean"])
def test_tensor_read_outside_its_call(attribute: str) -> None:
    def wire(net: Any, x: Any) -> Any:
        module, _, name = attribute.partition(".")
        return net.bn(net.conv(x)) + getattr(getattr(net, module), name).sum()

    assert "read outside its call" in only_reason(wired(wire))


def test_training_mode_of_all_or_of_one_module() -> None:
    model = randomise(conv_bn())
    model.train()
    assert "training mode" in only_reason(model)
    model.eval()
    model[1].train()
    assert "training mode" in only_reason(model)


def test_no_running_statistics() -> None:
    model = nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4, track_running_stats=False)).eval()
    assert "no running statistics" in only_reason(model)


def test_functional_forms() -> None:
    def functional_norm(net: Any, x: Any) -> Any:
        return F.batch_norm(net.conv(x), net.bn.running_mean, net.bn.running_var)

    outcome = fold(wired(functional_norm))
    assert outcome.folded == 0
    reasons = {refusal.name: refusal.reason for refusal in outcome.refused}
    assert reasons["batch_norm"] == "not matched: functional"
    assert "not called" in reasons["bn"]
    model = wired(lambda net, x: net.bn(F.conv2d(x, net.conv.weight)))
    assert only_reason(model) == "not matched: functional convolution"


def test_exported_resnet_names_every_norm_as_functional() -> None:
    models = pytest.importorskip("torchvision.models")
    exported = torch.export.export(models.resnet18().eval(), (torch.randn(1, 3, 64, 64),)).module()
    outcome = fold(exported)
    assert outcome.folded == 0
    assert [refusal.reason for refusal in outcome.refused] == ["not matched: functional"] * 20


def test_linear_then_batchnorm_normalises_another_axis() -> None:
    model = randomise(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)))
    x = torch.randn(4, 2, 3)
    assert "Linear, not a convolution" in only_reason(model)
    assert run(fold(model).model, x)[0].equal(run(model, x)[0])


def test_subclasses_hooks_and_replaced_forwards() -> None:
    class Scaled(nn.BatchNorm2d):
        def forward(self, input: Any) -> Any:
            return 2 * super().forward(input)

    model = randomise(nn.Sequential(nn.Conv2d(4, 4, 1), Scaled(4)))
    assert "Scaled after Conv2d is not matched" in only_reason(model)
    model = randomise(conv_bn())
    model[0].register_forward_hook(lambda module, inputs, output: output * 2)
    assert "hook" in only_reason(model)
    model = randomise(conv_bn())
    model[0].forward = lambda x: x
    assert "forward was replaced" in only_reason(model)


def test_weight_norm_and_parametrised_convolutions_are_refused() -> None:
    model = randomise(conv_bn())
    nn.utils.parametrizations.weight_norm(model[0])
    assert "not a plain convolution" in only_reason(model)


def test_half_converted_and_meta_models() -> None:
    model = randomise(conv_bn())
    model[1].double()
    assert "half converted" in only_reason(model)
    model = randomise(conv_bn()).half()
    model[0].weight.data = model[0].weight.data.float()
    assert "half converted" in only_reason(model)
    assert "meta device" in only_reason(conv_bn().eval().to("meta"))
    model = randomise(conv_bn())
    model[1].to("meta")
    assert "several devices" in only_reason(model)


class Branching(nn.Module):
    """Folds only on the path that a plain trace happens to see: `skip` is None by default."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)

    def forward(self, x: Any, skip: Any = None) -> Any:
        value = self.conv(x)
        return self.bn(value) + value if skip is None else self.bn(value) + skip


def test_a_path_taken_only_without_an_optional_argument_is_seen() -> None:
    assert "used elsewhere" in only_reason(randomise(Branching()))


def test_untraceable_model_comes_back_itself_with_one_refusal() -> None:
    model = wired(lambda net, x: net.bn(net.conv(x)) if x.sum() > 0 else x)
    outcome = fold(model)
    assert outcome.model is model
    (refusal,) = outcome.refused
    assert refusal.name == "Net"
    assert refusal.reason.startswith("cannot be traced: TraceError: ")
    assert "\n" not in refusal.reason


def test_a_module_reached_around_the_tree_is_not_folded_behind_its_back() -> None:
    model = randomise(conv_bn())
    hidden = model[1]
    outside = randomise(Net(lambda net, x: hidden(net.conv(x)), conv=model[0], bn=hidden))
    assert "cannot be traced" in only_reason(outside)


class Keeping(nn.Module):
    """Leaves the convolution's value where a caller can read it after the forward."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)
        self.where = where
        self.last: Any = None
        self.seen: list[Any] = []

    def forward(self, x: Any) -> Any:
        value = self.conv(x)
        if self.where == "last":
            self.last = value
        else:
            self.seen.append(value)
        return self.bn(value)


@pytest.mark.parametrize("where", ["last", "seen"])
def test_values_kept_on_the_module_count_as_uses(where: str) -> None:
    model = randomise(Keeping(where))
    assert f"changes its own attribute {where}" in only_reason(model)
    assert model.last is None
    assert model.seen == []


def test_a_buffer_written_by_the_forward_is_not_written_by_the_fold() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.bn = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: Any) -> Any:
            self.calls.add_(1)
            return self.bn(self.conv(x))

    model = randomise(Counting())
    assert fold(model).folded == 1
    assert model.calls.item() == 0


def test_modules_in_a_plain_list_are_folded_where_the_list_points() -> None:
    class Listed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.bn = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)
            self.order = [self.conv, self.bn]

        def forward(self, x: Any) -> Any:
            for module in self.order:
                x = module(x)
            return x

    model = randomise(Listed()).double()
    outcome = fold(model)
    x = torch.randn(IMAGE, dtype=torch.float64)
    assert outcome.folded == 1
    assert largest_error(run(model, x), run(outcome.model, x)) < 1e-12
    assert isinstance(model.order[1], nn.BatchNorm2d)


def test_an_argument_that_is_no_module() -> None:
    with pytest.raises(TypeError, match="got int"):
        fold(3)  # type: ignore[arg-type]


# Whole models


@pytest.mark.parametrize(("name", "count"), [("resnet18", 20), ("resnet50", 53)])
def test_resnets_lose_every_norm_and_nothing_else(name: str, count: int) -> None:
    models = pytest.importorskip("torchvision.models")
    torch.manual_seed(0)
    model = getattr(models, name)(weights=None).eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            for tensor, low, high in (
                (module.weight, 0.5, 1.0),
                (module.bias, -0.1, 0.1),
                (module.running_mean, -0.1, 0.1),
                (module.running_var, 0.5, 1.5),
            ):
                nn.init.uniform_(tensor, low, high)
    versions = {key: tensor._version for key, tensor in model.state_dict(keep_vars=True).items()}
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    outcome = fold(model)
    assert (outcome.folded, outcome.refused) == (count, [])
    assert not any(isinstance(module, nn.BatchNorm2d) for module in outcome.model.modules())
    assert type(outcome.model) is type(model)
    assert outcome.model.fc.weight is model.fc.weight
    x = torch.randn(2, 3, 64, 64)
    scale = float(run(model, x)[0].abs().max())
    assert largest_error(run(model, x), run(outcome.model, x)) < 1e-5 * scale
    assert verify(model, outcome.model, (x / scale,)).verdict == "equal"
    after = model.state_dict(keep_vars=True)
    assert {key: tensor._version for key, tensor in after.items()} == versions
    assert all(after[key].equal(before[key]) for key in before)
    again = fold(outcome.model)
    assert (again.folded, again.refused) == (0, [])
    assert run(again.model, x)[0].equal(run(outcome.model, x)[0])


def test_an_fx_graph_module_folds_too() -> None:
    model = torch.fx.symbolic_trace(randomise(conv_bn()).double())
    before = content(model.get_submodule("0").weight)
    outcome = fold(model)
    x = torch.randn(IMAGE, dtype=torch.float64)
    assert outcome.folded == 1
    assert largest_error(run(model, x), run(outcome.model, x)) < 1e-12
    assert content(model.get_submodule("0").weight) == before


def test_a_graph_that_calls_one_convolution_by_two_names_sees_the_sharing() -> None:
    conv = nn.Conv2d(4, 4, 1)
    root = nn.ModuleDict({"conv": conv, "alias": conv, "bn": nn.BatchNorm2d(4)})
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    first = graph.call_module("bn", (graph.call_module("alias", (x,)),))
    graph.output((first, graph.call_module("conv", (x,))))
    model = randomise(torch.fx.GraphModule(root, graph))
    outcome = fold(model)
    assert outcome.folded == 0
    assert "shared: called 2 times" in outcome.refused[0].reason


def test_the_fold_compiles_as_one_graph() -> None:
    model = randomise(nn.Sequential(nn.Conv1d(4, 4, 3), nn.BatchNorm1d(4), nn.ReLU())).double()
    folded = fold(model).model
    x = torch.randn(2, 4, 9, dtype=torch.float64)
    compiled = torch.compile(folded, fullgraph=True, dynamic=False, backend="aot_eager")
    assert largest_error(run(model, x), run(compiled, x)) < 1e-12


def test_phases_add_up_to_the_reported_time() -> None:
    outcome = fold(randomise(conv_bn()))
    assert set(outcome.phases_ms) == {"copy", "trace", "legality", "rewrite"}
    assert 0 < sum(outcome.phases_ms.values()) <= outcome.fold_ms
