//! Runs of a plan give the same bits, however often it runs: nothing depends on which block or
//! warp is first.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use hypatia_dsl::dtype::DType;
use hypatia_graph::Graph;
use hypatia_tensor::tensor::Tensor;
use hypatia_testing::joint::networks;
use hypatia_testing::random::Random;

use super::{cases, gpu, planned};
use crate::Executor;
use crate::tuner::Tuner;

/// Graphs, and runs of each.
const GRAPHS: usize = 50;
const RUNS: usize = 1000;

type Case = (String, Graph, Vec<(String, Tensor)>);

/// Networks with their gradients, and random graphs without end.
fn all() -> impl Iterator<Item = Case> {
    let program = hypatia_library::load(&[]).unwrap();
    let types = [(DType::BF16, true), (DType::F32, false)];
    let joint: Vec<_> = types.into_iter().flat_map(|(dtype, even)| networks(&program, dtype, even)).collect();
    let random = (9000..).map(|seed| {
        let mut r = Random::new(seed);
        r.build(false);
        (format!("random graph {seed}"), r.graph, r.inputs)
    });
    joint.into_iter().map(|j| (j.name.to_string(), j.graph, j.inputs)).chain(random)
}

#[test]
fn a_thousand_runs_have_the_same_bits_on_a_gpu() {
    let Some(gpu) = gpu(GRAPHS) else { return };
    let mut ran = 0;
    for (name, graph, inputs) in all() {
        let plan = planned(&gpu.profile(), &graph);
        let given = |name: &str| inputs.iter().find(|(n, _)| n == name).map(|(_, t)| t.clone());
        let tensors: Vec<Tensor> = plan.inputs.iter().map(|i| given(&i.name).unwrap()).collect();
        let mut tuner = Tuner::without_cache(Duration::ZERO);
        // Some random graphs have no kernels here.
        let Ok(executor) = Executor::new(plan.clone(), gpu.clone(), &mut tuner) else { continue };
        let first = executor.run(&tensors).unwrap();
        for run in 1..RUNS {
            for (i, (got, first)) in executor.run(&tensors).unwrap().iter().zip(&first).enumerate() {
                assert!(got.bytes() == first.bytes(), "{name}, run {run}, output {i}\n{plan}");
            }
        }
        ran += 1;
        if ran >= cases(GRAPHS as u64) {
            break;
        }
    }
    println!("{ran} graphs, each with the same bits in {RUNS} runs");
}
