"""Graphs of aten ops, as PyTorch's compiler makes them, as graphs of Hypatia.

In: an FX graph without autograd whose nodes know their shapes. Out: a native graph. Invariant: a
node's element type and shape are those that PyTorch says, never worked out anew: type promotion,
which aten leaves implicit, becomes casts. A node without a row in the table is not supported. The
rows are in modules of their own, which `_fx` imports.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from . import _native
from ._eager import NAMES
from ._rules import Rules
from .errors import InputError

aten = torch.ops.aten
Value = Any
#: An `fx.Node`. Its arguments are typed too loosely to compute with them.
Node = Any

#: How a node of each op is built, by the op's name without its overload.
TABLE: dict[str, Callable[[Importer, fx.Node], Any]] = {}
#: The ops whose results may be built in another order of axes than their own, see `Importer.built`.
ORDERED: set[str] = set()
#: Ops that are no aten ops and that plans compute: ours, see `_attention`, and one of PyTorch's.
OTHERS = {
    "hypatia": ("attention", "attention_lse", "attention_grad"),
    "prims": ("convert_element_type",),
}


def name_of(target: Any) -> str:
    """The name of an aten op without its overload, or of another that plans compute; else empty."""
    if not isinstance(target, torch._ops.OpOverload):
        return ""
    space, _, name = target._schema.name.partition("::")
    return name if space == "aten" or name in OTHERS.get(space, ()) else ""


def strides_of(t: torch.Tensor) -> tuple[int, ...]:
    """PyTorch's strides of a result, or those of `empty_like` where they overlap or leave gaps."""
    sizes, strides = tuple(map(int, t.shape)), tuple(map(int, t.stride()))
    return torch.empty_like(torch.empty_strided(sizes, strides, device="meta")).stride()


def memory_order(t: torch.Tensor) -> list[int] | None:
    """The axes of a result in the order of memory, where that is not the order of rows."""
    strides = strides_of(t)
    order = sorted(range(t.dim()), key=lambda axis: -strides[axis])
    return None if t.is_contiguous() or order == list(range(t.dim())) else order


def channels_last(t: torch.Tensor) -> list[int] | None:
    """The axes of a tensor in the order of memory, where the second, the channels, comes last."""
    order = [0, *range(2, t.dim()), 1]
    return order if t.dim() in (4, 5) and memory_order(t) == order else None


def lying_order(t: torch.Tensor) -> list[int] | None:
    """The axes of a tensor in the order of memory, where that is another one and it has no gaps."""
    return memory_order(t) if strides_of(t) == tuple(map(int, t.stride())) else None


def inverse(order: Sequence[int]) -> list[int]:
    """The order of axes that undoes another."""
    return [order.index(axis) for axis in range(len(order))]


