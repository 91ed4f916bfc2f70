"""The layers: subclasses of what they replace, with the same parameters and state dicts."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, TypeVar

import torch
import torch.fx
from torch import nn

from .. import _launch, _native
from .._model import Explanation
from .._rules import Rules
from ..errors import InputError
from . import _runtime
from ._ops import Activation, Gated, LayerNorm, Linear, Mlp, Op, RmsNorm, RoundedRmsNorm, scalar_of
from ._traced import traced

Tensor = torch.Tensor
M = TypeVar("M", bound=nn.Module)


class Fused:
    """What the layers share: one op, which Hypatia or PyTorch computes."""

    op: Op

    def fused_parameters(self) -> tuple[Tensor, ...]:
        """The parameters in the op's order, without those that are None."""
        raise NotImplementedError

    def compute(self, rows: Tensor) -> Tensor:
        """Compute the layer; leading axes are rows."""
        if torch.compiler.is_compiling():
            return traced(self.op, rows, self.fused_parameters())
        return _runtime.call(self.op, rows, self.fused_parameters())

    def rows_of(self, given: Any) -> Tensor:
        """What a layer is called with: rows, or a tuple of them alone.

        Raises:
            InputError: if it is anything else.
        """
        x = given[0] if isinstance(given, (list, tuple)) and len(given) == 1 else given
        name = type(self).__name__
        if not isinstance(x, Tensor):
            what = f"{len(x)} inputs" if isinstance(x, (list, tuple)) else type(x).__name__
            raise InputError(f"a {name} takes one tensor, not {what}: explain(layer, x)")
        if not self.op.takes(tuple(x.shape), self.fused_parameters()):
            raise InputError(f"the {name} takes no tensor of shape {list(x.shape)}: {self}")
        return x

    def explain(self, x: Tensor | Sequence[Tensor], target: str = "cpu") -> Explanation:
        """What the rules make of this layer for rows like these."""
        import json

        x, params = self.rows_of(x), self.fused_parameters()
        model, shapes = _runtime.model_of(self.op, x, params)
        names = ["x", *(f"p{i}" for i in range(1, len(shapes)))]
        tensors = [_launch.on_host(t) for t in (x, *params)]
        arrays = [(n, _launch.memory(t), s) for n, t, s in zip(names, tensors, shapes, strict=True)]
        text, data = model.explain(target, arrays)
        return Explanation(text, json.loads(data))

    def plan(self, x: Tensor) -> _native.Plan:
        """A plan for rows like these: its launches and the rules that fired."""
        return _runtime.plan_of(self.op, x, self.fused_parameters())


def made_of(kind: type[M], module: nn.Module) -> M:
    """A module of another class with the same parameters, buffers, submodules and settings."""
    made = kind.__new__(kind)
    state = {k: v.copy() if isinstance(v, dict) else v for k, v in module.__dict__.items()}
    made.__dict__.update(state)
    return made


def present(*tensors: Tensor | None) -> tuple[Tensor, ...]:
    """Those that are not None."""
    return tuple(t for t in tensors if t is not None)


def shown(activation: Activation) -> str:
    """An activation in ``repr``."""
    scalar = scalar_of(activation)
    return "None" if scalar is None else scalar.name


class FusedLinear(Fused, nn.Linear):
    """``activation(x @ weight.T + bias)`` in one launch; for ``nn.Linear`` and an activation.

    Args:
        in_features, out_features, bias, device, dtype: as of ``nn.Linear``.
        activation: a scalar of the library by name (``relu``, ``gelu``, ``gelu_tanh``, ``silu``), a
            scalar of your own, or None.
        rules: rules of your own that may fire in this layer.

    >>> import hypatia_core as hyp, torch
    >>> softcap = hyp.scalar("softcap", "30 * tanh(x / 30)")
    >>> layer = hyp.nn.FusedLinear(4, 2, activation=softcap)
    >>> layer(torch.ones(3, 5, 4)).shape
    torch.Size([3, 5, 2])
    >>> layer.load_state_dict(torch.nn.Linear(4, 2).state_dict())
    <All keys matched successfully>
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        activation: Activation = "relu",
        *,
        rules: Rules | None = None,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Make the layer; see the class."""
        super().__init__(in_features, out_features, bias, device=device, dtype=dtype)
        self._named(activation, rules)

    def _named(self, activation: Activation, rules: Rules | None) -> None:
        self.op = Linear.of(activation, rules)
        self._activation = shown(activation)

    @classmethod
    def of(cls, linear: nn.Linear, activation: Activation = None, rules: Rules | None = None) -> FusedLinear:
        """A layer that shares the parameters of ``linear``."""
        made = made_of(FusedLinear, linear)
        made._named(activation, rules)
        return made

    def fused_parameters(self) -> tuple[Tensor, ...]:
        """Weight and bias."""
        return (self.weight,) if self.bias is None else (self.weight, self.bias)

    def forward(self, input: Tensor) -> Tensor:
        """Compute the layer."""
        return self.compute(input)

    def extra_repr(self) -> str:
        """Sizes and activation."""
        return f"{super().extra_repr()}, activation={self._activation}"


