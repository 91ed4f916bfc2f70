//! Integer products, cumulative sums, sorts and scatters against the reference: every element type,
//! sizes of 0, 1 and beyond each tile, operands with any strides, NaN and infinities; on a GPU, and
//! emulated if there is none.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use hypatia_dsl::builtin::{BuiltinOp, BuiltinScalar, SCATTER_REDUCTIONS};
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::{AttrValue, InView};
use hypatia_dsl::scalar::{Term, TermNode};
use rand::prelude::*;
use rand_chacha::ChaCha8Rng;

use super::emulated::{self, Case};
use super::{cases, executor, gpu};
use hypatia_eval::{Mode, evaluate};
use hypatia_graph::{Graph, Value};
use hypatia_tensor::tensor::Tensor;
use hypatia_testing::random::{Random, coarsest, compare};
use hypatia_testing::{int, list, program, ty};

const INTS: [DType; 4] = [DType::I64, DType::I32, DType::I8, DType::U8];
const NUMBERS: [DType; 8] =
    [DType::F32, DType::F64, DType::F16, DType::BF16, DType::I64, DType::I32, DType::I8, DType::U8];

/// A case under construction.
struct Build {
    rng: ChaCha8Rng,
    case: Case,
}

impl Build {
    fn new(what: String, seed: u64) -> Build {
        let rng = ChaCha8Rng::seed_from_u64(seed);
        Build { rng, case: Case { what, graph: Graph::new(program()), inputs: Vec::new() } }
    }

    fn input(&mut self, tensor: Tensor) -> Value {
        let name = format!("x{}", self.case.inputs.len());
        let value = self.case.graph.input(name.clone(), ty(tensor.dtype(), tensor.shape()));
        self.case.inputs.push((name, tensor));
        value
    }

    /// Integers of all sizes, or floats with some ties; with `wild`, some are NaN or infinite.
    fn random(&mut self, dtype: DType, shape: &[usize], wild: bool) -> Value {
        let rng = &mut self.rng;
        let count: usize = shape.iter().product();
        let odd = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.0, 0.0];
        let mut number = || match rng.random_range(0..30) {
            i if wild && i < odd.len() => odd[i],
            5..15 => rng.random_range(-3..4) as f64,
            _ => rng.random_range(-2.0..2.0),
        };
        let tensor = match dtype {
            d if d.is_float() => Tensor::from_f64(d, shape, &(0..count).map(|_| number()).collect::<Vec<_>>()),
            DType::Bool => {
                Tensor::from_bytes(dtype, shape, &(0..count).map(|_| rng.random_range(0..2)).collect::<Vec<u8>>())
            }
            d => {
                let bytes: Vec<u8> = (0..count * d.size()).map(|_| rng.random()).collect();
                Tensor::from_bytes(d, shape, &bytes)
            }
        };
        self.input(tensor.unwrap())
    }

    fn op(&mut self, op: BuiltinOp, operands: &[Value], attrs: Vec<AttrValue>) -> Value {
        self.case.graph.builtin(op, operands, attrs).unwrap()[0]
    }

    /// Every `step`-th element along an axis, from `start` on.
    fn slice(&mut self, x: Value, axis: i64, start: i64, stop: i64, step: i64) -> Value {
        self.op(BuiltinOp::Slice, &[x], [axis, start, stop, step].map(int).to_vec())
    }

    fn output(&mut self, value: Value) {
        let name = format!("y{}", self.case.graph.outputs.len());
        self.case.graph.output(name, value);
    }
}

/// `abs(acc * acc + row)`, whose intermediate values wrap around; of bytes, in i32.
fn square(g: &mut Graph, [x, y, mut row]: [Value; 3], to: DType) -> Value {
    let p = g.program.clone();
    let bytes = g.ty(x).dtype.is_byte();
    if bytes {
        row = g.builtin(BuiltinOp::Cast, &[row], vec![AttrValue::DType(DType::I32)]).unwrap()[0];
    }
    let mut t = Term::empty();
    let acc = t.add(TermNode::Acc);
    let read = t.add(TermNode::In { input: 0, view: InView::Broadcast });
    let mut call =
        |f: BuiltinScalar, args: Vec<_>| t.add(TermNode::Call { scalar: p.builtin_scalar(f).unwrap(), args });
    let squared = call(BuiltinScalar::Mul, vec![acc, acc]);
    let sum = call(BuiltinScalar::Add, vec![squared, read]);
    let root = call(BuiltinScalar::Abs, vec![sum]);
    let root = if bytes { t.add(TermNode::Cast { to, arg: root }) } else { root };
    t.roots.push(root);
    let gemm = p.builtin_op(BuiltinOp::Gemm).unwrap();
    g.op(gemm, &[Some(x), Some(y), Some(row)], vec![AttrValue::DType(to)], Some(t)).unwrap()[0]
}

