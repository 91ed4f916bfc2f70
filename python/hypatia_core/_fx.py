"""Graphs of aten ops, as PyTorch's compiler makes them, as graphs of Hypatia.

In: an FX graph without autograd whose nodes know their shapes. Out: a native graph. Invariant: a
node's element type and shape are those that PyTorch says, never worked out anew: type promotion,
which aten leaves implicit, becomes casts. A node without a row in the table is not supported.
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

#: Functions of one tensor that are a scalar of the library.
SCALARS = {
    "abs": "abs",
    "acos": "acos",
    "acosh": "acosh",
    "asin": "asin",
    "asinh": "asinh",
    "atan": "atan",
    "atanh": "atanh",
    "ceil": "ceil",
    "cos": "cos",
    "cosh": "cosh",
    "erf": "erf",
    "exp": "exp",
    "expm1": "expm1",
    "floor": "floor",
    "hardswish": "hardswish",
    "isinf": "isinf",
    "isnan": "isnan",
    "log": "log",
    "log1p": "log1p",
    "mish": "mish",
    "neg": "neg",
    "reciprocal": "recip",
    "relu": "relu",
    "round": "round",
    "rsqrt": "rsqrt",
    "sigmoid": "sigmoid",
    "sign": "sign",
    "silu": "silu",
    "sin": "sin",
    "sinh": "sinh",
    "sqrt": "sqrt",
    "tan": "tan",
    "tanh": "tanh",
    "trunc": "trunc",
}
#: Functions of two tensors or numbers; the operands take the result's type.
PAIRS = {
    "mul": "mul",
    "maximum": "max",
    "minimum": "min",
    "pow": "pow",
    "fmod": "fmod",
    "remainder": "remainder",
}
#: Comparisons: the scalar, and whether the operands are exchanged and the result negated.
COMPARISONS = {
    "eq": ("eq", False, False),
    "ne": ("eq", False, True),
    "lt": ("lt", False, False),
    "gt": ("lt", True, False),
    "le": ("le", False, False),
    "ge": ("le", True, False),
}
#: Ops of our own that plans compute: see `_attention`.
OWN = ("attention", "attention_lse", "attention_grad")
SAME = ("alias", "as_strided", "clone", "detach", "lift_fresh_copy", "_to_copy", "contiguous")
SHAPED = ("view", "_unsafe_view", "reshape", "unsqueeze", "squeeze")
LOGIC = {"logical_and": "and", "logical_or": "or", "logical_xor": "xor"}
BITS = {"bitwise_and": "and", "bitwise_or": "or", "bitwise_xor": "xor"}


def name_of(target: Any) -> str:
    """The name of an aten op without its overload, or of attention; empty for anything else."""
    if not isinstance(target, torch._ops.OpOverload):
        return ""
    space, _, name = target._schema.name.partition("::")
    return name if space == "aten" or (space == "hypatia" and name in OWN) else ""


def strides_of(t: torch.Tensor) -> tuple[int, ...]:
    """PyTorch's strides of a result, or those of `empty_like` where they overlap or leave gaps."""
    sizes, strides = tuple(map(int, t.shape)), tuple(map(int, t.stride()))
    return torch.empty_like(torch.empty_strided(sizes, strides, device="meta")).stride()


def memory_order(t: torch.Tensor) -> list[int] | None:
    """The axes of a result in the order of memory, where that is not the order of rows."""
    strides = strides_of(t)
    order = sorted(range(t.dim()), key=lambda axis: -strides[axis])
    return None if t.is_contiguous() or order == list(range(t.dim())) else order


