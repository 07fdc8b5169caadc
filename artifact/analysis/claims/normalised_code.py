"""Generated code without what differs between two compilations of one program.

Paths of caches, hashes and addresses name the process, and comments name the source nodes; none of
them is run. What remains (kernels, their order, every call with its shapes) must be equal for the
control of claim C6.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_RULES = (
    # `#include "/tmp/.../ab12.h"`, `# kernel path: /tmp/...`: absolute paths of more than one step.
    (re.compile(r"(?<![\w/.])/(?:[\w.+@-]+/)+[\w.+@-]*"), "<path>"),
    (re.compile(r"\b0x[0-9a-fA-F]{6,}\b"), "<address>"),
    # Cache keys: 64 hexadecimal digits, or 52 of base 32 with a leading letter.
    (re.compile(r"\b(?:[0-9a-f]{32,64}|c[a-z2-7]{50,52})\b"), "<hash>"),
)
#: A comment line of Python (`# ...`) or of C++ (`// ...`). `#include`, `#pragma` and their like
#: carry no space behind the sign and stay.
_COMMENT_LINE = re.compile(r"\s*(?:#(?:\s|$)|//).*")
_COMMENT_TAIL = re.compile(r"\s+(?:#\s|//\s).*$")


def normalised(texts: Mapping[str, str]) -> tuple[str, ...]:
    """Lines of all files in name order, without comments, blank lines, paths, hashes, addresses."""
    lines = [line for name in sorted(texts) for line in texts[name].splitlines()]
    kept = (_COMMENT_TAIL.sub("", line).rstrip() for line in lines if not _COMMENT_LINE.match(line))
    return tuple(_neutral(line) for line in kept if line)


def _neutral(line: str) -> str:
    for pattern, word in _RULES:
        line = pattern.sub(word, line)
    return line


def first_difference(first: tuple[str, ...], second: tuple[str, ...]) -> str:
    """The first line that differs, in words; empty when the two are equal."""
    for number, (left, right) in enumerate(zip(first, second, strict=False), start=1):
        if left != right:
            same = _equal_until(left, right)
            return f"line {number} differs: {_around(left, same)} and {_around(right, same)}"
    if len(first) != len(second):
        return f"{len(first)} lines against {len(second)}"
    return ""


def _equal_until(left: str, right: str) -> int:
    pairs = zip(left, right, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(left), len(right)))


def _around(line: str, position: int) -> str:
    """The part of a line at which it begins to differ."""
    return repr(line[max(0, position - 30) : position + 30].strip())
