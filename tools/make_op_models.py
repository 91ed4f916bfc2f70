#!/usr/bin/env python3
"""Writes tests/models/ops.npz: tiny ONNX models with inputs and expected outputs.

For each case the archive holds `CASE/model` (the bytes of the file), `CASE/in:NAME` and
`CASE/out:NAME`. There is one model for each op and for each opset in which its definition changed,
from opset 13 on, and a few graphs of several nodes for what exporters write. Expected outputs are
onnxruntime's, or, where it lacks an opset or an op in a type, those of ONNX's own reference
evaluator.

    tools/fetch_python.sh
    target/python/bin/python tools/make_op_models.py [FILE]
"""

import os
import sys
import warnings

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from exporter_models import FAMILIES

warnings.filterwarnings("ignore")
HERE = os.path.dirname(os.path.abspath(__file__))
OUT = sys.argv[1] if len(sys.argv) > 1 else os.path.join(HERE, "..", "tests", "models", "ops.npz")
RNG = np.random.default_rng(20)
IR = 8
COVERED = set()
ARCHIVE = {}


def f(*shape, low=-2.0, high=2.0, dtype=np.float32):
    return RNG.uniform(low, high, shape).astype(dtype)


def i(*values, dtype=np.int64):
    return np.array(values, dtype=dtype)


def run(model, feeds):
    """Outputs by onnxruntime, else by the reference evaluator."""
    try:
        # Its ReduceMax loses NaN, its ReduceMin keeps it.
        assert not any(n.op_type == "ReduceMax" and np.isnan(feeds["x"]).any() for n in model.graph.node)
        options = ort.SessionOptions()
        options.log_severity_level = 4
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return session.run(None, feeds), "onnxruntime"
    except Exception:
        return ReferenceEvaluator(model).run(None, feeds), "reference"


def info(name, array, dims=None):
    elem = helper.np_dtype_to_tensor_dtype(array.dtype)
    return helper.make_tensor_value_info(name, elem, list(array.shape) if dims is None else dims)


def save(name, nodes, inputs, outputs, opset, consts=(), dims=None, functions=(), imports=()):
    """A model of `nodes`; `inputs` by name, those in `consts` as initializers."""
    dims = dims or {}
    initializers = [numpy_helper.from_array(a, n) for n, a in inputs.items() if n in consts]
    graph = helper.make_graph(
        nodes,
        name,
        [info(n, a, dims.get(n)) for n, a in inputs.items() if n not in consts],
        [helper.make_empty_tensor_value_info(o) for o in outputs],
        initializers,
    )
    opsets = [helper.make_opsetid("", opset)] + [helper.make_opsetid(d, v) for d, v in imports]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=IR, functions=list(functions))
    feeds = {n: a for n, a in inputs.items() if n not in consts}
    results, by = run(model, feeds)
    for o, r in zip(model.graph.output, results):
        r = np.asarray(r)
        o.CopyFrom(helper.make_tensor_value_info(o.name, helper.np_dtype_to_tensor_dtype(r.dtype), None))
    model.producer_name = f"tools/make_op_models.py, expected by {by}"
    store(f"{name}_{opset}", model, feeds, dict(zip(outputs, results)))


def store(name, model, feeds, results):
    assert f"{name}/model" not in ARCHIVE, name
    ARCHIVE[f"{name}/model"] = np.frombuffer(model.SerializeToString(), np.uint8)
    ARCHIVE.update({f"{name}/in:{n}": np.asarray(a) for n, a in feeds.items()})
    ARCHIVE.update({f"{name}/out:{n}": np.asarray(a) for n, a in results.items()})


def versions(op):
    """The opsets from 13 on that changed the op's definition, and the first where it applies."""
    since = sorted(s.since_version for s in onnx.defs.get_all_schemas_with_history() if s.name == op and s.domain == "")
    return sorted({max(v, 13) for v in since if v >= 13 or v == max([u for u in since if u <= 13], default=0)})


def case(name, op, inputs, attrs=None, opsets=None, outputs=1, consts=(), dims=None):
    """One op. `None` among the inputs is an omitted input. The first case of an op runs at each
    version of its definition, the others at the newest."""
    if opsets is None:
        opsets = versions(op) if op not in COVERED else versions(op)[-1:]
        COVERED.add(op)
    for opset in opsets:
        names = [n if a is not None else "" for n, a in inputs.items()]
        outs = [f"y{k}" for k in range(outputs)]
        node = helper.make_node(op, names, outs, name=f"the_{op}", **(attrs or {}))
        given = {n: a for n, a in inputs.items() if a is not None}
        save(f"{op.lower()}_{name}", [node], given, outs, opset, consts, dims)


