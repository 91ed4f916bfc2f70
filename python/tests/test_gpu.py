"""Plans on a GPU, as guests of PyTorch, against PyTorch in float64. Skipped where there is none."""

import copy
import threading

import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

import hypatia_core as hyp  # noqa: E402
from hypatia_core import _launch, _native, _whole  # noqa: E402
from hypatia_core.backend import backend  # noqa: E402

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


@pytest.fixture(autouse=True)
def without_gradients(fresh):
    torch.backends.cuda.matmul.allow_tf32 = False
    with torch.no_grad():
        yield


def close(got, f, *inputs, slack=1.0):
    """No further from float64 than rounding explains, and on the GPU."""
    want = f.double()(*(t.double() if t.is_floating_point() else t for t in inputs))
    eps = torch.finfo(got.dtype).eps
    scale = want.abs().max().item() + 1e-30
    error = (got.double() - want).abs().max().item() / scale
    assert got.is_cuda and got.shape == want.shape and error < 16 * slack * max(eps, 1e-15), (error, eps)


class Block(nn.Module):
    """A block of a transformer, with heads, norms, a gate and a residual."""

    def __init__(self, width=128, heads=4, causal=True):
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.n1, self.n2 = nn.LayerNorm(width), nn.RMSNorm(width, eps=1e-6)
        self.up, self.gate, self.down = nn.Linear(width, 256), nn.Linear(width, 256), nn.Linear(256, width)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, d))
        h = self.n2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


def mlp(width=64):
    return nn.Sequential(nn.Linear(width, 96), nn.GELU(), nn.Linear(96, width), nn.ReLU(), nn.Linear(width, 16))


@pytest.mark.parametrize("dtype", DTYPES)
def test_layers_agree_with_float64(dtype):
    layers = [
        hyp.nn.FusedLinear(64, 48, activation="gelu"),
        hyp.nn.FusedMLP([64, 96, 32]),
        hyp.nn.FusedGatedMLP(64, 96),
        hyp.nn.FusedLayerNorm(64),
        hyp.nn.FusedRMSNorm(64, eps=1e-6),
    ]
    for layer in layers:
        layer = layer.to("cuda", dtype)
        for shape in [(33, 64), (2, 5, 64), (1, 64)]:
            x = torch.randn(shape, device="cuda", dtype=dtype)
            got = layer(x)
            with hyp.nn.policy("never"):
                close(got, layer, x)
            layer.to(dtype)
    assert hyp.report().hypatia == 15


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("causal", [False, True])
def test_a_transformer_is_one_part(dtype, causal):
    model = nn.Sequential(Block(causal=causal), Block(causal=causal)).to("cuda", dtype).eval()
    f = torch.compile(model, backend=backend, fullgraph=True)
    for shape in [(2, 64, 128), (3, 64, 128), (2, 40, 128)]:
        x = torch.randn(shape, device="cuda", dtype=dtype)
        got = f(x)
        close(got, model, x, slack=8)
        model.to(dtype)
    report = hyp.report()
    assert (report.hypatia, report.pytorch) == (3, 0), report


def test_new_addresses_and_views_give_the_same():
    model = mlp().cuda()
    f = torch.compile(model, backend=backend)
    base = torch.randn(40, 70, device="cuda")
    kept = []
    for turn in range(60):
        x = torch.randn(32, 64, device="cuda") if turn % 3 else base[turn % 8 : turn % 8 + 32, turn % 5 : turn % 5 + 64]
        y = f(x)
        torch.testing.assert_close(y, model(x), rtol=1e-4, atol=1e-5)
        kept = [*kept[-(turn % 7) :], (x, y, y.clone())]
    assert all(torch.equal(y, copy) for _, y, copy in kept)


