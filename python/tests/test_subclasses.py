"""Tensors of subclasses as inputs and parameters of compiled models: as in eager, or by eager."""

import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402
from torch.testing._internal.two_tensor import TwoTensor  # noqa: E402

import hypatia_core as hyp  # noqa: E402
from hypatia_core.backend import backend  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh")


class Plain(torch.Tensor):
    """A subclass without anything of its own."""


class Doubling(torch.Tensor):
    """A subclass that changes an op."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        made = super().__torch_function__(func, types, args, kwargs or {})
        return made * 2 if func is torch.nn.functional.relu else made


class Weight(nn.Parameter):
    """A parameter's subclass, as of quantised layers."""


KINDS = {
    "plain": lambda t: t.as_subclass(Plain),
    "doubling": lambda t: t.as_subclass(Doubling),
    "two": lambda t: TwoTensor(t, t + 1),
    "weight": Weight,
}


@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("where", ["input", "parameter"])
@pytest.mark.parametrize("kind", KINDS)
def test_subclasses(kind, where, train):
    x = torch.randn(3, 6)
    x = KINDS[kind](x) if where == "input" else x

    def made():
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6))
        if where == "parameter":
            weight = KINDS[kind](torch.randn(6, 6))
            model[0].weight = weight if isinstance(weight, nn.Parameter) else nn.Parameter(weight)
        return model

    model, its = made(), made()
    compiled = torch.compile(model, backend=backend)
    with torch.set_grad_enabled(train):
        for _ in range(2):
            got, want = compiled(x), its(x)
            assert type(got) is type(want)
            assert torch.allclose(got, want, atol=1e-6)
            if train:
                got.square().sum().backward()
                want.square().sum().backward()
    if train:
        for one, other in zip(model.parameters(), its.parameters(), strict=True):
            assert torch.allclose(one.grad, other.grad, atol=1e-5)
    assert hyp.report().hypatia, hyp.report()
    assert not hyp.report().pytorch and not hyp.report().left, hyp.report()


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_a_graph_of_several_parts(dynamic):
    """PyTorch's ops among the parts, and the module as a whole, get plain tensors too."""

    def f(x):
        return (F.relu(x * 2) + 1).sort()[0].sin() * 2

    compiled = torch.compile(f, backend=backend, dynamic=dynamic)
    with torch.no_grad(), hyp.nn.policy("measure"):
        for rows in (3, 4, 5):
            x = torch.randn(rows, 6).as_subclass(Doubling)
            for _ in range(30):
                torch.testing.assert_close(compiled(x), f(x))
                hyp.wait_for_plans()


def test_a_parameter_with_frozen_values():
    model = nn.Sequential(nn.Linear(6, 6), nn.ReLU())
    model[0].weight = Weight(torch.randn(6, 6))
    compiled = torch.compile(model, backend=backend, options={"frozen": True})
    x = torch.randn(3, 6)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(compiled(x), model(x))
            model[0].weight.mul_(2)
