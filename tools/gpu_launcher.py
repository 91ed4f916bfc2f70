#!/usr/bin/env python3
"""Runs what `hypatia gen --emit launcher` writes, on a GPU: the C header and the PyTorch module.

    gpu_launcher.py --hypatia hypatia --out DIR

Generates a product with an epilogue (with the copy engine's descriptors on Hopper, and the template
of warps), a row-wise op, a pointwise function and a broadcast pointwise region. Each is launched
from a C program and from PyTorch, on random data over poisoned results, and compared with PyTorch
in f64. Needs a C compiler, cuda.h, PyTorch and onnx; the exit code is 1 if something differs.
"""

import argparse
import ctypes
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import onnx
import torch
from onnx import TensorProto, helper

RULES = """edition 1;
use core::*;
use nn::*;

/// A soft limit of 30.
scalar softcap(x) = 30.0 * tanh(x / 30.0);

/// Rows divided by their Euclidean length.
op unit_rows<T: float>(x: T[..s, n], eps: float = 1e-6) -> T[..s, n]
  = x * rsqrt(sum(x * x, axes = [-1]) + eps);
kernel unit_rows_kernel for unit_rows(x, eps = eps) { rowwise; }
"""
M, N, K = 2056, 1048, 520
TYPES = {
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
}


def model(path):
    """silu(x w + bias) + residual, and a region with a broadcast operand: tanh(y) * column."""
    kind = TensorProto.BFLOAT16
    values = [("x", [M, K]), ("w", [K, N]), ("bias", [N]), ("residual", [M, N]), ("z", [M, N]), ("column", [M, 1])]
    inputs = [helper.make_tensor_value_info(name, kind, shape) for name, shape in values]
    outputs = [helper.make_tensor_value_info(name, kind, [M, N]) for name in ("y", "region")]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["product"]),
        helper.make_node("Add", ["product", "bias"], ["sum"]),
        helper.make_node("Sigmoid", ["sum"], ["gate"]),
        helper.make_node("Mul", ["sum", "gate"], ["silu"]),
        helper.make_node("Add", ["silu", "residual"], ["y"]),
        helper.make_node("Tanh", ["z"], ["t"]),
        helper.make_node("Mul", ["t", "column"], ["region"]),
    ]
    graph = helper.make_graph(nodes, "launcher", inputs, outputs)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.save(made, path)


class Case:
    """A kernel with tensors for its pointers, and what it must compute."""

    def __init__(self, folder, kernel, sizes, step=None):
        self.folder, self.kernel = folder, kernel
        self.sizes = {**sizes, **((step or {}).get("sizes") or {})}
        self.tensors, self.want = {}, {}
        # Units in the last place: one rounding at the store, and one of a short function.
        self.units = 2

    def random(self, *shape):
        kind = TYPES[self.kernel["dtype"]]
        return (torch.rand(*shape, dtype=torch.float32, device="cuda") * 2 - 1).to(kind)

    def poisoned(self, *shape):
        return torch.full(shape, float("nan"), dtype=TYPES[self.kernel["dtype"]], device="cuda")

    def argument(self, arg):
        """The argument's name in the launchers, and its value."""
        name = arg["name"].removesuffix("_map") if arg["role"] == "tensor_map" else arg["name"]
        if name in self.tensors:
            return name, self.tensors[name]
        value = self.sizes[arg["name"]]
        return name, value if arg["role"] == "sizes" else (value[0] if isinstance(value, list) else value)

    def arguments(self):
        return [(*self.argument(arg), arg) for arg in self.kernel["args"]]


def product(folder, kernel, step):
    case = Case(folder, kernel, {}, step)
    x, w, bias, residual = case.random(M, K), case.random(K, N), case.random(N), case.random(M, N)
    for arg in kernel["args"]:
        name = arg["name"].removesuffix("_map")
        about = arg["about"]
        if name == "in0":
            case.tensors[name] = x.t().contiguous() if "depth x rows" in about else x
        elif name == "in1":
            case.tensors[name] = w.t().contiguous() if "columns x depth" in about else w
        elif name == "out0":
            case.tensors[name] = case.poisoned(M, N)
        elif arg["role"] in ("input", "tensor_map"):
            case.tensors[name] = bias if "one element a column" in about else residual
    y = x.double() @ w.double() + bias.double()
    case.want["out0"] = y * torch.sigmoid(y) + residual.double()
    return case


