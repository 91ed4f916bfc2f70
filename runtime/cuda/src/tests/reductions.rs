//! Reductions beside a product, against the reference: sums over rows (gradients of biases), over
//! columns, means, the largest of all; with several results, none, two products, ragged sizes,
//! every tiling; what stays apart; the measured choice.
#![allow(clippy::unwrap_used)]
use std::time::Duration;

use hypatia_dsl::builtin::BuiltinOp;
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::AttrValue;
use hypatia_dsl::kernel::{Along, Reduced, Reduction, StoredTiling, Tiling};

use super::tiled::{Case, Inputs, agrees_by, check, measured_choice_agrees, source, spread, tiled_step};
use super::{cases, gpu, planned};
use crate::Executor;
use crate::tuner::Tuner;
use hypatia_graph::{Graph, Value};
use hypatia_plan::Plan;
use hypatia_target::device::Device;
use hypatia_testing::list;

/// Products, rows, columns, length of the sums.
const SHAPES: [[usize; 4]; 6] =
    [[1, 128, 128, 64], [1, 304, 520, 200], [2, 200, 264, 72], [3, 8, 8, 8], [1, 65, 136, 776], [1, 1, 72, 64]];
/// What is computed of a product, the stored results, and what is reduced.
type Way = (&'static str, usize, &'static [(Reduction, Along)]);
const WAYS: [Way; 9] = [
    ("gradient of a bias", 1, &[(Reduction::Sum, Along::Rows)]),
    ("row sums", 1, &[(Reduction::Sum, Along::Columns)]),
    ("largest", 1, &[(Reduction::Max, Along::All)]),
    ("two", 1, &[(Reduction::Max, Along::Columns), (Reduction::Sum, Along::Rows)]),
    ("kept", 2, &[(Reduction::Sum, Along::Rows)]),
    ("pair", 1, &[(Reduction::Sum, Along::Rows)]),
    ("smallest", 1, &[(Reduction::Min, Along::Rows)]),
    ("mean", 1, &[(Reduction::Sum, Along::Columns)]),
    ("largest alone", 1, &[(Reduction::Max, Along::All)]),
];
const ORDERS: [[bool; 2]; 4] = [[false, true], [false, false], [true, false], [true, true]];

fn reduce(c: &mut Case, op: BuiltinOp, x: Value, axes: &[usize]) -> Value {
    c.graph.builtin(op, &[x], vec![list(axes), AttrValue::Bool(false)]).unwrap()[0]
}

/// A product of which that is computed.
fn case(dtype: DType, [batch, m, n, k]: [usize; 4], [left, right]: [bool; 2], way: &str) -> (Graph, Inputs) {
    let mut c = Case::new(dtype);
    let (a, b) = (c.factor(batch, [m, k], left), c.factor(batch, [k, n], right));
    let p = c.graph.builtin(BuiltinOp::Matmul, &[a, b], vec![]).unwrap()[0];
    let lead: &[usize] = if batch > 1 { &[batch] } else { &[] };
    let full = [lead, &[m, n]].concat();
    let rank = full.len();
    let rows: Vec<usize> = (0..rank - 1).collect();
    let all: Vec<usize> = (0..rank).collect();
    let outputs = match way {
        "gradient of a bias" => {
            let slope = c.input(&full);
            let d = c.call("mul", &[p, slope]);
            vec![d, reduce(&mut c, BuiltinOp::Sum, d, &rows)]
        }
        "row sums" => {
            let bias = c.input(&[n]);
            let h = c.call("add", &[p, bias]);
            vec![h, reduce(&mut c, BuiltinOp::Sum, h, &[rank - 1])]
        }
        "largest" => {
            let h = c.call("silu", &[p]);
            let size = c.call("abs", &[h]);
            vec![h, reduce(&mut c, BuiltinOp::Amax, size, &all)]
        }
        "two" => {
            let r = c.input(&full);
            let h = c.call("add", &[p, r]);
            vec![h, reduce(&mut c, BuiltinOp::Amax, h, &[rank - 1]), reduce(&mut c, BuiltinOp::Sum, h, &rows)]
        }
        "kept" => {
            let bias = c.input(&[n]);
            let h = c.call("add", &[p, bias]);
            let y = c.call("tanh", &[h]);
            vec![h, y, reduce(&mut c, BuiltinOp::Sum, y, &rows)]
        }
        "pair" => {
            let w = c.factor(batch, [k, n], right);
            let up = c.graph.builtin(BuiltinOp::Matmul, &[a, w], vec![]).unwrap()[0];
            let gate = c.call("silu", &[p]);
            let h = c.call("mul", &[gate, up]);
            vec![h, reduce(&mut c, BuiltinOp::Sum, h, &rows)]
        }
        "mean" => {
            let bias = c.input(&[n]);
            let h = c.call("add", &[p, bias]);
            vec![h, reduce(&mut c, BuiltinOp::Mean, h, &[rank - 1])]
        }
        "largest alone" => {
            let size = c.call("abs", &[p]);
            vec![reduce(&mut c, BuiltinOp::Amax, size, &all)]
        }
        _ => {
            let scale = c.input(&[1]);
            let h = c.call("mul", &[p, scale]);
            vec![h, reduce(&mut c, BuiltinOp::Amin, h, &rows)]
        }
    };
    outputs.into_iter().enumerate().for_each(|(i, y)| c.graph.output(format!("y{i}"), y));
    (c.graph, c.inputs)
}

