"""`torch.compile(backend="hypatia")` against PyTorch."""

import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

import hypatia_core as hyp  # noqa: E402
from hypatia_core import _part  # noqa: E402
from hypatia_core.backend import backend  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh")


def compiled(f, **kw):
    return torch.compile(f, backend=backend, fullgraph=True, **kw)


def agrees(f, *inputs, rtol=1e-4, atol=1e-5):
    """Both sides agree in values, element types, shapes and strides."""
    with torch.no_grad():
        want, got = f(*inputs), compiled(f)(*inputs)
    for g, w in zip(got, want, strict=True) if isinstance(want, tuple) else [(got, want)]:
        assert (g.dtype, g.shape, g.stride()) == (w.dtype, w.shape, w.stride())
        torch.testing.assert_close(g, w, rtol=rtol, atol=atol, equal_nan=True)


def computed_by_pytorch():
    return sorted(line.why for line in hyp.report().lines if line.side == "pytorch")


class Attention(nn.Module):
    def __init__(self, causal):
        super().__init__()
        self.qkv, self.out, self.causal = nn.Linear(32, 96), nn.Linear(32, 32), causal

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, 4, d // 4).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.out(y.transpose(1, 2).reshape(b, t, d))


class Transformer(nn.Module):
    def __init__(self, causal):
        super().__init__()
        self.words, self.places = nn.Embedding(50, 32), nn.Embedding(20, 32)
        self.attention, self.n1, self.n2 = Attention(causal), nn.LayerNorm(32), nn.RMSNorm(32)
        self.mlp = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))

    def forward(self, ids):
        x = self.words(ids) + self.places(torch.arange(ids.shape[1]))
        x = x + self.attention(self.n1(x))
        return (x + self.mlp(self.n2(x))) @ self.words.weight.t()


def test_several_layers_of_attention_are_one_part():
    model = nn.Sequential(Attention(True), nn.LayerNorm(32), Attention(False)).eval()
    agrees(model, torch.randn(2, 5, 32))
    assert (hyp.report().hypatia, computed_by_pytorch()) == (1, [])


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_transformer_is_one_part_at_any_size(causal, dtype):
    model = Transformer(causal).to(dtype)
    f = compiled(model)
    tolerance = 64 * torch.finfo(dtype).eps
    with torch.no_grad():
        for shape in [(2, 7), (5, 7), (3, 9), (1, 1)]:
            ids = torch.randint(50, shape)
            torch.testing.assert_close(f(ids), model(ids), rtol=tolerance, atol=8 * tolerance)
    report = hyp.report()
    assert (report.hypatia, report.pytorch) == (4, 0), report


