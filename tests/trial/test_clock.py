"""Case K9 and the phases: synchronised, counted, from process start, never from the wall clock."""

from __future__ import annotations

import threading
import time

import pytest

from artifact.trial.clock import Clock, process_age_ms, time_executions


class Background:
    """An 'asynchronous device': each call sleeps in a thread that only `join` waits for."""

    def __init__(self, duration_s: float) -> None:
        self.duration_s, self.calls, self.joins = duration_s, 0, 0

    def __call__(self) -> threading.Thread:
        self.calls += 1
        thread = threading.Thread(target=time.sleep, args=(self.duration_s,))
        thread.start()
        return thread

    def join(self, thread: threading.Thread) -> None:
        self.joins += 1
        thread.join()


def test_asynchronous_work_is_waited_for_and_counted():
    device = Background(0.02)
    durations_ms, last = time_executions(device, device.join, 5)
    assert min(durations_ms) >= 20.0
    assert (device.calls, device.joins) == (5, 5)
    assert isinstance(last, threading.Thread)


def test_zero_executions_make_no_call():
    device = Background(0.0)
    assert time_executions(device, device.join, 0) == ([], None)
    assert device.calls == 0


def test_phases_follow_each_other_from_process_start():
    clock = Clock()
    with clock.phase("framework_import"):
        time.sleep(0.01)
    with clock.phase("compile"):
        time.sleep(0.02)
    interpreter, first, second = clock.phases
    assert interpreter.start_ms == 0.0
    assert first.start_ms >= interpreter.duration_ms
    assert first.duration_ms >= 10.0
    assert second.start_ms >= first.start_ms + first.duration_ms
    assert second.duration_ms >= 20.0


def test_a_failed_phase_is_not_recorded():
    clock = Clock()
    with pytest.raises(RuntimeError), clock.phase("compile"):
        raise RuntimeError("no")
    assert [p.name for p in clock.phases] == ["interpreter"]


def test_a_wall_clock_that_steps_back_changes_nothing(monkeypatch):
    """Case A3: durations are monotonic."""
    clock = Clock()
    with clock.phase("compile"):
        monkeypatch.setattr(time, "time", lambda: 0.0)
        time.sleep(0.005)
    assert 5.0 <= clock.phases[-1].duration_ms < 1000.0


def test_process_age_grows_with_time():
    before = process_age_ms()
    time.sleep(0.03)
    assert 20.0 <= process_age_ms() - before < 1000.0
