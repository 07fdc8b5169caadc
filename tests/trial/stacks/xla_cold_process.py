"""One whole XLA trial through the runner in this process, on a bundle made of stored references.

    python xla_cold_process.py TRIAL.json OUT SCRATCH REFERENCES.npz [JAX_CACHE]

With JAX_CACHE, JAX's persistent cache is switched on in that folder after the environment was set,
as a careless library would do; the cold proof must see it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from artifact.models import fill
from artifact.models.architecture import model_tensors
from artifact.trial import bundle, runner
from artifact.trial.clock import Clock
from artifact.trial.stacks import xla


def stored_bundle(spec: Any, references: Path) -> Any:
    """The bundle of `spec` from seeded weights and a stored float64 output: no torch needed."""
    with np.load(references) as stored:
        reference, eager_rmse = stored["output"], float(stored["eager_rmse"])
    return SimpleNamespace(
        weights=fill.weights(spec.architecture, spec.model_options, spec.seed),
        aliases=model_tensors(spec.architecture, spec.model_options).aliases,
        inputs=fill.inputs(spec.architecture, spec.model_options, spec.input, spec.seed),
        reference=reference,
        eager_rmse_by_precision={"fp32": eager_rmse},
        weights_sha256="",
    )


def switch_cache_on(folder: str) -> None:
    """Make the adapter's import switch JAX's persistent cache on."""
    original = xla.Adapter.import_framework

    def import_framework(self: Any) -> None:
        original(self)
        import jax

        jax.config.update("jax_enable_compilation_cache", True)
        jax.config.update("jax_compilation_cache_dir", folder)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)

    xla.Adapter.import_framework = import_framework  # type: ignore[method-assign]


def main() -> None:
    spec_path, out, scratch, references = (Path(text) for text in sys.argv[1:5])
    spec = runner.read_spec(spec_path)
    bundle.load = lambda *_, **__: stored_bundle(spec, references)  # type: ignore[assignment]
    bundle.check_files = lambda *_: None  # type: ignore[assignment]
    if len(sys.argv) > 5:
        switch_cache_on(sys.argv[5])
    runner.run(spec, out=out, bundle_root=out, scratch=scratch, clock=Clock())


if __name__ == "__main__":
    main()
