"""`artifact crossover`: go and look whether two configurations cross where their lines say.

From the records of a campaign, n_hat and its set; then a small campaign of its own, K = 3 trials of
both with 2 n_hat executions each, in shuffled order round by round; then the crossings of the
measured cumulative curves (CLAIMS, crossover set).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from artifact import study as studies
from artifact.analysis import reference as references
from artifact.analysis.cost import CostError
from artifact.analysis.crossing import (
    BOUNDARY,
    CrossingError,
    Curve,
    Prediction,
    RoundRow,
    compare,
    conclusion,
    curve,
    predict,
)
from artifact.analysis.evidence import (
    Campaign,
    Cell,
    Evidence,
    evidence_of,
    mixtures,
    read_campaign,
)
from artifact.analysis.fit import first_execution_ms
from artifact.analysis.stats import StatsError
from artifact.errors import UserError
from artifact.host import bundles, machine
from artifact.host import reproduce as path
from artifact.host.store import CROSSOVER_PREFIX, Store, campaign_folders, disk_errors
from artifact.plan import Plan, make_plan
from artifact.records import Record
from artifact.strict_json import write_atomic, write_bytes_atomic
from artifact.study import BlockChoice, Study
from artifact.tables.csv_text import csv_text

PROCESSES = 3
CSV, JSON = "crossing.csv", "crossing.json"
SCHEMA_VERSION = 1
MAX_MINUTES = 30.0

#: A record is refused above 8 MiB (`host/collect.py`); an execution takes up to 25 bytes of it.
MOST_EXECUTIONS = 200_000

#: What a trial takes beside its own process: container, output check, census; and a calibration.
TRIAL_OVERHEAD_S, CALIBRATION_S = 5.0, 15.0

#: A trial is ended when it takes this many times what it was expected to, or the protocol's limit.
DEADLINE_FACTOR = 3.0

Say = Callable[[str], None]


@dataclass(frozen=True)
class Question:
    """Which two configurations of one (model, input) are to be looked at, and how.

    `name` is the campaign that predicts; without it the newest one here that has both, else a
    shipped reference. `executions` replaces 2 n_hat. Profile `auto` is that of the records.
    """

    model: str
    input: str
    first: str
    second: str
    profile: str = "auto"
    engine: str = "auto"
    name: str = ""
    executions: int | None = None
    max_minutes: float = MAX_MINUTES
    resume: bool = False
    results: Path = path.RESULTS
    selinux: str = ""

    @property
    def cells(self) -> tuple[Cell, Cell]:
        """Both cells, in the order of the question."""
        return (self.model, self.input, self.first), (self.model, self.input, self.second)

    @property
    def directory(self) -> Path:
        """The campaign folder of the look itself."""
        return self.results / f"{CROSSOVER_PREFIX}{self.model}-{self.first}-{self.second}"


@dataclass(frozen=True)
class Records:
    """The campaign that predicts, its name for the reader, and whether it was shipped."""

    campaign: Campaign
    label: str
    shipped: bool


@dataclass(frozen=True)
class Look:
    """A prepared look: what is predicted, from what, and the campaign that goes and sees."""

    question: Question
    records: Records
    prediction: Prediction
    prepared: path.Prepared
    executions: int
    minutes: float


def go_and_look(question: Question, say: Say = print, root: Path = references.DEFAULT_ROOT) -> int:
    """Predict, measure, compare; 0 whether the crossing is found or not.

    What cannot be run (no records, lines that do not cross, too long, no trial in the end) is a
    `UserError`, exit code 2. `root` holds the shipped references.
    """
    look = prepare(question, root)
    for line in _announcement(look):
        say(line)
    if look.minutes > question.max_minutes:
        raise UserError(
            f"about {look.minutes:.0f} min is more than --max-minutes {question.max_minutes:g}",
            next_step="raise it, or look at another input or pair",
        )
    _measure(look, say)
    rows, notes = _compare(look)
    text = render(look, rows, notes)
    _write(look, rows, notes)
    say(text.rstrip("\n"))
    return 0


# --- before anything runs -------------------------------------------------------------------------
def prepare(question: Question, root: Path) -> Look:
    """Everything that is known before the first trial; nothing is started or written."""
    study = studies.load()
    study.model(question.model)
    studies.parse_input(question.input)
    for name in (question.first, question.second):
        study.configuration(name)
    if question.first == question.second:
        raise UserError(f"{question.first} does not cross itself", next_step="name two")
    if question.executions is not None and question.executions < 1:
        raise UserError("--executions must be at least 1")
    if question.directory.exists() and not (
        question.resume or Store(question.directory).is_empty()
    ):
        raise UserError(
            f"{question.directory} is not empty",
            next_step="continue it with --resume, or move it away to look again",
        )
    records = find_records(question, root)
    evidence = evidence_of(records.campaign)
    prediction = _predict(question, records, evidence)
    executions = question.executions or math.ceil(2 * prediction.n)
    if executions > MOST_EXECUTIONS:
        raise UserError(
            f"{executions} executions are more than a record holds ({MOST_EXECUTIONS})",
            next_step="look at another input or pair",
        )
    prepared = _prepared(question, study, records, evidence, executions)
    executions = next(iter(prepared.plan.trials())).executions
    minutes = _estimate_s(prepared, evidence, executions) / 60
    return Look(question, records, prediction, prepared, executions, minutes)


def find_records(question: Question, root: Path) -> Records:
    """The campaign that holds both configurations; earlier looks are no source for a new one."""
    if question.name:
        folder = question.results / question.name
        found = Records(read_campaign(folder), str(folder), False)
        _require_both(question, found)
        return found
    own = [read_campaign(folder) for folder in campaign_folders(question.results)]
    usable = [c for c in own if not _lacking(question, c) and not _is_fake(c)]
    if usable:
        newest = max(usable, key=lambda c: max(r.identity.started_utc for r in c.usable))
        return Records(newest, str(question.results / newest.name), False)
    for directory in references.classes(root):
        for campaign in reversed(references.load(directory).campaigns):
            if not _lacking(question, campaign):
                return Records(campaign, f"reference {directory.name}, {campaign.name}", True)
    pair = f"{question.first} and {question.second}"
    raise UserError(
        f"no campaign in {question.results} and no reference holds both {pair} "
        f"of {question.model} {question.input}",
        next_step="run `artifact reproduce` with a profile that has them",
    )


def _require_both(question: Question, found: Records) -> None:
    lacking = _lacking(question, found.campaign)
    if lacking:
        raise UserError(
            f"{found.label} holds no usable trial of {' and '.join(lacking)} "
            f"for {question.model} {question.input}",
            next_step="name another campaign",
        )


def _lacking(question: Question, campaign: Campaign) -> list[str]:
    there = evidence_of(campaign).cells
    return [cell[2] for cell in question.cells if cell not in there]


def _is_fake(campaign: Campaign) -> bool:
    return any(record.identity.engine == "fake" for record in campaign.usable)


def _predict(question: Question, records: Records, evidence: Evidence) -> Prediction:
    mixed = mixtures(records.campaign)
    if mixed:
        raise UserError(f"the records of {records.label} may not be pooled: {'; '.join(mixed)}")
    try:
        first, second = (
            [process.point(BOUNDARY) for process in evidence.processes(cell)]
            for cell in question.cells
        )
        return predict(question.first, first, question.second, second)
    except (CrossingError, CostError, StatsError) as error:
        raise UserError(
            f"{records.label}, {question.model} {question.input}: {error}",
            next_step="name two configurations whose lines cross",
        ) from error


def _prepared(
    question: Question, study: Study, records: Records, evidence: Evidence, executions: int
) -> path.Prepared:
    """The small campaign: the profile of the records, narrowed to one block of two."""
    profile_name = records.campaign.profile if question.profile == "auto" else question.profile
    profile = study.profile(profile_name)
    choice = machine.choose(question.engine, profile_name, "auto", profile.device)
    # T_C of most stacks is T_first - T_X, so a trial never has fewer executions than the protocol.
    executions = max(executions, profile.executions or study.protocol.executions)
    warmups = study.protocol.warmups if profile.warmups is None else profile.warmups
    longest_s = max(_trial_s(evidence, cell, warmups + executions) for cell in question.cells)
    block = BlockChoice(question.model, (question.input,), (question.first, question.second))
    narrowed = dataclasses.replace(
        study,
        protocol=dataclasses.replace(
            study.protocol,
            deadline_s=max(study.protocol.deadline_s, math.ceil(DEADLINE_FACTOR * longest_s)),
        ),
        profiles={
            profile_name: dataclasses.replace(
                profile, blocks=(block,), processes=PROCESSES, executions=executions
            )
        },
    )
    measured = evidence.first(question.cells[0]).spec
    plan = make_plan(
        narrowed,
        profile_name,
        isa=measured.isa,
        precision=measured.precision,
        bundles=bundles.keys(study),
    )
    return path.Prepared(narrowed, choice, plan, question.directory)


def _estimate_s(prepared: path.Prepared, evidence: Evidence, executions: int) -> float:
    """Seconds of the whole look, without building images or bundles."""
    trials = sum(
        _trial_s(evidence, (s.model, s.input, s.configuration), s.warmups + executions)
        for s in prepared.plan.trials()
    )
    priming = sum(
        _trial_s(evidence, (s.model, s.input, s.configuration), s.executions)
        for s in prepared.plan.priming
    )
    return trials + priming + CALIBRATION_S * len(prepared.plan.blocks)


def _trial_s(evidence: Evidence, cell: Cell, calls: int) -> float:
    """Seconds of one trial with `calls` executions after the first, from the cell's means."""
    values = evidence.processes(cell)
    to_first_ms = fmean(v.compile_cost_ms["process"] + v.latency_ms for v in values)
    return (to_first_ms + calls * fmean(v.latency_ms for v in values)) / 1e3 + TRIAL_OVERHEAD_S


