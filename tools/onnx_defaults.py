#!/usr/bin/env python3
"""Writes the default value of every attribute of every ONNX op, for each version of its definition.

    target/python/bin/python tools/onnx_defaults.py > tests/models/onnx_defaults.json

The import tests write these values out on nodes that leave them to their defaults, as some
exporters do: that must change nothing. A value is an object with one key, the field of
AttributeProto that holds it.
"""

import json

import onnx
from onnx import AttributeProto

FIELDS = {
    AttributeProto.INT: ("i", lambda a: a.i),
    AttributeProto.FLOAT: ("f", lambda a: a.f),
    AttributeProto.STRING: ("s", lambda a: a.s.decode()),
    AttributeProto.INTS: ("ints", lambda a: list(a.ints)),
    AttributeProto.FLOATS: ("floats", lambda a: list(a.floats)),
    AttributeProto.STRINGS: ("strings", lambda a: [s.decode() for s in a.strings]),
}

ops = {}
for schema in onnx.defs.get_all_schemas_with_history():
    if schema.domain or schema.deprecated:
        continue
    values = {}
    for name, attribute in sorted(schema.attributes.items()):
        if attribute.default_value.type in FIELDS:
            field, read = FIELDS[attribute.default_value.type]
            values[name] = {field: read(attribute.default_value)}
    ops.setdefault(schema.name, {})[schema.since_version] = values

# A version without defaults ends those of the one before it.
ops = {op: versions for op, versions in ops.items() if any(versions.values())}
lines = [f"{json.dumps(op)}: {json.dumps(dict(sorted(versions.items())))}" for op, versions in sorted(ops.items())]
print("{\n" + ",\n".join(lines) + "\n}")
