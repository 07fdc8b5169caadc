"""The PyTorch program under test: names, ties, capture, and what its layers compute."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from artifact.errors import UserError  # noqa: E402
from artifact.models import fill, torch_models  # noqa: E402
from artifact.models.architecture import input_shape, model_tensors  # noqa: E402

pytestmark = pytest.mark.torch

SEED = 2026


def program(architecture: str, options: dict[str, int], name: str, attention: str = "sdpa") -> Any:
    module = torch_models.build(architecture, options, input_shape(architecture, name), attention)
    weights = fill.weights(architecture, options, SEED)
    torch_models.load_weights(module, weights, model_tensors(architecture, options).aliases)
    return module


def program_inputs(architecture: str, options: dict[str, int], name: str) -> list[Any]:
    return [torch.from_numpy(array) for array in fill.inputs(architecture, options, name, SEED)]


@pytest.mark.parametrize("architecture", ["resnet18", "resnet50", "bert", "gpt2"])
def test_the_list_of_tensors_is_the_modules_own(architecture: str) -> None:
    name = "1x3x64x64" if architecture.startswith("resnet") else "1x8"
    module = torch_models.build(architecture, {}, input_shape(architecture, name))
    listing = model_tensors(architecture, {})
    own = {
        key: tuple(tensor.shape)
        for key, tensor in module.state_dict().items()
        if not key.endswith("num_batches_tracked") and key not in listing.aliases
    }
    assert {tensor.name: tensor.shape for tensor in listing.tensors} == own
    assert torch_models.aliases(module) == listing.aliases


def test_stored_references_are_what_eager_computes(case: Any, reference: Any) -> None:
    output, eager_rmse = reference(case)
    module = program(case.architecture, case.options, case.input_name).double()
    wide = [
        tensor.double() if tensor.is_floating_point() else tensor
        for tensor in program_inputs(case.architecture, case.options, case.input_name)
    ]
    with torch.inference_mode():
        again = module(*wide).numpy()
    np.testing.assert_allclose(again, output, rtol=0, atol=1e-11 * np.abs(output).max())
    assert 0 < eager_rmse < 2e-6 * np.sqrt(np.mean(output**2))


def test_activations_stay_in_range(case: Any) -> None:
    module = program(case.architecture, case.options, case.input_name)
    sizes: list[float] = []
    for submodule in module.modules():
        if not list(submodule.children()):
            submodule.register_forward_hook(
                lambda _module, _inputs, output: sizes.append(float(output.abs().max()))
            )
    with torch.inference_mode():
        output = module(*program_inputs(case.architecture, case.options, case.input_name))
    assert 1 <= float(output.abs().max()) <= 40
    assert min(sizes) > 1e-2 and max(sizes) < 100


def test_tied_weights_stay_tied() -> None:
    options = {"layers": 1, "vocabulary": 32}
    module = program("gpt2", options, "1x4")
    assert module.gpt2.lm_head.weight is module.gpt2.transformer.wte.weight
    table = fill.weights("gpt2", options, SEED)["gpt2.transformer.wte.weight"]
    assert np.array_equal(module.gpt2.lm_head.weight.numpy(), table)


def test_loading_is_strict() -> None:
    options = {"layers": 1, "vocabulary": 32}
    module = torch_models.build("bert", options, (1, 4))
    weights = fill.weights("bert", options, SEED)
    name = "bert.embeddings.LayerNorm.bias"
    missing = {key: value for key, value in weights.items() if key != name}
    for changed, tied, message in (
        (missing, {}, name),
        (weights | {"stray": weights[name]}, {}, "stray"),
        (weights | {name: weights[name][:-1]}, {}, name),
        (weights | {name: weights[name].astype(np.float64)}, {}, "float64"),
        (weights, {"a": "b"}, "tied"),
    ):
        with pytest.raises(UserError, match=message):
            torch_models.load_weights(module, changed, tied)


def test_loading_copies_and_leaves_read_only_arrays_alone() -> None:
    options = {"layers": 1, "vocabulary": 32}
    weights = fill.weights("bert", options, SEED)
    for array in weights.values():
        array.flags.writeable = False
    module = torch_models.build("bert", options, (1, 4))
    torch_models.load_weights(module, weights, {})
    module.bert.embeddings.LayerNorm.bias.zero_()
    assert weights["bert.embeddings.LayerNorm.bias"].any()


def test_program_exports_and_gives_the_same_output(case: Any) -> None:
    module = program(case.architecture, case.options, case.input_name)
    inputs = program_inputs(case.architecture, case.options, case.input_name)
    exported = torch.export.export(module, tuple(inputs))
    with torch.inference_mode():
        torch.testing.assert_close(exported.module()(*inputs), module(*inputs), rtol=0, atol=2e-5)


def test_program_is_one_whole_graph(case: Any) -> None:
    module = program(case.architecture, case.options, case.input_name)
    inputs = program_inputs(case.architecture, case.options, case.input_name)
    graphs: list[Any] = []

    def keep(graph: Any, _inputs: Any) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    compiled = torch.compile(module, backend=keep, fullgraph=True, dynamic=False)
    with torch.inference_mode():
        torch.testing.assert_close(compiled(*inputs), module(*inputs), rtol=0, atol=2e-5)
        compiled(*inputs)
    assert len(graphs) == 1


def test_gpt2_does_not_look_ahead() -> None:
    options = {"layers": 2, "vocabulary": 512}
    module = program("gpt2", options, "1x8")
    (ids,) = program_inputs("gpt2", options, "1x8")
    changed = ids.clone()
    changed[0, 5] = (changed[0, 5] + 1) % 512
    with torch.inference_mode():
        first, second = module(ids), module(changed)
    assert torch.equal(first[0, :5], second[0, :5])
    assert not torch.allclose(first[0, 5:], second[0, 5:], atol=1e-2)


def test_n1_batch_norm_uses_running_statistics() -> None:
    norm = program("resnet18", {}, "1x3x64x64").bn1
    for tensor, value in (
        (norm.running_mean, 5.0),
        (norm.running_var, 4.0),
        (norm.weight, 2.0),
        (norm.bias, 1.0),
    ):
        tensor.fill_(value)
    output = norm(torch.full((1, 64, 4, 4), 7.0))
    torch.testing.assert_close(output, torch.full_like(output, 3.0), rtol=0, atol=1e-5)


@pytest.mark.parametrize("size", [8, 9])
def test_n3_stem_pads_three_on_every_side(
    size: int, ones_convolution: Any, stem_image: Any
) -> None:
    stem = program("resnet18", {}, "1x3x64x64").conv1
    stem.weight.fill_(1.0)
    output = stem(torch.from_numpy(stem_image(size)))[0, 0].numpy()
    np.testing.assert_allclose(output, ones_convolution(size), rtol=0, atol=1e-4)


def test_n4_layer_norm_eps_and_gelu_of_bert_and_gpt2(tiny_hidden: Any) -> None:
    options = {"layers": 1, "vocabulary": 32}
    bert = program("bert", options, "1x4").bert
    gpt2 = program("gpt2", options, "1x4").gpt2.transformer
    assert unit_norm_variance(bert.embeddings.LayerNorm, tiny_hidden) == pytest.approx(1, abs=1e-3)
    assert unit_norm_variance(gpt2.ln_f, tiny_hidden) == pytest.approx(1e-3, rel=0.1)
    minus_two = torch.tensor(-2.0)
    exact = float(bert.encoder.layer[0].intermediate.intermediate_act_fn(minus_two))
    tanh = float(gpt2.h[0].mlp.act(minus_two))
    assert exact == pytest.approx(-0.04550, abs=5e-6)
    assert tanh == pytest.approx(-0.04540, abs=5e-6)


def unit_norm_variance(norm: Any, values: Any) -> float:
    norm.weight.fill_(1.0)
    norm.bias.fill_(0.0)
    return float(norm(torch.from_numpy(values)).var(dim=-1, correction=0).mean())


OFFLINE = """
import socket, warnings
warnings.simplefilter("error")
def refuse(*_arguments, **_keywords):
    raise AssertionError("network used")
socket.socket.connect = refuse
socket.getaddrinfo = refuse
import sys
from artifact.models import torch_models
for architecture, options, shape in (
    ("resnet18", {}, (1, 3, 64, 64)),
    ("bert", {"layers": 1}, (1, 4)),
    ("gpt2", {"layers": 1}, (1, 4)),
):
    torch_models.import_definitions(architecture)
    if architecture == "resnet18":
        assert "transformers" not in sys.modules, "a ResNet trial imports transformers"
    before = {"torchvision.models", "transformers.modeling_utils"} & set(sys.modules)
    torch_models.build(architecture, options, shape)
    after = {"torchvision.models", "transformers.modeling_utils"} & set(sys.modules)
    assert before == after, "building imported a framework"
"""


def test_n7_building_needs_no_network_and_says_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-c", OFFLINE], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
