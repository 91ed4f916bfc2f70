//! Plans: number of launches, choice of kernels, no overlap of live buffers.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use hypatia_dsl::builtin::BuiltinOp;
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::{AttrValue, Program};
use hypatia_dsl::numerics::{Allowed, Numerics};

use super::{Action, Options, Plan, Storage, View};
use crate::testing::planned;
use hypatia_graph::{Graph, Value};
use hypatia_library as library;
use hypatia_optimize as optimize;
use hypatia_pipeline as pipeline;
use hypatia_target::device::Device;
use hypatia_tensor::tensor::Tensor;
use hypatia_testing::{list, ty};

fn program() -> Arc<Program> {
    static PROGRAM: std::sync::LazyLock<Arc<Program>> = std::sync::LazyLock::new(|| library::load(&[]).unwrap());
    PROGRAM.clone()
}

fn device(name: &str) -> Device {
    Device::named(name).unwrap()
}

fn constant(g: &mut Graph, dtype: DType, shape: &[usize]) -> Value {
    let n: usize = shape.iter().product();
    let values: Vec<f64> = (0..n).map(|i| (i % 7) as f64 / 8.0).collect();
    g.constant(Tensor::from_f64(dtype, shape, &values).unwrap())
}

/// `scalar(linear(x, w, b))`, optimised and planned.
fn linear(scalars: &[&str], dtype: DType, target: &str) -> Plan {
    let mut g = Graph::new(program());
    let x = g.input("x", ty(dtype, &[128, 256]));
    let (w, b) = (constant(&mut g, dtype, &[512, 256]), constant(&mut g, dtype, &[512]));
    let mut v = g.call("linear", &[x, w, b], &[]).unwrap()[0];
    for s in scalars {
        v = g.call(s, &[v], &[]).unwrap()[0];
    }
    g.output("y", v);
    let options = optimize::Options { device: device(target), ..optimize::Options::default() };
    let fused = pipeline::optimize(&g, &options).unwrap();
    planned(&fused.graph, &Options::new(device(target))).unwrap()
}

#[test]
fn what_an_executor_says_of_a_step_stands_on_its_line() {
    let plan = linear(&["silu"], DType::F32, "h200");
    let noted = plan.noted(&[(0, "packed")]).to_string();
    let said: Vec<&str> = noted.lines().filter(|l| l.contains(", packed  # ")).collect();
    assert!(matches!(said[..], [line] if line.starts_with("   0 gemm")), "{noted}");
    assert_eq!(noted.replace(", packed", ""), plan.to_string());
    let json = plan.to_json(&[(0, "packed")]);
    assert_eq!((json["steps"][0]["note"].as_str(), json["steps"][1]["note"].as_str()), (Some("packed"), None));
}

#[test]
fn an_epilogue_is_one_launch_on_the_cpu_and_one_or_two_on_a_gpu() {
    for (scalars, dtype, target, launches) in [
        (&["gelu_tanh"][..], DType::BF16, "h200", 1),
        (&["gelu_tanh"], DType::F32, "h200", 1),
        (&["gelu_tanh"], DType::F64, "h200", 2),
        (&["silu"], DType::BF16, "h200", 1),
        (&["silu"], DType::BF16, "a100", 1),
        (&["silu"], DType::BF16, "cpu", 1),
        (&["gelu", "tanh", "silu"], DType::F32, "cpu", 1),
        (&["gelu", "tanh", "silu"], DType::F32, "h200", 1),
        (&["gelu", "tanh", "silu"], DType::F64, "h200", 2),
        (&[], DType::F32, "h200", 1),
    ] {
        let plan = linear(scalars, dtype, target);
        assert_eq!(plan.launches(), launches, "{scalars:?} {dtype} on {target}\n{plan}");
    }
    // The product adds the bias; the pass computes the rest.
    let plan = linear(&["silu"], DType::F64, "h200");
    let kernel = plan.steps[0].kernel.map(|k| plan.program.kernels[k.index()].name.clone());
    assert_eq!(kernel.as_deref(), Some("lt_bias"), "{plan}");
}