CASES = {
    "promotion": lambda x, i: (i + 0.5, i * x, x / 2, i / 3, i * 2, (x > 0) + i, x * True),
    "alpha": lambda x, i: (torch.add(x, x, alpha=3), torch.sub(x, 1, alpha=2), 1 - x, torch.rsub(x, x, alpha=2)),
    "comparisons": lambda x, i: (x > 0, i >= 1, x != x, (x < 1) & (i == 2), ~(x <= 0), torch.logical_not(i)),
    "choices": lambda x, i: (
        torch.where(x > 0, x, 1.0),
        x.clamp(-1, 0.5),
        x.clamp(min=0),
        x.clamp_max(1),
        F.hardtanh(x),
    ),
    "views": lambda x, i: (
        x[1:, ::2] + 0,
        x[..., -1] * 1,
        x.t() + 1,
        x.unsqueeze(1) * 2,
        x[-2:, :100] * 1,
    ),
    "joining": lambda x, i: (
        torch.cat([x, x + i]),
        torch.stack([x, x], 1),
        x.split(2, 1)[1] * 1,
        x.chunk(2)[0] * 1,
        x.expand(2, 3, 4) + 0,
    ),
    "sums": lambda x, i: (
        x.sum(),
        x.sum(0),
        x.mean((0, 1), keepdim=True),
        x.amax(1),
        x.amin(-1),
        (x > 0).sum(1),
        i.sum(0),
    ),
    "scans": lambda x, i: (x.cumsum(1), (x > 0).cumsum(0), x.softmax(0), x.log_softmax(-1)),
    "activations": lambda x, i: (
        F.silu(x),
        F.gelu(x, approximate="tanh"),
        F.hardswish(x),
        F.hardsigmoid(x),
        F.leaky_relu(x, 0.2),
        F.mish(x),
    ),
    "powers": lambda x, i: (
        x**2,
        x.abs() ** 0.5,
        x.abs().rsqrt(),
        x.exp().log1p(),
        x.neg().sigmoid(),
        x.erf(),
        torch.reciprocal(x),
    ),
    "products": lambda x, i: (
        torch.addmm(x[0], x[:, :3], x, beta=2, alpha=3),
        x @ x.t(),
        torch.bmm(x[None], x.t()[None]),
    ),
    "made": lambda x, i: (
        torch.arange(1, 9, 2) + i[0, 0],
        torch.zeros_like(x) + x,
        torch.full((2,), 3) * 2,
        torch.ones(2, dtype=torch.bool) & True,
    ),
    "norms": lambda x, i: (
        F.layer_norm(x, (4,)),
        F.layer_norm(x, (3, 4), x, x),
        F.rms_norm(x, (4,), x[0]),
        F.layer_norm(x, (4,), None, x[0]),
    ),
    "picking": lambda x, i: (F.embedding(i % 3, x), torch.gather(x, 1, i % 4), x[0] + 1),
    "types": lambda x, i: (
        x.double() * 2,
        x.to(torch.bfloat16) + 1,
        i.float() * x,
        i.to(torch.uint8) + i.to(torch.uint8),
        x.bool() | (i > 1),
    ),
    "attention": lambda x, i: (
        F.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None], (x @ x.t()) > 0),
        F.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None], x @ x.t(), scale=0.3),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_ops(name):
    x, i = torch.randn(3, 4), torch.tensor([[0, 1, 2, 3], [4, 5, 6, 7], [2, 2, 0, 1]])
    agrees(CASES[name], x, i)
    agrees(CASES[name], torch.randn(4, 3).t(), i)
    assert hyp.report().hypatia > 0


def test_nan_and_infinities():
    x = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -1.0, 3e38])
    agrees(
        lambda x: (x.relu(), x.clamp(-1, 1), x.softmax(0), x.amax(0), torch.maximum(x, -x), x > 0, x.isnan(), x.sum()),
        x,
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_roots_and_signs_of_what_has_none(dtype):
    x = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0, -4.0, 4.0, 0.5], dtype=dtype)
    agrees(lambda x: (x.pow(0.5), x.pow(-0.5), x.sqrt(), x.pow(1.5), x.sign(), torch.sgn(x), x.frac()), x)
    agrees(lambda x: ((x * 1).sign() / x.pow(0.5), 1 / x.pow(-0.5)), x)
    agrees(lambda i: (i.sign() * 2, (i > 0).sign() & True), torch.tensor([-3, 0, 2]))


def test_a_copy_is_a_part():
    def f(x, y):
        z = x * 2
        z[:, 1] = y.sum(0) + 1
        return z + 1, torch.ops.aten.copy(x.double(), y) * 2, x.clone().copy_(y[0]) - 1

    agrees(f, torch.randn(3, 4), torch.randn(3, 4)[:, :3].sum(1, keepdim=True).expand(3, 3)[:, :1])
    agrees(lambda x, y: torch.ops.aten.copy(x.long(), y) + 1, torch.randn(3, 4), torch.randn(4) * 9)
    assert not any("copy" in why for why in computed_by_pytorch())


