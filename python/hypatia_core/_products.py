"""Rows of the importer's table for matrix products and convolutions.

In: nodes of aten ops. Out: values of a native graph. Invariant: a factor or a bias that changes
nothing is left out.
"""

from __future__ import annotations

from typing import Any

from ._importer import Importer, Node, row


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


@row("convolution")
def _(b: Importer, n: Node) -> Any:
    x, weight, bias = n.args[:3]
    strides, padding, dilations, _, _, groups = b.number(list(n.args[3:9]))
    attrs = {"strides": strides, "before": padding, "after": padding, "dilations": dilations, "groups": groups}
    made = b.g.call("conv", [b.value(x), b.value(weight)], attrs)[0]
    return made if bias is None else b.call("add", [made, b.per_channel(bias, n, b.dtype(n))])
