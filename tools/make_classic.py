#!/usr/bin/env python3
"""Writes runtime/cli/src/bench/classic.hyp: the cases of `hypatia bench --suite classic`."""

import pathlib

SHAPES = [(256, 256, 512), (1024, 784, 2048), (4096, 1024, 4096), (8192, 4096, 4096)]
EPILOGUES = {
    "none": "linear(x, w, b)",
    "relu": "relu(linear(x, w, b))",
    "gelu_tanh": "gelu_tanh(linear(x, w, b))",
    "gelu": "gelu(linear(x, w, b))",
    "silu": "silu(linear(x, w, b))",
    "mish": "mish(linear(x, w, b))",
    "residual": "linear(x, w, b) + t",
    "silu_gate": "silu(linear(x, w, b)) * t",
}
DTYPES = ["f32", "f16", "bf16"]
MLPS = [(256, 256), (1024, 512), (4096, 4096)]
DEPTHS = [2, 3, 4]
SWIGLU = (4096, 4096, 11008)
ROWS = [1024, 4096, 8192, 16384, 65536]
ROWWISE = {"softmax": "softmax(x)", "layer_norm": "layer_norm(x, w, b)", "rms_norm": "rms_norm(x, w)", "copy": "x + 1"}

out = []


def case(name, inputs, given):
    out.append(f'test "{name}" on h200 {{')
    for kind, n, ty in inputs:
        out.append(f"  {kind} {n}: {ty};")
    out.append(f"  given {given};\n  expect launches >= 1;\n}}")


for m, k, n in SHAPES:
    for dtype in DTYPES:
        for name, given in EPILOGUES.items():
            inputs = [("input", "x", f"{dtype}[{m}, {k}]"), ("const", "w", f"{dtype}[{n}, {k}]"),
                ("const", "b", f"{dtype}[{n}]")]
            if name in ("residual", "silu_gate"):
                inputs.append(("input", "t", f"{dtype}[{m}, {n}]"))
            case(f"linear {name} {m}x{k}x{n} {dtype}", inputs, given)


def mlp(width, depth, batch, dtype):
    inputs, given = [("input", "x", f"{dtype}[{batch}, {width}]")], "x"
    for i in range(depth):
        inputs += [("const", f"w{i}", f"{dtype}[{width}, {width}]"), ("const", f"b{i}", f"{dtype}[{width}]")]
        given = f"linear({given}, w{i}, b{i})"
        if i < depth - 1:
            given = f"relu({given})"
    case(f"mlp {width}x{depth} b{batch} {dtype}", inputs, given)


for width, batch in MLPS:
    for depth in DEPTHS:
        for dtype in ("f32", "bf16"):
            mlp(width, depth, batch, dtype)
mlp(64, 4, 65536, "bf16")
mlp(128, 4, 65536, "bf16")
m, k, n = SWIGLU
weights = [("const", v, f"bf16[{n}, {k}]") for v in ("gate", "up")]
case(f"swiglu {m}x{k}x{n} bf16", [("input", "x", f"bf16[{m}, {k}]"), *weights], "silu(linear(x, gate)) * linear(x, up)")
for n in ROWS:
    for dtype in ("f32", "bf16"):
        for name, given in ROWWISE.items():
            inputs = [("input", "x", f"{dtype}[{(1 << 26) // n}, {n}]")]
            inputs += [("const", v, f"{dtype}[{n}]") for v in "wb" if f" {v}" in given]
            case(f"{name} {(1 << 26) // n}x{n} {dtype}", inputs, given)

head = """edition 1;
//! The cases of `hypatia bench --suite classic`: linear layers with epilogues, multi-layer
//! perceptrons, a gate, rows. Written by tools/make_classic.py.
use core::*;
use nn::*;

"""
path = pathlib.Path(__file__).parent.parent / "runtime/cli/src/bench/classic.hyp"
path.write_text(head + "\n".join(out) + "\n")
print(path, len([l for l in out if l.startswith("test")]), "cases")
