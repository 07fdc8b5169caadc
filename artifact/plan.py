"""Which trials a campaign runs, in which order: a pure function of study, profile and seed.

A campaign is K rounds. One round is one seeded shuffle of all blocks; one block is one
(model, input) with its configurations back to back in shuffled order, so that ratios within a
block are paired in time. Nothing is ever run K times in a row.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from artifact.errors import UserError
from artifact.strict_json import SchemaError
from artifact.study import BlockChoice, Profile, Study, parse_input

SCHEMA_VERSION = 1

#: What a trial is for. Only `measured` trials ever enter an estimate.
ROLES = ("measured", "priming", "diagnostic")


@dataclass(frozen=True)
class TrialSpec:
    """Everything one cold process must know; the file `trial.json` inside the container.

    `cpus` = 0 means all that the process may use, `memory_mib` = 0 means no limit.
    """

    schema: int
    trial_id: str
    role: str
    round: int
    model: str
    architecture: str
    family: str
    model_options: Mapping[str, Any]
    input: str
    configuration: str
    stack: str
    options: Mapping[str, Any]
    binding: str
    device: str
    precision: str
    contract: str
    isa: str
    cpus: int
    memory_mib: int
    warmups: int
    executions: int
    deadline_s: float
    page_cold_bytes: int
    seed: int
    bundle: str = ""
    weights_sha256: str = ""
    attempt: int = 1
    block_run: int = 1

    def __post_init__(self) -> None:
        if self.schema != SCHEMA_VERSION:
            raise SchemaError(
                f"trial schema: this version reads {SCHEMA_VERSION}, got {self.schema}"
            )
        if self.role not in ROLES:
            raise SchemaError(f"role: expected one of {', '.join(ROLES)}, got {self.role!r}")
        if self.device not in ("cpu", "cuda"):
            raise SchemaError(f"device: expected cpu or cuda, got {self.device!r}")
        if self.precision not in ("fp32", "tf32"):
            raise SchemaError(f"precision: expected fp32 or tf32, got {self.precision!r}")
        if self.precision == "tf32" and self.device != "cuda":
            raise SchemaError("precision tf32 exists on cuda only")
        if self.isa not in ("avx2", "native"):
            raise SchemaError(f"isa: expected avx2 or native, got {self.isa!r}")
        if self.executions < 1 or self.warmups < 0:
            raise SchemaError("a trial needs at least one execution and no negative warm-ups")
        try:
            parse_input(self.input)
        except UserError as error:
            raise SchemaError(f"a trial measures exactly one shape: {error}") from error

    @property
    def block_id(self) -> str:
        """Names the block of this trial within the campaign."""
        return f"r{self.round}.{self.model}.{self.input}"

    @property
    def record_id(self) -> str:
        """File stem of this attempt's record: unique within a campaign."""
        return f"{self.trial_id}.b{self.block_run}.a{self.attempt}"

    def again(self, attempt: int, block_run: int) -> TrialSpec:
        """The same trial as another attempt, in the given run of its block."""
        return replace(self, attempt=attempt, block_run=block_run)


@dataclass(frozen=True)
class Block:
    """One (model, input) of one round: trials that run back to back."""

    block_id: str
    round: int
    model: str
    input: str
    trials: tuple[TrialSpec, ...]


@dataclass(frozen=True)
class Plan:
    """The whole campaign before its first trial."""

    schema: int
    profile: str
    seed: int
    device: str
    processes: int
    priming: tuple[TrialSpec, ...]
    blocks: tuple[Block, ...]
    notes: tuple[str, ...] = field(default=())

    def trials(self) -> Iterable[TrialSpec]:
        """Measured trials in the order in which they run."""
        for block in self.blocks:
            yield from block.trials


