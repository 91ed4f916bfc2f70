#!/usr/bin/env bash
# Tests the Python package in python/ with a debug build: ruff, pyright, the docstrings' examples
# and the tests. Makes a virtual environment with NumPy, PyTorch, pytest, ruff and pyright in
# target/torch (2.8 GB to fetch, 5 GB on disk; once), and puts what PyTorch's own samples need into
# target/torch-tests. Where PyTorch cannot be installed, its tests
# are skipped and counted; where the others cannot, it says so and ends with 77.
set -euo pipefail
cd "$(dirname "$0")/.."
into=$PWD/target/torch
base="numpy==2.4.6 ml_dtypes==0.6.0 pytest==9.2.0 pytest-xdist==3.8.0 ruff==0.17.6 pyright==1.1.414"
torch="torch==2.11.0"
stamp="$base $torch $(cksum < python/constraints.txt)"
pip() { "$into/bin/python" -m pip --quiet --disable-pip-version-check "$@" 2>&1; }

install() {
  [ "$(cat "$into/version" 2>/dev/null)" = "$stamp" ] && return
  rm -rf "$into"
  command -v python3 >/dev/null || { echo "python3 is not installed"; return 1; }
  python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "Python 3.10 or newer is needed"; return 1; }
  local said
  said=$(python3 -m venv "$into" 2>&1) || { echo "no virtual environment: ${said##*$'\n'}"; return 1; }
  # shellcheck disable=SC2086
  said=$(pip install --no-cache-dir -c python/constraints.txt $base) || { echo "pip: ${said##*$'\n'}"; return 1; }
  if ! said=$(pip install --no-cache-dir -c python/constraints.txt "$torch"); then
    echo "PyTorch could not be installed: ${said##*$'\n'}" >&2
    return # No stamp: it is tried again.
  fi
  echo "$stamp" > "$into/version"
}

if ! why=$(install); then
  rm -rf "$into"
  echo "the Python package is not tested: $why" >&2
  exit 77
fi
samples=$PWD/target/torch-tests
if ! [ -d "$samples/expecttest" ]; then
  pip install --no-cache-dir --no-deps --target "$samples" expecttest==0.3.0 ||
    echo "expecttest could not be installed: PyTorch's samples are skipped" >&2
fi
models="transformers==5.23.0 tokenizers==0.23.3 huggingface-hub==2.4.0 safetensors==0.8.0"
if ! "$into/bin/python" -c "import transformers, timm, torchvision" 2>/dev/null; then
  # shellcheck disable=SC2086
  { pip install --no-cache-dir -c python/constraints.txt $models &&
    pip install --no-cache-dir --no-deps timm==1.0.31 torchvision==0.26.0 pillow==13.0.0; } ||
    echo "transformers, timm or torchvision could not be installed: whole models are skipped" >&2
fi
if ! "$into/bin/python" -c "import onnxscript, onnxruntime" 2>/dev/null; then
  pip install --no-cache-dir --no-deps onnx==1.23.2 onnx_ir==1.1.0 onnxscript==0.7.2 onnxruntime==1.32.0 \
    protobuf==7.36.2 flatbuffers==25.12.19 ||
    echo "onnxscript or onnxruntime could not be installed: \`hypatia bench --suite models\` is not run" >&2
fi
export PYTHONPATH=$samples
# HYPATIA_NATIVE names a library that was built already.
[ -n "${HYPATIA_NATIVE:-}" ] || cargo build --quiet -p hypatia-python
cp "${HYPATIA_NATIVE:-target/debug/lib_native.so}" python/hypatia_core/_native.abi3.so
cd python
"$into/bin/ruff" format --check --quiet . || { echo "run ruff format in python/" >&2; exit 1; }
"$into/bin/ruff" check --quiet .
left=()
if "$into/bin/python" -c "import torch" 2>/dev/null; then
  if command -v node >/dev/null; then
    "$into/bin/python" -m pyright --pythonpath "$into/bin/python"
  else
    echo "node is missing: pyright is skipped" >&2
  fi
else
  of_torch="tests/test_layers.py tests/test_fuse.py tests/test_backend.py tests/test_docs.py
    tests/test_gpu.py tests/test_optimize.py tests/test_samples.py tests/test_generate.py
    tests/test_semantics.py tests/test_options.py tests/test_cache.py
    tests/test_models.py tests/test_modules.py tests/test_training.py tests/test_attention.py
    tests/test_examples.py tests/test_whole.py tests/test_rows.py tests/test_layout.py
    tests/test_recorded.py tests/test_passes.py tests/test_in_place.py tests/test_indices.py
    tests/test_fork.py tests/test_subclasses.py tests/test_encoder.py
    tests/test_division.py tests/test_steps.py"
  # shellcheck disable=SC2086
  echo "PyTorch is missing: pyright and $(cat $of_torch | grep -c '^def test_') tests of it are skipped" >&2
  left=(--ignore tests/models.py
    --ignore hypatia_core/nn --ignore hypatia_core/fuse.py --ignore hypatia_core/fused_modules.py
    --ignore hypatia_core/_eager.py --ignore hypatia_core/_fx.py --ignore hypatia_core/backend.py
    --ignore hypatia_core/_importer.py --ignore hypatia_core/_moves.py --ignore hypatia_core/_norms.py
    --ignore hypatia_core/_pointwise.py --ignore hypatia_core/_products.py
    --ignore hypatia_core/_launch.py --ignore hypatia_core/_part.py --ignore hypatia_core/_fusion.py
    --ignore hypatia_core/_optimize.py --ignore hypatia_core/_training.py --ignore hypatia_core/_division.py
    --ignore hypatia_core/_known.py --ignore hypatia_core/_attention.py
    --ignore hypatia_core/_partition.py --ignore hypatia_core/_whole.py
    --ignore hypatia_core/_layout.py --ignore hypatia_core/_recorded.py --ignore hypatia_core/_passes.py
    --ignore hypatia_core/_in_place.py --ignore hypatia_core/_encoder.py
    --ignore hypatia_core/_strides.py --ignore hypatia_core/_subclasses.py
    --ignore hypatia_core/_words.py --ignore hypatia_core/_steps.py)
fi
# Two processes; a file's tests stay together.
"$into/bin/python" -m pytest -n 2 --dist loadfile "${left[@]}"
