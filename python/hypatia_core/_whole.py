"""A divided graph against itself as one CUDA graph, and against the module that PyTorch captured.

In: these as functions of the same arguments, and the parts of the divided one. Out: a function that
ends with the fastest side. Invariant: no call runs twice, for it may change its arguments or draw
random numbers: the calls themselves are timed, in turns.

Each part was measured against PyTorch's ops, taken apart and one by one. The whole may still lose:
where the GPU has no time to spare, what a part saves the host is worth nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from . import _launch
from ._part import Part
from ._recorded import Recorded
from .nn import _runtime

#: The module must be faster by more than this, so that noise decides nothing.
SLACK = 1.03
#: Calls of each side that are timed.
TIMED = 5


class Whole:
    """The divided graph, until another side was found to be faster."""

    def __init__(
        self,
        divided: Callable[..., Any],
        module: Callable[..., Any],
        parts: Sequence[Part],
        device: torch.device,
        recorded: Recorded | None = None,
    ) -> None:
        """Args: the sides, the parts of the first, and the device of their work."""
        self.divided, self.module, self.parts, self.device = divided, module, parts, device
        self.recorded = recorded
        self.sides: list[Callable[..., Any]] = [divided, self.eager, *([recorded] if recorded else [])]
        self.best = [float("inf")] * len(self.sides)
        self.timed = 0
        self.chosen: Callable[..., Any] | None = divided if any(part.varying for part in parts) else None

    def __call__(self, *args: Any) -> Any:
        """Compute the graph."""
        if self.chosen == self.divided:
            return self.divided(*args)
        # Another policy than `measure` asks for plans, or for PyTorch part by part.
        if _runtime.current_policy() != "measure" or _launch.captures(self.device):
            return self.divided(*args)
        if self.chosen is not None:
            if self.chosen is self.recorded and self.recorded is not None and self.recorded.given_up:
                self.choose()
            return self.chosen(*args)
        if not all(map(settled, self.parts)):
            return self.divided(*args)
        if self.recorded and self.recorded.is_observing():
            return self.recorded(*args)
        side = self.timed % len(self.sides)
        self.timed += 1
        _launch.synchronize(self.device)
        start = time.perf_counter()
        made = self.sides[side](*args)
        _launch.synchronize(self.device)
        # The first call of each side is not counted.
        if self.timed > len(self.sides):
            self.best[side] = min(self.best[side], time.perf_counter() - start)
        if self.timed >= len(self.sides) * (TIMED + 1):
            self.choose()
        return made

    def choose(self) -> None:
        """Take the fastest side."""
        replayed = self.best[2] if self.recorded and not self.recorded.given_up else float("inf")
        divided, module = self.best[:2]
        if min(divided, replayed) > SLACK * module:
            self.chosen = self.eager
        else:
            self.chosen = self.recorded if replayed < divided else self.divided

    def eager(self, *args: Any) -> Any:
        """Compute the graph as PyTorch does."""
        if self.chosen is not None:
            _runtime.count("graph", "PyTorch's module was faster than the graph with its parts")
        return self.module(*args)


def settled(part: Part) -> bool:
    """Whether it is known which side computes a part."""
    choices = list(part.plans.values())
    return bool(choices) and all(c.broken is None and (c.failed or c.measured is not None) for c in choices)
