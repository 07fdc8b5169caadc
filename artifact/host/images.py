"""Images of the stacks: what they should be, building those that are missing, finding them.

An image's tag and labels hold the hashes of its locks, of the measuring code and of its Dockerfile;
they tell whether it is up to date. Looking images up goes through the SDK, like the trials. Builds
go through a docker command that can do BuildKit (secrets, cache mounts), since the SDK speaks to
the old builder only; such a command is looked for only when an image is missing.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import artifact
from artifact.errors import UserError
from artifact.host.build_settings import proxy_arguments, write_secrets
from artifact.host.locks import CHECKOUT, STACKS, hash_files, lock_hash

REPOSITORY = "gaps-artifact"
LOCAL_BASE = "gaps-base:bookworm"
PULL_TIMEOUT_S = 60
PROBE_TIMEOUT_S = 60
API_TIMEOUT_S = 60

#: What Docker's message of a failed pull says, and what is wrong then; the first that fits counts.
PULL_CAUSES = (
    ("no such host|name resolution", "no such host"),
    ("deadline exceeded|timeout|timed out", "no answer in time"),
    ("x509|certificate", "the registry's certificate is not trusted"),
    ("toomanyrequests|rate limit", "the registry's rate limit is reached"),
    ("denied|unauthorized|authentication", "access denied"),
    ("manifest unknown|not found", "the registry does not have it"),
    ("connection refused", "connection refused"),
    ("network is unreachable|no route to host", "no network"),
    ("no space left", "no space left on the engine's disk"),
)

Say = Callable[[str], None]


class ImageError(UserError):
    """An image cannot be found, made or used."""


class ImageMissing(ImageError):
    """No image with the hashes of this checkout."""


class NoBuilder(ImageError):
    """No docker command line here can do BuildKit builds."""


class TwoEngines(ImageError):
    """The docker command and the SDK talk to different engines."""


class BuildFailed(ImageError):
    """A build ended with an error; the message names its log."""


@dataclass(frozen=True)
class ImageInfo:
    """One built image. `id` is Docker's content id; `lock_hash` and `code_hash` are its labels."""

    stack: str
    tag: str
    id: str
    lock_hash: str
    code_hash: str
    base_name: str
    base_id: str
    size_bytes: int


@dataclass(frozen=True)
class Base:
    """The image that the stacks build on: its name as given to the build, and its local id."""

    name: str
    id: str


@dataclass(frozen=True)
class Built:
    """An image and the seconds its build took; None where it was up to date already."""

    image: ImageInfo
    duration_s: float | None


@dataclass(frozen=True)
class Recipe:
    """What an up-to-date image is made from: hashes of locks, measuring code and Dockerfile."""

    stack: str
    lock_hash: str
    code_hash: str
    recipe_hash: str
    #: Target of the Dockerfile: empty for the image of trials, "test" for the one with pytest.
    target: str = ""

    @property
    def tag(self) -> str:
        """`gaps-artifact/<stack>:<lock hash>-<code hash>`, twelve digits each."""
        name = f"{self.stack}-{self.target}" if self.target else self.stack
        return f"{REPOSITORY}/{name}:{self.lock_hash[:12]}-{self.code_hash[:12]}"

    @property
    def labels(self) -> dict[str, str]:
        """The labels an up-to-date image carries."""
        return {
            "gaps.stack": self.stack,
            "gaps.lock-hash": self.lock_hash,
            "gaps.code-hash": self.code_hash,
            "gaps.recipe-hash": self.recipe_hash,
        }