class Importer:
    """Builds the graph of one FX graph, or of some of its nodes, whose shapes are numbers."""

    def __init__(
        self,
        module: fx.GraphModule,
        rules: Rules,
        nodes: Sequence[fx.Node] | None = None,
        stored: bool = False,
        frozen: Mapping[fx.Node, torch.Tensor] | None = None,
        ordered: bool = False,
        checked: bool = False,
    ) -> None:
        """Import these nodes, or all. What they read beside is an input, what others read a result.

        `stored` gives results in the order in which PyTorch keeps them, see `memory_order`. Inputs
        that are `frozen` are constants. With `ordered`, the others have their axes in the order in
        which they lie in memory, see `orders`, and pointwise results are built in the order in
        which they lie, if their channels come last. `checked` lets the plan refuse each index that
        PyTorch refuses.
        """
        self.frozen = frozen or {}
        self.ordered, self.checked = ordered, checked
        #: The order of the axes in which the row at hand builds its result, if not their own.
        self.order: list[int] | None = None
        #: The order of the axes of each input, where it is not that of the tensor.
        self.orders: list[list[int] | None] = []
        self.module, self.g = module, _native.Graph(rules._native)
        self.values: dict[fx.Node, Any] = {}
        self.inputs: list[str] = []
        self.outputs: list[fx.Node] = [] if nodes is None else read_outside(nodes)
        #: Parameters and buffers that some nodes read; a whole graph has constants alone.
        self.state = set() if nodes is None else state_of(module)
        for node in module.graph.nodes if nodes is None else nodes:
            if node.op == "call_function":
                for other in node.all_input_nodes:
                    if other not in self.values and other.op == "get_attr":
                        self.add(other)
                    elif other not in self.values:
                        self.input(other)
            self.add(node)
        for i, node in enumerate(self.outputs):
            order = memory_order(node.meta["val"]) if stored else None
            value = self.values[node]
            self.g.output(f"y{i}", value if order is None else self.call("transpose", [value], perm=order))

    def add(self, node: Node) -> None:
        """Import a node."""
        if node.op == "output":
            found = node.args[0]
            self.outputs = list(found) if isinstance(found, (list, tuple)) else [found]
        elif node.op == "get_attr" and node.target not in self.state:
            self.values[node] = self.copied(operator.attrgetter(node.target)(self.module))
        elif node.op == "call_function" and node.target is operator.getitem:
            self.values[node] = self.values[node.args[0]][node.args[1]]
        elif node.op == "call_function" and name_of(node.target) in TABLE:
            self.g.label(node.name)
            self.values[node] = self.built(node)
        else:
            self.input(node)

    def built(self, node: Node) -> Any:
        """A node's result.

        Where its channels come last in memory, its row works in that order: so what is computed of
        it in that order, and what is stored, reads no transposed tensor.
        """
        known: Any = node.meta.get("val")
        first: Any = known[0] if isinstance(known, (list, tuple)) and known else known
        turns = self.ordered and name_of(node.target) in ORDERED and isinstance(first, torch.Tensor)
        self.order = order = channels_last(first) if turns else None
        made = TABLE[name_of(node.target)](self, node)
        self.order = None
        if order is None:
            return made
        back = inverse(order)

        def turned(value: Value | None) -> Value | None:
            return None if value is None else self.call("transpose", [value], perm=back)

        return list(map(turned, made)) if isinstance(made, list) else turned(made)

    def lies_channels_last(self, operand: Any) -> list[int] | None:
        """The axes of an operand in the order of memory, where channels come last."""
        known = operand.meta.get("val") if self.ordered and isinstance(operand, fx.Node) else None
        return channels_last(known) if isinstance(known, torch.Tensor) else None

    def input(self, node: Node) -> None:
        """Add an input, if the node is a tensor."""
        if node in self.frozen:
            self.values[node] = self.copied(self.frozen[node])
        elif isinstance(node.meta.get("val"), torch.Tensor):
            order = lying_order(node.meta["val"]) if self.ordered else None
            self.inputs.append(node.name)
            self.orders.append(order)
            shape = self.shape(node)
            sizes: list[int | str] = [shape[axis] for axis in order or range(len(shape))]
            value = self.g.input(node.name, self.dtype(node), sizes)
            back = order and inverse(order)
            self.values[node] = self.call("transpose", [value], perm=back) if back else value

    def copied(self, t: torch.Tensor) -> Value:
        """A constant with the values that a tensor has now."""
        t = t.detach().cpu().contiguous()
        return self.g.constant((t.data_ptr(), NAMES[t.dtype], tuple(t.shape), t), list(t.shape))

    # What a node says.

    def shape(self, node: Any) -> tuple[int, ...]:
        """The shape of a node's result."""
        return tuple(int(n) for n in node.meta["val"].shape)

    def dtype(self, node: Any) -> str:
        """The element type of a node's result."""
        return NAMES[node.meta["val"].dtype]

    def argument(self, node: fx.Node, index: int, name: str, default: Any = None) -> Any:
        """An argument by position or name; sizes as numbers."""
        value = node.args[index] if index < len(node.args) else node.kwargs.get(name, default)
        return self.number(value)

    def number(self, value: Any) -> Any:
        """A node that is a size as a number; everything else as it is."""
        if isinstance(value, (list, tuple)):
            return [self.number(v) for v in value]
        if isinstance(value, fx.Node):
            known = value.meta["val"]
            if isinstance(known, (bool, int, float)):
                return known
            if isinstance(known, (torch.SymInt, torch.SymFloat)):
                return int(known) if isinstance(known, torch.SymInt) else float(known)
        return value

    def axis(self, axis: int, rank: int) -> int:
        """An axis counted from the front."""
        return axis % max(rank, 1)

    # What is built.

    def call(self, name: str, operands: Sequence[Value], **attrs: Any) -> Any:
        """The first result of an op."""
        return self.g.call(name, list(operands), attrs)[0]

    def value(self, argument: Any) -> Value:
        """The value of a node, with its axes in the order of the row at hand."""
        value = self.values[argument]
        if self.order is None:
            return value
        shape = self.shape(argument)
        whole = (*[1] * (len(self.order) - len(shape)), *shape)
        moved = [axis for axis in self.order if whole[axis] != 1]
        # Where axes of one element move alone, none moves.
        if moved == sorted(moved):
            return self.reshaped(value, [whole[axis] for axis in self.order]) if shape else value
        return self.call("transpose", [self.reshaped(value, whole)], perm=self.order)

    def cast(self, value: Value, to: str) -> Value:
        """A value in that element type."""
        return value if self.g.type_of(value)[0] == to else self.call("cast", [value], to=to)

    def operand(self, argument: Any, dtype: str) -> Value:
        """A node or a number as a value of that type."""
        argument = self.number(argument)
        if isinstance(argument, fx.Node):
            return self.cast(self.value(argument), dtype)
        return self.constant(dtype, argument)

    def constant(self, dtype: str, number: Any) -> Value:
        """A number of rank 0, if f64, in which numbers are handed over, holds it."""
        return self.g.number(dtype, exactly(number))

    def per_channel(self, argument: Any, like: Any, dtype: str) -> Value:
        """A vector as a tensor that broadcasts along the channels of another, which are axis 1."""
        value = like.meta["val"]
        rank = (value[0] if isinstance(value, (list, tuple)) else value).dim()
        shape = self.shape(argument) if self.order else (*self.shape(argument), *[1] * (rank - 2))
        return self.reshaped(self.cast(self.values[argument], dtype), shape)

    def reshaped(self, value: Value, shape: Sequence[int]) -> Value:
        """A value in that shape."""
        same = tuple(self.g.type_of(value)[1]) == tuple(shape)
        return value if same else self.call("reshape", [value], shape=list(shape))


