"""Weights and inputs: the same bytes everywhere, independent tensors, norms that test something."""

from __future__ import annotations

import numpy as np
import pytest

from artifact.errors import UserError
from artifact.models import fill
from artifact.models.architecture import input_shape, model_tensors
from artifact.models.philox import Key, raw, uniform

SEED = 2026


@pytest.mark.parametrize(
    ("architecture", "options", "sha256_start"),
    [
        ("resnet18", {}, "49707c4a7def6b47"),
        ("resnet50", {}, "1d13270431579bbf"),
        ("bert", {"layers": 2}, "fb658f435867744a"),
        ("gpt2", {"layers": 2, "vocabulary": 512}, "e88c73f32bcabcf5"),
    ],
)
def test_weights_are_these_bytes(
    architecture: str, options: dict[str, int], sha256_start: str
) -> None:
    assert fill.weights_sha256(architecture, options, SEED).startswith(sha256_start)


def test_inputs_are_these_bytes() -> None:
    image = fill.inputs_sha256("resnet18", {}, "1x3x64x64", SEED)
    ids = fill.inputs_sha256("bert", {}, "1x64", SEED)
    assert (image[:16], ids[:16]) == ("1ca2a5ab8c6126c4", "0808ec7a5c77f654")


def test_uniform_values_are_the_high_24_bits_of_each_half() -> None:
    key = Key(1, "any", "tensor")
    word = int(raw(1, key)[0])
    expected = [((word & 0xFFFFFFFF) >> 8) / 2**24, (word >> 40) / 2**24]
    assert uniform(2, key).tolist() == expected
    assert uniform(3, key)[:2].tolist() == expected  # an odd count only drops the last half


def test_a_tensor_depends_on_its_own_name_only() -> None:
    small = fill.weights("bert", {"layers": 1, "vocabulary": 16}, SEED)
    deeper = fill.weights("bert", {"layers": 2, "vocabulary": 16}, SEED)
    assert set(small) < set(deeper)
    assert all(np.array_equal(small[name], deeper[name]) for name in small)


@pytest.mark.parametrize("change", [{"seed": 2}, {"architecture": "b"}, {"name": "u"}])
def test_every_part_of_the_key_matters(change: dict[str, object]) -> None:
    key = {"seed": 1, "architecture": "a", "name": "t"}
    assert not np.array_equal(uniform(64, Key(**key)), uniform(64, Key(**(key | change))))  # type: ignore[arg-type]


def test_norms_are_far_from_their_defaults() -> None:
    weights = fill.weights("resnet18", {}, SEED)
    gamma, variance = weights["bn1.weight"], weights["bn1.running_var"]
    mean, beta = weights["bn1.running_mean"], weights["bn1.bias"]
    assert (gamma < 0).any() and (gamma > 0).sum() > (gamma < 0).sum()
    assert np.abs(gamma).min() > 0.5 and np.abs(gamma).std() > 0.1
    assert variance.min() > 0.4 and variance.max() - variance.min() > 1.0
    assert np.abs(mean).max() > 0.2 and np.abs(beta).max() > 0.1


def test_weights_have_the_scale_asked_for_and_no_subnormal() -> None:
    weights = fill.weights("resnet18", {}, SEED)
    kernel = weights["layer4.1.conv2.weight"]
    assert kernel.std() == pytest.approx((2 / (512 * 9)) ** 0.5, rel=0.01)
    assert abs(kernel.mean()) < 0.01 * kernel.std()
    tiny = np.finfo(np.float32).tiny
    for name, array in weights.items():
        assert array.dtype == np.float32, name
        assert np.abs(array[array != 0]).min() >= tiny, name


def test_token_ids_stay_below_the_vocabulary() -> None:
    (ids,) = fill.inputs("gpt2", {"vocabulary": 5}, "2x64", SEED)
    assert ids.dtype == np.int64 and ids.shape == (2, 64)
    assert set(ids.ravel().tolist()) == {0, 1, 2, 3, 4}


def test_checksum_tells_names_types_and_shapes_apart() -> None:
    base = {"a": np.zeros((2, 3), np.float32)}
    others = [
        {"b": np.zeros((2, 3), np.float32)},
        {"a": np.zeros((3, 2), np.float32)},
        {"a": np.zeros((2, 3), np.int32)},
    ]
    assert len({fill.arrays_sha256(arrays) for arrays in [base, *others]}) == 4


def test_counts_of_norms_are_the_papers() -> None:
    def gammas(architecture: str) -> int:
        tensors = model_tensors(architecture, {}).tensors
        return sum(tensor.kind == "gamma" for tensor in tensors)

    assert {name: gammas(name) for name in ("resnet18", "resnet50", "bert", "gpt2")} == {
        "resnet18": 20,
        "resnet50": 53,
        "bert": 25,
        "gpt2": 25,
    }


@pytest.mark.parametrize(
    ("architecture", "name"),
    [
        ("resnet18", "1x4x64x64"),
        ("resnet18", "1x64"),
        ("resnet18", "1x3x64x-64"),
        ("resnet18", "1x3x64x64x"),
        ("bert", "1x513"),
        ("gpt2", "0x16"),
        ("gpt2", "1x1025"),
        ("nonesuch", "1x3x64x64"),
        ("artifact.models.resnet:NONESUCH", "1x3x64x64"),
    ],
)
def test_a_shape_or_name_that_does_not_fit_is_one_line(architecture: str, name: str) -> None:
    with pytest.raises(UserError) as caught:
        input_shape(architecture, name)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("options", [{"layers": 0}, {"layers": True}, {"width": 3}])
def test_options_are_checked(options: dict[str, int]) -> None:
    with pytest.raises(UserError, match=r"layers|width"):
        model_tensors("bert", options)
    with pytest.raises(UserError, match="has no option"):
        model_tensors("resnet18", {"layers": 2})
