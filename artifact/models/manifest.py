"""`bundle.json`: what a reference bundle holds. Shared by its writer and its reader."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# 1: first version.
BUNDLE_SCHEMA = 1
MANIFEST_NAME = "bundle.json"
WEIGHTS_NAME = "weights.safetensors"
OUTPUT_KEY = "output"
PRECISIONS = ("fp32", "tf32")


@dataclass(frozen=True)
class FileEntry:
    """One file of the bundle: path relative to it, SHA-256 (hex) and size."""

    path: str
    sha256: str
    size_bytes: int


@dataclass(frozen=True)
class InputEntry:
    """One input, its float64 reference output and how far eager is from it.

    `rms` is the root mean square of the float64 output; `eager_rmse` maps a precision (`fp32`, and
    `tf32` emulated by rounding operands) to the root mean square error of eager against float64.
    """

    inputs: FileEntry
    inputs_sha256: str
    input_shapes: tuple[tuple[int, ...], ...]
    reference: FileEntry
    output_shape: tuple[int, ...]
    rms: float
    max_abs: float
    eager_rmse: Mapping[str, float]


@dataclass(frozen=True)
class Manifest:
    """The whole of `bundle.json`; `weights_sha256` and `inputs_sha256` are those of `fill`."""

    schema: int
    model_id: str
    architecture: str
    options: Mapping[str, int]
    seed: int
    models_sha256: str
    weights: FileEntry
    weights_sha256: str
    aliases: Mapping[str, str]
    inputs: Mapping[str, InputEntry]
    made_with: Mapping[str, str]


def input_key(index: int) -> str:
    """Name of the program's `index`-th input tensor inside an input file."""
    return f"input_{index}"
