"""Writes reference bundles: weights, inputs, float64 outputs and eager's own error.

Runs in the inductor image, once per (model, seed), outside any timing.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import save_file

from artifact import strict_json
from artifact.errors import UserError
from artifact.models import fill, torch_models
from artifact.models.architecture import input_shape, model_tensors
from artifact.models.manifest import (
    BUNDLE_SCHEMA,
    MANIFEST_NAME,
    OUTPUT_KEY,
    WEIGHTS_NAME,
    FileEntry,
    InputEntry,
    Manifest,
    input_key,
)
from artifact.models.spec import ModelSpec, bundle_key, models_hash
from artifact.models.tf32 import EmulatedTf32

__all__ = ["bundle_key", "write_bundle"]

Weights = Mapping[str, NDArray[np.float32]]


def write_bundle(
    spec: ModelSpec,
    input_names: Sequence[str],
    seed: int,
    directory: Path,
    expected_weights_sha256: str | None = None,
) -> Manifest:
    """Make `directory` (named by `bundle_key`) a bundle that holds at least `input_names`.

    Does nothing when an intact bundle already holds them; adds only the missing inputs to an intact
    one; replaces a broken one. A reader sees no bundle, the old one or the new one: a new bundle
    appears by one rename, an addition by the rename of `bundle.json`.

    `UserError` if an input does not fit the model, if the disk refuses, or if the weights do not
    have `expected_weights_sha256` (the study's constant: this machine or numpy fills differently).
    """
    try:
        return _ensure(spec, input_names, seed, directory, expected_weights_sha256)
    except (OSError, SafetensorError) as error:
        raise UserError(
            f"cannot write bundle {directory}: {error}", next_step="nothing was changed; run again"
        ) from error


def _ensure(
    spec: ModelSpec,
    input_names: Sequence[str],
    seed: int,
    directory: Path,
    expected_weights_sha256: str | None,
) -> Manifest:
    for name in input_names:
        input_shape(spec.architecture, name)
    present = _intact_manifest(directory, spec, seed)
    missing = [n for n in dict.fromkeys(input_names) if present is None or n not in present.inputs]
    if present is not None and not missing:
        _check_weights(spec, present.weights_sha256, expected_weights_sha256)
        return present
    directory.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
    try:
        weights = fill.weights(spec.architecture, spec.options, seed)
        weights_sha256 = fill.arrays_sha256(weights)
        _check_weights(spec, weights_sha256, expected_weights_sha256)
        inputs = {name: _write_input(staging, spec, name, seed, weights) for name in missing}
        if present is not None:
            return _extend(directory, staging, present, inputs)
        manifest = _new_manifest(staging, spec, seed, weights, weights_sha256, inputs)
        _publish(directory, staging)
        return manifest
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _check_weights(spec: ModelSpec, actual: str, expected: str | None) -> None:
    if expected is not None and actual != expected:
        raise UserError(
            f"weights of {spec.id} have SHA-256 {actual[:16]}, the study says {expected[:16]}",
            next_step="do not compare results of this machine; report its numpy version",
        )


def _intact_manifest(directory: Path, spec: ModelSpec, seed: int) -> Manifest | None:
    """The manifest in `directory` if it is this bundle and every file is whole, else None."""
    try:
        plain = strict_json.read(directory / MANIFEST_NAME)
        manifest = strict_json.from_plain(Manifest, plain)
    except (OSError, ValueError):  # missing, not text, not JSON, another schema
        return None
    wanted = (BUNDLE_SCHEMA, spec.id, spec.architecture, dict(spec.options), seed, models_hash())
    found = (
        manifest.schema,
        manifest.model_id,
        manifest.architecture,
        dict(manifest.options),
        manifest.seed,
        manifest.models_sha256,
    )
    files = [manifest.weights]
    for entry in manifest.inputs.values():
        files += [entry.inputs, entry.reference]
    whole = found == wanted and all(_is_whole(directory, entry) for entry in files)
    return manifest if whole else None


def _is_whole(directory: Path, entry: FileEntry) -> bool:
    path = directory / entry.path
    return path.is_file() and _file_sha256(path) == entry.sha256


def _write_input(
    staging: Path, spec: ModelSpec, name: str, seed: int, weights: Weights
) -> InputEntry:
    tensors = fill.inputs(spec.architecture, spec.options, name, seed)
    named = {input_key(index): tensor for index, tensor in enumerate(tensors)}
    reference, eager_rmse = _run_reference(spec, name, tensors, weights)
    if not np.isfinite(reference).all():
        raise UserError(f"float64 output of {spec.id} at {name} is not finite")
    return InputEntry(
        inputs=_save(staging, f"inputs/{name}.safetensors", named),
        inputs_sha256=fill.arrays_sha256(named),
        input_shapes=tuple(tensor.shape for tensor in tensors),
        reference=_save(staging, f"reference/{name}.safetensors", {OUTPUT_KEY: reference}),
        output_shape=reference.shape,
        rms=float(np.sqrt(np.mean(np.square(reference)))),
        max_abs=float(np.abs(reference).max()),
        eager_rmse=eager_rmse,
    )


def _run_reference(
    spec: ModelSpec, name: str, tensors: Sequence[NDArray[Any]], weights: Weights
) -> tuple[NDArray[np.float64], dict[str, float]]:
    """The float64 eager output, and eager's error against it per precision (default threads)."""
    shape = input_shape(spec.architecture, name)
    module = torch_models.build(spec.architecture, spec.options, shape)
    tied = model_tensors(spec.architecture, spec.options).aliases
    torch_models.load_weights(module, weights, tied)
    arguments = [torch.from_numpy(tensor) for tensor in tensors]
    with torch.inference_mode():
        fp32 = module(*arguments).numpy()
        with EmulatedTf32():
            tf32 = module(*arguments).numpy()
        wide = [a.double() if a.is_floating_point() else a for a in arguments]
        reference = copy.deepcopy(module).double()(*wide).numpy()
    return reference, {"fp32": _rmse(fp32, reference), "tf32": _rmse(tf32, reference)}


def _rmse(output: NDArray[np.float32], reference: NDArray[np.float64]) -> float:
    return float(np.sqrt(np.mean(np.square(output.astype(np.float64) - reference))))


def _new_manifest(
    staging: Path,
    spec: ModelSpec,
    seed: int,
    weights: Weights,
    weights_sha256: str,
    inputs: Mapping[str, InputEntry],
) -> Manifest:
    manifest = Manifest(
        schema=BUNDLE_SCHEMA,
        model_id=spec.id,
        architecture=spec.architecture,
        options=dict(spec.options),
        seed=seed,
        models_sha256=models_hash(),
        weights=_save(staging, WEIGHTS_NAME, weights),
        weights_sha256=weights_sha256,
        aliases=dict(model_tensors(spec.architecture, spec.options).aliases),
        inputs=inputs,
        made_with=_made_with(),
    )
    strict_json.write_atomic(staging / MANIFEST_NAME, manifest)
    return manifest


def _made_with() -> dict[str, str]:
    return {
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "threads": str(torch.get_num_threads()),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
    }


def _extend(
    directory: Path, staging: Path, present: Manifest, inputs: Mapping[str, InputEntry]
) -> Manifest:
    """Move new input files in, then let the manifest name them: no reader looks before that."""
    for entry in inputs.values():
        for file in (entry.inputs, entry.reference):
            (staging / file.path).replace(directory / file.path)
    for folder in ("inputs", "reference"):
        _sync(directory / folder)
    manifest = dataclasses.replace(present, inputs={**present.inputs, **inputs})
    strict_json.write_atomic(directory / MANIFEST_NAME, manifest)
    return manifest


def _publish(directory: Path, staging: Path) -> None:
    staging.chmod(0o755)  # mkdtemp makes it private; containers read it under another uid
    for folder in (staging / "inputs", staging / "reference", staging):
        if folder.is_dir():
            _sync(folder)
    if directory.exists():  # broken, or of other sources: it was judged above
        shutil.rmtree(directory)
    staging.rename(directory)
    _sync(directory.parent)


def _save(root: Path, relative: str, arrays: Mapping[str, NDArray[Any]]) -> FileEntry:
    path = root / relative
    path.parent.mkdir(exist_ok=True)
    save_file(dict(arrays), path)
    path.chmod(0o644)
    _sync(path)
    return FileEntry(relative, _file_sha256(path), path.stat().st_size)


def _sync(path: Path) -> None:
    """Flush a file, or the names in a directory, to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _file_sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
