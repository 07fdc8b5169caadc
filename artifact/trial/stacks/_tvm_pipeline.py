"""From a Relax module to an executable: targets, passes, code generation, each step by itself.

The passes are those of TVM's documented pipeline, in the order that makes operators really fuse:
without `AnnotateTIROpPattern`, FuseOps fuses nothing (PAPER: weaknesses), and without
`DecomposeOpsForInference` a BatchNorm stays one function of several outputs that nothing joins.
"""

from __future__ import annotations

import os
import platform
import shutil
import sysconfig
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tvm
from tvm import relax
from tvm.ir import Op
from tvm.relax import transform
from tvm.s_tir import dlight
from tvm.target import Target
from tvm.target.codegen import llvm_get_system_cpu
from tvm.tirx import PrimFunc

from artifact.errors import UserError
from artifact.trial.stacks import Unsupported
from artifact.trial.stacks._tvm_schedules import rules

#: LLVM's name of a CPU with AVX2 and FMA and nothing newer.
AVX2_CPU = "core-avx2"
#: Channels last, so that the innermost axis of a convolution's output is contiguous.
CPU_LAYOUT = {"relax.nn.conv2d": ["NHWC", "HWIO"]}
#: Operators that may remain in `main` after legalisation: calls to functions, no computation.
STRUCTURAL = frozenset({"relax.call_tir", "relax.null_value"})


@dataclass
class Lowered:
    """A module after the passes, with what it was before fusion (both for the record only)."""

    legalised: Any
    module: Any
    pass_ms: dict[str, float] = field(default_factory=dict)


def cpu_target(isa: str) -> Target:
    """LLVM target; `isa` "avx2" caps x86-64 at AVX2 and FMA, "native" takes this CPU."""
    capped = isa == "avx2" and platform.machine() == "x86_64"
    return Target({"kind": "llvm", "mcpu": AVX2_CPU if capped else llvm_get_system_cpu()})


def cuda_target(arch: str, host: Target) -> Target:
    """CUDA target for `arch` (such as "sm_86"); needs no device."""
    return Target({"kind": "cuda", "arch": arch}, host=host)


def find_nvcc() -> Path | None:
    """nvcc on PATH or in the NVIDIA packages below site-packages; None where there is none."""
    on_path = shutil.which("nvcc")
    if on_path:
        return Path(on_path)
    packages = Path(sysconfig.get_path("purelib")) / "nvidia"
    return next(iter(sorted(packages.glob("*/bin/nvcc"))), None)


def require_nvcc() -> Path:
    """nvcc, with its folder put on PATH because TVM starts it by name; `UserError` without one."""
    nvcc = find_nvcc()
    if nvcc is None:
        raise UserError(
            "nvcc was found neither on PATH nor among the NVIDIA packages",
            next_step="install the packages of docker/tvm/requirements.lock",
        )
    folders = os.environ.get("PATH", "").split(os.pathsep)
    if str(nvcc.parent) not in folders:
        os.environ["PATH"] = os.pathsep.join([str(nvcc.parent), *folders])
    return nvcc


def lower(module: Any, target: Target, *, fusion: bool = True) -> Lowered:
    """Run all Relax passes up to scheduled TIR functions; `Unsupported` names what stays behind.

    With `fusion` off, FuseOps and FuseTIR are left out and nothing else changes.
    """
    lowered = Lowered(legalised=None, module=module)
    with target:
        _apply(lowered, _legalise_passes(target))
        lowered.legalised = lowered.module
        _refuse_leftovers(lowered.legalised)
        if fusion:
            _apply(lowered, [transform.FuseOps(), transform.FuseTIR()])
        _apply(lowered, [dlight.ApplyDefaultSchedule(*_schedule_rules(target))])
    return lowered


def _legalise_passes(target: Target) -> list[Any]:
    on_cpu = target.kind.name == "llvm"
    return [
        *([transform.ConvertLayout(CPU_LAYOUT)] if on_cpu else []),
        transform.DecomposeOpsForInference(),
        transform.CanonicalizeBindings(),
        transform.LegalizeOps(),
        transform.AnnotateTIROpPattern(),
        transform.FoldConstant(),
        transform.DeadCodeElimination(),
    ]


def _schedule_rules(target: Target) -> list[Any]:
    """Our rules on a CPU; on CUDA those of TVM's own pipeline."""
    if target.kind.name == "llvm":
        return rules()
    gpu = dlight.gpu
    return [gpu.Matmul(), gpu.GEMV(), gpu.Reduction(), gpu.GeneralReduction(), gpu.Fallback()]


def _apply(lowered: Lowered, passes: list[Any]) -> None:
    for step in passes:
        start_ns = time.perf_counter_ns()
        lowered.module = step(lowered.module)
        elapsed_ms = (time.perf_counter_ns() - start_ns) / 1e6
        name = str(step.info.name)
        lowered.pass_ms[name] = lowered.pass_ms.get(name, 0.0) + elapsed_ms


def _calls(module: Any) -> list[str]:
    """Operator names called in `main`, one per call, in program order."""
    names: list[str] = []

    def visit(node: Any) -> None:
        if isinstance(node, relax.Call) and isinstance(node.op, Op):
            names.append(str(node.op.name))

    relax.analysis.post_order_visit(module["main"], visit)
    return names


def _refuse_leftovers(module: Any) -> None:
    """An operator without a TIR form would be a missing kernel at run time: name it now."""
    left = sorted(set(_calls(module)) - STRUCTURAL)
    if left:
        raise Unsupported(f"TVM {tvm.__version__} has no TIR form of {', '.join(left)}")


def graph_count(module: Any) -> int:
    """Relax functions in the module: the graphs that are compiled."""
    return sum(1 for function in module.functions.values() if isinstance(function, relax.Function))


def fast_math(target: Target) -> str:
    """Which value-changing floating-point switches are on: "off" or their names.

    LLVM's are attributes of the target. nvcc's is TVM's default and is switched off by a variable.
    Contraction of a product and a sum into one rounding (FMA) is not among them.
    """
    switched = sorted(k for k, on in target.attrs.items() if k.startswith("fast-math") and on)
    if target.kind.name == "cuda" and not os.environ.get("TVM_CUDA_NVCC_NO_FAST_MATH"):
        switched.append("nvcc --use_fast_math")
    return ", ".join(switched) or "off"


def call_count(module: Any) -> int:
    """Calls of TIR functions in `main`."""
    return _calls(module).count("relax.call_tir")


def functions(module: Any) -> dict[str, Any]:
    """The module's TIR functions by name."""
    return {v.name_hint: f for v, f in module.functions.items() if isinstance(f, PrimFunc)}


def reachable(module: Any) -> dict[str, Any]:
    """TIR functions that remain when everything `main` does not need is removed."""
    return functions(transform.DeadCodeElimination()(module))


def unscheduled(module: Any) -> list[str]:
    """Names of TIR functions that no schedule rule took."""
    taken = ("tirx.is_scheduled", "s_tir.is_scheduled", "tir.is_scheduled")
    return sorted(
        name
        for name, function in functions(module).items()
        if not any(key in (function.attrs or {}) for key in taken)
    )


def build(module: Any, target: Target) -> Any:
    """Executable for the Relax virtual machine, with machine code already made.

    TVM's LLVM module emits machine code at the first look-up of one of its functions, which would
    fall into loading the program; asking for one here keeps code generation in one phase.
    """
    executable = tvm.compile(module, target=target)
    library = executable.jit()
    for imported in library.imports:
        if imported.kind == "llvm":
            imported.get_function(next(iter(functions(module))))
    return executable
