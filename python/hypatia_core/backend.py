"""`torch.compile(model, backend="hypatia")`: whole graphs, on the CPU and on CUDA.

In: the graphs that PyTorch captures. Out: callables. Invariant: parts of a graph whose ops Hypatia
knows become plans, made for the shapes of each call; the rest stays PyTorch's, and `report()` names
the ops that were in the way. Where gradients are wanted, PyTorch derives the backward graph and
says what is saved for it (the least, by a minimum cut); both graphs are divided alike.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx
from torch._decomp import core_aten_decompositions
from torch._dynamo.backends.common import aot_autograd
from torch._functorch._aot_autograd.schemas import OutputType
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._guards import TracingContext

from . import _launch, _native
from ._attention import keep_attention
from ._division import divide, is_item, share_results
from ._encoder import LAYERS
from ._fx import TABLE, name_of
from ._in_place import changed_results, without_copies, write_in_place, written_in_place
from ._known import draws_nothing, reads_past, unsupported
from ._layout import channels_last, part_biases
from ._model import COMPARE_EVERY
from ._part import Options, Part
from ._partition import partition
from ._recorded import Recorded, can_be_recorded
from ._rules import Rules, library
from ._steps import Steps
from ._strides import as_traced
from ._subclasses import as_plain
from ._training import Halves
from ._whole import Whole
from ._words import as_pytorch_says, check_classes, copied, of_classes
from .errors import InputError
from .fuse import _together
from .nn import _runtime

Tensor = torch.Tensor


#: Ops that draw random numbers, which must be those that eager draws: they stay whole.
RANDOM = (
    "native_dropout",
    "bernoulli",
    "rand_like",
    "randn_like",
    "randint_like",
    "normal",
    "uniform",
    "rand",
    "randn",
)


def is_list(value: Any) -> bool:
    """Whether a value is a list of strings."""
    return isinstance(value, (list, tuple, set)) and all(isinstance(v, str) for v in value)


#: What an option must be, as a function and in words. None stands for the default.
OPTIONS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "compare_every": (lambda v: type(v) is int and v >= 0, "a number of runs, or 0 for no run"),
    "frozen": (lambda v: isinstance(v, bool), "True or False"),
    "must": (is_list, "a list of rules"),
    "never": (is_list, "a list of rules"),
    "numerics": (lambda v: isinstance(v, str), "`exact`, `rounds` or `fast`"),
    "precision": (lambda v: v in ("ieee", "tf32"), "`ieee` or `tf32`"),
    # Said by what puts rules together.
    "rules": (lambda v: True, "a list of rules"),
    "safety": (lambda v: isinstance(v, str), "`strict`, `check` or `off`"),
}


def table() -> dict[Any, Any]:
    """PyTorch's decompositions into core ops, without those of ops that are better left whole."""
    # The gradient of an embedding, taken apart, writes the whole table in f32 first.
    whole = {*TABLE, *RANDOM, "embedding_dense_backward"}
    return {op: f for op, f in core_aten_decompositions().items() if name_of(op) not in whole} | LAYERS


