"""Architectures are found by name, a new one is one file, and what each room may import."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest

import artifact.models
import artifact.trial
from artifact.errors import UserError
from artifact.models import fill
from artifact.models.architecture import find
from artifact.models.spec import ModelSpec, bundle_key, models_hash

MODELS = Path(artifact.models.__file__).parent
TRIAL = Path(artifact.trial.__file__).parent
TOY = "toy_architecture:TOY"


@pytest.fixture(autouse=True)
def toy_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


def toy_output(name: str) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """Weights, image and float64 output of the toy, by plain loops."""
    weights = fill.weights(TOY, {}, 1)
    (image,) = fill.inputs(TOY, {}, name, 1)
    padded = np.pad(image.astype(np.float64), ((0, 0), (0, 0), (1, 1), (1, 1)))
    height, width = image.shape[2:]
    convolved = np.zeros((image.shape[0], 4, height, width))
    for i in range(3):
        for j in range(3):
            window = padded[:, :, i : i + height, j : j + width]
            tap = weights["conv.weight"][:, :, i, j].astype(np.float64)
            convolved += np.einsum("nchw,oc->nohw", window, tap)
    mean = np.maximum(convolved, 0).mean((2, 3))
    return weights, image, mean @ weights["fc.weight"].T.astype(np.float64) + weights["fc.bias"]


def test_a_new_architecture_runs_in_torch() -> None:
    torch = pytest.importorskip("torch")
    from artifact.models import torch_models

    weights, image, expected = toy_output("2x3x5x6")
    module = torch_models.build(TOY, {}, image.shape)
    torch_models.load_weights(module, weights, {})
    output = module(torch.from_numpy(image)).numpy()
    np.testing.assert_allclose(output, expected, rtol=0, atol=1e-5)


def test_a_new_architecture_runs_in_flax() -> None:
    pytest.importorskip("flax")
    from artifact.models import flax_models

    weights, image, expected = toy_output("2x3x5x6")
    built = flax_models.build(TOY, {}, image.shape, weights, {})
    assert flax_models.unmatched_leaves(built, image) == []
    np.testing.assert_allclose(built.apply(built.params, image), expected, rtol=0, atol=1e-5)


def test_what_cannot_be_found_is_named() -> None:
    for name in ("resnet19", "no.such.module:X", "artifact.models.bert:NOPE"):
        with pytest.raises(UserError, match=name.split(":")[0]):
            find(name)
    with pytest.raises(UserError, match="resnet19"):
        ModelSpec("m", "resnet19")


def test_bundle_key_changes_with_any_model_source(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\n", encoding="utf-8")
    first = models_hash(tmp_path)
    (tmp_path / "notes.txt").write_text("not a source", encoding="utf-8")
    assert models_hash(tmp_path) == first
    (tmp_path / "a.py").write_text("x = 2\n", encoding="utf-8")
    second = models_hash(tmp_path)
    (tmp_path / "a.py").rename(tmp_path / "b.py")
    third = models_hash(tmp_path)
    assert len({first, second, third}) == 3
    assert bundle_key("bert", 7, first) == f"bert-s7-{first[:12]}"


def imported_roots(path: Path) -> set[str]:
    """Top-level packages that a file imports anywhere, in functions too."""
    roots: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            roots |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            roots.add(node.module.split(".")[0])
    return roots


def test_n6_flax_models_use_neither_torch_nor_transformers() -> None:
    files = sorted(MODELS.glob("flax_*.py"))
    assert len(files) >= 4
    for path in files:
        assert imported_roots(path).isdisjoint({"torch", "torchvision", "transformers"}), path


def test_reading_a_bundle_needs_numpy_and_safetensors_only() -> None:
    frameworks = {"torch", "torchvision", "transformers", "jax", "flax", "tvm"}
    numpy_only = ("spec", "tensors", "philox", "fill", "manifest")
    files = [MODELS / f"{name}.py" for name in numpy_only]
    for path in [*files, TRIAL / "bundle.py", TRIAL / "parity.py"]:
        assert imported_roots(path).isdisjoint(frameworks), path


def test_no_model_source_imports_the_hosts_packages() -> None:
    forbidden = {"pandas", "scipy", "matplotlib", "docker", "pydantic"}
    for path in [*MODELS.glob("*.py"), TRIAL / "bundle.py", TRIAL / "parity.py"]:
        assert imported_roots(path).isdisjoint(forbidden), path
