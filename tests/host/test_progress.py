"""Progress: plain ASCII lines off a terminal, a bar on one, remaining time from medians."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from artifact.host.engines.fake import fake_record
from artifact.host.progress import BarReporter, PlainReporter, Remaining, clock_text, describe
from artifact.plan import TrialSpec
from tests.host.toy import toy_plan


@pytest.fixture
def specs() -> list[TrialSpec]:
    return list(toy_plan().trials())


def test_remaining_time_uses_a_cells_own_median_else_that_of_all(specs: list[TrialSpec]) -> None:
    a, other = specs[0], next(s for s in specs if s.configuration != specs[0].configuration)
    remaining = Remaining()
    assert remaining.estimate_s([a]) is None
    for seconds in (10.0, 12.0, 100.0):
        remaining.add(a, seconds)
    assert remaining.estimate_s([a, a]) == 24.0
    assert remaining.estimate_s([a, other]) == 24.0
    remaining.add(other, 1.0)
    assert remaining.estimate_s([a, other]) == 13.0


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "?"), (0.0, "0:00"), (59.6, "1:00"), (61.0, "1:01"), (3723.0, "1:02:03")],
)
def test_clock_text(seconds: float | None, text: str) -> None:
    assert clock_text(seconds) == text


def test_plain_lines_are_ascii_and_say_cell_position_and_remaining(
    specs: list[TrialSpec],
) -> None:
    stream = io.StringIO()
    reporter = PlainReporter(stream)
    reporter.begin(15, 2)
    reporter.trial(specs[0].again(2, 1), 3, 15, 61.0)
    reporter.ended(replace(fake_record(specs[0], "failed"), message="naïve → fault"))
    text = stream.getvalue()
    assert text.isascii()
    assert "[3/15]" in text
    assert "remaining 1:01" in text
    assert "attempt 2" in text
    assert f"{specs[0].model} {specs[0].input} {specs[0].configuration}" in text
    assert "15 trials, 2 of them already done" in text


def test_the_bar_shows_the_same_and_is_not_redrawn_by_a_timer(specs: list[TrialSpec]) -> None:
    stream = io.StringIO()
    bar = BarReporter(Console(file=stream, force_terminal=True, width=160))
    bar.begin(15, 0)
    bar.trial(specs[0], 1, 15, 61.0)
    bar.note("a [bold]note[/bold]")
    bar.close()
    text = stream.getvalue()
    assert "1/15" in text
    assert "1:01" in text
    assert specs[0].configuration in text
    assert "[bold]note" in text
    assert bar._bar.live.auto_refresh is False


def test_an_ok_line_names_both_costs_with_units(specs: list[TrialSpec]) -> None:
    line = describe(fake_record(specs[0], "ok"))
    assert " s, T_X " in line
    assert line.endswith(" ms")
