"""The ops for whole layers, of `nn.TransformerEncoderLayer` and `nn.MultiheadAttention`.

In: arguments of an op by which PyTorch computes a whole layer. Out: the same by core ops, which
plans fuse. Invariant: a mask hides where it is not zero, and a query that sees no key is NaN, as in
that op.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from ._attention import attention

aten = torch.ops.aten
Tensor = torch.Tensor


def layer(
    src: Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: Tensor,
    norm_bias_1: Tensor,
    norm_weight_2: Tensor,
    norm_bias_2: Tensor,
    ffn_weight_1: Tensor,
    ffn_bias_1: Tensor,
    ffn_weight_2: Tensor,
    ffn_bias_2: Tensor,
    mask: Tensor | None = None,
    mask_type: int | None = None,
) -> Tensor:
    """`_transformer_encoder_layer_fwd`."""
    if src.is_nested:
        return NotImplemented

    def attended(x: Tensor) -> Tensor:
        found = heads(x, x, x, embed_dim, num_heads, qkv_weight, qkv_bias, mask, mask_type)
        return F.linear(merged(weighted(*found)), proj_weight, proj_bias)

    def fed(x: Tensor) -> Tensor:
        inner = F.linear(x, ffn_weight_1, ffn_bias_1)
        return F.linear(F.gelu(inner) if use_gelu else F.relu(inner), ffn_weight_2, ffn_bias_2)

    def first(x: Tensor) -> Tensor:
        return F.layer_norm(x, (embed_dim,), norm_weight_1, norm_bias_1, eps)

    def second(x: Tensor) -> Tensor:
        return F.layer_norm(x, (embed_dim,), norm_weight_2, norm_bias_2, eps)

    if norm_first:
        x = src + attended(first(src))
        return x + fed(second(x))
    x = first(src + attended(src))
    return second(x + fed(x))


def multi_head(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim: int,
    num_head: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    mask: Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[Tensor, Tensor]:
    """`_native_multi_head_attention`."""
    if query.is_nested or key.is_nested or value.is_nested:
        return NotImplemented
    found = heads(query, key, value, embed_dim, num_head, qkv_weight, qkv_bias, mask, mask_type)
    if not need_weights:
        # PyTorch's second result has no storage then, and no type of Python's can say so.
        return F.linear(merged(weighted(*found)), proj_weight, proj_bias), query.new_empty((0,))
    weights = probabilities(*found)
    made = F.linear(merged(weights @ found[2]), proj_weight, proj_bias)
    return made, weights.mean(1) if average_attn_weights else weights


def heads(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    width: int,
    count: int,
    weight: Tensor,
    bias: Tensor,
    mask: Tensor | None,
    mask_type: int | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Queries, keys and values as `[b, h, rows, d]`, and where keys are hidden, as scores."""
    if query is key is value:
        q, k, v = F.linear(query, weight, bias).split(width, -1)
    else:
        parts = zip((query, key, value), weight.split(width), bias.split(width), strict=True)
        q, k, v = (F.linear(x, w, b) for x, w, b in parts)
    q, k, v = (x.unflatten(-1, (count, width // count)).transpose(1, 2) for x in (q, k, v))
    if mask is not None:
        # The types are those of `nn.MultiheadAttention.merge_masks`: rows and keys, keys, or all.
        mask = mask[None, None] if mask_type == 0 else mask[:, None, None] if mask_type == 1 else mask
        mask = mask.to(torch.bool)
    return q, k, v, mask


def weighted(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """The values of each query."""
    if mask is None:
        return attention._opoverload(q, k, v, None, False, None)
    return probabilities(q, k, v, mask) @ v


def probabilities(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """The weights of the keys."""
    scores = (q * q.shape[-1] ** -0.5) @ k.mT
    if mask is not None:
        scores = scores + torch.zeros_like(mask, dtype=q.dtype).masked_fill(mask, float("-inf"))
    return scores.softmax(-1)


def merged(x: Tensor) -> Tensor:
    """Heads beside each other."""
    return x.transpose(1, 2).flatten(2)


#: How PyTorch's ops for whole layers are taken apart.
LAYERS: dict[Any, Callable[..., Any]] = {
    aten._transformer_encoder_layer_fwd.default: layer,
    aten._native_multi_head_attention.default: multi_head,
}
