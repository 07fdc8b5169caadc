"""GPT-2 in Flax Linen, the same function as `GPT2LMHeadModel`'s output 0 (logits).

Prefill of a whole prompt: no key-value cache, so this is not token-by-token decoding. GELU is
GPT-2's `gelu_new`, the tanh approximation. The output layer is the token table (tied).
"""

from __future__ import annotations

import flax.linen as nn
import jax.numpy as jnp

from artifact.models.flax_layers import Array, Precision, layer_norm, self_attention, split_heads
from artifact.models.gpt2 import Gpt2Size


def gelu_new(x: Array) -> Array:
    """The tanh approximation of GELU."""
    return nn.gelu(x, approximate=True)


class Gpt2Block(nn.Module):
    """One block, normalised before each branch."""

    size: Gpt2Size
    precision: Precision

    @nn.compact
    def __call__(self, hidden: Array, mask: Array) -> Array:
        """(batch, sequence, hidden), causal mask (1, 1, sequence, sequence) -> like `hidden`."""
        size = self.size

        def dense(name: str, features: int) -> nn.Dense:
            return nn.Dense(features, precision=self.precision, name=name)

        normed = layer_norm("ln_1", size.layer_norm_eps)(hidden)
        parts = jnp.split(dense("attn.c_attn", 3 * size.hidden)(normed), 3, axis=-1)
        query, key, value = (split_heads(part, size.heads) for part in parts)
        context = self_attention(query, key, value, mask, self.precision).reshape(hidden.shape)
        hidden = hidden + dense("attn.c_proj", size.hidden)(context)
        normed = layer_norm("ln_2", size.layer_norm_eps)(hidden)
        wide = gelu_new(dense("mlp.c_fc", size.feed_forward)(normed))
        return hidden + dense("mlp.c_proj", size.hidden)(wide)


class Gpt2(nn.Module):
    """Token and position tables, `size.layers` blocks, final norm, tied output layer."""

    size: Gpt2Size
    precision: Precision

    @nn.compact
    def __call__(self, input_ids: Array) -> Array:
        """Token ids (batch, sequence) -> logits (batch, sequence, vocabulary)."""
        size = self.size
        tokens = nn.Embed(size.vocabulary, size.hidden, name="wte")
        positions = nn.Embed(size.positions, size.hidden, name="wpe")
        hidden = tokens(input_ids) + positions(jnp.arange(input_ids.shape[1])[None, :])
        mask = nn.make_causal_mask(input_ids, dtype=bool)[:1]
        for index in range(size.layers):
            hidden = Gpt2Block(size, self.precision, name=f"h.{index}")(hidden, mask)
        hidden = layer_norm("ln_f", size.layer_norm_eps)(hidden)
        # Not `tokens.attend`: it takes no precision.
        return jnp.dot(hidden, tokens.embedding.T, precision=self.precision)
