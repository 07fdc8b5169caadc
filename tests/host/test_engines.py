"""The process engine with real processes and a small program in place of a stack."""

from __future__ import annotations

import hashlib
import os
import sys
import time
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from artifact.errors import UserError
from artifact.host import locks, venvs
from artifact.host.engines import (
    LOG_TAIL_CHARACTERS,
    MESSAGE_CHARACTERS,
    Limits,
    Outcome,
    Request,
    one_line,
    tail,
)
from artifact.host.engines import process as process_engine
from artifact.host.engines.fake import fake_record
from artifact.host.engines.process import ProcessEngine
from artifact.host.outcome import to_record
from artifact.strict_json import dumps
from artifact.trial.identity import code_hash
from tests.host.toy import toy_plan


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[ProcessEngine]:
    temporary = tmp_path / "t"
    temporary.mkdir()
    made = ProcessEngine(
        interpreter_for=lambda stack, accelerator: Path(sys.executable),
        temporary=temporary,
        owner=f"test{os.getpid()}",
    )
    yield made
    assert list(temporary.iterdir()) == []  # nothing of any process is left


@pytest.fixture
def run(engine: ProcessEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run a Python text as the program; its folders are OUT and SCRATCH."""
    monkeypatch.setattr(process_engine, "_BOOTSTRAP", "import sys; exec(sys.argv[2])")

    def call(text: str, deadline_s: float = 30.0, cpus: int = 1) -> Outcome:
        work = tmp_path / "work"
        (work / "in").mkdir(parents=True, exist_ok=True)
        (work / "out").mkdir(exist_ok=True)
        layout = engine.layout(work, work / "out", None)
        head = f"OUT={str(layout.out)!r}\nSCRATCH={str(layout.scratch)!r}\n"
        request = Request(
            campaign="c",
            request_id="r",
            stack="xla",
            arguments=(head + text,),
            environment={
                "HOME": f"{layout.scratch}/home",
                "TMPDIR": f"{layout.scratch}/tmp",
                "USER": "artifact",
                "LOGNAME": "artifact",
            },
            layout=layout,
            work=work,
            out=work / "out",
            bundle=None,
            device="cpu",
            limits=Limits(cpus=cpus, memory_mib=0, file_mib=1),
        )
        call.requests.append(request)  # type: ignore[attr-defined]
        return engine.run(request, deadline_s)

    call.requests = []  # type: ignore[attr-defined]
    return call


def test_the_environment_is_exactly_ours_and_path(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cases K2 and D5."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/some/warm")
    monkeypatch.setenv("LD_PRELOAD", "")
    monkeypatch.delenv("USER", raising=False)
    monkeypatch.delenv("LOGNAME", raising=False)
    run("import os; open(OUT + '/env', 'w').write('\\n'.join(sorted(os.environ)))")
    names = set((tmp_path / "work/out/env").read_text().split())
    assert names - {"LC_CTYPE"} == {"HOME", "TMPDIR", "USER", "LOGNAME", "PATH"}


def test_exit_code_and_log_come_back(run: Any) -> None:
    outcome = run("import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)")
    assert (outcome.exit_code, outcome.timed_out, outcome.oom) == (3, False, False)
    assert sorted(outcome.log_tail.split()) == ["err", "out"]
    assert outcome.process_ms > 0
    assert outcome.identity.code_hash == code_hash()


def test_a_killed_process_is_137(run: Any) -> None:
    assert run("import os; os.kill(os.getpid(), 9)").exit_code == 137


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def gone_within(pid: int, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while alive(pid) and time.monotonic() < end:
        time.sleep(0.02)
    return not alive(pid)


def test_the_deadline_kills_the_process_with_all_its_children(run: Any, tmp_path: Path) -> None:
    start_s = time.monotonic()
    outcome = run(
        "import os, subprocess, sys, time\n"
        "a = subprocess.Popen(['sleep', '60'])\n"
        "b = subprocess.Popen(['sleep', '60'], start_new_session=True)\n"
        "open(OUT + '/pids', 'w').write(f'{os.getpid()} {a.pid} {b.pid}')\n"
        "time.sleep(60)",
        deadline_s=2.0,
    )
    assert outcome.timed_out
    assert outcome.exit_code is None
    assert time.monotonic() - start_s < 30
    pids = [int(p) for p in (tmp_path / "work/out/pids").read_text().split()]
    assert len(pids) == 3
    assert all(gone_within(pid, 5) for pid in pids)


def test_children_left_behind_by_a_process_that_ended_are_killed_too(
    run: Any, tmp_path: Path
) -> None:
    outcome = run(
        "import subprocess\n"
        "p = subprocess.Popen(['sleep', '60'], start_new_session=True)\n"
        "open(OUT + '/pid', 'w').write(str(p.pid))"
    )
    assert outcome.exit_code == 0
    assert gone_within(int((tmp_path / "work/out/pid").read_text()), 5)


def test_cpu_affinity_holds_from_the_start_and_ours_is_put_back(run: Any, tmp_path: Path) -> None:
    before = os.sched_getaffinity(0)
    run("import os; open(OUT + '/cpus', 'w').write(str(sorted(os.sched_getaffinity(0))))")
    assert (tmp_path / "work/out/cpus").read_text() == str(sorted(before)[:1])
    assert os.sched_getaffinity(0) == before


def test_files_are_bounded(run: Any) -> None:
    outcome = run("open(OUT + '/big', 'wb').write(bytes(2 * 1024 * 1024))")
    assert outcome.exit_code != 0


def test_each_process_gets_a_scratch_folder_of_its_own(run: Any, tmp_path: Path) -> None:
    """Case K1 (a): fresh HOME and TMPDIR, gone afterwards."""
    seen = []
    for _ in range(2):
        run(
            "import os; os.makedirs(os.environ['TMPDIR'])\n"
            "open(OUT + '/dir', 'w').write(os.environ['TMPDIR'])"
        )
        seen.append((tmp_path / "work/out/dir").read_text())
    assert seen[0] != seen[1]
    assert not Path(seen[0]).exists()
    assert not seen[0].startswith(str(tmp_path / "work"))


def test_strays_of_a_killed_campaign_are_found_killed_and_removed(
    engine: ProcessEngine, tmp_path: Path
) -> None:
    import subprocess

    private = engine.layout(tmp_path, tmp_path, None).scratch.parent
    private.mkdir()
    environment = {"TMPDIR": f"{private}/scratch/tmp", "PATH": os.defpath}
    ours = subprocess.Popen(["sleep", "60"], env=environment, start_new_session=True)
    other = subprocess.Popen(["sleep", "60"], env={"TMPDIR": "/tmp/x", "PATH": os.defpath})
    try:
        time.sleep(0.2)
        assert engine.remove_strays() == 1
        assert ours.wait(5) == -9
        assert other.poll() is None
        assert engine.remove_strays() == 0
    finally:
        other.kill()
        other.wait()


def test_a_missing_interpreter_is_one_line(tmp_path: Path) -> None:
    engine = ProcessEngine(interpreter_for=lambda stack, accelerator: tmp_path / "python3")
    with pytest.raises(UserError, match="no interpreter for stack xla"):
        engine.prepare(["xla"])


def packages(folder: Path, **versions: str) -> None:
    """What `importlib.metadata` finds of installed packages."""
    for name, version in versions.items():
        info = folder / f"{name}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n")


def environment(folder: Path) -> Path:
    """The interpreter of an empty virtual environment."""
    venv.create(folder, symlinks=True)
    return folder / "bin" / "python3"


def test_a_named_interpreter_has_a_hash_of_its_packages_not_the_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interpreter = environment(tmp_path / "venv")
    site = next((tmp_path / "venv" / "lib").glob("python3*")) / "site-packages"
    packages(site, torch="2.0", numpy="1.9")
    (site / "gone-1.0.dist-info").mkdir()
    packages(tmp_path / "caller", jax="9")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "caller"))

    def lock_hash() -> str:
        engine = ProcessEngine(interpreter_for=lambda stack, accelerator: interpreter)
        return engine.prepare(["xla"])["xla"].lock_hash

    expected = hashlib.sha256(b"numpy==1.9\ntorch==2.0").hexdigest()
    assert lock_hash() == f"unlocked-{expected}"
    packages(site, scipy="1.0")
    assert lock_hash() not in (f"unlocked-{expected}", locks.lock_hash("xla"))


def test_the_environment_made_from_the_locks_has_their_hash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = venvs.venv_directory("xla", parent=tmp_path)
    interpreter = environment(made)
    monkeypatch.setattr(venvs, "venv_directory", lambda stack, accelerator: made)
    engine = ProcessEngine(interpreter_for=lambda stack, accelerator: interpreter)
    assert engine.prepare(["xla"])["xla"].lock_hash == locks.lock_hash("xla")


def test_an_interpreter_that_cannot_list_its_packages_is_one_line(tmp_path: Path) -> None:
    broken = tmp_path / "python3"
    broken.write_text('#!/bin/sh\n[ "$1" = -V ] && echo Python 3.11.2\n')
    broken.chmod(0o755)
    engine = ProcessEngine(interpreter_for=lambda stack, accelerator: broken)
    with pytest.raises(UserError, match="cannot list its packages"):
        engine.prepare(["xla"])


def test_a_record_before_a_slow_exit_is_accepted_when_the_deadline_kills_it(
    run: Any, tmp_path: Path
) -> None:
    """Case K5, with a real process: the record is whole, the interpreter hangs afterwards."""
    spec = next(iter(toy_plan().trials()))
    out = tmp_path / "work" / "out"
    (out / "code").mkdir(parents=True)
    (out / "code" / "program.xz").write_bytes(b"\xfd7zXZ\x00")
    text = dumps(fake_record(spec, "ok"))
    outcome = run(
        f"import time; open(OUT + '/record.json', 'w').write({text!r}); time.sleep(60)",
        deadline_s=3.0,
    )
    assert outcome.timed_out
    record, code = to_record(run.requests[-1], outcome, spec, "process", "boot", "", 0)
    assert record.status == "ok"
    assert record.execution_ms == fake_record(spec, "ok").execution_ms
    assert record.message == "killed at the deadline after its record"
    assert sorted(code) == ["program.xz"]


def test_a_message_is_one_bounded_harmless_line() -> None:
    assert one_line("a\n\x1b[2Jb\tc\r") == "a ?[2Jb c?"
    assert len(one_line("x" * 100_000)) == MESSAGE_CHARACTERS


def test_a_log_tail_is_bounded_and_harmless() -> None:
    assert len(tail("x" * 100_000)) == LOG_TAIL_CHARACTERS
    assert tail("a\x1b[2Jb\nc\td\r") == "a?[2Jb\nc\td?"
