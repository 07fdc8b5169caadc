"""Verdicts that rest on a ratio paired by round: predicates on the ends of its interval."""

from __future__ import annotations

from artifact.analysis.claims.line import (
    FINDING,
    INCONCLUSIVE,
    NOT_MEASURED,
    NOT_REPRODUCED,
    REPRODUCED,
    Line,
)
from artifact.analysis.estimates import ProcessValues
from artifact.analysis.stats import PairedRatio


def latency_ms(process: ProcessValues) -> float:
    """T_X of one process."""
    return process.latency_ms


def compile_cost_ms(process: ProcessValues) -> float:
    """T_C in the paper's window, fold left out."""
    return process.compile_cost_ms["native"]


def fixed_cost_ms(process: ProcessValues) -> float:
    """T_C in the paper's window with the fold time in it."""
    return process.fixed_cost_ms("native")


def text(ratio: PairedRatio) -> str:
    """The ratio as the table shows it."""
    return f"{ratio.ratio:.3f} (n = {ratio.n})"


def at_most(ratio: PairedRatio, limit: float) -> tuple[str, str]:
    """(verdict, reason) of "upper end <= limit", contradicted when the lower end is above it."""
    if ratio.low is None or ratio.high is None:
        return INCONCLUSIVE, f"no interval: {ratio.reason}"
    if ratio.high <= limit:
        return REPRODUCED, ""
    if ratio.low > limit:
        return NOT_REPRODUCED, f"the whole interval lies above {limit:g}"
    return INCONCLUSIVE, f"the interval holds {limit:g}; {power(ratio)}"


def power(ratio: PairedRatio) -> str:
    """Tells "no effect" from "too little power": what this design could have resolved."""
    if ratio.resolvable_ratio is None:
        return "what could be resolved is unknown"
    up, down = ratio.resolvable_ratio, 1 / ratio.resolvable_ratio
    return f"this design resolves ratios below {down:.3f} or above {up:.3f}"


def at_most_line(
    item: str, ratio: PairedRatio | str, limit: float, band: str, published: str = ""
) -> Line:
    """A finding "upper end of r <= limit"; a ratio that is words becomes "not measured"."""
    if isinstance(ratio, str):
        return Line(item, FINDING, NOT_MEASURED, "", band, ratio, published)
    verdict, reason = at_most(ratio, limit)
    return Line(item, FINDING, verdict, text(ratio), band, reason, published, ratio)
