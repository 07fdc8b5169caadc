"""Random blocks of LayerNorm, linear layers and residuals against an independent count of sites."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("hypothesis")

import torch.nn.functional as F  # noqa: E402
from fold_models import largest_error, randomise, run, state  # noqa: E402
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from torch import nn  # noqa: E402

from artifact.folds.layernorm_linear import VERDICTS, audit, fold  # noqa: E402

pytestmark = pytest.mark.torch

D = 4
POOL = 3
THROUGH = ("view", "dropout")


class Transposed(nn.Module):
    """A linear layer that stores its weight as (in, out), as Hugging Face's Conv1D does."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(D, D) / 2)
        self.bias = nn.Parameter(torch.zeros(D))

    def forward(self, x: Any) -> Any:
        return torch.addmm(self.bias, x.reshape(-1, D), self.weight).view(x.shape)


@dataclass(frozen=True)
class Operation:
    kind: str
    source: int
    other: int
    index: int


@dataclass(frozen=True)
class Program:
    operations: tuple[Operation, ...]
    outputs: tuple[int, ...]
    linears: tuple[str, ...]  # "bias", "no bias", "transposed"
    norms: tuple[str, ...]  # "affine", "gamma only", "none"
    tied: bool  # the weights of linear 0 and 1 are one tensor, whatever their layout


class RandomBlock(nn.Module):
    def __init__(self, program: Program) -> None:
        super().__init__()
        self.operations, self.outputs = program.operations, program.outputs
        self.linears = nn.ModuleList(
            Transposed() if kind == "transposed" else nn.Linear(D, D, bias=kind == "bias")
            for kind in program.linears
        )
        self.norms = nn.ModuleList(
            nn.LayerNorm(D, elementwise_affine=kind != "none", bias=kind == "affine")
            for kind in program.norms
        )
        if program.tied:
            self.linears[1].weight = self.linears[0].weight

    def forward(self, x: Any) -> Any:
        values = [x]
        for operation in self.operations:
            value = values[operation.source]
            if operation.kind == "norm":
                values.append(self.norms[operation.index](value))
            elif operation.kind == "linear":
                values.append(self.linears[operation.index](value))
            elif operation.kind == "view":
                values.append(value.reshape(-1, D).view(x.shape))
            elif operation.kind == "dropout":
                values.append(F.dropout(value, 0.5, training=False))
            elif operation.kind == "tanh":
                values.append(torch.tanh(value))
            else:
                values.append(value + values[operation.other])
        return tuple(values[index] for index in self.outputs)


_ANY = ["norm", "norm", "linear", "tanh", "add"]
_BEHIND_VIEW = ["linear", "linear", "view", "tanh"]
LIKELY_NEXT = {
    "": ["norm"],
    "norm": ["linear", "linear", "linear", "view", "dropout", "add"],
    **dict.fromkeys(THROUGH, _BEHIND_VIEW),
    **dict.fromkeys(("linear", "tanh", "add"), _ANY),
}


@st.composite
def programs(draw: st.DrawFn) -> Program:
    size = draw(st.integers(2, 8))
    operations: list[Operation] = []
    for position in range(size):
        kind = draw(st.sampled_from(LIKELY_NEXT[operations[-1].kind if operations else ""]))
        source = max(position - draw(st.sampled_from([0, 0, 0, 0, 1])), 0)
        index = (position // 2 + draw(st.sampled_from([0, 0, 0, 1]))) % POOL
        operations.append(Operation(kind, source, draw(st.integers(0, position)), index))
    used = {operation.source for operation in operations}
    used |= {operation.other for operation in operations if operation.kind == "add"}
    extra = draw(st.sampled_from([set(), set(), {size // 2 + 1}]))
    # Every value that nothing reads is an output: the export would drop dead code.
    outputs = (set(range(1, size + 1)) - used) | extra
    return Program(
        operations=tuple(operations),
        outputs=tuple(sorted(outputs)),
        linears=tuple(
            draw(st.sampled_from(["bias", "no bias", "transposed"])) for _ in range(POOL)
        ),
        norms=tuple(
            draw(st.sampled_from(["affine", "affine", "gamma only", "none"])) for _ in range(POOL)
        ),
        tied=draw(st.sampled_from([False, False, True])),
    )


def legal_norms(program: Program) -> set[int]:
    """Indices of foldable LayerNorms, read off the program without the code under test."""
    calls = Counter((operation.kind, operation.index) for operation in program.operations)

    def exclusive(linear: int) -> bool:
        return calls["linear", linear] == 1 and not (program.tied and linear < 2)

    def only_linears(value: int) -> bool:
        if value in program.outputs:
            return False
        for position, operation in enumerate(program.operations):
            reads = operation.source == value
            if operation.kind == "add":
                reads = reads or operation.other == value
            if not reads:
                continue
            if operation.kind in THROUGH:
                if not only_linears(position + 1):
                    return False
            elif operation.kind != "linear" or not exclusive(operation.index):
                return False
        return True

    return {
        operation.index
        for position, operation in enumerate(program.operations)
        if operation.kind == "norm"
        and calls["norm", operation.index] == 1
        and program.norms[operation.index] != "none"
        and only_linears(position + 1)
    }


@given(programs())
@settings(max_examples=40, deadline=None, database=None)
def test_random_blocks(program: Program) -> None:
    model = randomise(RandomBlock(program)).double()
    x = torch.randn(2, 3, D, dtype=torch.float64)
    before = state(model)
    audited = audit(model, x)
    outcome = fold(model, x)
    assert state(model) == before
    expected = {f"norms.{index}" for index in legal_norms(program)}
    assert {site.name for site in audited.sites if site.verdict == "legal"} == expected
    assert set(outcome.folded_names) == expected
    assert [site.name for site in audited.sites] == [f"norms.{index}" for index in range(POOL)]
    assert sum(audited.count(verdict) for verdict in VERDICTS) == POOL
    assert outcome.folded + len(outcome.refused) == POOL
    error = largest_error(run(model, x), run(outcome.model, x))
    assert error < 1e-9  # a LayerNorm of a nearly constant row amplifies rounding
    assert fold(outcome.model, x).folded == 0


def test_the_strategy_reaches_folds_and_refusals() -> None:
    """Guards the test itself: a strategy without legal sites would prove nothing."""
    counts: Counter[int] = Counter()

    @given(programs())
    @settings(max_examples=100, deadline=None, database=None, derandomize=True)
    def collect(program: Program) -> None:
        counts[len(legal_norms(program))] += 1

    collect()
    assert counts[0] >= 15
    assert counts.total() - counts[0] >= 15
