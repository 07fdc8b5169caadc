"""The runner's order and its statuses, with a toy stack that is one new file (README)."""

from __future__ import annotations

import json
import lzma
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from artifact import records
from artifact.strict_json import write_atomic

TOY = '''
"""A toy stack: doubles its input; misbehaves on request of `options`."""
import os
import time
from pathlib import Path

import numpy as np

from artifact.records import NativeWindow
from artifact.trial.stacks import ColdReading, GeneratedCode, Unsupported


class Adapter:
    native = NativeWindow(("compile", "first_call"), True)

    def __init__(self, spec, placement):
        self.options, self.calls, self.placement = spec.options, [], placement
        self.executions = 0

    @staticmethod
    def environment(spec, placement):
        return {"TOY_CACHE": str(placement.scratch / "cache" / "toy"), "TOY_OFF": "1"}

    @staticmethod
    def cache_directories(placement):
        return {"TOY_CACHE": placement.scratch / "cache" / "toy"}

    def import_framework(self):
        self.at_import = dict(os.environ)
        self.calls.append("import")

    def build_model(self, bundle):
        self.x = bundle.inputs[0]
        self.calls.append("build")

    def start_runtime(self):
        self.calls.append("start")

    def compile(self, clock):
        self.calls.append("compile")
        if self.options.get("unsupported"):
            raise Unsupported("toy 1.0 lacks aten.frobnicate")
        if self.options.get("crash"):
            raise RuntimeError("boom\\nsecond line")
        with clock.phase("compile"):
            time.sleep(0.02)
        return self.execute

    def execute(self):
        self.executions += 1
        wrong = self.options.get("wrong") or (
            self.options.get("drift") and self.executions > 3
        )
        return self.x * np.float32(3 if wrong else 2)

    def synchronize(self, output):
        self.calls.append("sync")

    def to_numpy(self, output):
        return output

    def read_cold(self):
        hits = int(self.options.get("hits", 0))
        return ColdReading({"hits": hits}, {"cache": "off"}, 1, ("1 hit",) if hits else ())

    def generated_code(self):
        if self.options.get("no_code"):
            raise RuntimeError("two wrappers instead of one")
        return GeneratedCode("toylang", {"program": "double(x)"})

    def versions(self):
        return {"toy": "1.0"}

    def facts(self):
        return {"calls": self.calls, "toy_off_at_import": self.at_import.get("TOY_OFF"),
                "omp_at_import": self.at_import.get("OMP_NUM_THREADS"),
                "leaked": self.at_import.get("TORCH_LOGS", ""), "executions": self.executions}

    def detail_ms(self):
        return {"parse": 1.0}
'''

DRIVER = """
import sys
from pathlib import Path
from artifact.trial import stacks
stacks.__path__.append(sys.argv[1])
from artifact.trial.runner import read_spec, run
from artifact.trial.clock import Clock
from artifact.trial import bundle
import fake_bundle
bundle.load = fake_bundle.load
bundle.check_files = fake_bundle.check_files
record = run(read_spec(Path(sys.argv[2])), out=Path(sys.argv[3]), bundle_root=Path("."),
             scratch=Path(sys.argv[4]), clock=Clock())
"""

FAKE_BUNDLE = """
import numpy as np
from types import SimpleNamespace
def check_files(directory, input_name):
    pass
def load(directory, input_name, verify=True):
    x = np.arange(8, dtype=np.float32)
    return SimpleNamespace(inputs=(x,), reference=2 * x.astype(np.float64), weights={}, aliases={},
                           eager_rmse_by_precision={"fp32": 1e-7}, weights_sha256="w")
"""


@pytest.fixture
def run_toy(make_spec, tmp_path: Path, monkeypatch):
    """Runs one toy trial in a fresh process; returns the record and the finished process."""

    def run(*, plant: bool = False, **changes):
        stack_folder = tmp_path / "stacks"
        stack_folder.mkdir(exist_ok=True)
        (stack_folder / "toy.py").write_text(TOY, encoding="utf-8")
        (tmp_path / "fake_bundle.py").write_text(FAKE_BUNDLE, encoding="utf-8")
        spec_path, out, scratch = tmp_path / "trial.json", tmp_path / "out", tmp_path / "scratch"
        defaults = {"stack": "toy", "page_cold_bytes": 10**12, "weights_sha256": ""}
        write_atomic(spec_path, make_spec(**(defaults | changes)))
        if plant:
            (scratch / "cache" / "toy").mkdir(parents=True)
            (scratch / "cache" / "toy" / "entry").touch()
        monkeypatch.setenv("TORCH_LOGS", "+inductor")
        monkeypatch.setenv("PYTHONPATH", f"{Path(records.__file__).parents[1]}:{tmp_path}")
        process = subprocess.run(
            [sys.executable, "-c", DRIVER, stack_folder, spec_path, out, scratch],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            check=False,
        )
        assert process.returncode == 0, process.stderr
        return records.load(out / "record.json"), out

    return run


