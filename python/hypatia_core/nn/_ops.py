"""What fused layers compute: once as a graph for Hypatia, once in PyTorch.

Invariant: an op is described by its `spec`, a JSON text, and there is one object for each spec, so
that all layers of one kind share their plans. Tensors are never part of an op.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any, ClassVar

import torch
import torch.nn.functional as F

from .. import _native
from .._eager import NAMES
from .._rules import Rules, Scalar, library
from ..errors import InputError

Tensor = torch.Tensor
#: What `activation=` takes: a scalar of the library by name, one of your own, or none.
Activation = str | Scalar | None
Shape = tuple[int, ...]


def scalar_of(activation: Activation) -> Scalar | None:
    """The activation as a scalar."""
    if isinstance(activation, str):
        return Scalar(activation)
    if activation is None or isinstance(activation, Scalar):
        return activation
    raise InputError(
        f"an activation is a scalar or the name of one, not {activation!r}: `hypatia_core.scalar` makes one"
    )


class Op:
    """Something that a layer computes from rows `x` and parameters."""

    kind: ClassVar[str]
    kinds: ClassVar[dict[str, type[Op]]] = {}
    known: ClassVar[dict[str, Op]] = {}

    def __init__(self, spec: str, rules: Rules) -> None:
        self.spec = spec
        self.rules = rules
        self.plans: dict[Any, Any] = {}

    def __init_subclass__(cls) -> None:
        Op.kinds[cls.kind] = cls

    @staticmethod
    def from_spec(spec: str) -> Op:
        """The op of that description."""
        op = Op.known.get(spec)
        if op is None:
            data = json.loads(spec)
            sources = [tuple(s) for s in data.pop("rules")]
            rules = Rules(sources) if sources else library()
            op = Op.known.setdefault(spec, Op.kinds[data.pop("op")](spec, rules, **data))
        return op

    @staticmethod
    def make(kind: str, scalars: list[Scalar | None], rules: Rules | None, **rest: Any) -> Op:
        """The op of that kind. Activations and rules of one's own come from one set of rules."""
        own = [s.rules for s in scalars if s is not None and s.rules != library()]
        own += [rules] if rules is not None else []
        sources = list(dict.fromkeys(source for r in own for source in r.sources))
        return Op.from_spec(json.dumps({"op": kind, "rules": sources, **rest}, sort_keys=True))

    def __reduce__(self) -> tuple[Any, ...]:
        return (Op.from_spec, (self.spec,))

    def __deepcopy__(self, memo: Any) -> Op:
        return self

    def __copy__(self) -> Op:
        return self

    def forget(self) -> None:
        """Drop all plans."""
        self.plans.clear()

    def activation(self, name: str | None) -> Callable[[Tensor], Tensor]:
        """A scalar as a function of tensors."""
        return (lambda x: x) if name is None else Scalar(name, self.rules).function()

    #: How it is called in reports.
    label: str

    def build(self, g: _native.Graph, x: int, params: list[int]) -> int:
        """Add it to a graph: `x` has two axes, and so has the result."""
        raise NotImplementedError

    def eager(self, x: Tensor, params: tuple[Tensor, ...]) -> Tensor:
        """Compute it with PyTorch."""
        raise NotImplementedError

    def shape(self, x: Shape, params: tuple[Tensor, ...]) -> Shape:
        """The shape of the result."""
        raise NotImplementedError

    def columns(self, params: tuple[Tensor, ...]) -> int:
        """Number of columns of the rows that it takes."""
        return params[0].shape[1]

    def takes(self, x: Shape, params: tuple[Tensor, ...]) -> bool:
        """Whether it takes rows of that shape; if not, PyTorch says what is wrong."""
        return len(x) > 0 and params[0].dim() == 2 and x[-1] == params[0].shape[1]

    def show(self, key: tuple[Any, ...]) -> str:
        """A key of `plans` as text: the rows."""
        dtype, rows, columns, *_ = key
        return f"{NAMES[dtype]}[{rows}, {columns}]"

    def shapes(self, params: tuple[Tensor, ...]) -> list[Shape]:
        """The shapes of the parameters in the graph."""
        return [tuple(t.shape) for t in params]


