"""The same model with and without checks, and a wrong rule that a strict run finds.

    python python/examples/safety_dual_mode.py [--device cuda] [--quick]

First a perceptron in each safety mode: results beside eager's, and what the checks cost. Then a
rule that is right for small numbers only: it passes the comparison of a new plan, and a strict run
names it when large numbers come. A GPU has no strict mode yet.
"""

from __future__ import annotations

from typing import Any

import torch
from common import check, options, side_by_side, table
from torch import nn

import hypatia_core as hyp
from hypatia_core.backend import backend

CLOSE = 1e-5
WRONG = """edition 1;
use core::*;
use nn::*;
ruleset careless { until = fixpoint; }
rule careless::uncapped: min(relu(x), 30.0) => relu(x);
"""


class Capped(nn.Module):
    """Three layers whose results lie between 0 and 30."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x)).clamp(max=30.0)
        return x


def modes(device: str, quick: bool) -> None:
    """Results and times of each mode."""
    width, batch = (64, 32) if quick else (1024, 512)
    model, x = Capped(width).to(device), torch.randn(batch, width, device=device)
    names = ["off", "check"] if device.startswith("cuda") else ["off", "check", "strict"]
    want = model(x)
    sides = []
    for name in names:
        torch._dynamo.reset()
        sides.append(torch.compile(model, backend=backend, options={"safety": name}))
        off = (sides[-1](x) - want).abs().max().item()
        check(off < CLOSE, f"safety {name}: max |diff| is {off}")
    times = side_by_side([lambda f=f: f(x) for f in [model, *sides]], device, quick)
    rows = [["eager", f"{times[0]:.1f}", "", ""]]
    for name, f, time in zip(names, sides, times[1:], strict=True):
        rows.append([name, f"{time:.1f}", f"{time / times[1]:.2f}", f"{(f(x) - want).abs().max().item():.1e}"])
    table(["safety", "us", "over off", "max |diff|"], rows)
    check(not hyp.report().incidents, f"a false alarm: {hyp.report().incidents}")


def careless(device: str) -> None:
    """A rule that is wrong for large numbers is found by a strict run."""
    if device.startswith("cuda"):
        print("no strict mode on a GPU: the wrong rule is tried on the CPU")
    torch._dynamo.reset()
    rules, model = hyp.Rules.from_text(WRONG), Capped(64)
    chosen: dict[str, Any] = {"safety": "strict", "rules": [rules]}
    f = torch.compile(model, backend=backend, options=chosen)
    small, large = torch.randn(16, 64), 3000 * torch.randn(16, 64)
    check(torch.allclose(f(small), model(small), atol=CLOSE), "the rule is right for small numbers")
    right = torch.allclose(f(large), model(large), rtol=1e-4)
    print(f"the rule on large numbers, before a run was compared: {'right' if right else 'wrong'}")
    result, runs = f(large), 3
    while not hyp.report().incidents and runs < 100:
        result, runs = f(large), runs + 1
    check(bool(hyp.report().incidents), "the wrong rule was not found")
    print(f"run {runs}: {hyp.report().incidents[0]}")
    for mended in (result, f(large)):
        check(torch.allclose(mended, model(large), rtol=1e-4), "results are right from then on")
    check("careless::uncapped" in hyp.report().incidents[0], "the rule is named")


def main() -> None:
    given = options(__doc__ or "").parse_args()
    torch.manual_seed(0)
    with torch.no_grad(), hyp.nn.policy("always"):
        modes(given.device, given.quick)
        careless(given.device)


if __name__ == "__main__":
    main()
