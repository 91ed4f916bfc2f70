"""`fuse_`: which modules are replaced, and that nothing else changes."""

import copy

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn.utils import parametrizations  # noqa: E402

import hypatia_core as hyp  # noqa: E402
from hypatia_core.nn import FusedGatedMLP, FusedLayerNorm, FusedLinear, FusedMLP, FusedRMSNorm  # noqa: E402

SOFTCAP = hyp.scalar("softcap", "30 * tanh(x / 30)")


class Softcap(nn.Module):
    def forward(self, x):
        return 30 * torch.tanh(x / 30)


class LlamaMlp(nn.Module):
    def __init__(self, sign=1):
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(8, 12, bias=False), nn.Linear(8, 12, bias=False)
        self.down_proj, self.act_fn, self.sign = nn.Linear(12, 8, bias=False), nn.SiLU(), sign

    def forward(self, x):
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x)) * self.sign


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.rms = nn.LayerNorm(8), nn.RMSNorm(8)
        self.mlp = nn.Sequential(nn.Linear(8, 16), nn.GELU("tanh"), nn.Linear(16, 8))
        self.head = nn.Sequential(nn.Dropout(0.5), nn.Linear(8, 8, bias=False), nn.ReLU(), nn.Linear(8, 4))
        self.gated, self.odd = LlamaMlp(), LlamaMlp(-1)

    def forward(self, x):
        x = x + self.mlp(self.norm(x))
        return self.head(self.rms(self.odd(self.gated(x))))


def test_a_model_keeps_its_results_parameters_and_names():
    torch.manual_seed(0)
    model = Block().eval()
    keys, parameters = list(model.state_dict()), list(model.parameters())
    x = torch.randn(2, 3, 8)
    want = model(x)
    changes = hyp.fuse_(model, verbose=False)
    assert list(model.state_dict()) == keys
    assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))
    kinds = [type(m) for m in (model.norm, model.rms, model.mlp, model.gated, model.odd)]
    assert kinds == [FusedLayerNorm, FusedRMSNorm, FusedMLP, FusedGatedMLP, LlamaMlp]
    assert isinstance(model.head[1], FusedLinear) and type(model.head[3]) is nn.Linear
    assert [c.path for c in changes.left] == ["odd"] and "something else" in changes.left[0].why
    assert not model.training and not model.mlp.training
    for policy in ("always", "never"):
        with hyp.nn.policy(policy), torch.no_grad():
            torch.testing.assert_close(model(x), want)
            torch.testing.assert_close(copy.deepcopy(model)(x), want)
    model.train()
    model(x).sum().backward()
    assert all(p.grad is not None for n, p in model.named_parameters())
    assert hyp.fuse_(model, verbose=False).fused == []


def test_the_table(capsys):
    hyp.fuse_(nn.Sequential(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)), nn.RMSNorm(1)))
    assert capsys.readouterr().out.splitlines() == [
        "module  was                     is",
        "0       Sequential of 2 Linear  FusedMLP",
        "1       RMSNorm                 FusedRMSNorm",
        "2 fused, 0 left",
    ]


def test_activations_of_ones_own():
    model = nn.Sequential(nn.Linear(4, 3), Softcap(), nn.LayerNorm(3))
    x = 100 * torch.randn(5, 4)
    want = model(x)
    hyp.fuse_(model, [SOFTCAP], activations={Softcap: "softcap"}, verbose=False)
    assert "activation=softcap" in repr(model[0]) and type(model[1]) is nn.Identity
    with hyp.nn.policy("always"), torch.no_grad():
        torch.testing.assert_close(model(x), want)
    with pytest.raises(hyp.InputError, match="Softcap is not the scalar `tanh`"):
        hyp.fuse_(nn.Sequential(nn.Linear(4, 3), Softcap()), activations={Softcap: "tanh"})


def test_an_activation_that_is_no_scalar_is_named():
    def model():
        return nn.Sequential(nn.Linear(4, 8), nn.LeakyReLU(), nn.Linear(8, 8), nn.ELU(2.0), nn.Linear(8, 2))

    left = hyp.fuse_(model(), verbose=False).left
    assert [(c.path, c.before) for c in left] == [("0", "Linear, LeakyReLU"), ("2", "Linear, ELU")]
    assert all("declare one with `scalar`, and name it in `activations=`" in c.why for c in left)
    leaky = hyp.scalar("leaky", "leaky_relu(x, 0.01)")
    mine, x = model(), torch.randn(5, 4)
    want = mine(x)
    changes = hyp.fuse_(mine, activations={nn.LeakyReLU: leaky}, verbose=False)
    assert [c.after for c in changes.fused] == ["FusedLinear, leaky"] and len(changes.left) == 1
    with hyp.nn.policy("always"), torch.no_grad():
        torch.testing.assert_close(mine(x), want)


