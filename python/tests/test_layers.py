"""Fused layers against PyTorch's own, in every element type and use."""

import copy
import inspect
import io
import pickle
import shutil
import threading

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import hypatia_core as hyp  # noqa: E402
from hypatia_core import _launch  # noqa: E402
from hypatia_core.fused_modules import HypatiaFusedLinearReLU  # noqa: E402
from hypatia_core.nn import FusedGatedMLP, FusedLayerNorm, FusedLinear, FusedMLP, FusedRMSNorm, _runtime  # noqa: E402

SOFTCAP = hyp.scalar("softcap", "30 * tanh(x / 30)")
DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
LAYERS = {
    "linear": lambda k, n=19: FusedLinear(k, n, activation=None),
    "relu": lambda k, n=19: FusedLinear(k, n),
    "relu without bias": lambda k, n=19: FusedLinear(k, n, bias=False),
    "gelu": lambda k, n=19: FusedLinear(k, n, activation="gelu"),
    "silu": lambda k, n=19: FusedLinear(k, n, activation="silu"),
    "one's own": lambda k, n=19: FusedLinear(k, 1, activation=SOFTCAP),
    "mlp": lambda k, n=19: FusedMLP([k, n, 8, 5], "gelu_tanh"),
    "mlp without bias": lambda k, n=19: FusedMLP([k, n, 5], SOFTCAP, bias=False),
    "gated": lambda k, n=19: FusedGatedMLP(k, n),
    "gated with bias": lambda k, n=19: FusedGatedMLP(k, n, "gelu", bias=True),
    "layer norm": lambda k, n=19: FusedLayerNorm(k),
    "layer norm without scale": lambda k, n=19: FusedLayerNorm(k, elementwise_affine=False),
    "layer norm without bias": lambda k, n=19: FusedLayerNorm(k, eps=0.1, bias=False),
    "rms norm": lambda k, n=19: FusedRMSNorm(k),
    "rms norm without scale": lambda k, n=19: FusedRMSNorm(k, eps=1e-3, elementwise_affine=False),
}


def in_float64(layer, x):
    """The layer as PyTorch computes it in f64, from the same numbers."""
    wide = copy.deepcopy(layer).double()
    with torch.no_grad(), hyp.nn.policy("never"):
        return wide(x.double())


def close(got, want, dtype, factor=16.0):
    """Equal up to the rounding of the element type, beside the largest result."""
    eps = torch.finfo(dtype).eps
    bound = factor * eps * max(float(want.abs().max()) if want.numel() else 0.0, 1e-3)
    assert got.shape == want.shape
    torch.testing.assert_close(got.double(), want, rtol=factor * eps, atol=bound)


def calls():
    """Calls by side, and by reason where PyTorch computed, without those of the references."""
    counts = {}
    for line in hyp.report().lines:
        if line.why != "the policy is `never`":
            key = line.side if line.side == "hypatia" else line.why
            counts[key] = counts.get(key, 0) + line.calls
    return counts


@pytest.fixture(autouse=True)
def fresh():
    torch.manual_seed(0)
    hyp.reset_report()
    yield
    _runtime.forget()


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_values(name, dtype):
    for k, lead in [(33, (2, 5)), (1, (3,)), (16, ()), (7, (1, 1, 1)), (64, (130,))]:
        layer = LAYERS[name](k).to(dtype)
        for p in layer.parameters():
            nn.init.normal_(p, std=0.5)
        x = torch.randn(*lead, k).to(dtype)
        with torch.no_grad(), hyp.nn.policy("always"):
            # Memory that is handed out again holds NaN, so that what is not written shows.
            torch.utils.deterministic.fill_uninitialized_memory = True
            torch.use_deterministic_algorithms(True)
            try:
                got = layer(x)
            finally:
                torch.use_deterministic_algorithms(False)
        assert got.dtype == dtype and got.is_contiguous()
        close(got, in_float64(layer, x), dtype, 64.0 if k == 1 else 16.0)
    assert calls() == {"hypatia": 5}