def _announcement(look: Look) -> Iterator[str]:
    asked, found = look.question, look.prediction
    yield f"{asked.model} {asked.input}: {found.order}; records: {look.records.label}"
    other = _other_machine(look.records)
    if other:
        yield f"these are another machine's records ({other}); n may differ here"
    yield f"predicted n = {found.n:.1f} ({BOUNDARY}); {found.set.level:.0%} set {found.set.words}"
    yield f"method {found.set.method}: {found.set.rule}"
    yield (
        f"{PROCESSES} trials of each with {look.executions} executions: "
        f"about {look.minutes:.1f} min, without building images"
    )
    warmups = next(iter(look.prepared.plan.trials())).warmups
    if 1 + warmups + look.executions < found.n:
        yield f"{look.executions} executions end before the predicted n: it will not be seen"


def _other_machine(records: Records) -> str:
    """Whose records these are, when not this machine's; else empty."""
    from artifact.host.manifest import cpu_model

    models = sorted({record.identity.cpu_model for record in records.campaign.usable})
    return ", ".join(models) if records.shipped or models != [cpu_model()] else ""


# --- measuring ------------------------------------------------------------------------------------
def _measure(look: Look, say: Say) -> None:
    asked, prepared = look.question, look.prepared
    wish = path.Wish(
        profile=prepared.plan.profile,
        engine=asked.engine,
        resume=asked.resume,
        results=asked.results,
        selinux=asked.selinux,
    )
    for reason in prepared.choice.reasons:
        say(reason)
    say(f"engine {prepared.choice.engine}: {prepared.directory}")
    examined = path.examine(prepared.choice, asked.results, say)
    path.prepare_engine(prepared.choice, path.stacks_of(prepared.plan), asked.results, say)
    engine = path.make_engine(prepared.choice, wish)
    try:
        asked.results.mkdir(parents=True, exist_ok=True)
        done = path.measure(prepared, engine, wish, say, examined)
    finally:
        engine.close()
    say(path.closing_line(done))


