"""Figures of fabricated campaigns: values by hand, missing cells in words, one process."""

from __future__ import annotations

from dataclasses import replace

import drawn
import pytest

from artifact import figures
from artifact.figures import cumulative, fig1, fig3, fig4, fig5, fig6, fig7, style
from artifact.tables.source import UNSUPPORTED

R18 = ("resnet18", "1x3x224x224")


def of(rows, *block):
    return [row for row in rows if (row.model, row.input) == block]


# --- units ----------------------------------------------------------------------------------------
def test_a_bar_is_the_median_and_keeps_the_extremes(the_study):
    def bend(record):
        if record.spec.configuration == "inductor" and record.spec.round == 2:
            return replace(record, census=replace(record.census, internal=25))
        return record

    rows = fig1.rows(the_study, drawn.source("cpu", bend))
    bar = next(r for r in of(rows, *R18) if r.configuration == "inductor")
    assert (bar.units, bar.lowest, bar.highest, bar.processes) == (41, 41, 45, 5)


def test_fallback_and_builtin_calls_are_no_units(the_study):
    def bend(record):
        if record.census is None:
            return record
        return replace(record, census=replace(record.census, fallback=7, builtin=9))

    rows = fig1.rows(the_study, drawn.source("cpu", bend))
    assert {r.units for r in rows if r.configuration == "xla"} == {28}


def test_cells_without_a_bar_say_why(the_study):
    def bend(record):
        if record.spec.configuration == "tvm":
            return replace(record, status="unsupported")
        if record.spec.configuration == "xla":
            return replace(record, census=None)
        return replace(record, status="failed") if record.spec.model == "resnet50" else record

    notes = {
        (row.model, row.configuration): row.note
        for row in fig3.rows(the_study, drawn.source("cpu", bend))
    }
    assert notes["resnet18", "tvm"] == UNSUPPORTED
    assert notes["resnet18", "xla"] == "no census"
    assert notes["resnet50", "inductor"] == "no usable trial: 5 failed"
    assert notes["resnet18", "inductor"] == ""


# --- fold -----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("compiling", "latency", "verdict"),
    [
        (1.0, 1.0, "dominates"),
        (1.0, 1.2, "until n"),
        (1.2, 1.0, "from n"),
        (1.2, 1.2, "never"),
    ],
)
def test_when_the_fold_pays(the_study, compiling, latency, verdict):
    """Original: 10 000 ms and 40 ms. Folded: 9500 + 100 ms and 36 ms, before scaling."""

    def bend(record):
        if record.spec.configuration == "inductor-fold":
            return drawn.scaled(record, compiling, latency)
        return record

    (row,) = of(fig4.rows(the_study, drawn.source("cpu", bend)), *R18)
    assert row.verdict == verdict


def test_the_crossover_of_the_fold_is_the_one_of_the_formula(the_study):
    """Folded (1.2 T_X): fixed 9536 - 43.2 + 100, slope 43.2; original 10 000 and 40.

    n = (10 000 - 9592.8) / (43.2 - 40) = 127.25; without the fold's 100 ms it would be 158.5.
    """

    def bend(record):
        folded = record.spec.configuration == "inductor-fold"
        return drawn.scaled(record, 1.0, 1.2) if folded else record

    (row,) = of(fig4.rows(the_study, drawn.source("cpu", bend)), *R18)
    assert row.n == pytest.approx(127.25)
    assert row.first_from_n < row.n < row.first_to_n


def test_one_process_has_a_verdict_and_no_set(the_study):
    (row,) = of(fig4.rows(the_study, drawn.source("cpu", rounds=[1])), *R18)
    assert (row.verdict, row.set_kind, row.processes) == ("dominates", "unknown", 1)
    assert row.note == "fewer than two processes"


def test_inputs_outside_the_profile_stay_as_rows(the_study):
    rows = fig4.rows(the_study, drawn.source("cpu"))
    assert len(rows) == 10
    assert {r.note for r in rows if r.input != "1x3x224x224"} == {"not measured"}


def test_the_smaller_input_of_the_smoke_profile_is_shown_too(the_study):
    rows = fig4.rows(the_study, drawn.source("smoke"))
    (own,) = of(rows, "resnet18", "1x3x64x64")
    assert own.verdict == "dominates"
    assert len(rows) == 11