def pointwise():
    special = np.array([-np.inf, -3.5, -1.0, -0.0, 0.0, 0.5, 2.5, np.inf, np.nan], np.float32)
    small = np.array([-0.99, -0.5, -1e-3, 0.0, 1e-3, 0.5, 0.99], np.float32)
    wide = np.array([-30.0, -8.0, -1.0, -1e-3, 0.0, 1e-3, 1.0, 8.0, 30.0], np.float32)
    for op in ["Abs", "Ceil", "Floor", "Round", "Neg", "Sign", "IsNaN", "Relu", "Identity"]:
        case("special", op, {"x": special})
    for op in ["Acos", "Asin", "Atanh"]:
        case("inside", op, {"x": small})
    case("above", "Acosh", {"x": np.array([1.0, 1.001, 2.0, 1e3, 1e20], np.float32)})
    for op in ["Asinh", "Atan", "Sinh", "Cosh", "Tanh", "Sin", "Cos", "Tan", "Exp", "Erf", "Sigmoid", "Softplus",
               "Softsign", "Mish", "HardSwish"]:
        case("wide", op, {"x": wide})
    case("huge", "Asinh", {"x": np.array([-1e30, 1e30], np.float32)})
    case("huge", "Sinh", {"x": np.array([-89.0, 89.0], np.float32)}, opsets=[13])
    case("huge", "Cosh", {"x": np.array([-89.0, 89.0], np.float32)}, opsets=[13])
    for op in ["Log", "Sqrt", "Reciprocal"]:
        case("positive", op, {"x": np.array([1e-3, 0.5, 1.0, 7.0], np.float32)})
    for op, attrs in [("Elu", {"alpha": 0.7}), ("Celu", {"alpha": 0.7}), ("Selu", {}),
        ("Selu", {"alpha": 1.5, "gamma": 2.0}),
                      ("LeakyRelu", {"alpha": 0.3}), ("LeakyRelu", {}), ("ThresholdedRelu", {"alpha": 0.8}),
                      ("HardSigmoid", {}), ("HardSigmoid", {"alpha": 0.3, "beta": 0.2}), ("Swish", {"alpha": 1.5}),
                      ("Swish", {}), ("Shrink", {"bias": 0.3, "lambd": 0.7})]:
        case("attrs" if attrs else "default", op, {"x": wide}, attrs)
    for mode in ["none", "tanh"]:
        case(mode, "Gelu", {"x": wide}, {"approximate": mode})
    case("gate", "SwiGLU", {"a": f(2, 3), "b": f(2, 3)}, {"alpha": 1.3})
    case("rows", "PRelu", {"x": f(2, 3, 4), "slope": f(3, 1)})
    for op in ["Add", "Sub", "Mul", "Div"]:
        case("f32", op, {"a": f(2, 1, 3), "b": f(4, 1)})
        case("i32", op, {"a": i(-7, 7, 9, dtype=np.int32), "b": i(2, -2, 4, dtype=np.int32)}, opsets=[13])
    case("f64", "Add", {"a": f(2, dtype=np.float64), "b": f(2, dtype=np.float64)}, opsets=[14])
    case("f16", "Mul", {"a": f(5, dtype=np.float16), "b": f(5, dtype=np.float16)}, opsets=[14])
    case("f32", "Pow", {"a": f(4, low=0.1), "b": f(4)})
    case("square", "Pow", {"a": f(4), "b": np.array(2, np.float32)}, consts=["b"])
    case("int_exponent", "Pow", {"a": f(4), "b": i(2, 3, 0, 1)})
    case("const_int_exponent", "Pow", {"a": f(4), "b": np.array(3, np.int64)}, consts=["b"])
    case("ints", "Pow", {"a": i(-2, 3, 5), "b": i(2, 3, 0)}, consts=["b"])
    ints = {"a": i(-7, 7, -7, 7, 0), "b": i(3, -3, -3, 3, 5)}
    case("sign_of_divisor", "Mod", ints)
    case("fmod_ints", "Mod", ints, {"fmod": 1})
    case("fmod_floats", "Mod", {"a": f(5), "b": f(5, low=0.3)}, {"fmod": 1})
    for op in ["Max", "Min", "Sum", "Mean"]:
        case("three", op, {"a": f(2, 3), "b": f(3), "c": f(1, 1)})
        case("one", op, {"a": f(2, 3)})
    case("ints", "Max", {"a": i(1, 5), "b": i(3, 2)}, opsets=[13])
    for op in ["Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"]:
        case("ints", op, {"a": i(1, 2, 3), "b": i(3, 2, 1)})
        case("nan", op, {"a": special, "b": special[::-1].copy()})
    t, u = np.array([[True], [False]]), np.array([True, False])
    for op in ["And", "Or", "Xor", "Equal"]:
        case("bools", op, {"a": t, "b": u})
    case("bools", "Not", {"a": u})
    case("floats", "Where", {"c": t, "a": f(2, 3), "b": f(3)})
    case("bools", "Where", {"c": t, "a": u, "b": ~u})
    case("ints", "Where", {"c": t, "a": i(1, 2), "b": i(3, 4)}, opsets=[16])
    for neg in [0, 1]:
        for pos in [0, 1]:
            case(f"{neg}{pos}", "IsInf", {"x": special}, {"detect_negative": neg, "detect_positive": pos})
    lo, hi = np.array(-0.5, np.float32), np.array(0.75, np.float32)
    case("both", "Clip", {"x": f(6), "lo": lo, "hi": hi})
    case("crossed", "Clip", {"x": f(6), "lo": hi, "hi": lo})
    case("low", "Clip", {"x": f(6), "lo": lo})
    case("high", "Clip", {"x": f(6), "lo": None, "hi": hi}, consts=["hi"])
    case("none", "Clip", {"x": f(6)})
    case("ints", "Clip", {"x": i(-5, 0, 5), "lo": np.array(-1), "hi": np.array(3)})
    case("ints", "Relu", {"x": i(-5, 0, 5, dtype=np.int32)}, opsets=[14])


