"""Which side computes a call of a layer: a plan of Hypatia, or PyTorch.

In: an op, rows and parameters. Out: the result. Invariant: the result is that of PyTorch's layer up
to rounding whichever side computes it; a call that PyTorch computes is counted with its reason; a
plan that is slower than PyTorch for a shape is not used for it.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.autograd import forward_ad

from .. import _launch, _native
from .._eager import NAMES
from ..errors import ContractError, HypatiaError, InputError
from ._ops import Linear, Op

Tensor = torch.Tensor

POLICIES = ("measure", "always", "never")
#: The calls that entries of compiled graphs take without asking.
_TRUSTED = {"measure": "measured", "always": "all", "never": "none"}
FLOATS = {d: n for d, n in NAMES.items() if n in ("f64", "f32", "f16", "bf16")}
#: Plans that one op keeps; further shapes are PyTorch's.
MAX_PLANS = 256
#: Inputs that a new plan may refuse before it is given up.
MAX_REFUSALS = 3
#: Plans that one part of a compiled graph keeps.
MAX_PART_PLANS = 16
#: Shapes that an op or part remembers.
MAX_SEEN = 512
#: Seconds that measuring one shape may take, beyond one run of each side.
BUDGET = 0.03
#: Runs of each side that are timed at least: chance may slow one down.
TURNS = 3
#: Those where one side takes four times as long as the other.
LOPSIDED_TURNS = 2
#: Seconds that chance does not cost: where more lies between the sides, one run of each is enough.
HICCUP = 1.0
#: Calls of each side that are timed together on a GPU.
GPU_CALLS = 10

_policy = "measure"
#: Parts of compiled graphs.
_parts: weakref.WeakSet[Any] = weakref.WeakSet()
_lock = threading.Lock()
#: Makes the plans of compiled graphs, one by one.
_worker = ThreadPoolExecutor(1, "hypatia")
#: Held while a plan is made in the background, and while the process forks: the native module's
#: locks are free in a child.
_making = threading.RLock()


@contextlib.contextmanager
def policy(name: str) -> Iterator[None]:
    """Say which side computes the layers, inside of a ``with`` block.

    ``measure``, the default: the second call of a shape makes a plan and measures both sides once;
    the faster one computes from then on. ``always``: a plan wherever there can be one, from the
    first call on. ``never``: PyTorch. It holds for all threads.
    """
    global _policy
    if name not in POLICIES:
        raise ValueError(f"policy: expected one of {', '.join(POLICIES)}, not {name!r}")
    before, _policy = _policy, name
    _native.trust(_TRUSTED[_policy])
    try:
        yield
    finally:
        _policy = before
        _native.trust(_TRUSTED[_policy])


#: Makes a plan, and says where its times are kept.
Make = Callable[[], tuple[_native.Plan, _native.Race | None]]
#: Hypatia's side and PyTorch's.
Sides = tuple[Callable[[], Any], Callable[[], Any]]


@dataclass
class Choice:
    """What was found for one op, element type and shape."""

    plan: _native.Plan | None = None
    why: str = ""
    """Why PyTorch computes, if it does."""
    measured: tuple[float, float] | None = None
    """Seconds of Hypatia and of PyTorch."""
    ours: int = 0
    """Calls that Python saw; entries count theirs at the plan."""
    eager: int = 0
    faster: bool = True
    """Whether the plan is the faster side, as far as is known."""
    failed: bool = False
    refusals: int = 0
    """How often a new plan could not be compared, since it refused the inputs at hand."""
    broken: ContractError | None = None
    """What the plan lacks, if it lacks what it must have."""
    seen: bool = False
    """Whether the shape was called before."""
    pending: Future[None] | None = None
    """The plan, if it was to be made in the background."""
    retries: bool = False
    """Whether the next call is to make the plan, since the last could not."""
    race: _native.Race | None = None
    """Where times are kept for later processes."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def prepare(self, make: Make) -> None:
        """Make the plan. Times that an earlier process measured count."""
        try:
            plan, race = make()
            if race is not None:
                self.race, times = race, race.times()
                if times is not None:
                    self.judge(times)
            self.plan = plan
        except BaseException as error:
            if not is_fault(error):
                raise
            self.broken = error if isinstance(error, ContractError) else None
            if isinstance(error, _launch.RefusedError) and self.refusals < MAX_REFUSALS:
                # Inputs that a plan refuses say nothing about others of their sizes.
                self.refusals, self.retries, self.why = self.refusals + 1, True, refusal(error)
            else:
                self.failed, self.why = True, f"no plan could be made: {told(error)}"

    def prepare_in_background(self, make: Make) -> None:
        """Make the plan, and let no process fork meanwhile."""
        with _making:
            self.prepare(make)

    def measure(self, sides: Sides, device: torch.device) -> None:
        """Time both sides. A side that fails leaves the call to PyTorch."""
        try:
            times = timed(sides, device)
        except BaseException as error:
            if not is_fault(error):
                raise
            # Inputs that a plan refuses say nothing about others of their sizes.
            self.failed = not isinstance(error, InputError)
            self.why = f"the plan was not timed: {told(error)}"
            if self.failed:
                self.plan = None
            return
        self.judge(times)
        if self.race is not None:
            self.race.keep(*times)

    def judge(self, times: tuple[float, float]) -> None:
        """Choose the faster side."""
        self.measured, self.faster = times, times[0] <= times[1]
        if not self.faster:
            self.why = "PyTorch was faster when both were measured"


