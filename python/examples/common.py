"""What the examples share: options, times side by side, tables."""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch


def options(description: str) -> argparse.ArgumentParser:
    """The options of every example."""
    parser = argparse.ArgumentParser(description=description)
    gpu = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", default=gpu, help="where to run; by default the GPU if there is one")
    parser.add_argument("--quick", action="store_true", help="small sizes and few rounds, to see that it works")
    return parser


def wait(device: str) -> None:
    """Wait for the device's work."""
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


def side_by_side(sides: Sequence[Callable[[], Any]], device: str, quick: bool) -> list[float]:
    """Microseconds a call of each side: medians of rounds in which they take turns."""
    rounds, least = (3, 0.002) if quick else (15, 0.02)
    counts = []
    for side in sides:
        for _ in range(3):
            side()
        wait(device)
        start = time.perf_counter()
        side()
        wait(device)
        counts.append(max(1, min(1000, int(least / (time.perf_counter() - start)))))
    times: list[list[float]] = [[] for _ in sides]
    for _ in range(rounds):
        for side, count, own in zip(sides, counts, times, strict=True):
            wait(device)
            start = time.perf_counter()
            for _ in range(count):
                side()
            wait(device)
            own.append((time.perf_counter() - start) / count * 1e6)
    return [statistics.median(own) for own in times]


def error(got: torch.Tensor, want: torch.Tensor) -> float:
    """The root of the mean squared error, over that of the values."""
    want = want.double()
    return ((got.double() - want).norm() / want.norm().clamp_min(1e-30)).item()


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table; all columns but the first are aligned to the right."""
    widths = [max(len(line[i]) for line in [head, *rows]) for i in range(len(head))]
    for line in [head, *rows]:
        first = line[0].ljust(widths[0])
        print("  ".join([first, *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True))]))


def check(holds: bool, what: str) -> None:
    """End the program with a message unless something holds."""
    if not holds:
        sys.exit(f"FAILED: {what}")
