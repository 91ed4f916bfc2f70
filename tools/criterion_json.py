#!/usr/bin/env python3
"""Collects the medians of a criterion run in one file, such as docs/benchmarks/compiler.json.

    python3 tools/criterion_json.py FOLDER FILE.json     (`./x bench FILE.json` calls it)

Reads FOLDER/**/new/estimates.json, which must come from the current source. Standard library only.
"""

import json
import os
import pathlib
import re
import subprocess
import sys

import measured


def rows(folder):
    """Name, median and its 95 % interval of every benchmark below the folder."""
    found = []
    for estimates in sorted(pathlib.Path(folder).glob("**/new/estimates.json")):
        read = lambda name: json.loads((estimates.parent / name).read_text())
        median = read("estimates.json")["median"]
        interval = median["confidence_interval"]
        found.append(
            {
                "case": read("benchmark.json")["full_id"],
                "median_ms": median["point_estimate"] / 1e6,
                "low_ms": interval["lower_bound"] / 1e6,
                "high_ms": interval["upper_bound"] / 1e6,
                "samples": len(read("sample.json")["times"]),
            }
        )
    return found


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    found = rows(sys.argv[1])
    if not found:
        sys.exit(f"{sys.argv[1]} holds no new/estimates.json")
    root = pathlib.Path(__file__).resolve().parent
    ask = lambda what: subprocess.run([root / "source.sh", what], check=True, capture_output=True,
        text=True).stdout.strip()
    version = re.search(r'^version = "(.*)"', (root.parent / "Cargo.toml").read_text(), re.M).group(1)
    device = measured.processor(len(os.sched_getaffinity(0)))
    about = measured.record(device, {"hypatia": version}, ask("commit"), ask("hash"), f"./x bench {sys.argv[2]}")
    measured.write(sys.argv[2], about, found)


if __name__ == "__main__":
    main()
