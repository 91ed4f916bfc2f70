"""Results of PyTorch's ops that do not lie as they were traced.

In: a graph whose nodes know their values' strides. Out: the same graph, in which such results are
copied into the order that they were traced with. Invariant: what views them counts on that order.
"""

from __future__ import annotations

import operator
from typing import Any

from torch import fx

from ._importer import Node, name_of
from ._layout import in_order

#: Ops whose first result lies row by row or channels last, but is traced as lying like the operand.
NORMS = {
    "_native_batch_norm_legit",
    "_native_batch_norm_legit_functional",
    "batch_norm_backward",
    "native_batch_norm",
    "native_batch_norm_backward",
}


def as_traced(graph: fx.GraphModule) -> None:
    """Copy results into the order that they were traced with, where they lie in another."""
    for node in list(graph.graph.nodes):
        if name_of(node.target) not in NORMS:
            continue
        for item in [u for u in node.users if u.target is operator.getitem and u.args[1] == 0]:
            order = traced_order(item)
            if order is None:
                continue
            users = list(item.users)
            with graph.graph.inserting_before(item.next):
                copied = in_order(graph.graph, item, order)
            for user in users:
                user.replace_input_with(item, copied)
    graph.recompile()


def traced_order(item: Node) -> list[int] | None:
    """The axes of a result in the order in which it was traced, if it does not lie so."""
    value = item.meta["val"]
    strides = [s for s in map(hint, value.stride()) if s is not None]
    if len(strides) < value.dim():
        return None
    order = sorted(range(len(strides)), key=lambda axis: -strides[axis])
    rows, channels = list(range(len(order))), [0, *range(2, len(order)), 1]
    return None if order == rows or (len(order) in (4, 5) and order == channels) else order


def hint(size: Any) -> int | None:
    """A size as a number; None if it is not known. Nothing is guarded by it."""
    return size if isinstance(size, int) else size.node.hint
