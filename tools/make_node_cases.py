#!/usr/bin/env python3
"""Writes the node tests of the `onnx` package, which it makes in memory, as one archive.

For each case the archive holds `CASE/model` (the bytes of the file), and each input and expected
output as the bytes of a TensorProto: `CASE/in:NAME`, `CASE/out:NAME`. A case with values that are
not tensors has only its model. tools/fetch_node_cases.sh installs the package that the test
expects, and calls this.

    tools/make_node_cases.py FILE
"""

import sys
import warnings

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.case.node import collect_testcases

warnings.filterwarnings("ignore")
archive = {}


def put(name, message):
    archive[name] = np.frombuffer(message.SerializeToString(), dtype=np.uint8)


def tensors(values, kind, data):
    """The values as TensorProtos; nothing if one is something else."""
    out = {}
    for value, given in zip(values, data):
        if isinstance(given, onnx.TensorProto):
            tensor = given
        elif isinstance(given, (np.ndarray, np.generic)):
            tensor = numpy_helper.from_array(np.asarray(given))
        else:
            return {}
        tensor.name = ""
        out[f"{kind}:{value.name}"] = tensor
    return out


for case in collect_testcases(None):
    put(f"{case.name}/model", case.model)
    inputs, outputs = case.data_sets[0]
    graph = case.model.graph
    ins, outs = tensors(graph.input, "in", inputs), tensors(graph.output, "out", outputs)
    if len(ins) == len(inputs) and len(outs) == len(outputs):
        for name, tensor in {**ins, **outs}.items():
            put(f"{case.name}/{name}", tensor)

with open(sys.argv[1], "wb") as out:
    np.savez(out, **archive)
print(f"{sum(name.endswith('/model') for name in archive)} cases of onnx {onnx.__version__} in {sys.argv[1]}",
    file=sys.stderr)
