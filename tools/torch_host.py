#!/usr/bin/env python3
"""Says where the host's time of a call goes: `torch.compile(model, backend="hypatia")`.

    python3 tools/torch_host.py [--device cpu|cuda] [--rows N]

Needs hypatia-core and PyTorch. The model is so small that only the host's part is left: 8 layers
of 64, 16 parameters. Prints medians in microseconds: of the whole call, and of each part alone.
"""

import argparse
import statistics
import time

import hypatia_core as hyp
import torch
from hypatia_core.backend import backend
from hypatia_core.nn import _runtime
from torch import nn


def median(f, synchronize, turns=400, calls=1):
    """Microseconds of a call."""
    for _ in range(20):
        f()
    synchronize()
    times = []
    for _ in range(turns):
        start = time.perf_counter()
        for _ in range(calls):
            f()
        times.append((time.perf_counter() - start) / calls * 1e6)
        synchronize()
    return statistics.median(times)


def breakdown(device, rows=8):
    """Lines of a table: a part, and its microseconds."""
    synchronize = torch.cuda.synchronize if device == "cuda" else lambda: None
    width, layers = 64, 8
    model = nn.Sequential(*[m for _ in range(layers) for m in (nn.Linear(width, width), nn.ReLU())]).to(device)
    x = torch.randn(rows, width, device=device)
    constant, seen = (torch.randn(rows, width, device=device),), []

    def returns(graph, inputs, **_):
        return lambda *args: constant

    def ours(graph, inputs, **_):
        made = backend(graph, inputs)

        def call(*args):
            seen[:] = [made, args]
            return made(*args)

        return call

    def compiled(f):
        torch._dynamo.reset()
        f = torch.compile(model, backend=f)
        for _ in range(3):
            f(x)
        return f

    with torch.no_grad(), hyp.nn.policy("always"):
        f = compiled(returns)
        base = median(lambda: f(x), synchronize)
        f = compiled(lambda graph, inputs, **_: backend(graph, inputs))
        whole = median(lambda: f(x), synchronize)
        f = compiled(ours)
        entry, args = seen
        entered = median(lambda: entry(*args), synchronize)
        part = next(p for p in _runtime._parts if len(p.calls) == 1 and p.device.type == device and p.entry())
        (call,) = part.calls.values()
        of, given = part.launch, []
        part.launch = lambda key, tensors: given.append(tensors) or of(key, tensors)
        part.entry().clear()  # The next call is Python's.
        entry(*args)
        part.launch = of
        inputs = given[0]
        ran = median(lambda: call.run(inputs), synchronize)
        empty = getattr(torch._C._dynamo.guards, f"_empty_strided_{device}")
        made = median(
            lambda: empty((rows, width), (width, 1), torch.float32),
            synchronize,
            calls=10,
        )
        eager = median(lambda: model(x), synchronize)
        yield "eager", eager
        yield "a backend that returns a constant", base
        yield "backend hypatia", whole
        yield "  beyond the constant", whole - base
        yield "  the entry alone", entered
        yield "  the plan's call alone", ran
        yield "    allocating the result", made
        plan = part.plans[next(iter(part.calls))].plan
        yield (
            f"    borrowing {len(inputs) + 1} tensors",
            median(lambda: plan.check(inputs), synchronize, calls=10),
        )


def print_breakdown(device, rows=8):
    """Print the table."""
    print(f"host, {device}, 16 parameters, PyTorch {torch.__version__}, microseconds a call")
    for what, us in breakdown(device, rows):
        print(f"{what:40} {us:8.2f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--device",
        choices=["cpu", "cuda"],
        default="cuda" if torch.cuda.is_available() else "cpu",
    )
    parser.add_argument("--rows", type=int, default=8)
    given = parser.parse_args()
    torch.set_num_threads(1)
    print_breakdown(given.device, given.rows)


if __name__ == "__main__":
    main()
