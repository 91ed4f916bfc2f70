#!/usr/bin/env bash
# Puts the node tests of the `onnx` package into target/onnx-nodes/cases.npz, where the import tests look for
# them. Does nothing if they are there.
set -euo pipefail
cd "$(dirname "$0")/.."
version=1.23.2
into=target/onnx-nodes
if [ -e "$into/cases.npz" ] && [ "$(cat "$into/version" 2>/dev/null)" = "$version" ]; then
  exit 0
fi
rm -rf "$into" "$into.new"
if ! python3 -c "import onnx; assert onnx.__version__ == '$version'" 2>/dev/null; then
  python3 -m pip install --quiet --disable-pip-version-check --no-deps --only-binary :all: --target "$into.new/python" \
    "onnx==$version" numpy==2.4.6 protobuf==7.36.2 ml_dtypes==0.6.0 typing_extensions==4.15.0
fi
mkdir -p "$into.new"
PYTHONPATH="$into.new/python" python3 tools/make_node_cases.py "$into.new/cases.npz"
echo "$version" > "$into.new/version"
mv "$into.new" "$into"
