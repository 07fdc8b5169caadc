"""Writing bundles: what is in them, when they are reused, and that a fault leaves nothing half."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from safetensors import SafetensorError  # noqa: E402
from safetensors.numpy import load_file  # noqa: E402

from artifact.errors import UserError  # noqa: E402
from artifact.models import bundle_writer, fill  # noqa: E402
from artifact.models.bundle_writer import write_bundle  # noqa: E402
from artifact.models.spec import ModelSpec, bundle_key, models_hash  # noqa: E402
from artifact.trial import bundle  # noqa: E402

pytestmark = pytest.mark.torch

SPEC = ModelSpec("gpt2-toy", "gpt2", {"layers": 1, "vocabulary": 64})


def snapshot(root: Path) -> dict[str, tuple[int, int]]:
    files = [path for path in root.rglob("*") if path.is_file()]
    return {str(p.relative_to(root)): (p.stat().st_ino, p.stat().st_mtime_ns) for p in files}


def test_a_bundle_holds_what_the_trial_needs(tmp_path: Path) -> None:
    directory = tmp_path / bundle_key(SPEC.id, 7, models_hash())
    manifest = write_bundle(SPEC, ["1x4", "2x3"], 7, directory)
    assert [path.name for path in tmp_path.iterdir()] == [directory.name]
    loaded = bundle.load(directory, "2x3")
    assert loaded.reference.shape == (2, 3, 64) and loaded.reference.dtype == np.float64
    assert np.array_equal(loaded.inputs[0], fill.inputs("gpt2", SPEC.options, "2x3", 7)[0])
    assert loaded.weights_sha256 == fill.weights_sha256("gpt2", SPEC.options, 7)
    assert loaded.rms == pytest.approx(float(np.sqrt(np.mean(loaded.reference**2))))
    assert 0 < loaded.eager_rmse < 1e-5 * loaded.rms
    assert 100 * loaded.eager_rmse < loaded.eager_rmse_by_precision["tf32"] < 1e-2 * loaded.rms
    assert manifest.made_with["torch"] == torch.__version__


def test_tied_weights_are_stored_once(tmp_path: Path) -> None:
    manifest = write_bundle(SPEC, ["1x4"], 7, tmp_path / "b")
    stored = load_file(tmp_path / "b" / manifest.weights.path)
    assert manifest.aliases == {"gpt2.lm_head.weight": "gpt2.transformer.wte.weight"}
    assert "gpt2.lm_head.weight" not in stored and "gpt2.transformer.wte.weight" in stored


def test_a_second_call_touches_nothing(tmp_path: Path) -> None:
    first = write_bundle(SPEC, ["1x4"], 7, tmp_path / "b")
    before = snapshot(tmp_path)
    assert write_bundle(SPEC, ["1x4"], 7, tmp_path / "b") == first
    assert snapshot(tmp_path) == before


def test_a_new_input_is_added_and_the_rest_kept(tmp_path: Path) -> None:
    write_bundle(SPEC, ["1x4"], 7, tmp_path / "b")
    before = snapshot(tmp_path)
    manifest = write_bundle(SPEC, ["1x4", "1x5"], 7, tmp_path / "b")
    after = snapshot(tmp_path)
    assert set(manifest.inputs) == {"1x4", "1x5"}
    kept = [name for name in before if not name.endswith("bundle.json")]
    assert {name: after[name] for name in kept} == {name: before[name] for name in kept}
    assert len(after) == len(before) + 2
    assert bundle.load(tmp_path / "b", "1x5").reference.shape == (1, 5, 64)


@pytest.mark.parametrize("damage", ["flip", "truncate", "remove", "manifest", "bytes"])
def test_a_broken_bundle_is_made_again(tmp_path: Path, damage: str) -> None:
    directory = tmp_path / "b"
    first = write_bundle(SPEC, ["1x4"], 7, directory)
    weights = directory / first.weights.path
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    if damage == "flip":
        weights.write_bytes(data)
    elif damage == "truncate":
        weights.write_bytes(data[: len(data) // 2])
    elif damage == "remove":
        weights.unlink()
    else:
        (directory / "bundle.json").write_bytes(b"{" if damage == "manifest" else b"\xff\x00")
    assert write_bundle(SPEC, ["1x4"], 7, directory) == first
    assert bundle.load(directory, "1x4").weights_sha256 == first.weights_sha256


@pytest.mark.parametrize("change", ["seed", "options", "models_sha256"])
def test_a_bundle_of_something_else_is_not_reused(
    tmp_path: Path, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = write_bundle(SPEC, ["1x4"], 7, tmp_path / "b")
    spec, seed = SPEC, 7
    if change == "seed":
        seed = 8
    elif change == "options":
        spec = ModelSpec(SPEC.id, "gpt2", {"layers": 1, "vocabulary": 65})
    else:
        monkeypatch.setattr(bundle_writer, "models_hash", lambda: "0" * 64)
    second = write_bundle(spec, ["1x4"], seed, tmp_path / "b")
    assert getattr(second, change) != getattr(first, change)


def test_a_fault_leaves_no_bundle_and_no_scratch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match="the study says"):
        write_bundle(SPEC, ["1x4"], 7, tmp_path / "b", expected_weights_sha256="0" * 64)
    with pytest.raises(UserError, match="1x4x4"):
        write_bundle(SPEC, ["1x4", "1x4x4"], 7, tmp_path / "b")
    monkeypatch.setattr(bundle_writer, "_made_with", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_bundle(SPEC, ["1x4"], 7, tmp_path / "b")
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_one_line_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_arrays: object, path: Path) -> None:
        path.write_bytes(b"half")
        raise SafetensorError("I/O error: No space left on device")

    monkeypatch.setattr(bundle_writer, "save_file", full)
    with pytest.raises(UserError, match=r"cannot write bundle .*No space"):
        write_bundle(SPEC, ["1x4"], 7, tmp_path / "b")
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_addition_keeps_the_old_bundle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = write_bundle(SPEC, ["1x4"], 7, tmp_path / "b")

    def fail(path: Path, value: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(bundle_writer.strict_json, "write_atomic", fail)
    with pytest.raises(UserError, match=r"cannot write bundle .*No space"):
        write_bundle(SPEC, ["1x5"], 7, tmp_path / "b")
    assert bundle.read_manifest(tmp_path / "b") == first
    assert bundle.load(tmp_path / "b", "1x4").reference.shape == (1, 4, 64)


def test_bundle_is_readable_by_another_user(tmp_path: Path) -> None:
    write_bundle(SPEC, ["1x4"], 7, tmp_path / "b")
    paths = [tmp_path / "b", *(tmp_path / "b").rglob("*")]
    assert all(path.stat().st_mode & 0o004 for path in paths)
    assert all(path.stat().st_mode & 0o001 for path in paths if path.is_dir())


def test_manifest_is_strict_json(tmp_path: Path) -> None:
    write_bundle(SPEC, ["1x4"], 7, tmp_path / "b")

    def refuse(name: str) -> None:
        raise AssertionError(name)

    text = (tmp_path / "b" / "bundle.json").read_text(encoding="utf-8")
    assert json.loads(text, parse_constant=refuse)["schema"] == 1
