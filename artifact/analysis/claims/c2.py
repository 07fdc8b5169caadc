"""C2: the fold lowers Inductor's compile cost, its own time included (paper, ResNet tables)."""

from __future__ import annotations

from artifact.analysis import published
from artifact.analysis.claims.line import FINDING, INCONCLUSIVE, NOT_REPRODUCED, REPRODUCED, Line
from artifact.analysis.claims.ratios import fixed_cost_ms, power, text
from artifact.analysis.evidence import Evidence
from artifact.analysis.stats import PairedRatio

KIND = FINDING
TITLE = "the fold lowers Inductor's T_C, fold time included"
NEEDS = "ResNet-18 or ResNet-50 at 1x3x224x224 with inductor and inductor-fold"

BLOCKS = (("resnet18", "1x3x224x224"), ("resnet50", "1x3x224x224"))
BAND = "upper r(T_C fold + fold_ms / base) < 1"


def evaluate(evidence: Evidence) -> list[Line]:
    """One line for each of the two measured blocks."""
    return [
        _line(evidence, block)
        for block in evidence.blocks("resnet", "inductor", "inductor-fold")
        if block in BLOCKS
    ]


def _line(evidence: Evidence, block: tuple[str, str]) -> Line:
    ratio = evidence.ratio((*block, "inductor-fold"), (*block, "inductor"), fixed_cost_ms)
    item = " ".join(block)
    if isinstance(ratio, str):
        return Line(item, FINDING, INCONCLUSIVE, "", BAND, ratio, published_ratio(block))
    verdict, reason = _judge(ratio)
    return Line(item, FINDING, verdict, text(ratio), BAND, reason, published_ratio(block), ratio)


def _judge(ratio: PairedRatio) -> tuple[str, str]:
    if ratio.low is None or ratio.high is None:
        return INCONCLUSIVE, f"no interval: {ratio.reason}"
    if ratio.high < 1:
        return REPRODUCED, ""
    if ratio.low > 1:
        return NOT_REPRODUCED, "the fold raises T_C, resolved"
    return INCONCLUSIVE, f"the interval holds 1; {power(ratio)}"


def published_ratio(block: tuple[str, str], family: str = "fixed_cost_including_fold") -> str:
    """The paper's ratio of means for a block, or nothing where it has none."""
    for row in published.welch_rows():
        if (row.family, row.model, row.input) == (family, *block):
            return f"{row.fold_mean / row.base_mean:.3f}"
    return ""
