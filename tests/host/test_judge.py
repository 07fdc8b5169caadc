"""`check` and `recommend` on folders and files: what is written, said and returned."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

# The fabricated campaign lives with the analysis tests, which this file may run without.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "analysis"))
import fabricated
from fabricated import R18, changed, scaled, write

from artifact.analysis import claims, reference
from artifact.errors import UserError
from artifact.host import judge
from artifact.strict_json import loads

CLASS = "cpu-x86_64-2cpu-avx2"


def _small(seed: int = 1):
    full = fabricated.campaign(seed)
    part = {i: s for i, s in full.planned.items() if s.model == "resnet18"}
    return changed(full, lambda r: r if r.spec.trial_id in part else None)


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("results")
    for seed, name in ((1, "a"), (2, "b")):
        write(root / name, _small(seed))
    return root


@pytest.fixture
def said():
    return []


def _check(said, *arguments, **more) -> int:
    more.setdefault("root", Path("no-references"))
    return judge.check(*arguments, say=said.append, **more)


def test_a_campaign_is_judged_said_and_stored(results, said) -> None:
    code = _check(said, "a", results=results, reference=results / "b")
    text = (results / "a" / "verdict.md").read_text(encoding="ascii")
    found = loads((results / "a" / "verdict.json").read_text(encoding="ascii"))
    assert said == [text.rstrip("\n")]
    assert found["exit_code"] == code == 1  # the plan holds cells that were not run
    assert found["tier"]["name"] == "same"
    assert "C1 trials" in text and "bert 1x64 xla: 0 of 5" in text


def test_one_campaign_against_another_by_folder(results, said) -> None:
    _check(said, measured_file=results / "a", reference=results / "b")
    assert "reference: b; tier same" in said[0]


def test_both_campaigns_may_be_given_by_name(results, said) -> None:
    _check(said, measured_file=Path("a"), reference=Path("b"), results=results)
    assert said[0].startswith("# Verdict of a") and "reference: b; tier same" in said[0]
    with pytest.raises(UserError, match="is no reference"):
        _check(said, "a", results=results, reference=Path("c"))


def test_an_empty_folder_is_nothing_compared(tmp_path, said) -> None:
    (tmp_path / "empty").mkdir()
    assert _check(said, "empty", results=tmp_path) == 2
    assert f"0 of {len(claims.load_all())} compared" in said[0]


def test_without_a_name_the_only_campaign_is_taken(tmp_path, results, said) -> None:
    with pytest.raises(UserError, match="holds 2 campaigns; --name one of: a, b"):
        _check(said, results=results)
    with pytest.raises(UserError, match="holds 0 campaigns"):
        _check(said, results=tmp_path)
    (tmp_path / "only").symlink_to(results / "a")
    (tmp_path / "crossover-resnet18-xla-tvm").symlink_to(results / "b")
    _check(said, results=tmp_path)
    assert said[0].startswith("# Verdict of only")
    said.clear()
    _check(said, "crossover-resnet18-xla-tvm", results=tmp_path)
    assert said[0].startswith("# Verdict of crossover-resnet18-xla-tvm")


def test_propose_writes_an_expected_file_that_the_campaign_passes(results, said) -> None:
    _check(said, "a", results=results, reference=results / "b", propose=True)
    proposed = results / "a" / "expected.proposed.json"
    assert said[-1] == f"proposed expected file: {proposed}"
    assert _check(said, expected_file=proposed, measured_file=results / "a") == 0
    assert said[-1] == "21 of 21 compared: 21 pass"


# --- parts, folders that are not written into, campaigns that are no evidence ------------------


def test_a_part_leaves_the_verdict_of_the_whole_alone(tmp_path, results, said) -> None:
    shutil.copytree(results / "a", tmp_path / "a")
    folder = tmp_path / "a"
    _check(said, "a", results=tmp_path)
    whole = {name: (folder / name).read_bytes() for name in ("verdict.md", "verdict.json")}
    said.clear()
    assert _check(said, "a", results=tmp_path, only={R18}, label="fig3") == 0
    assert {name: (folder / name).read_bytes() for name in whole} == whole
    assert "\n- limited to blocks resnet18 1x3x224x224\n" in said[0]
    assert (folder / "verdict-fig3.md").read_text() == said[0] + "\n"
    assert loads((folder / "verdict-fig3.json").read_text())["limited_to"] == [" ".join(R18)]
    _check(said, "a", results=tmp_path, only={R18})
    assert (folder / "verdict-part.md").exists()


def test_a_verdict_is_said_before_it_is_written(tmp_path, results, said, monkeypatch) -> None:
    shutil.copytree(results / "a", tmp_path / "a")

    def full(path: Path, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(judge, "write_bytes_atomic", full)
    with pytest.raises(UserError, match="the disk is full"):
        _check(said, "a", results=tmp_path)
    assert said[0].startswith("# Verdict of a")


def _files_in(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*")}


def test_a_shipped_reference_is_judged_and_not_written_into(results, tmp_path, said) -> None:
    copy = reference.ship(results / "a", CLASS, tmp_path)
    before = _files_in(tmp_path)
    code = _check(said, measured_file=copy, root=tmp_path, only={R18}, propose=True)
    assert code == 0 and said[0].startswith("# Verdict of campaign-1")
    reason = f"{copy} belongs to a shipped reference"
    assert said[1:] == [
        f"warning: verdict-part.md and verdict-part.json were not written: {reason}",
        f"warning: expected.proposed.json was not written: {reason}",
    ]
    expected = tmp_path / CLASS / "bands.json"
    said.clear()
    _check(said, expected_file=expected, measured_file=copy, root=tmp_path, propose=True)
    assert said[-1] == f"warning: expected.proposed.json was not written: {reason}"
    assert _files_in(tmp_path) == before


def test_a_read_only_folder_is_judged_and_not_written_into(
    results, tmp_path, said, monkeypatch
) -> None:
    """A superuser may write anywhere but on a file system mounted read-only."""
    shutil.copytree(results / "a", tmp_path / "a")
    before = _files_in(tmp_path)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert _check(said, "a", results=tmp_path) == 1
    assert said[1] == (
        f"warning: verdict.md and verdict.json were not written: {tmp_path / 'a'} is read-only"
    )
    assert _files_in(tmp_path) == before


def _mixed(folder: Path) -> str:
    def other(record):
        return replace(record, identity=replace(record.identity, cpu_model="another CPU"))

    write(folder, changed(_small(), other, (*R18, "xla")))
    return "cpu_model differs: a CPU, another CPU"


def _broken(folder: Path) -> str:
    write(folder, _small())
    path = folder / "records" / "r1.resnet18.1x3x224x224.xla.b1.a1.json"
    path.write_text(path.read_text()[:100])
    return "records/r1.resnet18.1x3x224x224.xla.b1.a1.json: not valid JSON"


def _unlisted(folder: Path) -> str:
    write(folder, _small())
    (folder / "checksums.txt").unlink()
    return "0 of 25 records verified"


def _empty(folder: Path) -> str:
    folder.mkdir()
    return "it has no usable trial"


@pytest.mark.parametrize("make", [_mixed, _broken, _unlisted, _empty])
def test_a_campaign_that_may_not_be_pooled_has_no_values(results, tmp_path, said, make) -> None:
    folder = tmp_path / "made"
    word = make(folder)
    (tmp_path / "e.json").write_text(BAND)
    with pytest.raises(UserError, match=f"campaign made has no values to compare: {word}"):
        _check(said, expected_file=tmp_path / "e.json", measured_file=folder)
    assert said == []
    with pytest.raises(UserError, match=f"no values to compare: {word}"):
        _check(said, measured_file=folder, reference=results / "b", propose=True)
    assert said[0].startswith("# Verdict of made")
    assert not (folder / "expected.proposed.json").exists()


def test_nothing_is_proposed_from_a_value_that_is_none(tmp_path, said) -> None:
    def once(record):
        return replace(record, census=None) if record.spec.round == 2 else record

    write(tmp_path / "a", changed(_small(), once, (*R18, "xla")))
    with pytest.raises(UserError, match=r"nothing is proposed from a: .*value is NaN"):
        _check(said, "a", results=tmp_path, propose=True)


def test_the_fake_engine_is_not_judged(tmp_path, said) -> None:
    def fake(record):
        return replace(record, identity=replace(record.identity, engine="fake"))

    write(tmp_path / "a", changed(_small(), fake))
    assert _check(said, "a", results=tmp_path) == 2
    assert said == ["engine fake: nothing was measured, so nothing is judged"]
    assert not (tmp_path / "a" / "verdict.md").exists()


# --- bare files -------------------------------------------------------------------------------


def _files(tmp_path: Path, expected: str, measured: str) -> dict[str, Path]:
    (tmp_path / "e.json").write_text(expected, encoding="utf-8")
    (tmp_path / "m.json").write_text(measured, encoding="utf-8")
    return {"expected_file": tmp_path / "e.json", "measured_file": tmp_path / "m.json"}


BAND = '{"a": {"value": 10, "rel_tol": 0.1}, "b": {"value": 1, "abs_tol": 0.5}}'


@pytest.mark.parametrize(
    ("measured", "code", "words"),
    [
        ('{"a": 10.9, "b": 1.5}', 0, ["2 of 2 compared: 2 pass"]),
        ('{"a": 12, "b": 0.1}', 1, ["a: worse", "b: better"]),
        ('{"a": NaN, "b": null}', 1, ["a: not-a-value", "NaN", "b: not-a-value", "null"]),
        ('{"a": -10}', 1, ["a: not-a-value", "negative", "b: missing-measured"]),
        ('{"a": 10, "b": 1, "c": 3}', 1, ["c: missing-expected"]),
        ("{}", 1, ["0 of 2 compared"]),
    ],
)
def test_two_bare_files(tmp_path, said, measured: str, code: int, words: list[str]) -> None:
    assert _check(said, **_files(tmp_path, BAND, measured)) == code
    assert all(word in "\n".join(said) for word in words)


def test_no_metric_at_all_is_no_pass(tmp_path, said) -> None:
    assert _check(said, **_files(tmp_path, "{}", "{}")) == 2
    assert said == ["0 of 0 compared"]


@pytest.mark.parametrize(
    ("expected", "measured", "word"),
    [
        ('{"a": {"value": 1, "rel_tol": -1}}', '{"a": 1}', "a: rel_tol is negative"),
        ('{"a": {"value": 1, "rel_tol": NaN}}', '{"a": 1}', "a: rel_tol is NaN"),
        ("{", "{}", "is not valid JSON"),
        ("[]", "{}", "no JSON object"),
        (BAND, '{"a": 1, "a": 10, "b": 1}', "a key occurs twice"),
    ],
)
def test_files_that_cannot_be_used(tmp_path, said, expected, measured, word) -> None:
    with pytest.raises(UserError, match=word) as caught:
        _check(said, **_files(tmp_path, expected, measured))
    assert caught.value.exit_code == 2


def test_bare_files_need_both(tmp_path, said) -> None:
    with pytest.raises(UserError, match="--expected needs --measured"):
        _check(said, expected_file=tmp_path / "e.json")
    with pytest.raises(UserError, match="cannot read"):
        _check(said, expected_file=tmp_path / "e.json", measured_file=tmp_path / "m.json")


def test_propose_of_bare_files_keeps_tolerances(tmp_path, said) -> None:
    assert _check(said, **_files(tmp_path, BAND, '{"a": 20, "b": 1}'), propose=True) == 1
    proposed = loads((tmp_path / "m.proposed.json").read_text())
    assert proposed["a"] == {"value": 20, "rel_tol": 0.1}
    assert loads((tmp_path / "e.json").read_text())["a"]["value"] == 10


# --- recommend --------------------------------------------------------------------------------


def test_recommend_prefers_own_records_and_says_whose_they_are(results, monkeypatch) -> None:
    monkeypatch.setattr(judge, "cpu_model", lambda: "a CPU")
    monkeypatch.setattr(judge, "effective_cpus", lambda: 2)
    text = judge.recommend(*R18, 100, "native", results=results)
    assert "another machine" not in text and f"records: {results}" in text
    monkeypatch.setattr(judge, "cpu_model", lambda: "this CPU")
    text = judge.recommend(*R18, 100, "native", name="a", results=results)
    assert "these are another machine's records (a CPU, 2 CPUs)" in text


def test_a_look_at_a_crossover_is_no_newest_campaign(results, tmp_path) -> None:
    """It holds three rounds of two configurations, with another number of executions."""

    def newer(record):
        stamp = replace(record.identity, started_utc="2030-01-01T00:00:00.000+00:00")
        return replace(record, identity=stamp)

    (tmp_path / "cpu").symlink_to(results / "a")
    look = tmp_path / "crossover-resnet18-xla-inductor"
    write(look, changed(_small(2), newer), code=lambda record: {})
    text = judge.recommend(*R18, 100, results=tmp_path)
    assert f"records: {tmp_path / 'cpu'}" in text
    assert f"records: {look}" in judge.recommend(*R18, 100, name=look.name, results=tmp_path)


def test_recommend_without_own_records_uses_the_reference(results, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(judge, "cpu_model", lambda: "a CPU")
    reference.ship(results / "a", CLASS, tmp_path)
    text = judge.recommend(*R18, 100, results=tmp_path / "none", root=tmp_path)
    assert f"records: reference {CLASS}, campaign-1" in text
    assert "these are another machine's records (a CPU, 2 CPUs)" in text
    with pytest.raises(UserError, match="no records of bert 1x64"):
        judge.recommend("bert", "1x64", 100, results=tmp_path / "none", root=tmp_path)


def test_a_tampered_reference_gives_no_recommendation(results, tmp_path) -> None:
    copy = reference.ship(results / "a", CLASS, tmp_path)
    path = copy / "records" / "r1.resnet18.1x3x224x224.xla.b1.a1.json"
    path.write_text(path.read_text().replace("a CPU", "b CPU"))
    with pytest.raises(UserError, match=f"{path.name}: is not the file that was written"):
        judge.recommend(*R18, 100, results=tmp_path / "none", root=tmp_path)


@pytest.mark.parametrize(("cpus", "here"), [(1, False), (2, True), (64, True)])
def test_records_of_more_cpus_than_there_are_were_not_made_here(
    results, monkeypatch, cpus: int, here: bool
) -> None:
    monkeypatch.setattr(judge, "cpu_model", lambda: "a CPU")
    monkeypatch.setattr(judge, "effective_cpus", lambda: cpus)
    text = judge.recommend(*R18, 100, "native", name="a", results=results)
    assert ("another machine" not in text) is here


# --- locale and time zone (cases A2, A3), imports ---------------------------------------------

PROGRAM = """
import sys
from pathlib import Path
from artifact.host import judge
code = judge.check(measured_file=Path(sys.argv[1]), reference=Path(sys.argv[2]),
                   root=Path("none"), strict=True)
