"""Training: forward and backward of a compiled graph as one function of autograd.

In: both halves, as AOTAutograd made them, and what it says about the graph. Out: a function of the
graph's arguments with gradients. Invariant: it does what AOTAutograd's own runtime does for a
graph without aliases and sizes among its arguments, of which it changes none but buffers; other
graphs are left to that runtime, which takes the host longer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch._functorch._aot_autograd.schemas import OutputType
from torch._guards import TracingContext

from . import _native
from ._part import Part
from ._passes import Passes, Plain
from ._whole import settled

Tensor = torch.Tensor
SECOND = (
    "hypatia: second derivatives of a compiled graph are not computed; "
    "take the gradient that is differentiated again (`create_graph=True`) of the module before `torch.compile`"
)


@dataclass
class Halves:
    """Forward and backward of one graph. The latter is made with the first backward pass."""

    inputs: Sequence[Any]
    """What the graph was compiled for."""
    forward: Callable[..., Any] | None = None
    backward: Callable[..., Any] | None = None
    about: Any = None
    """AOTAutograd's description of the graph."""
    arguments: list[Any] = field(default_factory=list)
    """What the placeholders of the forward graph stand for."""
    tangents: list[Any] = field(default_factory=list)
    """What the last placeholders of the backward graph stand for: gradients of results."""
    saved: int = 0
    changed: list[int] = field(default_factory=list)
    """The arguments that the graph changes. Its first results are their new values."""
    keeps_changed: bool = False
    """Whether the backward graph needs one of them as it was."""
    own: Callable[..., Any] | None = None
    """The graph as a function, once both halves are known, if it is simple."""
    parts: list[Part] = field(default_factory=list)
    """The parts of both halves."""
    recordable: list[torch.device] = field(default_factory=list)
    """The device of each half that can be recorded."""
    passes: Plain | None = None
    """What computes both, once they are known."""

    def take_forward(self, graph: fx.GraphModule, computes: Callable[..., Any]) -> None:
        """Note what computes the forward graph. It must be called while the graph is compiled."""
        context = TracingContext.try_get()
        self.forward, self.about = computes, context and context.fw_metadata
        self.arguments = [n.meta.get("val") for n in graph.graph.find_nodes(op="placeholder")]
        results = graph.graph.output_node().args[0]
        if self.about is not None and isinstance(results, (list, tuple)):
            self.changed = list(self.about.mutated_inp_runtime_indices)
            own = len(self.changed) + len(self.about.output_info)
            self.saved = len(results) - own
            given = graph.graph.find_nodes(op="placeholder")
            self.keeps_changed = any(given[i] in results[own:] for i in self.changed if i < len(given))

    def take_backward(self, graph: fx.GraphModule, computes: Callable[..., Any]) -> None:
        """Note what computes the backward graph."""
        self.backward = computes
        self.tangents = [n.meta.get("val") for n in graph.graph.find_nodes(op="placeholder")][self.saved :]
        if self.simple():
            self.own = self.function()

    def beside(self, compiled: Callable[..., Any]) -> Callable[..., Any]:
        """A function that calls AOTAutograd's until the backward graph is known."""

        def graph(*args: Any) -> Any:
            return compiled(*args) if self.own is None else self.own(*args)

        return graph

    def is_settled(self) -> bool:
        """Whether it is known what computes each part of a simple graph, and how it is replayed."""
        fixed = not any(part.varying for part in self.parts)
        known = self.passes is not None and self.passes.is_settled()
        return self.own is not None and known and fixed and all(map(settled, self.parts))

    def drop(self) -> None:
        """Give back memory, for neither half is called any more."""
        if self.passes is not None:
            self.passes.drop()

    def simple(self) -> bool:
        """Whether arguments, results and saved tensors are all that passes between the halves."""
        about = self.about
        if about is None or self.forward is None or len(self.arguments) != len(self.inputs):
            return False
        known = [*self.inputs, *self.arguments, *self.tangents]
        if not all(isinstance(t, Tensor) for t in known) or any(not is_fixed(t) for t in self.arguments):
            return False
        wanted = sum(o.requires_grad for o in about.output_info)
        new = (OutputType.non_alias, OutputType.unsafe_view_alias)
        plain = all(o.output_type in new and issubclass(o.raw_type, Tensor) for o in about.output_info)
        changed = any(i.mutates_data or i.mutates_metadata for i in about.input_info) and not self.changes_buffers()
        classes = all(type(t).__name__ == "PlainTensorMeta" for t in about.subclass_inp_meta)
        further = about.tokens or about.num_intermediate_bases or about.grad_enabled_mutation is not None
        return plain and classes and not changed and not further and wanted == len(self.tangents)

    def changes_buffers(self) -> bool:
        """Whether values of arguments without gradients are all that the graph changes."""
        infos = self.about.input_info
        touched = [i for i, info in enumerate(infos) if info.mutates_data or info.mutates_metadata]
        moved = any(infos[i].mutates_metadata or infos[i].mutates_storage_metadata for i in touched)
        plain = not any(infos[i].requires_grad for i in touched)
        return plain and not moved and touched == self.changed and not self.keeps_changed

    def function(self) -> Callable[..., Any]:
        """The graph as a function."""
        assert self.forward is not None and self.backward is not None
        count = len(self.about.output_info)
        forward, backward = shielded(updating(self.forward, self.changed)), shielded(self.backward)
        passes = Plain(forward, backward, count)
        if len(self.recordable) == 2:
            device = self.recordable[0]
            passes = Passes(forward, backward, count, device, lambda: all(map(settled, self.parts)), self.changed)
        self.passes = passes
        wanted = [i for i, o in enumerate(self.about.output_info) if o.requires_grad]
        others = [i for i in range(count) if i not in wanted]
        layouts = [(tuple(map(int, t.shape)), tuple(map(int, t.stride()))) for t in self.tangents]

        def once(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
            of = [laid_out(gradients[i], *layout) for i, layout in zip(wanted, layouts, strict=True)]
            return tuple(passes.backward(ctx, tuple(of)))

        class Compiled(torch.autograd.Function):
            """The compiled graph."""

            @staticmethod
            def forward(ctx: Any, *args: Tensor) -> tuple[Tensor, ...]:
                results = tuple(passes.forward(ctx, args))
                if others:
                    ctx.mark_non_differentiable(*(results[i] for i in others))
                return results

            @staticmethod
            def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
                if not torch.is_grad_enabled():
                    return once(ctx, *grad_outputs)
                with torch.no_grad():
                    made = once(ctx, *grad_outputs)
                return refusing(made)

        return Compiled.apply


def updating(forward: Callable[..., Any], changed: Sequence[int]) -> Callable[..., Any]:
    """A forward graph that writes the new values of those arguments, its first results, itself."""
    if not changed:
        return forward

    def run(*args: Any) -> Any:
        made = forward(*args)
        kinds: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
        for i, new in zip(changed, made, strict=False):
            old, values = kinds.setdefault(args[i].dtype, ([], []))
            old.append(args[i])
            values.append(new)
        # A batch norm has three buffers, and a network some fifty.
        for old, values in kinds.values():
            torch._foreach_copy_(old, values)  # pyright: ignore[reportPrivateImportUsage]
        return made[len(changed) :]

    return run


def shielded(computes: Callable[..., Any]) -> Callable[..., Any]:
    """A half without autocast, whose conversions are in the graph."""
    if isinstance(computes, _native.Entry):
        return computes  # It sees to that itself.

    def half(*args: Any) -> Any:
        with torch._C._DisableAutocast():
            return computes(*args)

    return half


def refusing(made: Sequence[Tensor | None]) -> tuple[Tensor | None, ...]:
    """The same gradients; to differentiate them is an error, whatever they depend on."""
    errors: Any = torch._C
    fail = errors._functions.DelayedError(SECOND.encode(), len(made))
    return tuple(fail(*(None if t is None else t.detach().requires_grad_() for t in made)))


def is_fixed(t: Tensor) -> bool:
    """Whether a tensor's sizes are numbers."""
    return all(isinstance(n, int) for n in t.shape)


def laid_out(t: Tensor, sizes: tuple[int, ...], strides: tuple[int, ...]) -> Tensor:
    """A gradient with the strides that the backward graph was made for."""
    if t.stride() == strides:
        return t
    return torch.empty_strided(sizes, strides, dtype=t.dtype, device=t.device).copy_(t)
