"""Parts of graphs: what passes between them."""

from __future__ import annotations

import operator

import pytest

torch = pytest.importorskip("torch")

from torch import fx  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

from hypatia_core._division import divide  # noqa: E402

aten = torch.ops.aten


def divided(f, *inputs) -> tuple[fx.GraphModule, list[fx.GraphModule]]:
    """A graph divided at its `cummax`, and its parts."""
    graph = make_fx(f, tracing_mode="fake")(*inputs)
    alone = (aten.cummax.default, operator.getitem)
    graph = divide(graph, lambda n: n.target not in alone, single=False)
    return graph, [m for m in graph.children() if isinstance(m, fx.GraphModule)]


def results(part: fx.GraphModule) -> int:
    given = part.graph.output_node().args[0]
    return len(given) if isinstance(given, (tuple, list)) else 1


def test_each_part_takes_its_own_views_of_what_comes_from_outside() -> None:
    def f(x, row):
        wide = row.unsqueeze(0).transpose(1, 2)
        a = torch.cummax((x * wide).relu(), 0)[0]
        return (a * wide).relu(), row + 1

    x, row = torch.randn(2, 5, 3), torch.randn(3, 5)
    graph, parts = divided(f, x, row)
    assert len(parts) == 2
    # The product, and the sum: no view of `row`, which the second part reads itself.
    assert sorted(map(results, parts)) == [1, 2]
    assert all(torch.equal(a, b) for a, b in zip(graph(x, row), f(x, row), strict=True))


def test_a_view_of_what_a_part_computes_is_its_result() -> None:
    def f(x):
        b = (x + 1).relu()
        a = torch.cummax(b.reshape(3, 2), 0)[0]
        return (a * b[0, :2]).relu()

    x = torch.randn(2, 3)
    graph, parts = divided(f, x)
    assert len(parts) == 2 and torch.equal(graph(x), f(x))


def test_one_of_several_results_stays_with_the_others() -> None:
    def f(x):
        a, b = x.split(2)
        c = torch.cummax((a * b).relu(), 0)[0]
        return (c * b).relu()

    x = torch.randn(4, 3)
    graph, parts = divided(f, x)
    assert torch.equal(graph(x), f(x))
    # No list passes between parts.
    inputs = [n for part in parts for n in part.graph.find_nodes(op="placeholder")]
    assert len(parts) == 2 and all(isinstance(n.meta["val"], torch.Tensor) for n in inputs)
