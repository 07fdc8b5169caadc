"""The paper's own numbers come out of every figure that the paper has numbers for."""

from __future__ import annotations

import pytest

from artifact import figures
from artifact.figures import cumulative, fig1, fig2, fig3, fig4, fig5
from artifact.tables.source import of_paper


def unit_counts(study, module):
    rows = module.rows(study, of_paper(module.PUBLISHED))
    return {
        name: tuple(row.units for row in rows if row.configuration == name)
        for name in ("inductor", "tvm", "xla")
    }


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        (fig1, {"inductor": (39, 104), "tvm": (60, 158), "xla": (28, 64)}),
        (fig2, {"inductor": (21, 54), "tvm": (0, 0), "xla": (20, 53)}),
        (fig3, {"inductor": (18, 50), "tvm": (60, 158), "xla": (8, 11)}),
    ],
)
def test_static_units_of_resnet18_and_resnet50(the_study, module, expected):
    assert unit_counts(the_study, module) == expected


def test_the_fold_dominates_in_all_ten_cells(the_study):
    rows = fig4.rows(the_study, of_paper(fig4.PUBLISHED))
    assert len(rows) == 10
    assert {row.verdict for row in rows} == {"dominates"}


def test_where_fold_and_original_are_not_told_apart(the_study):
    """R18: T_X is unresolved, so large n stay open; R50 (64,3,224,224): T_C is, so small n do."""
    rows = {(r.model, r.input): r for r in fig4.rows(the_study, of_paper(fig4.PUBLISHED))}
    open_end = rows["resnet18", "1x3x224x224"]
    assert (open_end.set_kind, open_end.first_to_n) == ("unbounded", None)
    assert open_end.first_from_n == pytest.approx(132_043, abs=1)
    start = rows["resnet50", "64x3x224x224"]
    assert (start.set_kind, start.first_from_n) == ("bounded", 0.0)
    assert start.first_to_n == pytest.approx(220, abs=1)
    assert rows["resnet50", "1x3x512x512"].set_kind == "empty"


def test_the_crossover_of_resnet18(the_study):
    """CLAIMS: n = 19 378 from the means; Welch with the covariance gives 16 073 to 24 319."""
    rows = fig5.rows(the_study, of_paper(fig5.PUBLISHED))
    (crossing,) = [row for row in rows if row.what == cumulative.CROSSOVER]
    assert crossing.configuration == "xla -> inductor-fold"
    assert crossing.n == pytest.approx(19_378.2, abs=0.1)
    assert (round(crossing.low_n), round(crossing.high_n)) == (16_073, 24_319)


def test_tvm_and_unfolded_inductor_are_never_cheapest(the_study):
    rows = fig5.rows(the_study, of_paper(fig5.PUBLISHED))
    cheapest = {r.configuration for r in rows if r.what == "total" and r.ratio_to_cheapest == 1}
    assert cheapest == {"xla", "inductor-fold"}


def test_totals_are_the_lines_through_the_published_means(the_study):
    """T(1) of XLA = 1829.287943 + 2.128270 ms (expected/published/timings.csv)."""
    rows = fig5.rows(the_study, of_paper(fig5.PUBLISHED))
    first = next(r for r in rows if r.configuration == "xla" and r.n == 1)
    assert first.total_ms == pytest.approx(1831.416213, abs=1e-6)
    assert first.low_ms < first.total_ms < first.high_ms


def test_every_row_names_the_paper_as_its_source(the_study):
    for name in figures.names():
        described = figures.load(name)
        if described.published:
            rows = described.rows(the_study, of_paper(described.published))
            assert {row.source for row in rows} == {"published: Kamei and Costa 2026 (RTX 3050)"}
