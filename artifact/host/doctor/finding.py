"""What a check found: a state, one line, the next step; and all of them as one report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

SCHEMA_VERSION = 1

#: From harmless to fatal. `advice`: could be better, or cannot be seen here. `warning`: times will
#: be disturbed, or something may fail. `error`: nothing can be run with the engine in question.
STATES = ("ok", "advice", "warning", "error")


@dataclass(frozen=True)
class Finding:
    """The answer of one check. `facts` are the values it read, strict JSON."""

    state: str
    message: str
    next_step: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.state not in STATES:
            raise ValueError(f"state: expected one of {', '.join(STATES)}, got {self.state!r}")
        if self.state in ("warning", "error") and not self.next_step:
            raise ValueError(f"a finding of state {self.state} needs a next step: {self.message}")


@dataclass(frozen=True)
class Report:
    """Every check with its finding, in the order of `CHECKS`, for one engine and device."""

    engine: str
    device: str
    findings: Mapping[str, Finding]

    @property
    def state(self) -> str:
        """The worst state of all findings."""
        return max((f.state for f in self.findings.values()), key=STATES.index, default="ok")

    @property
    def exit_code(self) -> int:
        """0: ok or advice only. 1: a warning. 2: an error, nothing can be run as asked."""
        return {"warning": 1, "error": 2}.get(self.state, 0)

    def plain(self) -> dict[str, Any]:
        """The report as strict JSON values, for the manifest and for `--json`."""
        return {
            "schema": SCHEMA_VERSION,
            "engine": self.engine,
            "device": self.device,
            "state": self.state,
            "exit_code": self.exit_code,
            "checks": [
                {
                    "check": name,
                    "state": finding.state,
                    "message": finding.message,
                    "next_step": finding.next_step,
                    "facts": dict(finding.facts),
                }
                for name, finding in self.findings.items()
            ],
        }

    def text(self) -> str:
        """One line a check, its next step below it, and a closing line."""
        lines = []
        for name, finding in self.findings.items():
            lines.append(f"{finding.state:<8}{name:<15}{finding.message}")
            if finding.next_step:
                lines.append(f"{'':<23}next: {finding.next_step}")
        counts = [
            f"{number} {state}"
            for state in STATES
            if (number := sum(f.state == state for f in self.findings.values()))
        ]
        lines.append(f"engine {self.engine}, device {self.device}: {', '.join(counts)}")
        return "\n".join(lines) + "\n"

    def alarms(self) -> list[str]:
        """One line for each warning and error, the worst first."""
        found = [(name, f) for name, f in self.findings.items() if f.state in ("warning", "error")]
        found.sort(key=lambda pair: -STATES.index(pair[1].state))
        return [f"doctor: {f.state}: {name}: {f.message}; {f.next_step}" for name, f in found]
