"""C6: BERT has no legal LayerNorm-Linear site, and an unchanged control costs what the base does.

The control shows what the measurement itself can tell apart: same program, own cold process.
"""

from __future__ import annotations

from collections.abc import Mapping

from artifact.analysis import published, stats
from artifact.analysis.claims.line import (
    FINDING,
    INCONCLUSIVE,
    INTEGRITY,
    NOT_REPRODUCED,
    REPRODUCED,
    Line,
    integrity,
)
from artifact.analysis.claims.normalised_code import first_difference, normalised
from artifact.analysis.claims.ratios import compile_cost_ms, latency_ms, text
from artifact.analysis.claims.stored_code import code_faults
from artifact.analysis.evidence import Cell, Evidence, Quantity, Trial
from artifact.analysis.stats import StatsError
from artifact.plan import TrialSpec
from artifact.records import Record

KIND = INTEGRITY
TITLE = "BERT: no legal LayerNorm-Linear site; base and control are the same"
NEEDS = "a BERT cell with inductor and inductor-control"

#: Margins of the equivalence tests, control against base.
MARGINS: dict[str, tuple[float, Quantity]] = {
    "T_C": (0.10, compile_cost_ms),
    "T_X": (0.05, latency_ms),
}
#: BERT-base has twelve layers of two LayerNorms each, and one after the embeddings.
BASE_LAYERS = 12

#: The paper audits BERT-base and times its control (campaign `bert_audit` of the published tables).
PUBLISHED_MODEL, PUBLISHED_AUDIT = "bert", "0 of 25"
PUBLISHED_METRICS = {"T_C": "compile_ms", "T_X": "exec_ms"}

_VERDICTS = {"equivalent": REPRODUCED, "different": NOT_REPRODUCED}


def evaluate(evidence: Evidence) -> list[Line]:
    """Audit, code, T_C and T_X of each measured BERT block."""
    lines = []
    for block in evidence.blocks("bert", "inductor", "inductor-control"):
        base, control = (*block, "inductor"), (*block, "inductor-control")
        lines.append(_audit_line(evidence, block, control))
        lines.append(_code_line(evidence, block, base, control))
        lines += [
            _equivalence_line(evidence, block, name, margin, quantity)
            for name, (margin, quantity) in MARGINS.items()
        ]
    return lines


def layer_norms(spec: TrialSpec) -> int:
    """LayerNorms of a BERT encoder without its pooler: 2 a layer and the embeddings'."""
    return 2 * int(spec.model_options.get("layers", BASE_LAYERS)) + 1


def _audit_line(evidence: Evidence, block: tuple[str, str], control: Cell) -> Line:
    """Every control trial's own audit: one without says nothing of what it measured."""
    records = [t.record for t in evidence.trials(control)]
    sites = layer_norms(records[0].spec)
    faults = [fault for record in records for fault in audit_faults(record, sites)]
    facts = next((f for r in records if isinstance(f := r.facts.get("audit"), Mapping)), None)
    measured = ""
    if facts is not None:
        measured = (
            f"{facts.get('legal')} legal of {facts.get('sites')}, "
            f"{facts.get('unmatched')} unmatched"
        )
    return integrity(
        f"{' '.join(block)} audit",
        faults,
        measured=measured,
        band=f"0 legal of {sites}, 0 unmatched",
        published=PUBLISHED_AUDIT if block[0] == PUBLISHED_MODEL else "",
    )


def audit_faults(record: Record, sites: int) -> list[str]:
    """Differences of one stored audit from "0 legal of `sites`, 0 unmatched"."""
    facts, name = record.facts.get("audit"), record.spec.record_id
    expected = {"sites": sites, "legal": 0, "unmatched": 0}
    if facts is None:
        return [f"{name}: no audit is stored"]
    if not isinstance(facts, Mapping):
        return [f"{name}: the audit is no object"]
    return [
        f"{name}: {key} is {facts.get(key)}, expected {value}"
        for key, value in expected.items()
        if isinstance(facts.get(key), bool) or facts.get(key) != value
    ]


def _code_line(evidence: Evidence, block: tuple[str, str], base: Cell, control: Cell) -> Line:
    pairs = _code_pairs(evidence.trials(base), evidence.trials(control))
    faults = code_faults(evidence, base, control)
    differing = [
        (number, difference)
        for number, first, second in pairs
        if (difference := _difference(first, second))
    ]
    faults += [f"round {number}: {difference}" for number, difference in differing]
    measured = ""
    if pairs:
        size = sum(len(text) for text in pairs[0][1].values())
        measured = f"{len(pairs) - len(differing)} of {len(pairs)} equal ({size} characters)"
    item, band = f"{' '.join(block)} code", "normalised generated code equal"
    return integrity(item, faults, measured=measured, band=band)


def _difference(first: Mapping[str, str], second: Mapping[str, str]) -> str:
    if first == second:
        return ""
    return first_difference(normalised(first), normalised(second))


def _code_pairs(
    base: tuple[Trial, ...], control: tuple[Trial, ...]
) -> list[tuple[int, Mapping[str, str], Mapping[str, str]]]:
    """(round, base's code, control's code); where only one copy a cell was kept, those two."""
    first = {t.round: texts for t in base if (texts := t.read_code())}
    second = {t.round: texts for t in control if (texts := t.read_code())}
    common = sorted(first.keys() & second.keys())
    if not common and first and second:
        return [(min(first), first[min(first)], second[min(second)])]
    return [(number, first[number], second[number]) for number in common]


def _equivalence_line(
    evidence: Evidence, block: tuple[str, str], name: str, margin: float, quantity: Quantity
) -> Line:
    control, base = (*block, "inductor-control"), (*block, "inductor")
    item, shown = f"{' '.join(block)} {name}", _published_ratio(block, name)
    band = f"control / base within {100 * margin:g} % (two one-sided tests)"
    ratio = evidence.ratio(control, base, quantity)
    if isinstance(ratio, str):
        return Line(item, FINDING, INCONCLUSIVE, "", band, ratio, shown)
    try:
        tested = stats.equivalence(*evidence.pairs(control, base, quantity), margin=margin)
    except StatsError as error:
        return Line(item, FINDING, INCONCLUSIVE, text(ratio), band, str(error), shown, ratio)
    verdict = _VERDICTS.get(tested.verdict, INCONCLUSIVE)
    reason = tested.reason or ("" if verdict == REPRODUCED else _why(tested.verdict, margin))
    return Line(item, FINDING, verdict, text(ratio), band, reason, shown, ratio, tested)


def _published_ratio(block: tuple[str, str], name: str) -> str:
    """The paper's ratio of means, control over base, or nothing where it has none."""
    means = [
        published.timing("bert_audit", configuration, *block, PUBLISHED_METRICS[name])
        for configuration in ("inductor-control", "inductor")
    ]
    control, base = means
    return f"{control.mean / base.mean:.3f}" if control and base else ""


def _why(verdict: str, margin: float) -> str:
    where = "wholly outside" if verdict == "different" else "not inside"
    return f"the 90 % interval lies {where} the margin of {100 * margin:g} %"
