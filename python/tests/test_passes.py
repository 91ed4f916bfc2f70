"""Both passes of training, replayed by a recorder of the host: what is lent, kept and given up."""

import pytest

torch = pytest.importorskip("torch")

from test_recorded import recorder  # noqa: E402

import hypatia_core as hyp  # noqa: E402
from hypatia_core._passes import Passes  # noqa: E402

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def measured(fresh):
    """Passes are recorded where plans may be measured."""
    with hyp.nn.policy("measure"):
        yield


def forward(x, w):
    y = x @ w
    return (y * y).sum(), torch.tanh(y), x, w, y


def backward(x, w, y, of_sum, of_tanh):
    of_y = 2 * y * of_sum + of_tanh * (1 - torch.tanh(y) ** 2)
    # Of the input too, beside the weight's, in one allocation.
    both = torch.empty(x.numel() + w.numel(), dtype=x.dtype)
    both[: x.numel()] = (of_y @ w.T).flatten()
    both[x.numel() :] = (x.T @ of_y).flatten()
    return both[: x.numel()].view(x.shape), both[x.numel() :].view(w.shape)


def function(passes):
    """A function of autograd with these passes."""

    class Compiled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *args):
            return tuple(passes.forward(ctx, args))

        @staticmethod
        def backward(ctx, *gradients):
            return tuple(passes.backward(ctx, tuple(g.contiguous() for g in gradients)))

    return Compiled.apply


def made(ready=lambda: True):
    passes = Passes(forward, backward, 2, CPU, ready, recorder=recorder)
    passes.chosen = True
    return passes, function(passes)


def wanted(x, w):
    """Loss, result and gradients by PyTorch, of copies."""
    x, w = x.detach().clone().requires_grad_(), w.detach().clone().requires_grad_()
    y = x @ w
    ((y * y).sum() + torch.tanh(y).sum()).backward()
    return (y * y).sum().detach(), torch.tanh(y).detach(), x.grad, w.grad


def inputs(rows=3):
    return torch.randn(rows, 4, dtype=torch.float64), torch.randn(4, 5, dtype=torch.float64, requires_grad=True)


def train_and_compare(f, w):
    """One step, whose gradient of the weight is PyTorch's."""
    w.grad = None
    x, _ = inputs()
    loss, result = f(x, w)
    (loss + result.sum()).backward()
    torch.testing.assert_close(w.grad, wanted(x, w)[3])


def test_each_step_has_its_own_results_and_gradients():
    passes, f = made()
    _, w = inputs()
    kept = []
    for _ in range(30):
        x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
        w.grad = None
        loss, result = f(x, w)
        (loss + result.sum()).backward()
        # What users keep without a copy stays what it is, too.
        kept.append((wanted(x, w), (loss.detach(), result.detach(), x.grad, w.grad)))
        with torch.no_grad():
            w -= 0.01 * w.grad
    for want, got in kept:
        for a, b in zip(want, got, strict=True):
            torch.testing.assert_close(a, b)
    assert passes.first.recording is not None and not passes.first.given_up
    # The gradients of the inputs are kept: the backward pass ran without its recording then.
    assert passes.second.recording is not None


def test_steps_are_replayed_where_gradients_are_dropped():
    calls = []

    def counted(*args):
        calls.append(args)
        return backward(*args)

    replays = []

    def counting(run, args, device):
        play, results = recorder(run, args, device)
        return lambda: (replays.append(run), play()), results

    passes = Passes(forward, counted, 2, CPU, lambda: True, recorder=counting)
    passes.chosen = True
    f = function(passes)
    _, w = inputs()
    for _ in range(20):
        train_and_compare(f, w)
    assert replays.count(forward) >= 15 and replays.count(counted) >= 12


def test_gradients_are_added_up_over_steps():
    _, f = made()
    _, w = inputs()
    for _ in range(6):
        w.grad, sums = None, 0.0
        for _ in range(4):
            x, _ = inputs()
            loss, result = f(x, w)
            (loss + result.sum()).backward()
            sums = sums + wanted(x, w)[3]
        torch.testing.assert_close(w.grad, sums)


@pytest.mark.parametrize("forwards", [2, 3])
def test_a_forward_pass_waits_for_its_backward_pass(forwards):
    passes, f = made()
    _, w = inputs()
    for _ in range(12):
        w.grad = None
        xs = [inputs()[0] for _ in range(forwards)]
        made_by = [f(x, w) for x in xs]
        for loss, result in made_by:
            (loss + result.sum()).backward()
        torch.testing.assert_close(w.grad, sum(wanted(x, w)[3] for x in xs))
    assert passes.first.recording is not None


