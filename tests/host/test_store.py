"""The campaign folder: atomic, checked by checksums, nothing overwritten, strict on the way in."""

from __future__ import annotations

import errno
import lzma
import os
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from artifact.errors import UserError
from artifact.host import store as stores
from artifact.host.collect import (
    CODE_FILE_LIMIT,
    RECORD_LIMIT_BYTES,
    Rejected,
    collect,
    collect_calibration,
    decompress,
)
from artifact.host.engines.fake import fake_record
from artifact.host.noise import calibration_medians, reasons
from artifact.host.schedule import foreign, remaining_blocks, remaining_priming
from artifact.host.store import Broken, Calibration, Store, attempts_by_cell
from artifact.plan import TrialSpec
from artifact.records import Record, Telemetry
from artifact.strict_json import dumps, write_atomic
from tests.host.toy import toy_plan

XZ = b"\xfd7zXZ\x00rest"


@pytest.fixture
def spec() -> TrialSpec:
    return next(iter(toy_plan().trials()))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store(tmp_path / "name")
    made.create(toy_plan(), {"identity": {}, "sessions": []})
    return made


def keep(store: Store, spec: TrialSpec, status: str = "ok", boot_id: str = "boot") -> Record:
    record = fake_record(spec, status)
    record = replace(record, identity=replace(record.identity, boot_id=boot_id))
    store.write_record(record, {"program.xz": XZ})
    return record


# --- store ------------------------------------------------------------------------------------
def test_what_is_written_is_read_back_equal(store: Store, spec: TrialSpec) -> None:
    record = keep(store, spec)
    assert store.scan() == ([record], [])
    assert store.plan() == toy_plan()
    assert store.code_path(record, "program.xz").read_bytes() == XZ


def test_checksums_are_what_sha256sum_checks(store: Store, spec: TrialSpec) -> None:
    keep(store, spec)
    keep(store, spec.again(2, 1))
    check = subprocess.run(
        ["sha256sum", "--check", "--strict", "checksums.txt"],
        cwd=store.directory,
        capture_output=True,
        text=True,
        check=False,
    )
    assert check.returncode == 0
    assert check.stdout.count(": OK") == 4


def test_a_record_is_never_overwritten(store: Store, spec: TrialSpec) -> None:
    record = keep(store, spec)
    path = store.records / f"{spec.record_id}.json"
    before = path.read_bytes()
    with pytest.raises(UserError, match="never overwritten"):
        store.write_record(replace(record, message="other"), {"program.xz": XZ})
    assert path.read_bytes() == before


def test_changed_generated_code_breaks_its_record(store: Store, spec: TrialSpec) -> None:
    record = keep(store, spec)
    store.code_path(record, "program.xz").write_bytes(XZ + b"!")
    good, broken = store.scan()
    assert good == []
    assert "checksum differs" in broken[0].reason


def test_files_that_no_checksum_vouches_for_are_named(store: Store, spec: TrialSpec) -> None:
    record = keep(store, spec)
    names = [f"records/{spec.record_id}.json", f"code/{spec.record_id}.program.xz"]
    assert store.unlisted([record]) == []
    (store.directory / "checksums.txt").unlink()
    assert store.scan() == ([record], [])
    assert store.unlisted([record]) == names
    (store.directory / "checksums.txt").write_text("0badline")
    assert store.unlisted([record]) == names
    store.code_path(record, "program.xz").unlink()
    assert store.unlisted([record]) == names[:1]


def test_what_was_written_and_is_not_there_any_more_is_named(store: Store, spec: TrialSpec) -> None:
    keep(store, spec)
    assert store.gone() == []
    (store.records / f"{spec.record_id}.json").unlink()
    assert store.gone() == [f"records/{spec.record_id}.json"]


