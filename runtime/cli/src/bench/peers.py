"""PyTorch's side of `hypatia bench --suite models`: makes a model, exports it, and times its peers.

    python3 peers.py --list
    python3 peers.py MODEL FOLDER --device cpu|cuda [--peers eager,graph,compile,onnxruntime]

Writes into FOLDER `model.onnx`, `inputs.npz`, the exact result in `exact.npz` (f64) and
`peers.json`: microseconds of each peer, its error, and why a peer was left out. Once the model is
exported, it says so and waits for a line. Weights are random; on a GPU they are bf16, on a CPU f32.
Each time is a median of bursts of at least 2 ms, warm; peers take turns.
"""

import argparse
import importlib.metadata
import json
import pathlib
import statistics
import sys
import time

import numpy as np
import torch

BURST, ROUNDS = 2e-3, 21
PEERS = ["eager", "graph", "compile", "onnxruntime"]
LLAMA = {
    "vocab_size": 32000,
    "hidden_size": 2048,
    "intermediate_size": 5504,
    "num_hidden_layers": 8,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 4096,
}
MISTRAL = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 2,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "sliding_window": 512,
}
GEMMA = {
    "vocab_size": 32000,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "attn_implementation": "eager",
}
QWEN = {
    "vocab_size": 32000,
    "hidden_size": 1536,
    "intermediate_size": 8960,
    "num_hidden_layers": 4,
    "num_attention_heads": 12,
    "num_key_value_heads": 2,
}
WHISPER = {"d_model": 768, "encoder_layers": 12, "encoder_attention_heads": 12, "encoder_ffn_dim": 3072}
T5 = {"d_model": 768, "d_ff": 3072, "num_layers": 12, "num_heads": 12}
ALBERT = {
    "hidden_size": 768,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
}
NEOX = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 8, "num_attention_heads": 16}


class Whole(torch.nn.Module):
    """A model that takes one tensor and gives one."""

    def __init__(self, model, take, **options):
        super().__init__()
        self.model, self.take, self.options = model, take, options

    def forward(self, x):
        return self.take(self.model(x, **self.options))


def last(name, config, take=lambda y: y.last_hidden_state, options=None, part=None, **fields):
    """A model of transformers: its last hidden state."""
    import transformers

    with_fields = getattr(transformers, config)(**fields)
    model = getattr(transformers, name)(with_fields, **(options or {}))
    return Whole(getattr(model, part) if part else model, take)


def decoder(name, config, **fields):
    return last(name, config, use_cache=False, **fields)


def image(name):
    """A network of torchvision."""
    import torchvision

    return getattr(torchvision.models, name)(weights=None)


def perceptron(width, layers):
    parts = [part for _ in range(layers) for part in (torch.nn.Linear(width, width), torch.nn.ReLU())]
    return torch.nn.Sequential(*parts[:-1])


def words(batch, length):
    return torch.randint(0, 30000, (batch, length))


def picture(batch, size=224):
    return torch.randn(batch, 3, size, size)


def filled(model):
    """The model without parameters that are all 0: they would hide what comes before them."""
    for name, parameter in model.named_parameters():
        if name.endswith("weight") and not parameter.any():
            torch.nn.init.normal_(parameter, std=0.02)
    return model