def backend(
    module: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    **others: Any,
) -> Callable[..., Any]:
    """Compile a graph that Dynamo captured.

    Options:
        rules: rules of your own, beside the library's.
        numerics: ``exact``, ``rounds`` or ``fast``, as of ``Model``.
        must, never: rules that each part of the graph must have and must not have, see ``Model``.
        precision: ``ieee`` or ``tf32`` for f32 products on a GPU; by default PyTorch's setting.
        safety: ``check`` (the default), ``strict`` or ``off``, see ``Model``. With ``strict``,
            plans run where there can be one, whatever PyTorch's time; what strict runs find wrong
            is listed by ``report().incidents``. On a GPU a strict run is waited for, and cannot be
            captured in a CUDA graph.
        compare_every: with ``strict``, the share of runs that are compared, see ``Model``.
        frozen: True lets plans contain the values of parameters and buffers, which then serve as
            constants. Address and version of each are checked in each call; what is written
            through ``.data`` changes neither, and goes unnoticed.

    >>> import torch
    >>> from hypatia_core.backend import backend
    >>> network = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU())
    >>> model = torch.compile(network, backend=backend)
    >>> with torch.no_grad():
    ...     model(torch.randn(2, 4)).shape
    torch.Size([2, 8])

    Raises:
        InputError: if an option, or an argument of ``torch.compile``, is none of these.
    """
    if others:
        name, value = next(iter(others.items()))
        raise InputError(f"backend hypatia: it has no `{name}`, and was given {value!r}; it takes `options=`, a dict")
    chosen, how = read(options or {})

    eager, original = copied(module), of_classes(module)
    check_classes(module)
    trains = torch.is_grad_enabled() and any(isinstance(t, Tensor) and t.requires_grad for t in example_inputs)
    if trains:
        compiled = training(module, eager, example_inputs, chosen, replace(how, frozen=False))
        return as_pytorch_says(original, compiled)

    keep_attention(module)

    direct: list[_native.Entry] = []
    parts: list[Part] = []
    static: list[int] = []
    #: The arguments that a recorded call changes, if calls can be recorded.
    recordable: list[list[int]] = []

    def inference(graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        if len(inputs) == len(example_inputs) and can_be_recorded(graph, device_of(graph)):
            recordable.append(changed_inputs())
        static.extend(unchanged_inputs() if how.frozen else ())
        changed = changed_results() if len(inputs) == len(example_inputs) else []
        computes = divided(graph, chosen, options=how, static=static, made=parts, lay=True, changed=changed)
        computes = as_plain(example_inputs, computes)
        if isinstance(computes, _native.Entry) and len(inputs) == len(example_inputs) and passes_on():
            direct.append(computes)
        return make_boxed_func(computes)

    compiled = aot_autograd(fw_compiler=inference, inference_compiler=inference, decompositions=table())(
        module, example_inputs
    )
    compiled = as_pytorch_says(original, compiled)
    # One part whose arguments and results are the graph's is called as it is.
    alone = len(direct) == 1
    if alone:
        compiled = direct[0].beside(compiled)
    elif not parts:
        return as_plain(example_inputs, eager)
    if wants_plans(how) or not parts:
        return compiled
    device = parts[0].device
    recorded = Recorded(compiled, device, recordable[0], static) if len(recordable) == 1 and not alone else None
    return Whole(compiled, as_plain(example_inputs, eager), parts, device, recorded)


def training(
    module: fx.GraphModule,
    eager: fx.GraphModule,
    inputs: Sequence[Any],
    rules: Rules,
    how: Options,
) -> Callable[..., Any]:
    """Forward and backward of a graph, both divided, or the graph as PyTorch runs it.

    Plans have weights as operands: each step of training changes them.
    """

    keep_attention(module, train=True)
    halves = Halves(inputs)

    def note_recordable(graph: fx.GraphModule) -> None:
        if not wants_plans(how) and can_be_recorded(graph, device_of(graph)):
            halves.recordable.append(device_of(graph))

    def forward(graph: fx.GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
        # What is saved is given up at once, when the backward pass has run.
        context = TracingContext.try_get()
        about = context and context.fw_metadata
        results = graph.graph.output_node().args[0]
        assert isinstance(results, (list, tuple))
        count = about.num_forward if about else len(results)
        note_recordable(graph)
        computes = divided(graph, rules, options=how, together=range(count, len(results)), made=halves.parts)
        computes = as_plain(inputs, computes)
        halves.take_forward(graph, computes)
        return make_boxed_func(computes)

    def backward(graph: fx.GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
        # Gradients of parameters live until the next step.
        parameters = [i for i, t in enumerate(inputs) if isinstance(t, torch.nn.Parameter)]
        note_recordable(graph)
        computes = divided(graph, rules, options=how, together=parameters, made=halves.parts)
        computes = as_plain(inputs, computes)
        halves.take_backward(graph, computes)
        return make_boxed_func(computes)

    def halve(joint: fx.GraphModule, given: Sequence[Any], **about: Any) -> tuple[fx.GraphModule, fx.GraphModule]:
        lay_out(joint)
        return partition(joint, given, **about)

    compile_both = aot_autograd(
        fw_compiler=forward,
        bw_compiler=backward,
        partition_fn=halve,
        decompositions=table(),
    )
    compiled = halves.beside(compile_both(module, inputs))
    # Rules that must fire and checks say that plans are wanted.
    if wants_plans(how):
        return compiled
    return Steps(compiled, as_plain(inputs, eager), device_of(eager), halves.is_settled, halves.drop)


def wants_plans(how: Options) -> bool:
    """Whether plans are wanted where PyTorch is faster too: rules must fire, or runs be checked."""
    return bool(how.must or how.never or how.safety == "strict")


def read(given: Mapping[str, Any]) -> tuple[Rules, Options]:
    """Rules and options of a compiled graph.

    Raises:
        InputError: if there is no such option, rule or value.
    """
    if not isinstance(given, Mapping):
        raise InputError(f"backend hypatia: `options` is a dict, not {given!r}")
    if unknown := [name for name in given if name not in OPTIONS]:
        raise InputError(f"backend hypatia: there is no option `{unknown[0]}`; the options are {', '.join(OPTIONS)}")
    given = {name: value for name, value in given.items() if value is not None}
    for name, value in given.items():
        fits, words = OPTIONS[name]
        if not fits(value):
            raise InputError(f"backend hypatia: {name} is {words}, not {value!r}")
    rules = _together(given.get("rules", ())) or library()
    precision = given.get("precision") or ("tf32" if torch.get_float32_matmul_precision() != "highest" else "ieee")
    how = Options(
        given.get("numerics"),
        must=tuple(given.get("must", ())),
        never=tuple(given.get("never", ())),
        tf32=precision == "tf32",
        safety=given.get("safety", "check"),
        compare_every=given.get("compare_every", COMPARE_EVERY),
        frozen=given.get("frozen", False),
    )
    # What no rule and no device has is said now, not when a plan is made.
    probe = _native.Graph(rules._native)
    probe.output("y", probe.input("x", "f32", [1]))
    probe.model(**how.settings(torch.device("cpu")))
    return rules, how


def unchanged_inputs() -> list[int]:
    """The inputs of the graph at hand that are parameters and buffers which it does not change.

    A cache lies where it lay, but no plan may contain its values.
    """
    context = TracingContext.try_get()
    static = [] if context is None or context.fw_metadata is None else context.fw_metadata.static_input_indices
    changed = changed_inputs()
    return [i for i in static if i not in changed]


def changed_inputs() -> list[int]:
    """The inputs of the graph at hand that a call changes."""
    context = TracingContext.try_get()
    meta = context and context.fw_metadata
    return [] if meta is None else [i for i, t in enumerate(meta.input_info) if t.mutates_data or t.mutates_metadata]


def passes_on() -> bool:
    """Whether AOTAutograd's wrapper of the graph at hand passes on arguments and results alone."""
    context = TracingContext.try_get()
    meta = context and context.fw_metadata
    if meta is None:
        return False
    plain = all(type(t).__name__ == "PlainTensorMeta" for t in meta.subclass_inp_meta)
    changed = any(i.mutates_data or i.mutates_metadata for i in meta.input_info)
    new = all(o.output_type is OutputType.non_alias for o in meta.output_info)
    return plain and new and not changed and not meta.tokens and meta.grad_enabled_mutation is None


def note(label: str, why: str) -> None:
    """Say what PyTorch computes in each call of the graph."""
    _runtime.leave(label, why)


def computes(node: fx.Node) -> bool:
    """Whether a node computes tensors; the others are sizes."""
    size = (int, float, torch.SymInt, torch.SymFloat, torch.SymBool)
    return node.op == "call_function" and not isinstance(node.meta.get("val"), size)


def device_of(graph: fx.GraphModule) -> torch.device:
    """The device of a graph's plans: the GPU if there is one."""
    found: list[torch.device] = []
    for node in graph.graph.nodes:
        value = node.meta.get("val", node.meta.get("example_value"))
        found += [t.device for t in (value if isinstance(value, (list, tuple)) else [value]) if isinstance(t, Tensor)]
    return next((d for d in found if d.type != "cpu"), torch.device("cpu"))


def divided(
    graph: fx.GraphModule,
    rules: Rules,
    single: bool = False,
    options: Options | None = None,
    static: Collection[int] = (),
    together: Collection[int] = (),
    made: list[Part] | None = None,
    lay: bool = False,
    changed: Sequence[int] = (),
) -> Callable[..., Any]:
    """The graph with parts that plans compute; the rest is PyTorch's.

    `single` makes parts of ops that stand alone too, where there is nothing to fuse. `static` are
    the inputs that are parameters and buffers; `together` are results that may share memory. The
    parts are added to `made`. `lay` lets tensors lie as PyTorch's convolutions want them on a
    GPU, and results that are views of others share their memory. `changed` are the arguments whose
    new values are the first results.
    """
    as_traced(graph)
    if why := indivisible(graph):
        note("graph", why)
        return graph.forward
    without_empty_operands(graph)
    without_copies(graph)
    device = device_of(graph)
    if why := _launch.unreachable(device):
        note("graph", why)
        return graph.forward
    if lay:
        lay_out(graph)
    views = share_results(graph.graph, len(changed)) if lay else set()
    written = {node.name for node in written_in_place(graph, changed)}
    for node in graph.graph.nodes:
        if node.name in written:
            note("graph", f"PyTorch computes {name_of(node.target)}, which writes into an argument of the graph")
        elif computes(node) and not is_item(node) and not is_ours(node) and (why := unsupported(node, device)):
            note("graph", f"PyTorch computes {why}")
    drawn = random(graph)
    undivided = fx.GraphModule(graph, copy.deepcopy(graph.graph)) if len(drawn) > 1 else graph
    apart = written | views
    whole = divide(graph, lambda n: computes(n) and n.name not in apart and not unsupported(n, device), single)
    if random(whole) != drawn:
        note("graph", "parts would change the order in which random numbers are drawn")
        return undivided.forward
    for node in whole.graph.nodes:
        known = node.name in apart or is_ours(node) or unsupported(node, device)
        if node.op == "call_function" and computes(node) and not known:
            note("graph", f"{name_of(node.target) or 'getitem'} stands alone: there is nothing to fuse")
    inputs = whole.graph.find_nodes(op="placeholder")
    kept = {inputs[i] for i in static}
    for node in whole.graph.find_nodes(op="call_module"):
        name = str(node.target)
        child = whole.get_submodule(name)
        if isinstance(child, fx.GraphModule):
            weights = [i for i, a in enumerate(node.args) if a in kept]
            part = Part(child, rules, device, options, weights)
            part.together = shared(whole, node, together)
            setattr(whole, name, part)
            if made is not None:
                made.append(part)
    # Division copies nodes.
    write_in_place(whole, written_in_place(whole, changed), changed)
    if entry := alone(whole):
        return entry
    for name, part in list(whole.named_children()):
        if isinstance(part, Part):
            delattr(whole, name)
            whole.__dict__[name] = part.entered()
    return whole.forward


def lay_out(graph: fx.GraphModule) -> None:
    """Prepare the convolutions that PyTorch computes on a GPU: how tensors lie, their biases."""
    device = device_of(graph)
    if device.type == "cuda" and not channels_last(graph, lambda n: bool(unsupported(n, device))):
        part_biases(graph, lambda n: bool(unsupported(n, device)))


def without_empty_operands(graph: fx.GraphModule) -> None:
    """Take tensors of shape (0,) out of concatenations, which skip them, and out of the graph.

    A cache of keys and values begins as one: a plan has no empty operands.
    """
    for node in graph.graph.find_nodes(op="call_function", target=torch.ops.aten.cat.default):
        listed = node.args[0]
        if not isinstance(listed, (list, tuple)):
            continue
        operands = [a for a in listed if isinstance(a, fx.Node)]
        sizes = [a.meta["val"].shape for a in operands]
        empty = [len(s) == 1 and isinstance(s[0], int) and s[0] == 0 for s in sizes]
        kept = [a for a, e in zip(operands, empty, strict=True) if not e]
        if len(kept) == len(operands) or {a.meta["val"].dtype for a in kept} != {node.meta["val"].dtype}:
            continue
        node.args = (kept, *node.args[1:])
        unused = list(dict.fromkeys(a for a in operands if a not in kept))
        while unused:
            a = unused.pop()
            if not a.users and (a.op == "get_attr" or name_of(a.target) in ("lift_fresh_copy", "detach", "_to_copy")):
                unused += a.all_input_nodes
                graph.graph.erase_node(a)
    graph.recompile()


def shared(whole: fx.GraphModule, part: fx.Node, together: Collection[int]) -> list[int]:
    """The results of a part that are nothing but those results of the graph."""
    results = whole.graph.output_node().args[0]
    if not isinstance(results, (list, tuple)):
        return []
    found = []
    for node in part.users:
        places = [i for i, r in enumerate(results) if r is node]
        if node.target is operator.getitem and len(node.users) == len(places) == 1 and places[0] in together:
            found.append(node.args[1])
    return sorted(found)


def alone(whole: fx.GraphModule) -> _native.Entry | None:
    """The one part of a graph that is nothing else: it is called without a detour."""
    nodes = [n for n in whole.graph.nodes if n.op not in ("placeholder", "output")]
    calls = [n for n in nodes if n.op == "call_module"]
    inputs = whole.graph.find_nodes(op="placeholder")
    results = whole.graph.output_node().args[0]
    part = whole.get_submodule(str(calls[0].target)) if len(calls) == 1 else None
    if not isinstance(part, Part) or not isinstance(results, (list, tuple)):
        return None
    made: dict[Any, Any] = {calls[0]: 0} if part.single else {n: n.args[1] for n in calls[0].users if is_item(n)}
    places: dict[Any, Any] = {None: None, **{n: (False, i) for i, n in enumerate(inputs)}}
    places.update({n: (True, i) for n, i in made.items()})
    if any(n not in made and n is not calls[0] for n in nodes) or any(r not in places for r in results):
        return None
    order = [inputs.index(a) for a in calls[0].args if isinstance(a, fx.Node)]
    return part.entered(order, [places[r] for r in results])


def is_ours(node: fx.Node) -> bool:
    """Whether a node is a fused layer or fusion, which chooses its side itself."""
    own = isinstance(node.target, torch._ops.OpOverload) and node.target.namespace == "hypatia"
    return own and not name_of(node.target)


def indivisible(graph: fx.GraphModule) -> str:
    """Why a graph must run as it is; empty if it can be divided.

    Parts put their results into memory of their own, and may be moved in front of other nodes.
    """
    ops = [n.target for n in graph.graph.nodes if isinstance(n.target, torch._ops.OpOverload)]
    if any(reads_past(n) for n in graph.graph.nodes if n.op == "call_function"):
        return "as_strided reads memory past its operand"
    if any(op._schema.is_mutable for op in ops):
        return "a node changes its operand"
    return ""


def random(graph: fx.GraphModule) -> list[str]:
    """The nodes that draw random numbers, in order."""
    drawing = torch.Tag.nondeterministic_seeded
    nodes = [n for n in graph.graph.nodes if n.op == "call_function" and not draws_nothing(n)]
    return [n.name for n in nodes if isinstance(n.target, torch._ops.OpOverload) and drawing in n.target.tags]
