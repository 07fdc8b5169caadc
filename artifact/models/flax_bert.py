"""BERT in Flax Linen, the same function as `BertModel`'s output 0 with an all-ones mask.

Traps of Flax's defaults avoided here: LayerNorm eps (1e-6, BERT has 1e-12) and fast variance, GELU
(approximate by default, BERT's is exact).
"""

from __future__ import annotations

import flax.linen as nn
import jax.numpy as jnp

from artifact.models.bert import BertSize
from artifact.models.flax_layers import Array, Precision, layer_norm, self_attention, split_heads


def gelu(x: Array) -> Array:
    """The exact GELU, x * Phi(x)."""
    return nn.gelu(x, approximate=False)


class BertLayer(nn.Module):
    """One encoder layer, normalised after each residual sum."""

    size: BertSize
    precision: Precision

    @nn.compact
    def __call__(self, hidden: Array) -> Array:
        """(batch, sequence, hidden) -> same."""
        size = self.size

        def dense(name: str, features: int) -> nn.Dense:
            return nn.Dense(features, precision=self.precision, name=name)

        def heads(name: str) -> Array:
            projected = dense(f"attention.self.{name}", size.hidden)(hidden)
            return split_heads(projected, size.heads)

        context = self_attention(
            heads("query"), heads("key"), heads("value"), None, self.precision
        ).reshape(hidden.shape)
        attended = dense("attention.output.dense", size.hidden)(context)
        attended = layer_norm("attention.output.LayerNorm", size.layer_norm_eps)(attended + hidden)
        wide = dense("intermediate.dense", size.feed_forward)(attended)
        narrow = dense("output.dense", size.hidden)(gelu(wide))
        return layer_norm("output.LayerNorm", size.layer_norm_eps)(narrow + attended)


class Bert(nn.Module):
    """Embeddings and `size.layers` encoder layers."""

    size: BertSize
    precision: Precision

    @nn.compact
    def __call__(self, input_ids: Array) -> Array:
        """Token ids (batch, sequence) -> last hidden state (batch, sequence, hidden)."""
        size = self.size

        def table(name: str, rows: int) -> nn.Embed:
            return nn.Embed(rows, size.hidden, name=f"embeddings.{name}")

        positions = jnp.arange(input_ids.shape[1])[None, :]
        hidden = (
            table("word_embeddings", size.vocabulary)(input_ids)
            + table("token_type_embeddings", size.token_types)(jnp.zeros_like(input_ids))
            + table("position_embeddings", size.positions)(positions)
        )
        hidden = layer_norm("embeddings.LayerNorm", size.layer_norm_eps)(hidden)
        for index in range(size.layers):
            layer = BertLayer(size, self.precision, name=f"encoder.layer.{index}")
            hidden = layer(hidden)
        return hidden