def recipe(
    stack: str, accelerator: str = "cpu", root: Path = CHECKOUT, *, target: str = ""
) -> Recipe:
    """What the image of `stack` should be, from the files of the checkout `root`.

    The recipe hash covers what makes the image besides locks and measuring code. `cli.py` is left
    out: nearly all of it is the host's, and a new option there is no reason for a new image.
    """
    from artifact.trial.identity import code_hash

    package = [*(root / "artifact").glob("*.py"), root / "artifact" / "study.toml"]
    files = [root / "docker" / stack / "Dockerfile", root / "docker" / "entry" / "artifact"]
    files += [root / "docker" / "test" / "requirements.lock"] if target == "test" else []
    files += sorted(path for path in package if path.name != "cli.py")
    return Recipe(
        stack=stack,
        lock_hash=lock_hash(stack, accelerator, root),
        code_hash=code_hash(root / "artifact"),
        recipe_hash=hash_files(files, root),
        target=target,
    )


def image_for(
    stack: str, accelerator: str = "cpu", *, root: Path = CHECKOUT, client: Any = None
) -> ImageInfo:
    """The image of `stack` that fits this checkout; `client` is a `docker.DockerClient`.

    Raises `ImageMissing` where there is none, or only one that an older Dockerfile made, and
    `ImageError` where no engine answers.
    """
    wanted = recipe(stack, accelerator, root)
    found = _current(connect() if client is None else client, wanted)
    if found is None:
        raise _missing(wanted)
    return found


def connect(environment: Mapping[str, str] = os.environ) -> Any:
    """A `docker.DockerClient` of the engine that the trials use.

    Raises `ImageError` where none answers.
    """
    from docker.client import DockerClient
    from docker.errors import DockerException

    try:
        return DockerClient.from_env(timeout=API_TIMEOUT_S, environment=dict(environment))
    except (DockerException, OSError) as error:
        raise _no_engine(error) from error


def build(
    stacks: Sequence[str] = STACKS,
    accelerator: str = "cpu",
    docker_cli: str | None = None,
    base_image: str | None = None,
    *,
    log_directory: Path,
    target: str = "",
    root: Path = CHECKOUT,
    environment: Mapping[str, str] = os.environ,
    say: Say = print,
    client: Any = None,
) -> list[Built]:
    """Build the images of `stacks` that are missing or stale; print time and size of each.

    `docker_cli` names the command to build with, else `$DOCKER`, else the first on PATH that can do
    BuildKit. `base_image` replaces the pinned base. Logs go to `log_directory/build-<stack>.log`.
    `target="test"` builds the images that hold pytest besides the stack. `client` is a
    `docker.DockerClient`. Raises `NoBuilder`, `TwoEngines` and `BuildFailed`.
    """
    engine = connect(environment) if client is None else client
    cli = ""
    wanted: list[Recipe] = []
    durations: dict[str, float] = {}
    settings: list[str] = []
    base: Base | None = None
    with tempfile.TemporaryDirectory(prefix="gaps-build-") as secrets:
        for stack in stacks:
            # Hashed just before its build: an edit during the build before is labelled right.
            one = recipe(stack, accelerator, root, target=target)
            wanted.append(one)
            if _current(engine, one) is not None:
                continue
            if base is None:
                cli = find_builder(docker_cli, environment)
                require_same_engine(cli, engine, environment)
                base = choose_base(cli, base_image, root, environment, say)
                say(f"base: {base.name} ({base.id})")
                settings = write_secrets(Path(secrets), environment, say)
                settings += proxy_arguments(environment)
                log_directory.mkdir(parents=True, exist_ok=True)
            arguments = build_arguments(one, base, accelerator, root) + settings
            log = log_directory / f"build-{stack}.log"
            durations[stack] = _run_build(cli, one, arguments, root, log, environment)
    return _report(engine, wanted, durations, say)


def sizes_bytes(
    stacks: Sequence[str] = STACKS, accelerator: str = "cpu", root: Path = CHECKOUT
) -> tuple[dict[str, int], int]:
    """Size of each stack's image, and of all together with shared layers once.

    Raises `ImageMissing` where one has not been built.
    """
    engine = connect()
    images = [image_for(stack, accelerator, root=root, client=engine) for stack in stacks]
    total = unique_size_bytes(_history(engine, image.id) for image in images)
    return {image.stack: image.size_bytes for image in images}, total


