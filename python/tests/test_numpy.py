"""Models on NumPy arrays, against NumPy in float64."""

import gc
import os
import pickle
import threading

import numpy as np
import pytest
from support import MODELS, graph_model

import hypatia_core as hyp

FLOATS = {"f64": np.float64, "f32": np.float32, "f16": np.float16}
INTS = {"i64": np.int64, "i32": np.int32, "i8": np.int8, "u8": np.uint8}
EPS = {"f64": 2.0**-52, "f32": 2.0**-23, "f16": 2.0**-10, "bf16": 2.0**-7}


def doubled(dtype, shape=("n", 3)):
    return graph_model({"x": (dtype, shape)}, lambda g, x: {"y": g.call("add", [x, x])[0]})


def product(dtype):
    inputs = {"a": (dtype, ("m", "k")), "b": (dtype, ("k", "n"))}
    return graph_model(inputs, lambda g, a, b: {"y": g.call("matmul", [a, b])[0]})


@pytest.mark.parametrize("name", ["digits", "ffn"])
def test_onnx_models_agree_with_their_references(name):
    model = hyp.Model(MODELS / name / "model.onnx")
    with np.load(MODELS / name / "inputs.npz") as inputs, np.load(MODELS / name / "outputs.npz") as want:
        got = model.run(dict(inputs))
        assert list(got) == list(model.outputs) == list(want)
        for key, array in got.items():
            assert array.dtype == want[key].dtype
            np.testing.assert_allclose(array, want[key], rtol=1e-4, atol=1e-4)
        first, second = model.plan(dict(inputs)), model.plan(dict(inputs))
    assert first is second and first.launches > 0 and first.refusal is None


@pytest.mark.parametrize("dtype", [*FLOATS, "bf16"])
def test_products_agree_with_float64(dtype):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    kind = ml_dtypes.bfloat16 if dtype == "bf16" else FLOATS[dtype]
    rng = np.random.default_rng(0)
    model = product(dtype)
    for m, k, n in [(1, 1, 1), (3, 5, 7), (64, 33, 17), (0, 4, 2), (2, 0, 3), (2, 4, 0)]:
        a, b = rng.standard_normal((m, k)).astype(kind), rng.standard_normal((k, n)).astype(kind)
        got = model.run({"a": a, "b": b})["y"]
        want = a.astype(np.float64) @ b.astype(np.float64)
        # A sum in f64 or f32, rounded once to the element type.
        sums = k * min(EPS[dtype], EPS["f32"]) * (np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64)))
        assert got.dtype == kind and got.shape == (m, n)
        assert (np.abs(got.astype(np.float64) - want) <= sums + EPS[dtype] * np.abs(want)).all()


@pytest.mark.parametrize("dtype", [*FLOATS, *INTS])
@pytest.mark.parametrize("n", [0, 1, 5])
def test_elements_of_every_type_and_any_layout(dtype, n):
    kind = {**FLOATS, **INTS}[dtype]
    model = doubled(dtype)
    base = np.arange(n * 6).reshape(n, 6).astype(kind)
    fortran = np.asfortranarray(base[:, :3])
    reversed_rows = base[::-1, :3]
    columns = base[:, ::2]
    transposed = np.ascontiguousarray(base[:, :3].T).T
    packed = np.zeros(n * 3 * kind().itemsize + 1, np.uint8)[1:].view(np.uint8)
    unaligned = packed[: n * 3 * kind().itemsize].view(kind).reshape(n, 3)
    unaligned[...] = base[:, :3]
    swapped = base[:, :3].astype(np.dtype(kind).newbyteorder(">"))
    read_only = base[:, :3].copy()
    read_only.flags.writeable = False
    for x in [fortran, reversed_rows, columns, transposed, unaligned, swapped, read_only]:
        got = model.run({"x": x})["y"]
        want = np.asarray(x, dtype=kind)
        np.testing.assert_array_equal(got, want + want)
        assert got.flags.c_contiguous and got.flags.writeable and got.dtype == kind


