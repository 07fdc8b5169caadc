"""Relax modules: after FuseTIR, lowered for the VM, and the executable's listing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from artifact.census import fused_units, tvmscript

Text = Callable[[str], str]

FUSED, VM, EXECUTABLE = "relax_fused.txt", "relax_vm.txt", "relax_executable.txt"


def units_of(text: str, kind: str) -> dict[str, int]:
    return {unit.name: unit.calls for unit in tvmscript.units(text) if unit.kind == kind}


def operations(text: str) -> dict[str, tuple[str, ...]]:
    return {unit.name: unit.operations for unit in tvmscript.units(text)}


def test_counts_after_fuse_tir(text: Text) -> None:
    """main only: not its comment, `never_called`, nor the function that transforms parameters."""
    assert units_of(text(FUSED), "internal") == {
        "fused_conv2d1_add2_max_pool2d_relu": 2,
        "layer_norm": 2,
        "reshape3": 1,
    }
    counted = tvmscript.count(text(FUSED))
    assert (counted.internal, counted.internal_unique) == (5, 3)
    assert counted.code_bytes == len(text(FUSED).encode())
    assert counted.code_lines == len(text(FUSED).splitlines())


def test_libraries_unlowered_operators_and_builtins_are_kept_apart(text: Text) -> None:
    assert units_of(text(FUSED), "external") == {"tvm.contrib.cublas.matmul": 1}
    assert units_of(text(FUSED), "fallback") == {"R.nn.relu": 1}
    assert units_of(text(FUSED), "builtin") == {"R.reshape": 1}


def test_operations_are_the_words_of_the_fused_name(text: Text) -> None:
    held = operations(text(FUSED))
    assert held["fused_conv2d1_add2_max_pool2d_relu"] == ("conv2d", "add", "max_pool2d", "relu")
    assert held["layer_norm"] == ("layer_norm",)
    assert [unit.name for unit in tvmscript.single_op_units(text(FUSED))] == [
        "layer_norm",
        "reshape3",
    ]


def test_blocks_of_a_tir_function(text: Text) -> None:
    blocks = tvmscript.blocks(text(FUSED))
    assert blocks["fused_conv2d1_add2_max_pool2d_relu"] == ("conv2d_nchw", "T_add")
    assert blocks["layer_norm"] == ()


def test_the_vm_form_tells_generated_library_and_runtime_functions_apart(text: Text) -> None:
    assert units_of(text(VM), "internal") == {"fused_conv2d_relu": 2}
    assert units_of(text(VM), "external") == {
        "tvm.contrib.cudnn.conv2d.forward": 1,
        "fused_relax_nn_conv2d_cudnn": 1,
    }
    assert units_of(text(VM), "builtin") == {
        "vm.builtin.check_tensor_info": 1,
        "R.vm.alloc_storage": 1,
        "R.vm.alloc_tensor": 1,
        "vm.builtin.reshape": 1,
        "R.vm.kill_object": 1,
    }


def test_a_function_given_to_a_library_is_external_and_not_opened(text: Text) -> None:
    offloaded = text(FUSED).replace(
        "        cls = Module\n        with R.dataflow():\n            a = ",
        '        R.func_attr({"Codegen": "cudnn"})\n        cls = Module\n'
        "        with R.dataflow():\n            a = ",
    )
    assert units_of(offloaded, "external") == {"block": 2, "tvm.contrib.cublas.matmul": 1}
    assert "layer_norm" not in units_of(offloaded, "internal")


def test_the_executables_listing(text: Text) -> None:
    assert units_of(text(EXECUTABLE), "internal") == {"fused_conv2d_add_relu": 2}
    assert units_of(text(EXECUTABLE), "external") == {"tvm.contrib.cublas.matmul": 1}
    assert tvmscript.count(text(EXECUTABLE)).builtin == 3


def test_without_a_main_every_public_function_is_a_graph(text: Text) -> None:
    renamed = text(FUSED).replace("def main(", "def decode(")
    assert [graph.name for graph in tvmscript.graphs(renamed)] == [
        "decode",
        "main_transform_params",
    ]
    assert tvmscript.count(renamed).internal == 6


def test_several_modules_are_listed_and_summed(text: Text) -> None:
    both = text(FUSED) + "\n" + text(VM)
    assert [graph.name for graph in tvmscript.graphs(both)] == ["main", "main"]
    assert tvmscript.count(both).internal == 7
    assert tvmscript.count(both).internal_unique == 4


@pytest.mark.parametrize(
    "nothing",
    [
        "",
        "# Metadata omitted. Use show_meta=True in script() method to show it.\n",
        "@I.ir_module\nclass Module:\n    pass\n",
        "class Module:\n    @T.prim_func\n    def f(x: T.handle):\n        T.evaluate(0)\n",
        "def main(x):\n    R.call_tir(cls.f, (x,))\n",
        "HloModule jit_f\n\nENTRY %main {\n}\n",
    ],
)
def test_a_text_without_a_program_is_an_error_not_a_zero(nothing: str) -> None:
    with pytest.raises(ValueError, match=r"Relax|TVMScript"):
        tvmscript.count(nothing)


def test_resnet18_of_the_pinned_tvm_calls_no_library(text: Text) -> None:
    """Claim C8. Lowering turns the one reshape into a builtin, nothing else changes kind."""
    fused = tvmscript.count(text("relax_resnet18.py.xz"))
    lowered = tvmscript.count(text("relax_resnet18_vm.py.xz"))
    assert (fused.internal, fused.internal_unique, fused.external) == (24, 19, 0)
    assert (lowered.internal, lowered.internal_unique, lowered.external) == (23, 18, 0)
    assert (fused.fallback, lowered.fallback) == (0, 0)


def test_unfused_resnet18_holds_one_operation_per_unit(text: Text) -> None:
    """Claim X3 on real texts."""
    unfused = text("relax_resnet18_unfused.py.xz")
    assert len(fused_units(tvmscript.units(text("relax_resnet18.py.xz")))) == 16
    assert fused_units(tvmscript.units(unfused)) == []
    assert tvmscript.count(unfused).internal == 130