#[test]
fn pointwise_work_is_one_launch_and_a_region_may_have_several_results() {
    let mut g = Graph::new(program());
    let (x, row) = (g.input("x", ty(DType::F32, &[8, 16])), g.input("row", ty(DType::F32, &[16])));
    let a = g.call("add", &[x, row], &[]).unwrap()[0];
    let b = g.call("gelu", &[a], &[]).unwrap()[0];
    let c = g.call("mul", &[b, a], &[]).unwrap()[0];
    g.output("b", b);
    g.output("c", c);
    let plan = planned(&g, &Options::new(Device::cpu())).unwrap();
    assert_eq!(plan.launches(), 1, "{plan}");
    assert_eq!(plan.steps[0].writes.len(), 2);
    // Without clustering each node is a launch.
    let options = Options { cluster: false, ..Options::new(Device::cpu()) };
    assert_eq!(planned(&g, &options).unwrap().launches(), 3);
}

#[test]
fn small_pointwise_work_joins_its_only_reader_on_a_gpu() {
    let made = |device: &str, rows: usize, also: bool, function: &str| {
        let mut g = Graph::new(program());
        let x = g.input("x", ty(DType::F32, &[rows, 4, 16]));
        let (row, column) = (g.input("row", ty(DType::F32, &[16])), g.input("column", ty(DType::F32, &[4, 1])));
        let doubled = g.call(function, &[column], &[]).unwrap()[0];
        let small = g.call("mul", &[row, doubled], &[]).unwrap()[0];
        let y = g.call("add", &[x, small], &[]).unwrap()[0];
        g.output("y", y);
        if also {
            g.output("small", small);
        }
        planned(&g, &Options::new(Device::named(device).unwrap())).unwrap().launches()
    };
    let launches = |device: &str, rows: usize, also: bool| made(device, rows, also, "exp");
    assert_eq!(launches("h200", 8, false), 1);
    // Read by others; too much to be computed again for each row; no launches to save.
    assert_eq!(launches("h200", 8, true), 2);
    assert_eq!(launches("h200", 1 << 18, false), 2);
    assert_eq!(launches("cpu", 8, false), 3);
    // A few instructions cost nothing, however many rows there are.
    assert_eq!(made("h200", 1 << 18, false, "neg"), 1);
    assert_eq!(made("h200", 1 << 18, true, "neg"), 2);
}

/// Each reader of a small value computes it again, if it is an instruction.
#[test]
fn small_pointwise_work_joins_each_of_its_readers_on_a_gpu() {
    let launches = |function: &str| {
        let mut g = Graph::new(program());
        let (x, y) = (g.input("x", ty(DType::F32, &[4096, 1024])), g.input("y", ty(DType::F32, &[512, 1024])));
        let row = g.input("row", ty(DType::F32, &[1024]));
        let small = g.call(function, &[row], &[]).unwrap()[0];
        for (name, v) in [("a", x), ("b", y)] {
            let v = g.call("mul", &[v, small], &[]).unwrap()[0];
            g.output(name, v);
        }
        planned(&g, &Options::new(Device::named("h200").unwrap())).unwrap().launches()
    };
    // Both are parts of one launch.
    assert_eq!((launches("neg"), launches("exp")), (1, 2));
}

