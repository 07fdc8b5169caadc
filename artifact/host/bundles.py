"""Reference bundles on the host: which ones a plan needs, and making those that are missing.

A bundle is made by `artifact bundle` inside the inductor image (or venv), outside any timing, and
lives in `results/.bundles/<model>-s<seed>-<models hash>/`. The folder is shared by campaigns. The
process writes into a private folder; the host checks what came out and moves it into place, so
that no process ever writes into a bundle that trials read.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from artifact.errors import UserError
from artifact.host.campaign import TOOLS_STACK, tool_environment
from artifact.host.collect import Rejected, open_folder, open_plain, read_plain
from artifact.host.engines import Engine, Limits, Request
from artifact.host.store import disk_errors
from artifact.models.manifest import MANIFEST_NAME, FileEntry, Manifest
from artifact.models.spec import bundle_key, models_hash
from artifact.plan import Plan
from artifact.strict_json import SchemaError, from_plain, loads, read, write_atomic
from artifact.study import Study

FOLDER = ".bundles"
DEADLINE_S = 1800
MEMORY_MIB = 16384
MANIFEST_LIMIT_BYTES = 8 * 1024 * 1024

#: Folders beside the bundles that exist only while one is made. The last pattern is where earlier
#: versions let the bundle's own writer work.
WORK, OLD = ".work-", ".old-"
_LEFTOVER = re.compile(r"\.(work-|old-|.+-s\d+-[0-9a-f]{12}-)")
_FILE_PATH = re.compile(r"((inputs|reference)/)?[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}\.safetensors")


@dataclass(frozen=True)
class Need:
    """One bundle that a plan reads, and the inputs it must hold."""

    model: str
    key: str
    inputs: tuple[str, ...]


def keys(study: Study) -> dict[str, str]:
    """Bundle key of every model of the study, for this checkout's models/."""
    digest = models_hash()
    return {model: bundle_key(model, study.seed, digest) for model in study.models}


def needs(plan: Plan) -> list[Need]:
    """The bundles that a plan's trials read, in name order."""
    inputs: dict[tuple[str, str], set[str]] = {}
    for spec in plan.trials():
        inputs.setdefault((spec.model, spec.bundle), set()).add(spec.input)
    return [
        Need(model, key, tuple(sorted(found))) for (model, key), found in sorted(inputs.items())
    ]


def missing(need: Need, folder: Path) -> tuple[str, ...]:
    """Inputs that the bundle on disk does not hold (all of them when it is absent or broken).

    Broken means here: no manifest, or a file that is gone or of another size. Trials compare
    checksums as well.
    """
    manifest = _whole(folder / need.key)
    if manifest is None:
        return need.inputs
    return tuple(name for name in need.inputs if name not in manifest.inputs)


def _whole(bundle: Path) -> Manifest | None:
    """The manifest of a bundle whose files all have the size that it names, else None."""
    try:
        manifest = from_plain(Manifest, read(bundle / MANIFEST_NAME), "bundle")
        for entry in _files(manifest):
            status = (bundle / entry.path).lstat()
            if not stat.S_ISREG(status.st_mode) or status.st_size != entry.size_bytes:
                return None
    except (OSError, SchemaError):
        return None
    return manifest


def _files(manifest: Manifest) -> list[FileEntry]:
    """Every file that a manifest names."""
    entries = [manifest.weights]
    for each in manifest.inputs.values():
        entries += [each.inputs, each.reference]
    return entries


def ensure(
    plan: Plan, folder: Path, *, cpus: int, say: Callable[[str], None]
) -> Callable[[Engine], Path]:
    """A function that makes the plan's missing bundles with an engine and returns their folder.

    It must run under the campaign lock: what a killed session left behind is removed first.
    """

    def run(engine: Engine) -> Path:
        with disk_errors(str(folder)):
            folder.mkdir(parents=True, exist_ok=True)
            _remove_leftovers(folder)
        for need in needs(plan):
            absent = missing(need, folder)
            if absent:
                say(f"reference bundle of {need.model}: {', '.join(absent)}")
                _make(engine, need, folder, cpus)
                still = missing(need, folder)
                if still:
                    raise UserError(f"the bundle of {need.model} still lacks {', '.join(still)}")
        return folder

    return run


def _remove_leftovers(folder: Path) -> None:
    """Remove what was half made when its session was killed; put back a bundle half replaced."""
    for path in folder.iterdir():
        if path.is_symlink() or not path.is_dir() or not _LEFTOVER.match(path.name):
            continue
        kept = folder / path.name.removeprefix(OLD)
        if path.name.startswith(OLD) and not kept.exists():
            path.rename(kept)
        else:
            shutil.rmtree(path, ignore_errors=True)


