"""Census of generated code: pure functions from a stack's text to its units and their counts.

`inductor`, `hlo` and `tvmscript` each offer the same four functions: `graphs(text)`,
`units(text)`, `single_op_units(text)` and `count(text)`. They use the standard library only and
raise ValueError on a text that holds no program.
"""

from __future__ import annotations

from artifact.census.unit import (
    Census,
    Graph,
    Kind,
    Unit,
    external_operations,
    fused_units,
    total,
)

__all__ = ["Census", "Graph", "Kind", "Unit", "external_operations", "fused_units", "total"]
