"""The paper's published values: recomputed tests, crossovers and confidence sets."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

import pytest

from artifact.analysis import cost, published, stats
from artifact.errors import UserError

RESNET = ("resnet", "resnet18", "1x3x224x224")


def _values(configuration: str, model: str, shape: str, metric: str) -> tuple[float, ...]:
    found = published.timing("resnet", configuration, model, shape, metric)
    assert found is not None
    return found.process_values


def _family_pairs(family: str) -> dict[tuple[str, str], tuple[list[float], list[float]]]:
    """(fold, base) process values of the ten ResNet inputs for one published family."""
    metric = "exec_ms" if family == "execution" else "compile_ms"
    pairs = {}
    for model, shape in published.cells(("resnet",)):
        base = list(_values("inductor", model, shape, metric))
        fold = list(_values("inductor-fold", model, shape, metric))
        if family == "fixed_cost_including_fold":
            folds = _values("inductor-fold", model, shape, "fold_ms")
            fold = [a + b for a, b in zip(fold, folds, strict=True)]
        pairs[model, shape] = (fold, base)
    return pairs


@pytest.mark.parametrize("family", published.FAMILIES)
def test_welch_and_holm_recompute_the_published_table(family: str) -> None:
    expected = [row for row in published.welch_rows() if row.family == family]
    found = stats.family(_family_pairs(family))
    assert found.size == len(expected) == 10
    for row in expected:
        mine = found.rows[row.model, row.input]
        numbers = (
            mine.second_mean,
            mine.first_mean,
            mine.welch.difference,
            mine.relative_percent,
            mine.welch.low,
            mine.welch.high,
            mine.welch.df,
            mine.welch.p,
            mine.holm.adjusted,
        )
        paper = (
            row.base_mean,
            row.fold_mean,
            row.difference,
            row.relative_percent,
            row.low,
            row.high,
            row.df,
            row.p,
            row.p_holm,
        )
        assert numbers == pytest.approx(paper, rel=1e-9, abs=0)
        assert mine.holm.reject is row.reject


def test_published_intervals_follow_from_the_process_values() -> None:
    checked = 0
    for row in published.timings():
        if row.process_values:
            interval = stats.process_interval(row.process_values)
            # The values carry four decimals, the means and spreads six.
            assert interval.n == row.k == 5
            assert interval.mean == pytest.approx(row.mean, abs=6e-5)
            assert interval.sd == pytest.approx(row.sd, abs=1.2e-4)
            assert interval.high is not None and row.ci95_half is not None
            # The paper rounds the critical value to 2.776; the rest is rounding of small spreads.
            half = interval.high - interval.mean
            assert half == pytest.approx(row.ci95_half, rel=2e-4, abs=2e-4)
            checked += 1
    assert checked == 184


def test_r18_crossover_from_the_means_and_from_the_process_values() -> None:
    lines = published.lines(*RESNET)
    from_means = cost.crossover(lines["xla"], lines["inductor-fold"])
    assert from_means.regime == "first-then-second"
    assert from_means.n == pytest.approx(19_378.2, abs=0.05)
    means = {name: cost.mean_line(values) for name, values in published.points(*RESNET).items()}
    from_values = cost.crossover(means["xla"], means["inductor-fold"])
    assert from_values.n == pytest.approx(19_379.6, abs=0.05)


def test_r18_envelope_is_xla_then_the_fold() -> None:
    segments = cost.envelope(published.lines(*RESNET))
    assert [(s.name, s.to_n is None) for s in segments] == [
        ("xla", False),
        ("inductor-fold", True),
    ]
    assert segments[0].to_n == segments[1].from_n == pytest.approx(19_378.2, abs=0.05)


@pytest.mark.parametrize(
    ("method", "low", "high"),
    [
        ("welch", 16_073.05, 24_319.00),
        ("paired", 15_312.39, 26_543.30),
        ("welch-satterthwaite", 16_520.57, 23_395.16),
        ("welch-uncorrelated", 16_425.40, 23_523.59),
    ],
)
def test_r18_crossover_sets_by_method(method: str, low: float, high: float) -> None:
    points = published.points(*RESNET)
    found = cost.crossover_set(points["xla"], points["inductor-fold"], method)
    assert found.kind == "bounded"
    (part,) = found.ranges
    assert (part.from_n, part.to_n) == pytest.approx((low, high), abs=0.02)


def test_exactly_two_of_seventeen_cells_have_a_crossover() -> None:
    cells = [
        (campaign, *cell)
        for campaign in ("resnet", "transformer")
        for cell in published.cells((campaign,))
    ]
    envelopes = {cell: cost.envelope(published.lines(*cell)) for cell in cells}
    assert len(envelopes) == 17
    crossing = {cell[1:] for cell, segments in envelopes.items() if len(segments) > 1}
    assert crossing == {("resnet18", "1x3x224x224"), ("resnet50", "1x3x224x224")}
    assert all(segments[0].name == "xla" for segments in envelopes.values())


def test_fold_time_is_in_the_folded_intercept_only() -> None:
    lines = published.lines(*RESNET)
    assert lines["inductor-fold"].fixed_ms == pytest.approx(6928.677004 + 102.487315)
    assert lines["inductor"].fixed_ms == pytest.approx(11765.433812)
    points = published.points(*RESNET)
    assert fmean(p.fixed_ms for p in points["inductor-fold"]) == pytest.approx(7031.16434)


def test_five_processes_resolve_about_twelve_percent_of_compile_cost() -> None:
    """CLAIMS, notes: at the published spread, K = 5 resolves effects of about 12 % on T_C."""
    ratios = [
        stats.paired_ratio(fold, base).resolvable_ratio
        for fold, base in _family_pairs("compile_after_preprocessing").values()
    ]
    known = sorted(ratio for ratio in ratios if ratio is not None)
    assert len(known) == 10
    assert 1.10 < (known[4] + known[5]) / 2 < 1.18


def test_units_keep_gaps_apart_from_zeros() -> None:
    rows = {(r.backend, r.variant, r.model, r.input): r for r in published.units()}
    assert len(rows) == 77
    r18 = rows["inductor", "fused_inductor", "resnet18", "1x3x224x224"]
    assert (r18.internal, r18.external, r18.code_bytes) == (18, 21, 239095)
    assert rows["tvm", "fused", "resnet50", "1x3x224x224"].external == 0
    assert rows["inductor", "fused_inductor", "bert", "1x64"].external is None


def test_another_directory_can_be_read_and_a_missing_one_is_named(tmp_path: Path) -> None:
    text = (published.DEFAULT_DIRECTORY / "welch.csv").read_text(encoding="utf-8")
    (tmp_path / "welch.csv").write_text("\n".join(text.splitlines()[:2]), encoding="utf-8")
    assert len(published.welch_rows(tmp_path)) == 1
    with pytest.raises(UserError, match=r"timings\.csv"):
        published.timings(tmp_path)
