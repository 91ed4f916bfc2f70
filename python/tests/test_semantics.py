"""What PyTorch promises beside values: mutation, aliases, random numbers, autocast, training, ...

Each is as in eager where `backend="hypatia"` computes, or PyTorch's, with the reason in the report.
"""

import copy
import threading

import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import hypatia_core as hyp  # noqa: E402
from hypatia_core.backend import backend  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh")


def compiled(f, **kw):
    return torch.compile(f, backend=backend, **kw)


def reasons():
    return {line.why for line in hyp.report().lines if line.side == "pytorch"}


def mlp(width=8):
    return nn.Sequential(nn.Linear(width, 16), nn.GELU(), nn.Linear(16, width))


def close(got, want, rtol=1e-5, atol=1e-6):
    torch.testing.assert_close(got, want, rtol=rtol, atol=atol)
    assert (got.stride(), got.dtype, got.device) == (want.stride(), want.dtype, want.device)


# Mutation and aliases.


def in_place_on_an_input(x):
    x.mul_(2).add_(1)
    return x.relu() * 3 + 1


def in_place_on_a_view(x):
    x[0].zero_()
    x[:, 1:].add_(5)
    return (x * 2 + 1).sum(0)


def in_place_on_a_temporary(x):
    y = x * 2 + 1
    y[1] = 7
    y[:, 0].mul_(3)
    return y.relu() + 1


def resized_by_out(x):
    return torch.add(x, 1, out=torch.empty_like(x)) * 2 + 1


@pytest.mark.parametrize(
    "f", [in_place_on_an_input, in_place_on_a_view, in_place_on_a_temporary, resized_by_out], ids=lambda f: f.__name__
)
def test_mutation(f):
    g = compiled(f)
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(3, 4)
            mine = x.clone()
            version = mine._version
            close(g(mine), f(x))
            close(mine, x)
            assert (mine._version > version) == (f in (in_place_on_an_input, in_place_on_a_view))


def test_buffers_that_a_model_changes():
    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.register = nn.BatchNorm1d(4), nn.Linear(4, 4)
            self.register_buffer("seen", torch.zeros(4))

        def forward(self, x):
            self.seen.add_(x.sum(0))
            return self.norm(self.register(x)).relu() + self.seen

    model = Counts()
    other = copy.deepcopy(model)
    f = compiled(other)
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(5, 4)
            close(f(x), model(x), rtol=1e-4, atol=1e-5)
    for (name, got), want in zip(other.state_dict().items(), model.state_dict().values(), strict=True):
        torch.testing.assert_close(got, want, msg=name)


def test_results_that_are_views_and_inputs():
    def f(x, y):
        z = x * 2 + y
        return z, z[0], z.t(), x.view(-1), x, y.expand(2, 3, 4), z + 0

    g = compiled(f)
    with torch.no_grad():
        for _ in range(3):
            x, y = torch.randn(3, 4), torch.randn(3, 4)
            got, want = g(x, y), f(x, y)
            for a, b in zip(got, want, strict=True):
                close(a, b)
            assert got[3].data_ptr() == x.data_ptr() and got[4] is x
            got[6].zero_()
            close(got[0], want[0])


def test_results_that_are_views_of_other_results():
    def f(x):
        y = x @ x.t() + 1
        first = y.t().split(1)[0]
        return y, y.t(), first, (y * 2).relu(), y.view(2, 2, 1)[0]

    g = compiled(f)
    for x in (torch.randn(2, 3), torch.randn(2, 3)):
        with torch.no_grad(), hyp.nn.policy("always"):
            got, want = g(x), f(x)
            assert [t.stride() for t in got] == [t.stride() for t in want]
            for one in (got, want):
                one[0].mul_(3)
        for a, b in zip(got, want, strict=True):
            close(a, b)
    assert not reasons() and hyp.report().hypatia == 2


def test_results_of_two_calls_are_not_one_memory():
    model = mlp()
    f, x = compiled(model), torch.randn(4, 8)
    with torch.no_grad():
        first = f(x)
        kept = first.clone()
        second = f(x + 1)
        assert torch.equal(first, kept) and not torch.equal(first, second)


# Random numbers.


