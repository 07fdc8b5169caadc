"""The docker engine against a stub of the SDK (cases D1-D3, D5, D7, D9-D11)."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import Any

import pytest
import requests
from docker.errors import APIError, DockerException, ImageNotFound, NotFound

from artifact.errors import UserError
from artifact.host import machine
from artifact.host.campaign import Interrupted, run_campaign
from artifact.host.engines import Limits, Outcome, Request, judge_exit
from artifact.host.engines import docker as docker_engine
from artifact.host.engines.docker import DockerEngine, probe_gpu
from artifact.host.engines.fake import fake_record
from artifact.host.store import Store
from artifact.plan import TrialSpec
from artifact.strict_json import from_plain, read, write_atomic
from artifact.trial.identity import code_hash
from tests.host.docker_stub import StubClient, StubContainer, image
from tests.host.toy import toy_plan, toy_study


def engine_for(client: StubClient, **more: Any) -> DockerEngine:
    more.setdefault("reconnect_s", 0.0)
    return DockerEngine(client=client, image_for=image, **more)


def request_for(engine: DockerEngine, tmp_path: Path, **changes: Any) -> Request:
    work = tmp_path / "work"
    (work / "in").mkdir(parents=True, exist_ok=True)
    (work / "out").mkdir(exist_ok=True)
    fields: dict[str, Any] = {
        "campaign": "name",
        "request_id": "r1.m.1x2.c.b1.a1",
        "stack": "xla",
        "arguments": ("trial", "--spec", "/in/trial.json"),
        "environment": {"HOME": "/tmp/trial/home"},
        "layout": engine.layout(work, work / "out", None),
        "work": work,
        "out": work / "out",
        "bundle": None,
        "device": "cpu",
        "limits": Limits(cpus=1, memory_mib=512),
    }
    return Request(**(fields | changes))


def run(client: StubClient, tmp_path: Path, deadline_s: float = 5.0, **changes: Any) -> Outcome:
    engine = engine_for(client)
    return engine.run(request_for(engine, tmp_path, **changes), deadline_s)


def calls(client: StubClient) -> list[str]:
    return client.containers.created[-1].calls


# --- D7: exit code and out-of-memory mark -----------------------------------------------------
@pytest.mark.parametrize(
    ("exit_code", "oom", "status", "words"),
    [
        (137, True, "oom", "out of memory"),
        (137, False, "failed", "killed (137), possible OOM"),
        (1, True, "oom", "out of memory"),
        (0, True, None, "warning"),
        (0, False, None, ""),
        (1, False, "failed", "exit code 1"),
        (None, False, "failed", "could not say"),
    ],
)
def test_exit_rules(exit_code: int | None, oom: bool, status: str | None, words: str) -> None:
    verdict = judge_exit(exit_code, oom)
    assert verdict.status == status
    assert words in verdict.message
    assert bool(verdict.message) == bool(words)


# --- D1, D2, D3: waiting ----------------------------------------------------------------------
def test_exit_code_1_keeps_the_log_and_removes_once(tmp_path: Path) -> None:
    client = StubClient(1)
    outcome = run(client, tmp_path)
    assert (outcome.exit_code, outcome.timed_out) == (1, False)
    assert outcome.log_tail == "the last words"
    assert calls(client) == ["start", "wait", "remove"]


def test_a_container_that_vanishes_is_a_fault_and_removal_is_tried_once(tmp_path: Path) -> None:
    client = StubClient(NotFound("No such container"))
    client.gone = True
    outcome = run(client, tmp_path)
    assert outcome.exit_code is None
    assert "removed by somebody else" in outcome.fault
    assert "no log" in outcome.log_tail
    assert calls(client).count("remove") == 1


@pytest.mark.parametrize(
    "error",
    [
        requests.exceptions.ConnectionError("UnixHTTPConnectionPool: Read timed out."),
        requests.exceptions.ReadTimeout("timeout"),
    ],
)
def test_a_socket_timeout_of_wait_is_our_timeout(tmp_path: Path, error: Exception) -> None:
    client = StubClient(error)
    outcome = run(client, tmp_path)
    assert outcome.timed_out
    assert outcome.fault == ""
    assert calls(client) == ["start", "wait", "kill", "remove"]


def test_the_deadline_is_what_wait_is_given(tmp_path: Path) -> None:
    client = StubClient(0)
    run(client, tmp_path, deadline_s=1234.0)
    assert 1233 < client.containers.created[0].timeout <= 1234


def test_a_lost_connection_long_before_the_deadline_is_not_a_timeout(tmp_path: Path) -> None:
    client = StubClient(requests.exceptions.ConnectionError("Connection aborted."))
    outcome = run(client, tmp_path)
    assert not outcome.timed_out
    assert "lost the connection" in outcome.fault
    assert calls(client)[-1] == "remove"


def test_an_engine_that_stays_away_stops_the_campaign_in_one_line(tmp_path: Path) -> None:
    client = StubClient(requests.exceptions.ConnectionError("Connection aborted."))
    client.ping_error = requests.exceptions.ConnectionError("refused")
    with pytest.raises(UserError) as caught:
        run(client, tmp_path)
    assert "stopped answering" in str(caught.value)
    assert "--resume" in str(caught.value)
    assert calls(client)[-1] == "remove"


def test_a_failed_start_is_removed_and_reported_as_not_started(tmp_path: Path) -> None:
    client = StubClient()

    def refuse(_: StubContainer) -> None:
        raise APIError("500 Server Error", explanation="no such CPU 9")

    client.on_start = refuse
    outcome = run(client, tmp_path)
    assert not outcome.started
    assert "no such CPU 9" in outcome.fault
    assert calls(client) == ["start", "remove"]


# --- whole campaigns on the stub --------------------------------------------------------------
def write_record(status: str = "ok") -> Callable[[StubContainer], int]:
    """A wait during which the "container" writes the record of the trial it was given."""

    def wait(container: StubContainer) -> int:
        folders = {m["Target"]: Path(m["Source"]) for m in container.settings["mounts"]}
        if container.settings["command"][0] == "trial":
            spec = from_plain(TrialSpec, read(folders["/in"] / "trial.json"), "trial")
            code = folders["/out"] / "code" / "program.xz"
            code.parent.mkdir()
            code.write_bytes(b"\xfd7zXZ\x00")
            write_atomic(folders["/out"] / "record.json", fake_record(spec, status))
        return 0

    return wait


def campaign(client: StubClient, tmp_path: Path, **more: Any) -> Any:
    engine = DockerEngine(client=client, image_for=image_of_this_code, reconnect_s=0.0)
    return run_campaign(
        toy_plan(),
        tmp_path / "campaign",
        engine,
        study=toy_study(),
        calibrate=False,
        lock_path=tmp_path / "lock",
        **more,
    )


def image_of_this_code(stack: str) -> Any:
    found = image(stack)
    found.code_hash = code_hash()
    return found


def test_timeouts_are_records_and_the_next_trial_starts(tmp_path: Path) -> None:
    """Case D2, in a campaign: the priming trial and one attempt time out, the rest runs."""
    client = StubClient(
        write_record(),
        requests.exceptions.ConnectionError("Read timed out"),
        requests.exceptions.ReadTimeout("timed out"),
        *[write_record()] * 15,
    )
    summary = campaign(client, tmp_path)
    assert summary.complete
    records, _ = Store(tmp_path / "campaign").scan()
    assert [r.status for r in records].count("timeout") == 2
    assert [r.status for r in records].count("ok") == 16
    for container in client.containers.created:
        assert container.calls.count("remove") == 1
    assert len({r.identity.process_id for r in records}) == len(records)


def test_ctrl_c_kills_removes_exits_130_and_keeps_what_is_finished(tmp_path: Path) -> None:
    """Case D3."""
    client = StubClient(write_record(), write_record(), write_record(), KeyboardInterrupt())
    with pytest.raises(Interrupted) as caught:
        campaign(client, tmp_path)
    assert caught.value.exit_code == 130
    assert all(c.calls[-1] == "remove" for c in client.containers.created)
    records, broken = Store(tmp_path / "campaign").scan()
    assert len(records) == 3
    assert not broken
    client.answers = [write_record()] * 20
    assert campaign(client, tmp_path, resume=True).complete
    assert len(Store(tmp_path / "campaign").scan()[0]) == 16


def test_oom_is_tried_again_but_not_for_ever(tmp_path: Path) -> None:
    """Case D7: "none is retried for ever"."""
    client = StubClient(*[137] * 1000)
    client.state = {"OOMKilled": True}
    summary = campaign(client, tmp_path)
    assert len(summary.given_up) == 15
    assert len(client.containers.created) == 1 + 15 * 3
    records, _ = Store(tmp_path / "campaign").scan()
    assert {r.status for r in records} == {"oom"}


# --- settings ---------------------------------------------------------------------------------
def settings(tmp_path: Path, engine: DockerEngine | None = None, **changes: Any) -> dict[str, Any]:
    client = StubClient()
    engine = engine or engine_for(client)
    engine.run(request_for(engine, tmp_path, **changes), 5.0)
    created: dict[str, Any] = engine._client.containers.created[-1].settings
    return created


def test_the_container_is_locked_down(tmp_path: Path) -> None:
    made = settings(tmp_path)
    assert made["network_mode"] == "none"
    assert made["read_only"] is True
    assert made["cap_drop"] == ["ALL"]
    assert made["security_opt"] == ["no-new-privileges:true"]
    assert made["pids_limit"] > 0
    assert made["mem_limit"] == made["memswap_limit"] == "512m"
    assert made["cpuset_cpus"] == str(min(os.sched_getaffinity(0)))
    assert made["shm_size"]
    assert "exec" in made["tmpfs"]["/tmp"].split(",")
    assert any(option.startswith("size=") for option in made["tmpfs"]["/tmp"].split(","))
    assert not made.get("privileged")
    assert "device_requests" not in made
    assert made["image"] == "sha256:xla"  # the id, not a tag that can move
    assert "/var/run/docker.sock" not in str(made)


def test_no_limits_are_sent_for_zero(tmp_path: Path) -> None:
    made = settings(tmp_path, limits=Limits(cpus=0, memory_mib=0))
    assert not {"mem_limit", "memswap_limit", "cpuset_cpus"} & set(made)


def test_only_the_out_folder_is_writable_and_paths_need_no_escape(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case D9: relative, with a space, a colon and a comma."""
    monkeypatch.chdir(tmp_path)
    engine = engine_for(StubClient())
    odd = Path("my results, r:1")
    made = settings(tmp_path, engine, work=odd, out=make(odd / "out"), bundle=make(odd / "m-s1"))
    mounts = {m["Target"]: m for m in made["mounts"]}
    assert mounts["/out"]["Source"] == str(tmp_path / "my results, r:1" / "out")
    assert sorted(mounts) == ["/bundle/m-s1", "/in", "/out"]
    assert [t for t, m in mounts.items() if not m["ReadOnly"]] == ["/out"]
    assert {m["Type"] for m in mounts.values()} == {"bind"}


