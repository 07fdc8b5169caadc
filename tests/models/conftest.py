"""Oracles that need numpy only, and the small models that the tests of both sides run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

REFERENCES = Path(__file__).parent / "references"
SEED = 2026


@dataclass(frozen=True)
class Case:
    """A model small enough for a test, and one input of it."""

    architecture: str
    options: dict[str, int]
    input_name: str

    def __str__(self) -> str:
        return self.architecture


CASES = (
    Case("resnet18", {}, "1x3x64x64"),
    Case("resnet50", {}, "1x3x64x64"),
    Case("bert", {"layers": 2, "vocabulary": 512}, "2x8"),
    Case("gpt2", {"layers": 2, "vocabulary": 512}, "2x8"),
)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" in metafunc.fixturenames:
        metafunc.parametrize("case", CASES, ids=str)


@pytest.fixture
def reference() -> Callable[[Case], tuple[NDArray[np.float64], float]]:
    """The stored float64 eager output of a case and eager's fp32 error (`make_references.py`)."""

    def load(case: Case) -> tuple[NDArray[np.float64], float]:
        with np.load(REFERENCES / f"{case.architecture}.npz") as stored:
            return stored["output"], float(stored["eager_rmse"])

    return load


@pytest.fixture
def ones_convolution() -> Callable[[int], NDArray[np.float64]]:
    """Case N3 by hand: 7x7 all-ones kernel, stride 2, padding 3, on arange of an n x n image."""

    def convolve(size: int) -> NDArray[np.float64]:
        padded = np.pad(np.arange(size * size, dtype=np.float64).reshape(size, size), 3)
        rows = range(0, padded.shape[0] - 6, 2)
        return np.array([[padded[i : i + 7, j : j + 7].sum() for j in rows] for i in rows])

    return convolve


def arange_image(size: int) -> NDArray[np.float32]:
    """Three channels (1, 3, n, n), the first arange and the others zero."""
    image = np.zeros((1, 3, size, size), np.float32)
    image[0, 0] = np.arange(size * size).reshape(size, size)
    return image


@pytest.fixture
def stem_image() -> Callable[[int], NDArray[np.float32]]:
    return arange_image


@pytest.fixture
def tiny_hidden() -> NDArray[Any]:
    """Case N4: values of scale 1e-4, where LayerNorm's eps decides the output's variance."""
    return np.random.default_rng(0).normal(0.0, 1e-4, (1, 2, 768)).astype(np.float32)
