"""Rows of the importer's table for pointwise ops and their gradients.

In: nodes of aten ops. Out: values of a native graph. Invariant: operands take the type in which
PyTorch computes the op; each row works in any order of axes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from ._eager import NAMES
from ._importer import Importer, Node, Value, name_of, ordered_row

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
LOGIC = {"logical_and": "and", "logical_or": "or", "logical_xor": "xor"}
BITS = {"bitwise_and": "and", "bitwise_or": "or", "bitwise_xor": "xor"}


@ordered_row(*SCALARS)
def _(b: Importer, n: Node) -> Any:
    wanted = b.dtype(n) if b.dtype(n) != "bool" else b.dtype(n.args[0])
    return b.call(SCALARS[name_of(n.target)], [b.operand(n.args[0], wanted)])


@ordered_row(*PAIRS)
def _(b: Importer, n: Node) -> Any:
    name, dtype = PAIRS[name_of(n.target)], b.dtype(n)
    if dtype == "bool":
        name = {"mul": "and", "max": "or", "min": "and"}[name]
    return b.call(name, [b.operand(n.args[0], dtype), b.operand(n.args[1], dtype)])


@ordered_row("sign")
def _(b: Importer, n: Node) -> Any:
    # By comparisons, as PyTorch: NaN has the sign 0.
    dtype = b.dtype(n)
    if dtype == "bool":
        return b.value(n.args[0])
    x, zero = b.operand(n.args[0], dtype), b.constant(dtype, 0)
    below = b.call("select", [b.call("lt", [x, zero]), b.constant(dtype, -1), zero])
    return b.call("select", [b.call("lt", [zero, x]), b.constant(dtype, 1), below])


#: Powers that PyTorch takes as roots: they differ for minus infinity and minus zero.
ROOTS = {0.5: "sqrt", -0.5: "rsqrt"}


@ordered_row("pow")
def _(b: Importer, n: Node) -> Any:
    x, exponent, dtype = *n.args[:2], b.dtype(n)
    # In f16 its vector code for the CPU has no roots.
    rooted = dtype != "f16" or n.meta["val"].device.type != "cpu"
    if rooted and isinstance(exponent, float) and exponent in ROOTS:
        return b.call(ROOTS[exponent], [b.operand(x, dtype)])
    return b.call("pow", [b.operand(x, dtype), b.operand(exponent, dtype)])


@ordered_row("div", "true_divide")
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


@ordered_row("add", "sub", "rsub")
def _(b: Importer, n: Node) -> Any:
    name, dtype = name_of(n.target), b.dtype(n)
    x, y = (n.args[1], n.args[0]) if name == "rsub" else (n.args[0], n.args[1])
    right = b.operand(y, dtype)
    left = b.operand(x, dtype)
    if (alpha := b.argument(n, 2, "alpha", 1)) != 1:
        right = b.call("mul", [right, b.constant(dtype, alpha)])
    return b.call("add" if name == "add" else "sub", [left, right])


@ordered_row(*COMPARISONS)
def _(b: Importer, n: Node) -> Any:
    name, swapped, negated = COMPARISONS[name_of(n.target)]
    values = [a.meta["val"] if isinstance(a, fx.Node) else a for a in n.args[:2]]
    dtype = NAMES[torch.result_type(*values)]
    dtype = "u8" if dtype == "bool" else dtype
    pair = [b.operand(a, dtype) for a in n.args[:2]]
    made = b.call(name, pair[::-1] if swapped else pair)
    return b.call("not", [made]) if negated else made


@ordered_row("logical_not", "bitwise_not")
def _(b: Importer, n: Node) -> Any:
    return b.call("not", [b.operand(n.args[0], "bool")])


@ordered_row(*LOGIC, *BITS)
def _(b: Importer, n: Node) -> Any:
    name = name_of(n.target)
    return b.call({**LOGIC, **BITS}[name], [b.operand(a, "bool") for a in n.args[:2]])


@ordered_row("where")
def _(b: Importer, n: Node) -> Any:
    return b.call("select", [b.value(n.args[0]), *(b.operand(a, b.dtype(n)) for a in n.args[1:3])])


@ordered_row("clamp", "clamp_min", "clamp_max", "hardtanh")
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


@ordered_row("gelu")
def _(b: Importer, n: Node) -> Any:
    tanh = b.argument(n, 1, "approximate", "none") == "tanh"
    return b.call("gelu_tanh" if tanh else "gelu", [b.value(n.args[0])])


# Gradients of functions stay whole, so that what is saved for them are operands or results, and no
# mask whose elements flip where an operand is rounded to the other side of 0.


@ordered_row("threshold_backward")
def _(b: Importer, n: Node) -> Any:
    gradient, x, threshold = n.args
    dtype = b.dtype(n)
    low = b.call("le", [b.operand(x, dtype), b.operand(threshold, dtype)])
    return b.call("select", [low, b.g.number(dtype, 0.0), b.operand(gradient, dtype)])


@ordered_row("gelu_backward")
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


@ordered_row("silu_backward")
def _(b: Importer, n: Node) -> Any:
    gradient, x = widened(b, n)
    one, share = b.g.number(b.g.type_of(x)[0], 1.0), b.call("sigmoid", [x])
    bend = b.call("add", [one, b.call("mul", [x, b.call("sub", [one, share])])])
    return b.cast(b.call("mul", [gradient, b.call("mul", [share, bend])]), b.dtype(n))


@ordered_row("sigmoid_backward", "tanh_backward")
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


@ordered_row("leaky_relu")
def _(b: Importer, n: Node) -> Any:
    slope = b.argument(n, 1, "negative_slope", 0.01)
    return b.call("leaky_relu", [b.operand(n.args[0], b.dtype(n)), b.constant(b.dtype(n), slope)])


@ordered_row("elu")
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


@ordered_row("hardsigmoid")
def _(b: Importer, n: Node) -> Any:
    dtype = b.dtype(n)
    return b.call("hard_sigmoid", [b.operand(n.args[0], dtype), b.g.number(dtype, 1 / 6), b.g.number(dtype, 0.5)])