/// What the only step of a plan reduces, and the results that it stores.
fn reduced(plan: &Plan) -> Option<(usize, Vec<Reduced>)> {
    let (_, call) = tiled_step(plan)?;
    let product = match &call.called {
        hypatia_plan::Called::Product(g) | hypatia_plan::Called::Pair(g) => g,
        _ => return None,
    };
    Some((call.writes - product.reduced.len(), product.reduced.clone()))
}

/// Plans for a launcher: a product with a reduction over its rows.
pub(super) fn plans() -> Vec<Plan> {
    let device = Device::named("h200").unwrap();
    vec![Plan::clone(&planned(&device, &case(DType::BF16, SHAPES[2], ORDERS[1], WAYS[0].0).0))]
}

#[test]
fn a_reduction_of_a_products_results_is_part_of_its_step() {
    let hopper = Device::named("h200").unwrap();
    for (i, (way, stored, wanted)) in WAYS.into_iter().enumerate() {
        for (j, shape) in SHAPES[..5].iter().enumerate() {
            let plan = planned(&hopper, &case(DType::BF16, *shape, ORDERS[(i + j) % 4], way).0);
            let found = reduced(&plan).unwrap_or_else(|| panic!("{way} {shape:?}\n{plan}"));
            let wanted: Vec<Reduced> =
                wanted.iter().map(|(kind, along)| Reduced { kind: *kind, along: *along }).collect();
            assert_eq!(found, (stored, wanted), "{way}\n{plan}");
        }
    }
    // The template of warps has no reductions.
    let ampere = Device::named("a100").unwrap();
    let plan = planned(&ampere, &case(DType::BF16, SHAPES[1], ORDERS[1], WAYS[0].0).0);
    assert!(plan.steps.len() > 1, "{plan}");
}

/// What needs whole rows before an element is known, and products, are steps of their own.
#[test]
fn other_reductions_stay_apart() {
    let device = Device::named("h200").unwrap();
    let build = |work: &dyn Fn(&mut Case, Value) -> Value| {
        let mut c = Case::new(DType::BF16);
        let (a, b) = (c.factor(1, [64, 64], false), c.factor(1, [64, 64], false));
        let p = c.graph.builtin(BuiltinOp::Matmul, &[a, b], vec![]).unwrap()[0];
        let y = work(&mut c, p);
        c.graph.output("p", p);
        c.graph.output("y", y);
        planned(&device, &c.graph)
    };
    let rest = build(&|c, p| {
        let most = c.graph.builtin(BuiltinOp::Amax, &[p], vec![list(&[1]), AttrValue::Bool(true)]).unwrap()[0];
        let x = c.call("sub", &[p, most]);
        c.call("exp", &[x])
    });
    let product = build(&|c, p| reduce(c, BuiltinOp::Prod, p, &[1]));
    for plan in [rest, product] {
        assert!(plan.steps.len() > 1, "{plan}");
    }
}

