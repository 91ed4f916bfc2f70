#!/usr/bin/env bash
# Writes the node tests of the `onnx` package to target/onnx-nodes/cases.npz, where the import tests
# look for them. Does nothing if they are there. The package is the one in target/python.
set -euo pipefail
cd "$(dirname "$0")/.."
tools/fetch_python.sh
python=target/python/bin/python
into=target/onnx-nodes
version=$(cat target/python/version)
if [ -e "$into/cases.npz" ] && [ "$(cat "$into/version" 2>/dev/null)" = "$version" ]; then
  exit 0
fi
rm -rf "$into" "$into.new"
mkdir -p "$into.new"
"$python" tools/make_node_cases.py "$into.new/cases.npz"
echo "$version" > "$into.new/version"
mv "$into.new" "$into"
