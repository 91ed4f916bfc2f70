"""Layers inside of graphs that PyTorch traces: `torch.compile`, `torch.export`.

Invariant: without gradients a layer is one op of the graph, `hypatia::fused`, which chooses its
side when it runs, as it does outside of graphs. With gradients, with several element types, and in
exported graphs, which must run without Hypatia, it is PyTorch's own ops.
"""

from __future__ import annotations

from typing import Any

import torch

from . import _runtime
from ._ops import Op

Tensor = torch.Tensor


@torch.library.custom_op("hypatia::fused", mutates_args=())
def fused(x: Tensor, params: list[Tensor], spec: str) -> Tensor:
    """Compute an op on rows and parameters."""
    with torch.no_grad():
        y = _runtime.call(Op.from_spec(spec), x, tuple(params))
    # The result of a custom op must be memory of its own.
    return y.clone() if y is x else y


@fused.register_fake
def _(x: Tensor, params: list[Tensor], spec: str) -> Tensor:
    return x.new_empty(Op.from_spec(spec).shape(tuple(x.shape), tuple(params)))


def _keep(ctx: Any, inputs: tuple[Tensor, list[Tensor], str], output: Tensor) -> None:
    x, params, ctx.spec = inputs
    ctx.save_for_backward(x, *params)


def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, list[Tensor | None], None]:
    """PyTorch's own gradients of the same function, which it computes once more."""
    leaves = [t.detach().requires_grad_() for t in ctx.saved_tensors]
    with torch.enable_grad():
        y = Op.from_spec(ctx.spec).eager(leaves[0], tuple(leaves[1:]))
    gx, *rest = torch.autograd.grad(y, leaves, grad)
    return gx, list(rest), None


fused.register_autograd(_gradients, setup_context=_keep)


@torch.compiler.assume_constant_result
def noted(spec: str, why: str) -> int:
    """Count a layer that is traced as PyTorch's ops; this runs once, when it is traced."""
    _runtime.passed(Op.from_spec(spec), why)
    return 0


def traced(op: Op, x: Tensor, params: tuple[Tensor, ...]) -> Tensor:
    """Compute an op while PyTorch traces."""
    trains = torch.is_grad_enabled() and (x.requires_grad or any(t.requires_grad for t in params))
    # Under Dynamo `is_exporting` is always true.
    exports = torch.compiler.is_exporting() and not torch.compiler.is_dynamo_compiling()
    # The result's type is then PyTorch's to say.
    mixed = torch.is_autocast_enabled(x.device.type) or any(t.dtype != x.dtype for t in params)
    if exports or trains or mixed:
        if torch.compiler.is_dynamo_compiling():
            noted(op.spec, "traced with gradients, autocast or several types: PyTorch compiles its own ops")
        return op.eager(x, params)
    return fused(x, list(params), op.spec)