@dataclass(frozen=True)
class Line:
    """Calls of one op with one shape, computed by one side for one reason."""

    op: str
    shape: str
    side: str
    """``hypatia`` or ``pytorch``."""
    calls: int
    """0 for an op that stays PyTorch's in each call of a compiled graph."""
    why: str
    """Why PyTorch computed; for Hypatia the launches of its plan, or what a call replays."""
    hypatia_us: float | None
    """Measured microseconds of Hypatia's plan, if both sides were measured."""
    pytorch_us: float | None
    """Measured microseconds of PyTorch."""


def timed(sides: Sides, device: torch.device) -> tuple[float, float]:
    """Seconds of both sides, which run in turn; the least time of each counts.

    On a GPU it is the time of several calls, one after another, the host's part included.
    """
    best, start = [math.inf, math.inf], time.perf_counter()
    calls = 1 if device.type == "cpu" else GPU_CALLS
    with torch.no_grad():
        for turn in range(1, 21):
            for i, side in enumerate(sides):
                _launch.synchronize(device)
                before = time.perf_counter()
                for _ in range(calls):
                    side()
                _launch.synchronize(device)
                best[i] = min(best[i], (time.perf_counter() - before) / calls)
            turns = LOPSIDED_TURNS if max(best) > 4 * min(best) else TURNS
            enough = time.perf_counter() - start > BUDGET and turn >= turns
            if enough or max(best) - min(best) > HICCUP:
                break
    return best[0], best[1]


def is_fault(error: BaseException) -> bool:
    """Whether an exception says that something failed, not that the program is to stop."""
    # A panic of the native module is no `Exception`.
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


def told(error: BaseException) -> str:
    """An exception as a reason: those that are not Hypatia's with their class."""
    return str(error) if isinstance(error, HypatiaError) else f"{type(error).__name__}: {error}"


#: What an empty report says: PyTorch may hand over nothing at all.
EMPTY = (
    "nothing was called, or PyTorch handed over no graph: it runs some models, such as those with nn.GRU, without "
    'compiling them (TORCH_LOGS="graph_breaks" says why)'
)