def make(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


def test_the_environment_is_exactly_what_the_campaign_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "/some/warm")
    assert settings(tmp_path)["environment"] == {"HOME": "/tmp/trial/home"}


@pytest.mark.parametrize(
    ("uid", "security", "user"),
    [
        (1234, (), "1234:55"),
        (0, (), "10001:10001"),
        (1234, ("name=rootless",), "0:0"),
        (0, ("name=seccomp,profile=default", "name=rootless"), "0:0"),
    ],
)
def test_who_the_process_is(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    uid: int,
    security: tuple[str, ...],
    user: str,
) -> None:
    owned: list[tuple[Path, int, int]] = []
    monkeypatch.setattr(docker_engine.os, "getuid", lambda: uid)
    monkeypatch.setattr(docker_engine.os, "getgid", lambda: 55)
    monkeypatch.setattr(docker_engine.os, "chown", lambda *a, **_: owned.append(a))
    engine = engine_for(StubClient(security=security))
    made = settings(tmp_path, engine)
    assert made["user"] == user
    assert owned == ([(tmp_path / "work" / "out", 10001, 10001)] if user[0:2] == "10" else [])


def test_trials_in_containers_share_no_folder(tmp_path: Path) -> None:
    """Case K1 (a): HOME and TMPDIR lie on a tmpfs of the container, and no mount lies on them."""
    client = StubClient(*[write_record()] * 16)
    assert campaign(client, tmp_path).complete
    made = [container.settings for container in client.containers.created]
    assert len(made) == len({container.id for container in client.containers.created}) == 16
    outs = []
    for each in made:
        targets = {m["Target"]: m for m in each["mounts"]}
        for name in ("HOME", "TMPDIR"):
            path = PurePosixPath(each["environment"][name])
            assert PurePosixPath("/tmp") in path.parents
            assert "/tmp" in each["tmpfs"]
            assert not any(PurePosixPath(t) in (path, *path.parents) for t in targets)
        assert [t for t, m in targets.items() if not m["ReadOnly"]] == ["/out"]
        assert "volumes" not in each
        outs.append(targets["/out"]["Source"])
    assert len(set(outs)) == 16


