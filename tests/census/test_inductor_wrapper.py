"""Inductor's wrapper: what its entry calls, of which kind, and what each kernel computes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from artifact.census import external_operations, fused_units, inductor

Text = Callable[[str], str]

TRITON = "triton_wrapper.txt"
PARTITIONED = "partitioned_wrapper.txt"


def units_of(text: str, kind: str) -> dict[str, int]:
    return {unit.name: unit.calls for unit in inductor.units(text) if unit.kind == kind}


def operations(text: str) -> dict[str, tuple[str, ...]]:
    return {unit.name: unit.operations for unit in inductor.units(text)}


def test_counts_of_the_small_triton_wrapper(text: Text) -> None:
    counted = inductor.count(text(TRITON))
    assert (counted.internal, counted.internal_unique) == (4, 3)
    assert (counted.external, counted.external_unique) == (2, 2)
    assert (counted.fallback, counted.builtin) == (2, 5)
    assert counted.code_bytes == len(text(TRITON).encode())
    assert counted.code_lines == len(text(TRITON).splitlines())


def test_kernels_are_counted_where_the_entry_calls_them(text: Text) -> None:
    """Not in the comment, the autotuning block, the kernel source, the print or the benchmark."""
    assert units_of(text(TRITON), "internal") == {
        "triton_poi_fused_add_relu_0": 2,
        "triton_poi_fused_convolution_1": 1,
        "triton_tem_fused_addmm_2": 1,
    }


def test_libraries_fallbacks_and_services_are_kept_apart(text: Text) -> None:
    assert units_of(text(TRITON), "external") == {
        "extern_kernels.convolution": 1,
        "extern_kernels.mm": 1,
    }
    assert units_of(text(TRITON), "fallback") == {
        "torch.ops.aten.sort.stable": 1,
        "torch.ops.aten.cumsum.default": 1,
    }
    assert units_of(text(TRITON), "builtin") == {
        "empty_strided_cuda": 2,
        "reinterpret_tensor": 1,
        "view": 1,
        "copy_": 1,
    }


def test_operations_come_from_the_graph_fragment_without_views(text: Text) -> None:
    assert operations(text(TRITON))["triton_poi_fused_add_relu_0"] == ("add", "relu")


def test_a_kernel_that_lays_out_a_librarys_argument_is_a_copy(text: Text) -> None:
    held = operations(text(TRITON))
    assert held["triton_poi_fused_convolution_1"] == ("copy",)
    assert held["triton_tem_fused_addmm_2"] == ("addmm",), "a template is the product itself"


def test_single_op_units_are_the_kernels_with_one_operation(text: Text) -> None:
    assert [unit.name for unit in inductor.single_op_units(text(TRITON))] == [
        "triton_poi_fused_convolution_1",
        "triton_tem_fused_addmm_2",
    ]


def test_without_a_graph_fragment_the_node_mapping_is_used(text: Text) -> None:
    lines = text(TRITON).splitlines()
    reduced = "\n".join(line for line in lines if "call_function[" not in line)
    assert operations(reduced)["triton_poi_fused_add_relu_0"] == ("add", "relu")


def test_partitions_and_subgraphs_are_opened_once_per_call_site(text: Text) -> None:
    """partition_2 is never called; subgraph_0 is called before the loop and in its body."""
    assert units_of(text(PARTITIONED), "internal") == {"cpp_fused_add_0": 4}
    assert units_of(text(PARTITIONED), "external") == {
        "torch.ops.mkldnn._linear_pointwise.default": 2,
        "extern_kernels.mm": 1,
    }


def test_an_older_wrapper_with_a_plain_call_function() -> None:
    wrapper = """
from ctypes import c_void_p
async_compile = AsyncCompile()
kernel_cpp_0 = async_compile.cpp('''void kernel(const float* in_ptr0) {}''')
triton__0 = async_compile.triton('''def triton__0(): pass''')
async_compile.wait(globals())
def call(args):
    kernel_cpp_0(c_void_p(args[0].data_ptr()))
    triton__0.run(args[0], grid=grid(8), stream=stream0)
    extern_kernels.addmm(args[0], args[1], args[2])
    return ()
