"""The guarded pass: the Conv-BatchNorm fold inside `torch.compile`, never stale.

    scale_c = gamma_c / sqrt(var_c + eps)
    W'_c    = scale_c * W_c
    b'_c    = scale_c * (b_c - mean_c) + beta_c   (PAPER.md, Conv-BatchNorm fold and its next step;
                                                   claim X2)

A backend that wraps Inductor. In the graph that Dynamo captured it proves each fold legal (the
convolution's value has exactly one user, that BatchNorm in eval mode; the tensors are the model's
own, used once, and not seen by autograd), takes the BatchNorms out and hands the rest to Inductor.
W' takes W's place among the graph's inputs, b' that of a bias that is no longer read, so the
compiled code does not hold values and one compilation serves for every later value.

What a call checks before it runs the compiled code, of every tensor that a fold has read:

    all                 identity: another tensor object in its place (a parameter was replaced)
    weights             version counter: a write in place (`load_state_dict`, an optimiser)
                        data pointer: other memory below the same object (`parameter.data = ...`)
    scales, biases and  their values, joined in few vectors (on CUDA this waits for the device).
    statistics          Version counters would not do: a BatchNorm in training mode does not count
                        its own writes to the running statistics

After a change the folded values are computed anew, into the same memory, without compiling. When
that is not possible the captured graph runs unfolded and uncompiled: slow, right, and counted.
`train()`, another eps and other shapes are Dynamo's own guards: it captures and compiles again.

NOT SEEN: a write in place to a convolution's weight through `.data` (`weight.data.add_(1)`) or
through NumPy. PyTorch does not count those; call `GuardedBackend.refold()` after one.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter, is_
from time import perf_counter_ns
from typing import Any

import torch
from torch import fx, nn

from artifact.folds.finite import all_finite
from artifact.folds.result import Refusal

_CONVOLUTION_ARGUMENTS = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
_TRANSPOSED_ARGUMENTS = (
    *("input", "weight", "bias", "stride", "padding", "output_padding", "groups", "dilation"),
)
_NORM_ARGUMENTS = (
    *("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps"),
)
_CONVOLUTIONS: dict[Any, tuple[str, ...]] = {
    torch.conv1d: _CONVOLUTION_ARGUMENTS,
    torch.conv2d: _CONVOLUTION_ARGUMENTS,
    torch.conv3d: _CONVOLUTION_ARGUMENTS,
    torch.conv_transpose1d: _TRANSPOSED_ARGUMENTS,
    torch.conv_transpose2d: _TRANSPOSED_ARGUMENTS,
    torch.conv_transpose3d: _TRANSPOSED_ARGUMENTS,
}
_TRANSPOSED = (torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d)
_DEFAULT_EPS = 1e-5
_HALF_DTYPES = (torch.bfloat16, torch.float16)
_DTYPES = (torch.float64, torch.float32, *_HALF_DTYPES)
_MODULE_KEY = re.compile(r"_modules\['([^']+)'\]")
#: PyTorch spreads larger operations over threads, which costs more than it saves here.
_GROUP_ELEMENTS = 32_000
_NS_PER_MS = 1e6

_version = attrgetter("_version")
_data_ptr = torch.Tensor.data_ptr
Compiled = Callable[..., Any]


@dataclass
class GraphReport:
    """What the pass did to one captured graph.

    Attributes:
        folded_names: qualified names of the folded BatchNorms, in graph order.
        refused: every other BatchNorm of the graph, with its reason.
        guarded_tensors: tensors that every call checks.
        fold_ms: legality, rewriting and folded values, in ms; inside the first call.
        refolds: how often values were folded anew after a change.
        fallbacks: calls that ran the captured graph unfolded.
    """

    folded_names: tuple[str, ...] = ()
    refused: list[Refusal] = field(default_factory=list)
    guarded_tensors: int = 0
    fold_ms: float = 0.0
    refolds: int = 0
    fallbacks: int = 0


class GuardedBackend:
    """A backend for `torch.compile` that folds, guards, and leaves the rest to `compiler`.

    Args:
        compiler: a Dynamo backend, called with (graph module, example inputs); plain Inductor when
            none is given.

    Attributes:
        reports: one `GraphReport` per captured graph, in order of capture.
    """

    def __init__(self, compiler: Compiled | None = None) -> None:
        self._compiler = compiler or inductor_backend()
        self._programs: list[_Program] = []
        self.reports: list[GraphReport] = []

    def __call__(self, captured: fx.GraphModule, example_inputs: Sequence[Any]) -> Compiled:
        """Compile one captured graph; Dynamo calls this, inside the first call of the model."""
        started_ns = perf_counter_ns()
        report = GraphReport()
        self.reports.append(report)
        sites, report.refused = find_sites(captured, example_inputs)
        sites, overflown = _fold_all(sites, example_inputs)
        report.refused += overflown
        report.folded_names = tuple(site.name for site in sites)
        if not sites:
            report.fold_ms = (perf_counter_ns() - started_ns) / _NS_PER_MS
            compiled: Compiled = self._compiler(captured, example_inputs)
            return compiled
        folded, sources = _rewritten(captured, sites)
        report.fold_ms = (perf_counter_ns() - started_ns) / _NS_PER_MS
        inputs = [source if folds else example_inputs[source] for folds, source in sources]
        program = _Program(self._compiler(folded, inputs), captured, sites, sources, report)
        program.watch(example_inputs)
        self._programs.append(program)
        return program.callable()

    def refold(self) -> None:
        """Make every graph fold anew at its next call, after a write that PyTorch cannot count."""
        for program in self._programs:
            program.distrust()


def inductor_backend(
    mode: str | None = None, options: Mapping[str, Any] | None = None, dynamic: bool | None = None
) -> Compiled:
    """Inductor as `torch.compile(mode=..., options=...)` would make it."""
    chosen = None if options is None else dict(options)
    backend: Compiled = torch._TorchCompileInductorWrapper(mode, chosen, dynamic)
    return backend


def compile_guarded(
    model: nn.Module,
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    dynamic: bool | None = None,
    backend: GuardedBackend | None = None,
    **arguments: Any,
) -> Any:
    """`torch.compile(model, ...)` with the guarded pass before Inductor.

    Args:
        model: any module; folds happen where it is in eval mode and autograd does not see it.
        mode, options, dynamic: as for `torch.compile`, for Inductor.
        backend: to read its reports afterwards; made here when none is given.
        arguments: further arguments of `torch.compile` (`fullgraph=True`).

    Raises:
        TypeError: `model` is not an `nn.Module`.
        ValueError: a backend together with mode or options, which belong to the backend.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"compile_guarded takes an nn.Module, got {type(model).__name__}")
    if backend is not None and (mode is not None or options is not None):
        raise ValueError("give mode and options to the backend's own compiler")
    chosen = backend or GuardedBackend(inductor_backend(mode, options, dynamic))
    return torch.compile(model, backend=chosen, dynamic=dynamic, **arguments)