class Report:
    """Which side computed the layers so far. ``str()`` is a table."""

    def __init__(self, lines: list[Line], incidents: list[str] | None = None) -> None:
        """Args: the lines, and what strict runs have found wrong, in words."""
        self.lines = lines
        self.incidents = incidents or []

    @property
    def hypatia(self) -> int:
        """Calls that a plan computed."""
        return sum(line.calls for line in self.lines if line.side == "hypatia")

    @property
    def pytorch(self) -> int:
        """Calls that PyTorch computed."""
        return sum(line.calls for line in self.lines if line.side == "pytorch")

    @property
    def left(self) -> list[str]:
        """What stays PyTorch's in each call of a compiled graph, and why."""
        return [line.why for line in self.lines if line.side == "pytorch" and not line.calls]

    def __str__(self) -> str:
        """Return a table."""
        head = ("layer", "shape", "computed by", "calls", "hypatia us", "pytorch us", "why")
        rows = [
            (x.op, x.shape, x.side, str(x.calls or ""), rounded(x.hypatia_us), rounded(x.pytorch_us), x.why)
            for x in self.lines
        ]
        widths = [max(len(r[i]) for r in [head, *rows]) for i in range(len(head))]
        text = ["  ".join(c.ljust(w) for c, w in zip(r, widths, strict=True)).rstrip() for r in [head, *rows]]
        found = [f"found wrong and computed again: {incident}" for incident in self.incidents]
        text += found if self.lines else [*found, EMPTY]
        return "\n".join([*text, f"{self.hypatia} calls by hypatia, {self.pytorch} by pytorch"])

    def __repr__(self) -> str:
        """Count the calls."""
        return f"Report(hypatia={self.hypatia}, pytorch={self.pytorch})"

    def _repr_html_(self) -> str:
        import html

        return f"<pre>{html.escape(str(self))}</pre>"


def rounded(us: float | None) -> str:
    """Microseconds for a table."""
    return "" if us is None else f"{us:.0f}"


#: Calls that PyTorch computed before there was anything to choose, by op and reason.
_passed: dict[tuple[str, str], int] = {}
#: What stays PyTorch's in each call of a compiled graph, by graph and reason.
_left: dict[tuple[str, str], None] = {}
#: Calls of whole graphs that were replayed, by the graph and what a call replays.
_replayed: dict[tuple[str, str], int] = {}


def report() -> Report:
    """Which side computed the layers so far, how often, and why.

    >>> import hypatia_core as hyp, torch
    >>> hyp.reset_report()
    >>> layer = hyp.nn.FusedLinear(4, 2)
    >>> with hyp.nn.policy("always"), torch.no_grad():
    ...     y = layer(torch.ones(3, 4))
    >>> hyp.report()
    Report(hypatia=1, pytorch=0)
    """
    lines, incidents = [], []
    with _lock:
        for op in counted():
            for key, c in list(op.plans.items()):
                incidents += [] if c.plan is None else c.plan.incidents
                shape = op.show(key)
                times = (None, None) if c.measured is None else (c.measured[0] * 1e6, c.measured[1] * 1e6)
                ours = c.ours + (0 if c.plan is None else c.plan.taken)
                if ours and c.plan is not None:
                    launches = f"{c.plan.launches} launch{'es' if c.plan.launches != 1 else ''}"
                    refused = f"; {c.plan.refusal}" if c.plan.refusal else ""
                    lines.append(Line(op.label, shape, "hypatia", ours, launches + refused, *times))
                if c.eager:
                    lines.append(Line(op.label, shape, "pytorch", c.eager, c.why, *times))
        lines.sort(key=in_order)
        lines += [Line(label, "", "pytorch", n, why, None, None) for (label, why), n in _passed.items()]
        lines += [Line(label, "", "hypatia", n, why, None, None) for (label, why), n in _replayed.items()]
        lines += [Line(label, "", "pytorch", 0, why, None, None) for label, why in _left]
    return Report(lines, incidents)