def test_work_is_put_on_the_current_stream():
    model = mlp().cuda()
    f = torch.compile(model, backend=backend)
    x = torch.randn(256, 64, device="cuda")
    want = model(x + 3)
    f(x)
    for _ in range(10):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            busy = x
            for _ in range(50):
                busy = busy @ torch.eye(64, device="cuda")
            y = f(busy + 3)
        stream.synchronize()
        torch.testing.assert_close(y, want, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("frozen", [False, True])
def test_strict_runs_are_checked_plans(dtype, frozen):
    model = nn.Sequential(Block(), nn.Linear(128, 16)).to("cuda", dtype).eval()
    f = torch.compile(model, backend=backend, options={"safety": "strict", "compare_every": 2, "frozen": frozen})
    for _ in range(6):
        x = torch.randn(3, 40, 128, device="cuda", dtype=dtype)
        close(f(x), copy.deepcopy(model), x, slack=8)
    report = hyp.report()
    assert (report.hypatia, report.pytorch, report.incidents) == (6, 0, []), report


@pytest.mark.parametrize("make", [mlp, lambda: nn.Sequential(Block(64), nn.Linear(64, 16))])
def test_what_pytorch_captures_can_be_replayed(make):
    model = make().cuda().eval()
    f = torch.compile(model, backend=backend)
    x = torch.randn(8, 16, 64, device="cuda")
    f(x)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        f(x)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = f(f(x)[..., :1].expand(8, 16, 64).contiguous())
    for _ in range(5):
        x.copy_(torch.randn_like(x))
        other = f(torch.randn_like(x))  # Uses the stream's own scratch memory.
        graph.replay()
        want = model(model(x)[..., :1].expand(8, 16, 64).contiguous())
        torch.testing.assert_close(y, want, rtol=1e-3, atol=1e-4)
        assert other.isfinite().all()


def test_without_a_plan_a_capture_is_pytorchs():
    layer, x = hyp.nn.FusedLinear(64, 64).cuda(), torch.randn(8, 64, device="cuda")
    with hyp.nn.policy("never"):
        want = layer(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = layer(x)
    graph.replay()
    torch.testing.assert_close(y, want)
    assert hyp.report().hypatia == 0


def test_threads_on_streams_of_their_own_do_not_disturb_each_other():
    model = nn.Sequential(Block(), nn.Linear(128, 16)).cuda().eval()
    f = torch.compile(model, backend=backend)
    inputs = [torch.randn(4, 32, 128, device="cuda") for _ in range(4)]
    wants, wrong = [model(x) for x in inputs], []
    f(inputs[0])

    def work(i):
        with torch.no_grad(), torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(50):
                y = f(inputs[i])
                torch.cuda.current_stream().synchronize()
                if not torch.allclose(y, wants[i], rtol=1e-3, atol=1e-4):
                    wrong.append(i)

    torch.cuda.synchronize()
    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not wrong


def test_scratch_memory_is_pytorchs_and_shared():
    f = torch.compile(nn.Sequential(Block(), Block()).cuda(), backend=backend)
    x = torch.randn(2, 64, 128, device="cuda")
    f(x)
    _native.release_scratch()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    f(x)
    with_scratch = torch.cuda.memory_allocated()
    assert with_scratch >= before + (32 << 20)
    f(x)
    assert torch.cuda.memory_allocated() == with_scratch


def test_the_native_module_refuses_what_does_not_fit():
    layer, x = hyp.nn.FusedLinear(8, 5, activation=None).cuda(), torch.randn(4, 8, device="cuda")
    plan, params, out = layer.plan(x), layer.fused_parameters(), torch.empty(4, 5, device="cuda")
    for inputs, outputs, message in [
        ((x[:2], *params), (out,), "16 elements"),
        ((x.double(), *params), (out,), "must be f32"),
        ((x.cpu(), *params), (out,), "another device"),
        ((x, *params), (), "0 addresses"),
        ((x, *params), (out.cpu(),), "another device"),
    ]:
        with pytest.raises(hyp.InputError, match=message):
            plan.run_as_guest(inputs, outputs, _launch.scratch)
    assert plan.run_as_guest((x.t(), *params), (out,), _launch.scratch) == [0]


class Images(nn.Module):
    """Convolutions with work between them that has two parts, and a pool over all pixels."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 16, 4, 4)
        self.deep, self.norm = nn.Conv2d(16, 16, 7, padding=3, groups=16), nn.LayerNorm(16)
        self.up, self.down = nn.Linear(16, 64), nn.Linear(64, 16)

    def forward(self, x):
        x = self.first(x)
        y = self.down(F.gelu(self.up(self.norm(self.deep(x).permute(0, 2, 3, 1)))))
        return F.adaptive_avg_pool2d(x + y.permute(0, 3, 1, 2), 1).flatten(1)


def test_convolutions_are_pytorchs_and_what_lies_between_is_planned():
    model = Images().cuda()
    x = torch.randn(5, 3, 36, 44, device="cuda")
    f = torch.compile(model, backend=backend)
    close(f(x), copy.deepcopy(model), x, slack=8)
    assert hyp.report().hypatia >= 1
    assert any(line.why.startswith("PyTorch computes convolution: on a GPU") for line in hyp.report().lines)

    def gradients(f, x):
        with torch.enable_grad():
            return torch.cat([g.flatten() for g in torch.autograd.grad(f(x).square().mean(), [*model.parameters()])])

    hyp.reset_report()
    trained = torch.compile(model, backend=backend)
    eager, got = gradients(model, x), gradients(trained, x)
    want = gradients(model.double(), x.double())
    # Both round in f32, in other orders.
    assert (got - want).norm() <= 2 * (eager - want).norm() + 1e-12
    assert hyp.report().hypatia >= 2, hyp.report()


class Bottleneck(nn.Module):
    """Convolutions of cuDNN's, and what lies around them: norms, points, patches, a gate."""

    def __init__(self, channels=32):
        super().__init__()
        self.cut = nn.Conv2d(3, channels, 4, stride=4)
        self.widen = nn.Conv2d(channels, 2 * channels, 1, bias=False)
        self.first, self.second = nn.BatchNorm2d(2 * channels), nn.BatchNorm2d(channels)
        self.walk = nn.Conv2d(2 * channels, 2 * channels, 3, padding=1)
        self.gate = nn.Conv2d(2 * channels, 2 * channels, 1)
        self.narrow = nn.Conv2d(2 * channels, channels, 1)
        self.halve = nn.Conv2d(channels, 48, 2, stride=2)
        self.deep = nn.Conv2d(48, 48, 7, padding=3, groups=48)
        self.norm, self.up, self.last = nn.LayerNorm(48), nn.Linear(48, 96), nn.Linear(96, 256)

    def forward(self, x):
        x = self.cut(x)
        y = self.walk(torch.relu(self.first(self.widen(x))))
        y = y * torch.sigmoid(self.gate(y.mean((2, 3), keepdim=True)))
        x = self.halve(x + F.silu(self.second(self.narrow(y))))
        z = F.gelu(self.up(self.norm(self.deep(x).permute(0, 2, 3, 1))))
        return x, self.last(z.mean((1, 2)))


def bottleneck(dtype):
    net = Bottleneck().cuda().to(dtype).eval()
    for norm in (net.first, net.second):
        norm.running_mean.uniform_(-0.5, 0.5)
        norm.running_var.uniform_(0.5, 2.0)
    return net


def agree(got, net, x):
    """No further from float64 than eager, whose values are rounded as often."""
    exact = copy.deepcopy(net).double()(x.double())
    for one, eager, wanted in zip(got, net(x), exact, strict=True):
        mine, theirs = ((t.double() - wanted).square().mean().sqrt() for t in (one, eager))
        assert mine <= 1.5 * theirs + 1e-12, (mine, theirs)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("frozen", [False, True])
def test_channels_lie_last_around_convolutions(dtype, frozen):
    net = bottleneck(dtype)
    f = torch.compile(net, backend=backend, options={"frozen": frozen})
    with hyp.nn.policy("always"):
        for size in [(2, 3, 64, 96), (1, 3, 64, 64), (5, 3, 40, 24)]:
            torch._dynamo.reset()
            x = torch.randn(size, device="cuda", dtype=dtype)
            wanted = net(x)
            got = f(x)
            assert [t.stride() for t in got] == [t.stride() for t in wanted]
            agree(got, net, x)
    assert hyp.report().hypatia > 0


@pytest.fixture
def chosen(monkeypatch):
    """What whole graphs choose: here always their recording."""
    chosen = []

    def choose(self):
        chosen.append(self.recorded)
        self.chosen = self.recorded

    monkeypatch.setattr(_whole.Whole, "choose", choose)
    return chosen


def test_whole_graphs_are_replayed(chosen):
    net = bottleneck(torch.bfloat16)
    f = torch.compile(net, backend=backend)
    xs = [torch.randn(4, 3, 64, 64, device="cuda").bfloat16() for _ in range(60)]
    results = []
    with hyp.nn.policy("measure"):
        for x in xs:
            results.append(f(x))
            hyp.wait_for_plans()
    assert len(chosen) == 1 and chosen[0].recording is not None, chosen and chosen[0].given_up
    for x, got in zip(xs, results, strict=True):
        agree(got, net, x)
    with hyp.nn.policy("measure"):
        replayed_elsewhere(f, net, xs)
    assert not chosen[0].given_up


def replayed_elsewhere(f, net, xs):
    # Weights are read where they lie.
    net.last.weight.mul_(2)
    agree(f(xs[0]), net, xs[0])
    # Other streams, and PyTorch's own captures, get what the graph computes.
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        got = f(xs[1])
    torch.cuda.synchronize()
    agree(got, net, xs[1])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = f(xs[2])
    graph.replay()
    agree(got, net, xs[2])


def test_a_cache_that_calls_change_is_replayed_in_place(chosen):
    class Cached(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.outer = nn.Linear(64, 64), nn.Linear(64, 8)
            self.register_buffer("cache", torch.zeros(2, 16, 64))
            self.register_buffer("at", torch.zeros(1, dtype=torch.int64))

        def forward(self, x):
            self.cache.index_copy_(1, self.at, torch.tanh(self.inner(x)) * 2)
            self.at.add_(1)
            return torch.tanh(self.outer(self.cache)) * 3

    net = Cached().cuda()
    twin = copy.deepcopy(net)
    f = torch.compile(net, backend=backend)
    with hyp.nn.policy("measure"):
        for i in range(64):
            if i % 16 == 0:
                net.at.zero_()
                twin.at.zero_()
            x = torch.randn(2, 1, 64, device="cuda")
            torch.testing.assert_close(f(x), twin(x), rtol=1e-4, atol=1e-5)
            hyp.wait_for_plans()
            assert torch.equal(net.at, twin.at)
            torch.testing.assert_close(net.cache, twin.cache, rtol=1e-4, atol=1e-5)
    assert len(chosen) == 1 and chosen[0].recording is not None, chosen and chosen[0].given_up


def test_measuring_chooses_the_faster_side():
    model = mlp(256).cuda().half()
    f = torch.compile(model, backend=backend)
    x = torch.randn(256, 256, device="cuda", dtype=torch.half)
    with hyp.nn.policy("measure"):
        for _ in range(4):
            torch.testing.assert_close(f(x), model(x), rtol=2e-2, atol=2e-3)
            hyp.wait_for_plans()
    (line, *_) = [line for line in hyp.report().lines if line.hypatia_us is not None]
    assert (line.side == "hypatia") == (line.hypatia_us <= line.pytorch_us) or line.calls == 1


def test_inputs_are_read_in_the_order_in_which_they_lie(monkeypatch):
    copied = []
    own = _launch.row_major
    monkeypatch.setattr(_launch, "row_major", lambda t, order=None: copied.append(order) or own(t, order))

    def f(x, w):
        return F.softmax(x * 3, -1) @ w + x[..., :8]

    x, w = torch.randn(4, 32, 8, 16, device="cuda").transpose(1, 2), torch.randn(8, 16, device="cuda").t()
    compiled = torch.compile(f, backend=backend)
    torch.testing.assert_close(compiled(x, w), f(x, w), rtol=1e-4, atol=1e-5)
    assert hyp.report().hypatia == 1 and not copied
    gaps = torch.randn(4, 8, 32, 20, device="cuda")[..., :16]
    for other in (x.contiguous(), gaps):
        torch.testing.assert_close(compiled(other, w), f(other, w), rtol=1e-4, atol=1e-5)


def test_a_device_may_be_synchronised_while_a_plan_is_made():
    # CUDA refuses that beside a capture, in whatever thread, and the capture fails too.
    f = torch.compile(nn.Sequential(*(Block(256) for _ in range(4))).cuda(), backend=backend)
    made = threading.Event()
    waiting = threading.Thread(target=lambda: (hyp.wait_for_plans(), made.set()))
    turns = 0
    with hyp.nn.policy("measure"):
        for rows in (48, 80):
            x = torch.randn(4, rows, 256, device="cuda")
            f(x)
            f(x)
        waiting.start()
        while not made.is_set():
            torch.cuda.synchronize()
            turns += 1
        waiting.join()
    assert turns > 100 and not any("no plan could be made" in line.why for line in hyp.report().lines), hyp.report()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("planned", [True, False])
def test_attention_trains_as_two_kernels(dtype, masked, planned):
    """Forward, and the gradients of queries, keys and values, by our kernels and by PyTorch's."""
    block = Block(causal=not masked).cuda()
    mask = torch.rand(3, 1, 1, 40, device="cuda") > 0.3
    mask[..., 0] = True

    def f(model, x):
        if not masked:
            return model(x)
        q = model.qkv(x).view(3, 40, 3, 4, 32).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(q[0], q[1], q[2], mask).transpose(1, 2).reshape(3, 40, 128)

    def gradients(f, model, x):
        with torch.enable_grad():
            y = f(model, x)
            used = [p for p in model.parameters() if not masked or p.shape[0] == 384]
            return torch.cat([g.flatten() for g in torch.autograd.grad(y.square().mean(), used)])

    x = torch.randn(3, 40, 128, device="cuda")
    want = gradients(f, block.double(), x.double())
    block, x = block.to(dtype), x.to(dtype)
    eager = gradients(f, block, x)
    with torch.enable_grad():
        compiled = torch.compile(f, backend=backend)
    with hyp.nn.policy("always" if planned else "never"):
        for _ in range(3):
            got = gradients(compiled, block, x)
            hyp.wait_for_plans()
    assert (got - want).norm() <= 1.3 * (eager - want).norm()
    if planned:
        assert hyp.report().hypatia >= 2, hyp.report()
