"""The engine with containers: a fresh, locked-down container per process, always removed.

What a container may do: read its root file system, write to a tmpfs at /tmp and to one folder of
its own; no network, no capabilities, no new privileges, bounded processes, memory and file sizes.
The SDK's `run()` is not used: when its start fails it leaves the container behind.
"""

from __future__ import annotations

import dataclasses
import datetime
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

import requests
from docker.client import DockerClient
from docker.errors import APIError, DockerException, ImageNotFound, NotFound
from docker.types import DeviceRequest, LogConfig, Mount, Ulimit

from artifact.errors import UserError
from artifact.host.engines import Layout, Limits, Outcome, Request, StackIdentity, Timing, tail

LABEL = "gaps.container"  # images carry other labels, and containers inherit those
LABEL_OWNER = "gaps.owner"
LABEL_CAMPAIGN = "gaps.campaign"
LABEL_REQUEST = "gaps.request"

#: The uid of processes when the caller is root: never root inside, and an owner of nothing else.
UNPRIVILEGED_UID = 10001

INPUTS, OUT, BUNDLES = PurePosixPath("/in"), PurePosixPath("/out"), PurePosixPath("/bundle")
SCRATCH = PurePosixPath("/tmp/trial")

#: Seconds for one answer of the engine (create, start, inspect, remove), and for it to come back.
API_TIMEOUT_S = 60
RECONNECT_S = 90.0
LOG_LINES = 200

#: How engines name GPUs in the Container Device Interface, and what they say when they have none.
CDI_KIND = "nvidia.com/gpu="
_NO_GPU_DRIVER = (
    "could not select device driver",
    "CDI device injection failed",
    "unresolvable CDI",
)
NO_TOOLKIT = "Docker cannot hand the GPU to a container: the NVIDIA Container Toolkit is missing"

#: Every image of ours carries this label.
IMAGE_LABEL = "gaps.stack"

_NO_ANSWER = (requests.exceptions.ConnectionError, requests.exceptions.Timeout)

ImageFor = Callable[[str], Any]


