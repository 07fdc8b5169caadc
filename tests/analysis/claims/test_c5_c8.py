"""C5 and C8: unit counts, BatchNorms and code size, all integrity."""

from __future__ import annotations

import re
from dataclasses import replace

import fabricated
import pytest
from fabricated import R18, R50, changed

FOLD, BASE = (*R18, "inductor-fold"), (*R18, "inductor")
ITEM = " ".join(R18)


def _facts(**fold):
    return lambda record: replace(record, facts={"fold": {**record.facts["fold"], **fold}})


def _census(**fields):
    return lambda record: replace(record, census=replace(record.census, **fields))


@pytest.mark.parametrize(
    ("alter", "item", "word"),
    [
        (_facts(folded=0), "BatchNorm", "nothing was folded"),
        (_facts(folded=19), "BatchNorm", "19 folded, resnet18 has 20"),
        (_facts(refused=[{"name": "bn1", "reason": "?"}]), "BatchNorm", "1 BatchNorms refused"),
        (_census(external=22), "units", "external units 21 before, 22 after"),
        (_census(code_bytes=200_000), "units", "code_bytes 122012 before, 200000 after"),
        (_census(internal=23), "internal units", "internal units 21 -> 23"),
    ],
)
def test_c5_contradicted(lines, alter, item: str, word: str) -> None:
    found = lines("C5", changed(fabricated.campaign(), alter, FOLD))
    assert found[f"{ITEM} {item}"].verdict == "fails"
    assert word in found[f"{ITEM} {item}"].reason


def test_c5_reads_the_batch_norms_left_in_the_code(lines) -> None:
    """A trial whose own account of the fold is wrong is caught by what was compiled."""
    base = fabricated.read_code(next(r for r in fabricated.records() if _is(r, BASE)))

    def code(record):
        late = _is(record, FOLD) and record.spec.round > 3
        return base if late else fabricated.read_code(record)

    skipped = replace(fabricated.campaign(), read_code=code)
    line = lines("C5", skipped)[f"{ITEM} BatchNorm"]
    assert line.reason == "the folded code names BatchNorm 40 times (rounds 4, 5)"
    assert line.measured == "20 folded, 0 to 40 named in the code (40 before)"


def _is(record, cell) -> bool:
    return (record.spec.model, record.spec.input, record.spec.configuration) == cell


def _once(alter):
    """Only the trial of the third round."""
    return lambda record: alter(record) if record.spec.round == 3 else record


@pytest.mark.parametrize(
    ("alter", "cell", "item", "reason"),
    [
        (
            _census(external=22),
            FOLD,
            "units",
            r"external units 21 before, 22 after \(round 3\)",
        ),
        (
            _census(code_bytes=50_000),
            BASE,
            "units",
            r"code_bytes 50000 before, \d+ after \(round 3\)",
        ),
        (_census(internal=23), FOLD, "internal units", r"internal units 21 -> 23 \(round 3\)"),
    ],
)
def test_c5_one_trial_of_five_is_named(lines, alter, cell, item: str, reason: str) -> None:
    line = lines("C5", changed(fabricated.campaign(), _once(alter), cell))[f"{ITEM} {item}"]
    assert line.verdict == "fails" and re.fullmatch(reason, line.reason)


def test_c5_on_cuda_the_internal_units_are_a_finding(lines) -> None:
    """The paper's own ResNet-50 goes from 50 to 65 units on its GPU."""

    def on_cuda(record):
        return replace(record, spec=replace(record.spec, device="cuda"))

    more = changed(changed(fabricated.campaign(), on_cuda), _census(internal=65), FOLD)
    line = lines("C5", more)[f"{ITEM} internal units"]
    assert (line.kind, line.verdict) == ("C", "not reproduced here")


def _uncounted(record):
    return replace(record, census=None, census_note="not counted: no call")


