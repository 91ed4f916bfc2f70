"""Calls that are replayed, on a recorder of the host: what is read, copied, kept and given up."""

import pytest

torch = pytest.importorskip("torch")

import hypatia_core as hyp  # noqa: E402
from hypatia_core._recorded import MOST, OBSERVED, Recorded  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh")
CPU = torch.device("cpu")


def recorder(run, args, device):
    """A recording that runs again where the arguments lay, and overwrites its results."""
    before = [t.clone() if isinstance(t, torch.Tensor) else t for t in args]
    made = run(*args)
    for t, b in zip(args, before, strict=True):
        if isinstance(t, torch.Tensor):
            t.data.copy_(b)  # Recording runs nothing.

    def replay():
        for t, n in zip(made, run(*args), strict=True):
            if isinstance(t, torch.Tensor):
                t.data.copy_(n)

    return replay, made


def counted(f):
    calls = []

    def run(*args):
        calls.append(args)
        return f(*args)

    return run, calls


def test_each_call_has_its_own_results_of_its_own_arguments():
    weight = torch.randn(3, 3)
    run, calls = counted(lambda x, w: (x @ w, None))
    recorded = Recorded(run, CPU, recorder=recorder)
    kept = []
    for _ in range(20):
        x = torch.randn(2, 3)
        kept.append((x, x @ weight, recorded(x, weight)[0]))
    for _, wanted, got in kept:
        assert torch.equal(wanted, got)
    assert recorded.recordings == 1 and not recorded.given_up
    (line,) = hyp.report().lines
    assert line.side == "hypatia" and line.calls >= 10 and "CUDA graph" in line.why
    assert recorded.moving == [0]
    # Later calls read the weight where it lies, and the other argument from a copy.
    assert calls[-1][1] is weight and calls[-1][0] is not kept[-1][0]


def test_a_weight_that_changes_in_place_is_read_anew_and_one_that_moves_is_recorded_again():
    recorded = Recorded(lambda x, w: (x * w,), CPU, recorder=recorder)
    x, w = torch.ones(4), torch.ones(4)
    for _ in range(6):
        recorded(x, w)
    w.mul_(3)
    assert recorded(x, w)[0].tolist() == [3.0] * 4
    assert recorded.recordings == 1
    moved = torch.full((4,), 5.0)
    for _ in range(6):
        assert recorded(x, moved)[0].tolist() == [5.0] * 4
    assert recorded.recordings == 2
    assert recorded(x, w)[0].tolist() == [3.0] * 4


def test_an_argument_that_a_call_changes_stays_in_place():
    def add(cache, x):
        cache.add_(x)
        return cache, cache * 2

    recorded = Recorded(add, CPU, changed=[0], recorder=recorder)
    cache = torch.zeros(3)
    for i in range(10):
        same, doubled = recorded(cache, torch.ones(3))
        assert same is cache
        assert doubled.tolist() == [2.0 * (i + 1)] * 3
    other = torch.zeros(3)
    assert recorded(other, torch.ones(3))[0] is other
    assert other.tolist() == [1.0] * 3
    assert recorded.given_up == "an argument that it changes moves"


def test_watched_weights_that_change_are_not_replayed():
    seen = []

    def run(x, w):
        seen.append(1)
        return (x * w,)

    recorded = Recorded(run, CPU, watched=[1], recorder=recorder)
    x, w = torch.ones(2), torch.ones(2)
    for _ in range(OBSERVED + 2):
        recorded(x, w)
    assert recorded.recordings == 1
    w.add_(1)
    recorded(x, w)
    assert recorded.recording is None


@pytest.mark.parametrize(
    ("results", "why"),
    [
        (lambda x: (x[1:],), "its results share memory"),
        (lambda x: (lambda y: (y, y[:1]))(x + 1), "its results share memory"),
        (lambda x: (x + 1, 3), "its results are not tensors alone"),
    ],
)
def test_what_cannot_be_copied_is_not_replayed(results, why):
    recorded = Recorded(results, CPU, recorder=recorder)
    x = torch.ones(3)
    for _ in range(8):
        made, wanted = recorded(x), results(x)
        assert all(torch.equal(torch.as_tensor(a), torch.as_tensor(b)) for a, b in zip(made, wanted, strict=True))
    assert recorded.given_up == why


def test_arguments_that_move_too_often_and_failures_end_in_plain_calls():
    recorded = Recorded(lambda x, *more: (x + 1,), CPU, recorder=recorder)
    others = [torch.ones(1) for _ in range(9)]
    for i in range(9):
        given = [others[0]] * 8
        for _ in range(6):
            given[: min(i, 8)] = [torch.ones(1) for _ in range(min(i, 8))]
            recorded(torch.ones(1), *given)
    assert recorded.recordings <= MOST

    def fails(run, args, device):
        raise RuntimeError("operation not permitted when stream is capturing")

    recorded = Recorded(lambda x: (x + 1,), CPU, recorder=fails)
    for _ in range(6):
        assert recorded(torch.ones(1))[0].tolist() == [2.0]
    assert recorded.given_up.startswith("it cannot be recorded")
