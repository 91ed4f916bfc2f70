"""Data-parallel training of a compiled model: as one process trains.

    torchrun --nproc_per_node=2 python/examples/ddp.py [--steps N] [--fsdp]

Each process has a part of every batch. Gradients are averaged by DistributedDataParallel, over gloo
on CPUs and NCCL on GPUs; `torch.compile` around it ends the graph at each of its buckets, so that
a bucket's gradients travel while those of the next are computed. The program trains the same model
on whole batches in each process and compares losses and parameters. With --fsdp, FSDP2 shards the
parameters of fused layers (`hypatia_core.nn`) instead.
"""

from __future__ import annotations

import argparse
import copy
import os
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from common import check, table
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import hypatia_core as hyp
from hypatia_core.backend import backend

WIDTH, BATCH = 512, 48


class Perceptron(nn.Module):
    """A perceptron, of plain or of fused layers."""

    def __init__(self, fused: bool) -> None:
        super().__init__()
        if fused:
            parts = [hyp.nn.FusedLinear(WIDTH, WIDTH, activation="gelu_tanh") for _ in range(3)]
            last = hyp.nn.FusedLayerNorm(WIDTH), hyp.nn.FusedLinear(WIDTH, 10, activation=None)
        else:
            parts = [m for _ in range(3) for m in (nn.Linear(WIDTH, WIDTH), nn.GELU())]
            last = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 10)
        self.layers = nn.Sequential(*parts, *last)

    # A forward method of one's own: Dynamo compiles no frame of torch.nn, such as `Sequential`'s.
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


def trained(model: nn.Module, f, batches, part: slice) -> list[torch.Tensor]:
    """The loss of each step, on a part of each batch."""
    optimizer = torch.optim.SGD(model.parameters(), 0.02, momentum=0.9)
    losses = []
    for x, y in batches:
        optimizer.zero_grad()
        loss = F.cross_entropy(f(x[part]), y[part])
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        hyp.wait_for_plans()
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--fsdp", action="store_true")
    given = parser.parse_args()
    gpu = torch.cuda.is_available() and torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if gpu else "gloo")
    rank, count = dist.get_rank(), dist.get_world_size()
    check(BATCH % count == 0, f"a batch of {BATCH} cannot be divided by {count}")

    torch.manual_seed(0)
    model = Perceptron(given.fsdp).to(device)
    alone = copy.deepcopy(model)
    # Which of the first ten numbers of a row is the largest.
    data = [torch.randn(BATCH, WIDTH) for _ in range(given.steps)]
    batches = [(x.to(device), x[:, :10].argmax(1).to(device)) for x in data]
    part = slice(rank * BATCH // count, (rank + 1) * BATCH // count)

    want = trained(alone, alone, batches, slice(None))
    if given.fsdp:
        from torch.distributed.fsdp import fully_shard

        for layer in model.layers:
            fully_shard(layer)
        fully_shard(model)
        got = trained(model, model, batches, part)
        parameters = [p.full_tensor() for p in model.parameters()]  # pyright: ignore[reportAttributeAccessIssue]
    else:
        # Buckets of a layer each.
        parallel = DistributedDataParallel(model, device_ids=[device.index] if gpu else None, bucket_cap_mb=1)
        # Plans compute whether they are faster than PyTorch or not: this program is a test too.
        with hyp.nn.policy("always"):
            got = trained(model, torch.compile(parallel, backend=backend), batches, part)
        parameters = list(model.parameters())
    for loss in got:
        dist.all_reduce(loss)
    got = [loss / count for loss in got]
    if rank == 0:
        shown = range(0, given.steps, max(1, given.steps // 5))
        table(
            ["step", "one process", f"{count} processes"], [[str(i), f"{want[i]:.6f}", f"{got[i]:.6f}"] for i in shown]
        )
        print(hyp.report())
    worst = max(((p - q).norm() / q.norm()).item() for p, q in zip(parameters, alone.parameters(), strict=True))
    apart = max(abs(a - b).item() / abs(b).item() for a, b in zip(got, want, strict=True))
    check(apart <= 1e-4, f"losses differ by {apart:.1e} from those of one process")
    check(worst <= 1e-4, f"parameters differ by {worst:.1e} from those of one process")
    # Fused layers train by PyTorch's ops where no plan computes them.
    check(given.fsdp or hyp.report().hypatia > 0, f"no plan ran:\n{hyp.report()}")
    if rank == 0:
        print(f"parameters differ by {worst:.1e}")
    # A thread of gloo lets go of the last collective's tensors behind its result, and needs the
    # interpreter's lock for it, with the group's own lock held. To end the group meanwhile, which
    # waits for that with the interpreter's lock held, would take for ever. So all processes wait
    # for each other and end without destructors.
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