def test_what_is_not_known_is_pytorchs_and_is_named():
    def f(x):
        y = torch.sort((x * 2 + 1).relu(), -1)[0]
        return (y * 2 + 1).sum(-1), torch.fft.rfft(x * 3 - 1).abs()

    agrees(f, torch.randn(3, 8))
    assert hyp.report().hypatia >= 2
    assert "PyTorch computes aten.sort.default" in computed_by_pytorch()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_convolution_networks(dtype):
    model = nn.Sequential(
        nn.Conv2d(4, 6, 3, stride=2, padding=1),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Conv2d(6, 6, (1, 3), groups=3, dilation=2, bias=False),
        nn.BatchNorm2d(6, affine=False),
        nn.Hardswish(),
    )
    for norm in (model[1], model[4]):
        nn.init.uniform_(norm.running_mean)
        nn.init.uniform_(norm.running_var, 0.5, 2)
    model = model.eval().to(dtype)
    x = torch.randn(2, 4, 9, 11, dtype=dtype)
    agrees(model, x)
    agrees(nn.Sequential(nn.Conv1d(4, 5, 3), nn.BatchNorm1d(5)).eval().to(dtype), x[:, :, 0])
    agrees(nn.BatchNorm1d(4).eval().to(dtype), x[:, :, 0, 0])
    alone = "_native_batch_norm_legit_no_training stands alone: there is nothing to fuse"
    assert hyp.report().hypatia == 2 and alone in computed_by_pytorch()
    agrees(model, x.to(memory_format=torch.channels_last))
    agrees(nn.Sequential(nn.ConvTranspose2d(4, 2, 3), nn.MaxPool2d(2), nn.SiLU(), nn.Tanh()).to(dtype), x)
    assert "PyTorch computes a transposed convolution" in computed_by_pytorch()


def test_strides_within_an_operand_divide_a_graph():
    agrees(lambda x: torch.as_strided(x * 2 + 1, (2, 2), (1, 2)) * 3 - 1, torch.randn(3, 4))
    agrees(lambda x: torch.as_strided((x * 2 + 1), (2, 5), (1, 2), 1) * 3 - 1, torch.randn(4, 3).t())
    assert hyp.report().hypatia == 4
    assert set(computed_by_pytorch()) == {"PyTorch computes as_strided by strides that are not its operand's"}


def test_graphs_that_must_stay_whole():
    agrees(lambda x: torch.as_strided((x * 2 + 1)[0], (2, 2), (4, 1)) + 1, torch.randn(3, 4))
    assert computed_by_pytorch() == ["as_strided reads memory past its operand"]
    hyp.reset_report()

    def noisy(x):
        torch.manual_seed(1)
        return x * 2 + torch.rand(4) - torch.rand(4)

    f = torch.compile(noisy, backend=backend)
    with torch.no_grad():
        torch.testing.assert_close(f(torch.ones(4)), noisy(torch.ones(4)))
    assert hyp.report().hypatia >= 1


def test_mutated_inputs_and_aliases():
    def f(x, y):
        x.mul_(2).add_(y)
        return x * y + 1, x.view(-1), y

    a, b = torch.randn(3, 4), torch.randn(3, 4)
    a2, b2 = a.clone(), b.clone()
    with torch.no_grad():
        want, got = f(a, b), compiled(f)(a2, b2)
    torch.testing.assert_close(a2, a)
    for g, w in zip(got, want, strict=True):
        torch.testing.assert_close(g, w)
    assert got[1].data_ptr() == a2.data_ptr() and got[2] is b2
    agrees(lambda x: (lambda y: (y, y[0], y.t(), y.view(-1)[2:]))(x * 2 + 1), a)


def test_integers_that_f64_does_not_hold():
    x = torch.tensor([1, 2**53 + 1])
    agrees(lambda x: ((x + (2**53 + 1)) * 2, x + 1), x)
    agrees(lambda x: torch.full((2,), 2**62) + x + x, x)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_forward_and_backward_are_plans(dtype):
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 2)).to(dtype)
    f, tolerance = compiled(model), 64 * torch.finfo(dtype).eps
    for rows in [3, 5, 3]:
        x = torch.randn(rows, 4, dtype=dtype, requires_grad=True)
        want = torch.autograd.grad(model(x).square().sum(), [x, *model.parameters()])
        got = torch.autograd.grad(f(x).square().sum(), [x, *model.parameters()])
        for g, w in zip(got, want, strict=True):
            assert (g.shape, g.stride(), g.dtype) == (w.shape, w.stride(), w.dtype)
            torch.testing.assert_close(g, w, rtol=tolerance, atol=tolerance * w.abs().max().item())
    assert (hyp.report().hypatia, computed_by_pytorch()) == (6, [])


