"""A compiled graph in training against the module as PyTorch runs it, by whole steps."""

import copy
import time

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import hypatia_core as hyp  # noqa: E402
from hypatia_core import _steps  # noqa: E402
from hypatia_core._steps import TIMED, TRIED, Steps  # noqa: E402
from hypatia_core.backend import backend  # noqa: E402

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def measured(fresh):
    """Steps are timed where plans may be measured."""
    with hyp.nn.policy("measure"):
        yield


class Slow(torch.autograd.Function):
    """The same number, whose gradient may take long."""

    @staticmethod
    def forward(ctx, x, seconds):
        ctx.seconds = seconds
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(ctx.seconds)
        return gradient, None


def sides(forward=(0.0, 0.0), backward=(0.0, 0.0), ready=lambda: True):
    """Both sides, whose passes take so long; they note their calls and what is given up."""
    calls = []

    def side(i):
        def run(x, w, steps):
            calls.append(i)
            steps.add_(1)
            time.sleep(forward[i])
            return Slow.apply(x @ w, backward[i]), steps.clone()

        return run

    return Steps(side(0), side(1), CPU, ready, lambda: calls.append("dropped")), calls


def step(f, w, steps):
    x = torch.randn(3, 4)
    made, _ = f(x, w, steps)
    w.grad = None
    made.sum().backward()
    torch.testing.assert_close(w.grad, x.sum(0)[:, None].expand(4, 5))


@pytest.mark.parametrize("slow", [0, 1])
@pytest.mark.parametrize("passes", ["forward", "backward"])
def test_the_side_whose_steps_take_less_is_chosen(slow, passes):
    times = [0.0, 0.0]
    times[slow] = 0.003
    f, calls = sides(**{passes: tuple(times)})
    w, steps = torch.randn(4, 5, requires_grad=True), torch.zeros(())
    for _ in range(2 * (TIMED + 1)):
        step(f, w, steps)
    assert f.chosen == 1 - slow
    assert calls[: 2 * (TIMED + 1)] == [0, 1] * (TIMED + 1)
    # Nothing is computed twice.
    assert steps.item() == 2 * (TIMED + 1)
    assert ("dropped" in calls) == (slow == 0)
    calls.clear()
    step(f, w, steps)
    assert calls == [1 - slow]
    hyp.reset_report()
    step(f, w, steps)
    assert ("PyTorch's module was faster" in str(hyp.report())) == (slow == 0)


def test_a_side_that_is_as_fast_does_not_take_its_place(monkeypatch):
    clock = iter(range(1000))
    monkeypatch.setattr(_steps.time, "perf_counter", lambda: float(next(clock)))
    f, _ = sides()
    w, steps = torch.randn(4, 5, requires_grad=True), torch.zeros(())
    for _ in range(2 * (TIMED + 1)):
        step(f, w, steps)
    assert f.seconds[0] == f.seconds[1] and f.chosen == 0


def test_only_some_gradients_may_be_wanted():
    f, _ = sides(backward=(0.003, 0.0))
    w, v = torch.randn(4, 5, requires_grad=True), torch.randn(3, 4, requires_grad=True)
    for _ in range(2 * (TIMED + 1)):
        made, _ = f(v, w, torch.zeros(()))
        (of_w,) = torch.autograd.grad(made.sum(), [w])
        torch.testing.assert_close(of_w, v.detach().sum(0)[:, None].expand(4, 5))
    assert f.chosen == 1


def test_forward_passes_may_wait_for_their_backward_passes():
    f, _ = sides(forward=(0.003, 0.0))
    w, steps = torch.randn(4, 5, requires_grad=True), torch.zeros(())
    for _ in range(TIMED + 1):
        xs = [torch.randn(3, 4) for _ in range(3)]
        w.grad = None
        sum(f(x, w, steps)[0].sum() for x in xs).backward()
        torch.testing.assert_close(w.grad, sum(xs).sum(0)[:, None].expand(4, 5))
    assert f.chosen == 1


def test_passes_without_a_backward_pass_are_timed_for_some_time_only():
    f, calls = sides()
    w, steps = torch.randn(4, 5, requires_grad=True), torch.zeros(())
    for _ in range(2 * TRIED + 2):
        f(torch.randn(3, 4), w, steps)
    assert f.chosen == 0 and f.ended == [0, 0]
    calls.clear()
    step(f, w, steps)
    assert calls == [0]


def test_a_result_may_be_changed_in_place():
    f, _ = sides()
    w, steps = torch.randn(4, 5, requires_grad=True), torch.zeros(())
    for _ in range(4):
        x = torch.randn(3, 4)
        made, _ = f(x, w, steps)
        w.grad = None
        made.mul_(2.0).sum().backward()
        torch.testing.assert_close(w.grad, 2 * x.sum(0)[:, None].expand(4, 5))


def test_nothing_is_timed_before_parts_are_settled_nor_under_hooks_and_other_policies():
    settled = []
    f, calls = sides(forward=(0.003, 0.0), ready=lambda: bool(settled))
    w, steps = torch.randn(4, 5, requires_grad=True), torch.zeros(())
    step(f, w, steps)
    settled.append(True)
    with hyp.nn.policy("always"):
        step(f, w, steps)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        step(f, w, steps)
    assert calls == [0, 0, 0] and f.begun == [0, 0]
    for _ in range(2 * (TIMED + 1)):
        step(f, w, steps)
    assert f.chosen == 1
    calls.clear()
    # A checkpoint compares what two passes save.
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        step(f, w, steps)
    assert calls == [0]


def test_a_network_is_trained_as_in_eager_whichever_side_wins():
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv1d(3, 8, 3), nn.BatchNorm1d(8), nn.Mish(), nn.Conv1d(8, 8, 3), nn.ELU(), nn.Flatten(), nn.Linear(96, 5)
    ).double()
    twin = copy.deepcopy(network)
    fast = torch.compile(network, backend=backend)
    sides = [torch.optim.SGD(n.parameters(), 0.05) for n in (network, twin)]
    for _ in range(40):
        x, y = torch.randn(8, 3, 16).double(), torch.randint(5, (8,))
        for model, optimizer in zip((fast, twin), sides, strict=True):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        hyp.wait_for_plans()
    for a, b in zip(network.state_dict().values(), twin.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b)


def test_a_graph_without_parts_is_the_module(fresh):
    def draws(x):
        return torch.bernoulli(x)

    f = torch.compile(draws, backend=backend)
    x = torch.full((8, 8), 0.5)
    with torch.no_grad():
        torch.manual_seed(1)
        got = f(x)
        torch.manual_seed(1)
        assert torch.equal(got, draws(x))
    assert "bernoulli" in str(hyp.report())
