"""`torch.compile(model, backend="hypatia")`: whole graphs, for inference on the CPU.

In: the graphs that PyTorch captures. Out: callables. Invariant: parts of a graph whose ops Hypatia
knows become plans, made for the shapes of each call; the rest stays PyTorch's, and `report()` names
the ops that were in the way. Graphs with gradients, and on other devices, are PyTorch's as a whole.
Results have PyTorch's strides, except those that overlap or leave gaps, which are row-major.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch._decomp import core_aten_decompositions
from torch._dynamo.backends.common import aot_autograd
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch.fx.passes.fake_tensor_prop import FakeTensorProp
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase

from . import _native
from ._fx import TABLE, Importer, name_of, unsupported
from ._model import settings
from ._rules import Rules, Scalar, library
from .errors import InputError
from .fuse import _together
from .nn import _runtime
from .nn._runtime import Choice

Tensor = torch.Tensor
_count = itertools.count(1)


def table() -> dict[Any, Any]:
    """PyTorch's decompositions into core ops, without those of ops that the importer knows."""
    return {op: f for op, f in core_aten_decompositions().items() if name_of(op) not in TABLE}


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
    devices = {t.device.type for t in example_inputs if isinstance(t, Tensor)} - {"cpu"}
    if trains or devices:
        note("graph", "gradients are wanted" if trains else f"the device is {devices.pop()}")
        return module.forward

    def inference(graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        return make_boxed_func(divided(graph, chosen))

    return aot_autograd(fw_compiler=inference, inference_compiler=inference, decompositions=table())(
        module, example_inputs
    )


def note(label: str, why: str) -> None:
    """Count something that PyTorch computes."""
    _runtime.count(label, why)


def computes(node: fx.Node) -> bool:
    """Whether a node computes tensors; the others are sizes."""
    return node.op == "call_function" and not isinstance(node.meta.get("val"), (int, float, torch.SymInt))


class _Known(OperatorSupportBase):
    def is_node_supported(self, submodules: Mapping[str, torch.nn.Module], node: fx.Node) -> bool:
        return computes(node) and not unsupported(node)


def divided(graph: fx.GraphModule, rules: Rules) -> Callable[..., Any]:
    """The graph with parts that plans compute; the rest is PyTorch's."""
    if why := indivisible(graph):
        note("graph", why)
        return graph.forward
    for node in graph.graph.nodes:
        if computes(node) and not is_ours(node) and (why := unsupported(node)):
            note("graph", f"PyTorch computes {why}")
    partitioner = CapabilityBasedPartitioner(graph, _Known(), allows_single_node_partition=False)
    whole = partitioner.partition_and_fuse(prefix="hypatia_")
    for node in whole.graph.nodes:
        if node.op == "call_function" and computes(node) and not is_ours(node) and not unsupported(node):
            note("graph", f"{name_of(node.target) or 'getitem'} stands alone: there is nothing to fuse")
    for name, child in list(whole.named_children()):
        if name.startswith("hypatia_") and isinstance(child, fx.GraphModule):
            setattr(whole, name, Part(child, rules))
    return whole.forward


def is_ours(node: fx.Node) -> bool:
    """Whether a node is a fused layer, which chooses its side itself."""
    return isinstance(node.target, torch._ops.OpOverload) and node.target.namespace == "hypatia"


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
    left = [n.target for n in graph.graph.nodes if computes(n) and unsupported(n)]
    random = sum(torch.Tag.nondeterministic_seeded in op.tags for op in left if isinstance(op, torch._ops.OpOverload))
    return "the order of several random nodes counts" if random > 1 else ""


class Part(torch.nn.Module):
    """A part of a graph, which a plan computes, or PyTorch."""

    def __init__(self, graph: fx.GraphModule, rules: Rules) -> None:
        """Args: the part, and the rules that may fire in it."""
        super().__init__()
        self.graph, self.rules = graph, rules
        ops = sum(n.op == "call_function" for n in graph.graph.nodes)
        self.label = f"graph {next(_count)}, {ops} ops"
        self.plans: dict[Any, Choice] = {}
        self.kept: dict[Any, list[tuple[torch.dtype, tuple[int, ...], tuple[int, ...] | None]]] = {}
        self.lock = threading.Lock()
        self.single = not isinstance(next(n for n in graph.graph.nodes if n.op == "output").args[0], (tuple, list))
        _runtime.register(self)

    def show(self, key: tuple[Any, ...]) -> str:
        """A key as text."""
        first = next((k for k in key[1:] if isinstance(k, tuple)), None)
        return "" if first is None else f"{_runtime.NAMES[first[0]]}{list(first[1])}, .."

    def forward(self, *args: Any) -> Any:
        """Compute the part."""
        key = (torch.get_num_threads(), *((a.dtype, tuple(a.shape)) if isinstance(a, Tensor) else a for a in args))
        tensors = [a for a in args if isinstance(a, Tensor)]
        if why := self.blocked(tensors):
            note(self.label, why)
            return self.graph(*args)
        choice = _runtime.settled(
            self.plans,
            key,
            self.label,
            lambda: self.plan(key, args, tensors),
            lambda plan: (lambda: self.launch(key, plan, tensors), lambda: self.graph(*args)),
        )
        if choice is None or choice.plan is None:
            return self.graph(*args)
        return self.launch(key, choice.plan, tensors)

    def blocked(self, tensors: list[Tensor]) -> str:
        """Why no plan can compute a call; empty if one can."""
        if _runtime.current_policy() == "never":
            return "the policy is `never`"
        if any(type(t) not in _runtime._PLAIN or t.is_neg() or t.layout is not torch.strided for t in tensors):
            return "a tensor is not plain memory"
        return "a tensor is empty" if any(t.numel() == 0 for t in tensors) else ""

    def plan(self, key: Any, args: tuple[Any, ...], tensors: list[Tensor]) -> _native.Plan:
        """The plan for inputs of these shapes."""
        with self.lock, torch.no_grad():
            FakeTensorProp(self.graph).propagate(*args)
            for node, arg in zip(self.graph.graph.find_nodes(op="placeholder"), args, strict=True):
                if not isinstance(arg, Tensor):
                    node.meta["val"] = arg
            imported = Importer(self.graph, self.rules)
            metas = [n.meta["val"] for n in imported.outputs]
        if any(0 in t.shape for t in metas):
            raise InputError("a result is empty")
        model = imported.g.model(**settings(threads=torch.get_num_threads()))
        rows = [t.detach().contiguous() for t in tensors]
        plan = model.compile(
            [(n, _runtime.memory(t), tuple(t.shape)) for n, t in zip(imported.inputs, rows, strict=True)]
        )
        self.kept[key] = [(t.dtype, tuple(map(int, t.shape)), strides_of(t)) for t in metas]
        return plan

    def launch(self, key: Any, plan: _native.Plan, tensors: list[Tensor]) -> Any:
        """Run a plan into memory of PyTorch."""
        inputs = [t if t.is_contiguous() else t.contiguous() for t in tensors]
        outputs = [torch.empty(shape, dtype=dtype) for dtype, shape, _ in self.kept[key]]
        plan.run(tuple(map(_runtime.memory, inputs)), tuple(map(_runtime.memory, outputs)))
        for i, (dtype, shape, strides) in enumerate(self.kept[key]):
            if strides is not None:
                outputs[i] = torch.empty_strided(shape, strides, dtype=dtype).copy_(outputs[i])
        return outputs[0] if self.single else tuple(outputs)


def strides_of(t: Tensor) -> tuple[int, ...] | None:
    """The strides of a result, if they are others than those of rows, and cover its memory."""
    strides, dense = tuple(map(int, t.stride())), 1
    for stride, size in sorted(zip(strides, map(int, t.shape), strict=True)):
        if size != 1 and stride != dense:
            return None
        dense *= size
    return None if t.is_contiguous() else strides