def _make(engine: Engine, need: Need, folder: Path, cpus: int) -> None:
    """Make one bundle, or add inputs to a whole one, and put it in place."""
    work = folder / f"{WORK}{need.model}"
    try:
        with disk_errors(str(work)):
            shutil.rmtree(work, ignore_errors=True)
            (work / "in").mkdir(parents=True)
            (work / "in").chmod(0o755)  # whatever the umask: it may be read by another uid
            (work / "out").mkdir()
            _copy_whole(folder / need.key, work / "out" / need.key)
        _run(engine, need, work, cpus)
        with disk_errors(str(folder / need.key)):
            checked = _checked(work / "out" / need.key, work / "checked")
            _replace(folder / need.key, checked)
    except Rejected as error:
        raise UserError(f"the bundle made of {need.model} cannot be used: {error}") from error
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _copy_whole(bundle: Path, target: Path) -> None:
    """A copy of a whole bundle to add inputs to; nothing where there is none."""
    manifest = _whole(bundle)
    if manifest is None:
        return
    for name in (MANIFEST_NAME, *(entry.path for entry in _files(manifest))):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(bundle / name, target / name, follow_symlinks=False)


def _run(engine: Engine, need: Need, work: Path, cpus: int) -> None:
    out = work / "out"
    layout = engine.layout(work, out, None)
    request = Request(
        campaign="bundles",
        request_id=f"bundle.{need.model}",
        stack=TOOLS_STACK,
        arguments=(
            "bundle",
            *("--model", need.model),
            *("--out", str(layout.out)),
            *("--input", ",".join(need.inputs)),
        ),
        environment=tool_environment(layout.scratch, str(cpus or 1)),
        layout=layout,
        work=work,
        out=out,
        bundle=None,
        device="cpu",
        limits=Limits(cpus=cpus, memory_mib=MEMORY_MIB),
    )
    outcome = engine.run(request, DEADLINE_S)
    if outcome.exit_code != 0:
        last = (outcome.log_tail.strip().splitlines() or ["no message"])[-1]
        why = "ran out of memory" if outcome.oom else outcome.fault or last
        raise UserError(
            f"making the reference bundle of {need.model} failed: {why}",
            next_step="mend it and run again with --resume",
        )


def _checked(made: Path, target: Path) -> Path:
    """Move what a process made to `target`: the plain files that its manifest names, no others.

    Raises `Rejected` for anything but plain files of the named sizes and checksums.
    """
    folder = open_folder(made)
    try:
        manifest = _made_manifest(folder)
        for place in ("inputs", "reference"):
            (target / place).mkdir(parents=True)
            (target / place).chmod(0o755)  # containers read it under another uid
        target.chmod(0o755)
        for entry in _files(manifest):
            _move(folder, entry, target)
        write_atomic(target / MANIFEST_NAME, manifest)
    finally:
        os.close(folder)
    return target


def _made_manifest(folder: int) -> Manifest:
    data = read_plain(folder, MANIFEST_NAME, MANIFEST_LIMIT_BYTES)
    try:
        manifest = from_plain(Manifest, loads(data.decode("utf-8")), "bundle")
    except (SchemaError, UnicodeDecodeError, RecursionError) as error:
        raise Rejected(f"{MANIFEST_NAME} is broken: {error}") from error
    for entry in _files(manifest):
        if not _FILE_PATH.fullmatch(entry.path):
            raise Rejected(f"{MANIFEST_NAME} names the file {entry.path!r}")
    return manifest


def _move(folder: int, entry: FileEntry, target: Path) -> None:
    """Check one file by its open handle, make it the caller's, and move it."""
    place, _, name = entry.path.rpartition("/")
    parent = open_folder(place or ".", folder)
    try:
        handle = open_plain(parent, name)
        with os.fdopen(handle, "rb") as stream:
            if os.fstat(handle).st_size != entry.size_bytes:
                raise Rejected(f"{entry.path!r} is not {entry.size_bytes} bytes long")
            if hashlib.file_digest(stream, "sha256").hexdigest() != entry.sha256:
                raise Rejected(f"{entry.path!r} has another checksum than its manifest says")
            if os.fstat(handle).st_uid != os.getuid():
                os.fchown(handle, os.getuid(), os.getgid())
            os.fchmod(handle, 0o644)
        os.rename(name, target / entry.path, src_dir_fd=parent)
    finally:
        os.close(parent)


def _replace(target: Path, made: Path) -> None:
    """Put the new bundle in the place of the old one; a kill in between is put right later."""
    old = target.with_name(f"{OLD}{target.name}")
    if target.exists():
        target.rename(old)
    made.rename(target)
    shutil.rmtree(old, ignore_errors=True)
