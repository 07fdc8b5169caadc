"""What eager PyTorch and TorchInductor have in common: device, precision, threads, model, versions.

All PyTorch configurations run with autograd switched off for the whole process (the meaning of
`torch.no_grad`), not in `torch.inference_mode`: inference tensors have no version counter, which
guards on frozen weights read, and `torch.compile` documents `no_grad`. One choice for all keeps
eager and compiled latencies comparable.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from artifact.errors import UserError
from artifact.plan import TrialSpec
from artifact.study import parse_input
from artifact.trial.stacks import Placement, Unsupported

if TYPE_CHECKING:
    import numpy as np

    from artifact.trial.bundle import Bundle
    from artifact.trial.clock import Clock

PACKAGES = ("torch", "torchvision", "transformers", "triton", "numpy")

#: `aten::addmm`, `toy.op.default` or `aten.addmm.out` in a message; C++ names are not operators.
_OPERATOR = re.compile(
    r"\b(?!(?:at|c10|std|torch)::)"
    r"([a-z_]\w*(?:::\w+(?:\.\w+)?|\.\w+\.(?:default|out|Tensor|Scalar)))\b"
)


def isa_environment(spec: TrialSpec) -> dict[str, str]:
    """The AVX2 ceiling for ATen's own kernels; nothing on other architectures or without one."""
    if ceiling_applies(spec):
        return {"ATEN_CPU_CAPABILITY": "avx2"}
    return {}


def ceiling_applies(spec: TrialSpec) -> bool:
    """True when the trial asks for at most AVX2 on a CPU that has such a ceiling."""
    return spec.device == "cpu" and spec.isa == "avx2" and platform.machine() == "x86_64"


def set_precision(torch: Any, precision: str) -> None:
    """Strict fp32, or TF32 in matrix products and convolutions on CUDA (case N5).

    Only the older switches are used: mixed with `fp32_precision` they raise when read back.
    cuDNN's own default would be TF32.
    """
    tf32 = precision == "tf32"
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = tf32


def read_precision(torch: Any, device: str) -> dict[str, str]:
    """Precision flags read back; `precision` is what they amount to on `device`.

    TF32 exists on CUDA only, so a CPU trial is `fp32`. `mixed` means that matrix products and
    convolutions differ.
    """
    matmul = bool(torch.backends.cuda.matmul.allow_tf32)
    convolution = bool(torch.backends.cudnn.allow_tf32)
    effective = {(True, True): "tf32", (False, False): "fp32"}.get((matmul, convolution), "mixed")
    return {
        "precision": effective if device == "cuda" else "fp32",
        "float32_matmul_precision": str(torch.get_float32_matmul_precision()),
        "cuda_matmul_allow_tf32": str(matmul),
        "cudnn_allow_tf32": str(convolution),
        "cuda_matmul_fp32_precision": str(torch.backends.cuda.matmul.fp32_precision),
        "cudnn_conv_fp32_precision": str(torch.backends.cudnn.conv.fp32_precision),
    }


def require_device(torch: Any, device: str) -> None:
    """`UserError` unless torch can use `device`."""
    if device == "cuda" and not torch.cuda.is_available():
        raise UserError(
            "device cuda was asked for, but PyTorch sees no CUDA device",
            next_step="use --device cpu, or give the container a GPU",
        )


def package_versions(names: Sequence[str]) -> dict[str, str]:
    """Installed versions without importing anything; a missing package is `absent`."""
    found = {"python": platform.python_version()}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "absent"
    return found


def unsupported(compiler: str, error: BaseException) -> Unsupported:
    """`Unsupported` that names the operators in `error`'s message, and the versions (case N2)."""
    text = str(error)
    operators = list(dict.fromkeys(_OPERATOR.findall(text)))
    first_line = (text.strip().splitlines() or [type(error).__name__])[0][:300]
    named = ", ".join(operators) or "an operator that the message does not name"
    return Unsupported(f"{compiler} cannot run {named} (torch {version('torch')}): {first_line}")


