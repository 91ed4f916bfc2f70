//! Products with several results in one kernel, against the reference: values kept beside what
//! follows, two functions of one product, masks, pairs of products; ragged sizes, poisoned results,
//! tilings of both templates; what stays apart; the measured choice.
#![allow(clippy::unwrap_used)]
use hypatia_dsl::builtin::BuiltinOp;
use hypatia_dsl::dtype::DType;
use hypatia_dsl::kernel::{StoredTiling, Tiling, WarpTiling};

use super::emulated;
use super::tiled::{Case, Inputs, agrees_by, measured_choice_agrees, source, spread, tiled_step};
use super::{cases, gpu, planned};
use hypatia_graph::Graph;
use hypatia_pipeline as pipeline;
use hypatia_plan::{Action, CallStep, Called, Options, Plan};
use hypatia_target::device::Device;

/// Products, rows, columns, length of the sums.
const SHAPES: [[usize; 4]; 5] =
    [[1, 128, 128, 64], [1, 304, 520, 200], [2, 200, 264, 72], [3, 8, 8, 8], [1, 65, 136, 776]];
/// What is computed of a product, and the number of results.
const WAYS: [(&str, usize); 8] = [
    ("kept", 2),
    ("functions", 2),
    ("three", 3),
    ("mask", 2),
    ("gate and residual", 2),
    ("pair", 2),
    ("mask first", 2),
    ("not kept", 2),
];

/// A product of which that is computed.
fn case(dtype: DType, [batch, m, n, k]: [usize; 4], [left, right]: [bool; 2], way: &str) -> (Graph, Inputs) {
    let mut c = if way.starts_with("mask") { Case::of_whole_numbers(dtype) } else { Case::new(dtype) };
    let (a, b) = (c.factor(batch, [m, k], left), c.factor(batch, [k, n], right));
    let p = c.graph.builtin(BuiltinOp::Matmul, &[a, b], vec![]).unwrap()[0];
    let lead: &[usize] = if batch > 1 { &[batch] } else { &[] };
    let full = [lead, &[m, n]].concat();
    let outputs = match way {
        // What training keeps for the backward pass.
        "kept" => {
            let bias = c.input(&[n]);
            let h = c.call("add", &[p, bias]);
            vec![h, c.call("silu", &[h])]
        }
        "functions" => {
            let r = c.input(&full);
            let t = c.call("tanh", &[p]);
            vec![c.call("sigmoid", &[p]), c.call("mul", &[t, r])]
        }
        "three" => {
            let [r, s] = [c.input(&full), c.input(&[lead, &[m, 1]].concat())];
            let scaled = c.call("mul", &[p, s]);
            let gated = c.call("mul", &[p, r]);
            vec![p, c.call("gelu", &[scaled]), gated]
        }
        "mask" => {
            let r = c.input(&full);
            let sum = c.call("add", &[p, r]);
            vec![c.call("relu", &[sum]), c.call("lt", &[r, p])]
        }
        // The first result decides how many neighbours an access has: 16 of bool.
        "mask first" => {
            let (bias, zero) = (c.input(&[n]), c.input(&[1]));
            let h = c.call("add", &[p, bias]);
            vec![c.call("lt", &[zero, h]), c.call("tanh", &[h])]
        }
        "gate and residual" => {
            let [g, r] = [c.input(&full), c.input(&full)];
            let h = c.call("add", &[p, r]);
            let y = c.call("silu", &[h]);
            vec![h, c.call("mul", &[y, g])]
        }
        "pair" => {
            let w = c.factor(batch, [k, n], right);
            let up = c.graph.builtin(BuiltinOp::Matmul, &[a, w], vec![]).unwrap()[0];
            let gate = c.call("silu", &[p]);
            let h = c.call("mul", &[gate, up]);
            vec![h, c.call("tanh", &[h])]
        }
        _ => {
            let bias = c.input(&[n]);
            let h = c.call("add", &[p, bias]);
            vec![c.call("exp", &[h]), c.call("tanh", &[h])]
        }
    };
    outputs.into_iter().enumerate().for_each(|(i, y)| c.graph.output(format!("y{i}"), y));
    (c.graph, c.inputs)
}

