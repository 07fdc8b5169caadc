"""Compute operations inside one Inductor kernel, read from the kernel's own generated source.

Inductor's C++ kernels carry no comments, so what they compute is read from their statements: one
assignment `auto tmpN = ...` is one operation, unless it only loads, casts, broadcasts a constant
or computes an address. The same statement in a vectorised loop, its tail and its masked variants
counts once. A loop nest that computes nothing but stores is one `copy`; a load through a loaded
index is a `gather`.

Pooling unrolled over one buffer, the mean of a few values and the second pass of a variance are
folded back into the one operation they are; a program that itself computes `((x - y) ** 2).sum()`
in one kernel is therefore taken for a variance. Other known limits: a statement that multiplies
and adds counts as one operation, and an operation that Inductor decomposes further shows its
parts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_FOR = re.compile(r"\bfor\s*\(\s*(?:int64_t|long|int)\s+(?P<variable>\w+)\s*=")
_ASSIGN = re.compile(r"^(?:const\s+)?auto\s+(?P<name>tmp\d+)\s*=\s*(?P<value>.*?);?$")
_ACCUMULATE = re.compile(r"^(?P<name>tmp_acc\d+)(?:_vec|_arr\[[^\]]*\])?\s*=\s*(?P<value>.*?);?$")
_STORE = re.compile(r"(?:\.store\(|^\w*ptr\d+\[.*\]\s*=(?!=))")
_TMP = re.compile(r"\btmp\d+\b")
_POINTER = re.compile(r"\b\w*ptr\d+\b")
_INDEX = re.compile(r"ptr\d+\[([^\]]*)\]|ptr\d+\s*\+\s*(.*)")
_LOAD = re.compile(r"\bloadu?\b|\bptr\d+\[|_ptr\d+\[")
_CONSTANT = re.compile(
    r"^-?(?:(?:static_cast<[^>]*>|at::vec::VectorizedN?<[^>]*>)\([^()]*(?:\(\))?[^()]*\)"
    r"|std::numeric_limits<\w+>::\w+\(\))$"
)
_CAST = re.compile(
    r"^(?:(?:c10::convert<[^>]*>|at::vec::convert<[^>]*>|static_cast<[^>]*>|at::vec::VectorizedN?<[^>]*>"
    r"|at::vec::VecMask<[^>]*>::from)\(tmp\d+\)"
    r"|tmp\d+(?:\.(?:template\s+)?(?:to|cast)<[^>]*>\(\))?)$"
)
_MASK = re.compile(r"^at::vec::VecMask<[^>]*>\((?P<inner>.*)\)$")
_MASKED = re.compile(r"^(?P<mask>tmp\d+)\s*\?\s*(?P<body>tmp\d+)\(\)\s*:")
_BINARY = re.compile(
    r"^[\w.()<>:]+\s*(?P<operator>[-+*/%&|^]|<<|>>|==|!=|<=|>=|<|>)\s*[\w.()<>:]+$"
)
_METHOD = re.compile(r"^tmp\d+\.(?P<name>\w+)\(")
_FUNCTION = re.compile(r"(?:std|at::vec|c10)::(?P<name>\w+)(?:<[^>]*>)?\(")
_OPERATORS = {
    "+": "add",
    "-": "sub",
    "*": "mul",
    "/": "div",
    "%": "remainder",
    "&": "and",
    "|": "or",
    "^": "xor",
    "==": "eq",
    "!=": "ne",
    "<": "lt",
    ">": "gt",
    "<=": "le",
    ">=": "ge",
}
# One operation of the graph that Inductor lowers to several statements, when nothing else is in the
# loop nest: the second pass of a variance, and the mean of a few values.
_COMPOUNDS = {("sub", "square", "sum"): "var", ("sum", "div by constant"): "mean"}
_PLAIN_NAMES = {"square": "mul", "div by constant": "div"}
_FUNCTION_NAMES = {"max": "maximum", "min": "minimum", "clamp_min": "relu"}
_POOLED = frozenset({"maximum", "minimum", "add"})


@dataclass
class _Value:
    """What one temporary holds: `data`, an `address` or loop index, or a `constant`."""

    role: str
    operation: str = ""
    operands: tuple[str, ...] = ()
    buffer: str = ""


@dataclass
class _Scope:
    """Temporaries of one innermost loop; Inductor restarts their numbering in the next one."""

    values: dict[str, _Value] = field(default_factory=dict)
    reductions: dict[str, str] = field(default_factory=dict)
    stores: bool = False

    def operations(self) -> list[str]:
        kept: dict[str, str] = {}
        for name, value in self.values.items():
            if not self._pooled(value):
                kept[name] = self._precise(value)
            elif value.operation == "add":
                kept[self._chain_start(value)] = "sum"
        return [operation for operation in (*kept.values(), *self.reductions.values()) if operation]

    def _chain_start(self, value: _Value) -> str:
        """Name of the first step of the chain that a pooled value ends."""
        name = value.operands[0]
        while self._pooled(self.values[name]):
            name = self.values[name].operands[0]
        return name

    def _precise(self, value: _Value) -> str:
        """The operation, with the two distinctions that `_COMPOUNDS` needs."""
        if value.operation == "mul" and len(value.operands) == 2 and len(set(value.operands)) == 1:
            return "square"
        last = self.values.get(value.operands[-1]) if value.operands else None
        if value.operation == "div" and last is not None and last.role == "constant":
            return "div by constant"
        return value.operation

    def mark_address(self, name: str) -> None:
        """The value `name` indexes a buffer, so it and what it came from is address arithmetic."""
        value = self.values.get(name)
        if value is not None and value.role != "address":
            value.role, value.operation = "address", ""
            for operand in value.operands:
                self.mark_address(operand)

    def _pooled(self, value: _Value) -> bool:
        """True for every step but the first of `max(max(a[i], a[j]), a[k])` over one buffer."""
        if value.operation not in _POOLED or len(value.operands) != 2:
            return False
        first, last = (self.values.get(name) for name in value.operands)
        if first is None or last is None or first.operation != value.operation:
            return False
        return bool(last.buffer) and self._source(first) == last.buffer

    def _source(self, value: _Value) -> str:
        """The one buffer that a chain of equal operations reads, or "" when there are several."""
        found = {
            inner.buffer or (self._source(inner) if inner.operation == value.operation else "")
            for inner in (self.values.get(name) for name in value.operands)
            if inner is not None
        }
        return found.pop() if len(found) == 1 else ""


def cpp_operations(source: str) -> tuple[str, ...]:
    """Operations of a C++ kernel, loop nest after loop nest; ("copy",) when it only moves data."""
    operations: list[str] = []
    for nest in _loop_nests(source):
        held = [operation for scope in nest for operation in scope.operations()]
        if tuple(held) in _COMPOUNDS:
            held = [_COMPOUNDS[tuple(held)]]
        operations += held or ["copy"] * any(scope.stores for scope in nest)
    return tuple(_PLAIN_NAMES.get(operation, operation) for operation in operations)


def cpp_loop_nests(source: str) -> int:
    """Outermost loops of a C++ kernel: above 1 the kernel joins several computations."""
    return len(_loop_nests(source))


def _loop_nests(source: str) -> list[list[_Scope]]:
    nests: list[list[_Scope]] = []
    loops: list[int] = []
    """Brace depth at which each open loop's body sits."""
    depth, pending = 0, False
    straight = _Scope()
    for raw in source.splitlines():
        line = raw.strip()
        loop = _FOR.search(line)
        if loop and not loop.group("variable").endswith("_inner"):
            if not loops:
                nests.append([])
            nests[-1].append(_Scope())
            pending = True
        _read(line, nests[-1][-1] if loops else straight)
        for character in line:
            if character == "{":
                depth += 1
                if pending:
                    loops.append(depth)
                    pending = False
            elif character == "}":
                if loops and loops[-1] == depth:
                    loops.pop()
                depth -= 1
    if straight.operations() or straight.stores:
        nests.append([straight])
    return nests


