"""XLA: units of an optimised HLO module, from `jax.jit(f).lower(x).compile().as_text()`.

Counted are the instructions that the ENTRY computation executes, ROOT included, and those of the
computations it runs through `call`, `while`, `conditional` and asynchronous pairs: each once per
call site, a loop's body and condition once. The computation inside a fusion or a reducer is no
call site.

| instruction | kind |
|---|---|
| `fusion` of kind kLoop, kInput, kOutput | internal |
| `fusion` of kind kCustom (YNN, oneDNN, cuDNN, ...) | external |
| `fusion` of kind kCustom whose backend kind is one of Triton's | internal |
| `custom-call`, collectives, `convolution`, `dot`, `fft` and other library opcodes | external |
| `custom-call` that calls back into Python | fallback |
| `copy`, and a bare elementwise operation on scalars (loop counters, predicates) | builtin |
| `parameter`, `constant`, `tuple`, `get-tuple-element`, `bitcast` and their like | not a unit |
| any other bare operation on an array | internal, holding that one operation |

XLA's CPU backend emits a kernel for a bare array operation just as for a `wrapped_*` fusion, so
leaving it out would make an unfused program look smaller than it is. A copied buffer is a builtin
when the copy is bare, and internal when it was put in a fusion.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from artifact.census.unit import Census, Graph, Kind, Tally, Unit, census, listed, words

# Instructions that only name, group or reinterpret values.
_NO_CODE = words(
    "parameter constant tuple get-tuple-element bitcast after-all add-dependency opt-barrier "
    "domain partition-id replica-id get-dimension-size"
)
_LIBRARY_OPCODES = words("convolution dot fft cholesky triangular-solve ragged-dot")
_COLLECTIVES = words(
    "all-reduce all-gather all-to-all reduce-scatter collective-permute collective-broadcast "
    "send recv infeed outfeed"
)
_MARKER_TARGETS = words(
    "Sharding SPMDFullToShardShape SPMDShardToFullShape AllocateBuffer LayoutConstraint "
    "annotate_device_placement MoveToHost MoveToDevice"
)
_SCALAR_OPCODES = words(
    "add subtract multiply divide remainder maximum minimum negate abs and or not xor compare "
    "select clamp convert iota shift-left shift-right-logical shift-right-arithmetic"
)
_CONTROL = {
    "call": ("to_apply", "called_computations"),
    "while": ("condition", "body"),
    "conditional": ("branch_computations", "true_computation", "false_computation"),
    "async": ("calls",),
}
_INSTRUCTION = re.compile(r"^\s+(?:ROOT\s+)?%?(?P<name>[\w.\-]+)\s*=\s*(?P<rest>.*)$")
_COMPUTATION = re.compile(r"^(?P<entry>ENTRY\s+)?%?(?P<name>[\w.\-]+)\s*(?:\(.*\)\s*->.*)?\{\s*$")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_STRING_OR_COMMENT = re.compile(rf"({_STRING.pattern})|/\*.*?\*/", re.DOTALL)
_BACKEND_KIND = re.compile(r'\\?"kind\\?":\\?"(?P<kind>[\w$]+)\\?"')


@dataclass(frozen=True)
class _Instruction:
    name: str
    shape: str
    opcode: str
    tail: str
    """Attributes after the operands, with every string emptied but the custom call's target."""
    target: str
    backend_kind: str

    def called(self, attribute: str) -> list[str]:
        match = re.search(rf"\b{attribute}=(\{{[^}}]*\}}|%?[\w.\-]+)", self.tail)
        return re.findall(r"[\w.\-]+", match.group(1)) if match else []


@dataclass(frozen=True)
class _Module:
    name: str
    entry: str
    computations: Mapping[str, tuple[_Instruction, ...]]

    def body(self, name: str) -> tuple[_Instruction, ...]:
        if name not in self.computations:
            raise ValueError(
                f"HLO module {self.name!r} calls {name!r}, which the text does not hold"
            )
        return self.computations[name]


def count(text: str) -> Census:
    """Counts of an optimised HLO text (claims C5, C8). ValueError when it holds no ENTRY."""
    return census(graphs(text), text)


def units(text: str) -> list[Unit]:
    """Units of the text in order of first call, graph after graph."""
    return listed(graphs(text))


def single_op_units(text: str) -> list[Unit]:
    """Internal units that hold exactly one instruction (claim X3).

    Operations are the instructions of the fused computation other than parameters, constants,
    tuples and bitcasts. A broadcast is an operation of its own, since XLA without fusion gives it
    a unit of its own.
    """
    return [unit for unit in units(text) if unit.kind == "internal" and len(unit.operations) == 1]


def graphs(text: str) -> list[Graph]:
    """One graph per HloModule of the text."""
    modules = [_parse(part) for part in _modules(text)]
    if not modules:
        raise ValueError("the text holds no HLO module")
    return [Graph(module.name, _units(module)) for module in modules]


def _units(module: _Module) -> tuple[Unit, ...]:
    tally = Tally()
    for instruction in _executed(module, module.entry, ()):
        kind = _kind(instruction)
        if kind is None:
            continue
        operations = _operations(module, instruction)
        key, name = _identity(instruction, kind, operations)
        tally.add(key, name, kind, operations)
    return tally.units()


def _executed(module: _Module, name: str, above: tuple[str, ...]) -> Iterator[_Instruction]:
    """Instructions run by a computation, control flow opened up, in program order."""
    if name in above:
        raise ValueError(f"HLO module {module.name!r}: computation {name!r} calls itself")
    for instruction in module.body(name):
        attributes = _CONTROL.get(instruction.opcode)
        callees = [c for a in attributes or () for c in instruction.called(a)]
        if not callees:
            yield instruction
        for callee in callees:
            yield from _executed(module, callee, (*above, name))