fn products() -> Vec<Case> {
    let mut out = Vec::new();
    let shapes =
        [(0, 3, 2), (3, 0, 2), (3, 5, 0), (1, 1, 1), (5, 7, 3), (64, 64, 16), (65, 63, 17), (1, 130, 40), (70, 2, 33)];
    for (i, (m, n, k)) in shapes.into_iter().enumerate() {
        for (j, dtype) in INTS.into_iter().enumerate() {
            let mut b = Build::new(format!("{dtype} product {m}x{n}x{k}"), (i * 10 + j) as u64);
            // Plain; then with the left operand transposed and cut out of a wider one, and the
            // right operand shared; then the reverse.
            let (x, y) = (b.random(dtype, &[m, k], false), b.random(dtype, &[k, n], false));
            let plain = b.op(BuiltinOp::Matmul, &[x, y], vec![]);
            b.output(plain);
            let wide = b.random(dtype, &[2, 3, k, 2 * m + 1], false);
            let turned = b.op(BuiltinOp::Transpose, &[wide], vec![list(&[0, 1, 3, 2])]);
            let cut = b.slice(turned, 2, 1, 2 * m as i64 + 1, 2);
            let many = b.op(BuiltinOp::Matmul, &[cut, y], vec![]);
            b.output(many);
            let (left, right) = (b.random(dtype, &[3, 1, m, k], false), b.random(dtype, &[2, n, k], false));
            let right = b.op(BuiltinOp::Transpose, &[right], vec![list(&[0, 2, 1])]);
            let row = b.random(dtype, &[n], false);
            for to in [dtype, DType::I64] {
                let y = square(&mut b.case.graph, [left, right, row], to);
                b.output(y);
            }
            out.push(b.case);
        }
    }
    out
}

fn running_sums() -> Vec<Case> {
    let mut out = Vec::new();
    let shapes: [(&[usize], usize); 15] = [
        (&[0], 0),
        (&[4, 0, 3], 1),
        (&[0, 5], 1),
        (&[1], 0),
        (&[7], 0),
        (&[3, 5], 1),
        (&[3, 5], 0),
        (&[2, 1023], 1),
        (&[1025], 0),
        (&[2, 40, 3], 1),
        (&[9, 40], 0),
        (&[2, 300, 33], 1),
        (&[513, 32], 0),
        (&[20_001], 0),
        (&[9000, 2], 0),
    ];
    for (i, (shape, axis)) in shapes.into_iter().enumerate() {
        for (j, dtype) in NUMBERS.into_iter().enumerate() {
            let mut b =
                Build::new(format!("{dtype} running sums of {shape:?} along {axis}"), (1000 + i * 10 + j) as u64);
            let (tame, wild) = (b.random(dtype, shape, false), b.random(dtype, shape, true));
            let how = b.rng.random_range(0..4);
            for (x, how) in [(tame, how), (wild, 3 - how), (tame, (how + 1) % 4)] {
                let attrs = vec![int(axis as i64), AttrValue::Bool(how & 1 > 0), AttrValue::Bool(how & 2 > 0)];
                let y = b.op(BuiltinOp::Cumsum, &[x], attrs);
                b.output(y);
            }
            out.push(b.case);
        }
    }
    out
}

