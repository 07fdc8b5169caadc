"""Whether folded values are still finite, in one pass."""

from __future__ import annotations

import torch


def all_finite(tensor: torch.Tensor) -> bool:
    """False when any element is infinite or NaN, or when their sum leaves the sum's range.

    One sum instead of `torch.isfinite`, which makes several passes over the weights. The sum of
    half-precision values is taken in float32.
    """
    wide = torch.float64 if tensor.dtype == torch.float64 else torch.float32
    return bool(torch.isfinite(tensor.sum(dtype=wide)))
