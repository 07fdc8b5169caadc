"""A whole campaign of the profile `cpu` without a machine: plausible times, real generated texts.

In memory (`campaign`), as a copy that is changed (`changed`), or on disk (`write`).
"""

from __future__ import annotations

import gc
import lzma
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from artifact import study
from artifact.analysis.evidence import Campaign, Cell, cell_of
from artifact.census import Census, hlo, inductor, tvmscript
from artifact.host.store import Calibration, Store
from artifact.plan import Plan, TrialSpec, make_plan
from artifact.records import (
    SCHEMA_VERSION,
    Cold,
    Identity,
    NativeWindow,
    Output,
    Phase,
    Record,
    Telemetry,
)

DATA = Path(__file__).resolve().parents[1] / "census" / "data"

R18 = ("resnet18", "1x3x224x224")
R50 = ("resnet50", "1x3x224x224")
BERT = ("bert", "1x64")
GPT2 = ("gpt2", "1x16")
#: The two blocks of the smoke profile.
SMALL = ("resnet18", "1x3x64x64")
BERT_2LAYER = ("bert-2layer", "1x64")

#: T_C and T_X in ms of each configuration, for every model; the models differ by a factor.
TIMES_MS = {
    "eager": (5.0, 45.0),
    "inductor": (33_000.0, 41.6),
    "inductor-fold": (27_000.0, 40.5),
    "inductor-guard": (26_500.0, 40.2),
    "inductor-freeze": (22_000.0, 30.0),
    "inductor-bneval": (33_500.0, 41.5),
    "inductor-control": (33_000.0, 41.6),
    "xla": (1_800.0, 90.0),
    "tvm": (10_000.0, 850.0),
}
FACTOR = {"resnet18": 1.0, "resnet50": 1.6, "bert": 1.2, "gpt2": 1.3}
FOLD_MS = 60.0
SPREAD = 0.02

CALIBRATION_MS = {"compile_ms": 2000.0, "matmul_ms": 100.0, "memory_ms": 50.0}

_TEXTS = {
    (*R18, "inductor"): "inductor_cpp_resnet18.py.xz",
    (*R18, "inductor-fold"): "inductor_cpp_resnet18_fold.py.xz",
    (*R50, "inductor"): "inductor_cpp_resnet50.py.xz",
    (*R50, "inductor-fold"): "inductor_cpp_resnet50_fold.py.xz",
    (*R18, "xla"): "hlo_resnet18.txt.xz",
    (*R50, "xla"): "hlo_resnet50.txt.xz",
    (*R18, "tvm"): "relax_resnet18.py.xz",
    (*R50, "tvm"): "relax_resnet18.py.xz",
    (*SMALL, "inductor"): "inductor_cpp_resnet18.py.xz",
    (*SMALL, "inductor-fold"): "inductor_cpp_resnet18_fold.py.xz",
    (*SMALL, "xla"): "hlo_resnet18.txt.xz",
    (*SMALL, "tvm"): "relax_resnet18.py.xz",
    (*BERT, "inductor"): "inductor_cpp_gpt2_2layer.py.xz",
    (*BERT, "inductor-control"): "inductor_cpp_gpt2_2layer.py.xz",
    (*BERT_2LAYER, "inductor"): "inductor_cpp_gpt2_2layer.py.xz",
    (*BERT_2LAYER, "inductor-control"): "inductor_cpp_gpt2_2layer.py.xz",
}
_PARSERS = {"inductor": inductor, "xla": hlo, "tvm": tvmscript}
_FILE = "program.xz"


@cache
def text_of(file: str) -> str:
    """One of the real generated texts of the census tests."""
    return lzma.decompress((DATA / file).read_bytes()).decode("utf-8")


@cache
def census_of(stack: str, file: str) -> Census:
    """Its counts, parsed once a session."""
    counted: Census = _PARSERS[stack].count(text_of(file))
    return counted


def _profile(
    processes: int, warmups: int, executions: int, *blocks: study.BlockChoice
) -> study.Profile:
    return study.Profile(
        title="fabricated",
        device="cpu",
        contract="equal",
        blocks=blocks,
        cpus=2,
        memory_mib=0,
        processes=processes,
        warmups=warmups,
        executions=executions,
    )


