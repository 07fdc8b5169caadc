"""Strict JSON: no NaN, no unknown keys, no half files."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from artifact.strict_json import SchemaError, dumps, from_plain, loads, write_atomic


@dataclass(frozen=True)
class Inner:
    value: float


@dataclass(frozen=True)
class Outer:
    name: str
    inner: Inner
    items: tuple[int, ...] = ()
    maybe: float | None = None
    table: dict[str, float] = field(default_factory=dict)


@pytest.mark.parametrize("literal", ["NaN", "Infinity", "-Infinity"])
def test_non_finite_literals_are_refused(literal):
    with pytest.raises(SchemaError, match=literal):
        loads(f'{{"a": {literal}}}')


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_non_finite_values_are_never_written(value):
    with pytest.raises(ValueError):
        dumps({"a": value})


def test_round_trip_of_nested_dataclasses():
    value = Outer("x", Inner(1.5), (1, 2), None, {"a": 1.0})
    assert from_plain(Outer, loads(dumps(value))) == value


@pytest.mark.parametrize(
    ("plain", "where"),
    [
        ({"name": "x"}, "missing key 'inner'"),
        ({"name": 3, "inner": {"value": 1}}, "Outer.name"),
        ({"name": "x", "inner": {"value": True}}, "Outer.inner.value"),
        ({"name": "x", "inner": {"value": "1"}}, "Outer.inner.value"),
        ({"name": "x", "inner": {"value": 1}, "items": [1.5]}, r"Outer.items\[0\]"),
        ({"name": "x", "inner": {"value": 1}, "items": 3}, "expected a list"),
        ({"name": "x", "inner": [], "items": []}, "expected an object"),
        ({"name": "x", "inner": {"value": 1}, "extra": 1}, "unknown key 'extra'"),
    ],
)
def test_faults_name_the_place(plain, where):
    with pytest.raises(SchemaError, match=where):
        from_plain(Outer, plain)


def test_integers_are_accepted_where_a_float_is_declared():
    assert from_plain(Outer, {"name": "x", "inner": {"value": 2}}).inner.value == 2.0


def test_a_failed_write_leaves_the_old_file(tmp_path: Path):
    path = tmp_path / "a.json"
    write_atomic(path, {"a": 1})
    with pytest.raises(ValueError):
        write_atomic(path, {"a": math.nan})
    assert loads(path.read_text(encoding="utf-8")) == {"a": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]
