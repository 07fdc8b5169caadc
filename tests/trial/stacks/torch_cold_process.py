"""One cold process of a PyTorch stack, in the runner's order, for the tests beside this file.

    python torch_cold_process.py '{"spec": {...}, "scratch": "...", "variables": {}, "toy": false}'

The last line of standard output is JSON: what the process saw after each step. `toy` replaces the
model by one BatchNorm (mean 5, variance 4, gamma 2, beta 1, eps 0) on a constant input 7.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from artifact.strict_json import from_plain
from artifact.trial import cold
from artifact.trial.clock import Clock, time_executions


def main(request: dict[str, Any]) -> dict[str, Any]:
    """Run the trial's steps once and report."""
    from artifact.plan import TrialSpec
    from artifact.trial.stacks import adapter

    spec = from_plain(TrialSpec, request["spec"], "spec")
    clock = Clock()
    placement = cold.placement_for(spec, Path(request["scratch"]))
    cold.apply(cold.environment(spec, placement) | request["variables"])
    folders = cold.directories(spec, placement)
    counts = cold.count_entries(folders)
    stack: Any = adapter(spec.stack)(spec, placement)
    stack.import_framework()
    if request["toy"]:
        stack._torch_models = toy_models(stack._torch)
        bundle: Any = toy_bundle()
    else:
        bundle = filled_bundle(spec)
    stack.build_model(bundle)
    expected = float64_output(stack, bundle)
    stack.start_runtime()
    execute = stack.compile(clock)
    after_compile = snapshot(spec)
    with clock.phase("first_call"):
        output = execute()
        stack.synchronize(output)
    after_first_call = snapshot(spec)
    execution_ms, output = time_executions(execute, stack.synchronize, 3)
    reading = stack.read_cold()
    code = stack.generated_code()
    actual = stack.to_numpy(output)
    return {
        "counts": counts,
        "phases": {phase.name: phase.duration_ms for phase in clock.phases},
        "after_compile": after_compile,
        "after_first_call": after_first_call,
        "executions": len(execution_ms),
        "violations": list(reading.violations),
        "counters": dict(reading.counters),
        "graphs": reading.compiled_graphs,
        "code_kind": code.kind,
        "code": dict(code.texts),
        "facts": stack.facts(),
        "versions": stack.versions(),
        "detail_ms": stack.detail_ms(),
        "output": actual.ravel()[:4].tolist(),
        "max_error": float(abs(actual - expected).max()),
    }


def snapshot(spec: Any) -> dict[str, Any]:
    """Precompiled headers and worker pools (Inductor), and child processes, at this moment."""
    children = Path("/proc/self/task")
    pids = sorted(
        int(pid)
        for task in children.iterdir()
        for pid in (task / "children").read_text(encoding="ascii").split()
    )
    seen: dict[str, Any] = {"children": pids, "headers": [], "pools": []}
    if spec.stack == "inductor":
        from torch._inductor import async_compile

        from artifact.trial.stacks import _inductor_toolchain

        seen["headers"] = [path.name for path in _inductor_toolchain.precompiled_headers()]
        seen["pools"] = [pool.process.pid for pool in async_compile._pool_set]
    return seen


def filled_bundle(spec: Any) -> Any:
    """What `build_model` reads of a bundle, filled in memory."""
    from artifact.models import fill
    from artifact.models.architecture import model_tensors

    return SimpleNamespace(
        weights=fill.weights(spec.architecture, spec.model_options, spec.seed),
        aliases=model_tensors(spec.architecture, spec.model_options).aliases,
        inputs=fill.inputs(spec.architecture, spec.model_options, spec.input, spec.seed),
    )


def toy_bundle() -> Any:
    """One input of the toy model."""
    import numpy

    return SimpleNamespace(
        weights={}, aliases={}, inputs=(numpy.full((1, 3, 4, 4), 7.0, numpy.float32),)
    )


def toy_models(torch: Any) -> Any:
    """Stands in for `torch_models`: a BatchNorm whose running statistics are not its batch's."""

    def build(*_: Any) -> Any:
        norm = torch.nn.BatchNorm2d(3, eps=0.0).eval().requires_grad_(False)
        for name, value in (("weight", 2), ("bias", 1), ("running_mean", 5), ("running_var", 4)):
            getattr(norm, name).fill_(float(value))
        return norm

    return SimpleNamespace(build=build, load_weights=lambda *_: None)


def float64_output(stack: Any, bundle: Any) -> Any:
    """Eager's float64 output of the model that `build_model` left."""
    import copy

    torch = stack._torch
    inputs = [torch.from_numpy(array.copy()) for array in bundle.inputs]
    inputs = [x.double() if x.is_floating_point() else x for x in inputs]
    return copy.deepcopy(stack._model).double()(*inputs).numpy()


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
