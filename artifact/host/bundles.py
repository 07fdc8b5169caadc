"""Reference bundles on the host: which ones a plan needs, and making those that are missing.

A bundle is made by `artifact bundle` inside the inductor image (or venv), outside any timing, and
lives in `results/.bundles/<model>-s<seed>-<models hash>/`. The folder is shared by campaigns.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from artifact.errors import UserError
from artifact.host.campaign import TOOLS_STACK, tool_environment
from artifact.host.engines import Engine, Limits, Request
from artifact.models.manifest import MANIFEST_NAME, Manifest
from artifact.models.spec import bundle_key, models_hash
from artifact.plan import Plan
from artifact.strict_json import SchemaError, from_plain, read
from artifact.study import Study

FOLDER = ".bundles"
DEADLINE_S = 1800
MEMORY_MIB = 16384


@dataclass(frozen=True)
class Need:
    """One bundle that a plan reads, and the inputs it must hold."""

    model: str
    key: str
    inputs: tuple[str, ...]


def keys(study: Study) -> dict[str, str]:
    """Bundle key of every model of the study, for this checkout's models/."""
    digest = models_hash()
    return {model: bundle_key(model, study.seed, digest) for model in study.models}


def needs(plan: Plan) -> list[Need]:
    """The bundles that a plan's trials read, in name order."""
    inputs: dict[tuple[str, str], set[str]] = {}
    for spec in plan.trials():
        inputs.setdefault((spec.model, spec.bundle), set()).add(spec.input)
    return [
        Need(model, key, tuple(sorted(found))) for (model, key), found in sorted(inputs.items())
    ]


def missing(need: Need, folder: Path) -> tuple[str, ...]:
    """Inputs that the bundle on disk does not hold (all of them when it is absent or broken)."""
    path = folder / need.key / MANIFEST_NAME
    try:
        manifest = from_plain(Manifest, read(path), "bundle")
    except (OSError, SchemaError):
        return need.inputs
    return tuple(name for name in need.inputs if name not in manifest.inputs)


def ensure(
    plan: Plan, folder: Path, *, cpus: int, say: Callable[[str], None]
) -> Callable[[Engine], Path]:
    """A function that makes the plan's missing bundles with an engine and returns their folder."""

    def run(engine: Engine) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        for need in needs(plan):
            absent = missing(need, folder)
            if absent:
                say(f"reference bundle of {need.model}: {', '.join(absent)}")
                _make(engine, need, folder, cpus)
                still = missing(need, folder)
                if still:
                    raise UserError(f"the bundle of {need.model} still lacks {', '.join(still)}")
        return folder

    return run


def _make(engine: Engine, need: Need, folder: Path, cpus: int) -> None:
    work = folder / f".work-{need.model}"
    shutil.rmtree(work, ignore_errors=True)
    (work / "in").mkdir(parents=True)
    layout = engine.layout(work, folder, None)
    request = Request(
        campaign="bundles",
        request_id=f"bundle.{need.model}",
        stack=TOOLS_STACK,
        arguments=(
            "bundle",
            "--model",
            need.model,
            "--out",
            str(layout.out),
            *_inputs(need.inputs),
        ),
        environment=_environment(layout.scratch, cpus),
        layout=layout,
        work=work,
        out=folder,
        bundle=None,
        device="cpu",
        limits=Limits(cpus=cpus, memory_mib=MEMORY_MIB),
    )
    try:
        outcome = engine.run(request, DEADLINE_S)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    if outcome.exit_code != 0:
        last = (outcome.log_tail.strip().splitlines() or ["no message"])[-1]
        why = "ran out of memory" if outcome.oom else outcome.fault or last
        raise UserError(
            f"making the reference bundle of {need.model} failed: {why}",
            next_step="mend it and run again with --resume",
        )


def _inputs(names: Iterable[str]) -> tuple[str, str]:
    return "--input", ",".join(names)


def _environment(scratch: Path, cpus: int) -> Mapping[str, str]:
    return tool_environment(scratch, str(cpus or 1)) | {"HF_HUB_OFFLINE": "1"}
