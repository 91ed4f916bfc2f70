"""A compiled graph in training against the module that PyTorch captured, by whole steps.

In: both as functions of the same arguments. Out: a function that ends with the faster one.
Invariant: no step is computed twice, for it may change buffers or draw random numbers: the steps
themselves are timed, in turns. What is timed is the forward pass, and the backward pass from the
first gradient of a result to the last one of an argument, whatever lies around the graph.

Each part was measured against PyTorch's ops, taken apart and one by one. The whole may still lose:
PyTorch's own backward pass has kernels that its compiler takes apart, and no parts to go between.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.graph import register_multi_grad_hook

from . import _launch
from ._passes import hooked
from ._whole import SLACK
from .nn import _runtime

Tensor = torch.Tensor
#: Steps of each side that are timed, after one that is not.
TIMED = 5
#: Forward passes that are tried for each side. Some have no backward pass.
TRIED = 4 * (TIMED + 1)


class Step:
    """One step that is timed."""

    def __init__(self) -> None:
        #: What is done at the end of the backward pass.
        self.ends: Callable[[], None] = lambda: None


class Watched(torch.autograd.Function):
    """The same tensors, whose gradients come when the backward pass is over."""

    @staticmethod
    def forward(ctx: Any, step: Step, *args: Tensor) -> tuple[Tensor, ...]:
        """Alias each argument."""
        ctx.step = step
        ctx.set_materialize_grads(False)
        return tuple(t.view_as(t) for t in args)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor | None) -> tuple[Tensor | None, ...]:
        """Pass the gradients on."""
        ctx.step.ends()
        return None, *grad_outputs


class Steps:
    """The compiled graph, until the module was found to be faster."""

    def __init__(
        self,
        compiled: Callable[..., Any],
        module: Callable[..., Any],
        device: torch.device,
        ready: Callable[[], bool],
        drop: Callable[[], None],
    ) -> None:
        """Args: the sides, the device of their work, whether it is known how the first side
        computes all of its parts, and what gives back its memory.
        """
        self.sides, self.device, self.ready, self.drop = (compiled, module), device, ready, drop
        self.seconds = [float("inf")] * 2
        #: Forward passes of each side that began while steps were timed, and steps that ended.
        self.begun, self.ended = [0, 0], [0, 0]
        #: The side that won.
        self.chosen: int | None = None

    def __call__(self, *args: Any) -> Any:
        """Compute the forward pass."""
        # Another policy than `measure` asks for plans, or for PyTorch part by part. Checkpoints
        # count what is saved, and compare two passes: these must be computed alike.
        if self.chosen == 0 or _runtime.current_policy() != "measure" or hooked() or _launch.captures(self.device):
            return self.sides[0](*args)
        if self.chosen == 1:
            _runtime.count("graph", "PyTorch's module was faster than the graph with its parts")
            return self.sides[1](*args)
        if not self.ready():
            return self.sides[0](*args)
        return self.timed(args)

    def timed(self, args: tuple[Any, ...]) -> Any:
        """Compute the forward pass, and time the step."""
        side = int(self.begun[1] < self.begun[0])
        self.begun[side] += 1
        if self.begun[1] > TRIED:
            self.chosen = 0
        step = Step()
        given = [i for i, t in enumerate(args) if isinstance(t, Tensor) and t.requires_grad]
        watched = list(args)
        for i, t in zip(given, Watched.apply(step, *map(args.__getitem__, given)), strict=True):
            watched[i] = t
        start = self.now()
        made = self.sides[side](*watched)
        forward = self.now() - start
        results = [t for t in made if isinstance(t, Tensor) and t.requires_grad]

        def begin(_: Tensor) -> None:
            before.remove()
            start = self.now()
            step.ends = lambda: self.note(side, forward + self.now() - start)

        before = register_multi_grad_hook(results, begin, mode="any")
        return made

    def now(self) -> float:
        """The time when the device has done its work."""
        _launch.synchronize(self.device)
        return time.perf_counter()

    def note(self, side: int, seconds: float) -> None:
        """Note the time of a step, and choose when enough are timed."""
        # The first step of each side is not counted.
        if self.ended[side]:
            self.seconds[side] = min(self.seconds[side], seconds)
        self.ended[side] += 1
        if self.chosen is None and min(self.ended) > TIMED:
            self.chosen = int(self.seconds[0] > SLACK * self.seconds[1])
            if self.chosen == 1:
                self.drop()
