"""PyTorch's own samples of ops, forward, through `torch.compile`'s path, against eager.

`samples.json` has for each entry how many samples there are and how many a plan computes; the table
in docs/pytorch-ops.md is made of it: `python tests/test_samples.py` writes both anew.
"""

import json
import sys
import warnings
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest")
from functorch.compile import aot_function  # noqa: E402
from torch._functorch._aot_autograd.utils import make_boxed_func  # noqa: E402
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException  # noqa: E402

import hypatia_core as hyp  # noqa: E402
from hypatia_core._rules import library  # noqa: E402
from hypatia_core.backend import Part, divided, table  # noqa: E402

HERE = Path(__file__).parent
COUNTS = HERE / "samples.json"
PAGE = HERE.parents[1] / "docs" / "pytorch-ops.md"
HEAD = """# What PyTorch's samples of ops become

PyTorch comes with samples of its ops. For {} of its entries, the first four samples in f32 and
two in f64 run through `torch.compile`'s path, forward, on the CPU, and agree with eager; the tests
fail if one no longer does. The numbers say of how many a plan of Hypatia computes a part, where a
plan is made even for one op alone; PyTorch computes the rest. Samples whose sizes depend on data
are not counted.

| entry | planned, f32 | planned, f64 |
|---|---|---|
"""
#: Samples of an entry, by element type.
MOST = {torch.float32: 4, torch.float64: 2}


def known():
    return json.loads(COUNTS.read_text()) if COUNTS.exists() else {}


def entries():
    """The entries of the list, by name and variant."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_methods_invocations import op_db
    named = {f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name: op for op in op_db}
    return {name: named[name] for name in (HERE / "samples.txt").read_text().split()}


def tensors_of(value):
    return [t for t in torch.utils._pytree.tree_leaves(value) if isinstance(t, torch.Tensor)]


class Watched:
    """Compiles graphs, and counts those of which a plan computed a part."""

    def __init__(self):
        self.parts = []

    def __call__(self, graph, inputs):
        # The parts themselves, not their ids: one that is freed meanwhile leaves its id to another.
        before = set(hyp.nn._runtime._parts)
        run = divided(graph, library(), single=True)
        self.parts += [p for p in hyp.nn._runtime._parts if p not in before and isinstance(p, Part)]
        return make_boxed_func(run)

    @property
    def planned(self):
        return any(choice.ours for part in self.parts for choice in part.plans.values())


def run_sample(op, sample, dtype):
    """True if a plan computed a part of a sample, None if nothing is compared; else an error."""

    def f(*tensors):
        leaves = iter(tensors)
        fill = lambda t: next(leaves) if isinstance(t, torch.Tensor) else t  # noqa: E731
        args = torch.utils._pytree.tree_map(fill, (sample.input, sample.args, sample.kwargs))
        return op.op(args[0], *args[1], **args[2])

    given = [t.detach() for t in tensors_of((sample.input, sample.args, sample.kwargs))]
    if not given:
        return None
    # Entries with random numbers set this seed themselves, which a graph does not repeat.
    torch.manual_seed(42)
    want = f(*given)
    watched = Watched()
    torch.manual_seed(42)
    try:
        got = aot_function(f, fw_compiler=watched, inference_compiler=watched, decompositions=table())(*given)
    except (DataDependentOutputException, DynamicOutputShapeException):
        return None  # Dynamo breaks its graph there.
    eps = torch.finfo(dtype).eps
    for g, w in zip(tensors_of(got), tensors_of(want), strict=True):
        assert (g.dtype, g.shape) == (w.dtype, w.shape), (g.dtype, g.shape, w.dtype, w.shape)
        if g.numel():
            finite = w[w.isfinite()] if w.is_floating_point() else w
            scale = finite.abs().max().item() if finite.numel() and w.is_floating_point() else 1.0
            torch.testing.assert_close(g, w, rtol=128 * eps, atol=64 * eps * max(scale, 1e-3), equal_nan=True)
    return watched.planned


def count(op, dtype):
    """(samples, samples that a plan computed), or an error."""
    samples = computed = 0
    for sample in op.sample_inputs("cpu", dtype, requires_grad=False):
        if samples == MOST[dtype]:
            break
        with hyp.nn.policy("always"), torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                planned = run_sample(op, sample, dtype)
            except Exception as error:
                raise AssertionError(f"sample {samples} of {op.name}: {sample}") from error
        samples += planned is not None
        computed += bool(planned)
    hyp.nn._runtime.forget()
    return samples, computed


@pytest.mark.parametrize("name", sorted(known()))
def test_samples_agree_with_eager(name):
    wanted, op = known()[name], _entries()[name]
    for dtype in MOST:
        if dtype not in op.dtypes:
            continue
        torch.manual_seed(0)
        samples, computed = count(op, dtype)
        least = wanted[str(dtype).removeprefix("torch.")]
        assert (samples, computed) >= (least[0], least[1]) and computed >= least[1], (samples, computed, least)


_found = {}


def _entries():
    if not _found:
        _found.update(entries())
    return _found


def write():
    """Count all entries anew, and write the table."""
    counts, wrong = {}, {}
    for name, op in _entries().items():
        for dtype in MOST:
            kind = str(dtype).removeprefix("torch.")
            if dtype not in op.dtypes:
                continue
            torch.manual_seed(0)
            try:
                counts.setdefault(name, {})[kind] = count(op, dtype)
            except AssertionError as error:
                wrong[f"{name} {kind}"] = f"{error}\n    {type(error.__cause__).__name__}: {error.__cause__}"
                counts.pop(name, None)
                break
        print(name, counts.get(name), flush=True)
    COUNTS.write_text(json.dumps(counts, indent=1, sort_keys=True) + "\n")
    rows = [
        f"| {name} | "
        + " | ".join(f"{of[k][1]} of {of[k][0]}" if k in of else "" for k in ("float32", "float64"))
        + " |"
        for name, of in counts.items()
    ]
    # What follows the table stays.
    _, mark, rest = PAGE.read_text().partition("\n## ")
    PAGE.write_text(HEAD.format(len(counts)) + "\n".join(rows) + "\n" + mark + rest)
    return [f"{name}: {why}" for name, why in wrong.items()]


if __name__ == "__main__":
    sys.exit("\n".join(write()) or 0)