def make_plan(
    study: Study,
    profile_name: str,
    *,
    seed: int | None = None,
    cells: Iterable[tuple[str, str, str]] | None = None,
    isa: str | None = None,
    precision: str = "fp32",
    bundles: Mapping[str, str] | None = None,
) -> Plan:
    """Plan one campaign.

    `cells` keeps only the blocks that hold one of the given (model, input, configuration); a kept
    block keeps its chosen configurations only. `bundles` maps a model to its bundle key. The same
    arguments always give the same plan.
    """
    profile = study.profile(profile_name)
    seed = study.seed if seed is None else seed
    wanted = None if cells is None else set(cells)
    pairs = [
        (choice, shape)
        for choice in _choices(study, profile)
        for shape in choice.inputs
        if wanted is None or _kept(choice, shape, wanted)
    ]
    if not pairs:
        raise UserError(
            f"profile {profile_name!r} has none of the cells asked for",
            next_step="`artifact plan` lists what a profile holds",
        )
    processes = profile.processes or study.protocol.processes
    shuffler = random.Random(f"{seed}/{profile_name}")
    make = _SpecMaker(study, profile, isa, precision, bundles or {}, wanted)
    blocks: list[Block] = []
    for round_number in range(1, processes + 1):
        order = list(pairs)
        shuffler.shuffle(order)
        for choice, shape in order:
            configurations = make.configurations(choice, shape)
            shuffler.shuffle(configurations)
            specs = tuple(make(round_number, choice.model, shape, c) for c in configurations)
            blocks.append(Block(specs[0].block_id, round_number, choice.model, shape, specs))
    return Plan(
        schema=SCHEMA_VERSION,
        profile=profile_name,
        seed=seed,
        device=profile.device,
        processes=processes,
        priming=_priming(blocks),
        blocks=tuple(blocks),
    )


def _choices(study: Study, profile: Profile) -> list[BlockChoice]:
    """The profile's choices with `*` replaced by all inputs of the model."""
    return [
        replace(choice, inputs=study.models[choice.model].inputs)
        if choice.inputs == ("*",)
        else choice
        for choice in profile.blocks
    ]


def _kept(choice: BlockChoice, shape: str, wanted: set[tuple[str, str, str]]) -> bool:
    return any((choice.model, shape, c) in wanted for c in choice.configurations)


@dataclass(frozen=True)
class _SpecMaker:
    study: Study
    profile: Profile
    isa: str | None
    precision: str
    bundles: Mapping[str, str]
    wanted: set[tuple[str, str, str]] | None

    def configurations(self, choice: BlockChoice, shape: str) -> list[str]:
        return [
            c
            for c in choice.configurations
            if self.wanted is None or (choice.model, shape, c) in self.wanted
        ]

    def __call__(self, round_number: int, model: str, shape: str, configuration: str) -> TrialSpec:
        protocol, profile = self.study.protocol, self.profile
        described, chosen = self.study.models[model], self.study.configurations[configuration]
        return TrialSpec(
            schema=SCHEMA_VERSION,
            trial_id=f"r{round_number}.{model}.{shape}.{configuration}",
            role="measured",
            round=round_number,
            model=model,
            architecture=described.architecture,
            family=described.family,
            model_options=described.options,
            input=shape,
            configuration=configuration,
            stack=chosen.stack,
            options=chosen.options_for(described.family),
            binding=chosen.binding_for(described.family),
            device=profile.device,
            precision=self.precision,
            contract=profile.contract,
            isa=self.isa or profile.isa,
            cpus=profile.cpus,
            memory_mib=profile.memory_mib,
            warmups=protocol.warmups if profile.warmups is None else profile.warmups,
            executions=profile.executions or protocol.executions,
            deadline_s=protocol.deadline_s,
            page_cold_bytes=protocol.page_cold_bytes,
            seed=self.study.seed,
            bundle=self.bundles.get(model, ""),
            weights_sha256=described.weights_sha256,
        )


def _priming(blocks: list[Block]) -> tuple[TrialSpec, ...]:
    """One trial per (stack, family) that only warms the page cache; never pooled."""
    first: dict[tuple[str, str], TrialSpec] = {}
    for block in blocks:
        for spec in sorted(block.trials, key=lambda s: s.configuration):
            key = (spec.stack, spec.family)
            if key not in first:
                first[key] = replace(
                    spec,
                    role="priming",
                    round=0,
                    trial_id=f"priming.{spec.family}.{spec.stack}",
                    warmups=0,
                    executions=1,
                )
    return tuple(first[key] for key in sorted(first))
