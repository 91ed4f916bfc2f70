#!/usr/bin/env python3
"""Times `torch.compile(model, backend="hypatia")` beside eager and PyTorch's own compiler on a GPU.

    python3 tools/torch_gpu.py [--seconds N] [--only TEXT] [--modes MODE ...] [--train] [--untuned]

Needs an installed hypatia-core, PyTorch with CUDA, and transformers for BERT and GPT-2 (random
weights). Prints microseconds a call, the host's part included: medians of rounds of many calls, one
after another, in bf16; the same where each call is waited for; the host's part alone; the first
result of each side in seconds; and the error's root mean square against float64, over eager's.
Peers that no longer fit into the seconds are left out. With --train, a call is forward and
backward, and the error is that of all gradients. With --untuned, the models are those that nobody
tuned Hypatia for.
"""

import argparse
import statistics
import time

import hypatia_core as hyp
import torch
from hypatia_core.backend import backend
from torch import nn
from torch_host import print_breakdown

#: Calls until plans are made and measured, and the whole graph beside its parts.
CALLS = 60
LLAMA = {
    "vocab_size": 32000,
    "hidden_size": 2048,
    "intermediate_size": 5504,
    "num_hidden_layers": 8,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 4096,
}
MODES = ["default", "reduce-overhead", "max-autotune"]


def mlp(width, layers, activation=nn.ReLU):
    parts = []
    for _ in range(layers):
        parts += [nn.Linear(width, width), activation()]
    return nn.Sequential(*parts)


def bert():
    from transformers import BertConfig, BertModel

    model = BertModel(BertConfig(), add_pooling_layer=False).eval()
    return model, (torch.randint(30522, (8, 128)),)


def gpt2():
    from transformers import GPT2Config, GPT2Model

    return GPT2Model(GPT2Config(use_cache=False)).eval(), (torch.randint(50257, (4, 512)),)


def vit():
    from transformers import ViTConfig, ViTModel

    return ViTModel(ViTConfig(), add_pooling_layer=False).eval(), (torch.randn(32, 3, 224, 224),)


def llama():
    from transformers import LlamaConfig, LlamaModel

    return LlamaModel(LlamaConfig(**LLAMA, use_cache=False)).eval(), (torch.randint(32000, (4, 512)),)


def opt():
    from transformers import OPTConfig, OPTModel

    return OPTModel(OPTConfig(use_cache=False)).eval(), (torch.randint(50272, (4, 512)),)


def qwen():
    """As Qwen2-0.5B: 14 heads on 2 of keys, biases in front of them."""
    from transformers import Qwen2Config, Qwen2Model

    config = Qwen2Config(
        hidden_size=896,
        intermediate_size=4864,
        num_hidden_layers=12,
        num_attention_heads=14,
        num_key_value_heads=2,
        vocab_size=32000,
        use_cache=False,
    )
    return Qwen2Model(config).eval(), (torch.randint(32000, (4, 512)),)


class EncoderDecoder(nn.Module):
    """T5, whose positions are a learned bias of the scores."""

    def __init__(self):
        super().__init__()
        from transformers import T5Config, T5Model

        config = T5Config(d_model=768, d_ff=3072, num_layers=6, num_heads=12, use_cache=False)
        self.model = T5Model(config)

    def forward(self, source, target):
        return self.model(input_ids=source, decoder_input_ids=target).last_hidden_state


def t5():
    return EncoderDecoder().eval(), (torch.randint(32000, (8, 128)), torch.randint(32000, (8, 128)))


def modernbert():
    """Rotary positions, windows of 128 in two of three layers, GeGLU."""
    from transformers import ModernBertConfig, ModernBertModel

    config = ModernBertConfig(num_hidden_layers=12, attn_implementation="sdpa")
    return ModernBertModel(config).eval(), (torch.randint(50000, (4, 512)),)


def convnext():
    from torchvision.models import convnext_tiny

    return convnext_tiny().eval(), (torch.randn(32, 3, 224, 224),)


def network(name, training=False):
    import torchvision

    return getattr(torchvision.models, name)().train(training), (torch.randn(32, 3, 224, 224),)


CASES = {
    "MLP 256x2 b256": lambda: (mlp(256, 2), (torch.randn(256, 256),)),
    "MLP 1024x4 b512": lambda: (mlp(1024, 4), (torch.randn(512, 1024),)),
    "BERT-base b8 s128": bert,
    "GPT-2 b4 s512": gpt2,
}
TRAINED = {
    **CASES,
    "MLP 4096x4 b4096": lambda: (mlp(4096, 4), (torch.randn(4096, 4096),)),
    "MLP 4096x4 b4096, GELU": lambda: (mlp(4096, 4, nn.GELU), (torch.randn(4096, 4096),)),
    "ViT-B/16 b32": vit,
    "Llama b4 s512": llama,
}
UNTUNED = {
    "OPT-125M b4 s512": opt,
    "Qwen2 b4 s512": qwen,
    "T5 b8 s128": t5,
    "ModernBERT b4 s512": modernbert,
    "ConvNeXt-T b32": convnext,
    "ResNet-50 b32": lambda: network("resnet50"),
    "ResNet-50 in training mode b32": lambda: network("resnet50", training=True),
    "EfficientNet-B0 b32": lambda: network("efficientnet_b0"),
    "MobileNetV3-L b32": lambda: network("mobilenet_v3_large"),
    "RegNetY-800MF b32": lambda: network("regnet_y_800mf"),
}


