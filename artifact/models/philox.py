"""Numbers that are the same bytes on every machine.

They come from numpy's Philox counter generator as raw 64-bit integers, keyed by (seed,
architecture, name), so no tensor depends on another or on the order of creation. From there on only
conversions, multiplications, additions and comparisons in float32 are used, each its own correctly
rounded numpy operation: no logarithm, sine or fused operation whose last bit could depend on the
instruction set. (`torch.randn` differs between instruction sets.)
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Float32Array = NDArray[np.float32]

UNIT_VARIANCE_BOUND = 3.0**0.5  # uniform on +-sqrt(3) has variance 1


@dataclass(frozen=True)
class Key:
    """What a stream of numbers is named by."""

    seed: int
    architecture: str
    name: str


def raw(count: int, key: Key) -> NDArray[np.uint64]:
    """`count` raw 64-bit integers."""
    text = f"{key.seed}|{key.architecture}|{key.name}"
    digest = hashlib.sha256(text.encode()).digest()
    return np.random.Philox(key=int.from_bytes(digest[:16], "little")).random_raw(count)


def uniform(count: int, key: Key) -> Float32Array:
    """`count` float32 values on [0, 1), multiples of 2**-24: two from each 64-bit integer."""
    halves = raw((count + 1) // 2, key).astype("<u8", copy=False).view("<u4")[:count]
    return (halves >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)


def between(low: float, high: float, count: int, key: Key) -> Float32Array:
    """`count` float32 values, uniform on [low, high)."""
    scaled = uniform(count, key) * np.float32(high - low)
    return scaled + np.float32(low)


def image(shape: tuple[int, ...], key: Key) -> Float32Array:
    """A float32 image of mean 0 and variance 1."""
    values = between(-UNIT_VARIANCE_BOUND, UNIT_VARIANCE_BOUND, math.prod(shape), key)
    return values.reshape(shape)


def token_ids(shape: tuple[int, ...], vocabulary: int, key: Key) -> NDArray[np.int64]:
    """int64 token ids on [0, vocabulary)."""
    ids = raw(math.prod(shape), key) % np.uint64(vocabulary)
    return ids.astype(np.int64).reshape(shape)