# Legality


@dataclass(frozen=True)
class _Operands:
    """Inputs of one fold: convolution weight, statistics; bias, gamma and beta may be absent.

    Either graph nodes or tensors. Shapes: weight (out, in / groups, kernel...) or, transposed,
    (in, out / groups, kernel...); all others (out,).
    """

    weight: Any
    mean: Any
    variance: Any
    bias: Any = None
    gamma: Any = None
    beta: Any = None

    def present(self) -> list[Any]:
        """The operands that are there, in a fixed order."""
        return [operand for operand in vars(self).values() if operand is not None]

    def map(self, function: Callable[[Any], Any]) -> _Operands:
        """The same operands after `function`; absent ones stay absent."""
        return _Operands(*(None if o is None else function(o) for o in vars(self).values()))


@dataclass
class Site:
    """A convolution and the eval-mode BatchNorm that is the only user of its value.

    `positions` are the operands' places among the graph's inputs. `weight` and `bias` are the
    folded values; their memory stays the same for the life of the program.
    """

    name: str
    convolution: fx.Node
    norm: fx.Node
    nodes: _Operands
    positions: _Operands
    eps: float
    groups: int
    weight: torch.Tensor = field(default_factory=lambda: torch.empty(0))
    bias: torch.Tensor = field(default_factory=lambda: torch.empty(0))

    @property
    def transposed(self) -> bool:
        """Whether output channels are the weight's second dimension."""
        return self.convolution.target in _TRANSPOSED

    def tensors(self, inputs: Sequence[Any]) -> _Operands:
        """The operands among the inputs of one call."""
        return self.positions.map(inputs.__getitem__)