class DockerEngine:
    """Runs each request in a container of its own.

    `accelerator` chooses between images that differ by it; `selinux` is "", "z" or "Z" and relabels
    the output folder only; `owner` marks our containers, so that strays of other users stay
    untouched. `client` and `image_for` are there for tests.
    """

    name = "docker"

    def __init__(
        self,
        accelerator: str = "cpu",
        selinux: str = "",
        *,
        owner: str | None = None,
        client: Any = None,
        image_for: ImageFor | None = None,
        reconnect_s: float = RECONNECT_S,
    ) -> None:
        if selinux not in ("", "z", "Z"):
            raise UserError(f"selinux label option {selinux!r} is unknown", next_step="use z or Z")
        self._client = connect() if client is None else client
        self._selinux = selinux
        self._owner = owner or f"uid-{os.getuid()}"
        self._image_for = image_for or _image_finder(accelerator, self._client)
        self._reconnect_s = reconnect_s
        self._identities: dict[str, StackIdentity] = {}
        with _engine_faults("ask the engine how it is set up"):
            information = self._client.info()
        self._security = list(information.get("SecurityOptions") or [])
        self._gpu = gpu_request(information)

    # --- the protocol -------------------------------------------------------------------------
    def prepare(self, stacks: Iterable[str]) -> Mapping[str, StackIdentity]:
        """Find each stack's image; it is then used by its id, so that a new tag mixes nothing."""
        for stack in stacks:
            with _engine_faults(f"look for the image of {stack}"):
                found = self._image_for(stack)
            self._identities[stack] = StackIdentity(
                found.id, found.lock_hash, found.code_hash, found.tag
            )
        return dict(self._identities)

    def layout(self, work: Path, out: Path, bundles: Path | None) -> Layout:
        """The folders inside: always the same."""
        return Layout(Path(INPUTS), Path(OUT), Path(BUNDLES), Path(SCRATCH))

    def run(self, request: Request, deadline_s: float) -> Outcome:
        """Create, start, await, look at and remove one container."""
        if request.stack not in self._identities:
            self.prepare([request.stack])
        start_s = time.monotonic()
        user = self._user(request.out)
        with _create_faults(request, self._identities[request.stack]):
            container = self._client.containers.create(**self._settings(request, user))
        create_ms = (time.monotonic() - start_s) * 1e3
        life = _Life(container, self._identities[request.stack], create_ms)
        try:
            outcome = life.live(request, deadline_s, self._await_engine)
        finally:
            remove_start_s = time.monotonic()
            _remove(container, self._await_engine)
        remove_ms = (time.monotonic() - remove_start_s) * 1e3
        return life.with_removal(outcome, remove_ms)

    def remove_strays(self, campaign: str | None = None) -> int:
        """Remove containers that carry our label and owner (and campaign), nothing else."""
        labels = [LABEL, f"{LABEL_OWNER}={self._owner}"]
        if campaign is not None:
            labels.append(f"{LABEL_CAMPAIGN}={campaign}")
        with _engine_faults("look for left-over containers"):
            found = self._client.containers.list(
                all=True, filters={"label": labels}, ignore_removed=True
            )
        for container in found:
            _remove(container, self._await_engine)
        return len(found)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    # --- settings of one container ------------------------------------------------------------
    @property
    def is_rootless(self) -> bool:
        """True when the engine itself runs without root: container uid 0 is then the caller."""
        return any("name=rootless" in option for option in self._security)

    def _user(self, out: Path) -> str:
        """The caller's uid; for root an unprivileged one that gets to own the output folder."""
        if self.is_rootless:
            return "0:0"
        if os.getuid() != 0:
            return f"{os.getuid()}:{os.getgid()}"
        for path in (out, *out.rglob("*")):  # what the host put there is the process's to change
            os.chown(path, UNPRIVILEGED_UID, UNPRIVILEGED_UID, follow_symlinks=False)
        return f"{UNPRIVILEGED_UID}:{UNPRIVILEGED_UID}"

    def _settings(self, request: Request, user: str) -> dict[str, Any]:
        """Everything that `containers.create` is told."""
        settings: dict[str, Any] = {
            "image": self._identities[request.stack].image_id,
            "command": list(request.arguments),
            "environment": dict(request.environment),
            "user": user,
            "working_dir": "/tmp",
            "labels": {
                LABEL: "1",
                LABEL_OWNER: self._owner,
                LABEL_CAMPAIGN: request.campaign,
                LABEL_REQUEST: request.request_id,
            },
            "network_mode": "none",
            "read_only": True,
            "cap_drop": ["ALL"],
            "security_opt": ["no-new-privileges:true"],
            "log_config": LogConfig(type="json-file", config={"max-size": "4m", "max-file": "1"}),
            "detach": True,
            **self._folders(request),
            **_limits(request.limits),
        }
        if any("name=userns" in option for option in self._security):
            settings["userns_mode"] = "host"  # else our uid would be another one on the host
        if request.device == "cuda":
            settings["device_requests"] = [self._gpu]
        return settings

    def _folders(self, request: Request) -> dict[str, Any]:
        """Mounts: inputs and bundle to read, one folder to write. A missing source is an error."""
        mounts = [_mount(INPUTS, request.inputs, read_only=True)]
        if request.bundle is not None:
            mounts.append(_mount(BUNDLES / request.bundle.name, request.bundle, read_only=True))
        if not self._selinux:
            return {"mounts": [*mounts, _mount(OUT, request.out, read_only=False)]}
        source = str(request.out.absolute())
        if ":" in source:  # only this older form of a mount can relabel, and it splits at colons
            raise UserError(
                f"the SELinux option cannot be used with a ':' in the path {source}",
                next_step="choose another results folder",
            )
        return {"mounts": mounts, "volumes": [f"{source}:{OUT}:rw,{self._selinux}"]}

    def _await_engine(self) -> None:
        """Wait until the engine answers again (it may restart); `UserError` if it does not."""
        end_s = time.monotonic() + self._reconnect_s
        while True:
            try:
                self._client.ping()
                return
            except (APIError, *_NO_ANSWER) as error:
                if time.monotonic() >= end_s:
                    raise UserError(
                        f"the Docker engine stopped answering ({_first_line(error)})",
                        next_step="start it; finished records are kept, continue with --resume",
                    ) from error
                time.sleep(min(1.0, self._reconnect_s / 10))


