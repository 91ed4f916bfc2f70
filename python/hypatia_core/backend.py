"""`torch.compile(model, backend="hypatia")`: whole graphs, for inference on the CPU and on CUDA.

In: the graphs that PyTorch captures. Out: callables. Invariant: parts of a graph whose ops Hypatia
knows become plans, made for the shapes of each call; the rest stays PyTorch's, and `report()` names
the ops that were in the way. Graphs with gradients are PyTorch's as a whole.
Results have PyTorch's strides, except those that overlap or leave gaps, which are row-major.
"""

from __future__ import annotations

import itertools
import math
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch._decomp import core_aten_decompositions
from torch._dynamo.backends.common import aot_autograd
from torch._functorch._aot_autograd.schemas import OutputType
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch.fx.passes.fake_tensor_prop import FakeTensorProp
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase

from . import _launch, _native
from ._eager import NAMES
from ._fx import TABLE, Importer, keep_attention, memory_order, name_of, unsupported
from ._rules import Rules, Scalar, library
from .errors import InputError
from .fuse import _together
from .nn import _runtime
from .nn._runtime import Choice

Tensor = torch.Tensor
_count = itertools.count(1)


#: Ops that draw random numbers, which must be those that eager draws: they stay whole.
RANDOM = (
    "native_dropout",
    "bernoulli",
    "rand_like",
    "randn_like",
    "randint_like",
    "normal",
    "uniform",
    "rand",
    "randn",
)


def table() -> dict[Any, Any]:
    """PyTorch's decompositions into core ops, without those of ops that are better left whole."""
    whole = {*TABLE, *RANDOM}
    return {op: f for op, f in core_aten_decompositions().items() if name_of(op) not in whole}


