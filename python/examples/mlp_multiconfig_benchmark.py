"""Nine perceptrons, three widths and three depths, forward and with their backward pass.

    python python/examples/mlp_multiconfig_benchmark.py [--device cuda] [--quick] [--peers]

Eager beside `torch.compile(backend="hypatia")`, and with --peers beside PyTorch's own compiler.
Errors are those of results and of all gradients against float64, over eager's.
"""

from __future__ import annotations

import copy

import torch
from common import check, error, options, side_by_side, table
from torch import nn

import hypatia_core as hyp
from hypatia_core.backend import backend

WIDTHS, DEPTHS = (256, 1024, 4096), (2, 4, 8)


def perceptron(width: int, depth: int) -> nn.Module:
    """Linear layers with ReLU after each."""
    layers = [m for _ in range(depth) for m in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*layers)


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--peers", action="store_true", help="beside PyTorch's compiler, mode max-autotune")
    given = parser.parse_args()
    gpu = given.device.startswith("cuda")
    dtype = torch.bfloat16 if gpu else torch.float32
    widths = (16, 32, 64) if given.quick else WIDTHS if gpu else (64, 256, 1024)
    names = ["eager", "hypatia", *(["max-autotune"] if given.peers else [])]
    rows = []
    for width in widths:
        for depth in DEPTHS:
            torch._dynamo.reset()
            torch.manual_seed(0)
            model = perceptron(width, depth).to(given.device)
            x = torch.randn(8 if given.quick else width, width, device=given.device)
            exact = copy.deepcopy(model).double()
            model, x = model.to(dtype), x.to(dtype)
            compiled = [torch.compile(model, backend=backend)]
            if given.peers:
                compiled.append(torch.compile(model, mode="max-autotune"))

            def forward(f, x):
                with torch.no_grad():
                    return f(x)

            def training(f, x, of=model):
                of.zero_grad()
                f(x).square().sum().backward()
                return torch.cat([p.grad.flatten() for p in of.parameters() if p.grad is not None])

            for kind, run in (("forward", forward), ("training", training)):
                for _ in range(3):
                    run(compiled[0], x)
                    hyp.wait_for_plans()
                sides = [model, *compiled]
                want = run(exact, x.double()) if kind == "forward" else training(exact, x.double(), exact)
                errors = [error(run(f, x), want) for f in sides[:2]]
                times = side_by_side([lambda f=f, run=run, x=x: run(f, x) for f in sides], given.device, given.quick)
                ratio = times[1] / min([times[0], *times[2:]])
                share = f"{errors[1] / max(errors[0], 1e-30):.2f}"
                rows.append([f"{width}x{depth} {kind}", *(f"{t:.1f}" for t in times), f"{ratio:.2f}", share])
                bound = 1.5 * errors[0] + torch.finfo(dtype).eps
                check(errors[1] <= bound, f"{width}x{depth} {kind}: error {errors[1]}, eager's {errors[0]}")
    table([f"{given.device}, {dtype}", *(f"{n} us" for n in names), "over the best", "error over eager's"], rows)


if __name__ == "__main__":
    main()