class _Refused(Exception):
    """A reason against a fold."""


def find_sites(
    captured: fx.GraphModule, example_inputs: Sequence[Any]
) -> tuple[list[Site], list[Refusal]]:
    """The folds that are proven legal in a graph captured by Dynamo, and the refused BatchNorms."""
    placeholders = list(captured.graph.find_nodes(op="placeholder"))
    position_of = {node: position for position, node in enumerate(placeholders)}
    shared = _shared_storages(captured, example_inputs)
    sites: list[Site] = []
    refused: list[Refusal] = []
    for node in captured.graph.find_nodes(
        op="call_function", target=torch.nn.functional.batch_norm
    ):
        name = _module_name(node)
        try:
            site = _matched(name, node, position_of)
            _check_operands(site, example_inputs, shared)
        except _Refused as reason:
            refused.append(Refusal(name, str(reason)))
        else:
            sites.append(site)
    return sites, refused


def _matched(name: str, norm: fx.Node, position_of: Mapping[fx.Node, int]) -> Site:
    given = _named_arguments(norm, _NORM_ARGUMENTS)
    if given.get("running_mean") is None or given.get("running_var") is None:
        raise _Refused("no running statistics")
    if given.get("training", False) is not False:
        raise _Refused("training mode: batch statistics are not constants")
    source = given["input"]
    if not isinstance(source, fx.Node) or source.target not in _CONVOLUTIONS:
        raise _Refused(f"its input is {source}, not a convolution")
    if len(source.users) > 1:
        others = ", ".join(str(user) for user in source.users if user is not norm)
        raise _Refused(f"the convolution's value is used elsewhere: {others}")
    convolution = _named_arguments(source, _CONVOLUTIONS[source.target])
    nodes = _Operands(
        weight=convolution["weight"],
        mean=given["running_mean"],
        variance=given["running_var"],
        bias=convolution.get("bias"),
        gamma=given.get("weight"),
        beta=given.get("bias"),
    )
    eps = given.get("eps", _DEFAULT_EPS)
    groups = convolution.get("groups", 1)
    if not isinstance(eps, (int, float)) or not isinstance(groups, int):
        raise _Refused("eps or groups is not a constant")
    for node in nodes.present():
        _check_own(node, position_of)
    _check_values(source, norm, nodes.weight)
    return Site(name, source, norm, nodes, nodes.map(position_of.__getitem__), eps, groups)


def _named_arguments(call: fx.Node, names: Sequence[str]) -> dict[str, Any]:
    return dict(zip(names, call.args, strict=False)) | dict(call.kwargs)


def _check_own(node: Any, position_of: Mapping[fx.Node, int]) -> None:
    """The operand is a parameter or buffer of the model, and only this site reads it."""
    if node not in position_of or "_dynamo_static_input_type" not in node.meta.get(
        "tensor_dict", {}
    ):
        raise _Refused(f"{node} is not a parameter or buffer of the model")
    if len(node.users) > 1:
        raise _Refused(f"{node} is shared: {len(node.users)} operations use it")


def _check_values(convolution: fx.Node, norm: fx.Node, weight: fx.Node) -> None:
    """Both values are what the formula assumes: batched, of the weight's dtype."""
    kernel, value, result = (n.meta.get("example_value") for n in (weight, convolution, norm))
    if kernel is None or value is None or result is None:
        raise _Refused("Dynamo gives no example value")
    if value.dim() != kernel.dim():
        raise _Refused("the convolution's value is not batched")
    if not value.dtype == result.dtype == kernel.dtype:
        raise _Refused(
            f"dtypes change on the way: {kernel.dtype} weight, {value.dtype} value, "
            f"{result.dtype} result (autocast?)"
        )