def lying_order(t: torch.Tensor) -> list[int] | None:
    """The axes of a tensor in the order of memory, where that is another one and it has no gaps."""
    return memory_order(t) if strides_of(t) == tuple(map(int, t.stride())) else None


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
    ) -> None:
        """Import these nodes, or all. What they read beside is an input, what others read a result.

        `stored` gives results in the order in which PyTorch keeps them, see `memory_order`. Inputs
        that are `frozen` are constants. With `ordered`, the others have their axes in the order in
        which they lie in memory, see `orders`.
        """
        self.frozen = frozen or {}
        self.ordered = ordered
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
            self.values[node] = TABLE[name_of(node.target)](self, node)
        else:
            self.input(node)

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
            back = order and [order.index(axis) for axis in range(len(shape))]
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
        """The value of a node."""
        return self.values[argument]

    def cast(self, value: Value, to: str) -> Value:
        """A value in that element type."""
        return value if self.g.type_of(value)[0] == to else self.call("cast", [value], to=to)

    def operand(self, argument: Any, dtype: str) -> Value:
        """A node or a number as a value of that type."""
        argument = self.number(argument)
        if isinstance(argument, fx.Node):
            return self.cast(self.values[argument], dtype)
        return self.constant(dtype, argument)

    def constant(self, dtype: str, number: Any) -> Value:
        """A number of rank 0, if f64, in which numbers are handed over, holds it."""
        return self.g.number(dtype, exactly(number))

    def per_channel(self, argument: Any, like: Any, dtype: str) -> Value:
        """A vector as a tensor that broadcasts along the channels of another, which are axis 1."""
        value = like.meta["val"]
        rank = (value[0] if isinstance(value, (list, tuple)) else value).dim()
        return self.reshaped(self.operand(argument, dtype), (*self.shape(argument), *[1] * (rank - 2)))

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


@row(*SAME)
def _(b: Importer, n: Node) -> Any:
    return b.operand(n.args[0], b.dtype(n))


@row(*SHAPED)
def _(b: Importer, n: Node) -> Any:
    return b.reshaped(b.value(n.args[0]), b.shape(n))


@row(*SCALARS)
def _(b: Importer, n: Node) -> Any:
    wanted = b.dtype(n) if b.dtype(n) != "bool" else b.dtype(n.args[0])
    return b.call(SCALARS[name_of(n.target)], [b.operand(n.args[0], wanted)])


@row(*PAIRS)
def _(b: Importer, n: Node) -> Any:
    name, dtype = PAIRS[name_of(n.target)], b.dtype(n)
    if dtype == "bool":
        name = {"mul": "and", "max": "or", "min": "and"}[name]
    return b.call(name, [b.operand(n.args[0], dtype), b.operand(n.args[1], dtype)])


@row("div")
def _(b: Importer, n: Node) -> Any:
    dtype, mode = b.dtype(n), b.argument(n, 2, "rounding_mode")
    if mode is None:
        return b.call("div", [b.operand(a, dtype) for a in n.args[:2]])
    floats = dtype in ("f64", "f32", "f16", "bf16")
    wide = dtype if dtype == "f64" or not floats else "f32"
    (x, y), call = (b.operand(a, wide) for a in n.args[:2]), b.call
    zero, one = b.g.number(wide, 0.0), b.g.number(wide, 1.0)
    quotient = call("div", [x, y])
    if mode == "trunc":
        return b.cast(call("trunc", [quotient]) if floats else quotient, dtype)
    # As PyTorch: the quotient of what the divisor divides, not the rounded one.
    rest = call("fmod", [x, y])
    whole = call("div", [call("sub", [x, rest]), y]) if floats else quotient
    below = call("xor", [call("lt", [y, zero]), call("lt", [rest, zero])])
    below = call("and", [below, call("not", [call("eq", [rest, zero])])])
    made = call("select", [below, call("sub", [whole, one]), whole])
    if not floats:
        return made
    down = call("floor", [made])
    far = call("lt", [b.g.number(wide, 0.5), call("sub", [made, down])])
    down = call("select", [far, call("add", [down, one]), down])
    return b.cast(call("select", [call("eq", [y, zero]), quotient, down]), dtype)


@row("add", "sub", "rsub")
def _(b: Importer, n: Node) -> Any:
    name, dtype = name_of(n.target), b.dtype(n)
    x, y = (n.args[1], n.args[0]) if name == "rsub" else (n.args[0], n.args[1])
    right = b.operand(y, dtype)
    left = b.operand(x, dtype)
    if (alpha := b.argument(n, 2, "alpha", 1)) != 1:
        right = b.call("mul", [right, b.constant(dtype, alpha)])
    return b.call("add" if name == "add" else "sub", [left, right])