def connect() -> Any:
    """A client of the engine that the environment names; one line when none can be used."""
    with _engine_faults("reach the Docker engine"):
        return DockerClient.from_env(timeout=API_TIMEOUT_S)


def gpu_request(information: Mapping[str, Any]) -> Any:
    """The request for one GPU that this engine understands; `information` is its `info()`.

    An engine that knows GPUs as CDI devices only is asked for the first single one by name, or for
    all of them where it lists no single one; every other engine for one device with that ability.
    """
    found = information.get("DiscoveredDevices") or []
    devices = sorted(str(d.get("ID", "")) for d in found if isinstance(d, Mapping))
    devices = [device for device in devices if device.startswith(CDI_KIND)]
    if "nvidia" in (information.get("Runtimes") or {}) or not devices:
        return DeviceRequest(count=1, capabilities=[["gpu"]])
    single = [device for device in devices if device != f"{CDI_KIND}all"]
    return DeviceRequest(driver="cdi", device_ids=[(single or devices)[0]])


def probe_gpu(client: Any, image: str | None = None) -> str | None:
    """None when the engine hands a GPU to a container; else why not, in one line.

    A short container of `image` (an id or tag that is here; nothing is pulled) is started with the
    request that trials make, without anything else that could fail. Without an image of ours yet,
    only what the engine says about itself can be asked. Raises `UserError` when it does not answer.
    """
    with _engine_faults("ask the engine about GPUs"):
        information = client.info()
        image = image or _any_image(client)
    if image is None:
        request = gpu_request(information)
        known = request.get("Driver") == "cdi" or "nvidia" in (information.get("Runtimes") or {})
        return None if known else NO_TOOLKIT
    try:
        container = client.containers.create(
            image=image,
            entrypoint=["true"],
            network_mode="none",
            labels={LABEL: "1", LABEL_OWNER: f"uid-{os.getuid()}", LABEL_REQUEST: "probe"},
            device_requests=[gpu_request(information)],
        )
    except (APIError, *_NO_ANSWER) as error:
        return _gpu_reason(error)
    try:
        container.start()
    except (APIError, *_NO_ANSWER) as error:
        return _gpu_reason(error)
    finally:
        _remove(container, lambda: None)
    return None


def _any_image(client: Any) -> str | None:
    """The smallest image of ours on this engine, if there is one."""
    images = client.images.list(filters={"label": IMAGE_LABEL})
    return str(min(images, key=lambda i: i.attrs.get("Size", 0)).id) if images else None


def _gpu_reason(error: Exception) -> str:
    if any(words in str(error) for words in _NO_GPU_DRIVER):
        return NO_TOOLKIT
    return f"Docker cannot hand the GPU to a container: {_first_line(error)}"


def _image_finder(accelerator: str, client: Any) -> ImageFor:
    from artifact.host import images

    return lambda stack: images.image_for(stack, accelerator, client=client)


def _mount(target: PurePosixPath, source: Path, *, read_only: bool) -> Mount:
    """A bind mount. Source and target are separate fields: spaces and colons need no care."""
    return Mount(str(target), str(source.absolute()), type="bind", read_only=read_only)


