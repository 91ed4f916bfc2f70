"""Indices beyond an axis: a plan for the CPU computes nothing where PyTorch raises an error."""

import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F  # noqa: E402

import hypatia_core as hyp  # noqa: E402
from hypatia_core.backend import backend  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh")


@pytest.fixture
def table():
    return torch.arange(15.0).reshape(5, 3)


#: What is computed of a table of five rows of three, and of five indices below three.
COUNTED_FROM_THE_FRONT = {
    "embedding": lambda x, i: F.embedding(i, x),
    "embedding and a norm": lambda x, i: F.layer_norm(F.embedding(i, x), (3,)),
    "embedding of int32": lambda x, i: F.embedding(i.int(), x),
    "index_select": lambda x, i: x.index_select(1, i),
    "gather": lambda x, i: x.gather(1, i[:, None]),
    "scatter": lambda x, i: x.scatter(1, i[:, None], 7.0),
    "index_add": lambda x, i: x.index_add(0, i, x * 2, alpha=3),
    "index_add to columns": lambda x, i: x.index_add(1, i[:2], x[:, :2] * 2),
    "index_copy": lambda x, i: x.index_copy(0, i[:3], x[:3] * 2),
    "index_copy to columns": lambda x, i: x.index_copy(1, i[:3], x + 1),
    "cross_entropy": lambda x, i: F.cross_entropy(x, i),
    "nll_loss": lambda x, i: F.nll_loss(x, i, reduction="none"),
    "a computed index": lambda x, i: F.embedding(i + 0, x),
}
COUNTED_FROM_BOTH_ENDS = {
    "x[i]": lambda x, i: x[i],
    "x[:, i]": lambda x, i: x[:, i],
    "x[i, i]": lambda x, i: x[i, i],
    "x[:, i, i]": lambda x, i: x[None][:, i, i],
    "index_put of two axes": lambda x, i: x.index_put((i, i), x.new_ones(5), accumulate=True),
    "index_put": lambda x, i: x.index_put((i,), x.new_ones(5, 3), accumulate=True),
}
GOOD = torch.tensor([0, 2, 1, 0, 2])


def with_first(index):
    return torch.cat([torch.tensor([index]), GOOD[1:]])


@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("name", [*COUNTED_FROM_THE_FRONT, *COUNTED_FROM_BOTH_ENDS])
def test_an_index_beyond_its_axis_is_pytorchs_error(name, train, table):
    op = (COUNTED_FROM_THE_FRONT | COUNTED_FROM_BOTH_ENDS)[name]
    # A part that is the graph, and one of two.
    for f in (lambda x, i: op(x * 2, i) * 2 + 1, lambda x, i: (op(x, i) * 2 + 1).sort()[0] * 2 + 1):
        compiled = torch.compile(f, backend=backend)
        x = table.requires_grad_(train)
        torch.testing.assert_close(compiled(x, GOOD), f(x, GOOD))
        assert hyp.report().hypatia
        for index in [-6, 5, 2**40] + [-1] * (name in COUNTED_FROM_THE_FRONT):
            if "int32" in name and index == 2**40:
                continue
            for g in (f, compiled):
                with pytest.raises((IndexError, RuntimeError), match=r"out of (range|(DATA )?bounds)"):
                    g(x, with_first(index))
        torch.testing.assert_close(compiled(x, GOOD), f(x, GOOD))
        assert "the plan refused the inputs" in str(hyp.report())
        hyp.reset_report()


CLASSES = {
    "cross_entropy": lambda x, t: F.cross_entropy(x * 2 + 1, t) * 2,
    "nll_loss": lambda x, t: F.nll_loss(x * 2 + 1, t, reduction="none") * 2,
    "one_hot": lambda x, t: (F.one_hot(t, 3) + x * 2) * 2,
    "one_hot, named": lambda x, t: (F.one_hot(t, num_classes=3) + x * 2) * 2,
    "one_hot of rows": lambda x, t: (F.one_hot(t[None], 3) + x * 2) * 2,
    "one_hot and sorting": lambda x, t: (F.one_hot(t, 3) + x * 2).sort()[0] * 2 + 1,
}


