"""BERT-base: output 0 of Hugging Face's `BertModel`.

The one input is the token ids: the mask is all ones and the token types are all zero. The pooler is
not built, since output 0 does not depend on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from artifact.models import philox
from artifact.models.tensors import ModelTensors, Tensor, embedding, layer_norm, linear

if TYPE_CHECKING:
    import torch

PREFIX = "bert."
TABLE_SCALE = 0.05


@dataclass(frozen=True)
class BertSize:
    """Sizes of BERT-base; the options `layers` and `vocabulary` can lower two of them."""

    layers: int = 12
    vocabulary: int = 30522
    hidden: int = 768
    heads: int = 12
    feed_forward: int = 3072
    positions: int = 512
    token_types: int = 2
    layer_norm_eps: float = 1e-12


@dataclass(frozen=True)
class BertArchitecture:
    """BERT-base, or a smaller one by options."""

    option_names: tuple[str, ...] = ("layers", "vocabulary")
    flax_prefix: str = PREFIX
    torch_imports: tuple[str, ...] = ("artifact.models.torch_bert",)

    def check_shape(self, shape: tuple[int, ...]) -> str:
        """Needs (batch, sequence) within the position table."""
        limit = BertSize.positions
        return "" if len(shape) == 2 and shape[1] <= limit else f"needs BxS with S <= {limit}"

    def tensors(self, options: Mapping[str, int]) -> ModelTensors:
        """Every weight tensor; nothing is tied."""
        return ModelTensors(tuple(_tensors(BertSize(**options))))

    def inputs(
        self, options: Mapping[str, int], shape: tuple[int, ...], key: philox.Key
    ) -> tuple[NDArray[Any], ...]:
        """int64 token ids (batch, sequence)."""
        return (philox.token_ids(shape, BertSize(**options).vocabulary, key),)

    def torch_module(
        self, options: Mapping[str, int], shape: tuple[int, ...], attn_implementation: str
    ) -> torch.nn.Module:
        """`torch_bert.BertProgram`."""
        from artifact.models.torch_bert import build

        return build(BertSize(**options), attn_implementation)

    def flax_module(self, options: Mapping[str, int], precision: Any) -> Any:
        """`flax_bert.Bert`."""
        from artifact.models.flax_bert import Bert

        return Bert(BertSize(**options), precision)


def _tensors(size: BertSize) -> Iterator[Tensor]:
    embeddings = f"{PREFIX}embeddings"
    for table, rows in (
        ("word_embeddings", size.vocabulary),
        ("position_embeddings", size.positions),
        ("token_type_embeddings", size.token_types),
    ):
        yield embedding(f"{embeddings}.{table}", rows, size.hidden, TABLE_SCALE)
    yield from layer_norm(f"{embeddings}.LayerNorm", size.hidden)
    for index in range(size.layers):
        yield from _layer(f"{PREFIX}encoder.layer.{index}", size)


def _layer(name: str, size: BertSize) -> Iterator[Tensor]:
    for part in ("query", "key", "value"):
        yield from linear(f"{name}.attention.self.{part}", size.hidden, size.hidden)
    yield from linear(f"{name}.attention.output.dense", size.hidden, size.hidden)
    yield from layer_norm(f"{name}.attention.output.LayerNorm", size.hidden)
    yield from linear(f"{name}.intermediate.dense", size.feed_forward, size.hidden)
    yield from linear(f"{name}.output.dense", size.hidden, size.feed_forward)
    yield from layer_norm(f"{name}.output.LayerNorm", size.hidden)


BERT = BertArchitecture()
