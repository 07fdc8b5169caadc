"""The closing table: every planned cell has a row, failures are counted, n = 1 has no interval."""

from __future__ import annotations

from dataclasses import replace

import pytest

from artifact.tables.summary import render, summarise


@pytest.fixture
def trials(make_record, make_spec):
    """Three trials of one cell with T_X = 10, 11, 12 ms."""
    spec = make_spec(executions=5, warmups=2)
    return [
        make_record(
            spec=replace(spec, round=number, trial_id=f"r{number}"),
            execution_ms=(9.0 + number,) * 5,
        )
        for number in (1, 2, 3)
    ]


def cell(record):
    return record.spec.model, record.spec.input, record.spec.configuration


def test_means_and_intervals_are_over_processes(trials):
    (row,) = summarise(trials, [cell(trials[0])] * 5)
    assert (row.trials, row.planned, row.other) == (3, 5, "")
    assert row.latency_ms.mean == pytest.approx(11.0)
    assert row.latency_ms.sd == pytest.approx(1.0)
    # t(0.975, 2) = 4.302653: half width 4.302653 / sqrt(3) = 2.484138
    assert row.latency_ms.high == pytest.approx(13.484138, abs=1e-5)
    assert row.native_ms.mean == pytest.approx(330.0 - 11.0)
    assert row.aligned_ms.mean == pytest.approx(380.0 - 11.0)


def test_a_cell_without_usable_trials_keeps_its_row(trials):
    """Case N2: n/a, never 0 and never a missing row."""
    failed = replace(trials[0], status="unsupported", message="no such op")
    missing = ("resnet50", "1x3x224x224", "tvm")
    rows = summarise([failed], [cell(failed), missing])
    assert [row.trials for row in rows] == [0, 0]
    assert rows[0].other == "1 unsupported"
    text = render(rows)
    assert text.count("n/a") == 6
    assert "resnet50 1x3x224x224 tvm" in text


def test_one_trial_has_a_mean_and_no_interval(trials):
    """Case S6."""
    (row,) = summarise(trials[:1], [cell(trials[0])])
    assert row.latency_ms.sd is None
    assert "(n = 1)" in render([row])


def test_priming_and_failed_records_never_enter_a_mean(trials, make_record):
    priming = replace(trials[0], spec=replace(trials[0].spec, role="priming"))
    rows = summarise([*trials, priming], [cell(trials[0])])
    assert rows[0].trials == 3


def test_the_text_is_plain_ascii(trials):
    assert render(summarise(trials, [cell(trials[0])])).isascii()


def test_first_sample_outliers_are_counted_and_explained(trials):
    """Case K9: the first execution of one trial took 40 times the median; nothing is trimmed."""
    assert "outlier: the first timed" not in render(summarise(trials, [cell(trials[0])]))
    slow = replace(trials[1], execution_ms=(440.0, *trials[1].execution_ms[1:]))
    (row,) = rows = summarise([trials[0], slow, trials[2]], [cell(trials[0])])
    assert row.first_sample_outliers == 1
    assert row.latency_ms.mean == pytest.approx(11.0 + (440.0 - 11.0) / 5 / 3)
    text = render(rows)
    assert "1 of 3" in text
    assert text.splitlines()[-1].startswith("first-sample outlier: ")