/// Work that is read in parts alone is done where each is read: gates behind one activation.
#[test]
fn work_behind_slices_is_part_of_their_readers_on_a_gpu() {
    let launches = |device: &str, also: bool| {
        let mut g = Graph::new(program());
        let x = g.input("x", ty(DType::F32, &[4096, 3072]));
        let (row, cell) = (g.input("row", ty(DType::F32, &[3072])), g.input("cell", ty(DType::F32, &[4096, 1024])));
        let biased = g.call("add", &[x, row], &[]).unwrap()[0];
        let gates = g.call("sigmoid", &[biased], &[]).unwrap()[0];
        let sizes = vec![1.into(), AttrValue::from([1024i64; 3])];
        let [input, forget, _] = g.builtin(BuiltinOp::Split, &[gates], sizes).unwrap()[..] else { panic!("3 parts") };
        let kept = g.call("mul", &[forget, cell], &[]).unwrap()[0];
        let y = g.call("add", &[kept, input], &[]).unwrap()[0];
        g.output("y", y);
        if also {
            g.output("gates", gates);
        }
        planned(&g, &Options::new(Device::named(device).unwrap())).unwrap().launches()
    };
    assert_eq!((launches("h200", false), launches("h200", true), launches("cpu", false)), (1, 2, 2));
}

/// A slice of a whole axis, and work that reads a value twice, each time again.
#[test]
fn work_behind_slices_is_built_once() {
    let mut g = Graph::new(program());
    let (x, z) = (g.input("x", ty(DType::F32, &[1, 64])), g.input("z", ty(DType::F32, &[1, 64])));
    let mut y = g.call("neg", &[x], &[]).unwrap()[0];
    for _ in 0..40 {
        y = g.call("mul", &[y, y], &[]).unwrap()[0];
    }
    let y = g.builtin(BuiltinOp::Slice, &[y], vec![0.into(), 0.into(), 1.into(), 1.into()]).unwrap()[0];
    let y = g.call("mul", &[y, z], &[]).unwrap()[0];
    g.output("y", y);
    let plan = planned(&g, &Options::new(Device::named("h200").unwrap())).unwrap();
    assert_eq!(plan.launches(), 1, "{plan}");
}

/// Large independent work shares a launch, unless the plan fits only without.
#[test]
fn large_work_shares_a_launch_where_there_is_memory() {
    let mut g = Graph::new(program());
    let elements = 1 << 21;
    for i in 0..2 {
        let x = g.input(format!("x{i}"), ty(DType::F32, &[elements]));
        let sums = g.builtin(BuiltinOp::Cumsum, &[x], vec![0.into(), false.into(), false.into()]).unwrap()[0];
        let y = g.call("relu", &[sums], &[]).unwrap()[0];
        g.output(format!("y{i}"), y);
    }
    let mut options = Options::new(Device::named("h200").unwrap());
    let together = planned(&g, &options).unwrap();
    assert_eq!(together.launches(), 3, "{together}");
    options.memory = together.arena + 2 * elements * DType::F32.size() - 1;
    let apart = planned(&g, &options).unwrap();
    assert_eq!(apart.launches(), 4, "{apart}");
    assert!(apart.arena < together.arena);
}

#[test]
fn little_work_that_rows_share_is_done_again_on_a_gpu() {
    let launches = |device: &str, rows: usize, function: &str| {
        let mut g = Graph::new(program());
        let x = g.input("x", ty(DType::F32, &[2, rows, 16]));
        let (scale, one) = (g.input("scale", ty(DType::F32, &[2, 1, 16])), g.input("one", ty(DType::F32, &[])));
        let shared = match function {
            "add" => g.call("add", &[scale, one], &[]).unwrap()[0],
            "softmax" => g.call("softmax", &[scale], &[]).unwrap()[0],
            _ => g.call(function, &[scale], &[]).unwrap()[0],
        };
        let norm = g.call("standardize", &[x], &[]).unwrap()[0];
        let y = g.call("mul", &[norm, shared], &[]).unwrap()[0];
        g.output("y", y);
        planned(&g, &Options::new(Device::named(device).unwrap())).unwrap().launches()
    };
    assert_eq!(launches("h200", 64, "add"), 1);
    assert_eq!(launches("h200", 64, "exp"), 1);
    assert_eq!(launches("h200", 1 << 18, "add"), 1);
    // Too much for each row; a kernel of its own; no launches to save.
    assert_eq!(launches("h200", 1 << 18, "exp"), 2);
    assert_eq!(launches("h200", 64, "softmax"), 2);
    assert_eq!(launches("cpu", 64, "add"), 2);
}