/// Plans for a launcher: of products with two and three results.
pub(super) fn plans() -> Vec<Plan> {
    let device = Device::named("h200").unwrap();
    let plan =
        |(way, _): &(&str, usize)| Plan::clone(&planned(&device, &case(DType::BF16, SHAPES[2], ORDERS[1], way).0));
    WAYS.iter().map(plan).collect()
}

const ORDERS: [[bool; 2]; 4] = [[false, true], [false, false], [true, false], [true, true]];

#[test]
fn work_on_a_products_results_is_one_step() {
    for device in ["h200", "a100"].map(|name| Device::named(name).unwrap()) {
        for (i, (way, results)) in WAYS.into_iter().enumerate() {
            if way == "pair" && device.sm != 90 {
                continue;
            }
            for (j, shape) in SHAPES.into_iter().enumerate() {
                let plan = planned(&device, &case(DType::BF16, shape, ORDERS[(i + j) % 4], way).0);
                let (step, call) = tiled_step(&plan).unwrap_or_else(|| panic!("{way} {shape:?}\n{plan}"));
                assert_eq!(call.writes, results, "{plan}");
                assert!(call.fallback.len() > 1 && step.writes.len() >= results, "{plan}");
            }
        }
    }
}

/// Work that needs more than the product's elements is a step of its own.
#[test]
fn other_work_stays_apart() {
    let device = Device::named("h200").unwrap();
    let several = |graph: &Graph, options: Options| {
        let plan = pipeline::plan(graph, &options).unwrap();
        let of = |called: &Called| match called {
            Called::Product(g) | Called::Pair(g) => g.term.roots.len() > 1,
            _ => false,
        };
        plan.steps.iter().any(|s| matches!(&s.action, Action::Call(CallStep { called, .. }) if of(called)))
    };
    let options = || Options::new(device.clone());
    let build = |work: &dyn Fn(&mut Case, [hypatia_graph::Value; 2]) -> hypatia_graph::Value| {
        let mut c = Case::new(DType::BF16);
        let (a, b) = (c.factor(1, [64, 64], false), c.factor(1, [64, 64], false));
        let p = c.graph.builtin(BuiltinOp::Matmul, &[a, b], vec![]).unwrap()[0];
        let y = work(&mut c, [a, p]);
        c.graph.output("p", p);
        c.graph.output("y", y);
        c.graph
    };
    let each = build(&|c, [_, p]| c.call("tanh", &[p]));
    assert!(several(&each, options()));
    // Batch invariance and exact numerics pin how products are computed.
    let allowed = |f: &dyn Fn(&mut hypatia_dsl::numerics::Allowed)| {
        let mut options = options();
        f(&mut options.allowed);
        options
    };
    assert!(!several(&each, allowed(&|a| a.batch_invariant = true)));
    assert!(!several(&each, allowed(&|a| a.numerics = hypatia_dsl::numerics::Numerics::Exact)));
    // Elements of other places.
    let moved = build(&|c, [_, p]| {
        let t = c.graph.builtin(BuiltinOp::Transpose, &[p], vec![hypatia_testing::list(&[1, 0])]).unwrap()[0];
        let t = c.call("tanh", &[t]);
        c.call("add", &[t, p])
    });
    assert!(!several(&moved, options()));
    // An operand that is made of the product.
    let later = build(&|c, [a, p]| {
        let q = c.graph.builtin(BuiltinOp::Matmul, &[p, a], vec![]).unwrap()[0];
        let q = c.graph.builtin(BuiltinOp::Matmul, &[q, a], vec![]).unwrap()[0];
        let q = c.graph.builtin(BuiltinOp::Transpose, &[q], vec![hypatia_testing::list(&[1, 0])]).unwrap()[0];
        c.call("mul", &[q, p])
    });
    assert!(!several(&later, options()));
}

#[test]
fn a_product_with_two_results_reads_as_one_would_write_it() {
    if !std::path::Path::new(env!("CARGO_MANIFEST_DIR")).exists() {
        return eprintln!("SKIPPED: a golden file, where there are no sources");
    }
    let (graph, _) = case(DType::BF16, [1, 256, 512, 256], [false, true], "kept");
    let plan = planned(&Device::named("h200").unwrap(), &graph);
    let tiling = Tiling::named(&[("tile_m", 64), ("pingpong", 1)]).unwrap();
    insta::assert_snapshot!(source(&plan, &tiling.words()).unwrap().text);
    let (graph, _) = case(DType::BF16, [1, 256, 512, 256], [false, true], "mask");
    let plan = planned(&Device::named("a100").unwrap(), &graph);
    insta::assert_snapshot!(source(&plan, &WarpTiling::named(&[]).unwrap().words()).unwrap().text);
}

