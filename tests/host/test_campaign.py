"""The campaign on the fake engine: order, attempts, resume, signals, refusals."""

from __future__ import annotations

import dataclasses
import errno
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from artifact.errors import UserError
from artifact.host import bench
from artifact.host import campaign as campaigns
from artifact.host import manifest as manifests
from artifact.host.campaign import Interrupted, Summary, run_campaign
from artifact.host.engines import Limits, StackIdentity
from artifact.host.engines.fake import FakeEngine
from artifact.host.progress import PlainReporter
from artifact.host.store import Store
from artifact.plan import Plan, make_plan
from artifact.records import Record, current
from artifact.strict_json import read, write_atomic
from tests.host.toy import toy_plan, toy_study

Run = Callable[..., Summary]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "results" / "camp aign"


@pytest.fixture
def run(directory: Path, tmp_path: Path) -> Run:
    def call(engine: FakeEngine | None = None, plan: Plan | None = None, **more: Any) -> Summary:
        more.setdefault("lock_path", tmp_path / "lock")
        more.setdefault("study", toy_study())
        more.setdefault("progress", PlainReporter(open(os.devnull, "w")))  # noqa: PTH123, SIM115
        return run_campaign(plan or toy_plan(), directory, engine or FakeEngine(), **more)

    return call


def measured(directory: Path) -> list[Record]:
    records, broken = Store(directory).scan()
    assert not broken
    return [r for r in records if r.spec.role == "measured"]


def started(log: Path) -> list[str]:
    return [line.split()[1] for line in log.read_text().splitlines() if line.startswith("start")]


def never_two_at_once(log: Path) -> bool:
    """Every start is followed by the end of the same process."""
    lines = [line.split()[:2] for line in log.read_text().splitlines()]
    pairs = zip(lines[::2], lines[1::2], strict=True)
    return all(a == ["start", b[1]] and b[0] == "end" for a, b in pairs)


