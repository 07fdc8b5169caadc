"""One look for all figures, and their files: column width, fonts, colours, reproducible bytes.

matplotlib is imported when something is drawn, never before; there is no global figure state.
"""

from __future__ import annotations

import atexit
import io
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from artifact import study as studies
from artifact.tables.source import contracts_differ

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

#: Width of one column of the paper, in inches.
COLUMN_WIDTH_IN = 3.3
PNG_DOTS_PER_INCH = 300
SMALL_POINTS = 7.0

#: Okabe and Ito's palette: distinguishable with every common colour blindness.
BLACK, GREY = "#000000", "#767676"
ORANGE, SKY, GREEN, YELLOW = "#E69F00", "#56B4E9", "#009E73", "#F0E442"
BLUE, VERMILLION, PURPLE = "#0072B2", "#D55E00", "#CC79A7"

#: Configuration -> (colour, dashes, marker); a pair that is compared differs in all three.
LOOKS: dict[str, tuple[str, str, str]] = {
    "eager": (BLACK, ":", "x"),
    "inductor": (ORANGE, "--", "s"),
    "inductor-fold": (VERMILLION, "-", "o"),
    "inductor-control": (SKY, "-", "o"),
    "inductor-freeze": (PURPLE, "-", "D"),
    "inductor-bneval": (PURPLE, "--", "v"),
    "inductor-guard": (SKY, "-.", "P"),
    "xla": (BLUE, "-", "^"),
    "tvm": (GREEN, "-.", "d"),
}
_UNKNOWN_LOOK = (GREY, "-", "*")

SHORT_NAMES = {
    "eager": "eager",
    "inductor": "Inductor",
    "inductor-fold": "Inductor + fold",
    "inductor-control": "Inductor, control",
    "inductor-freeze": "Inductor, freezing",
    "inductor-bneval": "Inductor, bn-eval",
    "inductor-guard": "Inductor, guarded fold",
    "xla": "XLA",
    "tvm": "TVM",
}

_SETTINGS = {
    "font.family": "DejaVu Sans",
    "font.size": SMALL_POINTS + 0.5,
    "axes.titlesize": SMALL_POINTS + 1,
    "axes.labelsize": SMALL_POINTS + 0.5,
    "xtick.labelsize": SMALL_POINTS,
    "ytick.labelsize": SMALL_POINTS,
    "legend.fontsize": SMALL_POINTS,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "lines.linewidth": 1.2,
    "hatch.linewidth": 0.5,
    "axes.formatter.use_locale": False,
    "pdf.fonttype": 42,
    "figure.dpi": 100,
}


def look(configuration: str) -> tuple[str, str, str]:
    """Colour, dashes and marker; `*-unfused` looks like its stack, dotted."""
    base = configuration.removesuffix("-unfused")
    colour, dashes, marker = LOOKS.get(base, _UNKNOWN_LOOK)
    return (colour, dashes, marker) if base == configuration else (colour, ":", marker)


def short_name(configuration: str) -> str:
    """The name of a configuration in a legend."""
    base = configuration.removesuffix("-unfused")
    name = SHORT_NAMES.get(base, base)
    return name if base == configuration else f"{name}, unfused"


@lru_cache(maxsize=1)
def _study() -> studies.Study:
    return studies.load()


def model_name(model: str) -> str:
    """The title of a model in the study; its id when the study does not know it."""
    models = _study().models
    return models[model].title if model in models else model


def block_name(model: str, shape: str) -> str:
    """Model and input in one line, such as `ResNet-18 (1,3,224,224)`."""
    return f"{model_name(model)} ({shape.replace('x', ',')})"


def milliseconds(value: float) -> str:
    """A short time with its unit for a label: 1.23 ms, 45.6 ms, 7.89 s."""
    if abs(value) >= 1e4:
        return f"{value / 1000:.1f} s"
    return f"{value / 1000:.2f} s" if abs(value) >= 1e3 else f"{value:.3g} ms"


