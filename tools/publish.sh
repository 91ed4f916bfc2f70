#!/usr/bin/env bash
# Publishes every crate of the workspace to crates.io, each after those that it depends on.
#
#   tools/publish.sh                     a dry run: checks that each crate can be published
#   tools/publish.sh --prepare           links the licences into each crate's folder
#   tools/publish.sh --execute [CRATE]   publishes, after `cargo login`; from CRATE on to resume
#
# In: `cargo metadata`, and what `cargo package --list` says goes into each crate. Out: the order,
# or everything that is missing. Invariant: nothing is uploaded without --execute, nor with a
# finding.
set -euo pipefail
cd "$(dirname "$0")/.."
command -v python3 >/dev/null || { echo "tools/publish.sh needs python3" >&2; exit 1; }
exec python3 tools/publish.py "$@"
