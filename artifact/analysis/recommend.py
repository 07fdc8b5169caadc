"""Which configuration is cheapest for n executions of one cell, and how sure that is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from artifact.analysis.cost import (
    BreakEven,
    CostError,
    ProcessPoint,
    Range,
    Recommendation,
    break_even,
    mean_line,
)
from artifact.analysis.cost import recommend as cheapest
from artifact.analysis.evidence import (
    ROUND_OFFSET,
    Campaign,
    Cell,
    Evidence,
    evidence_of,
    why_unusable,
)
from artifact.analysis.stats import StatsError
from artifact.errors import UserError
from artifact.records import BOUNDARIES

EAGER = "eager"


@dataclass(frozen=True)
class Advice:
    """The recommendation for one cell, where it comes from, and what limits it.

    `source` names the records; `other_machine` says whose they are when not this machine's.
    `left_out` are configurations without usable values; `bindings` the binding of each.
    """

    model: str
    input: str
    boundary: str
    found: Recommendation
    against_eager: BreakEven | None
    source: str
    other_machine: str
    processes: Mapping[str, int]
    bindings: Mapping[str, str]
    left_out: tuple[str, ...]


def measured_here(campaign: Campaign, model: str, shape: str) -> bool:
    """True when the campaign has usable trials of this (model, input)."""
    return any((r.spec.model, r.spec.input) == (model, shape) for r in campaign.usable)


def advise(
    campaign: Campaign,
    model: str,
    shape: str,
    executions: float,
    boundary: str,
    *,
    source: str,
    other_machine: str = "",
) -> Advice:
    """Recommend from one campaign; records that may not be pooled, and files that are not what was
    written, are a `UserError`."""
    if boundary not in BOUNDARIES:
        raise UserError(f"unknown boundary {boundary!r}", next_step=f"use {', '.join(BOUNDARIES)}")
    faults = why_unusable(campaign)
    if faults:
        raise UserError(f"the records of {source} may not be pooled: {'; '.join(faults)}")
    evidence = evidence_of(campaign)
    points, left_out = _points(evidence, model, shape, boundary)
    if not points:
        known = sorted({f"{m} {s}" for m, s, _ in evidence.cells})
        raise UserError(
            f"{source} holds no usable trial of {model} {shape}",
            next_step=f"measured there: {', '.join(known) or 'nothing'}",
        )
    try:
        found = cheapest(points, executions)
    except CostError as error:
        raise UserError(str(error)) from error
    against = None
    if EAGER in points and found.name != EAGER:
        against = break_even(mean_line(points[found.name]), mean_line(points[EAGER]))
    return Advice(
        model=model,
        input=shape,
        boundary=boundary,
        found=found,
        against_eager=against,
        source=source,
        other_machine=other_machine,
        processes={name: len(values) for name, values in points.items()},
        bindings={name: evidence.first((model, shape, name)).spec.binding for name in points},
        left_out=tuple(left_out),
    )


def _points(
    evidence: Evidence, model: str, shape: str, boundary: str
) -> tuple[dict[str, Sequence[ProcessPoint]], list[str]]:
    points: dict[str, Sequence[ProcessPoint]] = {}
    left_out = []
    boots = _boots(evidence, model, shape)
    for cell in sorted(evidence.cells):
        if cell[:2] == (model, shape):
            try:
                points[cell[2]] = _cell_points(evidence, cell, boundary, boots)
                mean_line(points[cell[2]])
            except (StatsError, CostError) as error:
                points.pop(cell[2], None)
                left_out.append(f"{cell[2]} ({error})")
    return points, left_out


def _boots(evidence: Evidence, model: str, shape: str) -> list[str]:
    """The boots in which the configurations of one cell ran, in name order."""
    cells = [cell for cell in evidence.cells if cell[:2] == (model, shape)]
    return sorted({t.record.identity.boot_id for cell in cells for t in evidence.trials(cell)})


def _cell_points(
    evidence: Evidence, cell: Cell, boundary: str, boots: Sequence[str]
) -> list[ProcessPoint]:
    """The cell's processes; rounds of different boots get numbers that never pair (DESIGN)."""
    return [
        replace(
            process.point(boundary),
            round=trial.round + ROUND_OFFSET * boots.index(trial.record.identity.boot_id),
        )
        for trial, process in zip(evidence.trials(cell), evidence.processes(cell), strict=True)
    ]


def render(advice: Advice) -> str:
    """The advice as a few plain lines."""
    found = advice.found
    lines = [
        f"{advice.model} {advice.input}, n = {found.executions:g} executions: {found.name}, "
        f"{found.total_ms:.0f} ms in total (T_C + n T_X)",
        _runner_up(found),
        f"the answer holds for {_range(found.holds)}",
        f"boundary {advice.boundary}; processes: "
        + ", ".join(f"{name} {n}" for name, n in sorted(advice.processes.items())),
        f"records: {advice.source}",
    ]
    if advice.other_machine:
        lines.append(f"these are another machine's records ({advice.other_machine})")
    if advice.against_eager is not None:
        lines.append(_against_eager(found.name, advice.against_eager))
    if found.runner_up and advice.bindings[found.name] != advice.bindings[found.runner_up]:
        lines.append(
            f"contracts differ: {found.name} has {advice.bindings[found.name]} weights, "
            f"{found.runner_up} {advice.bindings[found.runner_up]} ones"
        )
    lines += [f"left out: {name}" for name in advice.left_out]
    return "\n".join(lines) + "\n"


def _runner_up(found: Recommendation) -> str:
    if found.runner_up is None:
        return f"no runner-up: {found.reason}"
    if found.ratio is None:
        return f"runner-up {found.runner_up}; no ratio: {found.reason}"
    ratio = found.ratio
    text = f"runner-up {found.runner_up}; total time {found.name} / {found.runner_up} = "
    if ratio.low is None or ratio.high is None:
        return f"{text}{ratio.ratio:.3f}, no interval: {ratio.reason}"
    sure = "resolved" if ratio.high < 1 else "not resolved: the two may be equal"
    return f"{text}{ratio.ratio:.3f} [{ratio.low:.3f}, {ratio.high:.3f}] (95 %), {sure}"


def _range(holds: Range) -> str:
    if holds.to_n is None:
        return f"n >= {holds.from_n:.0f}"
    return f"{holds.from_n:.0f} <= n <= {holds.to_n:.0f}"


def _against_eager(name: str, answer: BreakEven) -> str:
    words = {
        "always": f"{name} is cheaper than eager from the first execution on",
        "from-n": f"{name} is cheaper than eager from n = {answer.n or 0:.0f} on",
        "until-n": f"{name} is cheaper than eager up to n = {answer.n or 0:.0f}",
        "never": f"{name} is never cheaper than eager",
        "tie": f"{name} and eager cost the same",
    }
    return words.get(answer.verdict, f"against eager: unknown ({answer.reason})")