_RESNET = ("eager", "inductor", "inductor-fold", "xla", "tvm")
_FOLDS = (*_RESNET[:3], "inductor-guard", "inductor-freeze", "inductor-bneval")

#: Like the study's profiles of these names, but fixed: an edit of the study is no edit of a test.
PROFILES = {
    "cpu": _profile(
        5,
        10,
        50,
        study.BlockChoice(R18[0], (R18[1],), _RESNET),
        study.BlockChoice(R50[0], (R50[1],), _RESNET),
        study.BlockChoice(
            BERT[0], (BERT[1],), ("eager", "inductor", "inductor-control", "xla", "tvm")
        ),
        study.BlockChoice(GPT2[0], (GPT2[1],), ("eager", "inductor", "xla", "tvm")),
    ),
    "folds": _profile(
        5,
        10,
        50,
        study.BlockChoice(R18[0], (R18[1],), _FOLDS),
        study.BlockChoice(R50[0], (R50[1],), _FOLDS),
        study.BlockChoice(GPT2[0], (GPT2[1],), _FOLDS[:3]),
    ),
    "smoke": _profile(
        2,
        2,
        5,
        study.BlockChoice(SMALL[0], (SMALL[1],), _RESNET),
        study.BlockChoice(BERT_2LAYER[0], (BERT_2LAYER[1],), ("inductor", "inductor-control")),
    ),
}


@cache
def the_plan(profile: str = "cpu") -> Plan:
    fixed = replace(study.load(), profiles=PROFILES)
    return make_plan(fixed, profile, bundles={"resnet18": "bundle"})


def facts_of(spec: TrialSpec, fold_ms: float) -> dict[str, Any]:
    """What a trial says of its fold, of the route inside the compiler, or of its audit."""
    if spec.configuration == "inductor-fold" and spec.family == "gpt2":
        tied = "lm_head is tied: model.lm_head.weight is also model.transformer.wte.weight"
        last = {"name": "model.transformer.ln_f", "reason": tied}
        kind = "layernorm-linear"
        return {"fold": {"kind": kind, "folded": 24, "refused": [last], "fold_ms": fold_ms}}
    if spec.configuration == "inductor-control":
        sites = 2 * int(spec.model_options.get("layers", 12)) + 1
        return {"audit": {"sites": sites, "legal": 0, "unmatched": 0}}
    norms = {"resnet18": 20, "resnet50": 53}.get(spec.architecture)
    if spec.configuration == "inductor-fold":
        return {"fold": {"folded": norms, "refused": [], "fold_ms": fold_ms}}
    if spec.configuration == "inductor-guard":
        return {"route": guard_facts(norms or 0)}
    return {}


def guard_facts(folded: int) -> dict[str, Any]:
    """What the guarded pass reports."""
    return {
        "name": "guard",
        "folded": folded,
        "unit": "BatchNorm",
        "refused": [],
        "fold_ms": 70.0,
        "guarded_tensors": 5 * folded,
        "refolds": 0,
        "fallbacks": 0,
        "guards": "weights: identity; scales, biases and statistics: identity and values",
    }


#: What each stack's framework counts; TVM counts nothing, and eager compiles nothing.
_COUNTERS = {
    "inductor": {"inductor.fxgraph_cache_hit": 0, "aot_autograd.total": 1},
    "xla": {"cache_hits": 0, "task_disabled_cache": 1},
}


def cold_of(spec: TrialSpec) -> Cold:
    """The proof of a cold trial of this stack."""
    graphs = 0 if spec.stack == "eager" else 1
    return Cold({"TMPDIR": 0, "HOME": 0}, _COUNTERS.get(spec.stack, {}), {}, graphs, ())