def test_order_of_a_trial_and_its_record(run_toy):
    record, out = run_toy()
    assert record.status == "ok", record.message
    names = [p.name for p in record.phases]
    assert names == [
        "interpreter", "framework_import", "bundle_load", "model_build", "runtime_start",
        "compile", "first_call",
    ]  # fmt: skip
    assert record.facts["calls"][:4] == ["import", "build", "start", "compile"]
    # case K9: one synchronisation for each of the first call, 2 warm-ups and 5 executions
    assert record.facts["calls"][4:] == ["sync"] * 8
    assert record.facts["executions"] == 8
    assert (len(record.warmup_ms), len(record.execution_ms)) == (2, 5)
    assert record.compile_cost_ms("native") >= 20.0
    assert record.cold.directories == {"TOY_CACHE": 0, "TMPDIR": 0, "HOME": 0}
    assert record.telemetry.children_at_steady_state == 0
    assert lzma.decompress((out / "code" / "program.xz").read_bytes()) == b"double(x)"
    assert record.code_files == ("program.xz",)
    assert record.census is None
    assert "toylang" in record.census_note


def test_environment_is_final_when_the_framework_is_imported(run_toy):
    """Case K3: what the framework saw equals what the record says; nothing leaked."""
    record, _ = run_toy()
    assert record.facts["toy_off_at_import"] == record.environment["TOY_OFF"] == "1"
    assert record.facts["omp_at_import"] == record.environment["OMP_NUM_THREADS"]
    assert record.facts["leaked"] == ""


@pytest.mark.parametrize(
    ("options", "status", "message"),
    [
        ({"unsupported": True}, "unsupported", "aten.frobnicate"),
        ({"crash": True}, "failed", "RuntimeError: boom"),
        ({"wrong": True}, "wrong-output", "above"),
        ({"drift": True}, "wrong-output", "above"),
        ({"hits": 2}, "warm", "1 hit"),
        ({"no_code": True}, "failed", "two wrappers"),
    ],
)
def test_every_fault_is_a_record_with_its_status(run_toy, options, status, message):
    record, _ = run_toy(options=options)
    assert record.status == status
    assert message in record.message
    assert "\n" not in record.message
    assert not record.pooled


def test_a_wrong_program_is_never_timed(run_toy):
    """Case N1: the parity gate stands before the executions."""
    record, _ = run_toy(options={"wrong": True})
    assert record.execution_ms == ()
    assert record.output is not None
    assert not record.output.passed


def test_a_crash_keeps_its_traceback_in_the_record(run_toy):
    record, _ = run_toy(options={"crash": True})
    assert "Traceback" in record.log_tail
    assert "boom" in record.log_tail


def test_a_planted_cache_is_caught(run_toy):
    record, _ = run_toy(plant=True)
    assert record.status == "warm"
    assert "TOY_CACHE" in record.message


def test_other_weights_than_the_study_names_are_refused(run_toy):
    record, _ = run_toy(weights_sha256="0" * 64)
    assert record.status == "failed"
    assert "other weights" in record.message


def test_a_trial_that_reads_much_from_disk_is_page_cold(run_toy, monkeypatch, make_spec):
    from artifact.trial import runner
    from artifact.trial.clock import Clock

    evidence = runner.Evidence(clock=Clock())
    evidence.output = records.Output(0.0, 1.0, 0.0, True)
    evidence.telemetry = records.Telemetry(1, 1, 0, 0, 60_000_000, 0.0, None, None, 1, 0)
    assert runner._judge(make_spec(page_cold_bytes=50_000_000), evidence)[0] == "page-cold"
    assert runner._judge(make_spec(page_cold_bytes=70_000_000), evidence)[0] == "ok"
    priming = make_spec(role="priming", page_cold_bytes=50_000_000)
    assert runner._judge(priming, evidence)[0] == "ok"


@pytest.mark.parametrize("data", [b"", b"{", b'{"schema": 1}', b"[1, 2]", bytes(range(128, 228))])
def test_a_malformed_trial_file_is_one_line(tmp_path, data):
    from artifact.errors import UserError
    from artifact.trial.runner import read_spec

    path = tmp_path / "trial.json"
    path.write_bytes(data)
    with pytest.raises(UserError, match=r"trial\.json") as caught:
        read_spec(path)
    assert "\n" not in str(caught.value)


def test_the_record_is_strict_json(run_toy):
    _, out = run_toy()

    def refuse(name):
        raise AssertionError(name)

    parsed = json.loads((out / "record.json").read_text("utf-8"), parse_constant=refuse)
    assert parsed["schema"] == records.SCHEMA_VERSION
    assert np.isfinite(parsed["execution_ms"]).all()