print(judge.recommend("resnet18", "1x3x224x224", 500, "native", name="a",
                      results=Path(sys.argv[1]).parent))
heavy = {"torch", "jax", "tvm", "docker", "pandas", "matplotlib"} & set(sys.modules)
sys.exit(f"imported {heavy}" if heavy else code)
"""


def _run(results: Path, **environment: str) -> tuple[int, bytes, bytes, bytes]:
    root = Path(__file__).resolve().parents[2]
    base = {"PATH": os.environ["PATH"], "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"}
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(results / "a"), str(results / "b")],
        env=base | environment,
        capture_output=True,
        check=False,
        timeout=120,
    )
    files = [(results / "a" / name).read_bytes() for name in ("verdict.md", "verdict.json")]
    assert b"Error" not in ended.stderr, ended.stderr.decode()
    return ended.returncode, ended.stdout, *files


def test_the_same_bytes_in_every_locale_and_time_zone(results) -> None:
    plain = _run(results, LC_ALL="C.UTF-8", TZ="UTC")
    assert plain[0] == 1
    ascii_only = {
        "LC_ALL": "C",
        "PYTHONUTF8": "0",
        "PYTHONCOERCECLOCALE": "0",
        "PYTHONIOENCODING": "ascii",
    }
    assert _run(results, TZ="Asia/Kolkata", **ascii_only) == plain
    assert _run(results, LC_ALL="de_DE.UTF-8", TZ="America/St_Johns") == plain


def test_a_doubled_latency_of_a_folder_fails_by_name(tmp_path, results, said) -> None:
    write(tmp_path / "slow", changed(_small(), scaled(latency=2.0), (*R18, "xla")))
    assert _check(said, "slow", results=tmp_path, reference=results / "b") == 1
    found = json.loads((tmp_path / "slow" / "verdict.json").read_text())
    assert any("xla/latency_ms: worse" in failure for failure in found["failures"])