def record_of(spec: TrialSpec, source: random.Random, number: int) -> Record:
    """An ok record; every random number comes from `source`."""
    factor = FACTOR.get(spec.model, 1.0)
    compile_ms, latency_ms = (factor * value for value in TIMES_MS[spec.configuration])
    compile_ms *= source.lognormvariate(0.0, SPREAD)
    latency_ms *= source.lognormvariate(0.0, SPREAD / 4)
    fold_ms = FOLD_MS * factor if spec.configuration == "inductor-fold" else 0.0
    steps = [("framework_import", 900.0), ("fold", fold_ms), ("compile", compile_ms)]
    phases, start_ms = [], 0.0
    for name, duration_ms in [*steps, ("first_call", latency_ms)]:
        phases.append(Phase(name, start_ms, duration_ms))
        start_ms += duration_ms
    file = _TEXTS.get(cell_of(spec))
    return Record(
        schema=SCHEMA_VERSION,
        spec=spec,
        status="ok",
        identity=Identity(
            lock_hash=f"lock-{study.image_of(spec.stack)}",
            code_hash="code",
            image_id="image",
            engine="docker",
            process_id=f"container-{number}",
            boot_id="boot",
            started_utc=f"2026-01-01T{number // 60:02d}:{number % 60:02d}:00.000+00:00",
            cpu_model="a CPU",
            architecture="x86_64",
            effective_cpus=2,
            threads=2,
            compile_threads=2,
            device_name="cpu",
        ),
        environment={"TZ": "UTC"},
        phases=tuple(phases),
        native=NativeWindow(("compile", "first_call"), subtract_latency=True),
        warmup_ms=(1.1 * latency_ms,) * spec.warmups,
        execution_ms=tuple(
            latency_ms * source.lognormvariate(0.0, 0.01) for _ in range(spec.executions)
        ),
        cold=cold_of(spec),
        output=Output(1e-7, 1e-5, 1e-6, True),
        census=census_of(spec.stack, file) if file else None,
        code_files=(_FILE,) if file else (),
        facts=facts_of(spec, fold_ms),
        telemetry=Telemetry(1.0, 1.0, 0, 0, 0, 0.0, 0.0, 0.0, 1_000_000, 0),
    )


def records(seed: int = 1, profile: str = "cpu") -> tuple[Record, ...]:
    source = random.Random(seed)
    return tuple(
        record_of(spec, source, number) for number, spec in enumerate(the_plan(profile).trials())
    )


def read_code(record: Record) -> Mapping[str, str]:
    file = _TEXTS.get(cell_of(record.spec))
    return {name: text_of(file) for name in record.code_files} if file else {}


@cache
def campaign(seed: int = 1, profile: str = "cpu") -> Campaign:
    """A campaign in which every claim holds; another seed is another, independent campaign."""
    made = Campaign(
        name=f"fabricated-{seed}",
        profile=profile,
        records=records(seed, profile),
        planned={spec.trial_id: spec for spec in the_plan(profile).trials()},
        broken=(),
        noisy={},
        calibration_ms=CALIBRATION_MS,
        read_code=read_code,
    )
    # statsmodels collects garbage at every Holm; what the session keeps need not be looked through.
    gc.freeze()
    return made


def changed(original: Campaign, alter: Callable[[Record], Record | None], *cells: Cell) -> Campaign:
    """A copy in which `alter` replaces (or with None drops) the records of `cells`, or all."""
    kept = []
    for record in original.records:
        chosen = not cells or cell_of(record.spec) in cells
        after = alter(record) if chosen else record
        if after is not None:
            kept.append(after)
    return replace(original, records=tuple(kept))


def scaled(compile_cost: float = 1.0, latency: float = 1.0) -> Callable[[Record], Record]:
    """Multiply T_C and T_X of a record."""

    def alter(record: Record) -> Record:
        phases = tuple(
            replace(p, duration_ms=p.duration_ms * compile_cost) if p.name == "compile" else p
            for p in record.phases
        )
        return replace(
            record,
            phases=phases,
            warmup_ms=tuple(value * latency for value in record.warmup_ms),
            execution_ms=tuple(value * latency for value in record.execution_ms),
        )

    return alter


def write(
    directory: Path,
    original: Campaign,
    *,
    code: Callable[[Record], Mapping[str, str]] = read_code,
) -> Path:
    """The campaign as a folder that the campaign code itself would have left."""
    store = Store(directory)
    store.create(the_plan(original.profile), {"created_utc": "2026-01-01T00:00:00.000+00:00"})
    for record in original.records:
        texts = code(record)
        store.write_record(record, {n: lzma.compress(t.encode()) for n, t in texts.items()})
    for block in sorted({(r.spec.block_id, r.spec.block_run) for r in original.records}):
        store.write_calibration(
            Calibration(*block, 1, "boot", "2026-01-01T00:00:00.000+00:00", CALIBRATION_MS)
        )
    return directory
