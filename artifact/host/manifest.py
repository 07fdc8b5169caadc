"""The manifest of a campaign: what its records were made with, and what a resume must match."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import platform
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import artifact
from artifact.errors import UserError
from artifact.host.engines import Limits, StackIdentity
from artifact.host.store import now_utc
from artifact.plan import Plan, TrialSpec
from artifact.strict_json import dumps
from artifact.study import Protocol
from artifact.trial import cold

SCHEMA_VERSION = 1

PROXY_VARIABLES = ("http_proxy", "https_proxy", "ftp_proxy", "all_proxy", "no_proxy")

#: How much of a difference a refused resume shows.
CHANGES_SHOWN = 8
SHORT_CHARACTERS = 19  # "sha256:" and 12 digits

_CREDENTIALS = re.compile(r"(?<=//)[^/@]*@")


def boot_id() -> str:
    """The kernel's id of this boot: trials of different boots are never paired."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def identity(
    plan: Plan, protocol: Protocol, engine: str, stacks: Mapping[str, StackIdentity]
) -> dict[str, str]:
    """What may not differ between the sessions of one campaign, as flat text values.

    `isa` and `precision` are part of the plan's hash too; by name, a refused resume can say so.
    """
    trials = list(plan.trials())
    values = {
        "profile": plan.profile,
        "seed": str(plan.seed),
        "device": plan.device,
        "engine": engine,
        "isa": ", ".join(sorted({spec.isa for spec in trials})),
        "precision": ", ".join(sorted({spec.precision for spec in trials})),
        "plan": hashlib.sha256(dumps(plan).encode("utf-8")).hexdigest(),
    }
    for name, value in dataclasses.asdict(protocol).items():
        values[f"protocol.{name}"] = str(value)
    for stack, made in sorted(stacks.items()):
        values[f"{stack}.image"] = made.image_id
        values[f"{stack}.lock_hash"] = made.lock_hash
        values[f"{stack}.code_hash"] = made.code_hash
    return values


def refuse_difference(name: str, before: Mapping[str, str], now: Mapping[str, str]) -> None:
    """`UserError` of two lines: what a resume would mix, then the values (long ones cut)."""
    keys = [key for key in sorted({*before, *now}) if before.get(key) != now.get(key)]
    if not keys:
        return
    changes = [f"{key} {_short(before.get(key))} -> {_short(now.get(key))}" for key in keys]
    shown = ", ".join(changes[:CHANGES_SHOWN])
    more = f", {len(changes) - CHANGES_SHOWN} more" if len(changes) > CHANGES_SHOWN else ""
    raise UserError(
        f"campaign {name!r} cannot be resumed, it was started with other settings: "
        f"{', '.join(keys)}\n{shown}{more}",
        next_step="choose another --name for a new campaign",
    )


def _short(value: str | None) -> str:
    """A value for a person: the start of a hash is enough to tell two apart."""
    if value is None:
        return "absent"
    return value if len(value) <= SHORT_CHARACTERS else f"{value[:SHORT_CHARACTERS]}..."


def first_manifest(
    plan: Plan,
    identity_: Mapping[str, str],
    stacks: Mapping[str, StackIdentity],
    doctor: Mapping[str, Any] | None,
    scratch: Path,
    limits: Mapping[str, Limits],
) -> dict[str, Any]:
    """Everything known before the first trial. `doctor` is the host check's result, if it ran.

    `limits` are the bounds asked for by configuration; which of them hold depends on the engine
    (the process engine bounds CPUs and file sizes only).
    """
    return {
        "schema": SCHEMA_VERSION,
        "artifact_version": artifact.__version__,
        "created_utc": now_utc(),
        "identity": dict(identity_),
        "tags": {stack: made.tag for stack, made in stacks.items()},
        "environments": environments(plan.trials(), scratch),
        "limits": {name: dataclasses.asdict(bounds) for name, bounds in sorted(limits.items())},
        "host": host_facts(),
        "proxies": redacted_proxies(os.environ),
        "doctor": doctor,
        "notes": list(plan.notes),
        "sessions": [],
    }


def environments(trials: Iterable[TrialSpec], scratch: Path) -> dict[str, dict[str, str]]:
    """The complete environment of each configuration's process; none of it is the caller's."""
    first = {spec.configuration: spec for spec in reversed(list(trials))}
    return {
        name: cold.environment(spec, cold.placement_for(spec, scratch))
        for name, spec in sorted(first.items())
    }


def host_facts() -> dict[str, Any]:
    """The machine as the host sees it."""
    return {
        "kernel": platform.release(),
        "system": platform.system(),
        "architecture": platform.machine(),
        "cpu_model": cpu_model(),
        "cpus_online": os.cpu_count(),
        "cpus_allowed": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "python": platform.python_version(),
        "uid": os.getuid(),
    }


def cpu_model() -> str:
    """The first `model name` of /proc/cpuinfo, or "unknown"."""
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    for line in text.splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "unknown"


def redacted_proxies(environment: Mapping[str, str]) -> dict[str, str]:
    """Which proxy variables are set, with user names and passwords taken out (case D11)."""
    found = {}
    for name in PROXY_VARIABLES:
        value = environment.get(name) or environment.get(name.upper())
        if value:
            found[name] = _CREDENTIALS.sub("***@", value) if "//" in value else _plain(value)
    return found


def _plain(value: str) -> str:
    """A proxy without a scheme; what stands before an @ is a password and goes."""
    return f"***@{value.rpartition('@')[2]}" if "@" in value else value
