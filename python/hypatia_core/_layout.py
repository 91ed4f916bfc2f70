"""Channels last: how tensors lie around the convolutions that PyTorch computes on a GPU.

In: a graph, of inference or of both passes of training, whose nodes know their values' sizes and
strides, and which of its convolutions PyTorch computes. Out: the same graph where these read and
write tensors whose channels come last in memory, if that is how their kernels are fast; their
biases are nodes of their own. Invariant: the graph's results keep their strides.

cuDNN's kernels for the matrix units read channels last, in 16 bits; for other tensors it rearranges
memory around each. Parts of the graph store their results as it wants them at no cost, and in this
order a norm over the channels, or a convolution of points, is one over rows.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.passes.fake_tensor_prop import FakeTensorProp

from ._importer import Node, inverse, name_of
from ._known import HALVES, is_overlay

aten = torch.ops.aten
#: Views that are copies where memory lies in another order.
RESHAPES = ("view", "_unsafe_view")
FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


def channels_last(graph: fx.GraphModule, by_pytorch: Callable[[fx.Node], bool]) -> bool:
    """Let tensors lie channels last around the convolutions that PyTorch computes, if that pays.

    Returns whether the graph was changed.
    """
    nodes = [n for n in graph.graph.nodes if name_of(n.target) == "convolution"]
    pytorchs = list(filter(by_pytorch, nodes))
    if not pytorchs or not pays(pytorchs) or not all(map(is_plain, graph.graph.nodes)):
        return False
    strides = {i: n.meta["val"].stride() for i, n in enumerate(results(graph)) if is_tensor(n)}
    if not turn(graph, nodes, by_pytorch):
        return False
    keep(graph, strides)
    graph.recompile()
    return True


def pays(convolutions: list[Node]) -> bool:
    """Whether most of the work is convolutions whose kernels want channels last."""
    wanted = others = 0.0
    for node in convolutions:
        x, weight = (a.meta["val"] for a in node.args[:2])
        groups = node.args[8]
        if not all(isinstance(n, int) for n in (*x.shape, *weight.shape, *node.meta["val"].shape)):
            return False
        work = node.meta["val"].numel() * weight.numel() / max(weight.shape[0], 1)
        # cuDNN has slow kernels alone for groups of a few channels in this order.
        grouped = groups > 1 and weight.shape[1] > 1
        if x.dim() in FORMATS and x.dtype in HALVES and not grouped:
            wanted += work
        else:
            others += work
    return wanted > others


def is_plain(node: fx.Node) -> bool:
    """Whether a node's result is known from its operands' alone, and none of its sizes is open."""
    if node.op == "call_function":
        known = isinstance(node.target, torch._ops.OpOverload) or node.target is operator.getitem
        return known and not is_overlay(node)
    return node.op == "output" or (node.op == "placeholder" and is_known(node.meta.get("val")))


def is_known(value: Any) -> bool:
    """Whether a tensor's sizes and strides are numbers."""
    return isinstance(value, torch.Tensor) and all(isinstance(n, int) for n in (*value.shape, *value.stride()))


def is_tensor(node: Any) -> bool:
    """Whether a node's result is one tensor."""
    return isinstance(node, fx.Node) and isinstance(node.meta.get("val"), torch.Tensor)


def results(graph: fx.GraphModule) -> list[Any]:
    """What a graph returns."""
    found = graph.graph.output_node().args[0]
    return list(found) if isinstance(found, (list, tuple)) else [found]


def turn(graph: fx.GraphModule, convolutions: list[Node], by_pytorch: Callable[[fx.Node], bool]) -> bool:
    """Put copies in front of convolutions, and say anew how values lie. False without a mode."""
    given = [n.meta["val"] for n in graph.graph.find_nodes(op="placeholder")]
    mode = next((t.fake_mode for t in given if hasattr(t, "fake_mode")), None)
    if not isinstance(mode, FakeTensorMode):
        return False
    part_biases(graph, by_pytorch)
    copies: dict[Node, Node] = {}
    backward = [n for n in graph.graph.nodes if name_of(n.target) == "convolution_backward"]
    # Of a convolution its operand, of its gradients the result's and the operand.
    for node, place in [(n, 0) for n in convolutions] + [(n, i) for n in backward for i in (0, 1)]:
        operand: Node = node.args[place]
        if operand not in copies and operand.meta["val"].dim() in FORMATS:
            copies[operand] = turned(graph.graph, operand)
        node.update_arg(place, copies.get(operand, operand))
    free_strides(graph.graph)
    with mode:
        FakeTensorProp(graph, mode).propagate_dont_convert_inputs(*given)
    for source, copy in copies.items():
        if source.meta["val"].is_contiguous(memory_format=copy.kwargs["memory_format"]):
            copy.replace_all_uses_with(source)
            graph.graph.erase_node(copy)
    return True