def test_backward_ops():
    """Those that training alone makes: gathers, losses, slices, embeddings."""

    def f(x, i, w):
        y = w[i] + x.gather(1, i[:, :1])[:, None] * x[:, 1:3].sum()
        loss = F.cross_entropy(y.flatten(0, 1), i.flatten()) + F.embedding(i, w).select(1, 0).amax()
        return loss + (x.remainder(0.7) * w[0]).sum() + torch.cat([x, w]).std()

    i = torch.randint(4, (3, 4))
    values = [torch.randn(3, 4, dtype=torch.float64, requires_grad=True), torch.randn(4, 4, dtype=torch.float64)]
    values[1].requires_grad_()
    want = torch.autograd.grad(f(values[0], i, values[1]), values)
    got = torch.autograd.grad(compiled(f)(values[0], i, values[1]), values)
    for g, w in zip(got, want, strict=True):
        torch.testing.assert_close(g, w)


def test_rows_are_put_by_index():
    x, i = torch.randn(5, 3), torch.tensor([4, 0, -2])
    one, row, rows = torch.randn(()), torch.randn(3), torch.randn(3, 3)
    for updates in (one, row, rows):
        agrees(lambda x, i, u: (x * 2).index_put((i,), u) + 1, x, i, updates)
        agrees(lambda x, i, u: (x * 2).index_put((i % 2,), u, accumulate=True) + 1, x, i, updates)
    assert (hyp.report().hypatia, computed_by_pytorch()) == (6, [])


def test_attention_is_trained_beside_plans():
    model = Transformer(True).double()
    ids = torch.randint(50, (2, 9))
    f, parameters = compiled(model), list(model.parameters())
    for _ in range(2):
        want = torch.autograd.grad(model(ids).square().mean(), parameters)
        got = torch.autograd.grad(f(ids).square().mean(), parameters)
        for g, w in zip(got, want, strict=True):
            torch.testing.assert_close(g, w)
    assert hyp.report().hypatia >= 6
    # The op's name differs between devices; forward and backward are PyTorch's.
    assert all("scaled_dot_product" in why or "embedding_dense_backward" in why for why in computed_by_pytorch())


def test_weights_that_change_and_autocast():
    model = nn.Linear(4, 3)
    f, x = compiled(model), torch.randn(2, 4)
    with torch.no_grad():
        torch.testing.assert_close(f(x), model(x))
        model.weight.mul_(2)
        torch.testing.assert_close(f(x), model(x))
        model.load_state_dict(nn.Linear(4, 3).state_dict())
        torch.testing.assert_close(f(x), model(x))
        with torch.autocast("cpu", torch.bfloat16):
            torch.testing.assert_close(f(x), model(x), rtol=2e-2, atol=2e-2)
            assert f(x).dtype == torch.bfloat16


def test_measuring_and_empty_tensors():
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    f = compiled(model, dynamic=True)
    with torch.no_grad(), hyp.nn.policy("measure"):
        for _ in range(4):
            torch.testing.assert_close(f(torch.ones(3, 8)), model(torch.ones(3, 8)))
            hyp.wait_for_plans()
        assert any(line.hypatia_us for line in hyp.report().lines)
        assert f(torch.ones(0, 8)).shape == (0, 8)


def test_an_exception_in_the_background_is_a_reason(monkeypatch):
    def fail(*_):
        raise KeyError("lost")

    monkeypatch.setattr(_part.Part, "plan", fail)
    f, x = compiled(lambda x: x.relu() * 2 + 1), torch.randn(8)
    with torch.no_grad(), hyp.nn.policy("measure"):
        for _ in range(4):
            torch.testing.assert_close(f(x), x.relu() * 2 + 1)
            hyp.wait_for_plans()
    assert computed_by_pytorch() == ["no plan could be made: KeyError: 'lost'"]


def test_rules_and_options():
    rules = hyp.Rules.from_text(
        """edition 1; use core::*; use nn::*; ruleset mine { until = fixpoint; }
        rule mine::wrong: relu(x) => x class exact;"""
    )
    f = compiled(lambda x: (x * 2).relu() + 1, options={"rules": [rules]})
    with torch.no_grad():
        torch.testing.assert_close(f(-torch.ones(3)), torch.ones(3))
    assert any("mine::wrong" in line.why for line in hyp.report().lines)
    with pytest.raises(Exception, match="there is no option `speed`"), torch.no_grad():
        compiled(lambda x: x + 1, options={"speed": 9})(torch.ones(2))