@row(*COMPARISONS)
def _(b: Importer, n: Node) -> Any:
    name, swapped, negated = COMPARISONS[name_of(n.target)]
    values = [a.meta["val"] if isinstance(a, fx.Node) else a for a in n.args[:2]]
    dtype = NAMES[torch.result_type(*values)]
    dtype = "u8" if dtype == "bool" else dtype
    pair = [b.operand(a, dtype) for a in n.args[:2]]
    made = b.call(name, pair[::-1] if swapped else pair)
    return b.call("not", [made]) if negated else made


@row("logical_not", "bitwise_not")
def _(b: Importer, n: Node) -> Any:
    return b.call("not", [b.operand(n.args[0], "bool")])


@row(*LOGIC, *BITS)
def _(b: Importer, n: Node) -> Any:
    name = name_of(n.target)
    return b.call({**LOGIC, **BITS}[name], [b.operand(a, "bool") for a in n.args[:2]])


@row("where")
def _(b: Importer, n: Node) -> Any:
    return b.call("select", [b.value(n.args[0]), *(b.operand(a, b.dtype(n)) for a in n.args[1:3])])


@row("clamp", "clamp_min", "clamp_max", "hardtanh")
def _(b: Importer, n: Node) -> Any:
    name, dtype = name_of(n.target), b.dtype(n)
    x = b.operand(n.args[0], dtype)
    if name == "hardtanh":
        low, high = b.argument(n, 1, "min_val", -1.0), b.argument(n, 2, "max_val", 1.0)
    else:
        low = None if name == "clamp_max" else b.argument(n, 1, "min")
        high = b.argument(n, 1, "max") if name == "clamp_max" else b.argument(n, 2, "max")
    if low is not None:
        x = b.call("max", [x, b.operand(low, dtype)])
    return x if high is None else b.call("min", [x, b.operand(high, dtype)])


@row("gelu")
def _(b: Importer, n: Node) -> Any:
    tanh = b.argument(n, 1, "approximate", "none") == "tanh"
    return b.call("gelu_tanh" if tanh else "gelu", [b.value(n.args[0])])


# Gradients of functions stay whole, so that what is saved for them are operands or results, and no
# mask whose elements flip where an operand is rounded to the other side of 0.


@row("threshold_backward")
def _(b: Importer, n: Node) -> Any:
    gradient, x, threshold = n.args
    dtype = b.dtype(n)
    low = b.call("le", [b.operand(x, dtype), b.operand(threshold, dtype)])
    return b.call("select", [low, b.g.number(dtype, 0.0), b.operand(gradient, dtype)])


@row("gelu_backward")
def _(b: Importer, n: Node) -> Any:
    dtype = b.dtype(n)
    if b.argument(n, 2, "approximate", "none") == "tanh":
        return b.call("mul", [b.value(n.args[0]), b.call("gelu_tanh_grad", [b.value(n.args[1])])])
    gradient, x, number, call = *widened(b, n), b.g.number, b.call
    wide = b.g.type_of(x)[0]
    below = call("add", [number(wide, 1.0), call("erf", [call("mul", [x, number(wide, 0.5**0.5)])])])
    density = call("exp", [call("mul", [call("mul", [x, x]), number(wide, -0.5)])])
    density = call("mul", [call("mul", [density, number(wide, 0.3989422804014327)]), x])
    slope = call("add", [call("mul", [below, number(wide, 0.5)]), density])
    return b.cast(call("mul", [gradient, slope]), dtype)


@row("silu_backward")
def _(b: Importer, n: Node) -> Any:
    gradient, x = widened(b, n)
    one, share = b.g.number(b.g.type_of(x)[0], 1.0), b.call("sigmoid", [x])
    bend = b.call("add", [one, b.call("mul", [x, b.call("sub", [one, share])])])
    return b.cast(b.call("mul", [gradient, b.call("mul", [share, bend])]), b.dtype(n))


@row("sigmoid_backward", "tanh_backward")
def _(b: Importer, n: Node) -> Any:
    gradient, y = widened(b, n)
    one = b.g.number(b.g.type_of(y)[0], 1.0)
    if name_of(n.target) == "sigmoid_backward":
        slope = b.call("mul", [b.call("sub", [one, y]), y])
    else:
        slope = b.call("sub", [one, b.call("mul", [y, y])])
    return b.cast(b.call("mul", [gradient, slope]), b.dtype(n))


def widened(b: Importer, n: Node) -> tuple[Value, Value]:
    """A gradient and a tensor in the type in which their element type is computed."""
    wide = "f64" if b.dtype(n) == "f64" else "f32"
    return b.operand(n.args[0], wide), b.operand(n.args[1], wide)


