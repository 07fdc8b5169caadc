"""`make bench`: how fast the artifact itself is, as one table (what, measured, must reach).

Each figure is measured now or read from the newest campaign; what cannot be measured here is shown
as such, never as a number.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from artifact import study as studies
from artifact.analysis import reference as references
from artifact.analysis.evidence import evidence_of, read_campaign
from artifact.errors import UserError
from artifact.host import drawing, images
from artifact.host.engines.fake import fake_record
from artifact.host.locks import STACKS
from artifact.host.reproduce import BUILDS
from artifact.host.store import CHECKSUMS, RECORDS, Store
from artifact.plan import make_plan
from artifact.strict_json import dumps, read
from artifact.tables.source import of_evidence
from artifact.trial.clock import time_executions

NO_OP_EXECUTIONS = 100_000
HELP_RUNS = 5
FIGURE_RUNS = 3
FIRST_FIGURE = "fig3"

CHECKOUT = Path(__file__).resolve().parents[2]

#: Records that are loaded and estimated; their times are to grow linearly.
FEW_RECORDS, MANY_RECORDS = 1_000, 10_000
#: The profile whose cells and protocol the fabricated records have.
RECORDS_PROFILE = "cpu"


@dataclass(frozen=True)
class Line:
    """One row. `measured` is None when it cannot be measured here; `note` says why or how."""

    what: str
    measured: float | None
    unit: str
    must_reach: float
    note: str = ""


def harness_overhead_us(executions: int = NO_OP_EXECUTIONS, repeats: int = 5) -> float:
    """Microseconds that clock, synchronise and store add to one execution of a no-op callable.

    The whole loop is timed from outside, so that storing and converting the times is in it; the
    median of `repeats` loops is taken, since two equal loops differ by up to 20 % here.
    """

    def execute() -> None:
        return None

    def synchronize(output: None) -> None:
        return None

    costs = []
    for _ in range(repeats):
        start_ns = time.perf_counter_ns()
        time_executions(execute, synchronize, executions)
        costs.append((time.perf_counter_ns() - start_ns) / 1e3 / executions)
    return median(costs)


def help_s() -> float:
    """Median seconds of `artifact --help` as a whole process."""
    command = [sys.executable, "-m", "artifact", "--help"]
    return _median_wall_s(
        lambda: subprocess.run(command, check=True, capture_output=True), HELP_RUNS
    )


def _median_wall_s(work: Callable[[], object], runs: int) -> float:
    durations = []
    for _ in range(runs):
        start_s = time.perf_counter()
        work()
        durations.append(time.perf_counter() - start_s)
    return median(durations)


def campaign_minutes(directory: Path) -> float | None:
    """Minutes of a complete campaign, its sessions added up, by the host's monotonic clock.

    None when there is none, or when a session was killed: nobody knows how long that one ran.
    """
    store = Store(directory)
    if not (directory / "manifest.json").exists():
        return None
    sessions = store.manifest()["sessions"]
    if not sessions or sessions[-1]["end"] != "complete":
        return None
    if not all("duration_s" in session for session in sessions):
        return None
    return float(sum(session["duration_s"] for session in sessions)) / 60


def overheads_s(results: Path) -> list[float]:
    """Orchestration overhead in seconds of every measured docker trial under `results`.

    From asking the engine to the record on disk, less the life of the process (`overheads.csv`).
    """
    found = []
    for manifest in sorted(results.glob("*/manifest.json")):
        store = Store(manifest.parent)
        overheads_ms = store.overheads_ms()
        records, _ = store.scan() if overheads_ms else ([], [])
        found += [
            overheads_ms[r.spec.record_id] / 1e3
            for r in records
            if r.identity.engine == "docker"
            and r.spec.role == "measured"
            and r.spec.record_id in overheads_ms
        ]
    return found


def lines(results: Path) -> list[Line]:
    """The table's rows, in the order of the speed requirements."""
    overheads = overheads_s(results)
    return [
        Line(
            "orchestration overhead per trial, median",
            median(overheads) if overheads else None,
            "s",
            1.0,
            f"{len(overheads)} docker trials in {results}"
            if overheads
            else "no docker trial here yet: make smoke",
        ),
        Line("harness overhead per execution", harness_overhead_us(), "us", 5.0, "no-op callable"),
        _campaign_line("cpu profile", results / "cpu", 100.0),
        _campaign_line("smoke profile", results / "smoke", 10.0),
        *_image_lines(results),
        Line("artifact --help", help_s(), "s", 0.5, f"median of {HELP_RUNS} processes"),
        *_drawing_lines(),
        *_records_lines(),
    ]