def region(folder, kernel, step):
    case = Case(folder, kernel, {"rows": M, "n": N}, step)
    z, column = case.random(M, N), case.random(M, 1)
    for arg in kernel["args"]:
        if arg["role"] == "input":
            # The strides of a broadcast operand end in 0; that of a column is said in words.
            strides = case.sizes.get(arg["name"] + "_strides")
            apart = strides[-1] == 0 if strides else arg["about"] == "one element a row"
            case.tensors[arg["name"]] = column if apart else z
    case.tensors["out0"] = case.poisoned(M, N)
    case.want["out0"] = torch.tanh(z.double()) * column.double()
    return case


def rowwise(folder, kernel):
    case = Case(folder, kernel, {"rows": M, "n": N})
    x = case.random(M, N)
    case.tensors.update(in0=x, out0=case.poisoned(M, N))
    case.want["out0"] = x.double() * torch.rsqrt((x.double() ** 2).sum(-1, keepdim=True) + 1e-6)
    return case


def pointwise(folder, kernel):
    case = Case(folder, kernel, {"n": M * N})
    x = case.random(M, N) * 40
    case.tensors.update(in0=x, out0=case.poisoned(M, N))
    case.want["out0"] = 30 * torch.tanh(x.double() / 30)
    # Half a unit for the quotient, two for CUDA's tanhf, half a unit for the product.
    case.units = 3
    return case


def differs(case, got, by):
    """Compares a result; prints a line."""
    eps = torch.finfo(TYPES[case.kernel["dtype"]]).eps
    want = case.want["out0"]
    error = (got.double() - want).abs()
    allowed = case.units * eps * want.abs() + eps
    bad = int((~(error <= allowed)).sum())
    word = "ok     " if bad == 0 else "FAILED "
    name, kind = case.kernel["kernel"], case.kernel["dtype"]
    of = f"{case.folder.name}/{name} {kind} by {by}"
    print(f"{word} {of}: max error {float(error.max()):.2e}, {bad} differ", flush=True)
    return bad > 0


def by_pytorch(case):
    name = case.kernel["module"].removesuffix(".py")
    # Kernels of several folders have one name.
    label = f"{case.folder.name}_{name}"
    if label not in sys.modules:
        spec = importlib.util.spec_from_file_location(label, case.folder / case.kernel["module"])
        sys.modules[label] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[label])
    function = getattr(sys.modules[label], name)
    function(*[value for _, value, _ in case.arguments()])
    torch.cuda.synchronize()
    return case.tensors["out0"].clone()


C = """#include "HEADER"
#include <stdio.h>
#include <stdlib.h>

static void must(CUresult status, const char *what)
{
  const char *text = "";
  if (status == CUDA_SUCCESS) return;
  cuGetErrorString(status, &text);
  fprintf(stderr, "%s: %s\\n", what, text);
  exit(1);
}

static CUdeviceptr given(const char *file, size_t bytes)
{
  CUdeviceptr out;
  char *host = (char *)malloc(bytes);
  FILE *f = fopen(file, "rb");
  if (!f || fread(host, 1, bytes, f) != bytes) exit(2);
  fclose(f);
  must(cuMemAlloc(&out, bytes), "cuMemAlloc");
  must(cuMemcpyHtoD(out, host, bytes), "cuMemcpyHtoD");
  free(host);
  return out;
}

int main(void)
{
  CUdevice device;
  CUcontext context;
  CUstream stream;
  NAME_kernel kernel;
  must(cuInit(0), "cuInit");
  must(cuDeviceGet(&device, 0), "cuDeviceGet");
  must(cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
  must(cuCtxSetCurrent(context), "cuCtxSetCurrent");
  must(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
STATEMENTS
  must(NAME_load(&kernel, "CUBIN"), "load");
  must(NAME_launch(&kernel, stream, VALUES), "launch");
  must(cuStreamSynchronize(stream), "cuStreamSynchronize");
  char *host = (char *)malloc(BYTES);
  must(cuMemcpyDtoH(host, RESULT, BYTES), "cuMemcpyDtoH");
  FILE *f = fopen("out.bin", "wb");
  if (!f || fwrite(host, 1, BYTES, f) != BYTES || fclose(f)) return 2;
  must(NAME_unload(&kernel), "unload");
  return 0;
}
"""