#[test]
fn rows_of_tables_and_their_sum_are_one_launch_on_a_gpu() {
    let launches = |device: &str| {
        let mut g = Graph::new(program());
        let (words, places) =
            (g.input("words", ty(DType::F32, &[50, 16])), g.input("places", ty(DType::F32, &[8, 16])));
        let (i, j) = (g.input("i", ty(DType::I64, &[2, 4])), g.input("j", ty(DType::I64, &[2, 4])));
        let [a, b] = [(words, i), (places, j)].map(|(table, at)| g.call("gather", &[table, at], &[]).unwrap()[0]);
        let y = g.call("add", &[a, b], &[]).unwrap()[0];
        g.output("y", y);
        planned(&g, &Options::new(Device::named(device).unwrap())).unwrap().launches()
    };
    assert_eq!(launches("h200"), 1);
    assert_eq!(launches("cpu"), 3);
}

#[test]
fn a_region_does_not_close_over_a_node_between_its_members() {
    // c needs a product of a, so a and c cannot be one launch, although c reads a.
    let mut g = Graph::new(program());
    let x = g.input("x", ty(DType::F32, &[8, 16]));
    let w = g.input("w", ty(DType::F32, &[16, 16]));
    let a = g.call("exp", &[x], &[]).unwrap()[0];
    let s = g.call("matmul", &[a, w], &[]).unwrap()[0];
    let c = g.call("div", &[a, s], &[]).unwrap()[0];
    g.output("c", c);
    let plan = planned(&g, &Options::new(Device::cpu())).unwrap();
    assert_eq!(plan.launches(), 3, "{plan}");
}

#[test]
fn pointwise_work_side_by_side_reads_its_operands_once() {
    let launches = |late: bool, same_shape: bool| {
        let mut g = Graph::new(program());
        let (x, y) = (g.input("x", ty(DType::F32, &[8, 16])), g.input("y", ty(DType::F32, &[8, 16])));
        let row = g.input("row", ty(DType::F32, &[16]));
        let sum = g.call("add", &[x, y], &[]).unwrap()[0];
        let other = match late {
            // Not available when the sum could be computed.
            true => {
                let w = g.input("w", ty(DType::F32, &[16, 16]));
                g.call("matmul", &[y, w], &[]).unwrap()[0]
            }
            false => y,
        };
        let difference = if same_shape {
            g.call("sub", &[x, other], &[]).unwrap()[0]
        } else {
            // They share only a row, which is read from a cache.
            let z = g.input("z", ty(DType::F32, &[8, 16]));
            g.call("sub", &[z, row], &[]).unwrap()[0]
        };
        let sum = if same_shape { sum } else { g.call("add", &[sum, row], &[]).unwrap()[0] };
        g.output("sum", sum);
        g.output("difference", difference);
        planned(&g, &Options::new(Device::cpu())).unwrap().launches()
    };
    assert_eq!((launches(false, true), launches(true, true), launches(false, false)), (1, 3, 2));
}

/// The sum of two inputs as heads, scaled, and what reads it: transposed and flattened, and, with
/// `also`, as it lies too.
fn heads(also: bool, target: &str) -> Plan {
    let mut g = Graph::new(program());
    let [a, b] = ["a", "b"].map(|n| g.input(n, ty(DType::BF16, &[2, 4, 8, 2, 16])));
    let x = g.call("add", &[a, b], &[]).unwrap()[0];
    let merged = g.builtin(BuiltinOp::Reshape, &[x], vec![list(&[2, 4, 8, 32])]).unwrap()[0];
    let turned = g.builtin(BuiltinOp::Transpose, &[merged], vec![list(&[0, 2, 1, 3])]).unwrap()[0];
    let flat = g.builtin(BuiltinOp::Reshape, &[turned], vec![list(&[16, 128])]).unwrap()[0];
    g.output("y", flat);
    if also {
        g.output("x", x);
    }
    planned(&g, &Options::new(device(target))).unwrap()
}