def find_builder(docker_cli: str | None, environment: Mapping[str, str] = os.environ) -> str:
    """The docker command that can do BuildKit builds; raises `NoBuilder` with all reasons.

    Two can be on PATH: a new one without its buildx plug-in fails where an older one, with BuildKit
    inside, works. So each candidate is tried on an empty image instead of being asked its version.
    """
    named = docker_cli or environment.get("DOCKER")
    candidates = [named] if named else _on_path("docker", environment.get("PATH", os.defpath))
    if not candidates:
        raise NoBuilder(
            "no docker command on PATH", next_step="install it: apt-get install docker.io"
        )
    reasons = []
    for candidate in candidates:
        reason = _probe(candidate, environment)
        if reason is None:
            return candidate
        reasons.append(f"{candidate}: {reason}")
    raise NoBuilder(
        "no docker command here can build with BuildKit (" + "; ".join(reasons) + ")",
        next_step="start the engine, install docker-buildx, or set DOCKER to another command",
    )


def require_same_engine(cli: str, client: Any, environment: Mapping[str, str] = os.environ) -> None:
    """Raise `TwoEngines` where the command `cli` and the SDK's `client` talk to different engines.

    The command follows a docker context, which the SDK does not know of.
    """
    ours = client.info()
    answer = subprocess.run(
        [cli, "info", "--format", "{{.ID}} {{.Name}}"],
        env=dict(environment),
        capture_output=True,
        text=True,
        timeout=PROBE_TIMEOUT_S,
    )
    theirs, _, name = answer.stdout.strip().partition(" ")
    if answer.returncode != 0 or not theirs:
        raise ImageError(f"{cli} info failed: {_last_line(answer.stderr)}")
    if theirs != ours["ID"]:
        raise TwoEngines(
            f"{cli} builds in the engine {name} ({theirs}), but trials run in the engine "
            f"{ours.get('Name', '')} ({ours['ID']})",
            next_step="set DOCKER_HOST to one of them, or run `docker context use default`",
        )


def choose_base(
    cli: str,
    base_image: str | None,
    root: Path,
    environment: Mapping[str, str] = os.environ,
    say: Say = print,
) -> Base:
    """The base to build on: the one asked for, else the pinned one, else one made on this machine.

    A pull that fails, or takes longer than PULL_TIMEOUT_S, is reported in one line.
    Raises `ImageError` where an image that was asked for cannot be had, or none can be made.
    """
    name = base_image or pinned_base(root)
    reason = None if _image_id(cli, name) else _pull(cli, name, environment)
    if reason is None:
        return Base(name, _image_id(cli, name))
    if base_image:
        raise ImageError(
            f"cannot pull {name}: {reason}", next_step="name a base image that is here"
        )
    say(f"cannot pull the pinned base ({reason}): using {LOCAL_BASE}, made from Debian's archive")
    script = root / "docker" / "base" / "make-base.sh"
    made = subprocess.run(
        ["sh", str(script), LOCAL_BASE],
        env={**environment, "DOCKER": cli},
        capture_output=True,
        text=True,
    )
    if made.returncode != 0:
        raise ImageError(f"no base image: {_last_line(made.stderr)}")
    return Base(LOCAL_BASE, _image_id(cli, LOCAL_BASE))


def pinned_base(root: Path = CHECKOUT) -> str:
    """The digest-pinned default of BASE_IMAGE, which all Dockerfiles share."""
    names = set()
    for stack in STACKS:
        text = (root / "docker" / stack / "Dockerfile").read_text(encoding="utf-8")
        names |= {
            line.removeprefix("ARG BASE_IMAGE=")
            for line in text.splitlines()
            if line.startswith("ARG BASE_IMAGE=")
        }
    if len(names) != 1:
        raise ImageError(f"the Dockerfiles name {len(names)} bases instead of one")
    return names.pop()


