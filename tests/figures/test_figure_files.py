"""Figures as files: readable, whole, reproducible, in every locale, without a framework."""

from __future__ import annotations

import struct
from pathlib import Path

import drawn
import pytest

from artifact import figures
from artifact.errors import UserError
from artifact.figures import cumulative, fig5, style
from artifact.tables.source import of_paper


def drawn_figure(name, study, source):
    described = figures.load(name)
    with style.styled():
        from matplotlib.backends.backend_agg import FigureCanvasAgg

        figure = described.draw(described.rows(study, source))
        FigureCanvasAgg(figure).draw()
    return figure


def visible_texts(figure):
    from matplotlib.text import Text

    texts = figure.findobj(lambda artist: isinstance(artist, Text) and artist.get_visible())
    return [text for text in texts if text.get_text().strip()]


def sources():
    return [
        ("measured", drawn.source("cpu")),
        ("smoke", drawn.source("smoke")),
        ("one process", drawn.source("cpu", rounds=[1])),
        ("published", None),
    ]


@pytest.mark.parametrize(("kind", "source"), sources(), ids=[kind for kind, _ in sources()])
@pytest.mark.parametrize("name", figures.names())
def test_text_is_large_enough_and_inside_the_figure(the_study, name, kind, source):
    if source is None:
        if not figures.load(name).published:
            pytest.skip("the paper has no numbers for it")
        source = of_paper(figures.load(name).published)
    figure = drawn_figure(name, the_study, source)
    assert figure.get_size_inches()[0] == style.COLUMN_WIDTH_IN
    texts = visible_texts(figure)
    assert texts
    for text in texts:
        assert text.get_fontsize() >= 7, text.get_text()
        assert "^" not in text.get_text(), "exponents are smaller than the text"
    everything = figure.get_tightbbox()
    width, height = figure.get_size_inches()
    assert everything.x0 >= 0 and everything.x1 <= width, "clipped at a side"
    assert everything.y0 >= 0 and everything.y1 <= height, "clipped above or below"


def test_the_picture_has_the_width_of_a_column_at_300_dots():
    made = style.files(lambda: style.new_figure(2.0), "empty")
    width, height = struct.unpack(">II", made["png"][16:24])
    assert (width, height) == (990, 600)


def test_the_same_rows_give_the_same_bytes_without_a_date(the_study):
    described = figures.load("fig5")
    rows = described.rows(the_study, of_paper(described.published))
    first = style.files(lambda: described.draw(rows), described.title)
    assert first == style.files(lambda: described.draw(rows), described.title)
    assert b"CreationDate" not in first["pdf"]
    assert b"Matplotlib" not in first["png"]


def test_a_matplotlibrc_of_the_user_changes_nothing(the_study):
    import matplotlib

    described = figures.load("fig3")
    rows = described.rows(the_study, of_paper(described.published))
    plain = style.files(lambda: described.draw(rows), described.title)
    with matplotlib.rc_context({"font.size": 20, "axes.facecolor": "black"}):
        assert style.files(lambda: described.draw(rows), described.title) == plain


def test_compared_configurations_differ_in_colour_and_dashes():
    looks = [style.look(name)[:2] for name in ("inductor", "inductor-fold", "xla", "tvm", "eager")]
    assert len({colour for colour, _ in looks}) == 5
    assert style.look("xla-unfused")[0] == style.look("xla")[0]
    assert style.look("xla-unfused") != style.look("xla")


def test_every_figure_file_is_found_by_its_name():
    folder = Path(figures.__file__).parent
    assert set(figures.names()) == {path.stem for path in folder.glob("fig[0-9]*.py")}
    assert figures.names()[:2] == ["fig1", "fig2"]


def test_an_unknown_figure_is_one_line_with_the_known_ones():
    with pytest.raises(UserError, match="unknown figure 'fig99'; known: fig1, fig2") as caught:
        figures.load("fig99")
    assert "\n" not in str(caught.value)


def test_captions_explain_and_are_ascii():
    for name in figures.names():
        described = figures.load(name)
        assert len(described.caption) > 80, name
        assert (described.caption + described.title).isascii()


def test_labels_of_close_crossovers_do_not_overlap(the_study):
    """TVM, made fast, takes over from XLA, and the fold from TVM in the end."""

    def bend(record):
        if record.spec.configuration != "tvm":
            return record
        return drawn.scaled(record, 0.5, 0.05)

    source = drawn.source("cpu", bend)
    rows = fig5.rows(the_study, source)
    assert [row.what for row in rows].count(cumulative.CROSSOVER) == 2
    figure = drawn_figure("fig5", the_study, source)
    boxes = [
        text.get_window_extent()
        for text in visible_texts(figure)
        if text.get_text().startswith("n = ")
    ]
    assert len(boxes) == 2
    assert not boxes[0].overlaps(boxes[1])


def test_a_block_without_trials_is_named_once(the_study):
    def bend(record):
        return record if record.spec.model == "resnet18" else None

    figure = drawn_figure("fig6", the_study, drawn.source("cpu", bend))
    assert figure.get_supxlabel().count("(1,64)") == 1
