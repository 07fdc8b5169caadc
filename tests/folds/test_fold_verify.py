"""`verify` sees wrong folds, and does not judge where it could not see them."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

from fold_models import randomise  # noqa: E402
from torch import nn  # noqa: E402

from artifact.folds import conv_batchnorm, layernorm_linear  # noqa: E402
from artifact.folds.verify import verify  # noqa: E402

pytestmark = pytest.mark.torch


def conv_net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 1)
    ).eval()


def norm_net() -> nn.Module:
    return nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 4)).eval()


IMAGE = (torch.linspace(-1, 1, 2 * 3 * 6 * 6).view(2, 3, 6, 6),)
ROWS = (torch.linspace(-1, 1, 12).view(3, 4) ** 2,)


def norm_deleted(model: nn.Module) -> nn.Module:
    """The fold that is none: the input unchanged, except that its norm is gone."""
    wrong = copy.deepcopy(model)
    for index, module in enumerate(wrong):
        if isinstance(module, nn.BatchNorm2d):
            wrong[index] = nn.Identity()
        elif isinstance(module, nn.LayerNorm):
            wrong[index] = nn.LayerNorm(4, elementwise_affine=False)
    return wrong


@pytest.mark.parametrize(("net", "inputs"), [(conv_net, IMAGE), (norm_net, ROWS)])
def test_deleting_the_norm_is_different(net, inputs) -> None:  # type: ignore[no-untyped-def]
    model = randomise(net())
    outcome = verify(model, norm_deleted(model), inputs)
    assert outcome.verdict == "different"
    assert not outcome.passed
    assert outcome.max_abs_error is not None
    assert outcome.max_abs_error > 0.01


@pytest.mark.parametrize(("net", "inputs"), [(conv_net, IMAGE), (norm_net, ROWS)])
def test_deleting_a_default_norm_is_not_judged(net, inputs) -> None:  # type: ignore[no-untyped-def]
    model = net()
    outcome = verify(model, norm_deleted(model), inputs)
    assert outcome.verdict == "not judged"
    assert not outcome.passed
    assert "at their defaults" in outcome.reason
    assert outcome.max_abs_error is None


@pytest.mark.parametrize("attribute", ["weight", "bias", "running_mean", "running_var"])
def test_one_default_parameter_is_enough_not_to_judge(attribute: str) -> None:
    model = randomise(conv_net())
    default = {"weight": 1.0, "bias": 0.0, "running_mean": 0.0, "running_var": 1.0}[attribute]
    getattr(model[1], attribute).data.fill_(default)
    outcome = verify(model, conv_batchnorm.fold(model).model, IMAGE)
    assert outcome.verdict == "not judged"
    assert f"1.{attribute}" in outcome.reason


def test_right_folds_are_equal() -> None:
    model = randomise(conv_net())
    assert verify(model, conv_batchnorm.fold(model).model, IMAGE).passed
    model = randomise(norm_net())
    assert verify(model, layernorm_linear.fold(model, *ROWS).model, ROWS).passed


def test_a_weight_layout_taken_for_the_other_is_different() -> None:
    model = randomise(norm_net())
    wrong = norm_deleted(model)
    norm, linear = model
    wrong[1].weight.data = linear.weight * norm.weight.unsqueeze(1)  # rows instead of columns
    wrong[1].bias.data = linear.bias + linear.weight @ norm.bias
    assert verify(model, wrong, ROWS).verdict == "different"


def test_a_default_norm_that_the_fold_left_alone_does_not_matter() -> None:
    model = nn.Sequential(randomise(conv_net()), nn.BatchNorm2d(2)).eval()
    folded = conv_batchnorm.fold(model)
    assert folded.folded == 2  # the second pair, conv and default norm, folds too
    assert verify(model, folded.model, IMAGE).verdict == "not judged"
    model[1].train()
    model[1].eval()
    kept = nn.Sequential(conv_batchnorm.fold(model[0]).model, model[1]).eval()
    assert verify(model, kept, IMAGE).passed


def test_tolerances_shapes_dtypes_and_non_finite_outputs() -> None:
    model = nn.Linear(4, 4).eval()
    shifted = copy.deepcopy(model)
    shifted.bias.data += 5e-4
    assert verify(model, shifted, ROWS, rtol=0.0, atol=1e-4).verdict == "different"
    assert verify(model, shifted, ROWS, rtol=0.0, atol=1e-3).passed
    assert "became" in verify(model, nn.Linear(4, 3).eval(), ROWS).reason
    assert "became" in verify(nn.Identity().eval(), nn.Flatten(0).eval(), ROWS).reason
    broken = copy.deepcopy(model)
    broken.bias.data.fill_(float("nan"))
    assert verify(model, broken, ROWS).verdict == "different"
    assert verify(broken, model, ROWS).verdict == "not judged"
    assert verify(model.train(), model, ROWS).verdict == "not judged"
