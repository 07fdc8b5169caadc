"""Images: what makes one up to date, which command builds it, what a failure says."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from docker.client import DockerClient
from docker.errors import ImageNotFound

from artifact.host import images
from artifact.host.locks import CHECKOUT, STACKS

#: A docker command that keeps its calls in $DOCKER_LOG and its images in $DOCKER_IMAGES.
FAKE_DOCKER = r"""#!/bin/sh
printf '%s\n' "$*" >> "$DOCKER_LOG"
images=$DOCKER_IMAGES
file() { printf '%s/%s' "$images" "$(printf '%s' "$1" | tr '/:@' '___')"; }
case "$1 $2" in
"build --quiet") cat > /dev/null; [ -n "$NO_BUILDKIT" ] && { echo "buildx is missing" >&2; exit 1; }
    echo sha256:probe ;;
"build "*)
    [ -n "$FAIL_BUILD" ] && { echo "#9 ERROR: cannot fetch http://mirror.example/g++.deb"
        echo "executor failed"; exit 1; }
    labels=; tag=
    while [ $# -gt 0 ]; do
        case $1 in
        --tag) tag=$2 ;;
        --label) labels="$labels,\"${2%%=*}\": \"${2#*=}\"" ;;
        esac
        shift
    done
    printf '[{"Id": "sha256:%s", "Size": 2000000000, "Config": {"Labels": {%s}}}]' \
        "$tag" "${labels#,}" > "$(file "$tag")" ;;
"image inspect") [ -e "$(file "$5")" ] && echo sha256:base || exit 1 ;;
"info --format") echo "${ENGINE_ID:-ONE:1} here" ;;
"image rm") : ;;
"pull "*) [ -n "$OFFLINE" ] && { echo "$OFFLINE" >&2; exit 1; }
    for last; do :; done; touch "$(file "$last")" ;;
"version "*) : ;;
*) echo "unexpected: $*" >&2; exit 64 ;;
esac
"""


#: What Docker says when a registry's name cannot be resolved, and when nothing comes back.
NO_HOST = (
    "Error response from daemon: Get https://registry.example/v2/: dial tcp: "
    "lookup registry.example on 10.0.0.2:53: no such host"
)
NO_ANSWER = "Error response from daemon: Get https://r.example/v2/: net/http: TLS handshake timeout"
DENIED = "Error response from daemon: pull access denied for debian, may require 'docker login'"
OTHER = "Error: proxyconnect tcp: read tcp 10.0.0.3:4->10.0.0.2:443: connection reset by peer"


def write_command(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)
    return path


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """PATH with the fake docker first; no proxy and no pip setting of this machine."""
    write_command(tmp_path / "bin" / "docker", FAKE_DOCKER)
    (tmp_path / "images").mkdir()
    return {
        "PATH": f"{tmp_path / 'bin'}:{os.defpath}",
        "HOME": str(tmp_path),
        "PIP_CONFIG_FILE": os.devnull,
        "DOCKER_LOG": str(tmp_path / "log"),
        "DOCKER_IMAGES": str(tmp_path / "images"),
    }


@pytest.fixture
def fake_engine(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The same in this process's environment too, where questions to the engine read it."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return environment


def calls(environment: dict[str, str]) -> list[str]:
    log = Path(environment["DOCKER_LOG"])
    return log.read_text(encoding="utf-8").splitlines() if log.exists() else []


class FolderClient:
    """A `DockerClient` of the engine that the fake docker command builds in."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.folder = Path(environment["DOCKER_IMAGES"])
        self.images = self
        self.api = self

    def get(self, tag: str) -> Any:
        file = self.folder / re.sub("[/:@]", "_", tag)
        if not file.exists():
            raise ImageNotFound("none")
        return SimpleNamespace(attrs=json.loads(file.read_text(encoding="utf-8"))[0])

    def history(self, image_id: str) -> list[dict[str, Any]]:
        """Newest first, as the engine answers."""
        return [
            {"CreatedBy": f"COPY {image_id}", "Size": 50_000_000},
            {"CreatedBy": "RUN all", "Size": 2_000_000_000},
        ]

    def info(self) -> dict[str, str]:
        return {"ID": "ONE:1", "Name": "here"}