/// The template of warps on a host without a GPU.
#[test]
fn several_results_agree_with_the_reference_on_a_host() {
    let device = Device::named("a100").unwrap();
    let shapes = [[1, 64, 64, 64], [1, 33, 70, 40], [2, 17, 24, 8]];
    let tiling = WarpTiling::named(&[("tile_m", 32), ("tile_n", 64)]).unwrap();
    let mut list = Vec::new();
    for (i, (way, _)) in WAYS.iter().enumerate().filter(|(_, (way, _))| *way != "pair") {
        let dtype = if i % 2 == 0 { DType::BF16 } else { DType::F16 };
        let (graph, inputs) = case(dtype, shapes[i % 3], ORDERS[i % 4], way);
        let graph = super::gemv::optimized(&device, &graph);
        list.push(emulated::Case { what: format!("{way} {:?}", shapes[i % 3]), graph, inputs });
    }
    let ran = match emulated::run_tiled(&list, &Options::new(device), Some(tiling.words())) {
        Ok(ran) => ran,
        Err(why) => return eprintln!("SKIPPED: {why}"),
    };
    for (case, ran) in list.iter().zip(ran) {
        let (plan, made) = ran.unwrap_or_else(|| panic!("{}: not emulated", case.what));
        assert_eq!(plan.steps.len(), 1, "{}\n{plan}", case.what);
        let want = hypatia_eval::evaluate(&case.graph, &case.inputs, hypatia_eval::Mode::Rounded).unwrap();
        for (got, want) in made.iter().zip(&want) {
            let coarsest = hypatia_testing::random::coarsest(&case.graph);
            hypatia_testing::random::compare(got, &want.to_tensor().unwrap(), want.dtype, coarsest, &case.what);
        }
    }
}

#[test]
fn every_tiling_with_several_results_agrees_with_the_reference_on_a_gpu() {
    let some = planned(&Device::named("h200").unwrap(), &case(DType::BF16, SHAPES[0], ORDERS[0], "kept").0);
    let tune = &some.program.kernels.iter().find(|k| k.name == "tiles").unwrap().tune;
    let hopper: Vec<StoredTiling> = Tiling::all(tune).iter().map(Tiling::words).collect();
    let warps: Vec<StoredTiling> = WarpTiling::all(tune).iter().map(WarpTiling::words).collect();
    let Some(gpu) = gpu((hopper.len() + warps.len()) * 2) else { return };
    let hopper = if gpu.profile().sm == 90 { hopper } else { Vec::new() };
    let (mut ran, mut at) = (0, 0);
    for tilings in [hopper, warps] {
        for tiling in spread(&tilings, cases(50) as usize) {
            for _ in 0..2 {
                at += 1;
                let dtype = if at % 4 == 0 { DType::F16 } else { DType::BF16 };
                let (shape, order, (way, _)) = (SHAPES[at % 5], ORDERS[at % 3], WAYS[at % WAYS.len()]);
                let what = format!("{tiling:?} {dtype} {shape:?} {order:?} {way}");
                ran += usize::from(agrees_by(&gpu, &case(dtype, shape, order, way), tiling, &what));
            }
        }
    }
    println!("{ran} products with several results agree");
    assert!(ran > 0);
}

/// The quickest runs: one launch, or the parts in turn.
#[test]
fn the_measured_choice_of_several_results_agrees_on_a_gpu() {
    let Some(gpu) = gpu(WAYS.len()) else { return };
    let shapes = [[1, 1024, 1408, 512], [1, 2048, 2048, 512], [2, 64, 64, 64]];
    for (i, (way, _)) in WAYS.into_iter().enumerate() {
        let shape = shapes[i % 3];
        let case = case(DType::BF16, shape, ORDERS[0], way);
        measured_choice_agrees(&gpu, &case, &format!("{way} {shape:?}"));
    }
}