def casts():
    numbers = np.array([-3.7, -0.5, 0.0, 0.5, 2.5, 100.25], np.float32)
    for to in ["FLOAT", "DOUBLE", "FLOAT16", "INT64", "INT32", "BOOL"]:
        case(f"f32_{to.lower()}", "Cast", {"x": numbers}, {"to": getattr(TensorProto, to)})
    for to in ["INT32", "INT8", "UINT8", "FLOAT", "BOOL"]:
        x = i(0, 1, -1, 127, 128, 200, 255, 256, -129, 2**31, 2**40 + 5)
        case(f"i64_{to.lower()}", "Cast", {"x": x}, {"to": getattr(TensorProto, to)}, opsets=[13])
    case("u8_i8", "Cast", {"x": i(0, 127, 128, 255, dtype=np.uint8)}, {"to": TensorProto.INT8}, opsets=[13])
    case("bool_f32", "Cast", {"x": np.array([True, False])}, {"to": TensorProto.FLOAT}, opsets=[13])
    case("f32_i64", "CastLike", {"x": numbers, "y": i(1)})


def linear():
    for name, a, b in [("plain", (3, 4), (4, 2)), ("batch", (2, 3, 4), (2, 4, 2)),
        ("broadcast", (2, 1, 3, 4), (5, 4, 2)),
                       ("vector_matrix", (4,), (4, 2)), ("matrix_vector", (3, 4), (4,)), ("vectors", (4,), (4,)),
                       ("vector_batch", (4,), (2, 4, 3)), ("batch_vector", (2, 3, 4), (4,)), ("empty", (3, 0), (0, 2))]:
        case(name, "MatMul", {"a": f(*a), "b": f(*b)})
    case("ints", "MatMul", {"a": RNG.integers(-5, 5, (2, 3), dtype=np.int32),
        "b": RNG.integers(-5, 5, (3, 2), dtype=np.int32)})
    for ta in [0, 1]:
        for tb in [0, 1]:
            a, b = f(*((4, 3) if ta else (3, 4))), f(*((2, 4) if tb else (4, 2)))
            case(f"t{ta}{tb}", "Gemm", {"a": a, "b": b, "c": f(2)}, {"transA": ta, "transB": tb})
    a, b = f(3, 4), f(4, 2)
    case("alpha_beta", "Gemm", {"a": a, "b": b, "c": f(3, 2)}, {"alpha": 0.5, "beta": 2.0})
    case("no_c", "Gemm", {"a": a, "b": b}, {"alpha": 2.0})
    case("c_column", "Gemm", {"a": a, "b": b, "c": f(3, 1)})
    case("c_scalar", "Gemm", {"a": a, "b": b, "c": np.array(1.5, np.float32)})
    case("beta_zero", "Gemm", {"a": a, "b": b, "c": f(1, 2)}, {"beta": 0.0})


    for name, equation, shapes in [
        ("matmul", "ij,jk->ik", [(2, 3), (3, 4)]), ("heads", "bqhd,bkhd->bhqk", [(2, 3, 2, 4), (2, 5, 2, 4)]),
        ("implicit", "bij,bjk", [(2, 3, 4), (2, 4, 3)]), ("outer", "i,j->ij", [(2,), (3,)]),
            ("transpose", "ijk->kij", [(2, 3, 4)]),
        ("total", "ij->", [(2, 3)]), ("lonely", "ij,jk->k", [(2, 3), (3, 4)]), ("dot", "i, i -> ", [(3,), (3,)]),
        ("three", "ij,jk,kl->li", [(2, 3), (3, 4), (4, 2)]), ("product", "ij,ij->ij", [(2, 3), (2, 3)]),
    ]:
        case(name, "Einsum", {f"x{k}": f(*s) for k, s in enumerate(shapes)}, {"equation": equation})


