"""Options of `torch.compile(backend="hypatia")`."""

import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

import hypatia_core as hyp  # noqa: E402
from hypatia_core.backend import backend  # noqa: E402
from hypatia_core.nn import _runtime  # noqa: E402


@pytest.fixture(autouse=True)
def without_gradients(fresh):
    with torch.no_grad():
        yield


def compiled(f, **options):
    return torch.compile(f, backend=backend, options=options)


def plans():
    return [choice.plan for part in _runtime._parts for choice in part.plans.values() if choice.plan is not None]


def fired():
    return {rule for plan in plans() for rule, _ in plan.fired}


class Heads(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))

    def forward(self, x):
        q, k, v = (f(x).view(1, -1, 2, 8).transpose(1, 2) for f in (self.q, self.k, self.v))
        return F.scaled_dot_product_attention(q, k, v)


def test_rules_that_must_and_must_not_fire():
    model, x = nn.Sequential(nn.Linear(8, 8), nn.ReLU()), torch.randn(4, 8)
    torch.testing.assert_close(compiled(model)(x), model(x))
    (rule,) = {r for r in fired() if r.startswith("fuse::unary")}
    _runtime.forget()
    torch.testing.assert_close(compiled(model, must=[rule])(x), model(x))
    assert rule in fired()
    _runtime.forget()
    torch.testing.assert_close(compiled(model, never=["fuse::unary"])(x), model(x))
    assert rule not in fired() and plans()
    f = compiled(model, must=[f"{rule} count = 2"])
    for _ in range(2):
        with pytest.raises(hyp.ContractError, match="count = 2"):
            f(x)


def test_exact_numerics_are_those_without_rules():
    model, x = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64)), torch.randn(32, 64)
    got = compiled(model, numerics="exact")(x)
    exact = plans()[0].fired
    _runtime.forget()
    torch.testing.assert_close(compiled(model, numerics="fast")(x), got)
    assert exact != plans()[0].fired


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"speed": 9}, "there is no option `speed`"),
        ({"numerics": "loose"}, "expected `exact`"),
        ({"must": ["fuse::nothing"]}, "fuse::nothing"),
        ({"never": "fuse::unary"}, "a list of rules"),
        ({"must": ["fuse::unary count = many"]}, "expected `RULE`"),
        ({"precision": "low"}, "`ieee` or `tf32`"),
        ({"frozen": "no"}, "frozen is True or False, not 'no'"),
        ({"frozen": 1}, "frozen is True or False, not 1"),
        ({"must": 3}, "must is a list of rules, not 3"),
        ({"never": [3]}, r"never is a list of rules, not \[3\]"),
        ({"must": {"fuse::unary": 2}}, "must is a list of rules, not {"),
        ({"compare_every": -1}, "compare_every is a number of runs"),
        ({"compare_every": True}, "compare_every is a number of runs"),
        ({"safety": True}, "safety is `strict`, `check` or `off`, not True"),
        ({"numerics": 3}, "numerics is `exact`, `rounds` or `fast`, not 3"),
    ],
)
def test_options_that_say_nothing_are_errors(options, message):
    with pytest.raises(Exception, match=message):
        compiled(lambda x: x * 2 + 1, **options)(torch.ones(2))


def test_none_stands_for_the_default():
    names = ("compare_every", "frozen", "must", "never", "numerics", "precision", "rules", "safety")
    f = compiled(lambda x: x * 2 + 1, **dict.fromkeys(names))
    torch.testing.assert_close(f(torch.ones(2)), torch.full((2,), 3.0))


@pytest.mark.parametrize("given", [{"mode": "nonsense"}, {"mode": "reduce-overhead"}, {"options": ["frozen"]}])
def test_what_the_backend_does_not_take_is_an_error(given):
    with pytest.raises(Exception, match=r"it has no `mode`, and was given '|`options` is a dict, not \['frozen'\]"):
        torch.compile(lambda x: x * 2 + 1, backend=backend, **given)(torch.ones(2))


