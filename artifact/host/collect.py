"""What came out of a process is data: bounded, named as expected, parsed strictly, never followed.

The folder was writable for whatever ran in the container. Every file is opened relative to an open
folder, without following links, and must be a plain file of bounded size.
"""

from __future__ import annotations

import lzma
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from artifact import strict_json
from artifact.plan import TrialSpec
from artifact.records import Record
from artifact.strict_json import SchemaError, from_plain, to_plain

RECORD_NAME = "record.json"
CODE_FOLDER = "code"
CALIBRATION_NAME = "calibration.json"

RECORD_LIMIT_BYTES = 8 * 1024 * 1024
CODE_LIMIT_BYTES = 32 * 1024 * 1024
CODE_FILE_LIMIT = 64

#: Bounds of a code file when it is decompressed: its text, and the memory xz may ask for.
CODE_TEXT_LIMIT_BYTES = 256 * 1024 * 1024
XZ_MEMORY_LIMIT_BYTES = 128 * 1024 * 1024

_CODE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}\.xz")
_XZ_MAGIC = b"\xfd7zXZ\x00"


class Rejected(Exception):
    """What came out is not what a trial may write; the message says what is wrong."""


@dataclass(frozen=True)
class Collected:
    """A valid record, as the process wrote it, and its generated code (file name -> xz bytes)."""

    record: Record
    code: Mapping[str, bytes]


def collect(out: Path, spec: TrialSpec) -> Collected | None:
    """Read `record.json` and `code/` of one trial; None when the process wrote no record.

    Raises `Rejected` for an unexpected name, a link, a device, a hard link, too large or too many
    files, JSON that is not strict, another schema, or a record of another trial.
    """
    folder = open_folder(out)
    try:
        names = _names(folder)
        if RECORD_NAME not in names:
            return None
        unexpected = sorted(names - {RECORD_NAME, CODE_FOLDER})
        if unexpected:
            raise Rejected(f"unexpected file {unexpected[0]!r} in the output folder")
        record = _parse(read_plain(folder, RECORD_NAME, RECORD_LIMIT_BYTES), spec)
        code = _read_code(folder) if CODE_FOLDER in names else {}
    finally:
        os.close(folder)
    if sorted(code) != sorted(record.code_files):
        raise Rejected(f"record names code files {list(record.code_files)}, found {sorted(code)}")
    return Collected(record, code)


def decompress(data: bytes, limit_bytes: int = CODE_TEXT_LIMIT_BYTES) -> bytes:
    """The content of one xz file of at most `limit_bytes`: a small file may hold a huge text.

    Raises `lzma.LZMAError` when it is larger, damaged, cut off, or followed by something else.
    """
    reader = lzma.LZMADecompressor(format=lzma.FORMAT_XZ, memlimit=XZ_MEMORY_LIMIT_BYTES)
    text = reader.decompress(data, max_length=limit_bytes + 1)
    if len(text) > limit_bytes:
        raise lzma.LZMAError(f"larger than {limit_bytes} bytes when decompressed")
    while not reader.eof and not reader.needs_input:  # nothing but the end of the stream is left
        more = reader.decompress(b"", max_length=1)
        if more:
            raise lzma.LZMAError(f"larger than {limit_bytes} bytes when decompressed")
    if not reader.eof or reader.unused_data:
        raise lzma.LZMAError("not one whole xz stream")
    return text


def collect_calibration(out: Path) -> dict[str, float]:
    """The three medians of one calibration; `Rejected` when they are not there or not numbers."""
    folder = open_folder(out)
    try:
        values = _plain(read_plain(folder, CALIBRATION_NAME, RECORD_LIMIT_BYTES))
    finally:
        os.close(folder)
    wanted = ("compile_ms", "matmul_ms", "memory_ms")
    if not isinstance(values, dict) or sorted(values) != sorted(wanted):
        raise Rejected(f"{CALIBRATION_NAME} does not hold exactly {', '.join(wanted)}")
    for name in wanted:
        if not isinstance(values[name], int | float) or not values[name] > 0:
            raise Rejected(f"{CALIBRATION_NAME}: {name} must be positive, is {values[name]!r}")
    return {name: float(values[name]) for name in wanted}


def open_folder(path: Path | str, parent: int | None = None) -> int:
    """An open handle of a folder, below an open one if given; `Rejected` for a link."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(path, flags, dir_fd=parent)
    except OSError as error:
        raise Rejected(f"{Path(path).name!r} is not a plain folder ({error.strerror})") from error


def _names(folder: int) -> set[str]:
    with os.scandir(folder) as entries:
        return {entry.name for entry in entries}


def open_plain(folder: int, name: str) -> int:
    """An open handle of a plain file with no other name; `Rejected` for links and devices."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        handle = os.open(name, flags, dir_fd=folder)
    except OSError as error:
        raise Rejected(f"{name!r} cannot be read as a plain file ({error.strerror})") from error
    status = os.fstat(handle)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
        os.close(handle)
        raise Rejected(f"{name!r} is not a plain file")
    return handle


def read_plain(folder: int, name: str, limit_bytes: int) -> bytes:
    """The content of a plain file of at most `limit_bytes`."""
    with os.fdopen(open_plain(folder, name), "rb") as stream:
        data = stream.read(limit_bytes + 1)
    if len(data) > limit_bytes:
        raise Rejected(f"{name!r} is larger than {limit_bytes} bytes")
    return data


def _read_code(parent: int) -> dict[str, bytes]:
    folder = open_folder(CODE_FOLDER, parent)
    try:
        names = sorted(_names(folder))
        if len(names) > CODE_FILE_LIMIT:
            raise Rejected(f"{len(names)} code files, at most {CODE_FILE_LIMIT} are allowed")
        for name in names:
            if not _CODE_NAME.fullmatch(name):
                raise Rejected(f"unexpected file {name!r} among the code files")
        code = {name: read_plain(folder, name, CODE_LIMIT_BYTES) for name in names}
    finally:
        os.close(folder)
    for name, data in code.items():
        if not data.startswith(_XZ_MAGIC):
            raise Rejected(f"{name!r} is not an xz file")
    return code


def _plain(data: bytes) -> Any:
    try:
        return strict_json.loads(data.decode("utf-8"))
    except (SchemaError, UnicodeDecodeError, RecursionError) as error:
        raise Rejected(f"the file is not strict JSON: {error}") from error


def _parse(data: bytes, spec: TrialSpec) -> Record:
    plain = _plain(data)
    try:
        record = from_plain(Record, plain, "record")
    except (SchemaError, RecursionError, OverflowError) as error:
        raise Rejected(f"{RECORD_NAME} is not a valid record: {error}") from error
    if to_plain(record.spec) != to_plain(spec):
        raise Rejected(f"{RECORD_NAME} is of another trial ({record.spec.record_id})")
    return record
