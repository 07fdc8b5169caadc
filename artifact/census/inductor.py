"""TorchInductor: units of the generated wrapper module, for its C++ and its Triton kernels.

The wrapper is Python source; it is parsed, never searched, so comments, strings (kernel sources,
the compile-time autotuning block) and functions nobody calls do not count. The entry is the method
`call` of the wrapper's `Runner`, or a module-level function `call`; functions that the entry calls
(graph partitions, subgraphs of `cond` and `while_loop`) are opened up, once per call site.

| call | kind |
|---|---|
| a name bound to `async_compile.*(...)`, called or `.run(...)` | internal |
| `extern_kernels.*`, `torch.ops.<library>.*` (mkldnn, mkl, ...), collectives | external |
| `torch.ops.aten.*` and operators of unknown namespaces | fallback |
| allocation, `reinterpret_tensor`, views, `.copy_` | builtin |
| asserts, guards, streams, Python helpers | not a unit |

Several wrappers in one text (joined, or one after the other) are several graphs.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from artifact.census.kernels import cpp_operations
from artifact.census.unit import Census, Graph, Kind, Tally, Unit, census, listed, words

_LIBRARY_NAMESPACES = words(
    "mkldnn mkl onednn onednn_graph quantized _quantized xnnpack prepacked miopen cudnn "
    "_c10d_functional c10d_functional c10d"
)
_VIEWS = words(
    "view as_strided reshape permute transpose t expand squeeze unsqueeze slice select alias "
    "detach view_as_real view_as_complex _unsafe_view _reshape_alias split split_with_sizes unbind"
)
_RUNTIME = re.compile(
    r"^(?:empty_strided\w*|empty|reinterpret_tensor|alloc_from_pool|_alloc_from_pool|_empty_strided\w*"
    r"|_reinterpret_tensor|resize_storage_bytes_|empty_strided_p2p)$"
)
_KERNEL_NAME = re.compile(
    r"^(?:triton_|cpp_fused|kernel_cpp_|multi_kernel_|pallas_|halide_|cutlass_)"
)
_NO_COMPUTE = _VIEWS | words(
    "full scalar_tensor empty getitem lift_fresh lift_fresh_copy convert_element_type"
)
# In a generated kernel that is no template, one of these names only says for which library call the
# kernel prepares an argument: a change of layout, or the bias.
_LIBRARY_ORIGINS = words("convolution addmm mm bmm baddbmm")
_GRAPH_TARGET = re.compile(r"call_function\[target=(?:torch\.ops\.)?(?:\w+\.)*?(\w+)\.(?:\w+)\]")
_MAPPED = re.compile(r"^#\s+\S+ => (?P<nodes>.+)$")
_ORIGINAL = re.compile(r"Original ATen: \[(?P<names>[^\]]*)\]")
_ADDRESS = re.compile(r"\bat 0x[0-9a-f]+")

_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class _Wrapper:
    """One graph's wrapper: its entry and what the module defined before it."""

    name: str
    entry: _Function
    aliases: Mapping[str, str]
    kernels: Mapping[str, tuple[str, ...]]
    functions: Mapping[str, _Function]
    partitions: tuple[str, ...]


def count(text: str) -> Census:
    """Counts of a wrapper text (claims C5, C8). ValueError when it holds no entry to call."""
    return census(graphs(text), text)


def units(text: str) -> list[Unit]:
    """Units of the text in order of first call, graph after graph."""
    return listed(graphs(text))


def single_op_units(text: str) -> list[Unit]:
    """Internal units that hold exactly one compute operation (claim X3).

    Operations of a Triton kernel are the ATen calls of the graph fragment that Inductor writes
    above it (else its node mapping, else the original ATen names); of a C++ kernel they are read
    from its source. Views, casts and constants are no operations. `copy` is a change of layout, or
    the bias of a library call.
    """
    return [unit for unit in units(text) if unit.kind == "internal" and len(unit.operations) == 1]


def graphs(text: str) -> list[Graph]:
    """One graph per wrapper of the text."""
    found = [Graph(wrapper.name, _units(wrapper)) for wrapper in _wrappers(text)]
    if not listed(found) and "torch._inductor" not in text:
        raise ValueError("not an Inductor wrapper: its call uses no kernel and no library")
    return found


def is_wrapper(text: str) -> bool:
    """Whether a Python file of Inductor's cache directory is a graph's wrapper, not a kernel."""
    try:
        return bool(graphs(text))
    except ValueError:
        return False


