"""Tables as text: the bold rule, the digits, Markdown, LaTeX, CSV."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass

import pytest

from artifact.analysis.stats import Interval, process_interval
from artifact.tables.csv_text import csv_text
from artifact.tables.sheet import (
    Sheet,
    Text,
    ascii_sheet,
    bold_name,
    latex,
    markdown,
    mean_sd,
    percent,
)


def interval(mean, half):
    return Interval(mean, half, mean - half, mean + half, 5)


# --- the paper's bold rule ------------------------------------------------------------------------
def test_lowest_mean_is_bold_when_its_interval_stands_alone():
    assert bold_name({"a": interval(10, 1), "b": interval(13, 1), "c": interval(20, 1)}) == "a"


def test_overlap_with_any_competitor_takes_the_bold_away():
    assert bold_name({"a": interval(10, 1), "b": interval(30, 1), "c": interval(12, 1.5)}) is None


def test_touching_ends_overlap():
    assert bold_name({"a": interval(10, 1), "b": interval(12, 1)}) is None


def test_a_low_end_below_the_lowest_mean_is_no_reason_for_bold():
    """b reaches lower than a, but a has the lowest mean and the two overlap."""
    assert bold_name({"a": interval(10, 1), "b": interval(15, 10)}) is None


def test_one_process_has_no_interval_and_nothing_is_bold():
    single = process_interval([10.0])
    assert bold_name({"a": single, "b": interval(20, 1)}) is None
    assert bold_name({"a": interval(10, 1), "b": process_interval([99.0])}) is None


def test_a_lone_stack_is_never_bold():
    assert bold_name({"a": interval(10, 1)}) is None
    assert bold_name({}) is None


# --- digits ---------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("mean", "sd", "n", "text"),
    [
        (1.875968, 0.033198, 5, "1.876 ± 0.033"),
        (38.70809, 0.1234, 5, "38.71 ± 0.12"),
        (105.224, 0.311, 5, "105.2 ± 0.3"),
        (11765.43, 1035.62, 5, "11765 ± 1036"),
        (-0.25, 0.5, 5, "−0.250 ± 0.500"),
        (12.0, None, 1, "12.00 (n = 1)"),
        (None, None, 0, ""),
    ],
)
def test_mean_and_sd(mean, sd, n, text):
    assert mean_sd(mean, sd, n) == text


def test_percent_with_and_without_an_interval():
    assert percent(-41.1099, -51.9176, -30.3022) == "−41.1 [−51.9, −30.3]"
    assert percent(1.94, None, None) == "1.9"
    assert percent(None, None, None) == ""


# --- forms ----------------------------------------------------------------------------------------
SHEET = Sheet(
    ("input", "Δ T_C (%)"),
    ((Text("a|b"), Text("1 ± 2", bold=True)), (Text("x_y"), Text("n <= 3"))),
    ("50 % of it.",),
)


def test_markdown():
    assert markdown(SHEET, "Title").splitlines() == [
        "**Title**",
        "",
        "| input | Δ T_C (%) |",
        "| ----- | --------- |",
        "| a\\|b  | **1 ± 2** |",
        "| x_y   | n <= 3    |",
        "",
        "50 % of it.",
    ]


def test_latex_escapes_what_latex_would_misread():
    lines = latex(SHEET, "Title").splitlines()
    assert lines[3] == r"input & $\Delta$ $T_C$ (\%) \\"
    assert lines[5] == r"a|b & \textbf{1 $\pm$ 2} \\"
    assert lines[6] == r"x\_y & n $\le$ 3 \\"
    assert lines[-1] == "% 50 % of it."


def test_the_form_for_terminals_is_ascii_with_aligned_columns():
    text = markdown(ascii_sheet(SHEET), "Title")
    assert text.isascii()
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len({len(row) for row in rows}) == 1


def test_a_row_of_another_length_is_refused():
    with pytest.raises(ValueError, match="1 cells under 2 headings"):
        Sheet(("a", "b"), ((Text("only"),),))


@dataclass(frozen=True)
class Row:
    name: str
    value: float | None
    flag: bool


def test_csv_keeps_every_digit_and_leaves_nothing_for_none():
    text = csv_text(Row, [Row('say "a, b"', 0.1 + 0.2, True), Row("c", None, False)])
    assert text.endswith("c,,False\n")
    read = list(csv.DictReader(io.StringIO(text)))
    assert float(read[0]["value"]) == 0.1 + 0.2
    assert read[0]["name"] == 'say "a, b"'
