"""Safety modes of models."""

from pathlib import Path

import numpy as np
import pytest

import hypatia_core as hyp

DIGITS = Path(__file__).parents[2] / "tests" / "models" / "digits"


@pytest.mark.parametrize("safety", ["strict", "check", "off"])
def test_each_mode_of_a_model_gives_the_expected_results(safety, tmp_path):
    model = hyp.Model(DIGITS / "model.onnx", safety=safety, compare_every=2, incidents=tmp_path)
    inputs, want = np.load(DIGITS / "inputs.npz"), np.load(DIGITS / "outputs.npz")
    for _ in range(4):
        got = model.run(dict(inputs))
        for name in want.files:
            np.testing.assert_allclose(got[name], want[name], rtol=1e-4, atol=1e-4)
    assert model.incidents() == []
    assert list(tmp_path.iterdir()) == []


def test_a_mode_that_does_not_exist_is_an_error():
    with pytest.raises(hyp.InputError, match="safety: expected `strict`, `check` or `off`, not `careful`"):
        hyp.Model(DIGITS / "model.onnx", safety="careful")
