#!/usr/bin/env python3
"""Hypatia beside PyTorch on one GPU, in one run: the cases of `hypatia bench --suite classic`.

    python3 tools/gpu_peers.py --hypatia PATH/hypatia --out DIR
        [--rows TEXT ...] [--rounds N] [--compile]

Times every case whose name contains one of the texts:

- Hypatia (its suite, also with --precision tf32 for the f32 cases);
- PyTorch eager in a CUDA graph;
- `torch._addmm_activation` in a graph, where it computes the same;
- with --compile, torch.compile(mode="max-autotune-no-cudagraphs") in a graph (minutes).

Both sides: the median of bursts of at least 2 ms between two events, random data, warm. With
--rounds, both sides alternate that many times, and the medians count: what takes a few microseconds
differs by a few per cent from one process to the next. Writes DIR/peers.json, as docs/benchmarks
keeps it, and prints a table; `ratio` is Hypatia's time over PyTorch's best time without --compile.
"""

import argparse
import json
import pathlib
import re
import statistics
import subprocess
import time

import torch
import torch.nn.functional as F

import measured

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
BURST, SECONDS = 2e-3, 0.15
ACTIVATIONS = {
    "none": lambda y, t: y,
    "relu": lambda y, t: torch.relu(y),
    "gelu_tanh": lambda y, t: F.gelu(y, approximate="tanh"),
    "gelu": lambda y, t: F.gelu(y),
    "silu": lambda y, t: F.silu(y),
    "mish": lambda y, t: F.mish(y),
    "residual": lambda y, t: y + t,
    "silu_gate": lambda y, t: F.silu(y) * t,
}


def burst(fn, count):
    start, stop = torch.cuda.Event(True), torch.cuda.Event(True)
    start.record()
    for _ in range(count):
        fn()
    stop.record()
    torch.cuda.synchronize()
    return start.elapsed_time(stop) * 1e3 / count


