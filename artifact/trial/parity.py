"""The parity rule: is an output as close to float64 as eager at the same precision is?

Pass if and only if rmse(output, f64) <= 10 * rmse(eager, f64) + 1e-6 * rms(f64) (DESIGN.md, "The
reference bundle"). A fixed tolerance would not do: with the usual 1e-3 a wrong GELU passes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

EAGER_FACTOR = 10.0
RMS_FRACTION = 1e-6


@dataclass(frozen=True)
class Parity:
    """Outcome of the rule; all figures in the unit of the output.

    `rmse` and `max_abs` (largest absolute difference) are None where no difference can be formed:
    wrong shape, wrong type, or values that are not finite. `reason` is one line either way.
    """

    rmse: float | None
    allowed_rmse: float
    max_abs: float | None
    passed: bool
    reason: str


def judge(output: NDArray[Any], reference: NDArray[np.float64], eager_rmse: float) -> Parity:
    """Judge a float32 `output` against the float64 `reference` of the same shape.

    `eager_rmse` is eager's root mean square error at the trial's precision. A wrong shape or type
    and NaN or infinite values are failures, each by name. `ValueError` if the reference or
    `eager_rmse` itself is unusable: that is not the trial's fault.
    """
    _check_yardstick(reference, eager_rmse)
    allowed = EAGER_FACTOR * eager_rmse + RMS_FRACTION * _root_mean_square(reference)
    fault = _fault(output, reference)
    if fault:
        return Parity(None, allowed, None, False, fault)
    difference = output.astype(np.float64) - reference
    rmse = _root_mean_square(difference)
    max_abs = float(np.abs(difference).max())
    passed = rmse <= allowed
    relation = "within" if passed else "above"
    reason = f"rmse {rmse:.3g} is {relation} the allowed {allowed:.3g}"
    return Parity(rmse, allowed, max_abs, passed, reason)


def _check_yardstick(reference: NDArray[np.float64], eager_rmse: float) -> None:
    if reference.dtype != np.float64 or reference.size == 0:
        raise ValueError(f"reference must be float64 and not empty, got {reference.dtype}")
    if not np.isfinite(reference).all():
        raise ValueError("reference output is not finite")
    if not math.isfinite(eager_rmse) or eager_rmse < 0:
        raise ValueError(f"eager rmse must be a finite number >= 0, got {eager_rmse}")


def _fault(output: NDArray[Any], reference: NDArray[np.float64]) -> str:
    """Why no difference can be formed; empty if it can."""
    if output.shape != reference.shape:
        return f"shape {output.shape}, expected {reference.shape}"
    if output.dtype != np.float32:
        return f"type {output.dtype}, expected float32"
    nan_count = int(np.isnan(output).sum())
    if nan_count:
        return f"{nan_count} of {output.size} values are NaN"
    infinite_count = int(np.isinf(output).sum())
    if infinite_count:
        return f"{infinite_count} of {output.size} values are infinite"
    return ""


def _root_mean_square(values: NDArray[np.float64]) -> float:
    return float(np.sqrt(np.mean(np.square(values))))