def _image_lines(results: Path) -> list[Line]:
    """Build time and sizes of the three images; sizes in GB (10^9 bytes)."""
    seconds = read(results / "build" / BUILDS) if (results / "build" / BUILDS).exists() else {}
    minutes = sum(seconds.values()) / 60 if set(STACKS) <= set(seconds) else None
    note = "last builds; from nothing only where the build cache was empty"
    rows = [Line("three images, built", minutes, "min", 10.0, note)]
    try:
        sizes, unique = images.sizes_bytes()
    except UserError as error:
        missing = Line("three images together", None, "GB", 9.5, str(error))
        return [*rows, missing, Line("XLA image (CPU)", None, "GB", 1.9, str(error))]
    return [
        *rows,
        Line("three images together", unique / 1e9, "GB", 9.5, "shared layers once"),
        Line("XLA image (CPU)", sizes["xla"] / 1e9, "GB", 1.9),
    ]


def _drawing_lines(root: Path = references.DEFAULT_ROOT) -> list[Line]:
    """`FROM=reference make fig3`, and the slowest of the other figures and tables."""
    first = f"{FIRST_FIGURE} from the reference"
    others = "slowest other figure or table, reference"
    if not references.classes(root):
        note = "no reference records are shipped"
        return [Line(first, None, "s", 5.0, note), Line(others, None, "s", 8.0, note)]
    runs = [_drawing_s(FIRST_FIGURE) for _ in range(FIGURE_RUNS)]
    timed = {name: _drawing_s(name) for name in drawing.names() if name != FIRST_FIGURE}
    drawn = {name: seconds for name, seconds in timed.items() if seconds is not None}
    slowest = max(drawn, key=lambda name: drawn[name]) if drawn else ""
    words = f"{slowest} of {', '.join(drawn)}" if drawn else "none could be drawn"
    lacking = ", ".join(name for name in timed if name not in drawn)
    if lacking:
        words = f"{words}; the reference has no record of {lacking}"
    return [
        Line(
            first,
            None if None in runs else median(s for s in runs if s is not None),
            "s",
            5.0,
            f"median of {FIGURE_RUNS} processes",
        ),
        Line(others, drawn.get(slowest), "s", 8.0, words),
    ]


def _drawing_s(name: str) -> float | None:
    """Seconds of one figure or table as a whole process; None where the reference lacks its cells.

    Another fault than that is a `UserError`: a figure that fails has no speed.
    """
    room = "figure" if name.startswith("fig") else "table"
    with tempfile.TemporaryDirectory() as out:
        command = [sys.executable, "-m", "artifact", room, name, "--from", "reference"]
        start_s = time.perf_counter()
        done = subprocess.run(
            [*command, "--out", out], capture_output=True, text=True, check=False, cwd=CHECKOUT
        )
        duration_s = time.perf_counter() - start_s
    if done.returncode == 0:
        return duration_s
    if drawing.NO_RECORD in done.stderr:
        return None
    raise UserError(f"{name} could not be drawn: {(done.stderr.splitlines() or ['?'])[-1]}")


