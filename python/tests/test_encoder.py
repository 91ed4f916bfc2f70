"""Layers that PyTorch computes by one op where no gradient is wanted: plans fuse what they do."""

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import hypatia_core as hyp  # noqa: E402
from hypatia_core.backend import backend  # noqa: E402

pytestmark = [
    pytest.mark.usefixtures("fresh"),
    pytest.mark.filterwarnings("ignore:Converting mask without torch.bool"),
]

LATER = torch.ones(5, 5).triu(1).bool()
PADDED = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
MASKS = {
    "none": {},
    "rows and keys": {"src_mask": LATER},
    "keys": {"src_key_padding_mask": PADDED},
    "both": {"src_mask": LATER, "src_key_padding_mask": PADDED},
    "numbers": {"src_mask": torch.zeros(5, 5).masked_fill(LATER, float("-inf"))},
    "no key": {"src_mask": torch.tensor([[True] * 5] + [[False] * 5] * 4)},
}


def agree(f, x):
    """All is one plan's, and its error is no larger than PyTorch's."""
    compiled = torch.compile(f, backend=backend, fullgraph=True)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(compiled(x), f(x), rtol=1e-5, atol=1e-6, equal_nan=True)
    assert {line.side for line in hyp.report().lines} == {"hypatia"}, hyp.report()


@pytest.mark.parametrize("how", [{}, {"activation": "gelu", "norm_first": True}], ids=["post", "pre"])
@pytest.mark.parametrize("mask", MASKS)
def test_a_layer(mask, how):
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, layer_norm_eps=0.1, **how).eval()
    agree(lambda x: layer(x, **MASKS[mask]) * 2, torch.randn(2, 5, 16))


@pytest.mark.parametrize(
    "how",
    [
        {"need_weights": False},
        {"need_weights": False, "attn_mask": LATER, "key_padding_mask": PADDED},
        {"need_weights": True},
        {"need_weights": True, "average_attn_weights": False, "attn_mask": LATER},
    ],
    ids=["result", "result, masked", "weights", "weights of heads"],
)
def test_attention(how):
    module = nn.MultiheadAttention(16, 2, batch_first=True).eval()
    agree(lambda x: module(x, x, x, **how)[0] * 2, torch.randn(2, 5, 16))
    if how["need_weights"]:
        agree(lambda x: module(x, x, x, **how)[1] * 2, torch.randn(2, 5, 16))


def test_a_stack():
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    agree(nn.TransformerEncoder(layer, 3).eval(), torch.randn(2, 5, 16))