def _limits(limits: Limits) -> dict[str, Any]:
    """Limits as `containers.create` wants them; 0 CPUs or MiB leave that limit out."""
    size_bytes = limits.file_mib * 2**20
    settings: dict[str, Any] = {
        "pids_limit": limits.pids,
        "shm_size": f"{limits.shm_mib}m",
        "tmpfs": {"/tmp": f"rw,exec,nosuid,nodev,mode=1777,size={limits.tmpfs_mib}m"},
        "ulimits": [
            Ulimit(name="core", soft=0, hard=0),
            Ulimit(name="fsize", soft=size_bytes, hard=size_bytes),
        ],
    }
    if limits.memory_mib:
        settings |= {"mem_limit": f"{limits.memory_mib}m", "memswap_limit": f"{limits.memory_mib}m"}
    if limits.cpus:
        allowed = sorted(os.sched_getaffinity(0))[: limits.cpus]
        settings["cpuset_cpus"] = ",".join(str(cpu) for cpu in allowed)
    return settings


class _Life:
    """One container from its start to just before its removal."""

    def __init__(self, container: Any, identity: StackIdentity, create_ms: float) -> None:
        self.container = container
        self.identity = identity
        self.create_ms = create_ms
        self.start_ms = 0.0
        self.wait_ms = 0.0

    def live(
        self, request: Request, deadline_s: float, await_engine: Callable[[], None]
    ) -> Outcome:
        """Start it, wait for its end or the deadline, and read how it ended."""
        start_s = time.monotonic()
        try:
            self.container.start()
        except (APIError, *_NO_ANSWER) as error:
            _refuse_gpu(error, request)
            await_engine()
            return self._outcome(fault=f"did not start: {_first_line(error)}", started=False)
        started_s = time.monotonic()
        self.start_ms = (started_s - start_s) * 1e3
        exit_code, fault = self._wait(start_s + deadline_s)
        self.wait_ms = (time.monotonic() - started_s) * 1e3
        timed_out = exit_code is None and not fault
        if timed_out:
            _kill(self.container)
        if fault:
            await_engine()
        return self._outcome(exit_code=exit_code, fault=fault, timed_out=timed_out)

    def _wait(self, end_s: float) -> tuple[int | None, str]:
        """Exit code and fault; (None, "") means that the deadline passed.

        One blocking request whose socket timeout is the time that is left: nothing polls beside the
        process that is being timed. The SDK reports that timeout as a read timeout or as a
        connection error, sometimes early, so our own clock has the last word on a lost connection.
        """
        try:
            answer = self.container.wait(timeout=max(0.1, end_s - time.monotonic()))
        except NotFound:
            return None, "the container was removed by somebody else"
        except _NO_ANSWER as error:
            if time.monotonic() >= end_s or _is_timeout(error):
                return None, ""
            return None, f"lost the connection to the Docker engine: {_first_line(error)}"
        except APIError as error:
            return None, f"the engine could not wait for the container: {_first_line(error)}"
        return int(answer["StatusCode"]), ""

    def _outcome(
        self,
        *,
        exit_code: int | None = None,
        fault: str = "",
        timed_out: bool = False,
        started: bool = True,
    ) -> Outcome:
        state = _state(self.container)
        if exit_code is None and not timed_out and started:
            exit_code = state.get("ExitCode") if state.get("Status") == "exited" else None
        return Outcome(
            exit_code=exit_code,
            oom=bool(state.get("OOMKilled", False)),
            timed_out=timed_out,
            log_tail=_log_tail(self.container),
            process_id=str(self.container.id),
            identity=self.identity,
            process_ms=_lifetime_ms(state) if started else None,
            fault=fault,
            started=started,
        )

    def with_removal(self, outcome: Outcome, remove_ms: float) -> Outcome:
        """The outcome with the host's own times."""
        timing = Timing(self.create_ms, self.start_ms, self.wait_ms, remove_ms)
        return dataclasses.replace(outcome, timing=timing)


def _is_timeout(error: Exception) -> bool:
    return isinstance(error, requests.exceptions.ReadTimeout) or "timed out" in str(error).lower()


def _state(container: Any) -> Mapping[str, Any]:
    """The engine's view of the container; empty when it is gone or the engine does not answer."""
    try:
        container.reload()
    except (APIError, *_NO_ANSWER):
        return {}
    state: Mapping[str, Any] = container.attrs.get("State", {})
    return state


