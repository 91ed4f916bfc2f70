"""Which nodes of an FX graph plans can compute, and why not the others.

In: a node of aten ops that knows its shapes, a device. Out: a reason, empty if a plan can compute
it. Invariant: a node without a reason has a row in the importer's table, and the row can import it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import statically_known_true

from ._attention import ATTENTION
from ._eager import NAMES
from ._fx import BITS, TABLE, Node, name_of
from ._products import tiles

#: Ops that read or write all of their operand, if they name its own sizes and strides.
SAME_MEMORY = ("as_strided", "as_strided_scatter")
#: The element types that cuDNN's fast kernels and our products of convolutions are for.
HALVES = (torch.float16, torch.bfloat16)


def unsupported(node: fx.Node, device: torch.device) -> str:
    """Why a node cannot be part of a graph on that device; empty if it can."""
    if node.target is operator.getitem:
        return unsupported(node.args[0], device) if isinstance(node.args[0], fx.Node) else "getitem"
    name = name_of(node.target)
    if name not in TABLE:
        # Windows and their reductions took 2.5 to 15 times as long, measured on the CPU.
        return f"{name}: its kernels for pools are faster than plans" if "pool" in name else str(node.target)
    value = node.meta.get("val")
    results = value if isinstance(value, (list, tuple)) else [value]
    for t in [*results, *(a.meta.get("val") for a in node.all_input_nodes)]:
        for one in t if isinstance(t, (list, tuple)) else [t]:
            if isinstance(one, torch.Tensor) and one.device != device:
                return f"{name} on {one.device}, beside {device}"
            if isinstance(one, torch.Tensor) and one.dtype not in NAMES:
                return f"{name} of {one.dtype}"
    if name == "convolution" and device.type == "cuda" and not is_product(node):
        return "convolution: on a GPU, cuDNN's kernels are faster than ours"
    return REFUSED[name](node) if name in REFUSED else ""


def _only_bools(node: Node) -> str:
    return "" if node.meta["val"].dtype is torch.bool else f"{name_of(node.target)} of integers"


def _only_first(node: Node) -> str:
    later = [u for u in node.users if u.target is not operator.getitem or u.args[1] != 0]
    return f"results of {name_of(node.target)} beside the first" if later else ""


def draws_nothing(node: Node) -> bool:
    """Whether a node is attention without dropout, or its gradient: PyTorch calls these random."""
    if "_scaled_dot_product" not in name_of(node.target):
        return False
    names = [a.name for a in node.target._schema.arguments]
    at = names.index("dropout_p") if "dropout_p" in names else len(node.args)
    return not (node.args[at] if len(node.args) > at else node.kwargs.get("dropout_p", 0.0))


def _no_dropout(node: Node) -> str:
    return _only_first(node) if draws_nothing(node) else "attention with dropout"


def is_product(node: Node) -> bool:
    """Whether a convolution is one product of patches or points, and in 16 bits.

    cuDNN multiplies f32 as TF32, if it may.
    """
    return tiles(node) and node.meta["val"].dtype in HALVES


def _transposed(node: Node) -> str:
    return "a transposed convolution" if node.args[6] else ""


def _by_nonzero(node: Node) -> str:
    # PyTorch reports a division of integers by zero.
    by, floats = node.args[1], node.meta["val"].dtype.is_floating_point
    return "" if floats or (isinstance(by, (int, float)) and by != 0) else f"{name_of(node.target)} of integers"


def _no_decimals(node: Node) -> str:
    return "round to decimals" if "decimals" in node.kwargs or len(node.args) > 1 else ""


def _has_axes(node: Node) -> str:
    return "" if node.args[0].meta["val"].dim() else f"{name_of(node.target)} of a single number"


def _common_order(node: Node) -> str:
    order = node.args[1] if len(node.args) > 1 else node.kwargs.get("ord", 2)
    x = node.args[0].meta["val"]
    plain = order in (1, 2, float("inf"), -float("inf")) and x.dtype.is_floating_point and 0 not in x.shape
    return "" if plain else f"a vector norm of order {order}"


def _of_batch(node: Node) -> str:
    return "" if node.args[5] is True and isinstance(node.args[6], float) else "batch norm by known statistics"


def _real(node: Node) -> str:
    return "" if node.args[0].meta["val"].dtype.is_floating_point else f"{name_of(node.target)} of integers"


def _no_half_float(node: Node) -> str:
    whole = all(isinstance(a, fx.Node) or float(a) == int(a) for a in node.args)
    return "" if whole else "arange with fractions"


def _integers(node: Node) -> str:
    indices = [i for i in node.args[1] if i is not None]
    plain = all(isinstance(i, fx.Node) and not i.meta["val"].dtype.is_floating_point for i in indices)
    masks = not plain or any(i.meta["val"].dtype in (torch.bool, torch.uint8) for i in indices)
    return f"{name_of(node.target)} by a mask" if masks else ""


def is_overlay(node: Node) -> bool:
    """Whether a node reads or writes memory by strides that are not its operand's.

    Sizes may change from call to call: what is asked for is then the operand's if the same symbols
    say so.
    """
    name = name_of(node.target)
    if name not in SAME_MEMORY:
        return "as_strided" in str(node.target)
    x = node.args[0].meta["val"]
    named = node.args[2:] if name == "as_strided_scatter" else node.args[1:]
    if node.kwargs or len(named) < 2:
        return True
    sizes, strides = ([v.meta["val"] if isinstance(v, fx.Node) else v for v in a] for a in named[:2])
    offset = named[2] if len(named) > 2 and named[2] is not None else x.storage_offset()
    offset = offset.meta["val"] if isinstance(offset, fx.Node) else offset
    same = len(sizes) == x.dim() and all(
        equal(n, m) and (equal(n, 1) or equal(s, t))
        for n, m, s, t in zip(sizes, x.shape, strides, x.stride(), strict=True)
    )
    return not (same and equal(offset, x.storage_offset()))


def equal(a: Any, b: Any) -> bool:
    """Whether two sizes are one number whatever the symbols in them stand for."""
    return statically_known_true(a == b)


def reads_past(node: Node) -> bool:
    """Whether a node reads or writes by strides what may lie beside its operand's elements.

    An operand without gaps, from the first element of its memory on, has all that is asked for.
    """
    if not is_overlay(node):
        return False
    if node.kwargs:
        return True
    x = node.args[0].meta["val"]
    sizes, strides, *offset = node.args[2:] if "scatter" in str(node.target) else node.args[1:]
    asked = [*sizes, *strides, *(v for v in offset if v is not None)]
    if not all(isinstance(v, int) for v in [*asked, *x.shape, *x.stride(), x.storage_offset()]):
        return True
    dense, held = True, 1
    for n, s in sorted(zip(x.shape, x.stride(), strict=True), key=lambda axis: axis[1]):
        dense, held = dense and (n == 1 or s == held), held * n
    first = (offset[0] if offset else None) or 0
    last = first + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))
    return not (dense and x.storage_offset() == 0 and first >= 0 and last < x.numel())


def _overlay(node: Node) -> str:
    return f"{name_of(node.target)} by strides that are not its operand's" if is_overlay(node) else ""


def _one_index(node: Node) -> str:
    x, axis, index, value = node.args[:4]
    a, i = x.meta["val"].shape, index.meta["val"].shape
    wanted = [1 if k == axis % max(len(a), 1) else size for k, size in enumerate(a)]
    one = not isinstance(value, fx.Node) and not node.kwargs.get("reduce")
    return "" if one and len(a) == len(i) and list(i) == wanted else "scatter of several elements of a row"


def _along_axis(node: Node) -> str:
    x, _, index, source = (a.meta["val"] if isinstance(a, fx.Node) else a for a in node.args[:4])
    rows = x.dim() == source.dim() and index.dim() <= 1 and x.dtype == source.dtype
    return "" if rows and x.dtype is not torch.bool else f"{name_of(node.target)} of truth values, or of other shapes"


def _not_beside(node: Node) -> str:
    return "diagonal of nothing" if equal(node.meta["val"].numel(), 0) else ""


def _has_elements(node: Node) -> str:
    x = node.args[0].meta["val"]
    return "" if x.dim() and node.args[2] != 0 else f"{name_of(node.target)} of nothing, or of a single number"


def _whole_axis(node: Node) -> str:
    x, axis, index = node.args[:3]
    a, i = x.meta["val"].shape, index.meta["val"].shape
    same = all(p == q for k, (p, q) in enumerate(zip(a, i, strict=True)) if k != axis % max(len(a), 1))
    return "" if len(a) == len(i) and same else "gather of a part"


#: Nodes of the table that are refused all the same, with the reason.
REFUSED: dict[str, Callable[[fx.Node], str]] = {
    **dict.fromkeys([*BITS, "bitwise_not"], _only_bools),
    "_fused_rms_norm": _only_first,
    **dict.fromkeys(ATTENTION, _no_dropout),
    "convolution": _transposed,
    "_native_batch_norm_legit_no_training": _only_first,
    "_native_batch_norm_legit_functional": _of_batch,
    "div": _by_nonzero,
    "fmod": _by_nonzero,
    "remainder": _by_nonzero,
    "round": _no_decimals,
    "index_select": _has_axes,
    "linalg_vector_norm": _common_order,
    **dict.fromkeys(("acos", "acosh", "asin", "asinh", "atan", "atanh", "cosh", "sinh", "tan"), _real),
    "arange": _no_half_float,
    **dict.fromkeys(SAME_MEMORY, _overlay),
    "gather": _whole_axis,
    "index": _integers,
    "scatter": _one_index,
    "index_put": _integers,
    **dict.fromkeys(("index_add", "index_copy"), _along_axis),
    "diagonal": _not_beside,
    "unfold": _has_elements,
}
