"""The parity rule on real models: each wrong program fails it, each right one passes it."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from artifact.models import torch_models  # noqa: E402
from artifact.models.bundle_writer import write_bundle  # noqa: E402
from artifact.models.spec import ModelSpec, input_shape  # noqa: E402
from artifact.models.tf32 import EmulatedTf32, round_to_tf32  # noqa: E402
from artifact.trial import bundle, parity  # noqa: E402

pytestmark = pytest.mark.torch

NAMES = {"resnet18": "1x3x64x64", "bert": "1x8", "gpt2": "1x8"}


class Subject:
    """A model with its bundle; `judge` runs a program on the bundle's input."""

    def __init__(self, architecture: str, directory: Path) -> None:
        options = {} if architecture == "resnet18" else {"layers": 2, "vocabulary": 512}
        self.spec = ModelSpec(architecture, architecture, options)
        self.name = NAMES[architecture]
        write_bundle(self.spec, [self.name], 2026, directory)
        self.bundle = bundle.load(directory, self.name)
        self.module = self.build()

    def build(self, attn_implementation: str = "sdpa") -> Any:
        shape = input_shape(self.spec.architecture, self.name)
        module = torch_models.build(
            self.spec.architecture, self.spec.options, shape, attn_implementation
        )
        torch_models.load_weights(module, self.bundle.weights, self.bundle.aliases)
        return module

    def mutant(self) -> Any:
        return copy.deepcopy(self.module)

    def judge(self, module: Any, precision: str = "fp32") -> parity.Parity:
        with torch.inference_mode():
            output = module(*(torch.from_numpy(array) for array in self.bundle.inputs)).numpy()
        eager_rmse = self.bundle.eager_rmse_by_precision[precision]
        return parity.judge(output, self.bundle.reference, eager_rmse)


@pytest.fixture(scope="module")
def subjects(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Subject]:
    root = tmp_path_factory.mktemp("bundles")
    return {name: Subject(name, root / name) for name in NAMES}


@pytest.mark.parametrize("architecture", list(NAMES))
def test_the_right_program_passes(subjects: dict[str, Subject], architecture: str) -> None:
    subject = subjects[architecture]
    outcome = subject.judge(subject.module)
    assert outcome.passed, outcome.reason


def test_another_memory_layout_or_attention_passes(subjects: dict[str, Subject]) -> None:
    resnet = subjects["resnet18"].mutant().to(memory_format=torch.channels_last)
    assert subjects["resnet18"].judge(resnet).passed
    assert subjects["bert"].judge(subjects["bert"].build("eager")).passed
    assert subjects["gpt2"].judge(subjects["gpt2"].build("eager")).passed


@pytest.mark.parametrize("norm", ["bn1", "layer1.0.bn2", "layer4.1.bn2"])
def test_a_skipped_batch_norm_fails(subjects: dict[str, Subject], norm: str) -> None:
    module = subjects["resnet18"].mutant()
    parent, _, name = norm.rpartition(".")
    setattr(module.get_submodule(parent), name, torch.nn.Identity())
    assert not subjects["resnet18"].judge(module).passed


def test_batch_statistics_fail(subjects: dict[str, Subject]) -> None:
    module = subjects["resnet18"].mutant()
    module.layer2[0].bn1.train()
    assert not subjects["resnet18"].judge(module).passed


def test_same_padding_in_the_stem_fails(subjects: dict[str, Subject]) -> None:
    module = subjects["resnet18"].mutant()
    module.conv1.padding = (0, 0)
    same = torch.nn.ZeroPad2d((2, 3, 2, 3))  # 7x7, stride 2, even size: SAME pads 2 before, 3 after
    module.conv1 = torch.nn.Sequential(same, module.conv1)
    assert not subjects["resnet18"].judge(module).passed


@pytest.mark.parametrize("layer", [0, 1])
def test_tanh_gelu_in_one_layer_of_bert_fails(subjects: dict[str, Subject], layer: int) -> None:
    module = subjects["bert"].mutant()
    wrong = torch.nn.GELU(approximate="tanh")
    module.bert.encoder.layer[layer].intermediate.intermediate_act_fn = wrong
    outcome = subjects["bert"].judge(module)
    assert not outcome.passed
    assert outcome.max_abs is not None and outcome.max_abs < 1e-2  # a loose tolerance lets it by


def test_exact_gelu_in_gpt2_fails(subjects: dict[str, Subject]) -> None:
    module = subjects["gpt2"].mutant()
    module.gpt2.transformer.h[0].mlp.act = torch.nn.GELU()
    assert not subjects["gpt2"].judge(module).passed


def test_flax_default_eps_in_bert_fails(subjects: dict[str, Subject]) -> None:
    module = subjects["bert"].mutant()
    module.bert.embeddings.LayerNorm.eps = 1e-6
    assert not subjects["bert"].judge(module).passed


def test_attention_that_looks_ahead_fails(subjects: dict[str, Subject]) -> None:
    module = subjects["gpt2"].mutant()
    module.causal_mask.zero_()
    assert not subjects["gpt2"].judge(module).passed


@pytest.mark.parametrize("architecture", list(NAMES))
def test_tf32_fails_as_fp32_and_passes_as_tf32(
    subjects: dict[str, Subject], architecture: str
) -> None:
    subject = subjects[architecture]
    with EmulatedTf32():
        assert not subject.judge(subject.module).passed
        assert subject.judge(subject.module, "tf32").passed


def test_rounding_keeps_ten_fraction_bits() -> None:
    ulp = 2.0**-10
    values = torch.tensor([1.0, 2049.0, 1 + ulp, 1 + 0.49 * ulp, 1 + 0.5 * ulp, -1 - 0.5 * ulp])
    expected = torch.tensor([1.0, 2050.0, 1 + ulp, 1.0, 1 + ulp, -1 - ulp])
    assert torch.equal(round_to_tf32(values), expected)
    assert torch.equal(round_to_tf32(values.double()), values.double())
