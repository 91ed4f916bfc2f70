//! A hundred random deep epilogues of products: of up to thirty functions, over rows, columns, full
//! operands and numbers, with choices between values. Each is one launch; its results are the
//! rounded exact ones.
#![allow(clippy::unwrap_used)]
use std::time::Duration;

use hypatia_dsl::builtin::BuiltinOp;
use hypatia_dsl::dtype::DType;
use hypatia_eval::{Mode, evaluate};
use hypatia_graph::Value;
use hypatia_target::device::Device;
use hypatia_tensor::tensor::Tensor;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::tiled::{Case, Inputs, forced, tiled_step};
use super::{cases, gpu, planned};
use crate::lowering::timed::Timed;
use crate::tuner::Tuner;
use crate::tuning::TuningFile;
use crate::{Executor, Gpu, tiled};
use hypatia_plan::Plan;

const TERMS: u64 = 100;
/// Products, rows, columns, length of the sums.
const SHAPES: [[usize; 4]; 6] =
    [[1, 128, 128, 64], [1, 304, 520, 200], [2, 200, 264, 72], [1, 65, 136, 776], [1, 17, 1001, 96], [1, 640, 72, 255]];

/// A product with the term of that number. Each value is in [-1, 1], and no function makes errors
/// larger.
fn term(seed: u64) -> (hypatia_graph::Graph, Inputs, DType) {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let dtype = if seed.is_multiple_of(3) { DType::F16 } else { DType::BF16 };
    let [batch, m, n, k] = SHAPES[seed as usize % SHAPES.len()];
    let mut c = Case::new(dtype);
    let (a, b) = (c.factor(batch, [m, k], seed.is_multiple_of(2)), c.factor(batch, [k, n], seed.is_multiple_of(5)));
    let p = c.graph.builtin(BuiltinOp::Matmul, &[a, b], vec![]).unwrap()[0];
    let scale = c.graph.number(dtype, 1.0 / k as f64).unwrap();
    let half = c.graph.number(dtype, 0.5).unwrap();
    let mut last = c.call("mul", &[p, scale]);
    let full = [if batch > 1 { vec![batch] } else { Vec::new() }, vec![m, n]].concat();
    let beside: Vec<Value> = [vec![n], vec![m, 1], full, vec![1]].iter().map(|shape| c.input(shape)).collect();
    let (mut known, mut chose) = (vec![last], false);
    for _ in 0..rng.random_range(8..=20) {
        let any = |rng: &mut ChaCha8Rng| match rng.random_bool(0.5) {
            true => beside[rng.random_range(0..beside.len())],
            false => known[rng.random_range(0..known.len())],
        };
        let other = any(&mut rng);
        last = match rng.random_range(0..9) {
            0 => c.call("tanh", &[last]),
            1 => c.call("sigmoid", &[last]),
            2 => c.call("neg", &[last]),
            3 => c.call("abs", &[last]),
            4 => c.call("mul", &[last, other]),
            5 => c.call("max", &[last, other]),
            6 => c.call("min", &[other, last]),
            // Only what was read is compared: it is exact. What several functions choose by is
            // computed in front of the product.
            7 if !chose => {
                chose = true;
                let chosen = c.call("lt", &[beside[0], beside[1]]);
                c.call("select", &[chosen, last, other])
            }
            _ => {
                let sum = c.call(["add", "sub"][rng.random_range(0..2)], &[other, last]);
                c.call("mul", &[sum, half])
            }
        };
        known.push(last);
    }
    c.graph.output("y", last);
    (c.graph, c.inputs, dtype)
}

#[test]
fn deep_terms_are_one_launch() {
    for name in ["h200", "a100"] {
        let device = Device::named(name).unwrap();
        for seed in 0..TERMS {
            let plan = planned(&device, &term(seed).0);
            assert_eq!(plan.steps.len(), 1, "term {seed} on {name}\n{plan}");
        }
    }
}

/// A file that says that the tiling with the best prediction is the fastest.
fn first(gpu: &Gpu, plan: &Plan) -> TuningFile {
    let (step, call) = tiled_step(plan).unwrap();
    let kernel = tiled::kernel(plan, step).unwrap();
    let all = Timed::of(plan, (step, call, kernel)).unwrap().plausible(kernel, gpu.multiprocessors());
    forced(gpu, plan, &all[0]).unwrap()
}

#[test]
fn deep_terms_agree_with_exact_values_on_a_gpu() {
    let terms = cases(TERMS);
    let Some(gpu) = gpu(terms as usize) else { return };
    for seed in 0..terms {
        let (graph, inputs, dtype) = term(seed);
        let want = evaluate(&graph, &inputs, Mode::Exact).unwrap()[0].to_f64();
        let plan = planned(&gpu.profile(), &graph);
        // Without a measurement the fallback would run.
        let mut tuner = Tuner::without_cache(Duration::ZERO).with_file(first(&gpu, &plan));
        let executor = Executor::new(plan.clone(), gpu.clone(), &mut tuner).unwrap().poisoned();
        assert_eq!((executor.launches(), tuner.counts().file), (1, 1), "term {seed}\n{plan}");
        let tensors: Vec<Tensor> = inputs.iter().map(|(_, t)| t.clone()).collect();
        let [first, second] = [0, 1].map(|_| executor.run(&tensors).unwrap().remove(0));
        assert_eq!(first.bytes(), second.bytes(), "term {seed}: runs differ");
        // What several parts read was rounded, and is rounded as there: by half a unit at most.
        // Functions of fewer instructions are off by what the library's rules of them claim.
        let text = plan.to_string();
        let (roundings, short) = (text.matches("cast<").count(), text.matches("short_").count());
        let half_unit = if dtype == DType::F16 { 2f64.powi(-11) } else { 2f64.powi(-8) };
        let approximated = short as f64 * if dtype == DType::F16 { 2e-5 } else { 1e-3 };
        for (i, (got, want)) in first.to_f64().iter().zip(&want).enumerate() {
            let allowed = half_unit * (want.abs() + roundings as f64) + approximated + 1e-5;
            assert!((got - want).abs() <= allowed, "term {seed} at {i}: {got} for {want}\n{plan}");
        }
    }
    println!("{terms} deep terms agree");
}
