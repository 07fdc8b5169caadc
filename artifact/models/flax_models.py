"""Builds the native Flax programs from bundle weights. No torch and no transformers here."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import flax.linen as nn
import jax
import numpy as np
from numpy.typing import NDArray

from artifact.errors import UserError
from artifact.models.architecture import find, model_tensors
from artifact.models.flax_layers import Array, Precision
from artifact.models.tensors import Kind, ModelTensors, Tensor

Tree = dict[str, Any]

# A numbered submodule is a block: a Flax module of its own, all else in a name is one module.
_BLOCK = re.compile(r"^(.+?\.\d+)\.(.+)$")
_LEAVES: Mapping[Kind, str] = {
    "conv": "kernel",
    "linear": "kernel",
    "linear_in_out": "kernel",
    "embedding": "embedding",
    "bias": "bias",
    "gamma": "scale",
    "beta": "bias",
    "mean": "mean",
    "variance": "var",
}


@dataclass(frozen=True)
class FlaxProgram:
    """A Flax model and its weights.

    `apply(params, *inputs)` is a pure function to be given to `jax.jit`; `params` is a tree of
    float32 numpy arrays. Inputs are those of the bundle (int64 ids become int32 in `jax.jit`).
    """

    apply: Callable[..., Array]
    params: Tree
    module: nn.Module


def build(
    architecture: str,
    options: Mapping[str, int],
    input_shape: tuple[int, ...],
    weights: Mapping[str, NDArray[np.float32]],
    aliases: Mapping[str, str],
    precision: Precision = jax.lax.Precision.HIGHEST,
) -> FlaxProgram:
    """Build the program and place every bundle tensor in its tree.

    `UserError` if a tensor is missing, unexpected or of another shape, or if `aliases` are not the
    model's. Nothing is traced here: tracing the model once to learn its tree would warm JAX's
    caches and shorten the trial's timed trace. That the tree built here is the model's own, both
    ways, is what `unmatched_leaves` and its test are for.
    """
    listing = model_tensors(architecture, options)
    _check(listing, weights, aliases)
    prefix = find(architecture).flax_prefix
    params: Tree = {}
    for tensor in listing.tensors:
        _place(params, _path(prefix, tensor), _in_flax_layout(tensor, weights[tensor.name]))
    module = find(architecture).flax_module(options, precision)
    return FlaxProgram(apply=module.apply, params=params, module=module)


def _check(
    listing: ModelTensors, weights: Mapping[str, NDArray[np.float32]], aliases: Mapping[str, str]
) -> None:
    expected = {tensor.name: tensor.shape for tensor in listing.tensors}
    missing = sorted(set(expected) - set(weights))
    unexpected = sorted(set(weights) - set(expected))
    if missing or unexpected:
        raise UserError(
            f"weights do not fit the model: {len(missing)} missing {missing[:3]}, "
            f"{len(unexpected)} unexpected {unexpected[:3]}"
        )
    if dict(aliases) != dict(listing.aliases):
        raise UserError(f"tied weights differ: model {listing.aliases}, bundle {dict(aliases)}")
    for name, shape in expected.items():
        array = weights[name]
        if array.shape != shape or array.dtype != np.float32:
            raise UserError(
                f"weight {name}: model has float32 {shape}, bundle has {array.dtype} {array.shape}"
            )


def _path(prefix: str, tensor: Tensor) -> tuple[str, ...]:
    """Path of a tensor in the Flax tree: collection, submodules, leaf."""
    module, _ = tensor.name.removeprefix(prefix).rsplit(".", 1)
    block = _BLOCK.match(module)
    collection = "batch_stats" if tensor.kind in ("mean", "variance") else "params"
    return (collection, *(block.groups() if block else (module,)), _LEAVES[tensor.kind])


def _in_flax_layout(tensor: Tensor, array: NDArray[np.float32]) -> NDArray[np.float32]:
    """HWIO convolutions, (in, out) dense kernels, everything else as it is."""
    if tensor.kind == "conv":
        return np.ascontiguousarray(array.transpose(2, 3, 1, 0))
    return np.ascontiguousarray(array.T) if tensor.kind == "linear" else array


def _place(tree: Tree, path: tuple[str, ...], values: NDArray[np.float32]) -> None:
    for part in path[:-1]:
        tree = tree.setdefault(part, {})
    tree[path[-1]] = values


def unmatched_leaves(program: FlaxProgram, *inputs: NDArray[Any]) -> list[str]:
    """Leaves that the model and `program.params` do not share, with equal shapes, both ways.

    Traces the model's own initialisation: for tests, never inside a trial.
    """
    own = jax.eval_shape(program.module.init, jax.random.key(0), *inputs)
    wanted, given = _shapes(own), _shapes(program.params)
    return sorted(f"{path} {shape}" for path, shape in wanted ^ given)


def _shapes(tree: Tree) -> set[tuple[str, tuple[int, ...]]]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {(jax.tree_util.keystr(path), tuple(leaf.shape)) for path, leaf in leaves}
