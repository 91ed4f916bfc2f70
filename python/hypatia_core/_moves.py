"""Rows of the importer's table for ops that move elements: views, copies, indexing, fills.

In: nodes of aten ops. Out: values of a native graph. Invariant: no element is computed, but indices
and the numbers of a fill.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ._importer import Importer, Node, Value, exactly, inverse, name_of, ordered_row, row, size_of

SAME = ("alias", "as_strided", "clone", "convert_element_type", "detach", "lift_fresh_copy", "_to_copy", "contiguous")
SHAPED = ("view", "_unsafe_view", "reshape", "unsqueeze", "squeeze")


@ordered_row(*SAME)
def _(b: Importer, n: Node) -> Any:
    return b.operand(n.args[0], b.dtype(n))


@ordered_row("as_strided_scatter")
def _(b: Importer, n: Node) -> Any:
    # All of the operand is written.
    return b.operand(n.args[1], b.dtype(n))


@row(*SHAPED)
def _(b: Importer, n: Node) -> Any:
    return b.reshaped(b.value(n.args[0]), b.shape(n))


@row("t", "transpose", "permute")
def _(b: Importer, n: Node) -> Any:
    name, rank = name_of(n.target), len(b.shape(n))
    order = list(range(rank))
    if name == "t":
        order.reverse()
    elif name == "transpose":
        i, j = (b.axis(a, rank) for a in n.args[1:3])
        order[i], order[j] = order[j], order[i]
    else:
        order = [b.axis(a, rank) for a in b.argument(n, 1, "dims")]
    return b.call("transpose", [b.value(n.args[0])], perm=order)


@row("expand")
def _(b: Importer, n: Node) -> Any:
    value, shape = b.value(n.args[0]), b.shape(n)
    before = b.shape(n.args[0])
    value = b.reshaped(value, (1,) * (len(shape) - len(before)) + before)
    return value if before == shape else b.call("expand", [value], shape=list(shape))


@row("copy")
def _(b: Importer, n: Node) -> Any:
    # The second operand, as one of the first's type and shape.
    value, shape = b.operand(n.args[1], b.dtype(n)), b.shape(n)
    before = b.shape(n.args[1])
    value = b.reshaped(value, (1,) * (len(shape) - len(before)) + before)
    return value if before == shape else b.call("expand", [value], shape=list(shape))


@row("slice")
def _(b: Importer, n: Node) -> Any:
    sizes = b.shape(n.args[0])
    axis = b.axis(b.argument(n, 1, "dim", 0), len(sizes))
    size = sizes[axis]
    start, stop = b.argument(n, 2, "start") or 0, b.argument(n, 3, "end")
    stop = size if stop is None else stop
    start, stop = (max(0, min(size, e + size if e < 0 else e)) for e in (start, stop))
    value = b.value(n.args[0])
    if (start, stop, step := b.argument(n, 4, "step", 1)) == (0, size, 1):
        return value
    return b.call("slice", [value], axis=axis, start=start, stop=max(start, stop), step=step)


@row("select")
def _(b: Importer, n: Node) -> Any:
    sizes = b.shape(n.args[0])
    axis = b.axis(b.argument(n, 1, "dim"), len(sizes))
    index = b.argument(n, 2, "index") % sizes[axis]
    one = b.call("slice", [b.value(n.args[0])], axis=axis, start=index, stop=index + 1, step=1)
    return b.reshaped(one, b.shape(n))


@row("cat")
def _(b: Importer, n: Node) -> Any:
    parts = [p for p in n.args[0] if b.shape(p) != (0,)]
    values = [b.operand(p, b.dtype(n)) for p in parts]
    axis = b.axis(b.argument(n, 1, "dim", 0), len(b.shape(n)))
    return values[0] if len(values) == 1 else b.call("concat", values, axis=axis)


@row("stack")
def _(b: Importer, n: Node) -> Any:
    shape = b.shape(n)
    axis = b.axis(b.argument(n, 1, "dim", 0), len(shape))
    one = (*shape[:axis], 1, *shape[axis + 1 :])
    values = [b.reshaped(b.operand(p, b.dtype(n)), one) for p in n.args[0]]
    return values[0] if len(values) == 1 else b.call("concat", values, axis=axis)


@row("split", "split_with_sizes", "unbind")
def _(b: Importer, n: Node) -> Any:
    name, rank, parts = name_of(n.target), len(b.shape(n.args[0])), n.meta["val"]
    axis = b.axis(b.argument(n, 1 if name == "unbind" else 2, "dim", 0), rank)
    sizes = [1] * len(parts) if name == "unbind" else [int(p.shape[axis]) for p in parts]
    value = b.value(n.args[0])
    made = [value] if len(parts) == 1 else b.g.call("split", [value], {"axis": axis, "sizes": sizes})
    return [b.reshaped(v, tuple(int(s) for s in p.shape)) for v, p in zip(made, parts, strict=True)]


@row("constant_pad_nd")
def _(b: Importer, n: Node) -> Any:
    x, rank, widths = n.args[0], len(b.shape(n)), b.number(n.args[1])
    # The last axis comes first.
    before, after = ([0] * (rank - len(widths) // 2) + widths[side::2][::-1] for side in (0, 1))
    value = b.value(x)
    # Negative widths cut off.
    for axis, size in enumerate(b.shape(x)):
        start, stop = max(-before[axis], 0), size - max(-after[axis], 0)
        if (start, stop) != (0, size):
            value = b.call("slice", [value], axis=axis, start=start, stop=stop, step=1)
    before, after = ([max(w, 0) for w in side] for side in (before, after))
    if not any(before + after):
        return value
    return b.call("pad", [value, b.constant(b.dtype(n), b.argument(n, 2, "value", 0))], before=before, after=after)


@row("flip")
def _(b: Importer, n: Node) -> Any:
    value, shape = b.value(n.args[0]), b.shape(n)
    for axis in {b.axis(axis, len(shape)) for axis in b.number(n.args[1])} if shape else ():
        places = b.call("iota", [], shape=[shape[axis]], axis=0, to="i64")
        places = b.call("sub", [b.constant("i64", shape[axis] - 1), places])
        value = b.call("gather", [value, places], axis=axis)
    return value


@row("diagonal")
def _(b: Importer, n: Node) -> Any:
    # Of rows one behind the other: each of its elements lies one row and one column further.
    shape = b.shape(n.args[0])
    offset, first, second = (b.argument(n, i, k, d) for i, (k, d) in enumerate(DIAGONAL, 1))
    first, second = b.axis(first, len(shape)), b.axis(second, len(shape))
    others = [axis for axis in range(len(shape)) if axis not in (first, second)]
    width, rest = shape[second], [shape[axis] for axis in others]
    value = moved(b, b.value(n.args[0]), [*others, first, second])
    start = offset if offset >= 0 else -offset * width
    stop = start + (b.shape(n)[-1] - 1) * (width + 1) + 1
    value = b.reshaped(value, (*rest, shape[first] * width))
    return b.call("slice", [value], axis=len(rest), start=start, stop=stop, step=width + 1)


#: The arguments of `diagonal`, and what they are if they are not given.
DIAGONAL = (("offset", 0), ("dim1", 0), ("dim2", 1))


@row("unfold")
def _(b: Importer, n: Node) -> Any:
    # Windows lie along the last axes.
    rank = len(b.shape(n.args[0]))
    axis = b.axis(b.argument(n, 1, "dimension"), rank)
    size, step = b.argument(n, 2, "size"), b.argument(n, 3, "step")
    rows = moved(b, b.value(n.args[0]), [*(a for a in range(rank) if a != axis), axis])
    made = b.call("windows", [rows], sizes=[size], strides=[step], dilations=[1])
    return moved(b, made, [*range(axis), rank - 1, *range(axis, rank - 1), rank])


@row("im2col")
def _(b: Importer, n: Node) -> Any:
    window, dilations, padding, strides = (b.argument(n, i, "") for i in range(1, 5))
    x, shape = b.value(n.args[0]), b.shape(n.args[0])
    if any(padding):
        around = [*[0] * (len(shape) - 2), *padding]
        x = b.call("pad", [x, b.constant(b.dtype(n), 0)], before=around, after=around)
    made = b.call("windows", [x], sizes=window, strides=strides, dilations=dilations)
    lead = len(shape) - 2
    order = [*range(lead), lead + 2, lead + 3, lead, lead + 1]
    return b.reshaped(b.call("transpose", [made], perm=order), b.shape(n))


@row("repeat")
def _(b: Importer, n: Node) -> Any:
    times, before = b.number(n.args[1]), b.shape(n.args[0])
    before = (*[1] * (len(times) - len(before)), *before)
    split = [size for n in before for size in (1, n)]
    grown = [size for r, n in zip(times, before, strict=True) for size in (r, n)]
    value = b.call("expand", [b.reshaped(b.value(n.args[0]), split)], shape=grown)
    return b.reshaped(value, b.shape(n))


# A plan's indices count from the end where they are negative, and on the CPU it refuses what is
# beyond an axis. Of PyTorch's ops `index` and `index_put` do the same, the others take no negative
# index.


def within(b: Importer, index: Node, size: int) -> Value:
    """An index that is not negative. On the CPU, plans refuse one that is, as one beyond its axis.

    On a GPU nobody could be told without waiting for it.
    """
    if not b.checked:
        return b.value(index)
    value = b.operand(index, "i64")
    return b.call("select", [b.call("lt", [value, b.constant("i64", 0)]), b.constant("i64", size), value])


def listed(b: Importer, index: Node, size: int) -> Value:
    """The indices of a node in a row, none of them negative."""
    return b.reshaped(b.cast(within(b, index, size), "i64"), (size_of(b.shape(index)),))


@row("index_select")
def _(b: Importer, n: Node) -> Any:
    x, axis, index = n.args[:3]
    axis = b.axis(b.number(axis), len(b.shape(x)))
    return b.call("gather", [b.value(x), listed(b, index, b.shape(x)[axis])], axis=axis)


@row("embedding")
def _(b: Importer, n: Node) -> Any:
    weight, index = n.args[:2]
    return b.call("gather", [b.value(weight), within(b, index, b.shape(weight)[0])], axis=0)


@row("gather")
def _(b: Importer, n: Node) -> Any:
    x, axis, index = n.args[:3]
    axis = b.axis(b.number(axis), len(b.shape(n)))
    index = within(b, index, b.shape(x)[axis])
    return b.call("gather_elements", [b.value(x), index], axis=axis)


def indexed_axes(n: Node) -> tuple[list[int], int]:
    """The axes that a list of indices names, and where those of the indices stand in the result."""
    at = [axis for axis, index in enumerate(n.args[1]) if index is not None]
    return at, at[0] if at == list(range(at[0], at[-1] + 1)) else 0


@row("index")
def _(b: Importer, n: Node) -> Any:
    x, indices = n.args[0], list(n.args[1])
    at, place = indexed_axes(n)
    if len(at) == 1 and None in indices:
        return b.call("gather", [b.value(x), b.operand(indices[at[0]], "i64")], axis=at[0])
    shape = torch.broadcast_shapes(*(b.shape(indices[axis]) for axis in at))
    columns = []
    for axis in at:
        value = broadcast(b, b.operand(indices[axis], "i64"), shape)
        columns.append(b.reshaped(value, (*shape, 1)))
    joined = columns[0] if len(columns) == 1 else b.call("concat", columns, axis=len(shape))
    rank = len(b.shape(x))
    rows = moved(b, b.value(x), [*at, *(axis for axis in range(rank) if axis not in at)])
    made = b.call("gather_nd", [rows, joined], batch=0)
    # What is left of the operand's axes stands around those of the indices.
    last = len(shape) + rank - len(at)
    before = range(len(shape), len(shape) + place)
    return b.reshaped(moved(b, made, [*before, *range(len(shape)), *range(len(shape) + place, last)]), b.shape(n))


def broadcast(b: Importer, value: Value, shape: Sequence[int]) -> Value:
    """A value in a shape to which it broadcasts."""
    have = [int(n) for n in b.g.type_of(value)[1]]
    value = b.reshaped(value, (*[1] * (len(shape) - len(have)), *have))
    return value if tuple(b.g.type_of(value)[1]) == tuple(shape) else b.call("expand", [value], shape=list(shape))


def moved(b: Importer, value: Value, order: list[int]) -> Value:
    """A value with its axes in that order."""
    return value if order == sorted(order) else b.call("transpose", [value], perm=order)


@row("scatter")
def _(b: Importer, n: Node) -> Any:
    # One index a row: the element that it names is another one.
    x, axis, index, value = n.args[:4]
    shape = b.shape(x)
    axis = b.axis(b.number(axis), len(shape))
    chosen = b.operand(index, "i64")
    if b.checked:
        # No comparison refuses an index: what gathers it from the indices that there are does.
        known = b.call("iota", [], shape=[shape[axis]], axis=0, to="i64")
        chosen = b.reshaped(b.call("gather", [known, listed(b, index, shape[axis])], axis=0), b.shape(index))
    places = b.call("iota", [], shape=list(shape), axis=axis, to="i64")
    return b.call("select", [b.call("eq", [places, chosen]), b.operand(value, b.dtype(n)), b.value(x)])


@row("index_add", "index_copy")
def _(b: Importer, n: Node) -> Any:
    x, axis, index, source = n.args[:4]
    # A single number is a row of one.
    dtype, shape = b.dtype(n), b.shape(x) or (1,)
    rank = len(shape)
    axis = b.axis(b.number(axis), rank)
    values = b.reshaped(b.operand(source, dtype), b.shape(source) or (1,))
    if (alpha := b.argument(n, 4, "alpha", 1)) != 1:
        values = b.call("mul", [values, b.constant(dtype, alpha)])
    # Rows are what is written.
    order = [axis, *(a for a in range(rank) if a != axis)]
    rows = b.reshaped(b.operand(x, dtype), shape)
    rows, values = (b.call("transpose", [v], perm=order) if axis else v for v in (rows, values))
    how = "add" if name_of(n.target) == "index_add" else "set"
    made = b.call("scatter", [rows, listed(b, index, shape[axis]), values], how=how)
    made = b.call("transpose", [made], perm=inverse(order)) if axis else made
    return b.reshaped(made, b.shape(n))


@row("index_put")
def _(b: Importer, n: Node) -> Any:
    x, indices, updates = n.args[:3]
    at, place = indexed_axes(n)
    shape, dtype = b.shape(x), b.dtype(n)
    others = [axis for axis in range(len(shape)) if axis not in at]
    rest = [shape[axis] for axis in others]
    wide = torch.broadcast_shapes(*(b.shape(indices[axis]) for axis in at))
    # The new values as rows, one for each index.
    values = broadcast(b, b.operand(updates, dtype), (*rest[:place], *wide, *rest[place:]))
    count = len(wide)
    behind = range(place + count, count + len(rest))
    values = moved(b, values, [*range(place, place + count), *range(place), *behind])
    values = b.reshaped(values, (size_of(wide), *rest))
    if len(at) == 1:
        places = b.operand(indices[at[0]], "i64")
    else:
        places = numbered(b, [indices[axis] for axis in at], [shape[axis] for axis in at], wide)
    rows = b.reshaped(moved(b, b.value(x), [*at, *others]), (size_of([shape[axis] for axis in at]), *rest))
    how = "add" if b.argument(n, 3, "accumulate", False) else "set"
    made = b.call("scatter", [rows, b.reshaped(places, (size_of(wide),)), values], how=how)
    made = b.reshaped(made, [shape[axis] for axis in [*at, *others]])
    return moved(b, made, [[*at, *others].index(axis) for axis in range(len(shape))])


def numbered(b: Importer, indices: Sequence[Node], sizes: Sequence[int], shape: Sequence[int]) -> Value:
    """Indices of several axes as those of one axis that merges them."""
    made = None
    for index, size in zip(indices, sizes, strict=True):
        value, limit = b.operand(index, "i64"), b.constant("i64", size)
        if b.checked:
            # What gathers an index from those that there are refuses it beyond its axis.
            known = b.call("iota", [], shape=[size], axis=0, to="i64")
            value = b.call("gather", [known, value], axis=0)
        else:
            value = b.call(
                "select", [b.call("lt", [value, b.constant("i64", 0)]), b.call("add", [value, limit]), value]
            )
            inside = b.call("and", [b.call("le", [b.constant("i64", 0), value]), b.call("lt", [value, limit])])
            # Beyond all axes: nothing is written there, whatever the other indices are.
            value = b.call("select", [inside, value, b.constant("i64", size_of(sizes) * 2)])
        value = broadcast(b, value, shape)
        made = value if made is None else b.call("add", [b.call("mul", [made, limit]), value])
    assert made is not None
    return made


@row("slice_scatter", "select_scatter")
def _(b: Importer, n: Node) -> Any:
    # What lies before, the new elements, what lies behind.
    x, source = b.value(n.args[0]), b.operand(n.args[1], b.dtype(n))
    shape = b.shape(n)
    axis = b.axis(b.argument(n, 2, "dim", 0), len(shape))
    size, step = shape[axis], 1
    if name_of(n.target) == "select_scatter":
        start = b.argument(n, 3, "index") % size
        stop = start + 1
        source = b.reshaped(source, (*shape[:axis], 1, *shape[axis + 1 :]))
    else:
        start, stop = b.argument(n, 3, "start") or 0, b.argument(n, 4, "end")
        stop = size if stop is None else stop
        start, stop = (max(0, min(size, e + size if e < 0 else e)) for e in (start, stop))
        step = b.argument(n, 5, "step", 1)
    if step != 1:
        return stepped(b, x, source, axis, range(start, stop, step))
    parts = [b.call("slice", [x], axis=axis, start=0, stop=start, step=1)] if start > 0 else []
    parts.append(source)
    parts += [b.call("slice", [x], axis=axis, start=stop, stop=size, step=1)] if stop < size else []
    return parts[0] if len(parts) == 1 else b.call("concat", parts, axis=axis)


def stepped(b: Importer, x: Value, source: Value, axis: int, places: range) -> Value:
    """A tensor with other elements at some places of an axis, all as far apart."""
    if not places:
        return x
    rank = len(b.g.type_of(x)[1])
    order = [axis, *(a for a in range(rank) if a != axis)]
    index = b.call("iota", [], shape=[len(places)], axis=0, to="i64")
    index = b.call("mul", [index, b.constant("i64", places.step)])
    index = b.call("add", [index, b.constant("i64", places.start)])
    made = b.call("scatter", [moved(b, x, order), index, moved(b, source, order)], how="set")
    return moved(b, made, inverse(order))


@row("arange")
def _(b: Importer, n: Node) -> Any:
    numbers, dtype = b.number(list(n.args)), b.dtype(n)
    start, step = (numbers[0] if len(numbers) > 1 else 0), (numbers[2] if len(numbers) > 2 else 1)
    made = b.call("iota", [], shape=list(b.shape(n)), axis=0, to=dtype)
    made = made if step == 1 else b.call("mul", [made, b.constant(dtype, step)])
    return made if start == 0 else b.call("add", [made, b.constant(dtype, start)])


FILLS = {"zeros": 0, "zeros_like": 0, "new_zeros": 0, "ones": 1, "ones_like": 1, "new_ones": 1}
#: What nobody reads before it is written.
EMPTY = ("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided")
FILLS.update(dict.fromkeys(EMPTY, 0))


@row("full", "full_like", "new_full", "scalar_tensor", *FILLS)
def _(b: Importer, n: Node) -> Any:
    name = name_of(n.target)
    at = {"full": 1, "full_like": 1, "new_full": 2, "scalar_tensor": 0}.get(name)
    fill = FILLS[name] if at is None else b.number(n.args[at])
    if b.dtype(n) == "bool":
        return b.cast(b.call("full", [], shape=list(b.shape(n)), value=exactly(fill), to="u8"), "bool")
    return b.call("full", [], shape=list(b.shape(n)), value=exactly(fill), to=b.dtype(n))
