"""A toy architecture in one file, found as `toy_architecture:TOY`: what a new one has to bring."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from artifact.models import philox
from artifact.models.tensors import ModelTensors, conv, linear


class ToyArchitecture:
    """3x3 convolution, mean over the image, linear layer."""

    option_names: tuple[str, ...] = ("classes",)
    flax_prefix: str = ""
    torch_imports: tuple[str, ...] = ()

    def check_shape(self, shape: tuple[int, ...]) -> str:
        return "" if len(shape) == 4 and shape[1] == 3 else "needs Nx3xHxW"

    def tensors(self, options: Mapping[str, int]) -> ModelTensors:
        return ModelTensors((conv("conv", 4, 3, 3), *linear("fc", options.get("classes", 2), 4)))

    def inputs(
        self, options: Mapping[str, int], shape: tuple[int, ...], key: philox.Key
    ) -> tuple[Any, ...]:
        return (philox.image(shape, key),)

    def torch_module(
        self, options: Mapping[str, int], shape: tuple[int, ...], attn_implementation: str
    ) -> Any:
        from torch import nn

        class Toy(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.conv = nn.Conv2d(3, 4, 3, padding=1, bias=False)
                self.fc = nn.Linear(4, options.get("classes", 2))

            def forward(self, image: Any) -> Any:
                return self.fc(self.conv(image).relu().mean((2, 3)))

        return Toy()

    def flax_module(self, options: Mapping[str, int], precision: Any) -> Any:
        import flax.linen as nn
        import jax.numpy as jnp

        class Toy(nn.Module):
            @nn.compact
            def __call__(self, image: Any) -> Any:
                x = jnp.transpose(image, (0, 2, 3, 1))
                pad = ((1, 1), (1, 1))
                x = nn.Conv(
                    4, (3, 3), padding=pad, use_bias=False, precision=precision, name="conv"
                )(x)
                x = jnp.mean(nn.relu(x), axis=(1, 2))
                return nn.Dense(options.get("classes", 2), precision=precision, name="fc")(x)

        return Toy()


TOY = ToyArchitecture()
