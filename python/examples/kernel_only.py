"""One fused kernel alone, against the ops of PyTorch that it replaces.

    python python/examples/kernel_only.py [--device cuda] [--quick]

Each row is a linear layer with an activation: one launch of a plan, and PyTorch's ops one after the
other. `policy("always")` takes the plan whether it is faster or not, so the table shows losses too.
The errors are against float64, in units of the values.
"""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from common import check, error, options, side_by_side, table

import hypatia_core as hyp

#: An activation of this program's own, as an expression and as PyTorch's ops.
SOFTCAP = hyp.scalar("softcap", "30 * tanh(x / 30)")
ACTIVATIONS = {
    "relu": ("relu", torch.relu),
    "silu": ("silu", F.silu),
    "softcap": (SOFTCAP, lambda x: 30 * torch.tanh(x / 30)),
}
SHAPES = [(256, 256, 512), (1024, 784, 2048), (4096, 1024, 4096)]


def main() -> None:
    given = options(__doc__ or "").parse_args()
    gpu = given.device.startswith("cuda")
    dtype = torch.bfloat16 if gpu else torch.float32
    shapes = [(16, 32, 24), (33, 40, 7)] if given.quick else SHAPES if gpu else SHAPES[:2]
    rows = []
    for m, k, n in shapes:
        for name, (scalar, eager) in ACTIVATIONS.items():
            torch.manual_seed(0)
            layer = hyp.nn.FusedLinear(k, n, activation=scalar).to(given.device, dtype)
            x = torch.randn(m, k, device=given.device, dtype=dtype)
            exact = copy.deepcopy(layer).double()

            def by_eager(layer=layer, eager=eager, x=x):
                return eager(F.linear(x, layer.weight, layer.bias))

            def by_kernel(layer=layer, x=x):
                return layer(x)

            with torch.no_grad(), hyp.nn.policy("always"):
                want = eager(F.linear(x.double(), exact.weight, exact.bias))
                errors = error(by_eager(), want), error(by_kernel(), want)
                times = side_by_side([by_eager, by_kernel], given.device, given.quick)
            check(errors[1] <= 1.1 * errors[0] + torch.finfo(dtype).eps, f"{name} of {m}x{k}x{n} is wrong: {errors}")
            ratio = f"{times[1] / times[0]:.2f}"
            rows.append([f"{name} {m}x{k}x{n}", *(f"{t:.1f}" for t in times), ratio, *(f"{e:.1e}" for e in errors)])
    table(["linear, bias and", "eager us", "kernel us", "ratio", "eager's error", "error"], rows)
    check(hyp.report().hypatia > 0, f"no plan ran:\n{hyp.report()}")


if __name__ == "__main__":
    main()
