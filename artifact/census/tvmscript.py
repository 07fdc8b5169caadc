"""TVM: units of a Relax module printed as TVMScript, after FuseTIR or lowered for the Relax VM.

TVMScript is Python source and is parsed as such. The entry is the Relax function `main`; a module
without one has a graph per public Relax function. Relax functions that the entry calls are opened
up, once per call site; both branches of a conditional count.

| call | kind |
|---|---|
| `R.call_tir(cls.f, ...)` and its variants, `cls.f(...)` of a TIR function | internal |
| `R.call_dps_packed("name", ...)` and its like, a function offloaded to a library | external |
| a Relax operator nobody lowered, such as `R.add(...)` | fallback |
| `vm.builtin.*`, `R.vm.*`, `R.memory.*`, `R.builtin.*`, `R.reshape` | builtin |
| types, shapes, constants, `R.output` | not a unit |

A packed call is internal when the module itself defines a TIR function of that name. The two forms
differ by design: lowering turns a `reshape` into a builtin, so count one form only (the trial
stores the text after FuseTIR). The executable's own listing (`VMExecutable.as_text()`) is read
too; it does not tell a library's function from a generated one, so there a name with a dot is
taken for a library's.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from artifact.census.unit import Census, Graph, Kind, Tally, Unit, census, listed, words

_TIR_CALLS = frozenset({"call_tir", "call_tir_inplace", "call_tir_with_grad"})
_PACKED_CALLS = frozenset(
    {"call_dps_packed", "call_pure_packed", "call_packed", "call_inplace_packed", "call_tir_dyn"}
)
_BUILTIN_GROUPS = frozenset({"vm", "memory", "builtin"})
_BUILTIN_OPERATORS = words(
    "call_builtin_with_ctx reshape shape_of assert_op print to_vdevice hint_on_device"
)
_NOT_CALLS = words(
    "Tensor Tuple Shape Object Any Callable Prim ExternFunc shape dtype str prim_value const "
    "null_value tuple dataflow output func_attr func_ret_ty func_ret_struct_info func_ret_value "
    "match_cast function vdevice arg emit TupleGetItem"
)
# Operator names with an underscore, so that `fused_max_pool2d_add1` is two operations, not three.
_LONG_OPERATORS = words(
    "adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d avg_pool1d avg_pool2d avg_pool3d "
    "max_pool1d max_pool2d max_pool3d batch_norm layer_norm group_norm instance_norm rms_norm "
    "broadcast_to expand_dims conv2d_transpose conv1d_transpose log_softmax ewise_fma floor_divide "
    "floor_mod logical_not logical_and logical_or logical_xor bitwise_not bitwise_and bitwise_or "
    "bitwise_xor greater_equal less_equal not_equal gather_elements gather_nd index_put "
    "index_tensor strided_slice dynamic_strided_slice scatter_elements scatter_nd slice_scatter "
    "masked_fill full_like ones_like zeros_like leaky_relu gelu_tanh image_resize2d one_hot "
    "layout_transform te_layout_transform pixel_shuffle collapse_sum tir_logical_not tir_negative "
    "tir_exp tir_rsqrt tir_sqrt tir_tanh tir_erf tir_sigmoid tir_power"
)
_VM_FUNCTION = re.compile(r"^@(?P<name>[\w.]+):\s*$")
_VM_CALL = re.compile(r"^\s+call\s+(?P<name>[\w.$]+)\s+in:")

_Function = ast.FunctionDef


@dataclass(frozen=True)
class _Module:
    relax: Mapping[str, _Function]
    tir: Mapping[str, _Function]
    symbols: frozenset[str]
    """Names under which TIR functions can be called as packed functions."""


def count(text: str) -> Census:
    """Counts of a Relax text (claim C8). ValueError when it holds no Relax function."""
    return census(graphs(text), text)


def units(text: str) -> list[Unit]:
    """Units of the text in order of first call, graph after graph."""
    return listed(graphs(text))


def single_op_units(text: str) -> list[Unit]:
    """Internal units that hold exactly one operation (claim X3).

    Operations are read from the name FuseOps gives (`fused_conv2d_add1_relu` holds three), since
    one operation may need several blocks (padding, a softmax's passes). A function without the
    prefix `fused_` is one operation.
    """
    return [unit for unit in units(text) if unit.kind == "internal" and len(unit.operations) == 1]


def blocks(text: str) -> dict[str, tuple[str, ...]]:
    """For each TIR function, the names of its blocks in order, "root" left out."""
    return {
        name: tuple(_blocks(function))
        for module in _modules(text)
        for name, function in module.tir.items()
    }


def graphs(text: str) -> list[Graph]:
    """One graph for `main`, else one per public Relax function; module after module of the text."""
    if _is_vm_listing(text):
        return _vm_graphs(text)
    return [
        Graph(name, _units(module, name)) for module in _modules(text) for name in _entries(module)
    ]


def _modules(text: str) -> list[_Module]:
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise ValueError(f"not TVMScript: line {error.lineno} is not Python") from error
    bodies = [tree.body, *(s.body for s in tree.body if isinstance(s, ast.ClassDef))]
    modules = [module for body in bodies if (module := _module(body)).relax]
    if not modules:
        raise ValueError("the text holds no Relax function (@R.function)")
    return modules


def _module(body: Sequence[ast.stmt]) -> _Module:
    functions = [node for node in body if isinstance(node, _Function)]
    relax = {f.name: f for f in functions if _decorated(f, "R.function")}
    tir = {f.name: f for f in functions if _decorated(f, "T.prim_func")}
    symbols = frozenset(tir) | frozenset(_attributes(list(tir.values()), "global_symbol"))
    return _Module(relax, tir, symbols)


def _decorated(function: _Function, name: str) -> bool:
    return any(_dotted(_called(d)) == name for d in function.decorator_list)


def _called(node: ast.expr) -> ast.expr:
    return node.func if isinstance(node, ast.Call) else node


def _entries(module: _Module) -> list[str]:
    if "main" in module.relax:
        return ["main"]
    public = [name for name, function in module.relax.items() if not _is_private(function)]
    if not public:
        raise ValueError("the text holds no public Relax function to start from")
    return public


def _is_private(function: _Function) -> bool:
    return any(
        keyword.arg == "private" and isinstance(keyword.value, ast.Constant) and keyword.value.value
        for decorator in function.decorator_list
        if isinstance(decorator, ast.Call)
        for keyword in decorator.keywords
    )


def _attributes(functions: Sequence[_Function], key: str) -> list[str]:
    """Values of a string attribute in the functions' own `func_attr({...})`."""
    found: list[str] = []
    for function in functions:
        for statement in function.body:
            call = statement.value if isinstance(statement, ast.Expr) else None
            if not isinstance(call, ast.Call) or not _dotted(call.func).endswith(".func_attr"):
                continue
            table = call.args[0] if call.args else None
            if not isinstance(table, ast.Dict):
                continue
            for name, value in zip(table.keys, table.values, strict=True):
                if _text(name) == key and _text(value) is not None:
                    found.append(str(_text(value)))
    return found


def _units(module: _Module, entry: str) -> tuple[Unit, ...]:
    tally = Tally()
    for name, kind in _executed(module, module.relax[entry], ()):
        tally.add(name, name, kind, _held(name, kind))
    return tally.units()


def _executed(
    module: _Module, function: _Function, above: tuple[str, ...]
) -> Iterator[tuple[str, Kind]]:
    """Names and kinds of the calls of a Relax function in program order."""
    if function.name in above:
        raise ValueError(f"Relax function {function.name!r} calls itself")
    local = {
        n.name: n for n in ast.walk(function) if isinstance(n, _Function) and n is not function
    }
    for call in _calls(function.body):
        name = _global(call.func)
        inner = module.relax.get(name) or (local.get(name) if name else None)
        if inner is None:
            yield from _site(module, call)
        elif _attributes([inner], "Codegen"):
            yield name, "external"
        else:
            yield from _executed(module, inner, (*above, function.name))


def _calls(nodes: Sequence[ast.AST]) -> Iterator[ast.Call]:
    for node in nodes:
        if isinstance(node, _Function):
            continue
        if isinstance(node, ast.AnnAssign):
            yield from _calls([node.value] if node.value is not None else [])
            continue
        if isinstance(node, ast.Call):
            yield node
        yield from _calls(list(ast.iter_child_nodes(node)))


def _site(module: _Module, call: ast.Call) -> Iterator[tuple[str, Kind]]:
    """The unit of one call, if it is one."""
    name = _global(call.func)
    if name in module.symbols or (name and _dotted(call.func).startswith("cls.")):
        yield name, "internal"
        return
    group, _, operator = _dotted(call.func).partition(".")
    if group != "R" or operator in _NOT_CALLS:
        return
    if operator in _TIR_CALLS:
        yield (_global(call.args[0]) if call.args else "") or "?", "internal"
    elif operator in _PACKED_CALLS:
        yield from _packed(module, call)
    elif operator in _BUILTIN_OPERATORS or operator.partition(".")[0] in _BUILTIN_GROUPS:
        yield f"R.{operator}", "builtin"
    else:
        yield f"R.{operator}", "fallback"


def _packed(module: _Module, call: ast.Call) -> Iterator[tuple[str, Kind]]:
    callee = call.args[0] if call.args else None
    if isinstance(callee, ast.Call) and callee.args:  # R.ExternFunc("name")
        callee = callee.args[0]
    name = _text(callee) or (_global(callee) if callee is not None else "") or "?"
    yield name, _packed_kind(name, module.symbols)


def _packed_kind(name: str, symbols: frozenset[str]) -> Kind:
    if name.startswith("vm.builtin."):
        return "builtin"
    generated = name in symbols or (
        name.startswith("fused_") and not name.startswith("fused_relax_")
    )
    return "internal" if generated else "external"


def _global(node: ast.expr) -> str:
    """`cls.f`, `Module.f` or a bare `f` -> "f"; "" for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return node.attr if node.value.id not in ("R", "T", "I") else ""
    return ""


def _dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        owner = _dotted(node.value)
        return f"{owner}.{node.attr}" if owner else ""
    return ""


def _text(node: ast.AST | None) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _held(name: str, kind: Kind) -> tuple[str, ...]:
    if kind == "internal":
        return _operations(name)
    if kind == "external":
        return ("convolution" if "conv" in name else name,)
    return ()


def _operations(name: str) -> tuple[str, ...]:
    """`fused_conv2d1_add2_relu` -> conv2d, add, relu; the numbers only tell instances apart."""
    if not name.startswith("fused_"):
        return (_base(name),)
    words, operations = name.removeprefix("fused_").split("_"), []
    while words:
        size = next(
            (n for n in range(4, 1, -1) if _is_long("_".join(words[:n]), len(words) >= n)), 1
        )
        operations.append(_base("_".join(words[:size])))
        words = words[size:]
    return tuple(operation for operation in operations if operation)


def _is_long(candidate: str, complete: bool) -> bool:
    return complete and (candidate in _LONG_OPERATORS or _base(candidate) in _LONG_OPERATORS)


def _base(name: str) -> str:
    """Drop the instance number, but not the 2d of `conv2d`, where a letter ends the name."""
    return re.sub(r"\d+$", "", name) or name


def _blocks(function: _Function) -> Iterator[str]:
    for node in ast.walk(function):
        if isinstance(node, ast.With):
            for item in node.items:
                call = item.context_expr
                if isinstance(call, ast.Call) and _dotted(call.func) in ("T.sblock", "T.block"):
                    name = _text(call.args[0]) if call.args else None
                    if name and name != "root":
                        yield name


def _is_vm_listing(text: str) -> bool:
    return any(_VM_FUNCTION.match(line) for line in text.splitlines())


def _vm_graphs(text: str) -> list[Graph]:
    tallies: dict[str, Tally] = {}
    current = ""
    for line in text.splitlines():
        opening = _VM_FUNCTION.match(line)
        if opening:
            current = opening.group("name")
            tallies[current] = Tally()
        call = _VM_CALL.match(line)
        if call and current:
            name = call.group("name")
            kind = _vm_kind(name)
            tallies[current].add(name, name, kind, _held(name, kind))
    names = ["main"] if "main" in tallies else list(tallies)
    return [Graph(name, tallies[name].units()) for name in names]


def _vm_kind(name: str) -> Kind:
    if name.startswith("vm.builtin."):
        return "builtin"
    return "external" if "." in name or name.startswith("fused_relax_") else "internal"