#[test]
fn a_product_with_a_reduction_reads_as_one_would_write_it() {
    if !std::path::Path::new(env!("CARGO_MANIFEST_DIR")).exists() {
        return eprintln!("SKIPPED: a golden file, where there are no sources");
    }
    let (graph, _) = case(DType::BF16, [1, 256, 512, 256], [false, true], "two");
    let plan = planned(&Device::named("h200").unwrap(), &graph);
    let tiling = Tiling::named(&[("tile_m", 64), ("pingpong", 1)]).unwrap();
    insta::assert_snapshot!(source(&plan, &tiling.words()).unwrap().text);
}

#[test]
fn every_tiling_with_reductions_agrees_with_the_reference_on_a_gpu() {
    let some = planned(&Device::named("h200").unwrap(), &case(DType::BF16, SHAPES[0], ORDERS[0], WAYS[0].0).0);
    let tilings = |kernel: &str| -> Vec<StoredTiling> {
        let kernel = some.program.kernels.iter().find(|k| k.name == kernel).unwrap();
        Tiling::all(&kernel.tune).iter().map(Tiling::words).collect()
    };
    let (hopper, of_pairs) = (tilings("tiles"), tilings("pair_tiles"));
    let Some(gpu) = gpu(hopper.len() * 2) else { return };
    if gpu.profile().sm != 90 {
        return eprintln!("SKIPPED: reductions beside products on a GPU that is not Hopper's");
    }
    let (mut ran, mut at) = (0, 0);
    for tiling in spread(&hopper, cases(50) as usize) {
        for _ in 0..2 {
            at += 1;
            let dtype = if at % 4 == 0 { DType::F16 } else { DType::BF16 };
            let (shape, order, (way, ..)) = (SHAPES[at % 6], ORDERS[at % 3], WAYS[at % WAYS.len()]);
            if way == "pair" && !of_pairs.contains(tiling) {
                continue;
            }
            let what = format!("{tiling:?} {dtype} {shape:?} {order:?} {way}");
            ran += usize::from(agrees_by(&gpu, &case(dtype, shape, order, way), tiling, &what));
        }
    }
    println!("{ran} products with reductions agree");
    assert!(ran > 0);
}

/// A reduction of rows of that length.
fn of_long_rows(dtype: DType, [rows, n]: [usize; 2], op: BuiltinOp) -> (Graph, Inputs) {
    let mut c = Case::new(dtype);
    let x = c.input(&[rows, n]);
    let r = reduce(&mut c, op, x, &[1]);
    c.graph.output("r", r);
    (c.graph, c.inputs)
}

const LONG: [[usize; 2]; 4] = [[1, 1 << 20], [3, 98_304], [127, 40_000], [1, 33_333 * 4]];

#[test]
fn reductions_of_few_long_rows_are_two_launches() {
    let device = Device::named("h200").unwrap();
    for op in [BuiltinOp::Sum, BuiltinOp::Mean, BuiltinOp::Amax, BuiltinOp::Amin] {
        for shape in LONG {
            let plan = planned(&device, &of_long_rows(DType::BF16, shape, op).0);
            assert_eq!(plan.steps.len(), 2, "{op:?} {shape:?}\n{plan}");
        }
    }
    for shape in [[128, 1 << 16], [1, 32_767], [1, 1_000_003]] {
        assert_eq!(planned(&device, &of_long_rows(DType::BF16, shape, BuiltinOp::Sum).0).steps.len(), 1, "{shape:?}");
    }
}

/// Work in front of reductions of long rows, several reductions, and work behind them.
const AROUND: [&str; 5] = ["largest magnitude", "norm", "mean squared error", "squares and sum", "sum and largest"];