def _check_operands(
    site: Site, example_inputs: Sequence[Any], shared: Counter[tuple[str, int]]
) -> None:
    tensors = site.tensors(example_inputs)
    for tensor in tensors.present():
        if not _is_plain(tensor):
            raise _Refused("a parameter or statistic is not a plain tensor")
        if tensor.is_inference():
            raise _Refused("an inference tensor has no version counter")
        if torch.is_grad_enabled() and tensor.requires_grad:
            raise _Refused("autograd would see a parameter: not frozen")
        if shared[_storage_key(tensor)] > 1:
            raise _Refused("a parameter or statistic shares memory with another input")
    if reason := _tensor_reason(tensors, site.transposed, site.groups):
        raise _Refused(reason)


def _tensor_reason(tensors: _Operands, transposed: bool, groups: int) -> str | None:
    """Why these tensors cannot be folded; also asked again when one of them has changed."""
    every = tensors.present()
    devices = sorted({str(tensor.device) for tensor in every})
    if len(devices) > 1 or devices == ["meta"]:
        return f"tensors on {', '.join(devices)}"
    dtype = tensors.weight.dtype
    if dtype not in _DTYPES:
        return f"dtype {dtype} is not floating"
    # PyTorch itself runs a float32 BatchNorm on half-precision values, and keeps their dtype.
    allowed = {dtype, torch.float32} if dtype in _HALF_DTYPES else {dtype}
    if found := {str(tensor.dtype) for tensor in every if tensor.dtype not in allowed}:
        return f"half converted: {', '.join(sorted(found))} beside a {dtype} weight"
    channels = tensors.weight.shape[1] * groups if transposed else tensors.weight.shape[0]
    vectors = [tensor for tensor in every if tensor is not tensors.weight]
    if any(tuple(vector.shape) != (channels,) for vector in vectors):
        return f"a bias, scale or statistic does not have {channels} channels"
    return None


def _shared_storages(
    captured: fx.GraphModule, example_inputs: Sequence[Any]
) -> Counter[tuple[str, int]]:
    """How many tensors of the graph live in each piece of memory."""
    every = [*example_inputs, *captured.parameters(), *captured.buffers()]
    return Counter(_storage_key(value) for value in every if _is_plain(value))


def _is_plain(value: Any) -> bool:
    return type(value) in (nn.Parameter, torch.Tensor) and value.layout == torch.strided


def _storage_key(tensor: torch.Tensor) -> tuple[str, int]:
    return str(tensor.device), tensor.untyped_storage().data_ptr()


def _module_name(norm: fx.Node) -> str:
    """`layer1.0.bn1` where Dynamo says whose statistics they are, else the node's name."""
    mean = _named_arguments(norm, _NORM_ARGUMENTS).get("running_mean")
    argument = mean.meta.get("grapharg") if isinstance(mean, fx.Node) else None
    keys = _MODULE_KEY.findall(str(argument.source.name)) if argument is not None else []
    return ".".join(keys) or norm.name


# Values


def _fold_all(
    sites: Sequence[Site], example_inputs: Sequence[Any]
) -> tuple[list[Site], list[Refusal]]:
    """Give every site its folded values; sites whose values overflow are refused."""
    kept: list[Site] = []
    refused: list[Refusal] = []
    for site in sites:
        tensors = site.tensors(example_inputs)
        with torch.no_grad():
            site.weight = torch.empty_like(tensors.weight, requires_grad=False)
            site.bias = torch.empty_like(tensors.mean, dtype=tensors.weight.dtype)
        if fold_into(site, tensors):
            kept.append(site)
        else:
            refused.append(Refusal(site.name, "the folded values are not finite"))
    return kept, refused


