"""What `artifact audit` prints, from an audit made by hand."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from artifact.errors import UserError
from artifact.folds.audit_cli import lines, run
from artifact.folds.layernorm_linear import Audit, Site

pytestmark = pytest.mark.torch


def test_lines_are_aligned_and_end_with_counts_that_add_up() -> None:
    audited = Audit(
        [
            Site("h.0.ln_1", "legal", "", ["h.0.c_attn"]),
            Site("ln_f", "illegal", "tied", ["lm_head", "output"]),
        ]
    )
    assert lines(audited) == [
        "site      verdict  reason  [consumers]",
        "h.0.ln_1  legal    -  [h.0.c_attn]",
        "ln_f      illegal  tied  [lm_head, output]",
        "2 LayerNorms: 1 legal, 1 illegal, 0 unmatched",
    ]


def test_a_model_without_layernorms_is_refused_in_one_line() -> None:
    with pytest.raises(UserError, match="'resnet18'; use bert, gpt2"):
        run("resnet18")
