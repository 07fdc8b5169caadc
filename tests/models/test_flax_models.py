"""The native Flax programs: parity with float64 eager, strict loading, and Flax's traps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")
pytest.importorskip("flax")

from artifact.errors import UserError  # noqa: E402
from artifact.models import (  # noqa: E402
    fill,
    flax_bert,
    flax_gpt2,
    flax_layers,
    flax_models,
    flax_resnet,
)
from artifact.models.architecture import input_shape, model_tensors  # noqa: E402
from artifact.models.bert import BertSize  # noqa: E402
from artifact.models.gpt2 import Gpt2Size  # noqa: E402
from artifact.trial import parity  # noqa: E402

pytestmark = pytest.mark.jax

SEED = 2026
HIGHEST = jax.lax.Precision.HIGHEST


def program(architecture: str, options: dict[str, int], name: str) -> flax_models.FlaxProgram:
    return flax_models.build(
        architecture,
        options,
        input_shape(architecture, name),
        fill.weights(architecture, options, SEED),
        model_tensors(architecture, options).aliases,
    )


def judge(case: Any, reference: Any, built: flax_models.FlaxProgram) -> parity.Parity:
    output, eager_rmse = reference(case)
    inputs = fill.inputs(case.architecture, case.options, case.input_name, SEED)
    return parity.judge(np.asarray(jax.jit(built.apply)(built.params, *inputs)), output, eager_rmse)


def test_program_passes_parity(case: Any, reference: Any) -> None:
    outcome = judge(case, reference, program(case.architecture, case.options, case.input_name))
    assert outcome.passed, outcome.reason


def test_every_leaf_is_filled_and_every_tensor_used(case: Any) -> None:
    built = program(case.architecture, case.options, case.input_name)
    inputs = fill.inputs(case.architecture, case.options, case.input_name, SEED)
    assert flax_models.unmatched_leaves(built, *inputs) == []
    leaves = jax.tree_util.tree_leaves(built.params)
    assert len(leaves) == len(model_tensors(case.architecture, case.options).tensors)
    assert all(isinstance(leaf, np.ndarray) for leaf in leaves)


@pytest.mark.parametrize("architecture", ["resnet18", "resnet50", "bert", "gpt2"])
def test_full_size_models_have_the_same_leaves(architecture: str) -> None:
    name = "1x3x32x32" if architecture.startswith("resnet") else "1x4"
    built = program(architecture, {}, name)
    inputs = fill.inputs(architecture, {}, name, SEED)
    assert flax_models.unmatched_leaves(built, *inputs) == []


def test_unmatched_leaves_sees_both_directions() -> None:
    built = program("bert", {"layers": 1, "vocabulary": 32}, "1x4")
    table = built.params["params"].pop("embeddings.word_embeddings")
    built.params["params"]["stray"] = table
    found = flax_models.unmatched_leaves(built, np.zeros((1, 4), np.int64))
    assert len(found) == 2 and "stray" in found[1] and "word_embeddings" in found[0]


def test_loading_is_strict() -> None:
    options = {"layers": 1, "vocabulary": 32}
    weights = fill.weights("gpt2", options, SEED)
    tied = model_tensors("gpt2", options).aliases
    name = "gpt2.transformer.ln_f.bias"
    missing = {key: value for key, value in weights.items() if key != name}
    for changed, aliases, message in (
        (missing, tied, name),
        (weights | {"stray": weights[name]}, tied, "stray"),
        (weights | {name: weights[name][:-1]}, tied, name),
        (weights | {name: weights[name].astype(np.float64)}, tied, "float64"),
        (weights, {}, "tied"),
    ):
        with pytest.raises(UserError, match=message):
            flax_models.build("gpt2", options, (1, 4), changed, aliases)


def test_a_missing_leaf_is_an_error_of_the_program() -> None:
    built = program("bert", {"layers": 1, "vocabulary": 32}, "1x4")
    del built.params["params"]["embeddings.LayerNorm"]
    with pytest.raises(Exception, match=r"embeddings\.LayerNorm"):
        built.apply(built.params, np.zeros((1, 4), np.int32))


def test_precision_is_the_callers() -> None:
    options = {"layers": 1, "vocabulary": 32}
    weights = fill.weights("bert", options, SEED)
    ids = np.zeros((1, 4), np.int32)
    for precision in (jax.lax.Precision.HIGHEST, jax.lax.Precision.DEFAULT):
        built = flax_models.build("bert", options, (1, 4), weights, {}, precision)
        products = dot_precisions(jax.make_jaxpr(built.apply)(built.params, ids).jaxpr)
        # 6 linear layers and 2 products of the attention, all with the precision asked for.
        assert products == [(precision, precision)] * 8


@pytest.mark.parametrize("case_name", ["resnet18", "gpt2"])
def test_no_product_is_left_at_default_precision(case_name: str) -> None:
    options = {} if case_name == "resnet18" else {"layers": 1, "vocabulary": 32}
    name = "1x3x32x32" if case_name == "resnet18" else "1x4"
    built = program(case_name, options, name)
    inputs = fill.inputs(case_name, options, name, SEED)
    products = dot_precisions(jax.make_jaxpr(built.apply)(built.params, *inputs).jaxpr)
    expected = 21 if case_name == "resnet18" else 7
    assert products == [(HIGHEST, HIGHEST)] * expected


def dot_precisions(jaxpr: Any) -> list[Any]:
    """Precision of every matrix product and convolution, in nested programs too."""
    found: list[Any] = []
    for equation in jaxpr.eqns:
        if equation.primitive.name in ("dot_general", "conv_general_dilated"):
            precision = equation.params["precision"]
            found.append(precision if isinstance(precision, tuple) else (precision, precision))
        for value in equation.params.values():
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                found += dot_precisions(inner)
    return found


def test_gpt2_does_not_look_ahead() -> None:
    options = {"layers": 2, "vocabulary": 512}
    built = program("gpt2", options, "1x8")
    (ids,) = fill.inputs("gpt2", options, "1x8", SEED)
    changed = ids.copy()
    changed[0, 5] = (changed[0, 5] + 1) % 512
    apply = jax.jit(built.apply)
    first, second = np.asarray(apply(built.params, ids)), np.asarray(apply(built.params, changed))
    assert np.array_equal(first[0, :5], second[0, :5])
    assert np.abs(first[0, 5:] - second[0, 5:]).max() > 0.1


def test_n1_batch_norm_uses_running_statistics() -> None:
    norm = flax_resnet.batch_norm("bn")

    def one(value: float) -> np.ndarray:
        return np.full(1, value, np.float32)

    variables = {
        "params": {"scale": one(2.0), "bias": one(1.0)},
        "batch_stats": {"mean": one(5.0), "var": one(4.0)},
    }
    output = norm.apply(variables, np.full((1, 4, 4, 1), 7.0, np.float32))
    np.testing.assert_allclose(output, 3.0, rtol=0, atol=1e-5)


@pytest.mark.parametrize("size", [8, 9])
def test_n3_stem_pads_three_on_every_side(
    size: int, ones_convolution: Any, stem_image: Any
) -> None:
    stem = flax_resnet.conv("stem", 1, 7, 2, HIGHEST)
    image = np.transpose(stem_image(size), (0, 2, 3, 1))
    kernel = np.ones((7, 7, 3, 1), np.float32)
    output = stem.apply({"params": {"kernel": kernel}}, image)
    np.testing.assert_allclose(output[0, :, :, 0], ones_convolution(size), rtol=0, atol=1e-4)


def test_n4_layer_norm_eps_and_gelu_of_bert_and_gpt2(tiny_hidden: Any) -> None:
    assert unit_norm_variance(BertSize().layer_norm_eps, tiny_hidden) == pytest.approx(1, abs=1e-3)
    gpt2_variance = unit_norm_variance(Gpt2Size().layer_norm_eps, tiny_hidden)
    assert gpt2_variance == pytest.approx(1e-3, rel=0.1)
    assert float(flax_bert.gelu(-2.0)) == pytest.approx(-0.04550, abs=5e-6)
    assert float(flax_gpt2.gelu_new(-2.0)) == pytest.approx(-0.04540, abs=5e-6)


def unit_norm_variance(eps: float, values: Any) -> float:
    variables = {"params": {"scale": np.ones(768, np.float32), "bias": np.zeros(768, np.float32)}}
    return float(np.var(flax_layers.layer_norm("n", eps).apply(variables, values), axis=-1).mean())


def test_layer_norm_keeps_the_variance_at_a_large_offset() -> None:
    values = (1e4 + np.random.default_rng(0).normal(0, 1, (1, 1, 768))).astype(np.float32)
    assert unit_norm_variance(1e-5, values) == pytest.approx(1, abs=1e-2)