fn scatters() -> Vec<Case> {
    let mut out = Vec::new();
    let sizes = [
        (0, 0, 3),
        (4, 0, 3),
        (3, 2, 0),
        (1, 1, 1),
        (5, 9, 1),
        (7, 40, 33),
        (300, 100, 2),
        (50, 300, 1),
        (9, 5000, 1),
        (3000, 2100, 1),
    ];
    for (i, (rows, count, width)) in sizes.into_iter().enumerate() {
        for (j, dtype) in NUMBERS.into_iter().chain([DType::Bool]).enumerate() {
            let mut b = Build::new(
                format!("{dtype} scatter of {count} rows of {width} into {rows}"),
                (2000 + i * 10 + j) as u64,
            );
            let x = b.random(dtype, &[rows, width], true);
            let updates = b.random(dtype, &[count, width], true);
            let most = rows.min(if j % 2 == 0 { 120 } else { usize::MAX }) as i64;
            let ids: Vec<i64> = (0..count).map(|_| b.rng.random_range(-most..most)).collect();
            let ids = match INTS[(i + j) % 4] {
                DType::I32 => Tensor::from_slice(&[count], &ids.iter().map(|v| *v as i32).collect::<Vec<_>>()),
                DType::I8 if most <= 127 => {
                    Tensor::from_slice(&[count], &ids.iter().map(|v| *v as i8).collect::<Vec<_>>())
                }
                DType::U8 if most <= 127 => Tensor::from_slice(
                    &[count],
                    &ids.iter().map(|v| v.unsigned_abs().min(most as u64 - 1) as u8).collect::<Vec<_>>(),
                ),
                _ => Tensor::from_slice(&[count], &ids),
            };
            let ids = b.input(ids.unwrap());
            for (name, _) in SCATTER_REDUCTIONS.iter().take(if dtype == DType::Bool { 1 } else { 5 }) {
                let y = b.op(BuiltinOp::Scatter, &[x, ids, updates], vec![AttrValue::Str(name.to_string())]);
                b.output(y);
            }
            out.push(b.case);
        }
    }
    out
}

fn sorts() -> Vec<Case> {
    let mut out = Vec::new();
    let shapes: [(&[usize], usize); 16] = [
        (&[0], 0),
        (&[3, 0, 2], 1),
        (&[0, 3], 1),
        (&[1], 0),
        (&[40, 1], 1),
        (&[9, 3], 1),
        (&[3, 9], 0),
        (&[2, 31, 3], 1),
        (&[5, 256], 1),
        (&[2, 257], 1),
        (&[2047], 0),
        (&[2, 2048], 1),
        (&[2049], 0),
        (&[4500, 2], 0),
        (&[2, 6145], 1),
        (&[9000], 0),
    ];
    for (i, (shape, axis)) in shapes.into_iter().enumerate() {
        for (j, dtype) in NUMBERS.into_iter().enumerate() {
            let mut b = Build::new(format!("{dtype} sort of {shape:?} along {axis}"), (3000 + i * 10 + j) as u64);
            let x = b.random(dtype, shape, true);
            let descending: bool = b.rng.random();
            for (turn, descending) in [(false, descending), (true, !descending)] {
                // In reverse order, so that strides are negative.
                let x = if turn { b.slice(x, axis as i64, shape[axis] as i64 - 1, -1, -1) } else { x };
                let y = b.op(BuiltinOp::Argsort, &[x], vec![int(axis as i64), AttrValue::Bool(descending)]);
                b.output(y);
            }
            out.push(b.case);
        }
    }
    out
}

/// Fails unless the results equal the reference: integers exactly, floats within one rounding.
fn check(case: &Case, got: &[Tensor], plan: &dyn std::fmt::Display) {
    let want = evaluate(&case.graph, &case.inputs, Mode::Rounded).unwrap();
    for (i, (got, want)) in got.iter().zip(&want).enumerate() {
        let want = want.to_tensor().unwrap();
        let what = format!("{}, output {i}\n{plan}", case.what);
        assert_eq!((got.dtype(), got.shape()), (want.dtype(), want.shape()), "{what}");
        if !got.dtype().is_float() {
            assert_eq!(got.bytes(), want.bytes(), "{what}");
            continue;
        }
        let epsilon = got.dtype().epsilon();
        let (got, want) = (got.to_f64(), want.to_f64());
        let most = want.iter().filter(|v| v.is_finite()).fold(0.0f64, |m, v| m.max(v.abs()));
        let near = |(g, w): (&f64, &f64)| match w.is_finite() {
            true => (g - w).abs() <= epsilon * w.abs() + 1e-11 * most,
            false => g == w || (g.is_nan() && w.is_nan()),
        };
        let off = got.iter().zip(&want).position(|pair| !near(pair));
        let off = off.map(|at| (at, got[at], want[at]));
        assert!(off.is_none(), "{what}: {off:?}");
    }
}

