"""Weights and inputs that are the same bytes on every machine.

Values come from numpy's Philox counter generator as raw 64-bit integers, keyed by (seed,
architecture, tensor name), so no tensor depends on another or on the order of creation. From there
on only conversions, multiplications, additions and comparisons in float32 are used, each its own
correctly rounded numpy operation: no logarithm, sine or fused operation whose last bit could depend
on the instruction set. (`torch.randn` differs between instruction sets.)

Norms get parameters and statistics far from their defaults (one gamma in eight is negative): a fold
or a parity check on gamma 1, beta 0, mean 0, variance 1 would test nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from artifact.models.spec import bert_size, check_options, gpt2_size, input_shape
from artifact.models.tensors import ModelTensors, Tensor, model_tensors

Float32Array = NDArray[np.float32]

UNIT_VARIANCE_BOUND = 3.0**0.5  # uniform on +-sqrt(3) has variance 1


def weights(architecture: str, options: Mapping[str, int], seed: int) -> dict[str, Float32Array]:
    """All float32 weight tensors of a model by name; tied tensors appear once."""
    listing: ModelTensors = model_tensors(architecture, options)
    return {tensor.name: fill(tensor, architecture, seed) for tensor in listing.tensors}


def fill(tensor: Tensor, architecture: str, seed: int) -> Float32Array:
    """Values of one tensor, float32, of its shape."""
    count = int(np.prod(tensor.shape))
    key = (seed, architecture, tensor.name)
    values = _values(tensor, _uniform(count, *key))
    if tensor.kind == "gamma":
        negative = _uniform(count, seed, architecture, f"{tensor.name}:sign") < np.float32(0.125)
        values = np.where(negative, -values, values)
    return np.ascontiguousarray(values.reshape(tensor.shape))


def _values(tensor: Tensor, uniform: Float32Array) -> Float32Array:
    """Map uniform values on [0, 1) to the rule of the tensor's kind."""
    if tensor.kind == "weight":
        return _between(
            uniform, -UNIT_VARIANCE_BOUND * tensor.scale, UNIT_VARIANCE_BOUND * tensor.scale
        )
    if tensor.kind in ("bias", "beta", "mean"):
        return _between(uniform, -tensor.scale, tensor.scale)
    if tensor.kind == "gamma":
        return _between(uniform, 0.6 * tensor.scale, 1.4 * tensor.scale)
    return _between(uniform, 0.5 * tensor.scale, 2.0 * tensor.scale)


def _between(uniform: Float32Array, low: float, high: float) -> Float32Array:
    scaled = uniform * np.float32(high - low)
    return scaled + np.float32(low)


def _raw(count: int, seed: int, architecture: str, name: str) -> NDArray[np.uint64]:
    digest = hashlib.sha256(f"{seed}|{architecture}|{name}".encode()).digest()
    generator = np.random.Philox(key=int.from_bytes(digest[:16], "little"))
    return generator.random_raw(count)


def _uniform(count: int, seed: int, architecture: str, name: str) -> Float32Array:
    """`count` float32 values on [0, 1), multiples of 2**-24: two from each 64-bit integer."""
    raw = _raw((count + 1) // 2, seed, architecture, name).astype("<u8", copy=False)
    halves = raw.view("<u4")[:count]
    return (halves >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)


def inputs(
    architecture: str, options: Mapping[str, int], input_name: str, seed: int
) -> tuple[NDArray[Any], ...]:
    """The program's input tensors; every model of the study takes exactly one.

    ResNets: a float32 image (N, 3, H, W) of mean 0 and variance 1. Transformers: int64 token ids
    (batch, sequence) below the vocabulary; no attention mask and no token types are passed.
    """
    check_options(architecture, options)
    shape = input_shape(architecture, input_name)
    count = int(np.prod(shape))
    key = (seed, architecture, f"input:{input_name}")
    if architecture in ("bert", "gpt2"):
        size = bert_size(options) if architecture == "bert" else gpt2_size(options)
        ids = _raw(count, *key) % np.uint64(size.vocabulary)
        return (ids.astype(np.int64).reshape(shape),)
    image = _between(_uniform(count, *key), -UNIT_VARIANCE_BOUND, UNIT_VARIANCE_BOUND)
    return (image.reshape(shape),)


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
    """SHA-256 of one input: the constant that `study.toml` holds."""
    tensors = inputs(architecture, options, input_name, seed)
    return arrays_sha256({f"input_{index}": tensor for index, tensor in enumerate(tensors)})
