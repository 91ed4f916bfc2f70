"""Tensors lie channels last around PyTorch's convolutions: the same results, in the same order."""

import copy

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch._functorch._aot_autograd.utils import make_boxed_func  # noqa: E402
from torch._functorch.aot_autograd import aot_module_simplified  # noqa: E402

from hypatia_core import _launch, _layout  # noqa: E402
from hypatia_core._fx import Importer, name_of  # noqa: E402
from hypatia_core._known import is_product  # noqa: E402
from hypatia_core._layout import channels_last, part_biases  # noqa: E402
from hypatia_core._partition import partition  # noqa: E402
from hypatia_core._rules import library  # noqa: E402
from hypatia_core.backend import table  # noqa: E402


class Block(nn.Module):
    """A bottleneck with a gate and a shortcut, as in networks for images."""

    def __init__(self, channels, groups=1):
        super().__init__()
        self.widen = nn.Conv2d(channels, 2 * channels, 1, bias=False)
        self.first, self.second = nn.BatchNorm2d(2 * channels), nn.BatchNorm2d(channels)
        self.walk = nn.Conv2d(2 * channels, 2 * channels, 3, padding=1, groups=groups)
        self.gate = nn.Conv2d(2 * channels, 2 * channels, 1)
        self.narrow = nn.Conv2d(2 * channels, channels, 1)

    def forward(self, x):
        y = self.walk(torch.relu(self.first(self.widen(x))))
        y = y * torch.sigmoid(self.gate(y.mean((2, 3), keepdim=True)))
        return x + nn.functional.silu(self.second(self.narrow(y)))


class Net(nn.Module):
    """Patches, a block, patches of patches, and a classifier."""

    def __init__(self, groups=1):
        super().__init__()
        self.cut = nn.Conv2d(3, 8, 4, stride=4)
        self.block = Block(8, groups)
        self.halve = nn.Conv2d(8, 12, 2, stride=2, bias=False)
        self.last = nn.Linear(12 * 6, 5)

    def forward(self, x):
        y = self.halve(self.block(self.cut(x)))
        return y, self.last(torch.clamp(y, -1.0, 2.0).flatten(1))


def by_pytorch(node):
    """Whether cuDNN computes a convolution on a GPU."""
    return name_of(node.target) == "convolution_backward" or not is_product(node)


def graph_of(module, *inputs):
    """The aten graph of a module that is evaluated."""
    found = []

    def keep(graph, _):
        found.append(graph)
        return graph.forward

    def compile_with(module, given):
        return aot_module_simplified(module, given, fw_compiler=keep, inference_compiler=keep, decompositions=table())

    with torch.no_grad():
        torch._dynamo.reset()
        torch.compile(module, backend=compile_with, dynamic=False)(*inputs)
    return found[0]


def arguments_of(graph):
    """Random arguments of a graph; variances are positive."""
    values = [n.meta["val"] for n in graph.graph.find_nodes(op="placeholder")]
    return [torch.rand(t.shape).to(t.dtype) for t in values]


def planned(graph, arguments):
    """What a plan for the host computes of a graph that is imported as for a GPU."""
    importer = Importer(graph, library(), stored=True, ordered=True)
    model = importer.g.model(**_launch.settings_on(torch.device("cpu")))
    named = {n.name: t for n, t in zip(graph.graph.find_nodes(op="placeholder"), arguments, strict=True)}
    rows = []
    for name, order in zip(importer.inputs, importer.orders, strict=True):
        rows.append((named[name] if order is None else named[name].permute(*order)).contiguous())
    given = zip(importer.inputs, rows, strict=True)
    plan = model.compile([(name, _launch.memory(t), tuple(t.shape)) for name, t in given])
    values = [n.meta["val"] for n in importer.outputs]
    made = [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype).fill_(float("nan")) for t in values]
    _launch.run_into(
        plan, tuple(rows), tuple(t.permute(sorted(range(t.dim()), key=lambda i: -t.stride(i))) for t in made)
    )
    return made


@pytest.mark.parametrize("groups", [1, 16])
def test_results_and_their_strides_stay(groups):
    net = Net(groups).eval().bfloat16()
    graph = graph_of(net, torch.randn(2, 3, 16, 24).bfloat16())
    arguments = arguments_of(graph)
    before = graph(*arguments)
    assert channels_last(graph, by_pytorch)
    after = graph(*arguments)
    for x, y in zip(before, after, strict=True):
        assert x.stride() == y.stride()
        torch.testing.assert_close(x, y, rtol=0.02, atol=0.02)