/// Reductions of rows of that length, with work around them.
fn around_long_rows(dtype: DType, [rows, n]: [usize; 2], what: &str) -> (Graph, Inputs) {
    let mut c = Case::new(dtype);
    let x = c.input(&[rows, n]);
    let results = match what {
        "largest magnitude" => {
            let size = c.call("abs", &[x]);
            vec![reduce(&mut c, BuiltinOp::Amax, size, &[1])]
        }
        "norm" => {
            let square = c.call("mul", &[x, x]);
            let sum = reduce(&mut c, BuiltinOp::Sum, square, &[1]);
            vec![c.call("sqrt", &[sum])]
        }
        "mean squared error" => {
            let y = c.input(&[rows, n]);
            let d = c.call("sub", &[x, y]);
            let square = c.call("mul", &[d, d]);
            vec![reduce(&mut c, BuiltinOp::Mean, square, &[1])]
        }
        // Elements are stored, too.
        "squares and sum" => {
            let square = c.call("mul", &[x, x]);
            vec![square, reduce(&mut c, BuiltinOp::Sum, square, &[1])]
        }
        _ => vec![reduce(&mut c, BuiltinOp::Sum, x, &[1]), reduce(&mut c, BuiltinOp::Amax, x, &[1])],
    };
    results.into_iter().enumerate().for_each(|(i, r)| c.graph.output(format!("r{i}"), r));
    (c.graph, c.inputs)
}

#[test]
fn work_around_few_long_rows_is_part_of_their_launches() {
    let device = Device::named("h200").unwrap();
    for what in AROUND {
        for shape in LONG {
            let plan = planned(&device, &around_long_rows(DType::BF16, shape, what).0);
            assert_eq!(plan.steps.len(), 2, "{what} {shape:?}\n{plan}");
        }
    }
    // Rows that are stored again are kept or read twice: they stay short.
    let mut c = Case::new(DType::BF16);
    let x = c.input(&[1, 1 << 20]);
    let size = c.call("abs", &[x]);
    let most = reduce(&mut c, BuiltinOp::Amax, size, &[1]);
    let y = c.call("div", &[x, most]);
    c.graph.output("y", y);
    let plan = planned(&device, &c.graph);
    assert_eq!(plan.steps.len(), 3, "{plan}");
}

#[test]
fn reductions_of_few_long_rows_agree_on_a_gpu() {
    let Some(gpu) = gpu(LONG.len() * 8) else { return };
    let agrees = |dtype: DType, (graph, inputs): (Graph, Inputs), what: &str| {
        let plan = planned(&gpu.profile(), &graph);
        let mut tuner = Tuner::without_cache(Duration::ZERO);
        let executor = Executor::new(plan, gpu.clone(), &mut tuner).unwrap().poisoned();
        let what = format!("{what} {dtype}");
        let [first, second] = [0, 1].map(|_| check(&executor, &graph, &inputs, &what));
        assert_eq!(first[0].bytes(), second[0].bytes(), "{what}: runs differ");
    };
    for (i, shape) in LONG.into_iter().enumerate() {
        for (j, op) in [BuiltinOp::Sum, BuiltinOp::Mean, BuiltinOp::Amax, BuiltinOp::Amin].into_iter().enumerate() {
            let dtype = [DType::BF16, DType::F32, DType::F16, DType::F64][(i + j) % 4];
            agrees(dtype, of_long_rows(dtype, shape, op), &format!("{op:?} {shape:?}"));
            let dtype = [DType::F32, DType::BF16][(i + j) % 2];
            agrees(
                dtype,
                around_long_rows(dtype, shape, AROUND[(i + j) % 5]),
                &format!("{} {shape:?}", AROUND[(i + j) % 5]),
            );
        }
    }
}

/// The quickest runs: one launch and one that joins the parts, or the steps in turn.
#[test]
fn the_measured_choice_of_reductions_agrees_on_a_gpu() {
    let Some(gpu) = gpu(WAYS.len()) else { return };
    let shapes = [[1, 1024, 1408, 512], [1, 2048, 2048, 512], [2, 64, 64, 64]];
    for (i, (way, ..)) in WAYS.into_iter().enumerate() {
        let shape = shapes[i % 3];
        let case = case(DType::BF16, shape, ORDERS[0], way);
        measured_choice_agrees(&gpu, &case, &format!("{way} {shape:?}"));
    }
}
