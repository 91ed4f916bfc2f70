"""`fuse_`: puts fused layers into a model of PyTorch.

In: a model. Out: the same model with other modules in it, and a table. Invariant: parameters stay
the same objects under the same names, so state dicts and optimisers stay valid; what is not
recognised for certain stays as it is, and the table says why.
"""

from __future__ import annotations

import html
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ._rules import Rules, Scalar, library
from .errors import InputError
from .nn import FusedGatedMLP, FusedLayerNorm, FusedLinear, FusedMLP, FusedRMSNorm, policy
from .nn._layers import Fused, shown
from .nn._ops import Activation

__all__ = ["Change", "Fusions", "fuse_"]

#: Modules of PyTorch that are a scalar of the library, whatever their settings.
PLAIN: dict[type[nn.Module], str] = {
    nn.Hardswish: "hardswish",
    nn.LogSigmoid: "log_sigmoid",
    nn.Mish: "mish",
    nn.ReLU: "relu",
    nn.ReLU6: "relu6",
    nn.SiLU: "silu",
    nn.Sigmoid: "sigmoid",
    nn.Softsign: "softsign",
    nn.Tanh: "tanh",
    nn.Tanhshrink: "tanhshrink",
}
#: Modules of other packages that are a scalar of the library. They are compared with it.
ELSEWHERE: dict[str, str] = {
    "transformers.activations.GELUActivation": "gelu",
    "transformers.activations.GELUTanh": "gelu_tanh",
    "transformers.activations.MishActivation": "mish",
    "transformers.activations.NewGELUActivation": "gelu_tanh",
    "transformers.activations.QuickGELUActivation": "quick_gelu",
    "transformers.activations.SiLUActivation": "silu",
}
#: Activations of PyTorch that are no scalar of the library, or not with all settings.
OTHERS = (
    nn.CELU,
    nn.ELU,
    nn.Hardshrink,
    nn.Hardsigmoid,
    nn.Hardtanh,
    nn.LeakyReLU,
    nn.PReLU,
    nn.SELU,
    nn.Softplus,
    nn.Softshrink,
    nn.Threshold,
)
UNKNOWN = "{} is no scalar of the library: declare one with `scalar`, and name it in `activations=`"


@dataclass(frozen=True)
class Change:
    """What was done with one module."""

    path: str
    """Its name in the model."""
    before: str
    """What it was."""
    after: str
    """What it became; empty if it stayed."""
    why: str
    """Why it stayed; else empty."""


class Fusions:
    """What :func:`fuse_` did. ``str()`` is a table."""

    def __init__(self, changes: list[Change]) -> None:
        """Args: the changes."""
        self.changes = changes

    @property
    def fused(self) -> list[Change]:
        """The modules that were replaced."""
        return [c for c in self.changes if c.after]

    @property
    def left(self) -> list[Change]:
        """The modules that might have been replaced, with the reason why they were not."""
        return [c for c in self.changes if not c.after]

    def __str__(self) -> str:
        """Return a table."""
        head = ("module", "was", "is")
        rows = [(c.path, c.before, c.after or f"left: {c.why}") for c in self.changes]
        widths = [max(len(r[i]) for r in [head, *rows]) for i in range(3)]
        text = ["  ".join(c.ljust(w) for c, w in zip(r, widths, strict=True)).rstrip() for r in [head, *rows]]
        return "\n".join([*text, f"{len(self.fused)} fused, {len(self.left)} left"])

    def __repr__(self) -> str:
        """Count the changes."""
        return f"Fusions({len(self.fused)} fused, {len(self.left)} left)"

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


