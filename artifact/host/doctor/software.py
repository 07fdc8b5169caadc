"""Checks of programs: the host's own packages, the process engine's tools, the package index."""

from __future__ import annotations

import sys

from artifact.host.doctor.finding import Finding
from artifact.host.doctor.system import Situation

#: What the host program imports, some of it only when a command needs it (case N6).
HOST_MODULES = (
    "docker",
    "matplotlib",
    "numpy",
    "pandas",
    "rich",
    "safetensors",
    "scipy",
    "statsmodels",
    "typer",
)

INDEX_TIMEOUT_S = 20.0

#: Asks the index that pip is configured for (file, environment, proxy) about pip itself.
INDEX_QUESTION = (
    *("-m", "pip", "--disable-pip-version-check", "--no-input"),
    *("index", "versions", "--timeout", "5", "--retries", "0", "pip"),
)


def host_packages(at: Situation) -> Finding:
    """Can everything that the host program imports be imported?"""
    lacking = [name for name in HOST_MODULES if not at.system.importable(name)]
    if lacking:
        step = "run `make setup`, and call the program as .host/bin/python -m artifact"
        facts = {"lacking": lacking}
        return Finding("error", f"this Python lacks {', '.join(lacking)}", step, facts)
    return Finding("ok", f"{len(HOST_MODULES)} packages of the lock are there")


def process_tools(at: Situation) -> Finding:
    """Has the process engine its Python, compiler and headers?"""
    if at.engine != "process":
        return Finding("ok", "not needed by the docker engine")
    lacking = at.system.lacking_for_processes()
    if lacking is None:
        return Finding("ok", "Python 3.11, g++, headers and openssl are there")
    message, _, step = lacking.partition("; ")
    return Finding("error", message, step or "install it, or start Docker")


def package_index(at: Situation) -> Finding:
    """Does the package index answer, asked the way that pip is configured?

    What pip says is not repeated: it may hold the address, and the password, of a private index.
    """
    if at.offline:
        return Finding("ok", "not asked (--offline)")
    asked = at.system.run([sys.executable, *INDEX_QUESTION], INDEX_TIMEOUT_S)
    if asked.code == 0:
        return Finding("ok", "answers", facts={"reachable": True})
    if "No module named pip" in asked.errors:
        return Finding("advice", "unknown: this Python has no pip", facts={"reachable": None})
    facts = {"reachable": False}
    if at.engine == "docker" and at.has_images():
        message = "does not answer; the images are there, only a rebuild would need it"
        return Finding("advice", message, "give --offline to skip this check", facts)
    step = (
        "check the network, pip's configuration and the proxy variables: the first build needs it"
    )
    return Finding("warning", "does not answer", step, facts)