def timed(fn):
    for _ in range(3):
        one = burst(fn, 1)
    count = max(1, min(10_000, int(BURST * 1e6 / max(one, 1e-3)) + 1))
    times, begin = [], time.time()
    while len(times) < 10 or time.time() - begin < SECONDS:
        times.append(burst(fn, count))
    return sorted(times)[len(times) // 2]


def graphed(fn):
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            fn()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        fn()
    return graph.replay


def functions(name):
    """PyTorch's ways to compute a case, and the bytes that it must move."""
    words = name.split()
    dtype = DTYPES[words[-1]]
    normal = lambda *s: torch.randn(*s, device="cuda", dtype=torch.float32)
    size = lambda t: t.numel() * t.element_size()
    if words[0] == "linear":
        m, k, n = map(int, words[2].split("x"))
        x, w, b = normal(m, k).to(dtype), (normal(n, k) / k**0.5).to(dtype), normal(n).to(dtype)
        t = normal(m, n).to(dtype)
        act = ACTIVATIONS[words[1]]
        ways = {"eager": lambda: act(F.linear(x, w, b), t)}
        if words[1] in ("relu", "gelu_tanh"):
            ways["addmm_activation"] = lambda: torch._addmm_activation(b, x, w.t(), use_gelu=words[1] != "relu")
        return ways, None
    if words[0] == "mlp":
        width, depth = map(int, words[1].split("x"))
        batch = int(words[2][1:])
        x = normal(batch, width).to(dtype)
        layers = [((normal(width, width) / width**0.5).to(dtype), normal(width).to(dtype)) for _ in range(depth)]

        def mlp():
            y = x
            for i, (w, b) in enumerate(layers):
                y = F.linear(y, w, b)
                y = torch.relu(y) if i + 1 < depth else y
            return y

        def bare():
            y = x
            for w, _ in layers:
                y = y @ w.t()
            return y

        return {"eager": mlp, "bare_gemms": bare}, None
    if words[0] == "swiglu":
        m, k, n = map(int, words[1].split("x"))
        x = normal(m, k).to(dtype)
        gate, up = ((normal(n, k) / k**0.5).to(dtype) for _ in range(2))
        eager = lambda: F.silu(F.linear(x, gate)) * F.linear(x, up)
        return {"eager": eager, "bare_gemms": lambda: (x @ gate.t(), x @ up.t())}, None
    rows, n = map(int, words[1].split("x"))
    x, w, b = normal(rows, n).to(dtype), normal(n).to(dtype), normal(n).to(dtype)
    out = torch.empty_like(x)
    ways = {
        "softmax": lambda: torch.softmax(x, -1),
        "layer_norm": lambda: F.layer_norm(x, (n,), w, b),
        "rms_norm": lambda: F.rms_norm(x, (n,), w, 1e-6),
        "copy": lambda: out.copy_(x),
    }
    return {"eager": ways[words[0]]}, 2 * size(x)


def hypatia(binary, rows, extra):
    command = [binary, "bench", "--suite", "classic", "--device", "cuda", "--json", "-q", *extra]
    for r in rows:
        command += ["--rows", r]
    done = subprocess.run(command, capture_output=True, text=True)
    if not done.stdout:
        raise SystemExit(f"{command}: {done.stderr}")
    return {c["case"]: c for c in json.loads(done.stdout)["cases"]}


def wanted_cases(a):
    """Hypatia's cases and whether their f32 is taken as TF32."""
    plain = hypatia(a.hypatia, a.rows, [])
    tf32 = {}
    # Rows that name another type have no f32 products.
    wanted = [r for r in a.rows if not re.search(r"f16", r)]
    if wanted and not a.no_tf32:
        tf32 = hypatia(a.hypatia, wanted, ["--precision", "tf32"])
        tf32 = {k: v for k, v in tf32.items() if k.endswith("f32") and k.split()[0] in ("linear", "mlp")}
    return [(k, v, False) for k, v in plain.items()] + [(k, v, True) for k, v in tf32.items()]


def one_round(a):
    """Times all cases once: Hypatia's, then PyTorch's."""
    rows = []
    for name, case, as_tf32 in wanted_cases(a):
        torch.backends.cuda.matmul.allow_tf32 = as_tf32
        row = {"case": name + (" as tf32" if as_tf32 else ""), "launches": case.get("with_rules", {}).get("launches")}
        row["hypatia"] = case.get("with_rules", {}).get("us")
        row["hypatia_unfused"] = case.get("without_rules", {}).get("us")
        row["error"] = case.get("error")
        row["warnings"] = case.get("warnings")
        with torch.no_grad():
            ways, moved = functions(name)
            for way, fn in ways.items():
                row[way] = timed(graphed(fn))
            if a.compile:
                torch._dynamo.reset()
                compiled = torch.compile(ways["eager"], mode="max-autotune-no-cudagraphs")
                row["compiled"] = timed(graphed(compiled))
        if moved and row["hypatia"]:
            row["moved"] = moved
            source = torch.randn(moved // 8, device="cuda")
            target = torch.empty_like(source)
            row["copy_tbps"] = moved / timed(graphed(lambda: target.copy_(source))) / 1e6
        rows.append(row)
        torch.cuda.empty_cache()
    return rows


def median(rounds):
    """One case of several rounds: the medians of what was timed."""
    row = dict(rounds[0])
    for key, value in row.items():
        if isinstance(value, float):
            row[key] = statistics.median(r[key] for r in rounds)
    best = min(row[w] for w in ("eager", "addmm_activation") if w in row)
    row["ratio"] = row["hypatia"] / best if row["hypatia"] else None
    if "moved" in row:
        moved = row.pop("moved")
        row["hypatia_tbps"] = moved / row["hypatia"] / 1e6
        row["eager_tbps"] = moved / row["eager"] / 1e6
        row["share_of_copy"] = row["hypatia_tbps"] / row["copy_tbps"]
    return row


def show(row):
    number = lambda k: f"{row[k]:9.2f}" if row.get(k) else " " * 9
    numbers = " ".join(number(k) for k in ("hypatia", "hypatia_unfused", "eager", "addmm_activation", "bare_gemms",
        "compiled"))
    ratio = f"{row['ratio']:6.3f}" if row["ratio"] else "FAILED " + str(row["error"])[:200]
    bandwidth = ""
    if "hypatia_tbps" in row:
        bandwidth = " {hypatia_tbps:5.2f} TB/s, eager {eager_tbps:5.2f}, copy {copy_tbps:5.2f}".format(**row)
    print(f"{row['case']:<42} {numbers} {ratio}{bandwidth}", flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--hypatia", required=True)
    p.add_argument("--out", required=True, type=pathlib.Path)
    p.add_argument("--rows", nargs="*", default=[""])
    p.add_argument("--rounds", type=int, default=1)
    p.add_argument("--compile", action="store_true")
    p.add_argument("--no-tf32", action="store_true")
    a = p.parse_args()
    about = measured.about(a.hypatia, torch.cuda.get_device_name(), gpu=True, torch=torch.__version__)
    torch.manual_seed(0)
    rounds = [one_round(a) for _ in range(max(1, a.rounds))]
    names = ["hypatia", "unfused", "eager", "addmm", "bare", "compiled"]
    print(f"{'case':<42} {' '.join(f'{name:>9}' for name in names)} {'ratio':>6}")
    out = [median(case) for case in zip(*rounds)]
    for row in out:
        show(row)
    measured.write(a.out / "peers.json", about, out)


if __name__ == "__main__":
    main()
