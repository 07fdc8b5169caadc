"""Claims are found by file name, in the paper's order, and say only the agreed words."""

from __future__ import annotations

import fabricated
import pytest

from artifact.analysis import claims
from artifact.analysis.claims.line import FINDING, INTEGRITY, Line
from artifact.analysis.evidence import evidence_of

TOY = """
from artifact.analysis.claims.line import FINDING, REPRODUCED, Line
KIND, TITLE, NEEDS = FINDING, "a toy", "nothing"
def evaluate(evidence):
    return [Line("toy", FINDING, REPRODUCED, str(len(evidence.cells)), "any")]
"""


def test_the_claims_of_the_paper_in_their_order() -> None:
    assert [claim.id for claim in claims.load_all()][:8] == [f"C{n}" for n in range(1, 9)]


def test_a_new_claim_is_one_new_file_and_sorts_behind(tmp_path, monkeypatch) -> None:
    (tmp_path / "x42.py").write_text(TOY, encoding="utf-8")
    (tmp_path / "xylophone.py").write_text("raise RuntimeError", encoding="utf-8")
    monkeypatch.setattr(claims, "__path__", [*claims.__path__, str(tmp_path)])
    added = claims.load_all()[-1]
    assert (added.id, added.title) == ("X42", "a toy")
    (line,) = added.evaluate(evidence_of(fabricated.campaign()))
    assert line.measured == "19"


def test_every_claim_holds_on_the_fabricated_campaign(lines) -> None:
    """The base of every mutant: if this did not hold, a failing mutant would prove nothing."""
    found = {
        claim.id: {line.verdict for line in lines(claim.id, fabricated.campaign()).values()}
        for claim in claims.load_all()
        if claim.id.startswith("C")
    }
    assert found == {
        "C1": {"holds"},
        "C2": {"reproduced"},
        "C3": {"reproduced"},
        "C4": {"reproduced"},
        "C5": {"holds"},
        "C6": {"holds", "reproduced"},
        "C7": {"reproduced", "not comparable"},
        "C8": {"holds"},
    }


@pytest.mark.parametrize(("kind", "word"), [(INTEGRITY, "reproduced"), (FINDING, "holds")])
def test_integrity_and_findings_have_their_own_words(kind: str, word: str) -> None:
    with pytest.raises(ValueError, match="is not one of"):
        Line("item", kind, word, "", "")
