"""Units, counts and what is derived from them."""

from __future__ import annotations

import dataclasses

import pytest

from artifact.census import Census, Graph, Unit, external_operations, fused_units, total
from artifact.census.unit import census

ONE = Census(
    internal=3,
    internal_unique=2,
    external=1,
    external_unique=1,
    fallback=4,
    builtin=5,
    code_bytes=100,
    code_lines=10,
)


def test_a_census_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        ONE.internal = 4  # type: ignore[misc]


def test_total_adds_every_field() -> None:
    doubled = total([ONE, ONE])
    for field in dataclasses.fields(Census):
        assert getattr(doubled, field.name) == 2 * getattr(ONE, field.name)


def test_total_of_nothing_is_an_error_not_a_zero() -> None:
    with pytest.raises(ValueError, match="no census"):
        total([])


@pytest.mark.parametrize("calls", [0, -1])
def test_a_unit_nobody_calls_is_refused(calls: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Unit("kernel", "internal", calls)


def test_a_unit_of_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown kind"):
        Unit("kernel", "intern", 1)  # type: ignore[arg-type]


def test_graphs_share_library_functions_but_no_generated_code() -> None:
    graph = Graph("g", (Unit("kernel_0", "internal", 2), Unit("mm", "external", 3)))
    counted = census([graph, graph], "a\nb\n")
    assert (counted.internal, counted.internal_unique) == (4, 2)
    assert (counted.external, counted.external_unique) == (6, 1)


def test_code_is_measured_in_utf8_bytes_and_lines() -> None:
    counted = census([], "ä\nb")
    assert (counted.code_bytes, counted.code_lines) == (4, 2)


def test_external_operations_count_operations_times_calls() -> None:
    units = [
        Unit("library", "external", 3, ("convolution", "add", "convolution")),
        Unit("own", "internal", 5, ("convolution",)),
    ]
    assert external_operations(units, "convolution") == 6
    assert external_operations(units, "dot") == 0


def test_fused_units_are_internal_and_hold_several_operations() -> None:
    fused = Unit("fused", "internal", 1, ("add", "relu"))
    single = Unit("single", "internal", 1, ("add",))
    library = Unit("library", "external", 1, ("convolution", "add"))
    assert fused_units([single, library, fused]) == [fused]
