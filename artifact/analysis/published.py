"""The paper's published numbers (`expected/published/`; Kamei and Costa, SBLP 2026).

Times are ms. The files keep the paper's own words; here backends become our configurations.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from artifact.analysis.cost import Line, ProcessPoint
from artifact.errors import UserError

DEFAULT_DIRECTORY = Path(__file__).resolve().parents[2] / "expected" / "published"

#: The paper's backend -> our configuration.
CONFIGURATION = {
    "inductor": "inductor",
    "inductor_fold": "inductor-fold",
    "inductor_control": "inductor-control",
    "xla": "xla",
    "tvm": "tvm",
}

#: The paper's family of tests -> the metric whose ten cells it adjusts together.
FAMILIES = ("compile_after_preprocessing", "fixed_cost_including_fold", "execution")


@dataclass(frozen=True)
class PublishedTiming:
    """One metric of one cell: mean, sample sd and half width of the 95 % interval over `k`.

    `metric` is `compile_ms` (T_C), `exec_ms` (T_X), `fold_ms` or `ttfb_ms` (first call). Spread
    and process values are None and empty where the paper does not give them.
    """

    campaign: str
    configuration: str
    model: str
    input: str
    k: int
    metric: str
    mean: float
    sd: float | None
    ci95_half: float | None
    process_values: tuple[float, ...]


@dataclass(frozen=True)
class PublishedUnits:
    """Static unit counts of one generated program; None where the paper gives no number."""

    backend: str
    variant: str
    model: str
    input: str
    internal: int | None
    internal_unique: int | None
    external: int | None
    external_unique: int | None
    code_bytes: int
    code_lines: int


@dataclass(frozen=True)
class PublishedWelch:
    """One comparison, fold - base, in ms (`relative_percent` of base, `p_holm` in its family)."""

    family: str
    model: str
    input: str
    base_mean: float
    fold_mean: float
    difference: float
    relative_percent: float
    low: float
    high: float
    df: float
    p: float
    p_holm: float
    reject: bool


@lru_cache(maxsize=8)
def timings(directory: Path = DEFAULT_DIRECTORY) -> tuple[PublishedTiming, ...]:
    """`timings.csv`, in file order."""
    return tuple(
        PublishedTiming(
            campaign=row["campaign"],
            configuration=CONFIGURATION[row["backend"]],
            model=row["model"],
            input=row["shape"],
            k=int(row["k"]),
            metric=row["metric"],
            mean=float(row["mean"]),
            sd=_float_or_none(row["sd"]),
            ci95_half=_float_or_none(row["ci95_half"]),
            process_values=tuple(float(v) for v in row["process_values"].split(";") if v),
        )
        for row in _rows(directory / "timings.csv")
    )


@lru_cache(maxsize=8)
def units(directory: Path = DEFAULT_DIRECTORY) -> tuple[PublishedUnits, ...]:
    """`units.csv`, in file order."""
    return tuple(
        PublishedUnits(
            backend=row["backend"],
            variant=row["variant"],
            model=row["model"],
            input=row["shape"],
            internal=_int_or_none(row["internal_units"]),
            internal_unique=_int_or_none(row["internal_unique"]),
            external=_int_or_none(row["external_units"]),
            external_unique=_int_or_none(row["external_unique"]),
            code_bytes=int(row["code_size_bytes"]),
            code_lines=int(row["code_lines"]),
        )
        for row in _rows(directory / "units.csv")
    )


@lru_cache(maxsize=8)
def welch_rows(directory: Path = DEFAULT_DIRECTORY) -> tuple[PublishedWelch, ...]:
    """`welch.csv`, in file order: three families of ten ResNet inputs."""
    return tuple(
        PublishedWelch(
            family=row["family"],
            model=row["model"],
            input=row["shape"],
            base_mean=float(row["base_mean"]),
            fold_mean=float(row["fold_mean"]),
            difference=float(row["delta"]),
            relative_percent=float(row["rel_pct"]),
            low=float(row["ci_lo"]),
            high=float(row["ci_hi"]),
            df=float(row["welch_df"]),
            p=float(row["p"]),
            p_holm=float(row["p_holm"]),
            reject=row["reject"] == "True",
        )
        for row in _rows(directory / "welch.csv")
    )


def cells(campaigns: tuple[str, ...], directory: Path = DEFAULT_DIRECTORY) -> list[tuple[str, str]]:
    """The (model, input) pairs of the named campaigns, in file order."""
    rows = timings(directory)
    return list(dict.fromkeys((r.model, r.input) for r in rows if r.campaign in campaigns))


def timing(
    campaign: str,
    configuration: str,
    model: str,
    shape: str,
    metric: str,
    directory: Path = DEFAULT_DIRECTORY,
) -> PublishedTiming | None:
    """One published metric, or None where the paper has none."""
    wanted = (campaign, configuration, model, shape, metric)
    return _index(directory).get(wanted)


def lines(
    campaign: str, model: str, shape: str, directory: Path = DEFAULT_DIRECTORY
) -> dict[str, Line]:
    """Cost lines of a cell's configurations through the published means, fold time included."""
    found = {}
    for configuration in CONFIGURATION.values():
        fixed, latency, fold = _cost_terms(campaign, configuration, model, shape, directory)
        if fixed and latency:
            fold_ms = fold.mean if fold else 0.0
            found[configuration] = Line(fixed.mean + fold_ms, latency.mean)
    return found


def points(
    campaign: str, model: str, shape: str, directory: Path = DEFAULT_DIRECTORY
) -> dict[str, tuple[ProcessPoint, ...]]:
    """The published processes of a cell per configuration, fold time included, four decimals.

    The position in the published list stands for the round. That is an assumption: the paper ran
    its variants always in the same order, but does not say that processes were paired.
    """
    found = {}
    for configuration in CONFIGURATION.values():
        fixed, latency, fold = _cost_terms(campaign, configuration, model, shape, directory)
        if fixed and latency:
            folds = fold.process_values if fold else (0.0,) * fixed.k
            values = zip(fixed.process_values, folds, latency.process_values, strict=True)
            found[configuration] = tuple(
                ProcessPoint(number, t_c + fold_ms, t_x)
                for number, (t_c, fold_ms, t_x) in enumerate(values, start=1)
            )
    return found


def _cost_terms(
    campaign: str, configuration: str, model: str, shape: str, directory: Path
) -> tuple[PublishedTiming | None, PublishedTiming | None, PublishedTiming | None]:
    index = _index(directory)
    cell = (campaign, configuration, model, shape)
    return (
        index.get((*cell, "compile_ms")),
        index.get((*cell, "exec_ms")),
        index.get((*cell, "fold_ms")),
    )


@lru_cache(maxsize=8)
def _index(directory: Path) -> dict[tuple[str, str, str, str, str], PublishedTiming]:
    return {
        (t.campaign, t.configuration, t.model, t.input, t.metric): t for t in timings(directory)
    }


def _rows(path: Path) -> Iterator[dict[str, str]]:
    try:
        with path.open(encoding="utf-8", newline="") as stream:
            yield from csv.DictReader(stream)
    except OSError as error:
        raise UserError(
            f"cannot read the published numbers {path}: {error.strerror}",
            next_step="they lie in expected/published of a checkout",
        ) from error


def _float_or_none(text: str) -> float | None:
    return float(text) if text else None


def _int_or_none(text: str) -> int | None:
    return int(text) if text else None
