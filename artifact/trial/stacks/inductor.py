"""TorchInductor: `torch.compile(fullgraph=True, dynamic=False)`.

Native window (paper, protocol): T_first - T_X. Here the first compiled call is two phases,
`toolchain` (the compiler's one-time work) and `first_call`, so that T_C can be shown with and
without the former. On CUDA only the wrapper is made in `toolchain`; the rest stays where
`torch.compile` does it, in the first call.

Options:

    fold    "conv-batchnorm" or "layernorm-linear": offline fold before capture, phase `fold`
    route   the Conv-BatchNorm fold inside the compiler, within the first call: "guard" (the guarded
            pass of `artifact.folds.guarded`), "freezing" and "bn-eval" (Inductor's own)
    copy    true: an unchanged copy of the model, the BERT audit's control
"""

from __future__ import annotations

import copy
import importlib
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from artifact.errors import UserError
from artifact.plan import TrialSpec
from artifact.records import NativeWindow
from artifact.trial.stacks import ColdReading, GeneratedCode, Placement, _inductor_toolchain
from artifact.trial.stacks._torch import TorchAdapter, ceiling_applies, isa_environment

if TYPE_CHECKING:
    from artifact.folds.guarded import GuardedBackend
    from artifact.trial.clock import Clock

OPTIONS = ("fold", "route", "copy")
FOLDS = {
    "conv-batchnorm": "artifact.folds.conv_batchnorm",
    "layernorm-linear": "artifact.folds.layernorm_linear",
}
ROUTES = ("guard", "freezing", "bn-eval")

#: Every cache switch, by module and name, with the value that a cold trial must read back.
CACHE_FLAGS: dict[tuple[str, str], bool] = {
    ("torch.compiler.config", "force_disable_caches"): True,
    ("torch._inductor.config", "force_disable_caches"): True,
    ("torch._inductor.config", "fx_graph_cache"): False,
    ("torch._inductor.config", "fx_graph_remote_cache"): False,
    ("torch._inductor.config", "autotune_local_cache"): False,
    ("torch._inductor.config", "autotune_remote_cache"): False,
    ("torch._inductor.config", "bundled_autotune_remote_cache"): False,
    ("torch._inductor.config", "bundle_triton_into_fx_graph_cache"): False,
    ("torch._inductor.config", "remote_gemm_autotune_cache"): False,
    ("torch._functorch.config", "enable_autograd_cache"): False,
    ("torch._functorch.config", "enable_remote_autograd_cache"): False,
    ("torch._functorch.config", "bundled_autograd_cache"): False,
    ("torch._dynamo.config", "automatic_dynamic_local_pgo"): False,
    ("torch._dynamo.config", "automatic_dynamic_remote_pgo"): False,
    ("torch._dynamo.config", "caching_precompile"): False,
}

#: Counters of caches that outlive a process. A hit is a warm trial; a disabled cache has none.
CACHE_COUNTERS = (
    ("inductor", "fxgraph_cache_hit"),
    ("inductor", "fxgraph_cache_miss"),
    ("inductor", "fxgraph_cache_bypass"),
    ("aot_autograd", "autograd_cache_hit"),
    ("aot_autograd", "autograd_cache_miss"),
    ("aot_autograd", "autograd_cache_bypass"),
    ("aot_autograd", "total"),
    ("dynamo_cache", "dynamo_cache_hit"),
    ("dynamo_cache", "dynamo_cache_miss"),
)


#: What Dynamo says of an operator that runs but that it cannot trace.
NO_FAKE_IMPLEMENTATION = "no fake impl registered"

#: A line of Inductor's wrapper module: all kernels must be ready before the first call.
WRAPPER_MARK = "async_compile.wait(globals())"