#[test]
fn pointwise_work_stores_its_result_as_a_gpu_reads_it() {
    let count = |p: &Plan| (p.launches(), p.steps.iter().filter(|s| s.action == Action::Copy).count());
    let plan = heads(false, "h200");
    assert_eq!(count(&plan), (1, 0), "{plan}");
    assert_eq!(plan.steps[0].writes[0].shape, [2, 8, 4, 2, 16], "{plan}");
    assert_eq!(plan.steps[0].writes[0].buffer, plan.outputs[0].1.buffer);
    // A reader that needs it as it lies, and a host, whose copies are cheap.
    assert_eq!([count(&heads(true, "h200")), count(&heads(false, "cpu"))], [(2, 1), (2, 1)]);
}

#[test]
fn wide_values_are_computed_where_they_are_read() {
    let mut g = Graph::new(program());
    let [a, b] = ["a", "b"].map(|n| g.input(n, ty(DType::BF16, &[256, 512])));
    let [w, scale] = [("w", [512, 512]), ("scale", [256, 1])].map(|(n, s)| g.input(n, ty(DType::BF16, &s)));
    let cast = |g: &mut Graph, v, to| g.builtin(BuiltinOp::Cast, &[v], vec![AttrValue::DType(to)]).unwrap()[0];
    let x = g.call("add", &[a, b], &[]).unwrap()[0];
    let wide = cast(&mut g, x, DType::F32);
    let factor = cast(&mut g, scale, DType::F32);
    let scaled = g.call("mul", &[wide, factor], &[]).unwrap()[0];
    let narrow = cast(&mut g, scaled, DType::BF16);
    let product = g.builtin(BuiltinOp::Matmul, &[narrow, w], vec![]).unwrap()[0];
    let dy = cast(&mut g, product, DType::F32);
    let weighed = g.call("mul", &[dy, scaled], &[]).unwrap()[0];
    let sum = g.builtin(BuiltinOp::Sum, &[weighed], vec![list(&[1]), AttrValue::Bool(true)]).unwrap()[0];
    let part = g.call("mul", &[sum, wide], &[]).unwrap()[0];
    let dx = g.call("add", &[dy, part], &[]).unwrap()[0];
    let dx = cast(&mut g, dx, DType::BF16);
    g.output("dx", dx);
    let plan = planned(&g, &Options::new(device("h200"))).unwrap();
    // `x` is stored beside `narrow`, which casts the scale itself; the row-wise kernel casts and
    // scales `x` again.
    let full = |v: &View| v.len() == 256 * 512;
    let written: Vec<DType> = plan.steps.iter().flat_map(|s| &s.writes).filter(|v| full(v)).map(|v| v.dtype).collect();
    assert_eq!((plan.launches(), written), (3, vec![DType::BF16; 4]), "{plan}");
    // Bit for bit the results without rules: every value is computed once.
    let allowed = Allowed { numerics: Numerics::Exact, ..Allowed::default() };
    let exact = planned(&g, &Options { allowed, ..Options::new(device("h200")) }).unwrap();
    let written = exact.steps.iter().flat_map(|s| &s.writes);
    assert!(written.filter(|v| full(v)).any(|v| v.dtype == DType::F32), "{exact}");
}

