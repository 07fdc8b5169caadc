"""Expected bands, how strict a machine's tier makes them, and the comparison with measured values.

Lower is better for every metric here (times, sizes, unit counts). Sources: CLAIMS, bands; DESIGN,
claims, tiers, verdicts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from statistics import fmean

from artifact.analysis.distributions import t_critical
from artifact.analysis.stats import PairedRatio

#: A band is never tighter than this part of its value, on either side (CLAIMS, bands).
SMALLEST_TOLERANCE = {"compile_cost": 0.25, "latency": 0.20}

#: Largest relative difference of a calibration figure within tier `same`.
CALIBRATION_TOLERANCE = 0.10

#: Tier `similar`: a reference ratio whose interval misses this range is compared by sign ...
UNDECIDED_RATIOS = (0.9, 1.1)
#: ... every other ratio within this factor.
RATIO_FACTOR = 2.0

#: Verdicts of one metric. Only "pass" is inside the band.
VERDICTS = ("pass", "worse", "better", "missing-measured", "missing-expected", "not-a-value")

_BAND_KEYS = ("value", "rel_tol", "abs_tol")


class BandError(ValueError):
    """A band that cannot be used (bad file, too few campaigns); the message lists every fault."""


@dataclass(frozen=True)
class Band:
    """Expected value of one metric and the inclusive ends of what passes, in the metric's unit."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class MetricResult:
    """One metric compared: `verdict` is one of `VERDICTS`, `reason` says it in words."""

    metric: str
    verdict: str
    measured: float | None
    band: Band | None
    reason: str


@dataclass(frozen=True)
class Comparison:
    """Every metric of either side, in name order."""

    results: tuple[MetricResult, ...]

    @property
    def total(self) -> int:
        """Metrics named on either side."""
        return len(self.results)

    @property
    def compared(self) -> int:
        """Metrics that had a band and a value."""
        return sum(r.verdict in ("pass", "worse", "better") for r in self.results)

    @property
    def failures(self) -> tuple[MetricResult, ...]:
        """Every metric that did not pass; better than the band is among them."""
        return tuple(r for r in self.results if r.verdict != "pass")

    @property
    def passed(self) -> bool:
        """True when at least one metric was compared and all are inside their band."""
        return self.compared > 0 and not self.failures

    @property
    def word(self) -> str:
        """In band, out of band, or not compared where neither side names a metric."""
        if self.total == 0:
            return "not compared"
        return "in band" if self.passed else "out of band"

    @property
    def summary(self) -> str:
        """One line: how many of how many were compared, and how many of each other verdict."""
        counts = {v: sum(r.verdict == v for r in self.results) for v in VERDICTS}
        named = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
        head = f"{self.compared} of {self.total} compared"
        return f"{head}: {named}" if named else head


@dataclass(frozen=True)
class Facts:
    """What decides a machine's tier; None or an empty text means not recorded.

    `calibration_ms` are the campaign's medians of the calibration (a compile, a matrix product, a
    memory pass), by name.
    """

    lock_hash: str | None
    device_kind: str | None
    architecture: str | None
    isa_ceiling: str | None
    cpus: int | None
    threads: int | None
    compile_threads: int | None
    precision: str | None
    calibration_ms: Mapping[str, float]


#: Facts that must be equal for tier `similar`; tier `same` needs all the others as well.
SIMILAR_FACTS = ("lock_hash", "device_kind", "architecture", "cpus")


@dataclass(frozen=True)
class Tier:
    """`name` is "same", "similar" or "other"; `reasons` say what kept it from the tier above."""

    name: str
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class RatioResult:
    """A measured ratio against the reference's: `verdict` is "pass", "fail" or "unknown".

    `rule` is "sign" or "factor"; `reason` says it in words.
    """

    verdict: str
    rule: str
    reason: str


def bands_from(expected: Mapping[str, object]) -> dict[str, Band]:
    """Bands of a bare file `{metric: {"value", "rel_tol", "abs_tol"}}`.

    The tolerance is the larger of rel_tol * value and abs_tol (as in `math.isclose`); one of the
    two may be left out. A value or tolerance that is missing, NaN, infinite or negative, and an
    unknown key, raise one `BandError` that lists every fault.
    """
    faults: list[str] = []
    bands = {}
    for metric, entry in expected.items():
        found = _entry_faults(metric, entry)
        faults.extend(found)
        if not found and isinstance(entry, Mapping):
            value = float(entry["value"])
            tolerance = max(entry.get("rel_tol", 0.0) * value, entry.get("abs_tol", 0.0))
            bands[metric] = Band(value, value - tolerance, value + tolerance)
    if faults:
        raise BandError("; ".join(faults))
    return bands