@pytest.fixture
def arguments(fake_engine: dict[str, str]) -> dict[str, Any]:
    """Of `images.build`, with the fake engine behind both the command and the SDK."""
    return {
        "environment": fake_engine,
        "client": FolderClient(fake_engine),
        "say": lambda line: None,
    }


# Which command builds


def test_a_docker_without_buildkit_is_passed_over(environment: dict[str, str]) -> None:
    """A newer command without buildx stands first on PATH; the older one behind it works."""
    bin_directory = Path(environment["PATH"].split(":")[0])
    broken = write_command(
        bin_directory.parent / "first" / "docker", "#!/bin/sh\necho 'no buildx' >&2\nexit 1\n"
    )
    environment["PATH"] = f"{broken.parent}:{environment['PATH']}"
    assert images.find_builder(None, environment) == str(bin_directory / "docker")


def test_all_reasons_are_given_where_no_docker_builds(environment: dict[str, str]) -> None:
    environment |= {"NO_BUILDKIT": "1", "PATH": environment["PATH"].split(":")[0]}
    with pytest.raises(images.NoBuilder, match="buildx is missing") as caught:
        images.find_builder(None, environment)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("named", "reason"), [("/no/docker", "no such command"), ("/", "not exec")]
)
def test_a_named_docker_is_the_only_candidate(
    environment: dict[str, str], named: str, reason: str
) -> None:
    with pytest.raises(images.NoBuilder, match=reason):
        images.find_builder(None, environment | {"DOCKER": named})
    with pytest.raises(images.NoBuilder, match=reason):
        images.find_builder(named, environment)


# The base


def test_pull_failure_is_said_and_the_local_base_is_used(fake_engine: dict[str, str]) -> None:
    (Path(fake_engine["DOCKER_IMAGES"]) / "gaps-base_bookworm").touch()
    said: list[str] = []
    environment = fake_engine | {"OFFLINE": NO_HOST}
    base = images.choose_base("docker", None, CHECKOUT, environment, said.append)
    assert base == images.Base("gaps-base:bookworm", "sha256:base")
    assert said == [
        "cannot pull the pinned base (no such host): "
        "using gaps-base:bookworm, made from Debian's archive"
    ]


@pytest.mark.parametrize(
    ("message", "cause"),
    [
        (NO_HOST, "no such host"),
        (NO_ANSWER, "no answer in time"),
        (DENIED, "access denied"),
        (OTHER, "connection reset by peer"),
        ("odd: https://registry.example/v2 said 500", "... said 500"),
    ],
)
def test_cause_of_a_failed_pull_names_no_host(
    fake_engine: dict[str, str], message: str, cause: str
) -> None:
    environment = fake_engine | {"OFFLINE": message}
    with pytest.raises(images.ImageError) as caught:
        images.choose_base("docker", "mine:1", CHECKOUT, environment, pytest.fail)
    assert str(caught.value) == f"cannot pull mine:1: {cause}; name a base image that is here"


def test_pulled_base_is_the_pinned_one(fake_engine: dict[str, str]) -> None:
    base = images.choose_base("docker", None, CHECKOUT, fake_engine, pytest.fail)
    assert re.fullmatch(r"debian:[\w.-]+@sha256:[0-9a-f]{64}", base.name)


def test_a_base_that_was_asked_for_has_no_substitute(fake_engine: dict[str, str]) -> None:
    environment = fake_engine | {"OFFLINE": NO_HOST}
    with pytest.raises(images.ImageError, match=r"mine:1.*no such host"):
        images.choose_base("docker", "mine:1", CHECKOUT, environment, pytest.fail)


@pytest.mark.parametrize(
    ("commands", "line"),
    [
        ({}, "no 'docker'"),
        ({"docker": FAKE_DOCKER}, "no mmdebstrap"),
        ({"docker": FAKE_DOCKER, "mmdebstrap": "", "id": "echo 4711"}, "install uidmap"),
        (
            {"docker": FAKE_DOCKER, "mmdebstrap": "", "id": "echo 4711", "newuidmap": ""},
            "in /etc/subuid",
        ),
    ],
)
def test_script_for_the_base_says_what_it_lacks(
    environment: dict[str, str], commands: dict[str, str], line: str
) -> None:
    """With only these commands on PATH; the shell itself is named in full."""
    tools = Path(environment["PATH"].split(":")[0])
    (tools / "docker").unlink()
    for name in ("tr", "dirname", "grep"):
        (tools / name).symlink_to(str(shutil.which(name)))
    for name, text in commands.items():
        write_command(tools / name, text if text.startswith("#!") else f"#!/bin/sh\n{text}\n")
    environment["PATH"] = str(tools)
    script = CHECKOUT / "docker" / "base" / "make-base.sh"
    result = subprocess.run(["/bin/sh", script], env=environment, capture_output=True, text=True)
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1
    assert line in result.stderr


