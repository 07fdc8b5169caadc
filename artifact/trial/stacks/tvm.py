"""TVM: the PyTorch model through `torch.export` into Relax, real fusion, machine code.

Native window (paper, protocol): graph passes and build, after the model was imported; nothing is
subtracted. Weights are constants of the program, so constant folding sees them.
"""

from __future__ import annotations

import os
import re
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

#: What TVM's importer says about operators that it does not know: one line with a list of names.
_UNKNOWN_OPERATORS = re.compile(r"Unsupported function types \[(?P<names>[^\]]*)\]")
ATTENTION = "sdpa"


class Adapter:
    """TVM behind the `Stack` protocol."""

    native = NativeWindow(phases=("passes", "codegen"), subtract_latency=False)

    def __init__(self, spec: TrialSpec, placement: Placement) -> None:
        if spec.binding != "frozen":
            raise Unsupported(f"TVM runs with frozen weights only, not binding {spec.binding!r}")
        if spec.precision != "fp32":
            raise Unsupported(f"TVM's schedules compute in fp32 only, not {spec.precision}")
        self._spec = spec
        self._placement = placement
        self._fusion = bool(spec.options.get("fusion", True))

    @staticmethod
    def environment(spec: TrialSpec, placement: Placement) -> dict[str, str]:
        """Threads, a private cache folder, and on CUDA nvcc without its fast mathematics.

        TVM pins its threads to the first CPUs of the machine, which may not be those that the
        process may use; placement is left to the kernel. TVM's default for CUDA is
        `--use_fast_math`, which is not strict fp32.
        """
        variables = {
            "TVM_NUM_THREADS": str(placement.threads),
            "TVM_BIND_THREADS": "0",
            "TVM_CACHE_DIR": str(placement.scratch / "cache" / "tvm"),
        }
        if spec.device == "cuda":
            variables |= {"TVM_CUDA_COMPILE_MODE": "nvcc", "TVM_CUDA_NVCC_NO_FAST_MATH": "1"}
        return variables

    @staticmethod
    def cache_directories(placement: Placement) -> dict[str, Path]:
        """The two folders in which TVM could keep something by itself."""
        cache = placement.scratch / "cache"
        return {"TVM_CACHE_DIR": cache / "tvm", "XDG_CACHE_HOME": cache / "xdg"}

    def import_framework(self) -> None:
        """Import torch, TVM and the model definitions; find the device and fix the target."""
        import torch
        import tvm

        from artifact.models import torch_models
        from artifact.trial.stacks import _tvm_pipeline

        torch.set_num_threads(self._placement.threads)
        torch.set_grad_enabled(False)
        self._torch: Any = torch
        self._tvm: Any = tvm
        self._torch_models: Any = torch_models
        self._pipeline: Any = _tvm_pipeline
        self._device = tvm.runtime.device(self._spec.device, 0)
        self._target = self._choose_target()

    def _choose_target(self) -> Any:
        """LLVM with the ISA ceiling, or CUDA for the device that is there."""
        host = self._pipeline.cpu_target(self._spec.isa)
        if self._spec.device == "cpu":
            return host
        if not self._device.exist:
            raise UserError(
                "device cuda was asked for, but TVM sees no CUDA device",
                next_step="use --device cpu, or give the container a GPU",
            )
        self._pipeline.require_nvcc()
        architecture = "sm_" + str(self._device.compute_version).replace(".", "")
        return self._pipeline.cuda_target(architecture, host)

    def build_model(self, bundle: Bundle) -> None:
        """The evaluated model with the bundle's weights, in host memory."""
        model = self._torch_models.build(
            self._spec.architecture,
            self._spec.model_options,
            parse_input(self._spec.input),
            ATTENTION,
        )
        self._torch_models.load_weights(model, bundle.weights, bundle.aliases)
        self._model: Any = model
        self._host_inputs = bundle.inputs

    def start_runtime(self) -> None:
        """One one-element copy on the device, then the inputs to where they stay."""
        import numpy

        one = self._tvm.runtime.tensor(numpy.ones(1, dtype="float32"), self._device)
        one.copyto(self._device)
        self._inputs = [self._tvm.runtime.tensor(a, self._device) for a in self._host_inputs]
        self._device.sync()

    def compile(self, clock: Clock) -> Callable[[], Any]:
        """Export, import, Relax passes with schedules, code generation, loading."""
        example = tuple(self._torch.from_numpy(a.copy()) for a in self._host_inputs)
        with clock.phase("capture"):
            exported = self._torch.export.export(self._model, example, strict=False)
        with clock.phase("import"):
            module = self._import(exported)
        with clock.phase("passes"):
            self._lowered = self._pipeline.lower(module, self._target, fusion=self._fusion)
        with clock.phase("codegen"):
            executable = self._pipeline.build(self._lowered.module, self._target)
        with clock.phase("load"):
            machine = self._tvm.relax.VirtualMachine(executable, self._device)
            main = machine["main"]
            self._device.sync()
        inputs = self._inputs
        return lambda: main(*inputs)

    def _import(self, exported: Any) -> Any:
        """Relax module of an exported program; `Unsupported` names operators and versions."""
        from tvm.relax.frontend.torch import from_exported_program

        try:
            return from_exported_program(exported, unwrap_unit_return_tuple=True)
        except (AssertionError, NotImplementedError) as error:
            named = _UNKNOWN_OPERATORS.search(str(error))
            if named is None and isinstance(error, AssertionError):
                raise
            what = named["names"] if named else (str(error).splitlines() or ["an operator"])[0]
            raise Unsupported(
                f"TVM {self._tvm.__version__} cannot import {what} "
                f"from torch {self._torch.__version__}"
            ) from error

    def synchronize(self, output: Any) -> None:
        """Wait for the device; on a CPU a call returns when its output is complete."""
        self._device.sync()

    def to_numpy(self, output: Any) -> np.ndarray:
        """The output as an array in host memory."""
        array: np.ndarray = output.numpy()
        return array

    def read_cold(self) -> ColdReading:
        """TVM has no compile cache to hit; what could replace compiling is a tuning database.

        Checked: none is active, and nothing lies in the cache folder. TVM counts nothing.
        """
        database = self._tvm.s_tir.meta_schedule.Database.current()
        folder = Path(os.environ.get("TVM_CACHE_DIR", ""))
        files = sum(1 for path in folder.rglob("*") if path.is_file())
        violations = ["a tuning database was active"] if database is not None else []
        if files:
            violations.append(f"TVM kept {files} files in its cache folder")
        return ColdReading(
            counters={},
            flags={
                "tuning_database": "none" if database is None else type(database).__name__,
                "cache_files_after": str(files),
            },
            compiled_graphs=self._pipeline.graph_count(self._lowered.module),
            violations=tuple(violations),
        )

    def generated_code(self) -> GeneratedCode:
        """The scheduled module as TVMScript, before it is lowered for the virtual machine.

        Weights are left out: the text names them by index.
        """
        text = self._lowered.module.script(show_meta=False)
        return GeneratedCode("tvmscript", {"main.py": text})

    def versions(self) -> dict[str, str]:
        """TVM with its LLVM, and the PyTorch that exported the model."""
        found = {name: version(name) for name in ("torch", "torchvision", "transformers", "numpy")}
        found["tvm"] = version("apache-tvm")
        found["llvm"] = str(self._tvm.target.codegen.llvm_version_major())
        found["cuda_of_torch"] = str(self._torch.version.cuda)
        return found

    def facts(self) -> dict[str, Any]:
        """Precision, fusion, threads, layout, attention and target, read back where TVM can say."""
        lowered, pipeline = self._lowered, self._pipeline
        on_cpu = self._spec.device == "cpu"
        is_resnet = self._spec.family == "resnet"
        return {
            "precision": "fp32",
            "fast_math": pipeline.fast_math(self._target),
            "binding": "frozen",
            "target": str(self._target),
            "tvm_threads": self._tvm.runtime.num_threads(),
            "layout": "NHWC inside, NCHW outside" if is_resnet and on_cpu else "contiguous",
            "attention": "none" if is_resnet else f"{ATTENTION}, decomposed by torch.export",
            "fusion": self._fusion,
            "tir_functions_before_fusion": len(pipeline.reachable(lowered.legalised)),
            "tir_functions_after_fusion": len(pipeline.reachable(lowered.module)),
            "calls_before_fusion": pipeline.call_count(lowered.legalised),
            "calls_after_fusion": pipeline.call_count(lowered.module),
            "unscheduled": pipeline.unscheduled(lowered.module),
            "device_name": "cpu" if on_cpu else str(self._device.device_name),
        }

    def detail_ms(self) -> dict[str, float]:
        """Milliseconds of each Relax pass, inside phase `passes`."""
        return {f"pass.{name}": ms for name, ms in self._lowered.pass_ms.items()}
