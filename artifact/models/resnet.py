"""ResNet-18 and ResNet-50 as torchvision defines them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from numpy.typing import NDArray

from artifact.models import philox
from artifact.models.tensors import ModelTensors, Tensor, batch_norm, conv, he_scale

if TYPE_CHECKING:
    import torch

CLASSES = 1000
STEM_CHANNELS = 64
BOTTLENECK_EXPANSION = 4
# Magnitude of gamma in a block's last BatchNorm. Random statistics do not normalise what they see,
# so with gamma near 1 every block would double the variance; 0.3 keeps the sum of 16 blocks tame.
RESIDUAL_GAMMA = 0.3


@dataclass(frozen=True)
class ResNetArchitecture:
    """A torchvision ResNet: its name there, its block and the number of blocks per stage."""

    name: str
    block: Literal["basic", "bottleneck"]
    stages: tuple[int, ...]
    option_names: tuple[str, ...] = ()
    flax_prefix: str = ""
    torch_imports: tuple[str, ...] = ("torchvision.models",)

    def check_shape(self, shape: tuple[int, ...]) -> str:
        """Needs (N, 3, H, W)."""
        return "" if len(shape) == 4 and shape[1] == 3 else "needs Nx3xHxW"

    def tensors(self, options: Mapping[str, int]) -> ModelTensors:
        """Every weight tensor; nothing is tied."""
        return ModelTensors(tuple(self._tensors()))

    def inputs(
        self, options: Mapping[str, int], shape: tuple[int, ...], key: philox.Key
    ) -> tuple[NDArray[Any], ...]:
        """One float32 image (N, 3, H, W)."""
        return (philox.image(shape, key),)

    def torch_module(
        self, options: Mapping[str, int], shape: tuple[int, ...], attn_implementation: str
    ) -> torch.nn.Module:
        """torchvision's module, contiguous NCHW."""
        from torchvision.models import get_model

        return get_model(self.name, weights=None)

    def flax_module(self, options: Mapping[str, int], precision: Any) -> Any:
        """`flax_resnet.ResNet`."""
        from artifact.models.flax_resnet import ResNet

        return ResNet(self.block == "bottleneck", self.stages, precision)

    def _tensors(self) -> Iterator[Tensor]:
        yield conv("conv1", STEM_CHANNELS, 3, 7)
        yield from batch_norm("bn1", STEM_CHANNELS)
        channels = STEM_CHANNELS
        for stage, blocks in enumerate(self.stages, start=1):
            width = STEM_CHANNELS * 2 ** (stage - 1)
            out_channels = width * (BOTTLENECK_EXPANSION if self.block == "bottleneck" else 1)
            for index in range(blocks):
                yield from self._block(f"layer{stage}.{index}", channels, width, out_channels)
                channels = out_channels
        yield Tensor("fc.weight", (CLASSES, channels), "linear", he_scale(channels))
        yield Tensor("fc.bias", (CLASSES,), "bias", 0.2)

    def _block(
        self, name: str, in_channels: int, width: int, out_channels: int
    ) -> Iterator[Tensor]:
        kernels = (3, 3) if self.block == "basic" else (1, 3, 1)
        sizes = [in_channels, *[width] * (len(kernels) - 1), out_channels]
        for index, kernel in enumerate(kernels, start=1):
            yield conv(f"{name}.conv{index}", sizes[index], sizes[index - 1], kernel)
            gamma = RESIDUAL_GAMMA if index == len(kernels) else 1.0
            yield from batch_norm(f"{name}.bn{index}", sizes[index], gamma)
        # torchvision projects the shortcut where its shape changes.
        if in_channels != out_channels:
            yield conv(f"{name}.downsample.0", out_channels, in_channels, 1)
            yield from batch_norm(f"{name}.downsample.1", out_channels)


RESNET18 = ResNetArchitecture("resnet18", "basic", (2, 2, 2, 2))
RESNET50 = ResNetArchitecture("resnet50", "bottleneck", (3, 4, 6, 3))
