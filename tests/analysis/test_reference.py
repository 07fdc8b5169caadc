"""Shipped references: what is copied, what decides the tier, how bands are made and edited."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import fabricated
import pytest
from fabricated import R18, changed, scaled, write

from artifact.analysis import bands, reference
from artifact.analysis.evidence import evidence_of, limited_to, merged, read_campaign
from artifact.analysis.verdict import judge
from artifact.errors import UserError
from artifact.strict_json import read

XLA = (*R18, "xla")
CLASS = "cpu-x86_64-2cpu-avx2"


def _small(seed: int = 1):
    """ResNet-18 only, two rounds: enough for everything, quick to write."""
    full = fabricated.campaign(seed)
    return changed(full, lambda r: r if r.spec.model == "resnet18" and r.spec.round < 3 else None)


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("results")
    return write(root / "one", _small(1)), write(root / "two", _small(2))


@pytest.fixture(scope="module")
def shipped(folders, tmp_path_factory) -> Path:
    """Both campaigns shipped; the folder of references."""
    root = tmp_path_factory.mktemp("reference")
    for folder in folders:
        reference.ship(folder, CLASS, root)
    return root


def test_a_campaign_read_back_is_the_one_that_was_written(folders) -> None:
    found = read_campaign(folders[0])
    assert [r.spec.record_id for r in found.usable] == sorted(
        r.spec.record_id for r in _small().records
    )
    assert len(found.planned) == 95 and found.broken == ()
    assert found.calibration_ms == fabricated.CALIBRATION_MS
    code = evidence_of(found).code(XLA)
    assert code == {"program.xz": fabricated.text_of("hlo_resnet18.txt.xz")}


def test_another_schema_version_and_a_cut_file_are_broken_by_name(tmp_path) -> None:
    folder = write(tmp_path / "c", _small())
    (tmp_path / "c" / "checksums.txt").unlink()
    paths = sorted((folder / "records").glob("*.json"))
    record = json.loads(paths[0].read_text())
    paths[0].write_text(json.dumps(record | {"schema": 2}))
    paths[1].write_text(paths[1].read_text()[:100])
    text = paths[2].read_text()
    paths[2].write_text(text.replace('"cpu_s": 1.0', '"cpu_s": NaN'))
    verdict = judge(read_campaign(folder), None)
    (files,) = [j.line for j in verdict.lines if j.name == "C1 files"]
    assert files.verdict == "fails" and verdict.exit_code == 1
    assert "this version reads 1, got 2" in files.reason
    assert "not valid JSON" in files.reason and "literal NaN" in files.reason
    assert str(tmp_path) not in files.reason


def test_no_folder_and_a_folder_that_is_no_campaign(tmp_path) -> None:
    with pytest.raises(UserError, match="no campaign at"):
        read_campaign(tmp_path / "absent")
    assert judge(read_campaign(tmp_path), None).exit_code == 2


def test_ship_keeps_one_code_copy_a_cell_and_every_record(shipped, folders) -> None:
    copy = shipped / CLASS / "campaign-1"
    assert len(list((copy / "records").iterdir())) == len(_small().records)
    codes = {path.name for path in (copy / "code").iterdir()}
    assert codes == {
        f"r1.resnet18.1x3x224x224.{c}.b1.a1.program.xz"
        for c in ("inductor", "inductor-fold", "tvm", "xla")
    }
    sums = (copy / "checksums.txt").read_text().splitlines()
    assert len(sums) == len(codes) + len(_small().records)
    assert read_campaign(copy).broken == ()


def test_the_shipped_reference_accepts_its_own_campaigns(shipped, folders) -> None:
    loaded = reference.load(shipped / CLASS)
    assert [c.name for c in loaded.campaigns] == ["campaign-1", "campaign-2"]
    assert loaded.facts.campaigns == ("campaign-1", "campaign-2")
    for folder in folders:
        verdict = judge(read_campaign(folder), loaded)
        assert verdict.tier.name == "same"
        # The plan holds more than what this small campaign measured.
        assert {r.verdict for r in verdict.comparison.results} == {"pass"}
    code = {j.line.item: j.line.verdict for j in judge(loaded.campaigns[0], loaded).lines}
    assert code["resnet18 1x3x224x224 xla convolutions"] == "holds"


def test_bands_are_a_bare_expected_file_that_can_be_edited(shipped, folders, tmp_path) -> None:
    loaded = reference.load(shipped / CLASS)
    name = "resnet18/1x3x224x224/xla/latency_ms"
    band = loaded.expected[name]
    assert band["rel_tol"] >= 0.2
    means = [reference.metrics(evidence_of(c))[name] for c in loaded.campaigns]
    assert band["value"] == pytest.approx(math.sqrt(means[0] * means[1]))
    edited = dict(loaded.expected) | {name: {"value": band["value"] * 10, "rel_tol": 0.1}}
    verdict = judge(read_campaign(folders[0]), replace(loaded, expected=edited))
    assert [f.split(":")[0] for f in verdict.failures if "better" in f] == [name]


@pytest.mark.parametrize(
    ("file", "text", "word"),
    [
        ("bands.json", '{"m": {"value": 1.0, "rel_tol": -0.1}}', "m: rel_tol is negative"),
        ("bands.json", '{"m": {"value": 1.0, "rel_tol": NaN}}', "literal NaN"),
        ("bands.json", "[]", "one object"),
        ("bands.json", "{", "not valid JSON"),
        ("facts.json", '{"machine": "m"}', "missing key"),
        ("facts.json", "{}x", "not valid JSON"),
    ],
)
def test_a_faulty_reference_file_is_one_line(shipped, tmp_path, file, text, word) -> None:
    copy = tmp_path / "class"
    copy.mkdir()
    for name in ("facts.json", "bands.json"):
        (copy / name).write_text((shipped / CLASS / name).read_text())
    (copy / file).write_text(text)
    with pytest.raises(UserError, match=word) as caught:
        reference.load(copy)
    assert "\n" not in str(caught.value)


def test_one_campaign_gives_the_smallest_tolerances() -> None:
    measured = reference.metrics(evidence_of(_small()))
    made = reference.make_bands([measured])
    assert {k.rsplit("/")[-1]: v["rel_tol"] for k, v in made.items()} == {
        "compile_cost_ms": 0.25,
        "latency_ms": 0.20,
        "external_units": 0.0,
        "internal_units": 0.05,
        "code_bytes": 0.05,
    }
    assert bands.compare(made, measured).passed


def test_eager_has_no_band_of_compile_cost() -> None:
    """T_first - T_X of something that does not compile is noise around zero."""
    names = set(reference.metrics(evidence_of(_small())))
    assert "resnet18/1x3x224x224/eager/latency_ms" in names
    assert "resnet18/1x3x224x224/eager/compile_cost_ms" not in names


def test_campaigns_far_apart_give_wider_bands() -> None:
    measured = [reference.metrics(evidence_of(_small(seed))) for seed in (1, 2)]
    measured[1] = {k: v * 1.5 if k.endswith("_ms") else v for k, v in measured[1].items()}
    made = reference.make_bands(measured)
    assert all(v["rel_tol"] > 0.5 for k, v in made.items() if k.endswith("latency_ms"))


def test_a_metric_gets_its_band_from_the_campaigns_that_have_it() -> None:
    """By hand: two campaigns 4 % apart in x tell the spread, also for y, which one has alone."""
    made = reference.make_bands(
        [
            {"a/b/x/latency_ms": 100.0, "a/b/x/code_bytes": 10},
            {"a/b/x/latency_ms": 104.0, "a/b/y/latency_ms": 50.0, "a/b/y/code_bytes": 20},
        ]
    )
    assert sorted(made) == [
        "a/b/x/code_bytes",
        "a/b/x/latency_ms",
        "a/b/y/code_bytes",
        "a/b/y/latency_ms",
    ]
    assert made["a/b/x/latency_ms"]["value"] == pytest.approx(math.sqrt(100 * 104))
    assert made["a/b/y/latency_ms"]["value"] == pytest.approx(50.0)
    # One degree of freedom, two metrics: t(1 - 0.05 / 4, 1) = 25.45; sd = log(1.04) / sqrt(2).
    sd = math.log(1.04) / math.sqrt(2)
    for name, count in (("x", 2), ("y", 1)):
        wide = math.exp(25.4517 * sd * math.sqrt(1 + 1 / count)) - 1
        assert made[f"a/b/{name}/latency_ms"]["rel_tol"] == pytest.approx(wide, rel=1e-3)


def test_campaigns_without_a_common_metric_have_the_smallest_tolerances() -> None:
    made = reference.make_bands([{"a/b/c/latency_ms": 1.0}, {"a/b/d/latency_ms": 2.0}])
    assert made == {
        "a/b/c/latency_ms": {"value": 1.0, "rel_tol": 0.2},
        "a/b/d/latency_ms": {"value": 2.0, "rel_tol": 0.2},
    }


def test_a_campaign_with_a_trial_that_was_not_counted_makes_no_bands() -> None:
    def once(record):
        return replace(record, census=None) if record.spec.round == 2 else record

    with pytest.raises(UserError, match=r"no bands from r: .*xla/external_units: value is NaN"):
        reference.of_campaigns("r", [changed(_small(), once, XLA)])


# --- campaigns of several profiles in one class -----------------------------------------------


def _folds(seed: int):
    """ResNet-18 of the profile `folds`: other configurations, and one image instead of three."""
    full = fabricated.campaign(seed, profile="folds")
    return changed(full, lambda r: r if r.spec.model == "resnet18" and r.spec.round < 3 else None)


@pytest.fixture(scope="module")
def of_two_profiles(folders, tmp_path_factory) -> Path:
    """A class of two campaigns of profile `cpu` and, in the middle, one of `folds`."""
    root = tmp_path_factory.mktemp("two-profiles")
    folds = write(root / "folds", _folds(3))
    for folder in (folders[0], folds, folders[1]):
        reference.ship(folder, CLASS, root)
    return root


def test_a_class_holds_campaigns_of_several_profiles(of_two_profiles) -> None:
    loaded = reference.load(of_two_profiles / CLASS)
    assert [c.profile for c in loaded.campaigns] == ["cpu", "folds", "cpu"]
    assert sorted(loaded.facts.lock_hashes) == ["inductor", "tvm", "xla"]
    cells = {metric.split("/")[2] for metric in loaded.expected}
    assert {"xla", "tvm", "inductor-guard", "inductor-freeze", "inductor"} <= cells


@pytest.mark.parametrize("campaign", [_small, _folds])
def test_neither_profile_misses_what_the_other_has(of_two_profiles, campaign) -> None:
    judged = limited_to(campaign(4), {R18})
    found = reference.nearest(judged, of_two_profiles)
    assert found is not None and found.tier(judged).name == "same"
    verdict = judge(judged, found)
    assert {r.verdict for r in verdict.comparison.results} == {"pass"}
    assert verdict.without_band == ()
    slow = judge(changed(judged, scaled(latency=2.0), (*R18, "inductor")), found)
    assert any("inductor/latency_ms: worse" in failure for failure in slow.failures)


def test_a_lock_that_differs_in_a_common_image_is_refused(of_two_profiles, tmp_path) -> None:
    def other(record):
        return replace(record, identity=replace(record.identity, lock_hash="newer"))

    folder = write(tmp_path / "folds", changed(_folds(4), other))
    root = tmp_path / "reference"
    shutil.copytree(of_two_profiles / CLASS, root / CLASS)
    with pytest.raises(UserError, match="another machine class: lock_hash is inductor:newer"):
        reference.ship(folder, CLASS, root)


def test_a_shipped_campaign_is_never_written_over(of_two_profiles, tmp_path) -> None:
    """After the first one was taken out, the next one does not land on the last."""
    root = tmp_path / "reference"
    shutil.copytree(of_two_profiles / CLASS, root / CLASS)
    shutil.rmtree(root / CLASS / "campaign-1")
    target = reference.ship(write(tmp_path / "more", _folds(5)), CLASS, root)
    assert target.name == "campaign-1"
    assert reference.load(root / CLASS).facts.campaigns == (
        "campaign-2",
        "campaign-3",
        "campaign-1",
    )


# --- tampered records -------------------------------------------------------------------------


def _edited(copy: Path) -> None:
    path = copy / "records" / "r1.resnet18.1x3x224x224.xla.b1.a1.json"
    path.write_text(path.read_text().replace("a CPU", "b CPU"))


def _deleted(copy: Path) -> None:
    (copy / "records" / "r2.resnet18.1x3x224x224.tvm.b1.a1.json").unlink()


def _deleted_code(copy: Path) -> None:
    (copy / "code" / "r1.resnet18.1x3x224x224.xla.b1.a1.program.xz").unlink()


def _without_sums(copy: Path) -> None:
    (copy / "checksums.txt").unlink()


@pytest.mark.parametrize(
    ("tamper", "word"),
    [
        (_edited, "r1.resnet18.1x3x224x224.xla.b1.a1.json: is not the file that was written"),
        (_deleted, "records/r2.resnet18.1x3x224x224.tvm.b1.a1.json: is not there"),
        (_deleted_code, "code/r1.resnet18.1x3x224x224.xla.b1.a1.program.xz"),
        (_without_sums, "0 of 10 records verified, no checksum of records/r1."),
    ],
)
def test_a_tampered_reference_is_refused_by_name(shipped, tmp_path, tamper, word: str) -> None:
    copy = tmp_path / CLASS
    shutil.copytree(shipped / CLASS, copy)
    tamper(copy / "campaign-2")
    for use in (
        lambda: reference.load(copy),
        lambda: reference.nearest(_small(), tmp_path),
        lambda: reference.ship(shipped / CLASS / "campaign-1", CLASS, tmp_path),
    ):
        with pytest.raises(UserError, match=word) as caught:
            use()
        assert "campaign-2 is not what was shipped" in str(caught.value)


def test_a_campaign_without_checksums_is_not_shipped(folders, tmp_path) -> None:
    copy = tmp_path / "one"
    shutil.copytree(folders[0], copy)
    (copy / "checksums.txt").unlink()
    with pytest.raises(UserError, match="cannot be a reference: 0 of 10 records verified"):
        reference.ship(copy, CLASS, tmp_path / "reference")
    assert not (tmp_path / "reference").exists()


def test_merged_campaigns_never_pair_across_each_other() -> None:
    evidence = merged([_small(1), _small(2)])
    assert [t.round for t in evidence.trials(XLA)] == [1, 2, 1001, 1002]
    ratio = evidence.ratio(XLA, (*R18, "tvm"), lambda p: p.latency_ms)
    assert ratio.n == 4


def test_trials_of_different_boots_are_never_paired() -> None:
    def later(record):
        return replace(record, identity=replace(record.identity, boot_id="later"))

    evidence = evidence_of(changed(_small(), later, XLA))
    assert "no round of one boot" in evidence.ratio(XLA, (*R18, "tvm"), lambda p: p.latency_ms)


def test_nearest_takes_the_strictest_tier(shipped, folders) -> None:
    facts = read(shipped / CLASS / "facts.json")
    gpu = shipped / "a-gpu"
    gpu.mkdir()
    (gpu / "facts.json").write_text(json.dumps(facts | {"device_kind": "cuda"}))
    (gpu / "bands.json").write_text("{}")
    try:
        found = reference.nearest(read_campaign(folders[0]), shipped)
        assert found is not None and found.name == CLASS
    finally:
        (gpu / "facts.json").unlink()
        (gpu / "bands.json").unlink()
        gpu.rmdir()


def test_without_references_there_is_none(folders, tmp_path) -> None:
    assert reference.nearest(read_campaign(folders[0]), tmp_path / "none") is None


def test_the_lock_of_an_image_that_was_not_needed_does_not_matter() -> None:
    chosen = reference.of_campaigns("B", [fabricated.campaign(2)])
    part = changed(fabricated.campaign(1), lambda r: None if r.spec.stack == "tvm" else r)
    assert chosen.tier(part).name == "same"


def test_what_cannot_be_a_reference(folders, tmp_path, monkeypatch) -> None:
    def other(record):
        return replace(record, identity=replace(record.identity, architecture="aarch64"))

    mixed = changed(_small(), other, XLA)
    with pytest.raises(UserError, match="cannot be a reference: architecture differs"):
        reference.of_campaigns("m", [mixed])
    with pytest.raises(UserError, match="no usable trial"):
        reference.of_campaigns("m", [replace(_small(), records=())])
    reference.ship(folders[0], CLASS, tmp_path)
    elsewhere = write(tmp_path / "elsewhere", changed(_small(), other))
    with pytest.raises(UserError, match="another machine class: architecture is aarch64"):
        reference.ship(elsewhere, CLASS, tmp_path)


def test_a_record_that_names_a_home_is_not_shipped(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(Path, "home", lambda: Path("/home/somebody"))
    told = changed(_small(), lambda r: replace(r, log_tail="at /home/somebody/x.py"), XLA)
    folder = write(tmp_path / "c", told)
    with pytest.raises(UserError, match="2 files name a folder of this machine"):
        reference.ship(folder, CLASS, tmp_path / "reference")
    assert not (tmp_path / "reference" / CLASS / "facts.json").exists()


def test_the_suggested_name_of_a_machine_class() -> None:
    assert reference.machine_class(_small()) == CLASS


def test_a_doubled_latency_leaves_the_shipped_bands(shipped) -> None:
    loaded = reference.load(shipped / CLASS)
    verdict = judge(changed(_small(3), scaled(latency=2.0), XLA), loaded)
    worse = [f for f in verdict.failures if "latency_ms: worse" in f]
    assert [f.split(":")[0] for f in worse] == ["resnet18/1x3x224x224/xla/latency_ms"]


def test_noise_of_the_block_and_of_the_trial_are_both_told(tmp_path) -> None:
    """One calibration of ten is 30 % off, so its block is noisy; one trial was throttled."""

    def throttled(record):
        if record.spec.round == 1:
            return record
        return replace(record, telemetry=replace(record.telemetry, throttled_ms=12.0))

    folder = write(tmp_path / "c", changed(fabricated.campaign(), throttled, XLA))
    path = folder / "calibrations" / "r1.resnet18.1x3x224x224.b1.s1.json"
    path.write_text(path.read_text().replace("2000.0", "2600.0"))
    noisy = {key: reasons for key, reasons in read_campaign(folder).noisy.items() if reasons}
    assert len(noisy) == 5 + 4
    assert noisy["r1.resnet18.1x3x224x224.tvm.b1.a1"] == (
        "calibration compile_ms +30% off the campaign's median",
    )
    assert noisy["r2.resnet18.1x3x224x224.xla.b1.a1"] == ("throttled for 12 ms",)
