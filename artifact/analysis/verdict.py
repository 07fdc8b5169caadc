"""From evidence to a verdict: all claims, the bands, every failure, and the exit code.

Exit code 0: integrity holds, and (tier `same`, or strict) findings are in band; 1: not; 2: nothing
could be compared. A finding outside tier `same` counts only when strict (CLAIMS, DESIGN).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from artifact.analysis import bands, claims, reference
from artifact.analysis.bands import Comparison, RatioResult, Tier
from artifact.analysis.claims import Claim
from artifact.analysis.claims.line import (
    FAILS,
    FINDING,
    INCONCLUSIVE,
    INTEGRITY,
    NOT_COMPARABLE,
    NOT_MEASURED,
    NOT_REPRODUCED,
    Line,
)
from artifact.analysis.claims.ratios import fixed_cost_ms, latency_ms
from artifact.analysis.cost import CostError
from artifact.analysis.evidence import (
    UNCOMPILED,
    Campaign,
    Evidence,
    Quantity,
    evidence_of,
    facts_of,
    mixtures,
)
from artifact.analysis.reference import Reference
from artifact.analysis.stats import PairedRatio, StatsError

#: The claim whose subject is the campaign itself, so that it is told of every trial.
CAMPAIGN_CLAIM = "C1"

#: Tier `similar` compares every configuration with this one, in these terms.
BASELINE = "inductor"
RATIO_TERMS: dict[str, Quantity] = {"T_C": fixed_cost_ms, "T_X": latency_ms}

NO_REFERENCE = Tier("other", ("there is no reference to compare with",))


@dataclass(frozen=True)
class Judged:
    """One line of a claim with its counterparts.

    `quiet_line` is the same line without noisy trials (None: no trial was noisy). `reference` is
    the same line of the reference, None where it has none.
    """

    claim: str
    line: Line
    quiet_line: Line | None
    reference: Line | None

    @property
    def name(self) -> str:
        """How the line is named in a list of failures."""
        return f"{self.claim} {self.line.item}".strip()

    @property
    def quiet(self) -> str | None:
        """The verdict without noisy trials."""
        return self.quiet_line.verdict if self.quiet_line else None


@dataclass(frozen=True)
class RatioCheck:
    """A paired ratio of two configurations against the reference's (tier `similar`)."""

    name: str
    reference: PairedRatio
    measured: PairedRatio | None
    result: RatioResult


@dataclass(frozen=True)
class Verdict:
    """Everything that `artifact check` says of one campaign.

    `comparison` are the bands (tier `same` only), `quiet_comparison` the same without noisy
    trials, `without_band` the measured blocks and cells that have none; `ratios` the paired ratios
    (tier `similar` only). `failures` decide the exit code; `reported` are findings that do not
    count here.
    """

    campaign: Campaign
    reference_name: str
    reference_campaigns: int
    tier: Tier
    strict: bool
    claims: tuple[Claim, ...]
    lines: tuple[Judged, ...]
    comparison: Comparison | None
    quiet_comparison: Comparison | None
    without_band: tuple[str, ...]
    ratios: tuple[RatioCheck, ...]
    failures: tuple[str, ...]
    reported: tuple[str, ...]

    @property
    def compared(self) -> int:
        """Claims that at least one line gives a verdict on."""
        silent = (NOT_MEASURED, NOT_COMPARABLE)
        return len({j.claim for j in self.lines if j.line.verdict not in silent})

    @property
    def exit_code(self) -> int:
        """0, 1 or 2, as in the module's first lines."""
        if self.compared == 0:
            return 2
        return 1 if self.failures else 0

    @property
    def summary(self) -> str:
        """One line: how many of how many claims were compared, and how the lines ended."""
        counts = Counter(judged.line.verdict for judged in self.lines)
        named = ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items()))
        return f"{self.compared} of {len(self.claims)} compared: {named}"


