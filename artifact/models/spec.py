"""What identifies a model and an input, and the hash of the sources that define them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from artifact.errors import UserError

RESNETS = ("resnet18", "resnet50")
TRANSFORMERS = ("bert", "gpt2")
ARCHITECTURES = RESNETS + TRANSFORMERS


@dataclass(frozen=True)
class ModelSpec:
    """One model of the study.

    `id` names it in the study and in bundle keys, `architecture` is one of `ARCHITECTURES`, and
    `options` are the architecture's options (`layers`, `vocabulary` for the Transformers; the
    ResNets have none). An unknown architecture or option is a `UserError`.
    """

    id: str
    architecture: str
    options: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_options(self.architecture, self.options)


@dataclass(frozen=True)
class BertSize:
    """Sizes of BERT-base; `layers` and `vocabulary` can be lowered by options."""

    layers: int = 12
    vocabulary: int = 30522
    hidden: int = 768
    heads: int = 12
    feed_forward: int = 3072
    positions: int = 512
    token_types: int = 2
    layer_norm_eps: float = 1e-12


@dataclass(frozen=True)
class Gpt2Size:
    """Sizes of GPT-2 small; `layers` and `vocabulary` can be lowered by options."""

    layers: int = 12
    vocabulary: int = 50257
    hidden: int = 768
    heads: int = 12
    feed_forward: int = 3072
    positions: int = 1024
    layer_norm_eps: float = 1e-5


def check_options(architecture: str, options: Mapping[str, int]) -> None:
    """Raise `UserError` unless the architecture exists and takes these options."""
    if architecture not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise UserError(f"unknown architecture {architecture!r}", next_step=f"known: {known}")
    allowed = ("layers", "vocabulary") if architecture in TRANSFORMERS else ()
    for name, value in options.items():
        if name not in allowed:
            takes = ", ".join(allowed) or "none"
            raise UserError(f"{architecture} has no option {name!r}", next_step=f"options: {takes}")
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise UserError(f"option {name!r} of {architecture} must be a positive integer")


def bert_size(options: Mapping[str, int]) -> BertSize:
    """Sizes of the BERT that `options` ask for."""
    check_options("bert", options)
    return BertSize(**options)


def gpt2_size(options: Mapping[str, int]) -> Gpt2Size:
    """Sizes of the GPT-2 that `options` ask for."""
    check_options("gpt2", options)
    return Gpt2Size(**options)


def input_shape(architecture: str, input_name: str) -> tuple[int, ...]:
    """Shape of an input written as in the study, checked against the architecture.

    `1x3x224x224` (batch, channels, height, width) for ResNets, `8x128` (batch, sequence) for
    Transformers. Anything else is a `UserError`.
    """
    parts = input_name.split("x")
    if not all(part.isascii() and part.isdigit() and int(part) > 0 for part in parts):
        raise UserError(f"input {input_name!r} is not a shape such as 1x3x224x224 or 8x128")
    shape = tuple(int(part) for part in parts)
    if architecture in RESNETS:
        if len(shape) != 4 or shape[1] != 3:
            raise UserError(f"input {input_name!r} does not fit {architecture}: needs Nx3xHxW")
        return shape
    limit = BertSize.positions if architecture == "bert" else Gpt2Size.positions
    if len(shape) != 2 or shape[1] > limit:
        raise UserError(
            f"input {input_name!r} does not fit {architecture}: needs BxS, S <= {limit}"
        )
    return shape


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