@pytest.mark.parametrize("written", [1, 2, 3])
def test_a_kill_at_any_write_leaves_no_record_without_its_checksum(
    store: Store, spec: TrialSpec, monkeypatch: pytest.MonkeyPatch, written: int
) -> None:
    """Code, checksums, record: killed after one, two and all three of them."""
    count = 0
    write = stores.write_bytes_atomic

    def killed(path: Path, data: bytes) -> None:
        nonlocal count
        write(path, data)
        count += 1
        if count == written:
            raise KeyboardInterrupt

    monkeypatch.setattr(stores, "write_bytes_atomic", killed)
    with pytest.raises(KeyboardInterrupt):
        keep(store, spec)
    monkeypatch.undo()
    good, broken = store.scan()
    assert len(good) == (written == 3)
    assert (broken, store.unlisted(good)) == ([], [])
    if not good:  # run again: the same attempt, and everything vouched for
        again = keep(store, spec)
        assert (store.scan(), store.gone()) == (([again], []), [])


def test_set_aside_never_overwrites(store: Store, spec: TrialSpec) -> None:
    path = store.records / f"{spec.record_id}.json"
    names = []
    for text in ("one", "two", "three"):
        path.write_text(text)
        names.append(store.set_aside(Broken(path, "")).name)
    assert names == [f"{path.name}.broken", f"{path.name}.broken-2", f"{path.name}.broken-3"]
    assert (store.records / names[0]).read_text() == "one"
    assert not path.exists()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_one_line_and_leaves_no_half_record(
    store: Store, spec: TrialSpec, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    kept = keep(store, spec)

    def full(handle: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match="the disk is full") as caught:
        keep(store, spec.again(2, 1))
    assert len(str(caught.value).splitlines()) == 1
    monkeypatch.undo()
    assert store.scan() == ([kept], [])
    assert not list(store.directory.rglob(".partial-*"))


def test_a_folder_with_only_the_leftovers_of_a_kill_counts_as_empty(tmp_path: Path) -> None:
    store = Store(tmp_path / "x")
    assert store.is_empty()
    (tmp_path / "x" / "records").mkdir(parents=True)
    (tmp_path / "x" / ".partial-abc").write_text("{")
    assert store.is_empty()
    (tmp_path / "x" / "records" / "a").write_text("")
    assert not store.is_empty()


def test_a_broken_plan_or_manifest_is_one_line(store: Store) -> None:
    (store.directory / "plan.json").write_text('{"schema": NaN}')
    with pytest.raises(UserError, match=r"plan\.json.*NaN"):
        store.plan()
    (store.directory / "manifest.json").unlink()
    with pytest.raises(UserError, match="not a campaign"):
        store.manifest()


def test_attempts_are_counted_by_cell_without_priming(spec: TrialSpec) -> None:
    records = [fake_record(spec, "oom"), fake_record(spec.again(2, 1), "ok")]
    records.append(fake_record(toy_plan().priming[0], "ok"))
    assert attempts_by_cell(records) == {
        (spec.model, spec.input, spec.configuration): {"oom": 1, "ok": 1}
    }


def test_every_json_of_a_campaign_is_strict(store: Store, spec: TrialSpec) -> None:
    """Case S6."""
    record = fake_record(spec, "ok")
    with pytest.raises(ValueError, match="not JSON compliant"):
        store.write_record(replace(record, overhead_ms=float("nan")), {})
    assert store.scan() == ([], [])
    assert not list(store.records.iterdir())


# --- what comes out of a process --------------------------------------------------------------
@pytest.fixture
def out(tmp_path: Path, spec: TrialSpec) -> Path:
    folder = tmp_path / "out"
    (folder / "code").mkdir(parents=True)
    (folder / "code" / "program.xz").write_bytes(XZ)
    write_atomic(folder / "record.json", fake_record(spec, "ok"))
    return folder


def test_a_good_output_folder_is_collected(out: Path, spec: TrialSpec) -> None:
    collected = collect(out, spec)
    assert collected is not None
    assert collected.record == fake_record(spec, "ok")
    assert collected.code == {"program.xz": XZ}


def test_no_record_is_none(out: Path, spec: TrialSpec) -> None:
    (out / "record.json").unlink()
    assert collect(out, spec) is None


def _extra_file(out: Path) -> None:
    (out / "torchinductor_cache").mkdir()


def _hidden_file(out: Path) -> None:
    (out / ".partial-record").write_text("")


def _symlink(out: Path) -> None:
    (out / "record.json").rename(out.parent / "elsewhere.json")
    (out / "record.json").symlink_to(out.parent / "elsewhere.json")


def _hard_link(out: Path) -> None:
    os.link(out / "record.json", out.parent / "second-name.json")


def _fifo(out: Path) -> None:
    (out / "record.json").unlink()
    os.mkfifo(out / "record.json")


def _folder(out: Path) -> None:
    (out / "record.json").unlink()
    (out / "record.json").mkdir()


def _code_link(out: Path) -> None:
    (out / "code" / "program.xz").unlink()
    (out / "code" / "program.xz").symlink_to("/etc/hostname")


def _code_folder_link(out: Path) -> None:
    (out / "code").rename(out.parent / "code-elsewhere")
    (out / "code").symlink_to(out.parent / "code-elsewhere")


def _code_name(out: Path) -> None:
    (out / "code" / "a b;c.xz").write_bytes(XZ)


def _code_content(out: Path) -> None:
    (out / "code" / "program.xz").write_bytes(b"#!/bin/sh\n")


def _code_missing(out: Path) -> None:
    (out / "code" / "program.xz").unlink()


def _many(out: Path) -> None:
    for number in range(CODE_FILE_LIMIT):
        (out / "code" / f"{number}.xz").write_bytes(XZ)


def _huge(out: Path) -> None:
    with (out / "record.json").open("ab") as stream:
        stream.truncate(RECORD_LIMIT_BYTES + 1)


def _nan(out: Path) -> None:
    path = out / "record.json"
    path.write_text(path.read_text().replace('"cpu_s": 1.0', '"cpu_s": NaN'))


def _unknown_key(out: Path) -> None:
    path = out / "record.json"
    path.write_text(path.read_text().replace("{", '{"extra": 1,', 1))


def _deep(out: Path) -> None:
    (out / "record.json").write_text("[" * 200_000)


def _not_text(out: Path) -> None:
    (out / "record.json").write_bytes(b"\xff\xfe{}")


def _negative(out: Path) -> None:
    path = out / "record.json"
    path.write_text(path.read_text().replace('"warmup_ms": [\n', '"warmup_ms": [\n-1.0,\n'))


SPOILS: list[tuple[Callable[[Path], None], str]] = [
    (_extra_file, "unexpected file 'torchinductor_cache'"),
    (_hidden_file, "unexpected file"),
    (_symlink, "plain file"),
    (_hard_link, "plain file"),
    (_fifo, "plain file"),
    (_folder, "plain file"),
    (_code_link, "plain file"),
    (_code_folder_link, "plain folder"),
    (_code_name, "unexpected file"),
    (_code_content, "not an xz file"),
    (_code_missing, "names code files"),
    (_many, "at most"),
    (_huge, "larger than"),
    (_nan, "NaN"),
    (_unknown_key, "unknown key 'extra'"),
    (_deep, "not strict JSON"),
    (_not_text, "not strict JSON"),
    (_negative, "positive"),
]


@pytest.mark.parametrize(("spoil", "words"), SPOILS, ids=lambda v: getattr(v, "__name__", None))
def test_anything_else_is_rejected(
    out: Path, spec: TrialSpec, spoil: Callable[[Path], None], words: str
) -> None:
    spoil(out)
    with pytest.raises(Rejected, match=words):
        collect(out, spec)


def test_a_code_file_is_decompressed_within_a_bound() -> None:
    text = b"fused_kernel();\n" * 1000
    packed = lzma.compress(text)
    assert decompress(packed) == text
    assert decompress(packed, len(text)) == text
    with pytest.raises(lzma.LZMAError, match="larger than"):
        decompress(packed, len(text) - 1)
    bomb = lzma.compress(bytes(64 * 2**20))
    assert len(bomb) < 20_000
    with pytest.raises(lzma.LZMAError, match="larger than 1048576"):
        decompress(bomb, 2**20)


@pytest.mark.parametrize("damage", ["cut", "flipped", "followed", "not xz", "greedy"])
def test_a_damaged_code_file_is_an_lzma_error(damage: str) -> None:
    packed = lzma.compress(b"text" * 1000)
    if damage == "greedy":  # asks for a dictionary of 256 MiB
        filters = [{"id": lzma.FILTER_LZMA2, "dict_size": 256 * 2**20}]
        packed = lzma.compress(b"text", filters=filters)
    spoiled = {
        "cut": packed[:-5],
        "flipped": packed[:40] + bytes([packed[40] ^ 255]) + packed[41:],
        "followed": packed + b"more",
        "not xz": b"PK" + packed,
        "greedy": packed,
    }
    with pytest.raises(lzma.LZMAError):
        decompress(spoiled[damage])


@pytest.mark.parametrize(
    "change", [{"attempt": 2}, {"executions": 4}, {"binding": "runtime"}, {"trial_id": "r9.x"}]
)
def test_a_record_must_echo_the_spec_that_was_sent(
    out: Path, spec: TrialSpec, change: dict[str, Any]
) -> None:
    with pytest.raises(Rejected, match="another trial"):
        collect(out, replace(spec, **change))


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        '{"compile_ms": 1, "matmul_ms": 2}',
        '{"compile_ms": 1, "matmul_ms": 2, "memory_ms": 0}',
        '{"compile_ms": 1, "matmul_ms": 2, "memory_ms": "3"}',
        '{"compile_ms": 1, "matmul_ms": 2, "memory_ms": 3, "more": 4}',
        "[1]",
    ],
)
def test_a_calibration_is_three_positive_numbers(tmp_path: Path, text: str) -> None:
    (tmp_path / "calibration.json").write_text(text)
    with pytest.raises(Rejected):
        collect_calibration(tmp_path)
    good = {"compile_ms": 1.0, "matmul_ms": 2.0, "memory_ms": 3.0}
    (tmp_path / "calibration.json").write_text(dumps(good))
    assert collect_calibration(tmp_path) == good


