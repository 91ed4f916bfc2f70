#!/usr/bin/env bash
# Packs what the GPU tests need into target/gpu-bundle: the test binaries, the command, models and a
# run script. Copy the folder to a machine with an NVIDIA GPU and run `gpu-bundle/run.sh [RESULTS]`
# there; it needs neither Rust nor a network. The folder stays below 60 MiB.
set -euo pipefail
cd "$(dirname "$0")/.."
out=target/gpu-bundle
rm -rf "$out"
mkdir -p "$out/models"
# The command records its source, because it will run where there is no git.
HYPATIA_COMMIT=$(tools/source.sh commit) HYPATIA_SOURCE=$(tools/source.sh hash)
export HYPATIA_COMMIT HYPATIA_SOURCE
cargo build --quiet --profile bundle -p hypatia-cli
# The path of the test program that cargo builds with these arguments.
program() {
  cargo test --quiet --profile bundle "$@" --no-run --message-format=json |
    sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' | tail -n 1
}
tests=$(program -p hypatia-cuda --lib)
session=$(program -p hypatia --test session)
strip -o "$out/hypatia" target/bundle/hypatia
strip -o "$out/tests" "$tests"
strip -o "$out/session" "$session"
cp -r tests/models/digits tests/models/ffn tests/models/bert "$out/models/"
# More models, for example exported ones that are too large for the repository.
for folder in "$@"; do cp -r "$folder" "$out/models/"; done
printf '{"commit": "%s", "source": "%s"}\n' "$HYPATIA_COMMIT" "$HYPATIA_SOURCE" >"$out/version.json"
cp tools/measured.py tools/gpu_peers.py tools/gpu_bert.py tools/gpu_launcher.py "$out/"
cp tools/gpu_run.sh "$out/run.sh"
size=$(du -sm "$out" | cut -f1)
echo "$out: $size MiB"
[ "$size" -le 60 ] || { echo "more than 60 MiB" >&2; exit 1; }