def by_c(case, include, driver, arch):
    work = case.folder / f"c_{case.kernel['header'].removesuffix('.h')}"
    work.mkdir(exist_ok=True)
    statements, values, result = [], [], ""
    case.tensors["out0"].fill_(float("nan"))
    for name, value, arg in case.arguments():
        if isinstance(value, torch.Tensor):
            raw = value.contiguous().view(torch.uint8).cpu().numpy().tobytes()
            (work / f"{name}.bin").write_bytes(raw)
            statements.append(f'  const CUdeviceptr {name} = given("{name}.bin", {len(raw)});')
            values.append(name)
            if name == "out0":
                result = name
            if arg["role"] == "tensor_map":
                b, r, c = [1] * (3 - value.dim()) + list(value.shape)
                statements.append(
                    f"  const hypatia_tensor {name}_t = hypatia_dense({name}, {b}, {r}, {c}, {value.element_size()});"
                )
                values[-1] = f"&{name}_t"
        elif isinstance(value, list):
            statements.append(f"  const int64_t {name}[] = {{{', '.join(map(str, value))}}};")
            values.append(name)
        else:
            values.append(str(value))
    out = case.tensors["out0"]
    code = next(c["file"] for c in case.kernel["cubins"] if c["arch"] == arch)
    text = C
    for word, put in [
        ("HEADER", f"../{case.kernel['header']}"),
        ("STATEMENTS", "\n".join(statements)),
        ("CUBIN", f"../{code}"),
        ("NAME", case.kernel["header"].removesuffix(".h")),
        ("VALUES", ", ".join(values)),
        ("BYTES", str(out.numel() * out.element_size())),
        ("RESULT", result),
    ]:
        text = text.replace(word, put)
    (work / "main.c").write_text(text)
    flags = ["-std=c99", "-O1", "-Wall", "-Wextra", "-Werror", "-Wno-unused-function", f"-I{include}"]
    subprocess.run(["cc", *flags, "main.c", driver, "-o", "main"], cwd=work, check=True)
    subprocess.run(["./main"], cwd=work, check=True)
    raw = bytearray((work / "out.bin").read_bytes())
    return torch.frombuffer(raw, dtype=torch.uint8).view(out.dtype).reshape(out.shape).cuda()


def cuda_header():
    """The folder of cuda.h, of the toolkit or of a Python package."""
    packages = Path(torch.__file__).parents[1]
    places = [Path("/usr/local/cuda/include"), *packages.glob("nvidia/*/include")]
    found = next((p for p in places if (p / "cuda.h").exists()), None)
    return found or sys.exit("no cuda.h: install the CUDA toolkit or the Python package nvidia-cuda-runtime")


def driver_library():
    ctypes.CDLL("libcuda.so.1")
    maps = Path("/proc/self/maps").read_text().splitlines()
    return next(line.split()[-1] for line in maps if "/libcuda.so" in line)


def generate(hypatia, args, folder, arch):
    command = [hypatia, "gen", *args, "-o", folder, "--emit", "launcher", "--arch", arch]
    subprocess.run([str(a) for a in command], check=True, stdout=subprocess.DEVNULL)
    return json.loads((folder / "manifest.json").read_text())


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--hypatia", default="hypatia")
    p.add_argument("--out", type=Path, required=True)
    args = p.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    major, minor = torch.cuda.get_device_capability()
    arch = f"sm_{major}{minor}{'a' if major >= 9 else ''}"
    print(f"{torch.cuda.get_device_name()}, {arch}, PyTorch {torch.__version__}", flush=True)
    hyp, onnx_file = args.out / "launcher.hyp", args.out / "launcher.onnx"
    hyp.write_text(RULES)
    model(onnx_file)

    cases = []
    declared = generate(args.hypatia, [hyp, "--dtype", "f32,bf16"], args.out / "declared", arch)
    for kernel in declared["kernels"]:
        make = {"rowwise": rowwise, "pointwise": pointwise}[kernel["kind"]]
        cases.append(make(args.out / "declared", kernel))
    for target in ["h200", "a100"] if arch == "sm_90a" else ["a100"]:
        folder = args.out / target
        planned = generate(args.hypatia, ["--model", onnx_file, "--target", target], folder, arch)
        for step in planned["steps"]:
            kernel = next((k for k in planned["kernels"] if k["kernel"] == step["kernel"]), None)
            if kernel is None:
                continue
            cases.append((product if kernel["kind"] == "product" else region)(folder, kernel, step))

    include, driver = cuda_header(), driver_library()
    failed = 0
    for case in cases:
        # Two launches: the second finds the kernel loaded.
        by_pytorch(case)
        case.tensors["out0"].fill_(float("nan"))
        first = by_pytorch(case)
        failed += differs(case, first, "PyTorch")
        second = by_c(case, include, driver, arch)
        failed += differs(case, second, "C")
        if not torch.equal(first, second):
            print(f"FAILED  {case.kernel['kernel']}: the two launchers' results differ")
            failed += 1
    products = sum(case.kernel["kind"] == "product" for case in cases)
    print(f"{len(cases)} kernels, {products} of them products, {failed} failures")
    sys.exit(1 if failed or products == 0 else 0)


if __name__ == "__main__":
    main()
