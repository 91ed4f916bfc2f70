"""Rows of the importer's table for matrix products and convolutions.

In: nodes of aten ops. Out: values of a native graph. Invariant: a factor or a bias that changes
nothing is left out.
"""

from __future__ import annotations

from typing import Any

from ._importer import Importer, Node, ordered_row, row, size_of


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


def tiles(n: Node) -> bool:
    """Whether a convolution's windows tile its operand, as points do."""
    x, weight, _, strides, padding, dilations, transposed, _, groups = n.args
    if transposed or groups != 1 or any(padding) or any(d != 1 for d in dilations):
        return False
    sizes, window = x.meta["val"].shape[2:], weight.meta["val"].shape[2:]
    known = all(isinstance(k, int) for k in (*window, *sizes, *strides))
    return known and list(window) == list(strides) and all(m % k == 0 for m, k in zip(sizes, window, strict=True))


@ordered_row("convolution")
def _(b: Importer, n: Node) -> Any:
    if b.order is not None and tiles(n):
        return _patches(b, n)
    order, b.order = b.order, None
    x, weight, bias = n.args[:3]
    strides, padding, dilations, _, _, groups = b.number(list(n.args[3:9]))
    rank = len(b.shape(weight)) - 2
    # One number stands for all axes.
    strides, padding, dilations = (v * rank if len(v) == 1 else v for v in (strides, padding, dilations))
    attrs = {"strides": strides, "before": padding, "after": padding, "dilations": dilations, "groups": groups}
    made = b.g.call("conv", [b.value(x), b.value(weight)], attrs)[0]
    made = made if bias is None else b.call("add", [made, b.per_channel(bias, n, b.dtype(n))])
    return made if order is None else b.call("transpose", [made], perm=order)


def _patches(b: Importer, n: Node) -> Any:
    """A convolution whose windows tile its operand, with channels last: a product of patches."""
    x, weight, bias = n.args[:3]
    batch, channels, *sizes = b.shape(x)
    filters, _, *window = b.shape(weight)
    places = [size // k for size, k in zip(sizes, window, strict=True)]
    rank, many = len(sizes), size_of(window)
    rows, taps = b.value(x), b.values[weight]
    if many > 1:
        cut = [n for pair in zip(places, window, strict=True) for n in pair]
        rows = b.reshaped(rows, (batch, *cut, channels))
        order = [0, *range(1, 2 * rank, 2), *range(2, 2 * rank + 1, 2), 2 * rank + 1]
        rows = b.call("transpose", [rows], perm=order)
        taps = b.call("transpose", [taps], perm=[0, *range(2, rank + 2), 1])
    rows = b.reshaped(rows, (batch * size_of(places), many * channels))
    taps = b.call("transpose", [b.reshaped(taps, (filters, many * channels))], perm=[1, 0])
    made = b.call("matmul", [rows, taps])
    made = made if bias is None else b.call("add", [made, b.cast(b.values[bias], b.dtype(n))])
    return b.reshaped(made, (batch, *places, filters))
