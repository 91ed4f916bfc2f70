"""Rules and scalars from Python."""

from __future__ import annotations

import html
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from . import _native
from .errors import InputError

#: The most cases of a rule that somebody waits for.
MOST_CASES = 1_000_000
#: The name, the path (or None) and the text of a `.hyp` file.
Source = tuple[str, "str | None", str]


class Rules:
    """Rules and scalars of ``.hyp`` texts, together with the standard library.

    >>> import hypatia_core as hyp
    >>> rules = hyp.Rules.from_text('''
    ... edition 1;
    ... use core::*;
    ... /// Values between -30 and 30.
    ... scalar softcap(x) = 30 * tanh(x / 30);
    ... ''')
    >>> rules.scalars
    {'softcap': 'Values between -30 and 30.'}

    A mistake is an exception whose text is the report of ``hypatia check``. Rules can be pickled.
    """

    def __init__(self, sources: Sequence[Source] = ()) -> None:
        """Compile texts with their names and paths; without any, the library alone."""
        self._native = _native.Rules([(name, path, text) for name, path, text in sources])

    @classmethod
    def from_text(cls, text: str, name: str = "<text>") -> Rules:
        """Compile a text; ``name`` is shown in messages.

        Raises:
            RulesError: if it is wrong, with the report as text.
            InputError: if it is no text.
        """
        for what, value in (("the text of a .hyp file", text), ("a name", name)):
            if not isinstance(value, str):
                raise InputError(f"Rules.from_text takes {what} as a str, not {value!r:.40}")
        return cls([(name, None, text)])

    @classmethod
    def from_file(cls, *paths: str | os.PathLike[str]) -> Rules:
        """Read and compile files as one program; ``use`` looks in their folders.

        Raises:
            FileError: if one cannot be read.
            RulesError: if one is wrong, with the report as text.
            InputError: if one is no path.
        """
        if not paths:
            raise InputError("Rules.from_file: name at least one file")
        for path in paths:
            if not isinstance(path, (str, os.PathLike)):
                wanted = "takes each path as an argument, from_file('a.hyp', 'b.hyp')"
                raise InputError(f"Rules.from_file {wanted}, not {path!r:.40}")
        rules = cls.__new__(cls)
        rules._native = _native.Rules.from_files([os.fspath(p) for p in paths])
        return rules

    @property
    def sources(self) -> tuple[Source, ...]:
        """The texts, without the library."""
        texts = self._native.sources
        return tuple((name, None if path is None else os.fspath(path), text) for name, path, text in texts)

    @property
    def rules(self) -> list[str]:
        """Names of the rules of these texts, with those that the compiler derives from scalars."""
        return self._native.rules(True)

    @property
    def scalars(self) -> dict[str, str]:
        """The scalars of these texts with their descriptions."""
        return {name: doc for name, _, doc in self._native.scalars(True)}

    @property
    def warnings(self) -> str:
        """Warnings of the compiler as text; empty if there are none."""
        return self._native.warnings

    def scalar(self, name: str) -> Scalar:
        """A scalar of one parameter, of these texts or of the library: an activation.

        >>> import hypatia_core as hyp
        >>> hyp.Rules().scalar("gelu_tanh")
        Scalar('gelu_tanh')
        """
        return Scalar(name, self)

    def verify(self, cases: int = 100, seed: int = 0) -> Verification:
        """Search for counterexamples; see :func:`verify`."""
        return verify(self, cases, seed)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the texts; they are compiled anew."""
        return (Rules, (self.sources,))

    def __eq__(self, other: object) -> bool:
        """Rules are equal if their texts are."""
        return isinstance(other, Rules) and self.sources == other.sources

    def __hash__(self) -> int:
        """Hash the texts."""
        return hash(self.sources)

    def __repr__(self) -> str:
        """Name the texts."""
        return f"Rules({', '.join(name for name, _, _ in self.sources) or 'library'})"


@lru_cache(maxsize=1)
def library() -> Rules:
    """The standard library alone."""
    return Rules()


class Scalar:
    """A function of one number, from a ``.hyp`` text: an activation of the layers in ``nn``.

    It can be pickled. Called with a tensor of PyTorch, it computes its body op by op.
    """

    def __init__(self, name: str, rules: Rules | None = None) -> None:
        """Take the scalar of that name from rules, or from the library."""
        self.rules = library() if rules is None else rules
        self.name = name
        arity = {n: a for n, a, _ in self.rules._native.scalars(False)}
        if name not in arity:
            raise InputError(f"no scalar is called `{name}`; `Rules.scalars` lists those of a file")
        # One of your own with the name of another is known by its file alone.
        if any(n.endswith(f"::{name}") for n in _names(True, self.rules)):
            raise InputError(f"the library has a scalar `{name}` too: give yours another name")
        if arity[name] != 1:
            raise InputError(f"the scalar `{name}` has {arity[name]} parameters; an activation has one")

    @cached_property
    def body(self) -> list[tuple[Any, ...]]:
        """Its nodes in order, in builtin scalars alone; the last is the result."""
        return self.rules._native.body(self.name)

    def __call__(self, x: Any) -> Any:
        """Apply it to a tensor of PyTorch, op by op."""
        return self.function()(x)

    def function(self) -> Callable[[Any], Any]:
        """The scalar on tensors: PyTorch's own function if it has it, else its body op by op."""
        from ._eager import NATIVE, evaluate  # PyTorch may be absent

        if self.rules == library() and self.name in NATIVE:
            return NATIVE[self.name]
        body = tuple(self.body)
        return lambda x: evaluate(body, x)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the name and the rules."""
        return (Scalar, (self.name, self.rules))

    def __eq__(self, other: object) -> bool:
        """Scalars are equal if their names and rules are."""
        return isinstance(other, Scalar) and (self.name, self.rules) == (other.name, other.rules)

    def __hash__(self) -> int:
        """Hash name and rules."""
        return hash((self.name, self.rules))

    def __repr__(self) -> str:
        """Show the name."""
        return f"Scalar({self.name!r})"


def _names(own: bool, rules: Rules) -> set[str]:
    """The scalars that some rules know, or their own."""
    return {n for n, _, _ in rules._native.scalars(own)}


def scalar(name: str, expression: str, doc: str = "") -> Scalar:
    """Declare a scalar of one parameter ``x``, in the language of ``.hyp`` files.

    >>> import hypatia_core as hyp
    >>> hyp.scalar("softcap", "30 * tanh(x / 30)")
    Scalar('softcap')

    Raises:
        RulesError: if the expression is wrong, with the report as text.
        InputError: if the library has a scalar of that name, or the text declares more than one.
    """
    if not isinstance(expression, str):
        raise InputError(f"scalar: the expression is a text such as 'x * 2', not {expression!r}")
    about = "".join(f"/// {line}\n" for line in (doc or expression).splitlines())
    text = f"edition 1;\nuse core::*;\nuse nn::*;\n{about}scalar {name}(x) = {expression};\n"
    rules = Rules.from_text(text, f"<scalar {name}>")
    made = Scalar(name, rules)
    if others := _names(True, rules) - {name}:
        raise InputError(f"the expression of `{name}` declares {', '.join(sorted(others))} besides")
    return made


@dataclass(frozen=True)
class Entry:
    """What was found about one declaration."""

    subject: str
    """``rule``, ``scalar``, ``op`` or ``kernel``."""
    name: str
    """Its name."""
    status: str
    """``verified``, ``false``, ``vacuous``, ``not_exercised`` or ``undefined``."""
    cases: int
    """The number of compared instances."""
    message: str
    """What is wrong, or why nothing could be compared; else empty."""
    counterexample: str
    """A ``test`` block that fails; empty if there is none."""


class Verification:
    """The result of :func:`verify`: true if everything was verified. ``str()`` is the report."""

    def __init__(self, text: str, data: dict[str, Any]) -> None:
        """Args: the report as text and as data."""
        self._text = text
        self.data = data
        """The report as ``hypatia verify --json`` prints it."""

    @property
    def passed(self) -> bool:
        """True if everything was verified."""
        return bool(self.data["passed"])

    @property
    def entries(self) -> list[Entry]:
        """One for each declaration."""
        made = []
        for e in self.data["entries"]:
            detail = e["detail"] or {}
            message, test = detail.get("message", ""), detail.get("test", "")
            made.append(Entry(e["subject"], e["name"], e["status"], e["cases"], message, test))
        return made

    @property
    def failures(self) -> list[Entry]:
        """The declarations that are false, vacuous, undefined or were not exercised."""
        return [e for e in self.entries if e.status != "verified"]

    def __bool__(self) -> bool:
        """True if everything was verified."""
        return self.passed

    def __str__(self) -> str:
        """Return the report of ``hypatia verify``."""
        return self._text.rstrip()

    def __repr__(self) -> str:
        """Count the outcomes."""
        d = self.data
        words = ["verified", "false", "vacuous", "not_exercised", *(["undefined"] if d["undefined"] else [])]
        counts = [f"{d[word]} {word.replace('_', ' ')}" for word in words]
        return f"Verification({', '.join(counts)})"

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


def verify(rules: Rules, cases: int = 100, seed: int = 0) -> Verification:
    """Search for counterexamples to what a text declares, with random shapes and values.

    Both sides of each rule are compared in f64 and in every element type, written derivatives with
    derived ones, and bodies of ops with their types. The same seed gives the same report.

    >>> import hypatia_core as hyp
    >>> wrong = hyp.Rules.from_text('''
    ... edition 1;
    ... use core::*;
    ... ruleset mine { until = fixpoint; }
    ... rule mine::wrong: x * s + b => (x + b) * s;
    ... ''')
    >>> result = hyp.verify(wrong, cases=20)
    >>> result
    Verification(0 verified, 1 false, 0 vacuous, 0 not exercised)
    >>> "expect equal" in result.failures[0].counterexample
    True
    """
    if not isinstance(rules, Rules):
        raise InputError(f"verify takes Rules, not {type(rules).__name__}: a scalar's are its `rules`")
    for name, value, least, most in (("cases", cases, 1, MOST_CASES), ("seed", seed, 0, 2**64 - 1)):
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise InputError(f"verify: {name} is a whole number from {least} to {most}, not {value!r:.40}")
    text, data = rules._native.verify(cases, seed)
    return Verification(text, json.loads(data))
