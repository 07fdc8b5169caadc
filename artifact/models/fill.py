"""Weights and inputs of a model from Philox numbers, and their checksums.

Norms get parameters and statistics far from their defaults (one gamma in eight is negative): a fold
or a parity check on gamma 1, beta 0, mean 0, variance 1 would test nothing.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from artifact.models.architecture import check_options, find, input_shape, model_tensors
from artifact.models.philox import UNIT_VARIANCE_BOUND, Float32Array, Key, between, uniform
from artifact.models.tensors import Kind, Tensor

# Ranges of the uniform values of each kind, in units of the tensor's scale.
_RANGES: Mapping[Kind, tuple[float, float]] = {
    "conv": (-UNIT_VARIANCE_BOUND, UNIT_VARIANCE_BOUND),
    "linear": (-UNIT_VARIANCE_BOUND, UNIT_VARIANCE_BOUND),
    "linear_in_out": (-UNIT_VARIANCE_BOUND, UNIT_VARIANCE_BOUND),
    "embedding": (-UNIT_VARIANCE_BOUND, UNIT_VARIANCE_BOUND),
    "bias": (-1.0, 1.0),
    "gamma": (0.6, 1.4),
    "beta": (-1.0, 1.0),
    "mean": (-1.0, 1.0),
    "variance": (0.5, 2.0),
}
NEGATIVE_GAMMA_SHARE = 0.125


def weights(architecture: str, options: Mapping[str, int], seed: int) -> dict[str, Float32Array]:
    """All float32 weight tensors of a model by name; tied tensors appear once."""
    listing = model_tensors(architecture, options)
    return {
        tensor.name: fill(tensor, Key(seed, architecture, tensor.name))
        for tensor in listing.tensors
    }


def fill(tensor: Tensor, key: Key) -> Float32Array:
    """Values of one tensor, float32, of its shape."""
    count = math.prod(tensor.shape)
    low, high = _RANGES[tensor.kind]
    values = between(low * tensor.scale, high * tensor.scale, count, key)
    if tensor.kind == "gamma":
        signs = uniform(count, dataclasses.replace(key, name=f"{key.name}:sign"))
        values = np.where(signs < np.float32(NEGATIVE_GAMMA_SHARE), -values, values)
    return values.reshape(tensor.shape)


def inputs(
    architecture: str, options: Mapping[str, int], input_name: str, seed: int
) -> tuple[NDArray[Any], ...]:
    """The program's input tensors; every model of the study takes exactly one.

    ResNets: a float32 image (N, 3, H, W) of mean 0 and variance 1. Transformers: int64 token ids
    (batch, sequence) below the vocabulary; no attention mask and no token types are passed.
    """
    check_options(architecture, options)
    shape = input_shape(architecture, input_name)
    key = Key(seed, architecture, f"input:{input_name}")
    return find(architecture).inputs(options, shape, key)


def arrays_sha256(arrays: Mapping[str, NDArray[Any]]) -> str:
    """SHA-256 (hex) over names, types, shapes and little-endian bytes, in order of name."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        little = array.astype(array.dtype.newbyteorder("<"), copy=False)
        digest.update(f"{name}|{array.dtype.name}|{array.shape}\n".encode())
        digest.update(little.data)
    return digest.hexdigest()


def weights_sha256(architecture: str, options: Mapping[str, int], seed: int) -> str:
    """SHA-256 of a model's weights: the constant that `study.toml` holds."""
    return arrays_sha256(weights(architecture, options, seed))


def inputs_sha256(architecture: str, options: Mapping[str, int], input_name: str, seed: int) -> str:
    """SHA-256 of one input: the constant that `study.toml` can hold."""
    tensors = inputs(architecture, options, input_name, seed)
    return arrays_sha256({f"input_{index}": tensor for index, tensor in enumerate(tensors)})
