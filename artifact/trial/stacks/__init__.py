"""One file per stack, all behind the same small protocol.

A stack module imports no framework at its top level (the host imports it to ask for its
environment) and defines one class named `Adapter` that follows `Stack`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from artifact.errors import UserError
from artifact.plan import TrialSpec
from artifact.records import NativeWindow

if TYPE_CHECKING:
    import numpy as np

    from artifact.trial.bundle import Bundle
    from artifact.trial.clock import Clock


class Unsupported(Exception):
    """The stack cannot run this cell; the message names the operators or switch, and versions."""


@dataclass(frozen=True)
class Placement:
    """Where a trial's private folders are and how many threads it uses."""

    scratch: Path
    threads: int
    compile_threads: int


@dataclass(frozen=True)
class GeneratedCode:
    """Text of the program that the compiler made; `kind` names the census parser.

    `kind` is "inductor", "hlo", "tvmscript" or "" (nothing was generated).
    """

    kind: str
    texts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ColdReading:
    """What the framework says, after the executions, about caches and graphs.

    `counters`: cache counters read back (hits must be 0). `flags`: its settings, read back.
    `violations`: one line for each sign that the trial was not cold.
    """

    counters: Mapping[str, int]
    flags: Mapping[str, str]
    compiled_graphs: int
    violations: tuple[str, ...] = ()


class Stack(Protocol):
    """A compiler stack inside one trial. The runner calls the methods in this order, once each.

    environment        static; variables that must be set before the framework is imported
    cache_directories  static; name -> directory that must be empty before the import
    import_framework   phase `framework_import`
    build_model        phase `model_build`: evaluated model with the bundle's weights, host memory
    start_runtime      phase `runtime_start`: one one-element operation on the device
    compile            phases from `fold` to `load`, timed by the stack through the clock; returns
                       the nullary callable that executes the program on the resident input
    (the runner makes the first call, the warm-ups and the executions)
    synchronize        waits until this output is ready on the device
    to_numpy           the output as a NumPy array on the host
    read_cold, generated_code, versions, facts, detail_ms    after the last execution
    """

    native: NativeWindow

    def __init__(self, spec: TrialSpec, placement: Placement) -> None: ...

    @staticmethod
    def environment(spec: TrialSpec, placement: Placement) -> dict[str, str]: ...

    @staticmethod
    def cache_directories(placement: Placement) -> dict[str, Path]: ...

    def import_framework(self) -> None: ...

    def build_model(self, bundle: Bundle) -> None: ...

    def start_runtime(self) -> None: ...

    def compile(self, clock: Clock) -> Callable[[], Any]: ...

    def synchronize(self, output: Any) -> None: ...

    def to_numpy(self, output: Any) -> np.ndarray: ...

    def read_cold(self) -> ColdReading: ...

    def generated_code(self) -> GeneratedCode: ...

    def versions(self) -> dict[str, str]: ...

    def facts(self) -> dict[str, Any]:
        """What else a reader must know: precision flags read back, attention, layout, device."""
        ...

    def detail_ms(self) -> dict[str, float]:
        """The compiler's own timers (ms), inside the phases; never added to them."""
        ...


def adapter(name: str) -> type[Stack]:
    """The `Adapter` class of the stack module called `name`."""
    if not name.isidentifier():
        raise UserError(f"stack name {name!r} is not an identifier")
    module_name = f"{__name__}.{name}"
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name != module_name:
            raise
        known = sorted(p.stem for p in Path(__file__).parent.glob("[a-z]*.py"))
        raise UserError(f"unknown stack {name!r}", next_step=f"known: {', '.join(known)}") from None
    found: type[Stack] = module.Adapter
    return found
