"""Weight tensors as data: name, shape and the rule that fills them, and the layers made of them.

The list of a model's tensors is written out, without a framework, so that weights can be made and
checked where torch is not installed. Tests hold it against the PyTorch modules' own state
dictionaries.

Names are those of the PyTorch program under test. `num_batches_tracked` of BatchNorm is left out:
it counts training steps and nothing reads it at inference.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal[
    "conv",  # (out, in, height, width)
    "linear",  # (out, in)
    "linear_in_out",  # (in, out), GPT-2's Conv1D
    "embedding",  # (rows, features)
    "bias",
    "gamma",
    "beta",
    "mean",
    "variance",
]


@dataclass(frozen=True)
class Tensor:
    """One float32 tensor: its name, shape, and the rule of `fill` with its scale.

    `scale` is the standard deviation of a weight and the typical magnitude of everything else.
    """

    name: str
    shape: tuple[int, ...]
    kind: Kind
    scale: float


@dataclass(frozen=True)
class ModelTensors:
    """All tensors of a model in a fixed order, and the tied ones as `alias -> name`."""

    tensors: tuple[Tensor, ...]
    aliases: Mapping[str, str] = field(default_factory=dict)


def he_scale(fan_in: int) -> float:
    """Standard deviation that keeps the second moment through a ReLU."""
    return (2.0 / fan_in) ** 0.5


def xavier_scale(fan_in: int) -> float:
    """Standard deviation that keeps the variance through a linear layer."""
    return (1.0 / fan_in) ** 0.5


def conv(name: str, out_channels: int, in_channels: int, kernel: int) -> Tensor:
    """A square convolution without bias."""
    shape = (out_channels, in_channels, kernel, kernel)
    return Tensor(f"{name}.weight", shape, "conv", he_scale(in_channels * kernel * kernel))


def batch_norm(name: str, channels: int, gamma: float = 1.0) -> Iterator[Tensor]:
    """BatchNorm with running statistics."""
    yield Tensor(f"{name}.weight", (channels,), "gamma", gamma)
    yield Tensor(f"{name}.bias", (channels,), "beta", 0.2)
    yield Tensor(f"{name}.running_mean", (channels,), "mean", 0.3)
    yield Tensor(f"{name}.running_var", (channels,), "variance", 1.0)


def layer_norm(name: str, features: int) -> Iterator[Tensor]:
    """LayerNorm with affine parameters."""
    yield Tensor(f"{name}.weight", (features,), "gamma", 1.0)
    yield Tensor(f"{name}.bias", (features,), "beta", 0.2)


def linear(name: str, out_features: int, in_features: int) -> Iterator[Tensor]:
    """`nn.Linear`, whose weight is (out, in)."""
    scale = xavier_scale(in_features)
    yield Tensor(f"{name}.weight", (out_features, in_features), "linear", scale)
    yield Tensor(f"{name}.bias", (out_features,), "bias", 0.1)


def linear_in_out(
    name: str, in_features: int, out_features: int, gain: float = 1.0
) -> Iterator[Tensor]:
    """GPT-2's `Conv1D`, a linear layer whose weight is (in, out)."""
    scale = gain * xavier_scale(in_features)
    yield Tensor(f"{name}.weight", (in_features, out_features), "linear_in_out", scale)
    yield Tensor(f"{name}.bias", (out_features,), "bias", 0.1)


def embedding(name: str, rows: int, features: int, scale: float) -> Tensor:
    """A lookup table."""
    return Tensor(f"{name}.weight", (rows, features), "embedding", scale)