def short_count(value: float) -> str:
    """A tick of a logarithmic axis without a tiny exponent: 0.1, 10, 1k, 100k, 1M."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{value / limit:.4g}{unit}"
    return f"{value:.4g}"


def executions(value: float) -> str:
    """A number of executions in full, thousands apart: 19 378."""
    return f"{value:,.0f}".replace(",", " ") if value >= 10 else f"{value:.2g}"


@contextmanager
def styled() -> Iterator[None]:
    """matplotlib with our settings, whatever a matplotlibrc on this machine says."""
    if "MPLCONFIGDIR" not in os.environ:
        os.environ["MPLCONFIGDIR"] = str(_cache_directory())
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_SETTINGS)  # type: ignore[arg-type]
        yield


def _cache_directory() -> Path:
    """Where matplotlib keeps its list of fonts: in our own environment, never in a home folder."""
    inside = Path(sys.prefix) / "matplotlib"
    if sys.prefix != sys.base_prefix and os.access(sys.prefix, os.W_OK):
        return inside
    temporary = Path(tempfile.mkdtemp(prefix="artifact-matplotlib-"))
    atexit.register(shutil.rmtree, temporary, ignore_errors=True)
    return temporary


def new_figure(height_in: float) -> Figure:
    """An empty figure of column width, laid out so that nothing is clipped."""
    from matplotlib.figure import Figure

    return Figure(figsize=(COLUMN_WIDTH_IN, height_in), layout="constrained")


def note(figure: Figure, text: str) -> None:
    """Small grey lines below everything else, wrapped to the column."""
    import textwrap

    lines = [part for line in text.split("\n") for part in textwrap.wrap(line, 58)]
    figure.supxlabel("\n".join(lines), fontsize=SMALL_POINTS, color=GREY, x=0.02, ha="left")


def decades(*axes: Axis) -> None:
    """Label the decades of logarithmic axes in full size."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    formatter = FuncFormatter(lambda value, _: short_count(value))
    between = FuncFormatter(lambda value, _: short_count(value) if _is_2_or_5(value) else "")
    for axis in axes:
        low, high = sorted(axis.get_view_interval())
        axis.set_major_formatter(formatter)
        # Short axes may hold one decade or none, which would leave them without a scale.
        axis.set_minor_formatter(between if high / low < 60 else NullFormatter())


def _is_2_or_5(value: float) -> bool:
    return f"{value:e}"[0] in "25"


def grouped(reasons: Iterable[tuple[str, str]]) -> list[str]:
    """(name, reason) pairs as one line a reason, each name once: `not measured: A; B`."""
    names: dict[str, list[str]] = {}
    for name, reason in reasons:
        names.setdefault(reason, []).append(name)
    return [f"{reason}: {'; '.join(dict.fromkeys(found))}" for reason, found in names.items()]


def contract_lines(bindings: Iterable[tuple[str, str, str, str]]) -> list[str]:
    """(model, input, configuration, binding) as one line a difference, naming its blocks.

    Said of configurations within one window whose weights are bound differently.
    """
    blocks: dict[str, dict[str, str]] = {}
    for model, shape, configuration, binding in bindings:
        names = blocks.setdefault(block_name(model, shape), {})
        names[short_name(configuration)] = binding
    found = [(block, contracts_differ(names)) for block, names in blocks.items()]
    return grouped((block, words) for block, words in found if words)


def say_absent(axes: Axes, x: float, words: str, **options: Any) -> None:
    """The words for a cell without a value, upright at its place on the x axis."""
    axes.text(
        x,
        0.03,
        words,
        transform=axes.get_xaxis_transform(),
        rotation=90,
        ha="center",
        va="bottom",
        fontsize=SMALL_POINTS,
        color=GREY,
        **options,
    )


def files(draw: Callable[[], Figure], title: str) -> dict[str, bytes]:
    """The figure as `png` and `pdf`. The same rows give the same bytes: no date, no version."""
    with styled():
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.backends.backend_pdf import FigureCanvasPdf

        figure = draw()
        made = {}
        for suffix, canvas, metadata in (
            ("png", FigureCanvasAgg, {"Software": None, "Title": title}),
            (
                "pdf",
                FigureCanvasPdf,
                {"Creator": None, "Producer": None, "CreationDate": None, "Title": title},
            ),
        ):
            canvas(figure)
            stream = io.BytesIO()
            figure.savefig(stream, format=suffix, dpi=PNG_DOTS_PER_INCH, metadata=metadata)
            made[suffix] = stream.getvalue()
            # Both files have one layout, and it is computed once.
            figure.set_layout_engine("none")
        return made
