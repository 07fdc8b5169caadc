"""LayerNorm-Linear: which LayerNorms may hand their affine part to the layers behind, and the fold.

    W' = W diag(gamma),   b' = W beta + b     (PAPER.md, LayerNorm-Linear fold; claims C6, X1)

A site is legal only when every consumer of the LayerNorm's value is a linear layer that belongs to
nothing else. The data flow is that of `torch.export` for the given inputs: a forward that takes
another path for other arguments is not covered.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import Any

import torch
from torch import fx, nn
from torch.export import ExportedProgram

from artifact.folds.exported_flow import (
    ExportedFlow,
    LinearUse,
    Use,
    module_path,
    module_type,
    operation_name,
)
from artifact.folds.finite import all_finite
from artifact.folds.result import Fold, Refusal, one_line
from artifact.folds.structure import structural_copy

VERDICTS = ("legal", "illegal", "unmatched")
_LAYER_NORM_TYPE = "torch.nn.modules.normalization.LayerNorm"
_NORM_OPERATIONS = {"layer_norm", "native_layer_norm"}
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_NS_PER_MS = 1e6


@dataclass(frozen=True)
class Site:
    """One LayerNorm.

    Attributes:
        name: qualified module name; the graph node's name for a functional layer_norm.
        verdict: "legal", "illegal", or "unmatched" (the audit could not tell).
        reason: why it is not legal; "" for a legal site.
        consumers: every use of its value: module names, graph node names, or "output".
        linears: the linear layers among them, with their parameters.
    """

    name: str
    verdict: str
    reason: str
    consumers: list[str]
    linears: tuple[LinearUse, ...] = field(default=(), repr=False)


@dataclass(frozen=True)
class Audit:
    """One site per LayerNorm, in module order."""

    sites: list[Site]

    def count(self, verdict: str) -> int:
        """Number of sites with this verdict; the counts of `VERDICTS` add up to all sites."""
        if verdict not in VERDICTS:
            raise ValueError(f"unknown verdict {verdict!r}, known: {', '.join(VERDICTS)}")
        return sum(site.verdict == verdict for site in self.sites)


def audit(model: nn.Module | ExportedProgram, *example_inputs: Any) -> Audit:
    """Say for every LayerNorm of `model` whether its affine part can be folded, and why not.

    Read-only. `example_inputs` are the positional inputs of the forward (not needed for an
    exported program). A model that cannot be exported with them gives "unmatched" sites.

    Raises:
        TypeError: `model` is neither an `nn.Module` nor an exported program.
    """
    if isinstance(model, ExportedProgram):
        return _audit_program(model, {}, {})
    _require_module(model)
    return _export_and_audit(model, example_inputs)[1]


def table(audited: Audit) -> list[tuple[str, str, str, str]]:
    """Rows (site, verdict, reason, consumers) of an audit, for printing."""
    return [
        (site.name, site.verdict, site.reason, ", ".join(site.consumers)) for site in audited.sites
    ]


def fold(model: nn.Module, *example_inputs: Any) -> Fold:
    """Fold the affine part of every legal LayerNorm into the linear layers behind it; inference.

    Works in a copy that shares its unchanged tensors with `model`. A folded LayerNorm keeps its
    eps and has no affine part; a linear layer without bias is given one where beta needs it. New
    values are computed in float64 and rounded once to the weight's dtype.

    Returns:
        A `Fold`; `folded` counts LayerNorms. When nothing is legal, its model is `model` itself.

    Raises:
        TypeError: `model` is not an `nn.Module`.
    """
    _require_module(model)
    started_ns = perf_counter_ns()
    copy, audited = _export_and_audit(model, example_inputs)
    audited_ns = perf_counter_ns()
    refused = {site.name: site.reason for site in audited.sites if site.verdict != "legal"}
    folded: list[str] = []
    with torch.no_grad():
        for site in audited.sites:
            if site.verdict != "legal":
                continue
            if reason := _fold_site(copy, site):
                refused[site.name] = reason
            else:
                folded.append(site.name)
    ended_ns = perf_counter_ns()
    return Fold(
        model=copy if folded else model,
        folded=len(folded),
        refused=[
            Refusal(site.name, refused[site.name]) for site in audited.sites if site.name in refused
        ],
        fold_ms=(ended_ns - started_ns) / _NS_PER_MS,
        folded_names=tuple(folded),
        phases_ms={
            "audit": (audited_ns - started_ns) / _NS_PER_MS,
            "rewrite": (ended_ns - audited_ns) / _NS_PER_MS,
        },
    )


def _require_module(model: Any) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"expected an nn.Module, got {type(model).__name__}")


# Audit


def _export_and_audit(model: nn.Module, inputs: tuple[Any, ...]) -> tuple[nn.Module, Audit]:
    """A copy of `model` and the audit of exactly that copy."""
    try:
        copy = structural_copy(model)
        with torch.no_grad():
            program = torch.export.export(copy, inputs)
    # A forward may raise anything on unfitting inputs or inside the export.
    except Exception as error:  # noqa: BLE001
        return model, _all_unmatched(model, f"cannot be exported: {one_line(error)}")
    return copy, _audit_program(program, dict(copy.named_modules()), _aliases(copy))


def _all_unmatched(model: nn.Module, reason: str) -> Audit:
    names = [name for name, module in model.named_modules() if isinstance(module, nn.LayerNorm)]
    # Without a single LayerNorm module the failure would otherwise leave no trace.
    return Audit([Site(name, "unmatched", reason, []) for name in names or [type(model).__name__]])


def _aliases(model: nn.Module) -> dict[str, list[str]]:
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return {
        name: [other for other in group if other != name]
        for group in names.values()
        for name in group
    }


def _audit_program(
    program: ExportedProgram, modules: dict[str, nn.Module], aliases: dict[str, list[str]]
) -> Audit:
    flow = ExportedFlow(program, aliases)
    calls = [node for node in flow.graph.nodes if operation_name(node) in _NORM_OPERATIONS]
    first_names = {id(module): name for name, module in modules.items()}

    def owner(node: fx.Node) -> str:
        path = module_path(node)
        return first_names.get(id(modules.get(path)), path)

    sites: dict[str, Site] = {}
    for node in calls:
        if module_type(node) == _LAYER_NORM_TYPE:
            name = owner(node)
            sites[name] = _merged(sites.get(name), _site(node, name, flow, modules))
        else:
            sites[node.name] = _foreign_site(node, flow)
    in_order = [_found_or_unmatched(name, module, sites) for name, module in modules.items()]
    ordered = [site for site in in_order if site is not None]
    listed = {site.name for site in ordered}
    return Audit(ordered + [site for name, site in sites.items() if name not in listed])


def _merged(earlier: Site | None, site: Site) -> Site:
    """One site for a LayerNorm that is called several times, with the consumers of all calls."""
    if earlier is None:
        return site
    return Site(site.name, site.verdict, site.reason, earlier.consumers + site.consumers)


def _found_or_unmatched(name: str, module: nn.Module, sites: dict[str, Site]) -> Site | None:
    if not isinstance(module, nn.LayerNorm):
        return None
    if type(module) is not nn.LayerNorm:
        reason = f"{type(module).__name__} is a subclass of LayerNorm"
        return Site(name, "unmatched", reason, [])
    if name not in sites:
        return Site(name, "unmatched", "not called in the exported forward", [])
    return sites[name]


def _foreign_site(node: fx.Node, flow: ExportedFlow) -> Site:
    consumers = [use.label for use in flow.uses(node)]
    return Site(node.name, "unmatched", "functional layer_norm, not an nn.LayerNorm", consumers)


def _site(node: fx.Node, name: str, flow: ExportedFlow, modules: dict[str, nn.Module]) -> Site:
    uses = flow.uses(node)
    consumers = [use.label for use in uses]
    if reason := _norm_reason(node, flow, modules.get(name)):
        return Site(name, "illegal", reason, consumers)
    uses = [_with_bias_rule(use, has_beta=_argument(node, 3) is not None) for use in uses]
    uses = [_with_module_rule(use, modules) for use in uses]
    for verdict in ("illegal", "unmatched"):
        reasons = [use.reason for use in uses if use.verdict == verdict]
        if reasons:
            return Site(name, verdict, "; ".join(dict.fromkeys(reasons)), consumers)
    if not uses:
        return Site(name, "illegal", "its value has no consumer", consumers)
    linears = tuple(use.linear for use in uses if use.linear is not None)
    return Site(name, "legal", "", consumers, linears)


def _norm_reason(node: fx.Node, flow: ExportedFlow, module: nn.Module | None) -> str | None:
    if _argument(node, 2) is None and _argument(node, 3) is None:
        return "no affine, nothing to fold"
    shape = tuple(node.args[1])
    if len(shape) != 1:
        return f"normalized shape {shape} is wider than the last axis: no single W' exists"
    for parameter in (_argument(node, 2), _argument(node, 3)):
        if parameter is not None and (reason := flow.sharing_reason(parameter, "the LayerNorm")):
            return reason
    return _observed_reason(module, "the LayerNorm") if module is not None else None


def _argument(node: fx.Node, index: int) -> Any:
    """layer_norm(input, normalized_shape, weight, bias, eps): one of them, None if left out."""
    return node.args[index] if len(node.args) > index else None


def _with_bias_rule(use: Use, has_beta: bool) -> Use:
    linear = use.linear
    if linear is None or not has_beta or linear.bias is not None or linear.can_grow_bias:
        return use
    return Use(
        use.label, "unmatched", f"{use.label} has no bias and is no nn.Linear to give one to"
    )


def _with_module_rule(use: Use, modules: dict[str, nn.Module]) -> Use:
    module = modules.get(use.linear.weight.rpartition(".")[0]) if use.linear else None
    reason = _observed_reason(module, use.label) if module is not None else None
    return Use(use.label, "illegal", reason) if reason else use


def _observed_reason(module: nn.Module, label: str) -> str | None:
    if module.training:
        return f"{label} is in training mode"
    if any(getattr(module, hooks) for hooks in _HOOKS):
        return f"a hook observes {label}"
    return None


# Rewriting


def _fold_site(copy: nn.Module, site: Site) -> str | None:
    """Fold one legal site in place in the copy; a reason when the values do not allow it."""
    norm = copy.get_submodule(site.name)
    if not isinstance(norm, nn.LayerNorm):
        raise AssertionError(f"{site.name} is not a LayerNorm")
    rewritten = [
        (_folded_weight(copy, linear, norm.weight), _folded_bias(copy, linear, norm.bias))
        for linear in site.linears
    ]
    tensors = [tensor for pair in rewritten for tensor in pair if tensor is not None]
    if not all(all_finite(tensor) for tensor in tensors):
        return "the folded values are not finite"
    for linear, (weight, bias) in zip(site.linears, rewritten, strict=True):
        _install(copy, linear, weight, bias)
    norm.weight = None
    norm.bias = None
    norm.elementwise_affine = False
    return None


def _folded_weight(
    copy: nn.Module, linear: LinearUse, gamma: torch.Tensor | None
) -> torch.Tensor | None:
    """W diag(gamma) in the stored layout and dtype, rounded once; None when nothing changes.

    The float32 product of two float32 (or half) numbers is their exact product rounded once.
    """
    stored = copy.get_parameter(linear.weight)
    if gamma is None:
        return None
    scale = gamma.unsqueeze(1) if linear.weight_is_transposed else gamma
    folded = torch.empty_like(stored)
    if stored.dtype in (torch.float64, torch.float32) and gamma.dtype == stored.dtype:
        return torch.mul(stored, scale, out=folded)
    return folded.copy_(stored.to(torch.float64) * scale.to(torch.float64))


def _folded_bias(
    copy: nn.Module, linear: LinearUse, beta: torch.Tensor | None
) -> torch.Tensor | None:
    """W beta + b, computed in float64 and rounded once; None when nothing changes."""
    if beta is None:
        return None
    stored = copy.get_parameter(linear.weight)
    matrix, shift = stored.to(torch.float64), beta.to(torch.float64)
    shift = shift @ matrix if linear.weight_is_transposed else matrix @ shift
    if linear.bias is not None:
        shift += copy.get_parameter(linear.bias)
    return shift.to(stored.dtype)


def _install(
    copy: nn.Module, linear: LinearUse, weight: torch.Tensor | None, bias: torch.Tensor | None
) -> None:
    owner_name = linear.weight.rpartition(".")[0]
    bias_name = linear.bias or (f"{owner_name}.bias" if owner_name else "bias")
    trainable = copy.get_parameter(linear.weight).requires_grad
    for name, tensor in ((linear.weight, weight), (bias_name, bias)):
        if tensor is not None:
            owner, _, attribute = name.rpartition(".")
            parameter = nn.Parameter(tensor, requires_grad=trainable)
            setattr(copy.get_submodule(owner), attribute, parameter)