def reductions():
    x = f(2, 3, 4)
    positive = f(2, 3, 4, low=0.1)
    for op in ["ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceSumSquare", "ReduceL1",
               "ReduceL2", "ReduceLogSum", "ReduceLogSumExp"]:
        data = positive if op == "ReduceLogSum" else x
        for opset in versions(op):
            by_input = opset >= (13 if op == "ReduceSum" else 18)

            def reduce(name, axes, **attrs):
                inputs = {"x": data}
                if axes is not None and by_input:
                    inputs["axes"] = i(*axes)
                elif axes is not None:
                    attrs["axes"] = axes
                case(name, op, inputs, attrs, [opset], consts=["axes"])

            reduce("axis", [1])
            reduce("negative_drop", [-1, 0], keepdims=0)
            reduce("all", None)
            reduce("all_drop", None, keepdims=0)
            if by_input and op in ["ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd"]:
                reduce("noop", None, noop_with_empty_axes=1)
                reduce("noop_empty", [], noop_with_empty_axes=1)
    case("nan", "ReduceMax", {"x": np.array([[1, np.nan], [3, 2]], np.float32), "axes": i(1)}, opsets=[18],
        consts=["axes"])
    case("ints", "ReduceSum", {"x": i(1, 2, 3)}, opsets=[13])
    case("bools", "ReduceMax", {"x": np.array([[True, False], [False, False]]), "axes": i(1)}, opsets=[20],
        consts=["axes"])
    case("bools", "ReduceMin", {"x": np.array([[True, False], [True, True]]), "axes": i(1)}, opsets=[20],
        consts=["axes"])
    case("infinite", "ReduceLogSumExp", {"x": np.array([[-np.inf, -np.inf], [1, 200.0]], np.float32), "axes": i(1)},
         opsets=[18], consts=["axes"])
    for name, attrs in [("plain", {}), ("exclusive", {"exclusive": 1}), ("reverse", {"reverse": 1}),
                        ("both", {"exclusive": 1, "reverse": 1})]:
        case(name, "CumSum", {"x": f(2, 4, 3), "a": np.array(-2)}, attrs, consts=["a"])
    case("infinite", "CumSum", {"x": np.array([1, np.inf, 2], np.float32), "a": np.array(0)}, consts=["a"])
    case("ints", "CumSum", {"x": i(3, 4, -5), "a": np.array(0)}, consts=["a"])
    ties = np.array([[1, 5, 5, 2], [7, 7, 0, 0]], np.float32)
    for op in ["ArgMax", "ArgMin"]:
        case("default", op, {"x": ties})
        case("last", op, {"x": ties}, {"axis": -1, "keepdims": 0, "select_last_index": 1})
        case("ints", op, {"x": i(3, -2**63, 2**62)}, opsets=[13])
    for op in ["GlobalAveragePool", "GlobalMaxPool"]:
        case("plane", op, {"x": f(2, 3, 4, 5)})


