"""Reading bundles: what comes out, and every way a bundle can be broken, in one line each."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from artifact import strict_json
from artifact.errors import UserError
from artifact.models.manifest import BUNDLE_SCHEMA, FileEntry, InputEntry, Manifest
from artifact.trial import bundle

WEIGHTS = {"a.weight": np.arange(6, dtype=np.float32).reshape(2, 3)}
IDS = np.array([[1, 2, 3]], np.int64)
OUTPUT = np.array([[0.5, -1.5]])


def save(root: Path, relative: str, arrays: dict[str, Any]) -> FileEntry:
    path = root / relative
    path.parent.mkdir(exist_ok=True, parents=True)
    save_file(arrays, path)
    data = path.read_bytes()
    return FileEntry(relative, hashlib.sha256(data).hexdigest(), len(data))


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A small bundle made by hand."""
    root = tmp_path / "toy bundle"
    entry = InputEntry(
        inputs=save(root, "inputs/1x3.safetensors", {"input_0": IDS}),
        inputs_sha256="i",
        input_shapes=((1, 3),),
        reference=save(root, "reference/1x3.safetensors", {"output": OUTPUT}),
        output_shape=(1, 2),
        rms=1.118,
        max_abs=1.5,
        eager_rmse={"fp32": 1e-7, "tf32": 1e-4},
    )
    manifest = Manifest(
        schema=BUNDLE_SCHEMA,
        model_id="toy",
        architecture="gpt2",
        options={},
        seed=7,
        models_sha256="m",
        weights=save(root, "weights.safetensors", WEIGHTS),
        weights_sha256="w",
        aliases={"b.weight": "a.weight"},
        inputs={"1x3": entry},
        made_with={},
    )
    strict_json.write_atomic(root / "bundle.json", manifest)
    return root


def test_everything_written_comes_back(directory: Path) -> None:
    loaded = bundle.load(directory, "1x3")
    assert list(loaded.weights) == ["a.weight"]
    assert np.array_equal(loaded.weights["a.weight"], WEIGHTS["a.weight"])
    assert loaded.aliases == {"b.weight": "a.weight"}
    assert len(loaded.inputs) == 1 and np.array_equal(loaded.inputs[0], IDS)
    assert loaded.reference.dtype == np.float64 and np.array_equal(loaded.reference, OUTPUT)
    assert (loaded.eager_rmse, loaded.eager_rmse_by_precision["tf32"]) == (1e-7, 1e-4)
    assert (loaded.weights_sha256, loaded.inputs_sha256, loaded.rms) == ("w", "i", 1.118)
    assert loaded.manifest.seed == 7


FILES = ("weights.safetensors", "inputs/1x3.safetensors", "reference/1x3.safetensors")


@pytest.mark.parametrize("name", [*FILES, "bundle.json"])
def test_a_missing_file_is_named(directory: Path, name: str) -> None:
    (directory / name).unlink()
    refused(directory, name)


@pytest.mark.parametrize("name", [*FILES, "bundle.json"])
def test_a_truncated_file_is_named(directory: Path, name: str) -> None:
    path = directory / name
    path.write_bytes(path.read_bytes()[:-9])
    refused(directory, name)
    refused(directory, name, verify=False)


@pytest.mark.parametrize("name", FILES)
def test_one_flipped_bit_is_a_checksum_mismatch(directory: Path, name: str) -> None:
    flip_last_bit(directory / name)
    assert "checksum mismatch" in refused(directory, name)


def test_without_verify_contents_are_not_hashed(directory: Path) -> None:
    flip_last_bit(directory / "weights.safetensors")
    loaded = bundle.load(directory, "1x3", verify=False)
    assert not np.array_equal(loaded.weights["a.weight"], WEIGHTS["a.weight"])


def test_a_file_that_is_no_safetensors_is_named(directory: Path) -> None:
    path = directory / "weights.safetensors"
    path.write_bytes(b"\xff" * path.stat().st_size)
    assert "safetensors" in refused(directory, "weights.safetensors", verify=False)


def test_an_unknown_input_lists_the_known_ones(directory: Path) -> None:
    with pytest.raises(bundle.BundleError, match=r"no input '1x9' \(it has 1x3\)"):
        bundle.load(directory, "1x9")


def edited(key: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def edit(plain: dict[str, Any]) -> None:
        plain[key] = value

    return edit


@pytest.mark.parametrize(
    "edit",
    [
        edited("schema", BUNDLE_SCHEMA + 1),
        edited("seed", "seven"),
        edited("surprise", 1),
        lambda plain: plain.pop("weights"),
        lambda plain: plain["inputs"]["1x3"].pop("rms"),
    ],
)
def test_a_manifest_of_another_form_is_refused(
    directory: Path, edit: Callable[[dict[str, Any]], None]
) -> None:
    plain = strict_json.read(directory / "bundle.json")
    edit(plain)
    strict_json.write_atomic(directory / "bundle.json", plain)
    refused(directory, "bundle.json")


@pytest.mark.parametrize("text", ["", "[]", "null", '{"schema": NaN}', "\x00", "{} {}"])
def test_a_manifest_that_is_no_object_is_refused(directory: Path, text: str) -> None:
    (directory / "bundle.json").write_text(text, encoding="utf-8")
    refused(directory, "bundle.json")


def test_a_manifest_that_is_not_text_is_refused(directory: Path) -> None:
    (directory / "bundle.json").write_bytes(b"\xff\xfe\x00")
    refused(directory, "bundle.json")


@pytest.mark.parametrize(
    "arrays",
    [{"other": OUTPUT}, {"output": OUTPUT.astype(np.float32)}, {"output": OUTPUT.reshape(2, 1)}],
)
def test_a_reference_of_another_form_is_refused(directory: Path, arrays: dict[str, Any]) -> None:
    plain = strict_json.read(directory / "bundle.json")
    entry = save(directory, "reference/1x3.safetensors", arrays)
    plain["inputs"]["1x3"]["reference"] = strict_json.to_plain(entry)
    strict_json.write_atomic(directory / "bundle.json", plain)
    refused(directory, "reference/1x3.safetensors")


def test_inputs_under_other_names_are_refused(directory: Path) -> None:
    plain = strict_json.read(directory / "bundle.json")
    entry = save(directory, "inputs/1x3.safetensors", {"ids": IDS})
    plain["inputs"]["1x3"]["inputs"] = strict_json.to_plain(entry)
    strict_json.write_atomic(directory / "bundle.json", plain)
    refused(directory, "inputs/1x3.safetensors")


def refused(directory: Path, name: str, verify: bool = True) -> str:
    """Loading fails in one line that names the file and the way out; returns that line."""
    with pytest.raises(bundle.BundleError) as caught:
        _ = bundle.load(directory, "1x3", verify).reference  # read at its first use
    message = str(caught.value)
    assert isinstance(caught.value, UserError)
    assert "\n" not in message and name in message and "artifact bundle" in message
    return message


def flip_last_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
