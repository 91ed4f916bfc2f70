"""Ops of the importer's table on values that PyTorch's samples lack: zeros, infinities, NaN.

The oracle is PyTorch, in f64 where the result is a float.
"""

import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F  # noqa: E402

import hypatia_core as hyp  # noqa: E402
from hypatia_core.backend import backend  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh")

#: Numerators and divisors: every pair of these.
HOSTILE = [0.0, -0.0, 1.0, -1.0, 2.5, -2.5, 7.0, 1e-3, float("inf"), -float("inf"), float("nan")]
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


def pairs(dtype):
    values = torch.tensor(HOSTILE, dtype=dtype)
    return values[:, None].expand(-1, len(HOSTILE)).clone(), values[None, :].expand(len(HOSTILE), -1).clone()


def agree(f, *inputs, refused=(), jumps=False):
    """Compare with eager; everything but ops that are `refused` must be a plan's.

    A function that `jumps` is the same as eager's: in f64 it may jump elsewhere.
    """
    hyp.reset_report()
    with torch.no_grad():
        want = f(*inputs)
        got = torch.compile(f, backend=backend, fullgraph=True)(*inputs)
        wide = f(*(t.double() if t.is_floating_point() else t for t in inputs))
    by_pytorch = [line.why for line in hyp.report().lines if line.side == "pytorch"]
    assert len(by_pytorch) == len(refused), by_pytorch
    assert all(any(word in why for why in by_pytorch) for word in refused), by_pytorch
    assert (got.dtype, got.shape, got.stride()) == (want.dtype, want.shape, want.stride())
    if jumps or not want.is_floating_point():
        return torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
    eps = torch.finfo(want.dtype).eps
    finite = wide[wide.isfinite()].abs()
    size = finite.max().item() if finite.numel() else 1.0
    # Where 16 bits overflow, f64 does not.
    wide = torch.where(want.isfinite() | want.isnan(), wide, want.double())
    torch.testing.assert_close(got.double(), wide, rtol=4 * eps, atol=4 * eps * min(size, 16.0), equal_nan=True)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(
    "alpha, scale, below", [(1.0, 1.0, 1.0), (0.3, 1.0, 1.0), (1.6733, 1.0507, 1.0), (0.7, 1.0, 1 / 0.7)]
)
def test_elu_and_its_relatives(alpha, scale, below, dtype):
    x = torch.cat([torch.tensor(HOSTILE, dtype=dtype), torch.linspace(-30, 30, 61, dtype=dtype)])
    agree(lambda x: torch.ops.aten.elu(x, alpha, scale, below) * 0.5, x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("mode", ["floor", "trunc"])
def test_divisions_that_round(mode, dtype):
    agree(lambda x, y: torch.div(x, y, rounding_mode=mode) + 1, *pairs(dtype), jumps=True)


@pytest.mark.parametrize("mode", ["floor", "trunc"])
@pytest.mark.parametrize("divisor", [3, -3])
def test_divisions_of_integers(mode, divisor):
    agree(lambda x: torch.div(x, divisor, rounding_mode=mode) * 2, torch.arange(-9, 10))


def test_integers_divided_by_a_tensor_are_pytorchs():
    x, y = torch.arange(1, 9), torch.tensor([1, 2, 3, -4, 5, 6, -7, 8])
    agree(lambda x, y: torch.div(x, y, rounding_mode="floor"), x, y, refused=["div of integers"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", ["fmod", "remainder"])
def test_remainders(name, dtype):
    agree(lambda x, y: getattr(torch, name)(x, y) * 2, *pairs(dtype))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(
    "name", ["round", "trunc", "tan", "sinh", "cosh", "asin", "acos", "atan", "asinh", "acosh", "atanh"]
)
def test_functions(name, dtype):
    x = torch.cat(
        [
            torch.tensor(HOSTILE, dtype=dtype),
            torch.linspace(-1, 1, 41, dtype=dtype),
            torch.tensor([0.5, 1.5, -2.5], dtype=dtype),
        ]
    )
    agree(lambda x: getattr(torch, name)(x) * 2, x)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.filterwarnings("ignore:var")
@pytest.mark.parametrize("correction", [0, 1, 1.5, 7, 9])
def test_variances(correction, dtype):
    x = torch.randn(5, 7, dtype=dtype) + 3
    agree(lambda x: torch.var(x, 1, correction=correction, keepdim=True) * 2, x)


@pytest.mark.filterwarnings("ignore:var")
def test_the_variance_of_one_element_and_of_all():
    agree(lambda x: x.var(-1) * 2, torch.randn(3, 1))
    agree(lambda x: x.var() * 2, torch.randn(3, 5))
    agree(lambda x: torch.stack(torch.var_mean(x, (0, 2))) * 2, torch.randn(3, 5, 2))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("order", [1, 2, float("inf"), -float("inf")])
def test_norms_of_vectors(order, dtype):
    x = torch.randn(4, 6, dtype=dtype)
    agree(lambda x: torch.linalg.vector_norm(x, order, dim=-1, keepdim=True) * 0.5, x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool], ids=str)
def test_any_and_all(dtype):
    x = torch.tensor([[0, 0, 0], [0, 2, 0], [1, 1, 3]], dtype=dtype)
    if dtype.is_floating_point:
        x[0, 1], x[1, 1] = -0.0, float("nan")
    agree(lambda x: ~x.any(-1), x)
    agree(lambda x: ~x.all(0, keepdim=True), x)
    agree(lambda x: ~x.any(), x)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(
    "groups, shape", [(2, (2, 8, 5, 7)), (8, (1, 8, 3)), (1, (3, 6)), (3, (2, 6, 4, 3, 2)), (2, (1, 4, 1))]
)
def test_group_norm(groups, shape, dtype):
    x = torch.randn(shape, dtype=dtype) * 3 + 1
    weight, bias = torch.randn(2, shape[1], dtype=dtype)
    agree(lambda x, w, b: F.group_norm(x, groups, w, b) * 0.5, x, weight, bias)
    agree(lambda x: F.group_norm(x, groups) * 0.5, x)


def test_group_norm_is_trained():
    given = [torch.randn(2, 6, 5, dtype=torch.float64), *torch.randn(2, 6, dtype=torch.float64)]

    def gradients(f):
        leaves = [t.clone().requires_grad_() for t in given]
        f(*leaves).square().sum().backward()
        return [t.grad for t in leaves]

    def f(x, w, b):
        return F.selu(F.group_norm(x, 3, w, b))

    for got, want in zip(gradients(torch.compile(f, backend=backend)), gradients(f), strict=True):
        torch.testing.assert_close(got, want)


def test_moves():
    x = torch.randn(3, 4)
    agree(lambda x: F.pad(x, (1, 2, 0, 3), value=float("-inf")).relu(), x)
    agree(lambda x: F.pad(x, (1, 2)) * 2, torch.arange(8).reshape(2, 4))
    for widths in ((-1, 2), (2, -1), (-1, -2), (0, 0, -1, 1), (-1, 0, 1, -1)):
        agree(lambda x, widths=widths: F.pad(x, widths, value=3.0) * 2, x)
    agree(lambda x: F.pad(x, (-1, 2)) * 2, x.double() > 0)
    for axes in ((0,), (1,), (-1, 0), ()):
        agree(lambda x, axes=axes: x.flip(axes) * 2, x)
    agree(lambda x: torch.empty_like(x).fill_(2) + x.new_empty(4).zero_() + x, x)
    agree(lambda x: torch.ops.prims.convert_element_type(x, torch.float16) * 2, x)
    agree(lambda x: x.repeat(2, 1, 3) * 2, x)
    agree(lambda x: x.repeat(1, 1) * 2, x)
    agree(lambda x, i: x.index_select(-1, i) * 2, x, torch.tensor([3, 0, 0]))
    agree(lambda x, i: x.index_select(0, i) * 2, x, torch.tensor([1], dtype=torch.int32))


def test_windows_along_an_axis():
    x = torch.randn(3, 7, 5)
    for axis, size, step in [(1, 3, 2), (-1, 2, 1), (0, 3, 1), (-2, 7, 5), (2, 1, 3)]:
        agree(lambda x, of=(axis, size, step): x.unfold(*of) * 2, x)
    agree(lambda x: x.unfold(0, 2, 3) * 2, torch.arange(8))
    agree(lambda x: x.unfold(1, 0, 2).sum(-1) * 2, x, refused=["unfold of nothing", "empty"])
    x = torch.randn(2, 3, 8, 9)
    for how in [{}, {"padding": 1}, {"stride": (2, 3)}, {"dilation": (2, 1), "padding": (0, 2), "stride": 2}]:
        agree(lambda x, how=how: F.unfold(x, (3, 2), **how) * 2, x)
    agree(lambda x: F.unfold(x, 4) * 2, x[0])


def test_diagonals():
    x = torch.randn(4, 3, 5)
    for offset, first, second in [(0, 0, 1), (1, 1, 2), (-1, -2, -1), (2, 2, 0), (-2, 0, 2)]:
        agree(lambda x, of=(offset, first, second): x.diagonal(*of) * 2, x)
    agree(lambda x: x.diagonal() * 2, torch.arange(12).reshape(3, 4))
    agree(lambda x: x.diagonal(7, 1, 2).sum() * 2, x, refused=["diagonal of nothing", "empty"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool], ids=str)
def test_elements_some_way_apart_are_written(dtype):
    def f(x, y, at, axis):
        return torch.slice_scatter(x * 1, y, axis, at.start, at.stop, at.step).clone()

    x = torch.randn(4, 7, 5).to(dtype)
    for at, axis in [(slice(0, 7, 2), 1), (slice(1, 5, 3), -1), (slice(-3, None, 2), 0), (slice(6, 100, 9), 1)]:
        y = torch.randn(4, 7, 5)[(slice(None),) * (axis % 3) + (at,)].to(dtype)
        agree(lambda x, y, at=at, axis=axis: f(x, y, at, axis), x, y)


def test_strides_that_are_the_operands_own():
    def f(x, y):
        x = torch.as_strided(x * 2 + 1, x.shape, x.stride()) * 3
        return torch.as_strided_scatter(x, y, x.shape, x.stride()) - 1

    compiled = torch.compile(f, backend=backend, fullgraph=True, dynamic=True)
    for rows in (3, 5):
        x, y = torch.randn(rows, 4), torch.randn(rows, 4)
        with torch.no_grad(), hyp.nn.policy("always"):
            torch.testing.assert_close(compiled(x, y), f(x, y))
    assert (hyp.report().hypatia, hyp.report().pytorch) == (2, 0), str(hyp.report())


def test_an_index_of_one_axis():
    x, i = torch.randn(3, 4, 5), torch.tensor([3, -1, 0])
    agree(lambda x, i: x[:, i] * 2, x, i)
    agree(lambda x, i: x[..., i] * 2, x, i)
    agree(lambda x, i: x[:, i] * 2, x, i.reshape(1, 3, 1).expand(2, 3, 2).contiguous())
    agree(lambda x, i, j: x[i, j] * 2, x, i % 3, i)


INDEXED = {
    "later axes": lambda x, i, j: x[:, i, j],
    "the last axes": lambda x, i, j: x[..., i, j],
    "axes apart": lambda x, i, j: x[i, :, j],
    "axes apart, behind another": lambda x, i, j: x[:, i, :, j],
    "three axes": lambda x, i, j: x[i, j, i],
    "indices that broadcast": lambda x, i, j: x[:, i[:, None], j],
}


@pytest.mark.parametrize("name", INDEXED)
def test_indices_of_several_axes(name):
    x, i, j = torch.randn(4, 5, 6, 4), torch.tensor([3, -1, 0]), torch.tensor([0, 2, -4])
    agree(lambda x, i, j: INDEXED[name](x, i, j) * 2, x, i, j)
    mine, its = (x.clone().requires_grad_() for _ in range(2))

    def f(x):
        return INDEXED[name](x * 2, i, j).square().sum()

    torch.compile(f, backend=backend)(mine).backward()
    f(its).backward()
    torch.testing.assert_close(mine.grad, its.grad)


@pytest.mark.parametrize("accumulate", [False, True], ids=["set", "add"])
@pytest.mark.parametrize("at", [(0, 1), (1, 2), (0, 2), (1, 3), (2,), (0, 1, 2, 3)], ids=str)
def test_writes_at_indices_of_several_axes(at, accumulate):
    x, index = torch.randn(4, 5, 6, 4), [torch.tensor([3, -1, 0]), torch.tensor([[0], [2]])] * 2
    indices = [index[axis] if axis in at else None for axis in range(max(at) + 1)]
    values = torch.randn(torch.ops.aten.index(x, indices).shape)
    for v in (values, values[..., :1], torch.tensor(2.0)):
        agree(lambda x, v: torch.ops.aten.index_put(x * 2, indices, v, accumulate) * 2, x, v)


def test_an_empty_cache_is_no_operand():
    """As keys and values of decoders begin."""

    def f(x):
        old = torch.tensor([])
        return torch.cat([old, x, old, x.relu()], 1), torch.cat([old, x * 2], 1)

    hyp.reset_report()
    x = torch.randn(2, 3)
    with torch.no_grad():
        for got, want in zip(torch.compile(f, backend=backend, fullgraph=True)(x), f(x), strict=True):
            torch.testing.assert_close(got, want)
    assert {line.side for line in hyp.report().lines} == {"hypatia"}, str(hyp.report())


def test_pools_are_pytorchs_by_name():
    agree(
        lambda x: (F.max_pool2d(x * 2 + 1, 2) + 1) * 2,
        torch.randn(1, 2, 4, 4),
        refused=["kernels for pools are faster"],
    )