def reset_report() -> None:
    """Set all counts to zero. Plans and measurements stay."""
    with _lock:
        _passed.clear()
        _left.clear()
        _replayed.clear()
        for op in counted():
            for choice in op.plans.values():
                choice.ours = choice.eager = 0
                if choice.plan is not None:
                    choice.plan.reset()


def forget() -> None:
    """Drop all plans, measurements and counts."""
    with _lock:
        _passed.clear()
        _left.clear()
        _replayed.clear()
        for op in counted():
            op.forget()


def register(part: Any) -> None:
    """Let reports list a part of a compiled graph as long as it lives."""
    _parts.add(part)


def counted() -> list[Any]:
    """All that have plans: ops, and parts of compiled graphs."""
    return [*Op.known.values(), *_parts]


def count(label: str, why: str) -> None:
    """Count a call that PyTorch computes."""
    with _lock:
        _passed[label, why] = _passed.get((label, why), 0) + 1


def leave(label: str, why: str) -> None:
    """Say what stays PyTorch's in each call of a compiled graph."""
    with _lock:
        _left[label, why] = None


def in_order(line: Line) -> tuple[str, int]:
    """Layers by name, and graphs by number."""
    number = re.search(r"\d+", line.op)
    return (line.op if number is None else line.op[: number.start()], int(number.group()) if number else 0)


def count_replay(label: str, what: str) -> None:
    """Count a call of a whole graph that was replayed."""
    with _lock:
        _replayed[label, what] = _replayed.get((label, what), 0) + 1


def passed(op: Op, why: str) -> None:
    """Count a call of an op that PyTorch computes."""
    count(op.label, why)


def current_policy() -> str:
    """The policy that is in force."""
    return _policy


_of_functorch = getattr(torch._C, "_functorch", None)
_function_modes = getattr(torch._C, "_len_torch_function_stack", lambda: 0)
_dispatch_modes = getattr(torch._C, "_len_torch_dispatch_stack", lambda: 0)
_functorch = getattr(_of_functorch, "peek_interpreter_stack", lambda: None)
_PLAIN = (Tensor, torch.nn.Parameter)
_NO_REASON = ""


def blocked(op: Op, x: Tensor, params: tuple[Tensor, ...]) -> str:
    """Why no plan can compute a call; empty if one can."""
    if type(x) not in _PLAIN:
        return "a tensor is of a subclass of Tensor"
    if x.is_nested:
        return "a tensor is nested"
    dtype = x.dtype
    device = x.device
    if why := _launch.unreachable(device):
        return why
    if dtype not in FLOATS:
        return f"the element type is {dtype}"
    if torch.is_autocast_enabled(device.type):
        return "autocast chooses the element types"
    for t in (x, *params):
        if type(t) not in _PLAIN:
            return "a tensor is of a subclass of Tensor"
        if t.device != device:
            return "a parameter is on another device"
        if t.dtype is not dtype:
            return "the element types differ"
        if t.layout is not torch.strided or t.is_neg():
            return "a tensor is not plain memory"
    for t in params:
        if not t.is_contiguous():
            return "a parameter is not row-major"
    if x.numel() == 0 or any(t.numel() == 0 for t in params):
        return "a tensor is empty"
    if _function_modes() or _dispatch_modes() or _functorch() is not None:
        return "a mode of PyTorch watches the ops"
    if forward_ad._current_level >= 0 or torch._C._is_tracing():
        return "PyTorch traces or differentiates forward"
    return _NO_REASON


def call(op: Op, x: Tensor, params: tuple[Tensor, ...]) -> Tensor:
    """Compute an op."""
    why = "the policy is `never`" if _policy == "never" else blocked(op, x, params)
    if why:
        passed(op, why)
        return op.eager(x, params)
    if not op.takes(x.shape, params):
        return op.eager(x, params)  # PyTorch says what is wrong.
    trains = torch.is_grad_enabled() and (x.requires_grad or any(t.requires_grad for t in params))
    if trains and not (isinstance(op, Linear) and op.by_result):
        passed(op, "gradients are wanted: PyTorch computes forward and backward")
        return op.eager(x, params)
    choice = chosen(op, x, params)
    if choice is None:
        return op.eager(x, params)
    if trains:
        return Trained.apply(op, choice, x, *params)
    return run(op, choice, x, params)


