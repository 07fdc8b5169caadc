"""Reference bundles on the host: made in a private folder, checked, moved, made again."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from artifact.errors import UserError
from artifact.host import bundles
from artifact.host.engines import Outcome, Request
from artifact.host.engines.docker import DockerEngine
from artifact.host.engines.fake import FakeEngine
from artifact.models.manifest import (
    BUNDLE_SCHEMA,
    MANIFEST_NAME,
    FileEntry,
    InputEntry,
    Manifest,
)
from artifact.plan import Plan, make_plan
from artifact.strict_json import from_plain, read, write_atomic
from tests.host.docker_stub import StubClient, StubContainer, image
from tests.host.toy import toy_study

SHAPE = "1x3x8x8"
KEY = "m1-s7-0123456789ab"


def one_model_plan(shapes: tuple[str, ...] = (SHAPE,)) -> Plan:
    """A plan that reads one bundle, with these inputs."""
    plan = make_plan(toy_study(), "toy", bundles={"m1": KEY}, cells=[("m1", SHAPE, "a")])
    specs = [replace(next(iter(plan.trials())), input=shape) for shape in shapes]
    return replace(plan, blocks=(replace(plan.blocks[0], trials=tuple(specs)),))


def store(folder: Path, relative: str, data: bytes) -> FileEntry:
    path = folder / relative
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return FileEntry(relative, hashlib.sha256(data).hexdigest(), len(data))


def write(folder: Path, inputs: list[str], weights: bytes = b"weights") -> None:
    """A bundle without tensors: the host only looks at names, sizes and checksums.

    Like the real writer it adds to a bundle that is there already.
    """
    entries: dict[str, InputEntry] = {}
    if (folder / MANIFEST_NAME).exists():
        entries |= from_plain(Manifest, read(folder / MANIFEST_NAME), "bundle").inputs
        assert (folder / "weights.safetensors").read_bytes() == weights
    for name in inputs:
        if name not in entries:
            made = store(folder, f"inputs/{name}.safetensors", f"in {name}".encode())
            output = store(folder, f"reference/{name}.safetensors", f"out {name}".encode())
            entries[name] = InputEntry(made, "", ((1,),), output, (1,), 1.0, 1.0, {"fp32": 0.0})
    kept = store(folder, "weights.safetensors", weights)
    manifest = Manifest(BUNDLE_SCHEMA, "m1", "resnet18", {}, 7, "", kept, "", {}, entries, {})
    write_atomic(folder / MANIFEST_NAME, manifest)


class Maker(FakeEngine):
    """Acts out `artifact bundle`; `spoil` gets the folder that it made."""

    def __init__(self) -> None:
        super().__init__()
        self.spoil: Callable[[Path], None] = lambda made: None

    def run(self, request: Request, deadline_s: float) -> Outcome:
        outcome = super().run(request, deadline_s)
        given = dict(zip(request.arguments[1::2], request.arguments[2::2], strict=True))
        assert request.arguments[0] == "bundle"
        made = Path(given["--out"]) / KEY
        write(made, given["--input"].split(","))
        self.spoil(made)
        return outcome


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "results" / ".bundles"


def ensure(engine: Any, folder: Path, shapes: tuple[str, ...] = (SHAPE,)) -> None:
    bundles.ensure(one_model_plan(shapes), folder, cpus=1, say=lambda text: None)(engine)


def held(folder: Path) -> list[str]:
    return sorted(from_plain(Manifest, read(folder / KEY / MANIFEST_NAME), "bundle").inputs)


def test_a_bundle_is_made_once_in_a_folder_of_its_own(folder: Path) -> None:
    engine = Maker()
    ensure(engine, folder)
    ensure(engine, folder)
    (request,) = engine.requests
    assert folder not in (request.out, request.out.parent)  # no process writes beside bundles
    assert request.bundle is None
    assert [path.name for path in folder.iterdir()] == [KEY]
    assert held(folder) == [SHAPE]
    assert (folder / KEY / f"inputs/{SHAPE}.safetensors").read_bytes() == f"in {SHAPE}".encode()


def test_inputs_are_added_to_a_whole_bundle(folder: Path) -> None:
    engine = Maker()
    ensure(engine, folder)
    kept = (folder / KEY / f"inputs/{SHAPE}.safetensors").read_bytes()
    ensure(engine, folder, ("2x3x8x8",))
    assert held(folder) == [SHAPE, "2x3x8x8"]
    assert (folder / KEY / f"inputs/{SHAPE}.safetensors").read_bytes() == kept
    assert len(engine.requests) == 2


@pytest.mark.parametrize(
    "damage", ["weights.safetensors", f"inputs/{SHAPE}.safetensors", "gone", "linked", "manifest"]
)
def test_a_broken_bundle_is_made_again(folder: Path, damage: str) -> None:
    engine = Maker()
    ensure(engine, folder)
    need = bundles.needs(one_model_plan())[0]
    assert bundles.missing(need, folder) == ()
    victim = folder / KEY / f"reference/{SHAPE}.safetensors"
    if damage == "gone":
        victim.unlink()
    elif damage == "linked":
        name = "../elsewher"  # as long as the file, so that its size does not tell
        assert len(name) == victim.stat().st_size
        victim.rename(victim.parent / name)
        victim.symlink_to(name)
    elif damage == "manifest":
        (folder / KEY / MANIFEST_NAME).write_text("{")
    else:
        os.truncate(folder / KEY / damage, 3)
    assert bundles.missing(need, folder) == (SHAPE,)
    ensure(engine, folder)
    assert bundles.missing(need, folder) == ()
    assert len(engine.requests) == 2
    assert victim.read_bytes() == f"out {SHAPE}".encode()


def test_what_a_killed_session_left_is_removed_and_nothing_else(folder: Path) -> None:
    engine = Maker()
    ensure(engine, folder)
    for name in (".work-m1", f".{KEY}-x1y2", ".mine", "other-s7-0123456789ab"):
        (folder / name / "in").mkdir(parents=True)
    (folder / ".old-m2-s7-0123456789ab").mkdir()  # killed between the two renames
    ensure(engine, folder)
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        [KEY, ".mine", "other-s7-0123456789ab", "m2-s7-0123456789ab"]
    )


def _link(made: Path) -> None:
    path = made / "weights.safetensors"
    path.rename(made.parent / "elsewhere")
    path.symlink_to("../elsewhere")


def _hard_link(made: Path) -> None:
    os.link(made / "weights.safetensors", made.parent / "second")


def _linked_folder(made: Path) -> None:
    (made / "inputs").rename(made.parent / "elsewhere")
    (made / "inputs").symlink_to("../elsewhere")


def _linked_bundle(made: Path) -> None:
    made.rename(made.parent / "elsewhere")
    made.symlink_to("elsewhere")


def _linked_manifest(made: Path) -> None:
    (made / MANIFEST_NAME).rename(made.parent / "elsewhere")
    (made / MANIFEST_NAME).symlink_to("../elsewhere")


def _changed(made: Path) -> None:
    (made / "weights.safetensors").write_bytes(b"WEIGHTS")


def _grown(made: Path) -> None:
    (made / "weights.safetensors").write_bytes(b"weights, more of them")


def _outside(made: Path) -> None:
    (made / "weights.safetensors").rename(made.parent / "x.safetensors")
    text = (made / MANIFEST_NAME).read_text()
    (made / MANIFEST_NAME).write_text(text.replace("weights.safe", "../x.safe"))


def _no_manifest(made: Path) -> None:
    (made / MANIFEST_NAME).unlink()


SPOILS = (
    _link, _hard_link, _linked_folder, _linked_bundle, _linked_manifest, _changed, _grown,
    _outside, _no_manifest,
)  # fmt: skip


@pytest.mark.parametrize("spoil", SPOILS, ids=lambda spoil: spoil.__name__)
def test_only_plain_files_that_are_what_they_say_are_taken(
    folder: Path, spoil: Callable[[Path], None]
) -> None:
    engine = Maker()
    ensure(engine, folder)
    before = {path: path.read_bytes() for path in (folder / KEY).rglob("*") if path.is_file()}
    engine.spoil = spoil
    with pytest.raises(UserError, match="cannot be used") as caught:
        ensure(engine, folder, ("2x3x8x8",))
    assert len(str(caught.value).splitlines()) == 1
    after = {path: path.read_bytes() for path in (folder / KEY).rglob("*") if path.is_file()}
    assert after == before
    assert [path.name for path in folder.iterdir()] == [KEY]


def test_files_nobody_named_stay_out(folder: Path) -> None:
    engine = Maker()
    engine.spoil = lambda made: (made / "evil.so").write_bytes(b"x") and None
    ensure(engine, folder)
    names = {p.relative_to(folder / KEY).as_posix() for p in (folder / KEY).rglob("*")}
    assert "evil.so" not in names
    assert "weights.safetensors" in names


def test_a_bundle_is_readable_for_other_users_whatever_the_umask(folder: Path) -> None:
    modes: dict[str, int] = {}
    engine = Maker()
    engine.on_run = lambda request: modes.update(inputs=request.inputs.stat().st_mode & 0o777)
    before = os.umask(0o077)
    try:
        ensure(engine, folder)
    finally:
        os.umask(before)
    assert modes == {"inputs": 0o755}
    for path in (folder / KEY, *(folder / KEY).rglob("*")):
        assert path.stat().st_mode & 0o777 == (0o755 if path.is_dir() else 0o644), path


@pytest.mark.skipif(os.getuid() != 0, reason="giving files away needs root")
def test_files_of_a_containers_uid_become_the_callers(folder: Path) -> None:
    """Case D6, for root: the container's uid owns its own folder only, and only for a while."""
    owners: dict[str, set[int]] = {}
    client = StubClient()
    engine = DockerEngine(client=client, image_for=image)

    def container(made: StubContainer) -> int:
        out = next(Path(m["Source"]) for m in made.settings["mounts"] if m["Target"] == "/out")
        owners["shared"] = {folder.stat().st_uid}
        owners["private"] = {path.stat().st_uid for path in (out, *out.rglob("*"))}
        write(out / KEY, made.settings["command"][-1].split(","))
        for path in (out, *out.rglob("*")):
            os.chown(path, 10001, 10001)
        return 0

    client.answers = [container, container]
    ensure(engine, folder)
    ensure(engine, folder, ("2x3x8x8",))  # a copy of the bundle lies in the private folder
    assert held(folder) == [SHAPE, "2x3x8x8"]
    assert owners == {"shared": {0}, "private": {10001}}
    assert {path.lstat().st_uid for path in (folder, *folder.rglob("*"))} == {0}


