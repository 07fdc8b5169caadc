"""LayerNorm-Linear: every verdict with its reason, the formula, layouts, and whole models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from fold_models import largest_error, randomise, run, state  # noqa: E402
from torch import nn  # noqa: E402

from artifact.folds.layernorm_linear import Site, audit, fold, table  # noqa: E402

pytestmark = pytest.mark.torch

D = 4


class Conv1D(nn.Module):
    """The transposed linear layer of Hugging Face's GPT-2: weight (in, out), through addmm."""

    def __init__(self, outputs: int, inputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inputs, outputs))
        self.bias = nn.Parameter(torch.randn(outputs))

    def forward(self, x: Any) -> Any:
        rows = x.view(-1, x.size(-1))
        return torch.addmm(self.bias, rows, self.weight).view(*x.shape[:-1], -1)


class Net(nn.Module):
    """Modules by name and a forward that a test supplies."""

    def __init__(self, wire: Callable[..., Any], **modules: nn.Module) -> None:
        super().__init__()
        for name, module in modules.items():
            self.add_module(name, module)
        self.wire = wire

    def forward(self, *inputs: Any) -> Any:
        return self.wire(self, *inputs)


def net(wire: Callable[..., Any], **modules: nn.Module) -> nn.Module:
    modules = {"ln": nn.LayerNorm(D), "fc": nn.Linear(D, 3)} | modules
    return randomise(Net(wire, **modules).double())


