"""What identifies a model and its bundle, and the hash of the sources that define models."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from artifact.models.architecture import check_options, input_shape

__all__ = ["ModelSpec", "bundle_key", "input_shape", "models_hash"]


@dataclass(frozen=True)
class ModelSpec:
    """One model of the study.

    `id` names it in the study and in bundle keys, `architecture` is what `architecture.find` takes,
    and `options` are the architecture's (`layers`, `vocabulary` for the Transformers; the ResNets
    have none). An unknown architecture or option is a `UserError`.
    """

    id: str
    architecture: str
    options: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_options(self.architecture, self.options)


def models_hash(directory: Path | None = None) -> str:
    """SHA-256 (hex) over the names and bytes of the Python sources of `artifact/models`.

    Part of every bundle key, so that a bundle made by other model code is never reused.
    """
    root = directory or Path(__file__).parent
    digest = hashlib.sha256()
    for path in sorted(root.glob("*.py")):
        content = path.read_bytes()
        digest.update(f"{path.name} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()


def bundle_key(model_id: str, seed: int, models_sha256: str) -> str:
    """Directory name of a bundle: `<model>-s<seed>-<first 12 hex digits of the models hash>`."""
    return f"{model_id}-s{seed}-{models_sha256[:12]}"
