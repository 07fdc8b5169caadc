"""Which code made a record: the hash that decides whether two records may be pooled."""

from __future__ import annotations

import hashlib
from pathlib import Path

#: What a trial's numbers depend on. Host code is left out on purpose: editing the campaign,
#: the analysis or a figure costs nobody a measurement.
MEASURING_SOURCES = ("trial", "models", "folds", "census", "records.py", "plan.py")

PACKAGE = Path(__file__).resolve().parents[1]


def code_hash(package: Path = PACKAGE) -> str:
    """SHA-256 over names and contents of the measuring sources of the package folder."""
    return hash_sources(package, MEASURING_SOURCES)


def hash_sources(package: Path, names: tuple[str, ...]) -> str:
    """SHA-256 over the .py files below `package` named by `names`, in sorted order."""
    digest = hashlib.sha256()
    for name in names:
        root = package / name
        for path in sorted(root.rglob("*.py")) if root.is_dir() else [root]:
            content = path.read_bytes()
            digest.update(f"{path.relative_to(package).as_posix()}\0{len(content)}\0".encode())
            digest.update(content)
    return digest.hexdigest()
