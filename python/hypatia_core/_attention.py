"""Attention in FX graphs: as one op of a graph, forward and backward, and how plans compute it.

In: a graph of Dynamo's with `scaled_dot_product_attention`; nodes of attention. Out: the same graph
with ops of ours; values of a native graph. Invariant: PyTorch computes each op of ours too, by the
kernels that it has for it, wherever no plan does. The gradient keeps one number a query, the
log-sum-exp of its scores, and no weights.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx

from ._fx import Importer, Node, Value, name_of, row

aten = torch.ops.aten
Tensor = torch.Tensor
#: The largest head whose gradients a kernel of ours computes.
MAX_GRAD_HEAD = 128


@torch.library.custom_op("hypatia::attention", mutates_args=())
def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float | None) -> Tensor:
    """Attention as PyTorch computes it, as one op of a graph on every device."""
    return _attention(q, k, v, mask, causal, scale)


@attention.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float | None) -> Tensor:
    return torch.empty_like(_attention(q, k, v, mask, causal, scale))


def _attention(q: Any, k: Any, v: Any, mask: Any, causal: bool, scale: float | None) -> Tensor:
    shared = q.dim() == 4 and q.shape[1] != k.shape[1]
    return F.scaled_dot_product_attention(q, k, v, mask, 0.0, causal, scale=scale, enable_gqa=shared)


def attended(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float | None) -> Tensor:
    """Attention as one op, of operands that autocast converts where it would convert PyTorch's."""
    q, k, v = (converted(t) for t in (q, k, v))
    return attention._opoverload(q, k, v, None if mask is None else converted(mask), causal, scale)


def converted(t: Tensor) -> Tensor:
    """An operand as autocast hands it to an op that it wants in 16 bits."""
    kind = t.device.type
    wide = t.is_floating_point() and t.dtype is not torch.float64
    return t.to(torch.get_autocast_dtype(kind)) if wide and torch.is_autocast_enabled(kind) else t


# Training: the log-sum-exp of the scores is a second result.


def rows(t: Tensor) -> Tensor:
    """Heads `[b, h, rows, d]` as `[b, rows, h, d]`, as projections have them."""
    return t.transpose(1, 2).contiguous()


@torch.library.custom_op("hypatia::attention_lse", mutates_args=())
def attention_lse(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float | None
) -> tuple[Tensor, Tensor]:
    """Attention of heads `[b, h, rows, d]` as `[b, rows, h, d]`, and each query's log-sum-exp."""
    k, v = (repeated(t, q.shape[1]) for t in (k, v))
    if flash(q, v, mask) and (not causal or q.shape[2] == k.shape[2]):
        y, lse = aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal, scale=scale)[:2]
    elif q.is_cuda:
        bias = added(mask, q, k)
        y, lse = aten._scaled_dot_product_efficient_attention(q, k, v, bias, True, 0.0, causal, scale=scale)[:2]
        lse = lse[:, :, : q.shape[2]]
    else:
        scores = scored(q, k, mask, causal, scale)
        lse = scores.logsumexp(-1).nan_to_num(nan=float("inf"), posinf=float("inf"), neginf=float("inf"))
        y = ((scores - lse[..., None]).exp() @ v.float()).to(q.dtype)
    return rows(y), lse.contiguous()


@attention_lse.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float | None) -> tuple[Tensor, Tensor]:
    b, h, m, _ = q.shape
    return q.new_empty((b, m, h, v.shape[-1])), q.new_empty((b, h, m), dtype=torch.float32)