def test_bf16_as_bits():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    model = doubled("bf16")
    x = np.array([[0.5, -2.0, 3.0]], ml_dtypes.bfloat16)
    for given in (x, x.view(np.uint16)):
        np.testing.assert_array_equal(model.run([given])["y"].astype(np.float32), [[1, -4, 6]])


def test_bools_and_special_values():
    model = graph_model(
        {"x": ("f32", ("n",))}, lambda g, x: {"nan": g.call("isnan", [x])[0], "y": g.call("relu", [x])[0]}
    )
    x = np.array([np.nan, -np.inf, np.inf, -0.0, 0.0, 1e-45, -1.0], np.float32)
    got = model.run(x)
    assert got["nan"].dtype == np.bool_
    np.testing.assert_array_equal(got["nan"], np.isnan(x))
    np.testing.assert_array_equal(got["y"], np.array([np.nan, 0, np.inf, 0, 0, 1e-45, 0], np.float32))
    inverted = graph_model({"x": ("bool", ("n",))}, lambda g, x: {"y": g.call("not", [x])[0]})
    np.testing.assert_array_equal(inverted.run(np.array([True, False]))["y"], [False, True])


def test_numbers_of_python_take_the_type_of_the_model():
    model = doubled("f32")
    np.testing.assert_array_equal(model.run({"x": [[1, 2.5, 3]]})["y"], np.array([[2, 5, 6]], np.float32))
    scalar = graph_model({"x": ("i32", ())}, lambda g, x: {"y": g.call("add", [x, x])[0]})
    assert scalar.run(21)["y"] == 42 and scalar.run(21)["y"].shape == ()
    with pytest.raises(hyp.InputError, match="numbers that int8 does not"):
        doubled("i8").run({"x": [[1, 2, 300]]})
    with pytest.raises(hyp.InputError, match="must hold numbers of type int32"):
        scalar.run(1.5)


def test_wrong_inputs_are_named():
    model = product("f32")
    good = np.ones((2, 2), np.float32)
    for given, message in [
        ({"a": good}, "input `b` is missing; the inputs are `a`, `b`"),
        ({"a": good, "b": good, "c": good}, "there is no input `c`"),
        ([good], "1 inputs were given"),
        (good, "one input was given"),
        ({"a": good, "b": good.astype(np.float64)}, "input `b` must be float32, but is float64"),
        ({"a": good, "b": [[1, 2], [3]]}, "input `b` is not an array"),
        ({"a": good, "b": np.array([["x"]])}, "which Hypatia does not take"),
        ({"a": good, "b": None}, "which Hypatia does not take"),
        ({"a": good, "b": good + 0j}, "which Hypatia does not take"),
    ]:
        with pytest.raises(hyp.InputError) as error:
            model.run(given)
        assert message in str(error.value)
    with pytest.raises(hyp.InputError) as error:
        model.run({"a": good, "b": np.ones((3, 2), np.float32)})
    assert "b" in str(error.value) and "3" in str(error.value)
    assert isinstance(error.value, ValueError) and isinstance(error.value, hyp.HypatiaError)


def test_files_that_are_no_models(tmp_path):
    with pytest.raises(hyp.FileError, match=r"missing\.onnx"):
        hyp.Model(tmp_path / "missing.onnx")
    (tmp_path / "damaged.onnx").write_bytes(b"\xff" * 40)
    with pytest.raises(hyp.ModelError, match=r"damaged\.onnx"):
        hyp.Model(tmp_path / "damaged.onnx")
    path = MODELS / "digits" / "model.onnx"
    with pytest.raises(hyp.InputError, match="no rule or ruleset `none::such`"):
        hyp.Model(path, disable=["none::such"])
    with pytest.raises(hyp.InputError, match="`cpu`, `cuda`, `cuda:1` or `auto`"):
        hyp.Model(path, device="tpu")
    with pytest.raises(hyp.InputError, match="expected `exact`, `rounds` or `fast`"):
        hyp.Model(path, numerics="some")


