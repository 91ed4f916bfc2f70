"""Processes that fork: a child makes plans of its own, whatever its parent was about."""

import subprocess
import sys

import pytest

pytest.importorskip("torch")

#: A model whose plan is being made, or waits for something else, when the process forks.
PROGRAM = """
import multiprocessing, threading, torch
import hypatia_core as hyp
from hypatia_core.backend import backend
from hypatia_core.nn import _runtime

# OpenMP's threads, which PyTorch's ops wait for, do not exist in a child either.
torch.set_num_threads(1)
network = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU())
model = torch.compile(network, backend=backend)
x = torch.randn(4, 8)
free = threading.Event()

def plans():
    return [c.plan for part in _runtime._parts for c in part.plans.values() if c.plan is not None]

def child(x):
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(model(x), network(x))
            hyp.wait_for_plans()
    assert plans(), str(hyp.report())

with torch.no_grad():
    model(x)
    if {queued}:
        _runtime._worker.submit(free.wait)
    model(x)
    process = multiprocessing.get_context("fork").Process(target=child, args=(x,))
    process.start()
    process.join(60)
    alive = process.is_alive()
    process.kill()
    free.set()
    assert not alive, "the child hangs"
    assert process.exitcode == 0, "the child fails"
    model(x)
    hyp.wait_for_plans()
    assert plans(), "the parent goes on"
"""

LOADER = """
import torch
from torch.utils.data import DataLoader, Dataset
import hypatia_core as hyp
from hypatia_core.backend import backend

torch.set_num_threads(1)
network = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU())
model = torch.compile(network, backend=backend)

class Features(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, i):
        with torch.no_grad():
            y = model(torch.full((4, 8), float(i)))
        hyp.wait_for_plans()
        return y

with torch.no_grad():
    model(torch.ones(4, 8))
    model(torch.ones(4, 8))
    how = dict(num_workers=2, timeout=60, multiprocessing_context="fork")
    made = list(DataLoader(Features(), batch_size=None, **how))
    for i, y in enumerate(made):
        torch.testing.assert_close(y, network(torch.full((4, 8), float(i))))
"""


def runs(program):
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("queued", [False, True], ids=["a plan is being made", "a plan waits"])
def test_a_child_makes_its_own_plans(queued):
    runs(PROGRAM.replace("{queued}", str(queued)))


def test_workers_of_a_data_loader():
    runs(LOADER)