def linear(g: _native.Graph, x: int, wb: list[int]) -> int:
    """A linear layer with or without bias."""
    return g.call("linear", [x, *wb, *([None] * (2 - len(wb)))])[0]


def applied(g: _native.Graph, name: str | None, x: int) -> int:
    """An activation."""
    return x if name is None else g.call(name, [x])[0]


class Linear(Op):
    """activation(x w^T + b)."""

    kind = "linear"

    def __init__(self, spec: str, rules: Rules, activation: str | None) -> None:
        super().__init__(spec, rules)
        self.name = activation
        self.act = self.activation(activation)
        self.label = f"linear, {activation}" if activation else "linear"
        #: Whether the result alone gives the activation's gradient, by PyTorch's own formula.
        self.by_result = activation is None or (activation == "relu" and rules == library())

    @staticmethod
    def of(activation: Activation, rules: Rules | None = None) -> Op:
        s = scalar_of(activation)
        return Op.make("linear", [s], rules, activation=s and s.name)

    def build(self, g: _native.Graph, x: int, params: list[int]) -> int:
        return applied(g, self.name, linear(g, x, params))

    def eager(self, x: Tensor, params: tuple[Tensor, ...]) -> Tensor:
        return self.act(F.linear(x, *params))

    def shape(self, x: Shape, params: tuple[Tensor, ...]) -> Shape:
        return (*x[:-1], params[0].shape[0])


class Mlp(Op):
    """Linear layers, each with its activation."""

    kind = "mlp"

    def __init__(self, spec: str, rules: Rules, activations: list[str | None], biases: list[bool]) -> None:
        super().__init__(spec, rules)
        self.names = activations
        self.acts = [self.activation(a) for a in activations]
        self.biases = biases
        self.label = f"mlp of {len(activations)} layers"

    @staticmethod
    def of(activations: list[Activation], biases: list[bool], rules: Rules | None = None) -> Op:
        scalars = [scalar_of(a) for a in activations]
        return Op.make("mlp", scalars, rules, activations=[s and s.name for s in scalars], biases=biases)

    def layers(self, params: Any) -> list[Any]:
        """The parameters of each layer."""
        out, at = [], 0
        for bias in self.biases:
            out.append(params[at : at + 1 + bias])
            at += 1 + bias
        return out

    def build(self, g: _native.Graph, x: int, params: list[int]) -> int:
        for wb, name in zip(self.layers(params), self.names, strict=True):
            x = applied(g, name, linear(g, x, wb))
        return x

    def eager(self, x: Tensor, params: tuple[Tensor, ...]) -> Tensor:
        for wb, act in zip(self.layers(params), self.acts, strict=True):
            x = act(F.linear(x, *wb))
        return x

    def shape(self, x: Shape, params: tuple[Tensor, ...]) -> Shape:
        return (*x[:-1], self.layers(params)[-1][0].shape[0])


class Gated(Op):
    """down(activation(gate(x)) * up(x))."""

    kind = "gated"

    def __init__(self, spec: str, rules: Rules, activation: str | None, biases: list[bool]) -> None:
        super().__init__(spec, rules)
        self.name = activation
        self.act = self.activation(activation)
        self.biases = biases
        self.label = f"gated mlp, {activation}"

    @staticmethod
    def of(activation: Activation, biases: list[bool], rules: Rules | None = None) -> Op:
        s = scalar_of(activation)
        return Op.make("gated", [s], rules, activation=s and s.name, biases=biases)

    layers = Mlp.layers

    def build(self, g: _native.Graph, x: int, params: list[int]) -> int:
        gate, up, down = self.layers(params)
        gated = g.call("mul", [applied(g, self.name, linear(g, x, gate)), linear(g, x, up)])[0]
        return linear(g, gated, down)

    def eager(self, x: Tensor, params: tuple[Tensor, ...]) -> Tensor:
        gate, up, down = self.layers(params)
        return F.linear(self.act(F.linear(x, *gate)) * F.linear(x, *up), *down)

    def shape(self, x: Shape, params: tuple[Tensor, ...]) -> Shape:
        return (*x[:-1], self.layers(params)[2][0].shape[0])