def turned(graph: fx.Graph, operand: Node) -> Node:
    """A copy of a tensor with channels last."""
    how: dict[str, Any] = {"memory_format": FORMATS[operand.meta["val"].dim()]}
    # Arguments stand before everything else.
    after = list(graph.find_nodes(op="placeholder"))[-1] if operand.op == "placeholder" else operand
    with graph.inserting_after(after):
        return graph.call_function(aten.clone.default, (operand,), how)


def free_strides(graph: fx.Graph) -> None:
    """Take out what asks for the strides that values had."""
    for node in list(graph.nodes):
        # These are views only of what lies row by row.
        if name_of(node.target) in RESHAPES:
            node.target = aten.reshape.default
        # It is no overlay, so it is its operand.
        elif name_of(node.target) == "as_strided":
            operand: Node = node.args[0]
            node.replace_all_uses_with(operand)
            graph.erase_node(node)


def part_biases(graph: fx.GraphModule, by_pytorch: Callable[[fx.Node], bool]) -> None:
    """Take biases and their gradients out of the convolutions that PyTorch computes on a GPU.

    cuDNN has neither: PyTorch adds a bias in a kernel of its own, and its gradient's reads channels
    last slowly. A part adds them beside other work.
    """
    for node in list(graph.graph.nodes):
        name = name_of(node.target)
        if name == "convolution" and by_pytorch(node):
            part_bias(graph.graph, node)
        elif name == "convolution_backward" and by_pytorch(node):
            part_gradient(graph.graph, node)
    graph.recompile()


def part_bias(graph: fx.Graph, node: Node) -> None:
    """Add a convolution's bias in a node of its own, as cuDNN's result is stored before it too."""
    if node.args[2] is None:
        return
    bias, rank = node.args[2], node.meta["val"].dim()
    with graph.inserting_after(node):
        shaped = computed(graph, aten.reshape.default, bias, [-1, *[1] * (rank - 2)])
    with graph.inserting_after(shaped):
        added = computed(graph, aten.add.Tensor, node, shaped)
    node.replace_all_uses_with(added, delete_user_cb=lambda user: user is not added)
    node.update_arg(2, None)


def part_gradient(graph: fx.Graph, node: Node) -> None:
    """Compute the gradient of a convolution's bias, a sum, in a node of its own."""
    mask = list(node.args[-1])
    if not mask[2]:
        return
    gradient: Node = node.args[0]
    taken = [u for u in node.users if u.target is operator.getitem and u.args[1] == 2]
    with graph.inserting_before(node):
        axes = [a for a in range(gradient.meta["val"].dim()) if a != 1]
        total = computed(graph, aten.sum.dim_IntList, gradient, axes)
    for user in taken:
        user.replace_all_uses_with(total)
        graph.erase_node(user)
    node.update_arg(len(node.args) - 1, [*mask[:2], False])
    if isinstance(node.meta["val"], (list, tuple)):
        node.meta["val"] = (*node.meta["val"][:2], None)


def computed(graph: fx.Graph, target: Any, *args: Any) -> Node:
    """A new node, whose result's sizes and strides are known if those of its operands are."""
    made = graph.call_function(target, args)
    values = [a.meta.get("val") if isinstance(a, fx.Node) else a for a in args]
    if all(v is not None for v in values):
        made.meta["val"] = target(*values)
    return made


def keep(graph: fx.GraphModule, strides: dict[int, tuple[int, ...]]) -> None:
    """Copy the graph's results that would lie in another order than before."""
    output = graph.graph.output_node()
    returned = results(graph)
    copies: dict[Node, Node] = {}
    for i, wanted in strides.items():
        node = returned[i]
        if node.meta["val"].stride() == wanted:
            continue
        if node not in copies:
            with graph.graph.inserting_before(output):
                order = sorted(range(len(wanted)), key=lambda axis: -wanted[axis])
                copies[node] = in_order(graph.graph, node, order)
        returned[i] = copies[node]
    single = not isinstance(output.args[0], (list, tuple))
    output.args = (returned[0] if single else tuple(returned),)


def in_order(graph: fx.Graph, node: Node, order: list[int]) -> Node:
    """A copy whose axes lie in that order."""
    back = inverse(order)
    plain: dict[str, Any] = {"memory_format": torch.contiguous_format}
    steps: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = [
        (aten.permute.default, (order,), {}),
        (aten.clone.default, (), plain),
        (aten.permute.default, (back,), {}),
    ]
    for target, args, how in steps:
        made = graph.call_function(target, (node, *args), how)
        made.meta["val"] = target(node.meta["val"], *args, **how)
        node = made
    return node
