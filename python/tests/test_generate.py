"""`generate` of Hugging Face's models with a compiled forward: eager's tokens, few compilations."""

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
from torch._dynamo.utils import counters  # noqa: E402

import hypatia_core as hyp  # noqa: E402
from hypatia_core.backend import backend  # noqa: E402


def llama():
    config = transformers.LlamaConfig(
        vocab_size=100,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    return transformers.LlamaForCausalLM(config)


def gpt2():
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=100, n_embd=32, n_layer=2, n_head=2))


@pytest.mark.parametrize(("make", "cache"), [(llama, "static"), (llama, None), (gpt2, None)])
def test_tokens_are_eagers_and_no_token_is_compiled(make, cache):
    torch.manual_seed(0)
    torch._dynamo.reset()
    hyp.nn._runtime.forget()
    model = make().eval()
    model.generation_config.pad_token_id, model.generation_config.eos_token_id = 0, None
    ids = torch.randint(1, 100, (2, 5))
    options = {"max_new_tokens": 8, "do_sample": False, "cache_implementation": cache, "disable_compile": True}
    with torch.no_grad():
        want = model.generate(ids, **options)
        model.forward = torch.compile(model.forward, backend=backend)
        found = []
        for _ in range(4):
            graphs, calls = counters["stats"]["unique_graphs"], hyp.report().hypatia
            got = model.generate(ids, **options)
            hyp.wait_for_plans()
            assert torch.equal(got, want)
            found.append((counters["stats"]["unique_graphs"] - graphs, hyp.report().hypatia - calls))
    # The prompt, and the first and the later tokens: 8 tokens are no 8 graphs.
    assert found[0][0] <= 4 and [graphs for graphs, _ in found[2:]] == [0, 0]
    assert found[3][1] >= (14 if cache else 6)
