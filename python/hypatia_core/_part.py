"""Parts of graphs: what computes one, by a plan for each of its sizes, or by PyTorch.

In: a graph of aten ops that plans can compute, and its arguments. Out: its results. Invariant: they
are PyTorch's up to rounding; a call that PyTorch computes is counted with its reason. Results have
PyTorch's strides, except where these overlap or leave gaps: then those of `empty_like`.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.fx.passes.fake_tensor_prop import FakeTensorProp

from . import _launch, _native
from ._eager import NAMES
from ._fx import Importer, strides_of
from ._model import COMPARE_EVERY
from ._rules import Rules
from .errors import InputError
from .nn import _runtime
from .nn._runtime import Choice

Tensor = torch.Tensor
_count = itertools.count(1)
#: Weights of a part that change more often than this are operands from then on.
MAX_CHANGES = 2


@dataclass(frozen=True)
class Options:
    """How plans are made."""

    numerics: str | None = None
    must: tuple[str, ...] = ()
    never: tuple[str, ...] = ()
    tf32: bool = False
    safety: str = "check"
    compare_every: int = COMPARE_EVERY
    frozen: bool = False
    """Whether plans contain the values of weights, as long as those do not change."""

    def settings(self, device: torch.device) -> dict[str, Any]:
        """The settings of a model on a device."""
        return _launch.settings_on(
            device,
            numerics=self.numerics,
            must=self.must,
            never=self.never,
            safety=self.safety,
            compare_every=self.compare_every,
            tf32=self.tf32 and device.type == "cuda",
        )


@dataclass(frozen=True)
class Frozen:
    """The weights that a plan contains."""

    state: tuple[tuple[int, int], ...]
    """Address and version of each."""
    held: list[Tensor]
    """They stay where they are, so that no other tensor comes to lie there."""

    @staticmethod
    def of(weights: Sequence[Tensor]) -> Frozen:
        """The weights as they are."""
        return Frozen(state_of(weights), [t.detach() for t in weights])


def state_of(weights: Sequence[Tensor]) -> tuple[tuple[int, int], ...]:
    """Address and version of each tensor."""
    return tuple((t.data_ptr(), t._version) for t in weights)


class Part(torch.nn.Module):
    """A part of a graph, which a plan computes, or PyTorch.

    Element types, devices, strides and sizes that are numbers are those of its nodes: who calls it
    has checked that, as Dynamo does.
    """

    def __init__(
        self,
        graph: fx.GraphModule,
        rules: Rules,
        device: torch.device,
        options: Options | None = None,
        weights: Sequence[int] = (),
    ) -> None:
        """Args: the part, the rules that may fire in it, the device and options of its plans.

        `weights` are the arguments that rarely change.
        """
        super().__init__()
        self.graph, self.rules, self.device = graph, rules, device
        self.options = options or Options()
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
        self.at: Sequence[int] = range(len(values))
        self.weights: list[int] = []
        self.tensors = [i for i, v in enumerate(values) if isinstance(v, Tensor)]
        if self.options.frozen:
            self.weights = [i for i in weights if i in self.tensors and i not in self.varying]
            self.tensors = [i for i in self.tensors if i not in self.weights]
        #: The results that share memory: they are kept and given up together.
        self.together: list[int] = []
        #: The weights that each plan contains.
        self.frozen: dict[Any, Frozen] = {}
        self.changes = 0
        _runtime.register(self)

    def show(self, key: tuple[Any, ...]) -> str:
        """A key as text."""
        sizes = [str(list(k) if isinstance(k, tuple) else k) for k in key[1:]]
        return ", ".join([*sizes[:3], ".."] if len(sizes) > 3 else sizes)

    def forward(self, *args: Any) -> Any:
        """Compute the part."""
        key = self.key(args)
        if self.weights:
            self.watch(key, args)
        tensors = tuple(map(args.__getitem__, self.tensors))
        choice = None
        if why := self.blocked(key, tensors):
            _runtime.count(self.label, why)
        else:
            choice = _runtime.settled(
                self.plans,
                key,
                self.label,
                self.runs_on(tensors),
                lambda: self.plan(key, args, tensors),
                lambda _: (lambda: self.launch(key, tensors), lambda: self.graph(*args)),
                most=_runtime.MAX_PART_PLANS,
                checked=self.options.safety == "strict",
            )
        if choice is None or choice.plan is None:
            return self.graph(*args)
        if entry := self.entry and self.entry():
            weights = zip(
                (self.at[i] for i in self.weights), self.frozen[key].state if self.weights else (), strict=True
            )
            entry.add(
                key,
                [self.at[i] for i in self.tensors],
                [(at, *state) for at, state in weights],
                self.calls[key],
                choice.measured is not None or self.options.safety == "strict",
            )
        try:
            return self.launch(key, tensors)
        except InputError as error:
            _runtime.refused(choice, error, self.label)
            return self.graph(*args)

    def entered(
        self, order: Sequence[int] | None = None, values: Sequence[tuple[bool, int] | None] = ()
    ) -> _native.Entry:
        """What computes the part without Python where its plan is known.

        `order` are the part's arguments among those of a whole graph, which returns `values`: None,
        or whether it is one of the part's results, and its index among these or the arguments.
        """
        self.at = range(self.arguments) if order is None else order

        def whole(*args: Any) -> Any:
            # Conversions are in the graph.
            with torch._C._DisableAutocast():
                made = self.forward(*[args[i] for i in self.at])
            made = (made,) if self.single else made
            return tuple(None if v is None else (made if v[0] else args)[v[1]] for v in values)

        entry = _native.Entry(
            [self.at[i] for i in self.varying],
            self.single and order is None,
            torch.get_num_threads if self.device.type == "cpu" else None,
            self.forward if order is None else whole,
            None if order is None else list(values),
        )
        self.entry = weakref.ref(entry)
        return entry

    def forget(self) -> None:
        """Drop all plans."""
        self.plans.clear()
        self.calls.clear()
        self.frozen.clear()
        if entry := self.entry and self.entry():
            entry.clear()

    def watch(self, key: Any, args: tuple[Any, ...]) -> None:
        """Drop plans that contain weights which have changed."""
        weights = [args[i] for i in self.weights]
        countable = all(type(t) in _runtime._PLAIN and not t.is_inference() for t in weights)
        if countable and (key not in self.frozen or self.frozen[key].state == state_of(weights)):
            return
        self.forget()
        self.changes += 1
        if not countable or self.changes > MAX_CHANGES:
            self.tensors, self.weights = sorted([*self.tensors, *self.weights]), []

    def runs_on(self, tensors: tuple[Tensor, ...]) -> torch.device:
        """The device of a call."""
        return self.device

    def key(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """What a plan is made for."""
        varying = ((tuple(a.shape) if isinstance(a, Tensor) else a) for a in map(args.__getitem__, self.varying))
        return (torch.get_num_threads() if self.device.type == "cpu" else 0, *varying)

    def blocked(self, key: Any, tensors: tuple[Tensor, ...]) -> str:
        """Why no plan can compute a call; empty if one can."""
        if _runtime.current_policy() == "never":
            return "the policy is `never`"
        if key in self.calls:
            return ""
        if any(type(t) not in _runtime._PLAIN or t.is_neg() or t.layout is not torch.strided for t in tensors):
            return "a tensor is not plain memory"
        return "a tensor is empty" if any(t.numel() == 0 for t in tensors) else ""

    def plan(self, key: Any, args: tuple[Any, ...], tensors: tuple[Tensor, ...]) -> tuple[_native.Plan, _native.Race]:
        """The plan for inputs of these shapes, and its race with PyTorch."""
        with self.lock, torch.no_grad():
            FakeTensorProp(self.graph).propagate(*args)
            for node, arg in zip(self.graph.graph.find_nodes(op="placeholder"), args, strict=True):
                if not isinstance(arg, Tensor):
                    node.meta["val"] = arg
            frozen = Frozen.of([args[i] for i in self.weights])
            nodes = self.graph.graph.find_nodes(op="placeholder")
            weights = {nodes[i]: t for i, t in zip(self.weights, frozen.held, strict=True)}
            on_gpu = self.runs_on(tensors).type == "cuda"
            imported = Importer(self.graph, self.rules, stored=True, frozen=weights, ordered=on_gpu, checked=not on_gpu)
            metas = [n.meta["val"] for n in imported.outputs]
        if any(0 in t.shape for t in metas):
            raise InputError("a result is empty")
        if frozen.state != state_of([args[i] for i in self.weights]):
            raise InputError("a weight changed while its plan was made")
        device = self.runs_on(tensors)
        settings = self.options.settings(device)
        model = imported.g.model(**settings)
        lying = zip(tensors, imported.orders, strict=True)
        rows = [_launch.on_host(t if order is None else t.permute(*order)) for t, order in lying]
        plan = _launch.compiled(model, imported.inputs, rows)
        results = [(tuple(map(int, t.shape)), strides_of(t), t.dtype) for t in metas]
        self.frozen[key] = frozen
        self.calls[key] = _launch.call_of(plan, results, device, self.together, imported.orders)
        texts = [repr(settings), _launch.identity(device), repr(self.rules.sources), imported.g.text()]
        return plan, _native.Race([*texts, repr(results)])

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
            _runtime.count(self.label, why)
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