def chosen(op: Op, x: Tensor, params: tuple[Tensor, ...]) -> Choice | None:
    """The choice for this shape if a plan computes the call; else the call is counted."""
    columns = op.columns(params)
    key = (x.dtype, x.numel() // columns, columns, x.device, torch.get_num_threads(), *(t.shape for t in params))
    return settled(
        op.plans,
        key,
        op.label,
        x.device,
        lambda: (plan_of(op, x, params), None),
        lambda plan: (lambda: launch(op, plan, x, params), lambda: op.eager(x, params)),
    )


def settled(
    plans: dict[Any, Choice],
    key: Any,
    label: str,
    device: torch.device,
    make: Make,
    sides: Callable[[_native.Plan], Sides],
    most: int | None = None,
    checked: bool = False,
) -> Choice | None:
    """The choice for a key if its plan computes the call; else the call is counted as PyTorch's.

    `most` plans are made, and in the background, unless there must be one; by default they are made
    at once, and as many as an op keeps. Plans whose runs are `checked` are not measured: PyTorch
    checks nothing.
    """
    choice = plans.get(key) or _new(plans, key, label)
    always = _policy == "always" or checked
    if choice.retries:
        choice.pending, choice.retries = None, False
    open_ = choice.plan is None and not choice.failed and choice.pending is None
    wants_plan = open_ and (always or choice.seen)
    wants_times = not always and choice.measured is None and choice.plan is not None and choice.seen
    if (wants_plan or wants_times) and _launch.captures(device):
        wants_plan = wants_times = False
    limit = MAX_PLANS if most is None else most
    if wants_plan and _full(plans, limit):
        choice.failed, choice.why = True, f"more than {limit} shapes: no plan is made for further ones"
        wants_plan = False
    if wants_plan and not always and most is not None:
        choice.pending = _worker.submit(choice.prepare_in_background, make)
        wants_plan = False
    if always and choice.pending is not None:
        choice.pending.result()
    # Who comes second does not wait, unless there must be a plan: PyTorch computes its call.
    if (wants_plan or wants_times) and choice.lock.acquire(blocking=always):
        try:
            if choice.plan is None and not choice.failed:
                choice.prepare(make)
            if choice.plan is not None and not always and choice.measured is None:
                choice.measure(sides(choice.plan), device)
        finally:
            choice.lock.release()
    if choice.broken is not None:
        raise choice.broken
    ready = choice.plan is not None and (always or (choice.faster and choice.measured is not None))
    with _lock:
        if ready:
            choice.ours += 1
        else:
            choice.eager += 1
            choice.seen = True
            if choice.plan is None and not choice.failed and not choice.retries:
                choice.why = "a plan was being made" if choice.pending else "the first call of a shape"
    return choice if ready else None


def refused(choice: Choice, error: InputError, label: str) -> None:
    """Count a call as PyTorch's: the plan refused its inputs, and PyTorch says what is wrong."""
    with _lock:
        choice.ours -= 1
    count(label, refusal(error))


def refusal(error: InputError) -> str:
    """Why a plan refused inputs. The index that it names may not be the one that PyTorch names."""
    beyond = "is out of range for an axis" in str(error)
    return f"the plan refused the inputs: {'an index is beyond its axis' if beyond else error}"


def _new(plans: dict[Any, Choice], key: Any, label: str) -> Choice:
    """The choice for a key that is new. Shapes that came once make way for it."""
    with _lock:
        if key not in plans and len(plans) >= MAX_SEEN:
            old = next((k for k, c in plans.items() if c.plan is None and c.pending is None), None)
            if old is not None:
                gone = plans.pop(old)
                _passed[label, gone.why] = _passed.get((label, gone.why), 0) + gone.eager
        return plans.setdefault(key, Choice())


def _full(plans: dict[Any, Choice], most: int) -> bool:
    with _lock:
        return sum(c.plan is not None or c.pending is not None for c in plans.values()) >= most


def wait_for_plans() -> None:
    """Wait until the plans are made that are being made in the background.

    They are compared with PyTorch when their shapes are next called.
    """
    _worker.submit(int).result()


def _after_fork() -> None:
    """In a child, make anew what other threads of the parent had: they do not exist in it."""
    global _worker, _lock
    _making.release()
    _worker, _lock = ThreadPoolExecutor(1, "hypatia"), threading.Lock()
    for part in _parts:
        part.lock = threading.Lock()
    for op in counted():
        for choice in op.plans.values():
            # A future has a lock too: it is not asked whether it is done.
            choice.lock, choice.pending = threading.Lock(), None


os.register_at_fork(before=_making.acquire, after_in_parent=_making.release, after_in_child=_after_fork)


def model_of(op: Op, x: Tensor, params: tuple[Tensor, ...]) -> tuple[_native.Model, list[tuple[int, ...]]]:
    """The op as a model, and the shapes of its inputs."""
    columns = op.columns(params)
    shapes = [(x.numel() // columns, columns), *op.shapes(params)]
    g, dtype = _native.Graph(op.rules._native), FLOATS[x.dtype]
    values = [g.input("x" if i == 0 else f"p{i}", dtype, list(shape)) for i, shape in enumerate(shapes)]
    g.output("y", op.build(g, values[0], values[1:]))
    return g.model(**_launch.settings_on(x.device)), shapes


def plan_of(op: Op, x: Tensor, params: tuple[Tensor, ...]) -> _native.Plan:
    """The plan for rows like these. It is compared once with the unfused plan on them."""
    model, shapes = model_of(op, x, params)
    tensors = [_launch.on_host(t) for t in (x, *params)]
    names = ["x", *(f"p{i}" for i in range(1, len(shapes)))]
    arrays = [(n, _launch.memory(t), s) for n, t, s in zip(names, tensors, shapes, strict=True)]
    return model.compile(arrays)


def launch(op: Op, plan: _native.Plan, x: Tensor, params: tuple[Tensor, ...]) -> Tensor:
    """Run a plan into memory of PyTorch."""
    out = torch.empty(op.shape(x.shape, params), dtype=x.dtype, device=x.device)
    _launch.run_into(plan, (x, *params), (out,))
    return out


def run(op: Op, choice: Choice, x: Tensor, params: tuple[Tensor, ...]) -> Tensor:
    """Run the plan of a choice."""
    assert choice.plan is not None
    return launch(op, choice.plan, x, params)


class Trained(torch.autograd.Function):
    """A linear layer, without activation or with ReLU, whose result gives the gradient."""

    @staticmethod
    def forward(ctx: Any, op: Linear, choice: Choice, x: Tensor, *params: Tensor) -> Tensor:
        """Run the plan."""
        y = run(op, choice, x, params)
        ctx.op = op
        ctx.save_for_backward(x, params[0], *([] if op.name is None else [y]))
        ctx.bias = len(params) > 1
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        """PyTorch's own formulas, which can be differentiated again."""
        x, w, *rest = ctx.saved_tensors
        g = torch.ops.aten.threshold_backward(grads[0], rest[0], 0) if rest else grads[0]
        _, _, wants_x, wants_w, *wants_b = ctx.needs_input_grad
        rows = g.reshape(-1, g.shape[-1])
        gx = g @ w if wants_x else None
        gw = rows.t() @ x.reshape(-1, x.shape[-1]) if wants_w else None
        gb = [rows.sum(0) if wants_b[0] else None] if ctx.bias else []
        return (None, None, gx, gw, *gb)
