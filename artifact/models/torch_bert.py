"""BERT, the PyTorch program under test."""

from __future__ import annotations

import torch
from torch import nn
from transformers import BertConfig, BertModel

from artifact.models.bert import BertSize


class BertProgram(nn.Module):
    """`BertModel` that returns its output 0: ids (B, S) -> hidden state (B, S, hidden)."""

    def __init__(self, bert: BertModel) -> None:
        super().__init__()
        self.bert = bert

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.bert(input_ids=input_ids, return_dict=False)[0]


def build(size: BertSize, attn_implementation: str) -> BertProgram:
    """The program of these sizes; `attn_implementation` is `sdpa` or `eager`."""
    config = BertConfig(
        vocab_size=size.vocabulary,
        num_hidden_layers=size.layers,
        hidden_size=size.hidden,
        num_attention_heads=size.heads,
        intermediate_size=size.feed_forward,
        max_position_embeddings=size.positions,
        type_vocab_size=size.token_types,
        layer_norm_eps=size.layer_norm_eps,
        hidden_act="gelu",
        attn_implementation=attn_implementation,
    )
    return BertProgram(BertModel(config, add_pooling_layer=False))