def norms():
    for op in ["Softmax", "LogSoftmax"]:
        case("last", op, {"x": f(2, 3, 4)})
        case("axis", op, {"x": f(2, 3, 4)}, {"axis": 1})
        case("large", op, {"x": f(2, 3) * 100}, {"axis": -1})
    case("last", "LayerNormalization", {"x": f(2, 3, 4), "s": f(4), "b": f(4)}, {"epsilon": 1e-3})
    case("no_bias", "LayerNormalization", {"x": f(2, 3, 4), "s": f(4)})
    case("two_axes", "LayerNormalization", {"x": f(2, 3, 4), "s": f(3, 4), "b": f(3, 4)}, {"axis": -2})
    case("scale_of_one", "LayerNormalization", {"x": f(2, 3, 4), "s": f(1), "b": f(1)}, {"axis": 1})
    case("moments", "LayerNormalization", {"x": f(2, 3, 4), "s": f(4), "b": f(4)}, outputs=3)
    case("f16", "LayerNormalization", {"x": f(2, 8, dtype=np.float16), "s": f(8, dtype=np.float16),
        "b": f(8, dtype=np.float16)})
    case("last", "RMSNormalization", {"x": f(2, 3, 4), "s": f(4)})
    case("two_axes", "RMSNormalization", {"x": f(2, 3, 4), "s": f(3, 4)}, {"axis": 1, "epsilon": 1e-2})
    channels = {"s": f(3), "b": f(3), "m": f(3), "v": f(3, low=0.2)}
    case("inference", "BatchNormalization", {"x": f(2, 3, 4), **channels}, {"epsilon": 1e-3})
    case("matrix", "BatchNormalization", {"x": f(2, 3), **channels}, opsets=[15])
    case("plane", "InstanceNormalization", {"x": f(2, 3, 4, 2), "s": f(3), "b": f(3)})
    case("groups", "GroupNormalization", {"x": f(2, 4, 3), "s": f(4), "b": f(4)}, {"num_groups": 2}, opsets=[21])


def views():
    x = f(2, 3, 4)
    case("copy_and_rest", "Reshape", {"x": x, "s": i(0, -1)}, consts=["s"])
    case("plain", "Reshape", {"x": x, "s": i(4, 6)}, consts=["s"], opsets=[13])
    case("scalar", "Reshape", {"x": f(1, 1), "s": np.zeros(0, np.int64)}, consts=["s"], opsets=[14])
    case("allow_zero", "Reshape", {"x": f(0, 3), "s": i(3, 0)}, {"allowzero": 1}, [14, 21], consts=["s"])
    for axis in [0, 1, 3, -1]:
        case(f"axis{axis}", "Flatten", {"x": x}, {"axis": axis}, opsets=[13] if axis != 1 else None)
    case("axes", "Squeeze", {"x": f(1, 3, 1), "a": i(-1)}, consts=["a"])
    case("all", "Squeeze", {"x": f(1, 3, 1)})
    case("axes", "Unsqueeze", {"x": f(3, 4), "a": i(0, -1)}, consts=["a"])
    case("unsorted", "Unsqueeze", {"x": f(3), "a": i(2, 0)}, consts=["a"], opsets=[13])
    case("perm", "Transpose", {"x": x}, {"perm": [2, 0, 1]})
    case("default", "Transpose", {"x": x})
    case("both", "Expand", {"x": f(3, 1), "s": i(2, 1, 4)}, consts=["s"])
    case("lower", "Expand", {"x": f(2, 3, 1), "s": i(1, 2)}, consts=["s"])
    case("middle", "Concat", {"a": f(2, 1, 2), "b": f(2, 3, 2), "c": f(2, 0, 2)}, {"axis": 1})
    case("negative", "Concat", {"a": f(2, 1), "b": f(2, 3)}, {"axis": -1})
    case("sizes", "Split", {"x": f(2, 6), "s": i(1, 3, 2)}, {"axis": 1}, outputs=3, consts=["s"])
    case("equal", "Split", {"x": f(6, 2)}, outputs=3, opsets=[13])
    case("equal", "Split", {"x": f(6, 2)}, {"num_outputs": 3}, outputs=3, opsets=[18])
    case("ragged", "Split", {"x": f(7, 2)}, {"num_outputs": 3}, outputs=3, opsets=[18])
    y = f(5, 6)
    for name, starts, ends, axes, steps in [
        ("plain", [1, 0], [3, 4], None, None), ("negative", [-3], [-1], [1], None), ("far", [1], [2**62], [0], [2]),
        ("reverse", [-1], [-(2**62)], [1], [-1]), ("back", [4], [0], [0], [-2]), ("clamped", [-100], [100], [-1], [1]),
        ("empty", [3], [1], [0], [1]), ("int_max", [2], [2**31 - 1], [1], [1]),
    ]:
        inputs = {"x": y, "s": i(*starts), "e": i(*ends)}
        if axes is not None:
            inputs["a"] = i(*axes)
        if steps is not None:
            inputs["p"] = i(*steps)
        case(name, "Slice", inputs, consts=["s", "e", "a", "p"])
    case("no_axes", "Slice", {"x": y, "s": i(1, 1), "e": i(4, 5), "a": None, "p": i(1, 2)}, consts=["s", "e", "p"])
    case("repeats", "Tile", {"x": f(2, 3), "r": i(2, 3)}, consts=["r"])
    for mode in ["constant", "reflect", "edge", "wrap"]:
        case(mode, "Pad", {"x": f(3, 4), "p": i(1, 2, 0, 3)}, {"mode": mode},
             opsets=[19, 25] if mode == "wrap" else None, consts=["p"])
    case("value", "Pad", {"x": f(3, 4), "p": i(1, 0, 0, 2), "v": np.array(7, np.float32)}, consts=["p"])
    case("crop", "Pad", {"x": f(3, 4), "p": i(-1, 1, 0, -2)}, consts=["p"], opsets=[13])
    case("axes", "Pad", {"x": f(3, 4), "p": i(1, 2), "v": None, "a": i(-1)}, opsets=[18, 21], consts=["p", "a"])
    z = f(1, 8, 2, 3)
    case("dcr", "DepthToSpace", {"x": z}, {"blocksize": 2})
    case("crd", "DepthToSpace", {"x": z}, {"blocksize": 2, "mode": "CRD"})
    case("blocks", "SpaceToDepth", {"x": f(1, 2, 4, 6)}, {"blocksize": 2})