# --- cost lines -----------------------------------------------------------------------------------
def test_totals_of_a_configuration(the_study):
    """XLA: T_C 2010 ms, T_X 90 ms, so T(1) = 2100; rounds are 2 % .. -2 % off: sd 1.58 %."""
    rows = fig5.rows(the_study, drawn.source("cpu"))
    first = next(r for r in rows if r.configuration == "xla" and r.n == 1)
    assert first.total_ms == pytest.approx(2100)
    # t(0.975, 4) = 2.776445; 2.776445 * 0.0158114 / sqrt(5) = 0.0196325
    assert first.high_ms == pytest.approx(2100 * 1.0196325, rel=1e-6)


def test_a_crossover_is_a_point_of_both_curves(the_study):
    """XLA 2010 + 90 n, folded 9600 + 36 n: n = 7590 / 54 = 140.6."""
    rows = fig5.rows(the_study, drawn.source("cpu"))
    (crossing,) = [row for row in rows if row.what == cumulative.CROSSOVER]
    assert crossing.n == pytest.approx(7590 / 54)
    here = [row for row in rows if row.what == cumulative.TOTAL and row.n == crossing.n]
    ratios = {row.configuration: row.ratio_to_cheapest for row in here}
    assert ratios["xla"] == pytest.approx(1)
    assert ratios["inductor-fold"] == pytest.approx(1)


def test_a_configuration_without_trials_has_words_and_no_curve(the_study):
    def bend(record):
        tvm = record.spec.configuration == "tvm"
        return replace(record, status="unsupported") if tvm else record

    rows = fig5.rows(the_study, drawn.source("cpu", bend))
    (absent,) = [row for row in rows if row.configuration == "tvm"]
    assert (absent.what, absent.note) == ("absent", UNSUPPORTED)


def test_one_process_has_curves_without_intervals(the_study):
    rows = fig7.rows(the_study, drawn.source("cpu", rounds=[3]))
    totals = [row for row in rows if row.what == cumulative.TOTAL]
    assert totals
    assert {(row.low_ms, row.high_ms) for row in totals} == {(None, None)}
    notes = {row.note for row in rows if row.what == cumulative.ENVELOPE}
    assert notes == {"one process: no band"}


def test_eager_is_on_the_envelope_of_few_executions(the_study):
    rows = of(fig7.rows(the_study, drawn.source("cpu")), *R18)
    envelope = [row for row in rows if row.what == cumulative.ENVELOPE]
    assert envelope[0].configuration == "eager"
    assert envelope[-1].configuration == "inductor-fold"
    assert all(row.low_ms <= row.total_ms <= row.high_ms for row in envelope)


def test_cumulative_time_uses_one_window_for_every_stack(the_study):
    """Aligned: TVM pays export, import, load and first call: 16 410 - 850; native is 14 000."""
    rows = of(fig7.rows(the_study, drawn.source("cpu")), *R18)
    first = next(r for r in rows if r.configuration == "tvm" and r.n == 1)
    assert (first.boundary, first.total_ms) == ("aligned", pytest.approx(16_410))


def test_all_panels_end_at_the_same_n(the_study):
    rows = fig7.rows(the_study, drawn.source("cpu"))
    ends = {}
    for row in rows:
        if row.what == cumulative.TOTAL:
            ends[row.model] = max(row.n, ends.get(row.model, 0))
    assert set(ends.values()) == {1e5}
    assert len(ends) == 4


def test_shares_of_resampled_lines_add_up_and_bindings_are_said(the_study):
    """Descriptive: eager is cheapest at n = 1 in every draw, the fold at the end."""
    rows = of(fig7.rows(the_study, drawn.source("cpu")), *R18)
    totals = [row for row in rows if row.what == cumulative.TOTAL]
    for n in {row.n for row in totals}:
        assert sum(row.cheapest_share for row in totals if row.n == n) == pytest.approx(1)
    at_1 = {row.configuration: row.cheapest_share for row in totals if row.n == 1}
    assert at_1 == {"eager": 1, "inductor": 0, "inductor-fold": 0, "xla": 0, "tvm": 0}
    last = max(row.n for row in totals)
    assert {row.configuration for row in totals if (row.n, row.cheapest_share) == (last, 1)} == {
        "inductor-fold"
    }
    bindings = {row.configuration: row.binding for row in totals}
    assert (bindings["xla"], bindings["eager"]) == ("frozen", "runtime")


