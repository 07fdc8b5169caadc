"""C8: static unit counts describe each stack's structure (paper, section on units)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from artifact.analysis import published
from artifact.analysis.claims.line import INTEGRITY, Line, in_rounds, integrity
from artifact.analysis.claims.stored_code import code_faults
from artifact.analysis.evidence import Cell, Evidence
from artifact.census import external_operations, hlo

KIND = INTEGRITY
TITLE = "library calls: Inductor one a convolution and linear, TVM none, XLA the convolutions"
NEEDS = "ResNet-18 or ResNet-50 cells with inductor, xla or tvm and their census"

#: Convolutions of an architecture; Inductor calls a library for each, and for the linear layer.
CONVOLUTIONS = {"resnet18": 20, "resnet50": 53}
LINEAR_LAYERS = 1

#: The paper's names of the programs that it counts here.
_PUBLISHED_VARIANTS = ("fused", "fused_inductor", "fused_jit_optimized")


def evaluate(evidence: Evidence) -> list[Line]:
    """One line for each measured ResNet cell of the three compilers (as the paper runs them)."""
    lines = []
    for block in evidence.blocks("resnet"):
        for configuration, count in _COUNTS.items():
            cell = (*block, configuration)
            if cell in evidence.cells and _architecture(evidence, cell) in CONVOLUTIONS:
                lines.append(count(evidence, cell))
    return lines


def _architecture(evidence: Evidence, cell: Cell) -> str:
    return evidence.first(cell).spec.architecture


def _inductor(evidence: Evidence, cell: Cell) -> Line:
    expected = CONVOLUTIONS[_architecture(evidence, cell)] + LINEAR_LAYERS
    return _external_line(evidence, cell, expected, "inductor")


def _tvm(evidence: Evidence, cell: Cell) -> Line:
    return _external_line(evidence, cell, 0, "tvm")


def _external_line(evidence: Evidence, cell: Cell, expected: int, backend: str) -> Line:
    """External call sites as every trial counted them; trials of one cell must agree."""
    trials = evidence.trials(cell)
    counted = {t.round: t.record.census.external for t in trials if t.record.census is not None}
    faults = in_rounds(
        (t.round, t.record.census_note or "no census in the record")
        for t in trials
        if t.record.census is None
    )
    faults += _others(counted, expected, "external units")
    return integrity(
        f"{' '.join(cell)} external",
        faults,
        measured=_values(counted),
        band=f"external units = {expected}",
        published=_published_external(cell, backend),
    )


def _others(counted: Mapping[int, int], expected: int, what: str) -> list[str]:
    """The counts that are not the expected one, with the rounds in which they are."""
    return in_rounds((number, f"{n} {what}") for number, n in counted.items() if n != expected)


def _values(counted: Mapping[int, int]) -> str:
    return ", ".join(str(n) for n in sorted(set(counted.values())))


def _xla(evidence: Evidence, cell: Cell) -> Line:
    """Library-backed convolutions, from every stored text: one library fusion can hold several.

    On a CPU they are `convolution` instructions and library fusions; no custom call need appear.
    """
    expected = CONVOLUTIONS[_architecture(evidence, cell)]
    faults, counted = code_faults(evidence, cell), dict[int, int]()
    for trial in evidence.trials(cell):
        texts = trial.read_code()
        try:
            if texts:
                counted[trial.round] = library_convolutions(texts)
        except ValueError as error:
            faults += in_rounds([(trial.round, f"not counted: {error}")])
    return integrity(
        f"{' '.join(cell)} convolutions",
        faults + _others(counted, expected, "library-backed convolutions"),
        measured=_values(counted),
        band=f"library-backed convolutions = {expected}",
        published=_published_external(cell, "xla"),
    )


def library_convolutions(texts: Mapping[str, str]) -> int:
    """Convolutions that external call sites of optimised HLO texts compute.

    XLA may turn a 1x1 convolution into a matrix product, so products beyond the linear layer count.
    """
    counts = [_convolutions_and_products(text) for text in texts.values()]
    products = sum(dots for _, dots in counts) - LINEAR_LAYERS
    return sum(convolutions for convolutions, _ in counts) + max(0, products)


@lru_cache(maxsize=32)
def _convolutions_and_products(text: str) -> tuple[int, int]:
    """Counted once a text: a campaign is judged with and without its noisy trials."""
    units = hlo.units(text)
    return external_operations(units, "convolution"), external_operations(units, "dot")


def _published_external(cell: Cell, backend: str) -> str:
    model, shape, _ = cell
    for row in published.units():
        here = (row.backend, row.model, row.input) == (backend, model, shape)
        if here and row.variant in _PUBLISHED_VARIANTS and row.external is not None:
            return str(row.external)
    return ""


_COUNTS = {"inductor": _inductor, "xla": _xla, "tvm": _tvm}