@pytest.mark.parametrize(
    "noise",
    [
        lambda x: F.dropout(x, 0.5, True),
        lambda x: x + torch.rand_like(x),
        lambda x: torch.bernoulli(torch.full_like(x, 0.3)) * x,
        lambda x: x + torch.randn(x.shape),
    ],
    ids=["dropout", "rand_like", "bernoulli", "randn"],
)
def test_random_numbers_are_eagers(noise):
    def f(x):
        return (noise(x * 2 + 1) * 3 - 1).relu()

    g, x = compiled(f), torch.ones(64)
    with torch.no_grad():
        for seed in range(3):
            torch.manual_seed(seed)
            want, then = f(x), torch.rand(1)
            torch.manual_seed(seed)
            close(g(x), want)
            assert torch.equal(torch.rand(1), then)
    assert any("PyTorch computes" in why for why in reasons())


# Autocast, modes, strides.


def test_autocast():
    model, x = mlp(), torch.randn(4, 8)
    f = compiled(model)
    with torch.no_grad():
        for _ in range(2):
            close(f(x), model(x))
            with torch.autocast("cpu", torch.bfloat16):
                close(f(x), model(x), rtol=2e-2, atol=2e-2)
                # Inside a part of the graph, eager ops are cast too.
                with torch.autocast("cpu", enabled=False):
                    close(f(x), model(x))
    assert hyp.report().hypatia == 6


def heads(*types):
    return [torch.randn(1, 2, 5, 8).to(t) for t in types]


@pytest.mark.parametrize("to", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    "given",
    [
        heads(torch.float32, torch.float32, torch.float32),
        heads(torch.float32, torch.float32, torch.bfloat16),
        [*heads(torch.float32, torch.float32, torch.bfloat16), torch.randn(5, 5)],
        [*heads(torch.bfloat16, torch.bfloat16, torch.bfloat16), torch.ones(5, 5).tril().bool()],
        heads(torch.float64, torch.float64, torch.float64),
    ],
    ids=["f32", "mixed", "mixed, masked", "bf16, masked", "f64"],
)
def test_attention_in_autocast(given, to):
    """As rotary embeddings leave it: queries and keys in f32, values not."""

    def f(*given):
        return F.scaled_dot_product_attention(*given) * 2

    with torch.no_grad(), torch.autocast("cpu", to):
        want = f(*given)
        # Eager's own error is one unit in the last place of its weights.
        close(compiled(f)(*given), want, rtol=0.02, atol=0.02)
    assert hyp.report().hypatia == 1
    assert not reasons()


@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize(
    "norm", [nn.LayerNorm(16), nn.LayerNorm(16, bias=False), nn.RMSNorm(16)], ids=["layer", "no bias", "rms"]
)
def test_norms_in_autocast(norm, train):
    """Rows are bf16 then, and parameters are not."""
    linear, x, slopes = nn.Linear(16, 16), torch.randn(7, 16), torch.randn(7, 16)

    def f(x):
        with torch.autocast("cpu", torch.bfloat16):
            return norm(linear(x)) * 2

    def all_of(f):
        y = f(x)
        wanted = [norm.weight, linear.weight] if train else []
        return [y.detach(), *torch.autograd.grad((y.float() * slopes).sum(), wanted)] if train else [y]

    with torch.set_grad_enabled(train):
        for got, want in zip(all_of(compiled(f)), all_of(f), strict=True):
            scale = want.abs().max().item()
            close(got, want, rtol=0.02, atol=0.01 * scale)
    assert hyp.report().hypatia
    assert not hyp.report().pytorch and not hyp.report().left, hyp.report()


def test_inference_mode():
    model, x = mlp(), torch.randn(4, 8)
    f = compiled(model)
    for _ in range(3):
        with torch.inference_mode():
            got, want = f(x), model(x)
            assert got.is_inference()
        torch.testing.assert_close(got, want)
    assert hyp.report().hypatia == 3


def test_inputs_in_any_order_of_memory():
    model = mlp()
    f = compiled(model)
    base = torch.randn(40, 30)
    with torch.no_grad():
        for _ in range(2):
            for x in [
                base[:4, :8],
                base[1:9:2, 3:11],
                base.t()[:4, :8],
                base[0, :8].expand(4, 8),
                base[:4, ::3][:, :8],
            ]:
                torch.testing.assert_close(f(x), model(x))
    assert hyp.report().hypatia == 10


