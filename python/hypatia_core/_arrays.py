"""NumPy arrays as memory that the native module reads and writes.

In: what a caller passes as an input. Out: a row-major array of the element type that the model
wants, and a description of its memory. Invariant: an array that is row-major and aligned already is
not copied, and no element is converted to another type.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Address, element type, sizes, and the owner, which keeps the memory alive.
Memory = tuple[int, str, tuple[int, ...], Any]

NUMPY_OF = {
    "f64": "float64",
    "f32": "float32",
    "f16": "float16",
    "bf16": "bfloat16",
    "i64": "int64",
    "i32": "int32",
    "i8": "int8",
    "u8": "uint8",
    "bool": "bool",
}
NAME_OF = {numpy_name: name for name, numpy_name in NUMPY_OF.items()}


def bfloat16() -> np.dtype[Any] | None:
    """The type of ``ml_dtypes``, if that package is installed."""
    try:
        import ml_dtypes
    except ImportError:
        return None
    return np.dtype(ml_dtypes.bfloat16)


def array_of(name: str, value: Any, dtype: str) -> NDArray[Any]:
    """A row-major array of that element type; bf16 is also accepted as its bits in uint16."""
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise InputError(f"input `{name}` is not an array: {error}") from None
    if array.dtype.hasobject or (array.dtype.kind in "USmMcV" and array.dtype.name != "bfloat16"):
        raise InputError(f"input `{name}` is an array of {array.dtype}, which Hypatia does not take")
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    plain = isinstance(value, (int, float, bool, list, tuple))
    if plain and array.dtype.name != NUMPY_OF[dtype]:
        array = _of_numbers(name, array, dtype)
    bits = dtype == "bf16" and array.dtype == np.uint16
    if array.dtype.name != NUMPY_OF[dtype] and not bits:
        wanted = NUMPY_OF[dtype] + (" (of ml_dtypes, or its bits in uint16)" if dtype == "bf16" else "")
        raise InputError(f"input `{name}` must be {wanted}, but is {array.dtype}; convert it with `.astype(...)`")
    # `ascontiguousarray` makes a scalar an array of one axis; `require` keeps the shape.
    return np.require(array, requirements=["C", "A"])


def _of_numbers(name: str, array: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Python's numbers have no width: they take the model's, if it holds them."""
    kind = "float" if dtype in ("f64", "f32", "f16", "bf16") else "bool" if dtype == "bool" else "int"
    fits = {"float": "fiu", "int": "iu", "bool": "b"}[kind]
    if array.size == 0:
        fits += "f"
    if array.dtype.kind not in fits:
        raise InputError(f"input `{name}` must hold numbers of type {NUMPY_OF[dtype]}, but holds {array.dtype}")
    to = bfloat16() if dtype == "bf16" else np.dtype(NUMPY_OF[dtype])
    if to is None:
        raise InputError(f"input `{name}` is bf16: install ml_dtypes, or hand its bits in as uint16")
    made = array.astype(to)
    if kind == "int" and not np.array_equal(made, array):
        raise InputError(f"input `{name}` holds numbers that {NUMPY_OF[dtype]} does not")
    return made


def memory_of(array: NDArray[Any], dtype: str) -> Memory:
    """The memory of a row-major array."""
    return (array.__array_interface__["data"][0], dtype, array.shape, array)


def empty(dtype: str, shape: Sequence[int]) -> NDArray[Any]:
    """An array for a result; bf16 is bits in uint16 where ml_dtypes is missing."""
    kind = (bfloat16() or np.dtype(np.uint16)) if dtype == "bf16" else np.dtype(NUMPY_OF[dtype])
    return np.empty(tuple(shape), kind)


def named(inputs: Mapping[str, Any] | Sequence[Any] | Any, names: Sequence[str]) -> dict[str, Any]:
    """Inputs by name: a mapping, a sequence in the model's order, or the only input itself."""
    known = ", ".join(f"`{n}`" for n in names) or "none"
    if isinstance(inputs, Mapping):
        unknown = [n for n in inputs if n not in names]
        if unknown:
            raise InputError(f"there is no input `{unknown[0]}`; the inputs are {known}")
        missing = [n for n in names if n not in inputs]
        if missing:
            raise InputError(f"input `{missing[0]}` is missing; the inputs are {known}")
        return {n: inputs[n] for n in names}
    if isinstance(inputs, (list, tuple)):
        if len(inputs) != len(names):
            raise InputError(f"{len(inputs)} inputs were given, but the inputs are {known}")
        return dict(zip(names, inputs, strict=True))
    if len(names) != 1:
        raise InputError(f"one input was given, but the inputs are {known}; pass a dict or a list")
    return {names[0]: inputs}