def test_order_is_priming_then_a_calibration_before_each_block_in_plan_order(
    run: Run, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    run(FakeEngine(log=log))
    plan = toy_plan()
    expected = [f"{spec.trial_id}.b1.a1" for spec in plan.priming]
    for block in plan.blocks:
        expected.append(f"calibration.{block.block_id}")
        expected += [spec.record_id for spec in block.trials]
    assert started(log) == expected
    assert never_two_at_once(log)


def test_each_attempt_is_a_process_of_its_own(run: Run, directory: Path) -> None:
    run(FakeEngine({"a": ("failed", "ok")}))
    records = measured(directory)
    assert len(records) == 15 + 6
    assert len({r.identity.process_id for r in records}) == len(records)


def test_seed_decides_the_order(run: Run, tmp_path: Path, directory: Path) -> None:
    orders = []
    for seed in (1, 1, 2):
        log = tmp_path / f"log-{len(orders)}"
        run(FakeEngine(log=log), toy_plan(seed))
        orders.append(started(log))
        shutil.rmtree(directory)
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == sorted(orders[2])


def test_plan_and_manifest_are_on_disk_before_the_first_process(run: Run, directory: Path) -> None:
    engine = FakeEngine()
    seen: list[bool] = []
    engine.on_run = lambda request: seen.append(
        Store(directory).plan() == toy_plan() and "identity" in Store(directory).manifest()
    )
    run(engine)
    assert seen
    assert all(seen)


@pytest.mark.parametrize(
    "status", ["failed", "wrong-output", "warm", "page-cold", "timeout", "oom"]
)
def test_a_bad_attempt_is_kept_and_tried_again(run: Run, directory: Path, status: str) -> None:
    summary = run(FakeEngine({"a": (status, "ok")}))
    own = [r for r in measured(directory) if r.spec.configuration == "a"]
    assert sorted((r.spec.attempt, r.status) for r in own) == [(1, status)] * 6 + [(2, "ok")] * 6
    assert summary.complete
    assert summary.attempts["m1", "1x3x8x8", "a"] == {status: 3, "ok": 3}


def test_a_cell_is_given_up_after_its_attempts_and_the_others_still_run(
    run: Run, directory: Path
) -> None:
    summary = run(FakeEngine({"a": ("oom",)}), toy_plan(), study=toy_study(attempts=2))
    records = measured(directory)
    assert sum(r.status == "oom" for r in records) == 6 * 2
    assert sum(r.status == "ok" for r in records) == 9
    assert not summary.complete
    assert sorted(summary.given_up) == sorted(
        s.trial_id for s in toy_plan().trials() if s.configuration == "a"
    )


def test_unsupported_is_not_tried_again_and_stops_nothing(run: Run, directory: Path) -> None:
    summary = run(FakeEngine({"b": ("unsupported",)}))
    own = [r for r in measured(directory) if r.spec.configuration == "b"]
    assert [r.status for r in own] == ["unsupported"] * 6
    assert len(summary.unsupported) == 6
    assert summary.complete


@pytest.mark.parametrize(
    ("behaviour", "status", "words"),
    [
        ("killed", "failed", "killed (137), possible OOM"),
        ("no-record", "failed", "exit code 1"),
        ("truncated", "failed", "not strict JSON"),
        ("symlink", "failed", "record.json"),
        ("other-trial", "failed", "another trial"),
    ],
)
def test_a_process_without_a_valid_record_gives_a_failed_one_with_its_log(
    run: Run, directory: Path, behaviour: str, status: str, words: str
) -> None:
    run(FakeEngine({"c": (behaviour, "ok")}))
    bad = [r for r in measured(directory) if r.spec.configuration == "c" and r.spec.attempt == 1]
    assert len(bad) == 3
    for record in bad:
        assert record.status == status
        assert words in record.message
        assert record.log_tail == f"fake {behaviour}"
        assert record.identity.engine == "fake"
        assert not record.execution_ms


def test_the_host_fills_in_identity_and_overhead(run: Run, directory: Path) -> None:
    run(FakeEngine())
    for record in measured(directory):
        identity = record.identity
        assert identity.image_id == "fake-xla"
        assert identity.lock_hash == "fake-lock"
        assert identity.engine == "fake"
        assert identity.boot_id == manifests.boot_id()
        assert record.overhead_ms is not None
        assert 0 < record.overhead_ms < 5_000


def test_an_image_that_ran_other_code_than_its_label_says_is_refused(run: Run) -> None:
    stale = {"xla": StackIdentity("i", "l", "0" * 64)}
    with pytest.raises(UserError, match="artifact build"):
        run(FakeEngine(stack_ids=stale))


# --- resume -----------------------------------------------------------------------------------
def test_a_folder_that_is_not_empty_is_refused_without_resume(run: Run, directory: Path) -> None:
    run()
    before = {p: p.read_bytes() for p in directory.rglob("*") if p.is_file()}
    with pytest.raises(UserError, match=r"not empty.*--resume"):
        run()
    assert {p: p.read_bytes() for p in directory.rglob("*") if p.is_file()} == before


def test_a_folder_of_something_else_is_refused_even_with_resume(run: Run, directory: Path) -> None:
    directory.mkdir(parents=True)
    (directory / "thesis.txt").write_text("mine")
    with pytest.raises(UserError, match="not a campaign"):
        run(resume=True)
    assert [p.name for p in directory.iterdir()] == ["thesis.txt"]


def test_resume_of_a_complete_campaign_runs_nothing(run: Run) -> None:
    run()
    engine = FakeEngine()
    summary = run(engine, resume=True)
    assert engine.requests == []
    assert (summary.ran, summary.already_done) == (0, 15)


def stop_after(count: int) -> FakeEngine:
    """An engine in which Ctrl-C arrives while process number `count` runs."""
    engine = FakeEngine()

    def interrupt(_: object) -> None:
        if len(engine.requests) == count:
            raise KeyboardInterrupt

    engine.on_run = interrupt
    return engine


def contents(directory: Path) -> dict[str, tuple[Any, ...]]:
    return {r.spec.record_id: (r.status, r.execution_ms, r.phases) for r in measured(directory)}


@pytest.mark.parametrize("count", [1, 2, 5, 11])
def test_resume_after_an_interrupt_gives_the_uninterrupted_set(
    run: Run, directory: Path, count: int
) -> None:
    run()
    whole = contents(directory)
    shutil.rmtree(directory)
    with pytest.raises(Interrupted) as caught:
        run(stop_after(count))
    assert caught.value.exit_code == 130
    finished = contents(directory)
    run(resume=True)
    assert contents(directory) == whole
    assert finished.items() <= whole.items()


def test_the_interrupted_trial_is_not_marked_done(run: Run, directory: Path) -> None:
    engine = stop_after(4)
    with pytest.raises(Interrupted):
        run(engine)
    assert engine.requests[-1].request_id not in contents(directory)
    assert not list((directory / "work").iterdir())
    assert "SIGINT" in Store(directory).manifest()["sessions"][-1]["end"]


def test_resume_keeps_used_attempts(run: Run, directory: Path) -> None:
    engine = FakeEngine({"a": ("failed", "failed", "ok")})
    engine.on_run = stop_at_second_attempt
    with pytest.raises(Interrupted):
        run(engine)
    run(FakeEngine({"a": ("failed", "failed", "ok")}), resume=True)
    own = [r for r in measured(directory) if r.spec.configuration == "a"]
    assert len(own) == 6 * 3
    assert {r.spec.attempt for r in own if r.status == "ok"} == {3}


def stop_at_second_attempt(request: Any) -> None:
    if request.request_id.endswith(".a2"):
        raise KeyboardInterrupt


@pytest.mark.parametrize("damage", ["truncate", "tamper", "rename"])
def test_resume_moves_a_broken_record_aside_and_runs_only_that_trial(
    run: Run, directory: Path, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run()
    whole = contents(directory)
    victim = sorted((directory / "records").glob("r*.json"))[3]
    text = victim.read_text()
    if damage == "truncate":
        victim.write_text(text[: len(text) // 2])
    elif damage == "tamper":
        victim.write_text(text.replace('"execution_ms": [\n  ', '"execution_ms": [\n  1'))
    else:
        victim.rename(victim.with_name("r1.m1.1x3x8x8.z.b1.a1.json"))
    assert victim.exists() is (damage != "rename")
    engine = FakeEngine()
    summary = run(engine, resume=True, progress=PlainReporter())
    assert summary.ran == 1
    assert [r.request_id for r in engine.requests if "calibration" not in r.request_id] == [
        victim.stem
    ]
    assert len(list((directory / "records").glob("*.broken"))) == 1
    assert "moved aside" in capsys.readouterr().err
    assert contents(directory) == whole


def test_an_interrupted_block_runs_again_as_a_whole_after_a_reboot(
    run: Run, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = toy_plan()
    inside = next(b for b in plan.blocks if len(b.trials) == 3)
    engine = FakeEngine()

    def interrupt(request: Any) -> None:
        if request.request_id == inside.trials[1].record_id:
            raise KeyboardInterrupt

    engine.on_run = interrupt
    with pytest.raises(Interrupted):
        run(engine)
    complete_before = {r.spec.block_id for r in measured(directory)} - {inside.block_id}
    monkeypatch.setattr(manifests, "boot_id", lambda: "another-boot")
    second = FakeEngine()
    run(second, resume=True)
    names = [r.request_id for r in second.requests]
    assert names[0].startswith("priming.")  # the page cache is gone too
    assert [n for n in names if n.startswith(inside.block_id)] == [
        f"{spec.trial_id}.b2.a1" for spec in inside.trials
    ]
    assert not [n for n in names if any(n.startswith(f"{b}.") for b in complete_before)]
    pooled = [r for r in current(measured(directory)) if r.spec.block_id == inside.block_id]
    assert {r.identity.boot_id for r in pooled} == {"another-boot"}
    assert len(pooled) == 3
    assert len(current(measured(directory))) == 15


@pytest.mark.parametrize("what", ["image", "lock", "code", "seed", "protocol", "engine"])
def test_resume_refuses_to_mix_identities_and_names_what_differs(run: Run, what: str) -> None:
    with pytest.raises(Interrupted):
        run(stop_after(5))
    engine, plan, study = FakeEngine(), toy_plan(), toy_study()
    made = engine.prepare(["xla"])["xla"]
    if what == "image":
        engine.stack_ids["xla"] = dataclasses.replace(made, image_id="other")
    elif what == "lock":
        engine.stack_ids["xla"] = dataclasses.replace(made, lock_hash="other")
    elif what == "code":
        engine.stack_ids["xla"] = dataclasses.replace(made, code_hash="other")
    elif what == "seed":
        plan = toy_plan(seed=8)
    elif what == "protocol":
        study = toy_study(attempts=9)
    else:
        engine.name = "docker"  # type: ignore[misc]
    with pytest.raises(UserError) as caught:
        run(engine, plan, study=study, resume=True)
    key = {"image": "xla.image", "lock": "xla.lock_hash", "code": "xla.code_hash"}.get(what, what)
    lines = str(caught.value).splitlines()
    assert len(lines) == 2
    assert f"{key}" in lines[0]
    assert " -> " in lines[1]
    assert not re.search("[0-9a-f]{20}", str(caught.value))  # hashes are cut
    assert engine.requests == []


def test_resume_names_another_isa_or_precision() -> None:
    plan, study = toy_plan(), toy_study()
    native = make_plan(study, "toy", isa="native")
    before = manifests.identity(plan, study.protocol, "fake", {})
    now = manifests.identity(native, study.protocol, "fake", {})
    assert (before["isa"], before["precision"]) == ("avx2", "fp32")
    with pytest.raises(UserError) as caught:
        manifests.refuse_difference("x", before, now | {"precision": "tf32"})
    first, second = str(caught.value).splitlines()
    assert first.endswith("settings: isa, plan, precision")
    assert "isa avx2 -> native" in second
    assert "precision fp32 -> tf32" in second
    manifests.refuse_difference("x", before, dict(before))


def test_a_refused_resume_stays_two_lines_however_much_differs() -> None:
    before = {f"key{i:02d}": "a" * 64 for i in range(30)}
    with pytest.raises(UserError) as caught:
        manifests.refuse_difference("x", before, {})
    lines = str(caught.value).splitlines()
    assert len(lines) == 2
    assert "22 more" in lines[1]
    assert len(lines[1]) < 600


# --- kill, signals, lock ----------------------------------------------------------------------
CHILD = """
import sys
from pathlib import Path
from artifact.host.campaign import Interrupted, run_campaign
from artifact.host.engines.fake import FakeEngine
from tests.host.toy import toy_plan, toy_study
directory, lock, log = map(Path, sys.argv[1:4])
engine = FakeEngine(duration_s=0.05, log=log)
try:
    run_campaign(toy_plan(), directory, engine, study=toy_study(), lock_path=lock,
                 resume="--resume" in sys.argv)
except Interrupted as stop:
    print(stop, file=sys.stderr)
    sys.exit(stop.exit_code)
"""


def start_child(directory: Path, tmp_path: Path) -> tuple[subprocess.Popen[str], Path]:
    """A campaign in another process; returns once its third trial has started."""
    log = tmp_path / "child.log"
    child = subprocess.Popen(
        [sys.executable, "-B", "-c", CHILD, str(directory), str(tmp_path / "lock"), str(log)],
        cwd=Path(__file__).parents[2],
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while not (log.exists() and log.read_text().count("start r") >= 3):
        assert time.monotonic() < deadline
        assert child.poll() is None
        time.sleep(0.01)
    return child, log


def test_kill_9_in_the_middle_then_resume_gives_the_uninterrupted_set(
    run: Run, directory: Path, tmp_path: Path
) -> None:
    child, _ = start_child(directory, tmp_path)
    child.kill()
    child.communicate()
    partial = contents(directory)
    assert 0 < len(partial) < 15
    run(resume=True)
    resumed = contents(directory)
    shutil.rmtree(directory)
    run()
    assert resumed == contents(directory)
    assert partial.items() <= resumed.items()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_with_its_exit_code_and_keeps_what_is_finished(
    run: Run, directory: Path, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    child, log = start_child(directory, tmp_path)
    child.send_signal(number)
    _, errors = child.communicate(timeout=60)
    assert child.returncode == code
    assert "Traceback" not in errors
    assert "--resume" in errors
    assert never_two_at_once(log)
    kept = contents(directory)
    assert kept
    run(resume=True)
    assert len(contents(directory)) == 15


def test_a_second_campaign_is_refused_and_names_the_first(
    run: Run, directory: Path, tmp_path: Path
) -> None:
    child, log = start_child(directory, tmp_path)
    try:
        with pytest.raises(UserError, match=f"process {child.pid}"):
            run_campaign(
                toy_plan(),
                tmp_path / "second",
                FakeEngine(log=log),
                study=toy_study(),
                lock_path=tmp_path / "lock",
            )
        with pytest.raises(UserError, match=f"process {child.pid}"):
            campaigns.clean(FakeEngine(), tmp_path / "lock")
    finally:
        child.communicate(timeout=60)
    assert child.returncode == 0
    assert not (tmp_path / "second").exists()
    assert {line.split()[2] for line in log.read_text().splitlines()} == {str(child.pid)}
    assert never_two_at_once(log)


def test_signal_handlers_are_put_back(run: Run) -> None:
    before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    with pytest.raises(Interrupted):
        run(stop_after(2))
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == before


# --- disk, clock, environment -----------------------------------------------------------------
def test_a_full_disk_is_one_line_and_loses_nothing(
    run: Run, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = FakeEngine()
    real = shutil.disk_usage(directory.anchor)

    def usage(path: Any) -> Any:
        return real._replace(free=2**20 if len(engine.requests) > 6 else 2**40)

    monkeypatch.setattr(campaigns.shutil, "disk_usage", usage)
    with pytest.raises(UserError) as caught:
        run(engine)
    assert "disk is full" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    kept = contents(directory)
    assert kept
    monkeypatch.undo()
    run(resume=True)
    assert kept.items() <= contents(directory).items()
    assert len(contents(directory)) == 15


def test_a_failed_attempt_on_a_full_disk_uses_up_no_attempt(
    run: Run, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = FakeEngine({"a": ("no-record",)})
    real = shutil.disk_usage(directory.anchor)
    full = {"now": False}

    def fill(request: Any) -> None:
        full["now"] = ".a." in request.request_id

    engine.on_run = fill
    monkeypatch.setattr(
        campaigns.shutil, "disk_usage", lambda p: real._replace(free=0 if full["now"] else 2**40)
    )
    with pytest.raises(UserError, match="disk is full"):
        run(engine)
    assert not [r for r in measured(directory) if r.spec.configuration == "a"]


def test_a_clock_stepped_back_gives_no_negative_time(
    run: Run, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stamps = iter(range(2_000_000_000, 0, -3600))
    monkeypatch.setattr(time, "time", lambda: float(next(stamps)))
    run()
    assert all(r.overhead_ms is not None and r.overhead_ms > 0 for r in measured(directory))


def test_no_host_compiler_variable_reaches_a_process_or_the_manifest(
    run: Run, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case K2."""
    planted = {
        "TORCHINDUCTOR_FX_GRAPH_REMOTE_CACHE": "1",
        "TORCHINDUCTOR_CACHE_DIR": "/some/warm",
        "TRITON_CACHE_DIR": "/some/warm",
        "JAX_COMPILATION_CACHE_DIR": "/some/warm",
        "LD_PRELOAD": "/some/warm.so",
        "HOME": "/some/warm",
        "TMPDIR": "/some/warm",
    }
    for name, value in planted.items():
        monkeypatch.setenv(name, value)
    engine = FakeEngine()
    run(engine)
    for request in engine.requests:
        assert not [v for v in request.environment.values() if "/some/warm" in v]
        assert request.environment.get("TORCHINDUCTOR_FX_GRAPH_REMOTE_CACHE") != "1"
        for name in ("USER", "LOGNAME", "HOME", "TMPDIR"):  # case D5
            assert request.environment[name]
    written = Store(directory).manifest()["environments"]
    assert sorted(written) == ["a", "b", "c"]
    assert "/some/warm" not in str(written)


def test_proxies_are_redacted_in_the_manifest(
    run: Run, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case D11."""
    monkeypatch.setenv("https_proxy", "http://me:secret@proxy.example:3128")
    monkeypatch.setenv("HTTP_PROXY", "me:secret@proxy.example:3128")
    run()
    manifest = Store(directory).manifest()
    assert manifest["proxies"]["https_proxy"] == "http://***@proxy.example:3128"
    assert "secret" not in (directory / "manifest.json").read_text()


def test_a_failed_calibration_is_a_note_not_a_stop(run: Run, directory: Path) -> None:
    engine = FakeEngine()

    def spoil(request: Any) -> None:
        if request.arguments[0] == "calibrate":
            (request.out / "calibration.json").mkdir()

    engine.on_run = spoil
    engine._act = _no_calibration(engine)  # type: ignore[method-assign]
    assert run(engine).complete
    assert Store(directory).calibrations() == []
    assert (directory / "campaign.log").read_text().count("no calibration") == 6


def _no_calibration(engine: FakeEngine) -> Callable[..., Any]:
    act = engine._act

    def skip(request: Any) -> Any:
        if request.arguments[0] != "calibrate":
            return act(request)
        return dataclasses.replace(
            act(dataclasses.replace(request, arguments=("nothing",))), exit_code=1
        )

    return skip


def test_nothing_is_started_over_and_over_when_the_engine_cannot_start_anything(
    run: Run, directory: Path
) -> None:
    engine = FakeEngine({"a": ("no-record",), "b": ("no-record",), "c": ("no-record",)})
    act = engine._act

    def never(request: Any) -> Any:
        return dataclasses.replace(act(request), started=False, fault="no such CPU")

    engine._act = never  # type: ignore[method-assign]
    with pytest.raises(UserError, match="no such CPU"):
        run(engine)
    assert len(engine.requests) == 3  # the priming trial's tries; nothing else is asked for
    assert Store(directory).scan() == ([], [])
    summary = run(resume=True)
    assert summary.complete
    assert {r.spec.attempt for r in measured(directory)} == {1}
    assert len(measured(directory)) == 15


def test_a_start_that_fails_once_uses_up_no_attempt(run: Run, directory: Path) -> None:
    engine = FakeEngine({"a": ("failed", "failed", "ok")})
    act = engine._act

    def every_second_start_fails(request: Any) -> Any:
        outcome = act(request)
        return dataclasses.replace(outcome, started=len(engine.requests) % 2 == 0, fault="busy")

    engine._act = every_second_start_fails  # type: ignore[method-assign]
    assert run(engine, calibrate=False).complete
    own = [r for r in measured(directory) if r.spec.configuration == "a"]
    assert sorted(r.spec.attempt for r in own) == sorted([1, 2, 3] * 6)
    assert (directory / "campaign.log").read_text().count("was not started: busy") == 1 + 15 + 12


def test_a_later_session_tries_what_was_given_up_again_numbered_onwards(
    run: Run, directory: Path
) -> None:
    first = run(FakeEngine({"a": ("page-cold",)}))
    assert len(first.given_up) == 6
    assert "--resume" in first.advice
    assert "3 more" in first.advice
    before = {path: path.read_bytes() for path in (directory / "records").iterdir()}
    second = run(FakeEngine({"a": (*["page-cold"] * 4, "ok")}), resume=True)
    assert second.complete
    assert second.advice == ""
    assert (second.already_done, second.ran) == (9, 6)
    assert {path: path.read_bytes() for path in before} == before
    own = [r for r in measured(directory) if r.spec.configuration == "a"]
    assert sorted(r.spec.attempt for r in own) == sorted([1, 2, 3, 4, 5] * 6)
    pooled = current(measured(directory))
    assert len(pooled) == 15
    assert len({r.spec.trial_id for r in pooled}) == 15
    assert second.attempts["m1", "1x3x8x8", "a"] == {"page-cold": 12, "ok": 3}


def test_a_session_gives_each_trial_no_more_than_its_attempts(run: Run, directory: Path) -> None:
    for session in (1, 2):
        summary = run(FakeEngine({"a": ("oom",)}), resume=session > 1)
        own = [r for r in measured(directory) if r.spec.configuration == "a"]
        assert len(own) == 6 * 3 * session
        assert len(summary.given_up) == 6


# --- what the host notes about itself ---------------------------------------------------------
def test_overhead_runs_until_the_record_is_on_disk(
    run: Run, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Store.write_record

    def slowly(self: Store, record: Record, code: Any) -> Path:
        time.sleep(0.05)
        return write(self, record, code)

    monkeypatch.setattr(Store, "write_record", slowly)
    run(calibrate=False)
    records, _ = Store(directory).scan()
    overheads_ms = Store(directory).overheads_ms()
    assert sorted(overheads_ms) == sorted(r.spec.record_id for r in records)
    for record in records:
        assert record.overhead_ms is not None
        assert overheads_ms[record.spec.record_id] >= record.overhead_ms + 50
    assert bench.overheads_s(directory.parent) == []  # of docker trials only


def test_bench_reads_the_overhead_that_includes_the_disk(run: Run, directory: Path) -> None:
    engine = FakeEngine()
    engine.name = "docker"  # type: ignore[misc]
    run(engine, calibrate=False)
    overheads_ms = Store(directory).overheads_ms()
    priming = {name for name in overheads_ms if name.startswith("priming.")}
    expected = sorted(v / 1e3 for k, v in overheads_ms.items() if k not in priming)
    assert priming
    assert sorted(bench.overheads_s(directory.parent)) == expected


def test_campaign_minutes_are_the_sessions_own_durations(
    run: Run, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stamps = iter(f"2026-01-01T{hour:02d}:00:00+00:00" for hour in range(23, 0, -1))
    monkeypatch.setattr(campaigns, "now_utc", lambda: next(stamps, "2026-01-01T00:00:00+00:00"))
    with pytest.raises(Interrupted):
        run(stop_after(5))
    assert bench.campaign_minutes(directory) is None
    run(FakeEngine(duration_s=0.01), resume=True)
    minutes = bench.campaign_minutes(directory)
    assert minutes is not None
    assert 11 * 0.01 / 60 < minutes < 5
    manifest = Store(directory).manifest()
    del manifest["sessions"][0]["duration_s"]  # killed: nobody closed it
    Store(directory).write_manifest(manifest)
    assert bench.campaign_minutes(directory) is None


def test_the_manifest_holds_the_limits_of_every_configuration(run: Run, directory: Path) -> None:
    engine = FakeEngine()
    run(engine)
    written = Store(directory).manifest()["limits"]
    asked = {dataclasses.astuple(r.limits) for r in engine.requests if r.arguments[0] == "trial"}
    assert sorted(written) == ["a", "b", "c"]
    assert {tuple(limits.values()) for limits in map(_in_order, written.values())} == asked
    assert written["a"] == {
        "cpus": 1, "memory_mib": 512, "pids": 2048, "tmpfs_mib": 4096, "shm_mib": 1024,
        "file_mib": 8192,
    }  # fmt: skip


def _in_order(limits: dict[str, int]) -> dict[str, int]:
    return {field.name: limits[field.name] for field in dataclasses.fields(Limits)}


def test_input_folders_are_readable_for_other_users_whatever_the_umask(run: Run) -> None:
    """Root's umask 077 must not hide a trial from the unprivileged uid of its container."""
    engine = FakeEngine()
    modes = []
    engine.on_run = lambda request: modes.append(request.inputs.stat().st_mode & 0o777)
    before = os.umask(0o077)
    try:
        run(engine)
    finally:
        os.umask(before)
    assert set(modes) == {0o755}


def test_everything_written_belongs_to_the_caller(run: Run, directory: Path) -> None:
    """Case D6."""
    run()
    paths = [directory, *directory.rglob("*")]
    assert len(paths) > 40
    assert {path.lstat().st_uid for path in paths} == {os.getuid()}


def test_a_folder_that_may_not_be_written_is_one_line_that_says_so(
    run: Run, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(directory))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(UserError, match=f"writable for uid {os.getuid()}") as caught:
        run()
    assert "make room" not in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_a_record_whole_before_a_slow_exit_or_the_deadline_counts(
    run: Run, directory: Path
) -> None:
    """Case K5: the record is there, the interpreter is still busy when the deadline kills it."""
    engine = FakeEngine()
    act = engine._act
    engine._act = lambda request: dataclasses.replace(  # type: ignore[method-assign]
        act(request), timed_out=True, exit_code=None
    )
    assert run(engine).complete
    records = measured(directory)
    assert len(records) == 15
    assert {r.status for r in records} == {"ok"}
    assert all("killed at the deadline after its record" in r.message for r in records)


def test_text_that_a_process_wrote_is_filtered(run: Run, directory: Path) -> None:
    engine = FakeEngine()
    act = engine._act

    def with_escapes(request: Any) -> Any:
        outcome = act(request)
        path = request.out / "record.json"
        if path.exists():
            hostile = {"message": "one\n\x1b]0;title\x07two", "log_tail": "\x1b[31mred\nline\x00"}
            write_atomic(path, read(path) | hostile)
        return outcome

    engine._act = with_escapes  # type: ignore[method-assign]
    run(engine)
    for record in measured(directory):
        assert record.message == "one ?]0;title?two"
        assert record.log_tail == "?[31mred\nline?"


def test_no_two_trials_share_scratch_home_or_tmpdir(run: Run) -> None:
    """Case K1 (a), where folders are the host's own; in a container /tmp is fresh each time."""
    engine = FakeEngine({"a": ("failed", "ok")})
    run(engine)
    trials = [r for r in engine.requests if r.arguments[0] == "trial"]
    assert len(trials) == 1 + 15 + 6
    for name in ("HOME", "TMPDIR", "TORCHINDUCTOR_CACHE_DIR", "JAX_COMPILATION_CACHE_DIR"):
        seen = [r.environment[name] for r in trials if name in r.environment]
        assert len(set(seen)) == len(seen), name
    assert all({"HOME", "TMPDIR"} <= set(r.environment) for r in trials)
    assert len({r.layout.scratch for r in trials}) == len(trials)
    assert not any(Path(r.environment["TMPDIR"]).exists() for r in trials)


@pytest.mark.parametrize(
    ("number", "kind"), [(errno.ENOSPC, UserError), (errno.EIO, UserError), (errno.EBADF, OSError)]
)
def test_a_disk_fault_anywhere_is_one_line_and_other_faults_are_not_hidden(
    run: Run, number: int, kind: type[Exception]
) -> None:
    engine = FakeEngine()

    def fail(request: Any) -> None:
        if len(engine.requests) == 5:
            raise OSError(number, os.strerror(number))

    engine.on_run = fail
    with pytest.raises(kind) as caught:
        run(engine)
    assert len(str(caught.value).splitlines()) == 1
    assert ("--resume" in str(caught.value)) is (kind is UserError)


def test_a_bundle_that_is_gone_stops_the_campaign_and_uses_up_no_attempt(
    run: Run, directory: Path, tmp_path: Path
) -> None:
    bundles = tmp_path / "bundles"
    plan = make_plan(toy_study(), "toy", bundles={"m1": "m1-s7", "m2": "m2-s7"})
    for name in ("m1-s7", "m2-s7"):
        (bundles / name).mkdir(parents=True)
    engine = FakeEngine()
    engine.on_run = lambda request: None if len(engine.requests) != 3 else _remove(bundles)
    with pytest.raises(UserError, match=r"bundle .* is gone"):
        run(engine, plan, ensure_bundles=lambda e: bundles)
    assert {r.status for r in measured(directory)} <= {"ok"}
    assert {r.bundle.name for r in engine.requests if r.bundle} <= {"m1-s7", "m2-s7"}


def _remove(bundles: Path) -> None:
    for name in ("m1-s7", "m2-s7"):
        (bundles / name).rmdir()