def test_strides_of_results():
    def f(x):
        y = x.permute(0, 2, 3, 1) * 2 + 1
        return y, (x + 1).t_() if x.dim() == 2 else x.transpose(1, 3) - 1, x.mean(1, keepdim=True) * 2

    g = compiled(f)
    with torch.no_grad():
        for x in [torch.randn(2, 3, 4, 5), torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)]:
            for _ in range(2):
                for a, b in zip(g(x), f(x), strict=True):
                    close(a, b)


# Training.


def gradients(f, model, *inputs):
    model.zero_grad()
    f(*inputs).square().mean().backward()
    return [p.grad.clone() for p in model.parameters()]


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("rank", [3, 4])
def test_batch_norm_of_a_transposed_input(rank, dynamic):
    """PyTorch's result lies row by row, but is traced as lying like the input."""

    class Between(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(6) if rank == 3 else nn.BatchNorm2d(6)
            self.linear = nn.Linear(6, 6)

        def forward(self, x):
            return self.linear(self.norm(x.transpose(1, -1)).transpose(1, -1))

    model = Between()
    its, ours = copy.deepcopy(model), compiled(model, dynamic=dynamic)
    for batch in (3, 4):
        x, y = (torch.randn(batch, 5, *[4] * (rank - 3), 6, generator=torch.manual_seed(1)) for _ in range(2))
        got, want = ours(x.requires_grad_()), its(y.requires_grad_())
        close(got, want)
        got.square().sum().backward()
        want.square().sum().backward()
        close(x.grad, y.grad, rtol=1e-4, atol=1e-5)
        close(model.norm.running_var, its.norm.running_var)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing(reentrant):
    model, x = nn.ModuleList([mlp(), mlp()]), torch.randn(4, 8, requires_grad=True)

    def f(x):
        for block in model:
            x = checkpoint(block, x, use_reentrant=reentrant)
        return x

    for a, b in zip(gradients(compiled(f), model, x), gradients(f, model, x), strict=True):
        torch.testing.assert_close(a, b)
    assert reasons() == set() and hyp.report().hypatia >= 2


def test_gradients_add_up():
    model = mlp()
    other = copy.deepcopy(model)
    f, inputs = compiled(other), [torch.randn(4, 8) for _ in range(3)]
    for x in inputs:
        model(x).square().mean().backward()
        f(x).square().mean().backward()
    for a, b in zip(other.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)
    assert reasons() == set() and hyp.report().hypatia == 6


def test_a_graph_that_is_kept():
    """`retain_graph`, hooks, and a second derivative, which is refused."""
    model = mlp()
    f, x = compiled(model), torch.randn(4, 8, requires_grad=True)
    seen = []
    handle = model[0].weight.register_hook(lambda g: seen.append(g.clone()))
    y = f(x).square().mean()
    first = torch.autograd.grad(y, x, retain_graph=True)[0]
    y.backward()
    torch.testing.assert_close(first, x.grad)
    handle.remove()
    want = torch.autograd.grad(model(x).square().mean(), model[0].weight)[0]
    torch.testing.assert_close(seen[-1], want)
    with pytest.raises(RuntimeError, match=r"twice|second derivatives"):
        g = torch.autograd.grad(f(x).square().mean(), x, create_graph=True)[0]
        g.sum().backward()


def test_training_in_autocast():
    model = mlp()
    f, x = compiled(model), torch.randn(4, 8)
    for _ in range(2):
        grads = []
        for side in (model, f):
            model.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = side(x).square().mean()
            loss.backward()
            grads.append([p.grad.clone() for p in model.parameters()])
        for a, b in zip(*grads, strict=True):
            assert a.dtype == b.dtype
            torch.testing.assert_close(a, b, rtol=0.05, atol=0.02 * a.abs().max().item())
    assert reasons() == set() and hyp.report().hypatia == 4


def test_training_and_inference_take_turns():
    model = mlp()
    f, step = compiled(model), torch.optim.SGD(model.parameters(), 0.1)
    x = torch.randn(4, 8)
    for _ in range(4):
        with torch.no_grad():
            torch.testing.assert_close(f(x), model(x))
        step.zero_grad()
        f(x).square().mean().backward()
        step.step()
    assert (hyp.report().hypatia, reasons()) == (12, set())


def test_distributed_data_parallel(tmp_path):
    dist = torch.distributed
    if not dist.is_available():
        pytest.skip("PyTorch without torch.distributed")
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        model = mlp()
        # PyTorch compiles nothing of a model that is wrapped before it is compiled.
        f, x = nn.parallel.DistributedDataParallel(compiled(copy.deepcopy(model))), torch.randn(4, 8)
        f(x).square().mean().backward()
        model(x).square().mean().backward()
        for a, b in zip(f.parameters(), model.parameters(), strict=True):
            torch.testing.assert_close(a.grad, b.grad)
        with torch.no_grad():
            torch.testing.assert_close(f(x), model(x))
    finally:
        dist.destroy_process_group()
    assert reasons() == set() and hyp.report().hypatia == 3


# Weights, sizes, threads, errors.


def test_weights_that_are_replaced():
    model = mlp()
    f, x = compiled(model), torch.randn(4, 8)
    with torch.no_grad():
        for change in [
            lambda: None,
            lambda: model[0].weight.mul_(2),
            lambda: setattr(model[0].weight, "data", torch.randn(16, 8)),
            lambda: model[0].weight.data.add_(1),
            lambda: setattr(model[0], "weight", nn.Parameter(torch.randn(16, 8))),
            lambda: setattr(model[2].weight, "data", torch.randn(16, 8).t()),
            lambda: model.load_state_dict(mlp().state_dict()),
        ]:
            change()
            for _ in range(2):
                torch.testing.assert_close(f(x), model(x))


def test_sizes_come_and_go():
    model = mlp()
    f = compiled(lambda x, n: model(x) * n + x.shape[0], dynamic=True)
    with torch.no_grad():
        for rows, n in [(2, 3), (5, 3), (2, 3), (5, 4), (3, 4), (2, 3), (5, 4), (5, 3)]:
            x = torch.randn(rows, 8)
            torch.testing.assert_close(f(x, n), model(x) * n + rows)
    report = hyp.report()
    assert (report.hypatia, report.pytorch) == (8, 0), report


def test_threads_share_a_compiled_model():
    model = mlp()
    f, wrong = compiled(model, dynamic=True), []
    with torch.no_grad():
        f(torch.randn(3, 8))

    def work(seed):
        draws = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for turn in range(60):
                x = torch.randn(2 + turn % 4, 8, generator=draws)
                if not torch.allclose(f(x), model(x), rtol=1e-5, atol=1e-6):
                    wrong.append(seed)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    report = hyp.report()
    assert not wrong and report.hypatia + report.pytorch == 241, report


def test_another_number_of_threads_is_another_plan():
    model, x, threads = mlp(), torch.randn(4, 8), torch.get_num_threads()
    f = compiled(model)
    try:
        with torch.no_grad():
            for count in (1, 2, 1):
                torch.set_num_threads(count)
                torch.testing.assert_close(f(x), model(x))
    finally:
        torch.set_num_threads(threads)
    assert len(hyp.report().lines) == 2


def test_policies_hold_for_calls_that_are_known():
    model, x = mlp(), torch.randn(4, 8)
    f = compiled(model)
    with torch.no_grad():
        f(x)
        f(x)
        with hyp.nn.policy("never"):
            f(x)
        with hyp.nn.policy("measure"):
            f(x)  # It was not measured: Python decides.
        hyp.nn._runtime.forget()
        assert hyp.report().lines == []
        f(x)
    assert (hyp.report().hypatia, hyp.report().pytorch) == (1, 0)


def test_errors_are_pytorchs():
    f = compiled(mlp())
    with torch.no_grad():
        f(torch.randn(4, 8))
        with pytest.raises(RuntimeError, match="reduction dim"):
            f(torch.randn(4, 9))
        with pytest.raises(RuntimeError, match="dtype"):
            f(torch.randn(4, 8).double())
        assert f(torch.randn(4, 8)).shape == (4, 8)
