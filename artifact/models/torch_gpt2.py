"""GPT-2, the PyTorch program under test.

A fixed 4-D causal mask and the position ids are buffers of the wrapper: TVM cannot import the graph
that computes them.
"""

from __future__ import annotations

import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

from artifact.models.gpt2 import Gpt2Size


class Gpt2Program(nn.Module):
    """`GPT2LMHeadModel` for one (batch, sequence): ids (B, S) -> logits (B, S, vocabulary).

    Prefill without a key-value cache. The buffers are not part of the state dictionary.
    """

    causal_mask: torch.Tensor
    position_ids: torch.Tensor

    def __init__(self, gpt2: GPT2LMHeadModel, batch: int, sequence: int) -> None:
        super().__init__()
        self.gpt2 = gpt2
        blocked = torch.full((sequence, sequence), torch.finfo(torch.float32).min).triu(1)
        mask = blocked.expand(batch, 1, sequence, sequence).contiguous()
        positions = torch.arange(sequence).expand(batch, sequence).contiguous()
        self.register_buffer("causal_mask", mask, persistent=False)
        self.register_buffer("position_ids", positions, persistent=False)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.gpt2(
            input_ids=input_ids,
            attention_mask=self.causal_mask,
            position_ids=self.position_ids,
            use_cache=False,
            return_dict=False,
        )[0]


def build(size: Gpt2Size, shape: tuple[int, ...], attn_implementation: str) -> Gpt2Program:
    """The program for `shape` (batch, sequence); `attn_implementation` is `sdpa` or `eager`."""
    config = GPT2Config(
        vocab_size=size.vocabulary,
        n_layer=size.layers,
        n_embd=size.hidden,
        n_head=size.heads,
        n_inner=size.feed_forward,
        n_positions=size.positions,
        layer_norm_epsilon=size.layer_norm_eps,
        activation_function="gelu_new",
        use_cache=False,
        bos_token_id=None,
        eos_token_id=None,
        attn_implementation=attn_implementation,
    )
    batch, sequence = shape
    return Gpt2Program(GPT2LMHeadModel(config), batch, sequence)
