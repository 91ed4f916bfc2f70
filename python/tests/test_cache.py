"""What a second process finds in the user's cache."""

import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

MODEL = """
import torch
from torch import nn
import hypatia_core as hyp
from hypatia_core.backend import backend
from hypatia_core.nn import _runtime

measured = []
measure = _runtime.Choice.measure
_runtime.Choice.measure = lambda self, *rest: measured.append(1) or measure(self, *rest)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64), nn.Softmax(-1))
f, x = torch.compile(model, backend=backend, options=OPTIONS), torch.randn(32, 64)
with torch.no_grad():
    for _ in range(4):
        torch.testing.assert_close(f(x), model(x))
        hyp.wait_for_plans()
lines = [line for line in hyp.report().lines if line.hypatia_us is not None]
times = [(line.hypatia_us, line.pytorch_us) for line in lines]
print(len(measured), times[0])
"""


def process(folder, options="{}"):
    """Runs the model in a process: how often it measured, and the times."""
    run = [sys.executable, "-c", MODEL.replace("OPTIONS", options)]
    said = subprocess.run(run, env={**os.environ, "HYPATIA_CACHE": str(folder)}, capture_output=True, text=True)
    assert said.returncode == 0, said.stderr
    count, times = said.stdout.strip().splitlines()[-1].split(" ", 1)
    return int(count), times


def test_a_second_process_measures_nothing(tmp_path):
    (tmp_path / "own").mkdir(mode=0o700)
    count, times = process(tmp_path / "own")
    assert count == 1
    assert process(tmp_path / "own") == (0, times)
    assert process(tmp_path / "own", '{"numerics": "fast"}')[0] == 1
    for file in (tmp_path / "own").rglob("*.choice"):
        file.write_bytes(b"damaged")
    assert process(tmp_path / "own")[0] == 1
