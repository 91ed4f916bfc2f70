//! Products that read heads or store them, or store their result transposed, against the reference:
//! by the reference's own steps on a host, by tilings of Hopper's template, and by measured choice.
use hypatia_dsl::builtin::BuiltinOp;
use hypatia_dsl::dtype::DType;
use hypatia_eval::{Mode, evaluate};
use hypatia_graph::{Graph, Value};
use hypatia_plan::{Action, Plan};
use hypatia_target::device::Device;
use hypatia_tensor::tensor::Tensor;
use hypatia_testing::list;
use hypatia_testing::random::{coarsest, compare};

use super::tiled::{Case, Inputs, agrees_by, all_tilings, measured_choice_agrees, source, spread, tiled_step};
use super::{gpu, planned};

/// What is done to the left factor, the result, or both.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Order {
    /// The left factor's rows are heads, put side by side.
    Merged,
    /// The result's columns are heads, taken apart.
    Apart,
    Both,
    /// The result is stored by columns.
    Turned,
}

const ORDERS: [Order; 4] = [Order::Merged, Order::Apart, Order::Both, Order::Turned];
/// Sequences, tokens, heads, width of a head, columns of the weight or terms of the sums.
const SHAPES: [[usize; 5]; 6] = [
    [2, 128, 4, 64, 96],
    [1, 77, 3, 128, 200],
    [3, 15, 2, 64, 8],
    [2, 200, 1, 64, 72],
    [1, 1, 2, 64, 64],
    [4, 130, 5, 64, 64],
];

fn order(g: &mut Graph, x: Value, axes: &[usize]) -> Value {
    g.builtin(BuiltinOp::Transpose, &[x], vec![list(axes)]).unwrap()[0]
}

fn shaped(g: &mut Graph, x: Value, shape: &[usize]) -> Value {
    g.builtin(BuiltinOp::Reshape, &[x], vec![list(shape)]).unwrap()[0]
}

/// A layer with a bias, a residual and an activation over such heads.
fn case(dtype: DType, how: Order, [b, s, h, d, other]: [usize; 5]) -> (Graph, Inputs) {
    let mut c = Case::new(dtype);
    let (reads, stores) = (matches!(how, Order::Merged | Order::Both), matches!(how, Order::Apart | Order::Both));
    let k = if reads { h * d } else { other };
    let n = if stores { h * d } else { other };
    let left = match reads {
        true => {
            let x = c.input(&[b, h, s, d]);
            let x = order(&mut c.graph, x, &[0, 2, 1, 3]);
            shaped(&mut c.graph, x, &[b, s, k])
        }
        false => c.input(&[b, s, k]),
    };
    let (w, bias, rest) = (c.input(&[k, n]), c.input(&[n]), c.input(&[b, s, n]));
    let y = c.graph.builtin(BuiltinOp::Matmul, &[left, w], vec![]).unwrap()[0];
    let y = c.call("add", &[y, bias]);
    let y = c.call("silu", &[y]);
    let y = c.call("add", &[y, rest]);
    let y = match () {
        () if stores => {
            let y = shaped(&mut c.graph, y, &[b, s, h, d]);
            order(&mut c.graph, y, &[0, 2, 1, 3])
        }
        () if how == Order::Turned => order(&mut c.graph, y, &[0, 2, 1]),
        () => y,
    };
    c.graph.output("y", y);
    (c.graph, c.inputs)
}

fn all() -> impl Iterator<Item = (Order, [usize; 5])> {
    // Rows of a result are whole units, those of a transposed one too.
    let fitting = |order, [b, s, h, d, other]: [usize; 5]| match order {
        Order::Turned => [b, s.max(40).next_multiple_of(8), h, d, other],
        _ => [b, s, h, d, other],
    };
    ORDERS.into_iter().flat_map(move |order| SHAPES.map(|shape| (order, fitting(order, shape))))
}

/// Plans for a launcher.
pub(super) fn plans() -> Vec<Plan> {
    let device = Device::named("h200").unwrap();
    let plan = |how| planned(&device, &case(DType::BF16, how, [2, 40, 3, 64, 64]).0);
    ORDERS.map(|how| Plan::clone(&plan(how))).to_vec()
}

fn copies(plan: &Plan) -> usize {
    plan.steps.iter().filter(|s| s.action == Action::Copy).count()
}

