"""What a measurement is of, as docs/benchmarks/*.json keep it: device, versions, date, commit, command, hash of the source.

The hypatia command knows which source it was built from where the build was told (`./x release`, tools/gpu_bundle.sh);
else both are `unknown`. Standard library only.
"""

import datetime
import json
import pathlib
import shlex
import subprocess
import sys


def about(hypatia, device, gpu=False, **versions):
    """`hypatia` is the command that was measured; `versions` are those of what it is held against."""
    done = subprocess.run([str(hypatia), "doctor", "--json"], check=True, capture_output=True, text=True)
    doctor = json.loads(done.stdout)
    own = doctor["versions"] if gpu else {"hypatia": doctor["versions"]["hypatia"]}
    if "unknown" in (doctor["source"], doctor["commit"]):
        print(f"{hypatia} does not know which source it is built from: build it with ./x release", file=sys.stderr)
    return record(device, {**own, **versions}, doctor["commit"], doctor["source"])


def record(device, versions, commit, source, command=None):
    program = pathlib.Path(sys.argv[0])
    name = f"python3 tools/{program.name}"
    return {
        "device": device,
        "versions": versions,
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "commit": commit,
        "source": source,
        "command": command or f"{name} {shlex.join(sys.argv[1:])}".strip(),
    }


def processor(threads):
    """The processor's name, and how many threads were used."""
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
        name = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        name = "unknown processor"
    return f"{name}, {threads} threads"


def write(path, about, rows):
    """The file: a line for each value, so that differences can be read."""
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"about": about, "rows": rows}, indent=1) + "\n")
