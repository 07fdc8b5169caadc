"""C8: static unit counts describe each stack's structure (paper, section on units)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from artifact.analysis import published
from artifact.analysis.claims.line import INTEGRITY, Line, integrity, unmeasured
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
    item, band = f"{' '.join(cell)} external", f"external units = {expected}"
    shown = _published_external(cell, backend)
    counted = {
        t.record.spec.record_id: t.record.census.external
        for t in evidence.trials(cell)
        if t.record.census is not None
    }
    if not counted:
        note = evidence.first(cell).census_note or "no census in the record"
        return unmeasured(item, INTEGRITY, band, note, shown)
    faults = [f"{name}: {n}" for name, n in counted.items() if n != expected]
    measured = ", ".join(str(n) for n in sorted(set(counted.values())))
    return integrity(item, faults, measured=measured, band=band, published=shown)


def _xla(evidence: Evidence, cell: Cell) -> Line:
    """Library-backed convolutions, from the stored text: one library fusion can hold several.

    On a CPU they are `convolution` instructions and library fusions; no custom call need appear.
    """
    expected = CONVOLUTIONS[_architecture(evidence, cell)]
    item, band = f"{' '.join(cell)} convolutions", f"library-backed convolutions = {expected}"
    shown, texts = _published_external(cell, "xla"), evidence.code(cell)
    if not texts:
        return unmeasured(item, INTEGRITY, band, "no generated code is stored", shown)
    try:
        found = library_convolutions(texts)
    except ValueError as error:
        return unmeasured(item, INTEGRITY, band, f"not counted: {error}", shown)
    faults = [] if found == expected else [f"{found} library-backed convolutions"]
    return integrity(item, faults, measured=str(found), band=band, published=shown)


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
