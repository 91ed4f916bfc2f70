#!/usr/bin/env bash
# Which source a measurement is of.
#
#   tools/source.sh hash [ROOT]   the SHA-256 of everything that affects speed (rules, templates,
#                                 each crate's src) in the checkout at ROOT (default: this one). It
#                                 hashes a line for each file, in the order of paths: its SHA-256
#                                 and its path. Snapshots of tests are left out.
#   tools/source.sh commit        the current commit, with a `+` where these folders differ from it;
#                                 `unknown` without git
#
# A build that will be measured passes both to the command (HYPATIA_SOURCE, HYPATIA_COMMIT). The
# command reports them (`hypatia doctor --json`, `hypatia bench --json`), and docs/benchmarks/*.json
# keep them. The test `benchmarks_page` compares them with the current checkout by this script.
set -euo pipefail
export LC_ALL=C
# Set in the checkout that is asked about: each room of runtime/ has a folder src.
folders() { shopt -s nullglob && folders=(rules templates runtime/src runtime/*/src hypatia-dsl/src); }
case "${1:-}" in
  hash)
    cd "${2:-$(dirname "$0")/..}" && folders
    find "${folders[@]}" -type f -not -path '*/snapshots/*' -print0 | sort -z |
      xargs -0 sha256sum | sha256sum | cut -d ' ' -f 1
    ;;
  commit)
    cd "$(dirname "$0")/.." && folders
    commit=$(git rev-parse --short=7 HEAD 2>/dev/null) || { echo unknown; exit; }
    [ -z "$(git status --porcelain -- "${folders[@]}")" ] || commit+=+
    echo "$commit"
    ;;
  *)
    sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2
    exit 2
    ;;
esac
