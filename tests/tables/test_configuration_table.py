"""Table 7: every configuration of a cell side by side, and from which n it pays."""

from __future__ import annotations

from dataclasses import replace

import drawn
import pytest

from artifact.tables import tab7
from artifact.tables.sheet import latex, markdown
from artifact.tables.source import UNSUPPORTED

R18 = ("resnet18", "1x3x224x224")


def rows_of(study, source):
    return {
        row.configuration: row for row in tab7.rows(study, source) if (row.model, row.input) == R18
    }


def test_break_even_against_eager(the_study):
    """Aligned. Eager 21 + 40 n; folded 9601 + 36 n: n = 9580 / 4; XLA 2010 + 90 n: never."""
    found = rows_of(the_study, drawn.source("cpu"))
    assert found["inductor-fold"].pays == "from-n"
    assert found["inductor-fold"].break_even_n == pytest.approx(2395)
    assert found["xla"].pays == "never"
    assert found["eager"].pays == ""


def test_boundaries_stand_side_by_side(the_study):
    """Folded: native 9500; aligned + 100 fold + 1 binding; tool chain 9000; process + 300."""
    folded = rows_of(the_study, drawn.source("cpu"))["inductor-fold"]
    assert folded.native_mean_ms == pytest.approx(9500)
    assert folded.aligned_mean_ms == pytest.approx(9601)
    assert folded.aligned_without_toolchain_mean_ms == pytest.approx(601)
    assert folded.process_mean_ms == pytest.approx(9901)


def test_bindings_that_differ_are_said(the_study):
    found = rows_of(the_study, drawn.source("cpu"))
    assert found["xla"].note.startswith("contracts differ")
    assert found["inductor"].note == ""


def test_means_without_noisy_trials_stand_beside(the_study):
    noisy = {f"r5.resnet18.1x3x224x224.{c}.b1.a1": ("steal 9.0%",) for c in ("xla", "eager")}
    xla = rows_of(the_study, drawn.source("cpu", noisy=noisy))["xla"]
    assert (xla.noisy, xla.processes) == (1, 5)
    # Rounds 1 to 4 are 2, 1, 0 and -1 % below and above the mean: on average half a per cent low.
    assert xla.quiet_latency_mean_ms == pytest.approx(90 * 0.995)


def test_drifting_executions_are_flagged(the_study):
    def bend(record):
        if record.spec.configuration != "xla":
            return record
        drifting = tuple(90.0 + i + 0.01 * (i % 3) for i in range(len(record.execution_ms)))
        return replace(record, execution_ms=drifting)

    found = rows_of(the_study, drawn.source("cpu", bend))
    assert found["xla"].not_settled == 5
    assert found["tvm"].not_settled == 0


def test_a_first_call_of_no_time_is_named_and_no_crash(the_study):
    def bend(record):
        if record.spec.configuration != "eager":
            return record
        phases = tuple(replace(phase, duration_ms=0.0) for phase in record.phases)
        return replace(record, phases=phases)

    eager = rows_of(the_study, drawn.source("cpu", bend))["eager"]
    assert eager.fit_error is None
    assert eager.note.startswith("no goodness of fit: first_ms[0] must be positive")


def test_without_eager_nothing_is_said_to_pay(the_study):
    def bend(record):
        return None if record.spec.configuration == "eager" else record

    row = rows_of(the_study, drawn.source("cpu", bend))["xla"]
    assert (row.pays, row.break_even_n, row.note) == ("", None, "eager was not measured")


def test_what_was_not_measured_is_one_note_and_unsupported_cells_keep_their_line(the_study):
    def bend(record):
        return replace(record, status="unsupported") if record.spec.stack == "tvm" else record

    sheet = tab7.sheet(tab7.rows(the_study, drawn.source("cpu", bend)))
    lines = {(row[0].text, row[2].text): [cell.text for cell in row] for row in sheet.body}
    assert UNSUPPORTED in lines["GPT-2", "tvm"]
    assert any(note.startswith("Not measured: resnet18 16x3x224x224,") for note in sheet.notes)
    assert all(row[2].text != "all" for row in sheet.body)