def backend(
    module: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    **_: Any,
) -> Callable[..., Any]:
    """Compile a graph that Dynamo captured.

    ``options={"rules": [..]}`` are rules of your own, beside the library's.

    >>> import torch
    >>> from hypatia_core.backend import backend
    >>> network = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU())
    >>> model = torch.compile(network, backend=backend)
    >>> with torch.no_grad():
    ...     model(torch.randn(2, 4)).shape
    torch.Size([2, 8])
    """
    given = dict(options or {})
    rules: Sequence[Rules | Scalar] = given.pop("rules", ())
    if given:
        raise InputError(f"backend hypatia: there is no option `{next(iter(given))}`; the option is `rules`")
    chosen = _together(rules) or library()

    trains = torch.is_grad_enabled() and any(isinstance(t, Tensor) and t.requires_grad for t in example_inputs)
    if trains:
        note("graph", "gradients are wanted")
        return module.forward

    keep_attention(module)

    direct: list[_native.Entry] = []

    def inference(graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        computes = divided(graph, chosen)
        if isinstance(computes, _native.Entry) and len(inputs) == len(example_inputs) and passes_on():
            direct.append(computes)
        return make_boxed_func(computes)

    compiled = aot_autograd(fw_compiler=inference, inference_compiler=inference, decompositions=table())(
        module, example_inputs
    )
    return direct[0].beside(compiled) if len(direct) == 1 else compiled


def passes_on() -> bool:
    """Whether AOTAutograd's wrapper of the graph at hand hands on arguments and results as they are."""
    context = torch._guards.TracingContext.try_get()
    meta = context and context.fw_metadata
    if meta is None:
        return False
    plain = all(type(t).__name__ == "PlainTensorMeta" for t in meta.subclass_inp_meta)
    changed = any(i.mutates_data or i.mutates_metadata for i in meta.input_info)
    new = all(o.output_type is OutputType.non_alias for o in meta.output_info)
    return plain and new and not changed and not meta.tokens and meta.grad_enabled_mutation is None


def note(label: str, why: str) -> None:
    """Count something that PyTorch computes."""
    _runtime.count(label, why)


def computes(node: fx.Node) -> bool:
    """Whether a node computes tensors; the others are sizes."""
    return node.op == "call_function" and not isinstance(node.meta.get("val"), (int, float, torch.SymInt))


class Known(OperatorSupportBase):
    """The nodes that plans can compute."""

    def __init__(self, device: torch.device) -> None:
        """Args: the device of the plans."""
        self.device = device

    def is_node_supported(self, submodules: Mapping[str, torch.nn.Module], node: fx.Node) -> bool:
        """Whether a plan can compute a node."""
        return computes(node) and not unsupported(node, self.device)


def device_of(graph: fx.GraphModule) -> torch.device:
    """The device of a graph's plans: the GPU if there is one."""
    found: list[torch.device] = []
    for node in graph.graph.nodes:
        value = node.meta.get("val")
        found += [t.device for t in (value if isinstance(value, (list, tuple)) else [value]) if isinstance(t, Tensor)]
    return next((d for d in found if d.type != "cpu"), torch.device("cpu"))


def divided(graph: fx.GraphModule, rules: Rules, single: bool = False) -> Callable[..., Any]:
    """The graph with parts that plans compute; the rest is PyTorch's.

    `single` makes parts of ops that stand alone too, where there is nothing to fuse.
    """
    if why := indivisible(graph):
        note("graph", why)
        return graph.forward
    device = device_of(graph)
    if why := _launch.unreachable(device):
        note("graph", why)
        return graph.forward
    for node in graph.graph.nodes:
        if computes(node) and not is_ours(node) and (why := unsupported(node, device)):
            note("graph", f"PyTorch computes {why}")
    partitioner = CapabilityBasedPartitioner(graph, Known(device), allows_single_node_partition=single)
    whole = partitioner.partition_and_fuse(prefix="hypatia_")
    for node in whole.graph.nodes:
        if node.op == "call_function" and computes(node) and not is_ours(node) and not unsupported(node, device):
            note("graph", f"{name_of(node.target) or 'getitem'} stands alone: there is nothing to fuse")
    for name, child in list(whole.named_children()):
        if name.startswith("hypatia_") and isinstance(child, fx.GraphModule):
            setattr(whole, name, Part(child, rules, device))
    if entry := alone(whole):
        return entry
    for name, part in list(whole.named_children()):
        if isinstance(part, Part):
            delattr(whole, name)
            whole.__dict__[name] = part.entered()
    return whole.forward


def alone(whole: fx.GraphModule) -> _native.Entry | None:
    """The one part of a graph that is nothing else: it is called without a detour."""
    calls = [n for n in whole.graph.nodes if n.op not in ("placeholder", "output")]
    if len(calls) != 1 or calls[0].op != "call_module":
        return None
    inputs = whole.graph.find_nodes(op="placeholder")
    part = whole.get_submodule(str(calls[0].target))
    results = whole.graph.output_node().args[0]
    if not isinstance(part, Part) or not part.single or results not in (calls, tuple(calls)):
        return None
    return part.entered([inputs.index(a) for a in calls[0].args if isinstance(a, fx.Node)])


def is_ours(node: fx.Node) -> bool:
    """Whether a node is a fused layer or fusion, which chooses its side itself."""
    own = isinstance(node.target, torch._ops.OpOverload) and node.target.namespace == "hypatia"
    return own and not name_of(node.target)


def indivisible(graph: fx.GraphModule) -> str:
    """Why a graph must run as it is; empty if it can be divided.

    Parts put their results into memory of their own, and may be moved in front of other nodes.
    """
    ops = [n.target for n in graph.graph.nodes if isinstance(n.target, torch._ops.OpOverload)]
    if any("as_strided" in op.name() for op in ops):
        return "as_strided reads memory past its operand"
    if any(op._schema.is_mutable for op in ops):
        return "a node changes its operand"
    # Attention has the tag too; without dropout it draws nothing, and the importer knows no other.
    device = device_of(graph)
    left = [n.target for n in graph.graph.nodes if computes(n) and unsupported(n, device)]
    random = sum(torch.Tag.nondeterministic_seeded in op.tags for op in left if isinstance(op, torch._ops.OpOverload))
    return "the order of several random nodes counts" if random > 1 else ""


class Part(torch.nn.Module):
    """A part of a graph, which a plan computes, or PyTorch.

    Element types, devices, strides and sizes that are numbers are those of its nodes: who calls it
    has checked that, as Dynamo does.
    """

    def __init__(self, graph: fx.GraphModule, rules: Rules, device: torch.device) -> None:
        """Args: the part, the rules that may fire in it, and the device of its plans."""
        super().__init__()
        self.graph, self.rules, self.device = graph, rules, device
        ops = sum(n.op == "call_function" for n in graph.graph.nodes)
        self.label = f"graph {next(_count)}, {ops} ops"
        self.plans: dict[Any, Choice] = {}
        self.calls: dict[Any, _native.Call] = {}
        self.entry: weakref.ref[_native.Entry] | None = None
        self.lock = threading.Lock()
        self.single = not isinstance(graph.graph.output_node().args[0], (tuple, list))
        values = [n.meta.get("val") for n in graph.graph.find_nodes(op="placeholder")]
        self.arguments = len(values)
        #: The arguments that differ from call to call in more than their elements.
        self.varying = [i for i, v in enumerate(values) if not is_fixed(v)]
        self.tensors = [i for i, v in enumerate(values) if isinstance(v, Tensor)]
        _runtime.register(self)

    def show(self, key: tuple[Any, ...]) -> str:
        """A key as text."""
        sizes = [str(list(k) if isinstance(k, tuple) else k) for k in key[1:]]
        return ", ".join([*sizes[:3], ".."] if len(sizes) > 3 else sizes)

    def forward(self, *args: Any) -> Any:
        """Compute the part."""
        key = self.key(args)
        tensors = tuple(map(args.__getitem__, self.tensors))
        choice = None
        if why := self.blocked(key, tensors):
            note(self.label, why)
        else:
            choice = _runtime.settled(
                self.plans,
                key,
                self.label,
                self.runs_on(tensors),
                lambda: self.plan(key, args, tensors),
                lambda _: (lambda: self.launch(key, tensors), lambda: self.graph(*args)),
                most=_runtime.MAX_PART_PLANS,
            )
        if choice is None or choice.plan is None:
            return self.graph(*args)
        if entry := self.entry and self.entry():
            entry.add(key, self.calls[key], choice.measured is not None)
        return self.launch(key, tensors)

    def entered(self, order: Sequence[int] | None = None) -> _native.Entry:
        """What computes the part without Python where its plan is known.

        `order` are the part's arguments among those of a whole graph; the results are a tuple then.
        """
        at = range(self.arguments) if order is None else order

        def whole(*args: Any) -> Any:
            return (self.forward(*[args[i] for i in at]),)

        entry = _native.Entry(
            [at[i] for i in self.tensors],
            [at[i] for i in self.varying],
            self.single and order is None,
            torch.get_num_threads if self.device.type == "cpu" else None,
            self.forward if order is None else whole,
        )
        self.entry = weakref.ref(entry)
        return entry

    def forget(self) -> None:
        """Drop all plans."""
        self.plans.clear()
        self.calls.clear()
        if entry := self.entry and self.entry():
            entry.clear()

    def runs_on(self, tensors: tuple[Tensor, ...]) -> torch.device:
        """The device of a call."""
        return self.device

    def key(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """What a plan is made for."""
        varying = ((tuple(a.shape) if isinstance(a, Tensor) else a) for a in map(args.__getitem__, self.varying))
        return (torch.get_num_threads(), *varying)

    def blocked(self, key: Any, tensors: tuple[Tensor, ...]) -> str:
        """Why no plan can compute a call; empty if one can."""
        if _runtime.current_policy() == "never":
            return "the policy is `never`"
        if key in self.calls:
            return ""
        if any(type(t) not in _runtime._PLAIN or t.is_neg() or t.layout is not torch.strided for t in tensors):
            return "a tensor is not plain memory"
        return "a tensor is empty" if any(t.numel() == 0 for t in tensors) else ""

    def plan(self, key: Any, args: tuple[Any, ...], tensors: tuple[Tensor, ...]) -> _native.Plan:
        """The plan for inputs of these shapes."""
        with self.lock, torch.no_grad():
            FakeTensorProp(self.graph).propagate(*args)
            for node, arg in zip(self.graph.graph.find_nodes(op="placeholder"), args, strict=True):
                if not isinstance(arg, Tensor):
                    node.meta["val"] = arg
            imported = Importer(self.graph, self.rules, stored=True)
            metas = [n.meta["val"] for n in imported.outputs]
        if any(0 in t.shape for t in metas):
            raise InputError("a result is empty")
        model = imported.g.model(**_launch.settings_on(self.runs_on(tensors)))
        rows = [_launch.on_host(t) for t in tensors]
        plan = model.compile(
            [(n, _launch.memory(t), tuple(t.shape)) for n, t in zip(imported.inputs, rows, strict=True)]
        )
        results = [(tuple(map(int, t.shape)), strides_of(t), t.dtype) for t in metas]
        self.calls[key] = _launch.call_of(plan, results, self.runs_on(tensors))
        return plan

    def launch(self, key: Any, tensors: tuple[Tensor, ...]) -> Any:
        """Run a plan into memory of PyTorch."""
        outputs = _launch.run(self.calls[key], tensors, self.runs_on(tensors))
        return outputs[0] if self.single else outputs


class Loose(Part):
    """A part that is called with anything: nobody has checked its arguments."""

    def __init__(self, graph: fx.GraphModule, rules: Rules, tensors: int) -> None:
        """Args: the part, its rules, and how many of its arguments, the first, are tensors."""
        super().__init__(graph, rules, torch.device("cpu"))
        self.tensors = list(range(tensors))

    def key(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """What a plan is made for."""
        of = ((NAMES.get(a.dtype), tuple(a.shape), a.device) if isinstance(a, Tensor) else a for a in args)
        return (torch.get_num_threads(), *of)

    def forward(self, *args: Any) -> Any:
        """Compute the part."""
        devices = {args[i].device for i in self.tensors}
        known = len(devices) == 1 and all(args[i].dtype in NAMES for i in self.tensors)
        why = _launch.unreachable(devices.pop()) if known else "devices or element types that no plan has"
        if why:
            note(self.label, why)
            return self.graph(*args)
        return super().forward(*args)

    def runs_on(self, tensors: tuple[Tensor, ...]) -> torch.device:
        """The device of a call."""
        return tensors[0].device

    def blocked(self, key: Any, tensors: tuple[Tensor, ...]) -> str:
        """Why no plan can compute a call; empty if one can."""
        if torch.is_autocast_enabled(tensors[0].device.type):
            return "autocast chooses the element types"
        return super().blocked(key, tensors)


def is_fixed(value: Any) -> bool:
    """Whether a tensor's sizes are numbers."""
    return isinstance(value, Tensor) and all(isinstance(n, int) for n in value.shape)


def strides_of(t: Tensor) -> tuple[int, ...]:
    """The strides of a result: PyTorch's, or those of rows where PyTorch's overlap or leave gaps."""
    if memory_order(t) is not None:
        return tuple(map(int, t.stride()))
    sizes = [max(int(n), 1) for n in t.shape]
    return tuple(math.prod(sizes[i + 1 :]) for i in range(len(sizes)))