def state_of(module: torch.nn.Module) -> set[str]:
    """The names of parameters and buffers."""
    return {name for name, _ in [*module.named_parameters(), *module.named_buffers()]}


def read_outside(nodes: Sequence[fx.Node]) -> list[fx.Node]:
    """The nodes that others than these read: tensors, not lists of them."""
    own = set(nodes)
    read = [n for n in nodes if any(u not in own for u in n.users)]
    return [n for n in read if isinstance(n.meta.get("val"), torch.Tensor)]


def exactly(number: Any) -> float:
    """A number as f64; an error if it is an integer that f64 does not hold."""
    if isinstance(number, int) and int(float(number)) != number:
        raise InputError(f"the integer {number} is too large for a graph")
    return float(number)


def row(*names: str) -> Callable[[Callable[[Importer, fx.Node], Any]], Callable[[Importer, fx.Node], Any]]:
    """Put a function into the table."""

    def put(f: Callable[[Importer, fx.Node], Any]) -> Callable[[Importer, fx.Node], Any]:
        TABLE.update(dict.fromkeys(names, f))
        return f

    return put


def ordered_row(*names: str) -> Callable[[Callable[[Importer, fx.Node], Any]], Callable[[Importer, fx.Node], Any]]:
    """Put a function into the table that builds its result in the order of `Importer.order`."""
    ORDERED.update(names)
    return row(*names)


def size_of(shape: Sequence[int]) -> int:
    """How many elements a tensor of that shape has."""
    count = 1
    for n in shape:
        count *= n
    return count
