//! How far f32 is from the exact values on a GPU, at the linear layers and perceptrons of `hypatia
//! bench --suite classic`: x ~ N(0, 1), w ~ N(0, 1) / sqrt(k). The exact values are the device's in
//! f64, and those are held against sums that the host works out for one row. Algorithms of products
//! are those that the library guesses.

use std::collections::HashMap;
use std::f64::consts::TAU;
use std::sync::Arc;
use std::time::Duration;

use hypatia_dsl::ir::{Test, TestInput};
use hypatia_dsl::source::SourceFile;
use rand::prelude::*;
use rand_chacha::ChaCha8Rng;

use super::gpu;
use hypatia::internal::deviation;
use hypatia::session::{Model, Options, Safety};
use hypatia_cuda::tuner::Tuner;
use hypatia_library as library;
use hypatia_tensor::error::Result;
use hypatia_tensor::tensor::Tensor;
use hypatia_verify::test_runner::given_with;

const CLASSIC: &str = include_str!("../../cli/src/bench/classic.hyp");
/// The largest error that f32 may have.
const LIMIT: f64 = 1e-5;
/// Four sizes with eight epilogues, and nine perceptrons.
const CASES: usize = 41;

/// Tensors by their names and shapes: cases of one size share them.
#[derive(Default)]
struct Data(HashMap<(String, Vec<usize>), Tensor>);

impl Data {
    fn of(&mut self, input: &TestInput) -> Result<Tensor> {
        let shape: Vec<usize> = input.shape.iter().map(|d| d.as_const().unwrap() as usize).collect();
        let fan_in = if input.constant && shape.len() > 1 { shape[shape.len() - 1] } else { 1 };
        let seed = input.name.bytes().fold(shape[0] as u64, |h, b| h.wrapping_mul(31).wrapping_add(b.into()));
        let made = self.0.entry((input.name.clone(), shape.clone())).or_insert_with(|| {
            let (mut rng, scale) = (ChaCha8Rng::seed_from_u64(seed), 1.0 / (fan_in as f64).sqrt());
            let mut tensor = Tensor::zeros(input.dtype, &shape).unwrap();
            for pair in tensor.as_mut_slice::<f32>().unwrap().chunks_mut(2) {
                let radius = (-2.0 * (1.0 - rng.random::<f64>()).ln()).sqrt() * scale;
                let (sin, cos) = (TAU * rng.random::<f64>()).sin_cos();
                pair.iter_mut().zip([cos, sin]).for_each(|(v, at)| *v = (radius * at) as f32);
            }
            tensor
        });
        Ok(made.clone())
    }
}

/// The largest error that a test's result may have.
fn limit(test: &Test, data: &mut Data) -> f64 {
    let tensors: Vec<Tensor> = test.inputs.iter().map(|i| data.of(i).unwrap()).collect();
    // A gate makes errors as many times larger as it is.
    let gate = tensors.last().filter(|_| test.name.contains("gate"));
    gate.map_or(LIMIT, |t| t.as_slice::<f32>().unwrap().iter().fold(0.0, |m, v| v.abs().max(m)) as f64 * LIMIT)
}

/// The first row in f64 of a linear layer alone or with a ReLU; `None` for anything else.
fn first_row(test: &Test, data: &mut Data) -> Option<Vec<f64>> {
    let perceptron = test.name.starts_with("mlp ");
    if !perceptron && !test.name.starts_with("linear none ") && !test.name.starts_with("linear relu ") {
        return None;
    }
    let tensors: Vec<Tensor> = test.inputs.iter().map(|i| data.of(i).unwrap()).collect();
    let k = tensors[0].shape()[1];
    let mut row: Vec<f64> = tensors[0].as_slice::<f32>().unwrap()[..k].iter().map(|v| f64::from(*v)).collect();
    let layers: Vec<&[Tensor]> = tensors[1..].chunks(2).collect();
    for (i, layer) in layers.iter().enumerate() {
        let (w, b) = (layer[0].as_slice::<f32>().unwrap(), layer[1].as_slice::<f32>().unwrap());
        let cut = if perceptron { i + 1 < layers.len() } else { test.name.starts_with("linear relu ") };
        let column = |(w, b): (&[f32], &f32)| {
            let sum = w.iter().zip(&row).map(|(w, x)| f64::from(*w) * x).sum::<f64>() + f64::from(*b);
            if cut { sum.max(0.0) } else { sum }
        };
        row = w.chunks(row.len()).zip(b).map(column).collect();
    }
    Some(row)
}

#[test]
fn f32_keeps_its_limit_on_a_gpu() {
    let Some(gpu) = gpu(CASES) else { return };
    let file = SourceFile { name: "classic.hyp".into(), path: None, text: CLASSIC.into(), embedded: true };
    let program = Arc::new(library::compile_sources(vec![file]).program.unwrap());
    let wanted = |t: &&Test| {
        let layers = t.name.starts_with("linear ") || t.name.starts_with("mlp ");
        t.origin.file == "classic.hyp" && layers && t.name.ends_with(" f32")
    };
    let tests: Vec<Test> = program.tests.iter().filter(wanted).cloned().collect();
    assert_eq!(tests.len(), CASES);
    let options = Options {
        safety: Safety::Off,
        memory: Some(usize::MAX),
        ..Options::default().on(gpu, Tuner::without_cache(Duration::ZERO))
    };
    let options = Options { verdicts: None, ..options };
    let mut data = Data::default();
    let mut beyond = Vec::new();
    for test in &tests {
        let (graph, inputs) = given_with(&program, test, |i| data.of(i)).unwrap();
        let got = Model::new(graph, options.clone()).run(&inputs).unwrap();
        let seen = deviation(&program, test, &options, |i| data.of(i), &got).unwrap();
        println!("{}: largest error {:.2e} of {:.2}", test.name, seen.error, seen.largest);
        if let Some(row) = first_row(test, &mut data) {
            let exact = seen.exact[0].as_slice::<f64>().unwrap();
            let off = row.iter().zip(exact).fold(0.0f64, |m, (a, b)| m.max((a - b).abs()));
            assert!(off < 1e-11 && row.len() == seen.exact[0].shape()[1], "{}: f64 itself is off by {off}", test.name);
        }
        let limit = limit(test, &mut data);
        if seen.error.is_nan() || seen.error > limit {
            beyond.push(format!("{}: {:.2e}, more than {limit:.2e}", test.name, seen.error));
        }
    }
    assert!(beyond.is_empty(), "{beyond:#?}");
}
