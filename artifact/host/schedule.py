"""What is left to run: a pure function of the plan, the records on disk and the machine's boot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from artifact.plan import Block, Plan, TrialSpec
from artifact.records import Record
from artifact.strict_json import to_plain

#: A trial with one of these statuses is finished; every other one is tried again, by this session
#: until its attempts are used up, and by every later one.
FINAL_STATUSES = ("ok", "unsupported")


@dataclass(frozen=True)
class BlockRun:
    """The part of a block that is to be run; each trial carries its next attempt number."""

    block_id: str
    block_run: int
    trials: tuple[TrialSpec, ...]


def is_finished(attempts: Sequence[Record]) -> bool:
    """True when one of a trial's attempts gave its result."""
    return any(r.status in FINAL_STATUSES for r in attempts)


def remaining_blocks(plan: Plan, records: Sequence[Record], boot_id: str) -> list[BlockRun]:
    """Blocks in plan order with the trials that have no result yet.

    A trial that an earlier session gave up is among them, its attempts numbered onwards, so that
    nothing on disk is overwritten. A block that is incomplete and has records of another boot is
    run again as a whole, as the next `block_run`: trials of different boots are never paired.
    """
    left = [_remaining(block, records, boot_id) for block in plan.blocks]
    return [run for run in left if run.trials]


def _remaining(block: Block, records: Sequence[Record], boot_id: str) -> BlockRun:
    own = [r for r in records if r.spec.role == "measured" and r.spec.block_id == block.block_id]
    run = max((r.spec.block_run for r in own), default=1)
    current = [r for r in own if r.spec.block_run == run]
    missing = _missing(block.trials, current, run)
    if missing and any(r.identity.boot_id != boot_id for r in current):
        run += 1
        missing = tuple(spec.again(1, run) for spec in block.trials)
    return BlockRun(block.block_id, run, missing)


def remaining_priming(plan: Plan, records: Sequence[Record], boot_id: str) -> list[TrialSpec]:
    """Priming trials that this boot has not seen yet: the page cache does not survive a boot."""
    left = []
    for spec in plan.priming:
        own = [r for r in records if r.spec.trial_id == spec.trial_id]
        if not any(r.identity.boot_id == boot_id for r in own):
            left.append(spec.again(1, max((r.spec.block_run for r in own), default=0) + 1))
    return left


def _missing(
    trials: Sequence[TrialSpec], records: Sequence[Record], run: int
) -> tuple[TrialSpec, ...]:
    missing = []
    for spec in trials:
        own = [r for r in records if r.spec.trial_id == spec.trial_id]
        if not is_finished(own):
            missing.append(spec.again(max((r.spec.attempt for r in own), default=0) + 1, run))
    return tuple(missing)


def foreign(plan: Plan, records: Sequence[Record]) -> list[Record]:
    """Records whose trial is not one of this plan's, or was changed after it was planned."""
    planned = {spec.trial_id: spec for spec in (*plan.priming, *plan.trials())}
    return [record for record in records if not _is_planned(record.spec, planned)]


def _is_planned(ran: TrialSpec, planned: Mapping[str, TrialSpec]) -> bool:
    spec = planned.get(ran.trial_id)
    return spec is not None and to_plain(spec.again(ran.attempt, ran.block_run)) == to_plain(ran)