fn on_a_gpu(what: &str, list: Vec<Case>) {
    // An odd stride, so that the selected cases still cover all element types.
    let apart = list.len().div_ceil(cases(list.len() as u64).max(1) as usize);
    let list: Vec<Case> = list.into_iter().step_by(if apart > 1 { apart | 1 } else { 1 }).collect();
    let Some(gpu) = gpu(list.len()) else { return };
    for case in &list {
        let (plan, executor) = executor(&gpu, &case.graph, true).unwrap_or_else(|e| panic!("{}: {e}", case.what));
        let inputs: Vec<Tensor> = case.inputs.iter().map(|(_, t)| t.clone()).collect();
        for _ in 0..2 {
            check(case, &executor.run(&inputs).unwrap_or_else(|e| panic!("{}: {e}", case.what)), &plan);
        }
    }
    println!("{} cases of {what} agree", list.len());
}

/// Compilation is slow, so only every third case runs; neighbours differ in their element types.
fn emulated(what: &str, list: Vec<Case>) {
    let list: Vec<Case> = list.into_iter().step_by(3).collect();
    let results = match emulated::run(&list) {
        Ok(results) => results,
        Err(why) => return eprintln!("SKIPPED {} emulated cases: {why}", list.len()),
    };
    for (case, result) in list.iter().zip(results) {
        let (plan, got) = result.unwrap_or_else(|| panic!("{} has a step without a kernel", case.what));
        check(case, &got, &Arc::new(plan));
    }
    println!("{} emulated cases of {what} agree", list.len());
}

#[test]
fn products_of_integers_agree_with_the_reference_on_a_gpu() {
    on_a_gpu("products of integers", products());
}

#[test]
fn running_sums_agree_with_the_reference_on_a_gpu() {
    on_a_gpu("running sums", running_sums());
}

#[test]
fn scatters_agree_with_the_reference_on_a_gpu() {
    on_a_gpu("scatters", scatters());
}

#[test]
fn sorts_agree_with_the_reference_on_a_gpu() {
    on_a_gpu("sorts", sorts());
}

#[test]
fn emulated_products_of_integers_agree_with_the_reference() {
    emulated("products of integers", products());
}

#[test]
fn emulated_running_sums_agree_with_the_reference() {
    emulated("running sums", running_sums());
}

#[test]
fn emulated_scatters_agree_with_the_reference() {
    emulated("scatters", scatters());
}

#[test]
fn emulated_sorts_agree_with_the_reference() {
    emulated("sorts", sorts());
}

/// Random graphs without floating-point products, which a library computes.
#[test]
fn emulated_random_graphs_agree_with_the_reference() {
    let random = |seed: u64| {
        let mut r = Random::new(seed);
        r.build(seed.is_multiple_of(2));
        Case { what: format!("seed {seed}"), graph: r.graph, inputs: r.inputs }
    };
    let list: Vec<Case> = (7000..7024).map(random).collect();
    let results = match emulated::run(&list) {
        Ok(results) => results,
        Err(why) => return eprintln!("SKIPPED {} emulated graphs: {why}", list.len()),
    };
    let mut agree = 0;
    for (case, result) in list.iter().zip(results) {
        let Some((plan, got)) = result else { continue };
        let want = evaluate(&case.graph, &case.inputs, Mode::Rounded).unwrap();
        for (i, (g, w)) in got.iter().zip(&want).enumerate() {
            let what = format!("{}, output {i}\n{plan}\n{}", case.what, case.graph.to_text());
            compare(g, &w.to_tensor().unwrap(), w.dtype, coarsest(&case.graph), &what);
        }
        agree += 1;
    }
    println!("{agree} emulated random graphs agree; {} have products of floats", list.len() - agree);
    assert!(agree > 0);
}