class Sums(nn.Module):
    """Reductions of a tensor whose channels may come last, over channels, places and images."""

    def forward(self, x):
        y = x * x
        over = [y.sum((0, 2, 3)), y.mean((2, 3), keepdim=True), y.amax(1), y.sum((0, 1)), y.amin((0, -1)), y.sum()]
        return *over, y.mean((0, 2, 3), keepdim=True)


@pytest.mark.parametrize("shape", [(3, 5, 6, 7), (2, 8, 1, 4), (1, 3, 2, 2)])
def test_reductions_follow_memory(shape):
    x = torch.randn(shape).contiguous(memory_format=torch.channels_last)
    graph = graph_of(Sums(), x)
    importer = Importer(graph, library(), stored=True, ordered=True)
    (order,) = importer.orders
    # With channels or places of size 1 both orders are the same.
    assert order == ([0, 2, 3, 1] if x.stride() != torch.empty(shape).stride() else None)
    for got, want in zip(planned(graph, [x]), graph(x), strict=True):
        torch.testing.assert_close(got, want)


def training_graphs(module, x):
    """The aten graphs of a module that is trained: forward and backward."""
    found = []

    def keep(graph, _):
        found.append(graph)
        return graph.forward

    def compile_with(traced, given):
        return aot_module_simplified(traced, given, fw_compiler=keep, bw_compiler=keep, decompositions=table())

    torch._dynamo.reset()
    torch.compile(module, backend=compile_with, dynamic=False)(x).sum().backward()
    return found


@pytest.mark.parametrize("last", [False, True])
def test_biases_and_their_gradients_are_work_of_parts(last):
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 6, 3, groups=2, bias=False))
    net.append(nn.Conv2d(6, 4, 2))
    x = torch.randn(2, 3, 12, 10).requires_grad_()
    if last:
        net, x = net.to(memory_format=torch.channels_last), x.detach().to(memory_format=torch.channels_last)
        x.requires_grad_()
    for graph, biases in zip(training_graphs(net, x), (2, 2), strict=True):
        values = [n.meta["val"] for n in graph.graph.find_nodes(op="placeholder")]
        arguments = [torch.randn(t.shape).as_strided(t.shape, t.stride()) for t in values]
        before = graph(*arguments)
        part_biases(graph, lambda n: True)
        kinds = [name_of(n.target) for n in graph.graph.nodes]
        assert kinds.count("add") + kinds.count("sum") == biases, graph.graph
        for node in graph.graph.nodes:
            assert name_of(node.target) != "convolution" or node.args[2] is None
            assert name_of(node.target) != "convolution_backward" or not node.args[-1][2]
        for got, want in zip(graph(*arguments), before, strict=True):
            if want is not None:
                assert got.stride() == want.stride()
                torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("given_last", [False, True])
@pytest.mark.parametrize("groups", [1, 16])
def test_both_passes_of_training_lie_channels_last(groups, given_last, monkeypatch):
    # They do so for 16 bits; f64 tells whether the gradients are right.
    monkeypatch.setattr(_layout, "pays", lambda _: True)
    net = Net(groups).double().eval()
    eager = copy.deepcopy(net)
    x = torch.randn(2, 3, 16, 24).double()
    if given_last:
        x = x.to(memory_format=torch.channels_last)
    orders = []

    def halve(joint, given, **about):
        assert channels_last(joint, by_pytorch)
        for node in joint.graph.nodes:
            if name_of(node.target) in ("convolution", "convolution_backward") and by_pytorch(node):
                orders.extend(a.meta["val"].is_contiguous(memory_format=torch.channels_last) for a in node.args[:1])
        return partition(joint, given, **about)

    def run(graph, _):
        return make_boxed_func(graph.forward)

    def compile_with(traced, given):
        how = {"fw_compiler": run, "bw_compiler": run, "partition_fn": halve, "decompositions": table()}
        return aot_module_simplified(traced, given, **how)

    torch._dynamo.reset()
    compiled = torch.compile(net, backend=compile_with, dynamic=False)
    for f in (compiled, eager):
        y, last = f(x)
        (y.square().mean() + last.square().mean()).backward()
    assert orders and all(orders)
    for (name, got), want in zip(net.named_parameters(), eager.parameters(), strict=True):
        # Axes of size 1 may have any stride.
        assert got.grad.squeeze().stride() == want.grad.squeeze().stride(), name
        torch.testing.assert_close(got.grad, want.grad, rtol=1e-9, atol=1e-12)
