#!/usr/bin/env python3
"""Times the layers of hypatia_core beside PyTorch's own: the table in docs/pytorch.md.

    python tools/torch_layers.py [f32|bf16|f16]

Needs PyTorch and an installed hypatia-core (`pip install ./python`). Prints the least time of many
runs on one thread, in microseconds, with each side forced.
"""

import sys
import time

import hypatia_core as hyp
import torch
from torch import nn

F = nn.functional
SOFTCAP = hyp.scalar("softcap", "30 * tanh(x / 30)")
LAYERS = {
    "FusedLinear, ReLU, 128 rows, 784 to 512": (lambda: hyp.nn.FusedLinear(784, 512), (128, 784)),
    "FusedLinear, tanh-GELU, 128 rows, 768 to 3072": (
        lambda: hyp.nn.FusedLinear(768, 3072, activation="gelu_tanh"),
        (128, 768),
    ),
    "FusedLinear, 30 tanh(x / 30), 512 rows, 256 to 512": (
        lambda: hyp.nn.FusedLinear(256, 512, activation=SOFTCAP),
        (512, 256),
    ),
    "FusedMLP, 64 rows, 784, 256, 256, 10": (lambda: hyp.nn.FusedMLP([784, 256, 256, 10]), (64, 784)),
    "FusedGatedMLP, 64 rows, 512, 1376": (lambda: hyp.nn.FusedGatedMLP(512, 1376), (64, 512)),
    "FusedLinear, ReLU, 1 row, 1024 to 1024": (lambda: hyp.nn.FusedLinear(1024, 1024), (1, 1024)),
    "FusedLinear, ReLU, 4 rows, 16 to 16": (lambda: hyp.nn.FusedLinear(16, 16), (4, 16)),
    "FusedLayerNorm, 128 rows of 768": (lambda: hyp.nn.FusedLayerNorm(768), (128, 768)),
    "FusedRMSNorm, 128 rows of 768": (lambda: hyp.nn.FusedRMSNorm(768), (128, 768)),
}


class Block(nn.Module):
    """A block of a GPT."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.n1, self.n2 = heads, nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.n2(x)), approximate="tanh"))


def least(call, seconds):
    call()
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
    return f"{best * 1e6:9.1f}"


def main(args):
    dtype = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}[args[0] if args else "f32"]
    torch.set_num_threads(1)
    with torch.no_grad():
        for name, (make, shape) in LAYERS.items():
            layer, x = make().to(dtype), torch.randn(*shape).to(dtype)
            with hyp.nn.policy("always"):
                ours = least(lambda layer=layer, x=x: layer(x), 0.5)
            params = layer.fused_parameters()
            theirs = least(lambda layer=layer, x=x, p=params: layer.op.eager(x, p), 0.5)
            print(f"{name:52} hypatia {ours}  pytorch {theirs}", flush=True)
        model = nn.Sequential(nn.Embedding(1000, 256), Block(256, 4), Block(256, 4), nn.Linear(256, 1000)).to(dtype)
        ids = torch.randint(1000, (2, 128))
        by_hypatia, by_inductor = torch.compile(model, backend="hypatia"), torch.compile(model)
        with hyp.nn.policy("always"):
            ours = least(lambda: by_hypatia(ids), 3)
        inductor = least(lambda: by_inductor(ids), 3)
        theirs = least(lambda: model(ids), 3)
        print(f"{'two blocks of a GPT':52} hypatia {ours}  pytorch {theirs}  inductor {inductor}")


main(sys.argv[1:])