def _read(line: str, scope: _Scope) -> None:
    for name in _addressed(line):
        scope.mark_address(name)
    scope.stores = scope.stores or _STORE.search(line) is not None
    accumulation = _ACCUMULATE.match(line)
    if accumulation and accumulation.group("name") not in scope.reductions:
        operation = _reduction(accumulation.group("value"))
        if operation:
            scope.reductions[accumulation.group("name")] = operation
    assignment = _ASSIGN.match(line)
    if assignment and assignment.group("name") not in scope.values:
        scope.values[assignment.group("name")] = _value(assignment.group("value"), scope)


def _addressed(line: str) -> list[str]:
    """Temporaries used inside `ptr[...]` or `ptr + ...`."""
    indices = _INDEX.findall(line)
    return [name for index in indices for part in index for name in _TMP.findall(part)]


def _value(text: str, scope: _Scope) -> _Value:
    operands = tuple(_TMP.findall(text))
    if text.startswith("[&]"):
        return _Value("data")
    masked = _MASKED.match(text)
    if masked:
        scope.mark_address(masked.group("mask"))
        return _Value("data", buffer="masked")
    if _LOAD.search(text):
        pointer = _POINTER.search(text)
        gather = "gather" if _addressed(text) else ""
        return _Value("data", gather, operands, buffer=pointer.group() if pointer else "")
    roles = {scope.values[name].role for name in operands if name in scope.values}
    if not operands:
        return _Value("constant" if _CONSTANT.match(text) else "address")
    cast = _CAST.match(text)
    if cast:
        return _Value(roles.pop() if roles else "data", operands=operands)
    if roles <= {"address", "constant"} and "address" in roles:
        return _Value("address", operands=operands)
    mask = _MASK.match(text)
    return _Value("data", _operation(mask.group("inner") if mask else text), operands)


def _operation(text: str) -> str:
    if "decltype" in text and ".exp()" in text and "/" in text:
        return "sigmoid"
    binary = _BINARY.match(text)
    if binary:
        return _OPERATORS.get(binary.group("operator"), binary.group("operator"))
    if "?" in text or "blendv" in text:
        return "where"
    method = _METHOD.match(text)
    if method:
        return method.group("name")
    function = _FUNCTION.search(text)
    if function:
        return _FUNCTION_NAMES.get(function.group("name"), function.group("name"))
    return "neg" if text.startswith("-") else "expression"


def _reduction(text: str) -> str:
    """Name of `acc = acc + x` and its like; "" for an accumulator's start value."""
    if "tmp" not in text:
        return ""
    function = _FUNCTION.search(text) or re.search(
        r"\b(?P<name>\w+_combine)\w*(?:<[^>]*>)?\(", text
    )
    if function:
        name = function.group("name")
        return {"maximum": "amax", "max": "amax", "minimum": "amin", "min": "amin"}.get(name, name)
    if re.search(r"\+", text):
        return "sum"
    return "prod" if "*" in text else "reduce"