class Norm(nn.Module):
    """As in transformers' Llama."""

    def __init__(self, size, eps=1e-6, offset=0.0):
        super().__init__()
        self.weight, self.variance_epsilon, self.offset = nn.Parameter(torch.ones(size)), eps, offset

    def forward(self, x):
        wide = x.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return (self.weight + self.offset) * wide.to(x.dtype)


class OffsetRMSNorm(Norm):
    """As in Gemma."""

    def __init__(self, size):
        super().__init__(size, offset=1.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_norms_of_language_models(dtype):
    model = nn.Sequential(Norm(16), Norm(16, eps=1e-2), OffsetRMSNorm(16)).to(dtype)
    for parameter in model.parameters():
        nn.init.uniform_(parameter, 0.5, 2)
    keys, x = list(model.state_dict()), torch.randn(3, 5, 16)
    before = copy.deepcopy(model)
    changes = hyp.fuse_(model, verbose=False)
    assert [type(m) for m in model] == [FusedRMSNorm, FusedRMSNorm, OffsetRMSNorm]
    assert [(c.path, c.why.split(" than ")[0]) for c in changes.left] == [("2", "it computes something else")]
    assert hyp.fuse_(model, verbose=False).fused == []
    assert list(model.state_dict()) == keys and "eps=0.01" in repr(model[1])
    hyp.reset_report()
    for given in (x.to(dtype), x, x.bfloat16()):
        with hyp.nn.policy("always"), torch.no_grad():
            got, want = model(given), before(given)
            torch.testing.assert_close(torch.compile(model, backend="eager")(given), got)
            torch.testing.assert_close(got, want, rtol=8 * torch.finfo(want.dtype).eps, atol=1e-5)
    assert hyp.report().hypatia > 0
    model(x.to(dtype)).sum().backward()
    before(x.to(dtype)).sum().backward()
    for mine, its in zip(model.parameters(), before.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, its.grad)


def test_a_llama():
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, vocab_size=99
    )
    model, ids = transformers.LlamaForCausalLM(config).eval(), torch.arange(12).view(2, 6)
    with torch.no_grad():
        want = model(ids).logits
    changes = hyp.fuse_(model, verbose=False)
    assert (len(changes.fused), changes.left) == (7, [])
    assert {c.after for c in changes.fused} == {"FusedGatedMLP, silu", "FusedRMSNorm"}
    with hyp.nn.policy("always"), torch.no_grad():
        torch.testing.assert_close(model(ids).logits, want, rtol=1e-4, atol=1e-5)


def test_rules_reach_the_layers():
    rules = hyp.Rules.from_text(
        """edition 1; use core::*; use nn::*; ruleset mine { until = fixpoint; }
        rule mine::plain: gelu(x) => relu(x) class exact;"""
    )
    model = nn.Sequential(nn.Linear(4, 3), nn.GELU())
    hyp.fuse_(model, rules=[rules], verbose=False)
    assert model[0].op.rules == rules
    # The rule is wrong: the plan is compared with the unfused one, and is not used.
    with hyp.nn.policy("always"), torch.no_grad():
        model(torch.randn(2, 4))
    assert any("mine::plain" in line.why for line in hyp.report().lines)


def test_what_must_stay():
    hooked = nn.Linear(4, 3)
    hooked.register_forward_hook(lambda *_: None)
    model = nn.Sequential(
        nn.Sequential(hooked, nn.ReLU()),
        nn.Sequential(parametrizations.weight_norm(nn.Linear(3, 3)), nn.ReLU()),
        nn.Sequential(nn.Linear(3, 3), nn.Softplus(beta=2)),
        nn.Sequential(nn.Linear(3, 3), nn.Hardtanh(-2, 2)),
        nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5), nn.ReLU()),
        nn.TransformerEncoderLayer(4, 1, 8),
    )
    before = [type(m) for m in model.modules()]
    changes = hyp.fuse_(model, verbose=False)
    after = [type(m) for m in model.modules()]
    assert [c.why.partition(":")[0] for c in changes.left] == [
        "it has hooks",
        "Softplus(beta=2, threshold=20.0) is no scalar of the library",
        "Hardtanh(min_val=-2, max_val=2) is no scalar of the library",
    ]
    assert [a for a, b in zip(after, before, strict=True) if a is not b] == [FusedLayerNorm, FusedLayerNorm]


def test_a_shared_module_stays_shared():
    norm = nn.LayerNorm(4)
    model = nn.Sequential(norm, nn.Linear(4, 4), norm)
    hyp.fuse_(model, verbose=False)
    assert model[0] is model[2] and isinstance(model[0], FusedLayerNorm)


def test_the_model_itself_stays():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2), nn.Tanh())
    changes = hyp.fuse_(model, verbose=False)
    assert [c.after for c in changes.fused] == ["FusedLinear, relu", "FusedLinear, tanh"]
