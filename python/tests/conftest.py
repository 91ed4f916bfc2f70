"""What tests of PyTorch share."""

import pytest


@pytest.fixture
def fresh():
    """Equal random numbers, nothing compiled or reported before; our side computes every call."""
    import torch

    import hypatia_core as hyp
    from hypatia_core.nn import _runtime

    torch.manual_seed(0)
    torch._dynamo.reset()
    # Threads that compile with `dynamic=True` at once leave this False: each restores what it
    # found.
    torch._dynamo.config.assume_static_by_default = True
    hyp.reset_report()
    _runtime.forget()
    with hyp.nn.policy("always"):
        yield
