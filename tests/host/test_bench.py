"""The rows of `make bench` that are about figures, tables and many records."""

from __future__ import annotations

import pytest

from artifact.errors import UserError
from artifact.host import bench, drawing
from artifact.host.bench import Line
from artifact.strict_json import write_atomic


@pytest.fixture
def references(tmp_path):
    write_atomic(tmp_path / "a-class" / "facts.json", {})
    return tmp_path


def test_without_a_reference_nothing_is_timed(tmp_path):
    rows = bench._drawing_lines(tmp_path)
    assert [(row.measured, row.must_reach) for row in rows] == [(None, 5.0), (None, 8.0)]
    assert {row.note for row in rows} == {"no reference records are shipped"}


def test_the_slowest_and_what_cannot_be_drawn_are_named(references, monkeypatch):
    seconds = dict.fromkeys(drawing.names(), 2.0) | {"tab4": 4.5, "tab2": None}
    runs = iter([9.0, 3.0, 1.0])
    monkeypatch.setattr(
        bench, "_drawing_s", lambda name: next(runs) if name == "fig3" else seconds[name]
    )
    first, others = bench._drawing_lines(references)
    assert (first.measured, others.measured) == (3.0, 4.5)
    assert others.note.startswith("tab4 of fig1, ")
    assert others.note.endswith("; the reference has no record of tab2")
    assert "MISSED" not in bench.render([first, others])


def test_a_figure_that_fails_has_no_speed():
    with pytest.raises(UserError, match="fig99 could not be drawn: artifact: unknown figure"):
        bench._drawing_s("fig99")


def test_records_are_read_from_disk_with_their_checksums(tmp_path):
    directory = bench.write_records(tmp_path / "many", 45)
    assert len(list((directory / "records").iterdir())) == 45
    assert bench.estimating_s(directory) > 0
    record = sorted((directory / "records").iterdir())[0]
    record.write_text(record.read_text().replace('"fake"', '"Fake"', 1), encoding="utf-8")
    with pytest.raises(UserError, match=r"many: .*checksum differs"):
        bench.estimating_s(directory)


def test_growth_beyond_the_mark_is_said():
    text = bench.render([Line("growth", 12.4, "x", 12.0), Line("time", 9.9, "s", 10.0)])
    assert [line.endswith("MISSED") for line in text.splitlines()[1:]] == [True, False]