def indices():
    x = f(3, 4, 2)
    case("rows", "Gather", {"x": x, "i": i(2, 0, -1)})
    case("axis", "Gather", {"x": x, "i": np.array([[0, 3], [1, 1]])}, {"axis": 1})
    case("scalar", "Gather", {"x": x, "i": np.array(1)}, {"axis": -1})
    case("i32", "Gather", {"x": x, "i": i(1, 2, dtype=np.int32)})
    case("axis", "GatherElements", {"x": f(3, 3), "i": np.array([[1, -1, 0], [2, 0, 1]])}, {"axis": 0})
    case("tuples", "GatherND", {"x": x, "i": np.array([[0, 1], [2, 3]])})
    case("elements", "GatherND", {"x": x, "i": np.array([[0, 1, 1], [2, 3, 0]])})
    case("batch", "GatherND", {"x": f(2, 3, 2), "i": np.array([[1], [2]])}, {"batch_dims": 1})
    values = np.array([0.5, 9.0], np.float32)
    case("default", "OneHot", {"i": i(0, 2, -1, 7), "d": np.array(3), "v": values}, consts=["d"])
    case("float_depth", "OneHot", {"i": np.array([0, 2], np.float32), "d": np.array(3, np.float32), "v": values},
        consts=["d"])
    case("axis", "OneHot", {"i": np.array([[0, 1]]), "d": np.array(3), "v": values}, {"axis": 1}, consts=["d"])
    for upper in [0, 1]:
        case(f"upper{upper}", "Trilu", {"x": f(2, 4, 3)}, {"upper": upper})
        case(f"upper{upper}_k", "Trilu", {"x": f(4, 4), "k": np.array(-1)}, {"upper": upper}, consts=["k"])
    case("bools", "Trilu", {"x": np.ones((3, 3), bool), "k": np.array(1)})


def makers():
    case("value", "Constant", {}, {"value": numpy_helper.from_array(f(2, 3))})
    case("int", "Constant", {}, {"value_int": 5}, [13])
    case("ints", "Constant", {}, {"value_ints": [1, 2]}, [13])
    case("float", "Constant", {}, {"value_float": 0.5}, [13])
    case("floats", "Constant", {}, {"value_floats": [0.5, 1.5]}, [13])
    case("default", "ConstantOfShape", {"s": i(2, 3)}, consts=["s"])
    case("value", "ConstantOfShape", {"s": i(2)}, {"value": numpy_helper.from_array(i(7))}, consts=["s"])
    case("part", "Shape", {"x": f(2, 3, 4)}, {"start": 1, "end": -1}, [15, 19, 21])
    case("all", "Shape", {"x": f(2, 3, 4)})
    case("all", "Size", {"x": f(2, 3, 4)})
    for name, dtype, a, b, c in [("ints", np.int64, 2, 11, 3), ("down", np.int32, 10, 4, -2),
        ("none", np.int64, 3, 1, 1),
                                 ("floats", np.float32, 0.5, 2.6, 0.5)]:
        case(name, "Range", {"a": np.array(a, dtype), "b": np.array(b, dtype), "c": np.array(c, dtype)},
            consts=["a", "b", "c"])
    case("inference", "Dropout", {"x": f(2, 3)}, opsets=[13])
    case("mask", "Dropout", {"x": f(2, 3), "r": np.array(0.5, np.float32), "t": np.array(False)}, outputs=2,
        consts=["r", "t"])


