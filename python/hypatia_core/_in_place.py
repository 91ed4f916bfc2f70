"""Changed arguments: what a graph writes into its arguments is written where they lie.

In: a graph without side effects, whose first results are new values of arguments. Out: the same
graph, which writes some of these values into the arguments themselves. Invariant: nothing reads an
argument's old value after it was overwritten.

A cache of keys and values is an argument of which each token changes a few rows. As a function, the
change copies the whole cache, and its result is then copied back.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch._guards import TracingContext
from torch.utils._pytree import tree_leaves

Tensor = torch.Tensor
Node = fx.Node
aten = torch.ops.aten

#: Ops that are their first operand but for some elements, and how these are written in place.
WRITES: dict[Any, Any] = {
    aten.index_put.default: aten.index_put_.default,
    aten._unsafe_index_put.default: aten.index_put_.default,
    aten.scatter.src: aten.scatter_.src,
    aten.scatter.value: aten.scatter_.value,
    aten.scatter_add.default: aten.scatter_add_.default,
    aten.index_add.default: aten.index_add_.default,
    aten.index_copy.default: aten.index_copy_.default,
}
#: Those that overwrite a view of their first operand, and the view.
OVERLAYS: dict[Any, Any] = {
    aten.slice_scatter.default: aten.slice.Tensor,
    aten.select_scatter.default: aten.select.int,
}
#: Copies that are one call together: fewer are as fast one by one.
FEWEST = 2


def without_copies(graph: fx.GraphModule) -> None:
    """Write values into views, not copies of them that are made for the write.

    A copy into a view, as PyTorch hands it over, reads the view's type and shape alone: once it is
    gone, nothing may be left that reads the argument.
    """
    for node in graph.graph.find_nodes(op="call_function", target=aten.copy.default):
        source: Any = node.args[1]
        # Elsewhere a result must not be another's memory.
        if alike(node, source) and all(u.target in OVERLAYS and u.args[0] is not node for u in node.users):
            view: Any = node.args[0]
            node.replace_all_uses_with(source)
            graph.graph.erase_node(node)
            if not view.users and view.op == "call_function":
                graph.graph.erase_node(view)
    graph.recompile()


def changed_results() -> list[int]:
    """The arguments of the graph at hand whose new values are its first results, in their order.

    Empty if one of them changes more than its elements.
    """
    context = TracingContext.try_get()
    meta = context and context.fw_metadata
    if meta is None:
        return []
    changed = list(meta.mutated_inp_runtime_indices)
    plain = all(meta.input_info[i].mutates_data and not meta.input_info[i].mutates_metadata for i in changed)
    return changed if plain else []


def written_in_place(graph: fx.GraphModule, changed: Sequence[int]) -> dict[Node, Node]:
    """The nodes that may write into the arguments that they change; each with its argument.

    Nothing else reads such an argument, so that no order can be wrong.
    """
    found = {}
    inputs = graph.graph.find_nodes(op="placeholder")
    for i, node in zip(changed, results(graph), strict=False):
        argument: Any = inputs[i]
        known = isinstance(node, Node) and node.target in WRITES.keys() | OVERLAYS.keys()
        if known and node.args[0] is argument and list(argument.users) == [node] and reads_once(node, argument):
            found[node] = argument
    return found


def reads_once(node: Node, argument: Node) -> bool:
    """Whether an argument is the first operand of a node alone, and of the node's type."""
    return alike(node, argument) and argument not in tree_leaves((node.args[1:], node.kwargs))


def alike(*nodes: Any) -> bool:
    """Whether two values are tensors of one shape and type on one device."""
    one, other = (n.meta.get("val") if isinstance(n, Node) else None for n in nodes)
    if not (isinstance(one, Tensor) and isinstance(other, Tensor)):
        return False
    return (one.shape, one.dtype, one.device) == (other.shape, other.dtype, other.device)


def write_in_place(graph: fx.GraphModule, nodes: dict[Node, Node], changed: Sequence[int]) -> None:
    """Let these nodes write into their arguments, and copy other new values in one call.

    What reads a new value stands behind its write, and stays there.
    """
    for node, argument in nodes.items():
        with graph.graph.inserting_before(node):
            if target := WRITES.get(node.target):
                made = graph.graph.call_function(target, node.args, node.kwargs)
            else:
                # Base, new values, place.
                base, source, *place = node.args
                view = graph.graph.call_function(OVERLAYS[node.target], (base, *place), node.kwargs)
                made = graph.graph.call_function(aten.copy_.default, (view, source))
        made.meta["val"] = node.meta["val"]
        node.replace_all_uses_with(argument)
        graph.graph.erase_node(node)
    copy_together(graph, changed)
    graph.recompile()


def copy_together(graph: fx.GraphModule, changed: Sequence[int]) -> None:
    """Copy what parts computed for arguments into these, in one call for each device and type."""
    inputs, output = graph.graph.find_nodes(op="placeholder"), graph.graph.output_node()
    values = results(graph)
    groups: dict[Any, list[int]] = {}
    for at, i in enumerate(changed):
        if is_new(values[at]) and alike(inputs[i], values[at]):
            its = inputs[i].meta["val"]
            groups.setdefault((its.device, its.dtype), []).append(at)
    for places in groups.values():
        if len(places) < FEWEST:
            continue
        to, source = [inputs[changed[at]] for at in places], [values[at] for at in places]
        with graph.graph.inserting_before(output):
            graph.graph.call_function(aten._foreach_copy_.default, (to, source))
        for at, argument in zip(places, to, strict=True):
            values[at] = argument
    output.args = (tuple(values),)


def is_new(node: Any) -> bool:
    """Whether a value is a part's: then its memory is no argument's."""
    if not isinstance(node, Node):
        return False
    if node.target is operator.getitem:
        return is_new(node.args[0])
    return node.op == "call_module"


def results(graph: fx.GraphModule) -> list[Any]:
    """The results of a graph."""
    listed: Any = graph.graph.output_node().args[0]
    return list(listed) if isinstance(listed, (list, tuple)) else []
