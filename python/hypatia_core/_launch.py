"""Runs of plans in PyTorch's memory, on the CPU or on PyTorch's current stream of a GPU.

In: a plan, tensors for its inputs and for its results. Out: the results in those tensors. Invariant:
no plan runs on another device than its tensors', and none waits for a GPU.
"""

from __future__ import annotations

from typing import Any

import torch

from . import _native
from ._eager import NAMES
from ._model import settings

Tensor = torch.Tensor

#: (major, minor) of DLPack's exchange API, or None: then tensors are handed over by address.
EXCHANGE = _native.exchange(Tensor)
#: Plans whose launches a captured graph of PyTorch repeats: they live as long as the process.
_captured: list[_native.Plan] = []


def unreachable(device: torch.device) -> str:
    """Why no plan can run on a device; empty if one can."""
    if device.type == "cpu":
        return ""
    if device.type != "cuda" or torch.version.hip is not None:
        return f"the device is {device.type}: plans run on the CPU and on CUDA"
    return "" if EXCHANGE else "this version of PyTorch lacks DLPack's exchange API, which CUDA needs"


def settings_on(device: torch.device) -> dict[str, Any]:
    """The settings of a model whose plans run on a device."""
    if device.type == "cuda":
        return settings(device=f"cuda:{device.index or 0}")
    return settings(threads=torch.get_num_threads())


def on_host(t: Tensor) -> Tensor:
    """A row-major tensor of the host with the same values: on them a new plan is compared."""
    return t.detach().to("cpu").contiguous()


def memory(t: Tensor) -> Any:
    """A tensor of the host as the native module takes it: itself, or its address."""
    return t if EXCHANGE else (t.data_ptr(), NAMES[t.dtype], tuple(t.shape), t)


def captures(device: torch.device) -> bool:
    """Whether PyTorch captures its current stream of a GPU: then nothing may wait, or be measured."""
    if device.type != "cuda":
        return False
    with torch.cuda.device(device):
        return torch.cuda.is_current_stream_capturing()


def run(plan: _native.Plan, inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...]) -> None:
    """Run a plan into memory that PyTorch has just allocated."""
    if outputs[0].is_cuda:
        if torch.cuda.device_count() == 1:
            _on_gpu(plan, inputs, outputs)
        else:
            with torch.cuda.device(outputs[0].device):
                _on_gpu(plan, inputs, outputs)
        return
    inputs = tuple(t if t.is_contiguous() else t.contiguous() for t in inputs)
    if EXCHANGE:
        plan.run(inputs, outputs)
    else:
        plan.run(tuple(map(memory, inputs)), tuple(map(memory, outputs)))


def _on_gpu(plan: _native.Plan, inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...]) -> None:
    capturing = torch.cuda.is_current_stream_capturing()
    copied = plan.run_as_guest(inputs, outputs, scratch, capturing)
    if copied:
        inputs = tuple(
            t.clone(memory_format=torch.contiguous_format) if i in copied else t for i, t in enumerate(inputs)
        )
        plan.run_as_guest(inputs, outputs, scratch, capturing)
    if capturing:
        _captured.append(plan)


def scratch(count: int, gpu: int) -> Tensor:
    """Scratch memory on a GPU, from PyTorch's allocator."""
    return torch.empty(count, dtype=torch.uint8, device=f"cuda:{gpu}")


def synchronize(device: torch.device) -> None:
    """Wait for the work on a device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
