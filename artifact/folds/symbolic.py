"""Symbolic traces of a module that keep convolutions and norms whole, quick on their first call.

`torch.fx` builds a table of every Tensor method the first time a function meets a traced value
(9 ms of a 14 ms trace of ResNet-18); `_Value` decides the same question without the table.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch
from torch import fx, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd
from torch.utils._pytree import tree_leaves

MAX_VARIANTS = 8


class UntraceableError(Exception):
    """The data flow of the module cannot be written down as one graph per set of arguments."""


class _Value(fx.Proxy):
    """A traced value."""

    @classmethod
    def __torch_function__(
        cls,
        orig_method: Callable[..., Any],
        types: tuple[type, ...],
        args: tuple[Any, ...] | None = None,
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if isinstance(orig_method, (BuiltinFunctionType, FunctionType)):
            name = orig_method.__name__
            if getattr(torch.Tensor, name, None) is not orig_method and name != "__get__":
                args, kwargs = args or (), kwargs or {}
                leaves = tree_leaves((args, kwargs))
                tracer = next(leaf.tracer for leaf in leaves if isinstance(leaf, fx.Proxy))
                return tracer.create_proxy("call_function", orig_method, args, kwargs)
        return super().__torch_function__(orig_method, types, args, kwargs)


class _WholeNormTracer(fx.Tracer):
    """Records every convolution and BatchNorm as one call, subclasses of them included.

    Buffers become values too, so that a forward which writes to one is recorded, not carried out.
    """

    proxy_buffer_attributes = True

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Whether `m` is recorded as one call instead of being traced into."""
        if isinstance(m, (_ConvNd, _BatchNorm)):
            return True
        return bool(super().is_leaf_module(m, module_qualified_name))

    def proxy(self, node: fx.Node) -> fx.Proxy:
        """Wrap `node` as the value that flows through the forward."""
        return _Value(node, self)


def trace_variants(model: nn.Module) -> list[fx.Graph]:
    """Trace `model` once for every way in which its optional arguments can steer the forward.

    An argument with default None is traced as absent and as given, a boolean one as False and as
    True: a forward may test those without the trace noticing. Every other argument is a value.

    Raises:
        UntraceableError: more than `MAX_VARIANTS` such combinations.
        Whatever the forward or `torch.fx` raises on a traced value.
    """
    if isinstance(model, fx.GraphModule) and _calls_only_leaves(model):
        return [model.graph]
    return [_WholeNormTracer().trace(model, concrete) for concrete in _variants(model)]


def _variants(model: nn.Module) -> Iterator[dict[str, Any] | None]:
    choices: list[list[tuple[str, Any]]] = []
    for name, parameter in inspect.signature(type(model).forward).parameters.items():
        if isinstance(parameter.default, bool):
            choices.append([(name, False), (name, True)])
        elif parameter.default is None:
            choices.append([(name, None), ("", None)])
    if 2 ** len(choices) > MAX_VARIANTS:
        raise UntraceableError(
            f"forward has {len(choices)} optional arguments that may steer it; "
            f"at most {MAX_VARIANTS} combinations are proven"
        )
    for combination in itertools.product(*choices):
        yield {name: value for name, value in combination if name} or None


def _calls_only_leaves(model: fx.GraphModule) -> bool:
    is_leaf = _WholeNormTracer().is_leaf_module
    return all(
        is_leaf(model.get_submodule(node.target), node.target)
        for node in model.graph.nodes
        if node.op == "call_module"
    )
