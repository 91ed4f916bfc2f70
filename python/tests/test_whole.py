"""A divided graph against the module as PyTorch runs it."""

import time
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import hypatia_core as hyp  # noqa: E402
from hypatia_core import _whole  # noqa: E402
from hypatia_core._whole import TIMED, Whole  # noqa: E402
from hypatia_core.backend import backend  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh")
CPU = torch.device("cpu")


def part(measured=(1.0, 2.0), varying=()):
    choice = SimpleNamespace(broken=None, failed=False, measured=measured)
    return SimpleNamespace(plans={(): choice}, varying=list(varying))


def sides(slow):
    """Both sides, which count their calls; one of them takes longer."""
    calls = []

    def side(name):
        def run(x):
            calls.append(name)
            time.sleep(0.002 if name == slow else 0)
            return x

        return run

    return calls, side("divided"), side("module")


@pytest.mark.parametrize(("slow", "fast"), [("divided", "module"), ("module", "divided")])
def test_the_faster_side_is_chosen_and_each_call_runs_once(slow, fast):
    calls, *both = sides(slow)
    whole = Whole(*both, [part()], CPU)
    with hyp.nn.policy("measure"):
        for i in range(40):
            assert whole(i) == i
    assert len(calls) == 40
    assert calls[: 2 * (TIMED + 1)] == ["divided", "module"] * (TIMED + 1)
    assert set(calls[2 * (TIMED + 1) :]) == {fast}
    assert hyp.report().pytorch == (28 if fast == "module" else 0)
    # The choice is that of the policy that measured.
    for policy in ("always", "never"):
        with hyp.nn.policy(policy):
            whole(0)
    assert calls[40:] == ["divided", "divided"]


@pytest.mark.parametrize(
    ("parts", "policy"),
    [([part(measured=None)], "measure"), ([part(varying=[0])], "measure"), ([part()], "always"), ([part()], "never")],
)
def test_nothing_is_timed_before_the_parts_are_settled_or_where_it_is_not_asked_for(parts, policy):
    calls, *both = sides("divided")
    whole = Whole(*both, parts, CPU)
    with hyp.nn.policy(policy):
        for i in range(30):
            whole(i)
    assert set(calls) == {"divided"}


class Islands(nn.Module):
    """Between plans stand ops that no plan computes, one of which draws random numbers."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 24), nn.Linear(4, 8)
        self.up = nn.ConvTranspose1d(24, 4, 2)
        self.seen = torch.zeros(())

    def forward(self, x):
        self.seen.add_(1)
        y = torch.tanh(self.first(x)) * 2
        y = self.up(y.transpose(1, 2)).transpose(1, 2)
        return torch.tanh(self.second(y) + torch.rand(8)) * 3


@pytest.mark.parametrize("lost", [True, False])
def test_mutation_and_random_numbers_are_eagers_whichever_side_runs(monkeypatch, lost):
    monkeypatch.setattr(_whole, "SLACK", 0.0 if lost else 1e9)
    model = Islands().eval()
    x = torch.randn(3, 5, 8)
    f = torch.compile(model, backend=backend)
    with torch.no_grad(), hyp.nn.policy("measure"):
        for i in range(30):
            torch.manual_seed(i)
            got = f(x)
            after = torch.rand(3)
            hyp.wait_for_plans()
            torch.manual_seed(i)
            torch.testing.assert_close(got, model(x), rtol=1e-4, atol=1e-5)
            assert torch.equal(after, torch.rand(3))
            assert model.seen == 2 * (i + 1)
    whole = any("faster than the graph with its parts" in line.why for line in hyp.report().lines)
    assert whole == lost, hyp.report()