class FusedMLP(Fused, nn.Sequential):
    """Linear layers with an activation between them, as one plan; in place of ``nn.Sequential``.

    Its state dict is that of ``Sequential(Linear, activation, Linear, ..)``: keys ``0.weight``,
    ``0.bias``, ``2.weight`` and so on.

    Args:
        sizes: the widths, from the input to the result.
        activation: as of :class:`FusedLinear`; after each layer but the last.
        bias, rules, device, dtype: as of :class:`FusedLinear`.

    >>> import hypatia_core as hyp, torch
    >>> list(hyp.nn.FusedMLP([4, 8, 2]).state_dict())
    ['0.weight', '0.bias', '2.weight', '2.bias']
    """

    def __init__(
        self,
        sizes: Sequence[int],
        activation: Activation = "relu",
        bias: bool = True,
        *,
        rules: Rules | None = None,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Make the layers; see the class."""
        if len(sizes) < 2:
            raise ValueError("FusedMLP: name at least two sizes, the input's and the result's")
        super().__init__()
        last = len(sizes) - 2
        for i, (a, b) in enumerate(itertools.pairwise(sizes)):
            act = activation if i < last else None
            layer = FusedLinear(a, b, bias, act, rules=rules, device=device, dtype=dtype)
            self.add_module(str(2 * i), layer)
            if i < last:
                self.add_module(str(2 * i + 1), nn.Identity())
        acts = [activation] * last + [None]
        self.op = Mlp.of(acts, [bias] * len(acts), rules)

    @classmethod
    def of(
        cls,
        sequential: nn.Sequential,
        layers: Sequence[tuple[str, Activation]],
        rules: Rules | None = None,
    ) -> FusedMLP:
        """A module with the submodules of ``sequential``; ``layers`` names the linear ones."""
        made = made_of(FusedMLP, sequential)
        biases = []
        for name, activation in layers:
            linear = made._modules[name]
            assert isinstance(linear, nn.Linear)
            made._modules[name] = FusedLinear.of(linear, activation, rules)
            biases.append(linear.bias is not None)
        named = {name for name, _ in layers}
        for name in made._modules:
            if name not in named:
                made._modules[name] = nn.Identity()
        made.op = Mlp.of([a for _, a in layers], biases, rules)
        return made

    def layers(self) -> list[FusedLinear]:
        """The linear layers."""
        return [m for m in self._modules.values() if isinstance(m, FusedLinear)]

    def fused_parameters(self) -> tuple[Tensor, ...]:
        """Weights and biases, layer by layer."""
        return tuple(p for layer in self.layers() for p in layer.fused_parameters())

    def forward(self, input: Tensor) -> Tensor:
        """Compute all layers at once; where gradients are wanted, layer by layer."""
        params = self.fused_parameters()
        watched = any(m._forward_hooks or m._forward_pre_hooks for m in self._modules.values() if m is not None)
        watched = watched or isinstance(input, torch.fx.Proxy)
        if watched or (torch.is_grad_enabled() and (input.requires_grad or any(p.requires_grad for p in params))):
            return nn.Sequential.forward(self, input)
        return self.compute(input)


class FusedGatedMLP(Fused, nn.Module):
    """``down_proj(activation(gate_proj(x)) * up_proj(x))``, one plan: a Llama's feed-forward.

    Args:
        hidden_size: width of the input and of the result.
        intermediate_size: width between.
        activation, bias, rules, device, dtype: as of :class:`FusedLinear`.

    >>> import hypatia_core as hyp, torch
    >>> list(hyp.nn.FusedGatedMLP(4, 8).state_dict())
    ['gate_proj.weight', 'up_proj.weight', 'down_proj.weight']
    """

    gate_proj: nn.Linear
    up_proj: nn.Linear
    down_proj: nn.Linear

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        activation: Activation = "silu",
        bias: bool = False,
        *,
        rules: Rules | None = None,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Make the layers; see the class."""
        super().__init__()
        kw: dict[str, Any] = {"bias": bias, "device": device, "dtype": dtype}
        self.gate_proj = nn.Linear(hidden_size, intermediate_size, **kw)
        self.up_proj = nn.Linear(hidden_size, intermediate_size, **kw)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, **kw)
        self.op = Gated.of(activation, [bias] * 3, rules)

    @classmethod
    def of(cls, module: nn.Module, activation: Activation, rules: Rules | None = None) -> FusedGatedMLP:
        """A module with the submodules ``gate_proj``, ``up_proj`` and ``down_proj`` of another."""
        made = made_of(FusedGatedMLP, module)
        projections = (made.gate_proj, made.up_proj, made.down_proj)
        made.op = Gated.of(activation, [p.bias is not None for p in projections], rules)
        return made

    def fused_parameters(self) -> tuple[Tensor, ...]:
        """Weights and biases of gate, up and down."""
        projections = (self.gate_proj, self.up_proj, self.down_proj)
        return tuple(t for p in projections for t in present(p.weight, p.bias))

    def forward(self, x: Tensor) -> Tensor:
        """Compute the layer."""
        return self.compute(x)


