//! Row-wise kernels with lookups against the reference: bags of embeddings, whose index varies
//! along what is added up, several tables of a row, tables with one element a row; indices from the
//! end.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use hypatia_dsl::builtin::BuiltinOp;
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::AttrValue;
use hypatia_eval::{Mode, evaluate};
use hypatia_graph::Value;
use hypatia_plan::{Action, Plan, Step};
use hypatia_target::device::Device;
use hypatia_tensor::tensor::Tensor;
use hypatia_testing::random::{coarsest, compare};
use hypatia_testing::{int, list};

use super::emulated::{self, Case};
use super::horizontal::Made;
use super::{agrees, gpu, planned};

impl Made {
    fn sum(&mut self, x: Value, axis: usize) -> Value {
        self.builtin(BuiltinOp::Sum, &[x], vec![list(&[axis]), AttrValue::Bool(false)])
    }

    fn reshape(&mut self, x: Value, shape: &[usize]) -> Value {
        self.builtin(BuiltinOp::Reshape, &[x], vec![list(shape)])
    }
}

/// Bags of rows of a table, plain, with weights, and as a factorisation machine takes them.
fn bags(dtype: DType, [bags, of, columns]: [usize; 3]) -> Vec<Case> {
    let what = |name: &str| format!("{name} of {bags} x {of} x {columns}");
    let mut g = Made::new(dtype);
    let (table, i) = (g.input(&[9, columns]), g.indices(DType::I64, &[bags, of], 9));
    let rows = g.gather(table, i, 0);
    let y = g.sum(rows, 1);
    let mut out = vec![g.case(&what("bags"), &[y])];
    let mut g = Made::new(dtype);
    let (table, i, w) = (g.input(&[9, columns]), g.indices(DType::I32, &[bags, of], 9), g.input(&[bags, of]));
    let w = g.reshape(w, &[bags, of, 1]);
    let rows = g.gather(table, i, 0);
    let weighted = g.call("mul", &[rows, w]);
    let y = g.builtin(BuiltinOp::Mean, &[weighted], vec![list(&[1]), AttrValue::Bool(false)]);
    out.push(g.case(&what("bags with weights"), &[y]));
    let mut g = Made::new(dtype);
    let (table, i) = (g.input(&[9, columns]), g.indices(DType::I64, &[bags, of], 9));
    let rows = g.gather(table, i, 0);
    let (sum, squares) = (g.sum(rows, 1), g.call("mul", &[rows, rows]));
    let (square, sums) = (g.call("mul", &[sum, sum]), g.sum(squares, 1));
    let y = g.call("sub", &[square, sums]);
    out.push(g.case(&what("products of pairs"), &[y]));
    out
}

/// Two tables of one row, and a norm.
fn embeddings(dtype: DType, [batch, rows, columns]: [usize; 3]) -> Case {
    let mut g = Made::new(dtype);
    let (words, places) = (g.input(&[11, columns]), g.input(&[7, columns]));
    let (i, j) = (g.indices(DType::I64, &[batch, rows], 11), g.indices(DType::I64, &[1, rows], 7));
    let (a, b) = (g.gather(words, i, 0), g.gather(places, j, 0));
    let sum = g.call("add", &[a, b]);
    let (scale, bias) = (g.input(&[columns]), g.input(&[columns]));
    let y = g.call("layer_norm", &[sum, scale, bias]);
    g.case(&format!("embeddings of {batch} x {rows} x {columns}"), &[y])
}

/// Rows of a table, and one number for each, with the largest of the row.
fn scaled(dtype: DType, [rows, columns]: [usize; 2]) -> Case {
    let mut g = Made::new(dtype);
    let (table, scales) = (g.input(&[12, columns]), g.input(&[12, 1]));
    let i = g.indices(DType::I64, &[rows], 12);
    let (of_rows, each) = (g.gather(table, i, 0), g.gather(scales, i, 0));
    let y = g.call("mul", &[of_rows, each]);
    let most = g.builtin(BuiltinOp::Amax, &[y], vec![list(&[1]), AttrValue::Bool(true)]);
    let z = g.call("max", &[most, each]);
    g.case(&format!("rows of {rows} x {columns} with a scale each"), &[y, z])
}

