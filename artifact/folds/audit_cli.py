"""What `artifact audit --model bert|gpt2` runs inside the image: the audit of one study model."""

from __future__ import annotations

from collections.abc import Mapping

from artifact.errors import UserError
from artifact.folds.layernorm_linear import VERDICTS, Audit, audit, table

MODELS = ("bert", "gpt2")
_BATCH, _SEQUENCE = 1, 16


def run(model: str, options: Mapping[str, int] | None = None) -> Audit:
    """Build the model of the study with fresh weights (their values do not matter) and audit it.

    `options` are the architecture's options, such as `{"layers": 2}`.

    Raises:
        UserError: another model than `MODELS`.
    """
    if model not in MODELS:
        raise UserError(
            f"no LayerNorm-Linear audit for model {model!r}", next_step=f"use {', '.join(MODELS)}"
        )
    import torch

    from artifact.models.torch_models import build

    program = build(model, options or {}, (_BATCH, _SEQUENCE))
    return audit(program, torch.zeros(_BATCH, _SEQUENCE, dtype=torch.long))


def lines(audited: Audit) -> list[str]:
    """The audit as plain text: one aligned line per site, then the counts."""
    rows = [("site", "verdict", "reason", "consumers"), *table(audited)]
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    text = [
        f"{name:<{widths[0]}}  {verdict:<{widths[1]}}  {reason or '-'}  [{consumers}]"
        for name, verdict, reason, consumers in rows
    ]
    counts = ", ".join(f"{audited.count(verdict)} {verdict}" for verdict in VERDICTS)
    return [*text, f"{len(audited.sites)} LayerNorms: {counts}"]
