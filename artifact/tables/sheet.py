"""A table ready to print, and its two printed forms: Markdown and LaTeX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from artifact.analysis.stats import Interval

#: What plain text writes in one character and LaTeX in a command. Order matters: escapes first.
_LATEX = (
    ("\\", r"\textbackslash{}"),
    ("&", r"\&"),
    ("%", r"\%"),
    ("#", r"\#"),
    ("T_C", r"$T_C$"),
    ("T_X", r"$T_X$"),
    ("_", r"\_"),
    (r"$T\_C$", r"$T_C$"),
    (r"$T\_X$", r"$T_X$"),
    ("±", r"$\pm$"),
    ("Δ", r"$\Delta$"),
    ("−", r"$-$"),
    ("<=", r"$\le$"),
    (">=", r"$\ge$"),
    ("<", "$<$"),
)


@dataclass(frozen=True)
class Text:
    """One table cell."""

    text: str
    bold: bool = False


@dataclass(frozen=True)
class Sheet:
    """Headings and body, all rows of the same length; `notes` stand below the table."""

    headings: tuple[str, ...]
    body: tuple[tuple[Text, ...], ...]
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for row in self.body:
            if len(row) != len(self.headings):
                raise ValueError(f"a row of {len(row)} cells under {len(self.headings)} headings")


def markdown(sheet: Sheet, title: str) -> str:
    """The sheet as a GitHub table, columns aligned, title above and notes below."""
    table = [list(sheet.headings)]
    table += [[_markdown_cell(cell) for cell in row] for row in sheet.body]
    widths = [max(3, *(len(row[i]) for row in table)) for i in range(len(sheet.headings))]
    rows = [[cell.ljust(w) for cell, w in zip(row, widths, strict=True)] for row in table]
    rows.insert(1, ["-" * width for width in widths])
    lines = [f"**{title}**", "", *(f"| {' | '.join(row)} |" for row in rows)]
    for note in sheet.notes:
        lines += ["", note]
    return "\n".join(lines) + "\n"


def _markdown_cell(cell: Text) -> str:
    text = cell.text.replace("|", "\\|")
    return f"**{text}**" if cell.bold else text


def latex(sheet: Sheet, title: str) -> str:
    """The sheet as a LaTeX `tabular` (package booktabs); title and notes as comments."""
    columns = "l" * len(sheet.headings)
    lines = [f"% {title}", f"\\begin{{tabular}}{{{columns}}}", r"\toprule"]
    lines.append(_latex_row([_latex_text(heading) for heading in sheet.headings]))
    lines.append(r"\midrule")
    for row in sheet.body:
        lines.append(_latex_row([_latex_cell(cell) for cell in row]))
    lines += [r"\bottomrule", r"\end{tabular}"]
    lines += [f"% {note}" for note in sheet.notes]
    return "\n".join(lines) + "\n"


def _latex_row(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"


def _latex_cell(cell: Text) -> str:
    text = _latex_text(cell.text)
    return rf"\textbf{{{text}}}" if cell.bold else text


def _latex_text(text: str) -> str:
    for plain, command in _LATEX:
        text = text.replace(plain, command)
    return text


#: What a terminal may not know, in plain ASCII.
_ASCII = {"±": "+-", "−": "-", "Δ": "delta"}


def to_ascii(text: str) -> str:
    """The text for any terminal: known signs in words, everything else escaped."""
    for sign, plain in _ASCII.items():
        text = text.replace(sign, plain)
    return text.encode("ascii", "backslashreplace").decode("ascii")


def ascii_sheet(sheet: Sheet) -> Sheet:
    """The same sheet in plain ASCII, so that its columns line up on any terminal."""
    return Sheet(
        tuple(to_ascii(heading) for heading in sheet.headings),
        tuple(tuple(Text(to_ascii(c.text), c.bold) for c in row) for row in sheet.body),
        tuple(to_ascii(note) for note in sheet.notes),
    )


# --- words for numbers ----------------------------------------------------------------------------
def decimals(value: float) -> int:
    """Three below 10 ms, two below 100 ms, one below 1000 ms, none above."""
    limits = ((10, 3), (100, 2), (1000, 1))
    return next((places for limit, places in limits if abs(value) < limit), 0)


def number(value: float | None) -> str:
    """One value with the digits that it can carry; nothing for None."""
    return "" if value is None else _signed(value, decimals(value))


def mean_sd(mean: float | None, sd: float | None, n: int) -> str:
    """`11765 ± 1036`; with one process there is no spread, and the text says so."""
    if mean is None:
        return ""
    places = decimals(mean)
    if sd is None:
        return f"{_signed(mean, places)} (n = {n})"
    return f"{_signed(mean, places)} ± {sd:.{places}f}"


def percent(value: float | None, low: float | None, high: float | None) -> str:
    """`−41.1 [−52.0, −30.3]`, in per cent; without an interval the value alone."""
    if value is None:
        return ""
    if low is None or high is None:
        return _signed(value, 1)
    return f"{_signed(value, 1)} [{_signed(low, 1)}, {_signed(high, 1)}]"


def _signed(value: float, places: int) -> str:
    return f"{value:.{places}f}".replace("-", "−")


def bold_name(intervals: Mapping[str, Interval]) -> str | None:
    """The name with the lowest mean if its interval overlaps no competitor's (paper, tables).

    Touching ends overlap. Without a competitor, or where an interval is missing, nothing is bold.
    """
    if len(intervals) < 2:
        return None
    best = min(intervals, key=lambda name: intervals[name].mean)
    high = intervals[best].high
    for name, interval in intervals.items():
        if name != best and (high is None or interval.low is None or interval.low <= high):
            return None
    return best