# Building


def test_build_makes_what_is_missing_and_nothing_twice(
    fake_engine: dict[str, str], arguments: dict[str, Any], tmp_path: Path
) -> None:
    said: list[str] = []
    arguments["say"] = said.append
    first = images.build(log_directory=tmp_path / "logs", **arguments)
    assert [item.image.stack for item in first] == ["inductor", "xla", "tvm"]
    assert all(item.duration_s is not None for item in first)
    builds = [call for call in calls(fake_engine) if call.startswith("build --file")]
    assert len(builds) == 3
    assert f"--label gaps.lock-hash={first[1].image.lock_hash}" in builds[1]
    assert "ACCELERATOR=cpu" in builds[1]
    assert "ACCELERATOR" not in builds[0] + builds[2]
    assert said[-1] == "together: 2.15 GB, shared layers counted once"  # 2 + 3 x 0.05
    second = images.build(log_directory=tmp_path / "logs", **arguments)
    assert [item.duration_s for item in second] == [None, None, None]
    assert len([call for call in calls(fake_engine) if call.startswith("build --file")]) == 3


def test_images_that_are_up_to_date_need_no_docker_command(
    fake_engine: dict[str, str], arguments: dict[str, Any], tmp_path: Path
) -> None:
    images.build(log_directory=tmp_path, **arguments)
    before = calls(fake_engine)
    arguments["environment"] = fake_engine | {"DOCKER": "/no/docker"}
    assert [one.duration_s for one in images.build(log_directory=tmp_path, **arguments)] == [
        None,
        None,
        None,
    ]
    assert calls(fake_engine) == before
    with pytest.raises(images.NoBuilder):
        images.build(["xla"], log_directory=tmp_path, target="test", **arguments)


def test_a_command_that_talks_to_another_engine_builds_nothing(
    fake_engine: dict[str, str], arguments: dict[str, Any], tmp_path: Path
) -> None:
    """A docker context leads the command, but not the SDK, to another engine."""
    arguments["environment"] = fake_engine | {"ENGINE_ID": "TWO:2"}
    with pytest.raises(images.TwoEngines, match=r"TWO:2.*ONE:1.*DOCKER_HOST") as caught:
        images.build(["xla"], log_directory=tmp_path, **arguments)
    assert "\n" not in str(caught.value)
    assert not [call for call in calls(fake_engine) if call.startswith("build --file")]


def test_image_of_an_older_dockerfile_is_built_again(
    fake_engine: dict[str, str], arguments: dict[str, Any], tmp_path: Path
) -> None:
    built = images.build(["xla"], log_directory=tmp_path, **arguments)
    file = Path(fake_engine["DOCKER_IMAGES"]) / built[0].image.tag.replace("/", "_").replace(
        ":", "_"
    )
    recipe_hash = images.recipe("xla").recipe_hash
    file.write_text(file.read_text(encoding="utf-8").replace(recipe_hash, "0"), encoding="utf-8")
    again = images.build(["xla"], log_directory=tmp_path, **arguments)
    assert again[0].duration_s is not None


def test_failed_build_says_what_failed_and_where_its_log_is(
    fake_engine: dict[str, str], arguments: dict[str, Any], tmp_path: Path
) -> None:
    arguments["environment"] = fake_engine | {"FAIL_BUILD": "1"}
    with pytest.raises(images.BuildFailed, match=r"cannot fetch g\+\+\.deb") as caught:
        images.build(["tvm"], log_directory=tmp_path, **arguments)
    assert "mirror.example" not in str(caught.value)
    assert str(tmp_path / "build-tvm.log") in str(caught.value)
    assert "\n" not in str(caught.value)