def graphs():
    """What exporters write, of several nodes, with dynamic sizes."""
    n = helper.make_node
    const = lambda name, a: n("Constant", [], [name], value=numpy_helper.from_array(np.asarray(a)))
    # Heads split off with sizes computed at run time.
    nodes = [
        n("Shape", ["x"], ["shape"]), const("zero", np.array(0)), const("one", np.array(1)), const("axis", i(0)),
        n("Gather", ["shape", "zero"], ["b"]), n("Gather", ["shape", "one"], ["s"]),
        n("Unsqueeze", ["b", "axis"], ["b1"]), n("Unsqueeze", ["s", "axis"], ["s1"]),
        const("heads", i(2)), const("rest", i(-1)),
        n("Concat", ["b1", "s1", "heads", "rest"], ["to"], axis=0), n("Reshape", ["x", "to"], ["y"]),
        n("Transpose", ["y"], ["z"], perm=[0, 2, 1, 3]),
    ]
    save("graph_heads", nodes, {"x": f(3, 5, 8)}, ["z"], 14, dims={"x": ["batch", "seq", 8]})
    # Expand by where(shape == -1, ones, shape).
    nodes = [
        n("Shape", ["y"], ["shape"]), const("minus", i(-1)), n("Equal", ["shape", "minus"], ["is"]),
        n("ConstantOfShape", ["rank"], ["ones"], value=numpy_helper.from_array(i(1))), n("Shape", ["shape"], ["rank"]),
        n("Where", ["is", "ones", "shape"], ["to"]), n("Expand", ["x", "to"], ["z"]),
    ]
    nodes = nodes[:3] + [nodes[4], nodes[3]] + nodes[5:]
    save("graph_expand", nodes, {"x": f(1, 1, 3), "y": f(2, 4, 3)}, ["z"], 13, dims={"y": ["batch", "seq", 3]})
    # Positions, and a causal mask by comparing them.
    nodes = [
        n("Shape", ["x"], ["shape"]), const("one", np.array(1)), const("zero", np.array(0)),
        n("Gather", ["shape", "one"], ["s"]), n("Range", ["zero", "s", "one"], ["p"]),
        const("a0", i(0)), const("a1", i(1)), n("Unsqueeze", ["p", "a0"], ["row"]),
            n("Unsqueeze", ["p", "a1"], ["col"]),
        n("LessOrEqual", ["row", "col"], ["mask"]), const("low", np.float32(-1e9)), const("fill", np.float32(0)),
        n("Where", ["mask", "fill", "low"], ["bias"]), n("Add", ["x", "bias"], ["z"]),
    ]
    save("graph_causal", nodes, {"x": f(2, 4, 4)}, ["z"], 17, dims={"x": ["batch", "seq", "seq"]})
    # A size that reaches the data: scores divided by the root of the head size.
    nodes = [
        n("Shape", ["x"], ["shape"]), const("last", i(-1)), const("end", i(2**31 - 1)),
        n("Slice", ["shape", "last", "end"], ["d"]), n("Cast", ["d"], ["f"], to=1), n("Sqrt", ["f"], ["r"]),
        n("Div", ["x", "r"], ["z"]), n("Shape", ["z"], ["out"]),
    ]
    save("graph_scale", nodes, {"x": f(2, 9)}, ["z", "out"], 15, dims={"x": ["batch", "width"]})
    # A model-local function with an attribute and a default.
    ref = n("LeakyRelu", ["u"], ["v"])
    reference = helper.make_attribute_ref("alpha", onnx.AttributeProto.FLOAT)
    reference.ref_attr_name = "slope"
    ref.attribute.append(reference)
    inner = helper.make_function(
        "local", "act", ["u"], ["w"], [ref, n("Neg", ["v"], ["w"])], [helper.make_opsetid("", 16)],
        attributes=[], attribute_protos=[helper.make_attribute("slope", 0.25)])
    outer = helper.make_function(
        "local", "twice", ["a"], ["c"],
        [n("act", ["a"], ["b"], domain="local"), n("act", ["b"], ["c"], domain="local", slope=0.5)],
        [helper.make_opsetid("", 16), helper.make_opsetid("local", 1)])
    save("graph_function", [n("twice", ["x"], ["y"], domain="local"), n("act", ["y"], ["z"], domain="local")],
         {"x": f(6)}, ["z"], 16, functions=[inner, outer], imports=[("local", 1)])
    # An initializer that is a declared input too, and an output that is an input.
    w = f(3)
    save("graph_passthrough", [n("Add", ["x", "w"], ["y"])], {"x": f(3), "w": w}, ["y", "x"], 13, consts=["w"])


