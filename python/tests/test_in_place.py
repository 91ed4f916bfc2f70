"""Arguments that a compiled function changes: written where they lie, in the right order."""

import math

import pytest

torch = pytest.importorskip("torch")

import hypatia_core as hyp  # noqa: E402
from hypatia_core.backend import backend  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh")
F = torch.nn.functional


def ops_of(f, args):
    """What a function computes, and the ops that run, with the elements of their first operand."""
    with torch.profiler.profile(record_shapes=True) as profile:
        made = f(*args)
    events = [e for e in profile.events() if e.name.startswith("aten::")]
    shapes = [next((s for s in e.input_shapes if s), []) for e in events]
    return made, [(e.name.removeprefix("aten::"), math.prod(s)) for e, s in zip(events, shapes, strict=True)]


def both(f, make):
    """The ops of the last of three calls, each compared with eager, the changed arguments too."""
    compiled = torch.compile(f, backend=backend, dynamic=False)
    ours, theirs = make(), make()
    with torch.no_grad():
        for _ in range(3):
            got, seen = ops_of(compiled, ours)
            torch.testing.assert_close(got, f(*theirs))
            torch.testing.assert_close(ours, theirs)
            hyp.wait_for_plans()
    return seen


def decode(keys, values, at, q, k, v):
    keys.index_copy_(2, at, F.gelu(k) * 2)
    values.index_copy_(2, at, F.gelu(v) * 2)
    return F.silu(F.scaled_dot_product_attention(q, keys, values)) + 1


def cache(length=64):
    torch.manual_seed(1)
    old = [torch.randn(1, 2, length, 8) for _ in range(2)]
    new = [torch.randn(1, 2, 1, 8) for _ in range(3)]
    return (*old, torch.tensor([5]), *new)


def test_a_cache_is_written_where_it_lies():
    seen = both(decode, cache)
    assert [name for name, _ in seen].count("index_copy_") == 2
    # Nothing is made that is as large as the cache.
    assert not [s for s in seen if s[1] == 2 * 64 * 8 and s[0] in ("clone", "index_copy")]
    assert "writes into an argument" in str(hyp.report())


def test_the_last_copy_is_of_an_argument_to_itself(monkeypatch):
    """PyTorch copies new values to arguments, and leaves out copies of a tensor to itself."""
    from hypatia_core import backend as module

    given, made = [], []

    def boxed(f):
        def run(args):
            given.append(list(args))
            made.append(f(*args))
            return made[-1]

        run._boxed_call = True
        return run

    monkeypatch.setattr(module, "make_boxed_func", boxed)
    ours = cache()
    with torch.no_grad():
        torch.compile(decode, backend=backend, dynamic=False)(*ours)
    assert sum(any(t is a for a in ours) for t in made[0]) == 2
    assert all(any(t is a for a in ours) for t in given[0])


#: Ops that make a tensor.
MADE = {"clone", "copy", "empty_strided"}


def test_a_slice_is_written_where_it_lies():
    def f(x, y):
        x[:, 2:5] = F.gelu(y) * 2
        return x.relu() + 1

    seen = both(f, lambda: (torch.ones(4, 16), torch.linspace(-1, 1, 12).view(4, 3)))
    assert ("copy_", 4 * 3) in seen and not MADE & {name for name, _ in seen}
    assert "writes into an argument" in str(hyp.report())


def test_a_selected_row_is_written_where_it_lies():
    def f(x, y):
        x[1] = F.gelu(y) * 2
        return x.relu() + 1

    seen = both(f, lambda: (torch.ones(4, 16), torch.linspace(-1, 1, 16)))
    assert ("copy_", 16) in seen and not MADE & {name for name, _ in seen}


@pytest.mark.parametrize(
    "write",
    [
        lambda x, i, y: x.scatter_(0, i, y),
        lambda x, i, y: x.scatter_add_(0, i, y),
        lambda x, i, y: x.index_add_(0, i[:, 0], y),
        lambda x, i, y: x.index_put_((i[:, 0],), y, accumulate=True),
        lambda x, i, y: x.index_copy_(0, i[:, 0], y),
    ],
)
def test_elements_are_written_where_they_lie(write):
    def f(x, i, y):
        write(x, i, F.gelu(y) * 2)
        return x.relu() + 1

    seen = both(f, lambda: (torch.ones(16, 4), torch.tensor([[3] * 4, [7] * 4]), torch.linspace(-1, 1, 8).view(2, 4)))
    assert not [s for s in seen if s[0] == "clone" and s[1] == 64]


def test_an_old_value_that_is_read_is_kept():
    def f(x, at, y):
        before = x * 2
        x.index_copy_(0, at, y)
        return F.gelu(before) + 1, x.relu()

    both(f, lambda: (torch.randn(8, 4, generator=torch.manual_seed(2)), torch.tensor([3]), torch.ones(1, 4)))


def test_arguments_that_share_memory_are_right():
    def f(x, view, at, y):
        x.index_copy_(0, at, F.gelu(y) * 2)
        return view.relu() + 1

    def make():
        x = torch.randn(8, 4, generator=torch.manual_seed(3))
        return x, x[2:6], torch.tensor([3]), torch.ones(1, 4)

    both(f, make)


def test_two_arguments_change_places():
    def f(x, y):
        old = x.clone()
        x.copy_(F.gelu(y) * 2)
        y.copy_(F.gelu(old) * 3)
        return x.relu() + y.relu()

    both(f, lambda: (torch.ones(4, 4), torch.full((4, 4), 2.0)))


def test_what_parts_compute_is_copied_at_once():
    def f(x, *counts):
        for c in counts:
            c.add_(1).mul_(2)
        return F.gelu(x) * 2

    seen = both(f, lambda: (torch.ones(4), *(torch.tensor(float(i)) for i in range(5))))
    names = [name for name, _ in seen]
    assert names.count("_foreach_copy_") == 1


def test_a_row_is_written_twice():
    def f(x, y):
        x[0] = F.gelu(y) * 2
        x[1] = x[0] + 1
        return x.relu()

    both(f, lambda: (torch.ones(4, 16), torch.linspace(-1, 1, 16)))


def test_what_is_copied_stays_its_own():
    """No result is the memory of an argument, though nothing reads what a copy overwrites."""

    def f(x, y):
        made = torch.empty_like(y).copy_(y)
        x[:, 1:3] = x[:, 2:4]
        x[0] = y[0] + 1
        return made, made[1:], torch.empty_like(y).copy_(y) + 1

    make = lambda: (torch.arange(16.0).view(4, 4), torch.ones(2, 4))  # noqa: E731
    both(f, make)
    x, y = make()
    with torch.no_grad():
        made, part, _ = torch.compile(f, backend=backend)(x, y)
        y.zero_()
        x.zero_()
    assert made.eq(1).all() and part.eq(1).all()