def _kind(instruction: _Instruction) -> Kind | None:
    opcode = instruction.opcode
    if opcode in _NO_CODE or opcode in _CONTROL or opcode.endswith(("-done", "-update")):
        return None
    if opcode == "fusion":
        return _fusion_kind(instruction)
    if opcode == "custom-call":
        return _custom_call_kind(instruction.target)
    if opcode in _LIBRARY_OPCODES or opcode in _COLLECTIVES:
        return "external"
    if opcode == "copy" or (opcode in _SCALAR_OPCODES and _is_scalar(instruction.shape)):
        return "builtin"
    return "internal"


def _fusion_kind(instruction: _Instruction) -> Kind:
    library = re.search(r"\bkind=kCustom\b", instruction.tail) is not None
    return "external" if library and "triton" not in instruction.backend_kind else "internal"


def _custom_call_kind(target: str) -> Kind | None:
    if target in _MARKER_TARGETS:
        return None
    return "fallback" if "python" in target and "callback" in target else "external"


def _is_scalar(shape: str) -> bool:
    return re.fullmatch(r"\w+\[\](\{[^}]*\})?", shape) is not None


def _identity(
    instruction: _Instruction, kind: Kind, operations: tuple[str, ...]
) -> tuple[str, str]:
    """What makes two call sites one unit, and the name to show."""
    if kind in ("external", "fallback"):
        name = instruction.target or instruction.opcode
        if instruction.opcode == "fusion":
            held = ", ".join(f"{n} {operation}" for operation, n in Counter(operations).items())
            name = f"{instruction.backend_kind or 'kCustom'}({held})"
        return name, name
    if kind == "builtin":
        return instruction.opcode, instruction.opcode
    callees = instruction.called("calls")
    return (callees[0] if callees else instruction.name), instruction.name


def _operations(module: _Module, instruction: _Instruction) -> tuple[str, ...]:
    if instruction.opcode == "custom-call":
        return (_library_operation(instruction.target),)
    if instruction.opcode != "fusion":
        return (instruction.opcode,)
    held: list[str] = []
    for callee in instruction.called("calls"):
        for inner in module.body(callee):
            if inner.opcode not in _NO_CODE:
                held.extend(_operations(module, inner))
    return tuple(held)


def _library_operation(target: str) -> str:
    lowered = target.lower()
    if "conv" in lowered:
        return "convolution"
    return "dot" if "gemm" in lowered or "matmul" in lowered else target


def _modules(text: str) -> list[str]:
    """Texts of the single modules; a text without a header is one module if it has an ENTRY."""
    starts = [match.start() for match in re.finditer(r"^HloModule\b", text, re.MULTILINE)]
    if not starts:
        return [text] if re.search(r"^ENTRY\b", text, re.MULTILINE) else []
    return [text[a:b] for a, b in zip(starts, [*starts[1:], len(text)], strict=True)]


def _parse(text: str) -> _Module:
    header = re.match(r"HloModule\s+([\w.\-]+)", text)
    module_name = header.group(1) if header else "module"
    entry, current = "", ""
    computations: dict[str, list[_Instruction]] = {}
    for line in _STRING_OR_COMMENT.sub(lambda match: match.group(1) or "", text).splitlines():
        opening = _COMPUTATION.match(line)
        if opening:
            current = opening.group("name")
            computations[current] = []
            entry = current if opening.group("entry") else entry
        elif line.rstrip() == "}":
            current = ""
        elif current and (match := _INSTRUCTION.match(line)):
            computations[current].append(_instruction(match.group("name"), match.group("rest")))
    if current:
        raise ValueError(f"HLO module {module_name!r} ends inside computation {current!r}")
    if not entry or not computations[entry]:
        raise ValueError(f"HLO module {module_name!r} has no ENTRY computation with instructions")
    return _Module(module_name, entry, {name: tuple(body) for name, body in computations.items()})


def _instruction(name: str, rest: str) -> _Instruction:
    shape, after_shape = _split_shape(rest)
    opcode, _, after_opcode = after_shape.partition("(")
    opcode = opcode.strip()
    tail = after_opcode[_closing(after_opcode) :]
    target = re.search(r'\bcustom_call_target="([^"]*)"', tail)
    config = tail.partition("backend_config=")[2]
    kind = _BACKEND_KIND.search(config)
    return _Instruction(
        name=name,
        shape=shape,
        opcode=opcode.removesuffix("-start"),
        tail=_STRING.sub('""', tail),
        target=target.group(1) if target else "",
        backend_kind=kind.group("kind") if kind else "",
    )


def _split_shape(rest: str) -> tuple[str, str]:
    """Split `f32[2]{0} add(...)` after the shape; a tuple's shape is in parentheses."""
    if rest.startswith("("):
        end = _closing(rest[1:]) + 1
        return rest[:end], rest[end:].lstrip()
    shape, _, after = rest.partition(" ")
    return shape, after.lstrip()


def _closing(text: str) -> int:
    """Position just behind the parenthesis closing one opened before `text`, strings skipped."""
    depth, position = 1, 0
    while position < len(text):
        string = _STRING.match(text, position)
        if string:
            position = string.end()
            continue
        depth += {"(": 1, ")": -1}.get(text[position], 0)
        position += 1
        if depth == 0:
            break
    return position