/// The sum of two scaled products, cast back, is stored once: a product reads it, and what is added
/// to it later reads it too.
#[test]
fn what_a_product_reads_is_not_computed_again() {
    let mut g = Graph::new(program());
    let half = |g: &mut Graph, n: &str, s: [usize; 2]| g.input(n, ty(DType::BF16, &s));
    let (x, scale) = (half(&mut g, "x", [256, 64]), half(&mut g, "scale", [1, 64]));
    let w = ["v", "w", "u"].map(|n| half(&mut g, n, [64, 64]));
    let cast = |g: &mut Graph, v, to| g.builtin(BuiltinOp::Cast, &[v], vec![AttrValue::DType(to)]).unwrap()[0];
    let scaled = |g: &mut Graph, y| {
        let [y, scale] = [y, scale].map(|v| cast(g, v, DType::F32));
        let y = g.call("mul", &[y, scale], &[]).unwrap()[0];
        cast(g, y, DType::BF16)
    };
    let product = |g: &mut Graph, x, w| g.builtin(BuiltinOp::Matmul, &[x, w], vec![]).unwrap()[0];
    let both = [w[0], w[1]].map(|w| {
        let y = product(&mut g, x, w);
        scaled(&mut g, y)
    });
    let sum = g.call("add", &both, &[]).unwrap()[0];
    let sum = g.call("relu", &[sum], &[]).unwrap()[0];
    let next = product(&mut g, sum, w[2]);
    let next = scaled(&mut g, next);
    let y = g.call("add", &[next, sum], &[]).unwrap()[0];
    g.output("y", y);
    let plan = planned(&g, &Options::new(device("h200"))).unwrap();
    // The last product reads the sum, as its factor and behind it, and nothing else of its size.
    let last = plan.steps.last().unwrap();
    let small = |v: &&View| v.len() == 64 || v.strides.first() == Some(&0) || v.shape == [64, 64];
    let large: Vec<_> = last.reads.iter().filter(|v| !small(v)).map(|v| v.buffer).collect();
    assert!(large.len() == 2 && large[0] == large[1], "{plan}");
}

#[test]
fn rowwise_ops_are_one_launch() {
    let mut g = Graph::new(program());
    let x = g.input("x", ty(DType::F32, &[8, 16]));
    let y = g.call("softmax", &[x], &[]).unwrap()[0];
    g.output("y", y);
    let plan = planned(&g, &Options::new(Device::cpu())).unwrap();
    assert!(matches!(plan.steps.as_slice(), [s] if matches!(s.action, Action::Rowwise(_))), "{plan}");
}

#[test]
fn constants_are_computed_once_and_views_of_them_are_not_copied() {
    let mut g = Graph::new(program());
    let x = g.input("x", ty(DType::F32, &[4, 256]));
    let (w, s) = (constant(&mut g, DType::F32, &[512, 256]), constant(&mut g, DType::F32, &[512, 1]));
    let scaled = g.call("mul", &[w, s], &[]).unwrap()[0];
    let turned = g.call("transpose", &[scaled], &[("perm", hypatia_testing::list(&[1, 0]))]).unwrap()[0];
    let y = g.call("matmul", &[x, turned], &[]).unwrap()[0];
    g.output("y", y);
    let mut known = pipeline::constants();
    let options = Options::new(Device::cpu());
    let plan = Plan::build(&g, &options, &mut known).unwrap();
    assert_eq!((plan.launches(), plan.constants.len()), (1, 1), "{plan}");
    // Another plan with the same weights shares the computed constants.
    let again = Plan::build(&g, &options, &mut known).unwrap();
    assert!(Arc::ptr_eq(&plan.constants[0], &again.constants[0]));
}