def compile_arguments(spec: TrialSpec) -> dict[str, Any]:
    """Arguments of `torch.compile` for one trial (DESIGN: configurations; paper's contract)."""
    arguments: dict[str, Any] = {"fullgraph": True, "dynamic": False}
    if spec.contract == "paper" and spec.device == "cuda" and spec.family == "resnet":
        arguments["mode"] = "max-autotune"
    return arguments


class Adapter(TorchAdapter):
    """TorchInductor behind the `Stack` protocol."""

    native = NativeWindow(phases=("toolchain", "first_call"), subtract_latency=True)

    def __init__(self, spec: TrialSpec, placement: Placement) -> None:
        super().__init__(spec, placement)
        _check_options(spec.options)
        self._toolchain = _inductor_toolchain.Toolchain()
        self._fold_facts: dict[str, Any] = {}
        self._guard: GuardedBackend | None = None

    @staticmethod
    def environment(spec: TrialSpec, placement: Placement) -> dict[str, str]:
        """Caches off and in fresh folders, compile threads, ISA ceiling."""
        cache = placement.scratch / "cache"
        variables = {
            "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
            "TRITON_CACHE_DIR": str(cache / "triton"),
            "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1",
            "TORCHINDUCTOR_FX_GRAPH_CACHE": "0",
            "TORCHINDUCTOR_FX_GRAPH_REMOTE_CACHE": "0",
            "TORCHINDUCTOR_AUTOGRAD_CACHE": "0",
            "TORCHINDUCTOR_AUTOGRAD_REMOTE_CACHE": "0",
            "TORCHINDUCTOR_AUTOTUNE_REMOTE_CACHE": "0",
            "TORCHINDUCTOR_BUNDLED_AUTOTUNE_REMOTE_CACHE": "0",
            "TORCHINDUCTOR_BUNDLE_TRITON_INTO_FX_GRAPH_CACHE": "0",
            "TORCH_DYNAMO_AUTOMATIC_DYNAMIC_LOCAL_PGO": "0",
            "TORCH_DYNAMO_AUTOMATIC_DYNAMIC_REMOTE_PGO": "0",
            "TORCH_CACHING_PRECOMPILE": "0",
            "TORCHINDUCTOR_COMPILE_THREADS": str(placement.compile_threads),
            "TORCHINDUCTOR_WORKER_START": "subprocess",
        }
        if ceiling_applies(spec):
            # Inductor passes -march=native to g++ beside the flags of the ISA it picked, so that
            # g++ would use AVX-512 by itself in scalar loops. x86-64-v3 is AVX2 and no more.
            variables["TORCHINDUCTOR_CPP_MARCH"] = "x86-64-v3"
        return variables | isa_environment(spec)

    @staticmethod
    def cache_directories(placement: Placement) -> dict[str, Path]:
        """Inductor's and Triton's caches; the precompiled header lives in TMPDIR."""
        cache = placement.scratch / "cache"
        return {
            "TORCHINDUCTOR_CACHE_DIR": cache / "inductor",
            "TRITON_CACHE_DIR": cache / "triton",
            "XDG_CACHE_HOME": cache / "xdg",
        }

    def import_framework(self) -> None:
        """As for eager, with the compiler's settings that no variable can set."""
        super().import_framework()
        import torch._dynamo
        import torch._inductor.config

        torch._inductor.config.autotune_local_cache = False
        if ceiling_applies(self._spec):
            _inductor_toolchain.keep_below_avx512()
        if fold := self._spec.options.get("fold"):
            self._folder: Any = importlib.import_module(FOLDS[fold])
        self._set_route()

    def _set_route(self) -> None:
        """Switch the chosen route on where only a module-wide setting does it."""
        route = self._spec.options.get("route")
        # `torch.compile(options={"freezing": True})` changes nothing: Dynamo must see the setting.
        if route == "freezing":
            self._torch._inductor.config.freezing = True
        elif route == "bn-eval":
            self._torch._inductor.config.efficient_conv_bn_eval_fx_passes = True
        elif route == "guard":
            from artifact.folds import guarded

            self._guarded: Any = guarded

    def compile(self, clock: Clock) -> Callable[[], Any]:
        """Fold if asked, bind, do the one-time work; the compilation itself is the first call."""
        if self._spec.options.get("copy"):
            self._model = copy.deepcopy(self._model)  # in no phase: not part of any T_C
        if self._spec.options.get("fold"):
            self._fold(clock)
        self.bind(clock)
        with clock.phase("toolchain"):
            with self._toolchain.step("wrapper"):
                compiled = self._compiled()
            if self._spec.device == "cpu":
                _inductor_toolchain.prepare(self._toolchain)
        self._check_isa()
        dynamo = self._torch._dynamo.exc
        return self.guarded(
            compiled,
            (dynamo.Unsupported, dynamo.TorchRuntimeError, dynamo.BackendCompilerFailed),
            "TorchInductor",
            _is_missing_operator,
        )

    def _compiled(self) -> Callable[..., Any]:
        """`torch.compile`, or the same with the guarded pass; nothing is compiled yet."""
        arguments = compile_arguments(self._spec)
        if self._spec.options.get("route") != "guard":
            compiled: Callable[..., Any] = self._torch.compile(self._model, **arguments)
            return compiled
        mode = arguments.pop("mode", None)
        compiler = self._guarded.inductor_backend(mode, dynamic=arguments["dynamic"])
        self._guard = self._guarded.GuardedBackend(compiler)
        guarded: Callable[..., Any] = self._guarded.compile_guarded(
            self._model, backend=self._guard, **arguments
        )
        return guarded

    def _fold(self, clock: Clock) -> None:
        fold = self._spec.options["fold"]
        # The LayerNorm fold traces with inputs; the model is still in host memory.
        examples = tuple(tensor.cpu() for tensor in self._inputs)
        with clock.phase("fold"):
            if fold == "layernorm-linear":
                outcome = self._folder.fold(self._model, *examples)
            else:
                outcome = self._folder.fold(self._model)
        if outcome.folded == 0:
            why = "".join(f": {r.name}, {r.reason}" for r in outcome.refused[:1])
            raise UserError(
                f"the fold {fold} found nothing to fold in {self._spec.model}{why}",
                next_step="drop the configuration inductor-fold for this model",
            )
        self._model = outcome.model
        self._fold_facts = {
            "kind": fold,
            "folded": outcome.folded,
            "folded_names": list(outcome.folded_names),
            "refused": [{"name": r.name, "reason": r.reason} for r in outcome.refused],
            "fold_ms": outcome.fold_ms,
            "phases_ms": dict(outcome.phases_ms),
        }

    def _check_isa(self) -> None:
        if ceiling_applies(self._spec) and self._toolchain.isa != "avx2":
            raise UserError(
                f"Inductor picked the vector ISA {self._toolchain.isa}, the profile asks for avx2",
                next_step="check that this CPU has AVX2 and g++ works, or run with ISA=native",
            )

    def read_cold(self) -> ColdReading:
        """Counters, switches and graphs as the framework reports them."""
        from torch._dynamo.utils import counters, get_compilation_metrics

        read = {f"{group}.{name}": int(counters[group][name]) for group, name in CACHE_COUNTERS}
        read["graph_breaks"] = sum(counters["graph_break"].values())
        read["recompiles"] = max(0, len(get_compilation_metrics()) - 1)
        read["precompiled_headers_before"] = self._toolchain.headers_before
        graphs = int(counters["stats"]["unique_graphs"])
        flags = read_flags()
        violations = [*_counter_violations(read), *flag_violations(flags)]
        if graphs != 1:
            violations.append(f"Dynamo captured {graphs} graphs, expected exactly 1")
        return ColdReading(read, flags, graphs, tuple(violations))

    def generated_code(self) -> GeneratedCode:
        """The wrapper module that Inductor wrote and loaded: kernels' source and calls.

        Read from the private cache folder: with caches disabled Inductor compiles in a fresh folder
        below it and forgets the modules afterwards, but leaves the files.
        """
        root = self.cache_directories(self._placement)["TORCHINDUCTOR_CACHE_DIR"]
        texts = [path.read_text(encoding="utf-8") for path in sorted(root.rglob("*.py"))]
        # On CUDA each Triton kernel is a module of its own; only the wrapper waits for them all.
        wrappers = [text for text in texts if WRAPPER_MARK in text]
        if len(wrappers) != 1:
            raise RuntimeError(f"Inductor left {len(wrappers)} wrapper modules, expected exactly 1")
        return GeneratedCode("inductor", {"wrapper.py": wrappers[0]})

    def versions(self) -> dict[str, str]:
        """As for eager, with the C++ compiler."""
        return super().versions() | {"g++": _compiler_version()}

    def facts(self) -> dict[str, Any]:
        """How `torch.compile` was called, what the fold did, what the tool chain is."""
        from torch._inductor import config

        return super().facts() | {
            "torch_compile": compile_arguments(self._spec),
            "copy": bool(self._spec.options.get("copy", False)),
            "fold": self._fold_facts,
            "route": self._route_facts(),
            "audit": self._audit(),
            "inductor_isa": self._toolchain.isa,
            "inductor_probed_isas": list(self._toolchain.probed_isas),
            "inductor_simdlen": config.cpp.simdlen,
            "inductor_march": config.cpp.march,
            "inductor_compile_threads": config.compile_threads,
            "inductor_freezing": bool(config.freezing),
            "inductor_max_autotune": bool(config.max_autotune) or self._max_autotune,
            "worker_pools": _inductor_toolchain.worker_pools(),
            "precompiled_headers": {
                "before_toolchain": self._toolchain.headers_before,
                "after_toolchain": self._toolchain.headers_after,
                "after_executions": len(_inductor_toolchain.precompiled_headers()),
            },
        }

    def _route_facts(self) -> dict[str, Any]:
        """What the route inside the compiler did; `UserError` when it did nothing.

        `guards` says in words what makes the route see a change of a folded tensor.
        """
        route = self._spec.options.get("route")
        if route is None:
            return {}
        found = self._guard_facts() if route == "guard" else _builtin_route_facts(route)
        if not found["folded"]:
            raise UserError(
                f"the route {route} folded nothing in {self._spec.model}",
                next_step=f"drop the configuration {self._spec.configuration} for this model",
            )
        return {"name": route, **found}

    def _guard_facts(self) -> dict[str, Any]:
        if self._guard is None:
            return {"folded": 0}
        (report,) = self._guard.reports  # one graph: `read_cold` has refused more
        return {
            "folded": len(report.folded_names),
            "unit": "BatchNorm",
            "folded_names": list(report.folded_names),
            "refused": [{"name": r.name, "reason": r.reason} for r in report.refused],
            "fold_ms": report.fold_ms,
            "guarded_tensors": report.guarded_tensors,
            "refolds": report.refolds,
            "fallbacks": report.fallbacks,
            "guards": "weights: identity, version counter, data pointer; scales, biases and "
            "statistics: identity and values; training flag: Dynamo",
        }

    def _audit(self) -> dict[str, int]:
        """Counts of the LayerNorm-Linear audit (claim C6), for the audit's control only.

        Made after the executions, when nothing is timed any more.
        """
        if not self._spec.options.get("copy"):
            return {}
        from artifact.folds.layernorm_linear import VERDICTS, audit

        audited = audit(self._model, *self._inputs)
        return {"sites": len(audited.sites)} | {v: audited.count(v) for v in VERDICTS}

    @property
    def _max_autotune(self) -> bool:
        return compile_arguments(self._spec).get("mode") == "max-autotune"

    def detail_ms(self) -> dict[str, float]:
        """Steps of `toolchain`, and PyTorch's own timers inside the first call; these nest."""
        from torch._dynamo.utils import compilation_time_metrics

        timers = {key: sum(seconds) * 1e3 for key, seconds in compilation_time_metrics.items()}
        return {**self._toolchain.steps_ms, **dict(sorted(timers.items()))}


