"""XLA through JAX: a native Flax model, `jax.jit`, lowered and compiled ahead of its first call.

Native window (paper, protocol): T_first - T_X, where the first compiled call is trace and lower
(`capture`), `compile` and `first_call`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from artifact.errors import UserError
from artifact.plan import TrialSpec
from artifact.records import NativeWindow
from artifact.study import parse_input
from artifact.trial.stacks import ColdReading, GeneratedCode, Placement, Unsupported

if TYPE_CHECKING:
    import numpy as np

    from artifact.trial.bundle import Bundle
    from artifact.trial.clock import Clock

#: JAX's name for each precision of the study; without it CUDA would choose TF32 by itself.
MATMUL_PRECISION = {"fp32": "highest", "tf32": "tensorfloat32"}

#: Events that JAX reports about its persistent compilation cache.
CACHE_EVENTS = ("cache_hits", "cache_misses", "compile_requests_use_cache", "task_disabled_cache")


class Adapter:
    """XLA behind the `Stack` protocol."""

    native = NativeWindow(phases=("capture", "compile", "first_call"), subtract_latency=True)

    def __init__(self, spec: TrialSpec, placement: Placement) -> None:
        self._spec = spec
        self._cache_events = dict.fromkeys(CACHE_EVENTS, 0)
        self._durations_s: dict[str, float] = {}
        self._compilations = 0
        self._counting = False

    @staticmethod
    def environment(spec: TrialSpec, placement: Placement) -> dict[str, str]:
        """Persistent cache off, platform and ISA ceiling fixed, private dump-free flags."""
        variables = {
            "JAX_PLATFORMS": spec.device,
            "JAX_ENABLE_COMPILATION_CACHE": "false",
            "JAX_ENABLE_PGLE": "false",
            "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        }
        if spec.device == "cpu" and spec.isa == "avx2":
            variables["XLA_FLAGS"] = "--xla_cpu_max_isa=AVX2"
        return variables

    @staticmethod
    def cache_directories(placement: Placement) -> dict[str, Path]:
        """The only folder in which JAX could keep something by itself."""
        return {"XDG_CACHE_HOME": placement.scratch / "cache" / "xdg"}

    def import_framework(self) -> None:
        import jax
        import jax.monitoring

        jax.monitoring.register_event_listener(self._on_event)
        jax.monitoring.register_event_duration_secs_listener(self._on_duration)
        jax.config.update("jax_default_matmul_precision", MATMUL_PRECISION[self._spec.precision])
        try:
            self._device = jax.devices(self._spec.device)[0]
        except RuntimeError as error:
            raise UserError(
                f"JAX finds no {self._spec.device} device ({str(error).splitlines()[0]})",
                next_step="use --device cpu, or the image built with ACCELERATOR=cuda",
            ) from error
        from artifact.models import flax_models

        self._flax_models = flax_models

    def _on_event(self, event: str, **_: Any) -> None:
        name = event.rpartition("/")[2]
        if "/compilation_cache/" in event and name in self._cache_events:
            self._cache_events[name] += 1

    def _on_duration(self, event: str, duration_s: float, **_: Any) -> None:
        if self._counting and event.startswith("/jax/core/compile/"):
            key = event.rpartition("/")[2].removesuffix("_duration")
            self._durations_s[key] = self._durations_s.get(key, 0.0) + duration_s
            self._compilations += key == "backend_compile"

    def build_model(self, bundle: Bundle) -> None:
        self._program = self._flax_models.build(
            self._spec.architecture,
            self._spec.model_options,
            parse_input(self._spec.input),
            bundle.weights,
            bundle.aliases,
            precision=MATMUL_PRECISION[self._spec.precision],
        )
        self._host_inputs = bundle.inputs

    def start_runtime(self) -> None:
        import jax

        jax.block_until_ready(jax.device_put(1.0, self._device) + 1.0)
        self._inputs = [jax.device_put(a, self._device) for a in self._host_inputs]
        jax.block_until_ready(self._inputs)

    def compile(self, clock: Clock) -> Callable[[], Any]:
        try:
            return self._compile(clock)
        except NotImplementedError as error:  # a primitive without a lowering on this platform
            first = (str(error).strip().splitlines() or ["no message"])[0][:300]
            raise Unsupported(f"XLA (jax {version('jax')}) cannot lower: {first}") from error

    def _compile(self, clock: Clock) -> Callable[[], Any]:
        import jax

        self._counting = True
        apply, parameters = self._program.apply, self._program.params
        if self._spec.binding == "frozen":
            # Weights become constants of the program: the compiler may fold and lay them out.
            with clock.phase("capture"):
                lowered = jax.jit(lambda *inputs: apply(parameters, *inputs)).lower(*self._inputs)
            arguments = self._inputs
        else:
            with clock.phase("binding"):
                parameters = jax.block_until_ready(jax.device_put(parameters, self._device))
            with clock.phase("capture"):
                lowered = jax.jit(apply).lower(parameters, *self._inputs)
            arguments = [parameters, *self._inputs]
        with clock.phase("compile"):
            self._compiled = lowered.compile()
        compiled = self._compiled
        return lambda: compiled(*arguments)

    def synchronize(self, output: Any) -> None:
        output.block_until_ready()

    def to_numpy(self, output: Any) -> np.ndarray:
        import numpy

        return numpy.asarray(output)

    def read_cold(self) -> ColdReading:
        import jax

        flags = {
            name: str(getattr(jax.config, name))
            for name in ("jax_enable_compilation_cache", "jax_compilation_cache_dir")
        }
        violations = []
        if flags["jax_enable_compilation_cache"] != "False":
            violations.append("JAX's persistent compilation cache is switched on")
        if self._cache_events["cache_hits"]:
            violations.append(f"JAX reports {self._cache_events['cache_hits']} cache hits")
        if self._compilations != 1:
            violations.append(f"XLA compiled {self._compilations} programs, expected exactly 1")
        return ColdReading(
            counters=dict(self._cache_events),
            flags=flags,
            compiled_graphs=self._compilations,
            violations=tuple(violations),
        )

    def generated_code(self) -> GeneratedCode:
        return GeneratedCode("hlo", {"optimized.hlo": self._compiled.as_text()})

    def versions(self) -> dict[str, str]:
        return {name: version(name) for name in ("jax", "jaxlib", "flax", "numpy")}

    def facts(self) -> dict[str, Any]:
        import jax

        return {
            "precision": "fp32" if self._spec.device == "cpu" else self._spec.precision,
            "matmul_precision": str(jax.config.jax_default_matmul_precision),
            "binding": self._spec.binding,
            "xla_flags": os.environ.get("XLA_FLAGS", ""),
            "device_name": self._device.device_kind,
            "attention": "explicit softmax" if self._spec.family != "resnet" else "none",
        }

    def detail_ms(self) -> dict[str, float]:
        return {key: seconds * 1e3 for key, seconds in sorted(self._durations_s.items())}
