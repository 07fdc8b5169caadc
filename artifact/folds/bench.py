"""How long the Conv-BatchNorm fold takes on its first call, against three baselines in one run.

    python -m artifact.folds.bench [--processes 5] [--models resnet18 resnet50] [--check]

Every measurement is the first call in a fresh process; baselines and fold take turns, so that a
slow minute of the machine touches all of them; medians over the processes are printed.

    floor    one read of the convolution weights + one write into freshly allocated memory
    authors  copy.deepcopy + torch.nn.utils.fusion.fuse_conv_bn_eval per pair (the paper's way)
    fx       torch.fx.experimental.optimization.fuse
    fold     artifact.folds.conv_batchnorm.fold, legality analysis included
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

MODELS = ("resnet18", "resnet50")
METHODS = ("floor", "authors", "fx", "fold")
# (what, baseline, model, largest allowed ratio to the baseline); issue "Speed of the fold".
TARGETS = (
    ("fold", "authors", "resnet18", 1.0),
    ("fold", "authors", "resnet50", 1.0),
    ("fold", "fx", "resnet18", 1 / 2),
    ("fold", "fx", "resnet50", 1 / 1.5),
    ("rewrite", "floor", "resnet18", 1.5),
    ("rewrite", "floor", "resnet50", 1.5),
)
_NS_PER_MS = 1e6


def measure_here(method: str, model_name: str) -> dict[str, float]:
    """Time the first call of `method` in this process: `{"total": ms}` and the fold's phases."""
    import torch
    import torchvision
    from torch.fx.experimental import optimization

    from artifact.folds import conv_batchnorm

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    model = getattr(torchvision.models, model_name)(weights=None).eval()
    torch.ones(1).add_(1)  # starts the runtime, as a trial does before it folds
    if method == "fold":
        outcome = conv_batchnorm.fold(model)
        return {"total": outcome.fold_ms, **outcome.phases_ms}
    calls: dict[str, Callable[[Any], Any]] = {
        "floor": _copy_convolution_weights,
        "authors": _fuse_pairwise,
        "fx": optimization.fuse,
    }
    started_ns = perf_counter_ns()
    calls[method](model)
    return {"total": (perf_counter_ns() - started_ns) / _NS_PER_MS}


def _copy_convolution_weights(model: Any) -> list[Any]:
    import torch

    with torch.no_grad():
        return [
            torch.empty_like(module.weight).copy_(module.weight)
            for module in model.modules()
            if isinstance(module, torch.nn.Conv2d)
        ]


def _fuse_pairwise(model: Any) -> Any:
    """The authors' way: pairs by the order of registration, which happens to hold for ResNets."""
    from torch import nn
    from torch.nn.utils.fusion import fuse_conv_bn_eval

    folded = copy.deepcopy(model)
    for parent in list(folded.modules()):
        names = list(parent._modules)
        for first, second in itertools.pairwise(names):
            conv, norm = parent._modules[first], parent._modules[second]
            if isinstance(conv, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d):
                setattr(parent, first, fuse_conv_bn_eval(conv, norm))
                setattr(parent, second, nn.Identity())
    return folded


def measure(models: tuple[str, ...], processes: int) -> dict[str, dict[str, float]]:
    """Median ms per model and quantity over `processes` fresh processes per method."""
    samples: dict[str, dict[str, list[float]]] = {name: {} for name in models}
    for _ in range(processes):
        for model_name in models:
            for method in METHODS:
                for quantity, value_ms in _fresh_process(method, model_name).items():
                    key = method if quantity == "total" else quantity
                    samples[model_name].setdefault(key, []).append(value_ms)
    return {
        name: {key: statistics.median(values) for key, values in quantities.items()}
        for name, quantities in samples.items()
    }


def _fresh_process(method: str, model_name: str) -> dict[str, float]:
    command = [sys.executable, "-m", "artifact.folds.bench", "--one", method, model_name]
    answer = subprocess.run(command, check=True, capture_output=True, text=True)
    values: dict[str, float] = json.loads(answer.stdout.splitlines()[-1])
    return values


def missed_targets(medians_ms: dict[str, dict[str, float]]) -> list[str]:
    """One line for every target that the medians miss; models not measured are skipped."""
    missed = []
    for what, baseline, model_name, allowed in TARGETS:
        if model_name in medians_ms:
            row = medians_ms[model_name]
            ratio = row[what] / row[baseline]
            if ratio > allowed:
                missed.append(f"{model_name}: {what} / {baseline} = {ratio:.2f} > {allowed:.2f}")
    return missed


def _print_table(medians_ms: dict[str, dict[str, float]]) -> None:
    for model_name, row in medians_ms.items():
        print(model_name)
        for key, value_ms in row.items():
            indent = "    " if key in METHODS else "      of it "
            print(f"{indent}{key:<10}{value_ms:8.1f} ms")
        ratios = {name: row["fold"] / row[name] for name in ("authors", "fx")}
        ratios["rewrite/floor"] = row["rewrite"] / row["floor"]
        print("    ratios: " + ", ".join(f"{name} {value:.2f}" for name, value in ratios.items()))


def main() -> int:
    """Run the benchmark; exit code 1 when `--check` is given and a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--processes", type=int, default=5)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--check", action="store_true", help="fail when a target is missed")
    parser.add_argument("--one", nargs=2, metavar=("METHOD", "MODEL"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure_here(*arguments.one)))
        return 0
    medians_ms = measure(tuple(arguments.models), arguments.processes)
    _print_table(medians_ms)
    missed = missed_targets(medians_ms)
    print("\n".join(f"missed: {line}" for line in missed) or "all targets met")
    return 1 if missed and arguments.check else 0


if __name__ == "__main__":
    sys.exit(main())
