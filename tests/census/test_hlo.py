"""Optimised HLO: what is a call site, of which kind, and which operations it holds."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from artifact.census import external_operations, fused_units, hlo

Text = Callable[[str], str]

SMALL = "optimised.hlo.txt"


def calls(text: str) -> dict[str, int]:
    return {unit.name: unit.calls for unit in hlo.units(text)}


def kinds(text: str) -> dict[str, str]:
    return {unit.name: unit.kind for unit in hlo.units(text)}


def test_counts_of_the_small_module(text: Text) -> None:
    counted = hlo.count(text(SMALL))
    # Internal: reduce, add_fusion x 3, the Triton GEMM, exp in the parallel call and in the loop.
    assert (counted.internal, counted.internal_unique) == (7, 4)
    # External: the YNN fusion, cuDNN, cuBLAS, the bare dot.
    assert (counted.external, counted.external_unique) == (4, 4)
    assert (counted.fallback, counted.builtin) == (1, 3)
    assert counted.code_bytes == len(text(SMALL).encode())
    assert counted.code_lines == len(text(SMALL).splitlines())


def test_root_is_a_call_site(text: Text) -> None:
    without_root = text(SMALL).replace(
        "ROOT %add_fusion.2", "ROOT %bitcast.9 = f32[8] bitcast(%last)\n//"
    )
    assert hlo.count(without_root).internal == hlo.count(text(SMALL)).internal - 1


def test_one_computation_called_three_times_is_one_unit(text: Text) -> None:
    assert calls(text(SMALL))["add_fusion"] == 3


def test_loop_bodies_and_parallel_calls_are_opened_once_per_site(text: Text) -> None:
    assert calls(text(SMALL))["wrapped_exp.7"] == 2


def test_comments_strings_and_uncalled_computations_are_not_units(text: Text) -> None:
    names = calls(text(SMALL))
    assert not {"ghost", "never"} & set(names)


def test_a_block_comment_over_lines_hides_what_it_holds(text: Text) -> None:
    hidden = (
        text(SMALL).replace("  %gemm = ", "/*\n  %gemm = ").replace("  %back = ", "*/\n  %back = ")
    )
    assert "__cublas$gemm" not in calls(hidden)
    assert hlo.count(hidden).external == 3


def test_a_comment_opener_inside_a_string_hides_nothing(text: Text) -> None:
    marked = text(SMALL).replace('op_name="x"', 'op_name="a/*b"')
    assert calls(marked) == calls(text(SMALL))


def test_kinds(text: Text) -> None:
    assert kinds(text(SMALL)) == {
        "row": "internal",
        "add_fusion": "internal",
        "__ynn_fusion(2 convolution)": "external",
        "triton_gemm": "internal",
        "__cudnn$convForward": "external",
        "__cublas$gemm": "external",
        "xla_ffi_python_cpu_callback": "fallback",
        "dot": "external",
        "copy": "builtin",
        "wrapped_exp.7": "internal",
        "compare": "builtin",
        "add": "builtin",
    }


def test_operations_of_a_fusion_leave_out_parameters(text: Text) -> None:
    held = {unit.name: unit.operations for unit in hlo.units(text(SMALL))}
    assert held["add_fusion"] == ("broadcast", "add")
    assert held["wrapped_exp.7"] == ("exponential",)


def test_single_op_units_are_the_internal_ones_with_one_operation(text: Text) -> None:
    assert [u.name for u in hlo.single_op_units(text(SMALL))] == [
        "row",
        "triton_gemm",
        "wrapped_exp.7",
    ]


def test_library_convolutions_count_operations_not_calls(text: Text) -> None:
    # Two inside the YNN fusion, one cuDNN call.
    assert external_operations(hlo.units(text(SMALL)), "convolution") == 3


def test_both_branches_of_a_conditional_count() -> None:
    module = """HloModule m
%yes (p.1: f32[4]) -> f32[4] {
  %p.1 = f32[4]{0} parameter(0)
  ROOT %a = f32[4]{0} add(%p.1, %p.1)
}
%no (p.2: f32[4]) -> f32[4] {
  %p.2 = f32[4]{0} parameter(0)
  ROOT %b = f32[4]{0} multiply(%p.2, %p.2)
}
ENTRY %main (x: f32[4], i: s32[]) -> f32[4] {
  %x = f32[4]{0} parameter(0)
  %i = s32[] parameter(1)
  ROOT %c = f32[4]{0} conditional(%i, %x, %x), branch_computations={%yes, %no}
}
"""
    assert [unit.name for unit in hlo.units(module)] == ["a", "b"]


def test_asynchronous_pairs_count_once() -> None:
    module = """HloModule m
