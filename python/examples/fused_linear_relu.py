"""`HypatiaFusedLinearReLU` in the place of `nn.Linear` and `nn.ReLU`: state, results, gradients.

python python/examples/fused_linear_relu.py [--device cuda] [--quick]
"""

from __future__ import annotations

import torch
from common import check, options, side_by_side, table
from torch import nn

import hypatia_core as hyp
from hypatia_core.fused_modules import HypatiaFusedLinearReLU


def main() -> None:
    given = options(__doc__ or "").parse_args()
    m, k, n = (32, 64, 48) if given.quick else (512, 1024, 1024)
    torch.manual_seed(0)
    eager = nn.Sequential(nn.Linear(k, n, device=given.device), nn.ReLU())
    fused = HypatiaFusedLinearReLU(k, n, bias=True, device=given.device)
    fused.load_state_dict(eager[0].state_dict())
    x = torch.randn(m, k, device=given.device)
    rows, launches = [], hyp.explain(fused, x).launches or (0, 0)

    def forward(module):
        with torch.no_grad():
            return module(x)

    def training(module):
        module.zero_grad()
        y = module(x)
        y.square().mean().backward()
        return torch.cat([p.grad.flatten() for p in module.parameters() if p.grad is not None])

    for name, run in (("forward", forward), ("forward and backward", training)):
        for _ in range(2):
            run(fused)
            hyp.wait_for_plans()
        difference = (run(fused) - run(eager)).abs().max().item()
        scale = run(eager).abs().max().item()
        times = side_by_side([lambda run=run: run(eager), lambda run=run: run(fused)], given.device, given.quick)
        rows.append([name, *(f"{t:.1f}" for t in times), f"{times[1] / times[0]:.2f}", f"{difference:.1e}"])
        check(difference <= 1e-5 * max(scale, 1), f"{name}: {difference}")
    table([f"{m}x{k}x{n}", "eager us", "fused us", "ratio", "largest difference"], rows)
    print(f"launches: {launches[0]} before, {launches[1]} after")
    print(hyp.report())


if __name__ == "__main__":
    main()
