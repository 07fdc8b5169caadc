"""Which trials were disturbed (DESIGN: noise). Noisy trials are kept; verdicts are given twice."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median

from artifact.host.store import Calibration
from artifact.records import Record

STEAL_LIMIT = 0.02
CALIBRATION_LIMIT = 0.10

BlockKey = tuple[str, int]


def calibration_medians(calibrations: Sequence[Calibration]) -> dict[str, float]:
    """The campaign's median of each calibration number, in ms."""
    names = sorted({name for c in calibrations for name in c.values})
    return {n: median(c.values[n] for c in calibrations if n in c.values) for n in names}


def deviations(calibration: Calibration, medians: Mapping[str, float]) -> dict[str, float]:
    """Relative distance of each number from the campaign's median (0.1 = 10 % slower)."""
    return {n: v / medians[n] - 1.0 for n, v in calibration.values.items() if n in medians}


def reasons(record: Record, calibrations: Sequence[Calibration]) -> tuple[str, ...]:
    """Why this trial counts as noisy; empty when it does not.

    Noisy: more than 2 % steal, throttled by a CPU quota, or a calibration of its block more than
    10 % off the campaign's median, in either direction. `calibrations` are the whole campaign's.
    """
    own = [c for c in calibrations if (c.block_id, c.block_run) == block_key(record)]
    return (*seen_in(record), *off_in(own, calibration_medians(calibrations)))


def seen_in(record: Record) -> tuple[str, ...]:
    """The reasons that the trial's own telemetry gives."""
    found = []
    seen = record.telemetry
    if seen is not None and seen.steal_fraction is not None and seen.steal_fraction > STEAL_LIMIT:
        found.append(f"steal {seen.steal_fraction:.1%}")
    if seen is not None and seen.throttled_ms is not None and seen.throttled_ms > 0:
        found.append(f"throttled for {seen.throttled_ms:.0f} ms")
    return tuple(found)


def off_in(own: Sequence[Calibration], medians: Mapping[str, float]) -> tuple[str, ...]:
    """The reasons that a block's `own` calibrations give, against the campaign's medians."""
    return tuple(reason for calibration in own for reason in _off(calibration, medians))


def _off(calibration: Calibration, medians: Mapping[str, float]) -> list[str]:
    return [
        f"calibration {name} {part:+.0%} off the campaign's median"
        for name, part in sorted(deviations(calibration, medians).items())
        if math.fabs(part) > CALIBRATION_LIMIT
    ]


def block_key(record: Record) -> BlockKey:
    """The block, and which run of it, that a record belongs to."""
    return record.spec.block_id, record.spec.block_run
