"""Sixteen small models with random weights: each name makes a module and its inputs."""

import torch
import torch.nn.functional as F
from torch import nn


def mlp(activation):
    def make():
        layers = [nn.Linear(64, 128), activation(), nn.Linear(128, 128), activation()]
        layers += [nn.Linear(128, 128), activation(), nn.Linear(128, 10)]
        return nn.Sequential(*layers), (torch.randn(32, 64),)

    return make


class Digits(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.drop = nn.BatchNorm1d(64), nn.Dropout(0.1)
        self.a, self.b, self.c = nn.Linear(64, 128), nn.Linear(128, 64), nn.Linear(64, 10)

    def forward(self, x):
        x = self.drop(F.relu(self.a(self.norm(x.flatten(1)))))
        return self.c(F.relu(self.b(x)))


class SwiGlu(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.RMSNorm(64)
        self.gate, self.up, self.down = (nn.Linear(i, o, bias=False) for i, o in ((64, 128), (64, 128), (128, 64)))
        self.head = nn.Linear(64, 10)

    def forward(self, x):
        y = self.norm(x)
        return self.head(x + self.down(F.silu(self.gate(y)) * self.up(y)))


def ids(count, batch=2, length=16):
    return torch.randint(0, count, (batch, length))


def bert():
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=100,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
        num_labels=5,
    )
    return BertForSequenceClassification(config), (ids(100), torch.ones(2, 16, dtype=torch.long))


def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=100, n_embd=32, n_layer=2, n_head=2, n_positions=64, use_cache=False)
    return GPT2LMHeadModel(config), (ids(100),)


DECODER = {
    "vocab_size": 100,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "use_cache": False,
}


def llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(**DECODER)), (ids(100),)


def qwen2():
    from transformers import Qwen2Config, Qwen2ForCausalLM

    return Qwen2ForCausalLM(Qwen2Config(**DECODER)), (ids(100),)


def vit():
    import timm

    options = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2, "num_classes": 10}
    return timm.create_model("vit_tiny_patch16_224", **options), (torch.randn(2, 3, 32, 32),)


def mixer():
    from timm.models.mlp_mixer import MlpMixer

    model = MlpMixer(img_size=32, patch_size=8, embed_dim=32, num_blocks=2, num_classes=10)
    return model, (torch.randn(2, 3, 32, 32),)


def convnext():
    import timm

    model = timm.create_model("convnext_atto", depths=(1, 1, 1, 1), dims=(16, 32, 32, 32), num_classes=10)
    return model, (torch.randn(2, 3, 64, 64),)


def resnet18():
    import torchvision

    return torchvision.models.resnet18(num_classes=10), (torch.randn(2, 3, 64, 64),)


def mobilenetv3():
    import torchvision

    return torchvision.models.mobilenet_v3_small(num_classes=10), (torch.randn(2, 3, 64, 64),)


def whisper():
    from transformers import WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    config = WhisperConfig(
        vocab_size=100,
        num_mel_bins=16,
        encoder_layers=2,
        encoder_attention_heads=2,
        d_model=32,
        encoder_ffn_dim=64,
        decoder_layers=2,
        decoder_attention_heads=2,
        decoder_ffn_dim=64,
        max_source_positions=20,
        max_target_positions=20,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
    )
    return WhisperEncoder(config), (torch.randn(2, 16, 40),)


class T5(nn.Module):
    def __init__(self):
        super().__init__()
        from transformers import T5Config, T5ForConditionalGeneration

        config = T5Config(
            vocab_size=100,
            d_model=32,
            d_kv=16,
            d_ff=64,
            num_layers=2,
            num_decoder_layers=2,
            num_heads=2,
            use_cache=False,
            decoder_start_token_id=0,
        )
        self.model = T5ForConditionalGeneration(config)

    def forward(self, words, answer):
        return self.model(input_ids=words, decoder_input_ids=answer)


MODELS = {
    "mlp_relu": mlp(nn.ReLU),
    "mlp_gelu": mlp(nn.GELU),
    "mlp_silu": mlp(nn.SiLU),
    "digits": lambda: (Digits(), (torch.randn(16, 1, 8, 8),)),
    "swiglu": lambda: (SwiGlu(), (torch.randn(8, 16, 64),)),
    "bert": bert,
    "gpt2": gpt2,
    "llama": llama,
    "qwen2": qwen2,
    "vit": vit,
    "mixer": mixer,
    "convnext": convnext,
    "resnet18": resnet18,
    "mobilenetv3": mobilenetv3,
    "whisper": whisper,
    "t5": lambda: (T5(), (ids(100), ids(100, 2, 8))),
}


def tensor(result):
    """The tensor that a model's result holds."""
    for name in ("logits", "last_hidden_state"):
        if hasattr(result, name):
            return getattr(result, name)
    return result