def test_a_remapping_engine_is_asked_for_the_hosts_uids(tmp_path: Path) -> None:
    engine = engine_for(StubClient(security=("name=userns",)))
    assert settings(tmp_path, engine)["userns_mode"] == "host"
    assert "userns_mode" not in settings(tmp_path)


@pytest.mark.parametrize("option", ["z", "Z"])
def test_selinux_relabels_the_out_folder_only(tmp_path: Path, option: str) -> None:
    """Case D11."""
    made = settings(tmp_path, engine_for(StubClient(), selinux=option))
    assert made["volumes"] == [f"{tmp_path}/work/out:/out:rw,{option}"]
    assert [m["Target"] for m in made["mounts"]] == ["/in"]
    assert all(m["ReadOnly"] for m in made["mounts"])


def test_selinux_and_a_colon_in_the_path_is_refused(tmp_path: Path) -> None:
    engine = engine_for(StubClient(), selinux="z")
    with pytest.raises(UserError, match="':'"):
        settings(tmp_path, engine, out=make(tmp_path / "a:b"))
    with pytest.raises(UserError, match="use z or Z"):
        engine_for(StubClient(), selinux="yes")


# --- D10: GPU ---------------------------------------------------------------------------------
def test_a_gpu_is_requested_for_cuda_only(tmp_path: Path) -> None:
    made = settings(tmp_path, device="cuda")
    assert made["device_requests"][0]["Capabilities"] == [["gpu"]]
    assert "device_requests" not in settings(tmp_path, device="cpu")


