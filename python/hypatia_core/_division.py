"""Which nodes of a graph form parts.

In: a graph, and which of its nodes plans can compute. Out: the graph with a module for each part.
Invariant: what a part needs comes before it, and only tensors and numbers pass between parts.

Nodes that plans cannot compute lie between parts. A node's level is the largest number of parts
that lie before it on a path of the graph, divided by such nodes; the nodes of one level are a part.
So there are as few parts as there can be, and a node is in the part of what it reads.

A view of what comes from outside of its part is made again in each part that reads it: as a result
it would be a copy.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from torch import fx
from torch.fx.passes.utils.fuser_utils import fuse_by_partitions

from ._partition import is_view

#: Nodes that compute nothing by themselves.
VIEWS = ("view", "getitem")


def levels(graph: fx.Graph, known: Callable[[fx.Node], bool]) -> dict[fx.Node, int]:
    """The level of each node that plans can compute."""
    own: dict[fx.Node, int] = {}
    level: dict[fx.Node, int] = {}
    free: set[fx.Node] = set()
    for node in graph.nodes:
        read = node.all_input_nodes
        # One of several results is where all of them are: no list passes between parts.
        alone = is_item(node) and node.args[0] not in own
        if node.op == "call_function" and known(node) and not alone:
            own[node] = max([0, *(level[r] if r in own else level[r] + 1 for r in read)])
            if all(r not in own or r in free for r in read):
                free.add(node)
        level[node] = own.get(node, max([-1, *(level[r] for r in read)]))
    # What depends on no part is computed where it is first needed: it need not be kept until then.
    for node in reversed(list(graph.nodes)):
        items = items_of(node)
        users = [u for n in (node, *items) for u in n.users if u not in items]
        if node in free and not is_item(node) and users and all(u.op != "output" for u in users):
            for n in (node, *items):
                own[n] = level[n] = min(level[u] for u in users)
    return own


def is_item(node: fx.Node) -> bool:
    """Whether a node is one of several results."""
    return node.target is operator.getitem


def items_of(node: fx.Node) -> list[fx.Node]:
    """The results of a node, and results of these."""
    items = [u for u in node.users if is_item(u)]
    return [*items, *(i for n in items for i in items_of(n))]


def parts(graph: fx.Graph, known: Callable[[fx.Node], bool], single: bool = False) -> list[list[fx.Node]]:
    """The nodes of each part, in order. `single` makes parts of ops that stand alone too."""
    found: dict[int, list[fx.Node]] = {}
    for node, level in levels(graph, known).items():
        found.setdefault(level, []).append(node)
    return [nodes for _, nodes in sorted(found.items()) if single or sum(map(computes, nodes)) > 1]


def divide(module: fx.GraphModule, known: Callable[[fx.Node], bool], single: bool) -> fx.GraphModule:
    """The graph with its parts as modules."""
    found = parts(module.graph, known, single)
    own_views(module.graph, found)
    return fuse_by_partitions(module, [dict.fromkeys(nodes) for nodes in found], prefix="hypatia_")


def share_results(graph: fx.Graph, first: int) -> set[str]:
    """Let results that are views of other results be these in memory, as in eager.

    They are taken outside of parts, which have each result in memory of its own. The first results
    are values of changed arguments. Returns the names of these views.
    """
    output = graph.output_node()
    listed: Any = output.args[0]
    if not isinstance(listed, (list, tuple)):
        return set()
    results, made = list(listed), set()
    whole = {r for r in results[first:] if isinstance(r, fx.Node) and r.op == "call_function"}
    for i, result in enumerate(results[first:], first):
        chain = [result] if isinstance(result, fx.Node) else []
        while chain and is_view(chain[0]):
            chain.insert(0, chain[0].all_input_nodes[0])
            if chain[0] in whole:
                break
        if len(chain) < 2 or chain[0] not in whole:
            continue
        results[i] = chain[0]
        for node in chain[1:]:
            with graph.inserting_before(output):
                copy = graph.node_copy(node, {node.all_input_nodes[0]: results[i]}.__getitem__)
            results[i] = copy
            made.add(copy.name)
    if made:
        output.args = (tuple(results),)
        graph.eliminate_dead_code()
    return made


def own_views(graph: fx.Graph, found: list[list[fx.Node]]) -> None:
    """Give each part that reads a view of what comes from outside its part a view of its own."""
    part_of = {node: i for i, nodes in enumerate(found) for node in nodes}
    # Backwards: a view that was made again may read another view.
    for node in reversed(list(graph.nodes)):
        part = part_of.get(node)
        if part is None or is_item(node) or not is_view(node) or comes_from(node, part_of) == part:
            continue
        made: dict[int, fx.Node] = {}
        for user in list(node.users):
            reader = part_of.get(user)
            if reader is None or reader == part:
                continue
            if reader not in made:
                with graph.inserting_after(node):
                    copy = graph.node_copy(node)
                made[reader] = copy
                part_of[copy] = reader
                found[reader].append(copy)
            user.replace_input_with(node, made[reader])
        if not node.users:
            found[part].remove(node)
            graph.erase_node(node)


def comes_from(node: fx.Node, part_of: dict[fx.Node, int]) -> int | None:
    """The part that computes what a node is a view of, if it is a part."""
    part = part_of[node]
    while is_view(node) and part_of.get(node) == part:
        node = node.all_input_nodes[0]
    return part_of.get(node)


def computes(node: fx.Node) -> bool:
    """Whether a node is more than another view of what it reads."""
    return getattr(node.target, "__name__", "").split(".")[0] not in VIEWS
