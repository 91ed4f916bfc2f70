"""Sixteen small models trained through `torch.compile(backend="hypatia")`, beside eager."""

import copy

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("timm")
pytest.importorskip("torchvision")

import torch.nn.functional as F  # noqa: E402
from models import MODELS, tensor  # noqa: E402
from torch import nn  # noqa: E402

import hypatia_core as hyp  # noqa: E402
from hypatia_core import _launch  # noqa: E402
from hypatia_core._training import Halves  # noqa: E402
from hypatia_core.backend import backend  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh")
STEPS = 20


def loss_of(model, inputs):
    y = tensor(model(*inputs))
    y = y.reshape(-1, y.shape[-1])
    return F.cross_entropy(y, torch.arange(y.shape[0]) % y.shape[-1])


def trained(model, inputs, step):
    """Losses of some steps, the first gradients, and all parameters at the end."""
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    losses, first = [], None
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = step(model, inputs)
        loss.backward()
        given = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
        first = torch.cat(given) if first is None else first
        optimizer.step()
        losses.append(loss.item())
    return losses, first, torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.parametrize("name", MODELS)
def test_twenty_steps(name):
    model, inputs = MODELS[name]()
    # Dropout draws nothing, and batches are normalised as in inference: all sides see one function.
    model = model.eval()
    exact, eager = copy.deepcopy(model).double(), copy.deepcopy(model)
    wide = [t.double() if t.is_floating_point() else t for t in inputs]
    want_losses, want_first, want = trained(exact, wide, loss_of)
    eager_losses, eager_first, of_eager = trained(eager, inputs, loss_of)
    losses, first, parameters = trained(model, inputs, torch.compile(loss_of, backend=backend))

    def error(a, b):
        return ((a.double() - b).norm() / b.norm()).item()

    # Gradients by the norm of all of them; what follows of them in further steps grows.
    assert error(first, want_first) <= max(1.1 * error(eager_first, want_first), 4e-7)
    assert error(parameters, want) <= max(4 * error(of_eager, want), 1e-5)
    worst = max(abs(a - b) for a, b in zip(eager_losses, want_losses, strict=True))
    assert max(abs(a - b) for a, b in zip(losses, want_losses, strict=True)) <= max(4 * worst, 1e-5)
    assert losses[-1] < losses[0]
    assert hyp.report().hypatia >= STEPS


def test_gradients_of_parameters_share_memory_and_are_theirs_alone(monkeypatch):
    """Gradients of one step lie in one allocation, and each can be kept, changed and dropped."""
    monkeypatch.setattr(_launch, "_FEWEST", 2)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4))
    eager, x = copy.deepcopy(model), torch.randn(5, 8, requires_grad=True)
    compiled = torch.compile(model, backend=backend)
    kept = []
    for step in range(4):
        for one, f in ((model, compiled), (eager, eager)):
            one.zero_grad(set_to_none=step % 2 == 0)
            x.grad = None
            f(x).square().sum().backward()
        hyp.wait_for_plans()
        for got, want in zip(model.parameters(), eager.parameters(), strict=True):
            torch.testing.assert_close(got.grad, want.grad)
        kept.append((model[0].weight.grad, eager[0].weight.grad.clone()))
        if step == 2:
            memory = {p.grad.untyped_storage().data_ptr() for p in model.parameters()}
            assert len(memory) == 1 and x.grad.untyped_storage().data_ptr() not in memory
            assert all(p.grad.data_ptr() % 64 == 0 for p in model.parameters())
            model[2].weight.grad.zero_()
            torch.testing.assert_close(model[0].weight.grad, eager[0].weight.grad)
    # The last step added to the gradient of the one before, which was set to zero.
    assert kept[2][0] is kept[3][0]
    kept[2][0].add_(1)
    torch.testing.assert_close(kept[3][0] - 1, kept[3][1])
    torch.testing.assert_close(model[0].bias.grad, eager[0].bias.grad)