def fold_into(site: Site, tensors: _Operands) -> bool:
    """Compute W' and b' into the site's memory; False when a value is not finite.

    Scale and bias in float64, rounded once; weights are scaled in their own dtype (float32 for half
    precision, then rounded once), as the offline fold does.
    """
    dtype = tensors.weight.dtype
    with torch.no_grad():
        scale = torch.rsqrt(tensors.variance.to(torch.float64) + site.eps)
        if tensors.gamma is not None:
            scale = scale * tensors.gamma.to(torch.float64)
        bias = -tensors.mean.to(torch.float64)
        if tensors.bias is not None:
            bias = bias + tensors.bias.to(torch.float64)
        bias = bias * scale
        if tensors.beta is not None:
            bias = bias + tensors.beta.to(torch.float64)
        site.bias.copy_(bias)
        factor = scale.to(torch.float32 if dtype in _HALF_DTYPES else dtype)
        _scale_weight(site, tensors.weight, factor)
        finite = all_finite(factor) and all_finite(site.bias)
        # As the offline fold: only half precision overflows on plausible weights.
        return finite and (dtype not in _HALF_DTYPES or all_finite(site.weight))


def _scale_weight(site: Site, weight: torch.Tensor, factor: torch.Tensor) -> None:
    source, target = weight, site.weight
    kernel_ones = (1,) * (weight.dim() - 2)
    if site.transposed:
        source = source.unflatten(0, (site.groups, -1))
        target = target.unflatten(0, (site.groups, -1))
        factor = factor.view(site.groups, 1, -1, *kernel_ones)
    else:
        factor = factor.view(-1, 1, *kernel_ones)
    if weight.dtype in _HALF_DTYPES:
        target.copy_(source.to(torch.float32) * factor)
    else:
        torch.mul(source, factor, out=target)


# Rewriting

#: Where an input of the rewritten graph comes from: (True, folded tensor) or (False, position).
_Source = tuple[bool, Any]


def _rewritten(
    captured: fx.GraphModule, sites: Sequence[Site]
) -> tuple[fx.GraphModule, list[_Source]]:
    """A copy of the graph without the folded BatchNorms, and where each of its inputs comes from.

    The original is left alone: Dynamo still reads it. Inputs that nothing uses any more are taken
    out, so that they are neither compiled for nor passed.
    """
    graph = fx.Graph()
    twin: dict[fx.Node, fx.Node] = {}
    graph.output(graph.graph_copy(captured.graph, twin))
    folded_at: dict[int, torch.Tensor] = {}
    for site in sites:
        bias_node, bias_place = _bias_slot(site)
        norm, convolution = twin[site.norm], twin[site.convolution]
        _install_bias(convolution, twin[bias_node])
        norm.replace_all_uses_with(convolution)
        graph.erase_node(norm)
        folded_at[site.positions.weight] = site.weight
        folded_at[bias_place] = site.bias
    read = {n for site in sites for n in site.nodes.present()}
    sources: list[_Source] = []
    for position, node in enumerate(captured.graph.find_nodes(op="placeholder")):
        if node in read and not twin[node].users:
            graph.erase_node(twin[node])
        elif position in folded_at:
            sources.append((True, folded_at[position]))
        else:
            sources.append((False, position))
    graph.lint()
    folded = fx.GraphModule(captured, graph)
    folded.meta.update(captured.meta)
    return folded, sources


def _bias_slot(site: Site) -> tuple[fx.Node, int]:
    """The input whose place b' takes: a bias that the folded graph no longer reads."""
    nodes, places = site.nodes, site.positions
    if nodes.bias is not None:
        return nodes.bias, places.bias
    if nodes.beta is not None:
        return nodes.beta, places.beta
    return nodes.mean, places.mean


def _install_bias(convolution: fx.Node, bias: fx.Node) -> None:
    if len(convolution.args) > 2:
        convolution.update_arg(2, bias)
    else:
        convolution.update_kwarg("bias", bias)


# Guards


