"""Whole models through `torch.compile(backend="hypatia")`, against themselves in float64."""

import copy
import re
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("timm")
pytest.importorskip("torchvision")

from models import MODELS, tensor  # noqa: E402

import hypatia_core as hyp  # noqa: E402
from hypatia_core.backend import backend  # noqa: E402


@pytest.mark.parametrize("name", MODELS)
def test_error_is_no_larger_than_eagers(name):
    torch.manual_seed(0)
    torch._dynamo.reset()
    hyp.nn._runtime.forget()
    model, inputs = MODELS[name]()
    model = model.eval()
    wide = [t.double() if t.is_floating_point() else t for t in inputs]
    with torch.no_grad(), hyp.nn.policy("always"):
        exact = tensor(copy.deepcopy(model).double()(*wide))
        eager = tensor(model(*inputs))
        f = torch.compile(model, backend=backend, fullgraph=True)
        for _ in range(2):
            got = tensor(f(*inputs))
            assert (got.shape, got.stride(), got.dtype) == (eager.shape, eager.stride(), eager.dtype)

    def error(y):
        return (y.double() - exact).square().mean().sqrt().item()

    # The errors of so few elements scatter: two units of the largest in the last place are allowed.
    least = 2 * torch.finfo(torch.float32).eps * exact.abs().max().item()
    assert error(got) <= max(1.1 * error(eager), least), (error(got), error(eager), least)
    assert hyp.report().hypatia >= 2


@pytest.mark.parametrize("name", MODELS)
def test_exact_numerics_give_the_bits_of_the_plan_without_rules(name):
    torch.manual_seed(0)
    model, inputs = MODELS[name]()
    model = model.eval()
    folder = Path(__file__).parents[2] / "rules"
    rulesets = {m for f in folder.glob("*.hyp") for m in re.findall(r"^ruleset (\w+)", f.read_text(), re.MULTILINE)}
    assert len(rulesets) > 5
    results = []
    for options in [{"numerics": "exact"}, {"numerics": "exact", "never": sorted(rulesets)}]:
        torch._dynamo.reset()
        hyp.nn._runtime.forget()
        with torch.no_grad(), hyp.nn.policy("always"):
            f = torch.compile(model, backend=backend, fullgraph=True, options=options)
            results.append(tensor(f(*inputs)))
        plans = [c.plan for part in hyp.nn._runtime._parts for c in part.plans.values() if c.plan is not None]
        fired = {rule.split("::")[0] for plan in plans for rule, _ in plan.fired}
        assert plans and ("never" in options or fired), plans
        assert "never" not in options or not fired & rulesets, fired
    assert torch.equal(*results)