# --- what is left to run ----------------------------------------------------------------------
def all_records(boot_id: str = "boot") -> list[Record]:
    made = []
    for spec in toy_plan().trials():
        record = fake_record(spec, "ok")
        made.append(replace(record, identity=replace(record.identity, boot_id=boot_id)))
    return made


def test_everything_is_left_at_first_and_nothing_at_last() -> None:
    left = remaining_blocks(toy_plan(), [], "boot")
    assert [s for run in left for s in run.trials] == list(toy_plan().trials())
    assert remaining_blocks(toy_plan(), all_records(), "boot") == []
    assert remaining_blocks(toy_plan(), all_records(), "another boot") == []


def test_a_missing_trial_is_left_alone_in_its_block_within_one_boot() -> None:
    records = all_records()
    gone = records.pop(4)
    (left,) = remaining_blocks(toy_plan(), records, "boot")
    assert left.trials == (gone.spec,)


def test_a_missing_trial_takes_its_whole_block_along_after_a_reboot() -> None:
    records = all_records()
    gone = records.pop(4)
    (left,) = remaining_blocks(toy_plan(), records, "another boot")
    block = next(b for b in toy_plan().blocks if b.block_id == gone.spec.block_id)
    assert left.block_run == 2
    assert left.trials == tuple(spec.again(1, 2) for spec in block.trials)