def without_toolkit() -> StubClient:
    """An engine that starts no container that asks for a GPU."""
    client = StubClient()
    client.present_images = [SimpleNamespace(id="sha256:xla", attrs={"Size": 1})]

    def refuse(container: StubContainer) -> None:
        if "device_requests" in container.settings:
            text = 'could not select device driver "" with capabilities: [[gpu]]'
            raise APIError("500 Server Error", explanation=text)

    client.on_start = refuse
    return client


CDI = ("nvidia.com/gpu=all", "nvidia.com/gpu=1", "nvidia.com/gpu=0", "vendor.com/nic=0")


@pytest.mark.parametrize(
    ("runtimes", "devices", "driver", "names"),
    [
        (("runc", "nvidia"), (), "", []),
        (("runc", "nvidia"), CDI, "", []),
        (("runc",), CDI, "cdi", ["nvidia.com/gpu=0"]),
        (("runc",), CDI[:1], "cdi", ["nvidia.com/gpu=all"]),
        (("runc",), CDI[3:], "", []),
        ((), (), "", []),
    ],
)
def test_the_gpu_is_asked_for_in_the_engines_own_words(
    tmp_path: Path, runtimes: tuple[str, ...], devices: tuple[str, ...], driver: str, names: Any
) -> None:
    client = StubClient()
    client.information = {
        "Runtimes": {name: {} for name in runtimes},
        "DiscoveredDevices": [{"Source": "cdi", "ID": name} for name in devices],
    }
    (asked,) = settings(tmp_path, engine_for(client), device="cuda")["device_requests"]
    assert (asked["Driver"], asked["DeviceIDs"]) == (driver, names)
    assert asked["Count"] == (0 if driver else 1)
    assert asked["Capabilities"] == ([] if driver else [["gpu"]])
    assert "device_requests" not in settings(tmp_path, engine_for(client), device="cpu")


def test_a_probe_that_starts_means_a_gpu_and_leaves_nothing() -> None:
    client = StubClient()
    assert probe_gpu(client, "sha256:xla") is None
    (container,) = client.containers.created
    assert container.settings["image"] == "sha256:xla"
    assert container.settings["device_requests"][0]["Capabilities"] == [["gpu"]]
    assert container.settings["network_mode"] == "none"
    assert container.calls == ["start", "remove"]


def test_a_probe_says_in_one_line_why_there_is_no_gpu() -> None:
    client = without_toolkit()
    reason = probe_gpu(client)
    assert reason is not None
    assert "NVIDIA Container Toolkit is missing" in reason
    assert calls(client) == ["start", "remove"]
    client.containers.create_error = APIError("400", explanation="CDI device injection failed: x")
    assert probe_gpu(client) == reason
    client.containers.create_error = APIError("500", explanation="no such thing\nmore")
    assert probe_gpu(client) == "Docker cannot hand the GPU to a container: no such thing"


def test_a_probe_without_an_image_asks_the_engine_only() -> None:
    client = StubClient()
    assert "Toolkit is missing" in str(probe_gpu(client))
    client.information = {"Runtimes": {"nvidia": {}}}
    assert probe_gpu(client) is None
    client.information = {"DiscoveredDevices": [{"Source": "cdi", "ID": "nvidia.com/gpu=0"}]}
    assert probe_gpu(client) is None
    assert client.containers.created == []


