"""PyTorch's own samples of modules, in evaluation, through `torch.compile`'s path, against eager.

`modules.json` has for each module how many samples agree and how many a plan computes; the table at
the end of docs/pytorch-ops.md is made of it: `python tests/test_modules.py` writes both anew.
"""

import json
import sys
import warnings
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest")
from test_samples import HERE, PAGE, run_sample  # noqa: E402

import hypatia_core as hyp  # noqa: E402

COUNTS = HERE / "modules.json"
#: Samples of a module.
MOST = 2
HEAD = """
## Modules

The same for the first two samples of {} of PyTorch's modules, in f32 and in evaluation. Lazy
modules without sizes and pools with random windows are left out.

| module | planned |
|---|---|
"""


def known():
    return json.loads(COUNTS.read_text()) if COUNTS.exists() else {}


def modules():
    """PyTorch's list, by name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_modules import module_db
    return {info.name: info for info in module_db}


def sample_of(info, given):
    """A module and its inputs as a function of tensors, parameters and buffers among them."""
    module = info.module_cls(*given.constructor_input.args, **given.constructor_input.kwargs).eval()
    state = {**dict(module.named_parameters()), **dict(module.named_buffers())}

    def op(state, *args, **kwargs):
        return torch.func.functional_call(module, state, args, kwargs)

    inputs = given.forward_input
    return SimpleNamespace(op=op), SimpleNamespace(input=state, args=inputs.args, kwargs=inputs.kwargs)


def count(info):
    """(samples, samples that a plan computed), or an error."""
    samples = computed = 0
    inputs = info.module_inputs_func(info, "cpu", torch.float32, requires_grad=False, training=False)
    for given in inputs:
        if samples == MOST or given.forward_input is None:
            break
        with hyp.nn.policy("always"), torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                planned = run_sample(*sample_of(info, given), torch.float32)
            except Exception as error:
                raise AssertionError(f"sample {samples} of {info.name}") from error
        samples += planned is not None
        computed += bool(planned)
    hyp.nn._runtime.forget()
    return samples, computed


@pytest.mark.parametrize("name", sorted(known()))
def test_samples_agree_with_eager(name):
    torch.manual_seed(0)
    samples, computed = count(_modules()[name])
    assert samples >= known()[name][0] and computed >= known()[name][1], (samples, computed, known()[name])


_found = {}


def _modules():
    if not _found:
        _found.update(modules())
    return _found


def write():
    """Count all modules anew, and write the table."""
    counts, wrong = {}, {}
    for name, info in _modules().items():
        torch.manual_seed(0)
        try:
            samples, computed = count(info)
        except AssertionError as error:
            wrong[name] = f"{error}\n    {type(error.__cause__).__name__}: {error.__cause__}"
            continue
        if samples:
            counts[name] = (samples, computed)
        print(name, counts.get(name), flush=True)
    COUNTS.write_text(json.dumps(counts, indent=1, sort_keys=True) + "\n")
    page, _, rest = PAGE.read_text().partition("\n## Modules")
    # What follows the table stays.
    _, mark, rest = rest.partition("\n## ")
    rows = [f"| {name} | {computed} of {samples} |" for name, (samples, computed) in counts.items()]
    PAGE.write_text(page.rstrip() + "\n" + HEAD.format(len(counts)) + "\n".join(rows) + "\n" + mark + rest)
    return [f"{name}: {why}" for name, why in wrong.items()]


if __name__ == "__main__":
    sys.exit("\n".join(write()) or 0)
