"""Helpers of the claims' tests: one claim evaluated on a fabricated campaign."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from artifact.analysis import claims
from artifact.analysis.claims.line import Line
from artifact.analysis.evidence import Campaign, evidence_of

Lines = dict[str, Line]


@pytest.fixture
def lines() -> Callable[[str, Campaign], Lines]:
    """`lines("C2", campaign)` -> the claim's lines by item."""
    loaded = {claim.id: claim for claim in claims.load_all()}

    def evaluate(claim: str, campaign: Campaign) -> Lines:
        return {line.item: line for line in loaded[claim].evaluate(evidence_of(campaign))}

    return evaluate