def encodings():
    """Every way in which a tensor's data may be kept."""
    kinds = {
        "float": (TensorProto.FLOAT, [1.5, -2.0]), "double": (TensorProto.DOUBLE, [1.5, -2.0]),
        "float16": (TensorProto.FLOAT16, [1.5, -2.0]), "bfloat16": (TensorProto.BFLOAT16, [1.5, -2.0]),
        "int64": (TensorProto.INT64, [3, -4]), "int32": (TensorProto.INT32, [3, -4]),
            "int8": (TensorProto.INT8, [3, -4]),
        "uint8": (TensorProto.UINT8, [3, 200]), "bool": (TensorProto.BOOL, [1, 0]),
    }
    for name, (kind, values) in kinds.items():
        for raw in [False, True]:
            if raw:
                array = np.array(values, helper.tensor_dtype_to_np_dtype(kind))
                tensor = helper.make_tensor("w", kind, [2], array.tobytes(), raw=True)
            else:
                tensor = helper.make_tensor("w", kind, [2], values)
            node = helper.make_node("Cast", ["w"], ["y"], to=TensorProto.DOUBLE)
            graph = helper.make_graph([node], "g", [], [helper.make_tensor_value_info("y", TensorProto.DOUBLE, [2])],
                [tensor])
            model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=IR)
            store(f"encoding_{name}_{'raw' if raw else 'typed'}_13", model, {}, {"y": np.array(values, np.float64)})


def families():
    """Small networks of the families that people export."""
    for family in FAMILIES:
        net, outputs = family()
        inputs = {**net.inputs, **net.weights}
        save(f"family_{family.__name__}", net.nodes, inputs, outputs, 18, consts=list(net.weights))


def windows():
    """Convolutions and pools beyond onnx's own node tests, and what else these lack."""
    x = f(2, 4, 9, 8)
    for name, w, attrs in [
        ("strided", f(6, 4, 3, 2), {"strides": [2, 3], "pads": [1, 0, 2, 1]}),
        ("dilated", f(3, 4, 3, 3), {"dilations": [2, 3], "pads": [2, 3, 2, 3]}),
        ("grouped", f(6, 2, 3, 3), {"group": 2, "pads": [1, 1, 1, 1]}),
        ("depthwise", f(8, 1, 3, 3), {"group": 4, "strides": [1, 2], "pads": [1, 1, 1, 1]}),
        ("point", f(5, 4, 1, 1), {}),
        ("lower", f(5, 4, 4, 3), {"auto_pad": "SAME_LOWER", "strides": [2, 1]}),
    ]:
        case(name, "Conv", {"x": x, "w": w, "b": f(w.shape[0])}, attrs, consts=["w", "b"])
    case("line", "Conv", {"x": f(1, 2, 11), "w": f(3, 2, 4)}, {"strides": [2]}, consts=["w"])
    case("space", "Conv", {"x": f(1, 2, 4, 5, 3), "w": f(3, 2, 2, 3, 2)}, {"pads": [1, 1, 0, 0, 1, 1]}, consts=["w"])
    case("dynamic", "Conv", {"x": x, "w": f(3, 4, 3, 3)}, {"strides": [2, 2], "pads": [1, 1, 1, 1]}, consts=["w"],
         dims={"x": ["batch", 4, "height", "width"]})
    for name, w, attrs in [
        ("grouped", f(4, 3, 3, 2), {"group": 2, "strides": [2, 3], "pads": [1, 0, 1, 1], "output_padding": [1, 1]}),
        ("dilated", f(4, 2, 2, 3), {"dilations": [3, 2], "strides": [2, 1]}),
        ("cut", f(4, 2, 2, 2), {"pads": [1, 1, 1, 1], "strides": [1, 2]}),
    ]:
        case(name, "ConvTranspose", {"x": x, "w": w, "b": f(w.shape[1] * attrs.get("group", 1))}, attrs,
            consts=["w", "b"])
    for name, attrs in [
        ("ceil", {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}),
        ("padded", {"kernel_shape": [3, 2], "pads": [1, 0, 2, 1], "strides": [2, 1]}),
    ]:
        case(name, "MaxPool", {"x": x}, attrs)
        case(name, "AveragePool", {"x": x}, attrs)
        case(f"{name}_all", "AveragePool", {"x": x}, {**attrs, "count_include_pad": 1})
    case("p3", "LpPool", {"x": x}, {"kernel_shape": [2, 2], "p": 3})
    case("all", "GlobalLpPool", {"x": x}, {"p": 2}, opsets=[13])


def main():
    for group in [pointwise, casts, linear, reductions, norms, views, indices, makers, graphs, encodings, windows,
        families]:
        group()
    np.savez_compressed(OUT, **ARCHIVE)
    print(f"{sum(n.endswith('/model') for n in ARCHIVE)} models, {os.path.getsize(OUT)} bytes")


main()