def judge(campaign: Campaign, chosen: Reference | None, *, strict: bool = False) -> Verdict:
    """Evaluate every claim on a campaign and compare it with a reference, if there is one."""
    tier = chosen.tier(campaign) if chosen else NO_REFERENCE
    mixed = mixtures(campaign)
    loaded = tuple(claims.load_all())
    lines = _judged(campaign, loaded, chosen, tier, mixed)
    comparison = quiet = None
    without_band: tuple[str, ...] = ()
    if chosen is not None and tier.name == "same" and not mixed:
        comparison = compare(campaign, chosen, evidence_of(campaign))
        without_band = _without_band(campaign, chosen)
        if _noisy(campaign):
            quiet = compare(campaign, chosen, evidence_of(campaign, quiet=True))
    ratios: tuple[RatioCheck, ...] = ()
    if chosen is not None and tier.name == "similar" and not mixed:
        ratios = ratio_checks(evidence_of(campaign), chosen.evidence)
    failures = [_said(j) for j in lines if j.line.verdict == FAILS]
    findings = _findings(lines, comparison, ratios, tier, strict)
    findings += [f"{' '.join(cell)}: unsupported" for cell in campaign.unsupported if strict]
    counted = strict or tier.name == "same"
    return Verdict(
        campaign=campaign,
        reference_name=chosen.name if chosen else "",
        reference_campaigns=len(chosen.campaigns) if chosen else 0,
        tier=tier,
        strict=strict,
        claims=loaded,
        lines=lines,
        comparison=comparison,
        quiet_comparison=quiet,
        without_band=without_band,
        ratios=ratios,
        failures=(*failures, *findings) if counted else tuple(failures),
        reported=tuple(_silent(lines) if strict else [] if counted else findings),
    )


def _noisy(campaign: Campaign) -> bool:
    return any(campaign.noisy.get(r.spec.record_id) for r in campaign.usable)


def _judged(
    campaign: Campaign,
    loaded: tuple[Claim, ...],
    chosen: Reference | None,
    tier: Tier,
    mixed: list[str],
) -> tuple[Judged, ...]:
    everything = evidence_of(campaign)
    quiet = evidence_of(campaign, quiet=True) if _noisy(campaign) else None
    # A CPU is never compared with a GPU: such a reference is not even shown.
    same_device = chosen is not None and chosen.facts.device_kind == facts_of(campaign).device_kind
    expected = chosen.evidence if chosen is not None and same_device and chosen.campaigns else None
    judged = []
    for claim in loaded:
        if mixed and claim.id != CAMPAIGN_CLAIM:
            judged.append(Judged(claim.id, _refused(claim, mixed), None, None))
            continue
        quiet_lines = _by_item(_lines(claim, quiet)) if quiet else None
        reference_lines = _by_item(_lines(claim, expected)) if expected else {}
        for line in _lines(claim, everything):
            judged.append(_one(claim.id, line, quiet_lines, reference_lines))
    return tuple(judged)


def _lines(claim: Claim, evidence: Evidence) -> list[Line]:
    """The claim's lines; what it lacks, and values that it cannot use, are lines too."""
    try:
        found = claim.evaluate(evidence)
    except (StatsError, CostError) as error:
        word = FAILS if claim.kind == INTEGRITY else INCONCLUSIVE
        return [Line("", claim.kind, word, "", claim.title, str(error))]
    needs = f"needs {claim.needs}"
    return found or [Line("", claim.kind, NOT_MEASURED, "", claim.title, needs)]


def _refused(claim: Claim, mixed: list[str]) -> Line:
    reason = f"the records may not be pooled: {'; '.join(mixed)}"
    return Line("", claim.kind, NOT_COMPARABLE, "", claim.title, reason)


def _by_item(lines: list[Line]) -> dict[tuple[str, str], Line]:
    return {(line.item, line.kind): line for line in lines}


def _one(
    claim: str,
    line: Line,
    quiet: Mapping[tuple[str, str], Line] | None,
    expected: Mapping[tuple[str, str], Line],
) -> Judged:
    key = (line.item, line.kind)
    without = None
    if quiet is not None:
        # What was run and compiled does not depend on how quiet the machine was.
        same = claim == CAMPAIGN_CLAIM or line.kind == INTEGRITY
        without = line if same else quiet.get(key, _nothing_quiet(line))
    return Judged(claim, line, without, expected.get(key))


def _nothing_quiet(line: Line) -> Line:
    reason = "no usable trial without the noisy ones"
    return Line(line.item, line.kind, NOT_MEASURED, "", line.band, reason, line.published)


