"""Cell estimates from process values, with and without noisy trials, and their cost in time."""

from __future__ import annotations

import gc
import json
import math
import time
from dataclasses import asdict, replace

import numpy as np
import pytest

from artifact.analysis import estimates
from artifact.analysis.cost import Line
from artifact.analysis.estimates import ProcessValues
from artifact.analysis.stats import StatsError


def _process(number: int, **changes: object) -> ProcessValues:
    values = ProcessValues(
        round=number,
        compile_cost_ms={
            "native": 100.0 + number,
            "aligned": 130.0 + number,
            "process": 500.0 + number,
        },
        toolchain_ms=40.0,
        fold_ms=7.0,
        latency_ms=2.0 + number / 10,
        executions_ms=tuple(2.0 + number / 10 + i / 100 - 0.02 for i in range(5)),
    )
    return replace(values, **changes)  # type: ignore[arg-type]


def test_the_fold_is_in_every_fixed_cost_exactly_once() -> None:
    metrics = estimates.estimate_cell([_process(i) for i in (1, 2, 3)]).all
    assert {b: i.mean for b, i in metrics.compile_cost_ms.items()} == {
        "native": 102.0,
        "aligned": 132.0,
        "process": 502.0,
    }
    assert {b: i.mean for b, i in metrics.fixed_cost_ms.items()} == {
        "native": 109.0,
        "aligned": 132.0,
        "process": 502.0,
    }
    assert metrics.fixed_cost_without_toolchain_ms["native"].mean == 69.0
    assert metrics.line("native") == Line(109.0, pytest.approx(2.2))
    assert metrics.compile_cost_without_toolchain_ms["native"].mean == 62.0
    assert metrics.compile_cost_without_toolchain_ms["process"].mean == 462.0


def test_intervals_are_over_processes_and_not_over_executions() -> None:
    latency = estimates.estimate_cell([_process(i) for i in range(1, 6)]).all.latency_ms
    assert latency.n == 5
    assert latency.sd == pytest.approx(float(np.std([2.1, 2.2, 2.3, 2.4, 2.5], ddof=1)))


def test_noisy_processes_are_kept_and_left_out_side_by_side() -> None:
    cell = estimates.estimate_cell([_process(1), _process(2), _process(9, noisy=True)])
    assert (cell.processes, cell.noisy) == (3, 1)
    assert cell.quiet is not None
    assert cell.all.compile_cost_ms["native"].mean == 104.0
    assert cell.quiet.compile_cost_ms["native"].mean == 101.5
    assert cell.quiet.latency_ms.n == 2
    assert [p.round for p in cell.points["native"]] == [1, 2, 9]


def test_without_noise_both_estimates_are_one_and_with_noise_only_the_reason_is_given() -> None:
    calm = estimates.estimate_cell([_process(1), _process(2)])
    assert calm.quiet == calm.all and calm.quiet_reason is None
    loud = estimates.estimate_cell([_process(1, noisy=True), _process(2, noisy=True)])
    assert loud.quiet is None and loud.quiet_reason == "every process was noisy"


def test_percentiles_are_within_each_process_then_averaged() -> None:
    a = _process(1, executions_ms=(1.0, 2.0, 3.0, 4.0, 5.0))
    b = _process(2, executions_ms=(11.0, 12.0, 13.0, 14.0, 15.0))
    within = estimates.estimate_cell([a, b]).all.within_process
    assert within.p50_ms == 8.0
    assert within.p95_ms == pytest.approx((4.8 + 14.8) / 2)
    assert (within.processes, within.executions) == (2, 10)


@pytest.mark.parametrize("fraction", [0.0, 0.5, 0.95, 1.0])
def test_percentile_is_numpys_default(fraction: float) -> None:
    values = [1.0, 2.5, 5.0, 7.0, 7.0, 9.0]
    expected = float(np.quantile(values, fraction))
    assert estimates.percentile(values, fraction) == pytest.approx(expected)


def test_case_s6_one_process_gives_means_and_named_gaps_in_strict_json() -> None:
    cell = estimates.estimate_cell([_process(1)])
    plain = json.loads(
        json.dumps(asdict(cell), allow_nan=False),
        parse_constant=lambda name: pytest.fail(name),
    )
    native = plain["all"]["compile_cost_ms"]["native"]
    assert (native["mean"], native["sd"], native["low"], native["high"]) == (
        101.0,
        None,
        None,
        None,
    )
    assert "one value" in native["reason"]


@pytest.mark.parametrize(
    "changes",
    [
        {"latency_ms": 0.0},
        {"latency_ms": math.nan},
        {"executions_ms": ()},
        {"executions_ms": (1.0, -1.0)},
        {"fold_ms": -1.0},
        {"toolchain_ms": math.inf},
        {"compile_cost_ms": {"native": math.nan}},
        {"compile_cost_ms": {"native": -5.0}},
    ],
)
def test_what_is_no_time_is_refused_with_its_round(changes: dict[str, object]) -> None:
    with pytest.raises(StatsError, match="round 4"):
        _process(4, **changes)


def test_eager_may_have_a_first_call_below_its_mean_and_its_line_starts_at_zero() -> None:
    cell = estimates.estimate_cell(
        [_process(i, compile_cost_ms={"native": -0.5}, fold_ms=0.0) for i in (1, 2)]
    )
    assert cell.all.fixed_cost_ms["native"].mean == -0.5
    assert cell.all.line("native").fixed_ms == 0.0


@pytest.mark.parametrize(
    ("processes", "word"),
    [
        ([], "not measured"),
        ([_process(1), _process(1)], "more than one process"),
        ([_process(1), _process(2, compile_cost_ms={"native": 1.0})], "other boundaries"),
    ],
)
def test_processes_that_are_no_cell_are_refused(processes: list[ProcessValues], word: str) -> None:
    with pytest.raises(StatsError, match=word):
        estimates.estimate_cell(processes)


def test_an_unknown_boundary_names_the_known_ones() -> None:
    with pytest.raises(StatsError, match="aligned, native, process"):
        _process(1).fixed_cost_ms("linker")


def _seconds_to_estimate(count: int) -> float:
    executions_ms = tuple(1.0 + j / 50 for j in range(50))
    cells = [
        [_process(i, executions_ms=executions_ms) for i in range(5)] for _ in range(count // 5)
    ]
    gc.collect()
    gc.freeze()  # the collector would also walk what other tests left behind
    start = time.process_time()
    found = [estimates.estimate_cell(processes) for processes in cells]
    elapsed = time.process_time() - start
    gc.unfreeze()
    assert len(found) == count // 5
    return elapsed


@pytest.mark.slow
def test_ten_thousand_records_are_estimated_in_seconds_and_in_linear_time() -> None:
    _seconds_to_estimate(100)
    small = min(_seconds_to_estimate(1_000) for _ in range(3))
    large = min(_seconds_to_estimate(10_000) for _ in range(3))
    assert large < 5.0
    assert large < 12 * small
