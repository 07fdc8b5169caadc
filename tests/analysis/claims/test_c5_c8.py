"""C5 and C8: unit counts, BatchNorms and code size, all integrity."""

from __future__ import annotations

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
        return base if _is(record, FOLD) else fabricated.read_code(record)

    skipped = replace(fabricated.campaign(), read_code=code)
    line = lines("C5", skipped)[f"{ITEM} BatchNorm"]
    assert line.reason == "the folded code names BatchNorm 40 times"


def _is(record, cell) -> bool:
    return (record.spec.model, record.spec.input, record.spec.configuration) == cell


def test_c5_on_cuda_the_internal_units_are_a_finding(lines) -> None:
    """The paper's own ResNet-50 goes from 50 to 65 units on its GPU."""

    def on_cuda(record):
        return replace(record, spec=replace(record.spec, device="cuda"))

    more = changed(changed(fabricated.campaign(), on_cuda), _census(internal=65), FOLD)
    line = lines("C5", more)[f"{ITEM} internal units"]
    assert (line.kind, line.verdict) == ("C", "not reproduced here")


def test_c5_without_census_is_not_measured(lines) -> None:
    blind = changed(
        fabricated.campaign(),
        lambda r: replace(r, census=None, census_note="not counted: no call"),
        FOLD,
    )
    line = lines("C5", blind)[f"{ITEM} units"]
    assert (line.verdict, line.reason) == ("not measured", "not counted: no call")


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
    def once(record):
        return _census(external=20)(record) if record.spec.round == 3 else record

    line = lines("C8", changed(fabricated.campaign(), once, BASE))[f"{ITEM} inductor external"]
    assert line.reason == "r3.resnet18.1x3x224x224.inductor.b1.a1: 20"
    assert line.measured == "20, 21"


def test_c8_counts_the_convolutions_of_xla_in_the_stored_text(lines) -> None:
    found = lines("C8", fabricated.campaign())
    assert found[f"{ITEM} xla convolutions"].measured == "20"
    swapped = replace(
        fabricated.campaign(),
        read_code=lambda r: {"program.xz": fabricated.text_of("hlo_resnet50.txt.xz")},
    )
    line = lines("C8", swapped)[f"{ITEM} xla convolutions"]
    assert (line.verdict, line.reason) == ("fails", "53 library-backed convolutions")


@pytest.mark.parametrize(
    ("texts", "word"),
    [({}, "no generated code is stored"), ({"x": "not HLO"}, "holds no HLO module")],
)
def test_c8_without_a_text_that_can_be_counted(lines, texts, word: str) -> None:
    blind = replace(fabricated.campaign(), read_code=lambda record: texts)
    line = lines("C8", blind)[f"{ITEM} xla convolutions"]
    assert line.verdict == "not measured" and word in line.reason
