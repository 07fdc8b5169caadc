"""The folder of one campaign, `results/<name>/`, and how it is read back.

plan.json               the whole plan, written before the first trial
manifest.json           identity of the campaign, environments, host facts, sessions
records/<record>.json   one per attempt, immutable
code/<record>.<x>.xz    text of the generated program of that attempt
calibrations/*.json     one per started block
overheads.csv           record, ms from asking the engine to the record on disk, less the process
checksums.txt           SHA-256 of all records and code files (`sha256sum -c checksums.txt`)
campaign.log            what happened, one line each, UTC
work/                   folders of the trial that runs now; empty otherwise
"""

from __future__ import annotations

import csv
import datetime
import errno
import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from artifact import records as record_files
from artifact.errors import UserError
from artifact.plan import Plan
from artifact.records import Record
from artifact.strict_json import (
    SchemaError,
    dumps,
    from_plain,
    read,
    write_atomic,
    write_bytes_atomic,
)

PLAN, MANIFEST, CHECKSUMS, LOG = "plan.json", "manifest.json", "checksums.txt", "campaign.log"
OVERHEADS = "overheads.csv"
RECORDS, CODE, CALIBRATIONS, WORK = "records", "code", "calibrations", "work"

#: Names of the folders that `artifact crossover` leaves beside the campaigns. They are campaigns of
#: one pair with other numbers of executions, so nothing takes them for the campaign of a profile.
CROSSOVER_PREFIX = "crossover-"

#: A cell's name as shown to people and used as a key: (model, input, configuration).
Cell = tuple[str, str, str]


@dataclass(frozen=True)
class Calibration:
    """Speed of the machine before (a part of) a block; `session` counts runs of the campaign."""

    block_id: str
    block_run: int
    session: int
    boot_id: str
    started_utc: str
    values: Mapping[str, float]


@dataclass(frozen=True)
class Broken:
    """A record file that cannot be trusted, and why."""

    path: Path
    reason: str


#: What a person can do about a fault of the disk.
_REMEDIES = {
    errno.ENOSPC: "make room",
    errno.EDQUOT: "make room",
    errno.EACCES: f"make it writable for uid {os.getuid()}",
    errno.EPERM: f"make it writable for uid {os.getuid()}",
    errno.EROFS: "mount it writable",
}


@contextmanager
def disk_errors(what: str) -> Iterator[None]:
    """A full or unwritable disk is one line for the person; what was written before stays."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        cause = "the disk is full" if full else (error.strerror or str(error))
        where = f" ({error.filename})" if error.filename and str(error.filename) != what else ""
        remedy = _REMEDIES.get(error.errno or 0, "mend it")
        raise UserError(
            f"cannot write {what}: {cause}{where}",
            next_step=f"finished records are kept; {remedy} and run again with --resume",
        ) from error


def campaign_folders(results: Path) -> list[Path]:
    """Folders of the campaigns below `results` in name order; looks at a crossover are not meant.

    Such a look is still read where a person names it.
    """
    found = sorted(path.parent for path in results.glob(f"*/{PLAN}"))
    return [folder for folder in found if not folder.name.startswith(CROSSOVER_PREFIX)]


def now_utc() -> str:
    """This moment in UTC with its offset. For stamps only, never for durations."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")


