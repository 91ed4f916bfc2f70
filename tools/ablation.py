#!/usr/bin/env python3
"""Times each model without rules, with greedy rewriting, and with the e-graph.

    python3 tools/ablation.py MODELS --json docs/benchmarks/ablation.json [--device cuda]

MODELS is a folder with one folder for each model, `model.onnx` in it. Writes one row a model:
launches, predicted and measured microseconds, and milliseconds of optimising, for each way. Build
the command with `./x release`, so that it knows its source.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import measured


def ablate(hypatia, model, device):
    """The rows of `hypatia bench --ablation`: a dictionary for each way."""
    command = [
        str(hypatia),
        "bench",
        str(model),
        "--ablation",
        "--device",
        device,
        "--json",
        "-q",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: {done.stderr.strip()}")
    return json.loads(done.stdout)["ways"]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", type=Path)
    parser.add_argument("--hypatia", type=Path, default=Path("target/release/hypatia"))
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    args = parser.parse_args()
    on_gpu = args.device == "cuda"
    device = measured.gpu() if on_gpu else measured.processor(os.cpu_count())
    about = measured.about(args.hypatia, device, gpu=on_gpu)
    rows = []
    for model in sorted(args.models.glob("*/model.onnx")):
        rows.append({"case": model.parent.name, "ways": ablate(args.hypatia, model, args.device)})
        print(rows[-1], flush=True)
        measured.write(args.json, about, rows)


if __name__ == "__main__":
    main()
