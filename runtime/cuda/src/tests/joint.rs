//! Losses and gradients as one graph, optimised as a whole, on a GPU: perceptrons, transformers and
//! convolutions in every float type, even and ragged sizes, against the reference.
use std::time::Duration;

use hypatia_dsl::dtype::DType;
use hypatia_eval::{Double, Mode, Number, RefTensor, evaluate, evaluate_in};
use hypatia_testing::joint::{assert_near, networks};

use super::{cases, gpu, planned};
use crate::Executor;
use crate::tuner::Tuner;

#[test]
fn joint_graphs_agree_with_the_reference_on_a_gpu() {
    let program = hypatia_library::load(&[]).unwrap();
    let kinds = [DType::F32, DType::BF16, DType::F16].into_iter().flat_map(|d| [(d, true), (d, false)]);
    let mut all: Vec<_> = kinds.flat_map(|(dtype, even)| networks(&program, dtype, even)).collect();
    all.truncate(cases(all.len() as u64) as usize);
    let Some(gpu) = gpu(all.len()) else { return };
    for joint in &all {
        let plan = planned(&gpu.profile(), &joint.graph);
        let mut tuner = Tuner::without_cache(Duration::ZERO);
        let executor = Executor::new(plan.clone(), gpu.clone(), &mut tuner).unwrap().poisoned();
        let given = |name: &str| joint.inputs.iter().find(|(n, _)| n == name).map(|(_, t)| t.clone());
        let inputs: Vec<_> = plan.inputs.iter().map(|i| given(&i.name).unwrap()).collect();
        let rounded = evaluate(&joint.graph, &joint.inputs, Mode::Accumulated).unwrap();
        let rounded: Vec<Vec<f64>> = rounded.iter().map(|t| t.to_f64()).collect();
        let exact: Vec<RefTensor<Double>> = evaluate_in(&joint.graph, &joint.inputs, Mode::Exact).unwrap();
        let near = |t: &RefTensor<Double>| (0..t.len()).map(|i| t.at(i).f().near()).collect();
        let exact: Vec<Vec<f64>> = exact.iter().map(near).collect();
        for run in 0..2 {
            let got = executor.run(&inputs).unwrap_or_else(|e| panic!("{}, run {run}: {e}\n{plan}", joint.name));
            assert_near(joint, &got, &rounded, &exact);
        }
        println!("{}: {} launches", joint.name, plan.launches());
    }
    println!("{} joint graphs agree", all.len());
}
