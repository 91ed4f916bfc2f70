#!/usr/bin/env python3
"""BERT-base with random weights on one GPU: PyTorch exports it, Hypatia and PyTorch run it.

    python3 tools/gpu_bert.py --hypatia PATH/hypatia --out DIR
        [--batch 8] [--seq 128] [--dtype bf16] [--compile]

Compares Hypatia's result with PyTorch's in f32. Prints microseconds: Hypatia (with and without
rules), eager, eager in a CUDA graph, and with --compile torch.compile(mode="max-autotune"). Writes
DIR/bert.json, as docs/benchmarks keeps it; the whole profile is in DIR/bert_bench.log.
"""

import argparse
import json
import pathlib
import subprocess
import tempfile
import time

import numpy as np
import torch

import measured
from gpu_peers import graphed, timed

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


class Wrapped(torch.nn.Module):
    """The last hidden state, as f32."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, ids):
        return self.model(ids).last_hidden_state.float()


def kinds(kernels):
    """Launches and microseconds of each kind of kernel, each kernel timed alone."""
    found = {}
    for k in kernels:
        kind = found.setdefault(k["kind"], {"launches": 0, "us": 0.0})
        kind["launches"] += 1
        kind["us"] += k["time_us"]
    return found


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--hypatia", required=True)
    p.add_argument("--out", required=True, type=pathlib.Path)
    p.add_argument("--batch", type=int, default=8)
    p.add_argument("--seq", type=int, default=128)
    p.add_argument("--layers", type=int, default=12)
    p.add_argument("--dtype", choices=list(DTYPES), default="bf16")
    p.add_argument("--compile", action="store_true")
    a = p.parse_args()
    about = measured.about(a.hypatia, torch.cuda.get_device_name(), gpu=True, torch=torch.__version__)
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = False
    config = BertConfig(num_hidden_layers=a.layers)
    full = Wrapped(BertModel(config, add_pooling_layer=False)).eval()
    ids = torch.randint(0, 30000, (a.batch, a.seq))
    folder = tempfile.TemporaryDirectory(prefix="bert")
    work = pathlib.Path(folder.name)
    with torch.no_grad():
        want = full.cuda()(ids.cuda()).cpu().numpy()
        model = full.cpu().to(DTYPES[a.dtype])
        path = work / "bert.onnx"
        torch.onnx.export(model, (ids,), str(path), dynamo=True, opset_version=20, input_names=["ids"],
            output_names=["y"])
        np.savez(work / "in.npz", ids=ids.numpy())
        np.savez(work / "want.npz", y=want)
        model = model.cuda()
        on = ids.cuda()
        got = model(on).cpu().numpy()
        eager_error = float(np.abs(got - want).max())
        row = {"case": f"bert-base b{a.batch} s{a.seq} {a.dtype}", "eager_error": eager_error,
            "max": float(np.abs(want).max())}
        row["eager"] = timed(lambda: model(on))
        row["eager_graph"] = timed(graphed(lambda: model(on)))
        if a.compile:
            compiled = torch.compile(model, mode="max-autotune")
            begin = time.time()
            compiled(on), compiled(on)
            row["compile_s"] = time.time() - begin
            row["compiled"] = timed(lambda: compiled(on))
    a.out.mkdir(parents=True, exist_ok=True)
    for start in ("cold", "warm"):
        begin = time.time()
        command = [a.hypatia, "run", str(path), "--inputs", str(work / "in.npz"), "--check", str(work / "want.npz"),
            "--device", "cuda", "--json", "--outputs", str(work / f"out_{start}.npz")]
        done = subprocess.run(command, capture_output=True, text=True)
        row[f"run_{start}_s"] = time.time() - begin
        # From the start of the process to the first result. `run` measures more after it, for its
        # report.
        row[f"first_{start}_s"] = json.loads(done.stdout)["first_s"] if done.stdout else None
        (a.out / f"bert_run_{start}.log").write_text(done.stdout[-20000:] + done.stderr[-4000:])
    if (work / "out_warm.npz").exists():
        row["error"] = float(np.abs(np.load(work / "out_warm.npz")["y"] - want).max())
    command = [a.hypatia, "bench", str(path), "--inputs", str(work / "in.npz"), "--device", "cuda", "--profile"]
    done = subprocess.run(command + ["--json"], capture_output=True, text=True)
    if done.stdout:
        bench = json.loads(done.stdout)
        row["first_s"], row["warnings"] = bench["first_s"], bench["warnings"]
        for side in ("with_rules", "without_rules"):
            row[side] = {k: bench[side][k] for k in ("launches", "median_ms", "min_ms")}
        row["kinds"] = kinds(bench["profile"]["kernels"])
    (a.out / "bert_bench.log").write_text(done.stdout[-200000:] + done.stderr[-4000:])
    measured.write(a.out / "bert.json", about, [row])
    print(json.dumps(row, indent=1))
    for k in bench["profile"]["kernels"][:40] if done.stdout else []:
        print(f"{k['time_us']:8.2f} us {k['gflops']:10.0f} GF/s {k['gbs']:8.0f} GB/s {k['kind']:<10} {k['name'][:90]}")
    if not done.stdout:
        print(done.stderr[-3000:])


if __name__ == "__main__":
    main()