def test_proxy_values_are_in_no_argument_of_a_build(
    fake_engine: dict[str, str], arguments: dict[str, Any], tmp_path: Path
) -> None:
    """They are in the environment of the command, which hands them to the build by name."""
    arguments["environment"] = fake_engine | {"https_proxy": "http://user:secret@proxy:1"}
    images.build(["xla"], log_directory=tmp_path, **arguments)
    text = "\n".join(calls(fake_engine))
    assert "--build-arg https_proxy " in text
    assert "secret@" not in text


# Finding


class FakeImages:
    """`DockerClient.images` with at most one image."""

    def __init__(self, tag: str, labels: dict[str, str]) -> None:
        self.tag = tag
        self.attrs = {"Id": "sha256:1", "Size": 5, "Config": {"Labels": labels}}

    def get(self, tag: str) -> FakeImages:
        if tag != self.tag:
            raise ImageNotFound("none")
        return self


class FakeClient:
    def __init__(self, tag: str = "", labels: dict[str, str] | None = None) -> None:
        self.images = FakeImages(tag, labels or {})


def test_image_for_reads_id_and_hashes() -> None:
    wanted = images.recipe("tvm")
    found = images.image_for("tvm", client=FakeClient(wanted.tag, wanted.labels))
    assert (found.id, found.lock_hash, found.code_hash) == (
        "sha256:1",
        wanted.lock_hash,
        wanted.code_hash,
    )


@pytest.mark.parametrize("name", ["gaps.lock-hash", "gaps.code-hash", "gaps.recipe-hash", ""])
def test_missing_or_stale_image_says_how_to_get_it(name: str) -> None:
    wanted = images.recipe("xla")
    client = FakeClient(wanted.tag, wanted.labels | {name: "other"}) if name else FakeClient()
    with pytest.raises(images.ImageMissing, match=r"make build") as caught:
        images.image_for("xla", client=client)
    assert wanted.tag in str(caught.value)


def test_no_engine_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    with pytest.raises(images.ImageError, match="no Docker engine answers") as caught:
        images.image_for("xla")
    assert "\n" not in str(caught.value)


# What makes an image up to date


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name in ("artifact", "docker"):
        shutil.copytree(CHECKOUT / name, tmp_path / name)
    return tmp_path


@pytest.mark.parametrize(
    ("file", "changes"),
    [
        ("artifact/host/images.py", set()),
        ("artifact/cli.py", set()),
        ("docker/tvm/Dockerfile", set()),
        ("artifact/trial/runner.py", {"code_hash"}),
        ("artifact/study.toml", {"recipe_hash"}),
        ("docker/xla/Dockerfile", {"recipe_hash"}),
        ("docker/entry/artifact", {"recipe_hash"}),
        ("docker/xla/requirements-cpu.lock", {"lock_hash"}),
    ],
)
def test_which_edit_makes_a_new_image(checkout: Path, file: str, changes: set[str]) -> None:
    before = images.recipe("xla", root=checkout)
    with (checkout / file).open("a", encoding="utf-8") as stream:
        stream.write("\n# changed\n")
    after = images.recipe("xla", root=checkout)
    names = ("lock_hash", "code_hash", "recipe_hash")
    assert {name for name in names if getattr(before, name) != getattr(after, name)} == changes


def test_shared_layers_are_counted_once() -> None:
    torch = [("base", 100), ("pip install torch", 6000)]
    histories = [
        [*torch, ("COPY code", 1)],
        [*torch, ("pip install tvm", 500), ("COPY code", 1)],
        [("base", 100), ("pip install jax", 800), ("COPY code", 1)],
    ]
    assert images.unique_size_bytes(histories) == 100 + 6000 + 1 + 500 + 1 + 800 + 1


# The Dockerfiles


def dockerfile(stack: str) -> str:
    return (CHECKOUT / "docker" / stack / "Dockerfile").read_text(encoding="utf-8")


def instructions(text: str) -> list[str]:
    """Lines without comments, since those make no layer."""
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def test_inductor_and_tvm_start_alike_and_so_share_their_torch_layers() -> None:
    marker = "# end of the shared part"
    shared = {stack: dockerfile(stack).partition(marker)[0] for stack in ("inductor", "tvm")}
    assert instructions(shared["inductor"]) == instructions(shared["tvm"])
    assert "-r /opt/stack/inductor.lock" in shared["inductor"]


