"""Every weight tensor of the four models: name, shape and the rule that fills it.

The list is written out here, without a framework, so that weights can be made and checked where
torch is not installed. Tests hold it against the PyTorch modules' own state dictionaries.

Names are those of the PyTorch program under test. `num_batches_tracked` of BatchNorm is left out:
it counts training steps and nothing reads it at inference.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from artifact.models.spec import Gpt2Size, bert_size, check_options, gpt2_size

Kind = Literal["weight", "bias", "gamma", "beta", "mean", "variance"]


@dataclass(frozen=True)
class Tensor:
    """One float32 tensor: its name, shape, and the rule of `fill` with its scale.

    `scale` is the standard deviation for `weight`, and the typical magnitude for the other kinds.
    """

    name: str
    shape: tuple[int, ...]
    kind: Kind
    scale: float


@dataclass(frozen=True)
class ModelTensors:
    """All tensors of a model in a fixed order, and the tied ones as `alias -> name`."""

    tensors: tuple[Tensor, ...]
    aliases: Mapping[str, str]


# (block kind, blocks per stage): torchvision's ResNet-18 and ResNet-50.
RESNET_STAGES: dict[str, tuple[Literal["basic", "bottleneck"], tuple[int, ...]]] = {
    "resnet18": ("basic", (2, 2, 2, 2)),
    "resnet50": ("bottleneck", (3, 4, 6, 3)),
}
CLASSES = 1000
STEM_CHANNELS = 64
BOTTLENECK_EXPANSION = 4

# Magnitude of gamma in a block's last BatchNorm. Random statistics do not normalise what they see,
# so with gamma near 1 every block would double the variance; 0.3 keeps the sum of 16 blocks tame.
RESIDUAL_GAMMA = 0.3
# Two branches a layer are added up in GPT-2 without a norm after the sum.
GPT2_RESIDUAL_GAIN = 0.4
BERT_PREFIX = "bert."
GPT2_PREFIX = "gpt2."


def model_tensors(architecture: str, options: Mapping[str, int]) -> ModelTensors:
    """The tensors of one model; an unknown architecture or option is a `UserError`."""
    check_options(architecture, options)
    if architecture == "bert":
        return ModelTensors(tuple(_bert(options)), {})
    if architecture == "gpt2":
        tied = {f"{GPT2_PREFIX}lm_head.weight": f"{GPT2_PREFIX}transformer.wte.weight"}
        return ModelTensors(tuple(_gpt2(gpt2_size(options))), tied)
    return ModelTensors(tuple(_resnet(architecture)), {})


def _he(fan_in: int) -> float:
    """He scale: keeps the second moment through a ReLU."""
    return (2.0 / fan_in) ** 0.5


def _xavier(fan_in: int) -> float:
    return (1.0 / fan_in) ** 0.5


def _conv(name: str, out_channels: int, in_channels: int, kernel: int) -> Tensor:
    shape = (out_channels, in_channels, kernel, kernel)
    return Tensor(f"{name}.weight", shape, "weight", _he(in_channels * kernel * kernel))


def _batch_norm(name: str, channels: int, gamma: float = 1.0) -> Iterator[Tensor]:
    yield Tensor(f"{name}.weight", (channels,), "gamma", gamma)
    yield Tensor(f"{name}.bias", (channels,), "beta", 0.2)
    yield Tensor(f"{name}.running_mean", (channels,), "mean", 0.3)
    yield Tensor(f"{name}.running_var", (channels,), "variance", 1.0)


def _resnet(architecture: str) -> Iterator[Tensor]:
    kind, stages = RESNET_STAGES[architecture]
    yield _conv("conv1", STEM_CHANNELS, 3, 7)
    yield from _batch_norm("bn1", STEM_CHANNELS)
    channels = STEM_CHANNELS
    for stage, blocks in enumerate(stages, start=1):
        width = STEM_CHANNELS * 2 ** (stage - 1)
        out_channels = width * (BOTTLENECK_EXPANSION if kind == "bottleneck" else 1)
        for block in range(blocks):
            name = f"layer{stage}.{block}"
            yield from _resnet_block(name, kind, channels, width, out_channels)
            channels = out_channels
    yield Tensor("fc.weight", (CLASSES, channels), "weight", _he(channels))
    yield Tensor("fc.bias", (CLASSES,), "bias", 0.2)


def _resnet_block(
    name: str, kind: str, in_channels: int, width: int, out_channels: int
) -> Iterator[Tensor]:
    kernels = (3, 3) if kind == "basic" else (1, 3, 1)
    sizes = [in_channels, *[width] * (len(kernels) - 1), out_channels]
    for index, kernel in enumerate(kernels, start=1):
        last = index == len(kernels)
        yield _conv(f"{name}.conv{index}", sizes[index], sizes[index - 1], kernel)
        gamma = RESIDUAL_GAMMA if last else 1.0
        yield from _batch_norm(f"{name}.bn{index}", sizes[index], gamma)
    # torchvision projects the shortcut where its shape changes; that is where the stride is too.
    if in_channels != out_channels:
        yield _conv(f"{name}.downsample.0", out_channels, in_channels, 1)
        yield from _batch_norm(f"{name}.downsample.1", out_channels)


def _linear(name: str, out_features: int, in_features: int) -> Iterator[Tensor]:
    """`nn.Linear`: weight (out, in)."""
    yield Tensor(f"{name}.weight", (out_features, in_features), "weight", _xavier(in_features))
    yield Tensor(f"{name}.bias", (out_features,), "bias", 0.1)


def _layer_norm(name: str, features: int) -> Iterator[Tensor]:
    yield Tensor(f"{name}.weight", (features,), "gamma", 1.0)
    yield Tensor(f"{name}.bias", (features,), "beta", 0.2)


def _bert(options: Mapping[str, int]) -> Iterator[Tensor]:
    size = bert_size(options)
    hidden = size.hidden
    embeddings = f"{BERT_PREFIX}embeddings"
    for table, rows in (
        ("word_embeddings", size.vocabulary),
        ("position_embeddings", size.positions),
        ("token_type_embeddings", size.token_types),
    ):
        yield Tensor(f"{embeddings}.{table}.weight", (rows, hidden), "weight", 0.05)
    yield from _layer_norm(f"{embeddings}.LayerNorm", hidden)
    for index in range(size.layers):
        layer = f"{BERT_PREFIX}encoder.layer.{index}"
        for part in ("query", "key", "value"):
            yield from _linear(f"{layer}.attention.self.{part}", hidden, hidden)
        yield from _linear(f"{layer}.attention.output.dense", hidden, hidden)
        yield from _layer_norm(f"{layer}.attention.output.LayerNorm", hidden)
        yield from _linear(f"{layer}.intermediate.dense", size.feed_forward, hidden)
        yield from _linear(f"{layer}.output.dense", hidden, size.feed_forward)
        yield from _layer_norm(f"{layer}.output.LayerNorm", hidden)


def _conv1d(name: str, in_features: int, out_features: int, gain: float = 1.0) -> Iterator[Tensor]:
    """GPT-2's `Conv1D`, a linear layer with weight (in, out)."""
    scale = gain * _xavier(in_features)
    yield Tensor(f"{name}.weight", (in_features, out_features), "weight", scale)
    yield Tensor(f"{name}.bias", (out_features,), "bias", 0.1)


def _gpt2(size: Gpt2Size) -> Iterator[Tensor]:
    hidden = size.hidden
    root = f"{GPT2_PREFIX}transformer"
    # The token table is the output layer too: 0.1 puts the standard deviation of a logit near 3.
    yield Tensor(f"{root}.wte.weight", (size.vocabulary, hidden), "weight", 0.1)
    yield Tensor(f"{root}.wpe.weight", (size.positions, hidden), "weight", 0.05)
    for index in range(size.layers):
        layer = f"{root}.h.{index}"
        yield from _layer_norm(f"{layer}.ln_1", hidden)
        yield from _conv1d(f"{layer}.attn.c_attn", hidden, 3 * hidden)
        yield from _conv1d(f"{layer}.attn.c_proj", hidden, hidden, GPT2_RESIDUAL_GAIN)
        yield from _layer_norm(f"{layer}.ln_2", hidden)
        yield from _conv1d(f"{layer}.mlp.c_fc", hidden, size.feed_forward)
        yield from _conv1d(f"{layer}.mlp.c_proj", size.feed_forward, hidden, GPT2_RESIDUAL_GAIN)
    yield from _layer_norm(f"{root}.ln_f", hidden)
