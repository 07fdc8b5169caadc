"""Inductor's one-time C++ tool-chain work on a CPU, done explicitly and before the first call.

Left alone, `torch.compile` does all of this inside the first call of a process: it imports the
compiler, starts a pool of compile workers (a side process that imports torch), compiles and loads a
probe for each vector ISA of the machine, and precompiles one C++ header of about 150 MB. None of it
depends on the model, so it is timed apart (DESIGN: a trial, in order). The steps call the same
functions with the same arguments as Inductor will, so the first call finds them done: the pool
object and the ISA are kept in the process, the header under a hash of its compile command.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from artifact.errors import UserError

#: What Inductor runs as programs; `openssl` hashes the preprocessed header.
PROGRAMS = ("g++", "openssl")
POOL_TIMEOUT_S = 300
AVX2_BITS = 256

#: A kernel as Inductor writes them. It is never compiled: only its header is.
_KERNEL = 'extern "C" void kernel(float* out) { out[0] = 0.0f; }\n'


@dataclass
class Toolchain:
    """What `prepare` did.

    `headers_before` and `headers_after` count precompiled headers on disk; `isa` is the vector ISA
    that Inductor picked, `probed_isas` those that it found by compiling and loading a probe for
    each; `steps_ms` splits the phase, in ms.
    """

    headers_before: int = 0
    headers_after: int = 0
    isa: str = ""
    probed_isas: tuple[str, ...] = ()
    steps_ms: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Time the body as one step of the phase."""
        start_ns = time.perf_counter_ns()
        yield
        self.steps_ms[f"toolchain.{name}"] = (time.perf_counter_ns() - start_ns) / 1e6


def keep_below_avx512() -> None:
    """Make Inductor see an AVX2 machine: pick AVX2, and probe no wider ISA.

    By itself it would still compile and load five probes more on a CPU with AVX-512 than on one
    without, only to drop them; the ceiling exists so that machines compare. Call before `prepare`.
    """
    from torch._inductor import config, cpu_vec_isa

    config.cpp.simdlen = AVX2_BITS
    known = cpu_vec_isa.supported_vec_isa_list
    known[:] = [isa for isa in known if isa.bit_width() <= AVX2_BITS]


def require_programs() -> None:
    """`UserError` that names the first program that Inductor needs and does not find."""
    for program in PROGRAMS:
        if shutil.which(program) is None:
            raise UserError(
                f"Inductor needs the program {program} on a CPU, and it is not on PATH",
                next_step=f"install {program}, or use the image",
            )


def prepare(toolchain: Toolchain) -> None:
    """Do the one-time work; the caller times the whole as phase `toolchain`.

    The pool is started first and waited for last, so that it comes up beside the C++ work as it
    does inside a first call.
    """
    require_programs()
    with toolchain.step("imports"):
        import torch._inductor.compile_fx  # noqa: F401 - what the first call would import
        from torch._inductor import async_compile, cpu_vec_isa
        from torch._inductor.codecache import CppPythonBindingsCodeCache
    toolchain.headers_before = len(precompiled_headers())
    with toolchain.step("worker_start"):
        async_compile.maybe_warm_pool()
    with toolchain.step("isa_probe"):
        toolchain.isa = str(cpu_vec_isa.pick_vec_isa())
        toolchain.probed_isas = tuple(str(isa) for isa in cpu_vec_isa.valid_vec_isa_list())
    with toolchain.step("header"):
        # Asking for a kernel makes its header at once and leaves the kernel to `submit_fn`, which
        # here drops it: the header's command line is Inductor's own, whatever its version adds.
        CppPythonBindingsCodeCache.load_pybinding_async(
            ["float*"], _KERNEL, submit_fn=lambda job: None
        )
    with toolchain.step("worker_wait"):
        if worker_pools():
            async_compile.AsyncCompile.wait_pool_ready(timeout=POOL_TIMEOUT_S)
    toolchain.headers_after = len(precompiled_headers())


def precompiled_headers() -> list[Path]:
    """Precompiled C++ headers on disk, wherever Inductor keeps them (below TMPDIR)."""
    from torch._inductor import codecache

    return sorted(Path(codecache._HEADER_DIR).rglob("*.gch"))


def worker_pools() -> int:
    """Pools of compile workers that this process has started."""
    from torch._inductor import async_compile

    return len(async_compile._pool_set)
