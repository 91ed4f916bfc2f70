"""Attention in training: ops of ours beside eager in float64, whatever computes them; what is kept.

Kernels of both passes are for f16 and bf16 on CUDA; here, plans of the CPU compute the same ops.
"""

import operator

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402
from torch._functorch.partitioners import min_cut_rematerialization_partition  # noqa: E402

import hypatia_core as hyp  # noqa: E402
from hypatia_core import _attention, _partition  # noqa: E402
from hypatia_core import backend as backend_module  # noqa: E402
from hypatia_core.backend import backend  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh")


@pytest.fixture
def everywhere(monkeypatch):
    """Ops of ours on every device."""
    monkeypatch.setattr(_attention, "computed_on", lambda t: True)


def hidden_row(m, n):
    mask = torch.rand(m, n) > 0.3
    mask[m // 2] = False
    return mask


CASES = {
    "plain": lambda: ((2, 3, 17, 17, 16, 16), {}),
    "causal": lambda: ((2, 3, 17, 17, 16, 16), {"is_causal": True}),
    "more keys": lambda: ((1, 2, 5, 40, 8, 12), {}),
    "a sum": lambda: ((2, 3, 17, 17, 16, 16), {"attn_mask": torch.randn(2, 1, 17, 17)}),
    "padding": lambda: ((2, 3, 17, 17, 16, 16), {"attn_mask": (torch.arange(17) < 11).view(1, 1, 1, 17)}),
    "a row without keys": lambda: ((2, 3, 17, 17, 16, 16), {"attn_mask": hidden_row(17, 17)}),
    "a scale": lambda: ((2, 2, 9, 9, 16, 16), {"scale": 0.7}),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("planned", [True, False])
def test_gradients_are_as_near_to_float64_as_eagers(everywhere, name, planned):
    (b, h, m, n, d, e), how = CASES[name]()
    operands = [torch.randn(b, h, m, d), torch.randn(b, h, n, d), torch.randn(b, h, n, e)]
    check(operands, how, planned)


@pytest.mark.parametrize("mask", [None, (17, 9), (2, 1, 17, 9), (2, 6, 17, 9)])
@pytest.mark.parametrize("planned", [True, False])
def test_heads_that_share_keys(everywhere, mask, planned):
    operands = [torch.randn(2, 6, 17, 16), torch.randn(2, 3, 9, 16), torch.randn(2, 3, 9, 8)]
    mask = {} if mask is None else {"attn_mask": torch.randn(mask)}
    check(operands, {"enable_gqa": True, **mask}, planned)


def check(operands, how, planned):
    def f(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, **how) * 1.5

    def wide(q, k, v):
        mask = how.get("attn_mask")
        of = how if mask is None or mask.dtype is torch.bool else {**how, "attn_mask": mask.double()}
        return F.scaled_dot_product_attention(q, k, v, **of) * 1.5

    def step(f, given):
        given = [t.detach().clone().requires_grad_() for t in given]
        y = f(*given)
        torch.manual_seed(3)
        dy = torch.randn(y.shape).to(y.dtype)
        return y.detach(), *torch.autograd.grad(y, given, dy)

    want = step(wide, [t.double() for t in operands])
    eager = step(f, operands)
    compiled = torch.compile(f, backend=backend)
    with hyp.nn.policy("always" if planned else "never"):
        for _ in range(3 if planned else 1):
            got = step(compiled, operands)
            hyp.wait_for_plans()
    for g, e, w in zip(got, eager, want, strict=True):
        assert g.dtype is e.dtype and g.shape == e.shape
        assert (g - w).norm() <= max(2 * (e - w).norm(), 1e-6 * w.norm())
    if planned:
        assert hyp.report().hypatia >= 2, hyp.report()


def test_what_is_left_to_pytorch(everywhere):
    """A learned bias, dropout and large heads have no kernel of ours, and train as in eager."""

    def f(q, bias):
        return F.scaled_dot_product_attention(q, q, q, bias).sum() + F.scaled_dot_product_attention(q, q, q).sum()

    q = torch.randn(1, 2, 5, _attention.MAX_GRAD_HEAD + 8, requires_grad=True)
    bias = torch.randn(5, 5, requires_grad=True)
    got = torch.autograd.grad(torch.compile(f, backend=backend)(q, bias), [q, bias])
    want = torch.autograd.grad(f(q, bias), [q, bias])
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    assert "attention_lse" not in str(hyp.report())


class Block(nn.Module):
    """Attention of queries, keys and values that are parts of one product, with a causal mask."""

    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = (p.view(b, t, 4, 8).transpose(1, 2) for p in self.qkv(x).split(32, dim=2))
        seen = torch.arange(t)[None, :] <= torch.arange(t)[:, None]
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        return self.out(F.gelu(y.transpose(1, 2).reshape(b, t, 32)))


def halves(monkeypatch, model, x, partition=None):
    """The forward graph of a model, and the names of the backward graph's nodes."""
    found = []
    divided = backend_module.divided

    def kept(graph, *args, **how):
        found.append([n.name for n in graph.graph.nodes] if found else graph)
        return divided(graph, *args, **how)

    with monkeypatch.context() as m:
        m.setattr(backend_module, "divided", kept)
        if partition is not None:
            m.setattr(backend_module, "partition", partition)
        torch._dynamo.reset()
        torch.compile(model, backend=backend)(x).square().mean().backward()
    return found


def saved(forward):
    return [n.meta["val"] for n in forward.graph.output_node().args[0]][1:]


def test_the_product_is_kept_and_not_its_parts(everywhere, monkeypatch):
    model, x = Block(), torch.randn(2, 6, 32)
    forward, backward = halves(monkeypatch, model, x)
    shapes = [tuple(t.shape) for t in saved(forward)]
    assert (12, 96) in shapes and (2, 4, 6, 8) not in shapes, shapes
    # The mask depends on no argument: it is made again.
    assert (6, 6) not in shapes
    assert any("arange" in name for name in backward), backward
    plain, _ = halves(monkeypatch, model, x, min_cut_rematerialization_partition)
    assert sum(t.numel() for t in saved(forward)) <= sum(t.numel() for t in saved(plain))


def test_a_small_part_of_a_large_result_is_kept_alone():
    """Keeping the whole would keep more."""

    class Part(nn.Module):
        def forward(self, x):
            wide = torch.tanh(x @ torch.ones(8, 100))
            return wide.sum() + wide[:, :2].sin().sum()

    x = torch.randn(4, 8, requires_grad=True)
    want = torch.autograd.grad(Part()(x), x)
    got = torch.autograd.grad(torch.compile(Part(), backend=backend)(x), x)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-6)


def test_random_numbers_are_never_drawn_twice():
    """What depends on no argument is computed again, unless it is random."""

    def f(x):
        noise = torch.rand(5, 5)
        return (x * noise).sin().sum()

    x = torch.randn(5, 5, requires_grad=True)
    torch.manual_seed(1)
    got = torch.autograd.grad(torch.compile(f, backend=backend)(x), x)
    torch.manual_seed(1)
    want = torch.autograd.grad(f(x), x)
    torch.testing.assert_close(got, want)


def test_views_are_those_that_compute_nothing():
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    view = graph.call_function(torch.ops.aten.permute.default, (x, [1, 0]))
    cut = graph.call_function(torch.ops.aten.split.Tensor, (view, 2))
    first = graph.call_function(operator.getitem, (cut, 0))
    made = graph.call_function(torch.ops.aten.sin.default, (first,))
    assert [_partition.is_view(n) for n in (view, cut, first, made)] == [True, True, True, False]
    assert _partition.chain_of(first) == [x, view, cut, first] and _partition.chain_of(made) == []
