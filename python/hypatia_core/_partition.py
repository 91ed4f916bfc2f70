"""What the forward graph keeps for the backward graph.

In: the joint graph of AOTAutograd. Out: both halves, as PyTorch's minimum cut divides them, but for
views: whole results are kept, and the backward graph takes its views of them itself. What depends
on no argument, such as a causal mask, is not kept at all. Invariant: no more elements are kept than
PyTorch's cut keeps.

A plan has its results in memory of their own: three views of one product would be three copies.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch._functorch import config
from torch._functorch.partitioners import min_cut_rematerialization_partition

from ._fx import Node, name_of

#: PyTorch's cut keeps some results of pointwise work, since long chains of it would be several
#: kernels of its compiler. In a plan they are part of what reads them.
RECOMPUTE = {
    "ban_recompute_used_far_apart": False,
    "ban_recompute_long_fusible_chains": False,
    "ban_recompute_materialized_backward": False,
}
#: Ops that compute nothing: their result is a view of their first argument.
VIEWS = {
    "alias",
    "detach",
    "expand",
    "permute",
    "select",
    "slice",
    "split",
    "split_with_sizes",
    "squeeze",
    "t",
    "transpose",
    "unsqueeze",
    "view",
    "_unsafe_view",
}
#: Nodes that are computed again, if they depend on no argument, at most.
MAX_CONSTANT = 64


def partition(joint: fx.GraphModule, inputs: Sequence[Any], **how: Any) -> tuple[fx.GraphModule, fx.GraphModule]:
    """The forward and the backward graph of a joint graph."""
    with config.patch(RECOMPUTE):
        forward, backward = min_cut_rematerialization_partition(joint, inputs, **how)
    return keep_whole(forward, backward, how["num_fwd_outputs"])


def keep_whole(
    forward: fx.GraphModule, backward: fx.GraphModule, results: int
) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Keep whole results instead of views of them. `results` are the graph's own, the first."""
    given = list(forward.graph.output_node().args[0])  # pyright: ignore[reportArgumentType]
    kept = given[results:]
    if not all(isinstance(n, fx.Node) and isinstance(n.meta.get("val"), torch.Tensor) for n in kept):
        return forward, backward
    chains = {node: chain_of(node) for node in kept}
    shrunk = {root for root in roots(chains) if size_of(chains, root) >= elements(root)}
    moved = {n: chain for n, chain in chains.items() if chain and (root_of(chain) is None or root_of(chain) in shrunk)}
    if not moved:
        return forward, backward
    whole = dict.fromkeys(root_of(moved[n]) if n in moved else n for n in kept)
    rest = [n for n in whole if n is not None]
    backward = taking(backward, kept, rest, moved)
    forward.graph.output_node().args = ((*given[:results], *rest),)
    forward.graph.eliminate_dead_code()
    forward.recompile()
    return forward, backward


def chain_of(node: Node) -> list[Node]:
    """The nodes from the result that a node views to it; all it depends on if there is none."""
    constant = sources(node)
    if constant is not None:
        return constant
    chain = [node]
    while is_view(chain[0]):
        chain.insert(0, chain[0].args[0])
    return chain if len(chain) > 1 else []


def is_view(node: Node) -> bool:
    """Whether a node is a view of its first argument, by numbers alone."""
    if node.op != "call_function" or len(node.all_input_nodes) != 1:
        return False
    if node.target is operator.getitem:
        return name_of(node.args[0].target) in ("split", "split_with_sizes")
    return name_of(node.target) in VIEWS


def sources(node: Node) -> list[Node] | None:
    """A node and all it depends on, in order; None if that has an argument or a random number."""
    found: dict[Node, None] = {}
    stack = [node]
    while stack:
        n = stack.pop()
        tags = getattr(n.target, "tags", ())
        if n.op != "call_function" or torch.Tag.nondeterministic_seeded in tags or len(found) > MAX_CONSTANT:
            return None
        found.setdefault(n)
        stack += [i for i in n.all_input_nodes if i not in found]
    return [n for n in node.graph.nodes if n in found]


def root_of(chain: list[Node]) -> Node | None:
    """What a chain begins with, if that must be kept."""
    return chain[0] if sources(chain[-1]) is None else None


def roots(chains: dict[Node, list[Node]]) -> set[Node]:
    """The results that some nodes are views of."""
    return {root for chain in chains.values() if chain and (root := root_of(chain)) is not None}


def elements(node: Node) -> int:
    """The number of elements of a node's result, as far as it is known."""
    return int(node.meta["val"].numel())


def size_of(chains: dict[Node, list[Node]], root: Node) -> int:
    """The elements that are kept of a result now: itself, and views of it."""
    return sum(elements(n) for n, chain in chains.items() if n is root or (chain and chain[0] is root))


def taking(
    backward: fx.GraphModule, kept: list[Node], rest: list[Node], moved: dict[Node, list[Node]]
) -> fx.GraphModule:
    """The backward graph with whole results as arguments, of which it takes its views."""
    graph = fx.Graph()
    arguments = backward.graph.find_nodes(op="placeholder")
    old = {p.name: p for p in arguments}
    values: dict[Node, Node] = {}
    for node in rest:
        made = graph.placeholder(node.name)
        made.meta = dict(node.meta)
        values[node] = made
    names = {n.name for n in kept}
    for p in arguments:
        if p.name not in names:
            values[p] = graph.node_copy(p)
    for node in kept:
        for n in moved.get(node, ()):
            if n not in values:
                values[n] = graph.node_copy(n, values.__getitem__)
        values[old[node.name]] = values[node]
    for n in backward.graph.nodes:
        if n.op != "placeholder":
            values[n] = graph.node_copy(n, values.__getitem__)
    return fx.GraphModule(backward, graph)