@pytest.mark.parametrize("device", ["auto", "cuda", "cpu"])
def test_a_device_is_chosen_by_a_probe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    """Case D10: auto falls back and records it, cuda is one line, cpu never asks for a GPU."""
    client = without_toolkit()
    monkeypatch.setattr(machine, "why_no_docker", lambda: None)
    monkeypatch.setattr(machine, "why_no_cuda", lambda engine: probe_gpu(client))
    if device == "cuda":
        with pytest.raises(UserError, match="NVIDIA Container Toolkit") as caught:
            machine.choose("docker", "auto", device, None)
        assert len(str(caught.value).splitlines()) == 1
        return
    choice = machine.choose("docker", "auto", device, None)
    assert (choice.device, choice.profile) == ("cpu", "cpu")
    probes = len(client.containers.created)
    assert probes == (1 if device == "auto" else 0)
    said = any("NVIDIA Container Toolkit" in reason for reason in choice.reasons)
    assert said is (device == "auto")
    engine = engine_for(client)
    engine.run(request_for(engine, tmp_path, device=choice.device), 5.0)
    assert not any("device_requests" in c.settings for c in client.containers.created[probes:])


def test_cuda_without_the_toolkit_is_one_line_that_names_it(tmp_path: Path) -> None:
    client = without_toolkit()
    with pytest.raises(UserError) as caught:
        run(client, tmp_path, device="cuda")
    assert "NVIDIA Container Toolkit" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    assert calls(client) == ["start", "remove"]


# --- faults of the engine ---------------------------------------------------------------------
def test_a_missing_image_is_one_line(tmp_path: Path) -> None:
    client = StubClient()
    client.containers.create_error = ImageNotFound("404 Client Error\nNot Found")
    with pytest.raises(UserError, match="artifact build") as caught:
        run(client, tmp_path)
    assert len(str(caught.value).splitlines()) == 1


def test_a_refused_create_is_one_line(tmp_path: Path) -> None:
    client = StubClient()
    client.containers.create_error = APIError("400", explanation="bind source does not exist")
    with pytest.raises(UserError, match="bind source does not exist"):
        run(client, tmp_path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "Error: ('Connection aborted.', PermissionError(13, 'Permission denied'))",
            "group docker",
        ),
        ("Error: ('Connection aborted.', FileNotFoundError(2, 'No such file'))", "start it"),
    ],
)
def test_no_engine_and_no_permission_are_one_line(
    monkeypatch: pytest.MonkeyPatch, text: str, words: str
) -> None:
    def fail(**_: Any) -> None:
        raise DockerException(text)

    monkeypatch.setattr(docker_engine.DockerClient, "from_env", fail)
    with pytest.raises(UserError, match=words) as caught:
        DockerEngine()
    assert len(str(caught.value).splitlines()) == 1


# --- strays -----------------------------------------------------------------------------------
def test_clean_asks_for_our_label_and_owner_only() -> None:
    client = StubClient()
    client.containers.present = [StubContainer(client, {}), StubContainer(client, {})]
    engine = engine_for(client, owner="me")
    assert engine.remove_strays() == 2
    asked = client.containers.listed_with
    assert asked["all"] is True
    assert asked["filters"] == {"label": ["gaps.container", "gaps.owner=me"]}
    assert all(c.calls == ["remove"] for c in client.containers.present)
    engine.remove_strays("night")
    assert client.containers.listed_with["filters"]["label"][-1] == "gaps.campaign=night"


def test_containers_carry_the_labels_that_clean_looks_for(tmp_path: Path) -> None:
    labels = settings(tmp_path, engine_for(StubClient(), owner="me"))["labels"]
    assert labels["gaps.container"] == "1"
    assert labels["gaps.owner"] == "me"
    assert labels["gaps.campaign"] == "name"


# --- times ------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("started", "finished", "expected_ms"),
    [
        ("2026-01-01T00:00:00.250000000Z", "2026-01-01T00:00:01.5Z", 1250.0),
        ("2026-01-01T02:00:00Z", "2026-01-01T01:00:01+00:00", None),  # clock set back
        ("2026-01-01T00:00:00.5Z", "0001-01-01T00:00:00Z", None),  # not finished
        ("2026-01-01T05:30:00+05:30", "2026-01-01T00:00:01Z", 1000.0),
        ("", "", None),
    ],
)
def test_process_time_comes_from_the_engines_stamps(
    tmp_path: Path, started: str, finished: str, expected_ms: float | None
) -> None:
    client = StubClient(0)
    client.state = {"StartedAt": started, "FinishedAt": finished}
    measured_ms = run(client, tmp_path).process_ms
    assert measured_ms == (None if expected_ms is None else pytest.approx(expected_ms, abs=0.01))
