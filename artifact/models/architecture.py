"""What the project needs to know of an architecture, and where each one is found.

An architecture is one object, in one file of this package: its tensors, its inputs, a PyTorch
module and a Flax module (each framework imported inside the method that needs it). The study names
it by a short name of `BUILT_IN`, or as `package.module:attribute`; so a new one needs no edit here.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, cast

from numpy.typing import NDArray

from artifact.errors import UserError
from artifact.models.philox import Key
from artifact.models.tensors import ModelTensors

if TYPE_CHECKING:
    import torch

BUILT_IN: Mapping[str, str] = {
    "resnet18": "artifact.models.resnet:RESNET18",
    "resnet50": "artifact.models.resnet:RESNET50",
    "bert": "artifact.models.bert:BERT",
    "gpt2": "artifact.models.gpt2:GPT2",
}


class Architecture(Protocol):
    """One architecture; `options` are those of the study, already checked by `check_options`.

    `option_names`: the options it takes, positive integers all. `flax_prefix`: the part of the
    PyTorch names that the Flax tree does not repeat. `torch_imports`: modules that `torch_module`
    needs, to be imported while a trial times its framework imports.
    """

    option_names: tuple[str, ...]
    flax_prefix: str
    torch_imports: tuple[str, ...]

    def check_shape(self, shape: tuple[int, ...]) -> str:
        """Why `shape` is no input shape of this architecture; empty if it is one."""

    def tensors(self, options: Mapping[str, int]) -> ModelTensors:
        """Every weight tensor and the tied ones."""

    def inputs(
        self, options: Mapping[str, int], shape: tuple[int, ...], key: Key
    ) -> tuple[NDArray[Any], ...]:
        """The program's input tensors, drawn from `key`."""

    def torch_module(
        self, options: Mapping[str, int], shape: tuple[int, ...], attn_implementation: str
    ) -> torch.nn.Module:
        """The PyTorch program, weights arbitrary."""

    def flax_module(self, options: Mapping[str, int], precision: Any) -> Any:
        """The Flax Linen module of the same function."""


def find(name: str) -> Architecture:
    """The architecture of that name, or at `package.module:attribute`; else `UserError`."""
    target = BUILT_IN.get(name, name)
    module, colon, attribute = target.partition(":")
    if not colon:
        known = ", ".join(BUILT_IN)
        raise UserError(
            f"unknown architecture {name!r}",
            next_step=f"known: {known}, or package.module:attribute",
        )
    try:
        return cast(Architecture, getattr(importlib.import_module(module), attribute))
    except (ModuleNotFoundError, AttributeError) as error:
        raise UserError(f"cannot load architecture {name!r}: {error}") from error


def check_options(architecture: str, options: Mapping[str, int]) -> None:
    """Raise `UserError` unless the architecture exists and takes these options."""
    allowed = find(architecture).option_names
    for name, value in options.items():
        if name not in allowed:
            takes = ", ".join(allowed) or "none"
            raise UserError(f"{architecture} has no option {name!r}", next_step=f"options: {takes}")
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise UserError(f"option {name!r} of {architecture} must be a positive integer")


def input_shape(architecture: str, input_name: str) -> tuple[int, ...]:
    """Shape of an input written as in the study, checked against the architecture.

    `1x3x224x224` (batch, channels, height, width) for ResNets, `8x128` (batch, sequence) for
    Transformers. Anything else is a `UserError`.
    """
    parts = input_name.split("x")
    if not all(part.isascii() and part.isdigit() and int(part) > 0 for part in parts):
        raise UserError(f"input {input_name!r} is not a shape such as 1x3x224x224 or 8x128")
    shape = tuple(int(part) for part in parts)
    fault = find(architecture).check_shape(shape)
    if fault:
        raise UserError(f"input {input_name!r} does not fit {architecture}: {fault}")
    return shape


def model_tensors(architecture: str, options: Mapping[str, int]) -> ModelTensors:
    """The tensors of one model; an unknown architecture or option is a `UserError`."""
    check_options(architecture, options)
    return find(architecture).tensors(options)
