"""`optimize(model, example_inputs)`: an FX graph in which each fusion is one node.

In: a module, or a program that `torch.export` made. Out: a `GraphModule` over the model's own
parameters. Invariant: a node `torch.ops.hypatia.fusion` computes what the ops did that it stands
for: its last argument is their graph, as text, from which its fake kernel and its gradients come.
Ops that no rule fuses stay PyTorch's.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.fx.passes.tools_common import legalize_graph

from . import _launch
from ._division import parts
from ._fusion import fusion, text_of
from ._fx import SHAPED, TABLE, Importer, name_of, read_outside
from ._known import unsupported
from ._rules import Rules, Scalar, library
from .backend import computes, device_of, table
from .errors import InputError
from .fuse import _together

#: Ops that move no numbers, by their names: a fusion takes them in where they stand in its way.
VIEWS = {*SHAPED, "t", "transpose", "permute", "expand", "alias", "detach"}


@dataclass(frozen=True)
class Fused:
    """A fusion that the optimiser found."""

    name: str
    formula: str
    nodes: list[str]
    """The names of the graph's nodes that it computes, without those that rules made needless."""


def optimize(
    model: torch.nn.Module | torch.export.ExportedProgram,
    example_inputs: Sequence[Any] = (),
    *,
    rules: Iterable[Rules | Scalar] = (),
    target: str | None = None,
    dynamic_shapes: Any = None,
) -> fx.GraphModule:
    """The model as an FX graph in which each fusion is one node ``torch.ops.hypatia.fusion``.

    A node's arguments are its operands, its name, and the rules that made it, yours by their
    names. Parameters are the model's own: state dicts and gradients are the same. The graph can be
    printed, exported, and compiled further. An exported program needs no inputs.

    Args:
        model: a module, in the mode in which it will run, or a program of ``torch.export``.
        example_inputs: positional inputs of the module.
        rules: rules of your own, beside the library's.
        target: the device for which costs are estimated, ``cpu`` or ``h200``; by default the
            inputs' kind.
        dynamic_shapes: as in ``torch.export``.

    >>> import hypatia_core as hyp, torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU())
    >>> graph = hyp.optimize(model, (torch.ones(2, 4),))
    >>> fusion = torch.ops.hypatia.fusion.default
    >>> [node.args[1] for node in graph.graph.nodes if node.target is fusion]
    ['gemm_add_relu']
    """
    chosen = _together(rules) or library()
    if isinstance(model, torch.export.ExportedProgram):
        program = model
    elif isinstance(model, torch.nn.Module):
        args = (example_inputs,) if isinstance(example_inputs, torch.Tensor) else tuple(example_inputs)
        check_inputs(model, args)
        program = torch.export.export(model, args, dynamic_shapes=dynamic_shapes, strict=False)
    else:
        raise InputError(f"optimize: expected a module or an exported program, not {type(model).__name__}")
    module = program.run_decompositions(table()).module()
    assert isinstance(module, fx.GraphModule)
    with_values(module)
    device = device_of(module)
    target = target or ("h200" if device.type == "cuda" else "cpu")
    all_found = fusions(module, chosen, device, target)
    for found in all_found:
        others = {name for other in all_found if other is not found for name in other.nodes}
        replace(module, found, others, chosen, target)
    module.graph.lint()
    module.recompile()
    return module


def check_inputs(model: torch.nn.Module, args: tuple[Any, ...]) -> None:
    """Check that a model takes these inputs.

    Raises:
        InputError: if it takes more, or fewer.
    """
    try:
        inspect.signature(model.forward).bind(*args)
    except TypeError as e:
        given = "no inputs" if not args else f"{len(args)} inputs"
        raise InputError(
            f"optimize: {type(model).__name__}.forward was given {given}: {e}; write `optimize(model, (x,))`"
        ) from None
    except ValueError:
        return  # It has no signature.


def with_values(module: fx.GraphModule) -> None:
    """Give nodes that name a parameter or a constant their value, as the others have one."""
    for node in module.graph.find_nodes(op="get_attr"):
        node.meta.setdefault("val", operator.attrgetter(str(node.target))(module))