# --- comparing ------------------------------------------------------------------------------------
def _compare(look: Look) -> tuple[list[RoundRow], list[str]]:
    """Rows of `crossing.compare` for what was measured, and what limits them, in words."""
    campaign = read_campaign(look.question.directory)
    evidence = evidence_of(campaign)
    try:
        first, second = (_curves(evidence, cell) for cell in look.question.cells)
        rows = compare(look.prediction, first, second)
    except (CrossingError, StatsError) as error:
        raise UserError(
            f"{look.question.directory}: {error}", next_step="see its campaign.log"
        ) from error
    return rows, _notes(look, evidence, len(rows) - 1)


def _curves(evidence: Evidence, cell: Cell) -> list[Curve]:
    """T_C (native, fold included), then every execution from n = 1 on, of each usable trial.

    The first call's own execution is n = 1, as in `fit`; the warm-ups follow.
    """
    return [
        curve(
            trial.round,
            process.fixed_cost_ms(BOUNDARY),
            (
                first_execution_ms(trial.record),
                *trial.record.warmup_ms,
                *trial.record.execution_ms,
            ),
        )
        for trial, process in zip(evidence.trials(cell), evidence.processes(cell), strict=True)
    ]


def _notes(look: Look, evidence: Evidence, rounds: int) -> list[str]:
    notes = []
    if rounds < PROCESSES:
        notes.append(f"{PROCESSES - rounds} of {PROCESSES} rounds lack a usable trial")
    trials = [trial for cell in look.question.cells for trial in evidence.trials(cell)]
    noisy = sum(bool(trial.noisy) for trial in trials)
    if noisy:
        notes.append(f"{noisy} of {len(trials)} trials were noisy; they are counted")
    notes += _differences(look, evidence)
    bindings = {cell[2]: evidence.first(cell).spec.binding for cell in look.question.cells}
    if len(set(bindings.values())) > 1:
        words = ", ".join(f"{name} has {binding} weights" for name, binding in bindings.items())
        notes.append(f"contracts differ: {words}")
    return notes