class FusedLayerNorm(Fused, nn.LayerNorm):
    """``nn.LayerNorm`` in one launch. The arguments are those of ``nn.LayerNorm``, and ``rules``.

    >>> import hypatia_core as hyp, torch
    >>> hyp.nn.FusedLayerNorm(4)(torch.ones(2, 4))
    tensor([[0., 0., 0., 0.],
            [0., 0., 0., 0.]], grad_fn=<NativeLayerNormBackward0>)
    """

    def __init__(self, *args: Any, rules: Rules | None = None, **kw: Any) -> None:
        """Make the layer; see the class."""
        super().__init__(*args, **kw)
        self.op = LayerNorm.of(self.normalized_shape, self.eps, rules)

    @classmethod
    def of(cls, norm: nn.LayerNorm, rules: Rules | None = None) -> FusedLayerNorm:
        """A layer that shares the parameters of ``norm``."""
        made = made_of(FusedLayerNorm, norm)
        made.op = LayerNorm.of(made.normalized_shape, made.eps, rules)
        return made

    def fused_parameters(self) -> tuple[Tensor, ...]:
        """Scale and bias."""
        return present(self.weight, self.bias)

    def forward(self, input: Tensor) -> Tensor:
        """Compute the layer."""
        return self.compute(input)


class FusedRMSNorm(Fused, nn.RMSNorm):
    """``nn.RMSNorm`` in one launch. The arguments are those of ``nn.RMSNorm``, and ``rules``.

    >>> import hypatia_core as hyp, torch
    >>> hyp.nn.FusedRMSNorm(4)(torch.ones(2, 4)).shape
    torch.Size([2, 4])
    """

    def __init__(self, *args: Any, rules: Rules | None = None, **kw: Any) -> None:
        """Make the layer; see the class."""
        super().__init__(*args, **kw)
        self.op = RmsNorm.of(self.normalized_shape, self.eps, rules)

    @classmethod
    def of(cls, norm: nn.RMSNorm, rules: Rules | None = None) -> FusedRMSNorm:
        """A layer that shares the parameters of ``norm``."""
        made = made_of(FusedRMSNorm, norm)
        made.op = RmsNorm.of(made.normalized_shape, made.eps, rules)
        return made

    @classmethod
    def rounded(cls, norm: nn.Module, eps: float, rules: Rules | None = None) -> FusedRMSNorm:
        """A layer with the parameter ``weight`` of a norm that rounds before it scales."""
        made = made_of(FusedRMSNorm, norm)
        made.normalized_shape, made.eps, made.elementwise_affine = tuple(made.weight.shape), eps, True
        made.op = RoundedRmsNorm.of(made.normalized_shape, eps, rules)
        return made

    def fused_parameters(self) -> tuple[Tensor, ...]:
        """Scale."""
        return present(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Compute the layer."""
        return self.compute(x)
