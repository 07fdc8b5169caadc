"""ResNet-18 and ResNet-50 in Flax Linen, the same function as torchvision's definitions.

Takes NCHW as the program under test does. Inside it is NHWC, natural to Flax: one transposition at
the entry, part of the compiled program. All padding is explicit, since SAME pads stride-2
convolutions of even sizes on the other side.
"""

from __future__ import annotations

import flax.linen as nn
import jax.numpy as jnp

from artifact.models.flax_layers import Array, Precision
from artifact.models.resnet import BOTTLENECK_EXPANSION, CLASSES, STEM_CHANNELS

BATCH_NORM_EPS = 1e-5


def conv(name: str, channels: int, kernel: int, stride: int, precision: Precision) -> nn.Conv:
    """Convolution without bias, padded by kernel // 2 on every side as in torchvision."""
    pad = kernel // 2
    return nn.Conv(
        channels,
        (kernel, kernel),
        strides=(stride, stride),
        padding=((pad, pad), (pad, pad)),
        use_bias=False,
        precision=precision,
        name=name,
    )


def batch_norm(name: str) -> nn.BatchNorm:
    """Inference BatchNorm: uses the running statistics, never the batch's."""
    return nn.BatchNorm(use_running_average=True, epsilon=BATCH_NORM_EPS, name=name)


class Block(nn.Module):
    """Residual block: two 3x3 convolutions, or 1x1, 3x3, 1x1 (stride on the 3x3)."""

    bottleneck: bool
    width: int
    stride: int
    precision: Precision

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """(N, H, W, C) -> (N, H / stride, W / stride, output channels)."""
        kernels = (1, 3, 1) if self.bottleneck else (3, 3)
        strides = (1, self.stride, 1) if self.bottleneck else (self.stride, 1)
        out_channels = self.width * (BOTTLENECK_EXPANSION if self.bottleneck else 1)
        shortcut = x
        y = x
        last = len(kernels)
        for index, (kernel, stride) in enumerate(zip(kernels, strides, strict=True), start=1):
            channels = out_channels if index == last else self.width
            y = conv(f"conv{index}", channels, kernel, stride, self.precision)(y)
            y = batch_norm(f"bn{index}")(y)
            if index != last:
                y = nn.relu(y)
        if x.shape[-1] != out_channels:
            shortcut = conv("downsample.0", out_channels, 1, self.stride, self.precision)(x)
            shortcut = batch_norm("downsample.1")(shortcut)
        return nn.relu(y + shortcut)


class ResNet(nn.Module):
    """Stem, `stages` of so many blocks each, mean over the image, output layer."""

    bottleneck: bool
    stages: tuple[int, ...]
    precision: Precision

    @nn.compact
    def __call__(self, image: Array) -> Array:
        """float32 (N, 3, H, W) -> logits (N, 1000)."""
        x = jnp.transpose(image, (0, 2, 3, 1))
        x = nn.relu(batch_norm("bn1")(conv("conv1", STEM_CHANNELS, 7, 2, self.precision)(x)))
        x = nn.max_pool(x, (3, 3), strides=(2, 2), padding=((1, 1), (1, 1)))
        for stage, blocks in enumerate(self.stages, start=1):
            for block in range(blocks):
                x = Block(
                    bottleneck=self.bottleneck,
                    width=STEM_CHANNELS * 2 ** (stage - 1),
                    stride=2 if stage > 1 and block == 0 else 1,
                    precision=self.precision,
                    name=f"layer{stage}.{block}",
                )(x)
        x = jnp.mean(x, axis=(1, 2))
        return nn.Dense(CLASSES, precision=self.precision, name="fc")(x)
