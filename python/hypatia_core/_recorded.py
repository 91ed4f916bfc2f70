"""A divided graph as one CUDA graph: its parts and PyTorch's ops without the host between them.

In: the divided graph as a function, and its arguments. Out: its results; each call has its own.
Invariant: what a call computes is what the function would compute: a recording is replayed only
where every argument lies where it lay, or was copied to where it is read.

Where arguments lie is observed: parameters, and caches that calls change, stay where they are.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import fx

from .nn._runtime import count_replay

Tensor = torch.Tensor
#: Calls that are observed before one is recorded.
OBSERVED = 3
#: Recordings of one graph at most: then its arguments move too often.
MOST = 4
#: What may be recorded: everything else could wait for the device, or for other processes.
SPACES = ("aten", "hypatia", "prims")
#: Replays a recording, and its results.
Recording = tuple[Callable[[], None], Sequence[Any]]
_streams: dict[torch.device, Any] = {}


def can_be_recorded(graph: fx.GraphModule, device: torch.device) -> bool:
    """Whether a graph works on one GPU alone, and draws no random numbers."""
    if device.type != "cuda":
        return False
    for node in graph.graph.nodes:
        value = node.meta.get("val")
        values = value if isinstance(value, (list, tuple)) else [value]
        if any(isinstance(t, Tensor) and t.device != device for t in values):
            return False
        if any(isinstance(t, (torch.SymInt, torch.SymFloat, torch.SymBool)) for t in values):
            return False
        if isinstance(node.target, torch._ops.OpOverload):
            tags = node.target.tags
            varies = torch.Tag.dynamic_output_shape in tags or torch.Tag.data_dependent_output in tags
            draws = torch.Tag.nondeterministic_seeded in tags
            if node.target.namespace not in SPACES or varies or draws:
                return False
    return True


def record(run: Callable[..., Any], args: Sequence[Any], device: torch.device) -> Recording:
    """Record what a function launches on a device."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.device(device):
        # One stream for all: PyTorch keeps workspace for each stream that calls cuBLAS.
        side, current = _streams.setdefault(device, torch.cuda.Stream()), torch.cuda.current_stream()
        side.wait_stream(current)
        with torch.cuda.stream(side):
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                made = run(*args)
            finally:
                graph.capture_end()
        current.wait_stream(side)
    return graph.replay, made


class Recorded:
    """A function whose calls are replayed."""

    def __init__(
        self,
        run: Callable[..., Any],
        device: torch.device,
        changed: Collection[int] = (),
        watched: Collection[int] = (),
        recorder: Callable[..., Recording] = record,
    ) -> None:
        """Args: the function, the device of its work, the arguments that calls change, and those
        whose values plans contain.
        """
        self.run, self.device, self.recorder = run, device, recorder
        self.changed, self.watched = set(changed), list(watched)
        self.lock = threading.Lock()
        #: Where the arguments of the last call lay; the value of what is no tensor.
        self.places: list[Any] = []
        #: The arguments that do not always lie in the same place.
        self.moving: list[int] = []
        self.observed = self.recordings = 0
        self.given_up = ""
        self.recording: Recording | None = None
        self.versions: list[int] = []
        self.copies: dict[int, Tensor] = {}
        self.stream: Any = None

    def __call__(self, *args: Any) -> Any:
        """Compute the function."""
        if not self.given_up:
            with self.lock:
                made = self.replay(args)
            if made is not None:
                return made
        return self.run(*args)

    def is_observing(self) -> bool:
        """Whether nothing is recorded yet, and may be."""
        return self.recording is None and not self.given_up

    def replay(self, args: tuple[Any, ...]) -> list[Any] | None:
        """Replay the recording, after it was made if need be; None where there is none."""
        self.observe(args)
        if not self.given_up and self.recording is None and self.observed >= OBSERVED:
            self.make(args)
        if self.recording is None or self.stream != self.current():
            return None
        for i, copy in self.copies.items():
            copy.copy_(args[i])
        play, made = self.recording
        play()
        count_replay("graph", "one CUDA graph: plans and PyTorch's ops")
        return self.results(made, args)

    def observe(self, args: tuple[Any, ...]) -> None:
        """Note where the arguments lie, and drop a recording that reads from elsewhere."""
        places = [a.data_ptr() if isinstance(a, Tensor) else a for a in args]
        for i in self.moving:
            places[i] = None
        versions = [-1 if args[i].is_inference() else args[i]._version for i in self.watched]
        if places == self.places and versions == self.versions:
            self.observed += 1
            return
        if self.recording is not None and self.recordings >= MOST:
            self.given_up = "its arguments move"
        self.recording, self.observed = None, 0
        if len(places) == len(self.places):
            known = range(len(places))
            moved = [i for i in known if isinstance(args[i], Tensor) and places[i] != self.places[i]]
            self.moving += moved
            for i in moved:
                places[i] = None
            if self.changed & set(moved):
                self.given_up = "an argument that it changes moves"
        self.places, self.versions = places, versions

    def current(self) -> Any:
        """The current stream, on which alone recordings are replayed."""
        return torch.cuda.current_stream(self.device) if self.device.type == "cuda" else None

    def make(self, args: tuple[Any, ...]) -> None:
        """Record a call."""
        self.recordings += 1
        self.copies = {i: args[i].clone() for i in self.moving}
        given = [self.copies.get(i, a) for i, a in enumerate(args)]
        if any(c.stride() != args[i].stride() for i, c in self.copies.items()):
            self.given_up = "an argument has gaps"
            return
        try:
            play, made = self.recorder(self.run, given, self.device)
        except Exception as problem:
            self.given_up = f"it cannot be recorded: {problem}"
            return
        if why := self.unusable(made, given):
            self.given_up = why
            return
        # A result that is an argument is the argument of each call.
        places = {id(a): i for i, a in enumerate(given) if isinstance(a, Tensor)}
        own = [places.get(id(t), t) if isinstance(t, Tensor) else t for t in made]
        self.recording, self.stream = (play, own), self.current()

    def unusable(self, made: Any, given: Sequence[Any]) -> str:
        """Why the results of a recording cannot be given out; empty if they can."""
        return shares(made, given)

    def results(self, made: Sequence[Any], args: tuple[Any, ...]) -> list[Any]:
        """Results that the next call does not overwrite. A number stands for that argument."""
        return [t.clone() if isinstance(t, Tensor) else t if t is None else args[t] for t in made]


def are_tensors(made: Any) -> bool:
    """Whether results are a list of tensors, of which some may be missing."""
    return isinstance(made, (list, tuple)) and all(t is None or isinstance(t, Tensor) for t in made)


def shares(made: Any, args: Sequence[Any]) -> str:
    """Why results cannot be copied one by one: they share memory, or are no tensors."""
    if not are_tensors(made):
        return "its results are not tensors alone"
    given = {id(a): a.untyped_storage().data_ptr() for a in args if isinstance(a, Tensor)}
    taken = set(given.values())
    for t in made:
        if isinstance(t, Tensor) and id(t) not in given:
            if t.untyped_storage().data_ptr() in taken:
                return "its results share memory"
            taken.add(t.untyped_storage().data_ptr())
    return ""