@row("leaky_relu")
def _(b: Importer, n: Node) -> Any:
    slope = b.argument(n, 1, "negative_slope", 0.01)
    return b.call("leaky_relu", [b.operand(n.args[0], b.dtype(n)), b.constant(b.dtype(n), slope)])


@row("elu")
def _(b: Importer, n: Node) -> Any:
    # Also what SELU and CELU are: a factor for the result, and one for a negative operand.
    dtype = b.dtype(n)
    alpha, scale, below = (float(b.argument(n, i, k, 1)) for i, k in enumerate(("alpha", "scale", "input_scale"), 1))
    wide = "f64" if dtype == "f64" else "f32"
    # 16 bits would round `alpha`, which eager keeps in f32.
    if scale == below == 1 and (alpha == 1 or dtype == wide):
        return b.call("elu", [b.operand(n.args[0], dtype), b.constant(dtype, alpha)])
    x, number, call = b.operand(n.args[0], wide), b.g.number, b.call
    bent = call("expm1", [call("mul", [x, number(wide, below)])])
    chosen = [call("lt", [x, number(wide, 0.0)]), call("mul", [bent, number(wide, alpha * scale)])]
    return b.cast(call("select", [*chosen, call("mul", [x, number(wide, scale)])]), dtype)


@row("hardsigmoid")
def _(b: Importer, n: Node) -> Any:
    dtype = b.dtype(n)
    return b.call("hard_sigmoid", [b.operand(n.args[0], dtype), b.g.number(dtype, 1 / 6), b.g.number(dtype, 0.5)])


@row("t", "transpose", "permute")
def _(b: Importer, n: Node) -> Any:
    name, rank = name_of(n.target), len(b.shape(n))
    order = list(range(rank))
    if name == "t":
        order.reverse()
    elif name == "transpose":
        i, j = (b.axis(a, rank) for a in n.args[1:3])
        order[i], order[j] = order[j], order[i]
    else:
        order = [b.axis(a, rank) for a in b.argument(n, 1, "dims")]
    return b.call("transpose", [b.value(n.args[0])], perm=order)


@row("expand")
def _(b: Importer, n: Node) -> Any:
    value, shape = b.value(n.args[0]), b.shape(n)
    before = b.shape(n.args[0])
    value = b.reshaped(value, (1,) * (len(shape) - len(before)) + before)
    return value if before == shape else b.call("expand", [value], shape=list(shape))


@row("slice")
def _(b: Importer, n: Node) -> Any:
    sizes = b.shape(n.args[0])
    axis = b.axis(b.argument(n, 1, "dim", 0), len(sizes))
    size = sizes[axis]
    start, stop = b.argument(n, 2, "start") or 0, b.argument(n, 3, "end")
    stop = size if stop is None else stop
    start, stop = (max(0, min(size, e + size if e < 0 else e)) for e in (start, stop))
    value = b.value(n.args[0])
    if (start, stop, step := b.argument(n, 4, "step", 1)) == (0, size, 1):
        return value
    return b.call("slice", [value], axis=axis, start=start, stop=max(start, stop), step=step)


@row("select")
def _(b: Importer, n: Node) -> Any:
    sizes = b.shape(n.args[0])
    axis = b.axis(b.argument(n, 1, "dim"), len(sizes))
    index = b.argument(n, 2, "index") % sizes[axis]
    one = b.call("slice", [b.value(n.args[0])], axis=axis, start=index, stop=index + 1, step=1)
    return b.reshaped(one, b.shape(n))


@row("cat")
def _(b: Importer, n: Node) -> Any:
    parts = [p for p in n.args[0] if b.shape(p) != (0,)]
    values = [b.operand(p, b.dtype(n)) for p in parts]
    axis = b.axis(b.argument(n, 1, "dim", 0), len(b.shape(n)))
    return values[0] if len(values) == 1 else b.call("concat", values, axis=axis)


@row("stack")
def _(b: Importer, n: Node) -> Any:
    shape = b.shape(n)
    axis = b.axis(b.argument(n, 1, "dim", 0), len(shape))
    one = (*shape[:axis], 1, *shape[axis + 1 :])
    values = [b.reshaped(b.operand(p, b.dtype(n)), one) for p in n.args[0]]
    return values[0] if len(values) == 1 else b.call("concat", values, axis=axis)