def test_one_process_has_no_share(the_study):
    rows = fig7.rows(the_study, drawn.source("cpu", rounds=[3]))
    assert {row.cheapest_share for row in rows} == {None}


@pytest.mark.parametrize("module", [fig6, fig7])
def test_blocks_that_bind_weights_differently_say_so(the_study, module):
    """ResNets: XLA and TVM know the weights; Transformers: TVM alone (study.toml)."""
    with style.styled():
        figure = module.draw(module.rows(the_study, drawn.source("cpu")))
    words = "".join(figure.get_supxlabel().split())
    resnets = "contractsdiffer(weightsfrozen:XLAandTVM):ResNet-18(1,3,224,224)"
    assert resnets in words
    assert "(weightsfrozen:TVM):BERT(1,64);GPT-2(1,16)" in words


def test_equal_bindings_are_no_note(the_study):
    def bend(record):
        return replace(record, spec=replace(record.spec, binding="runtime"))

    rows = fig7.rows(the_study, drawn.source("cpu", bend))
    assert cumulative.contract_words(rows) == []


# --- phases ---------------------------------------------------------------------------------------
def parts(rows, configuration):
    return {r.part: r for r in of(rows, *R18) if r.configuration == configuration}


def test_parts_add_up_to_the_time_to_the_first_output(the_study):
    for configuration in ("eager", "inductor", "inductor-fold", "xla", "tvm"):
        found = parts(fig6.rows(the_study, drawn.source("cpu")), configuration)
        whole = found.pop("sum")
        assert sum(row.mean_ms for row in found.values()) == pytest.approx(whole.mean_ms)


def test_the_papers_window_differs_by_stack(the_study):
    rows = fig6.rows(the_study, drawn.source("cpu"))
    native = {
        name: {part for part, row in parts(rows, name).items() if row.native and row.mean_ms}
        for name in ("inductor-fold", "xla", "tvm")
    }
    assert native == {
        "inductor-fold": {"tool chain", "first call"},
        "xla": {"front end", "passes + codegen", "first call"},
        "tvm": {"passes + codegen"},
    }


def test_pytorchs_timers_split_inductors_first_call(the_study):
    """Of 1040 ms: compiling 1000 (back end 700), so 300 front end, 40 for the call itself."""

    def bend(record):
        if record.spec.configuration != "inductor":
            return record
        timers = {fig6.COMPILE_TIMER: 1000.0, fig6.BACKEND_TIMER: 700.0}
        return replace(record, detail_ms=timers)

    rows = fig6.rows(the_study, drawn.source("cpu", bend, rounds=[3]))
    found = parts(rows, "inductor")
    assert found["front end"].mean_ms == pytest.approx(300)
    assert found["passes + codegen"].mean_ms == pytest.approx(700)
    assert found["first call"].mean_ms == pytest.approx(40)
    assert found["front end"].native


def test_timers_longer_than_the_call_are_not_used(the_study):
    def bend(record):
        return replace(record, detail_ms={fig6.COMPILE_TIMER: 1e9, fig6.BACKEND_TIMER: 1.0})

    rows = fig6.rows(the_study, drawn.source("cpu", bend, rounds=[3]))
    assert parts(rows, "inductor")["first call"].mean_ms == pytest.approx(1040)


# --- which cells ----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "profile", "count"),
    [
        ("fig3", "cpu", 6),
        ("fig3", "paper", 6),
        ("fig3", "smoke", 3),
        ("fig4", "cpu", 4),
        ("fig4", "paper", 20),
        ("fig5", "cpu", 4),
    ],
)
def test_a_figure_needs_its_own_cells_only(the_study, name, profile, count):
    cells = figures.load(name).grid.cells(the_study, profile)
    assert len(cells) == len(set(cells)) == count


def test_phases_need_every_configuration_of_one_input_a_model(the_study):
    cells = figures.load("fig6").grid.cells(the_study, "paper")
    assert {cell[:2] for cell in cells} == {
        ("resnet18", "1x3x224x224"),
        ("resnet50", "1x3x224x224"),
        ("bert", "1x64"),
        ("gpt2", "1x16"),
    }
    assert ("bert", "1x64", "inductor-control") in cells
    assert ("resnet50", "1x3x224x224", "eager") in cells
