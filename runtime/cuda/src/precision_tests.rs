//! How far f32 is from the exact values on a GPU, at the linear layers and perceptrons of `hypatia bench --suite classic`:
//! x ~ N(0, 1), w ~ N(0, 1) / sqrt(k). The exact values are the device's in f64, and those are held against sums that the
//! host works out for one row. Algorithms of products are those that the library guesses.
#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::f64::consts::TAU;
use std::sync::Arc;
use std::time::Duration;

use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::{Test, TestInput};
use hypatia_dsl::source::SourceFile;
use rand::prelude::*;
use rand_chacha::ChaCha8Rng;

use super::Gpu;
use super::lt::{Epilogue, Layout, Matmul, Pointers, Product, WORKSPACE};
use super::memory::DeviceMemory;
use super::tests::{cases, gpu};
use hypatia_tensor::error::Result;
use hypatia_library;
use hypatia::precision::deviation;
use hypatia::session::{CheckMode, Model, Options};
use hypatia_tensor::tensor::Tensor;
use hypatia_verify::test_runner::given_with;
use crate::tuner::Tuner;

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

/// The first row in f64, of linear layers with nothing or a ReLU behind them: `None` where something else is computed.
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
        check: CheckMode::Off,
        memory: usize::MAX,
        ..Options::default().on(gpu, Tuner::forgetful(Duration::ZERO))
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

/// Operands that lie in rows or in columns.
const ORDERS: [[bool; 2]; 4] = [[false, false], [false, true], [true, false], [true, true]];

/// Products of long sums of small whole numbers, which f32 adds exactly in any order: in rows and columns, in batches, with
/// and without epilogue, by every algorithm, over memory full of NaN.
#[test]
fn sums_in_parts_are_those_of_the_whole_on_a_gpu() {
    let sizes = [[2, 540, 1000, 1553], [1, 1030, 1024, 3077], [1, 1024, 1024, 4096]];
    let Some(gpu) = gpu(sizes.len() * ORDERS.len()) else { return };
    // One is enough for a sanitizer.
    let count = if cases(100) < 100 { 1 } else { sizes.len() };
    for size in sizes.into_iter().take(count) {
        for order in ORDERS {
            for epilogue in [Epilogue::Default, Epilogue::ReluBias] {
                whole_numbers(&gpu, size, order, epilogue);
            }
        }
    }
}

fn whole_numbers(gpu: &Arc<Gpu>, [batch, m, n, k]: [usize; 4], order: [bool; 2], epilogue: Epilogue) {
    let mut rng = ChaCha8Rng::seed_from_u64(k as u64);
    let mut numbers = |len: usize| (0..len).map(|_| rng.random_range(-2i8..=2).into()).collect::<Vec<f32>>();
    let (a, b, bias) = (numbers(batch * m * k), numbers(batch * k * n), numbers(n));
    let side = |transposed: bool, rows: usize, columns: usize| Layout {
        transposed,
        ld: if transposed { rows } else { columns } as i64,
        batch_stride: (rows * columns) as i64,
        outer_stride: 0,
        alignment: 16,
    };
    let product = Product {
        m,
        n,
        k,
        batch,
        outer: 1,
        dtype: DType::F32,
        out: DType::F32,
        tf32: false,
        a: side(order[0], m, k),
        b: side(order[1], k, n),
        d: side(false, m, n),
        epilogue,
        bias: DType::F32,
        workspace: WORKSPACE,
    };
    let stream = gpu.context().new_stream().unwrap();
    let put = |values: &[f32]| {
        let memory = DeviceMemory::new(&stream, values.len() * 4).unwrap();
        memory.upload(bytemuck::cast_slice(values)).unwrap();
        memory
    };
    let (da, db, dbias) = (put(&a), put(&b), put(&bias));
    let d = DeviceMemory::new(&stream, batch * m * n * 4).unwrap();
    let workspace = DeviceMemory::new(&stream, WORKSPACE).unwrap();
    let mut matmul = Matmul::new(product).unwrap();
    let algorithms = matmul.algorithms(gpu.lt(), 32).unwrap();
    assert!(algorithms.iter().any(|a| a.parted()), "{product:?}: no algorithm for parts");
    for algorithm in &algorithms {
        d.fill(0xff).unwrap();
        let at = Pointers {
            a: da.address(),
            b: db.address(),
            d: d.address(),
            bias: dbias.address(),
            aux: 0,
            workspace: workspace.address(),
        };
        // SAFETY: the operands are as large as the product says, and live until the result is read.
        unsafe { matmul.launch(gpu.lt(), &stream, algorithm, &at) }.unwrap();
        let mut got = vec![0f32; batch * m * n];
        d.download(0, bytemuck::cast_slice_mut(&mut got)).unwrap();
        for (i, row) in [0, 1, m / 2, m - 1].into_iter().flat_map(|row| (0..batch).map(move |i| (i, row))) {
            let left = |l: usize| a[i * m * k + if order[0] { l * m + row } else { row * k + l }];
            let right = |l: usize, c: usize| b[i * k * n + if order[1] { c * k + l } else { l * n + c }];
            for c in 0..n {
                let sum = (0..k).map(|l| left(l) * right(l, c)).sum::<f32>();
                let want = if epilogue == Epilogue::Default { sum } else { (sum + bias[c]).max(0.0) };
                let seen = got[(i * m + row) * n + c];
                assert!(seen == want, "{product:?} by {algorithm:?}: {seen} at {i}, {row}, {c}, not {want}");
            }
        }
    }
}
