"""Rows as CSV: one frozen dataclass a row, its fields are the columns."""

from __future__ import annotations

import csv
import dataclasses
import io
from collections.abc import Sequence
from typing import Any

from artifact.analysis.stats import Interval


def csv_text(row_type: type, rows: Sequence[Any]) -> str:
    """The rows under their field names. Floats in full with a point in any locale; None empty."""
    names = [field.name for field in dataclasses.fields(row_type)]
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(names)
    for row in rows:
        writer.writerow([_text(getattr(row, name)) for name in names])
    return stream.getvalue()


def interval_columns(name: str, interval: Interval) -> dict[str, Any]:
    """An interval in ms as the fields `<name>_mean_ms`, `_sd_ms`, `_low_ms` and `_high_ms`."""
    values = (interval.mean, interval.sd, interval.low, interval.high)
    keys = ("mean", "sd", "low", "high")
    return {f"{name}_{key}_ms": value for key, value in zip(keys, values, strict=True)}


def _text(value: Any) -> str:
    if value is None:
        return ""
    return repr(value) if isinstance(value, float) else str(value)
