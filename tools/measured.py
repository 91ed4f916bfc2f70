"""The conditions of a measurement, as docs/benchmarks/*.json keep them.

They are device, versions, date, commit, command and a hash of the source. The hypatia command knows
its source and commit if the build passed them (`./x release`, tools/gpu_bundle.sh); otherwise both
are `unknown`. Standard library only.
"""

import datetime
import json
import pathlib
import shlex
import subprocess
import sys


def about(hypatia, device, gpu=False, **versions):
    """`hypatia` is the measured command; `versions` are those of what it is compared with."""
    done = subprocess.run([str(hypatia), "doctor", "--json"], check=True, capture_output=True, text=True)
    doctor = json.loads(done.stdout)
    own = doctor["versions"] if gpu else {"hypatia": doctor["versions"]["hypatia"]}
    if "unknown" in (doctor["source"], doctor["commit"]):
        print(f"{hypatia} does not know its source: build it with ./x release", file=sys.stderr)
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


def gpu():
    """The name of the first GPU, by the driver's own tool."""
    query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    return subprocess.run(query, check=True, capture_output=True, text=True).stdout.splitlines()[0].strip()


def write(path, about, rows):
    """Writes the file, a line for each value, so that diffs are readable."""
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"about": about, "rows": rows}, indent=1) + "\n")
