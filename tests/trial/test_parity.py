"""The parity rule on arrays; `tests/models/test_mutants.py` holds it against wrong programs."""

from __future__ import annotations

import numpy as np
import pytest

from artifact.trial.parity import judge

REFERENCE = np.array([3.0, -4.0, 3.0, -4.0])  # rms sqrt(12.5)
FP32 = REFERENCE.astype(np.float32)
ALLOWED = 10 * 1e-4 + 1e-6 * 12.5**0.5


def test_figures_are_the_rules() -> None:
    output = (REFERENCE + np.array([0.0, 0.0, 0.0, 0.0015])).astype(np.float32)
    outcome = judge(output, REFERENCE, eager_rmse=1e-4)
    assert outcome.passed
    assert outcome.allowed_rmse == pytest.approx(ALLOWED, rel=1e-12)
    assert outcome.rmse == pytest.approx(0.00075, rel=1e-3)
    assert outcome.max_abs == pytest.approx(0.0015, rel=1e-3)


@pytest.mark.parametrize(("factor", "passed"), [(0.999, True), (1.001, False)])
def test_the_limit_is_where_the_rule_puts_it(factor: float, passed: bool) -> None:
    output = (REFERENCE + factor * ALLOWED).astype(np.float32)
    outcome = judge(output, REFERENCE, eager_rmse=1e-4)
    assert outcome.passed is passed
    assert ("within" in outcome.reason) is passed


def test_a_perfect_eager_still_leaves_rounding_room() -> None:
    assert judge(FP32, REFERENCE, eager_rmse=0.0).passed
    assert not judge(FP32 + np.float32(1e-5), REFERENCE, eager_rmse=0.0).passed


def test_one_wrong_value_among_many_fails() -> None:
    reference = np.ones(10_000)
    output = reference.astype(np.float32)
    output[7] = 0.0
    outcome = judge(output, reference, eager_rmse=1e-7)
    assert not outcome.passed and outcome.max_abs == 1.0


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        (FP32[:3], "shape"),
        (FP32.reshape(2, 2), "shape"),
        (np.float32(3.0).reshape(()), "shape"),
        (REFERENCE, "float64"),
        (FP32.astype(np.float16), "float16"),
        (np.array([3, -4, 3, np.nan], np.float32), "1 of 4 values are NaN"),
        (np.array([3, -np.inf, np.inf, -4], np.float32), "2 of 4 values are infinite"),
    ],
)
def test_what_cannot_be_compared_fails_by_name(output: np.ndarray, reason: str) -> None:
    outcome = judge(output, REFERENCE, eager_rmse=1.0)
    assert not outcome.passed
    assert reason in outcome.reason
    assert outcome.rmse is None and outcome.max_abs is None


@pytest.mark.parametrize(
    ("reference", "eager_rmse"),
    [
        (np.array([3.0, np.nan, 3.0, -4.0]), 1e-4),
        (np.array([3.0, np.inf, 3.0, -4.0]), 1e-4),
        (FP32, 1e-4),
        (np.empty(0), 1e-4),
        (REFERENCE, float("nan")),
        (REFERENCE, float("inf")),
        (REFERENCE, -1e-4),
    ],
)
def test_a_useless_yardstick_is_an_error(reference: np.ndarray, eager_rmse: float) -> None:
    with pytest.raises(ValueError, match=r"reference|eager"):
        judge(FP32, reference, eager_rmse)
