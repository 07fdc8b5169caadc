"""Writes tests/models/references/*.npz, the float64 outputs that the Flax tests compare with.

Run by hand where torch is installed (`python tests/models/make_references.py`) after a change of
the models or of `fill`; `test_torch_models.py` fails while the stored files are stale.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE)]

from conftest import CASES, REFERENCES, SEED  # noqa: E402

from artifact.models.bundle_writer import write_bundle  # noqa: E402
from artifact.models.spec import ModelSpec  # noqa: E402
from artifact.trial import bundle  # noqa: E402


def main() -> None:
    REFERENCES.mkdir(exist_ok=True)
    for case in CASES:
        with tempfile.TemporaryDirectory() as scratch:
            directory = Path(scratch) / "bundle"
            spec = ModelSpec(case.architecture, case.architecture, case.options)
            write_bundle(spec, [case.input_name], SEED, directory)
            made = bundle.load(directory, case.input_name)
        path = REFERENCES / f"{case.architecture}.npz"
        np.savez(path, output=made.reference, eager_rmse=made.eager_rmse)
        print(path.name, made.reference.shape, made.eager_rmse)


if __name__ == "__main__":
    main()