%wrapped (p.1: f32[4]) -> f32[4] {
  %p.1 = f32[4]{0} parameter(0)
  ROOT %a = f32[4]{0} add(%p.1, %p.1)
}
ENTRY %main (x: f32[4]) -> f32[4] {
  %x = f32[4]{0} parameter(0)
  %s = ((f32[4]{0}), f32[4]{0}, u32[]) async-start(%x), calls=%wrapped
  %u = ((f32[4]{0}), f32[4]{0}, u32[]) async-update(%s)
  %d = f32[4]{0} async-done(%u)
  %f = ((f32[4]{0}), f32[4]{0}) fusion-start(%d), kind=kLoop, calls=%wrapped
  %g = f32[4]{0} fusion-done(%f)
  %q = (f32[4]{0}, f32[4]{0}) all-reduce-start(%g), to_apply=%wrapped
  ROOT %r = f32[4]{0} all-reduce-done(%q)
}
"""
    counted = hlo.count(module)
    assert (counted.internal, counted.external, counted.builtin) == (2, 1, 0)


def test_names_without_percent_signs_are_read() -> None:
    module = """HloModule m
fused (p: f32[4]) -> f32[4] {
  p = f32[4]{0} parameter(0)
  ROOT e = f32[4]{0} exponential(p)
}
ENTRY main {
  x = f32[4]{0} parameter(0)
  ROOT f = f32[4]{0} fusion(x), kind=kLoop, calls=fused
}
"""
    assert [(u.name, u.operations) for u in hlo.units(module)] == [("f", ("exponential",))]


def test_several_modules_are_listed_and_summed(text: Text) -> None:
    both = text(SMALL) + "\n" + text(SMALL).replace("jit_step", "jit_other")
    assert [graph.name for graph in hlo.graphs(both)] == ["jit_step", "jit_other"]
    once, twice = hlo.count(text(SMALL)), hlo.count(both)
    assert (twice.internal, twice.external) == (2 * once.internal, 2 * once.external)
    assert (twice.internal_unique, twice.external_unique) == (2 * once.internal_unique, 4)


@pytest.mark.parametrize(
    "nothing",
    [
        "",
        "  \n",
        "HloModule jit_f, is_scheduled=true\n",
        "HloModule m\n\nENTRY %main () -> () {\n}\n",
        "HloModule m\n\n%f (p: f32[]) -> f32[] {\n  ROOT %p = f32[] parameter(0)\n}\n",
        "module @jit_f {\n  func.func public @main(%arg0: tensor<4xf32>) {\n  }\n}\n",
        "import torch\n\ndef call(args):\n    return args\n",
    ],
)
def test_a_text_without_a_program_is_an_error_not_a_zero(nothing: str) -> None:
    with pytest.raises(ValueError, match="HLO"):
        hlo.count(nothing)


def test_a_call_to_a_missing_computation_is_named(text: Text) -> None:
    cut = text(SMALL).replace("%loop_body (", "%other_body (")
    with pytest.raises(ValueError, match="'loop_body'"):
        hlo.count(cut)


def test_a_text_that_was_cut_off_is_an_error_not_a_smaller_count(text: Text) -> None:
    cut = text(SMALL).partition("  %parallel = ")[0]
    with pytest.raises(ValueError, match=r"ends inside computation 'main.1'"):
        hlo.count(cut)


@pytest.mark.parametrize(
    ("name", "convolutions", "internal", "external"),
    [("hlo_resnet18.txt.xz", 20, 20, 15), ("hlo_resnet50.txt.xz", 53, 49, 48)],
)
def test_resnets_of_the_pinned_xla_hold_their_convolutions_in_the_library(
    text: Text, name: str, convolutions: int, internal: int, external: int
) -> None:
    """Claim C8. One YNN fusion of ResNet-18 holds seven convolutions, so calls would not do."""
    counted = hlo.count(text(name))
    assert external_operations(hlo.units(text(name)), "convolution") == convolutions
    assert (counted.internal, counted.external) == (internal, external)


def test_unfused_resnet18_holds_one_operation_per_unit_and_the_same_libraries(text: Text) -> None:
    """Claim X3 on real texts: `--xla_disable_hlo_passes=fusion` leaves the library's fusions."""
    fused, unfused = text("hlo_resnet18.txt.xz"), text("hlo_resnet18_unfused.txt.xz")
    assert len(fused_units(hlo.units(fused))) == 14
    assert fused_units(hlo.units(unfused)) == []
    assert hlo.count(unfused).internal == 98
    assert external_operations(hlo.units(unfused), "convolution") == 20


def test_control_flow_of_the_pinned_xla(text: Text) -> None:
    """A scan, a sort, a softmax and a cond: 8 generated units, 4 library fusions, 2 copies."""
    counted = hlo.count(text("hlo_control_flow.txt.xz"))
    assert (counted.internal, counted.external, counted.builtin) == (8, 4, 2)
