"""From a name and a source to files: missing cells, faults in one line, whole files, any locale."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import drawn
import pytest

from artifact.errors import UserError
from artifact.host import drawing
from artifact.host.drawing import Where, missing_cells
from artifact.strict_json import write_atomic

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results with space")
    drawn.write_campaign(folder / "smoke")
    return folder


def silent(line: str) -> None:
    assert line.isascii()


# --- files ----------------------------------------------------------------------------------------
def test_a_figure_of_a_campaign_lies_beside_its_records(results):
    said = []
    assert drawing.figure("fig1", "measured", results=results, say=said.append) == 0
    folder = results / "smoke" / "figures"
    assert {path.name for path in folder.iterdir()} == {"fig1.csv", "fig1.png", "fig1.pdf"}
    rows = list(csv.DictReader((folder / "fig1.csv").open(encoding="utf-8")))
    assert {row["source"] for row in rows} == {"measured: smoke"}
    assert any(line.startswith("not measured: resnet18 1x3x224x224 inductor") for line in said)
    assert all(line.isascii() for line in said)


def test_a_table_is_shown_and_written_three_times(tmp_path):
    said = []
    code = drawing.table("tab6", "published", results=tmp_path, out=tmp_path / "o", say=said.append)
    assert code == 0
    assert {path.name for path in (tmp_path / "o").iterdir()} == {"tab6.csv", "tab6.md", "tab6.tex"}
    assert "| BERT  | 1x64  | 9422 +- 217" in said[0]
    assert "9422 ± 217" in (tmp_path / "o" / "tab6.md").read_text(encoding="utf-8")


def test_published_files_lie_apart_from_every_campaign(tmp_path):
    drawing.table("tab4", "published", results=tmp_path, say=silent)
    assert (tmp_path / "tables" / "published" / "tab4.csv").exists()


def test_a_fault_while_drawing_leaves_the_old_files_whole(results, tmp_path, monkeypatch):
    (tmp_path / "fig1.csv").write_text("old", encoding="utf-8")

    def fails(draw, title):
        raise RuntimeError("no font")

    monkeypatch.setattr("artifact.figures.style.files", fails)
    with pytest.raises(RuntimeError, match=r"no font"):
        drawing.figure("fig1", "measured", results=results, out=tmp_path, say=silent)
    assert [path.name for path in tmp_path.iterdir()] == ["fig1.csv"]
    assert (tmp_path / "fig1.csv").read_text(encoding="utf-8") == "old"


def test_a_place_that_cannot_be_written_is_one_line(results, tmp_path):
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(UserError, match=r"cannot write .*tab1.csv: .*; choose another --out"):
        drawing.table("tab1", "published", results=results, out=tmp_path / "file", say=silent)


# --- sources --------------------------------------------------------------------------------------
def test_no_campaign_is_one_line(tmp_path):
    with pytest.raises(UserError, match=r"no campaign in .*; measure one"):
        drawing.figure("fig3", "measured", results=tmp_path, say=silent)
    with pytest.raises(UserError, match=r"no campaign at .*nothing"):
        drawing.figure("fig3", "measured", results=tmp_path, campaign="nothing", say=silent)


def test_a_campaign_without_usable_trials_is_one_line(tmp_path):
    drawn.write_campaign(tmp_path / "failed", bend=lambda record: replace(record, status="failed"))
    with pytest.raises(
        UserError, match=r"measured: failed has no usable record of what fig1 shows"
    ):
        drawing.figure("fig1", "measured", results=tmp_path, say=silent)
    assert not (tmp_path / "failed" / "figures").exists()


def test_records_that_may_not_be_pooled_are_refused(tmp_path):
    def bend(record):
        code = "new" if record.spec.round == 2 else "old"
        return replace(record, identity=replace(record.identity, code_hash=code))

    drawn.write_campaign(tmp_path / "mixed", bend=bend)
    with pytest.raises(UserError, match=r"may not be pooled, code_hash differs: new, old"):
        drawing.figure("fig1", "measured", results=tmp_path, say=silent)


def test_figures_beyond_the_paper_have_no_published_numbers(tmp_path):
    with pytest.raises(UserError, match=r"the paper has no numbers for fig6; use measured"):
        drawing.figure("fig6", "published", results=tmp_path, say=silent)


@pytest.mark.parametrize(
    ("name", "source", "message"),
    [
        ("fig8", "published", "unknown figure 'fig8'; known: fig1, .*fig7"),
        ("fig1", "elsewhere", "unknown source 'elsewhere'; known: measured, reference, published"),
    ],
)
def test_unknown_names_list_the_known_ones(tmp_path, name, source, message):
    with pytest.raises(UserError, match=message):
        drawing.figure(name, source, results=tmp_path, say=silent)


def test_without_a_name_the_only_campaign_is_drawn(tmp_path):
    drawn.write_campaign(tmp_path / "one")
    assert drawing.campaign_folder(Where(tmp_path)).name == "one"
    drawn.write_campaign(tmp_path / "two")
    with pytest.raises(UserError, match=r"holds 2 campaigns; --name one of: one, two"):
        drawing.campaign_folder(Where(tmp_path))
    assert drawing.campaign_folder(Where(tmp_path, "two")).name == "two"


def test_a_look_at_a_crossover_is_drawn_only_by_name(tmp_path):
    drawn.write_campaign(tmp_path / "crossover-resnet18-xla-tvm")
    with pytest.raises(UserError, match=r"no campaign in .*; measure one"):
        drawing.campaign_folder(Where(tmp_path))
    drawn.write_campaign(tmp_path / "one")
    assert drawing.campaign_folder(Where(tmp_path)).name == "one"
    named = drawing.campaign_folder(Where(tmp_path, "crossover-resnet18-xla-tvm"))
    assert named.name == "crossover-resnet18-xla-tvm"


@pytest.fixture
def references(tmp_path):
    """Two machine classes; the second holds a small campaign and a whole one."""
    root = tmp_path / "reference"
    for folder, started, kept in (
        ("class-a/campaign-1", "2026-01-02", "bert-2layer"),
        ("class-b/campaign-1", "2026-01-03", "resnet18"),
        ("class-b/campaign-2", "2026-01-04", ""),
    ):

        def bend(record, started=started, kept=kept):
            if kept and record.spec.model != kept:
                return None
            return replace(record, identity=replace(record.identity, started_utc=started))

        drawn.write_campaign(root / folder, bend=bend)
        write_atomic((root / folder).parent / "facts.json", {})
    return root


def test_of_a_class_the_campaign_that_shows_most_is_drawn(references):
    """`campaign-3` is smaller than `campaign-2`, but holds the guard and the built-in routes."""

    def one_round(record):
        return record if record.spec.round == 1 else None

    drawn.write_campaign(references / "class-b" / "campaign-3", "folds", one_round)
    where = Where(references.parent, reference="class-b", references=references)
    for name, campaign in (("tab9", "campaign-3"), ("tab7", "campaign-3"), ("tab6", "campaign-2")):
        found = drawing.find_source(drawing.load(name), "reference", where)
        assert found.label == f"reference: class-b/{campaign}"


@pytest.mark.parametrize(
    ("asked", "label"),
    [
        ("", "reference: class-b/campaign-2"),
        ("class-b", "reference: class-b/campaign-2"),
        ("class-b/campaign-1", "reference: class-b/campaign-1"),
        ("class-a", "reference: class-a/campaign-1"),
    ],
)
def test_the_newest_reference_or_the_one_asked_for(references, asked, label):
    where = Where(references, reference=asked, references=references)
    assert drawing.find_source(drawing.load("fig1"), "reference", where).label == label


def test_an_unknown_reference_is_one_line(references, tmp_path):
    unknown = Where(tmp_path, reference="class-z", references=references)
    with pytest.raises(UserError, match=r"class-z holds no reference.*known: class-a, class-b"):
        drawing.find_source(drawing.load("fig1"), "reference", unknown)
    nowhere = Where(tmp_path, references=tmp_path / "empty")
    with pytest.raises(UserError, match=r"no reference records in .*empty"):
        drawing.find_source(drawing.load("fig1"), "reference", nowhere)


def _tamper(path):
    path.write_text(path.read_text(encoding="utf-8").replace("fake", "Fake", 1), encoding="utf-8")


def _named(message):
    return r"class-b/campaign-\d has files that cannot be trusted: .*" + message


@pytest.mark.parametrize("campaign", ["campaign-1", "campaign-2"])
def test_a_tampered_reference_is_refused_whichever_campaign_would_be_drawn(references, campaign):
    record = sorted((references / "class-b" / campaign / "records").iterdir())[0]
    _tamper(record)
    where = Where(references, reference="class-b", references=references)
    message = _named(f"{record.name}.*checksum differs.*; restore the files that were shipped")
    with pytest.raises(UserError, match=message):
        drawing.find_source(drawing.load("fig1"), "reference", where)


def test_a_reference_that_lost_or_gained_a_record_is_refused(references):
    records = references / "class-b" / "campaign-2" / "records"
    first, second, *_ = sorted(records.iterdir())
    where = Where(references, reference="class-b", references=references)
    text = first.read_text(encoding="utf-8")
    first.unlink()
    with pytest.raises(UserError, match=_named(f"{first.name}: is not there")):
        drawing.find_source(drawing.load("fig1"), "reference", where)
    first.write_text(text, encoding="utf-8")
    assert drawing.find_source(drawing.load("fig1"), "reference", where).label
    sums = records.parent / "checksums.txt"
    kept = [line for line in sums.read_text().splitlines() if second.name not in line]
    sums.write_text("\n".join(kept) + "\n", encoding="utf-8")
    with pytest.raises(UserError, match=_named(f"no checksum of .*{second.name}")):
        drawing.find_source(drawing.load("fig1"), "reference", where)


def test_a_campaign_with_a_broken_record_is_refused(tmp_path):
    drawn.write_campaign(tmp_path / "c")
    record = sorted((tmp_path / "c" / "records").iterdir())[0]
    record.write_text('{"schema": 1', encoding="utf-8")
    with pytest.raises(UserError, match=f"cannot be trusted: .*{record.name}.*--resume"):
        drawing.figure("fig1", "measured", results=tmp_path, say=silent)
    assert not (tmp_path / "c" / "figures").exists()


def test_every_campaign_of_a_reference_is_read_once(references, monkeypatch):
    read = []
    original = drawing.read_campaign
    monkeypatch.setattr(drawing, "read_campaign", lambda path: read.append(path) or original(path))
    drawing.find_source(drawing.load("fig1"), "reference", Where(references, references=references))
    assert len(read) == len(set(read)) == 3


# --- what is missing ------------------------------------------------------------------------------
def test_everything_is_missing_before_the_first_trial(tmp_path, the_study):
    assert missing_cells("fig1", tmp_path / "none", the_study, "smoke") == [
        ("resnet18", "1x3x64x64", name) for name in ("inductor", "xla", "tvm")
    ]


def test_cells_with_fewer_trials_than_planned_are_missing(tmp_path, the_study):
    def bend(record):
        late = record.spec.configuration == "xla" and record.spec.round == 2
        return replace(record, status="timeout") if late else record

    drawn.write_campaign(tmp_path / "c", bend=bend)
    assert missing_cells("fig1", tmp_path / "c", the_study, "smoke") == [
        ("resnet18", "1x3x64x64", "xla")
    ]
    assert missing_cells("tab4", tmp_path / "c", the_study, "smoke") == []


def test_what_a_stack_cannot_run_is_not_missing(tmp_path, the_study):
    def bend(record):
        return replace(record, status="unsupported") if record.spec.stack == "tvm" else record

    drawn.write_campaign(tmp_path / "c", bend=bend)
    assert missing_cells("fig1", tmp_path / "c", the_study, "smoke") == []


# --- other people's machines ----------------------------------------------------------------------
DRAW = """
import sys
from pathlib import Path
from artifact.host import drawing
out = Path(sys.argv[1])
drawing.table("tab1", "published", results=out, out=out)
drawing.figure("fig5", "published", results=out, out=out)
heavy = {"torch", "jax", "tvm", "pandas", "statsmodels", "docker"} & set(sys.modules)
assert not heavy, heavy
# Its tests are adjusted by statsmodels, which only tab4 and tab5 wait for.
drawing.table("tab4", "published", results=out, out=out)
assert "statsmodels" in sys.modules
"""

LOCALES = {
    "plain": {},
    "ascii": {
        "LC_ALL": "C",
        "PYTHONUTF8": "0",
        "PYTHONCOERCECLOCALE": "0",
        "PYTHONIOENCODING": "ascii",
    },
    "german": {"LC_ALL": "de_DE.UTF-8", "LANG": "de_DE.UTF-8", "TZ": "Asia/Kolkata"},
}


def test_locale_and_time_zone_change_no_byte(tmp_path):
    """Cases A2 and A3; nothing heavy is imported on the way."""
    made = {}
    for name, settings in LOCALES.items():
        out = tmp_path / name
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT),
            "PYTHONDONTWRITEBYTECODE": "1",
            "HOME": str(tmp_path / "home"),
            "TMPDIR": str(tmp_path),
            **settings,
        }
        done = subprocess.run(
            [sys.executable, "-c", DRAW, str(out)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        made[name] = {path.name: path.read_bytes() for path in sorted(out.iterdir())}
    assert len(made["plain"]) == 9
    assert made["ascii"] == made["plain"]
    assert made["german"] == made["plain"]
    assert not (tmp_path / "home").exists(), "something was written to the home folder"
    assert b"6928.677004" in made["german"]["tab4.csv"]