def test_c5_without_census_fails(lines) -> None:
    line = lines("C5", changed(fabricated.campaign(), _uncounted, FOLD))[f"{ITEM} units"]
    reason = "inductor-fold: not counted: no call (rounds 1, 2, 3, 4, 5)"
    assert (line.verdict, line.reason) == ("fails", reason)
    once = lines("C5", changed(fabricated.campaign(), _once(_uncounted), BASE))
    assert once[f"{ITEM} units"].reason == "inductor: not counted: no call (round 3)"
    assert once[f"{ITEM} units"].measured == "external 21 -> 21, code -26.2 %"
    assert once[f"{ITEM} internal units"].verdict == "holds"


def _codeless(record):
    return replace(record, code_files=())


@pytest.mark.parametrize(
    ("campaign", "reason"),
    [
        (
            lambda: changed(fabricated.campaign(), _once(_codeless), FOLD),
            "inductor-fold: no generated code is named (round 3)",
        ),
        (
            lambda: replace(fabricated.campaign(), read_code=lambda record: {}),
            "inductor: no generated code is stored; inductor-fold: no generated code is stored",
        ),
    ],
)
def test_c5_without_the_generated_code_fails(lines, campaign, reason: str) -> None:
    line = lines("C5", campaign())[f"{ITEM} BatchNorm"]
    assert (line.verdict, line.reason) == ("fails", reason)


def test_c5_cells_that_share_no_round_fail(lines) -> None:
    def rounds(*kept):
        return lambda record: record if record.spec.round in kept else None

    apart = changed(changed(fabricated.campaign(), rounds(1, 2), BASE), rounds(3, 4), FOLD)
    line = lines("C5", apart)[f"{ITEM} units"]
    assert (line.verdict, line.reason) == ("fails", "no round has a trial of both")


@pytest.mark.parametrize(
    ("cell", "item", "word"),
    [
        ((*R18, "inductor"), "inductor external", "22"),
        ((*R50, "tvm"), "tvm external", "22"),
    ],
)
def test_c8_any_other_count_contradicts(lines, cell, item: str, word: str) -> None:
    other = changed(fabricated.campaign(), _census(external=22), cell)
    line = lines("C8", other)[f"{' '.join(cell[:2])} {item}"]
    assert line.verdict == "fails" and line.measured == word


def test_c8_one_trial_of_five_that_differs_is_named(lines) -> None:
    other = changed(fabricated.campaign(), _once(_census(external=20)), BASE)
    line = lines("C8", other)[f"{ITEM} inductor external"]
    assert line.reason == "20 external units (round 3)"
    assert line.measured == "20, 21"


def test_c8_without_census_fails(lines) -> None:
    line = lines("C8", changed(fabricated.campaign(), _once(_uncounted), BASE))
    assert line[f"{ITEM} inductor external"].verdict == "fails"
    assert line[f"{ITEM} inductor external"].reason == "not counted: no call (round 3)"


def test_c8_counts_the_convolutions_of_xla_in_every_stored_text(lines) -> None:
    found = lines("C8", fabricated.campaign())
    assert found[f"{ITEM} xla convolutions"].measured == "20"

    def code(record):
        swapped = _is(record, (*R18, "xla")) and record.spec.round == 3
        other = {"program.xz": fabricated.text_of("hlo_resnet50.txt.xz")}
        return other if swapped else fabricated.read_code(record)

    line = lines("C8", replace(fabricated.campaign(), read_code=code))[f"{ITEM} xla convolutions"]
    assert line.verdict == "fails" and line.measured == "20, 53"
    assert line.reason == "53 library-backed convolutions (round 3)"


@pytest.mark.parametrize(
    ("texts", "word"),
    [({}, "no generated code is stored"), ({"x": "not HLO"}, "holds no HLO module")],
)
def test_c8_without_a_text_that_can_be_counted_fails(lines, texts, word: str) -> None:
    blind = replace(fabricated.campaign(), read_code=lambda record: texts)
    line = lines("C8", blind)[f"{ITEM} xla convolutions"]
    assert line.verdict == "fails" and word in line.reason
