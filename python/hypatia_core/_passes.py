"""Both passes of training as CUDA graphs: the host launches two things a step.

In: the forward and the backward graph of a compiled graph as functions. Out: the same, replayed
where that was measured to be faster. Invariant: nobody sees memory that a later replay overwrites.
What the forward pass keeps stays where the recording put it: it is replayed only once the step
before it is over. Large results and gradients are lent: a pass whose results somebody still holds
runs without its recording.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch

from . import _launch
from ._recorded import Recorded, Recording, are_tensors, record
from .nn import _runtime

Tensor = torch.Tensor
#: Smaller results, in bytes, are copied: users keep losses of many steps.
SMALL = 1 << 20
#: Steps of each side that are timed, after one that is not.
TIMED = 5


class Lending(Recorded):
    """A pass whose results are not copied."""

    def __init__(
        self,
        run: Callable[..., Any],
        device: torch.device,
        copied: int,
        lent: int,
        recorder: Any,
        changed: Collection[int] = (),
    ) -> None:
        """Args: the function and its device; how many results, the first, may be copied if they are
        small, and how many, from the first, are lent: the others are read by our own passes alone;
        and the arguments that calls change.
        """
        super().__init__(run, device, changed, recorder=recorder)
        self.copied, self.lent = copied, lent
        #: Storages of what is lent, and how many tensors of our own lie in each.
        self.owners: dict[int, int] = {}

    def unusable(self, made: Any, given: Sequence[Any]) -> str:
        """Any tensors can be lent."""
        return "" if are_tensors(made) else "its results are not tensors alone"

    def make(self, args: tuple[Any, ...]) -> None:
        """Record a call, and note who holds its results."""
        super().make(args)
        if self.recording is None:
            return
        play, made = self.recording
        held = list(made)
        for i, t in enumerate(made):
            # What is kept of an argument that moves is kept in its copy.
            if i >= self.lent and isinstance(t, int) and t in self.copies:
                held[i] = self.copies[t]
        self.recording = (play, held)
        given = (t for i, t in enumerate(held[: self.lent]) if isinstance(t, Tensor) and not self.copies_result(i, t))
        storages = {t.untyped_storage()._cdata for t in given}
        self.owners = {s: holders(s) for s in storages}

    def copies_result(self, i: int, t: Tensor) -> bool:
        """Whether a result is copied, not lent."""
        return i < self.copied and t.numel() * t.element_size() <= SMALL

    def is_back(self) -> bool:
        """Whether nobody holds what was lent."""
        return all(holders(s) == own for s, own in self.owners.items())

    def lends(self, t: Any) -> bool:
        """Whether a tensor lies in memory that is lent."""
        return isinstance(t, Tensor) and t.untyped_storage()._cdata in self.owners

    def results(self, made: Sequence[Any], args: tuple[Any, ...]) -> list[Any]:
        """Small results copied, others lent, and what is kept as it is."""
        given: list[Any] = []
        for i, t in enumerate(made):
            if not isinstance(t, Tensor):
                given.append(t if t is None else args[t])
            elif self.copies_result(i, t):
                given.append(t.clone())
            else:
                given.append(t.detach() if i < self.lent else t)
        return given


def holders(storage: int) -> int:
    """How many tensors lie in a storage."""
    return torch._C._storage_Use_Count(storage)


class Step:
    """What a forward pass hands to its backward pass."""

    def __init__(self) -> None:
        #: What a replay left in its own memory; None if the forward pass was not replayed.
        self.kept: Sequence[Any] | None = None
        self.seconds: float | None = None


class Plain:
    """Forward and backward of one graph."""

    def __init__(self, forward: Callable[..., Any], backward: Callable[..., Any], results: int) -> None:
        """Args: both functions, and the number of the forward graph's own results."""
        self.plain, self.results = (forward, backward), results

    def forward(self, ctx: Any, args: tuple[Any, ...]) -> Sequence[Any]:
        """The results; what the backward pass needs is saved."""
        made = self.plain[0](*args)
        ctx.save_for_backward(*made[self.results :])
        return made[: self.results]

    def backward(self, ctx: Any, gradients: tuple[Any, ...]) -> Sequence[Any]:
        """The gradients."""
        return self.plain[1](*ctx.saved_tensors, *gradients)

    def is_settled(self) -> bool:
        """Whether both are computed in one way from now on."""
        return True

    def drop(self) -> None:
        """Give back memory, for nothing calls them any more."""