def test_fused_layers_stay_themselves():
    model = nn.Sequential(nn.Linear(4, 4), hyp.nn.FusedLinear(4, 3))
    agrees(model, torch.randn(2, 4))
    assert not any("hypatia.fused" in why for why in computed_by_pytorch())


def test_sizes_that_come_once_get_no_plan_and_no_graph_more_than_sixteen():
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    f = compiled(model, dynamic=True)
    with torch.no_grad(), hyp.nn.policy("measure"):
        for rows in range(2, 22):
            f(torch.ones(rows, 8))
        assert not any(line.hypatia_us or "being made" in line.why for line in hyp.report().lines)
        for _ in range(3):
            for rows in range(2, 22):
                x = torch.randn(rows, 8)
                torch.testing.assert_close(f(x), model(x))
            hyp.wait_for_plans()
    lines = hyp.report().lines
    assert len({line.shape for line in lines if line.hypatia_us}) == 16
    assert sum("more than 16 shapes" in line.why for line in lines) == 4


@pytest.mark.parametrize("kind", ["none", "causal", "bool", "float", "shared", "three axes", "scale"])
def test_attention_of_every_kind_is_one_op(kind):
    q, k, v = torch.randn(2, 4, 5, 8), torch.randn(2, 4, 7, 8), torch.randn(2, 4, 7, 6)
    if kind == "shared":
        k, v = k[:, :2].contiguous(), v[:, :2].contiguous()
    if kind == "three axes":
        q, k, v = q[0].clone(), k[0].clone(), v[0].clone()
    options = {
        "causal": {"is_causal": True},
        "bool": {"attn_mask": torch.rand(2, 1, 5, 7) > 0.4},
        "float": {"attn_mask": torch.randn(5, 7)},
        "shared": {"enable_gqa": True, "attn_mask": torch.randn(2, 4, 5, 7)},
        "scale": {"scale": 0.3},
    }.get(kind, {})
    agrees(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, **options) * 2 + 1, q, k, v)
    assert computed_by_pytorch() == []


def test_indices_of_the_first_axes():
    x, i, j = torch.randn(5, 6, 3), torch.tensor([[0, -1], [4, 2]]), torch.tensor([1, -6])
    agrees(lambda x, i, j: (x[i] + 1, x[i, j] * 2, x[i, j, torch.tensor(2)] * 2), x, i, j)
    assert computed_by_pytorch() == []


def test_an_empty_report_says_what_it_may_mean():
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.cells = nn.GRU(4, 8, batch_first=True)

        def forward(self, x):
            return self.cells(x)[0]

    model, x = Recurrent().eval(), torch.randn(2, 3, 4)
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(model, backend=backend)(x), model(x))
    assert "TORCH_LOGS" in str(hyp.report())
    torch.compile(torch.nn.Sequential(nn.Linear(4, 4), nn.ReLU()), backend=backend)(x)
    assert "TORCH_LOGS" not in str(hyp.report())


def test_several_results_of_an_op_stay_in_one_part():
    def f(x):
        a, b = x.chunk(2, -1)
        y = torch.sort(torch.relu(a * 2), -1)[0]  # PyTorch computes it, between two parts.
        return torch.relu(y * b)

    x = torch.randn(4, 8)
    compiled = torch.compile(f, backend=backend)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), f(x))
        hyp.wait_for_plans()
    x.requires_grad_()
    compiled(x).sum().backward()
    found = x.grad.clone()
    x.grad = None
    f(x).sum().backward()
    torch.testing.assert_close(found, x.grad)


def test_a_convolution_says_one_number_for_all_axes():
    conv = torch.nn.Conv2d(3, 6, 4, 4, padding="valid").eval()
    compiled, x = torch.compile(lambda x: F.gelu(conv(x)) * 2, backend=backend), torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(compiled(x), F.gelu(conv(x)) * 2)
            hyp.wait_for_plans()
    assert "no plan could be made" not in str(hyp.report())


def test_rules_that_are_none_are_named():
    for wrong in ("mine.hyp", ["mine.hyp"], [3], 3):
        with pytest.raises(Exception, match="rules are `Rules` and scalars, not"):
            torch.compile(torch.relu, backend=backend, options={"rules": wrong})(torch.ones(2))
