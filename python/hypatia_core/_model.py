"""ONNX models on NumPy arrays."""

from __future__ import annotations

import html
import json
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from . import _native
from ._arrays import array_of, empty, memory_of, named
from ._rules import Rules, library
from .errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

_native.loaded_from(str(_native.__file__))

#: Inputs by name, in the model's order, or the only one itself.
Inputs = Mapping[str, Any] | Sequence[Any] | Any


class Explanation:
    """What the rules make of a model: launches, fusions, firings. ``str()`` is the text."""

    def __init__(self, text: str, data: dict[str, Any]) -> None:
        """Args: the report as text and as data."""
        self._text = text
        self.data = data
        """The report as ``hypatia explain --json`` prints it."""

    @property
    def launches(self) -> tuple[int, int] | None:
        """Launches before and after; None if they could not be counted."""
        launches = self.data.get("launches")
        return launches and (launches["before"], launches["after"])

    @property
    def fired(self) -> dict[str, int]:
        """The rules that the result depends on, and how often."""
        counts: dict[str, int] = {}
        for firing in self.data["firings"]:
            if firing["kept"]:
                counts[firing["rule"]] = counts.get(firing["rule"], 0) + 1
        return counts

    def __str__(self) -> str:
        """Return the report of ``hypatia explain``."""
        return self._text.rstrip()

    def __repr__(self) -> str:
        """Show the launches."""
        return f"Explanation(launches={self.launches})"

    def _repr_html_(self) -> str:
        rules = "".join(f"<tr><td>{html.escape(r)}</td><td>{n}</td></tr>" for r, n in self.fired.items())
        launches = "{} &rarr; {}".format(*self.launches) if self.launches else "not counted"
        table = f"<table><tr><th>rule</th><th>times</th></tr>{rules}</table>"
        text = html.escape(str(self))
        return f"<p><b>launches</b> {launches}</p>{table}<details><summary>all</summary><pre>{text}</pre></details>"


#: With ``strict``, the share of runs that are compared as a whole.
COMPARE_EVERY = 32


def settings(
    device: str = "cpu",
    threads: int = 0,
    safety: str = "check",
    use_rules: bool = True,
    disable: Iterable[str] = (),
    numerics: str | None = None,
    must: Iterable[str] = (),
    never: Iterable[str] = (),
    tf32: bool = False,
    batch_invariant: bool = False,
    compare_every: int = COMPARE_EVERY,
    incidents: str | os.PathLike[str] | None = None,
) -> dict[str, Any]:
    """The settings of a native model, all of them."""
    return {
        "device": device,
        "threads": threads,
        "safety": safety,
        "compare_every": compare_every,
        "incidents": None if incidents is None else os.fspath(incidents),
        "use_rules": use_rules,
        "disable": list(disable),
        "numerics": numerics,
        "must": list(must),
        "never": list(never),
        "tf32": tf32,
        "batch_invariant": batch_invariant,
    }


