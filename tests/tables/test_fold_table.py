"""Table 9: every way to fold Conv-BatchNorm in Inductor, on records made by hand."""

from __future__ import annotations

from dataclasses import replace

import drawn
import pytest

from artifact.tables import tab9

R18 = ("resnet18", "1x3x224x224")
GUARDS = "weights: identity; statistics: values"
STALE = "none: a changed parameter gives stale results"
ROUTES = {
    "inductor-guard": {
        "name": "guard", "folded": 20, "unit": "BatchNorm", "fold_ms": 70.0, "guards": GUARDS,
    },
    "inductor-freeze": {
        "name": "freezing", "folded": 80, "unit": "operation, four to a BatchNorm", "guards": STALE,
    },
    "inductor-bneval": {
        "name": "bn-eval", "folded": 20, "unit": "BatchNorm", "guards": "none needed",
    },
}  # fmt: skip


def folded(record):
    """Facts as the trials store them; freezing runs at 30 ms, the guard compiles 5 % cheaper."""
    name = record.spec.configuration
    if name == "inductor-fold":
        fold = {"kind": "conv-batchnorm", "folded": 20, "refused": []}
        return replace(record, facts={"fold": fold, "route": {}})
    if name not in ROUTES:
        return replace(record, facts={"fold": {}, "route": {}})
    route = dict(ROUTES[name])
    if name == "inductor-guard":
        route["fold_ms"] = 70.0 + record.spec.round
        record = drawn.scaled(record, 0.95, 0.9)
    if name == "inductor-freeze":
        record = drawn.scaled(record, 1.0, 0.75)
    return replace(record, facts={"route": route})


def rows_of(study, source):
    made = tab9.rows(study, source)
    return {row.way: row for row in made if (row.model, row.input) == R18}


@pytest.fixture
def found(the_study):
    return rows_of(the_study, drawn.source("folds", folded))


def test_both_resnets_in_one_order_and_nothing_else(the_study):
    made = tab9.rows(the_study, drawn.source("folds", folded))
    ways = ["plain", "offline fold", "guard", "freezing", "bn-eval"]
    assert [(row.model, row.way) for row in made] == [
        (model, way) for model in ("resnet18", "resnet50") for way in ways
    ]


def test_the_boundaries_of_compile_cost(found):
    """Offline fold: 100 of fold, 1 of binding, 9000 of tool chain, 536 of first call, T_X 36."""
    offline = found["offline fold"]
    assert offline.native_mean_ms == pytest.approx(9500)
    assert offline.aligned_mean_ms == pytest.approx(9601)
    assert offline.aligned_without_toolchain_mean_ms == pytest.approx(601)
    assert offline.toolchain_mean_ms == pytest.approx(9000)
    assert found["guard"].native_mean_ms == pytest.approx(0.95 * 10_040 - 36)
    assert found["freezing"].latency_mean_ms == pytest.approx(30)


def test_the_time_of_the_fold_and_where_it_is_counted(found):
    assert (found["offline fold"].fold_mean_ms, found["offline fold"].fold_within) == (
        pytest.approx(100),
        False,
    )
    assert (found["guard"].fold_mean_ms, found["guard"].fold_within) == (73.0, True)
    for way in ("plain", "freezing", "bn-eval"):
        assert (found[way].fold_mean_ms, found[way].fold_within) == (None, None)


def test_what_each_guards_against(found):
    assert found["guard"].guards == GUARDS
    assert found["freezing"].guards == STALE
    assert found["offline fold"].guards.startswith("none: a changed parameter needs a new fold")
    assert found["plain"].guards == "nothing folded, nothing to guard"
    assert [found[way].folded for way in ("plain", "offline fold", "guard", "freezing")] == [
        None, 20, 20, 80,
    ]  # fmt: skip


def test_break_even_against_eager(found):
    """Eager 21 + 40 n aligned, freezing 10011 + 30 n: n = 9990 / 10; plain is never faster."""
    assert (found["freezing"].pays, found["freezing"].break_even_n) == (
        "from-n",
        pytest.approx(999),
    )
    assert found["freezing"].break_even_set.startswith("bounded")
    assert (found["plain"].pays, found["plain"].break_even_n) == ("never", None)


def test_frozen_weights_are_said_to_be_another_contract(found):
    assert (found["freezing"].binding, found["freezing"].contract) == ("frozen", "contracts differ")
    others = {way: (row.binding, row.contract) for way, row in found.items() if way != "freezing"}
    assert set(others.values()) == {("runtime", "")}


def test_the_sheet_shows_all_of_it(the_study):
    sheet = tab9.sheet(tab9.rows(the_study, drawn.source("folds", folded)))
    lines = {
        line[2].text: dict(zip(sheet.headings, (cell.text for cell in line), strict=True))
        for line in sheet.body
        if line[0].text == "ResNet-18"
    }
    assert lines["freezing"]["binding"] == "frozen (contracts differ)"
    assert lines["guard"]["binding"] == "runtime"
    assert lines["offline fold"]["fold"] == "100.0 (before T_C native)"
    assert lines["guard"]["fold"] == "73.00 (within T_C)"
    assert (lines["bn-eval"]["fold"], lines["plain"]["fold"]) == ("not timed", "-")
    assert lines["freezing"]["folded"] == "80 (operation, four to a BatchNorm)"
    assert lines["freezing"]["pays"] == "from n = 999"
    assert any(note.startswith("Contracts differ: the compiler knew") for note in sheet.notes)
    assert not any("measures every way" in note for note in sheet.notes)


def test_a_campaign_without_the_routes_says_which_profile_has_them(the_study):
    made = tab9.rows(the_study, drawn.source("cpu", folded))
    found = {row.way: row for row in made if row.model == "resnet18"}
    assert found["guard"].note == "not measured" and found["plain"].processes == 5
    sheet = tab9.sheet(made)
    assert "The profile `folds` measures every way to fold." in sheet.notes
    assert not any("Contracts differ" in note for note in sheet.notes)


def test_without_eager_nothing_is_said_to_pay(the_study):
    def bend(record):
        return None if record.spec.configuration == "eager" else folded(record)

    source = drawn.source("folds", bend)
    row = rows_of(the_study, source)["freezing"]
    assert (row.pays, row.break_even_n, row.break_even_set) == ("", None, "")
    assert row.contract == "contracts differ"  # the plain configuration's binding is still another
    sheet = tab9.sheet(tab9.rows(the_study, source))
    assert "Where eager was not measured, nothing is said to pay." in sheet.notes


def test_noisy_trials_are_counted(the_study):
    noisy = {"r5.resnet18.1x3x224x224.inductor-guard.b1.a1": ("steal 9.0%",)}
    sheet = tab9.sheet(tab9.rows(the_study, drawn.source("folds", folded, noisy=noisy)))
    assert "1 of 50 trials were noisy; they are included." in sheet.notes
