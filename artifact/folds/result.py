"""What a fold hands back: the new model, the folded sites, and every site that it refused."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import nn


@dataclass(frozen=True)
class Refusal:
    """One site that was left as it was.

    Attributes:
        name: qualified name of the norm (`layer1.0.bn1`), or the name of the graph node where the
            norm is a function call; the model's class name when the whole model was refused.
        reason: why, in one line.
    """

    name: str
    reason: str


@dataclass(frozen=True)
class Fold:
    """The outcome of one fold.

    Attributes:
        model: the folded model; the argument itself when nothing was folded.
        folded: number of folded sites.
        refused: every norm that was not folded, in module order, with its reason.
        fold_ms: wall time of the whole call in ms, legality analysis included.
        folded_names: qualified names of the folded norms.
        phases_ms: how `fold_ms` splits, in ms, by phase name.
    """

    model: nn.Module
    folded: int
    refused: list[Refusal]
    fold_ms: float
    folded_names: tuple[str, ...] = ()
    phases_ms: dict[str, float] = field(default_factory=dict)


def one_line(error: BaseException) -> str:
    """The type and first line of an error, for a reason that fits one line."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
