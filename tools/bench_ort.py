#!/usr/bin/env python3
"""Hypatia's CPU speed beside onnxruntime's: one command, on a quiet machine.

    python3 tools/bench_ort.py MODELS --json docs/benchmarks/cpu.json

MODELS is a folder with NAME/model.onnx and NAME/inputs.npz; this script builds the multi-layer
perceptrons and the sentence encoder. For each case, bursts of runs of both alternate (30 pairs), so
that other load on the machine affects both alike: an onnxruntime session in this process
(ORT_ENABLE_ALL, as many intra-op threads), and `hypatia bench` as a process of its own, each with
warm-up. A burst counts with its median; the ratio is the median of the ratios of pairs. `rules` is
Hypatia with rules over Hypatia without, which alternate in one process. Build the command with `./x
release`, so that it knows its source. Needs numpy, onnx and onnxruntime (tools/fetch_python.sh);
results are written as they come.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

import measured

OPSET = 20
BURST_SECONDS = 0.06


class Builder:
    """A graph in the making: nodes by op type, random weights as initializers."""

    def __init__(self, seed=0):
        self.nodes, self.weights = [], []
        self.rng = np.random.default_rng(seed)

    def op(self, kind, *inputs, outputs=1, **attributes):
        names = [f"{kind.lower()}_{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(kind, list(inputs), names, name=f"node_{names[0]}", **attributes))
        return names[0] if outputs == 1 else names

    def const(self, array):
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def weight(self, *shape):
        return self.const((self.rng.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32))

    def linear(self, x, inputs, outputs):
        return self.op("Add", self.op("MatMul", x, self.weight(inputs, outputs)), self.weight(outputs))

    def norm(self, x, width):
        scale, bias = self.const(np.ones(width, np.float32)), self.const(np.zeros(width, np.float32))
        return self.op("LayerNormalization", x, scale, bias, axis=-1, epsilon=1e-5)

    def gelu(self, x):
        e = self.op("Erf", self.op("Div", x, self.const(np.float32(np.sqrt(2.0)))))
        return self.op("Mul", self.op("Mul", x, self.op("Add", e, self.const(np.float32(1)))),
            self.const(np.float32(0.5)))

    def save(self, path, inputs, output, shape):
        values = [helper.make_tensor_value_info(n, t, s) for n, t, s in inputs]
        self.nodes[-1].output[0] = output
        graph = helper.make_graph(
            self.nodes, path.stem, values, [helper.make_tensor_value_info(output, TensorProto.FLOAT, shape)],
                self.weights
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=9)
        onnx.checker.check_model(model)
        onnx.save(model, path)


def mlp(path, widths, batch, act):
    b = Builder()
    x = "x"
    for i, (m, n) in enumerate(zip(widths, widths[1:])):
        x = b.linear(x, m, n)
        if i < len(widths) - 2 or len(widths) == 2:
            x = {"relu": lambda v: b.op("Relu", v), "silu": lambda v: b.op("Mul", v, b.op("Sigmoid", v)),
                "gelu": b.gelu}[act](x)
    b.save(path, [("x", TensorProto.FLOAT, [batch, widths[0]])], "y", [batch, widths[-1]])
    return {"x": b.rng.standard_normal((batch, widths[0])).astype(np.float32)}


def encoder(path, batch, length, layers=6, width=384, heads=12, inner=1536, words=1000):
    """The shape of MiniLM: post-norm, erf GELU, padding mask, mean pooling, unit length."""
    b = Builder()
    each = width // heads
    shape = b.const(np.array([batch, length, heads, each], np.int64))
    joined = b.const(np.array([batch, length, width], np.int64))
    mask = b.op("Cast", "mask", to=TensorProto.FLOAT)
    wide = b.op("Unsqueeze", mask, b.const(np.array([1, 2], np.int64)))
    away = b.op("Mul", b.op("Sub", b.const(np.float32(1)), wide), b.const(np.float32(-1e9)))
    x = b.op("Gather", b.weight(words, width), "ids", axis=0)
    x = b.norm(b.op("Add", x, b.weight(length, width)), width)
    for _ in range(layers):
        q, k, v = (b.op("Reshape", b.linear(x, width, width), shape) for _ in range(3))
        q, v = (b.op("Transpose", t, perm=[0, 2, 1, 3]) for t in (q, v))
        k = b.op("Transpose", k, perm=[0, 2, 3, 1])
        scores = b.op("Div", b.op("MatMul", q, k), b.const(np.float32(np.sqrt(each))))
        weights = b.op("Softmax", b.op("Add", scores, away), axis=-1)
        mixed = b.op("Reshape", b.op("Transpose", b.op("MatMul", weights, v), perm=[0, 2, 1, 3]), joined)
        x = b.norm(b.op("Add", b.linear(mixed, width, width), x), width)
        x = b.norm(b.op("Add", b.linear(b.gelu(b.linear(x, width, inner)), inner, width), x), width)
    last = b.op("Unsqueeze", mask, b.const(np.array([-1], np.int64)))
    axes = b.const(np.array([1], np.int64))
    total = b.op("ReduceSum", b.op("Mul", x, last), axes, keepdims=0)
    mean = b.op("Div", total, b.op("ReduceSum", last, axes, keepdims=0))
    length_of = b.op("ReduceL2", mean, b.const(np.array([-1], np.int64)), keepdims=1)
    b.op("Div", mean, length_of)
    ints = TensorProto.INT64
    b.save(path, [("ids", ints, [batch, length]), ("mask", ints, [batch, length])], "y", [batch, width])
    ids, mask = b.rng.integers(0, words, (batch, length)), np.ones((batch, length), np.int64)
    mask[0, length * 3 // 4 :] = 0
    return {"ids": ids.astype(np.int64), "mask": mask}


def cases(models, made):
    """Name, model, inputs, and how many times onnxruntime's the goal is."""
    for name in ["ffn", "bert", "gpt2", "llama", "vit"]:
        folder = models / name
        yield name, folder / "model.onnx", dict(np.load(folder / "inputs.npz")), 1.3
    digits = models / "digits"
    images = next(iter(np.load(digits / "inputs.npz").items()))
    for batch in [1, 32, 397]:
        yield f"digits b{batch}", digits / "model.onnx", {images[0]: images[1][:batch]}, 1.3
    folder = models / "mobilenet"
    yield "mobilenet", folder / "model.onnx", dict(np.load(folder / "inputs.npz")), 3.0
    for batch, length in [(1, 16), (1, 64), (8, 32), (8, 128)]:
        path = made / f"encoder_{batch}_{length}.onnx"
        yield f"encoder b{batch} s{length}", path, encoder(path, batch, length), 1.3
    for name, widths, batch, act in [
        ("mlp 256x2 b256", [256, 256, 256], 256, "relu"),
        ("mlp 1024x4 b512", [1024] * 5, 512, "relu"),
        ("mlp 64x4 b65536", [64] * 5, 65536, "relu"),
        ("linear+relu 256x256x512", [256, 512], 256, "relu"),
        ("linear+relu 1024x784x2048", [784, 2048], 1024, "relu"),
        ("linear+silu 256x256x512", [256, 512], 256, "silu"),
        ("linear+silu 1024x784x2048", [784, 2048], 1024, "silu"),
        ("linear+gelu 1024x1024x4096", [1024, 4096], 1024, "gelu"),
    ]:
        path = made / (name.replace(" ", "_").replace("+", "_") + ".onnx")
        yield name, path, mlp(path, widths, batch, act), 1.3