def test_a_trial_given_up_before_is_left_with_its_attempts_numbered_onwards() -> None:
    records = all_records()
    gone = records.pop(4)
    for attempt in (1, 2, 3):
        record = fake_record(gone.spec.again(attempt, 1), "oom")
        records.append(replace(record, identity=replace(record.identity, boot_id="boot")))
    (left,) = remaining_blocks(toy_plan(), records, "boot")
    assert left.trials == (gone.spec.again(4, 1),)


def test_an_untouched_block_keeps_its_first_run_after_a_reboot() -> None:
    block = toy_plan().blocks[2]
    records = [r for r in all_records() if r.spec.block_id != block.block_id]
    (left,) = remaining_blocks(toy_plan(), records, "another boot")
    assert (left.block_run, left.trials) == (1, block.trials)


def test_priming_is_per_boot() -> None:
    plan = toy_plan()
    assert remaining_priming(plan, [], "boot") == list(plan.priming)
    record = fake_record(plan.priming[0], "failed")
    record = replace(record, identity=replace(record.identity, boot_id="boot"))
    assert remaining_priming(plan, [record], "boot") == []
    assert remaining_priming(plan, [record], "new") == [plan.priming[0].again(1, 2)]


def test_records_of_another_plan_are_told_apart(spec: TrialSpec) -> None:
    own = fake_record(spec.again(2, 3), "ok")
    other = fake_record(replace(spec, trial_id="r9.m9"), "ok")
    changed = fake_record(replace(spec, isa="native"), "ok")
    assert foreign(toy_plan(), [own, other, changed]) == [other, changed]