@pytest.mark.parametrize("name", LAYERS)
def test_empty_rows_and_any_layout(name):
    layer = LAYERS[name](6)
    base = torch.randn(8, 4, 12)
    views = [
        base[..., ::2],
        base[..., :6],
        base[::2, :, 3:9],
        base.transpose(0, 1)[..., 6:],
        base[0, 0, :6].expand(5, 6),
    ]
    views.append(torch.randn(0, 6))
    with torch.no_grad(), hyp.nn.policy("always"):
        for x in views:
            close(layer(x), in_float64(layer, x), torch.float32)
    assert calls() == {"hypatia": 5, "a tensor is empty": 1}


def test_nan_and_infinities_are_pytorchs():
    values = [float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1e38, -1e38, 1e-45]
    for activation in ["relu", "gelu", "silu", "tanh", "sigmoid", None, SOFTCAP]:
        layer = FusedLinear(1, 1, bias=False, activation=activation)
        nn.init.ones_(layer.weight)
        x = torch.tensor(values).reshape(-1, 1)
        with torch.no_grad():
            with hyp.nn.policy("never"):
                want = layer(x)
            with hyp.nn.policy("always"):
                got = layer(x)
        if activation == "gelu":
            want[1] = float("inf")  # PyTorch's vector code gives NaN.
        torch.testing.assert_close(got, want, equal_nan=True, rtol=1e-6, atol=1e-6)


def test_a_sign_of_ones_own_is_the_same_on_both_sides():
    layer = FusedLinear(3, 3, activation=hyp.scalar("direction", "1 + sign(x)"))
    x = torch.tensor([[float("nan"), 1.0, 2.0], [-1.0, -0.0, 0.5]])
    with torch.no_grad():
        made = []
        for policy in ("always", "never"):
            with hyp.nn.policy(policy):
                made.append(layer(x))
    torch.testing.assert_close(*made, equal_nan=True)
    assert made[0][0].isnan().all()


def test_an_epsilon_that_is_not_given_is_pytorchs():
    for dtype in DTYPES:
        layer, x = FusedRMSNorm(8, dtype=dtype), torch.full((2, 8), 2.0**-12, dtype=dtype)
        with torch.no_grad():
            want = nn.RMSNorm(8, dtype=dtype)(x)
            with hyp.nn.policy("always"):
                close(layer(x), want.double(), dtype)
    assert hyp.report().hypatia == 4


def test_state_dicts_are_interchangeable():
    pairs = [
        (FusedLinear(3, 2), nn.Linear(3, 2)),
        (FusedLinear(3, 2, bias=False), nn.Linear(3, 2, bias=False)),
        (FusedMLP([3, 4, 2], "silu"), nn.Sequential(nn.Linear(3, 4), nn.SiLU(), nn.Linear(4, 2))),
        (FusedLayerNorm((2, 3)), nn.LayerNorm((2, 3))),
        (FusedRMSNorm(3), nn.RMSNorm(3)),
        (HypatiaFusedLinearReLU(3, 2, True, "cpu"), nn.Linear(3, 2)),
    ]
    for fused, plain in pairs:
        for a, b in ((fused, plain), (plain, fused)):
            b.load_state_dict(a.state_dict())
        assert isinstance(fused, type(plain))
        x = torch.randn(4, 2, 3)
        want = plain(x).relu() if isinstance(plain, nn.Linear) else plain(x)
        with hyp.nn.policy("always"), torch.no_grad():
            torch.testing.assert_close(fused(x), want)
            (name,) = inspect.signature(plain.forward).parameters
            torch.testing.assert_close(fused(**{name: x}), want)


@pytest.mark.parametrize("name", LAYERS)
def test_copies_pickles_and_casts(name):
    layer, x = LAYERS[name](6), torch.randn(3, 6)
    with torch.no_grad(), hyp.nn.policy("always"):
        want = layer(x)
        file = io.BytesIO()
        torch.save(layer, file)
        file.seek(0)
        for again in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), torch.load(file, weights_only=False)):
            assert type(again) is type(layer) and repr(again) == repr(layer) and again.op is layer.op
            torch.testing.assert_close(again(x), want, rtol=0, atol=0)
        assert layer.to(torch.float64)(x.double()).dtype == torch.float64
        assert layer.half()(x.half()).dtype == torch.float16
        assert layer.to("meta")(x.half().to("meta")).device.type == "meta"


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("policy", ["always", "never"])
def test_gradients(name, policy):
    layer = LAYERS[name](3, 4).double()
    x = torch.randn(2, 1, 3, dtype=torch.float64, requires_grad=True)
    names = [n for n, _ in layer.named_parameters()]

    def f(x, *params):
        return torch.func.functional_call(layer, dict(zip(names, params, strict=True)), (x,))

    with hyp.nn.policy(policy):
        assert torch.autograd.gradcheck(f, (x, *layer.parameters()))
        assert torch.autograd.gradgradcheck(f, (x, *layer.parameters()))


