"""Reads an exported graph: what a value flows into, and which of that is a linear layer.

A LayerNorm's affine part acts on the last axis. A use is looked through when it keeps that axis in
place (views, reshapes, contiguous, dropout in eval mode, identity); it is a linear layer when it
multiplies the last axis by a parameter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram

_SAME_VALUE = {"contiguous", "clone", "alias", "detach", "view_as", "_to_copy", "to"}
_RESHAPES = {"view", "reshape", "_unsafe_view", "flatten", "unflatten", "expand"}
_TAKES_ROWS = {"slice", "select"}
_MOVES = {
    *_RESHAPES, *_TAKES_ROWS, *_SAME_VALUE, "transpose", "permute", "t", "squeeze", "unsqueeze",
    "split", "split_with_sizes", "chunk", "cat", "stack", "index", "index_select", "gather",
    "unbind", "roll", "movedim", "getitem",
}  # fmt: skip
# Checks that the export writes into the graph: they read no element of the value.
_CHECKS = {"_assert_tensor_metadata"}
_PRODUCTS = {
    "linear", "addmm", "mm", "matmul", "bmm", "baddbmm", "einsum", "tensordot", "bilinear",
    "conv1d", "conv2d", "convolution",
}  # fmt: skip


@dataclass(frozen=True)
class LinearUse:
    """A multiplication of the value's last axis by a parameter.

    Attributes:
        label: qualified name of the module, or of the graph node where it is a function call.
        weight: qualified name of the weight.
        weight_is_transposed: True for a weight stored as (in, out), False for (out, in).
        bias: qualified name of the bias, or None.
        can_grow_bias: whether the use is an `nn.Linear` module, which can be given a bias.
    """

    label: str
    weight: str
    weight_is_transposed: bool
    bias: str | None
    can_grow_bias: bool


@dataclass(frozen=True)
class Use:
    """One consumer of a value: a linear layer, or a reason why it is none.

    `verdict` is "legal" (then `linear` is set), "illegal" or "unmatched".
    """

    label: str
    verdict: str
    reason: str = ""
    linear: LinearUse | None = None


class ExportedFlow:
    """Data flow of one exported program."""

    def __init__(self, program: ExportedProgram, aliases: dict[str, list[str]]) -> None:
        """`aliases`: for a parameter's name, the other names of the same tensor."""
        self.graph: fx.Graph = program.graph
        self._parameters: dict[str, str] = dict(program.graph_signature.inputs_to_parameters)
        self._aliases = aliases

    def uses(self, value: fx.Node) -> list[Use]:
        """Every consumer of `value`, those behind looked-through operations included."""
        found: list[Use] = []
        for user in value.users:
            if operation_name(user) in _CHECKS:
                continue
            if keeps_last_axis(user, value):
                found.extend(self.uses(user))
            else:
                found.append(self._use(user, value))
        return found

    def sharing_reason(self, node: Any, label: str) -> str | None:
        """Why the parameter behind `node` belongs to more than this one use, or None."""
        placeholder = node if node.op == "placeholder" else node.args[0]
        name = self._parameters[placeholder.name]
        if others := self._aliases.get(name):
            return f"{label} is tied: {name} is also {', '.join(others)}"
        users = list(placeholder.users)
        if node is not placeholder:
            users.extend(node.users)
            users.remove(node)
        if len(users) > 1:
            if len({module_path(user) for user in users}) == 1 and module_path(users[0]):
                return f"{label} is shared: called {len(users)} times"
            return f"{label} is shared: {name} is used by {', '.join(map(str, users))}"
        return None

    def parameter(self, node: Any) -> str | None:
        """The parameter's name where `node` is one."""
        return self._parameters.get(node.name) if isinstance(node, fx.Node) else None

    def _use(self, user: fx.Node, value: fx.Node) -> Use:
        label, operation = _label(user), operation_name(user)
        if user.op == "output":
            return Use("output", "illegal", "its value is an output of the model")
        if operation == "dropout":
            return Use(label, "illegal", f"{label} drops values: training mode")
        if operation in _PRODUCTS:
            return self._product(user, value, label, operation)
        if operation in _MOVES:
            return Use(label, "unmatched", f"{label} moves the normalised axis ({operation})")
        if operation in {"add", "add_", "sub", "sub_"}:
            return Use(label, "illegal", f"also used by a residual {operation} ({user.name})")
        return Use(label, "illegal", f"also used by {operation} ({user.name}), no linear layer")

    def _product(self, user: fx.Node, value: fx.Node, label: str, operation: str) -> Use:
        operands = _linear_operands(user, operation)
        if operands is None:
            return Use(label, "unmatched", f"{label} is a product that is not matched: {operation}")
        factor, weight, bias, stored_transposed = operands
        weight_name, flipped = self._weight(weight)
        if factor is not value or weight_name is None:
            return Use(label, "illegal", f"{label} multiplies by a computed value, not a weight")
        bias_name = self.parameter(bias)
        if bias is not None and bias_name is None:
            return Use(label, "unmatched", f"{label} has a computed bias")
        for node in (weight, bias):
            if node is not None and (reason := self.sharing_reason(node, label)):
                return Use(label, "illegal", f"consumer {reason}")
        linear = LinearUse(
            label=label,
            weight=weight_name,
            weight_is_transposed=stored_transposed != flipped,
            bias=bias_name,
            can_grow_bias=module_type(user) == "torch.nn.modules.linear.Linear",
        )
        return Use(label, "legal", linear=linear)

    def _weight(self, node: Any) -> tuple[str | None, bool]:
        """The matrix parameter behind `node`, and whether `node` is its transpose."""
        if name := self.parameter(node):
            return (name, False) if node.meta["val"].dim() == 2 else (None, False)
        flips = isinstance(node, fx.Node) and operation_name(node) in {"t", "transpose", "permute"}
        if flips and (name := self.parameter(node.args[0])) and node.meta["val"].dim() == 2:
            source, result = node.args[0].meta["val"], node.meta["val"]
            return name, source.stride() != result.stride()
        return None, False


