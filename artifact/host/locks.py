"""Which lock files make up a stack's environment, and the hash that names that environment."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from artifact.errors import UserError

#: The compiler stacks, in build order: tvm follows inductor, whose layers it shares.
STACKS = ("inductor", "xla", "tvm")
ACCELERATORS = ("cpu", "cuda")

#: The checkout: the folder that holds `artifact/` and `docker/`.
CHECKOUT = Path(__file__).resolve().parents[2]


def lock_files(stack: str, accelerator: str = "cpu", root: Path = CHECKOUT) -> tuple[Path, ...]:
    """The lock files of `stack`, in the order in which they are installed.

    `accelerator` ("cpu" or "cuda") matters for xla only: the PyPI build of torch serves both.
    Raises `UserError` for an unknown stack or accelerator and for a missing file.
    """
    if accelerator not in ACCELERATORS:
        raise UserError(
            f"unknown accelerator {accelerator!r}", next_step=f"choose {' or '.join(ACCELERATORS)}"
        )
    names = {
        "inductor": ("inductor/requirements.lock",),
        "xla": (f"xla/requirements-{accelerator}.lock",),
        "tvm": ("inductor/requirements.lock", "tvm/requirements.lock"),
    }
    if stack not in names:
        raise UserError(f"unknown stack {stack!r}", next_step=f"choose from {', '.join(STACKS)}")
    paths = tuple(root / "docker" / name for name in names[stack])
    for path in paths:
        if not path.is_file():
            raise UserError(f"no lock file {path}", next_step="run from a complete checkout")
    return paths


def lock_hash(stack: str, accelerator: str = "cpu", root: Path = CHECKOUT) -> str:
    """SHA-256 (hex) over the names and contents of the stack's lock files."""
    return hash_files(lock_files(stack, accelerator, root), root)


def hash_files(paths: Sequence[Path], root: Path) -> str:
    """SHA-256 (hex) over paths relative to `root`, sizes and contents, in the order given."""
    digest = hashlib.sha256()
    for path in paths:
        content = path.read_bytes()
        digest.update(f"{path.relative_to(root).as_posix()}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()