def build_arguments(one: Recipe, base: Base, accelerator: str, root: Path) -> list[str]:
    """Arguments of `docker build` for one image, without secrets, proxies and context."""
    dockerfile = root / "docker" / one.stack / "Dockerfile"
    arguments = ["--file", str(dockerfile), "--tag", one.tag, "--network=host", "--progress=plain"]
    arguments += ["--target", one.target] if one.target else []
    arguments += ["--build-arg", f"BASE_IMAGE={base.name}"]
    arguments += ["--build-arg", f"ACCELERATOR={accelerator}"] if one.stack == "xla" else []
    labels = one.labels | {
        "org.opencontainers.image.version": artifact.__version__,
        "org.opencontainers.image.base.name": base.name,
        "org.opencontainers.image.base.digest": base.id,
    }
    for name, value in labels.items():
        arguments += ["--label", f"{name}={value}"]
    return arguments


def unique_size_bytes(histories: Iterable[Sequence[tuple[str, int]]]) -> int:
    """Disk that images take together; a history lists (instruction, size in bytes), oldest first.

    Images share a layer exactly as long as all instructions up to it are the same.
    """
    sizes: dict[tuple[tuple[str, int], ...], int] = {}
    for history in histories:
        for end in range(1, len(history) + 1):
            sizes[tuple(history[:end])] = history[end - 1][1]
    return sum(sizes.values())


def _missing(wanted: Recipe) -> ImageMissing:
    return ImageMissing(
        f"no up-to-date image {wanted.tag} for stack {wanted.stack}",
        next_step="run `make build` (or `artifact build`)",
    )


def _is_current(attributes: Mapping[str, Any], wanted: Recipe) -> bool:
    labels = attributes["Config"]["Labels"] or {}
    return all(labels.get(name) == value for name, value in wanted.labels.items())


def _info(attributes: Mapping[str, Any], wanted: Recipe) -> ImageInfo:
    labels = attributes["Config"]["Labels"]
    return ImageInfo(
        stack=wanted.stack,
        tag=wanted.tag,
        id=attributes["Id"],
        lock_hash=labels["gaps.lock-hash"],
        code_hash=labels["gaps.code-hash"],
        base_name=labels.get("org.opencontainers.image.base.name", ""),
        base_id=labels.get("org.opencontainers.image.base.digest", ""),
        size_bytes=int(attributes["Size"]),
    )


def _current(client: Any, wanted: Recipe) -> ImageInfo | None:
    """The up-to-date image, or None; `ImageError` where the engine does not answer."""
    from docker.errors import DockerException, ImageNotFound

    try:
        attributes = client.images.get(wanted.tag).attrs
    except ImageNotFound:
        return None
    except (DockerException, OSError) as error:
        raise _no_engine(error) from error
    return _info(attributes, wanted) if _is_current(attributes, wanted) else None


def _no_engine(error: Exception) -> ImageError:
    return ImageError(
        f"no Docker engine answers ({_last_line(str(error))})",
        next_step="start dockerd, check your permission, or use the process engine",
    )