def _records_lines() -> list[Line]:
    """Loading with checksums and estimating, at the wanted number of records and at a tenth."""
    with tempfile.TemporaryDirectory() as folder:
        small, large = (
            write_records(Path(folder) / str(count), count) for count in (FEW_RECORDS, MANY_RECORDS)
        )
        # The first run also imports and fills caches, which would flatter the growth.
        few, many = (min(estimating_s(one) for _ in range(3)) for one in (small, large))
    what = "loading and estimating records"
    note = "fabricated, read from disk with checksums; best of 3"
    growth = f"{FEW_RECORDS} records took {few:.2f} s"
    return [
        Line(f"{what}: {MANY_RECORDS}", many, "s", 10.0, note),
        Line(f"the same, {FEW_RECORDS} -> {MANY_RECORDS}", many / few, "x", 12.0, growth),
    ]


def write_records(directory: Path, count: int) -> Path:
    """A campaign folder of `count` fabricated records with their checksums; returns it."""
    study = studies.load()
    profile = study.profile(RECORDS_PROFILE)
    cells = sum(1 for _ in make_plan(_with_processes(study, 1), RECORDS_PROFILE).trials())
    plan = make_plan(_with_processes(study, math.ceil(count / cells)), RECORDS_PROFILE)
    store = Store(directory)
    store.create(plan, {"profile": profile.title})
    sums = []
    for spec in list(plan.trials())[:count]:
        # No program is stored beside these records, so they must not name one.
        record = dataclasses.replace(fake_record(spec, "ok"), code_files=())
        data = dumps(record).encode("utf-8")
        name = f"{spec.record_id}.json"
        (store.records / name).write_bytes(data)
        sums.append(f"{hashlib.sha256(data).hexdigest()}  {RECORDS}/{name}\n")
    (directory / CHECKSUMS).write_text("".join(sums), encoding="utf-8")
    return directory


def _with_processes(study: studies.Study, processes: int) -> studies.Study:
    profile = dataclasses.replace(study.profile(RECORDS_PROFILE), processes=processes)
    return dataclasses.replace(study, profiles={RECORDS_PROFILE: profile})


def estimating_s(directory: Path) -> float:
    """Seconds to read a campaign from disk, checksums included, and to estimate every cell."""
    start_s = time.perf_counter()
    campaign = read_campaign(directory)
    source = of_evidence(evidence_of(campaign), directory.name)
    duration_s = time.perf_counter() - start_s
    estimated = sum(view.n for view in source.views.values())
    if campaign.broken:
        raise UserError(f"{campaign.name}: {campaign.broken[0]}")
    if estimated != len(campaign.records):
        raise UserError(f"{estimated} of {len(campaign.records)} records were estimated")
    return duration_s


def fold_table(say: Callable[[str], None]) -> None:
    """The fold's own benchmark, inside the inductor image (no network); prints its table."""
    tag = images.image_for("inductor").tag
    command = ["docker", "run", "--rm", "--network", "none", "--entrypoint", "python3", tag]
    finished = subprocess.run(
        [*command, "-m", "artifact.folds.bench"], capture_output=True, text=True, check=False
    )
    say(finished.stdout + finished.stderr)


def _campaign_line(what: str, directory: Path, must_reach: float) -> Line:
    minutes = campaign_minutes(directory)
    note = (
        f"{directory}"
        if minutes is not None
        else f"no complete campaign, or one with a killed session, in {directory}"
    )
    return Line(what, minutes, "min", must_reach, note)


def render(rows: list[Line]) -> str:
    """The table as plain text; a row that misses its mark says so."""
    text = [f"{'what':42} {'measured':>12}  {'must reach':>12}  note"]
    for row in rows:
        measured = "not measured" if row.measured is None else f"{row.measured:.2f} {row.unit}"
        missed = row.measured is not None and row.measured > row.must_reach
        note = f"{row.note}{'  MISSED' if missed else ''}"
        text.append(f"{row.what:42} {measured:>12}  <= {row.must_reach:g} {row.unit:6} {note}")
    return "\n".join(text) + "\n"