def fuse_(
    model: nn.Module,
    rules: Sequence[Rules | Scalar] = (),
    *,
    activations: Mapping[type[nn.Module], Activation] | None = None,
    verbose: bool = True,
) -> Fusions:
    """Put fused layers into a model, in place.

    Replaced are linear layers with an activation after them in an ``nn.Sequential``, those of
    linear layers alone as a whole, ``nn.LayerNorm``, ``nn.RMSNorm``, modules with a ``weight`` and
    an epsilon that compute what Llama's ``RMSNorm`` does, and feed-forward blocks with
    ``gate_proj``, ``up_proj``, ``down_proj`` and an activation module. Modules of other classes,
    with hooks or with parametrisations stay. What ``forward`` of a class of yours calls as a
    function (``F.relu``) cannot be seen.

    Args:
        model: the model. It cannot be replaced itself, only what is in it.
        rules: rules of your own that may fire in the fused layers, beside the library's.
        activations: which scalar an activation module of your own is. It is compared with the
            module on some numbers.
        verbose: print the table.

    >>> import hypatia_core as hyp, torch
    >>> model = torch.nn.Sequential(torch.nn.LayerNorm(4), torch.nn.Linear(4, 8), torch.nn.GELU())
    >>> changes = hyp.fuse_(model)
    module  was           is
    0       LayerNorm     FusedLayerNorm
    1       Linear, GELU  FusedLinear, gelu
    2 fused, 0 left

    Raises:
        InputError: if the model is no module, or one in ``activations`` computes something else
            than its scalar.
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"fuse_ takes a module of PyTorch, not {type(model).__name__}")
    order = {name: i for i, (name, _) in enumerate(model.named_modules(remove_duplicate=False))}
    fuser = _Fuser(_together(rules), dict(activations or {}))
    fuser.inside(model, "")
    if fuser.is_chain(model):
        fuser.stay("(root)", model, "the model itself cannot be replaced: its layers are fused one by one")
    fusions = Fusions(sorted(fuser.changes, key=lambda c: order.get(c.path, -1)))
    if verbose:
        print(fusions)
    return fusions


def _together(rules: Iterable[Rules | Scalar]) -> Rules | None:
    if isinstance(rules, (Rules, Scalar)):
        rules = [rules]
    given: list[Any] = list(rules) if isinstance(rules, (list, tuple, set)) else [rules]
    if wrong := [r for r in given if not isinstance(r, (Rules, Scalar))]:
        raise InputError(f"rules are `Rules` and scalars, not {wrong[0]!r}; `Rules.from_file` reads a file")
    all_rules = [r.rules if isinstance(r, Scalar) else r for r in rules]
    sources = dict.fromkeys(source for r in all_rules for source in r.sources)
    return Rules(list(sources)) if sources else None


class _Fuser:
    def __init__(self, rules: Rules | None, activations: dict[type[nn.Module], Activation]) -> None:
        self.rules = rules
        self.activations = activations
        self.changes: list[Change] = []
        self.done: dict[int, nn.Module] = {}
        self.kept: list[nn.Module] = []
        self.compared: set[int] = set()

    def stay(self, path: str, module: nn.Module, why: str) -> None:
        self.changes.append(Change(path, type(module).__name__, "", why))

    def became(self, path: str, before: str, after: str) -> None:
        self.changes.append(Change(path, before, after, ""))

    def inside(self, parent: nn.Module, path: str) -> None:
        """Replace what is in a module."""
        if type(parent) is nn.Sequential:
            self.pairs(parent, path)
        for name, child in list(parent._modules.items()):
            if child is None or isinstance(child, Fused):
                continue
            below = f"{path}.{name}" if path else name
            if id(child) in self.done:
                parent._modules[name] = self.done[id(child)]
                continue
            new = self.replaced(child, below)
            self.done[id(child)] = new
            self.kept.append(child)  # Its id stays its own.
            if new is not child:
                parent._modules[name] = new
            else:
                self.inside(child, below)

    def replaced(self, module: nn.Module, path: str) -> nn.Module:
        """The module that takes this one's place; itself if there is none."""
        if type(module) is nn.LayerNorm or type(module) is nn.RMSNorm:
            if why := disturbed(module):
                self.stay(path, module, why)
                return module
            is_layer_norm = isinstance(module, nn.LayerNorm)
            made = FusedLayerNorm.of(module, self.rules) if is_layer_norm else FusedRMSNorm.of(module, self.rules)
            self.became(path, type(module).__name__, type(made).__name__)
            return made
        if self.is_chain(module):
            assert isinstance(module, nn.Sequential)
            return self.chain(module, path)
        if {"gate_proj", "up_proj", "down_proj"} <= set(module._modules):
            return self.gated(module, path)
        if (eps := epsilon(module)) is not None:
            return self.rms_norm(module, path, eps)
        return module

    def activation(self, module: nn.Module | None) -> Activation:
        """The scalar that a module is; None if it is none."""
        if module is None or disturbed(module):
            return None
        kind = type(module)
        if kind in self.activations:
            found = self.activations[kind]
            if id(module) not in self.compared:
                compare(module, found, self.rules)
                self.compared.add(id(module))
            return found if isinstance(found, Scalar) else Scalar(str(found), self.rules)
        if isinstance(module, nn.GELU) and kind is nn.GELU:
            return "gelu_tanh" if module.approximate == "tanh" else "gelu"
        if isinstance(module, nn.Softplus) and (module.beta, module.threshold) == (1, 20):
            return "softplus"
        if isinstance(module, nn.Hardtanh) and (module.min_val, module.max_val) == (-1, 1):
            return "hard_tanh"
        if found := ELSEWHERE.get(f"{kind.__module__}.{kind.__qualname__}"):
            return found if is_scalar(module, Scalar(found)) else None
        return PLAIN.get(kind)

    def steps(self, module: nn.Module) -> list[tuple[str, Activation]] | None:
        """The linear layers of a sequence with their activations; None if more is in it."""
        found: list[tuple[str, Activation]] = []
        open_layer = False
        for name, child in module._modules.items():
            if type(child) is nn.Linear and not disturbed(child):
                found.append((name, None))
                open_layer = True
            elif open_layer and (activation := self.activation(child)) is not None:
                found[-1] = (found[-1][0], activation)
                open_layer = False
            else:
                return None
        return found

    def is_chain(self, module: nn.Module) -> bool:
        """Whether a sequence is linear layers and activations alone, two layers at least."""
        if type(module) is not nn.Sequential or disturbed(module):
            return False
        steps = self.steps(module)
        return steps is not None and len(steps) > 1

    def chain(self, module: nn.Sequential, path: str) -> nn.Module:
        steps = self.steps(module)
        assert steps is not None
        self.became(path, f"Sequential of {len(steps)} Linear", "FusedMLP")
        return FusedMLP.of(module, steps, self.rules)

    def pairs(self, parent: nn.Sequential, path: str) -> None:
        """Replace linear layers with an activation after them."""
        items = list(parent._modules.items())
        for (name, layer), (next_name, behind) in itertools.pairwise(items):
            if type(layer) is not nn.Linear or behind is None:
                continue
            activation = self.activation(behind)
            below = f"{path}.{name}" if path else name
            if activation is None:
                if isinstance(behind, OTHERS) and not disturbed(behind):
                    self.changes.append(Change(below, f"Linear, {type(behind).__name__}", "", UNKNOWN.format(behind)))
                continue
            if why := disturbed(layer):
                self.stay(below, layer, why)
                continue
            made = FusedLinear.of(layer, activation, self.rules)
            parent._modules[name] = made
            parent._modules[next_name] = nn.Identity()
            self.became(below, f"Linear, {type(behind).__name__}", f"FusedLinear, {made._activation}")

    def gated(self, module: nn.Module, path: str) -> nn.Module:
        projections = [module._modules[n] for n in ("gate_proj", "up_proj", "down_proj")]
        others = [m for m in module._modules.values() if m is not None and m not in projections]
        why = disturbed(module)
        for projection in projections:
            if type(projection) is not nn.Linear:
                why = "a projection is no nn.Linear"
            elif disturbed(projection):
                why = why or disturbed(projection)
        activation = self.activation(others[0]) if len(others) == 1 else None
        if not why and activation is None:
            why = "its activation is not known; name its class in `activations=`"
        if not why:
            made = FusedGatedMLP.of(module, activation, self.rules)
            if agrees(module, made):
                self.became(path, type(module).__name__, f"FusedGatedMLP, {shown(activation)}")
                return made
            why = "it computes something else than down(activation(gate(x)) * up(x))"
        self.stay(path, module, why)
        return module

    def rms_norm(self, module: nn.Module, path: str, eps: float) -> nn.Module:
        """The norm that takes the place of one that may be Llama's."""
        made, kind = FusedRMSNorm.rounded(module, eps, self.rules), type(module).__name__
        if why := disturbed(module):
            self.stay(path, module, why)
        elif is_rms_norm(module, made):
            self.became(path, kind, "FusedRMSNorm")
            return made
        elif "RMSNorm" in kind:
            self.stay(path, module, "it computes something else than weight * x / sqrt(mean(x * x) + eps)")
        return module