@row("split", "split_with_sizes", "unbind")
def _(b: Importer, n: Node) -> Any:
    name, rank, parts = name_of(n.target), len(b.shape(n.args[0])), n.meta["val"]
    axis = b.axis(b.argument(n, 1 if name == "unbind" else 2, "dim", 0), rank)
    sizes = [1] * len(parts) if name == "unbind" else [int(p.shape[axis]) for p in parts]
    value = b.value(n.args[0])
    made = [value] if len(parts) == 1 else b.g.call("split", [value], {"axis": axis, "sizes": sizes})
    return [b.reshaped(v, tuple(int(s) for s in p.shape)) for v, p in zip(made, parts, strict=True)]


def reduced_axes(b: Importer, n: Node, at: int = 1) -> list[int]:
    """The axes of a reduction, all where none is named."""
    rank, axes = len(b.shape(n.args[0])), b.argument(n, at, "dim")
    axes = [axes] if isinstance(axes, int) and not isinstance(axes, bool) else axes
    return [b.axis(a, rank) for a in axes] if isinstance(axes, list) and axes else list(range(rank))


@row("sum", "mean", "amax", "amin", "prod")
def _(b: Importer, n: Node) -> Any:
    axes, value = reduced_axes(b, n), b.operand(n.args[0], b.dtype(n))
    return b.reshaped(b.call(name_of(n.target), [value], axes=axes, keepdims=True) if axes else value, b.shape(n))


@row("any")
def _(b: Importer, n: Node) -> Any:
    x, axes = n.args[0], reduced_axes(b, n)
    there = b.call("not", [b.call("eq", [b.operand(x, kind := _compared(b.dtype(x))), b.g.number(kind, 0.0)])])
    if axes:
        most = b.call("amax", [b.cast(there, "u8")], axes=axes, keepdims=True)
        there = b.call("not", [b.call("eq", [most, b.g.number("u8", 0.0)])])
    there = b.reshaped(there, _shape_of(n))
    return b.cast(there, NAMES[n.meta["val"].dtype])


def _compared(dtype: str) -> str:
    return "u8" if dtype == "bool" else dtype


def _shape_of(n: Node) -> tuple[int, ...]:
    return tuple(int(s) for s in n.meta["val"].shape)


@row("var", "var_mean")
def _(b: Importer, n: Node) -> Any:
    x, axes = n.args[0], reduced_axes(b, n)
    results = n.meta["val"] if name_of(n.target) == "var_mean" else [n.meta["val"]]
    dtype, shape = b.dtype(x), tuple(int(s) for s in results[0].shape)
    wide, count = "f64" if dtype == "f64" else "f32", 1
    for axis in axes:
        count *= b.shape(x)[axis]
    correction = n.kwargs.get("correction", 1)
    value = b.operand(x, wide)
    if not axes:
        mean, squares = value, b.call("sub", [value, value])
    else:
        mean = b.call("mean", [value], axes=axes, keepdims=True)
        centred = b.call("sub", [value, mean])
        squares = b.call("sum", [b.call("mul", [centred, centred])], axes=axes, keepdims=True)
    left = max(0.0, count - float(1 if correction is None else correction))
    variance = b.call("div", [squares, b.g.number(wide, left)])
    made = [b.reshaped(b.cast(v, dtype), shape) for v in (variance, mean)]
    return made if len(results) == 2 else made[0]


@row("linalg_vector_norm")
def _(b: Importer, n: Node) -> Any:
    dtype, order, axes = b.dtype(n), float(b.argument(n, 1, "ord", 2)), reduced_axes(b, n, 2)
    wide, call = "f64" if dtype == "f64" else "f32", b.call
    value = b.operand(n.args[0], wide)
    part = call("mul", [value, value]) if order == 2 else call("abs", [value])
    if axes:
        how = {2.0: "sum", 1.0: "sum", float("inf"): "amax", -float("inf"): "amin"}[order]
        part = call(how, [part], axes=axes, keepdims=True)
    return b.reshaped(b.cast(call("sqrt", [part]) if order == 2 else part, dtype), b.shape(n))


