"""Rows of the importer's table for reductions, softmax and norms.

In: nodes of aten ops. Out: values of a native graph. Invariant: sums of 16-bit elements are f32, as
in PyTorch; what training keeps of a norm is computed only if something reads it.
"""

from __future__ import annotations

import operator
from typing import Any

import torch

from ._eager import NAMES
from ._importer import Importer, Node, Value, inverse, name_of, ordered_row, row, size_of


def reduced_axes(b: Importer, n: Node, at: int = 1) -> list[int]:
    """The axes of a reduction, all where none is named."""
    rank, axes = len(b.shape(n.args[0])), b.argument(n, at, "dim")
    axes = [axes] if isinstance(axes, int) and not isinstance(axes, bool) else axes
    return [b.axis(a, rank) for a in axes] if isinstance(axes, list) and axes else list(range(rank))


@row("sum", "mean", "amax", "amin", "prod")
def _(b: Importer, n: Node) -> Any:
    axes, value = reduced_axes(b, n), b.operand(n.args[0], b.dtype(n))
    if not axes:
        return b.reshaped(value, b.shape(n))
    # Where channels lie last, a sum of each is one over rows.
    if order := b.lies_channels_last(n.args[0]):
        value, axes = b.call("transpose", [value], perm=order), [order.index(a) for a in axes]
    reduced = b.call(name_of(n.target), [value], axes=sorted(axes), keepdims=True)
    if order:
        reduced = b.call("transpose", [reduced], perm=inverse(order))
    return b.reshaped(reduced, b.shape(n))


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
    rows = b.reshaped(b.value(x), (size_of(shape) // max(count, 1), count))
    further = [None, None]
    if any(u.target is not operator.getitem or u.args[1] != 0 for u in n.users):
        further = saved(b, n, b.cast(rows, "f64" if b.dtype(x) == "f64" else "f32"), float(eps))
    params = [None if p is None else b.reshaped(b.value(p), (count,)) for p in (weight, bias)]
    rows, params = of_one_type(b, rows, params)
    attrs = {"eps": float(eps)}
    if params[0] is None:
        made = b.g.call("standardize", [rows], attrs)[0]
        made = made if params[1] is None else b.call("add", [made, params[1]])
    else:
        made = b.g.call("layer_norm", [rows, *params], attrs)[0]
    return [b.reshaped(b.cast(made, b.dtype(x)), shape), *further]


def of_one_type(b: Importer, rows: Value, params: list[Value | None]) -> tuple[Value, list[Value | None]]:
    """Rows and parameters of one type: that of the rows, or a wider one if a parameter has another.

    Autocast on the CPU leaves parameters in f32 beside rows in 16 bits, and a result in 16 bits.
    """
    kinds = {b.g.type_of(v)[0] for v in (rows, *params) if v is not None}
    if len(kinds) == 1:
        return rows, params
    wide = "f64" if "f64" in kinds else "f32"
    return b.cast(rows, wide), [None if v is None else b.cast(v, wide) for v in params]


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
    rows = b.reshaped(b.value(x), (size_of(shape) // count, count))
    attrs = {"eps": torch.finfo(dtype).eps if eps is None else float(eps)}
    rows, (scale,) = of_one_type(b, rows, [scale])
    return [b.reshaped(b.cast(b.g.call("rms_norm", [rows, scale], attrs)[0], b.dtype(x)), shape), None]


@ordered_row("_native_batch_norm_legit_no_training")
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


@row("_native_batch_norm_legit_functional")
def _(b: Importer, n: Node) -> Any:
    """Statistics of a batch: first means, then squares about them, so that nothing cancels."""
    x, weight, bias, mean, variance, _, momentum, eps = n.args
    wide, shape, order = "f64" if b.dtype(x) == "f64" else "f32", b.shape(x), b.lies_channels_last(x)
    value, channel = b.value(x), 1
    if order:
        value, channel = b.call("transpose", [value], perm=order), len(shape) - 1
    value = b.cast(value, wide)
    axes = [a for a in range(len(shape)) if a != channel]
    across = [shape[1] if a == channel else 1 for a in range(len(shape))]
    number = b.g.number
    count = size_of(shape) // max(shape[1], 1)

    def average(of: Value) -> Value:
        return b.call("mul", [b.call("sum", [of], axes=axes, keepdims=True), number(wide, 1.0 / max(count, 1))])

    middle = average(value)
    centred = b.call("sub", [value, middle])
    spread = average(b.call("mul", [centred, centred]))
    scale = b.call("rsqrt", [b.call("add", [spread, number(wide, float(eps))])])

    def of_channels(param: Node) -> Value:
        return b.cast(b.reshaped(b.values[param], across), wide)

    factor = scale if weight is None else b.call("mul", [scale, of_channels(weight)])
    made = b.call("mul", [centred, factor])
    if bias is not None:
        made = b.call("add", [made, of_channels(bias)])
    made = b.cast(made, b.dtype(x))
    if order:
        made = b.call("transpose", [made], perm=inverse(order))

    def moved(before: Node, now: Value) -> Value:
        """A running statistic, moved towards that of this batch."""
        old = of_channels(before)
        kept, new = number(wide, 1.0 - float(momentum)), number(wide, float(momentum))
        return b.call("add", [b.call("mul", [old, kept]), b.call("mul", [now, new])])

    unbiased = b.call("mul", [spread, number(wide, count / (count - 1) if count > 1 else float("nan"))])
    further = [middle, scale, moved(mean, middle), moved(variance, unbiased)]
    kinds = [(NAMES[t.dtype], tuple(int(s) for s in t.shape)) for t in n.meta["val"][1:]]
    return [made, *(b.reshaped(b.cast(v, to), s) for v, (to, s) in zip(further, kinds, strict=True))]