def first(y):
    return y if isinstance(y, torch.Tensor) else y[0]


def per_call(f, inputs, rounds=7, waits=False):
    """Microseconds of a call, many in a row, each of them waited for if that is wanted."""
    for _ in range(3):
        f(*inputs)
    torch.cuda.synchronize()
    times, count = [], 0
    for _ in range(rounds):
        if not count:
            start = time.perf_counter()
            f(*inputs)
            torch.cuda.synchronize()
            count = max(20, min(1000, int(0.05 / (time.perf_counter() - start))))
        start = time.perf_counter()
        for _ in range(count):
            f(*inputs)
            if waits:
                torch.cuda.synchronize()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) / count * 1e6)
    return statistics.median(times)


def step(f, model, gradient):
    """Forward and backward as one function; `collect` returns all gradients as one tensor."""

    def both(*inputs, collect=False):
        for p in model.parameters():
            p.grad = None
        y = first(f(*inputs))
        y.backward(gradient(y))
        return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]) if collect else y

    return both


def host(f, inputs):
    """Microseconds until a call returns, while the GPU works on earlier ones."""
    times = []
    for _ in range(9):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(10):
            f(*inputs)
        times.append((time.perf_counter() - start) / 10 * 1e6)
    torch.cuda.synchronize()
    return statistics.median(times)


def case(name, make, modes, deadline, train, strict):
    torch.manual_seed(0)
    model, inputs = make()
    model = model.cuda().double()
    given = {}

    def gradient(y):
        if "g" not in given:
            given["g"] = torch.randn(y.shape, device="cuda").bfloat16() / y.numel() ** 0.5
        return given["g"].to(y.dtype)

    def once(f, inputs):
        return step(f, model, gradient)(*inputs, collect=True) if train else first(f(*inputs))

    exact = once(model, [t.cuda().double() if t.is_floating_point() else t.cuda() for t in inputs])
    model = model.bfloat16()
    inputs = tuple(t.cuda().bfloat16() if t.is_floating_point() else t.cuda() for t in inputs)
    sides = {
        "eager": lambda: model,
        "hypatia": lambda: torch.compile(model, backend=backend),
        "hypatia, frozen": lambda: torch.compile(model, backend=backend, options={"frozen": True}),
    }
    if strict:
        checked = {"safety": "strict"}
        sums = {**checked, "compare_every": 0, "frozen": True}
        sides["sums, frozen"] = lambda: torch.compile(model, backend=backend, options=sums)
        sides["strict"] = lambda: torch.compile(model, backend=backend, options=checked)
        sides["strict, frozen"] = lambda: torch.compile(model, backend=backend, options={**checked, "frozen": True})
    if train:
        sides = {name: build for name, build in sides.items() if not name.endswith("frozen")}
    for mode in modes:
        sides[mode] = lambda mode=mode: torch.compile(model, mode=None if mode == "default" else mode)
    eager_error = None
    for side, build in sides.items():
        if side in modes and time.perf_counter() > deadline:
            print(f"{name:20} {side:16} left out: no time", flush=True)
            continue
        torch._dynamo.reset()
        hyp.reset_report()
        start = time.perf_counter()
        try:
            f = build()
            y = once(f, inputs)
            torch.cuda.synchronize()
            cold = time.perf_counter() - start
            error = (y.double() - exact).square().mean().sqrt().item()
            for _ in range(CALLS):
                y = once(f, inputs)
                hyp.wait_for_plans()
            error = max(error, (y.double() - exact).square().mean().sqrt().item())
            ready = time.perf_counter() - start
            timed = step(f, model, gradient) if train else f
            us, of_host = per_call(timed, inputs), host(timed, inputs)
            waited = per_call(timed, inputs, waits=True)
        except Exception as problem:
            print(f"{name:20} {side:16} FAILED {type(problem).__name__}: {problem}", flush=True)
            continue
        eager_error = eager_error or error
        print(
            f"{name:20} {side:16} {us:9.1f} us  waited for {waited:9.1f} us  host {of_host:7.1f} us"
            f"  first {cold:6.2f} s  settled {ready:6.2f} s  error {error / eager_error:5.3f} of eager's",
            flush=True,
        )
        if side.startswith("hypatia"):
            print("    " + str(hyp.report()).replace("\n", "\n    "), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--only", default="")
    parser.add_argument("--modes", nargs="*", default=MODES, choices=MODES)
    parser.add_argument("--train", action="store_true")
    parser.add_argument("--untuned", action="store_true")
    parser.add_argument("--strict", action="store_true", help="time checked runs too")
    given = parser.parse_args()
    cases = UNTUNED if given.untuned else TRAINED if given.train else CASES
    deadline = time.perf_counter() + given.seconds
    print(torch.cuda.get_device_name(), "PyTorch", torch.__version__, "hypatia-core", hyp.__version__)
    with torch.set_grad_enabled(given.train):
        if not given.train:
            print_breakdown("cuda")
        for name, make in cases.items():
            if given.only in name:
                case(name, make, given.modes, deadline, given.train, given.strict)


if __name__ == "__main__":
    main()