def _differences(look: Look, evidence: Evidence) -> list[str]:
    """What was set otherwise in the records that predict: a moved crossing may come from it."""
    before = evidence_of(look.records.campaign)
    found: dict[str, list[str]] = {}
    for cell in look.question.cells:
        then, now = _settings(before.first(cell)), _settings(evidence.first(cell))
        for key in then:
            if then[key] != now[key]:
                words = f"predicted with {key} {then[key]}, measured with {now[key]}"
                found.setdefault(words, []).append(cell[2])
    return [f"{', '.join(names)}: {words}" for words, names in found.items()]


def _settings(record: Record) -> Mapping[str, str]:
    spec, made = record.spec, record.identity
    return {
        "engine": made.engine,
        "CPU": made.cpu_model,
        "CPUs": str(made.effective_cpus),
        "lock": made.lock_hash[:12],
        "measuring code": made.code_hash[:12],
        "device": spec.device,
        "contract": spec.contract,
        "precision": spec.precision,
        "isa": spec.isa,
        "warm-ups": str(spec.warmups),
    }


# --- output ---------------------------------------------------------------------------------------
def render(look: Look, rows: Sequence[RoundRow], notes: Sequence[str]) -> str:
    """The short table, what limits it, and the conclusion."""
    found = look.prediction
    lines = [
        "",
        f"predicted n = {found.n:.1f}, {found.order}; "
        f"{found.set.level:.0%} set ({found.set.method}) {found.set.words}",
        f"{'round':<9}{'crossing n':>11}  {'verdict':<11}{'changes':>7}  measured",
    ]
    for row in rows:
        n = "-" if row.n is None else f"{row.n:.1f}"
        lines.append(f"{row.round:<9}{n:>11}  {row.verdict:<11}{row.changes:>7}  {row.order}")
    lines += notes
    lines.append(conclusion(found, rows))
    return "\n".join(lines) + "\n"


def _write(look: Look, rows: Sequence[RoundRow], notes: Sequence[str]) -> None:
    folder = look.question.directory
    with disk_errors(str(folder / JSON)):
        write_bytes_atomic(folder / CSV, csv_text(RoundRow, rows).encode("utf-8"))
        write_atomic(folder / JSON, plain(look, rows, notes))


def plain(look: Look, rows: Sequence[RoundRow], notes: Sequence[str]) -> dict[str, Any]:
    """Everything that was predicted and found, for `crossing.json`."""
    asked, found = look.question, look.prediction
    plan: Plan = look.prepared.plan
    return {
        "schema": SCHEMA_VERSION,
        "model": asked.model,
        "input": asked.input,
        "first": asked.first,
        "second": asked.second,
        "boundary": BOUNDARY,
        "profile": plan.profile,
        "engine": look.prepared.choice.engine,
        "records": look.records.label,
        "other_machine": _other_machine(look.records),
        "executions": look.executions,
        "warmups": next(iter(plan.trials())).warmups,
        "processes": PROCESSES,
        "predicted": found,
        "set_words": found.set.words,
        "set_rule": found.set.rule,
        "rounds": list(rows[:-1]),
        "mean": rows[-1],
        "notes": list(notes),
        "conclusion": conclusion(found, rows),
    }