@torch.library.custom_op("hypatia::attention_grad", mutates_args=())
def attention_grad(
    dy: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    y: Tensor,
    lse: Tensor,
    mask: Tensor | None,
    causal: bool,
    scale: float | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of queries, keys and values; results as `[b, rows, h, d]`."""
    dy, y = dy.transpose(1, 2), y.transpose(1, 2)
    heads, groups = q.shape[1], k.shape[1]
    wide_k, wide_v = (repeated(t, heads) for t in (k, v))
    if flash(q, v, mask) and (not causal or q.shape[2] == k.shape[2]):
        state = torch.zeros(2, dtype=torch.uint64, device=q.device)
        found = aten._scaled_dot_product_flash_attention_backward(
            dy, q, wide_k, wide_v, y, lse, None, None, q.shape[2], k.shape[2], 0.0, causal, state, state, scale=scale
        )
    elif q.is_cuda:
        bias = added(mask, q, k)
        state = torch.zeros((), dtype=torch.int64, device=q.device)
        lse = F.pad(lse, (0, -q.shape[2] % 32), value=float("inf"))
        wanted = [True, True, True, False]
        found = aten._scaled_dot_product_efficient_attention_backward(
            dy, q, wide_k, wide_v, bias, y, lse, state, state, 0.0, wanted, causal, scale=scale
        )[:3]
    else:
        weights = (scored(q, wide_k, mask, causal, scale) - lse[..., None]).exp()
        inner = (dy.float() * y.float()).sum(-1, keepdim=True)
        slopes = weights * (dy.float() @ wide_v.float().mT - inner) * factor(q, scale)
        found = (slopes @ wide_k.float(), slopes.mT @ q.float(), weights.mT @ dy.float())
    summed = [
        t if t is found[0] or groups == heads else t.unflatten(1, (groups, heads // groups)).float().sum(2)
        for t in found
    ]
    dq, dk, dv = (rows(t.to(q.dtype)) for t in summed)
    return dq, dk, dv


@attention_grad.register_fake
def _(
    dy: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    y: Tensor,
    lse: Tensor,
    mask: Tensor | None,
    causal: bool,
    scale: float | None,
) -> tuple[Tensor, Tensor, Tensor]:
    dq, dk, dv = (t.new_empty((t.shape[0], t.shape[2], t.shape[1], t.shape[3])) for t in (q, k, v))
    return dq, dk, dv


def factor(q: Tensor, scale: float | None) -> float:
    """What scores are multiplied by."""
    return q.shape[-1] ** -0.5 if scale is None else scale


def repeated(t: Tensor, heads: int) -> Tensor:
    """Heads of keys or values, one for each head of queries."""
    return t if t.shape[1] == heads else t.repeat_interleave(heads // t.shape[1], 1)


def flash(q: Tensor, v: Tensor, mask: Tensor | None) -> bool:
    """Whether PyTorch's flash attention computes these heads."""
    return q.is_cuda and mask is None and q.shape[-1] == v.shape[-1] and q.shape[-1] % 8 == 0


def added(mask: Tensor | None, q: Tensor, k: Tensor) -> Tensor | None:
    """A mask as what is added to the scores, aligned as PyTorch's kernels want it."""
    if mask is None:
        return None
    if mask.dtype is torch.bool:
        mask = torch.zeros_like(mask, dtype=q.dtype).masked_fill_(~mask, float("-inf"))
    keys = k.shape[2]
    mask = F.pad(mask.to(q.dtype).expand(*mask.shape[:-1], keys), (0, -keys % 16))[..., :keys]
    return mask.expand(*q.shape[:3], keys)


def scored(q: Tensor, k: Tensor, mask: Tensor | None, causal: bool, scale: float | None) -> Tensor:
    """The masked scores in f32."""
    scores = q.float() @ k.float().mT * factor(q, scale)
    if causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
        scores = scores.masked_fill(~seen, float("-inf"))
    if mask is None:
        return scores
    return scores.masked_fill(~mask, float("-inf")) if mask.dtype is torch.bool else scores + mask.float()


def _saved(ctx: Any, inputs: Any, output: Any) -> None:
    q, k, v, mask, ctx.causal, ctx.scale = inputs
    ctx.save_for_backward(q, k, v, mask, *output)
    ctx.mark_non_differentiable(output[1])


def _gradients(ctx: Any, dy: Tensor, _: Any) -> tuple[Any, ...]:
    q, k, v, mask, y, lse = ctx.saved_tensors
    made = torch.ops.hypatia.attention_grad(dy, q, k, v, y, lse, mask, ctx.causal, ctx.scale)
    return (*(t.transpose(1, 2) for t in made), None, None, None)


attention_lse.register_autograd(_gradients, setup_context=_saved)


def keep_attention(module: fx.GraphModule, train: bool = False) -> None:
    """Make attention in Dynamo's graph one op: else PyTorch takes it apart as the device likes."""
    for node in module.graph.find_nodes(op="call_function", target=F.scaled_dot_product_attention):
        names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
        given = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
        if given.get("dropout_p", 0.0) != 0.0 or len(node.args) > len(names):
            continue
        q, k, v = (given[name] for name in names[:3])
        rest = (given.get("attn_mask"), given.get("is_causal", False), given.get("scale"))
        if not train:
            node.target = attended
            node.args, node.kwargs = (q, k, v, *rest), {}
        elif trainable(q, k, v, rest[0], rest[1], given.get("enable_gqa", False)):
            with module.graph.inserting_before(node):
                both = module.graph.call_function(attention_lse._opoverload, (q, k, v, *rest))
                rows = module.graph.call_function(operator.getitem, (both, 0))
            node.target, node.args, node.kwargs = torch.transpose, (rows, 1, 2), {}
    module.recompile()


def trainable(q: Node, k: Node, v: Node, mask: Node | None, causal: Any, shared: Any) -> bool:
    """Whether kernels of ours compute both passes. What PyTorch refuses is left to it."""
    q, k, v = (t.meta.get("example_value") for t in (q, k, v))
    if any(t is None or t.dim() != 4 or t.dtype is not q.dtype for t in (q, k, v)):
        return False
    if mask is not None:
        of = mask.meta.get("example_value")
        if of is None or of.requires_grad or causal or of.dtype not in (torch.bool, q.dtype):
            return False
    alike = q.shape[0] == k.shape[0] == v.shape[0] and k.shape[1:3] == v.shape[1:3] and q.shape[-1] == k.shape[-1]
    heads = q.shape[1] == k.shape[1] or (shared and q.shape[1] % k.shape[1] == 0)
    return alike and heads and computed_on(q) and max(q.shape[-1], v.shape[-1]) <= MAX_GRAD_HEAD


def computed_on(t: Tensor) -> bool:
    """Whether our kernels of both passes are for tensors like this."""
    return t.is_cuda and t.dtype in (torch.float16, torch.bfloat16)


# How plans compute attention.

#: Where attention's ops keep what is not a plain tensor: the mask and `is_causal`.
ATTENTION = {
    "_scaled_dot_product_flash_attention_for_cpu": ("attn_mask", 4),
    "_scaled_dot_product_flash_attention": (None, 4),
    "_scaled_dot_product_efficient_attention": (3, 6),
    "_scaled_dot_product_cudnn_attention": (3, 6),
}


@row(*ATTENTION)
def _(b: Importer, n: Node) -> Any:
    where, at = ATTENTION[name_of(n.target)]
    mask = None if where is None else n.kwargs.get(where) if isinstance(where, str) else b.argument(n, where, "")
    q, k, v = n.args[:3]
    made = Heads(b, q, k, v, mask, b.argument(n, at, "is_causal", False), n.kwargs.get("scale"))
    return [made.attention(), *[None] * 8]


@row("attention")
def _(b: Importer, n: Node) -> Any:
    return Heads(b, *n.args).attention()


@row("attention_lse")
def _(b: Importer, n: Node) -> Any:
    made = Heads(b, *n.args)
    y, lse = b.g.call("attention_lse", made.operands(), made.attrs())
    return [turned(b, made.merged(y)), b.reshaped(lse, b.shape(n.args[0])[:3])]


@row("attention_grad")
def _(b: Importer, n: Node) -> Any:
    dy, q, k, v, y, lse, mask, causal, scale = n.args
    made = Heads(b, q, k, v, mask, causal, scale)
    dy_value, y_value = (turned(b, b.value(t)) for t in (dy, y))
    wide = [b.cast(x, "f32") for x in (dy_value, y_value)]
    rows = b.call("sum", [b.call("mul", wide)], axes=[3], keepdims=True)
    numbers = [made.divided(b.reshaped(x, (*b.shape(q)[:3], 1))) for x in (b.value(lse), rows)]
    queries, keys, values, hidden = made.operands()
    if made.each > 1:
        keys, values = (b.call("expand", [x], shape=list(made.whole(x))) for x in (keys, values))
    wide = None if hidden is None else b.cast(hidden, "f32")
    operands = [queries, keys, values, made.divided(dy_value), *numbers, wide]
    dq, *others = b.g.call("attention_grad", operands, {"scale": made.attrs()["scale"]})
    if made.each > 1:
        summed = (b.call("sum", [b.cast(x, "f32")], axes=[2], keepdims=False) for x in others)
        others = [b.cast(x, b.dtype(q)) for x in summed]
    return [turned(b, x) for x in (made.merged(dq), *others)]


def turned(b: Importer, value: Value) -> Value:
    """Heads as rows of heads, or back."""
    return b.call("transpose", [value], perm=[0, 2, 1, 3])


class Heads:
    """The operands of an attention, with several heads of queries to each of keys as an axis."""

    def __init__(self, b: Importer, q: Node, k: Node, v: Node, mask: Any, causal: bool, scale: Any) -> None:
        """Of these nodes."""
        self.b, self.q, self.k, self.v = b, q, k, v
        self.mask, self.causal, self.scale = mask, causal, scale
        grouped = len(b.shape(q)) == 4
        #: Heads of queries that read one head of keys.
        self.each = b.shape(q)[1] // b.shape(k)[1] if grouped else 1

    def hidden(self) -> Value | None:
        """What is added to the scores."""
        b, visible = self.b, None
        dtype, m, s = b.dtype(self.q), b.shape(self.q)[-2], b.shape(self.k)[-2]
        if self.causal:
            i, j = (b.call("iota", [], shape=[m, s], axis=a, to="i64") for a in (0, 1))
            visible = b.call("le", [j, i])
        elif self.mask is not None and b.dtype(self.mask) == "bool":
            visible = b.value(self.mask)
        hidden = None if self.mask is None or visible is not None else b.operand(self.mask, dtype)
        if visible is not None:
            hidden = b.call("select", [visible, b.g.number(dtype, 0.0), b.g.number(dtype, float("-inf"))])
        if self.each > 1 and hidden is not None and self.mask is not None and len(b.shape(self.mask)) == 4:
            of, heads = b.shape(self.mask), b.shape(self.q)[1]
            per_head = (heads // self.each, self.each) if of[1] == heads else (1, 1)
            hidden = b.reshaped(hidden, (of[0], *per_head, *of[2:]))
        return hidden

    def attrs(self) -> dict[str, Any]:
        """The scale of the scores, and whether a row may have no keys."""
        scale = self.b.shape(self.q)[-1] ** -0.5 if self.scale is None else self.b.number(self.scale)
        return {"scale": float(scale), "safe": self.causal or self.mask is not None}

    def sizes(self, value: Value) -> list[int]:
        """The shape of a value."""
        return [int(n) for n in self.b.g.type_of(value)[1]]

    def divided(self, value: Value) -> Value:
        """Something of each head of queries, with a further axis if several heads share keys."""
        if self.each == 1:
            return value
        batch, heads, *rest = self.sizes(value)
        return self.b.reshaped(value, (batch, heads // self.each, self.each, *rest))

    def whole(self, value: Value) -> tuple[int, ...]:
        """The shape of keys or values if each head of queries had its own."""
        batch, groups, _, *rest = self.sizes(value)
        return (batch, groups, self.each, *rest)

    def operands(self) -> list[Value | None]:
        """Queries, keys, values and mask."""
        b = self.b
        queries, keys, values = (b.value(t) for t in (self.q, self.k, self.v))
        if self.each > 1:
            keys, values = (
                b.reshaped(x, (*b.shape(t)[:2], 1, *b.shape(t)[2:])) for x, t in ((keys, self.k), (values, self.v))
            )
        return [self.divided(queries), keys, values, self.hidden()]

    def merged(self, value: Value) -> Value:
        """A result of each head of queries, without the further axis."""
        if self.each == 1:
            return value
        batch, groups, each, *rest = self.sizes(value)
        return self.b.reshaped(value, (batch, groups * each, *rest))

    def attention(self) -> Value:
        """The result alone."""
        return self.merged(self.b.g.call("attention", self.operands(), self.attrs())[0])