class Passes(Plain):
    """The same, replayed where that is faster."""

    def __init__(
        self,
        forward: Callable[..., Any],
        backward: Callable[..., Any],
        results: int,
        device: torch.device,
        ready: Callable[[], bool],
        changed: Collection[int] = (),
        recorder: Callable[..., Recording] = record,
    ) -> None:
        """Args: those of `Plain`, the device, whether it is known what computes all parts, and the
        arguments that the forward pass changes.
        """
        super().__init__(forward, backward, results)
        self.device, self.ready, self.recorder = device, ready, recorder
        self.first = Lending(forward, device, results, results, recorder, changed)
        self.second = self.another()
        self.follows: Recording | None = None
        #: Dies with what the last recorded forward pass keeps for its backward pass.
        self.pending: Callable[[], Any] = lambda: None
        self.seconds = [float("inf"), float("inf")]
        self.timed = 0
        self.chosen: bool | None = None

    def another(self) -> Lending:
        """A backward pass of which nothing is recorded. All of its results are lent."""
        return Lending(self.plain[1], self.device, 0, 1 << 30, self.recorder)

    def forward(self, ctx: Any, args: tuple[Any, ...]) -> Sequence[Any]:
        """The results; what the backward pass needs is saved."""
        step = Step()
        start = self.start()
        with self.first.lock:
            made = self.first.replay(args) if self.takes_recording() else None
            kept = None if made is None else self.keep(step, made, args)
        if made is None or kept is None:
            made = self.plain[0](*args)
            kept = made[self.results :]
        self.stop(step, start)
        ctx.save_for_backward(*kept)
        ctx.step = step
        return made[: self.results]

    def keep(self, step: Step, made: Sequence[Any], args: tuple[Any, ...]) -> Sequence[Any]:
        """Keep what a replay left for the backward pass; returns what autograd saves."""
        if self.follows is not self.first.recording:
            self.follows, self.second = self.first.recording, self.another()
        token = torch.empty(0)
        self.pending = weakref.ref(token)
        step.kept = made[self.results :]
        given = {id(a) for a in args}
        # Changes in between, of arguments and of lent results, are autograd's to find.
        return [token, *(t for t in step.kept if id(t) in given or self.first.lends(t))]

    def backward(self, ctx: Any, gradients: tuple[Any, ...]) -> Sequence[Any]:
        """The gradients."""
        step: Step = ctx.step
        # This also raises PyTorch's error where they are gone.
        saved = ctx.saved_tensors
        start = self.start()
        made: list[Any] | None = None
        args = (*(saved if step.kept is None else step.kept), *gradients)
        second = self.second
        if step.kept is not None and self.chosen is not False and not second.given_up:
            with second.lock:
                made = second.replay(args) if second.is_back() else None
            if second.given_up:
                self.drop()
        given: Sequence[Any] = self.plain[1](*args) if made is None else made
        self.stop(step, start, last=True)
        return given

    def takes_recording(self) -> bool:
        """Whether the forward pass may be recorded, or replayed."""
        if self.chosen is False or self.first.given_up or self.second.given_up:
            return False
        if _runtime.current_policy() != "measure" or _launch.captures(self.device) or hooked():
            return False
        if self.pending() is not None or not self.first.is_back() or not self.ready():
            return False
        return self.chosen is True or self.is_observing() or self.timed % 2 == 1

    def is_settled(self) -> bool:
        """Whether it is known if they are replayed."""
        return self.chosen is not None or bool(self.first.given_up or self.second.given_up)

    def is_observing(self) -> bool:
        """Whether one of the passes is not recorded yet."""
        return self.first.is_observing() or self.second.is_observing()

    def start(self) -> float | None:
        """The time, if both sides are being timed."""
        if self.chosen is not None or self.is_observing() or self.first.given_up or self.second.given_up:
            return None
        _launch.synchronize(self.device)
        return time.perf_counter()

    def stop(self, step: Step, start: float | None, last: bool = False) -> None:
        """Add the time since then to that of a step, and choose when enough are timed."""
        if start is None:
            return
        _launch.synchronize(self.device)
        passed = time.perf_counter() - start
        if not last:
            step.seconds = passed
            return
        if step.seconds is None:
            return
        self.timed += 1
        # The first step of each side is not counted.
        if self.timed > 2:
            side = int(step.kept is not None)
            self.seconds[side] = min(self.seconds[side], step.seconds + passed)
        if self.timed >= 2 * (TIMED + 1):
            self.chosen = self.seconds[1] < self.seconds[0]
            if not self.chosen:
                self.drop()

    def drop(self) -> None:
        """Give back the memory of recordings that are not replayed any more."""
        for one in (self.first, self.second):
            one.recording, one.copies, one.owners = None, {}, {}
        self.follows = None


def hooked() -> bool:
    """Whether something packs what autograd saves: checkpoints count it, others move it."""
    autograd: Any = torch._C
    return autograd._autograd._top_saved_tensors_default_hooks(True) is not None
