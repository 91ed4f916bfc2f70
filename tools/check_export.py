"""Checks what `hypatia opt MODEL -o OUT` writes with onnx and onnxruntime.

It runs onnx's checker and strict shape inference, compares onnxruntime's results with the expected
ones, and compares the number of functions with the fusions that `hypatia explain` reports.

    check_export.py HYPATIA MODEL_FOLDER...      (model.onnx, inputs.npz and outputs.npz in each)

Needs numpy, onnx and onnxruntime (tools/fetch_python.sh); exits with 77 if they are missing.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

try:
    import numpy as np
    import onnx
    import onnxruntime
except ImportError as e:
    print(f"skipped: {e}", file=sys.stderr)
    sys.exit(77)


def check(hypatia, folder, out):
    """Checks the export of one model; returns a line about it, or raises."""
    model = folder / "model.onnx"
    done = subprocess.run([hypatia, "opt", model, "-o", out], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    explain = subprocess.run([hypatia, "explain", model, "--json"], capture_output=True, text=True, check=True)
    fusions = len(json.loads(explain.stdout)["fusions"])
    exported = onnx.load(out)
    onnx.checker.check_model(exported, full_check=True)
    onnx.shape_inference.infer_shapes(exported, strict_mode=True, data_prop=True)
    functions = len(exported.functions)
    assert functions == fusions > 0, f"{functions} functions, {fusions} fusions"
    original = onnx.load(model)
    names = lambda g: ([i.name for i in g.input], [o.name for o in g.output])
    assert names(original.graph) == names(exported.graph), "inputs or outputs have other names"
    session = onnxruntime.InferenceSession(out, providers=["CPUExecutionProvider"])
    want = dict(np.load(folder / "outputs.npz"))
    worst = 0.0
    for (name, reference), got in zip(want.items(), session.run(list(want), dict(np.load(folder / "inputs.npz")))):
        assert got.shape == reference.shape, f"{name}: shape {got.shape}, not {reference.shape}"
        worst = max(worst, float(np.abs(got - reference).max() / np.abs(reference).max()))
    assert worst <= 1e-4, f"off by {worst:.2e}"
    return f"{functions} functions, max |error| {worst:.1e} of the largest value"


def main(hypatia, *folders):
    failed = False
    with tempfile.TemporaryDirectory() as temporary:
        for folder in map(Path, folders):
            try:
                print(f"{folder.name:<12} {check(hypatia, folder, str(Path(temporary) / 'out.onnx'))}")
            except Exception as e:
                failed = True
                print(f"{folder.name:<12} FAILED: {e}")
    sys.exit(failed)


if __name__ == "__main__":
    main(*sys.argv[1:])
