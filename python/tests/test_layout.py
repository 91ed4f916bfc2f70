"""Tensors lie channels last around PyTorch's convolutions: the same results, in the same order."""

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch._functorch.aot_autograd import aot_module_simplified  # noqa: E402

from hypatia_core import _launch  # noqa: E402
from hypatia_core._fx import Importer, name_of  # noqa: E402
from hypatia_core._known import is_product  # noqa: E402
from hypatia_core._layout import channels_last  # noqa: E402
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
    return name_of(node.target) != "" and not is_product(node)


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
        plan, tuple(rows), tuple(t.permute(*sorted(range(t.dim()), key=lambda i: -t.stride(i))) for t in made)
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
