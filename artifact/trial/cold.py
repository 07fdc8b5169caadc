"""Cold trials: the environment that is set before any framework import, and the proof.

The whole environment of a trial is computed here, by host and trial alike, from the trial's spec:
nothing of the caller's environment is passed on. Compiler caches are switched off *and* pointed at
fresh, empty directories below a private scratch folder, because some of them ignore every switch
(Inductor's precompiled header lives in TMPDIR; FACTS were measured, see ARTIFACT.md).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from artifact.plan import TrialSpec
from artifact.trial.cpus import effective_cpus
from artifact.trial.stacks import Placement, adapter

USER = "artifact"

#: Prefixes of variables that may change what a compiler does. Only values that we set survive.
CONTROLLED_PREFIXES = (
    "TORCH", "PYTORCH", "INDUCTOR", "TRITON", "JAX", "XLA", "TF_", "TVM", "CUDA_", "NVIDIA_TF32",
    "OMP_", "MKL_", "KMP_", "GOMP_", "OPENBLAS_", "ONEDNN_", "DNNL_", "ATEN_", "HF_",
    "TRANSFORMERS_", "TOKENIZERS_", "NPROC", "LD_PRELOAD", "PYTHON", "CXX", "CC", "MALLOC_",
)  # fmt: skip


#: Which GPU is the caller's to use is not a compiler switch (a cluster's allocation).
KEPT = ("CUDA_VISIBLE_DEVICES",)


def placement_for(spec: TrialSpec, scratch: Path) -> Placement:
    """Threads = CPUs asked for, never more than the process may use (0 asks for all)."""
    available = effective_cpus()
    threads = min(spec.cpus, available) if spec.cpus else available
    return Placement(scratch=scratch, threads=threads, compile_threads=threads)


def environment(spec: TrialSpec, placement: Placement) -> dict[str, str]:
    """Every variable of the trial's process except PATH-like ones that the image itself sets."""
    threads = str(placement.threads)
    common = {
        "HOME": str(placement.scratch / "home"),
        "TMPDIR": str(placement.scratch / "tmp"),
        "XDG_CACHE_HOME": str(placement.scratch / "cache" / "xdg"),
        "USER": USER,
        "LOGNAME": USER,
        "LC_ALL": "C.UTF-8",
        "TZ": "UTC",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "OPENBLAS_NUM_THREADS": threads,
        "NPROC": threads,
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "CUDA_CACHE_DISABLE": "1",
        "CUDA_CACHE_PATH": str(placement.scratch / "cache" / "cuda"),
    }
    if spec.device == "cpu":
        common["CUDA_VISIBLE_DEVICES"] = ""
    if spec.isa == "avx2":
        common["ONEDNN_MAX_CPU_ISA"] = "AVX2"
        common["MKL_ENABLE_INSTRUCTIONS"] = "AVX2"
    return common | adapter(spec.stack).environment(spec, placement)


def directories(spec: TrialSpec, placement: Placement) -> dict[str, Path]:
    """Private folders that must be empty when the trial starts: caches, TMPDIR and HOME."""
    return {
        **adapter(spec.stack).cache_directories(placement),
        "TMPDIR": placement.scratch / "tmp",
        "HOME": placement.scratch / "home",
    }


def apply(environment_: Mapping[str, str]) -> None:
    """Make the process environment what `environment` says; drop every other compiler switch."""
    for name in list(os.environ):
        ours = name.startswith(CONTROLLED_PREFIXES) and name not in KEPT
        if ours and name not in environment_:
            del os.environ[name]
    os.environ.update(environment_)


def count_entries(folders: Mapping[str, Path]) -> dict[str, int]:
    """Create each folder if absent and count what is already in it (0 everywhere when cold)."""
    counts = {}
    for name, folder in folders.items():
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        counts[name] = sum(1 for _ in folder.iterdir())
    return counts


def violations_of(counts: Mapping[str, int], folders: Mapping[str, Path]) -> list[str]:
    """One line for each folder that was not empty before the framework was imported."""
    return [
        f"{name} ({folders[name]}) held {count} entries before the trial"
        for name, count in counts.items()
        if count
    ]