def epsilon(module: nn.Module) -> float | None:
    """The epsilon of a module that has a vector ``weight`` and nothing else, as Llama's norm."""
    weight = module._parameters.get("weight")
    alone = list(module._parameters) == ["weight"] and not module._buffers and not module._modules
    eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    return eps if alone and weight is not None and weight.dim() == 1 and isinstance(eps, float) else None


def disturbed(module: nn.Module) -> str:
    """Why a module must stay itself, whatever it computes; empty if nothing is in the way."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    if any(getattr(module, h, None) for h in hooks):
        return "it has hooks"
    if "parametrizations" in module._modules:
        return "it is parametrised"
    if "forward" in module.__dict__:
        return "its forward was replaced"
    return ""


def compare(module: nn.Module, activation: Activation, rules: Rules | None) -> None:
    """Fail if an activation module is not that scalar, on numbers around 0 and far away."""
    scalar = activation if isinstance(activation, Scalar) else Scalar(str(activation), rules or library())
    if not is_scalar(module, scalar):
        raise InputError(f"activations: {type(module).__name__} is not the scalar `{scalar.name}`")


def is_scalar(module: nn.Module, scalar: Scalar) -> bool:
    """Whether an activation module computes a scalar."""
    x = torch.cat([torch.linspace(-8, 8, 257, dtype=torch.float64), torch.tensor([-1e4, 1e4], dtype=torch.float64)])
    with torch.no_grad():
        got, want = module(x), scalar(x)
    return got.shape == want.shape and torch.allclose(got, want, rtol=1e-9, atol=1e-12)


def is_rms_norm(module: nn.Module, made: FusedRMSNorm) -> bool:
    """Whether two norms agree for any weights, on rows of any scale and type."""
    weight = made.weight
    if weight.device.type == "meta":
        return False
    generator = torch.Generator().manual_seed(0)
    rows, scale = torch.randn(6, len(weight), generator=generator), torch.randn(len(weight), generator=generator)
    rows = (rows * torch.logspace(-5, 3, 6)[:, None]).to(weight.device)
    for dtype in (torch.float32, weight.dtype, torch.bfloat16):
        try:
            with torch.no_grad(), policy("never"):
                args = {"weight": scale.to(weight)}, (rows.to(dtype),)
                got, want = (torch.func.functional_call(m, *args) for m in (module, made))
        except (TypeError, RuntimeError, ValueError):
            return False
        if not isinstance(got, torch.Tensor) or (got.shape, got.dtype) != (want.shape, want.dtype):
            return False
        if not torch.allclose(got, want, rtol=16 * torch.finfo(want.dtype).eps, atol=0):
            return False
    return True


def agrees(module: nn.Module, made: FusedGatedMLP) -> bool:
    """Whether two modules give the same results on random rows."""
    weight = made.gate_proj.weight
    if weight.device.type == "meta":
        return False
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, weight.shape[1], generator=generator).to(weight)
    modes = [(m, m.training) for m in module.modules()]
    try:
        module.eval()
        with torch.no_grad(), policy("never"):
            got, want = module(x), made(x)
    except (TypeError, RuntimeError, ValueError):
        return False
    finally:
        for m, training in modes:
            m.training = training
    tolerance = 16 * torch.finfo(weight.dtype).eps
    return (
        isinstance(got, torch.Tensor)
        and got.shape == want.shape
        and torch.allclose(got, want, rtol=tolerance, atol=tolerance * float(want.abs().max()))
    )