NO_POOL = {"add_pooling_layer": False}
MODELS = {
    "perceptron 256x2 b256": (lambda: perceptron(256, 2), lambda: torch.randn(256, 256)),
    "perceptron 1024x4 b512": (lambda: perceptron(1024, 4), lambda: torch.randn(512, 1024)),
    "BERT-base b8 s128": (lambda: last("BertModel", "BertConfig", options=NO_POOL), lambda: words(8, 128)),
    "BERT-base b1 s128": (lambda: last("BertModel", "BertConfig", options=NO_POOL), lambda: words(1, 128)),
    "DistilBERT b16 s256": (lambda: last("DistilBertModel", "DistilBertConfig"), lambda: words(16, 256)),
    "ALBERT-base b8 s128": (
        lambda: last("AlbertModel", "AlbertConfig", options=NO_POOL, **ALBERT),
        lambda: words(8, 128),
    ),
    "T5 encoder, 12 layers, b8 s256": (lambda: last("T5EncoderModel", "T5Config", **T5), lambda: words(8, 256)),
    "GPT-2 b4 s512": (lambda: decoder("GPT2Model", "GPT2Config"), lambda: words(4, 512)),
    "GPT-2 b4 s1024": (lambda: decoder("GPT2Model", "GPT2Config"), lambda: words(4, 1024)),
    "GPT-2 with its vocabulary b4 s512": (
        lambda: last("GPT2LMHeadModel", "GPT2Config", take=lambda y: y.logits, use_cache=False),
        lambda: words(4, 512),
    ),
    "OPT-125M b4 s512": (lambda: decoder("OPTModel", "OPTConfig"), lambda: words(4, 512)),
    "Llama, 8 layers, b4 s512": (lambda: decoder("LlamaModel", "LlamaConfig", **LLAMA), lambda: words(4, 512)),
    "Llama, 8 layers, b2 s2048": (lambda: decoder("LlamaModel", "LlamaConfig", **LLAMA), lambda: words(2, 2048)),
    "Mistral, 2 layers, b1 s2048": (
        lambda: decoder("MistralModel", "MistralConfig", **MISTRAL),
        lambda: words(1, 2048),
    ),
    "Qwen2, 4 layers, b2 s1024": (lambda: decoder("Qwen2Model", "Qwen2Config", **QWEN), lambda: words(2, 1024)),
    "Gemma 2, 4 layers, b2 s1024": (
        lambda: decoder("Gemma2Model", "Gemma2Config", **GEMMA),
        lambda: words(2, 1024),
    ),
    "Whisper-small encoder b4": (
        lambda: last("WhisperModel", "WhisperConfig", part="encoder", **WHISPER),
        lambda: torch.randn(4, 80, 3000),
    ),
    "ViT-B/16 b32": (lambda: image("vit_b_16"), lambda: picture(32)),
    "Swin-T b32": (lambda: image("swin_t"), lambda: picture(32)),
    "ConvNeXt-T b32": (lambda: image("convnext_tiny"), lambda: picture(32)),
    "ResNet-50 b32": (lambda: image("resnet50"), lambda: picture(32)),
    "MobileNetV3-L b32": (lambda: image("mobilenet_v3_large"), lambda: picture(32)),
    "EfficientNet-B0 b32": (lambda: image("efficientnet_b0"), lambda: picture(32)),
    "RegNetY-1.6GF b32": (lambda: image("regnet_y_1_6gf"), lambda: picture(32)),
    "DenseNet-121 b32": (lambda: image("densenet121"), lambda: picture(32)),
    "ResNeXt-50 b32": (lambda: image("resnext50_32x4d"), lambda: picture(32)),
    "BLOOM-560M, 8 layers, b4 s512": (
        lambda: decoder("BloomModel", "BloomConfig", hidden_size=1024, n_layer=8, n_head=16),
        lambda: words(4, 512),
    ),
    "GPT-NeoX, 8 layers, b4 s512": (
        lambda: decoder("GPTNeoXModel", "GPTNeoXConfig", **NEOX),
        lambda: words(4, 512),
    ),
}


def burst(call, count, device):
    """Seconds a call, in a burst of them."""
    if device == "cuda":
        start, stop = torch.cuda.Event(True), torch.cuda.Event(True)
        start.record()
        for _ in range(count):
            call()
        stop.record()
        torch.cuda.synchronize()
        return start.elapsed_time(stop) * 1e-3 / count
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count


def timed(calls, device):
    """Microseconds of each of these calls, which take turns: medians."""
    counts = {}
    for name, call in calls.items():
        once = min(burst(call, 1, device) for _ in range(3))
        counts[name] = max(1, min(10_000, int(BURST / max(once, 1e-9)) + 1))
    times = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            times[name].append(burst(call, counts[name], device))
    return {name: statistics.median(of) * 1e6 for name, of in times.items()}


def eager(model, x, device, folder):
    return lambda: model(x)


def graph(model, x, device, folder):
    if device != "cuda":
        raise RuntimeError("a CUDA graph needs a GPU")
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            model(x)
    torch.cuda.synchronize()
    recorded = torch.cuda.CUDAGraph()
    with torch.cuda.graph(recorded):
        model(x)
    return recorded.replay


