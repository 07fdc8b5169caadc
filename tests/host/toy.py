"""A toy study of one stack, so that campaign tests need no framework and no other stack's file."""

from __future__ import annotations

from artifact.plan import Plan, make_plan
from artifact.study import (
    SCHEMA_VERSION,
    BlockChoice,
    Configuration,
    Model,
    Profile,
    Protocol,
    Study,
)


def toy_study(attempts: int = 3) -> Study:
    """Two blocks of two and three configurations, three rounds."""
    configuration = {"title": "", "stack": "xla", "families": ("resnet",), "binding": "frozen"}
    return Study(
        schema=SCHEMA_VERSION,
        seed=7,
        protocol=Protocol(3, 1, 3, attempts, 60.0, 60.0, 50_000_000),
        models={
            "m1": Model("M1", "resnet", "resnet18", ("1x3x8x8",)),
            "m2": Model("M2", "resnet", "resnet18", ("1x3x8x8",)),
        },
        configurations={name: Configuration(**configuration) for name in ("a", "b", "c")},
        profiles={
            "toy": Profile(
                "Toy",
                "cpu",
                "equal",
                (
                    BlockChoice("m1", ("1x3x8x8",), ("a", "b")),
                    BlockChoice("m2", ("1x3x8x8",), ("a", "b", "c")),
                ),
                cpus=1,
                memory_mib=512,
            )
        },
    )


def toy_plan(seed: int | None = None, attempts: int = 3) -> Plan:
    """15 measured trials in 6 blocks, and one priming trial."""
    return make_plan(toy_study(attempts), "toy", seed=seed)
