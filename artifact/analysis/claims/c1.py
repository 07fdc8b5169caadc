"""C1: every cell has K cold, isolated trials of the full protocol (paper, protocol)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

from artifact.analysis.claims.line import INTEGRITY, Line, integrity
from artifact.analysis.evidence import (
    UNCOMPILED,
    Campaign,
    Cell,
    Evidence,
    cell_of,
    mixtures,
    untrusted,
    verified_words,
)
from artifact.records import Record
from artifact.study import image_of

KIND = INTEGRITY
TITLE = "K cold, isolated trials a cell, full protocol, one lock and one boot a block"
NEEDS = "a campaign with a plan"

PUBLISHED = "K = 5, 10 + 50"

#: Counters of this kind must read 0 after the executions of a cold trial.
_MUST_BE_ZERO = ("hit", "hits", "graph_breaks", "recompiles", "precompiled_headers_before")

#: Stacks whose framework counts hits and misses; a proof without counters read nothing. TVM counts
#: nothing: it has no compile cache.
_COUNTING_STACKS = ("inductor", "xla")


def evaluate(evidence: Evidence) -> list[Line]:
    """One line for each check; each names every fault that it found."""
    campaign = evidence.campaign
    if campaign is None or not (campaign.planned or campaign.records or campaign.broken):
        return []
    usable = campaign.usable
    trials = f"{len(usable)} of {len(campaign.planned)} trials"
    return [
        integrity(
            "trials",
            trial_faults(campaign),
            measured=trials,
            band="K of K usable trials in every planned cell, distinct process ids",
            published=PUBLISHED,
        ),
        integrity(
            "protocol",
            [fault for record in usable for fault in protocol_faults(campaign, record)],
            measured=_protocols(usable),
            band="warm-ups and executions as planned, finite and positive",
            published=PUBLISHED,
        ),
        integrity(
            "cold",
            [fault for record in usable for fault in cold_faults(record)],
            measured=f"{len(usable)} trials",
            band="caches empty before, hit counters 0 after, one graph compiled",
        ),
        integrity(
            "pooling",
            [*mixtures(campaign), *block_faults(usable)],
            measured=f"{len({_block(r) for r in usable})} blocks",
            band="one version of everything, one lock and one boot a block",
        ),
        integrity(
            "files",
            untrusted(campaign),
            measured=verified_words(campaign),
            band="every record is in checksums.txt and is what was written",
        ),
    ]


def trial_faults(campaign: Campaign) -> list[str]:
    """Cells with too few usable trials, trials measured twice or never planned, shared ids."""
    by_cell: dict[Cell, list[Record]] = {}
    for record in campaign.usable:
        by_cell.setdefault(cell_of(record.spec), []).append(record)
    faults = []
    for cell, planned in campaign.planned_trials.items():
        records = by_cell.get(cell, [])
        if len({r.spec.round for r in records}) < planned and cell not in campaign.unsupported:
            faults.append(f"{' '.join(cell)}: {len(records)} of {planned}{_why(campaign, cell)}")
    for cell, records in by_cell.items():
        twice = _twice(record.spec.round for record in records)
        faults += [f"{' '.join(cell)}: round {number} twice" for number in twice]
    faults += [f"process id {i} used twice" for i in _twice(_process_ids(campaign.records))]
    faults += [f"{r.spec.record_id}: no process id" for r in campaign.usable if not _has_id(r)]
    strangers = [r for r in campaign.usable if r.spec.trial_id not in campaign.planned]
    return faults + [f"{record.spec.trial_id}: not in the plan" for record in strangers]


def _why(campaign: Campaign, cell: Cell) -> str:
    """How the cell's other attempts ended; a debug record is named as such (case K8)."""
    others: Counter[str] = Counter()
    for record in campaign.records:
        if cell_of(record.spec) == cell and record.spec.role == "measured" and not record.pooled:
            flags = ", ".join(record.debug_flags)
            others[f"with {flags}, left out" if record.status == "ok" else record.status] += 1
    named = ", ".join(f"{count} {status}" for status, count in sorted(others.items()))
    return f" ({named})" if named else ""


def _process_ids(records: Iterable[Record]) -> list[str]:
    """Of every attempt that got as far as a process, whatever its role and its end."""
    return [_process_id(record) for record in records if _has_id(record)]


def _has_id(record: Record) -> bool:
    return record.identity.process_id != ""


def _process_id(record: Record) -> str:
    """The container's id; a bare process id may come back, so its start belongs to it."""
    made = record.identity
    return (
        f"{made.process_id} ({made.started_utc})" if made.engine == "process" else made.process_id
    )


def _twice(values: Iterable[object]) -> list[object]:
    return [value for value, count in Counter(values).items() if count > 1]


def protocol_faults(campaign: Campaign, record: Record) -> list[str]:
    """Deviations of one record from the trial that was planned."""
    spec, name = record.spec, record.spec.record_id
    faults = []
    planned = campaign.planned.get(spec.trial_id)
    if planned is not None and planned.again(spec.attempt, spec.block_run) != spec:
        faults.append(f"{name}: ran another trial than the one planned")
    wanted = planned or spec
    counts = (len(record.warmup_ms), len(record.execution_ms))
    if counts != (wanted.warmups, wanted.executions):
        expected = f"{wanted.warmups} + {wanted.executions}"
        faults.append(f"{name}: {counts[0]} + {counts[1]} executions, planned {expected}")
    times = (*record.warmup_ms, *record.execution_ms)
    if any(not (math.isfinite(value) and value > 0) for value in times):
        faults.append(f"{name}: an execution is no positive time")
    return faults


def _protocols(records: Iterable[Record]) -> str:
    found = {f"{len(r.warmup_ms)} + {len(r.execution_ms)}" for r in records}
    return ", ".join(sorted(found)) or "nothing"


def cold_faults(record: Record) -> list[str]:
    """Signs that a trial was not cold, or that nobody looked: filled folders, cache hits, its own
    violations; no folder or counter read, another number of graphs compiled than one."""
    name, proof = record.spec.record_id, record.cold
    if proof is None:
        return [f"{name}: no cold proof"]
    faults = [f"{key} held {n} entries" for key, n in proof.directories.items() if n]
    faults += [
        f"{key} is {n}"
        for key, n in proof.counters.items()
        if n and key.rpartition(".")[2].endswith(_MUST_BE_ZERO)
    ]
    faults += proof.violations
    if not proof.directories:
        faults.append("no cache folder was looked at")
    if record.spec.stack in _COUNTING_STACKS and not proof.counters:
        faults.append("no counter was read")
    if record.spec.stack not in UNCOMPILED and proof.compiled_graphs != 1:
        faults.append(f"{proof.compiled_graphs} graphs compiled, expected 1")
    return [f"{name}: {fault}" for fault in faults]


def _block(record: Record) -> tuple[str, int]:
    return record.spec.block_id, record.spec.block_run


def block_faults(records: Iterable[Record]) -> list[str]:
    """Blocks whose trials ran in several boots, or with several locks of one image."""
    boots: dict[str, set[str]] = {}
    locks: dict[str, set[str]] = {}
    for record in records:
        block = record.spec.block_id
        boots.setdefault(block, set()).add(record.identity.boot_id)
        key = f"{block}, {image_of(record.spec.stack)}"
        locks.setdefault(key, set()).add(record.identity.lock_hash)
    return [f"{b}: {len(ids)} boots" for b, ids in boots.items() if len(ids) > 1] + [
        f"{key}: {len(hashes)} lock hashes" for key, hashes in locks.items() if len(hashes) > 1
    ]