class Store:
    """Reads and writes one campaign folder. Nothing already measured is ever overwritten."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory.absolute()
        self.records = self.directory / RECORDS
        self.work = self.directory / WORK

    # --- writing ------------------------------------------------------------------------------
    def create(self, plan: Plan, manifest: Mapping[str, Any]) -> None:
        """Make the folder and put plan and manifest on disk."""
        with disk_errors(str(self.directory)):
            for name in (RECORDS, CODE, CALIBRATIONS, WORK):
                (self.directory / name).mkdir(parents=True, exist_ok=True)
            write_atomic(self.directory / MANIFEST, manifest)
            write_atomic(self.directory / PLAN, plan)

    def write_manifest(self, manifest: Mapping[str, Any]) -> None:
        """Replace the manifest (its list of sessions grows)."""
        with disk_errors(str(self.directory / MANIFEST)):
            write_atomic(self.directory / MANIFEST, manifest)

    def write_record(self, record: Record, code: Mapping[str, bytes]) -> Path:
        """Store code files, then all checksums, then the record (atomically); returns its path.

        In this order a kill at any moment leaves either no record or a whole one with its
        checksum; a checksum without its record is replaced when the trial is run again.
        """
        record_id = record.spec.record_id
        path = self.records / f"{record_id}.json"
        if path.exists():
            raise UserError(f"{path} exists already; a record is never overwritten")
        with disk_errors(str(path)):
            data = dumps(record).encode("utf-8")
            sums = {path: hashlib.sha256(data).hexdigest()}
            for name, text in code.items():
                target = self.directory / CODE / f"{record_id}.{name}"
                write_bytes_atomic(target, text)
                sums[target] = hashlib.sha256(text).hexdigest()
            self._add_checksums(sums)
            write_bytes_atomic(path, data)
        return path

    def write_calibration(self, calibration: Calibration) -> None:
        """Store one calibration."""
        name = f"{calibration.block_id}.b{calibration.block_run}.s{calibration.session}.json"
        with disk_errors(name):
            write_atomic(self.directory / CALIBRATIONS / name, calibration)

    def write_overhead(self, record_id: str, overhead_ms: float) -> None:
        """Append one attempt's overhead in ms; its record is on disk already."""
        path = self.directory / OVERHEADS
        with disk_errors(OVERHEADS), path.open("a", encoding="ascii") as stream:
            if stream.tell() == 0:
                stream.write("record,overhead_ms\n")
            stream.write(f"{record_id},{overhead_ms:.3f}\n")

    def overheads_ms(self) -> dict[str, float]:
        """Record -> overhead in ms; without an entry for attempts whose process time is unknown."""
        path = self.directory / OVERHEADS
        if not path.exists():
            return {}
        with path.open(encoding="ascii", newline="") as stream:
            return {row["record"]: float(row["overhead_ms"]) for row in csv.DictReader(stream)}

    def log(self, line: str) -> None:
        """Append one line to `campaign.log`."""
        with disk_errors(LOG), (self.directory / LOG).open("a", encoding="utf-8") as stream:
            stream.write(f"{now_utc()} {line}\n")

    def _add_checksums(self, digests: Mapping[Path, str]) -> None:
        named = {path.relative_to(self.directory).as_posix(): d for path, d in digests.items()}
        self._write_checksums(self.checksums() | named)

    def _write_checksums(self, sums: Mapping[str, str]) -> None:
        text = "".join(f"{digest}  {name}\n" for name, digest in sorted(sums.items()))
        write_bytes_atomic(self.directory / CHECKSUMS, text.encode("utf-8"))

    def set_aside(self, broken: Broken) -> Path:
        """Rename a broken record to `*.broken` (never deleted, never overwritten)."""
        number = 1
        target = broken.path.with_name(f"{broken.path.name}.broken")
        while target.exists():
            number += 1
            target = broken.path.with_name(f"{broken.path.name}.broken-{number}")
        with disk_errors(str(target)):
            broken.path.rename(target)
            sums = self.checksums()
            sums.pop(broken.path.relative_to(self.directory).as_posix(), None)
            self._write_checksums(sums)
        return target

    # --- reading ------------------------------------------------------------------------------
    def is_empty(self) -> bool:
        """True when no file is there yet (a kill may have left empty folders and half a file)."""
        files = (path for path in self.directory.rglob("*") if not path.is_dir())
        return all(path.name.startswith(".partial-") for path in files)

    def plan(self) -> Plan:
        """The plan; a `UserError` names the fault."""
        with self._readable():
            return from_plain(Plan, read(self.directory / PLAN), "plan")

    def manifest(self) -> dict[str, Any]:
        """The manifest; a `UserError` names the fault."""
        with self._readable():
            return dict(read(self.directory / MANIFEST))

    @contextmanager
    def _readable(self) -> Iterator[None]:
        """Faults of a campaign folder that cannot be read, as one line."""
        try:
            yield
        except OSError as error:
            raise UserError(
                f"{self.directory} is not a campaign: cannot read {error.filename}",
                next_step="choose another --name",
            ) from error
        except (TypeError, ValueError) as error:
            raise UserError(f"{self.directory} holds a broken campaign: {error}") from error

    def checksums(self) -> dict[str, str]:
        """Relative path -> SHA-256 as noted when it was written; malformed lines are no entry."""
        path = self.directory / CHECKSUMS
        if not path.exists():
            return {}
        pairs = (line.split("  ", 1) for line in path.read_text(encoding="utf-8").splitlines())
        return {pair[1]: pair[0] for pair in pairs if len(pair) == 2}

    def unlisted(self, records: Iterable[Record]) -> list[str]:
        """Files of these records that no line of `checksums.txt` vouches for, by relative path.

        A code file that is not there is not meant: a shipped reference keeps one copy a cell.
        """
        sums = self.checksums()
        names = []
        for record in records:
            code = (self.code_path(record, name) for name in record.code_files)
            record_path = self.records / f"{record.spec.record_id}.json"
            paths = [record_path, *(path for path in code if path.exists())]
            names += [path.relative_to(self.directory).as_posix() for path in paths]
        return [name for name in names if name not in sums]

    def gone(self) -> list[str]:
        """Files that `checksums.txt` names and that are not there, by relative path."""
        return [name for name in sorted(self.checksums()) if not (self.directory / name).exists()]

    def scan(self) -> tuple[list[Record], list[Broken]]:
        """All records that can be trusted, in name order, and all files that cannot."""
        sums = self.checksums()
        good: list[Record] = []
        broken: list[Broken] = []
        for path in sorted(self.records.glob("*.json")):
            try:
                good.append(self._trusted(path, sums))
            except (SchemaError, OSError, UnicodeDecodeError, RecursionError) as error:
                broken.append(Broken(path, str(error)))
        return good, broken

    def _trusted(self, path: Path, sums: Mapping[str, str]) -> Record:
        """The record at `path`; a `SchemaError` when it, or its code, is not what was written."""
        record = record_files.load(path)
        if path.stem != record.spec.record_id:
            raise SchemaError(f"{path}: holds the record of {record.spec.record_id}")
        files = [path, *(self.code_path(record, name) for name in record.code_files)]
        for file in files:
            expected = sums.get(file.relative_to(self.directory).as_posix())
            if expected is not None and expected != _sha256(file):
                raise SchemaError(f"{file}: is not the file that was written (checksum differs)")
        return record

    def code_path(self, record: Record, name: str) -> Path:
        """Where the code file that `record` calls `name` is stored."""
        return self.directory / CODE / f"{record.spec.record_id}.{name}"

    def calibrations(self) -> list[Calibration]:
        """All calibrations, in name order."""
        paths = sorted((self.directory / CALIBRATIONS).glob("*.json"))
        return [from_plain(Calibration, read(path), path.name) for path in paths]


def attempts_by_cell(records: Iterable[Record]) -> dict[Cell, Counter[str]]:
    """How many attempts of each cell ended in which status (measured trials only)."""
    counted: dict[Cell, Counter[str]] = {}
    for record in records:
        if record.spec.role == "measured":
            cell = (record.spec.model, record.spec.input, record.spec.configuration)
            counted.setdefault(cell, Counter())[record.status] += 1
    return counted


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