@pytest.mark.parametrize("name", ["digits", "bert", "gpt2", "t5"])
def test_batches_are_normalised_and_dropout_draws_as_in_eager(name):
    """In training: running statistics change, and the random numbers are eager's."""
    model, inputs = MODELS[name]()
    other = copy.deepcopy(model)
    torch.manual_seed(5)
    _, first, parameters = trained(model.train(), inputs, torch.compile(loss_of, backend=backend))
    torch.manual_seed(5)
    _, want_first, want = trained(other.train(), inputs, loss_of)
    torch.testing.assert_close(first, want_first, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(parameters, want, rtol=1e-3, atol=1e-5)
    for a, b in zip(model.buffers(), other.buffers(), strict=True):
        torch.testing.assert_close(a, b)
    # In T5, parts would exchange nodes that draw: one half is PyTorch's.
    assert hyp.report().hypatia >= STEPS


def test_two_sizes_and_a_batch_of_one():
    model = torch.nn.Sequential(torch.nn.Linear(6, 12), torch.nn.SiLU(), torch.nn.Linear(12, 3))
    f = torch.compile(model, backend=backend)
    for rows in [4, 7, 4, 1, 9]:
        x = torch.randn(rows, 6)
        got = torch.autograd.grad(f(x).square().sum(), list(model.parameters()))
        want = torch.autograd.grad(model(x).square().sum(), list(model.parameters()))
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("steps", [0, 2])
def test_second_derivatives_are_refused_whatever_ran_before(steps):
    net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    compiled = torch.compile(net, backend=backend)
    for _ in range(steps):
        compiled(torch.randn(4, 8, requires_grad=True)).mean().backward()
        hyp.wait_for_plans()
    x = torch.randn(4, 8, requires_grad=True)
    y = compiled(x)
    (g,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    assert g.requires_grad
    with pytest.raises(RuntimeError, match=r"second derivatives|double backward"):
        (y.mean() + ((g.norm(dim=1) - 1) ** 2).mean()).backward()


def test_a_plan_in_each_direction_takes_steps_without_python(monkeypatch):
    """What is saved are a result and arguments; the input has no gradient."""
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    its, x = copy.deepcopy(model), torch.randn(4, 6)
    compiled = torch.compile(model, backend=backend)

    def grads(model, f):
        return torch.autograd.grad(f(x).square().sum(), list(model.parameters()))

    for _ in range(2):
        grads(model, compiled)
    monkeypatch.setattr("hypatia_core._part.Part.forward", lambda *_: pytest.fail("Python computes a part"))
    for got, want in zip(grads(model, compiled), grads(its, its), strict=True):
        torch.testing.assert_close(got, want)
    assert hyp.report().hypatia == 6


@pytest.mark.parametrize("last", [False, True])
def test_buffers_that_a_graph_changes_are_written_by_our_own_function(last, monkeypatch):
    made = []
    function = Halves.function
    monkeypatch.setattr(Halves, "function", lambda self: made.append(self) or function(self))
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 6, 3), nn.BatchNorm2d(6, momentum=0.3)
    ).double()
    if last:
        net = net.to(memory_format=torch.channels_last)
    eager = copy.deepcopy(net)
    compiled = torch.compile(net, backend=backend)
    for _ in range(5):
        x = torch.randn(4, 3, 9, 9, dtype=torch.float64)
        for f, own in ((compiled, net), (eager, eager)):
            own.zero_grad()
            f(x).square().mean().backward()
            with torch.no_grad():
                for p in own.parameters():
                    p -= 0.1 * p.grad
        for got, want in zip([*net.parameters(), *net.buffers()], [*eager.parameters(), *eager.buffers()], strict=True):
            torch.testing.assert_close(got, want)
    (halves,) = made
    # Mean, variance and the number of batches of both.
    assert len(halves.changed) == 6


@pytest.mark.parametrize("shape", [(7, 5), (3, 5, 4), (2, 5, 3, 4), (2, 5, 2, 3, 2)])
@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_statistics_of_a_batch_are_work_of_plans(shape, affine, dtype):
    torch.manual_seed(0)
    norm = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}[len(shape)]
    net = nn.Sequential(norm(5, affine=affine, momentum=0.3), nn.SiLU()).to(dtype)
    if affine:
        nn.init.normal_(net[0].weight), nn.init.normal_(net[0].bias)
    eager, exact = copy.deepcopy(net), copy.deepcopy(net).double()
    compiled = torch.compile(net, backend=backend)
    for turn in range(3):
        # Far from 0, where the mean of squares would have no digits left.
        x = (torch.randn(shape, dtype=torch.float64) + 20 * turn).to(dtype)
        if turn == 1 and len(shape) > 3:
            x = x.to(memory_format=torch.channels_last if len(shape) == 4 else torch.channels_last_3d)
        given = [x.clone().requires_grad_(), x.clone().requires_grad_(), x.double().requires_grad_()]
        made = [f(g) for f, g in zip((compiled, eager, exact), given, strict=True)]
        for y in made:
            y.square().sum().backward()
        assert made[0].stride() == made[1].stride()
        of = [[y.detach(), g.grad, *own.buffers()] for y, g, own in zip(made, given, (net, eager, exact), strict=True)]
        for got, want, true in zip(*of, strict=True):
            assert got.dtype == want.dtype
            ours, theirs = ((v.double() - true).abs().max() for v in (got, want))
            # A mean in the type that PyTorch uses on a GPU is off by units of the elements, and
            # gradients add up as many terms as there are elements of a channel.
            largest = max(true.double().abs().max(), x.double().abs().max())
            assert ours <= 1.5 * theirs + 32 * torch.finfo(dtype).eps * largest
    assert "_native_batch_norm_legit_functional" not in str(hyp.report())
    assert hyp.report().hypatia >= 3
