"""Parts that the Flax models share: only what Flax's own defaults get wrong for these models.

Submodule names are the PyTorch names (dots included), so that the tree reads like the bundle.
"""

from __future__ import annotations

from typing import TypeAlias

import flax.linen as nn
import jax

Array: TypeAlias = jax.Array
Precision: TypeAlias = jax.lax.PrecisionLike


def layer_norm(name: str, eps: float) -> nn.LayerNorm:
    """LayerNorm with PyTorch's variance: Flax's default E[x^2] - E[x]^2 loses it at an offset."""
    return nn.LayerNorm(epsilon=eps, use_fast_variance=False, name=name)


def self_attention(
    query: Array, key: Array, value: Array, mask: Array | None, precision: Precision
) -> Array:
    """Scaled dot-product attention on (batch, sequence, heads, depth); same shape out.

    `mask` is boolean, True where a query may look, broadcastable to (batch, heads, query, key).
    """
    return nn.dot_product_attention(query, key, value, mask=mask, precision=precision)


def split_heads(hidden: Array, heads: int) -> Array:
    """(batch, sequence, heads * depth) -> (batch, sequence, heads, depth)."""
    batch, sequence, width = hidden.shape
    return hidden.reshape(batch, sequence, heads, width // heads)
