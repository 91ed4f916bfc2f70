"""A small transformer that learns to write like this repository's documentation, letter by letter.

    python python/examples/train_transformer.py [--device cuda] [--quick] [--steps N] [--text FILE]

Trained through `torch.compile(backend="hypatia")`; the first steps are compared with eager's. The
program ends with a sample.
"""

from __future__ import annotations

import copy
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from common import check, options, table, wait
from torch import nn

import hypatia_core as hyp
from hypatia_core.backend import backend


class Block(nn.Module):
    """Attention to earlier letters, then two layers for each."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, d = x.shape
        q, k, v = self.qkv(self.first(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.second(x)), approximate="tanh"))


class Transformer(nn.Module):
    """The next letter's scores, at each place."""

    def __init__(self, letters: int, length: int, width: int, layers: int) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(letters, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, width // 32) for _ in range(layers))
        self.norm, self.scores = nn.LayerNorm(width), nn.Linear(width, letters)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.letters(x) + self.places(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks:
            x = block(x)
        return self.scores(self.norm(x))


def sample(model: nn.Module, seed: torch.Tensor, count: int) -> torch.Tensor:
    """Further letters, each drawn by its probability. The model sees as many as it was made for."""
    letters = seed
    for _ in range(count):
        scores = model(letters[-len(seed) :][None])[0, -1].float()
        letters = torch.cat([letters, torch.multinomial(scores.softmax(0), 1)])
    return letters[len(seed) :]


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--steps", type=int, default=None)
    parser.add_argument("--text", type=Path, default=Path(__file__).parents[2] / "docs" / "language.md")
    given = parser.parse_args()
    gpu = given.device.startswith("cuda")
    batch, length, width, layers = (8, 32, 32, 1) if given.quick else (64, 256, 384, 6) if gpu else (16, 64, 96, 2)
    steps = given.steps or (30 if given.quick else 1000 if gpu else 300)
    text = given.text.read_text()
    alphabet = sorted(set(text))
    places = {letter: i for i, letter in enumerate(alphabet)}
    data = torch.tensor([places[letter] for letter in text], device=given.device)

    torch.manual_seed(0)
    model = Transformer(len(alphabet), length, width, layers).to(given.device)
    eager = copy.deepcopy(model)

    def loss_of(model: nn.Module, letters: torch.Tensor) -> torch.Tensor:
        scores = model(letters[:, :-1])
        return F.cross_entropy(scores.flatten(0, 1).float(), letters[:, 1:].flatten())

    compiled = torch.compile(loss_of, backend=backend)
    optimizers = [torch.optim.AdamW(m.parameters(), 1e-3) for m in (model, eager)]
    rows, begun, compared = [], 0.0, 5
    for step in range(steps):
        starts = torch.randint(len(data) - length - 1, (batch,), device=given.device)
        letters = data[starts[:, None] + torch.arange(length + 1, device=given.device)]
        # Of eager only the first steps: later both differ by what rounding grows to.
        sides = [(compiled, model, optimizers[0]), (loss_of, eager, optimizers[1])][: 2 if step < compared else 1]
        losses = []
        with torch.autocast("cuda", torch.bfloat16, enabled=gpu):
            for f, one, optimizer in sides:
                optimizer.zero_grad()
                loss = f(one, letters)
                loss.backward()
                optimizer.step()
                losses.append(loss.detach())
        if step < compared:
            hyp.wait_for_plans()
            wait(given.device)
            begun = time.perf_counter()
            apart = (losses[0] - losses[1]).abs().item()
            check(apart <= (3e-2 if gpu else 1e-4), f"step {step}: losses differ by {apart}")
        if step % max(1, steps // 10) == 0 or step == steps - 1:
            rows.append([str(step), f"{losses[0]:.3f}", f"{losses[1]:.3f}" if len(losses) > 1 else ""])
    wait(given.device)
    taken = (time.perf_counter() - begun) / max(1, steps - compared)
    table(["step", "loss", "eager"], rows)
    print(f"{taken * 1e3:.2f} ms a step")
    print(hyp.report())
    check(float(rows[-1][1]) < 0.9 * float(rows[0][1]), "the loss did not fall")
    with torch.no_grad():
        print("".join(alphabet[i] for i in sample(model, data[:length], 20 if given.quick else 300).tolist()))


if __name__ == "__main__":
    main()
