"""The records in expected/reference: whole, cold, right, in each other's bands; no mutant is.

A campaign is judged against the bands of the other campaigns of its class, so no band is made from
what it judges; a mutant against the bands that are shipped. A class has campaigns of several
profiles; each is judged in the blocks that it measured.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from mutants import MUTANTS

from artifact.analysis import reference
from artifact.analysis.claims.c1 import cold_faults
from artifact.analysis.claims.line import FAILS
from artifact.analysis.evidence import Campaign, cell_of, evidence_of, limited_to, read_campaign
from artifact.analysis.reference import Reference
from artifact.analysis.verdict import compare, judge
from artifact.host.store import PLAN, Store

FOLDERS = sorted(path.parent for path in reference.DEFAULT_ROOT.glob(f"*/campaign-*/{PLAN}"))

pytestmark = pytest.mark.skipif(
    not FOLDERS, reason="no reference records are shipped in expected/reference"
)


@pytest.fixture(params=FOLDERS, ids=lambda folder: f"{folder.parent.name}/{folder.name}")
def folder(request: pytest.FixtureRequest) -> Path:
    return request.param


@cache
def _campaign(folder: Path) -> Campaign:
    """The campaign in the blocks that it measured: its plan may hold more."""
    whole = read_campaign(folder)
    return limited_to(whole, {(r.spec.model, r.spec.input) for r in whole.usable})


@cache
def _others(folder: Path) -> Reference:
    """A reference of the other campaigns of the class that share a block, of the same tier.

    The calibration is taken as equal: it decides the tier, and here the bands are the subject.
    """
    campaign = _campaign(folder)
    found = [
        other
        for path in FOLDERS
        if path.parent == folder.parent and path != folder
        if set((other := _campaign(path)).limited or ()) & set(campaign.limited or ())
    ]
    if not found:
        pytest.skip(f"{folder.parent.name} has no other campaign with a block of {folder.name}")
    made = reference.of_campaigns("others", found)
    return replace(made, facts=replace(made.facts, calibration_ms=campaign.calibration_ms))


def test_every_file_is_what_was_shipped(folder: Path) -> None:
    campaign, store = _campaign(folder), Store(folder)
    assert (campaign.broken, campaign.unlisted, store.gone()) == ((), (), [])
    files = [p for room in ("records", "code") for p in (folder / room).iterdir()]
    assert sorted(store.checksums()) == sorted(p.relative_to(folder).as_posix() for p in files)


def test_every_usable_trial_is_ok_cold_and_right(folder: Path) -> None:
    usable = _campaign(folder).usable
    assert usable
    for record in usable:
        assert record.status == "ok"
        assert cold_faults(record) == []
        assert record.output.passed and record.output.rmse <= record.output.allowed_rmse
    hits = [
        count
        for record in usable
        for key, count in record.cold.counters.items()
        if key.endswith(("hit", "hits"))
    ]
    assert hits and set(hits) == {0}


def test_integrity_holds(folder: Path) -> None:
    verdict = judge(_campaign(folder), None)
    assert [j.name for j in verdict.lines if j.line.verdict == FAILS] == []


def test_the_class_names_its_campaigns_and_bands_every_metric(folder: Path) -> None:
    loaded = reference.load(folder.parent)
    assert folder.name in loaded.facts.campaigns
    assert reference.metrics(evidence_of(_campaign(folder))).keys() <= loaded.expected.keys()


def test_it_lies_in_the_bands_of_the_others(folder: Path) -> None:
    campaign, others = _campaign(folder), _others(folder)
    compared = compare(campaign, others, evidence_of(campaign))
    assert compared.failures == ()
    assert compared.compared > 0


@cache
def _shipped(folder: Path) -> Reference:
    """The class with its bands as they are shipped, of the campaign's own tier."""
    loaded = reference.load(folder.parent)
    facts = replace(loaded.facts, calibration_ms=_campaign(folder).calibration_ms)
    return replace(loaded, facts=facts)


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mutant_of_real_records_fails_by_name(folder: Path, mutant: str) -> None:
    campaign, shipped, made = _campaign(folder), _shipped(folder), MUTANTS[mutant]
    lacking = set(made.cells) - {cell_of(record.spec) for record in campaign.usable}
    if lacking:
        pytest.skip(f"{folder.name} did not measure {' '.join(sorted(c for *_, c in lacking))}")
    if len(shipped.campaigns) < 2:
        pytest.skip(f"{folder.parent.name} has one campaign, so nothing tells a spread")
    assert compare(campaign, shipped, evidence_of(campaign)).passed
    verdict = judge(made.make(campaign), shipped)
    assert verdict.tier.name == "same" and verdict.exit_code == 1
    found = {failure.split(":")[0] for failure in verdict.failures}
    assert made.names <= found, f"{made.names - found} not caught"
