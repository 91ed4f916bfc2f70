//! `Numerics::Exact`: the plan gives bit for bit what the plan without rules gives, and still
//! fuses.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};

use hypatia::session::{Model, Options, Safety};
use hypatia_dsl::dtype::DType;
use hypatia_dsl::numerics::Numerics;
use hypatia_library as library;
use hypatia_tensor::{Tensor, npz};
use hypatia_testing::random::Random;

fn models() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/models");
    let all = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path());
    let mut models: Vec<PathBuf> = all.filter(|p| p.join("model.onnx").exists()).collect();
    models.sort();
    models
}

/// NaN is one value: which of its bit patterns a sum keeps depends on the order of its operands.
fn same_bits(a: &Tensor, b: &Tensor) -> bool {
    let nan = |t: &Tensor| t.dtype().is_float().then(|| t.to_f64().iter().map(|v| v.is_nan()).collect::<Vec<_>>());
    let size = a.dtype().size();
    let is_nan = nan(a).unwrap_or_default();
    let pairs = a.bytes().chunks(size).zip(b.bytes().chunks(size)).enumerate();
    nan(a) == nan(b)
        && a.bytes().len() == b.bytes().len()
        && pairs.into_iter().all(|(i, (x, y))| x == y || is_nan.get(i) == Some(&true))
}

fn load(path: &Path, threads: usize) -> Model {
    let mut options = Options { threads, safety: Safety::Off, ..Options::default() };
    options.optimize.numerics = Numerics::Exact;
    Model::load(&path.join("model.onnx"), library::load(&[]).unwrap(), options).unwrap()
}

/// Launches of the unfused and of the exact plan, whose results must be the same bits.
fn compared(model: &Model, inputs: &[(String, Tensor)], what: &str) -> (usize, usize) {
    let compiled = model.compile(inputs).unwrap();
    let ordered = model.order(inputs).unwrap();
    let fused = compiled.executor.run(&ordered).unwrap();
    let unfused = compiled.unfused().unwrap();
    for ((name, a), b) in model.outputs().iter().zip(&fused).zip(&unfused.run(&ordered).unwrap()) {
        let apart =
            || a.to_f64().into_iter().zip(b.to_f64()).enumerate().find(|(_, (x, y))| x.to_bits() != y.to_bits());
        assert!(same_bits(a, b), "{what}: output {name} is {} and differs at {:?}", a.dtype(), apart());
    }
    (unfused.plan().launches(), compiled.executor.plan().launches())
}

#[test]
fn models_give_the_same_bits_in_every_type_and_on_any_number_of_threads() {
    for path in models() {
        let inputs = npz::read(&path.join("inputs.npz")).unwrap();
        let what = path.display();
        for threads in [1, 3] {
            let (before, after) = compared(&load(&path, threads), &inputs, &format!("{what}, {threads} threads"));
            assert!(after < before, "{what}: {before} launches became {after}");
            let share = after as f64 / before as f64;
            assert!(!path.ends_with("bert") || share <= 0.7, "{what}: {before} launches became {after}");
        }
        for narrow in [DType::F16, DType::BF16] {
            let model = load(&path, 2).narrowed(narrow).unwrap();
            compared(&model, &inputs, &format!("{what} in {narrow}"));
        }
    }
}

#[test]
fn random_graphs_give_the_same_bits() {
    let mut fused = 0;
    for seed in 0..400 {
        let mut random = Random::new(seed);
        random.build(seed % 2 == 0);
        let mut options = Options { threads: 2, safety: Safety::Off, ..Options::default() };
        options.optimize.numerics = Numerics::Exact;
        let model = Model::new(random.graph.clone(), options);
        let (before, after) = compared(&model, &random.inputs, &format!("seed {seed}"));
        fused += usize::from(after < before);
    }
    assert!(fused > 100, "only {fused} of 400 graphs were fused");
}