@row("cumsum")
def _(b: Importer, n: Node) -> Any:
    axis = b.axis(b.argument(n, 1, "dim"), len(b.shape(n)))
    return b.call("cumsum", [b.operand(n.args[0], b.dtype(n))], axis=axis)


@row("_softmax", "_log_softmax", "_safe_softmax")
def _(b: Importer, n: Node) -> Any:
    axis = b.axis(b.argument(n, 1, "dim"), len(b.shape(n)))
    return b.call(name_of(n.target).removeprefix("_"), [b.operand(n.args[0], b.dtype(n))], axis=axis)


@row("mm", "bmm")
def _(b: Importer, n: Node) -> Any:
    return b.call("matmul", [b.value(a) for a in n.args[:2]])


@row("addmm", "baddbmm")
def _(b: Importer, n: Node) -> Any:
    dtype = b.dtype(n)
    product, bias = b.call("matmul", [b.value(a) for a in n.args[1:3]]), b.value(n.args[0])
    if (alpha := b.argument(n, 4, "alpha", 1)) != 1:
        product = b.call("mul", [product, b.constant(dtype, alpha)])
    if (beta := b.argument(n, 3, "beta", 1)) == 0:
        return product
    if beta != 1:
        bias = b.call("mul", [bias, b.constant(dtype, beta)])
    return b.call("add", [product, bias])


def saved(b: Importer, n: Node, rows: Value, eps: float) -> list[Any]:
    """What training keeps of a norm: the mean of each row, and the reciprocal of its deviation."""
    kinds = [(NAMES[t.dtype], tuple(int(s) for s in t.shape)) for t in n.meta["val"][1:]]
    mean = b.call("mean", [rows], axes=[1], keepdims=True)
    centred = b.call("sub", [rows, mean])
    variance = b.call("mean", [b.call("mul", [centred, centred])], axes=[1], keepdims=True)
    deviation = b.call("rsqrt", [b.call("add", [variance, b.g.number(b.g.type_of(rows)[0], eps)])])
    return [b.reshaped(b.cast(v, to), s) for v, (to, s) in zip((mean, deviation), kinds, strict=True)]