def _entry_faults(metric: str, entry: object) -> list[str]:
    if not isinstance(entry, Mapping):
        return [f"{metric}: a band is an object with value, rel_tol and abs_tol"]
    faults = [f"{metric}: unknown key {key!r}" for key in entry if key not in _BAND_KEYS]
    if "value" not in entry:
        faults.append(f"{metric}: no value")
    if "rel_tol" not in entry and "abs_tol" not in entry:
        faults.append(f"{metric}: neither rel_tol nor abs_tol")
    for key in _BAND_KEYS:
        fault = _number_fault(entry[key]) if key in entry else None
        if fault:
            faults.append(f"{metric}: {key} is {fault}")
    return faults


def _number_fault(value: object) -> str | None:
    """Why a value from a file is no finite number >= 0, or None when it is one."""
    if value is None:
        return "null"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return f"not a number: {value!r}"
    try:
        number = float(value)
    except OverflowError:
        return "too large"
    if math.isnan(number):
        return "NaN"
    if math.isinf(number):
        return "infinite"
    return f"negative: {value}" if number < 0 else None


def compare(expected: Mapping[str, object], measured: Mapping[str, object]) -> Comparison:
    """Compare two bare files' contents; a fault of `expected` raises `BandError`.

    A metric of one side only, and a measured value that is null, NaN, infinite, negative or no
    number, never pass: they are results with a verdict of their own.
    """
    return compare_bands(bands_from(expected), measured)


def compare_bands(bands: Mapping[str, Band], measured: Mapping[str, object]) -> Comparison:
    """`compare` for bands that are already made."""
    names = sorted(bands.keys() | measured.keys())
    return Comparison(tuple(_judge(name, bands.get(name), measured) for name in names))


def _judge(metric: str, band: Band | None, measured: Mapping[str, object]) -> MetricResult:
    if metric not in measured:
        return MetricResult(metric, "missing-measured", None, band, "expected but not measured")
    value = measured[metric]
    fault = _number_fault(value)
    if fault or isinstance(value, bool) or not isinstance(value, int | float):
        return MetricResult(metric, "not-a-value", None, band, f"the measured value is {fault}")
    number = float(value)
    if band is None:
        return MetricResult(metric, "missing-expected", number, None, "measured but not expected")
    where = f"{number:.6g} against {band.low:.6g} to {band.high:.6g}"
    if number > band.high:
        return MetricResult(metric, "worse", number, band, f"above the band: {where}")
    if number < band.low:
        return MetricResult(metric, "better", number, band, f"below the band: {where}")
    return MetricResult(metric, "pass", number, band, f"in the band: {where}")


def propose(
    expected: Mapping[str, object],
    measured: Mapping[str, object],
    new_rel_tol: float = SMALLEST_TOLERANCE["compile_cost"],
) -> dict[str, dict[str, float]]:
    """The expected file that the measured values would give.

    Tolerances are kept, and so are entries without a usable measured value; metrics that are new
    get `new_rel_tol`.
    """
    bands_from(expected)
    proposed: dict[str, dict[str, float]] = {}
    for metric in sorted(expected.keys() | measured.keys()):
        entry, value = expected.get(metric), measured.get(metric)
        kept = dict(entry) if isinstance(entry, Mapping) else {"rel_tol": new_rel_tol}
        if _number_fault(value) is None and isinstance(value, int | float):
            kept["value"] = value
        if "value" in kept:
            proposed[metric] = kept
    return proposed


def prediction_bands(
    campaigns: Sequence[Mapping[str, float]], kind: str, level: float = 0.95
) -> dict[str, Band]:
    """Bands for the means of a further campaign on the same machine, from at least two.

    Each campaign maps the metrics of one kind ("compile_cost" or "latency") that it has to its mean
    in ms; campaigns of different profiles have different ones. Per metric: geometric mean of the
    means of the campaigns that have it, and the prediction interval of one more log mean. Two
    campaigns give one degree of freedom a metric, so the variance between campaigns is pooled over
    the metrics, also for a metric that one campaign alone has, and `level` holds for all metrics
    together (Bonferroni). Never tighter than `SMALLEST_TOLERANCE`. Without any metric that two
    campaigns have, `BandError`.
    """
    if kind not in SMALLEST_TOLERANCE:
        raise BandError(f"kind: expected one of {', '.join(SMALLEST_TOLERANCE)}, got {kind!r}")
    logs = _log_means(campaigns)
    df = sum(len(values) - 1 for values in logs.values())
    if df == 0:
        raise BandError("no metric is in two campaigns, so nothing says how far they lie apart")
    residual = math.fsum((x - fmean(values)) ** 2 for values in logs.values() for x in values)
    t = t_critical(1 - (1 - level) / len(logs), df)
    return {
        metric: _prediction(values, t * math.sqrt(residual / df), SMALLEST_TOLERANCE[kind])
        for metric, values in logs.items()
    }


