#!/usr/bin/env bash
# Installs NVIDIA's run-time compiler (58 MB, no GPU needed) into target/nvrtc, where the tests look
# for it. Does nothing if it is there.
set -euo pipefail
cd "$(dirname "$0")/.."
version=13.5.37
into=target/nvrtc
if [ -e "$into/nvidia/cu13/lib/libnvrtc.so.13" ] && [ "$(cat "$into/version" 2>/dev/null)" = "$version" ]; then
  exit 0
fi
rm -rf "$into" "$into.new"
python3 -m pip install --quiet --disable-pip-version-check --no-deps --only-binary :all: \
  --target "$into.new" "nvidia-cuda-nvrtc==$version"
echo "$version" > "$into.new/version"
mv "$into.new" "$into"
echo "NVRTC $version is in $into" >&2