"""
    counted = inductor.count(wrapper)
    assert (counted.internal, counted.internal_unique, counted.external) == (2, 2, 1)


def test_several_wrappers_are_listed_and_summed(text: Text) -> None:
    """Each graph keeps its own partitions, although both define `partition_0`."""
    other = text(PARTITIONED).replace("extern_kernels.mm", "extern_kernels.bmm")
    both = text(PARTITIONED) + "\n" + other
    assert [graph.name for graph in inductor.graphs(both)] == ["graph_0", "graph_1"]
    assert units_of(both, "external") == {
        "torch.ops.mkldnn._linear_pointwise.default": 2,
        "extern_kernels.mm": 1,
        "extern_kernels.bmm": 1,
    }
    counted = inductor.count(both)
    assert (counted.internal, counted.internal_unique) == (8, 2)
    assert (counted.external, counted.external_unique) == (6, 3)


@pytest.mark.parametrize(
    "nothing",
    [
        "",
        "# call(args)\n",
        '"""extern_kernels.mm(a, b)"""\n',
        "import torch\nextern_kernels.mm(a, b)\n",
        "def benchmark_compiled_module(args):\n    extern_kernels.mm(args)\n",
        "class Layer:\n    def call(self, inputs):\n        return inputs\n",
        "HloModule jit_f\n\nENTRY %main {\n}\n",
    ],
)
def test_a_text_without_a_program_is_an_error_not_a_zero(nothing: str) -> None:
    with pytest.raises(ValueError, match="not an Inductor wrapper"):
        inductor.count(nothing)


def test_a_kernels_own_file_is_not_a_wrapper(text: Text) -> None:
    """On CUDA the cache directory also holds a Python file per Triton kernel."""
    kernel = "import triton\n@triton.jit\ndef triton_poi_fused_add_0(in_ptr0):\n    pass\n"
    assert inductor.is_wrapper(text(TRITON))
    assert not inductor.is_wrapper(kernel)


def test_a_function_that_calls_itself_is_refused(text: Text) -> None:
    cyclic = text(PARTITIONED).replace("cpp_fused_add_0(args)", "subgraph_0(args)")
    with pytest.raises(ValueError, match="calls itself"):
        inductor.count(cyclic)


def test_normalised_code_ignores_comments_and_addresses_but_not_kernels(text: Text) -> None:
    """Claim C6 compares base and control through it."""
    base = "x = 'partial(<function f at 0x7f09be880220>)'  # AOT ID: 0\n" + text(TRITON)
    control = "# AOT ID: 1\n\nx = 'partial(<function f at 0x7f0aaaaaaaaa>)'\n" + text(TRITON)
    other_kernel = base.replace("tl.load(in_ptr0 + x0", "tl.load(in_ptr0 + x1")
    assert base != control
    assert inductor.normalised(base) == inductor.normalised(control)
    assert inductor.normalised(base) != inductor.normalised(other_kernel)


@pytest.mark.parametrize(
    ("name", "internal", "internal_unique", "external", "convolutions"),
    [
        ("inductor_cpp_resnet18.py.xz", 21, 16, 21, 20),
        ("inductor_cpp_resnet18_fold.py.xz", 21, 16, 21, 20),
        ("inductor_cpp_resnet50.py.xz", 50, 21, 54, 53),
        ("inductor_cpp_resnet50_fold.py.xz", 50, 17, 54, 53),
        ("inductor_triton_resnet18.py.xz", 36, 22, 21, 20),
    ],
)
def test_resnets_of_the_pinned_inductor_call_their_convolutions_and_one_linear_layer(
    text: Text, name: str, internal: int, internal_unique: int, external: int, convolutions: int
) -> None:
    """Claim C8: 21 and 54 external units, in C++ and in Triton wrappers, folded or not."""
    counted = inductor.count(text(name))
    assert (counted.internal, counted.internal_unique) == (internal, internal_unique)
    assert (counted.external, counted.external_unique, counted.fallback) == (external, 2, 0)
    assert external_operations(inductor.units(text(name)), "convolution") == convolutions


@pytest.mark.parametrize("model", ["resnet18", "resnet50"])
def test_the_fold_shrinks_the_code_and_removes_batch_norm_not_the_calls(
    text: Text, model: str
) -> None:
    """Claim C5 on real texts of the pinned versions."""
    base = text(f"inductor_cpp_{model}.py.xz")
    fold = text(f"inductor_cpp_{model}_fold.py.xz")
    assert inductor.count(fold).internal == inductor.count(base).internal
    assert inductor.count(fold).code_bytes < 0.8 * inductor.count(base).code_bytes
    assert any("rsqrt" in held for held in operations(base).values())
    assert not any("rsqrt" in held for held in operations(fold).values())


def test_freezing_moves_the_fused_work_into_onednn(text: Text) -> None:
    frozen = text("inductor_cpp_resnet18_freeze.py.xz")
    counted = inductor.count(frozen)
    assert (counted.internal, counted.external, counted.fallback) == (4, 21, 0)
    assert units_of(frozen, "external") == {
        "torch.ops.mkldnn._convolution_pointwise.default": 12,
        "torch.ops.mkldnn._convolution_pointwise_.binary": 8,
        "torch.ops.mkl._mkl_linear.default": 1,
    }


def test_attention_and_cumsum_fall_back_to_aten(text: Text) -> None:
    assert units_of(text("inductor_cpp_gpt2_2layer.py.xz"), "fallback") == {
        "torch.ops.aten.cumsum.default": 1,
        "torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default": 2,
    }


@pytest.mark.parametrize(("model", "internal"), [("resnet18", 165), ("bert_2layer", 70)])
def test_unfused_kernels_hold_one_operation_each(text: Text, model: str, internal: int) -> None:
    """Claim X3 on real texts, compiled with every node realised and no two nodes in one kernel."""
    unfused = text(f"inductor_cpp_{model}_unfused.py.xz")
    assert fused_units(inductor.units(unfused)) == []
    assert all(unit.operations for unit in inductor.units(unfused) if unit.kind == "internal")
    assert inductor.count(unfused).internal == internal


def test_fused_kernels_are_told_from_single_ones(text: Text) -> None:
    held = operations(text("inductor_cpp_resnet18_fold.py.xz"))
    assert held["cpp_fused_relu_2"] == ("relu",)
    assert held["cpp_fused_add_relu_3"] == ("add", "relu")
    assert held["cpp_fused_convolution_4"] == ("copy",)
    assert held["cpp_fused_convolution_relu_5"] == ("relu", "copy"), "two loop nests, one kernel"
    fused = fused_units(inductor.units(text("inductor_cpp_resnet18_fold.py.xz")))
    assert "cpp_fused_relu_2" not in {unit.name for unit in fused}
