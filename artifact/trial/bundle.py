"""Reads reference bundles: numpy and safetensors only, so that every image can."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from artifact import strict_json
from artifact.errors import UserError
from artifact.models.manifest import (
    BUNDLE_SCHEMA,
    MANIFEST_NAME,
    OUTPUT_KEY,
    FileEntry,
    InputEntry,
    Manifest,
    input_key,
)


class BundleError(UserError):
    """A bundle is missing, broken or of another version; one line that names the file."""

    def __init__(self, what: str) -> None:
        super().__init__(
            what, next_step="remove that bundle; the next run makes it again (`artifact bundle`)"
        )


@dataclass(frozen=True)
class Bundle:
    """What a trial needs of a bundle, for one input.

    `weights`: float32 by the PyTorch program's names, tied weights once; `aliases`: tied name ->
    name in `weights`; `inputs`: the program's input tensors in order; `reference`: the float64
    output; `eager_rmse`: eager's error against it at fp32; `rms`: root mean square of `reference`.
    """

    manifest: Manifest
    weights: dict[str, NDArray[np.float32]]
    aliases: Mapping[str, str]
    inputs: tuple[NDArray[Any], ...]
    read_reference: Callable[[], NDArray[np.float64]]
    eager_rmse_by_precision: Mapping[str, float]
    rms: float
    weights_sha256: str
    inputs_sha256: str

    @cached_property
    def reference(self) -> NDArray[np.float64]:
        """The float64 output, read at its first use: it can be larger than the weights."""
        return self.read_reference()

    @property
    def eager_rmse(self) -> float:
        """Eager's root mean square error against float64 at fp32."""
        return self.eager_rmse_by_precision["fp32"]


def read_manifest(directory: Path) -> Manifest:
    """Read and validate `bundle.json`; `BundleError` if it is missing, malformed or too new."""
    path = directory / MANIFEST_NAME
    try:
        plain = strict_json.read(path)
        manifest = strict_json.from_plain(Manifest, plain)
    except OSError as error:
        raise BundleError(f"cannot read bundle {path}: {error.strerror}") from error
    except (strict_json.SchemaError, UnicodeDecodeError) as error:
        raise BundleError(f"bundle manifest {path} is broken: {error}") from error
    if manifest.schema != BUNDLE_SCHEMA:
        raise BundleError(f"bundle {path} has schema {manifest.schema}, expected {BUNDLE_SCHEMA}")
    return manifest


def load(directory: Path, input_name: str, verify: bool = True) -> Bundle:
    """Load one input of a bundle into memory; the reference output is read when it is asked for.

    With `verify`, the SHA-256 of each file is compared with the manifest first. `BundleError`, one
    line that names the file, for anything missing, truncated or changed.
    """
    manifest, entry = _entry(directory, input_name)
    if verify:
        check_files(directory, input_name)
    weights = _read(directory, manifest.weights)
    inputs = _read(directory, entry.inputs)
    return Bundle(
        manifest=manifest,
        weights=weights,
        aliases=manifest.aliases,
        inputs=_ordered_inputs(inputs, entry, directory),
        read_reference=lambda: _reference_output(
            _read(directory, entry.reference), entry, directory
        ),
        eager_rmse_by_precision=entry.eager_rmse,
        rms=entry.rms,
        weights_sha256=manifest.weights_sha256,
        inputs_sha256=entry.inputs_sha256,
    )


def check_files(directory: Path, input_name: str) -> None:
    """Compare the SHA-256 of the weights, this input and its reference with the manifest."""
    manifest, entry = _entry(directory, input_name)
    for file in (manifest.weights, entry.inputs, entry.reference):
        path = directory / file.path
        _check_size(path, file)
        if _file_sha256(path) != file.sha256:
            raise BundleError(f"checksum mismatch: {path} is not the file that was written")


def _entry(directory: Path, input_name: str) -> tuple[Manifest, InputEntry]:
    manifest = read_manifest(directory)
    entry = manifest.inputs.get(input_name)
    if entry is None:
        known = ", ".join(sorted(manifest.inputs))
        raise BundleError(f"bundle {directory} has no input {input_name!r} (it has {known})")
    return manifest, entry


def _check_size(path: Path, file: FileEntry) -> None:
    try:
        size_bytes = path.stat().st_size
    except OSError as error:
        raise BundleError(f"cannot read {path}: {error.strerror}") from error
    if size_bytes != file.size_bytes:
        raise BundleError(f"{path} has {size_bytes} bytes, expected {file.size_bytes}")


def _read(directory: Path, entry: FileEntry) -> dict[str, NDArray[Any]]:
    path = directory / entry.path
    _check_size(path, entry)
    try:
        return load_file(path)
    except OSError as error:
        raise BundleError(f"cannot read {path}: {error.strerror}") from error
    except SafetensorError as error:
        raise BundleError(f"{path} is not a safetensors file: {error}") from error


def _file_sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _ordered_inputs(
    arrays: Mapping[str, NDArray[Any]], entry: InputEntry, directory: Path
) -> tuple[NDArray[Any], ...]:
    names = [input_key(index) for index in range(len(entry.input_shapes))]
    if sorted(arrays) != sorted(names):
        raise BundleError(f"{directory / entry.inputs.path} holds {sorted(arrays)}, not {names}")
    return tuple(arrays[name] for name in names)


def _reference_output(
    arrays: Mapping[str, NDArray[Any]], entry: InputEntry, directory: Path
) -> NDArray[np.float64]:
    output = arrays.get(OUTPUT_KEY)
    if output is None or output.dtype != np.float64 or output.shape != entry.output_shape:
        where = directory / entry.reference.path
        raise BundleError(f"{where} does not hold a float64 output {entry.output_shape}")
    return output
