"""The programs of python/examples, at their smallest, as their users run them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

PACKAGE = Path(__file__).parents[1]
EXAMPLES = PACKAGE / "examples"


def run(*command):
    """What a program prints; its message if it fails."""
    path = [str(PACKAGE), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path), "OMP_NUM_THREADS": "1"}
    program, pipe = [sys.executable, *map(str, command)], subprocess.PIPE
    with subprocess.Popen(program, env=environment, stdout=pipe, stderr=pipe, text=True) as started:
        try:
            said, errors = started.communicate(timeout=300)
        except subprocess.TimeoutExpired:
            # A launcher that is asked to end ends its processes, which hold the pipes too.
            started.terminate()
            said, errors = started.communicate(timeout=60)
            pytest.fail(f"{command} did not end in 300 s: {said[-3000:]}{errors[-3000:]}")
    assert started.returncode == 0, said[-3000:] + errors[-3000:]
    return said


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("kernel_only.py", "softcap 33x40x7"),
        ("fused_linear_relu.py", "launches: 3 before, 1 after"),
        ("mlp_multiconfig_benchmark.py", "64x8 training"),
        ("train_transformer.py", "ms a step"),
        ("safety_dual_mode.py", "the rule careless::uncapped"),
    ],
)
def test_it_runs_and_checks_itself(name, said):
    assert said in run(EXAMPLES / name, "--quick", "--device", "cpu")


@pytest.mark.skipif(not torch.distributed.is_available(), reason="PyTorch was built without torch.distributed")
@pytest.mark.parametrize("more", [(), ("--fsdp",)])
def test_two_processes_train_as_one_does(more):
    launcher = ("-m", "torch.distributed.run", "--nproc_per_node=2", "--standalone")
    said = run(*launcher, EXAMPLES / "ddp.py", "--steps", "8", *more)
    assert "parameters differ by" in said
    # One plan for each bucket, in each direction.
    assert more or sum(" hypatia " in line and line.startswith("graph") for line in said.splitlines()) >= 6


def test_all_examples_are_run():
    marks = getattr(test_it_runs_and_checks_itself, "pytestmark", [])
    tested = {name for mark in marks for name, _ in mark.args[1]}
    assert {p.name for p in EXAMPLES.glob("*.py")} == {*tested, "ddp.py", "common.py"}
