"""The speed targets as data: which medians miss them."""

from __future__ import annotations

from artifact.folds.bench import missed_targets

GOOD = {"floor": 20.0, "authors": 90.0, "fx": 120.0, "fold": 40.0, "rewrite": 25.0}


def test_medians_within_every_target_are_no_miss() -> None:
    assert missed_targets({"resnet18": GOOD, "resnet50": GOOD}) == []


def test_each_miss_is_named_and_models_have_their_own_limits() -> None:
    assert missed_targets({"resnet18": {**GOOD, "rewrite": 31.0}}) == [
        "resnet18: rewrite / floor = 1.55 > 1.50"
    ]
    slower = {**GOOD, "fold": 70.0}  # 0.58 of fx: too slow for R18 (1/2), not for R50 (1/1.5)
    assert missed_targets({"resnet18": slower, "resnet50": slower}) == [
        "resnet18: fold / fx = 0.58 > 0.50"
    ]
