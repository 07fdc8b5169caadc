"""C6: the audit of BERT, its control, and the normalised code."""

from __future__ import annotations

from dataclasses import replace

import fabricated
import pytest
from fabricated import BERT, changed, scaled

from artifact.analysis.claims.normalised_code import first_difference, normalised

CONTROL, ITEM = (*BERT, "inductor-control"), " ".join(BERT)


def _audit(value):
    return lambda record: replace(record, facts={"audit": value} if value is not None else {})


@pytest.mark.parametrize(
    ("audit", "verdict", "word"),
    [
        ({"sites": 25, "legal": 1, "unmatched": 0}, "fails", "legal is 1, expected 0"),
        ({"sites": 25, "legal": 0, "unmatched": 2}, "fails", "unmatched is 2, expected 0"),
        ({"sites": 0, "legal": 0, "unmatched": 0}, "fails", "sites is 0, expected 25"),
        ({"sites": 25, "legal": False, "unmatched": 0}, "fails", "legal is False"),
        ({"legal": 0, "unmatched": 0}, "fails", "sites is None"),
        ("0 of 25", "fails", "the audit is no object"),
        (None, "fails", "r1.bert.1x64.inductor-control.b1.a1: no audit is stored"),
    ],
)
def test_the_audit(lines, audit, verdict: str, word: str) -> None:
    line = lines("C6", changed(fabricated.campaign(), _audit(audit), CONTROL))[f"{ITEM} audit"]
    assert line.verdict == verdict and word in line.reason


def test_every_control_trial_needs_its_own_audit(lines) -> None:
    def once(record):
        return replace(record, facts={}) if record.spec.round == 2 else record

    line = lines("C6", changed(fabricated.campaign(), once, CONTROL))[f"{ITEM} audit"]
    assert line.reason == "r2.bert.1x64.inductor-control.b1.a1: no audit is stored"
    assert (line.verdict, line.measured) == ("fails", "0 legal of 25, 0 unmatched")


def test_the_published_values_are_shown(lines) -> None:
    found = lines("C6", fabricated.campaign())
    shown = {item.removeprefix(f"{ITEM} "): line.published for item, line in found.items()}
    # 9372.677591 / 9421.895557 ms and 3.398809 / 3.334578 ms
    assert shown == {"audit": "0 of 25", "code": "", "T_C": "0.995", "T_X": "1.019"}
    small = lines("C6", fabricated.campaign(profile="smoke"))
    assert {line.published for line in small.values()} == {""}


def test_a_two_layer_bert_has_five_sites(lines) -> None:
    found = lines("C6", fabricated.campaign(profile="smoke"))
    assert found["bert-2layer 1x64 audit"].measured == "0 legal of 5, 0 unmatched"
    assert found["bert-2layer 1x64 audit"].verdict == "holds"


def test_different_code_of_the_control_is_named(lines) -> None:
    def code(record):
        texts = dict(fabricated.read_code(record))
        if record.spec.configuration == "inductor-control" and record.spec.round == 2:
            texts = {name: text.replace("16L", "17L", 1) for name, text in texts.items()}
        return texts

    line = lines("C6", replace(fabricated.campaign(), read_code=code))[f"{ITEM} code"]
    assert line.verdict == "fails"
    assert line.reason.startswith("round 2: line ") and "17L" in line.reason
    assert line.measured.startswith("4 of 5 equal")


def test_one_code_copy_a_cell_is_enough(lines) -> None:
    """As shipped references hold it: the copies need not be of one round."""

    def code(record):
        kept = 1 if record.spec.configuration == "inductor" else 4
        return fabricated.read_code(record) if record.spec.round == kept else {}

    line = lines("C6", replace(fabricated.campaign(), read_code=code))[f"{ITEM} code"]
    assert line.verdict == "holds" and line.measured.startswith("1 of 1 equal")


def test_no_code_fails(lines) -> None:
    blind = replace(fabricated.campaign(), read_code=lambda record: {})
    line = lines("C6", blind)[f"{ITEM} code"]
    words = "inductor: no generated code is stored; inductor-control: no generated code is stored"
    assert (line.verdict, line.reason) == ("fails", words)

    def once(record):
        return replace(record, code_files=()) if record.spec.round == 2 else record

    line = lines("C6", changed(fabricated.campaign(), once, CONTROL))[f"{ITEM} code"]
    assert line.reason == "inductor-control: no generated code is named (round 2)"


@pytest.mark.parametrize(
    ("scale", "item", "verdict"),
    [
        (scaled(1.3), "T_C", "not reproduced here"),
        (scaled(1.1), "T_C", "inconclusive"),
        (scaled(latency=1.08), "T_X", "not reproduced here"),
        (scaled(latency=0.93), "T_X", "not reproduced here"),
        (scaled(latency=1.05), "T_X", "inconclusive"),
    ],
)
def test_equivalence_of_the_control(lines, scale, item: str, verdict: str) -> None:
    found = lines("C6", changed(fabricated.campaign(), scale, CONTROL))
    assert found[f"{ITEM} {item}"].verdict == verdict


BASE = """# AOT ID: ['0_inference']
#include "/tmp/trial/cache/ab.h"
kernel = async_compile.cpp_pybinding(['const float*'], r'''
    #pragma omp parallel
    // a comment with /tmp/x
    auto tmp0 = in_ptr0[x0 / 4L]; // tail
''')
    # Topologically Sorted Source Nodes: [x], Original ATen: [aten.add]
    buf0 = empty(4)  # reuse
    key = 'cabcdefghijklmnopqrstuvwxyz234567abcdefghijklmnopqrst'
    address = 0x7f00deadbeef
"""


def test_only_what_is_not_run_is_taken_out() -> None:
    kept = normalised({"wrapper": BASE})
    assert kept == (
        '#include "<path>"',
        "kernel = async_compile.cpp_pybinding(['const float*'], r'''",
        "    #pragma omp parallel",
        "    auto tmp0 = in_ptr0[x0 / 4L];",
        "''')",
        "    buf0 = empty(4)",
        "    key = '<hash>'",
        "    address = <address>",
    )


@pytest.mark.parametrize(
    ("old", "new", "equal"),
    [
        ("/tmp/trial/cache/ab.h", "/var/other/place/cd.h", True),
        ("[x], Original", "[y_1], Original", True),
        ("0x7f00deadbeef", "0x7fff00001234", True),
        ("cabcdefg", "czzzzzzz", True),
        ("x0 / 4L", "x0 / 8L", False),
        ("#pragma omp parallel", "#pragma omp simd", False),
        ("empty(4)", "empty(8)", False),
    ],
)
def test_what_two_compilations_may_differ_in(old: str, new: str, equal: bool) -> None:
    assert old in BASE
    difference = first_difference(
        normalised({"a": BASE}), normalised({"a": BASE.replace(old, new)})
    )
    assert (difference == "") is equal


def test_a_missing_tail_is_a_difference() -> None:
    assert first_difference(("a", "b"), ("a",)) == "2 lines against 1"