def fusions(module: fx.GraphModule, rules: Rules, device: torch.device, target: str) -> list[Fused]:
    """What the rules fuse, in all parts of the graph whose ops are known."""
    found: list[Fused] = []
    for nodes in parts(module.graph, lambda n: computes(n) and not unsupported(n, device)):
        imported = Importer(module, rules, nodes)
        model = imported.g.model(**_launch.settings_on(torch.device("cpu")))
        found += [Fused(*one[:3]) for one in model.fusions(target)]
    return found


def fired(module: fx.GraphModule, nodes: list[fx.Node], rules: Rules, target: str) -> list[str]:
    """The rules that make these nodes one."""
    model = Importer(module, rules, nodes).g.model(**_launch.settings_on(torch.device("cpu")))
    return sorted(model.fired(target))


def replace(module: fx.GraphModule, found: Fused, others: set[str], rules: Rules, target: str) -> None:
    """Put one node in the place of a fusion's nodes, if no other fusion's stand between them."""
    named = {n for n in module.graph.nodes if n.name in set(found.nodes)}
    nodes = together(module.graph, named, others)
    results = read_outside(nodes)
    ops = [n for n in nodes if not is_view(n) and n.target is not operator.getitem]
    if not results or len(ops) < 2:
        return
    graph, env = fx.Graph(), {}
    inputs = list(dict.fromkeys(i for n in nodes for i in n.all_input_nodes if i not in nodes))
    tensors = [i for i in inputs if isinstance(i.meta.get("val"), torch.Tensor)]
    sizes = [i for i in inputs if i not in tensors]
    for node in [*tensors, *sizes]:
        env[node] = graph.placeholder(node.name)
    for node in nodes:
        env[node] = graph.node_copy(node, env.__getitem__)
    graph.output([env[r] for r in results])
    with module.graph.inserting_before(module.graph.output_node()):
        args = (tensors, found.name, fired(module, nodes, rules, target), sizes, text_of(graph, len(tensors), rules))
        call = module.graph.call_function(torch.ops.hypatia.fusion.default, args)
        call.name = module.graph._graph_namespace.create_name(found.name, None)
        call.meta["val"] = [r.meta["val"] for r in results]
        for i, result in enumerate(results):
            one = module.graph.call_function(operator.getitem, (call, i))
            one.meta["val"] = result.meta["val"]
            result.replace_all_uses_with(one)
    for node in reversed(nodes):
        module.graph.erase_node(node)
    legalize_graph(module)


def together(graph: fx.Graph, nodes: set[fx.Node], others: set[str]) -> list[fx.Node]:
    """The nodes in the graph's order, with those between them and the views in front of them.

    None if another fusion's node stands between them, or one that no plan computes.
    """
    nodes |= {u for n in nodes for u in n.users if u.target is operator.getitem}
    after, before = reached(nodes, lambda n: n.users), reached(nodes, lambda n: n.all_input_nodes)
    nodes |= after & before
    if any(n.name in others or not is_known(n, nodes) for n in nodes):
        return []
    while front := {i for n in nodes for i in n.all_input_nodes if is_view(i) and set(i.users) <= nodes} - nodes:
        nodes |= front
    return [n for n in graph.nodes if n in nodes]


def is_view(node: fx.Node) -> bool:
    """Whether a node moves no numbers."""
    return name_of(node.target) in VIEWS


def is_known(node: fx.Node, nodes: set[fx.Node]) -> bool:
    """Whether a plan can compute a node as one of these."""
    if node.target is operator.getitem:
        return node.args[0] in nodes
    return name_of(node.target) in TABLE


def reached(start: set[fx.Node], step: Any) -> set[fx.Node]:
    """All nodes that are one step or more from these."""
    found: set[fx.Node] = set()
    left = list(start)
    while left:
        for node in step(left.pop()):
            if node not in found:
                found.add(node)
                left.append(node)
    return found


__all__ = ["fusion", "optimize"]