def test_for_a_normal_caller_nothing_is_given_away(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case D6."""
    monkeypatch.setattr("artifact.host.engines.docker.os.getuid", lambda: 1234)
    given = []
    monkeypatch.setattr("artifact.host.engines.docker.os.chown", lambda *a, **_: given.append(a))
    client = StubClient()
    users = []

    def container(made: StubContainer) -> int:
        users.append(made.settings["user"])
        out = next(Path(m["Source"]) for m in made.settings["mounts"] if m["Target"] == "/out")
        write(out / KEY, [SHAPE])
        return 0

    client.answers = [container]
    monkeypatch.setattr("artifact.host.bundles.os.fchown", lambda *a: None)
    ensure(DockerEngine(client=client, image_for=image), folder)
    assert users == [f"1234:{os.getgid()}"]
    assert given == []


def test_a_failed_process_is_one_line_and_leaves_no_folder(folder: Path) -> None:
    engine = Maker()
    run = engine.run
    engine.run = lambda request, deadline_s: replace(  # type: ignore[method-assign]
        run(request, deadline_s), exit_code=1, log_tail="first\nlast words"
    )
    with pytest.raises(UserError, match=r"m1 failed: last words; .*--resume"):
        ensure(engine, folder)
    assert list(folder.iterdir()) == []