def normalised(text: str) -> str:
    """The program without comments and addresses, which differ between equal compilations.

    Claim C6 compares base and control through it. ValueError when the text is not Python.
    """
    return _ADDRESS.sub("at 0x", ast.unparse(_parse(text)))


def _parse(text: str) -> ast.Module:
    try:
        return ast.parse(text)
    except SyntaxError as error:
        raise ValueError(f"not an Inductor wrapper: line {error.lineno} is not Python") from error


def _wrappers(text: str) -> list[_Wrapper]:
    module, lines = _parse(text), text.splitlines()
    names = re.findall(r"^# AOT ID: \['?([^'\]]+)'?\]", text, re.MULTILINE)
    anywhere = {s.name: s for s in module.body if isinstance(s, _Function)}
    above: dict[str, _Function] = {}
    found: list[_Wrapper] = []
    aliases: dict[str, str] = {}
    kernels: dict[str, tuple[str, ...]] = {}
    partitions = _partitions(module)
    for statement in module.body:
        entry = _entry(statement)
        if entry is not None:
            name = names[len(found)] if len(found) < len(names) else f"graph_{len(found)}"
            own = partitions[len(found)] if len(found) < len(partitions) else ()
            functions = anywhere | above
            found.append(_Wrapper(name, entry, dict(aliases), dict(kernels), functions, own))
        elif isinstance(statement, _Function):
            above[statement.name] = statement
        elif isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            _define(statement.targets[0].id, statement, lines, aliases, kernels)
    if not found:
        raise ValueError("not an Inductor wrapper: it defines no Runner.call and no call(args)")
    return found


def _entry(statement: ast.stmt) -> _Function | None:
    if isinstance(statement, ast.ClassDef):
        methods = [s for s in statement.body if isinstance(s, _Function) and s.name == "call"]
        return methods[0] if methods else None
    return statement if isinstance(statement, _Function) and statement.name == "call" else None


def _partitions(module: ast.Module) -> list[tuple[str, ...]]:
    """For each `Runner(partitions=[...])` of the module, the names of its partition functions."""
    listed_names: list[tuple[str, ...]] = []
    for node in module.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            for keyword in node.value.keywords:
                if keyword.arg == "partitions" and isinstance(keyword.value, ast.List):
                    elements = keyword.value.elts
                    listed_names.append(tuple(e.id for e in elements if isinstance(e, ast.Name)))
    return listed_names


def _define(
    name: str,
    statement: ast.Assign,
    lines: Sequence[str],
    aliases: dict[str, str],
    kernels: dict[str, tuple[str, ...]],
) -> None:
    value = statement.value
    if isinstance(value, ast.Call) and _dotted(value.func).startswith("async_compile."):
        comments = _comments_above(lines, statement.lineno)
        kernels[name] = _kernel_operations(name, value, comments, kernels)
    elif isinstance(value, (ast.Name, ast.Attribute)) and _dotted(value):
        aliases[name] = _dotted(value)


def _comments_above(lines: Sequence[str], line_number: int) -> list[str]:
    """The comment lines directly above a 1-based line."""
    start = line_number - 1
    while start > 0 and lines[start - 1].startswith("#"):
        start -= 1
    return list(lines[start : line_number - 1])


def _kernel_operations(
    name: str,
    definition: ast.Call,
    comments: Sequence[str],
    kernels: Mapping[str, tuple[str, ...]],
) -> tuple[str, ...]:
    described = _described_operations(comments)
    if described:
        template = name.startswith("triton_tem_")
        return tuple(o if template or o not in _LIBRARY_ORIGINS else "copy" for o in described)
    for argument in definition.args:
        if isinstance(argument, ast.List):
            variants = [kernels.get(e.id, ()) for e in argument.elts if isinstance(e, ast.Name)]
            if variants:
                return variants[0]
    source = definition.args[-1] if definition.args else None
    if isinstance(source, ast.Constant) and isinstance(source.value, str):
        return cpp_operations(source.value)
    return ()


def _described_operations(comments: Sequence[str]) -> tuple[str, ...]:
    """Operations that Inductor itself lists above a kernel, the most exact form first."""
    targets = [name for line in comments for name in _GRAPH_TARGET.findall(line)]
    mapped = [
        re.sub(r"_\d+$", "", node.strip())
        for line in comments
        if (match := _MAPPED.match(line))
        for node in match.group("nodes").split(",")
    ]
    original = [
        name.strip().rpartition(".")[2]
        for line in comments
        if (match := _ORIGINAL.search(line))
        for name in match.group("names").split(",")
    ]
    for names in (targets, mapped, original):
        kept = tuple(name for name in names if name and name not in _NO_COMPUTE)
        if kept:
            return kept
    return ("copy",) if targets else ()