def _check_options(options: Mapping[str, Any]) -> None:
    unknown = sorted(set(options) - set(OPTIONS))
    if unknown:
        raise UserError(
            f"configuration option {unknown[0]!r} is unknown to inductor",
            next_step=f"known: {', '.join(OPTIONS)}",
        )
    for option, known in (("fold", FOLDS), ("route", ROUTES)):
        chosen = options.get(option)
        if chosen is not None and chosen not in known:
            raise UserError(
                f"{option} {chosen!r} is unknown", next_step=f"known: {', '.join(known)}"
            )


#: Inductor's own count of what a built-in route folded, and what one of them is.
ROUTE_COUNTERS = {
    "freezing": ("binary_folding_conv", "operation, four to a BatchNorm"),
    "bn-eval": ("efficient_conv_bn_eval", "BatchNorm"),
}
ROUTE_GUARDS = {
    "freezing": "none: a changed parameter gives stale results",
    "bn-eval": "none needed: folded anew from the parameters in every execution",
}


def _builtin_route_facts(route: str) -> dict[str, Any]:
    """Settings read back and Inductor's own counter of folds, for a route that it has built in."""
    from torch._dynamo.utils import counters
    from torch._inductor import config

    counter, unit = ROUTE_COUNTERS[route]
    return {
        "folded": int(counters["inductor"][counter]),
        "unit": unit,
        "counter": counter,
        "guards": ROUTE_GUARDS[route],
        "freezing": bool(config.freezing),
        "efficient_conv_bn_eval_fx_passes": bool(config.efficient_conv_bn_eval_fx_passes),
    }