def test_gradients_flow_through_the_plan_and_are_counted():
    layer, x = FusedLinear(6, 4), torch.randn(5, 6, requires_grad=True)
    with hyp.nn.policy("always"):
        layer(x).square().sum().backward()
    assert hyp.report().hypatia == 1
    got = [x.grad, *(p.grad for p in layer.parameters())]
    x.grad = None
    layer.zero_grad()
    with hyp.nn.policy("never"):
        layer(x).square().sum().backward()
    for a, b in zip(got, [x.grad, *(p.grad for p in layer.parameters())], strict=True):
        torch.testing.assert_close(a, b)
    with hyp.nn.policy("always"):
        FusedLinear(6, 4, activation="gelu")(x).sum().backward()
    assert [x.why for x in hyp.report().lines if x.op == "linear, gelu"] == [
        "gradients are wanted: PyTorch computes forward and backward"
    ]
    frozen = FusedLinear(6, 4).requires_grad_(False)
    with hyp.nn.policy("always"):
        assert not frozen(x.detach()).requires_grad and frozen(x).requires_grad


def test_training_a_model_lowers_its_loss():
    model = nn.Sequential(FusedLinear(2, 16), FusedLinear(16, 1, activation=None))
    x = torch.randn(64, 2)
    y = x.prod(1, keepdim=True)
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    losses = []
    with hyp.nn.policy("always"):
        for _ in range(200):
            optimizer.zero_grad()
            loss = (model(x) - y).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    assert losses[-1] < 0.1 * losses[0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_is_pytorchs(dtype):
    model, plain = FusedLinear(8, 4), nn.Linear(8, 4)
    plain.load_state_dict(model.state_dict())
    norm, plain_norm = FusedLayerNorm(8), nn.LayerNorm(8)
    x = torch.randn(3, 8)
    with hyp.nn.policy("always"), torch.autocast("cpu", dtype):
        got, want = model(x), plain(x).relu()
        assert got.dtype == want.dtype == dtype
        torch.testing.assert_close(got, want, rtol=0, atol=0)
        assert norm(x).dtype == plain_norm(x).dtype
    assert {line.why for line in hyp.report().lines} == {"autocast chooses the element types"}


def test_calls_that_pytorch_must_compute():
    layer, x = FusedLinear(4, 3), torch.randn(2, 4)
    want = layer(x).detach()
    with hyp.nn.policy("always"), torch.no_grad():
        torch.testing.assert_close(torch.func.vmap(layer)(x), want)
        _, tangent = torch.func.jvp(layer, (x,), (torch.ones_like(x),))
        assert tangent.shape == (2, 3)
        traced = torch.jit.trace(layer, x, check_trace=False)
        torch.testing.assert_close(traced(x), want)
        torch.fx.symbolic_trace(_Holder(FusedMLP([4, 3, 2])))
        nodes = torch.fx.symbolic_trace(_Holder(layer)).graph.nodes
        assert any(n.target is torch._C._nn.linear or n.target is nn.functional.linear for n in nodes)
        with torch.device("cpu"):
            torch.testing.assert_close(layer(x), want)
        transposed = FusedLinear(3, 4)
        transposed.weight = nn.Parameter(layer.weight.detach().t())
        assert not transposed.weight.is_contiguous()
        transposed(torch.randn(2, 3))
        nested = torch.nested.nested_tensor([x, x[:1]])
        torch.testing.assert_close(layer(nested).unbind()[1], want[:1])
        with torch.inference_mode():
            torch.testing.assert_close(layer(x), want)
        negative = torch.randn(2, 4, dtype=torch.complex64).conj().imag
        assert negative.is_neg()
        torch.testing.assert_close(layer(negative), layer(negative.resolve_neg()))
    reasons = {line.why for line in hyp.report().lines if line.side == "pytorch"}
    assert reasons >= {
        "a mode of PyTorch watches the ops",
        "PyTorch traces or differentiates forward",
        "a parameter is not row-major",
        "a tensor is not plain memory",
        "a tensor is nested",
    }


class _Holder(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x)


def test_wrong_inputs_get_pytorchs_errors():
    for layer in (FusedLinear(4, 3), FusedMLP([4, 3, 2]), FusedLayerNorm(4), FusedGatedMLP(4, 8)):
        for x in (torch.randn(2, 5), torch.randn(2, 4).double(), torch.randn(2, 4, dtype=torch.complex64)):
            with pytest.raises(RuntimeError), torch.no_grad(), hyp.nn.policy("always"):
                layer(x)
    with pytest.raises(hyp.InputError, match="no scalar is called `rellu`"):
        FusedLinear(4, 3, activation="rellu")
    with pytest.raises(ValueError, match="policy"), hyp.nn.policy("sometimes"):
        pass
    with pytest.raises(ValueError, match="at least two sizes"):
        FusedMLP([4])


def test_measuring_decides_and_reports():
    layer, x = FusedLinear(32, 32), torch.randn(16, 32)
    with torch.no_grad():
        for _ in range(5):
            layer(x)
    lines = [line for line in hyp.report().lines if line.op == "linear, relu"]
    assert sum(line.calls for line in lines) == 5
    first = next(line for line in lines if line.side == "pytorch")
    choice = next(iter(layer.op.plans.values()))
    ours, eager = choice.measured
    assert choice.faster == (ours <= eager)
    if choice.faster:
        assert (first.calls, first.why) == (1, "the first call of a shape")
        assert hyp.report().hypatia == 4
    else:
        assert (first.calls, first.why) == (5, "PyTorch was faster when both were measured")
    table = str(hyp.report())
    assert "hypatia us" in table and "f32[16, 32]" in table and "<pre>" in hyp.report()._repr_html_()


def test_a_slower_plan_is_not_used(monkeypatch):
    layer, x = FusedLinear(8, 8), torch.randn(4, 8)
    original, slow = _runtime.launch, []

    def launch(*args):
        if slow:
            threading.Event().wait(0.005)
        return original(*args)

    monkeypatch.setattr(_runtime, "launch", launch)
    slow.append(True)
    with torch.no_grad():
        for _ in range(6):
            layer(x)
    assert (hyp.report().hypatia, hyp.report().pytorch) == (0, 6)


def test_a_plan_that_cannot_be_made_is_named(monkeypatch):
    def fail(*_):
        raise hyp.LimitError("no memory")

    monkeypatch.setattr(_runtime, "plan_of", fail)
    layer, x = FusedLinear(8, 8), torch.randn(4, 8)
    with torch.no_grad(), hyp.nn.policy("always"):
        for _ in range(3):
            layer(x)
    (line,) = hyp.report().lines
    assert (line.side, line.calls, line.why) == ("pytorch", 3, "no plan could be made: no memory")


@pytest.mark.parametrize("policy", ["always", "measure"])
def test_no_exception_stops_a_call(monkeypatch, policy):
    def fail(*_):
        raise KeyError("lost")

    layer, x = FusedLinear(8, 8), torch.randn(4, 8)
    for name in ("plan_of", "launch") if policy == "measure" else ("plan_of",):
        monkeypatch.setattr(_runtime, name, fail)
        _runtime.forget()
        with torch.no_grad(), hyp.nn.policy(policy):
            for _ in range(4):
                torch.testing.assert_close(layer(x), layer.op.eager(x, layer.fused_parameters()))
        (line,) = hyp.report().lines
        assert (line.side, line.calls) == ("pytorch", 4)
        assert line.why.endswith(": KeyError: 'lost'") and ("made" in line.why) == (name == "plan_of")
        monkeypatch.undo()


def test_what_stops_the_program_is_no_reason(monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    layer, x = FusedLinear(8, 8), torch.randn(4, 8)
    with torch.no_grad(), hyp.nn.policy("always"):
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(_runtime, "plan_of", stop)
            layer(x)
        layer(x)
    assert (hyp.report().hypatia, hyp.report().pytorch) == (1, 0)


@pytest.mark.parametrize(
    ("ours", "eager", "turns", "faster"),
    [
        # Chance slows a run down.
        ([0.08, 0.001], [0.004], 2, True),
        ([0.002], [0.08, 0.001], 2, False),
        ([0.08, 0.08, 0.001], [0.03], 3, True),
        # A side that is slow by itself is not run often.
        ([0.05], [0.001], 2, False),
        ([1.2], [0.001], 1, False),
    ],
)
def test_one_slow_run_decides_nothing(ours, eager, turns, faster):
    def side(times):
        runs = iter(times)

        def run():
            counts.append(1)
            threading.Event().wait(next(runs, times[-1]))

        return run

    counts, choice = [], _runtime.Choice()
    choice.measure((side(ours), side(eager)), torch.device("cpu"))
    assert choice.faster == faster and len(counts) >= 2 * turns
    assert faster or turns != 1 or len(counts) == 2


def test_more_shapes_than_plans(monkeypatch):
    monkeypatch.setattr(_runtime, "MAX_PLANS", 2)
    layer = FusedLinear(4, 4)
    with torch.no_grad(), hyp.nn.policy("always"):
        for rows in range(1, 6):
            layer(torch.randn(rows, 4))
    assert (hyp.report().hypatia, hyp.report().pytorch) == (2, 3)
    assert any("more than 2 shapes" in line.why for line in hyp.report().lines)


def test_threads_share_a_layer():
    layer = FusedMLP([20, 30, 10], "gelu")
    inputs = [torch.randn(rows, 20) for rows in (1, 2, 7, 64)]
    want, wrong = [in_float64(layer, x) for x in inputs], []

    def work():
        with torch.no_grad():
            for _ in range(30):
                for x, w in zip(inputs, want, strict=True):
                    if not torch.allclose(layer(x).double(), w, atol=1e-5):
                        wrong.append(x.shape)

    for policy in ("always", "measure"):
        _runtime.forget()
        with hyp.nn.policy(policy):
            threads = [threading.Thread(target=work) for _ in range(4)]
            [t.start() for t in threads]
            [t.join() for t in threads]
        report = hyp.report()
        assert not wrong and report.hypatia + report.pytorch == 480


def test_addresses_do_instead_of_the_exchange_api(monkeypatch):
    monkeypatch.setattr(_launch, "EXCHANGE", None)
    layer, x = FusedLinear(8, 5, activation="gelu"), torch.randn(2, 3, 8)
    with torch.no_grad(), hyp.nn.policy("always"):
        close(layer(x), in_float64(layer, x), torch.float32)
    assert hyp.report().hypatia == 1


def test_the_native_module_refuses_what_does_not_fit():
    layer, x = FusedLinear(8, 5, activation=None), torch.randn(4, 8)
    plan = layer.plan(x)
    params = layer.fused_parameters()
    out = torch.empty(4, 5)
    with torch.no_grad():
        for inputs, outputs, message in [
            ((x[:2], *params), (out,), "64 bytes"),
            ((x.double(), *params), (out,), "must be f32"),
            ((x.t(), *params), (out,), "row-major"),
            ((x, *params), (out[:2],), "bytes"),
            ((x, *params), (), "outputs"),
            ((x,), (out,), "inputs"),
            ((x.to("meta"), *params), (out,), ""),
            ((x.to(torch.complex64), *params), (out,), "element type"),
            ((out.new_empty(4, 8), *params), (params[0].detach()[:4, :5].contiguous().new_empty(0),), "bytes"),
        ]:
            with pytest.raises((hyp.InputError, RuntimeError, BufferError), match=message or None):
                plan.run(inputs, outputs)
        square = FusedLinear(8, 8, activation=None)
        with pytest.raises(hyp.InputError, match="overlaps an input"):
            square.plan(x).run((x, *square.fused_parameters()), (x,))
        plan.run((x, *params), (out,))
    torch.testing.assert_close(out, nn.functional.linear(x, *params))


def test_explain_a_layer():
    layer, x = FusedLinear(8, 5, activation=SOFTCAP), torch.randn(4, 8)
    assert hyp.explain(layer, x).launches[1] == 1 < hyp.explain(layer, x).launches[0]
    assert "softcap" in str(hyp.explain(layer, x)) and layer.plan(x).launches == 1


def test_explain_takes_what_a_layer_is_called_with():
    layer, x = FusedLinear(8, 8), torch.randn(4, 8)
    for given in (x, (x,), [x]):
        assert hyp.explain(layer, given).launches == hyp.explain(layer, x).launches
    for given, words in ((None, "NoneType"), ((x, x), "2 inputs"), ({"x": x}, "dict")):
        with pytest.raises(hyp.InputError, match=rf"takes one tensor, not {words}: explain\(layer, x\)"):
            hyp.explain(layer, given)
    with pytest.raises(hyp.InputError, match=r"takes no tensor of shape \[4, 7\]"):
        hyp.explain(layer, torch.randn(4, 7))


def test_rules_of_ones_own_fire_in_a_layer():
    rules = hyp.Rules.from_text(
        """edition 1; use core::*; use nn::*;
        ruleset mine { until = fixpoint; }
        rule mine::plain: gelu(x) => relu(x) class exact;"""
    )
    layer, x = FusedLinear(8, 5, activation="gelu", rules=rules), torch.randn(4, 8)
    assert layer.op is not FusedLinear(8, 5, activation="gelu").op
    assert "mine::plain" in rules.rules and layer.explain(x).fired
    assert pickle.loads(pickle.dumps(layer)).op is layer.op


NO_COMPILER = pytest.mark.skipif(
    not (shutil.which("c++") or shutil.which("g++")), reason="inductor needs a C++ compiler"
)


@NO_COMPILER
@pytest.mark.parametrize("name", ["relu", "one's own", "mlp", "gated", "layer norm", "rms norm"])
def test_torch_compile(name):
    torch._dynamo.reset()
    layer = LAYERS[name](6)
    model = nn.Sequential(nn.Linear(6, 6), layer)
    compiled = torch.compile(model, fullgraph=True)
    x = torch.randn(3, 6)
    with torch.no_grad(), hyp.nn.policy("always"):
        hyp.reset_report()
        torch.testing.assert_close(compiled(x), model(x))
        assert hyp.report().hypatia == 2, "the layer computes inside of the graph too"
    x.requires_grad_()
    want = torch.autograd.grad(model(x).square().sum(), [x, *model.parameters()])
    got = torch.autograd.grad(compiled(x).square().sum(), [x, *model.parameters()])
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@NO_COMPILER
def test_torch_compile_with_a_dynamic_batch_and_export():
    torch._dynamo.reset()
    layer = FusedLinear(6, 4, activation="gelu")
    compiled = torch.compile(layer, fullgraph=True, dynamic=True)
    with torch.no_grad():
        for rows in (2, 3, 9):
            x = torch.randn(rows, 6)
            torch.testing.assert_close(compiled(x), layer(x))
        exported = torch.export.export(layer, (torch.randn(2, 6),), strict=False)
    assert "hypatia" not in str(exported.graph)


def test_opcheck():
    layer = FusedLinear(6, 4, activation="gelu")
    torch.library.opcheck(torch.ops.hypatia.fused, (torch.randn(3, 6), list(layer.fused_parameters()), layer.op.spec))


@pytest.mark.parametrize("terms", [256, 1024])
def test_errors_of_long_sums(terms):
    """Sums of 256 terms one after another have relative errors of 2.9e-7."""
    layer, x = hyp.nn.FusedLinear(terms, 64, activation="relu"), torch.randn(256, terms)
    with torch.no_grad(), hyp.nn.policy("always"):
        exact = torch.relu(x.double() @ layer.weight.double().t() + layer.bias.double())
        error = (layer(x).double() - exact).norm() / exact.norm()
    assert hyp.report().hypatia
    assert error < 2.4e-7
