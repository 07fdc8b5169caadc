"""Small models for the fold tests, non-trivial norm parameters, and proof that nothing changed."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm


def randomise(model: nn.Module, seed: int = 0) -> nn.Module:
    """Eval mode, every norm with negative and zero gammas, shifted means, variances off 1."""
    generator = torch.Generator().manual_seed(seed)

    def fill(tensor: torch.Tensor | None, low: float, high: float) -> None:
        if tensor is not None:
            values = torch.rand(tensor.shape, generator=generator, dtype=torch.float64)
            tensor.data.copy_(low + (high - low) * values)

    for module in model.modules():
        if isinstance(module, _BatchNorm):
            fill(module.running_mean, -1.0, 1.0)
            fill(module.running_var, 0.4, 2.5)
        if isinstance(module, (_BatchNorm, nn.LayerNorm)):
            fill(module.weight, -1.5, 1.5)
            fill(module.bias, -1.0, 1.0)
            if module.weight is not None:
                module.weight.data.view(-1)[0] = 0.0
        elif hasattr(module, "bias"):
            fill(module.bias, -0.5, 0.5)
    return model.eval()


def state(model: nn.Module) -> list[tuple[Any, ...]]:
    """Every module, and every tensor's identity, version and content: equal means untouched."""
    modules = [(name, id(module), type(module)) for name, module in model.named_modules()]
    tensors = [*model.named_parameters(), *model.named_buffers()]
    return modules + [
        (name, id(tensor), tensor._version, hashlib.sha256(content(tensor)).hexdigest())
        for name, tensor in tensors
    ]


def content(tensor: torch.Tensor) -> bytes:
    """The tensor's bytes; none on the meta device."""
    if tensor.device.type == "meta":
        return b""
    return bytes(tensor.detach().contiguous().reshape(-1).view(torch.uint8).tolist())


def run(model: nn.Module, *inputs: torch.Tensor) -> list[torch.Tensor]:
    """All outputs, as a list."""
    with torch.no_grad():
        outputs = model(*inputs)
    return list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]


def largest_error(first: list[torch.Tensor], second: list[torch.Tensor]) -> float:
    """Largest absolute difference of two lists of outputs."""
    return max(
        float((a.double() - b.double()).abs().max()) for a, b in zip(first, second, strict=True)
    )