/// A view of a constant that a step cannot read is a constant of its own, which plans share; the
/// same in the reversed order is another one.
#[test]
fn views_of_constants_are_copied_once_for_all_plans() {
    let mut g = Graph::new(program());
    let ids = g.input("ids", ty(DType::I64, &[3]));
    let table = constant(&mut g, DType::F32, &[8, 16]);
    let turned = g.call("transpose", &[table], &[("perm", list(&[1, 0]))]).unwrap()[0];
    let back = [("axis", 0), ("start", 7), ("stop", -1), ("step", -1)].map(|(n, v)| (n, AttrValue::from(v)));
    let reversed = g.call("slice", &[table], &back).unwrap()[0];
    for (name, of) in [("rows", turned), ("again", turned), ("reversed", reversed)] {
        let y = g.call("gather", &[of, ids], &[]).unwrap()[0];
        g.output(name, y);
    }
    let mut known = pipeline::constants();
    let options = Options::new(Device::cpu());
    let plan = Plan::build(&g, &options, &mut known).unwrap();
    assert_eq!((plan.launches(), plan.constants.len()), (3, 3), "{plan}");
    let value = |i: usize| (i % 7) as f32 / 8.0;
    let turned: Vec<f32> = (0..128).map(|i| value(i % 8 * 16 + i / 8)).collect();
    let reversed: Vec<f32> = (0..128).map(|i| value((7 - i / 16) * 16 + i % 16)).collect();
    for made in [turned, reversed] {
        assert!(plan.constants.iter().any(|t| t.as_slice::<f32>() == Some(&made)), "{plan}");
    }
    let again = Plan::build(&g, &options, &mut known).unwrap();
    assert!(plan.constants.iter().zip(&again.constants).all(|(a, b)| Arc::ptr_eq(a, b)));
}

/// Checks every pair of buffers that are live during one step for overlap.
fn check_places(plan: &Plan) {
    let last = super::arena::last_uses(plan);
    let mut first = vec![usize::MAX; plan.buffers.len()];
    for (i, step) in plan.steps.iter().enumerate() {
        step.writes.iter().for_each(|v| first[v.buffer.index()] = i);
    }
    let live: Vec<(usize, usize, usize)> = plan
        .buffers
        .iter()
        .enumerate()
        .filter_map(|(i, b)| match b.storage {
            Storage::Arena(offset) if first[i] != usize::MAX => Some((i, offset, offset + b.len * b.dtype.size())),
            _ => None,
        })
        .collect();
    for (i, from_i, to_i) in &live {
        assert!(*to_i <= plan.arena);
        for (j, from_j, to_j) in live.iter().filter(|(j, _, _)| j > i) {
            let together = first[*i] <= last[*j] && first[*j] <= last[*i];
            let overlap = from_i < to_j && from_j < to_i;
            let taken = |old: usize, new: usize| {
                last[old] == first[new] && {
                    let step = &plan.steps[first[new]];
                    step.writes
                        .iter()
                        .zip(&step.in_place)
                        .any(|(w, r)| w.buffer.index() == new && r.is_some_and(|r| step.reads[r].buffer.index() == old))
                }
            };
            assert!(!together || !overlap || taken(*i, *j) || taken(*j, *i), "buffers {i} and {j} overlap\n{plan}");
        }
    }
}

#[test]
fn live_buffers_do_not_overlap() {
    use rand::prelude::*;
    for seed in 0..200 {
        let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
        let mut g = Graph::new(program());
        let mut values: Vec<Value> =
            (0..3).map(|i| g.input(format!("x{i}"), ty(DType::F32, &[8, 16 * (i + 1)]))).collect();
        for _ in 0..30 {
            let a = *values.choose(&mut rng).unwrap();
            let b = *values.choose(&mut rng).unwrap();
            let made = match rng.random_range(0..5) {
                0 => g.call("softmax", &[a], &[]),
                1 => g.call("exp", &[a], &[]),
                2 => g.call("concat", &[a, b], &[("axis", hypatia_dsl::ir::AttrValue::Dim(1.into()))]),
                _ => g.call(["add", "mul", "max"].choose(&mut rng).unwrap(), &[a, b], &[]),
            };
            values.extend(made.into_iter().flatten());
        }
        for (i, v) in values.iter().rev().step_by(3).take(4).enumerate() {
            g.output(format!("y{i}"), *v);
        }
        for cluster in [true, false] {
            let plan = planned(&g, &Options { cluster, ..Options::new(Device::cpu()) }).unwrap();
            check_places(&plan);
        }
    }
}
