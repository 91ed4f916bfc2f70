#!/usr/bin/env python3
"""Models with random weights in bf16 on one GPU: PyTorch exports them, both run them.

    python3 tools/gpu_models.py --hypatia PATH/hypatia [--seconds 300] [--rows TEXT] [--compile]

Prints a JSON line a model: microseconds of Hypatia (with and without rules), of eager, of eager in
a CUDA graph and, with --compile, of torch.compile (max-autotune); the largest error of each against
f32; launches; the slowest steps. Models that do not fit into the seconds are named. Needs
transformers.
"""

import argparse
import json
import pathlib
import subprocess
import tempfile
import time

import numpy as np
import torch
import transformers as tf
from gpu_peers import graphed, timed

LLAMA = {
    "vocab_size": 32000,
    "hidden_size": 2048,
    "intermediate_size": 5504,
    "num_hidden_layers": 8,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 4096,
}
GEMMA = {
    "vocab_size": 32000,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
}
WHISPER = {
    "d_model": 768,
    "encoder_layers": 12,
    "encoder_attention_heads": 12,
    "encoder_ffn_dim": 3072,
}
QWEN = {
    "vocab_size": 32000,
    "hidden_size": 1536,
    "intermediate_size": 8960,
    "num_hidden_layers": 4,
    "num_attention_heads": 12,
    "num_key_value_heads": 2,
}


class Last(torch.nn.Module):
    """The last hidden state, as f32."""

    def __init__(self, model, **options):
        super().__init__()
        self.model, self.options = model, options

    def forward(self, x):
        return self.model(x, **self.options).last_hidden_state.float()


class Logits(torch.nn.Module):
    """What a language model says of each word."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return self.model(x, use_cache=False).logits


def words(batch, length):
    return torch.randint(0, 30000, (batch, length))


def decoder(model):
    return Last(model, use_cache=False)


CASES = {
    "BERT-base b8 s128": (lambda: Last(tf.BertModel(tf.BertConfig(), add_pooling_layer=False)), lambda: words(8, 128)),
    "GPT-2 b4 s1024": (lambda: decoder(tf.GPT2Model(tf.GPT2Config())), lambda: words(4, 1024)),
    "Llama, 8 layers, b4 s512": (lambda: decoder(tf.LlamaModel(tf.LlamaConfig(**LLAMA))), lambda: words(4, 512)),
    "Llama, 8 layers, b2 s2048": (lambda: decoder(tf.LlamaModel(tf.LlamaConfig(**LLAMA))), lambda: words(2, 2048)),
    "ViT-B/16 b32": (
        lambda: Last(tf.ViTModel(tf.ViTConfig(), add_pooling_layer=False)),
        lambda: torch.randn(32, 3, 224, 224),
    ),
    "Qwen2, 4 layers, b2 s1024": (lambda: decoder(tf.Qwen2Model(tf.Qwen2Config(**QWEN))), lambda: words(2, 1024)),
    "T5 encoder, 12 layers, b8 s256": (
        lambda: Last(tf.T5EncoderModel(tf.T5Config(d_model=768, d_ff=3072, num_layers=12, num_heads=12))),
        lambda: words(8, 256),
    ),
    "GPT-2 with its vocabulary b4 s512": (lambda: Logits(tf.GPT2LMHeadModel(tf.GPT2Config())), lambda: words(4, 512)),
    "Gemma 2, 4 layers, b2 s1024": (
        lambda: decoder(tf.Gemma2Model(tf.Gemma2Config(**GEMMA, attn_implementation="eager"))),
        lambda: words(2, 1024),
    ),
    "Whisper-small encoder b4": (
        lambda: Last(tf.WhisperModel(tf.WhisperConfig(**WHISPER)).encoder),
        lambda: torch.randn(4, 80, 3000),
    ),
    "DistilBERT b16 s256": (lambda: Last(tf.DistilBertModel(tf.DistilBertConfig())), lambda: words(16, 256)),
}


def hypatia(command, folder, *more):
    """What the command prints as JSON, or the end of its messages."""
    files = [str(folder / "m.onnx"), "--inputs", str(folder / "in.npz"), "--device", "cuda", "--json", *more]
    done = subprocess.run([*command, *files], capture_output=True, text=True, timeout=200)
    return json.loads(done.stdout) if done.stdout else {"stderr": done.stderr[-600:]}


def as_f32(array):
    """An array of Hypatia's, whose bf16 NumPy reads as two bytes."""
    if array.dtype.itemsize != 2 or array.dtype == np.float16:
        return array
    return (array.view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def measured(binary, make, inputs, compiled):
    torch.manual_seed(0)
    model, x = make().eval(), inputs()
    with torch.no_grad(), tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        want = model.cuda()(x.cuda()).cpu().numpy()
        model = model.cpu().to(torch.bfloat16)
        x = x.to(torch.bfloat16) if x.is_floating_point() else x
        torch.onnx.export(model, (x,), str(folder / "m.onnx"), dynamo=True, opset_version=20, input_names=["x"],
            output_names=["y"])
        array = x.view(torch.int16).numpy().view("V2") if x.is_floating_point() else x.numpy()
        np.savez(folder / "in.npz", x=array)
        model, x = model.cuda(), x.cuda()
        row = {"eager_error": float(np.abs(model(x).float().cpu().numpy() - want).max())}
        row["eager_us"], row["graph_us"] = timed(lambda: model(x)), timed(graphed(lambda: model(x)))
        if compiled:
            fast = torch.compile(model, mode="max-autotune")
            fast(x), fast(x)
            row["compiled_us"] = timed(lambda: fast(x))
        out = folder / "out.npz"
        hypatia([binary, "run"], folder, "--outputs", str(out))
        row["error"] = float(np.abs(as_f32(np.load(out)["y"]) - want).max()) if out.exists() else None
        bench = hypatia([binary, "bench"], folder, "--profile")
    if "stderr" in bench:
        return row | bench
    for side in ("with_rules", "without_rules"):
        row[side] = {"us": bench[side]["median_ms"] * 1e3, "launches": bench[side]["launches"]}
    slowest = sorted(bench["profile"]["kernels"], key=lambda k: -k["time_us"])[:4]
    row["slowest"] = [(k["kind"], round(k["time_us"], 1), k["name"][:60]) for k in slowest]
    return row


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--hypatia", required=True)
    p.add_argument("--seconds", type=float, default=300)
    p.add_argument("--rows", action="append", help="only the models whose names contain this text")
    p.add_argument("--compile", action="store_true", help="time torch.compile too, a minute a model")
    a = p.parse_args()
    begin = time.time()
    chosen = {n: c for n, c in CASES.items() if not a.rows or any(r in n for r in a.rows)}
    for name, (make, inputs) in chosen.items():
        if time.time() - begin > a.seconds:
            print(json.dumps({"case": name, "left out": "no time"}))
            continue
        print(json.dumps({"case": name} | measured(a.hypatia, make, inputs, a.compile)), flush=True)


if __name__ == "__main__":
    main()
