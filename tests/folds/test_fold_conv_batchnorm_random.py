"""Random small graphs: the fold is exact, folds all that an independent count allows, and no more.

A program is a list of operations on earlier values, interpreted by `RandomNet`. Convolutions and
norms come from small pools, so that sharing, several users and wrong order arise by themselves.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("hypothesis")

from fold_models import largest_error, randomise, run, state  # noqa: E402
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from torch import nn  # noqa: E402

from artifact.folds.conv_batchnorm import fold  # noqa: E402

pytestmark = pytest.mark.torch

CHANNELS = 4
POOL = 4
_ANY = ["conv", "conv", "norm", "relu", "add"]
LIKELY_NEXT = {"conv": ["norm", "norm", "norm", "norm", "relu", "add"], "": ["conv", *_ANY]}
LIKELY_NEXT |= dict.fromkeys(("norm", "relu", "add"), _ANY)


@dataclass(frozen=True)
class Operation:
    kind: str
    source: int
    other: int
    index: int


@dataclass(frozen=True)
class Program:
    operations: tuple[Operation, ...]
    outputs: frozenset[int]
    convolutions: tuple[tuple[int, int, bool, bool], ...]  # kernel, groups, bias, transposed
    affine: tuple[bool, ...]
    training: int | None  # index of a norm in training mode
    tied: bool  # convolution 0 and 1 share their weight, where the shapes allow it


class RandomNet(nn.Module):
    def __init__(self, program: Program) -> None:
        super().__init__()
        self.operations = program.operations
        self.outputs = tuple(sorted(program.outputs))
        self.convs = nn.ModuleList(_convolution(*kind) for kind in program.convolutions)
        self.norms = nn.ModuleList(nn.BatchNorm2d(CHANNELS, affine=on) for on in program.affine)
        if ties(program):
            self.convs[1].weight = self.convs[0].weight

    def forward(self, x: Any) -> Any:
        values = [x]
        for operation in self.operations:
            value = values[operation.source]
            if operation.kind == "conv":
                values.append(self.convs[operation.index](value))
            elif operation.kind == "norm":
                values.append(self.norms[operation.index](value))
            elif operation.kind == "relu":
                values.append(torch.relu(value))
            else:
                values.append(value + values[operation.other])
        return tuple(values[index] for index in self.outputs)


def _convolution(kernel: int, groups: int, bias: bool, transposed: bool) -> nn.Module:
    kind = nn.ConvTranspose2d if transposed else nn.Conv2d
    return kind(CHANNELS, CHANNELS, kernel, padding=kernel // 2, groups=groups, bias=bias)


def ties(program: Program) -> bool:
    first, second = program.convolutions[:2]
    return program.tied and first[:2] == second[:2] and first[3] == second[3]


@st.composite
def programs(draw: st.DrawFn) -> Program:
    size = draw(st.integers(2, 9))
    operations = []
    for position in range(size):
        # Mostly the newest value: chains of convolution and norm are then frequent.
        source = position - draw(st.sampled_from([0, 0, 0, 0, 0, 0, 1, 2]))
        operations.append(
            Operation(
                kind=draw(st.sampled_from(LIKELY_NEXT[operations[-1].kind if operations else ""])),
                source=max(source, 0),
                other=draw(st.integers(0, position)),
                index=(position // 2 + draw(st.sampled_from([0, 0, 0, 1]))) % POOL,
            )
        )
    kinds = st.tuples(
        st.sampled_from([1, 3]), st.sampled_from([1, 2, CHANNELS]), st.booleans(), st.booleans()
    )
    extra = draw(st.sampled_from([set(), set(), set(), {1}, {size // 2 + 1}]))
    return Program(
        operations=tuple(operations),
        outputs=frozenset({size, *extra}),
        convolutions=tuple(draw(kinds) for _ in range(POOL)),
        affine=tuple(draw(st.booleans()) for _ in range(POOL)),
        training=draw(st.sampled_from([None, None, None, None, 0])),
        tied=draw(st.sampled_from([False, False, True])),
    )


def legal_pairs(program: Program) -> int:
    """Foldable pairs, counted on the program itself, without the code under test."""
    calls = Counter((operation.kind, operation.index) for operation in program.operations)
    uses: Counter[int] = Counter(program.outputs)
    for operation in program.operations:
        uses[operation.source] += 1
        if operation.kind == "add" and operation.other != operation.source:
            uses[operation.other] += 1
    count = 0
    for operation in program.operations:
        if operation.kind != "norm" or operation.source == 0:
            continue
        producer = program.operations[operation.source - 1]
        count += (
            producer.kind == "conv"
            and calls["conv", producer.index] == 1
            and calls["norm", operation.index] == 1
            and uses[operation.source] == 1
            and operation.index != program.training
            and not (ties(program) and producer.index < 2)
        )
    return count


@given(programs())
@settings(max_examples=150, deadline=None, database=None)
def test_random_graphs(program: Program) -> None:
    model = randomise(RandomNet(program)).double()
    if program.training is not None:
        model.norms[program.training].train()
    before = state(model)
    outcome = fold(model)
    assert state(model) == before
    assert outcome.folded == legal_pairs(program)
    listed = [*outcome.folded_names, *(refusal.name for refusal in outcome.refused)]
    assert sorted(listed) == [f"norms.{index}" for index in range(POOL)]
    again = fold(outcome.model)
    assert again.folded == 0
    assert again.model is outcome.model
    x = torch.randn(2, CHANNELS, 5, 5, dtype=torch.float64)
    if program.training is None:  # in training mode each run would move the statistics
        expected = run(model, x)
        scale = max(1.0, max(float(value.abs().max()) for value in expected))
        assert largest_error(expected, run(outcome.model, x)) < 1e-11 * scale


def test_the_strategy_reaches_folds_and_refusals() -> None:
    """Guards the test itself: a strategy without foldable pairs would prove nothing."""
    counts: Counter[int] = Counter()

    @given(programs())
    @settings(max_examples=150, deadline=None, database=None, derandomize=True)
    def collect(program: Program) -> None:
        counts[legal_pairs(program)] += 1

    collect()
    assert counts[0] >= 20
    assert counts.total() - counts[0] >= 20