def _prediction(logs: Sequence[float], half_of_one: float, floor: float) -> Band:
    """The band around the mean of these logs; `half_of_one` is t times the pooled sd."""
    half = half_of_one * math.sqrt(1 + 1 / len(logs))
    down, up = min(_exp(-half), 1 - floor), max(_exp(half), 1 + floor)
    value = math.exp(fmean(logs))
    return Band(value, value * down, value * up)


def _exp(value: float) -> float:
    """`exp` without overflow: a wider band than 1e100 says nothing more."""
    return math.exp(max(-230.0, min(230.0, value)))


def _log_means(campaigns: Sequence[Mapping[str, float]]) -> dict[str, list[float]]:
    """Metric -> the logs of the means of the campaigns that have it, in name order."""
    if len(campaigns) < 2:
        raise BandError(f"bands need at least two campaigns, got {len(campaigns)}")
    metrics = sorted({metric for campaign in campaigns for metric in campaign})
    if not metrics:
        raise BandError("bands need at least one metric")
    for number, campaign in enumerate(campaigns, start=1):
        for metric, value in sorted(campaign.items()):
            if _number_fault(value) or value == 0:
                raise BandError(f"campaign {number}: {metric} is no positive time")
    return {
        metric: [math.log(campaign[metric]) for campaign in campaigns if metric in campaign]
        for metric in metrics
    }


def tier(reference: Facts, measured: Facts) -> Tier:
    """How strictly a machine's results are compared, by recorded facts (CLAIMS, bands)."""
    similar = [r for r in (_fact_differs(f, reference, measured) for f in SIMILAR_FACTS) if r]
    if similar:
        return Tier("other", tuple(similar))
    rest = [f.name for f in fields(Facts) if f.name not in (*SIMILAR_FACTS, "calibration_ms")]
    same = [r for r in (_fact_differs(f, reference, measured) for f in rest) if r]
    same += _calibration_differs(reference.calibration_ms, measured.calibration_ms)
    return Tier("similar", tuple(same)) if same else Tier("same", ())


def _fact_differs(name: str, reference: Facts, measured: Facts) -> str | None:
    expected, found = getattr(reference, name), getattr(measured, name)
    if expected in (None, "") or found in (None, ""):
        return f"{name} is not recorded"
    return None if expected == found else f"{name} is {found}, the reference has {expected}"


def _calibration_differs(
    reference: Mapping[str, float], measured: Mapping[str, float]
) -> list[str]:
    names = sorted(reference.keys() | measured.keys())
    if not names:
        return ["calibration is not recorded"]
    reasons = []
    for name in names:
        pair = (reference.get(name), measured.get(name))
        expected, found = pair
        if expected is None or found is None or any(_number_fault(v) or v == 0 for v in pair):
            reasons.append(f"calibration {name} is not recorded on both sides")
        elif abs(found / expected - 1) > CALIBRATION_TOLERANCE:
            reasons.append(f"calibration {name} differs by {100 * (found / expected - 1):+.1f} %")
    return reasons


def compare_ratio(reference: PairedRatio, measured: PairedRatio) -> RatioResult:
    """Compare paired ratios in tier `similar` (CLAIMS, bands).

    By sign (the side of 1) where the reference interval excludes [0.9, 1.1], else within a factor
    of 2. A reference without interval is compared by the factor.
    """
    for side, ratio in (("reference", reference.ratio), ("measured", measured.ratio)):
        if _number_fault(ratio) or ratio == 0:
            return RatioResult("unknown", "factor", f"the {side} ratio is no positive number")
    below = reference.high is not None and reference.high < UNDECIDED_RATIOS[0]
    above = reference.low is not None and reference.low > UNDECIDED_RATIOS[1]
    if below or above:
        agrees = measured.ratio < 1 if below else measured.ratio > 1
        side = "below" if below else "above"
        return RatioResult(
            "pass" if agrees else "fail",
            "sign",
            f"measured {measured.ratio:.3g}, the reference lies {side} 1 ({reference.ratio:.3g})",
        )
    change = measured.ratio / reference.ratio
    agrees = 1 / RATIO_FACTOR <= change <= RATIO_FACTOR
    return RatioResult(
        "pass" if agrees else "fail",
        "factor",
        f"measured {measured.ratio:.3g}, reference {reference.ratio:.3g}: factor {change:.3g}",
    )
