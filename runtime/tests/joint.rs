//! Losses and gradients as one graph, optimised as a whole, on the CPU: perceptrons, transformers
//! and convolutions in every float type, even and ragged sizes, against the reference. And what the
//! optimiser makes of them.
#![allow(clippy::unwrap_used)]

use hypatia::session::{Model, Options, Safety};
use hypatia_dsl::dtype::DType;
use hypatia_eval::{Double, Mode, Number, RefTensor, evaluate, evaluate_in};
use hypatia_library as library;
use hypatia_testing::joint::{assert_near, networks};

#[test]
fn joint_graphs_agree_with_the_reference() {
    let program = library::load(&[]).unwrap();
    for (dtype, even) in
        [DType::F32, DType::F64, DType::BF16, DType::F16].into_iter().flat_map(|d| [(d, true), (d, false)])
    {
        for joint in networks(&program, dtype, even) {
            let options = Options { safety: Safety::Off, ..Options::default() };
            let model = Model::new(joint.graph.clone(), options);
            let compiled = model.compile(&joint.inputs).unwrap();
            let (with, without) = (compiled.executor.plan().launches(), compiled.unfused().unwrap().plan().launches());
            println!("{}: {without} launches without rules, {with} with rules", joint.name);
            let rounded = evaluate(&joint.graph, &joint.inputs, Mode::Accumulated).unwrap();
            let rounded: Vec<Vec<f64>> = rounded.iter().map(|t| t.to_f64()).collect();
            let exact: Vec<RefTensor<Double>> = evaluate_in(&joint.graph, &joint.inputs, Mode::Exact).unwrap();
            let near = |t: &RefTensor<Double>| (0..t.len()).map(|i| t.at(i).f().near()).collect();
            let exact: Vec<Vec<f64>> = exact.iter().map(near).collect();
            assert_near(&joint, &model.run(&joint.inputs).unwrap(), &rounded, &exact);
            assert!(with < without, "{}", joint.name);
        }
    }
}