@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("name", CLASSES)
def test_what_is_wrong_with_classes_is_said_as_in_eager(name, train, table):
    f = CLASSES[name]
    compiled = torch.compile(f, backend=backend)
    x = table.requires_grad_(train)
    torch.testing.assert_close(compiled(x, GOOD), f(x, GOOD))
    assert hyp.report().hypatia
    for index in (3, -1, 2**40):
        errors = []
        for g in (f, compiled):
            with pytest.raises((IndexError, RuntimeError)) as error:
                g(x, with_first(index))
            errors.append((error.type, str(error.value)))
        assert errors[0] == errors[1]
    torch.testing.assert_close(compiled(x, GOOD), f(x, GOOD))


@pytest.mark.parametrize("name", COUNTED_FROM_BOTH_ENDS)
def test_indices_that_count_from_the_end(name, table):
    op = COUNTED_FROM_BOTH_ENDS[name]
    compiled = torch.compile(lambda x, i: op(x, i) * 2 + 1, backend=backend)
    with torch.no_grad():
        for index in (-1, -3):
            torch.testing.assert_close(compiled(table, with_first(index)), op(table, with_first(index)) * 2 + 1)
    assert hyp.report().hypatia == 2


def test_targets_that_are_ignored(table):
    compiled = torch.compile(lambda x, i: F.cross_entropy(x, i), backend=backend)
    for ignored in (-100, 0):
        torch.testing.assert_close(compiled(table, with_first(ignored)), F.cross_entropy(table, with_first(ignored)))
    compiled = torch.compile(lambda x, i: F.cross_entropy(x, i, ignore_index=-1), backend=backend)
    torch.testing.assert_close(compiled(table, with_first(-1)), F.cross_entropy(table, with_first(-1), ignore_index=-1))
    assert hyp.report().pytorch == 0 and not hyp.report().left


def test_a_plan_that_refuses_its_inputs_is_measured_later(table):
    f = torch.compile(lambda x, i: F.embedding(i, x) * 2 + 1, backend=backend)
    with hyp.nn.policy("measure"), torch.no_grad():
        for _ in range(2):
            f(table, GOOD)
            hyp.wait_for_plans()
        with pytest.raises(IndexError, match="out of range"):
            f(table, with_first(-1))
        torch.testing.assert_close(f(table, GOOD), F.embedding(GOOD, table) * 2 + 1)
    assert any(line.hypatia_us for line in hyp.report().lines)


@pytest.mark.parametrize("policy", ["always", "measure"])
def test_inputs_that_a_new_plan_refuses_say_nothing_about_others(policy, table):
    f = torch.compile(lambda x, i: F.embedding(i, x) * 2 + 1, backend=backend)
    with hyp.nn.policy(policy), torch.no_grad():
        for index in (-1, 7):
            with pytest.raises(IndexError, match="out of range"):
                f(table, with_first(index))
            hyp.wait_for_plans()
        assert "the plan refused the inputs: an index is beyond its axis" in str(hyp.report()) or policy == "measure"
        for _ in range(4):
            torch.testing.assert_close(f(table, GOOD), F.embedding(GOOD, table) * 2 + 1)
            hyp.wait_for_plans()
    assert any(line.hypatia_us for line in hyp.report().lines) or hyp.report().hypatia == 4


@pytest.mark.parametrize("name", [*COUNTED_FROM_THE_FRONT, *COUNTED_FROM_BOTH_ENDS])
def test_gradients(name):
    op = (COUNTED_FROM_THE_FRONT | COUNTED_FROM_BOTH_ENDS)[name]
    mine, its = (torch.randn(5, 3, generator=torch.manual_seed(1)).requires_grad_() for _ in range(2))

    def f(x):
        return (op(x * 2, GOOD) * 2 + 1).square().sum()

    torch.compile(f, backend=backend)(mine).backward()
    f(its).backward()
    torch.testing.assert_close(mine.grad, its.grad, rtol=1e-4, atol=1e-4)
