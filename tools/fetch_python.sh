#!/usr/bin/env bash
# Makes a virtual environment with numpy, onnx and onnxruntime (90 MB) in target/python, where `./x
# test` and the other tools look for it. Does nothing if it is there. Ends with 1, and prints the
# reason, if Python, its `venv` module or the package index is missing.
set -euo pipefail
cd "$(dirname "$0")/.."
into=target/python
# Every wheel with its version, so that nothing is resolved: each machine gets the same set.
wheels="numpy==2.4.6 onnx==1.23.2 onnxruntime==1.32.0
  flatbuffers==25.12.19 ml_dtypes==0.6.0 packaging==26.3 protobuf==7.36.2 typing_extensions==4.15.0"
stamp=$(echo $wheels)
if [ "$(cat "$into/version" 2>/dev/null)" = "$stamp" ] && "$into/bin/python" -c "" 2>/dev/null; then
  exit 0
fi
rm -rf "$into"
if ! command -v python3 >/dev/null; then
  echo "python3 is not installed" >&2
  exit 1
fi
if ! said=$(python3 -m venv "$into" 2>&1); then
  rm -rf "$into"
  echo "python3 cannot make a virtual environment (python3-venv may be missing): ${said##*$'\n'}" >&2
  exit 1
fi
pip() { "$into/bin/python" -m pip --quiet --disable-pip-version-check "$@" 2>&1; }
# shellcheck disable=SC2086
if ! said=$(pip install --no-deps --only-binary :all: $wheels); then
  rm -rf "$into"
  echo "pip could not install onnx and onnxruntime (is the package index within reach?): ${said##*$'\n'}" >&2
  exit 1
fi
# Written last: an environment without it is incomplete, and is made anew.
echo "$stamp" > "$into/version"
echo "numpy, onnx and onnxruntime are in $into" >&2
