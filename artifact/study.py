"""The study as data: models, inputs, configurations and profiles, read from `study.toml`."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from artifact.errors import UserError
from artifact.strict_json import SchemaError, from_plain

SCHEMA_VERSION = 1
DEFAULT_PATH = Path(__file__).with_name("study.toml")

#: Stacks that run inside another stack's image. Every other stack has an image of its own name.
IMAGE_OF_STACK = {"eager": "inductor"}

T = TypeVar("T")

_INPUT_PATTERN = re.compile(r"[1-9][0-9]*(x[1-9][0-9]*)+")


@dataclass(frozen=True)
class Protocol:
    """How one cell is measured (paper, protocol section)."""

    processes: int
    warmups: int
    executions: int
    attempts: int
    deadline_s: float
    calibration_deadline_s: float
    page_cold_bytes: int

    def __post_init__(self) -> None:
        for name in ("processes", "executions", "attempts", "deadline_s"):
            if getattr(self, name) <= 0:
                raise SchemaError(f"protocol.{name}: must be positive, is {getattr(self, name)}")
        if self.warmups < 0:
            raise SchemaError(f"protocol.warmups: must not be negative, is {self.warmups}")


@dataclass(frozen=True)
class Model:
    """One network: its architecture, the options of its builder, and the inputs of the study."""

    title: str
    family: str
    architecture: str
    inputs: tuple[str, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    weights_sha256: str = ""


@dataclass(frozen=True)
class Configuration:
    """How a stack runs a model.

    `binding` is one word, or one word per model family; so is the value of every option.
    """

    title: str
    stack: str
    families: tuple[str, ...]
    binding: Any
    options: Mapping[str, Any] = field(default_factory=dict)

    def binding_for(self, family: str) -> str:
        """`frozen` (weights known to the compiler) or `runtime` (passed at each execution)."""
        binding = self.binding[family] if isinstance(self.binding, Mapping) else self.binding
        if binding not in ("frozen", "runtime"):
            raise SchemaError(f"binding: expected frozen or runtime, got {binding!r}")
        return str(binding)

    def options_for(self, family: str) -> dict[str, Any]:
        """The options of a model family; a value given per family must name this one."""
        for name, value in self.options.items():
            if isinstance(value, Mapping) and family not in value:
                raise SchemaError(f"options.{name}: has no value for family {family!r}")
        return {
            name: value[family] if isinstance(value, Mapping) else value
            for name, value in self.options.items()
        }


@dataclass(frozen=True)
class BlockChoice:
    """Some inputs of one model, each measured with all of `configurations` back to back."""

    model: str
    inputs: tuple[str, ...]
    configurations: tuple[str, ...]


@dataclass(frozen=True)
class Profile:
    """One selection of cells with its device, contract and limits."""

    title: str
    device: str
    contract: str
    blocks: tuple[BlockChoice, ...]
    cpus: int
    memory_mib: int
    isa: str = "avx2"
    processes: int | None = None
    warmups: int | None = None
    executions: int | None = None


@dataclass(frozen=True)
class Study:
    """Everything `study.toml` says, cross-checked."""

    schema: int
    seed: int
    protocol: Protocol
    models: Mapping[str, Model]
    configurations: Mapping[str, Configuration]
    profiles: Mapping[str, Profile]

    def __post_init__(self) -> None:
        if self.schema != SCHEMA_VERSION:
            raise SchemaError(f"schema: this version reads {SCHEMA_VERSION}, got {self.schema}")
        for name, model in self.models.items():
            for shape in model.inputs:
                if not _INPUT_PATTERN.fullmatch(shape):
                    raise SchemaError(f"models.{name}.inputs: {shape!r} is not like 1x3x224x224")
        for name, profile in self.profiles.items():
            if profile.device not in ("cpu", "cuda"):
                raise SchemaError(f"profiles.{name}.device: expected cpu or cuda")
            for choice in profile.blocks:
                self._check_choice(f"profiles.{name}", choice)

    def _check_choice(self, where: str, choice: BlockChoice) -> None:
        if choice.model not in self.models:
            raise SchemaError(f"{where}: unknown model {choice.model!r}")
        for shape in choice.inputs:
            if shape != "*" and not _INPUT_PATTERN.fullmatch(shape):
                raise SchemaError(f"{where}: input {shape!r} is not like 1x3x224x224")
        family = self.models[choice.model].family
        for configuration in choice.configurations:
            if configuration not in self.configurations:
                raise SchemaError(f"{where}: unknown configuration {configuration!r}")
            if family not in self.configurations[configuration].families:
                raise SchemaError(
                    f"{where}: configuration {configuration!r} does not apply to {choice.model!r}"
                )

    def model(self, name: str) -> Model:
        """The model called `name`, or a one-line error that lists the known ones."""
        return _pick("model", name, self.models)

    def configuration(self, name: str) -> Configuration:
        """The configuration called `name`, or a one-line error that lists the known ones."""
        return _pick("configuration", name, self.configurations)

    def profile(self, name: str) -> Profile:
        """The profile called `name`, or a one-line error that lists the known ones."""
        return _pick("profile", name, self.profiles)


def _pick(kind: str, name: str, known: Mapping[str, T]) -> T:
    if name not in known:
        raise UserError(f"unknown {kind} {name!r}", next_step=f"known: {', '.join(sorted(known))}")
    return known[name]


def parse_input(text: str) -> tuple[int, ...]:
    """`"1x3x224x224"` -> `(1, 3, 224, 224)`; anything else is a `UserError`."""
    if not _INPUT_PATTERN.fullmatch(text):
        raise UserError(f"input {text!r} is not a shape", next_step="write it like 1x3x224x224")
    return tuple(int(part) for part in text.split("x"))


def image_of(stack: str) -> str:
    """The image (and venv) that a stack's trials run in."""
    return IMAGE_OF_STACK.get(stack, stack)


def load(path: Path = DEFAULT_PATH) -> Study:
    """Read and cross-check a study file; faults are one line that name the file and the key."""
    try:
        return from_plain(Study, tomllib.loads(path.read_text(encoding="utf-8")), "study")
    except OSError as error:
        raise UserError(f"cannot read the study file {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, SchemaError) as error:
        raise UserError(f"{path}: {error}", next_step="mend the study file") from error