class Model:
    """An ONNX model with rules, ready to run.

    Args:
        path: the file.
        rules: rules of your own, beside the library's.
        dims: numbers for dynamic sizes of the model, by name.
        shapes: shapes of inputs by name, where the model's shapes depend on them.
        device: ``cpu``, ``cuda`` (the first GPU), or ``auto``: the GPU if there is one.
        threads: threads of the CPU; 0 means one for each core.
        safety: ``check`` compares each new plan once with the unfused one; if they differ, one
            without the rules that make the difference runs. ``strict`` checks each run: products by
            checksums, and one run in ``compare_every`` as a whole; what is wrong is computed again,
            named by ``incidents()`` and not used again. ``off`` compares nothing.
        compare_every: with ``strict``, one run in this many is compared with the unfused plan; 0
            means none.
        incidents: the folder for graphs of at most 20 nodes that show what was wrong with a plan.
        use_rules: False leaves out all rules.
        disable: rules, families of rules or rulesets that do not fire.
        numerics: ``exact`` gives the bits of the model without rules, ``rounds`` (the default)
            rounds differently, ``fast`` lets rules fire that are only approximately right.
        must, never: rules that each plan must have (``RULE``, ``RULE count = N`` or ``RULE at
            NODE``), and must not have. A plan that lacks one is a ``ContractError`` that says why.
        batch_invariant: give each row the same bits, however many rows stand beside it, where their
            number is a dynamic size of the model.

    Threads may share a model. The interpreter's lock is released while it compiles and runs.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        rules: Rules | None = None,
        *,
        dims: Mapping[str, int] | None = None,
        shapes: Mapping[str, Sequence[int]] | None = None,
        device: str = "cpu",
        threads: int = 0,
        safety: str = "check",
        compare_every: int = COMPARE_EVERY,
        incidents: str | os.PathLike[str] | None = None,
        use_rules: bool = True,
        disable: Iterable[str] = (),
        numerics: str | None = None,
        must: Iterable[str] = (),
        never: Iterable[str] = (),
        batch_invariant: bool = False,
    ) -> None:
        """Load a file.

        Raises:
            FileError, ModelError: if it cannot be read, or is damaged.
            UnsupportedError: if it uses something that Hypatia lacks, with node, op and opset.
        """
        chosen = settings(
            device,
            threads,
            safety,
            use_rules,
            disable,
            numerics,
            must,
            never,
            batch_invariant=batch_invariant,
            compare_every=compare_every,
            incidents=incidents,
        )
        rules = library() if rules is None else rules
        sizes = {name: list(shape) for name, shape in (shapes or {}).items()}
        self._start(_native.Model.load(os.fspath(path), rules._native, dict(dims or {}), sizes, **chosen))

    def _start(self, native: _native.Model) -> None:
        self._native = native
        self._plans: dict[tuple[tuple[int, ...], ...], _native.Plan] = {}
        self._lock = threading.Lock()
        self._inputs = native.inputs

    @property
    def inputs(self) -> dict[str, tuple[str, tuple[int | str, ...]]]:
        """Element type and shape of each input; a dynamic size is a string."""
        return {name: (dtype, shape) for name, dtype, shape in self._inputs}

    @property
    def outputs(self) -> dict[str, tuple[str, tuple[int | str, ...]]]:
        """Element type and shape of each output; a dynamic size is a string."""
        return {name: (dtype, shape) for name, dtype, shape in self._native.outputs}

    def run(self, inputs: Inputs) -> dict[str, NDArray[Any]]:
        """Run once.

        Args:
            inputs: arrays by name, or in the model's order, or the only one. Arrays are read where
                they stand if they are row-major, and copied if they are not. bf16 is the type of
                ``ml_dtypes``, or its bits in uint16.

        Returns:
            The results by name.

        Raises:
            InputError: if an input is missing or unknown, or has the wrong type or shape.
        """
        given = self._given(inputs)
        plan = self._plan(given)
        results = {name: empty(dtype, shape) for name, dtype, shape in plan.outputs}
        kinds = [dtype for _, dtype, _ in plan.outputs]
        to = tuple(memory_of(array, dtype) for array, dtype in zip(results.values(), kinds, strict=True))
        plan.run(tuple(memory for _, memory, _ in given), to)
        return results

    def plan(self, inputs: Inputs) -> _native.Plan:
        """The plan for inputs of these shapes: its launches, the rules that fired, its steps."""
        return self._plan(self._given(inputs))

    def incidents(self) -> list[str]:
        """What strict runs have found wrong so far, in words; their results were right."""
        with self._lock:
            plans = list(self._plans.values())
        return [incident for plan in plans for incident in plan.incidents]

    def explain(self, inputs: Inputs | None = None, target: str = "cpu") -> Explanation:
        """What the rules make of the model on a target (``cpu``, ``h200``, ``a100``)."""
        arrays = None if inputs is None else self._given(inputs)
        text, data = self._native.explain(target, arrays)
        return Explanation(text, json.loads(data))

    def why_not(self, rule: str, node: str | None = None, target: str = "cpu") -> str:
        """How close a rule came to firing, and what was in its way."""
        return self._native.why_not(rule, target, node)

    def _given(self, inputs: Inputs) -> list[tuple[str, Any, tuple[int, ...]]]:
        values = named(inputs, [name for name, _, _ in self._inputs])
        given = []
        for name, dtype, _ in self._inputs:
            array = array_of(name, values[name], dtype)
            given.append((name, memory_of(array, dtype), array.shape))
        return given

    def _plan(self, given: list[tuple[str, Any, tuple[int, ...]]]) -> _native.Plan:
        key = tuple(shape for _, _, shape in given)
        plan = self._plans.get(key)
        if plan is None:
            plan = self._native.compile(given)
            with self._lock:
                self._plans[key] = plan
        return plan


def explain(model: Any, inputs: Inputs | None = None, target: str = "cpu") -> Explanation:
    """What the rules make of a model, or of a fused layer of ``hypatia_core.nn``.

    In a notebook the result shows itself as a table.
    """
    if not hasattr(model, "explain"):
        what = type(model).__name__
        raise InputError(
            f"explain takes a `Model` or a fused layer, not {what}: `optimize(module, (x,)).code` shows the fusions of "
            "a module of PyTorch, and `fuse_(module)` puts fused layers into it"
        )
    return model.explain(inputs, target)