class LayerNorm(Op):
    """Mean 0 and variance 1 along the last axes, then scale and shift."""

    kind = "layer_norm"

    def __init__(self, spec: str, rules: Rules, shape: list[int], eps: float) -> None:
        super().__init__(spec, rules)
        self.normalized, self.eps = tuple(shape), eps
        self.label = "layer_norm"

    @staticmethod
    def of(shape: Shape, eps: float, rules: Rules | None = None) -> Op:
        return Op.make("layer_norm", [], rules, shape=list(shape), eps=float(eps))

    def build(self, g: _native.Graph, x: int, params: list[int]) -> int:
        attrs = {"eps": self.eps}
        if not params:
            return g.call("standardize", [x], attrs)[0]
        return g.call("layer_norm", [x, *params, *([None] * (2 - len(params)))], attrs)[0]

    def eager(self, x: Tensor, params: tuple[Tensor, ...]) -> Tensor:
        weight, bias = (*params, None, None)[:2]
        return F.layer_norm(x, self.normalized, weight, bias, self.eps)

    def shape(self, x: Shape, params: tuple[Tensor, ...]) -> Shape:
        return x

    def columns(self, params: tuple[Tensor, ...]) -> int:
        return math.prod(self.normalized)

    def takes(self, x: Shape, params: tuple[Tensor, ...]) -> bool:
        return tuple(x[-len(self.normalized) :]) == self.normalized

    def shapes(self, params: tuple[Tensor, ...]) -> list[Shape]:
        return [(t.numel(),) for t in params]


class RmsNorm(LayerNorm):
    """Divided by the root of the mean square along the last axes, then scaled."""

    kind = "rms_norm"

    def __init__(self, spec: str, rules: Rules, shape: list[int], eps: float | None) -> None:
        Op.__init__(self, spec, rules)
        self.normalized, self.given = tuple(shape), eps
        self.label = "rms_norm"

    @staticmethod
    def of(shape: Shape, eps: float | None, rules: Rules | None = None) -> Op:
        return Op.make("rms_norm", [], rules, shape=list(shape), eps=eps if eps is None else float(eps))

    def build(self, g: _native.Graph, x: int, params: list[int]) -> int:
        dtype, _ = g.type_of(x)
        # PyTorch's default: in f16 and bf16 it computes in f32, with f32's epsilon.
        machine = torch.finfo(torch.float64 if dtype == "f64" else torch.float32).eps
        attrs = {"eps": machine if self.given is None else self.given}
        return g.call("rms_norm", [x, *params, *([None] * (1 - len(params)))], attrs)[0]

    def eager(self, x: Tensor, params: tuple[Tensor, ...]) -> Tensor:
        return F.rms_norm(x, self.normalized, params[0] if params else None, self.given)


class RoundedRmsNorm(LayerNorm):
    """Divided by the root of the mean square, rounded, then scaled: as many language models do.

    In f16 and bf16 its result is rounded twice; with weights of another type it has the wider one.
    """

    kind = "rounded_rms_norm"

    def __init__(self, spec: str, rules: Rules, shape: list[int], eps: float) -> None:
        super().__init__(spec, rules, shape, eps)
        self.label = "rms_norm"

    @staticmethod
    def of(shape: Shape, eps: float, rules: Rules | None = None) -> Op:
        return Op.make("rounded_rms_norm", [], rules, shape=list(shape), eps=float(eps))

    def build(self, g: _native.Graph, x: int, params: list[int]) -> int:
        rows = g.call("rms_norm", [x, None], {"eps": self.eps})[0]
        return g.call("mul", [params[0], rows])[0]

    def eager(self, x: Tensor, params: tuple[Tensor, ...]) -> Tensor:
        wide = x.to(torch.float32)
        rows = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return params[0] * rows.to(x.dtype)

    def shape(self, x: Shape, params: tuple[Tensor, ...]) -> Shape:
        return x
