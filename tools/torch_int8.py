#!/usr/bin/env python3
"""Linear layers with int8 weights on one GPU, beside bf16 weights and PyTorch's own compiler.

    python3 tools/torch_int8.py [--llama]

Needs an installed hypatia-core, PyTorch, and for --llama transformers. Ten layers over weights of
their own are one function; prints microseconds a layer. `bare` is the bf16 product in a CUDA graph;
the others are compiled functions, the host's part included. With --llama, prints a token of the
model of torch_decode.py with such layers.
"""

import argparse

import hypatia_core as hyp
import torch
import torch.nn.functional as F
from gpu_peers import graphed, timed
from hypatia_core.backend import backend

LAYERS, SETTLING, CALLS, ROUNDS = 10, 40, 20, 3
# Rows, columns, length of the sums, elements of k that share a scale (0: all).
SHAPES = [
    (16, 4096, 4096, 0),
    (1, 4096, 4096, 0),
    (1, 4096, 4096, 128),
    (4, 11008, 4096, 0),
    (1, 14336, 4096, 64),
    (1, 512, 2048, 0),
]


class Int8Linear(torch.nn.Module):
    """A linear layer without bias whose weight has 8 bits, and a scale for each row or group."""

    def __init__(self, weight, group):
        """Makes it of a weight; `group` elements share a scale, or a whole row if it is 0."""
        super().__init__()
        parts = weight.detach().float().view(weight.shape[0], -1, group or weight.shape[1])
        scale = parts.abs().amax(-1, keepdim=True) / 127
        self.register_buffer("q", (parts / scale).round().to(torch.int8))
        self.register_buffer("scale", scale.to(weight.dtype))
        self.shape = weight.shape

    def forward(self, x):
        """Multiplies by the weight in the type of `x`."""
        return F.linear(x, (self.q.to(x.dtype) * self.scale).view(self.shape))


def with_int8(module, group):
    """Replaces the linear layers of a module."""
    for name, child in module.named_children():
        if isinstance(child, torch.nn.Linear):
            setattr(module, name, Int8Linear(child.weight, group))
        else:
            with_int8(child, group)


def settled(call):
    """Microseconds a layer, after plans were made and measured."""
    for _ in range(SETTLING):
        call()
    hyp.wait_for_plans()
    for _ in range(SETTLING):
        call()
    times = []
    for _ in range(ROUNDS):
        start, stop = torch.cuda.Event(True), torch.cuda.Event(True)
        start.record()
        for _ in range(CALLS):
            call()
        stop.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(stop) * 1e3 / CALLS / LAYERS)
    return min(times)


def layers(rows, columns, depth, group):
    """Prints the times of a layer of that size."""
    x = torch.randn(rows, depth, device="cuda", dtype=torch.bfloat16)
    weights = [torch.randn(columns, depth, device="cuda", dtype=x.dtype) / depth**0.5 for _ in range(LAYERS)]
    int8 = torch.nn.ModuleList(Int8Linear(w, group) for w in weights)

    def bare(x):
        return [F.linear(x, w) for w in weights]

    def narrow(x):
        return [layer(x) for layer in int8]

    row = {"bare": timed(graphed(lambda: bare(x))) / LAYERS}
    ways = {"bf16": (bare, {"backend": backend}), "int8": (narrow, {"backend": backend})}
    ways["compiled int8"] = (narrow, {"mode": "reduce-overhead"})
    for name, (function, how) in ways.items():
        torch._dynamo.reset()
        compiled = torch.compile(function, **how)
        row[name] = settled(lambda compiled=compiled: compiled(x))
    cells = ", ".join(f"{name} {us:.2f}" for name, us in row.items())
    print(f"{rows}x{columns}x{depth}, {f'groups of {group}' if group else 'columns'}: {cells}", flush=True)


def llama():
    """Prints the times of a token."""
    import torch_decode
    from transformers import LlamaConfig, LlamaForCausalLM

    for group in (0, 128):
        torch.manual_seed(0)
        model = LlamaForCausalLM(LlamaConfig(**torch_decode.LLAMA)).eval().cuda().bfloat16()
        with_int8(model, group)
        for side in ("hypatia", "frozen", "reduce-overhead"):
            torch._dynamo.reset()
            us = torch_decode.per_token(model, torch_decode.SIDES[side](model), "cuda")
            print(f"llama, {f'groups of {group}' if group else 'columns'}, {side}: {us:.1f} us a token", flush=True)


def main():
    """Runs what the arguments ask for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--llama", action="store_true")
    with torch.no_grad():
        if parser.parse_args().llama:
            llama()
        else:
            for shape in SHAPES:
                layers(*shape)


if __name__ == "__main__":
    main()
