"""The PyTorch program under test: building it and loading a bundle's weights into it.

Nothing is downloaded: definitions come from the installed torchvision and transformers, weights
from `fill`. Only what an architecture needs is imported: a ResNet trial does not pay for importing
transformers.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from artifact.errors import UserError
from artifact.models.architecture import check_options, find

UNREAD_SUFFIX = "num_batches_tracked"  # a training counter; inference never reads it


def import_definitions(architecture: str) -> None:
    """Import what `build` needs for this architecture: part of a trial's framework import."""
    for name in find(architecture).torch_imports:
        importlib.import_module(name)


def build(
    architecture: str,
    options: Mapping[str, int],
    input_shape: tuple[int, ...],
    attn_implementation: str = "sdpa",
) -> nn.Module:
    """Build the program in eval mode, parameters frozen, with weights that mean nothing yet.

    `input_shape` is (batch, sequence) for Transformers (GPT-2's buffers depend on it) and is not
    used by ResNets. `attn_implementation` is Hugging Face's name, `sdpa` or `eager`.
    """
    check_options(architecture, options)
    module = find(architecture).torch_module(options, input_shape, attn_implementation)
    return module.eval().requires_grad_(False)


def aliases(module: nn.Module) -> dict[str, str]:
    """Names of tied parameters as `alias -> name of the first occurrence`."""
    first: dict[int, str] = {}
    tied: dict[str, str] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        known = first.setdefault(id(parameter), name)
        if known != name:
            tied[name] = known
    return tied


def load_weights(
    module: nn.Module, weights: Mapping[str, NDArray[np.float32]], tied: Mapping[str, str]
) -> None:
    """Copy bundle weights into `module`, in place and strictly.

    `UserError` if a name is missing or unexpected, a shape or type differs, or the module's tied
    parameters are not exactly `tied`. Tied parameters stay one tensor.
    """
    if aliases(module) != dict(tied):
        raise UserError(f"tied weights differ: model {aliases(module)}, bundle {dict(tied)}")
    targets = {
        name: tensor
        for name, tensor in module.state_dict(keep_vars=True).items()
        if name not in tied and not name.endswith(UNREAD_SUFFIX)
    }
    missing = sorted(set(targets) - set(weights))
    unexpected = sorted(set(weights) - set(targets))
    if missing or unexpected:
        raise UserError(
            f"weights do not fit the model: {len(missing)} missing {missing[:3]}, "
            f"{len(unexpected)} unexpected {unexpected[:3]}"
        )
    with torch.no_grad():
        for name, target in targets.items():
            _copy(name, target, weights[name])


def _copy(name: str, target: torch.Tensor, source: NDArray[np.float32]) -> None:
    if tuple(target.shape) != source.shape or source.dtype != np.float32:
        raise UserError(
            f"weight {name}: model has float32 {tuple(target.shape)}, "
            f"bundle has {source.dtype} {source.shape}"
        )
    # A read-only array (memory-mapped or frozen) cannot be shared with torch; copy it once.
    target.copy_(torch.from_numpy(source if source.flags.writeable else source.copy()))