@pytest.mark.parametrize("stack", STACKS)
def test_dockerfile_bakes_in_no_setting_of_a_machine(stack: str) -> None:
    text = "\n".join(instructions(dockerfile(stack)))
    assert not re.search(r"(?i)https?://|_proxy|index-url|trusted-host|/etc/ssl", text)
    installs = [line for line in text.splitlines() if "pip install" in line]
    assert installs
    assert all("--require-hashes" in line and "--no-compile" not in line for line in installs)


@pytest.mark.parametrize("stack", STACKS)
def test_code_is_made_readable_before_it_is_compiled(stack: str) -> None:
    """pyc files take the mode of their source, so the order matters."""
    code = code_stage(stack)
    assert "chmod -R a+rX /opt/artifact" in code
    assert "chmod a+rx /opt/artifact/bin/artifact" in code
    assert code.index("COPY docker/entry") < code.index("chmod -R") < code.index("compileall")


def code_stage(stack: str) -> str:
    return dockerfile(stack).partition("AS code\n")[2].partition("# --- test")[0]


def test_all_dockerfiles_have_one_digest_pinned_base() -> None:
    assert re.fullmatch(r"debian:[\w.-]+@sha256:[0-9a-f]{64}", images.pinned_base())


# Real images (after `make build`)


@pytest.mark.docker
@pytest.mark.parametrize("stack", STACKS)
def test_real_image_runs_as_any_uid_and_holds_no_host_package(stack: str) -> None:
    image = images.image_for(stack)
    program = (
        "import importlib.util as u, os, pathlib, artifact;"
        "assert os.getuid() == 54321;"
        "assert not [n for n in ('docker', 'pandas', 'matplotlib', 'pytest')"
        " if u.find_spec(n)];"
        "assert not [p for p in pathlib.Path('/run/secrets').iterdir() if p.stat().st_size];"
        "assert list(pathlib.Path(artifact.__file__).parent.glob('__pycache__/records.*.pyc'))"
    )
    hardened = ["--user", "54321:54321", "--network", "none", "--read-only", "--cap-drop", "ALL"]
    docker_run = ["docker", "run", "--rm", *hardened, "--entrypoint", "python3", image.id]
    result = subprocess.run([*docker_run, "-c", program], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


@pytest.mark.docker
@pytest.mark.parametrize("stack", STACKS)
def test_real_image_has_no_proxy_or_secret_in_its_history(stack: str) -> None:
    image = images.image_for(stack)
    client = DockerClient.from_env()
    attributes = client.images.get(image.id).attrs
    history = " ".join(entry["CreatedBy"] for entry in client.api.history(image.id))
    environment = " ".join(attributes["Config"]["Env"])
    assert not re.search(r"(?i)_proxy=|://", history + environment)


@pytest.mark.docker
def test_real_image_of_a_checkout_under_umask_077_runs_as_any_uid(
    checkout: Path, tmp_path: Path
) -> None:
    """Stage `code` of the xla image, built from files that only their owner may read."""
    for path in (checkout / "artifact", checkout / "docker"):
        for one in (path, *path.rglob("*")):
            one.chmod(one.stat().st_mode & 0o700)
    below = f"FROM {images.image_for('xla').tag} AS below\nUSER 0:0\nRUN rm -r /opt/artifact\n"
    recipe = f"{below}FROM below\n{code_stage('xla')}"
    (checkout / "Dockerfile").write_text(recipe, encoding="utf-8")
    environment = {**os.environ, "DOCKER_BUILDKIT": "1", "BUILDX_BUILDER": "default"}
    cli = images.find_builder(None)
    command = [cli, "build", "--quiet", "--network=none", str(checkout)]
    built = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    image_id = built.stdout.strip()
    try:
        hardened = ["--user", "54321:54321", "--network", "none", "--read-only"]
        result = subprocess.run(
            [cli, "run", "--rm", *hardened, image_id, "trial", "--help"],
            capture_output=True,
            text=True,
        )
        assert result.returncode == 0, result.stderr
    finally:
        subprocess.run([cli, "image", "rm", image_id], capture_output=True, check=True)
