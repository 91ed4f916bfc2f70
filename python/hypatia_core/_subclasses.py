"""Tensors of subclasses among the arguments of a compiled graph.

In: a function of arguments. Out: one that gives them on as plain tensors. Invariant: what a
subclass does to ops takes place once. Dynamo has put into the graph what its `__torch_function__`
does, and makes results of the class again; AOTAutograd takes wrappers apart that have
`__torch_dispatch__`, and other tensors that have it are in no graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

Tensor = torch.Tensor
PLAIN = (Tensor, torch.nn.Parameter)
#: What classes have that watch no op below autograd.
_OFF: Any = torch._C._disabled_torch_dispatch_impl


def is_plain(t: Any) -> bool:
    """Whether an argument is a tensor without functions of its own, a wrapper, or no tensor."""
    return type(t) in PLAIN or not isinstance(t, Tensor) or getattr(type(t), "__torch_dispatch__", _OFF) is not _OFF


def as_plain(inputs: Sequence[Any], computes: Callable[..., Any]) -> Callable[..., Any]:
    """A function of arguments like these that gives them on as plain tensors."""
    if all(map(is_plain, inputs)):
        return computes

    def plainly(*args: Any) -> Any:
        return computes(*(t if is_plain(t) else t.as_subclass(Tensor) for t in args))

    return plainly