def _log_tail(container: Any) -> str:
    try:
        text: bytes = container.logs(stdout=True, stderr=True, tail=LOG_LINES)
    except (APIError, *_NO_ANSWER) as error:
        return f"(no log: {_first_line(error)})"
    return tail(text.decode("utf-8", errors="replace"))


def _kill(container: Any) -> None:
    try:
        container.kill()
    except (APIError, *_NO_ANSWER):
        return  # it ended just now; removal is forced anyway


def _remove(container: Any, await_engine: Callable[[], None]) -> None:
    """Remove a container, running or not, with its anonymous volumes. Gone already is fine."""
    try:
        container.remove(force=True, v=True)
    except NotFound:
        return
    except (APIError, *_NO_ANSWER) as error:
        if isinstance(error, APIError) and "already in progress" in str(error):
            return
        await_engine()
        _remove_once_more(container)


def _remove_once_more(container: Any) -> None:
    try:
        container.remove(force=True, v=True)
    except NotFound:
        return
    except (APIError, *_NO_ANSWER) as error:
        raise UserError(
            f"cannot remove container {str(container.id)[:12]}: {_first_line(error)}",
            next_step="run `artifact clean` when the engine is well again",
        ) from error


def _lifetime_ms(state: Mapping[str, Any]) -> float | None:
    """FinishedAt - StartedAt in ms; None when the engine does not say or its clock was set back."""
    started, finished = (_stamp_s(state.get(key, "")) for key in ("StartedAt", "FinishedAt"))
    if started is None or finished is None or finished < started:
        return None
    return (finished - started) * 1e3


def _stamp_s(text: str) -> float | None:
    """An engine's time stamp (nanoseconds, Z or offset) in seconds; year 1 means "not yet"."""
    match = re.fullmatch(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d+)?(Z|[+-]\d\d:\d\d)", text)
    if match is None or text.startswith("0001"):
        return None
    whole, fraction, zone = match.groups()
    stamp = datetime.datetime.fromisoformat(whole + ("+00:00" if zone == "Z" else zone))
    return stamp.timestamp() + float(fraction or 0.0)


@contextmanager
def _engine_faults(doing: str) -> Iterator[None]:
    """Faults of the connection as one line that says what to do."""
    try:
        yield
    except (DockerException, *_NO_ANSWER) as error:
        text = str(error)
        if "Permission denied" in text or "PermissionError" in text:
            raise UserError(
                f"cannot {doing}: no permission to use the Docker engine",
                next_step="add yourself to the group docker and log in again, or use the process "
                "engine",
            ) from error
        if isinstance(error, APIError):
            raise UserError(f"cannot {doing}: {_first_line(error)}") from error
        raise UserError(
            f"cannot {doing}: no Docker engine answers",
            next_step="start it, or use the process engine",
        ) from error


@contextmanager
def _create_faults(request: Request, identity: StackIdentity) -> Iterator[None]:
    """Faults of `create` as one line: they are the same for every trial, so the campaign stops."""
    try:
        yield
    except ImageNotFound as error:
        raise UserError(
            f"the image of {request.stack} is gone ({identity.tag})",
            next_step="run `artifact build`",
        ) from error
    except (APIError, *_NO_ANSWER) as error:
        _refuse_gpu(error, request)
        raise UserError(
            f"the Docker engine refused to create the container of {request.request_id}: "
            f"{_first_line(error)}",
            next_step="mend it and run again with --resume",
        ) from error


def _refuse_gpu(error: Exception, request: Request) -> None:
    """A GPU was asked for and the engine cannot give one (case D10)."""
    if request.device == "cuda" and any(words in str(error) for words in _NO_GPU_DRIVER):
        raise UserError(NO_TOOLKIT, next_step="install it, or use --device cpu") from error


def _first_line(error: Exception) -> str:
    explanation = getattr(error, "explanation", None)
    text = str(explanation or error).strip() or type(error).__name__
    return text.splitlines()[0][:300]