/// The loss of each row: the logarithm of a softmax at an index, which is an operand or computed.
fn losses(dtype: DType, [rows, n]: [usize; 2], computed: bool) -> Case {
    let mut g = Made::new(dtype);
    let x = g.input(&[rows, n]);
    let mut i = g.indices(DType::I64, &[rows], n as i64);
    if computed {
        i = g.call("abs", &[i]);
        let last = g.builtin(BuiltinOp::Full, &[], vec![list(&[]), int(n as i64 - 1), AttrValue::DType(DType::I64)]);
        i = g.call("min", &[i, last]);
    }
    let i = g.reshape(i, &[rows, 1]);
    let wide = g.builtin(BuiltinOp::Cast, &[x], vec![AttrValue::DType(DType::F32)]);
    let shares = g.call("log_softmax", &[wide]);
    let one = g.builtin(BuiltinOp::GatherElements, &[shares, i], vec![int(1)]);
    let y = g.call("neg", &[one]);
    let what = if computed { "computed" } else { "stored" };
    g.case(&format!("losses of {rows} x {n} at {what} places"), &[y])
}

/// Losses of a row that rises, of rows with infinities and NaN, and of -inf alone.
fn unusual_losses(n: usize) -> Case {
    let mut case = losses(DType::F32, [6, n], false);
    let mut values: Vec<f64> = (0..6 * n).map(|i| (i * 7 % 23) as f64 - 11.0).collect();
    (0..n).for_each(|i| values[i] = (i * 40 / n) as f64 - 20.0);
    values[n..2 * n].fill(f64::NEG_INFINITY);
    values[2 * n..3 * n - 1].fill(f64::NEG_INFINITY);
    values[3 * n + n / 2] = f64::INFINITY;
    values[4 * n + n / 3] = f64::NAN;
    values[5 * n..5 * n + n / 2].fill(f64::NEG_INFINITY);
    case.inputs[0].1 = Tensor::from_f64(DType::F32, &[6, n], &values).unwrap();
    case.what = format!("unusual losses of {n}");
    case
}

fn cases() -> Vec<Case> {
    let mut all = vec![unusual_losses(50), unusual_losses(40_000), unusual_losses(33_333)];
    for dtype in [DType::F32, DType::BF16, DType::F16] {
        for sizes in [[5, 3, 8], [2, 7, 33], [70, 1, 64], [3, 40, 1], [100, 32, 64]] {
            all.extend(bags(dtype, sizes));
        }
        all.extend([[2, 5, 64], [3, 4, 33], [1, 9, 1000]].map(|sizes| embeddings(dtype, sizes)));
        all.extend([[6, 64], [9, 33], [40, 7]].map(|sizes| scaled(dtype, sizes)));
        for (i, sizes) in [[5, 40], [3, 1001], [64, 8192], [2, 33_333], [64, 40_960]].into_iter().enumerate() {
            all.push(losses(dtype, sizes, i % 2 == 0));
            all.push(losses(dtype, sizes, i % 2 == 1));
        }
    }
    all
}

