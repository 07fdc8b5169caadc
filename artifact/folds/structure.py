"""A copy of a module tree that shares every tensor with the original and nothing else.

A fold rewrites such a copy. The copy is also what the fold traces: a forward that reached around
the module tree to the original's modules (a closure, a global) fails to trace on the copy, so that
a successful trace proves that the data flow seen is the data flow of the module handed back.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from torch import fx, nn

_STANDARD_ATTRIBUTES = frozenset(nn.Module().__dict__) - {"training", "_modules"}
_IMMUTABLE = (int, float, bool, str, bytes, type, type(None))


def structural_copy(model: nn.Module) -> nn.Module:
    """Copy the modules of `model`; parameters and buffers are shared, to be read only.

    Attributes that hold modules (lists, bound methods) point into the copy. Hooks are kept. Other
    attributes are deep-copied.

    Raises:
        Whatever `copy.deepcopy` raises for an attribute that cannot be copied.
    """
    modules = list(model.modules())
    memo: dict[int, Any] = {id(tensor): tensor for tensor in _tensors(modules)}
    for module in modules:
        if not hasattr(module, "__deepcopy__"):
            memo[id(module)] = object.__new__(type(module))
    for module in modules:
        if not hasattr(module, "__deepcopy__"):
            _fill(memo[id(module)], module, memo)
    return copy.deepcopy(model, memo)


def changed_attributes(model: nn.Module, before: dict[str, dict[str, Any]]) -> list[str]:
    """Qualified names of plain attributes that differ from `plain_attributes` taken before.

    A traced value left in an attribute or appended to a list on the module counts as a change, and
    so does a module that came or went.
    """
    after = plain_attributes(model)
    changed = list(after.keys() ^ before.keys())
    for module_name in after.keys() & before.keys():
        now, earlier = after[module_name], before[module_name]
        changed += [
            f"{module_name}.{name}" if module_name else name
            for name in now.keys() | earlier.keys()
            if now.get(name) is not earlier.get(name) or _holds_proxy(now.get(name))
        ]
    return sorted(changed)


def plain_attributes(model: nn.Module) -> dict[str, dict[str, Any]]:
    """The attributes of every module that `nn.Module` does not manage, by module name."""
    return {
        module_name: {
            name: value
            for name, value in module.__dict__.items()
            if name not in _STANDARD_ATTRIBUTES and name != "_modules"
        }
        for module_name, module in model.named_modules()
        if not isinstance(module, fx.GraphModule)
    }


def _tensors(modules: list[nn.Module]) -> Iterator[Any]:
    for module in modules:
        yield from module._parameters.values()
        yield from module._buffers.values()


def _fill(shell: nn.Module, module: nn.Module, memo: dict[int, Any]) -> None:
    attributes = shell.__dict__
    for name, value in module.__dict__.items():
        if isinstance(value, _IMMUTABLE):
            attributes[name] = value
        elif name in _STANDARD_ATTRIBUTES:
            attributes[name] = value.copy()
        elif name == "_modules":
            attributes[name] = {key: copy.deepcopy(child, memo) for key, child in value.items()}
        else:
            attributes[name] = copy.deepcopy(value, memo)


def _holds_proxy(value: Any) -> bool:
    if isinstance(value, (list, tuple, set)):
        return any(_holds_proxy(item) for item in value)
    if isinstance(value, dict):
        return any(_holds_proxy(item) for item in value.values())
    return isinstance(value, fx.Proxy)