def test_a_graph_that_is_retained_keeps_what_it_saved():
    _, f = made()
    _, w = inputs()
    for _ in range(12):
        x, _ = inputs()
        loss, result = f(x, w)
        total = loss + result.sum()
        total.backward(retain_graph=True)
        other, _ = inputs()
        f(other, w)
        w.grad = None
        total.backward()
        torch.testing.assert_close(w.grad, wanted(x, w)[3])
        with pytest.raises(RuntimeError, match="second time"):
            total.backward()
        w.grad = None


def test_large_results_are_lent_and_none_is_overwritten_while_it_is_held():
    passes = Passes(
        lambda x, w: (x * w, x, w), lambda x, w, g: ((g * w), (g * x).sum(0)), 1, CPU, lambda: True, recorder=recorder
    )
    passes.chosen = True
    f = function(passes)
    w = torch.randn(1024, requires_grad=True)
    kept = []
    for step in range(16):
        w.grad = None
        x = torch.randn(512, 1024)
        (y,) = f(x, w)
        y.sum().backward()
        torch.testing.assert_close(w.grad, x.sum(0))
        if step % 5 == 0:
            kept.append((x * w.detach(), y.detach()))
        del y
    for want, got in kept:
        assert torch.equal(want, got)
    assert passes.first.recording is not None


def test_a_lent_result_that_changes_before_the_backward_pass_is_an_error():
    def exponential(x):
        y = torch.exp(x)
        return y, y

    passes = Passes(exponential, lambda y, g: (g * y,), 1, CPU, lambda: True, recorder=recorder)
    passes.chosen = True
    f = function(passes)
    x = torch.randn(512, 1024, requires_grad=True)
    for _ in range(10):
        x.grad = None
        (y,) = f(x)
        y.detach().mul_(2.0)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()
        del y
    assert passes.first.recording is not None


def test_what_packs_saved_tensors_sees_all_of_them():
    packed = []
    _, f = made()
    _, w = inputs()

    def pack(t):
        packed.append(t)
        return t

    for _ in range(10):
        x, _ = inputs()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            packed.clear()
            loss, _ = f(x, w)
        assert len(packed) == 3
        loss.backward()


def test_a_weight_that_changes_before_the_backward_pass_is_an_error():
    _, f = made()
    _, w = inputs()
    for _ in range(10):
        x, _ = inputs()
        loss, _ = f(x, w)
        with torch.no_grad():
            w.add_(1.0)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def test_the_faster_side_is_chosen():
    passes = Passes(forward, backward, 2, CPU, lambda: True, recorder=recorder)
    f = function(passes)
    _, w = inputs()
    for _ in range(40):
        w.grad = None
        x, _ = inputs()
        f(x, w)[0].backward()
    # This recorder runs the function and copies: it is slower.
    assert passes.chosen is not None and max(passes.seconds) < float("inf")
    assert passes.chosen == (passes.seconds[1] < passes.seconds[0])
    # The memory of a recording that lost is given back.
    assert (passes.first.recording is not None) == (passes.second.recording is not None) == passes.chosen


def test_a_backward_pass_that_cannot_be_recorded_ends_both():
    def fails(run, args, device):
        if run is backward:
            raise RuntimeError("no memory")
        return recorder(run, args, device)

    passes = Passes(forward, backward, 2, CPU, lambda: True, recorder=fails)
    f = function(passes)
    _, w = inputs()
    for _ in range(20):
        train_and_compare(f, w)
    assert "no memory" in passes.second.given_up and passes.first.recording is None


def test_nothing_is_recorded_before_plans_are_settled():
    passes, f = made(ready=lambda: False)
    _, w = inputs()
    for _ in range(10):
        f(inputs()[0], w)[0].backward()
    assert passes.first.recording is None


def test_arguments_that_change_are_written_once_a_step():
    def counting(x, w, steps):
        steps.data.add_(1)
        return (x @ w).sum(), x, w

    passes = Passes(
        counting,
        lambda x, w, g: ((g.expand(3, 5) @ w.T), x.T @ g.expand(3, 5), None),
        1,
        CPU,
        lambda: True,
        [2],
        recorder,
    )
    f = function(passes)
    steps = torch.zeros((), dtype=torch.int64)
    _, w = inputs()
    for step in range(1, 41):
        w.grad = None
        x, _ = inputs()
        f(x, w, steps)[0].backward()
        assert steps.item() == step
    assert passes.first.recordings == 1 and passes.chosen is not None
