#!/usr/bin/env python3
"""Writes what the `onnx` package knows, for the import tests to compare with.

types.json beside each model named: the type of every value by `onnx.shape_inference`. And
tests/models/onnx_versions.json: the opsets that defined or changed each op of the default domain.

    tools/onnx_types.py tests/models/digits tests/models/ffn tests/models/bert
"""

import json
import os
import sys

import onnx
from onnx import TensorProto

NAMES = {"FLOAT": "f32", "DOUBLE": "f64", "FLOAT16": "f16", "BFLOAT16": "bf16", "INT64": "i64", "INT32": "i32",
         "INT8": "i8", "UINT8": "u8", "BOOL": "bool"}

versions = {}
for schema in onnx.defs.get_all_schemas_with_history():
    if schema.domain == "":
        versions.setdefault(schema.name, []).append(schema.since_version)
here = os.path.dirname(os.path.abspath(__file__))
with open(os.path.join(here, "..", "tests", "models", "onnx_versions.json"), "w") as out:
    lines = [f"{json.dumps(op)}: {sorted(since)}" for op, since in sorted(versions.items())]
    out.write("{\n" + ",\n".join(lines) + "\n}\n")

for folder in sys.argv[1:]:
    model = onnx.load(os.path.join(folder, "model.onnx"))
    del model.graph.value_info[:]
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    graph = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True).graph
    types = {}
    for value in [*graph.input, *graph.value_info, *graph.output]:
        tensor = value.type.tensor_type
        dims = [d.dim_param or (str(d.dim_value) if d.HasField("dim_value") else "?") for d in tensor.shape.dim]
        types[value.name] = f"{NAMES[TensorProto.DataType.Name(tensor.elem_type)]}[{', '.join(dims)}]"
    with open(os.path.join(folder, "types.json"), "w") as out:
        json.dump(types, out, indent=0)
        out.write("\n")
    print(folder, len(types))
