"""The whole path of `make reproduce`: choose, prepare, plan, measure, summarise."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from artifact import study as studies
from artifact.errors import UserError
from artifact.host import bundles, doctor, machine
from artifact.host.campaign import TOOLS_STACK, Summary, run_campaign
from artifact.host.engines import Engine
from artifact.host.lock import LOCK_PATH
from artifact.host.progress import BarReporter, PlainReporter
from artifact.host.store import Store
from artifact.plan import Plan, make_plan
from artifact.strict_json import read, write_atomic
from artifact.tables.summary import render, summarise

RESULTS = Path("results")
SUMMARY = "summary.txt"
BUILDS = "seconds.json"
ALL_STACKS = ("inductor", "xla", "tvm")

Say = Callable[[str], None]


@dataclass(frozen=True)
class Wish:
    """What the caller asked for; `auto` leaves it to the machine."""

    profile: str = "auto"
    engine: str = "auto"
    device: str = "auto"
    name: str = ""
    resume: bool = False
    isa: str | None = None
    precision: str = "fp32"
    seed: int | None = None
    results: Path = RESULTS
    only: frozenset[tuple[str, str]] | None = None
    selinux: str = ""


@dataclass(frozen=True)
class Prepared:
    """A resolved wish: what will run, where."""

    study: studies.Study
    choice: machine.Choice
    plan: Plan
    directory: Path


def resolve(wish: Wish) -> Prepared:
    """Turn a wish into a plan and a folder; nothing is started or written."""
    study = studies.load()
    asked = None if wish.profile == "auto" else study.profile(wish.profile).device
    choice = machine.choose(wish.engine, wish.profile, wish.device, asked)
    plan = make_plan(
        study,
        choice.profile,
        seed=wish.seed,
        isa=wish.isa,
        precision=wish.precision,
        bundles=bundles.keys(study),
    )
    held = {(block.model, block.input) for block in plan.blocks}
    strange = sorted((wish.only or frozenset()) - held)
    if strange:
        raise UserError(
            f"profile {choice.profile!r} has no block {':'.join(strange[0])}",
            next_step="`artifact plan` lists its blocks",
        )
    return Prepared(study, choice, plan, wish.results / _checked_name(wish.name or choice.profile))


def blocks_named(names: Iterable[str]) -> frozenset[tuple[str, str]]:
    """`["resnet18:1x3x224x224"]` -> `{("resnet18", "1x3x224x224")}`."""
    blocks = set()
    for name in names:
        model, colon, shape = name.partition(":")
        if not (model and colon and shape):
            raise UserError(
                f"block {name!r} is not model:input", next_step="write resnet18:1x3x224x224"
            )
        blocks.add((model, shape))
    return frozenset(blocks)


def _checked_name(name: str) -> str:
    if name in (".", "..") or "/" in name or name.startswith(".") or not name.isprintable():
        raise UserError(f"name {name!r} is not a folder name", next_step="use letters and digits")
    return name


def stacks_of(plan: Plan) -> list[str]:
    """Images (or venvs) that a plan needs; the inductor one also makes bundles and calibrates."""
    return sorted({studies.image_of(spec.stack) for spec in plan.trials()} | {TOOLS_STACK})


def prepare_engine(choice: machine.Choice, stacks: Iterable[str], results: Path, say: Say) -> None:
    """Build the images, or make the virtual environments, that are missing."""
    accelerator = choice.device
    if choice.engine == "docker":
        from artifact.host import images

        folder = results / "build"
        built = images.build(list(stacks), accelerator, log_directory=folder, say=say)
        fresh = {one.image.stack: one.duration_s for one in built if one.duration_s is not None}
        if fresh:  # read by `artifact bench`
            before = read(folder / BUILDS) if (folder / BUILDS).exists() else {}
            write_atomic(folder / BUILDS, before | fresh)
    elif choice.engine == "process":
        from artifact.host import venvs

        for stack in stacks:
            venvs.make_venv(stack, accelerator, say=say)


def make_engine(choice: machine.Choice, wish: Wish) -> Engine:
    """The engine object that the choice names."""
    if choice.engine == "docker":
        from artifact.host.engines.docker import DockerEngine

        return DockerEngine(accelerator=choice.device, selinux=wish.selinux)
    if choice.engine == "process":
        from artifact.host.engines.process import ProcessEngine

        return ProcessEngine(accelerator=choice.device)
    if choice.engine == "fake":
        from artifact.host.engines.fake import FakeEngine

        return FakeEngine()
    raise UserError(
        f"unknown engine {choice.engine!r}", next_step="use auto, docker, process or fake"
    )


def reproduce(wish: Wish, say: Say = print) -> int:
    """Measure what is missing, print and store the summary; the exit code says how it ended.

    0: every planned trial has its record, or its stack cannot run it. 1: some trials were given up.
    """
    return _run(resolve(wish), wish, say)[1]


def _run(prepared: Prepared, wish: Wish, say: Say) -> tuple[Prepared, int]:
    """`reproduce` of a resolved wish; also what was really run (a GPU may have fallen away)."""
    for reason in prepared.choice.reasons:
        say(reason)
    say(f"profile {prepared.plan.profile}, engine {prepared.choice.engine}: {prepared.directory}")
    examined = examine(prepared.choice, wish.results, say)
    prepare_engine(prepared.choice, stacks_of(prepared.plan), wish.results, say)
    prepared = _with_working_gpu(prepared, wish, say)
    engine = make_engine(prepared.choice, wish)
    try:
        wish.results.mkdir(parents=True, exist_ok=True)
        done = measure(prepared, engine, wish, say, examined)
    finally:
        engine.close()
    say(summary_text(prepared.directory))
    say(closing_line(done))
    return prepared, 0 if done.complete else 1


def examine(choice: machine.Choice, results: Path, say: Say) -> dict[str, Any]:
    """The doctor's report for the manifest; its warnings and errors are said, one line each.

    Nothing is refused here: what cannot run fails where it is needed, with its own line. The fake
    engine measures nothing, so nothing is examined for it.
    """
    found: dict[str, Any] = {"choice": dataclasses.asdict(choice)}
    if choice.engine in doctor.ENGINES:
        report = doctor.run(choice.engine, choice.device, results)
        for line in report.alarms():
            say(line)
        found["report"] = report.plain()
    return found


def reproduce_and_check(wish: Wish, say: Say = print) -> int:
    """`reproduce`, then the verdict of every claim; the worse of the two exit codes."""
    from artifact.host import judge

    prepared, measured = _run(resolve(wish), wish, say)
    if prepared.choice.engine == "fake":
        return measured  # nothing was measured, so nothing is judged
    directory = prepared.directory
    verdict = judge.check(measured_file=directory, results=wish.results, say=say, only=wish.only)
    return max(measured, verdict)


def measure(
    prepared: Prepared, engine: Engine, wish: Wish, say: Say, examined: Mapping[str, Any]
) -> Summary:
    """Run the campaign of a prepared wish with a bar or lines; see `run_campaign`."""
    cpus = max(1, prepared.study.profile(prepared.plan.profile).cpus)
    reporter = BarReporter() if sys.stderr.isatty() else PlainReporter()
    fake = prepared.choice.engine == "fake"  # measures nothing, so it disturbs no campaign
    return run_campaign(
        prepared.plan,
        prepared.directory,
        engine,
        study=prepared.study,
        resume=wish.resume,
        progress=reporter,
        ensure_bundles=None
        if fake
        else bundles.ensure(prepared.plan, wish.results / bundles.FOLDER, cpus=cpus, say=say),
        lock_path=wish.results / ".fake.lock" if fake else LOCK_PATH,
        only=wish.only,
        doctor=examined,
    )


def _with_working_gpu(prepared: Prepared, wish: Wish, say: Say) -> Prepared:
    """The same, or the CPU's plan when the images are there and no container gets the GPU.

    Before the first build there was no image to try it with (case D10). A device or profile that
    was asked for by name is never replaced: that is a `UserError`.
    """
    if (prepared.choice.engine, prepared.choice.device) != ("docker", "cuda"):
        return prepared
    reason = machine.why_no_gpu_in_containers()
    if reason is None:
        return prepared
    if (wish.device, wish.profile) != ("auto", "auto"):
        raise UserError(f"device cuda: {reason}", next_step="mend it, or use --device cpu")
    say(f"{reason}: measuring on the CPU")
    fallen = resolve(dataclasses.replace(wish, device="cpu"))
    reasons = (*fallen.choice.reasons, f"{reason}: measuring on the CPU")
    fallen = dataclasses.replace(fallen, choice=dataclasses.replace(fallen.choice, reasons=reasons))
    prepare_engine(fallen.choice, stacks_of(fallen.plan), wish.results, say)
    return fallen


def summary_text(directory: Path) -> str:
    """The closing table of a campaign folder; also stored there as `summary.txt`."""
    store = Store(directory)
    records, broken = store.scan()
    planned = [(t.model, t.input, t.configuration) for t in store.plan().trials()]
    text = render(summarise(records, planned))
    for item in broken:
        text += f"not read: {item.reason}\n"
    (directory / SUMMARY).write_text(text, encoding="utf-8")
    return text


def one_figure(
    name: str,
    source: str,
    wish: Wish,
    say: Say = print,
    *,
    reference: str = "",
    out: Path | None = None,
) -> int:
    """`make figN`, `make tabN`: run what is missing for it, draw it, judge what it is drawn from.

    Only for source `measured` anything runs: whole blocks, in the campaign folder of the profile,
    so that `make reproduce RESUME=1` completes what this began. `reference` names a machine class
    or one campaign of it; `out` is the folder of the files.
    """
    from artifact.host import drawing, judge

    draw = drawing.table if name.startswith("tab") else drawing.figure
    described = drawing.load(name)  # an unknown name is said before anything is measured
    if source != "measured":
        return draw(name, source, results=wish.results, reference=reference, out=out, say=say)
    prepared = resolve(wish)
    missing = drawing.missing_cells(name, prepared.directory, prepared.study, prepared.plan.profile)
    measured = 0
    if missing:
        blocks = frozenset((model, shape) for model, shape, _ in missing)
        limited = dataclasses.replace(wish, only=blocks, resume=True)
        prepared, measured = _run(prepared, limited, say)
    study, profile, folder = prepared.study, prepared.plan.profile, prepared.directory
    drawn = draw(name, source, results=wish.results, campaign=folder.name, out=out, say=say)
    if prepared.choice.engine == "fake":
        return max(measured, drawn)  # nothing was measured, so nothing is judged
    shown = {(model, shape) for model, shape, _ in described.grid.cells(study, profile)}
    judged = judge.check(
        measured_file=folder, results=wish.results, say=say, only=shown, label=name
    )
    return max(measured, drawn, judged)


def closing_line(done: Summary) -> str:
    """One line: how many trials, what is missing, where the records are."""
    line = f"{done.planned - len(done.given_up)} of {done.planned} trials done"
    if done.unsupported:
        line += f", {len(done.unsupported)} of them unsupported by their stack"
    if done.given_up:
        line += f"; given up: {', '.join(done.given_up[:5])}"
        line += " ..." if len(done.given_up) > 5 else ""
        line += f" ({done.advice})"
    return f"{line}; {done.ran} run now in {done.wall_s / 60:.1f} min; records in {done.directory}"
