"""The words of the census: what a unit is, and how units become counts.

A unit is a static, call-like piece of a generated program (paper, section on units): `internal`
units are code the compiler generated, `external` units are calls into a library, `fallback` units
are operations that the compiler handed back to the framework, `builtin` units are services of the
runtime (allocation, views, copies). One `Unit` is one distinct callee; `calls` says from how many
places the program calls it. Nothing here is a launch count: a loop body counts once, and both
branches of a conditional count.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["internal", "external", "fallback", "builtin"]
KINDS: tuple[Kind, ...] = ("internal", "external", "fallback", "builtin")


@dataclass(frozen=True)
class Unit:
    """One distinct callee of a program.

    `operations` are the compute operations it holds, in program order and with repetitions; how
    they are read differs per stack (see the module of the stack). An empty tuple means "the text
    does not say".
    """

    name: str
    kind: Kind
    calls: int
    operations: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"unit {self.name!r}: unknown kind {self.kind!r}")
        if self.calls < 1:
            raise ValueError(f"unit {self.name!r}: calls must be at least 1, not {self.calls}")


@dataclass(frozen=True)
class Graph:
    """One entry point of a generated text, with its units in order of first call."""

    name: str
    units: tuple[Unit, ...]


@dataclass(frozen=True)
class Census:
    """Counts of one text, or of several texts added up (claims C5 and C8).

    `internal`, `external`, `fallback` and `builtin` are call sites; the two `_unique` values are
    distinct callees. `code_bytes` is the text's length in UTF-8 bytes, `code_lines` its number of
    lines.
    """

    internal: int
    internal_unique: int
    external: int
    external_unique: int
    fallback: int
    builtin: int
    code_bytes: int
    code_lines: int


def words(text: str) -> frozenset[str]:
    """The words of a text as a set, so that a list of names reads as a list of names."""
    return frozenset(text.split())


class Tally:
    """Collects call sites in program order; the key decides which sites share one unit."""

    def __init__(self) -> None:
        self._sites: dict[tuple[Kind, str], list[Unit]] = {}

    def add(self, key: str, name: str, kind: Kind, operations: Sequence[str] = ()) -> None:
        """Record one call site of the callee `key`; `name` is what a reader sees."""
        self._sites.setdefault((kind, key), []).append(Unit(name, kind, 1, tuple(operations)))

    def units(self) -> tuple[Unit, ...]:
        """Units in order of first call."""
        return tuple(
            Unit(sites[0].name, sites[0].kind, len(sites), sites[0].operations)
            for sites in self._sites.values()
        )


def listed(graphs: Iterable[Graph]) -> list[Unit]:
    """Units of several graphs, one after the other; graphs share no generated code."""
    return [unit for graph in graphs for unit in graph.units]


def census(graphs: Sequence[Graph], text: str) -> Census:
    """Counts over all graphs of one text.

    Internal callees of different graphs are different code even under one name; external callees
    of the same name are one library function.
    """
    units = listed(graphs)
    return Census(
        internal=_calls(units, "internal"),
        internal_unique=sum(unit.kind == "internal" for unit in units),
        external=_calls(units, "external"),
        external_unique=len({unit.name for unit in units if unit.kind == "external"}),
        fallback=_calls(units, "fallback"),
        builtin=_calls(units, "builtin"),
        code_bytes=len(text.encode("utf-8")),
        code_lines=len(text.splitlines()),
    )


def total(censuses: Sequence[Census]) -> Census:
    """Sum over several texts, field by field. ValueError when there is nothing to add.

    `external_unique` is summed too, so a library function used by two texts counts twice; to count
    it once, join the texts and count them together.
    """
    if not censuses:
        raise ValueError("no census to add up")
    fields = Census.__dataclass_fields__
    return Census(**{name: sum(getattr(one, name) for one in censuses) for name in fields})


def fused_units(units: Iterable[Unit]) -> list[Unit]:
    """Internal units with more than one compute operation (claim X3 wants none when unfused)."""
    return [unit for unit in units if unit.kind == "internal" and len(unit.operations) > 1]


def external_operations(units: Iterable[Unit], operation: str) -> int:
    """How often external call sites compute `operation`, such as "convolution" (claim C8).

    This is not the number of calls: one library fusion of XLA can hold several convolutions.
    """
    external = (unit for unit in units if unit.kind == "external")
    return sum(unit.calls * unit.operations.count(operation) for unit in external)


def _calls(units: Iterable[Unit], kind: Kind) -> int:
    return sum(unit.calls for unit in units if unit.kind == kind)
