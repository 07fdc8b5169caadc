"""Compares a folded model with its original, and refuses to judge where the check could not fail.

A norm with default parameters (gamma 1, beta 0, mean 0, variance 1) can be deleted almost without
a trace, so equal outputs would prove nothing about it (the check of the authors' artifact was one
of these).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd
from torch.utils._pytree import tree_leaves

# Fold equality of PAPER.md, Conv-BatchNorm fold.
RTOL = 1e-3
ATOL = 1e-4
_WITHOUT_MODE = (_ConvNd, nn.Linear, nn.LayerNorm, nn.Identity)
_DEFAULTS = {"weight": 1.0, "bias": 0.0, "running_mean": 0.0, "running_var": 1.0}


@dataclass(frozen=True)
class Verification:
    """The outcome of one comparison.

    Attributes:
        verdict: "equal", "different" or "not judged".
        reason: why it is not "equal"; "" otherwise.
        max_abs_error: largest absolute difference of any output, None when not compared.
    """

    verdict: str
    reason: str
    max_abs_error: float | None

    @property
    def passed(self) -> bool:
        """True only for outputs that were compared and are equal."""
        return self.verdict == "equal"


def verify(
    original: nn.Module,
    folded: nn.Module,
    example_inputs: tuple[Any, ...],
    rtol: float = RTOL,
    atol: float = ATOL,
) -> Verification:
    """Compare the outputs of both models on `example_inputs`, element by element.

    Equal means |folded - original| <= atol + rtol * |original| for every element of every output,
    with equal shapes and dtypes. Not judged: a norm that the fold changed has default parameters,
    a module is in training mode, or the original's output is not finite.
    """
    if training := _in_training_mode(original, folded):
        return Verification("not judged", f"{training} is in training mode", None)
    if trivial := trivial_parameters(original, folded):
        names = ", ".join(trivial[:3]) + (", ..." if len(trivial) > 3 else "")
        reason = f"{len(trivial)} parameters of folded norms are at their defaults: {names}"
        return Verification("not judged", reason, None)
    with torch.no_grad():
        expected, actual = (_outputs(model, example_inputs) for model in (original, folded))
    return _compared(expected, actual, rtol, atol)


def _in_training_mode(original: nn.Module, folded: nn.Module) -> str | None:
    """The first module in training mode; a fold's new modules are of kinds that have no mode."""
    modules = dict(original.named_modules())
    for name, module in modules.items():
        if module.training:
            return name or "the original"
    for name, module in folded.named_modules():
        kept = type(module) is type(modules.get(name)) and not isinstance(module, _WITHOUT_MODE)
        if module.training and kept:
            return name or "the folded model"
    return None


def trivial_parameters(original: nn.Module, folded: nn.Module) -> list[str]:
    """Parameters and statistics at their defaults, of norms that differ between the models."""
    counterparts = dict(folded.named_modules())
    trivial: list[str] = []
    for name, norm in original.named_modules():
        if not isinstance(norm, (_BatchNorm, nn.LayerNorm)):
            continue
        if _unchanged(norm, counterparts.get(name)):
            continue
        for attribute, default in _DEFAULTS.items():
            tensor = getattr(norm, attribute, None)
            if tensor is not None and bool((tensor == default).all()):
                trivial.append(f"{name}.{attribute}" if name else attribute)
    return trivial


def _unchanged(norm: nn.Module, counterpart: nn.Module | None) -> bool:
    if type(counterpart) is not type(norm):
        return False
    return all(
        getattr(norm, attribute, None) is getattr(counterpart, attribute, None)
        for attribute in _DEFAULTS
    )


def _outputs(model: nn.Module, example_inputs: tuple[Any, ...]) -> list[Any]:
    return [leaf for leaf in tree_leaves(model(*example_inputs)) if isinstance(leaf, torch.Tensor)]


def _compared(
    expected: list[torch.Tensor], actual: list[torch.Tensor], rtol: float, atol: float
) -> Verification:
    if not expected:
        return Verification("not judged", "the original returns no tensor", None)
    if len(expected) != len(actual):
        return Verification("different", f"{len(expected)} outputs became {len(actual)}", None)
    largest, outside = 0.0, 0
    for before, after in zip(expected, actual, strict=True):
        if before.shape != after.shape or before.dtype != after.dtype:
            kinds = [f"{tensor.dtype} {tuple(tensor.shape)}" for tensor in (before, after)]
            return Verification("different", f"an output {kinds[0]} became {kinds[1]}", None)
        if not bool(torch.isfinite(before).all()):
            return Verification("not judged", "the original's output is not finite", None)
        error = (after.to(torch.float64) - before.to(torch.float64)).abs()
        within = error <= atol + rtol * before.to(torch.float64).abs()
        outside += int((~within).sum())
        worst = float(error.max()) if error.numel() else 0.0
        largest = math.inf if math.isnan(worst) else max(largest, worst)
    if outside:
        return Verification("different", f"{outside} elements outside tolerance", largest)
    return Verification("equal", "", largest)