def test_settings_reach_the_plan():
    path = MODELS / "digits" / "model.onnx"
    x = np.zeros((2, 64), np.float32)
    fused, plain = hyp.Model(path), hyp.Model(path, use_rules=False)
    assert fused.plan(x).launches < plain.plan(x).launches and not plain.plan(x).fired
    partly = hyp.Model(path, disable=["fuse"])
    assert fused.plan(x).launches < partly.plan(x).launches
    assert hyp.Model(path, dims={"batch": 7}).inputs == {"input": ("f32", (7, 64))}


def test_a_wrong_rule_is_refused():
    rules = hyp.Rules.from_text(
        "edition 1; use core::*; use nn::*; ruleset mine { until = fixpoint; }"
        "rule mine::wrong: relu(x) => x class exact;"
    )
    model = hyp.Model(MODELS / "digits" / "model.onnx", rules)
    with np.load(MODELS / "digits" / "inputs.npz") as inputs, np.load(MODELS / "digits" / "outputs.npz") as want:
        plan = model.plan(dict(inputs))
        assert plan.refusal is not None and "mine::wrong" in plan.refusal
        np.testing.assert_allclose(model.run(dict(inputs))["linear_3"], want["linear_3"], rtol=1e-4, atol=1e-4)


def test_explain_and_why_not():
    model = hyp.Model(MODELS / "ffn" / "model.onnx")
    explained = hyp.explain(model)
    before, after = explained.launches
    assert after < before and explained.fired and "launches" in str(explained)
    assert "<table>" in explained._repr_html_() and "&lt;" not in explained._repr_html_()[:20]
    assert hyp.explain(model, target="h200").launches != explained.launches
    assert "does not match anywhere" in model.why_not("fold::softmax")
    with pytest.raises(hyp.InputError, match="there is no target `abacus`"):
        model.explain(target="abacus")
    with pytest.raises(hyp.HypatiaError, match="none::such"):
        model.why_not("none::such")


def test_threads_share_a_model():
    model = product("f32")
    rng = np.random.default_rng(1)
    wrong, arrays = [], [rng.standard_normal((m, 40)).astype(np.float32) for m in (1, 3, 8, 100)]
    b = rng.standard_normal((40, 30)).astype(np.float32)

    def work():
        for _ in range(20):
            for a in arrays:
                got = model.run({"a": a, "b": b})["y"]
                if not np.allclose(got, a.astype(float) @ b, atol=1e-4):
                    wrong.append(a.shape)

    threads = [threading.Thread(target=work) for _ in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not wrong


def test_the_lock_of_the_interpreter_is_released():
    model = product("f64")
    a = np.ones((700, 700))
    model.run({"a": a, "b": a})
    seen, running = [], threading.Event()

    def work():
        running.set()
        for _ in range(5):
            model.run({"a": a, "b": a})
        seen.append("done")

    thread = threading.Thread(target=work)
    thread.start()
    running.wait()
    steps = 0
    while thread.is_alive():
        steps += 1
    thread.join()
    # With the lock held, this thread would only move between the five runs.
    assert seen and steps > 1000


def test_a_forked_process_runs_too():
    model = product("f32")
    a = np.ones((300, 300), np.float32)
    model.run({"a": a, "b": a})
    process = os.fork()
    if process == 0:
        right = (model.run({"a": a, "b": a})["y"] == 300).all()
        os._exit(0 if right else 1)
    assert os.waitpid(process, 0)[1] == 0


def test_results_do_not_share_memory():
    same = graph_model({"x": ("f32", ("n",))}, lambda g, x: {"same": x, "twice": g.call("add", [x, x])[0]})
    x = np.arange(4, dtype=np.float32)
    first = same.run(x)
    first["same"][:] = -1
    del first["twice"]
    gc.collect()
    np.testing.assert_array_equal(x, np.arange(4))
    np.testing.assert_array_equal(same.run(x)["same"], x)


def test_native_objects_are_not_pickled_and_say_so():
    with pytest.raises(TypeError, match="pickle"):
        pickle.dumps(hyp.Model(MODELS / "digits" / "model.onnx"))
