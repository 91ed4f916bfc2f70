"""`optimize`: fusions as nodes of an FX graph, against PyTorch."""

import copy
import io

import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

import hypatia_core as hyp  # noqa: E402

RULES = """
edition 1;
use core::*;
use nn::*;
use fuse::*;

ruleset mine { until = fixpoint; }

/// A gate between 0 and 1, without an exponential.
scalar gate(x) = 0.5 + 0.5 * x / (1.0 + abs(x));

/// The same, as a model writes it.
rule mine::gate: 0.5 * (1.0 + x / (1.0 + abs(x))) => gate(x)
  class exact for f64, f32, rounds for f16, bf16;
"""


class Gate(nn.Module):
    def forward(self, x):
        return 0.5 * (1.0 + x / (1.0 + x.abs()))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 4)

    def forward(self, x):
        b, t, _ = x.shape
        h = F.gelu(self.up(x))
        q = h.view(b, t, 4, 4).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, q, q, is_causal=True).transpose(1, 2).reshape(b, t, 16)
        return 30 * torch.tanh(self.down(self.norm(y + h)) / 30)


pytestmark = pytest.mark.usefixtures("fresh")


def fused(graph):
    return [n for n in graph.graph.nodes if n.target is torch.ops.hypatia.fusion.default]


def test_each_fusion_is_a_node_over_the_models_own_parameters():
    model, x = Net().eval(), torch.randn(2, 3, 8)
    graph = hyp.optimize(model, (x,))
    names = [n.args[1] for n in fused(graph)]
    assert any(n.startswith("gemm") and "gelu" in n for n in names), graph.graph
    assert "torch.ops.hypatia.fusion" in graph.code
    own = dict(model.named_parameters())
    assert own.keys() == dict(graph.named_parameters()).keys() == graph.state_dict().keys()
    assert all(p is own[n] for n, p in graph.named_parameters())
    with torch.no_grad():
        torch.testing.assert_close(graph(x), model(x))
        model.up.weight.mul_(2)
        torch.testing.assert_close(graph(x), model(x))
    assert hyp.report().hypatia == 2 * len(names)


def test_gradients_are_pytorchs():
    model, x = Net().eval(), torch.randn(2, 3, 8, requires_grad=True)
    graph = hyp.optimize(model, (x,))
    wants = torch.autograd.grad(model(x).square().sum(), [x, *model.parameters()])
    got = torch.autograd.grad(graph(x).square().sum(), [x, *model.parameters()])
    for g, w in zip(got, wants, strict=True):
        torch.testing.assert_close(g, w)


def test_a_rule_of_ones_own_shows_its_name():
    rules = hyp.Rules.from_text(RULES)
    model, x = nn.Sequential(nn.Linear(8, 16), Gate()), torch.randn(5, 8)
    graph = hyp.optimize(model, (x,), rules=[rules])
    (node,) = fused(graph)
    assert "mine::gate" in node.args[2] and "mine::gate" in str(graph.graph)
    with torch.no_grad():
        torch.testing.assert_close(graph(x), model(x))
    assert hyp.report().hypatia == 1


def test_a_rule_like_one_of_the_librarys_shows_its_name():
    rules = hyp.Rules.from_text("""
edition 1;
use core::*;
use nn::*;
ruleset mine { until = fixpoint; }
rule mine::relu: relu(gemm(a, b, e, to = d)) => gemm(a, b, relu(e), to = d)
  class exact for f64, f32, rounds for f16, bf16;
""")
    graph = hyp.optimize(nn.Sequential(nn.Linear(8, 16), nn.ReLU()), (torch.randn(5, 8),), rules=[rules])
    (node,) = fused(graph)
    assert node.args[2] == ["fuse::operand[add]", "fuse::start", "mine::relu"]


def test_it_can_be_exported_saved_loaded_and_compiled():
    model, x = Net().eval(), torch.randn(2, 3, 8)
    graph = hyp.optimize(torch.export.export(model, (x,), strict=False))
    file = io.BytesIO()
    torch.export.save(torch.export.export(graph, (x,), strict=False), file)
    file.seek(0)
    loaded = torch.export.load(file).module()
    with torch.no_grad():
        want = model(x)
        torch.testing.assert_close(loaded(x), want)
        torch.testing.assert_close(torch.compile(graph, backend="aot_eager", fullgraph=True)(x), want)
        torch.testing.assert_close(copy.deepcopy(graph)(x), want)
    assert hyp.report().hypatia == 3 * len(fused(graph))


def test_a_dynamic_size_stays_dynamic():
    model = Net().eval()
    shapes = ({0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC},)
    graph = hyp.optimize(model, (torch.randn(2, 3, 8),), dynamic_shapes=shapes)
    assert fused(graph)
    with torch.no_grad():
        for shape in [(2, 3, 8), (4, 7, 8)]:
            x = torch.randn(shape)
            torch.testing.assert_close(graph(x), model(x))


def test_what_cannot_be_optimized_says_so():
    with pytest.raises(hyp.InputError, match="forward was given no inputs: missing a required argument"):
        hyp.optimize(nn.Linear(2, 2))
    with pytest.raises(hyp.InputError, match="was given 2 inputs: too many"):
        hyp.optimize(nn.Linear(2, 2), (torch.ones(1, 2), torch.ones(1, 2)))
    with pytest.raises(hyp.InputError, match="expected a module"):
        hyp.optimize(lambda x: x, (torch.ones(2),))
    model = nn.Sequential(nn.MaxPool2d(2), nn.Flatten())
    x = torch.randn(2, 3, 8, 8)
    graph = hyp.optimize(model, (x,))
    assert not fused(graph)
    torch.testing.assert_close(graph(x), model(x))


def test_fusions_that_follow_each_other():
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8), nn.ReLU(), nn.LayerNorm(8), nn.Linear(8, 4))
    x = torch.randn(3, 8)
    graph = hyp.optimize(model.eval(), (x,))
    assert len(fused(graph)) >= 2
    with torch.no_grad():
        torch.testing.assert_close(graph(x), model(x))


def test_a_fusion_that_no_rule_made_is_trained():
    class Scaled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.w = torch.nn.Parameter(torch.randn(8))

        def forward(self, x):
            return torch.tanh(x * self.w) * 2 + 1

    module, x = Scaled(), torch.randn(4, 8)
    hyp.optimize(module, (x,))(x).mean().backward()
    found, module.w.grad = module.w.grad, None
    module(x).mean().backward()
    torch.testing.assert_close(found, module.w.grad)


def test_gradients_can_be_differentiated_again():
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).double()
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(hyp.optimize(model, x), (x,))


def test_what_is_no_module_or_expression_is_said():
    for f in (lambda: hyp.fuse_(len), lambda: hyp.scalar("s", 3)):  # pyright: ignore
        with pytest.raises(hyp.InputError, match="not"):
            f()
