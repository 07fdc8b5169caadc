"""Failure drills with real containers: nothing measured is lost, nothing counted twice, none left.

The containers hold a shell instead of a compiler stack, so that a drill takes seconds.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from docker.client import DockerClient
from docker.errors import DockerException

from artifact.errors import UserError
from artifact.host import campaign as campaigns
from artifact.host.lock import campaign_lock
from artifact.host.store import Store
from artifact.records import Record
from tests.docker.drill import FORKS, HANG, OK, OUT_OF_MEMORY, DrillEngine, campaign, tiny_image
from tests.host.toy import toy_plan

pytestmark = pytest.mark.docker

CHECKOUT = Path(__file__).parents[2]
EXPECTED = sorted(spec.trial_id for spec in toy_plan().trials())


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    try:
        made = DockerClient.from_env(timeout=60)
        made.ping()
    except (DockerException, requests.exceptions.RequestException) as error:
        pytest.skip(f"no Docker engine answers: {error}")
    with campaign_lock():  # drills would disturb a campaign that measures
        yield made
    made.close()


@pytest.fixture
def owner(client: Any, request: pytest.FixtureRequest) -> Iterator[str]:
    """A label of this drill alone; nothing with it may be left at the end."""
    name = f"drill-{os.getpid()}-{request.node.name}"
    yield name
    left = containers(client, name)
    for container in left:
        container.remove(force=True)
    assert left == []


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "results" / "drill one"


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    return tmp_path / "lock"


def containers(client: Any, owner: str) -> list[Any]:
    found: list[Any] = client.containers.list(
        all=True, filters={"label": f"gaps.owner={owner}"}, ignore_removed=True
    )
    return found


def measured(directory: Path) -> list[Record]:
    records, broken = Store(directory).scan()
    assert broken == []
    return [r for r in records if r.spec.role == "measured"]


def oks(directory: Path) -> list[str]:
    return sorted(r.spec.trial_id for r in measured(directory) if r.pooled)


def start_child(
    directory: Path, owner: str, lock: Path, *more: str, **environment: str
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-B", "-m", "tests.docker.drill", str(directory), owner, str(lock), *more],
        cwd=CHECKOUT,
        env={**os.environ, **environment},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_for_records(directory: Path, count: int, child: subprocess.Popen[str]) -> None:
    end = time.monotonic() + 120
    while len(list((directory / "records").glob("r*.json"))) < count:
        assert child.poll() is None, child.communicate()[1]
        assert time.monotonic() < end
        time.sleep(0.02)


def wait_for_container(client: Any, owner: str) -> Any:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        running = [c for c in containers(client, owner) if c.status == "running"]
        if running:
            return running[0]
        time.sleep(0.02)
    raise AssertionError("no container was started")


def test_sigkill_of_the_campaign(client: Any, owner: str, directory: Path, lock: Path) -> None:
    child = start_child(directory, owner, lock)
    wait_for_records(directory, 4, child)
    wait_for_container(client, owner)
    child.kill()
    child.communicate()
    before = {r.spec.record_id: r for r in measured(directory)}
    summary = campaign(directory, DrillEngine(owner), lock, resume=True)
    assert summary.complete
    assert summary.ran == 15 - len(before)
    assert oks(directory) == EXPECTED
    assert before.items() <= {r.spec.record_id: r for r in measured(directory)}.items()
    assert campaign(directory, DrillEngine(owner), lock, resume=True).ran == 0


def test_clean_removes_the_stray_of_a_killed_campaign(
    client: Any, owner: str, directory: Path, lock: Path
) -> None:
    child = start_child(directory, owner, lock)
    wait_for_container(client, owner)
    child.kill()
    child.communicate()
    stray_or_none = len(containers(client, owner))
    assert campaigns.clean(DrillEngine(owner), lock) == stray_or_none
    assert containers(client, owner) == []


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal(
    client: Any, owner: str, directory: Path, lock: Path, number: signal.Signals, code: int
) -> None:
    child = start_child(directory, owner, lock)
    wait_for_records(directory, 2, child)
    wait_for_container(client, owner)
    child.send_signal(number)
    _, errors = child.communicate(timeout=60)
    assert child.returncode == code, errors
    assert "Traceback" not in errors
    assert containers(client, owner) == []
    kept = len(measured(directory))
    assert 2 <= kept < 15
    assert campaign(directory, DrillEngine(owner), lock, resume=True).ran == 15 - kept
    assert oks(directory) == EXPECTED


def test_a_container_killed_by_somebody(
    client: Any, owner: str, directory: Path, lock: Path
) -> None:
    engine = DrillEngine(owner, {"a": (HANG, OK)})
    stop = threading.Event()

    def kill_hanging_ones() -> None:
        while not stop.wait(0.2):
            for container in containers(client, owner):
                if container.attrs["Config"]["Cmd"] == [HANG] and container.status == "running":
                    container.kill()

    killer = threading.Thread(target=kill_hanging_ones)
    killer.start()
    try:
        summary = campaign(directory, engine, lock)
    finally:
        stop.set()
        killer.join()
    assert summary.complete
    failed = [r for r in measured(directory) if r.status != "ok"]
    assert len(failed) == 6
    assert {(r.status, r.message) for r in failed} == {("failed", "killed (137), possible OOM")}
    assert oks(directory) == EXPECTED


def test_an_out_of_memory_kill(owner: str, directory: Path, lock: Path) -> None:
    summary = campaign(directory, DrillEngine(owner, {"b": (OUT_OF_MEMORY, OK)}), lock)
    assert summary.complete
    bad = [r for r in measured(directory) if r.status != "ok"]
    assert [r.status for r in bad] == ["oom"] * 6
    assert oks(directory) == EXPECTED


def test_the_deadline(owner: str, directory: Path, lock: Path, monkeypatch: Any) -> None:
    engine = DrillEngine(owner, {"c": (HANG, OK)})
    run = engine.run
    monkeypatch.setattr(engine, "run", lambda request, deadline_s: run(request, 2.0))
    summary = campaign(directory, engine, lock)
    assert summary.complete
    late = [r for r in measured(directory) if r.status != "ok"]
    assert [r.status for r in late] == ["timeout"] * 3
    assert all(r.overhead_ms is not None and r.overhead_ms < 20_000 for r in late)
    assert oks(directory) == EXPECTED


def test_a_fork_bomb_is_contained(
    owner: str, directory: Path, lock: Path, monkeypatch: Any
) -> None:
    engine = DrillEngine(owner, {"c": (FORKS, OK)})
    run = engine.run
    monkeypatch.setattr(engine, "run", lambda request, deadline_s: run(request, 5.0))
    limits = campaigns.Limits
    monkeypatch.setattr(campaigns, "Limits", lambda **k: limits(**k, pids=64))
    assert campaign(directory, engine, lock).complete
    bombs = [r for r in measured(directory) if r.status != "ok"]
    assert len(bombs) == 3
    assert {r.status for r in bombs} <= {"timeout", "failed"}
    assert oks(directory) == EXPECTED


def test_two_campaigns_at_once(
    client: Any, owner: str, directory: Path, lock: Path, tmp_path: Path
) -> None:
    child = start_child(directory, owner, lock)
    wait_for_records(directory, 1, child)
    second = start_child(tmp_path / "second", owner, lock)
    _, errors = second.communicate(timeout=60)
    assert second.returncode == 2
    assert f"process {child.pid}" in errors
    assert len(errors.strip().splitlines()) == 1
    child.communicate(timeout=120)
    assert child.returncode == 0
    assert oks(directory) == EXPECTED
    assert not (tmp_path / "second").exists()


def test_truncated_and_tampered_records(owner: str, directory: Path, lock: Path) -> None:
    campaign(directory, DrillEngine(owner), lock)
    first, second = sorted((directory / "records").glob("r*.json"))[:2]
    first.write_bytes(first.read_bytes()[:100])
    second.write_text(second.read_text().replace('"executions": 3', '"executions": 4'))
    assert campaign(directory, DrillEngine(owner), lock, resume=True).ran == 2
    assert oks(directory) == EXPECTED
    assert len(list((directory / "records").glob("*.broken"))) == 2


@pytest.mark.skipif(os.getuid() != 0, reason="mounting a small file system needs root")
def test_disk_full(owner: str, lock: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real full file system: container and host fail to write, no attempt is used up."""
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(small)], check=True)
    try:
        monkeypatch.setattr(campaigns, "FREE_BYTES", 65_536)
        engine = DrillEngine(owner)
        count = iter(range(1000))

        def fill_up() -> None:
            if next(count) == 5:
                with (small / "filler").open("wb", buffering=0) as stream:
                    _write_until_full(stream)

        engine.before_start = fill_up
        with pytest.raises(UserError) as caught:
            campaign(small / "drill", engine, lock)
        assert len(str(caught.value).splitlines()) == 1
        assert "disk is full" in str(caught.value)
        (small / "filler").unlink()
        kept = {r.spec.record_id: r for r in measured(small / "drill")}
        assert len(kept) == 4  # the fifth process was the first one that found no room
        campaign(small / "drill", DrillEngine(owner), lock, resume=True)
        assert oks(small / "drill") == EXPECTED
        assert kept.items() <= {r.spec.record_id: r for r in measured(small / "drill")}.items()
    finally:
        subprocess.run(["umount", str(small)], check=True)


