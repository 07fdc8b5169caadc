"""What TensorFloat-32 does to a program, emulated on any device.

TF32 units read float32 operands, keep 10 of 23 fraction bits and accumulate in float32. Rounding
the operands of every matrix product and convolution in the same way gives eager's own error at
that precision without a GPU, and a test subject for TF32 results sold as fp32.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_DROPPED_BITS = 13  # 23 fraction bits of float32 less 10 of TF32
_HALF = 1 << (_DROPPED_BITS - 1)
_KEPT = ~((1 << _DROPPED_BITS) - 1)

# Operator name -> positions of the operands that a tensor core would read.
_OPERANDS = {
    "aten::convolution": (0, 1),
    "aten::mm": (0, 1),
    "aten::bmm": (0, 1),
    "aten::addmm": (1, 2),
    "aten::baddbmm": (1, 2),
    "aten::linear": (0, 1),
    "aten::_scaled_dot_product_flash_attention_for_cpu": (0, 1, 2),
}


def round_to_tf32(tensor: torch.Tensor) -> torch.Tensor:
    """Round float32 to 10 fraction bits, nearest, ties away from zero; other types unchanged."""
    if tensor.dtype != torch.float32:
        return tensor
    bits = tensor.contiguous().view(torch.int32)
    return ((bits + _HALF) & _KEPT).view(torch.float32)


class EmulatedTf32(TorchDispatchMode):
    """Inside this context, matrix products and convolutions see TF32 operands."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        positions = _OPERANDS.get(func._schema.name, ())
        rounded = [round_to_tf32(a) if i in positions else a for i, a in enumerate(args)]
        return func(*rounded, **(kwargs or {}))