def compare(campaign: Campaign, chosen: Reference, evidence: Evidence) -> Comparison:
    """Bands of the planned cells against what was measured, in cells that the reference knows.

    A planned cell that was not measured is missing and fails; so does a metric that a known cell
    lacks. A cell that no campaign of the reference measured has nothing to be compared with.
    """
    planned = {"/".join(c) for c in campaign.planned_trials if c not in campaign.unsupported}
    expected = {m: b for m, b in chosen.expected.items() if _cell_name(m) in planned}
    known = {_cell_name(metric) for metric in chosen.expected}
    measured: dict[str, object] = {
        metric: value
        for metric, value in reference.metrics(evidence).items()
        if _cell_name(metric) in known
    }
    return bands.compare(expected, measured)


def _cell_name(metric: str) -> str:
    """`model/input/configuration` of a metric's name."""
    return metric.rpartition("/")[0]


def _without_band(campaign: Campaign, chosen: Reference) -> tuple[str, ...]:
    """Measured blocks, and single cells of the other blocks, that the reference has no band of."""
    known = {_cell_name(metric) for metric in chosen.expected}
    known_blocks = {cell.rpartition("/")[0] for cell in known}
    names = set()
    for cell in evidence_of(campaign).cells:
        if "/".join(cell[:2]) not in known_blocks:
            names.add(" ".join(cell[:2]))
        elif "/".join(cell) not in known:
            names.add(" ".join(cell))
    return tuple(sorted(names))


def ratio_checks(measured: Evidence, expected: Evidence) -> tuple[RatioCheck, ...]:
    """Every configuration over `BASELINE` in T_C and T_X, where the reference has that ratio."""
    checks = []
    for cell in sorted(measured.cells):
        baseline = (*cell[:2], BASELINE)
        if cell == baseline or baseline not in measured.cells:
            continue
        compiled = measured.first(cell).spec.stack not in UNCOMPILED
        for term, quantity in RATIO_TERMS.items():
            if term == "T_C" and not compiled:
                continue
            known = expected.ratio(cell, baseline, quantity)
            if not isinstance(known, str):
                name = f"{' '.join(cell)} / {BASELINE} {term}"
                found = measured.ratio(cell, baseline, quantity)
                checks.append(_ratio_check(name, known, found))
    return tuple(checks)


def _ratio_check(name: str, known: PairedRatio, found: PairedRatio | str) -> RatioCheck:
    if isinstance(found, str):
        return RatioCheck(name, known, None, RatioResult("unknown", "factor", found))
    return RatioCheck(name, known, found, bands.compare_ratio(known, found))


def _findings(
    lines: tuple[Judged, ...],
    comparison: Comparison | None,
    ratios: tuple[RatioCheck, ...],
    tier: Tier,
    strict: bool,
) -> list[str]:
    """Every finding, band and ratio that is out of band, in words."""
    found = [_said(j) for j in lines if _contradicted(j, tier, strict)]
    found += [
        f"ratio {r.name}: {r.result.verdict}: {r.result.reason}"
        for r in ratios
        if r.result.verdict != "pass"
    ]
    if comparison is not None:
        found += [f"{r.metric}: {r.verdict}: {r.reason}" for r in comparison.failures]
    return found


def _contradicted(judged: Judged, tier: Tier, strict: bool) -> bool:
    """A finding that is out of band: strictly every one that was not reproduced, in tier `same`
    one of blocks that the reference measured and did not contradict itself, elsewhere one that
    is to be reported."""
    line = judged.line
    if line.kind != FINDING:
        return False
    if strict:
        return line.verdict in (NOT_REPRODUCED, INCONCLUSIVE)
    if tier.name == "same" and not _known_to_hold(judged):
        return False
    return line.verdict == NOT_REPRODUCED


def _known_to_hold(judged: Judged) -> bool:
    """True when the reference measured the line's blocks and does not contradict the line itself.

    A line over several blocks bears no block in its name, so the blocks are compared.
    """
    expected = judged.reference
    if expected is None or expected.verdict in (NOT_REPRODUCED, NOT_MEASURED):
        return False
    return set(judged.line.blocks) <= set(expected.blocks)


def _silent(lines: tuple[Judged, ...]) -> list[str]:
    """Findings without a measurement: nothing to fail, but strictly not passed in silence."""
    return [_said(j) for j in lines if (j.line.kind, j.line.verdict) == (FINDING, NOT_MEASURED)]


def _said(judged: Judged) -> str:
    reason = f": {judged.line.reason}" if judged.line.reason else ""
    return f"{judged.name}: {judged.line.verdict}{reason}"