def _write_until_full(stream: Any) -> None:
    for size in (65_536, 4096, 512, 1):
        try:
            while True:
                stream.write(bytes(size))
        except OSError:
            continue


def test_everything_belongs_to_the_caller(owner: str, directory: Path, lock: Path) -> None:
    """Case D6."""
    campaign(directory, DrillEngine(owner), lock)
    strangers = [p for p in directory.rglob("*") if p.lstat().st_uid != os.getuid()]
    assert strangers == []
    assert list((directory / "work").iterdir()) == []


# --- the engine itself goes away --------------------------------------------------------------
class PrivateEngine:
    """A second dockerd with folders of its own, which a drill may stop and start."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.host = f"unix://{folder}/docker.sock"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        program = shutil.which("dockerd")
        assert program is not None
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [
                    program, "--host", self.host, "--data-root", str(self.folder / "data"),
                    "--exec-root", str(self.folder / "exec"), "--pidfile", str(self.folder / "pid"),
                    "--bridge", "none", "--iptables=false", "--shutdown-timeout", "1",
                ],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )  # fmt: skip
        self.client()

    def client(self) -> Any:
        end = time.monotonic() + 60
        while True:
            try:
                made = DockerClient(base_url=self.host, timeout=60)
                made.ping()
                return made
            except (DockerException, requests.exceptions.RequestException):
                assert time.monotonic() < end, (self.folder / "log").read_text()[-2000:]
                time.sleep(0.2)

    def stop(self) -> None:
        assert self.process is not None
        self.process.terminate()
        self.process.wait(60)


@pytest.fixture
def private_engine(client: Any) -> Iterator[PrivateEngine]:
    if os.getuid() != 0 or shutil.which("dockerd") is None:
        pytest.skip("starting a second engine needs root and dockerd")
    folder = Path(
        subprocess.check_output(["mktemp", "-d", "/tmp/gaps-engine-XXXXXX"], text=True)[:-1]
    )
    engine = PrivateEngine(folder)
    engine.start()
    try:
        yield engine
    finally:
        engine.stop()
        shutil.rmtree(folder, ignore_errors=True)


def test_the_engine_restarts_in_the_middle(
    private_engine: PrivateEngine, owner: str, directory: Path, lock: Path
) -> None:
    tiny_image(private_engine.client())
    child = start_child(directory, owner, lock, DOCKER_HOST=private_engine.host)
    wait_for_records(directory, 3, child)
    wait_for_container(private_engine.client(), owner)
    private_engine.stop()
    time.sleep(2)
    private_engine.start()
    _, errors = child.communicate(timeout=180)
    assert child.returncode == 0, errors
    assert oks(directory) == EXPECTED
    assert containers(private_engine.client(), owner) == []


def test_the_engine_stays_away(
    private_engine: PrivateEngine, owner: str, directory: Path, lock: Path
) -> None:
    client = private_engine.client()
    engine = DrillEngine(owner, client=client, reconnect_s=1.0)
    run, count = engine.run, iter(range(1000))

    def stop_it(request: Any, deadline_s: float) -> Any:
        if next(count) == 4:
            threading.Timer(0.2, private_engine.stop).start()
        return run(request, deadline_s)

    engine.run = stop_it  # type: ignore[method-assign]
    with pytest.raises(UserError) as caught:
        campaign(directory, engine, lock)
    assert len(str(caught.value).splitlines()) == 1
    assert "--resume" in str(caught.value)
    kept = {r.spec.record_id for r in measured(directory)}
    assert kept
    time.sleep(1)
    private_engine.start()
    again = DrillEngine(owner, client=private_engine.client())
    campaign(directory, again, lock, resume=True)
    assert oks(directory) == EXPECTED
    assert containers(private_engine.client(), owner) == []
