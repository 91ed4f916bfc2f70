//! Products of the library that are added to a matrix, against the reference: with a bias and
//! without, a residual, the sum of two products, long sums, TF32; ragged sizes, poisoned results;
//! what stays a pass of its own.
#![allow(clippy::unwrap_used)]
use std::time::Duration;

use hypatia_dsl::builtin::BuiltinOp;
use hypatia_dsl::dtype::DType;
use hypatia_graph::{Graph, Value};
use hypatia_plan::{Action, CallStep, Called, Checks, Options, Plan};
use hypatia_target::device::Device;
use hypatia_tensor::tensor::Tensor;
use hypatia_testing::random::{coarsest, compare};
use hypatia_testing::ty;
use rand::prelude::*;
use rand_chacha::ChaCha8Rng;

use super::{gpu, planned_with};
use crate::Executor;
use crate::tuner::Tuner;
use hypatia_eval::{Mode, evaluate};

/// What is added.
const WAYS: [&str; 5] = ["residual", "matrix", "matrix first", "two products", "product with bias"];
/// Batches, rows, length of the sums, columns. Longer sums in f32 are cut into slices.
const SHAPES: [[usize; 4]; 6] =
    [[1, 1, 8, 8], [1, 37, 129, 65], [2, 64, 256, 200], [1, 512, 1024, 384], [1, 260, 4100, 516], [3, 5, 7, 1]];

fn case([b, m, k, n]: [usize; 4], way: &str) -> (Graph, Vec<(String, Tensor)>) {
    let mut g = Graph::new(hypatia_library::load(&[]).unwrap());
    let mut rng = ChaCha8Rng::seed_from_u64(11);
    let mut inputs = Vec::new();
    let mut input = |g: &mut Graph, shape: &[usize]| {
        let values: Vec<f64> = (0..shape.iter().product()).map(|_| rng.random_range(-1.0..1.0)).collect();
        let name = format!("x{}", inputs.len());
        let v = g.input(&name, ty(DType::F32, shape));
        inputs.push((name, Tensor::from_f64(DType::F32, shape, &values).unwrap()));
        v
    };
    let (x, w) = (input(&mut g, &[b, m, k]), input(&mut g, &[k, n]));
    let (r, row) = (input(&mut g, &[b, m, n]), input(&mut g, &[n]));
    let times = |g: &mut Graph, a: Value, b: Value| g.builtin(BuiltinOp::Matmul, &[a, b], vec![]).unwrap()[0];
    let p = times(&mut g, x, w);
    let add = |g: &mut Graph, a: Value, b: Value| g.call("add", &[a, b], &[]).unwrap()[0];
    let y = match way {
        "residual" => {
            let h = add(&mut g, p, row);
            add(&mut g, h, r)
        }
        "matrix" => add(&mut g, p, r),
        "matrix first" => add(&mut g, r, p),
        "product with bias" => {
            let shifted = add(&mut g, r, row);
            add(&mut g, p, shifted)
        }
        "two products" => {
            let (z, v) = (input(&mut g, &[b, m, k]), input(&mut g, &[k, n]));
            let q = times(&mut g, z, v);
            let sum = add(&mut g, p, q);
            add(&mut g, sum, row)
        }
        other => panic!("{other}"),
    };
    g.output("y", y);
    (g, inputs)
}

fn sums(plan: &Plan) -> usize {
    among(&plan.steps)
}

/// Those among these steps, and in the steps that calls are timed beside.
fn among(steps: &[hypatia_plan::Step]) -> usize {
    let of = |s: &hypatia_plan::Step| match &s.action {
        Action::Call(CallStep { called: Called::Sum(_), .. }) => 1,
        Action::Call(CallStep { fallback, .. }) => among(fallback),
        _ => 0,
    };
    steps.iter().map(of).sum()
}

/// A device for which no product is generated, so that the library's call is not timed beside one.
fn without_templates(device: &Device) -> Device {
    let mut older = device.clone();
    older.sm = 75;
    older
}

#[test]
fn a_matrix_is_added_by_the_call_that_multiplies() {
    let device = Device::named("h200").unwrap();
    // A matrix of one row may be a bias, too.
    for shape in SHAPES.into_iter().filter(|[b, m, ..]| b * m > 1) {
        for way in WAYS {
            for device in [device.clone(), without_templates(&device)] {
                let plan = planned_with(&Options::new(device), &case(shape, way).0);
                let launches = if way == "two products" { 2 } else { 1 };
                assert_eq!((sums(&plan), plan.launches()), (1, launches), "{way} {shape:?}\n{plan}");
            }
        }
    }
    // Where sums must have one order, or are checked, the pass stays.
    let graph = case(SHAPES[1], "residual").0;
    let mut strict = Options::new(device.clone());
    strict.checks = Checks::On;
    assert_eq!(sums(&planned_with(&strict, &graph)), 0);
    let mut invariant = Options::new(device);
    invariant.allowed.batch_invariant = true;
    assert_eq!(sums(&planned_with(&invariant, &graph)), 0);
    assert_eq!(sums(&planned_with(&Options::new(Device::named("cpu").unwrap()), &graph)), 0);
}

#[test]
fn sums_with_a_matrix_agree_with_the_reference_on_a_gpu() {
    let Some(gpu) = gpu(SHAPES.len() * WAYS.len() * 2) else { return };
    let mut ran = 0;
    for tf32 in [false, true] {
        let device = without_templates(&gpu.profile().with_tf32(tf32));
        for shape in SHAPES {
            for way in WAYS {
                let (graph, inputs) = case(shape, way);
                let plan = planned_with(&Options::new(device.clone()), &graph);
                // Without time to measure, the call runs.
                let mut tuner = Tuner::without_cache(Duration::ZERO);
                let executor = Executor::new(plan.clone(), gpu.clone(), &mut tuner).unwrap().poisoned();
                let want = evaluate(&graph, &inputs, Mode::Rounded).unwrap();
                let tensors: Vec<Tensor> = inputs.iter().map(|(_, t)| t.clone()).collect();
                let got = executor.run(&tensors).unwrap();
                let epsilon = if tf32 { DType::F16.epsilon() } else { coarsest(&graph) };
                let what = format!("{way} {shape:?} tf32 {tf32}\n{plan}");
                compare(&got[0], &want[0].to_tensor().unwrap(), want[0].dtype, epsilon, &what);
                assert_eq!(executor.run(&tensors).unwrap()[0].bytes(), got[0].bytes(), "{what}: runs differ");
                ran += sums(&plan);
            }
        }
    }
    println!("{ran} sums with a matrix agree");
    assert!(ran > 0);
}