def _units(wrapper: _Wrapper) -> tuple[Unit, ...]:
    tally = Tally()
    for path in _executed(wrapper, wrapper.entry, ()):
        kind = _kind(wrapper, path)
        if kind is None:
            continue
        if kind == "internal":
            name = path.removesuffix(".run")
            tally.add(name, name, kind, wrapper.kernels.get(name, ()))
        elif kind == "builtin":
            service = _service(path)
            tally.add(service, service, kind)
        else:
            tally.add(path, path, kind, (_library_operation(path),))
    return tally.units()


def _executed(wrapper: _Wrapper, function: _Function, above: tuple[str, ...]) -> Iterator[str]:
    """Dotted callees of a function in program order, local functions opened up."""
    if function.name in above:
        raise ValueError(f"wrapper {wrapper.name!r}: function {function.name!r} calls itself")
    for call in _calls(function.body):
        for name in _local(wrapper, call.func):
            yield from _executed(wrapper, wrapper.functions[name], (*above, function.name))
        path = _resolved(wrapper, call.func)
        if path:
            yield path


def _calls(nodes: Sequence[ast.AST]) -> Iterator[ast.Call]:
    """Calls in evaluation order (arguments before the call); inner definitions are not entered."""
    for node in nodes:
        if isinstance(node, (*_Function.__args__, ast.ClassDef, ast.Lambda)):
            continue
        yield from _calls(list(ast.iter_child_nodes(node)))
        if isinstance(node, ast.Call):
            yield node


def _local(wrapper: _Wrapper, callee: ast.expr) -> list[str]:
    """Module functions a call enters: `subgraph_0(...)`, or `self.partitions[0](...)`."""
    if isinstance(callee, ast.Name) and callee.id in wrapper.functions:
        return [callee.id]
    if isinstance(callee, ast.Subscript) and _dotted(callee.value) == "self.partitions":
        index = callee.slice
        if isinstance(index, ast.Constant) and isinstance(index.value, int):
            if index.value >= len(wrapper.partitions):
                raise ValueError(
                    f"wrapper {wrapper.name!r}: partition {index.value} is not defined"
                )
            return [wrapper.partitions[index.value]]
    return []


def _resolved(wrapper: _Wrapper, callee: ast.expr) -> str:
    """Dotted path of a callee with module aliases (`aten = torch.ops.aten`) written out."""
    path = _dotted(callee)
    head, dot, rest = path.partition(".")
    seen: set[str] = set()
    while head in wrapper.aliases and head not in seen:
        seen.add(head)
        head = wrapper.aliases[head]
    return head + dot + rest


def _dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        owner = _dotted(node.value)
        return f"{owner}.{node.attr}" if owner else ""
    return ""


def _kind(wrapper: _Wrapper, path: str) -> Kind | None:
    head = path.partition(".")[0]
    bare = path.removesuffix(".run")
    if bare in wrapper.kernels or (_KERNEL_NAME.match(bare) and "." not in bare):
        return "internal"
    if head == "extern_kernels":
        return "external"
    if path.startswith("torch.ops."):
        return _operator_kind(path)
    last = path.rpartition(".")[2]
    return "builtin" if _RUNTIME.match(last) or (last == "copy_" and "." in path) else None


def _operator_kind(path: str) -> Kind:
    namespace, _, operator = path.removeprefix("torch.ops.").partition(".")
    name = operator.partition(".")[0]
    if name in _VIEWS or _RUNTIME.match(name):
        return "builtin"
    return "external" if namespace in _LIBRARY_NAMESPACES else "fallback"


def _service(path: str) -> str:
    """`torch._C._dynamo.guards._empty_strided_cpu` -> `empty_strided_cpu`."""
    name = _operator(path) if path.startswith("torch.ops.") else path.rpartition(".")[2]
    return name.lstrip("_")


def _operator(path: str) -> str:
    return path.removeprefix("torch.ops.").split(".")[1] if "." in path else path


def _library_operation(path: str) -> str:
    """`torch.ops.mkldnn._convolution_pointwise.default` -> `convolution`."""
    name = _operator(path)
    if "convolution" in name:
        return "convolution"
    return "linear" if "linear" in name else name
