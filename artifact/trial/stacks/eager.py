"""PyTorch without compiling: does compiling pay at all, and from which n.

Native window: the first call less one latency (the same rule as for Inductor and XLA in the paper's
protocol), so that eager has an intercept measured like every other.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from artifact.plan import TrialSpec
from artifact.records import NativeWindow
from artifact.trial.stacks import ColdReading, GeneratedCode, Placement
from artifact.trial.stacks._torch import TorchAdapter, isa_environment

if TYPE_CHECKING:
    from artifact.trial.clock import Clock


class Adapter(TorchAdapter):
    """Eager PyTorch behind the `Stack` protocol."""

    native = NativeWindow(phases=("first_call",), subtract_latency=True)

    @staticmethod
    def environment(spec: TrialSpec, placement: Placement) -> dict[str, str]:
        """The ISA ceiling only: nothing is compiled."""
        return isa_environment(spec)

    @staticmethod
    def cache_directories(placement: Placement) -> dict[str, Path]:
        """No compiler cache; the folder in which a library could keep something by itself."""
        return {"XDG_CACHE_HOME": placement.scratch / "cache" / "xdg"}

    def compile(self, clock: Clock) -> Callable[[], Any]:
        """Bind the weights; the program is the module itself."""
        self.bind(clock)
        return self.guarded(self._model, (NotImplementedError,), "eager PyTorch")

    def read_cold(self) -> ColdReading:
        """Nothing was compiled, so nothing can have been warm."""
        return ColdReading(counters={}, flags={}, compiled_graphs=0)

    def generated_code(self) -> GeneratedCode:
        """No code was generated."""
        return GeneratedCode("")

    def detail_ms(self) -> dict[str, float]:
        """No compiler, no compiler timers."""
        return {}