class _Program:
    """One compiled graph with its folded values, its guards and its way back."""

    def __init__(
        self,
        compiled: Compiled,
        captured: fx.GraphModule,
        sites: Sequence[Site],
        sources: Sequence[_Source],
        report: GraphReport,
    ) -> None:
        self._compiled = compiled
        self._unfolded = captured.forward  # as Dynamo's own backend "eager" keeps it
        self._sites = tuple(sites)
        self._weights_at = [site.positions.weight for site in sites]
        self._vectors_at = [p for site in sites for p in site.positions.present()[1:]]
        self._template = [source if folds else None for folds, source in sources]
        self._passed_on = tuple(
            (slot, source) for slot, (folds, source) in enumerate(sources) if not folds
        )
        self._stale = True
        self._report = report
        report.guarded_tensors = len(self._weights_at) + len(self._vectors_at)

    def watch(self, inputs: Sequence[Any]) -> None:
        """Remember which tensors the folded values were computed from, and their state."""
        self._weights = [inputs[place] for place in self._weights_at]
        self._vectors = [inputs[place] for place in self._vectors_at]
        self._kinds = list(map(_kind, self._weights))
        # One object's counter never falls, so the sum is unchanged only if every counter is.
        self._versions = sum(map(_version, self._weights))
        self._pointers = list(map(_data_ptr, self._weights))
        self._groups = _grouped(self._vectors_at, self._vectors)
        self._values = self._joined(inputs)
        self._stale = False

    def distrust(self) -> None:
        """Fold anew at the next call."""
        self._stale = True

    def callable(self) -> Compiled:
        """What Dynamo calls in place of the captured graph, with the same arguments."""

        def call(*inputs: Any) -> Any:
            if (self._stale or self._changed(inputs)) and not self._folded_anew(inputs):
                self._report.fallbacks += 1
                return self._unfolded(*inputs)
            values = self._template.copy()
            for slot, place in self._passed_on:
                values[slot] = inputs[place]
            return self._compiled(*values)

        return call

    def _changed(self, inputs: Sequence[Any]) -> bool:
        weights = [inputs[place] for place in self._weights_at]
        vectors = [inputs[place] for place in self._vectors_at]
        return not (
            all(map(is_, weights, self._weights))
            and all(map(is_, vectors, self._vectors))
            and sum(map(_version, weights)) == self._versions
            and list(map(_data_ptr, weights)) == self._pointers
            and all(map(_same, self._joined(inputs), self._values))
        )

    def _joined(self, inputs: Sequence[Any]) -> list[torch.Tensor]:
        """A copy of the values of all vectors, one tensor a group."""
        with torch.no_grad():
            return [torch.cat([inputs[place] for place in group]) for group in self._groups]

    def _folded_anew(self, inputs: Sequence[Any]) -> bool:
        """Refresh the folded values in place; False when the compiled code does not fit."""
        self._stale = True  # until all of it has succeeded
        if [_kind(inputs[place]) for place in self._weights_at] != self._kinds:
            return False
        for site in self._sites:
            tensors = site.tensors(inputs)
            if not all(map(_is_plain, tensors.present())):
                return False
            if _tensor_reason(tensors, site.transposed, site.groups) is not None:
                return False
            if not fold_into(site, tensors):
                return False
        self.watch(inputs)
        self._report.refolds += 1
        return True


def _grouped(places: Sequence[int], vectors: Sequence[torch.Tensor]) -> list[list[int]]:
    """The places in groups on one device, each small enough for one thread."""
    groups: list[list[int]] = []
    device, size = None, 0
    for place, vector in zip(places, vectors, strict=True):
        if vector.device != device or size + vector.numel() > _GROUP_ELEMENTS:
            groups.append([])
            device, size = vector.device, 0
        groups[-1].append(place)
        size += vector.numel()
    return groups


def _same(first: torch.Tensor, second: torch.Tensor) -> bool:
    return first.dtype == second.dtype and torch.equal(first, second)


def _kind(value: Any) -> tuple[Any, ...]:
    """What the compiled code and the guards rely on in a weight, besides its values."""
    if not _is_plain(value) or value.is_inference():
        return (type(value), None)
    return (type(value), value.dtype, tuple(value.shape), value.stride(), value.device)
