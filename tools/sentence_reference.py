"""Reference embeddings of the sentence encoder example, in NumPy and f64.

The encoder is BERT as published; the pooling is the one that the model's own page gives (mean over
the tokens that are no padding, then length 1). Token ids come from the `tokenizers` library.

    sentence_reference.py MODEL_FOLDER SENTENCES.txt OUTPUT.npz
"""

import json
import math
import struct
import sys

import numpy as np
from tokenizers import Tokenizer

LAYERS, HEADS, EPS = 6, 12, 1e-12


def weights(path):
    """The tensors of a safetensors file, in f64."""
    data = open(path, "rb").read()
    (length,) = struct.unpack("<Q", data[:8])
    out = {}
    for name, info in json.loads(data[8 : 8 + length]).items():
        if name == "__metadata__" or info["dtype"] != "F32":
            continue
        a, b = (8 + length + o for o in info["data_offsets"])
        out[name] = np.frombuffer(data[a:b], "<f4").reshape(info["shape"]).astype(np.float64)
    return out


def layer_norm(x, w, name):
    x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS) * w[name + ".weight"] + w[name + ".bias"]


def linear(x, w, name):
    return x @ w[name + ".weight"].T + w[name + ".bias"]


erf = np.vectorize(math.erf)


def encode(ids, mask, w):
    x = w["embeddings.word_embeddings.weight"][ids]
    x = x + w["embeddings.position_embeddings.weight"][: ids.shape[1]] + w["embeddings.token_type_embeddings.weight"][0]
    x = layer_norm(x, w, "embeddings.LayerNorm")
    batch, tokens, hidden = x.shape
    heads = lambda t: t.reshape(batch, tokens, HEADS, hidden // HEADS).transpose(0, 2, 1, 3)
    bias = np.where(mask[:, None, None, :] == 1, 0.0, -np.inf)
    for layer in range(LAYERS):
        name = f"encoder.layer.{layer}"
        q, k, v = (heads(linear(x, w, f"{name}.attention.self.{n}")) for n in ("query", "key", "value"))
        scores = q @ k.transpose(0, 1, 3, 2) / math.sqrt(hidden // HEADS) + bias
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        context = (scores / scores.sum(-1, keepdims=True)) @ v
        context = context.transpose(0, 2, 1, 3).reshape(batch, tokens, hidden)
        x = layer_norm(x + linear(context, w, f"{name}.attention.output.dense"), w,
            f"{name}.attention.output.LayerNorm")
        inner = linear(x, w, f"{name}.intermediate.dense")
        inner = 0.5 * inner * (1 + erf(inner / math.sqrt(2)))
        x = layer_norm(x + linear(inner, w, f"{name}.output.dense"), w, f"{name}.output.LayerNorm")
    return x


def pool(x, mask):
    """The recipe of the model's page: mean_pooling, then normalize(p=2, dim=1)."""
    mask = mask[:, :, None].astype(np.float64)
    mean = (x * mask).sum(1) / np.maximum(mask.sum(1), 1e-9)
    return mean / np.maximum(np.linalg.norm(mean, axis=1, keepdims=True), 1e-12)


def main(folder, sentences, output):
    lines = [line.rstrip("\n") for line in open(sentences, encoding="utf-8") if line.strip()]
    tokenizer = Tokenizer.from_file(f"{folder}/tokenizer.json")
    tokenizer.enable_truncation(128)
    tokenizer.enable_padding()
    encoded = tokenizer.encode_batch(lines)
    ids = np.array([e.ids for e in encoded], np.int64)
    mask = np.array([e.attention_mask for e in encoded], np.int64)
    embeddings = pool(encode(ids, mask, weights(f"{folder}/model.safetensors")), mask)
    np.savez(output, ids=ids, embeddings=embeddings)


if __name__ == "__main__":
    main(*sys.argv[1:])