def values(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


X = values(2, 5, D)


def site_of(model: nn.Module, *inputs: torch.Tensor, name: str = "ln") -> Site:
    """The audit's site `name`; the audit and the fold leave the model untouched."""
    before = state(model)
    (site,) = [site for site in audit(model, *inputs).sites if site.name == name]
    assert state(model) == before
    return site


def assert_folds(model: nn.Module, *inputs: torch.Tensor, sites: int = 1) -> nn.Module:
    """All of `sites` fold with equal outputs; the original is untouched, a second fold idle."""
    before = state(model)
    outcome = fold(model, *inputs)
    assert state(model) == before
    assert outcome.folded == sites
    assert largest_error(run(model, *inputs), run(outcome.model, *inputs)) < 1e-12
    again = fold(outcome.model, *inputs)
    assert again.folded == 0
    assert again.model is outcome.model
    return outcome.model


def assert_not_folded(model: nn.Module, verdict: str, reason: str, *inputs: torch.Tensor) -> None:
    site = site_of(model, *inputs)
    assert (site.verdict, reason in site.reason) == (verdict, True), site
    outcome = fold(model, *inputs)
    assert outcome.folded == 0
    assert outcome.model is model
    assert reason in {refusal.name: refusal.reason for refusal in outcome.refused}["ln"]


# Legal sites


def test_the_formula_on_numbers_done_by_hand() -> None:
    model = nn.Sequential(nn.LayerNorm(2), nn.Linear(2, 1)).eval()
    model[0].weight.data = torch.tensor([2.0, 3.0])
    model[0].bias.data = torch.tensor([5.0, 7.0])
    model[1].weight.data = torch.tensor([[11.0, 13.0]])
    model[1].bias.data = torch.tensor([17.0])
    folded = fold(model, torch.randn(4, 2)).model
    assert folded[1].weight.tolist() == [[22.0, 39.0]]  # 11*2, 13*3
    assert folded[1].bias.tolist() == [163.0]  # 11*5 + 13*7 + 17
    assert (folded[0].weight, folded[0].bias) == (None, None)


def test_eps_is_kept_and_the_norm_stays_a_layernorm() -> None:
    model = net(lambda net, x: net.fc(net.ln(x)), ln=nn.LayerNorm(D, eps=0.3))
    folded = assert_folds(model, X)
    assert type(folded.ln) is nn.LayerNorm
    assert folded.ln.eps == 0.3
    assert folded.ln.elementwise_affine is False


def test_a_missing_linear_bias_is_created_from_beta() -> None:
    model = net(lambda net, x: net.fc(net.ln(x)), fc=nn.Linear(D, 3, bias=False))
    folded = assert_folds(model, X)
    expected = model.fc.weight @ model.ln.bias
    assert torch.allclose(folded.fc.bias, expected, rtol=1e-12)


def test_a_norm_without_beta_needs_no_bias() -> None:
    modules = {"ln": nn.LayerNorm(D, bias=False), "fc": nn.Linear(D, 3, bias=False)}
    folded = assert_folds(net(lambda net, x: net.fc(net.ln(x)), **modules), X)
    assert folded.fc.bias is None


def test_transposed_weights_of_hugging_face() -> None:
    model = net(lambda net, x: net.fc(net.ln(x)), fc=Conv1D(D, D))  # square: a wrong layout fits
    assert_folds(model, X)
    assert site_of(model, X).consumers == ["fc"]


def test_several_linear_layers_behind_one_norm() -> None:
    def wire(net: Any, x: Any) -> Any:
        value = net.ln(x)
        return net.fc(value) + net.other(value) * net.third(value)

    modules = {"other": nn.Linear(D, 3, bias=False), "third": Conv1D(3, D)}
    model = net(wire, **modules)
    assert sorted(site_of(model, X).consumers) == ["fc", "other", "third"]
    assert_folds(model, X)


LOOKED_THROUGH: dict[str, Callable[[Any], Any]] = {
    "view": lambda value: value.view(-1, D),
    "reshape and back": lambda value: value.reshape(10, D).reshape(5, 2, D),
    "transposed rows": lambda value: value.transpose(0, 1).contiguous(),
    "permuted rows": lambda value: value.permute(1, 0, 2),
    "unsqueezed": lambda value: value.unsqueeze(0),
    "clone, detach": lambda value: value.clone().detach(),
    "dropout in eval": lambda value: F.dropout(value, 0.5, training=False),
    "first row": lambda value: value[:, 0],
    "some rows": lambda value: value[:, 1:3],
    "same type": lambda value: value.to(torch.float64),
}


@pytest.mark.parametrize("name", LOOKED_THROUGH)
def test_looks_through(name: str) -> None:
    through = LOOKED_THROUGH[name]
    model = net(lambda net, x: net.fc(through(net.ln(x))))
    assert site_of(model, X).consumers == ["fc"]
    assert_folds(model, X)


def test_looks_through_identity_and_dropout_modules() -> None:
    model = randomise(
        nn.Sequential(nn.LayerNorm(D), nn.Identity(), nn.Dropout(0.5), nn.Linear(D, 3)).double()
    )
    assert_folds(model, X)


class Functional(nn.Module):
    """A norm whose consumer is a function call on the module's own parameters."""

    def __init__(self, call: Callable[..., Any]) -> None:
        super().__init__()
        self.ln = nn.LayerNorm(D)
        self.weight = nn.Parameter(torch.randn(D, D))
        self.offset = nn.Parameter(torch.randn(D))
        self.call = call

    def forward(self, x: Any) -> Any:
        return self.call(self.ln(x), self.weight, self.offset)


def functional(call: Callable[..., Any]) -> nn.Module:
    return randomise(Functional(call).double())


@pytest.mark.parametrize(
    "call",
    [
        lambda x, w, b: F.linear(x, w, b),
        lambda x, w, b: torch.addmm(b, x.view(-1, D), w),
        lambda x, w, b: torch.addmm(b, x.view(-1, D), w.t()),
    ],
    ids=["linear", "addmm", "addmm of a transposed weight"],
)
def test_functional_consumers(call: Callable[..., Any]) -> None:
    assert_folds(functional(call), X)


def test_decomposed_exported_program() -> None:
    model = net(lambda net, x: net.fc(net.ln(x)))
    program = torch.export.export(model, (X,)).run_decompositions()
    targets = {str(node.target) for node in program.graph.nodes}
    assert "aten.native_layer_norm.default" in targets
    assert "aten.addmm.default" in targets
    (site,) = audit(program).sites
    assert (site.name, site.verdict) == ("ln", "legal")


# Illegal sites


def test_residual_use() -> None:
    def wire(net: Any, x: Any) -> Any:
        value = net.ln(x)
        return net.fc(value) + value

    model = net(wire, fc=nn.Linear(D, D))
    assert_not_folded(model, "illegal", "residual add", X)
    assert site_of(model, X).consumers == ["fc", "add"]


def test_use_behind_a_view() -> None:
    def wire(net: Any, x: Any) -> Any:
        value = net.ln(x)
        return net.fc(value), torch.relu(value.view(-1, D))

    assert_not_folded(net(wire), "illegal", "also used by relu", X)


def test_output_of_the_model() -> None:
    def wire(net: Any, x: Any) -> Any:
        value = net.ln(x)
        return net.fc(value), value

    assert_not_folded(net(wire), "illegal", "output of the model", X)


def test_value_changed_in_place() -> None:
    def wire(net: Any, x: Any) -> Any:
        value = net.ln(x)
        value.add_(1)
        return net.fc(value)

    assert_not_folded(net(wire), "illegal", "add_", X)


def test_tied_weight_that_is_used_elsewhere_or_only_named_elsewhere() -> None:
    model = net(lambda net, x: net.fc(net.ln(x)) @ net.other.weight, other=nn.Linear(D, 3))
    model.other.weight = model.fc.weight
    assert_not_folded(model, "illegal", "fc is tied", X)
    model = net(lambda net, x: net.fc(net.ln(x)), other=nn.Linear(D, 3))
    model.other.weight = model.fc.weight
    assert_not_folded(model, "illegal", "fc is tied", X)
    assert "other.weight" in site_of(model, X).reason


def test_tied_bias() -> None:
    model = net(lambda net, x: net.fc(net.ln(x)) + net.other(x), other=nn.Linear(D, 3))
    model.other.bias = model.fc.bias
    assert_not_folded(model, "illegal", "tied", X)


def test_weight_also_read_outside_its_layer() -> None:
    model = net(lambda net, x: net.fc(net.ln(x)) + net.fc.weight.sum())
    assert_not_folded(model, "illegal", "fc is shared: fc.weight is used by", X)


def test_shared_consumer() -> None:
    model = net(lambda net, x: net.fc(net.ln(x)) + net.fc(x))
    assert_not_folded(model, "illegal", "consumer fc is shared: called 2 times", X)


def test_shared_norm() -> None:
    model = net(lambda net, x: net.fc(net.ln(x)) + net.other(net.ln(2 * x)), other=nn.Linear(D, 3))
    assert_not_folded(model, "illegal", "LayerNorm is shared: called 2 times", X)
    assert sorted(site_of(model, X).consumers) == ["fc", "other"]


def test_norm_parameter_tied_or_read_elsewhere() -> None:
    model = net(lambda net, x: net.fc(net.ln(x)) + net.ln.weight.sum())
    assert_not_folded(model, "illegal", "the LayerNorm is shared", X)
    model = net(lambda net, x: net.fc(net.ln(x)) + net.other(x).sum(), other=nn.LayerNorm(D))
    model.other.bias = model.ln.bias
    assert_not_folded(model, "illegal", "the LayerNorm is tied", X)


def test_no_affine_part() -> None:
    model = net(lambda net, x: net.fc(net.ln(x)), ln=nn.LayerNorm(D, elementwise_affine=False))
    assert_not_folded(model, "illegal", "no affine, nothing to fold", X)


def test_gamma_wider_than_the_last_axis() -> None:
    model = net(lambda net, x: net.fc(net.ln(x)), ln=nn.LayerNorm((5, D)))
    assert_not_folded(model, "illegal", "normalized shape (5, 4)", X)


def test_value_used_as_a_weight() -> None:
    model = net(lambda net, x: F.linear(x, net.ln(x[0])))
    assert_not_folded(model, "illegal", "computed value", X)


def test_training_mode_and_hooks() -> None:
    model = net(lambda net, x: net.fc(net.ln(x)))
    model.fc.train()
    assert_not_folded(model, "illegal", "fc is in training mode", X)
    model = randomise(nn.Sequential(nn.LayerNorm(D), nn.Dropout(0.5), nn.Linear(D, 3)).double())
    model[1].train()
    assert "training mode" in site_of(model, X, name="0").reason
    model = net(lambda net, x: net.fc(net.ln(x)))
    model.ln.register_forward_hook(lambda module, inputs, output: output + 1)
    assert site_of(model, X).verdict == "illegal"


def test_another_dtype_on_the_way() -> None:
    model = net(lambda net, x: net.fc(net.ln(x).to(torch.float32)), fc=nn.Linear(D, 3))
    model.fc.float()
    assert fold(model, X).folded == 0


def test_overflow_is_refused_not_folded_to_infinity() -> None:
    model = net(lambda net, x: net.fc(net.ln(x)))
    model.ln.weight.data.fill_(1e200)
    model.fc.weight.data.fill_(1e200)
    outcome = fold(model, X)
    assert outcome.folded == 0
    assert "not finite" in outcome.refused[0].reason


# Matching failures


@pytest.mark.parametrize(
    "call",
    [
        lambda x, w, b: torch.einsum("...i,oi->...o", x, w),
        lambda x, w, b: x @ w,
        lambda x, w, b: F.linear(x, w, 2 * b),
        lambda x, w, b: F.linear(x.transpose(1, 2).reshape(-1, D), w, b),
        lambda x, w, b: F.linear(torch.cat([x, x]), w, b),
    ],
    ids=["einsum", "matmul without bias", "computed bias", "moved axis", "cat"],
)
def test_what_cannot_be_matched_is_neither_legal_nor_illegal(call: Callable[..., Any]) -> None:
    model = functional(call)
    site = site_of(model, X)
    assert site.verdict != "legal"
    assert fold(model, X).folded == 0


def test_unmatched_forms_say_unmatched() -> None:
    assert site_of(functional(lambda x, w, b: x @ w), X).verdict == "unmatched"
    assert site_of(functional(lambda x, w, b: F.linear(x, w, 2 * b)), X).verdict == "unmatched"
    moved = functional(lambda x, w, b: F.linear(x.transpose(1, 2).reshape(-1, D), w, b))
    assert "moves the normalised axis" in site_of(moved, X).reason


def test_a_view_that_joins_or_splits_the_normalised_axis_is_unmatched() -> None:
    model = net(lambda net, x: net.fc(net.ln(x).reshape(2, 5 * D)), fc=nn.Linear(5 * D, 3))
    assert_not_folded(model, "unmatched", "moves the normalised axis (reshape)", X)
    model = net(lambda net, x: net.fc(net.ln(x).view(2, 5, 2, 2)), fc=nn.Linear(2, 3))
    assert_not_folded(model, "unmatched", "moves the normalised axis (view)", X)


def test_functional_norm_subclass_and_unused_norm_are_listed_as_unmatched() -> None:
    class Shifted(nn.LayerNorm):
        def forward(self, input: Any) -> Any:
            return super().forward(input) + 1

    def wire(net: Any, x: Any) -> Any:
        return net.fc(F.layer_norm(x, (D,), net.ln.weight, net.ln.bias)) + net.other(net.sub(x))

    model = net(wire, sub=Shifted(D), other=nn.Linear(D, 3))
    audited = audit(model, X)
    assert audited.count("unmatched") == len(audited.sites) >= 3
    reasons = {site.name: site.reason for site in audited.sites}
    assert reasons["ln"] == "not called in the exported forward"
    assert "subclass" in reasons["sub"]
    assert "functional layer_norm" in reasons["layer_norm"]


def test_a_model_that_cannot_be_exported_is_unmatched_with_one_line() -> None:
    model = net(lambda net, x: net.fc(net.ln(x)) if x.sum() > 0 else x)
    assert_not_folded(model, "unmatched", "cannot be exported: ", X)
    assert "\n" not in site_of(model, X).reason


def test_inputs_of_the_wrong_shape() -> None:
    model = net(lambda net, x: net.fc(net.ln(x)))
    assert_not_folded(model, "unmatched", "cannot be exported: ", values(2, 7))
    functional_only = Net(lambda net, x: F.layer_norm(x, (D,)))
    (site,) = audit(functional_only, values(2, 7)).sites
    assert site.verdict == "unmatched"


def test_an_argument_that_is_no_module() -> None:
    with pytest.raises(TypeError, match="got int"):
        audit(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="got int"):
        fold(3)  # type: ignore[arg-type]


# Whole models


def test_table_and_counts() -> None:
    def wire(net: Any, x: Any) -> Any:
        return net.fc(net.ln(x)), net.last(x)

    audited = audit(net(wire, last=nn.LayerNorm(D)), X)
    assert table(audited) == [
        ("ln", "legal", "", "fc"),
        ("last", "illegal", "its value is an output of the model", "output"),
    ]
    assert [audited.count(verdict) for verdict in ("legal", "illegal", "unmatched")] == [1, 1, 0]
    with pytest.raises(ValueError, match="unknown verdict"):
        audited.count("lega")


def test_half_precision_weights_are_rounded_once() -> None:
    model = randomise(nn.Sequential(nn.LayerNorm(D), nn.Linear(D, 3))).bfloat16()
    norm, linear = model
    weight = (linear.weight.double() * norm.weight.double()).bfloat16()
    bias = (linear.weight.double() @ norm.bias.double() + linear.bias.double()).bfloat16()
    folded = fold(model, torch.randn(2, D).bfloat16()).model[1]
    assert folded.weight.equal(weight)
    assert folded.bias.equal(bias)


@pytest.mark.parametrize("architecture", ["bert", "gpt2"])
def test_two_layers_of_the_study_models(architecture: str) -> None:
    pytest.importorskip("transformers")
    from artifact.models.torch_models import build

    model = randomise(build(architecture, {"layers": 2, "vocabulary": 64}, (1, 8)))
    tokens = torch.arange(8).view(1, 8)
    audited = audit(model, tokens)
    assert (len(audited.sites), audited.count("unmatched")) == (5, 0)
    outcome = fold(model, tokens)
    assert largest_error(run(model, tokens), run(outcome.model, tokens)) < 1e-5
    if architecture == "bert":
        assert (audited.count("legal"), outcome.folded) == (0, 0)
        assert all("residual add" in site.reason for site in audited.sites[:-1])
        assert "output of the model" in audited.sites[-1].reason
    else:
        assert (audited.count("legal"), outcome.folded) == (4, 4)
        assert [site.consumers[0].rpartition(".")[2] for site in audited.sites] == [
            *["c_attn", "c_fc"] * 2,
            "lm_head",
        ]
        assert "lm_head is tied" in audited.sites[-1].reason
        assert "wte.weight" in audited.sites[-1].reason
        compiled = torch.compile(outcome.model, fullgraph=True, dynamic=False, backend="aot_eager")
        assert largest_error(run(model, tokens), run(compiled, tokens)) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize(("architecture", "legal"), [("bert", 0), ("gpt2", 24)])
def test_audit_of_the_whole_models(architecture: str, legal: int) -> None:
    pytest.importorskip("transformers")
    from artifact.folds.audit_cli import lines, run

    audited = run(architecture)
    assert (len(audited.sites), audited.count("legal"), audited.count("unmatched")) == (
        25,
        legal,
        0,
    )
    assert lines(audited)[-1] == f"25 LayerNorms: {legal} legal, {25 - legal} illegal, 0 unmatched"
