"""Operations read from Inductor's C++ kernels."""

from __future__ import annotations

import pytest

from artifact.census.kernels import cpp_loop_nests, cpp_operations


def kernel(*statements: str, loop: str = "for(int64_t x0=0L; x0<8L; x0+=8L)") -> str:
    body = "\n".join(f"            {statement}" for statement in statements)
    return f'extern "C" void kernel()\n{{\n    {loop}\n    {{\n{body}\n    }}\n}}\n'


LOAD = "auto tmp0 = at::vec::Vectorized<float>::loadu(in_ptr0 + static_cast<int64_t>(x0), 8);"
OTHER = "auto tmp1 = at::vec::Vectorized<float>::loadu(in_ptr1 + static_cast<int64_t>(x0), 8);"
CONSTANT = "auto tmp2 = static_cast<float>(0.5);"
SPLAT = "auto tmp3 = at::vec::Vectorized<float>(tmp2);"


def stored(name: str) -> str:
    return f"{name}.store(out_ptr0 + static_cast<int64_t>(x0));"


@pytest.mark.parametrize(
    ("statement", "operation"),
    [
        ("auto tmp4 = tmp0 + tmp1;", "add"),
        ("auto tmp4 = tmp0 * tmp3;", "mul"),
        ("auto tmp4 = tmp0 / tmp1;", "div"),
        ("auto tmp4 = tmp0.rsqrt();", "rsqrt"),
        ("auto tmp4 = at::vec::clamp_min(tmp0, decltype(tmp0)(0));", "relu"),
        ("auto tmp4 = at::vec::maximum(tmp0, tmp1);", "maximum"),
        ("auto tmp4 = std::tanh(tmp0);", "tanh"),
        ("auto tmp4 = decltype(tmp0)(1) / (decltype(tmp0)(1) + tmp0.neg().exp());", "sigmoid"),
        ("auto tmp4 = decltype(tmp0)::blendv(tmp1, tmp0, tmp2);", "where"),
        ("auto tmp4 = at::vec::VecMask<float,1>(tmp0 < tmp1);", "lt"),
    ],
)
def test_one_statement_is_one_operation(statement: str, operation: str) -> None:
    source = kernel(LOAD, OTHER, CONSTANT, SPLAT, statement, stored("tmp4"))
    assert cpp_operations(source) == (operation,)


def test_loads_constants_and_casts_are_no_operations() -> None:
    source = kernel(LOAD, CONSTANT, SPLAT, "auto tmp4 = c10::convert<float>(tmp0);", stored("tmp4"))
    assert cpp_operations(source) == ("copy",)


def test_a_scalar_store_does_not_turn_its_value_into_an_address() -> None:
    source = kernel(
        "auto tmp0 = in_ptr0[static_cast<int64_t>(x0)];",
        "auto tmp1 = tmp0 + tmp0;",
        "out_ptr0[static_cast<int64_t>(x0)] = tmp1;",
    )
    assert cpp_operations(source) == ("add",)


def test_the_vector_loop_and_its_tail_count_once() -> None:
    add = "auto tmp4 = tmp0 + tmp1;"
    source = kernel(
        "if(C10_LIKELY(x0 < 8L)) {", LOAD, OTHER, add, stored("tmp4"), "}",
        "if(C10_UNLIKELY(x0 >= 8L)) {", LOAD, OTHER, add, stored("tmp4"), "}",
    )  # fmt: skip
    assert cpp_operations(source) == ("add",)


def test_an_inner_transposing_loop_is_no_computation_of_its_own() -> None:
    source = kernel(
        "for (long x1_inner = 0; x1_inner < 8; x1_inner++)",
        "{",
        LOAD,
        "}",
        OTHER,
        "auto tmp4 = tmp0 + tmp1;",
        stored("tmp4"),
    )
    assert cpp_operations(source) == ("add",)


def test_index_arithmetic_is_no_operation_and_a_loaded_index_is_a_gather() -> None:
    source = kernel(
        "auto tmp0 = in_ptr0[static_cast<int64_t>(x0)];",
        "auto tmp1 = 50257L;",
        "auto tmp2 = c10::convert<int64_t>(tmp1);",
        "auto tmp3 = tmp0 + tmp2;",
        "auto tmp4 = tmp0 < 0;",
        "auto tmp5 = tmp4 ? tmp3 : tmp0;",
        "auto tmp6 = at::vec::Vectorized<float>::loadu(in_ptr1 + (768L*tmp5), 8);",
        stored("tmp6"),
    )
    assert cpp_operations(source) == ("gather",)


def test_pooling_over_one_buffer_is_one_operation_but_adding_two_buffers_is_not() -> None:
    def load(number: int, buffer: str) -> str:
        return f"auto tmp{number} = {buffer}[static_cast<int64_t>(x0 + {number}L)];"

    def chain(buffers: str) -> str:
        return kernel(
            *(load(number, f"in_ptr{buffer}") for number, buffer in enumerate(buffers)),
            "auto tmp10 = at::vec::maximum(tmp0, tmp1);",
            "auto tmp11 = at::vec::maximum(tmp10, tmp2);",
            stored("tmp11"),
        )

    assert cpp_operations(chain("000")) == ("maximum",)
    assert cpp_operations(chain("012")) == ("maximum", "maximum")


def test_the_mean_of_a_few_values_and_the_second_pass_of_a_variance_are_one_operation() -> None:
    loads = [f"auto tmp{n} = in_ptr0[static_cast<int64_t>(x0 + {n}L)];" for n in range(3)]
    mean = [
        "auto tmp4 = tmp0 + tmp1;",
        "auto tmp5 = tmp4 + tmp2;",
        "auto tmp6 = static_cast<float>(3.0);",
        "auto tmp7 = tmp5 / tmp6;",
    ]
    variance = [
        "auto tmp2 = tmp0 - tmp1;",
        "auto tmp3 = tmp2 * tmp2;",
        "tmp_acc0_vec = tmp_acc0_vec + tmp3;",
    ]
    assert cpp_operations(kernel(*loads, *mean, stored("tmp7"))) == ("mean",)
    assert cpp_operations(kernel(LOAD, OTHER, *variance)) == ("var",)
    # With anything more in the loop they are not hidden.
    assert cpp_operations(kernel(*loads, *mean, "auto tmp8 = tmp7.exp();", stored("tmp8"))) == (
        "sum",
        "div",
        "exp",
    )
    assert cpp_operations(kernel(LOAD, OTHER, "auto tmp9 = tmp1.exp();", *variance)) == (
        "exp",
        "sub",
        "mul",
        "sum",
    )


def test_reductions_are_named_and_their_final_combination_does_not_count() -> None:
    source = kernel(
        "for(int64_t x1=0L; x1<768L; x1+=8L)",
        "{",
        LOAD,
        "tmp_acc0_vec = tmp_acc0_vec + tmp0;",
        "tmp_acc1_vec = at::vec::maximum(tmp_acc1_vec, tmp0);",
        "}",
        "tmp_acc0 = tmp_acc0 + at::vec::vec_reduce_all<float, 1>(add, tmp_acc0_vec);",
    )
    assert cpp_operations(source) == ("sum", "amax")


def test_every_loop_nest_of_a_kernel_counts() -> None:
    add = kernel(LOAD, OTHER, "auto tmp4 = tmp0 + tmp1;", stored("tmp4"))
    copy = kernel(LOAD, stored("tmp0"))
    assert cpp_operations(add + copy) == ("add", "copy")
    assert cpp_loop_nests(add + copy) == 2
