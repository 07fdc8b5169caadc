"""Generated texts: small ones written by hand, and real ones of the pinned stacks, compressed."""

from __future__ import annotations

import lzma
from collections.abc import Callable
from pathlib import Path

import pytest

DATA = Path(__file__).parent / "data"


@pytest.fixture
def text() -> Callable[[str], str]:
    """Read one generated text by its file name; `.xz` files are unpacked."""

    def read(name: str) -> str:
        content = (DATA / name).read_bytes()
        return (lzma.decompress(content) if name.endswith(".xz") else content).decode("utf-8")

    return read
