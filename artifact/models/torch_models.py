"""The PyTorch program under test: torchvision's ResNets and Hugging Face's BERT and GPT-2.

Nothing is downloaded: definitions come from the installed packages, weights from `fill`.

- ResNets: as torchvision defines them, contiguous NCHW.
- BERT: output 0 of `BertModel` (the last hidden state). Its pooler is not built, since output 0
  does not depend on it. The one input is the token ids: mask all ones, token types all zero.
- GPT-2: output 0 of `GPT2LMHeadModel` (the logits). A fixed 4-D causal mask and the position ids
  are buffers of the wrapper (TVM cannot import the graph that computes them). Without a key-value
  cache this is prefill of a whole prompt, not token-by-token decoding.

torchvision and transformers are imported by the builders that need them: a ResNet trial does not
pay for importing transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from artifact.errors import UserError
from artifact.models.spec import bert_size, check_options, gpt2_size

if TYPE_CHECKING:
    from transformers import BertModel, GPT2LMHeadModel

UNREAD_SUFFIX = "num_batches_tracked"  # a training counter; inference never reads it


class BertProgram(nn.Module):
    """`BertModel` that returns its output 0: ids (B, S) -> hidden state (B, S, hidden)."""

    def __init__(self, bert: BertModel) -> None:
        super().__init__()
        self.bert = bert

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.bert(input_ids=input_ids, return_dict=False)[0]


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


def build(
    architecture: str,
    options: Mapping[str, int],
    input_shape: tuple[int, ...],
    attn_implementation: str = "sdpa",
) -> nn.Module:
    """Build the program in eval mode, parameters frozen, with weights that mean nothing yet.

    `input_shape` is (batch, sequence) for Transformers (GPT-2's buffers depend on it) and is not
    used by ResNets. `attn_implementation` is Hugging Face's name, `sdpa` or `eager`.
    """
    check_options(architecture, options)
    if architecture == "bert":
        module: nn.Module = _bert(options, attn_implementation)
    elif architecture == "gpt2":
        module = _gpt2(options, input_shape, attn_implementation)
    else:
        module = _resnet(architecture)
    return module.eval().requires_grad_(False)


def _resnet(architecture: str) -> nn.Module:
    from torchvision.models import get_model

    return get_model(architecture, weights=None)


def _bert(options: Mapping[str, int], attn_implementation: str) -> BertProgram:
    from transformers import BertConfig, BertModel

    size = bert_size(options)
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


def _gpt2(
    options: Mapping[str, int], input_shape: tuple[int, ...], attn_implementation: str
) -> Gpt2Program:
    from transformers import GPT2Config, GPT2LMHeadModel

    size = gpt2_size(options)
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
    batch, sequence = input_shape
    return Gpt2Program(GPT2LMHeadModel(config), batch, sequence)


def aliases(module: nn.Module) -> dict[str, str]:
    """Names of tied parameters as `alias -> name of the first occurrence`."""
    first: dict[int, str] = {}
    tied: dict[str, str] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        known = first.setdefault(id(parameter), name)
        if known != name:
            tied[name] = known
    return tied


def load_weights(
    module: nn.Module, weights: Mapping[str, NDArray[np.float32]], tied: Mapping[str, str]
) -> None:
    """Copy bundle weights into `module`, in place and strictly.

    `UserError` if a name is missing or unexpected, a shape or type differs, or the module's tied
    parameters are not exactly `tied`. Tied parameters stay one tensor.
    """
    if aliases(module) != dict(tied):
        raise UserError(f"tied weights differ: model {aliases(module)}, bundle {dict(tied)}")
    targets = {
        name: tensor
        for name, tensor in module.state_dict(keep_vars=True).items()
        if name not in tied and not name.endswith(UNREAD_SUFFIX)
    }
    missing = sorted(set(targets) - set(weights))
    unexpected = sorted(set(weights) - set(targets))
    if missing or unexpected:
        raise UserError(
            f"weights do not fit the model: {len(missing)} missing {missing[:3]}, "
            f"{len(unexpected)} unexpected {unexpected[:3]}"
        )
    with torch.no_grad():
        for name, target in targets.items():
            _copy(name, target, weights[name])


def _copy(name: str, target: torch.Tensor, source: NDArray[np.float32]) -> None:
    if tuple(target.shape) != source.shape or source.dtype != np.float32:
        raise UserError(
            f"weight {name}: model has float32 {tuple(target.shape)}, "
            f"bundle has {source.dtype} {source.shape}"
        )
    # A read-only array (memory-mapped or frozen) cannot be shared with torch; copy it once.
    target.copy_(torch.from_numpy(source if source.flags.writeable else source.copy()))