def compiled(model, x, device, folder):
    fast = torch.compile(model, mode="max-autotune")
    for _ in range(3):
        fast(x)
    return lambda: fast(x)


def onnxruntime(model, x, device, folder):
    import onnxruntime as ort

    ort.set_default_logger_severity(4)
    provider = "CUDAExecutionProvider" if device == "cuda" else "CPUExecutionProvider"
    if provider not in ort.get_available_providers():
        raise RuntimeError(f"this onnxruntime has no {provider}")
    session = ort.InferenceSession(str(folder / "model.onnx"), providers=[provider])
    # What the exporter calls f32 and bf16.
    kinds = {torch.float32: 1, torch.int64: 7, torch.bfloat16: 16}
    y, binding = model(x), session.io_binding()
    bound = {"x": x.contiguous(), "y": torch.empty_like(y, memory_format=torch.contiguous_format)}
    for name, bind in (("x", binding.bind_input), ("y", binding.bind_output)):
        of = bound[name]
        bind(name, device, 0, kinds[of.dtype], list(of.shape), of.data_ptr())

    def run(keep=bound):  # The binding has addresses alone.
        session.run_with_iobinding(binding)

    run()
    return run


WAYS = {"eager": eager, "graph": graph, "compile": compiled, "onnxruntime": onnxruntime}


def error(got, want):
    """The root mean square of the difference, over that of the exact values."""
    difference = got.double() - want
    return float(difference.square().mean().sqrt() / want.square().mean().sqrt().clamp_min(1e-30))


def measured(name, folder, device, peers):
    torch.manual_seed(0)
    make, inputs = MODELS[name]
    model, x = filled(make()).eval(), inputs()
    kind = torch.bfloat16 if device == "cuda" else torch.float32
    model = model.to(kind)
    x = x.to(kind) if x.is_floating_point() else x
    torch.onnx.export(
        model,
        (x,),
        str(folder / "model.onnx"),
        dynamo=True,
        opset_version=20,
        input_names=["x"],
        output_names=["y"],
        verbose=False,
        # The optimiser folds batch norms into filters of another type than the model's.
        optimize=not any(isinstance(part, torch.nn.BatchNorm2d) for part in model.modules()),
    )
    # NumPy has no bf16; Hypatia reads two bytes as one.
    array = x.view(torch.int16).numpy().view("V2") if x.dtype == torch.bfloat16 else x.numpy()
    np.savez(folder / "inputs.npz", x=array)
    # Until the answer comes, the device is another process's.
    print("exported", flush=True)
    sys.stdin.readline()
    # The same weights and inputs in f64: what is rounded is what each side computes.
    exact = model.to(device).double()(x.to(device).double() if x.is_floating_point() else x.to(device))
    np.savez(folder / "exact.npz", y=exact.cpu().numpy())
    model, x = model.to(kind), x.to(device)
    row = {"eager_error": error(model(x), exact), "us": {}, "left_out": {}}
    del exact
    calls = {}
    for peer in peers:
        start = time.perf_counter()
        try:
            calls[peer] = WAYS[peer](model, x, device, folder)
        except ModuleNotFoundError as e:
            row["left_out"][peer] = f"{e.name} is not installed"
        except Exception as e:
            lines = str(e).strip().splitlines() or [type(e).__name__]
            row["left_out"][peer] = lines[0][:200]
        row[f"{peer}_first_s"] = time.perf_counter() - start
    row["us"] = timed(calls, device)
    return row


def versions():
    found = {}
    for package in ("torch", "transformers", "torchvision", "onnxruntime", "onnxruntime-gpu", "triton"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model", nargs="?", choices=list(MODELS))
    p.add_argument("folder", nargs="?", type=pathlib.Path)
    p.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    p.add_argument("--peers", default=",".join(PEERS))
    p.add_argument("--list", action="store_true", help="print the names of the models")
    a = p.parse_args()
    if a.list:
        print("\n".join(MODELS))
        return
    if a.model is None or a.folder is None:
        p.error("expected a model and a folder")
    torch.backends.cuda.matmul.allow_tf32 = False
    with torch.no_grad():
        row = measured(a.model, a.folder, a.device, [peer for peer in a.peers.split(",") if peer])
    (a.folder / "peers.json").write_text(json.dumps(row | {"versions": versions()}) + "\n")


if __name__ == "__main__":
    main()
