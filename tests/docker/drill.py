"""Real containers without a compiler stack: a tiny image, and trials that a shell line acts out.

Run as a program it is a whole campaign in a process of its own, for drills that kill it:
`python -m tests.docker.drill DIRECTORY OWNER LOCK [--resume]`.
"""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from docker.client import DockerClient

from artifact.errors import UserError
from artifact.host.campaign import Interrupted, Summary, run_campaign
from artifact.host.engines import Outcome, Request
from artifact.host.engines.docker import DockerEngine
from artifact.host.engines.fake import fake_record
from artifact.host.lock import LOCK_PATH
from artifact.host.progress import PlainReporter
from artifact.plan import TrialSpec
from artifact.strict_json import from_plain, read, write_atomic
from artifact.trial.identity import code_hash
from tests.host.toy import toy_plan, toy_study

TINY = "gaps-drill:tiny"
PROGRAMS = ("sh", "sleep", "cp", "mkdir", "tail", "ln", "dd")

#: What a container does in place of a trial; the default writes the record it was given.
OK = "sleep 0.3; mkdir /out/code && cp /in/program.xz /out/code/ && cp /in/record.json /out/"
HANG = "sleep 600"
OUT_OF_MEMORY = "tail /dev/zero"  # keeps its whole input in memory, looking for a line end
FORKS = "f() { f | f & f; }; f; sleep 600"


def tiny_image(client: Any) -> str:
    """The id of an image with a shell and a few programs of this machine, made if absent."""
    names = {image.id for image in client.images.list(name=TINY)}
    if not names:
        repository, tag = TINY.split(":")
        client.api.import_image_from_data(_root_file_system(), repository=repository, tag=tag)
        names = {image.id for image in client.images.list(name=TINY)}
    return str(names.pop())


def _root_file_system() -> bytes:
    """A tar with the programs and the libraries that they name, at the same places as here."""
    files: set[str] = set()
    for program in PROGRAMS:
        path = shutil.which(program)
        assert path is not None
        listed = subprocess.run(["ldd", path], capture_output=True, text=True, check=True).stdout
        files |= {word for word in listed.split() if word.startswith("/")}
        files.add(f"{path}\0/bin/{program}")
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", dereference=True) as archive:
        for item in sorted(files):
            source, _, target = item.partition("\0")
            archive.add(Path(source).resolve(), arcname=target or source)
    return buffer.getvalue()


class DrillEngine(DockerEngine):
    """The docker engine on the tiny image; `script` maps a configuration to its attempts' lines."""

    def __init__(
        self, owner: str, script: Mapping[str, tuple[str, ...]] | None = None, **more: Any
    ) -> None:
        client = more.pop("client", None) or DockerClient.from_env(timeout=60)
        identity = SimpleNamespace(
            id=tiny_image(client), lock_hash="drill", code_hash=code_hash(), tag=TINY
        )
        super().__init__(client=client, image_for=lambda stack: identity, owner=owner, **more)
        self.script = dict(script or {})
        self.line = OK
        self.before_start: Callable[[], None] = lambda: None

    def run(self, request: Request, deadline_s: float) -> Outcome:
        """Put the record that the container shall write beside its trial, then run it."""
        spec = from_plain(TrialSpec, read(request.inputs / "trial.json"), "trial")
        write_atomic(request.inputs / "record.json", fake_record(spec, "ok"))
        (request.inputs / "program.xz").write_bytes(b"\xfd7zXZ\x00")
        lines = self.script.get(spec.configuration, (OK,))
        self.line = lines[min(spec.attempt, len(lines)) - 1]
        self.before_start()
        return super().run(request, deadline_s)

    def _settings(self, request: Request, user: str) -> dict[str, Any]:
        made = super()._settings(request, user)
        return made | {"entrypoint": ["/bin/sh", "-c"], "command": [self.line]}


def campaign(directory: Path, engine: DockerEngine, lock: Path, *, resume: bool = False) -> Summary:
    """The toy campaign, 15 measured trials, without calibrations."""
    return run_campaign(
        toy_plan(),
        directory,
        engine,
        study=toy_study(),
        resume=resume,
        progress=PlainReporter(),
        calibrate=False,
        lock_path=lock,
    )


def main(arguments: list[str]) -> int:
    """A campaign in this process; its exit code is the program's."""
    directory, owner, lock = arguments[:3]
    try:
        campaign(Path(directory), DrillEngine(owner), Path(lock), resume="--resume" in arguments)
    except (Interrupted, UserError) as stop:
        print(stop, file=sys.stderr)
        return stop.exit_code
    return 0


if __name__ == "__main__":
    assert sys.argv[3] != str(LOCK_PATH)  # the test that starts us holds that one
    sys.exit(main(sys.argv[1:]))
