"""GPT-2 small: output 0 (logits) of Hugging Face's `GPT2LMHeadModel`.

The one input is the token ids. Without a key-value cache this is prefill of a whole prompt, not
token-by-token decoding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from artifact.models import philox
from artifact.models.tensors import ModelTensors, Tensor, embedding, layer_norm, linear_in_out

if TYPE_CHECKING:
    import torch

PREFIX = "gpt2."
FLAX_PREFIX = f"{PREFIX}transformer."
# The token table is the output layer too: 0.1 puts the standard deviation of a logit near 3.
TOKEN_SCALE = 0.1
POSITION_SCALE = 0.05
# Two branches a layer are added up without a norm after the sum.
RESIDUAL_GAIN = 0.4


@dataclass(frozen=True)
class Gpt2Size:
    """Sizes of GPT-2 small; the options `layers` and `vocabulary` can lower two of them."""

    layers: int = 12
    vocabulary: int = 50257
    hidden: int = 768
    heads: int = 12
    feed_forward: int = 3072
    positions: int = 1024
    layer_norm_eps: float = 1e-5


@dataclass(frozen=True)
class Gpt2Architecture:
    """GPT-2 small, or a smaller one by options."""

    option_names: tuple[str, ...] = ("layers", "vocabulary")
    flax_prefix: str = FLAX_PREFIX
    torch_imports: tuple[str, ...] = ("artifact.models.torch_gpt2",)

    def check_shape(self, shape: tuple[int, ...]) -> str:
        """Needs (batch, sequence) within the position table."""
        limit = Gpt2Size.positions
        return "" if len(shape) == 2 and shape[1] <= limit else f"needs BxS with S <= {limit}"

    def tensors(self, options: Mapping[str, int]) -> ModelTensors:
        """Every weight tensor; the output layer is the token table."""
        tied = {f"{PREFIX}lm_head.weight": f"{FLAX_PREFIX}wte.weight"}
        return ModelTensors(tuple(_tensors(Gpt2Size(**options))), tied)

    def inputs(
        self, options: Mapping[str, int], shape: tuple[int, ...], key: philox.Key
    ) -> tuple[NDArray[Any], ...]:
        """int64 token ids (batch, sequence)."""
        return (philox.token_ids(shape, Gpt2Size(**options).vocabulary, key),)

    def torch_module(
        self, options: Mapping[str, int], shape: tuple[int, ...], attn_implementation: str
    ) -> torch.nn.Module:
        """`torch_gpt2.Gpt2Program` for this (batch, sequence)."""
        from artifact.models.torch_gpt2 import build

        return build(Gpt2Size(**options), shape, attn_implementation)

    def flax_module(self, options: Mapping[str, int], precision: Any) -> Any:
        """`flax_gpt2.Gpt2`."""
        from artifact.models.flax_gpt2 import Gpt2

        return Gpt2(Gpt2Size(**options), precision)


def _tensors(size: Gpt2Size) -> Iterator[Tensor]:
    yield embedding(f"{FLAX_PREFIX}wte", size.vocabulary, size.hidden, TOKEN_SCALE)
    yield embedding(f"{FLAX_PREFIX}wpe", size.positions, size.hidden, POSITION_SCALE)
    for index in range(size.layers):
        yield from _block(f"{FLAX_PREFIX}h.{index}", size)
    yield from layer_norm(f"{FLAX_PREFIX}ln_f", size.hidden)


def _block(name: str, size: Gpt2Size) -> Iterator[Tensor]:
    hidden = size.hidden
    yield from layer_norm(f"{name}.ln_1", hidden)
    yield from linear_in_out(f"{name}.attn.c_attn", hidden, 3 * hidden)
    yield from linear_in_out(f"{name}.attn.c_proj", hidden, hidden, RESIDUAL_GAIN)
    yield from layer_norm(f"{name}.ln_2", hidden)
    yield from linear_in_out(f"{name}.mlp.c_fc", hidden, size.feed_forward)
    yield from linear_in_out(f"{name}.mlp.c_proj", size.feed_forward, hidden, RESIDUAL_GAIN)


GPT2 = Gpt2Architecture()