#[test]
fn heads_and_transposed_results_are_one_launch_on_hopper() {
    let [h200, a100] = ["h200", "a100"].map(|name| Device::named(name).unwrap());
    for (order, shape) in all() {
        let (graph, inputs) = case(DType::BF16, order, shape);
        let plan = planned(&h200, &graph);
        let (step, call) = tiled_step(&plan).unwrap_or_else(|| panic!("{order:?} {shape:?}\n{plan}"));
        assert_eq!(plan.launches(), 1, "{order:?} {shape:?}\n{plan}");
        let moves = call.fallback.iter().filter(|s| s.action == Action::Copy).count();
        // One head, or one token, lies as it is read.
        let [b, s, h, _, _] = shape;
        let turns = if order == Order::Turned { s > 1 } else { s > 1 && h > 1 };
        let wanted = if order == Order::Both { 2 } else { 1 };
        assert_eq!(moves, if turns { wanted } else { 0 }, "{b} {order:?} {shape:?}\n{}", step.name);
        // Some tiling of Hopper's template computes it.
        let [hopper, _] = all_tilings(&plan);
        assert!(hopper.iter().any(|t| source(&plan, t).is_some()), "{order:?} {shape:?}\n{plan}");
        let others = planned(&a100, &graph);
        assert_eq!(copies(&others), if turns { wanted } else { 0 }, "{order:?} {shape:?}\n{others}");
        // What the plan means is its fallback.
        let want = evaluate(&graph, &inputs, Mode::Rounded).unwrap();
        let tensors: Vec<Tensor> = inputs.iter().map(|(_, t)| t.clone()).collect();
        let executor = hypatia_cpu::Executor::new(plan.clone(), 2).unwrap().poisoned();
        for (got, w) in executor.run(&tensors).unwrap().iter().zip(&want) {
            compare(got, &w.to_tensor().unwrap(), w.dtype, coarsest(&graph), &format!("{order:?} {shape:?}"));
        }
    }
}

#[test]
fn heads_that_the_copy_engine_does_not_take_apart_are_copied() {
    // 40 elements are no slice of k, and 24 no chunk of columns.
    let plan = |how, shape| planned(&Device::named("h200").unwrap(), &case(DType::BF16, how, shape).0);
    assert_eq!(copies(&plan(Order::Merged, [2, 32, 3, 40, 64])), 1);
    assert_eq!(copies(&plan(Order::Apart, [2, 32, 3, 24, 64])), 1);
    assert_eq!(copies(&plan(Order::Apart, [2, 32, 3, 16, 64])), 0);
    // Rows of 77 elements, of the result and of the right factor.
    assert_eq!(copies(&plan(Order::Turned, [2, 77, 1, 64, 64])), 1);
    assert_eq!(copies(&plan(Order::Turned, [1, 64, 1, 64, 77])), 1);
    // Few rows have a template of their own.
    assert_eq!(copies(&plan(Order::Apart, [2, 16, 3, 64, 64])), 1);
}

#[test]
fn heads_and_transposed_results_agree_by_every_tiling_on_a_gpu() {
    let device = Device::named("h200").unwrap();
    let [tilings, _] = all_tilings(&planned(&device, &case(DType::BF16, Order::Merged, SHAPES[0]).0));
    let Some(gpu) = gpu(all().count()) else { return };
    if gpu.profile().sm != device.sm {
        return println!("skipped: only Hopper's template takes heads apart");
    }
    let mut ran = 0;
    for (i, (order, shape)) in all().enumerate() {
        for dtype in [DType::BF16, DType::F16] {
            let case = case(dtype, order, shape);
            for tiling in spread(&tilings[i % 3..], super::cases(6) as usize) {
                ran += usize::from(agrees_by(&gpu, &case, tiling, &format!("{dtype} {order:?} {shape:?} {tiling:?}")));
            }
            measured_choice_agrees(&gpu, &case, &format!("{dtype} {order:?} {shape:?}"));
        }
    }
    println!("heads taken apart: {ran} tilings");
    assert!(ran > 0);
}

/// The sources of a few tilings, with clusters and without.
#[test]
fn heads_taken_apart_compile() {
    let Some(compiler) = super::compiler() else { return };
    for (order, shape) in all().step_by(3) {
        let plan = planned(&Device::named("h200").unwrap(), &case(DType::BF16, order, shape).0);
        let [tilings, _] = all_tilings(&plan);
        let mut left = 2;
        for tiling in spread(&tilings, 30) {
            let Some(source) = source(&plan, tiling).filter(|_| left > 0) else { continue };
            left -= 1;
            compiler.compile(&source.text, "k.cu", "sm_90a").unwrap_or_else(|e| panic!("{order:?} {shape:?}: {e}"));
        }
    }
}