# --- noise ------------------------------------------------------------------------------------
def calibration(block_id: str, compile_ms: float = 100.0, run: int = 1) -> Calibration:
    values = {"compile_ms": compile_ms, "matmul_ms": 10.0, "memory_ms": 5.0}
    return Calibration(block_id, run, 1, "boot", "", values)


def test_calibration_off_by_more_than_ten_per_cent_in_either_direction_is_noise(
    spec: TrialSpec,
) -> None:
    record = fake_record(spec, "ok")
    quiet = [calibration(f"other-{i}") for i in range(4)]
    for compile_ms, noisy in [(109.0, False), (111.0, True), (91.0, False), (89.0, True)]:
        found = reasons(record, [*quiet, calibration(spec.block_id, compile_ms)])
        assert bool(found) is noisy
    assert reasons(record, [*quiet, calibration(spec.block_id, 150.0, run=2)]) == ()
    assert calibration_medians(quiet)["matmul_ms"] == 10.0


@pytest.mark.parametrize(
    ("steal", "throttled_ms", "count"),
    [(0.02, 0.0, 0), (0.021, 0.0, 1), (None, None, 0), (0.0, 0.5, 1), (0.5, 9.0, 2)],
)
def test_steal_and_throttling_are_noise(
    spec: TrialSpec, steal: float | None, throttled_ms: float | None, count: int
) -> None:
    seen = Telemetry(1.0, 1.0, 0, 0, 0, steal, None, throttled_ms, 1, 0)
    record = replace(fake_record(spec, "ok"), telemetry=seen)
    assert len(reasons(record, [])) == count


@pytest.mark.parametrize(
    ("number", "words", "not_words"),
    [
        (errno.EACCES, f"Permission denied (/r/a); .*writable for uid {os.getuid()}", "make room"),
        (errno.EROFS, "Read-only file system (/r/a); .*mount it writable", "make room"),
        (errno.EIO, "Input/output error (/r/a); .*mend it", "make room"),
        (errno.ENOSPC, "the disk is full (/r/a); .*make room", "writable"),
    ],
)
def test_disk_errors_name_the_cause_and_its_own_remedy(
    number: int, words: str, not_words: str
) -> None:
    pattern = words.replace("(", r"\(").replace(")", r"\)")
    with pytest.raises(UserError, match=pattern) as caught, stores.disk_errors("x"):
        raise OSError(number, os.strerror(number), "/r/a")
    assert not_words not in str(caught.value)
    assert str(caught.value).startswith("cannot write x: ")
    assert len(str(caught.value).splitlines()) == 1