/// Losses whose rows stand in another order than the index has them, of rows that lie apart, of
/// bytes, and of what broadcasts along a row.
fn unlike(dtype: DType, n: usize) -> Vec<Case> {
    let turned = |g: &mut Made, x: Value, order: &[usize]| g.builtin(BuiltinOp::Transpose, &[x], vec![list(order)]);
    let pick =
        |g: &mut Made, x: Value, i: Value, axis: i64| g.builtin(BuiltinOp::GatherElements, &[x, i], vec![int(axis)]);
    let mut out = Vec::new();
    let mut g = Made::new(dtype);
    let (x, i) = (g.input(&[4, 4, n]), g.indices(DType::I64, &[4, 4, 1], n as i64));
    let shares = g.call("log_softmax", &[x]);
    let shares = turned(&mut g, shares, &[1, 0, 2]);
    let y = pick(&mut g, shares, i, 2);
    out.push(g.case(&format!("rows of {n} in another order"), &[y]));
    let mut g = Made::new(dtype);
    let (x, i) = (g.input(&[8, 8]), g.indices(DType::I64, &[8, 1], 8));
    let most = g.builtin(BuiltinOp::Amax, &[x], vec![list(&[1]), AttrValue::Bool(true)]);
    let below = g.call("sub", &[x, most]);
    let below = turned(&mut g, below, &[1, 0]);
    let y = pick(&mut g, below, i, 1);
    out.push(g.case("columns of rows", &[y]));
    let mut g = Made::new(dtype);
    let (x, i) = (g.input(&[3, n, 5]), g.indices(DType::I32, &[3, 5, 1], n as i64));
    let rows = turned(&mut g, x, &[0, 2, 1]);
    let shares = g.call("log_softmax", &[rows]);
    let one = pick(&mut g, shares, i, 2);
    let y = g.call("exp", &[one]);
    out.push(g.case(&format!("rows of {n} that lie apart"), &[y]));
    let mut g = Made::new(dtype);
    let (x, row, i) = (g.input(&[6, n]), g.input(&[n]), g.indices(DType::I64, &[6, 1], n as i64));
    let sum = g.call("add", &[x, row]);
    let shares = g.call("log_softmax", &[sum]);
    let y = pick(&mut g, shares, i, 1);
    out.push(g.case(&format!("rows of {n} with a bias"), &[y]));
    out
}

#[test]
fn lookups_in_rows_of_another_order_agree_on_a_host() {
    for device in ["h200", "cpu"] {
        for case in
            [DType::F32, DType::BF16].into_iter().flat_map(|d| [10, 37].into_iter().flat_map(move |n| unlike(d, n)))
        {
            let plan = planned(&Device::named(device).unwrap(), &case.graph);
            let want = evaluate(&case.graph, &case.inputs, Mode::Rounded).unwrap();
            let tensors: Vec<Tensor> = case.inputs.iter().map(|(_, t)| t.clone()).collect();
            let executor = hypatia_cpu::Executor::new(Arc::clone(&plan), 2).unwrap().poisoned();
            for (got, w) in executor.run(&tensors).unwrap().iter().zip(&want) {
                let what = format!("{} for {device}\n{plan}", case.what);
                compare(got, &w.to_tensor().unwrap(), w.dtype, coarsest(&case.graph), &what);
            }
        }
    }
}

fn one_launch(plan: &Plan, what: &str) {
    assert!(matches!(plan.steps[..], [Step { action: Action::Rowwise(_), .. }]), "{what}\n{plan}");
}

#[test]
fn lookups_in_rows_are_one_launch_and_agree_on_a_host() {
    for case in cases() {
        let plan = planned(&Device::named("h200").unwrap(), &case.graph);
        one_launch(&plan, &case.what);
        let want = evaluate(&case.graph, &case.inputs, Mode::Rounded).unwrap();
        let tensors: Vec<Tensor> = case.inputs.iter().map(|(_, t)| t.clone()).collect();
        let executor = hypatia_cpu::Executor::new(Arc::clone(&plan), 2).unwrap().poisoned();
        for (got, w) in executor.run(&tensors).unwrap().iter().zip(&want) {
            compare(got, &w.to_tensor().unwrap(), w.dtype, coarsest(&case.graph), &case.what);
        }
    }
}

#[test]
fn emulated_lookups_in_rows_agree_with_the_reference() {
    let all = cases();
    let made = match emulated::run(&all) {
        Ok(made) => made,
        Err(why) => return println!("skipped: {} cases, {why}", all.len()),
    };
    for (case, made) in all.iter().zip(made) {
        let (plan, got) = made.unwrap_or_else(|| panic!("{}: a step without a kernel", case.what));
        one_launch(&plan, &case.what);
        let want = evaluate(&case.graph, &case.inputs, Mode::Rounded).unwrap();
        for (got, w) in got.iter().zip(&want) {
            compare(got, &w.to_tensor().unwrap(), w.dtype, coarsest(&case.graph), &case.what);
        }
    }
}

#[test]
fn lookups_in_rows_agree_with_the_reference_on_a_gpu() {
    let all = cases();
    let Some(gpu) = gpu(all.len()) else { return };
    for case in all {
        agrees(&gpu, &case.graph, &case.inputs, &case.what).unwrap_or_else(|why| panic!("{}: {why}", case.what));
    }
}