def keeps_last_axis(user: fx.Node, value: fx.Node) -> bool:
    """Whether `user` is `value` with the same last axis: what a fold may look through."""
    operation = operation_name(user)
    if not user.args or user.args[0] is not value or user.op == "output":
        return False
    if operation == "getitem":
        return operation_name(value) == "native_layer_norm" and user.args[1] == 0
    if operation == "dropout":
        return user.args[2] is False
    before, after = value.meta.get("val"), user.meta.get("val")
    if not isinstance(before, torch.Tensor) or not isinstance(after, torch.Tensor):
        return False
    if operation in _SAME_VALUE:
        return before.dtype == after.dtype and before.device == after.device
    if operation in _RESHAPES:
        return before.shape[-1] == after.shape[-1]
    last = before.dim() - 1
    if operation in _TAKES_ROWS:
        axis = user.args[1] if len(user.args) > 1 else 0
        return bool(axis % before.dim() != last)
    if operation == "transpose":
        return last not in {axis % before.dim() for axis in user.args[1:3]}
    if operation == "permute":
        return bool(user.args[1][-1] % before.dim() == last)
    if operation == "unsqueeze":
        return bool(user.args[1] % after.dim() != after.dim() - 1)
    return False


def operation_name(node: fx.Node) -> str:
    """The ATen name of a call (`layer_norm`, `addmm`), or a Python function's name."""
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        return target._schema.name.partition("::")[2]
    return str(getattr(target, "__name__", target))


def module_path(node: fx.Node) -> str:
    """Qualified name of the innermost module that made this call; "" for the model itself."""
    stack = node.meta.get("nn_module_stack") or {}
    path = next(reversed(stack.values()))[0] if stack else ""
    return str(path).partition("@")[0]


def module_type(node: fx.Node) -> str:
    """Qualified type name of the innermost module that made this call, or ""."""
    stack = node.meta.get("nn_module_stack") or {}
    kind = next(reversed(stack.values()))[1] if stack else ""
    return kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}"


def _label(node: fx.Node) -> str:
    is_layer = operation_name(node) in _PRODUCTS and module_type(node).endswith(
        (".Linear", ".Conv1D")
    )
    return module_path(node) if is_layer else node.name


def _linear_operands(user: fx.Node, operation: str) -> tuple[Any, Any, Any, bool] | None:
    """(factor, weight, bias, weight is stored as (in, out)) of a linear-like call."""
    if user.kwargs:
        return None
    if operation == "linear":
        factor, weight, bias = (*user.args, None)[:3]
        return factor, weight, bias, False
    if operation == "addmm":
        bias, factor, weight = user.args[:3]
        return factor, weight, bias, True
    if operation in {"mm", "matmul"}:
        factor, weight = user.args[:2]
        return factor, weight, None, True
    return None