class TorchAdapter:
    """The steps of `Stack` that do not depend on whether the program is compiled."""

    def __init__(self, spec: TrialSpec, placement: Placement) -> None:
        self._spec = spec
        self._placement = placement
        self._inputs: tuple[Any, ...] = ()

    def import_framework(self) -> None:
        """Import torch and the model definitions; fix threads, precision and autograd."""
        import torch

        require_device(torch, self._spec.device)
        torch.set_num_threads(self._placement.threads)
        if torch.get_num_interop_threads() != self._placement.threads:
            torch.set_num_interop_threads(self._placement.threads)
        torch.set_grad_enabled(False)
        set_precision(torch, self._spec.precision if self._spec.device == "cuda" else "fp32")
        from artifact.models import torch_models

        torch_models.import_definitions(self._spec.architecture)
        self._torch: Any = torch
        self._torch_models: Any = torch_models
        self._device = torch.device(self._spec.device)

    def build_model(self, bundle: Bundle) -> None:
        """The evaluated model with the bundle's weights, and the inputs, in host memory."""
        model = self._torch_models.build(
            self._spec.architecture, self._spec.model_options, parse_input(self._spec.input)
        )
        self._torch_models.load_weights(model, bundle.weights, bundle.aliases)
        self._model: Any = model
        self._inputs = tuple(self._torch.from_numpy(array.copy()) for array in bundle.inputs)

    def start_runtime(self) -> None:
        """One one-element operation on the device, then the inputs to where they stay."""
        one = self._torch.ones(1, device=self._device)
        self.synchronize(one + one)
        self._inputs = tuple(tensor.to(self._device) for tensor in self._inputs)
        self.synchronize(self._inputs)

    def bind(self, clock: Clock) -> None:
        """Phase `binding`: weights and buffers to the device (on a CPU they are there already)."""
        with clock.phase("binding"):
            self._model = self._model.to(self._device)
            self.synchronize(self._model)

    def guarded(
        self,
        program: Callable[..., Any],
        refused: tuple[type[BaseException], ...],
        compiler: str,
        is_unsupported: Callable[[BaseException], bool] = lambda error: True,
    ) -> Callable[[], Any]:
        """`program` on the resident inputs; exceptions of `refused` become `Unsupported`.

        Nothing is paid for this in an execution that raises nothing.
        """
        inputs = self._inputs

        def execute() -> Any:
            try:
                return program(*inputs)
            except refused as error:
                if not is_unsupported(error):
                    raise
                raise unsupported(compiler, error) from error

        return execute

    def synchronize(self, output: Any) -> None:
        """Wait for the device; on a CPU an output that was returned is complete."""
        if self._device.type == "cuda":
            self._torch.cuda.synchronize(self._device)

    def to_numpy(self, output: Any) -> np.ndarray:
        """The output as an array in host memory."""
        array: np.ndarray = output.detach().cpu().numpy()
        return array

    def versions(self) -> dict[str, str]:
        """Packages that make this stack, and the CUDA that torch was built with."""
        return package_versions(PACKAGES) | {"cuda_of_torch": str(self._torch.version.cuda)}

    def facts(self) -> dict[str, Any]:
        """Precision, threads, layout, attention and device, each read back from torch."""
        torch = self._torch
        found: dict[str, Any] = dict(read_precision(torch, self._spec.device))
        found |= {
            "binding": self._spec.binding,
            "autograd": "enabled" if torch.is_grad_enabled() else "off (no_grad)",
            "torch_threads": torch.get_num_threads(),
            "torch_interop_threads": torch.get_num_interop_threads(),
            "aten_cpu_capability": torch.backends.cpu.get_cpu_capability(),
            "cudnn_benchmark": bool(torch.backends.cudnn.benchmark),
            "layout": _layout(self._inputs),
            "attention": _attention(self._model),
            "device_name": self._device_name(),
        }
        return found

    def _device_name(self) -> str:
        if self._device.type == "cuda":
            return str(self._torch.cuda.get_device_name(self._device))
        return "cpu"

    def detail_ms(self) -> Mapping[str, float]:
        """Nothing beyond the phases."""
        return {}


def _layout(inputs: Sequence[Any]) -> str:
    contiguous = all(tensor.is_contiguous() for tensor in inputs)
    return "contiguous" if contiguous else "strided"


def _attention(model: Any) -> str:
    """Hugging Face's name of the attention in use; `none` for a model that has no attention."""
    for module in model.modules():
        configured = getattr(getattr(module, "config", None), "_attn_implementation", None)
        if configured is not None:
            return str(configured)
    return "none"
