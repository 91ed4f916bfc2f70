"""The op `torch.ops.hypatia.fusion`: several of PyTorch's ops as one node of a graph.

In: operands, and the graph of the ops as text. Out: what they compute, by a plan of Hypatia or by
PyTorch. Invariant: the text says everything, so that a node can be exported, saved and loaded;
there is one object for each text, which all its nodes share with their plans.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from ._part import Loose
from ._rules import Rules, library
from .errors import InputError

Tensor = torch.Tensor


def text_of(graph: fx.Graph, tensors: int, rules: Rules) -> str:
    """A graph of aten ops as text. Its first placeholders, `tensors` of them, are tensors."""
    number: dict[fx.Node, int] = {}
    nodes: list[Any] = []
    for node in graph.nodes:
        number[node] = len(number)
        if node.op == "placeholder":
            continue
        if node.op == "output":
            nodes.append(["output", _written(node.args[0], number)])
            continue
        name = "getitem" if node.target is operator.getitem else str(node.target)
        nodes.append([name, _written(list(node.args), number), _written(dict(node.kwargs), number)])
    sources = list(rules.sources) if rules != library() else []
    inputs = sum(n.op == "placeholder" for n in graph.nodes)
    return json.dumps({"inputs": inputs, "tensors": tensors, "nodes": nodes, "rules": sources})


def _written(value: Any, number: dict[fx.Node, int]) -> Any:
    """An argument: nodes as {"node": number}, types and devices by name, the rest as it is."""
    if isinstance(value, fx.Node):
        return {"node": number[value]}
    if isinstance(value, (list, tuple)):
        return [_written(v, number) for v in value]
    if isinstance(value, dict):
        return {"dict": {k: _written(v, number) for k, v in value.items()}}
    if isinstance(value, torch.dtype):
        return {"torch": str(value).removeprefix("torch.")}
    if isinstance(value, (torch.memory_format, torch.layout)):
        return {"torch": str(value).removeprefix("torch.")}
    if isinstance(value, torch.device):
        return {"device": str(value)}
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return {"float": value.hex()}
    raise InputError(f"an argument cannot be written: {value!r}")


def _read(value: Any, nodes: list[fx.Node]) -> Any:
    if isinstance(value, list):
        return [_read(v, nodes) for v in value]
    if not isinstance(value, dict):
        return value
    ((kind, of),) = value.items()
    if kind == "dict":
        return {k: _read(v, nodes) for k, v in of.items()}
    readers = {
        "node": nodes.__getitem__,
        "torch": lambda name: getattr(torch, name),
        "device": torch.device,
        "float": float.fromhex,
    }
    return readers[kind](of)


def _target(name: str) -> Any:
    if name == "getitem":
        return operator.getitem
    space, op, overload = name.split(".")
    return getattr(getattr(getattr(torch.ops, space), op), overload)


class Body:
    """The ops of a fusion."""

    known: dict[str, Body] = {}  # noqa: RUF012

    def __init__(self, text: str) -> None:
        data = json.loads(text)
        graph = fx.Graph()
        nodes = [graph.placeholder(f"x{i}") for i in range(data["inputs"])]
        for name, *rest in data["nodes"]:
            if name == "output":
                nodes.append(graph.output(_read(rest[0], nodes)))
            else:
                nodes.append(graph.call_function(_target(name), tuple(_read(rest[0], nodes)), _read(rest[1], nodes)))
        rules = Rules([tuple(s) for s in data["rules"]]) if data["rules"] else library()
        self.graph = fx.GraphModule({}, graph)
        self.part = Loose(self.graph, rules, data["tensors"])

    @staticmethod
    def of(text: str) -> Body:
        """The ops of that text."""
        body = Body.known.get(text)
        return body if body is not None else Body.known.setdefault(text, Body(text))


SCHEMA = "(Tensor[] inputs, str name, str[] rules, SymInt[] sizes, str body) -> Tensor[]"


@torch.library.custom_op("hypatia::fusion", mutates_args=(), schema=SCHEMA)
def fusion(inputs: Sequence[Tensor], name: str, rules: Sequence[str], sizes: Sequence[int], body: str) -> list[Tensor]:
    """Compute the ops of `body`. `name` and `rules` say what they became."""
    of = Body.of(body)
    of.part.label = name
    with torch.no_grad():
        made = of.part(*inputs, *sizes)
    # The results of a custom op must be memory of their own.
    taken = {t.untyped_storage().data_ptr() for t in inputs}
    results = []
    for t in made:
        t = t.clone() if t.untyped_storage().data_ptr() in taken else t
        taken.add(t.untyped_storage().data_ptr())
        results.append(t)
    return results


@fusion.register_fake
def _(inputs: Sequence[Tensor], name: str, rules: Sequence[str], sizes: Sequence[int], body: str) -> list[Tensor]:
    return [torch.empty_like(t) for t in Body.of(body).graph(*inputs, *sizes)]


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    tensors, _, rules, ctx.sizes, ctx.body = inputs
    ctx.rules = len(rules)
    ctx.save_for_backward(*tensors)


def _gradients(ctx: Any, grads: list[Tensor]) -> tuple[Any, ...]:
    """PyTorch's own gradients of the same ops, which it computes once more."""
    # Gradients that are to be differentiated again depend on the operands.
    twice = torch.is_grad_enabled()
    leaves = [
        t.view_as(t) if twice and t.requires_grad else t.detach().requires_grad_(t.is_floating_point())
        for t in ctx.saved_tensors
    ]
    with torch.enable_grad():
        made = Body.of(ctx.body).graph(*leaves, *ctx.sizes)
    pairs = [(y, g) for y, g in zip(made, grads, strict=True) if y.requires_grad and g is not None]
    wanted = [t for t in leaves if t.requires_grad]
    found = iter(
        torch.autograd.grad([y for y, _ in pairs], wanted, [g for _, g in pairs], allow_unused=True, create_graph=twice)
        if pairs and wanted
        else [None] * len(wanted)
    )
    # PyTorch takes an empty list for one of tensors, and wants as many gradients.
    of_rules, of_sizes = (None if n else [] for n in (ctx.rules, len(ctx.sizes)))
    return [next(found) if t.requires_grad else None for t in leaves], None, of_rules, of_sizes, None


fusion.register_autograd(_gradients, setup_context=_keep)
