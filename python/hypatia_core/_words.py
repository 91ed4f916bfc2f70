"""Errors in PyTorch's words, where its compiler takes apart the function that would say them.

In: a graph of Dynamo's, and what was compiled of it. Out: the same functions. Invariant: a call
fails as in eager: what the function checks, the compiled graph refuses, and says as PyTorch does.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx

Tensor = torch.Tensor
#: Functions whose checks of classes have words of their own.
OF_CLASSES = (F.cross_entropy, F.nll_loss, F.one_hot)


def of_classes(module: fx.GraphModule) -> fx.GraphModule | None:
    """A copy of a graph that says what is wrong with classes, if it is a matter of classes."""
    if not any(n.op == "call_function" and n.target in OF_CLASSES for n in module.graph.nodes):
        return None
    return copied(module)


def copied(module: fx.GraphModule) -> fx.GraphModule:
    """A copy of a graph over the same tensors."""
    return fx.GraphModule(module, copy.deepcopy(module.graph))


def check_classes(module: fx.GraphModule) -> None:
    """Let one-hot rows refuse a class that there is not: PyTorch's compiler compares instead."""
    for node in module.graph.find_nodes(op="call_function", target=F.one_hot):
        count = node.args[1] if len(node.args) > 1 else node.kwargs.get("num_classes")
        if node.args and isinstance(count, int) and count > 0:
            node.target, node.args, node.kwargs = one_hot, (node.args[0], count), {}
    module.recompile()


def one_hot(classes: Tensor, count: int) -> Tensor:
    """One-hot rows as PyTorch makes them in eager, but for its words."""
    return classes.new_zeros((*classes.shape, count)).scatter(-1, classes.unsqueeze(-1), 1)


def as_pytorch_says(original: fx.GraphModule | None, compiled: Callable[..., Any]) -> Callable[..., Any]:
    """The compiled graph; what it refuses, the original says in its own words."""
    if original is None:
        return compiled

    def call(*args: Any) -> Any:
        try:
            return compiled(*args)
        except (IndexError, RuntimeError) as error:
            refused = error
        original(*args)
        raise refused

    return call