def _run_build(
    cli: str,
    one: Recipe,
    arguments: list[str],
    root: Path,
    log: Path,
    environment: Mapping[str, str],
) -> float:
    """Run one build with its output in `log`; return its seconds."""
    started = time.monotonic()
    with log.open("wb") as output:
        result = subprocess.run(
            [cli, "build", *arguments, str(root)],
            env=_builder_environment(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    if result.returncode != 0:
        text = log.read_text(encoding="utf-8", errors="replace")
        raise BuildFailed(
            f"building the {one.stack} image failed: {_error_line(text)}", next_step=f"see {log}"
        )
    return time.monotonic() - started


def _report(
    client: Any, wanted: Sequence[Recipe], durations: Mapping[str, float], say: Say
) -> list[Built]:
    """One line for each image and one for all; raises `BuildFailed` where an image is not there."""
    built = []
    for one in wanted:
        image = _current(client, one)
        if image is None:
            raise BuildFailed(f"{one.tag} is not there after its build", next_step="build it again")
        duration_s = durations.get(one.stack)
        state = "up to date" if duration_s is None else f"built in {duration_s:.0f} s"
        say(f"{one.stack}: {image.size_bytes / 1e9:.2f} GB, {state}, {one.tag}")
        built.append(Built(image, duration_s))
    total = unique_size_bytes(_history(client, item.image.id) for item in built)
    say(f"together: {total / 1e9:.2f} GB, shared layers counted once")
    return built


def _history(client: Any, image_id: str) -> list[tuple[str, int]]:
    """(instruction, size in bytes) of an image's history, oldest first."""
    entries = client.api.history(image_id)
    return [(entry["CreatedBy"], int(entry["Size"])) for entry in reversed(entries)]


def _builder_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """BuildKit in the engine itself, so that an image is there at once; no attestations."""
    return {
        **environment,
        "DOCKER_BUILDKIT": "1",
        "BUILDX_BUILDER": "default",
        "BUILDX_NO_DEFAULT_ATTESTATIONS": "1",
    }


def _on_path(name: str, path: str) -> list[str]:
    """Every executable `name` on PATH, in order, each file once."""
    found = (shutil.which(name, path=folder) for folder in path.split(os.pathsep) if folder)
    return list(dict.fromkeys(os.path.realpath(one) for one in found if one))


def _probe(cli: str, environment: Mapping[str, str]) -> str | None:
    """None if `cli` builds an empty image with a secret, which only BuildKit takes; else why."""
    try:
        result = subprocess.run(
            [cli, "build", "--quiet", "--secret", f"id=probe,src={os.devnull}", "-"],
            input="FROM scratch\nLABEL gaps.probe=1\n",
            env=_builder_environment(environment),
            capture_output=True,
            text=True,
            timeout=PROBE_TIMEOUT_S,
        )
    except FileNotFoundError:
        return "no such command"
    except PermissionError:
        return "not executable"
    except subprocess.TimeoutExpired:
        return f"no answer in {PROBE_TIMEOUT_S} s"
    if result.returncode != 0:
        return _last_line(result.stderr)
    subprocess.run([cli, "image", "rm", result.stdout.strip()], capture_output=True)
    return None


def _image_id(cli: str, name: str) -> str:
    """The id of a local image; empty where there is none."""
    result = subprocess.run(
        [cli, "image", "inspect", "--format", "{{.Id}}", name], capture_output=True, text=True
    )
    return result.stdout.strip() if result.returncode == 0 else ""


def _pull(cli: str, name: str, environment: Mapping[str, str]) -> str | None:
    """Pull `name`; None on success, else the cause in a few words, without the registry's name."""
    try:
        result = subprocess.run(
            [cli, "pull", "--quiet", name],
            env=dict(environment),
            capture_output=True,
            text=True,
            timeout=PULL_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        return f"no answer in {PULL_TIMEOUT_S} s"
    return None if result.returncode == 0 else _pull_cause(result.stderr)


def _pull_cause(message: str) -> str:
    """The cause in Docker's message of a failed pull, without hosts, ports and addresses."""
    line = _last_line(message)
    for pattern, cause in PULL_CAUSES:
        if re.search(pattern, line, re.IGNORECASE):
            return cause
    return re.sub(r"\S*(://|\d:\d)\S*", "...", line.rpartition(": ")[2])


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no message"


def _error_line(log: str) -> str:
    """The line of a build log that says most: the tool's own error, not BuildKit's summary.

    Of an address only the file's name is kept; the log has it in full.
    """
    lines = [line.strip() for line in log.splitlines()]
    marks = ("no space left", "ERROR: ", "E: ", "error: ")
    hits = [
        line
        for mark in marks
        for line in reversed(lines)
        if mark in line and "executor failed" not in line
    ]
    return re.sub(r"https?://\S*/", "", hits[0] if hits else _last_line(log))
