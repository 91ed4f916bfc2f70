"""Runs of plans in PyTorch's memory, on the CPU or on PyTorch's current stream of a GPU.

In: a plan, tensors for its inputs and for its results. Out: the results in those tensors.
Invariant: no plan runs on another device than its tensors', and none waits for a GPU but a strict
one.
"""

from __future__ import annotations

import contextlib
import math
import platform
from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch._C._dynamo import guards

from . import _native
from ._eager import NAMES
from ._model import settings
from .errors import ContractError, InputError

Tensor = torch.Tensor

#: (major, minor) of DLPack's exchange API, or None: then tensors are handed over by address.
EXCHANGE = _native.exchange(Tensor, torch.nn.Parameter)


class RefusedError(InputError):
    """A new plan refused the inputs at hand by their values, such as an index beyond its axis."""


def unreachable(device: torch.device) -> str:
    """Why no plan can run on a device; empty if one can."""
    if device.type == "cpu":
        return ""
    if device.type != "cuda" or torch.version.hip is not None:
        return f"the device is {device.type}: plans run on the CPU and on CUDA"
    return "" if EXCHANGE else "this version of PyTorch lacks DLPack's exchange API, which CUDA needs"


def settings_on(device: torch.device, **more: Any) -> dict[str, Any]:
    """The settings of a model whose plans run on a device."""
    if device.type == "cuda":
        return settings(device=f"cuda:{device.index or 0}", **more)
    return settings(threads=torch.get_num_threads(), **more)


def identity(device: torch.device) -> str:
    """What times on a device depend on, beside the work: the device, and PyTorch."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    return f"{name}, PyTorch {torch.__version__}, {torch.get_num_threads()} threads"


def on_host(t: Tensor) -> Tensor:
    """A row-major tensor of the host with the same values: on them a new plan is compared."""
    return t.detach().to("cpu").contiguous()


def memory(t: Tensor) -> Any:
    """A tensor of the host as the native module takes it: itself, or its address."""
    return t if EXCHANGE else (t.data_ptr(), NAMES[t.dtype], tuple(t.shape), t)


def compiled(model: _native.Model, names: Sequence[str], rows: Sequence[Tensor]) -> _native.Plan:
    """The plan of a model for inputs like these, on which it is compared.

    Raises:
        RefusedError: if it refuses these.
    """
    try:
        return model.compile([(n, memory(t), tuple(t.shape)) for n, t in zip(names, rows, strict=True)])
    except ContractError:
        raise
    except InputError as error:
        raise RefusedError(str(error)) from error


def captures(device: torch.device) -> bool:
    """Whether PyTorch captures its current stream of a GPU: then nothing may wait or be timed."""
    if device.type != "cuda":
        return False
    with torch.cuda.device(device):
        return torch.cuda.is_current_stream_capturing()


#: Sizes, strides and element type of a result.
Result = tuple[tuple[int, ...], tuple[int, ...], torch.dtype]


#: A part of a tensor's memory as a tensor.
_WITHIN = getattr(guards, "_reinterpret_tensor", None)
#: Fewer results do not share memory: their addresses come back in the same order anyway.
_FEWEST = 16
#: Bytes at whose multiples tensors begin that share memory.
_ALIGNMENT = 256


def call_of(
    plan: _native.Plan,
    results: list[Result],
    device: torch.device,
    together: Collection[int] = (),
    orders: Sequence[list[int] | None] = (),
) -> _native.Call:
    """A plan as a function of tensors on a device, which allocates its results.

    The results `together` share one allocation for each element type. `orders` are those in which
    the axes of inputs lie in memory.
    """
    torchs = {
        "empty": _empty_on(device),
        "copy": row_major,
        "scratch": scratch,
        "describe": None if EXCHANGE else memory,
        "within": _WITHIN,
    }
    shared = shared_by(results, together) if _WITHIN else []
    return _native.Call(plan, results, shared, list(orders), torchs)


def shared_by(results: list[Result], together: Collection[int]) -> list[tuple[Result, list[tuple[int, int]]]]:
    """What is allocated for results that share memory, and the first element of each in it."""
    found: dict[torch.dtype, list[int]] = {}
    for i in sorted(together):
        found.setdefault(results[i][2], []).append(i)
    shared = []
    for dtype, members in found.items():
        unit, end, parts = _ALIGNMENT // dtype.itemsize, 0, []
        for i in members:
            parts.append((i, end))
            end += -(-math.prod(results[i][0]) // unit) * unit
        if len(members) >= _FEWEST:
            shared.append((((end,), (1,), dtype), parts))
    return shared


def _empty_on(device: torch.device) -> Any:
    # PyTorch's own compiler allocates with these; they take half the time of `empty_strided`.
    own = getattr(guards, f"_empty_strided_{device.type}", None)
    return own or (lambda sizes, strides, dtype: torch.empty_strided(sizes, strides, dtype=dtype, device=device))


def row_major(t: Tensor, order: Sequence[int] | None = None) -> Tensor:
    """A copy in the order of rows, or in that order of axes."""
    if order is None:
        return t.clone(memory_format=torch.contiguous_format)
    copied = t.permute(*order).clone(memory_format=torch.contiguous_format)
    return copied.permute(*(list(order).index(axis) for axis in range(t.dim())))


def run(call: _native.Call, inputs: tuple[Tensor, ...], device: torch.device) -> tuple[Tensor, ...]:
    """Run a call on tensors of its device."""
    with current(device):
        return call.run(inputs)


def run_into(plan: _native.Plan, inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...]) -> None:
    """Run a plan into memory that PyTorch has just allocated."""
    if not outputs[0].is_cuda:
        inputs = tuple(t if t.is_contiguous() else t.contiguous() for t in inputs)
        if EXCHANGE:
            plan.run(inputs, outputs)
        else:
            plan.run(tuple(map(memory, inputs)), tuple(map(memory, outputs)))
        return
    with current(outputs[0].device):
        copied = plan.run_as_guest(inputs, outputs, scratch)
        if copied:
            inputs = tuple(row_major(t) if i in copied else t for i, t in enumerate(inputs))
            plan.run_as_guest(inputs, outputs, scratch)


_HERE = contextlib.nullcontext()


def current(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """A context in which a device is PyTorch's current one."""
    if device.type == "cpu" or torch.cuda.device_count() == 1:
        return _HERE
    return torch.cuda.device(device)


def scratch(count: int, gpu: int) -> Tensor:
    """Scratch memory on a GPU, from PyTorch's allocator."""
    return torch.empty(count, dtype=torch.uint8, device=f"cuda:{gpu}")


def synchronize(device: torch.device) -> None:
    """Wait for the work on a device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
