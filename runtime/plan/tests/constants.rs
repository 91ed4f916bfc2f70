//! Constant folding gives the same bits as a run.
#![allow(clippy::unwrap_used, missing_docs)]

use std::sync::Arc;

use hypatia_dsl::builtin::{BuiltinOp, BuiltinScalar};
use hypatia_dsl::dtype::{DType, Kind};
use hypatia_dsl::ir::AttrValue;
use rand::prelude::*;
use rand_chacha::ChaCha8Rng;

use hypatia_cpu::Executor;
use hypatia_graph::{Graph, Value};
use hypatia_pipeline as pipeline;
use hypatia_plan::{Action, Options};
use hypatia_target::device::Device;
use hypatia_tensor::tensor::Tensor;
use hypatia_testing::{int, list, program, ty};

/// Results of the graph, on one thread.
fn run(g: &Graph, inputs: &[Tensor], cluster: bool) -> Vec<Tensor> {
    let plan = pipeline::plan(g, &Options { cluster, ..Options::new(Device::cpu()) }).unwrap();
    if inputs.is_empty() {
        // A view is copied to the place of the output.
        assert!(plan.steps.iter().all(|s| s.action == Action::Copy), "nothing else is left to be run:\n{plan}");
    }
    Executor::new(Arc::new(plan), 1).unwrap().run(inputs).unwrap()
}

/// The graph that `build` makes of a tensor, once as an input and once as a constant.
fn agree(what: &str, x: &Tensor, build: &dyn Fn(&mut Graph, Value) -> Value) -> Tensor {
    let mut result = None;
    for cluster in [false, true] {
        let [mut given, mut known] = [Graph::new(program()), Graph::new(program())];
        let v = given.input("x", ty(x.dtype(), x.shape()));
        let y = build(&mut given, v);
        given.output("y", y);
        let v = known.constant(x.clone());
        let y = build(&mut known, v);
        known.output("y", y);
        let (a, b) = (run(&given, std::slice::from_ref(x), cluster), run(&known, &[], cluster));
        let show = |t: &Tensor| format!("{:?}", t.to_f64());
        assert!(a[0].bytes() == b[0].bytes(), "{what}, cluster {cluster}\n{}\n{}", show(&a[0]), show(&b[0]));
        result = a.into_iter().next();
    }
    result.unwrap()
}

fn cast(g: &mut Graph, v: Value, to: DType) -> Value {
    g.builtin(BuiltinOp::Cast, &[v], vec![AttrValue::DType(to)]).unwrap()[0]
}

fn with_number(g: &mut Graph, f: BuiltinScalar, v: Value, number: f64) -> Value {
    let number = g.number(g.ty(v).dtype, number).unwrap();
    g.builtin_scalar(f, &[v, number]).unwrap()
}

/// One more function, of a kind that the type has.
fn step(g: &mut Graph, v: Value, rng: &mut ChaCha8Rng) -> Value {
    let dtype = g.ty(v).dtype;
    let shape: Vec<i64> = g.ty(v).shape.iter().filter_map(|d| d.as_const()).collect();
    match rng.random_range(0..12) {
        0 if dtype.is_float() => {
            let narrow = *[DType::F16, DType::BF16, DType::F32, DType::I32].choose(rng).unwrap();
            let there = cast(g, v, narrow);
            cast(g, there, dtype)
        }
        1 => {
            let op = *[BuiltinOp::Sum, BuiltinOp::Amax, BuiltinOp::Prod].choose(rng).unwrap();
            let all = g.builtin(op, &[v], vec![list(&[0]), AttrValue::Bool(true)]).unwrap()[0];
            g.builtin_scalar(BuiltinScalar::Sub, &[v, all]).unwrap()
        }
        2 => {
            let turned = g.builtin(BuiltinOp::Transpose, &[v], vec![list(&[1, 0])]).unwrap()[0];
            let shape = AttrValue::List(shape.iter().map(|d| int(*d)).collect());
            g.builtin(BuiltinOp::Reshape, &[turned], vec![shape]).unwrap()[0]
        }
        3 if dtype.is_float() => {
            let turned = g.builtin(BuiltinOp::Transpose, &[v], vec![list(&[1, 0])]).unwrap()[0];
            let product = g.builtin(BuiltinOp::Matmul, &[v, turned], vec![]).unwrap()[0];
            g.builtin(BuiltinOp::Matmul, &[product, v], vec![]).unwrap()[0]
        }
        _ => {
            let numbers = |f: &&BuiltinScalar| {
                let all = f.params().iter().all(|k| *k == Kind::Number) && f.result() == Kind::Number;
                all && (dtype.is_float() || !f.float_only())
            };
            let f = **BuiltinScalar::ALL.iter().filter(numbers).collect::<Vec<_>>().choose(rng).unwrap();
            match f.params().len() {
                1 => g.builtin_scalar(f, &[v]).unwrap(),
                _ => with_number(g, f, v, *[8.0, 2.0, 3.0, 2.7725887, 0.1, -1.5].choose(rng).unwrap()),
            }
        }
    }
}

#[test]
fn a_chain_has_the_same_bits_whether_its_operand_is_known_or_given() {
    for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16, DType::I32, DType::I64, DType::U8] {
        for seed in 0..60 {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            let shape = [rng.random_range(1..5), *[1, 3, 40, 700].choose(&mut rng).unwrap()];
            let values: Vec<f64> = (0..shape[0] * shape[1]).map(|_| rng.random_range(-3.0..40.0)).collect();
            let x = Tensor::from_f64(dtype, &shape, &values).unwrap();
            let length = rng.random_range(1..8);
            let build = |g: &mut Graph, v: Value| {
                let mut rng = ChaCha8Rng::seed_from_u64(seed);
                (0..length).fold(v, |v, _| step(g, v, &mut rng))
            };
            agree(&format!("{dtype}, seed {seed}"), &x, &build);
        }
    }
}

#[test]
fn the_buckets_of_relative_positions_are_those_of_a_run() {
    // At a power of two the quotient of the logarithms is an integer or nearly one: the last bit
    // decides.
    let x = Tensor::from_slice(&[5], &[1i64, 2, 4, 16, 32]).unwrap();
    let bucket = |g: &mut Graph, v: Value| {
        let mut v = cast(g, v, DType::F32);
        v = with_number(g, BuiltinScalar::Div, v, 8.0);
        v = g.builtin_scalar(BuiltinScalar::Log, &[v]).unwrap();
        v = with_number(g, BuiltinScalar::Div, v, f64::from(2.7725887f32));
        v = with_number(g, BuiltinScalar::Mul, v, 8.0);
        cast(g, v, DType::I64)
    };
    assert_eq!(agree("buckets", &x, &bucket).to_f64(), [-6.0, -4.0, -2.0, 2.0, 4.0]);
}

#[test]
fn positions_and_sizes_are_constants_too() {
    let mut g = Graph::new(program());
    let shape = AttrValue::List(vec![int(2), int(3)]);
    let at = g.builtin(BuiltinOp::Iota, &[], vec![shape, int(1), AttrValue::DType(DType::F16)]).unwrap()[0];
    let size = g.builtin(BuiltinOp::Size, &[], vec![int(7)]).unwrap()[0];
    let size = cast(&mut g, size, DType::F16);
    let y = g.builtin_scalar(BuiltinScalar::Mul, &[at, size]).unwrap();
    g.output("y", y);
    assert_eq!(run(&g, &[], true)[0].to_f64(), [0.0, 7.0, 14.0, 0.0, 7.0, 14.0]);
}
