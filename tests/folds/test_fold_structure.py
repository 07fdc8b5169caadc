"""The structural copy shares every tensor, no module and no plain attribute."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from artifact.folds.structure import structural_copy  # noqa: E402

pytestmark = pytest.mark.torch


class Holder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.alias = self.layer
        self.listed = [self.layer]
        self.method = self.half_of
        self.options = {"sizes": [1, 2]}
        self.layer.tied = self.layer.weight

    def half_of(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) / 2


def test_tensors_are_shared_and_everything_else_points_into_the_copy() -> None:
    model = Holder()
    copy = structural_copy(model)
    assert copy.layer is not model.layer
    assert copy.layer.weight is model.layer.weight
    assert copy.layer.tied is model.layer.weight
    assert copy.alias is copy.layer
    assert copy.listed[0] is copy.layer
    assert copy.method.__self__ is copy


def test_changes_of_the_copy_do_not_reach_the_original() -> None:
    model = Holder()
    copy = structural_copy(model)
    copy.options["sizes"].append(3)
    copy.layer.weight = nn.Parameter(torch.zeros(2, 2))
    copy.layer.register_forward_hook(lambda module, inputs, output: None)
    copy.register_buffer("extra", torch.zeros(1))
    copy.train(False)
    assert model.options == {"sizes": [1, 2]}
    assert bool(model.layer.weight.any())
    assert len(model.layer._forward_hooks) == 0
    assert "extra" not in dict(model.named_buffers())
    assert model.training