def test_every_boundary_stands_with_and_without_the_tool_chain(the_study):
    """Folded, tool chain 9000: native 9500 - 9000, aligned 9601 - 9000, process 9901 - 9000."""
    found = rows_of(the_study, drawn.source("cpu"))
    folded = found["inductor-fold"]
    assert folded.native_without_toolchain_mean_ms == pytest.approx(500)
    assert folded.process_without_toolchain_mean_ms == pytest.approx(901)
    assert folded.toolchain_mean_ms == pytest.approx(9000)
    xla = found["xla"]
    assert (xla.toolchain_mean_ms, xla.native_without_toolchain_mean_ms) == (0, xla.native_mean_ms)


def test_goodness_of_fit_is_the_worst_of_the_trials(the_study):
    """XLA in round 2: the first warm-up takes 900 ms instead of 90 (1 % less in this round)."""

    def bend(record):
        if (record.spec.configuration, record.spec.round) != ("xla", 2):
            return record
        return replace(record, warmup_ms=(891.0, *record.warmup_ms[1:]))

    xla = rows_of(the_study, drawn.source("cpu", bend))["xla"]
    # After n = 2: 0.99 (2010 + 90) + 891 = 2970 against 0.99 (2010 + 180) = 2168.1.
    assert xla.fit_error == pytest.approx(801.9 / 2970)
    assert 0.5 < xla.fit_r2 < 0.99
    tvm = rows_of(the_study, drawn.source("cpu", bend))["tvm"]
    assert tvm.fit_r2 > 0.999


def test_a_first_sample_outlier_is_counted_and_kept(the_study):
    """Case K9: 40 times the median in one trial of five; the mean holds it."""

    def bend(record):
        if (record.spec.configuration, record.spec.round) != ("xla", 3):
            return record
        return replace(record, execution_ms=(3600.0, *record.execution_ms[1:]))

    xla = rows_of(the_study, drawn.source("cpu", bend))["xla"]
    assert xla.first_sample_outliers == 1
    assert xla.latency_mean_ms == pytest.approx(90 + (3600 - 90) / 50 / 5)


def test_fit_drift_outliers_and_shares_are_seen_in_markdown_and_latex(the_study):
    sheet = tab7.sheet(tab7.rows(the_study, drawn.source("cpu")))
    line = next(row for row in sheet.body if (row[0].text, row[2].text) == ("ResNet-18", "eager"))
    shown = dict(zip(sheet.headings, (cell.text for cell in line), strict=True))
    assert shown["R2"] == "1.0000"
    assert shown["not settled"] == shown["first-sample outlier"] == "0 of 5"
    assert shown["cheapest (%) at n = 1, 1k, 1M"] == "100, 100, 0"
    assert "| 0 of 5" in markdown(sheet, "t")
    assert "& 0 of 5" in latex(sheet, "t")


def test_one_process_has_no_share(the_study):
    xla = rows_of(the_study, drawn.source("cpu", rounds=[3]))["xla"]
    assert xla.cheapest_share_1 is None


def test_intervals_without_noisy_trials(the_study):
    noisy = {"r5.resnet18.1x3x224x224.xla.b1.a1": ("steal 9.0%",)}
    found = rows_of(the_study, drawn.source("cpu", noisy=noisy))
    xla, tvm = found["xla"], found["tvm"]
    assert xla.quiet_processes == 4
    assert xla.quiet_native_mean_ms == pytest.approx(2010 * 0.995)
    assert xla.quiet_native_low_ms < xla.quiet_native_mean_ms < xla.quiet_native_high_ms
    assert (tvm.quiet_native_low_ms, tvm.quiet_latency_sd_ms) == (
        tvm.native_low_ms,
        tvm.latency_sd_ms,
    )