@row("native_layer_norm")
def _(b: Importer, n: Node) -> Any:
    x, sizes, weight, bias, eps = n.args[:5]
    count, shape = 1, b.shape(x)
    for size in b.number(sizes):
        count *= size
    rows = b.reshaped(b.value(x), (_size(shape) // max(count, 1), count))
    further = [None, None]
    if any(u.target is not operator.getitem or u.args[1] != 0 for u in n.users):
        further = saved(b, n, b.cast(rows, "f64" if b.dtype(x) == "f64" else "f32"), float(eps))
    params = [None if p is None else b.reshaped(b.value(p), (count,)) for p in (weight, bias)]
    attrs = {"eps": float(eps)}
    if params[0] is None:
        made = b.g.call("standardize", [rows], attrs)[0]
        made = made if params[1] is None else b.call("add", [made, params[1]])
    else:
        made = b.g.call("layer_norm", [rows, *params], attrs)[0]
    return [b.reshaped(made, shape), *further]


@row("native_group_norm")
def _(b: Importer, n: Node) -> Any:
    x, weight, bias, batch, channels, area, groups, eps = n.args
    batch, channels, area, groups = (b.number(v) for v in (batch, channels, area, groups))
    dtype, shape, eps = b.dtype(x), b.shape(x), float(eps)
    wide = "f64" if dtype == "f64" else "f32"
    rows = b.reshaped(b.operand(x, wide), (batch * groups, channels // groups * area))
    made = b.reshaped(b.g.call("standardize", [rows], {"eps": eps})[0], shape)
    if weight is not None:
        made = b.call("mul", [made, b.per_channel(weight, x, wide)])
    if bias is not None:
        made = b.call("add", [made, b.per_channel(bias, x, wide)])
    further = [None, None]
    if any(u.target is not operator.getitem or u.args[1] != 0 for u in n.users):
        further = saved(b, n, rows, eps)
    return [b.cast(made, dtype), *further]


@row("_fused_rms_norm")
def _(b: Importer, n: Node) -> Any:
    x, sizes, weight = n.args[:3]
    eps, shape, count = b.argument(n, 3, "eps"), b.shape(x), 1
    for size in b.number(sizes):
        count *= size
    dtype = torch.float64 if b.dtype(x) == "f64" else torch.float32
    scale = None if weight is None else b.reshaped(b.value(weight), (count,))
    rows = b.reshaped(b.value(x), (_size(shape) // count, count))
    attrs = {"eps": torch.finfo(dtype).eps if eps is None else float(eps)}
    return [b.reshaped(b.g.call("rms_norm", [rows, scale], attrs)[0], shape), None]


@row("convolution")
def _(b: Importer, n: Node) -> Any:
    x, weight, bias = n.args[:3]
    strides, padding, dilations, _, _, groups = b.number(list(n.args[3:9]))
    attrs = {"strides": strides, "before": padding, "after": padding, "dilations": dilations, "groups": groups}
    made = b.g.call("conv", [b.value(x), b.value(weight)], attrs)[0]
    return made if bias is None else b.call("add", [made, b.per_channel(bias, n, b.dtype(n))])


@row("_native_batch_norm_legit_no_training")
def _(b: Importer, n: Node) -> Any:
    x, weight, bias, mean, variance, _, eps = n.args
    wide = "f64" if b.dtype(x) == "f64" else "f32"
    mean, variance = (b.per_channel(p, x, wide) for p in (mean, variance))
    scale = b.call("rsqrt", [b.call("add", [variance, b.constant(wide, eps)])])
    made = b.call("mul", [b.call("sub", [b.operand(x, wide), mean]), scale])
    if weight is not None:
        made = b.call("mul", [made, b.per_channel(weight, x, wide)])
    if bias is not None:
        made = b.call("add", [made, b.per_channel(bias, x, wide)])
    return [b.cast(made, b.dtype(x)), None, None]


@row("constant_pad_nd")
def _(b: Importer, n: Node) -> Any:
    x, rank, widths = n.args[0], len(b.shape(n)), b.number(n.args[1])
    # The last axis comes first.
    sides = [[0] * (rank - len(widths) // 2) + widths[side::2][::-1] for side in (0, 1)]
    value = b.constant(b.dtype(n), b.argument(n, 2, "value", 0))
    return b.call("pad", [b.value(x), value], before=sides[0], after=sides[1])


@row("repeat")
def _(b: Importer, n: Node) -> Any:
    times, before = b.number(n.args[1]), b.shape(n.args[0])
    before = (*[1] * (len(times) - len(before)), *before)
    split = [size for n in before for size in (1, n)]
    grown = [size for r, n in zip(times, before, strict=True) for size in (r, n)]
    value = b.call("expand", [b.reshaped(b.value(n.args[0]), split)], shape=grown)
    return b.reshaped(value, b.shape(n))


@row("index_select")
def _(b: Importer, n: Node) -> Any:
    x, axis, index = n.args[:3]
    index = b.reshaped(b.operand(index, "i64"), (_size(b.shape(index)),))
    return b.call("gather", [b.value(x), index], axis=b.axis(b.number(axis), len(b.shape(x))))


@row("embedding")
def _(b: Importer, n: Node) -> Any:
    return b.call("gather", [b.value(a) for a in n.args[:2]], axis=0)


@row("gather")
def _(b: Importer, n: Node) -> Any:
    x, axis, index = n.args[:3]
    axis = b.axis(b.number(axis), len(b.shape(n)))
    return b.call("gather_elements", [b.value(x), b.value(index)], axis=axis)


def from_front(b: Importer, index: Any, size: int) -> Value:
    """An index as i64, counted from the front where it is negative."""
    value = b.operand(index, "i64")
    below = b.call("lt", [value, b.constant("i64", 0)])
    return b.call("select", [below, b.call("add", [value, b.constant("i64", size)]), value])


@row("index")
def _(b: Importer, n: Node) -> Any:
    x, indices = n.args[0], list(n.args[1])
    if None in indices:
        axis = next(a for a, i in enumerate(indices) if i is not None)
        return b.call("gather", [b.value(x), from_front(b, indices[axis], b.shape(x)[axis])], axis=axis)
    shape = torch.broadcast_shapes(*(b.shape(i) for i in indices))
    columns = []
    for axis, index in enumerate(indices):
        value = from_front(b, index, b.shape(x)[axis])
        value = b.reshaped(value, (*[1] * (len(shape) - len(b.shape(index))), *b.shape(index)))
        value = value if tuple(b.g.type_of(value)[1]) == shape else b.call("expand", [value], shape=list(shape))
        columns.append(b.reshaped(value, (*shape, 1)))
    joined = columns[0] if len(columns) == 1 else b.call("concat", columns, axis=len(shape))
    return b.reshaped(b.call("gather_nd", [b.value(x), joined], batch=0), b.shape(n))


@row("scatter")
def _(b: Importer, n: Node) -> Any:
    # One index a row: the element that it names is another one.
    x, axis, index, value = n.args[:4]
    shape = b.shape(x)
    axis = b.axis(b.number(axis), len(shape))
    places = b.call("iota", [], shape=list(shape), axis=axis, to="i64")
    chosen = b.call("eq", [places, b.operand(index, "i64")])
    return b.call("select", [chosen, b.operand(value, b.dtype(n)), b.value(x)])


@row("index_put")
def _(b: Importer, n: Node) -> Any:
    x, (index,), updates = n.args[:3]
    shape, dtype = b.shape(x), b.dtype(n)
    count = _size(b.shape(index))
    values = b.operand(updates, dtype)
    wanted = (*b.shape(index), *shape[1:])
    if tuple(b.g.type_of(values)[1]) != wanted:
        have = b.shape(updates)
        values = b.reshaped(values, (1,) * (len(wanted) - len(have)) + have)
        values = b.call("expand", [values], shape=list(wanted))
    rows = b.reshaped(b.operand(index, "i64"), (count,))
    how = "add" if b.argument(n, 3, "accumulate", False) else "set"
    return b.call("scatter", [b.value(x), rows, b.reshaped(values, (count, *shape[1:]))], how=how)


@row("slice_scatter", "select_scatter")
def _(b: Importer, n: Node) -> Any:
    # What lies before, the new elements, what lies behind.
    x, source = b.value(n.args[0]), b.operand(n.args[1], b.dtype(n))
    shape = b.shape(n)
    axis = b.axis(b.argument(n, 2, "dim", 0), len(shape))
    size = shape[axis]
    if name_of(n.target) == "select_scatter":
        start = b.argument(n, 3, "index") % size
        stop = start + 1
        source = b.reshaped(source, (*shape[:axis], 1, *shape[axis + 1 :]))
    else:
        start, stop = b.argument(n, 3, "start") or 0, b.argument(n, 4, "end")
        stop = size if stop is None else stop
        start, stop = (max(0, min(size, e + size if e < 0 else e)) for e in (start, stop))
    parts = [b.call("slice", [x], axis=axis, start=0, stop=start, step=1)] if start > 0 else []
    parts.append(source)
    parts += [b.call("slice", [x], axis=axis, start=stop, stop=size, step=1)] if stop < size else []
    return parts[0] if len(parts) == 1 else b.call("concat", parts, axis=axis)


@row("arange")
def _(b: Importer, n: Node) -> Any:
    numbers, dtype = b.number(list(n.args)), b.dtype(n)
    start, step = (numbers[0] if len(numbers) > 1 else 0), (numbers[2] if len(numbers) > 2 else 1)
    made = b.call("iota", [], shape=list(b.shape(n)), axis=0, to=dtype)
    made = made if step == 1 else b.call("mul", [made, b.constant(dtype, step)])
    return made if start == 0 else b.call("add", [made, b.constant(dtype, start)])


FILLS = {"zeros": 0, "zeros_like": 0, "new_zeros": 0, "ones": 1, "ones_like": 1, "new_ones": 1}


@row("full", "full_like", "new_full", "scalar_tensor", *FILLS)
def _(b: Importer, n: Node) -> Any:
    name = name_of(n.target)
    at = {"full": 1, "full_like": 1, "new_full": 2, "scalar_tensor": 0}.get(name)
    fill = FILLS[name] if at is None else b.number(n.args[at])
    if b.dtype(n) == "bool":
        return b.cast(b.call("full", [], shape=list(b.shape(n)), value=exactly(fill), to="u8"), "bool")
    return b.call("full", [], shape=list(b.shape(n)), value=exactly(fill), to=b.dtype(n))


def _size(shape: Sequence[int]) -> int:
    count = 1
    for n in shape:
        count *= n
    return count