def _is_missing_operator(error: BaseException) -> bool:
    """True when the compiler lacks an operator, false for any other failure of the compiler."""
    from torch._dynamo.exc import TorchRuntimeError, Unsupported
    from torch._inductor.exc import MissingOperatorWithDecomp, MissingOperatorWithoutDecomp

    if isinstance(error, TorchRuntimeError):  # also raised for any fault of the model itself
        return NO_FAKE_IMPLEMENTATION in str(error)
    missing = (MissingOperatorWithDecomp, MissingOperatorWithoutDecomp, NotImplementedError)
    inner = getattr(error, "inner_exception", None)
    return isinstance(error, Unsupported) or isinstance(inner, missing)


def read_flags() -> dict[str, str]:
    """Every switch of `CACHE_FLAGS` as its module now holds it."""
    return {
        f"{module}.{name}": str(getattr(importlib.import_module(module), name))
        for module, name in CACHE_FLAGS
    }


def flag_violations(flags: Mapping[str, str]) -> list[str]:
    """One line for each cache that is not switched off."""
    return [
        f"{module}.{name} is {flags[f'{module}.{name}']}, a cold trial needs {wanted}"
        for (module, name), wanted in CACHE_FLAGS.items()
        if flags[f"{module}.{name}"] != str(wanted)
    ]


def _counter_violations(counters: Mapping[str, int]) -> list[str]:
    """One line for each cache hit, graph break, recompilation or header that was there before."""
    suspicious = ("_hit", "graph_breaks", "recompiles", "precompiled_headers_before")
    return [
        f"{name} is {value}, expected 0"
        for name, value in counters.items()
        if value and name.endswith(suspicious)
    ]


def _compiler_version() -> str:
    """First line of `g++ --version`; `absent` where there is none (a CUDA image may lack it)."""
    try:
        answer = subprocess.run(
            ["g++", "--version"], capture_output=True, text=True, check=True, timeout=30
        )
    except FileNotFoundError:
        return "absent"
    return answer.stdout.splitlines()[0]