def session(path, threads):
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def burst(run, count, warmup):
    for _ in range(warmup):
        run()
    times = []
    for _ in range(count):
        start = time.perf_counter()
        run()
        times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times)


def hypatia(args, path, inputs, *more):
    command = [args.hypatia, "-q", "bench", path, "--inputs", inputs, "--threads", args.threads, "--json", *more]
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr.strip())
    return json.loads(done.stdout)


def agrees(args, path, inputs, reference):
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "out.npz"
        command = [args.hypatia, "-q", "run", path, "--inputs", inputs, "--outputs", out, "--device", "cpu"]
        subprocess.run([str(c) for c in command], check=True, capture_output=True)
        got = np.load(out)
        return max(
            float(np.abs(got[n] - want).max() / max(np.abs(want).max(), 1e-30)) for n, want in reference.items()
        )


def measure(args, name, path, inputs, goal, folder):
    npz = folder / "inputs.npz"
    np.savez(npz, **inputs)
    onnx_session = session(path, args.threads)
    run = lambda: onnx_session.run(None, inputs)
    reference = dict(zip([o.name for o in onnx_session.get_outputs()], run()))
    error = agrees(args, path, npz, reference)
    single = burst(run, 5, 3) / 1e3
    count = max(3, min(300, int(BURST_SECONDS / single)))
    warmup = max(2, count // 5)
    pairs = []
    for _ in range(args.pairs):
        theirs = burst(run, count, warmup)
        # Idle threads of the session go to sleep before the other one runs.
        time.sleep(0.02)
        ours = hypatia(args, path, npz, "--no-compare", "--runs", count, "--warmup", warmup)
        pairs.append({"onnxruntime_ms": theirs, "hypatia_ms": ours["with_rules"]["median_ms"]})
    sides = hypatia(args, path, npz, "--runs", max(30, min(300, int(2.0 / single))), "--warmup", warmup)
    middle = lambda key: statistics.median(p[key] for p in pairs)
    return {
        "case": name,
        "goal": goal,
        "runs_in_a_burst": count,
        "onnxruntime_ms": middle("onnxruntime_ms"),
        "hypatia_ms": middle("hypatia_ms"),
        "ratio": statistics.median(p["hypatia_ms"] / p["onnxruntime_ms"] for p in pairs),
        "rules": sides["ratio"],
        "launches": {"with": sides["with_rules"]["launches"], "without": sides["without_rules"]["launches"]},
        "largest_difference": error,
        "pairs": pairs,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=pathlib.Path)
    parser.add_argument("--hypatia", default="target/release/hypatia")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--only", help="cases whose name contains this")
    parser.add_argument("--json", type=pathlib.Path, help="raw times")
    args = parser.parse_args()
    results, failed = [], []
    about = measured.about(args.hypatia, measured.processor(args.threads), onnxruntime=ort.__version__)
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        for name, path, inputs, goal in cases(args.models, folder):
            if args.only and args.only not in name:
                continue
            try:
                r = measure(args, name, path, inputs, goal, folder)
            except (RuntimeError, subprocess.CalledProcessError) as e:
                failed.append(name)
                print(f"{name:<28} failed: {e}", file=sys.stderr)
                continue
            results.append(r)
            verdict = "ok" if r["ratio"] <= goal and r["rules"] <= 1.02 else "MISSED"
            print(
                f"{name:<28} ort {r['onnxruntime_ms']:8.3f} ms  hypatia {r['hypatia_ms']:8.3f} ms"
                f"  ratio {r['ratio']:5.2f} (goal {goal})  rules {r['rules']:.2f}"
                f"  off by {r['largest_difference']:.1e}  {verdict}",
                flush=True,
            )
            if args.json:
                measured.write(args.json, about, results)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