def test_frozen_weights_are_constants_until_they_change():
    model, x = Heads(), torch.randn(4, 16)
    torch.testing.assert_close(compiled(model)(x), model(x))
    operands = plans()[0].launches
    torch._dynamo.reset()
    _runtime.forget()
    f = compiled(model, frozen=True)
    for change in [
        lambda: None,
        lambda: model.q.weight.mul_(2),
        lambda: setattr(model.k.weight, "data", torch.randn(16, 16)),
        lambda: setattr(model, "v", nn.Linear(16, 16)),
        lambda: model.load_state_dict(Heads().state_dict()),
        lambda: model.q.weight.data.add_(1),
    ]:
        change()
        for _ in range(3):
            torch.testing.assert_close(f(x), model(x), rtol=1e-4, atol=1e-5)
        (plan,) = plans()
        if change.__code__.co_names == ():
            assert any(rule.startswith("merge::") for rule, _ in plan.fired) and plan.launches < operands
    # They changed too often: they are operands, so that even what goes past the versions counts.
    assert plans()[0].launches == operands


def test_a_cache_that_calls_change_is_no_frozen_weight():
    class Cached(Heads):
        def __init__(self):
            super().__init__()
            self.register_buffer("cache", torch.zeros(4, 16))

        def forward(self, x):
            made = super().forward(x).transpose(1, 2).reshape(4, 16)
            self.cache.add_(made)
            return torch.relu(self.cache * 2 + made)

    others = list(_runtime._parts)
    model, x = Cached(), torch.randn(4, 16)
    f, total = compiled(model, frozen=True), torch.zeros(4, 16)
    for i in range(8):
        made = Heads.forward(model, x).transpose(1, 2).reshape(4, 16)
        total += made
        torch.testing.assert_close(f(x), torch.relu(total * 2 + made), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(model.cache, total, rtol=1e-4, atol=1e-4)
        # No call made another plan: the weights in it did not change.
        assert not any(part.changes for part in _runtime._parts if part not in others), i
    assert any(rule.startswith("merge::") for plan in plans() for rule, _ in plan.fired)


def test_frozen_weights_of_several_sizes_and_inference_mode():
    model = Heads()
    f = torch.compile(model, backend=backend, options={"frozen": True}, dynamic=True)
    for rows in (2, 3, 2, 3):
        x = torch.randn(rows, 16)
        torch.testing.assert_close(f(x), model(x), rtol=1e-4, atol=1e-5)
    assert len(plans()) == 2 and hyp.report().hypatia == 4
    with torch.inference_mode():
        model = Heads()
        f = compiled(model, frozen=True)
        for _ in range(3):
            torch.testing.assert_close(f(x), model(x), rtol=1e-4, atol=1e-5)
            model.q.weight.add_(1)  # No version counts it.


CARELESS = """edition 1;
use core::*;
use nn::*;
ruleset careless { until = fixpoint; }
rule careless::uncapped: min(relu(x), 30.0) => relu(x);
"""


def test_a_compiled_graph_finds_a_rule_that_is_wrong_for_some_inputs():
    layer = torch.nn.Linear(16, 16)

    def model(x):
        return torch.relu(layer(x)).clamp(max=30.0)

    f = torch.compile(model, backend=backend, options={"safety": "strict", "rules": [hyp.Rules.from_text(CARELESS)]})
    small, large = torch.randn(8, 16), 1000 * torch.randn(8, 16)
    with torch.no_grad():
        torch.testing.assert_close(f(small), model(small))
        results = [f(large) for _ in range(40)]
        assert not torch.allclose(results[0], model(large)), "no run was compared yet"
        # Terms of a thousand cancel: 16 of them, each a unit in the last place off.
        torch.testing.assert_close(results[-1], model(large), rtol=0, atol=16 * 1000 * torch.finfo(torch.float32).eps)
    [incident] = hyp.report().incidents
    assert "the rule careless::uncapped" in incident
    assert f"found wrong and computed again: {incident}" in str(hyp.report())


def test_a_mode_that_does_not_exist_is_an_error_of_the_backend():
    f = torch.compile(torch.nn.Linear(2, 2), backend=backend, options={"safety": "careful"})
    with pytest.raises(Exception, match="safety: expected `strict`, `check` or `off`, not `careful`"):
        f(torch.ones(1, 2))
