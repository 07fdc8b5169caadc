"""The plain table that closes a run: per cell T_C, T_X, mean, sd, interval, trials, failures.

Trials whose first timed execution stands out are counted in a column of their own (case K9).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from artifact.analysis.stats import Interval, process_interval
from artifact.records import Record, current

Cell = tuple[str, str, str]

HEADINGS = (
    "cell",
    "trials",
    "other",
    "T_C native (ms)",
    "T_C aligned (ms)",
    "T_X (ms)",
    "first-sample outlier",
)

#: Below the table where a trial is flagged (case K9).
OUTLIER_WORDS = (
    "first-sample outlier: the first timed execution took over 5 times the median; it is kept"
)


@dataclass(frozen=True)
class Row:
    """One cell. The intervals are None when the cell has no usable trial."""

    model: str
    input: str
    configuration: str
    planned: int
    native_ms: Interval | None
    aligned_ms: Interval | None
    latency_ms: Interval | None
    other: str
    first_sample_outliers: int = 0

    @property
    def trials(self) -> int:
        """Usable trials: measured, ok, of the newest run of their block."""
        return self.latency_ms.n if self.latency_ms else 0


def summarise(records: Sequence[Record], planned: Sequence[Cell]) -> list[Row]:
    """One row per planned cell, in the order of `planned`; repeated cells count as planned trials.

    `other` counts attempts that did not end ok, by status; a cell without any usable trial keeps
    its row (case N2).
    """
    usable: dict[Cell, list[Record]] = {}
    for record in current(records):
        usable.setdefault(cell_of(record), []).append(record)
    failures: dict[Cell, Counter[str]] = {}
    for record in records:
        if record.spec.role == "measured" and record.status != "ok":
            failures.setdefault(cell_of(record), Counter())[record.status] += 1
    counts = Counter(planned)
    return [
        _row(cell, counts[cell], usable.get(cell, []), failures.get(cell, Counter()))
        for cell in counts
    ]


def cell_of(record: Record) -> Cell:
    """(model, input, configuration) of a record."""
    return record.spec.model, record.spec.input, record.spec.configuration


def _row(cell: Cell, planned: int, records: list[Record], failures: Counter[str]) -> Row:
    def interval(values: list[float]) -> Interval | None:
        return process_interval(values) if values else None

    return Row(
        *cell,
        planned=planned,
        native_ms=interval([r.compile_cost_ms("native") for r in records]),
        aligned_ms=interval([r.compile_cost_ms("aligned") for r in records]),
        latency_ms=interval([r.latency_ms for r in records]),
        other=", ".join(f"{count} {status}" for status, count in sorted(failures.items())),
        first_sample_outliers=sum(record.first_sample_outlier for record in records),
    )


def render(rows: Sequence[Row]) -> str:
    """Plain ASCII text: mean +- sd [95 % interval] of each quantity."""
    lines = [HEADINGS]
    for row in rows:
        lines.append(
            (
                f"{row.model} {row.input} {row.configuration}",
                f"{row.trials}/{row.planned}",
                row.other or "-",
                _text(row.native_ms),
                _text(row.aligned_ms),
                _text(row.latency_ms),
                f"{row.first_sample_outliers} of {row.trials}" if row.trials else "-",
            )
        )
    widths = [max(len(line[i]) for line in lines) for i in range(len(HEADINGS))]
    text = ["  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)) for line in lines]
    text.insert(1, "  ".join("-" * w for w in widths))
    if any(row.first_sample_outliers for row in rows):
        text += ["", OUTLIER_WORDS]
    return "\n".join(line.rstrip() for line in text) + "\n"


def _text(interval: Interval | None) -> str:
    if interval is None:
        return "n/a"
    if interval.sd is None or interval.low is None or interval.high is None:
        return f"{_number(interval.mean)} (n = {interval.n})"
    ends = f"[{_number(interval.low)}, {_number(interval.high)}]"
    return f"{_number(interval.mean)} +- {_number(interval.sd)} {ends}"


def _number(value: float) -> str:
    """Three decimals below 10 ms, one below 1000 ms, none above: what the clock can carry."""
    if abs(value) < 10:
        return f"{value:.3f}"
    return f"{value:.1f}" if abs(value) < 1000 else f"{value:.0f}"
