#!/usr/bin/env python3
"""Times one token of a Llama with a static cache beside eager and PyTorch's own compiler.

    python3 tools/torch_decode.py [--sides SIDE ...] [--layers N] [--device DEVICE]

Needs an installed hypatia-core, PyTorch and transformers (random weights, bf16, batch 1, a cache of
2,048 keys). Prints the median of rounds of many calls in microseconds a token, the host's part
included, after plans were made and the whole graph measured.
"""

import argparse
import statistics
import time

import hypatia_core as hyp
import torch
from hypatia_core.backend import backend
from torch_gpu import LLAMA
from transformers import LlamaConfig, LlamaForCausalLM, StaticCache

KEYS, ROUNDS, CALLS, SETTLING = 2048, 7, 30, 30
SIDES = {
    "eager": lambda model: model,
    "hypatia": lambda model: torch.compile(model, backend=backend),
    "frozen": lambda model: torch.compile(model, backend=backend, options={"frozen": True}),
    "reduce-overhead": lambda model: torch.compile(model, mode="reduce-overhead"),
}


def synchronize(device):
    if device == "cuda":
        torch.cuda.synchronize()


def per_token(model, compiled, device):
    cache = StaticCache(config=model.config, max_cache_len=KEYS)
    room = ROUNDS * CALLS + SETTLING
    model(torch.randint(1000, (1, KEYS - room), device=device), past_key_values=cache, use_cache=True)
    token = torch.randint(1000, (1, 1), device=device)
    for _ in range(SETTLING):
        compiled(token, past_key_values=cache, use_cache=True)
        hyp.wait_for_plans()
    times = []
    for _ in range(ROUNDS):
        synchronize(device)
        start = time.perf_counter()
        for _ in range(CALLS):
            compiled(token, past_key_values=cache, use_cache=True)
        synchronize(device)
        times.append((time.perf_counter() - start) / CALLS * 1e6)
    return statistics.median(times)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sides", nargs="*", default=list(SIDES), choices=list(SIDES))
    parser.add_argument("--layers", type=int, default=LLAMA["num_hidden_layers"])
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    given = parser.parse_args()
    torch.manual_seed(0)
    config = LlamaConfig(**{**LLAMA, "num_hidden_layers": given.layers})
    model = LlamaForCausalLM(config).eval().to(given.device).bfloat16()
    for name in given.sides:
        torch._dynamo.reset()
        hyp.reset_report()
        with torch.no_grad():
            us = per_token(model, SIDES[name](model), given.device)
        print(f"{name:16} {us:10.1f} us a token", flush=True)
        if name in ("hypatia", "frozen"):
            print("    " + str(hyp.report()).replace("\n", "\n    "), flush=True)


if __name__ == "__main__":
    main()
