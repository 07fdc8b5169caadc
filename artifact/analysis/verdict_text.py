"""A verdict as text (`verdict.md`, also what is printed) and as strict JSON (`verdict.json`).

ASCII only, no clock, no locale and no path: the same campaign gives the same bytes everywhere.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from artifact.analysis.bands import Comparison, MetricResult
from artifact.analysis.claims.line import Line
from artifact.analysis.stats import PairedRatio
from artifact.analysis.verdict import Judged, RatioCheck, Verdict

SCHEMA_VERSION = 1

HEADINGS = (
    "claim",
    "kind",
    "item",
    "published",
    "reference",
    "measured",
    "interval",
    "resolves",
    "band",
    "tier",
    "verdict",
    "without noisy",
)

ENGINE_NOTES = {
    "process": "engine process: memory was not limited and the network not cut off",
    "fake": "engine fake: the numbers are seeded nonsense, nothing was measured",
}


def markdown(verdict: Verdict) -> str:
    """The whole verdict: head, one table, failures, reasons, noisy trials."""
    parts = [
        f"# Verdict of {verdict.campaign.name}",
        _head(verdict),
        table(verdict),
        _listed("Failures", verdict.failures, "none"),
        _listed("Findings that do not count here", verdict.reported),
        _listed("Why", _reasons(verdict.lines)),
        _listed("Without noisy trials", _quiet_values(verdict.lines)),
        _listed("Noisy trials", _noise(verdict)),
        _listed("Cells that their stack cannot run", _unsupported(verdict)),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _head(verdict: Verdict) -> str:
    campaign = verdict.campaign
    engines = sorted({r.identity.engine for r in campaign.usable})
    machines = sorted({_machine(r.identity) for r in campaign.usable})
    lines = [
        f"**{verdict.summary}; exit code {verdict.exit_code}**",
        "",
        f"- profile {campaign.profile or 'unknown'}, engine {', '.join(engines) or 'unknown'}",
        f"- machine: {'; '.join(machines) or 'unknown'}",
        f"- reference: {verdict.reference_name or 'none'}; tier {verdict.tier.name}"
        + "".join(f"\n  - {reason}" for reason in verdict.tier.reasons),
        f"- findings {'count' if _counted(verdict) else 'are reported and do not count'}"
        + (" (strict)" if verdict.strict else ""),
        f"- {_noisy_count(verdict)}",
    ]
    limits = _limits(verdict)
    if limits is not None:
        lines.insert(2, f"- limited to blocks {', '.join(limits) or '(none of the campaign)'}")
    lines += [f"- {line}" for line in _about_bands(verdict)]
    lines += [f"- {ENGINE_NOTES[engine]}" for engine in engines if engine in ENGINE_NOTES]
    return "\n".join(lines)


def _limits(verdict: Verdict) -> list[str] | None:
    """Names of the blocks that the verdict is limited to, or None when it is of all."""
    limited = verdict.campaign.limited
    return None if limited is None else [" ".join(block) for block in limited]


def _about_bands(verdict: Verdict) -> list[str]:
    """How the bands ended, what they rest on, and what has none."""
    if verdict.comparison is None:
        return []
    lines = [f"bands: {verdict.comparison.summary}"]
    if verdict.quiet_comparison is not None:
        lines.append(f"bands without noisy trials: {verdict.quiet_comparison.summary}")
    if verdict.reference_campaigns == 1:
        lines.append("bands of one campaign: smallest tolerances")
    if verdict.without_band:
        lines.append(f"no band for: {', '.join(verdict.without_band)}")
    return lines


def _counted(verdict: Verdict) -> bool:
    return verdict.strict or verdict.tier.name == "same"


def _machine(identity: Any) -> str:
    return f"{identity.cpu_model}, {identity.effective_cpus} CPUs, {identity.architecture}"


def table(verdict: Verdict) -> str:
    """One Markdown table, padded so that it reads well as plain text too."""
    rows = [_row(judged, verdict.tier.name) for judged in verdict.lines]
    rows += _band_rows(verdict.comparison)
    rows += [_ratio_row(check) for check in verdict.ratios]
    return padded([HEADINGS, *rows])


def padded(rows: Sequence[Sequence[str]]) -> str:
    """Markdown of rows, the first one the heading."""
    cells = [[text.replace("|", "\\|").replace("\n", " ") for text in row] for row in rows]
    widths = [max(3, *(len(row[i]) for row in cells)) for i in range(len(cells[0]))]
    padded_rows = [[c.ljust(w) for c, w in zip(row, widths, strict=True)] for row in cells]
    lines = [f"| {' | '.join(row)} |" for row in padded_rows]
    lines.insert(1, f"|{'|'.join('-' * (width + 2) for width in widths)}|")
    return "\n".join(lines)


def _row(judged: Judged, tier: str) -> tuple[str, ...]:
    line = judged.line
    return (
        judged.claim,
        line.kind,
        line.item or "-",
        line.published or "-",
        _reference(judged.reference),
        line.measured or "-",
        _interval(line),
        f"{line.resolvable_ratio:.3f}" if line.resolvable_ratio else "-",
        line.band,
        tier,
        line.verdict,
        judged.quiet or "-",
    )


def _reference(line: Line | None) -> str:
    if line is None or not line.measured:
        return "-"
    return f"{line.measured} {_interval(line)}" if line.interval else line.measured


def _interval(line: Line) -> str:
    if line.interval is None:
        return "-"
    low, high = line.interval
    one_sided = line.ratio is not None and line.ratio.level == 0.90
    level = " (90 %)" if line.equivalence or one_sided else ""
    return f"[{low:.3f}, {high:.3f}]{level}"


def _band_rows(comparison: Comparison | None) -> list[tuple[str, ...]]:
    """One row for the bands together, and one for each metric that is not in its band."""
    if comparison is None:
        return []
    whole = ("bands", "C", "all metrics", "-", "-", comparison.summary, "-", "-", "-", "same")
    return [(*whole, comparison.word, "-"), *(_band_row(result) for result in comparison.failures)]


def _band_row(result: MetricResult) -> tuple[str, ...]:
    band = result.band
    return (
        "bands",
        "C",
        result.metric,
        "-",
        f"{band.value:.6g}" if band else "-",
        f"{result.measured:.6g}" if result.measured is not None else "-",
        "-",
        "-",
        f"{band.low:.6g} to {band.high:.6g}" if band else "-",
        "same",
        f"out of band ({result.verdict})",
        "-",
    )


def _ratio_row(check: RatioCheck) -> tuple[str, ...]:
    expected, found = check.reference, check.measured
    inside = check.result.verdict == "pass"
    return (
        "ratios",
        "C",
        check.name,
        "-",
        f"{expected.ratio:.3f} {_ends(expected)}",
        f"{found.ratio:.3f} (n = {found.n})" if found else "-",
        _ends(found) if found else "-",
        f"{found.resolvable_ratio:.3f}" if found and found.resolvable_ratio else "-",
        "the reference's side of 1" if check.result.rule == "sign" else "within a factor of 2",
        "similar",
        "in band" if inside else f"out of band ({check.result.verdict})",
        "-",
    )


def _ends(ratio: PairedRatio) -> str:
    if ratio.low is None or ratio.high is None:
        return "-"
    return f"[{ratio.low:.3f}, {ratio.high:.3f}]"


def _listed(title: str, items: Sequence[str], otherwise: str = "") -> str:
    if not items:
        return f"## {title}\n\n{otherwise}" if otherwise else ""
    return f"## {title}\n\n" + "\n".join(f"- {item}" for item in items)


def _reasons(lines: Sequence[Judged]) -> list[str]:
    return [f"{j.name}: {j.line.verdict}: {j.line.reason}" for j in lines if j.line.reason]


def _quiet_values(lines: Sequence[Judged]) -> list[str]:
    """Lines whose values are others without noisy trials; the table has their verdicts."""
    told = []
    for judged in lines:
        quiet = judged.quiet_line
        if quiet is not None and _values(quiet) != _values(judged.line):
            reason = f": {quiet.reason}" if quiet.reason else ""
            told.append(f"{judged.name}: {_values(quiet)}: {quiet.verdict}{reason}")
    return told


def _values(line: Line) -> str:
    """What was measured and its interval, as the table has them."""
    return f"{line.measured or '-'} {_interval(line)}" if line.interval else line.measured or "-"


def _noise(verdict: Verdict) -> list[str]:
    """Trials by what disturbed them; a calibration disturbs the whole block behind it."""
    by_reason: dict[tuple[str, ...], list[str]] = {}
    for record in verdict.campaign.usable:
        reasons = verdict.campaign.noisy.get(record.spec.record_id)
        if reasons:
            by_reason.setdefault(reasons, []).append(record.spec.record_id)
    return [f"{', '.join(reasons)}: {', '.join(ids)}" for reasons, ids in by_reason.items()]


def _noisy_count(verdict: Verdict) -> str:
    usable = verdict.campaign.usable
    noisy = sum(bool(verdict.campaign.noisy.get(r.spec.record_id)) for r in usable)
    return f"{noisy} of {len(usable)} usable trials were noisy"


def _unsupported(verdict: Verdict) -> list[str]:
    return [" ".join(cell) for cell in verdict.campaign.unsupported]


def plain(verdict: Verdict) -> dict[str, Any]:
    """The verdict as plain values for `verdict.json`; nothing in it is NaN or infinite."""
    return {
        "schema": SCHEMA_VERSION,
        "campaign": verdict.campaign.name,
        "profile": verdict.campaign.profile,
        "reference": verdict.reference_name or None,
        "tier": {"name": verdict.tier.name, "reasons": list(verdict.tier.reasons)},
        "strict": verdict.strict,
        "limited_to": _limits(verdict),
        "claims_compared": verdict.compared,
        "claims": len(verdict.claims),
        "summary": verdict.summary,
        "exit_code": verdict.exit_code,
        "lines": [_plain_line(judged) for judged in verdict.lines],
        "bands": _plain_comparison(verdict.comparison),
        "bands_without_noisy": _plain_comparison(verdict.quiet_comparison),
        "bands_of_campaigns": verdict.reference_campaigns,
        "without_band": list(verdict.without_band),
        "ratios": [dataclasses.asdict(check) for check in verdict.ratios],
        "failures": list(verdict.failures),
        "reported": list(verdict.reported),
        "noisy": _noise(verdict),
        "unsupported": _unsupported(verdict),
    }


def _plain_line(judged: Judged) -> dict[str, Any]:
    line = judged.line
    return {
        "claim": judged.claim,
        "kind": line.kind,
        "item": line.item,
        "blocks": [" ".join(block) for block in line.blocks],
        "band": line.band,
        "published": line.published or None,
        **_plain_values(line),
        "verdict_without_noisy": judged.quiet or line.verdict,
        "without_noisy": _plain_values(judged.quiet_line) if judged.quiet_line else None,
        "reference": _plain_values(judged.reference) if judged.reference else None,
    }


def _plain_values(line: Line) -> dict[str, Any]:
    """What a line says of the trials that it was made from."""
    return {
        "verdict": line.verdict,
        "reason": line.reason,
        "measured": line.measured or None,
        "interval": list(line.interval) if line.interval else None,
        "ratio": dataclasses.asdict(line.ratio) if line.ratio else None,
        "equivalence": dataclasses.asdict(line.equivalence) if line.equivalence else None,
    }


def _plain_comparison(comparison: Comparison | None) -> dict[str, Any] | None:
    if comparison is None:
        return None
    return {
        "summary": comparison.summary,
        "passed": comparison.passed,
        "metrics": [_plain_metric(result) for result in comparison.results],
    }


def _plain_metric(result: MetricResult) -> dict[str, Any]:
    return {
        "metric": result.metric,
        "verdict": result.verdict,
        "measured": result.measured,
        "band": dataclasses.asdict(result.band) if result.band else None,
        "reason": result.reason,
    }
