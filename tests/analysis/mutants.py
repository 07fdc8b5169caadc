"""Campaigns that were tampered with, and what a verdict must name of each (CLAIMS, bands).

They are made from any campaign that has the ResNet-18 cells that a mutant changes: fabricated ones
and the shipped reference records alike.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from fabricated import R18, changed

from artifact.analysis.evidence import Campaign, Cell, cell_of
from artifact.records import Record

FOLD, BASE, XLA, TVM = ((*R18, c) for c in ("inductor-fold", "inductor", "xla", "tvm"))

Alter = Callable[[Record], Record]


@dataclass(frozen=True)
class Mutant:
    """The cells that it needs, what is done to a campaign, and the failures that must name it."""

    cells: tuple[Cell, ...]
    make: Callable[[Campaign], Campaign]
    names: frozenset[str]


def metric_names(cell: Cell, *quantities: str) -> set[str]:
    """Names of a cell's metrics, as bands have them."""
    return {f"{'/'.join(cell)}/{quantity}" for quantity in quantities}


def scaled(compile_cost: float = 1.0, latency: float = 1.0) -> Alter:
    """Other times of a record: of every phase of its own T_C window, and of every execution."""

    def alter(record: Record) -> Record:
        more_ms = (latency - 1.0) * record.latency_ms
        phases = tuple(
            replace(p, duration_ms=p.duration_ms + more_ms)
            if p.name == "first_call"
            else replace(p, duration_ms=p.duration_ms * compile_cost)
            if p.name in record.native.phases
            else p
            for p in record.phases
        )
        return replace(
            record,
            phases=phases,
            warmup_ms=tuple(value * latency for value in record.warmup_ms),
            execution_ms=tuple(value * latency for value in record.execution_ms),
        )

    return alter


def _by_round(campaign: Campaign, cell: Cell) -> dict[int, Record]:
    return {r.spec.round: r for r in campaign.usable if cell_of(r.spec) == cell}


def _altered(campaign: Campaign, alter: Alter, *cells: Cell) -> Campaign:
    """The usable trials of some cells altered; priming and failed attempts stay."""
    usable = {record.spec.record_id for record in campaign.usable}
    return changed(campaign, lambda r: alter(r) if r.spec.record_id in usable else r, *cells)


def _fold_skipped(campaign: Campaign) -> Campaign:
    """The configuration is called inductor-fold, but what was compiled is the base."""
    base = _by_round(campaign, BASE)

    def alter(record: Record) -> Record:
        other = base[record.spec.round]
        facts = {**record.facts, "fold": {"folded": 0}}
        return replace(
            record, phases=other.phases, native=other.native, census=other.census, facts=facts
        )

    return _altered(campaign, alter, FOLD)


def _norms_dropped(campaign: Campaign) -> Campaign:
    """A base model without its BatchNorms: the code of the folded one."""
    fold = _by_round(campaign, FOLD)
    return _altered(campaign, lambda r: replace(r, census=fold[r.spec.round].census), BASE)


def _unfused(campaign: Campaign) -> Campaign:
    def alter(record: Record) -> Record:
        return replace(record, census=replace(record.census, internal=8 * record.census.internal))

    return _altered(campaign, alter, BASE)


def _swapped(campaign: Campaign) -> Campaign:
    """Times and counts of each of two stacks under the other's name."""
    sides = {XLA: _by_round(campaign, TVM), TVM: _by_round(campaign, XLA)}

    def alter(record: Record) -> Record:
        other = sides[cell_of(record.spec)][record.spec.round]
        return replace(
            record,
            phases=other.phases,
            native=other.native,
            warmup_ms=other.warmup_ms,
            execution_ms=other.execution_ms,
            census=other.census,
        )

    return _altered(campaign, alter, XLA, TVM)


def _slowed(factor: float, *cells: Cell) -> Callable[[Campaign], Campaign]:
    return lambda campaign: _altered(campaign, scaled(latency=factor), *cells)


_ITEM = " ".join(R18)

MUTANTS = {
    "fold skipped": Mutant(
        (FOLD, BASE), _fold_skipped, frozenset({f"C5 {_ITEM} BatchNorm", f"C5 {_ITEM} units"})
    ),
    "BatchNorm dropped": Mutant(
        (FOLD, BASE),
        _norms_dropped,
        frozenset({f"C5 {_ITEM} units"} | metric_names(BASE, "code_bytes")),
    ),
    "unfused sold as fused": Mutant(
        (BASE,), _unfused, frozenset(metric_names(BASE, "internal_units"))
    ),
    "warm cache": Mutant(
        (BASE,),
        lambda campaign: _altered(campaign, scaled(compile_cost=0.4), BASE),
        frozenset(metric_names(BASE, "compile_cost_ms")),
    ),
    "stacks swapped": Mutant(
        (XLA, TVM),
        _swapped,
        frozenset(
            {f"C8 {_ITEM} tvm external"}
            | metric_names(XLA, "compile_cost_ms")
            | metric_names(TVM, "compile_cost_ms")
        ),
    ),
    "T_X doubled": Mutant((BASE,), _slowed(2.0, BASE), frozenset(metric_names(BASE, "latency_ms"))),
    "T_X of XLA doubled": Mutant(
        (XLA,), _slowed(2.0, XLA), frozenset(metric_names(XLA, "latency_ms"))
    ),
    "another batch size": Mutant(
        (BASE, FOLD),
        _slowed(15.0, BASE, FOLD),
        frozenset(metric_names(BASE, "latency_ms") | metric_names(FOLD, "latency_ms")),
    ),
}
