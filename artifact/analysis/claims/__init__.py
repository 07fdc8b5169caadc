"""The paper's claims as predicates on records: one file a claim, found by its name (`c2.py`).

A claim module offers

    KIND   "I" (integrity) or "C" (finding): what its line says when nothing was measured
    TITLE  one line: what holds
    NEEDS  what must be measured for it
    evaluate(evidence) -> list[Line]    empty when nothing that it needs was measured

Adding a claim is adding one file named like `c9.py` or `x1.py`; nothing else changes.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Callable
from dataclasses import dataclass

from artifact.analysis.claims.line import Line
from artifact.analysis.evidence import Evidence

_CLAIM_FILE = re.compile(r"([cx])(\d+)")


@dataclass(frozen=True)
class Claim:
    """One claim: its id ("C2"), kind, title, needs and predicate."""

    id: str
    kind: str
    title: str
    needs: str
    evaluate: Callable[[Evidence], list[Line]]


def load_all() -> list[Claim]:
    """Every claim of this folder: C1, C2, ... and then X1, X2, ..."""
    found = []
    for module in pkgutil.iter_modules(__path__):
        match = _CLAIM_FILE.fullmatch(module.name)
        if match:
            found.append((match.group(1), int(match.group(2)), module.name))
    return [_claim(name) for _, _, name in sorted(found)]


def _claim(name: str) -> Claim:
    module = importlib.import_module(f"{__name__}.{name}")
    return Claim(name.upper(), module.KIND, module.TITLE, module.NEEDS, module.evaluate)
