//! Products of many strided matrices, as in multi-head attention, against the reference: by the
//! call over addresses, by the fallback, measured, and over the caller's memory. Ragged sizes,
//! sizes 1 and 0, every element type, odd strides.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::Duration;

use hypatia_dsl::builtin::BuiltinOp;
use hypatia_dsl::dtype::DType;
use rand::prelude::*;
use rand_chacha::ChaCha8Rng;

use super::{agrees, cases, executor, gpu};
use crate::tuner::Tuner;
use crate::tuning::TuningFile;
use crate::{Executor, Gpu};
use hypatia_eval::{Mode, evaluate};
use hypatia_graph::{Graph, Value};
use hypatia_pipeline as pipeline;
use hypatia_plan::{Action, Options, Plan};
use hypatia_tensor::tensor::Tensor;
use hypatia_testing::random::{coarsest, compare};
use hypatia_testing::{int, list, ty};

const FLOATS: [DType; 4] = [DType::BF16, DType::F16, DType::F32, DType::F64];
/// Sequences, tokens, heads, width.
const SHAPES: [[usize; 4]; 10] = [
    [2, 5, 3, 8],
    [8, 128, 12, 64],
    [3, 197, 4, 64],
    [3, 17, 2, 5],
    [1, 33, 4, 16],
    [2, 1, 3, 8],
    [4, 9, 1, 24],
    [5, 16, 2, 1],
    [0, 4, 2, 8],
    [2, 6, 2, 0],
];

type Inputs = Vec<(String, Tensor)>;

/// Multi-head attention over heads that are interleaved in one input, with `pad` columns after each
/// row, and its inputs. The scores and the result as rows are results; another product reads the
/// latter.
fn case(dtype: DType, [b, s, h, d]: [usize; 4], pad: usize) -> (Graph, Inputs) {
    let mut rng = ChaCha8Rng::seed_from_u64(17);
    let mut g = Graph::new(hypatia_library::load(&[]).unwrap());
    let (width, all) = (h * d, 3 * h * d + pad);
    let mut tensor = |shape: &[usize]| {
        let values: Vec<f64> = (0..shape.iter().product()).map(|_| rng.random_range(-1.0..1.0)).collect();
        Tensor::from_f64(dtype, shape, &values).unwrap()
    };
    let inputs = vec![("qkv".to_string(), tensor(&[b, s, all])), ("w".to_string(), tensor(&[width, 7]))];
    let [qkv, w] = [0, 1].map(|i: usize| g.input(inputs[i].0.clone(), ty(dtype, inputs[i].1.shape())));
    let mut heads = |i: usize| {
        let attrs = [2, pad + i * width, pad + (i + 1) * width, 1].map(|v| int(v as i64)).to_vec();
        let cut = g.builtin(BuiltinOp::Slice, &[qkv], attrs).unwrap()[0];
        let apart = g.builtin(BuiltinOp::Reshape, &[cut], vec![list(&[b, s, h, d])]).unwrap()[0];
        g.builtin(BuiltinOp::Transpose, &[apart], vec![list(&[0, 2, 1, 3])]).unwrap()[0]
    };
    let [q, k, v] = [heads(0), heads(1), heads(2)];
    let k = g.builtin(BuiltinOp::Transpose, &[k], vec![list(&[0, 1, 3, 2])]).unwrap()[0];
    let scores = g.builtin(BuiltinOp::Matmul, &[q, k], vec![]).unwrap()[0];
    let weights = g.call("softmax", &[scores], &[]).unwrap()[0];
    let mixed = g.builtin(BuiltinOp::Matmul, &[weights, v], vec![]).unwrap()[0];
    let rows = rows(&mut g, mixed, [b * s, width]);
    let y = g.builtin(BuiltinOp::Matmul, &[rows, w], vec![]).unwrap()[0];
    g.output("scores", scores);
    g.output("rows", rows);
    g.output("y", y);
    (g, inputs)
}

/// Concatenates heads into rows.
fn rows(g: &mut Graph, x: Value, shape: [usize; 2]) -> Value {
    let turned = g.builtin(BuiltinOp::Transpose, &[x], vec![list(&[0, 2, 1, 3])]).unwrap()[0];
    g.builtin(BuiltinOp::Reshape, &[turned], vec![list(&shape)]).unwrap()[0]
}

fn all() -> impl Iterator<Item = (DType, [usize; 4], usize)> {
    FLOATS.into_iter().flat_map(|d| SHAPES.into_iter().flat_map(move |s| [0, 1, 8].map(|pad| (d, s, pad))))
}

/// The number of steps that are one call over strided matrices, or several launches.
fn as_they_lie(plan: &Plan) -> usize {
    plan.steps.iter().filter(|s| matches!(s.action, Action::Call(_)) && s.kernel.is_none()).count()
}

#[test]
fn plans_over_heads_agree_with_the_reference_on_the_cpu() {
    let device = hypatia_target::device::Device::named("h200").unwrap();
    for (dtype, shape, pad) in all().filter(|(_, shape, _)| shape[1] < 100) {
        let (graph, inputs) = case(dtype, shape, pad);
        let want = evaluate(&graph, &inputs, Mode::Rounded).unwrap();
        let tensors: Vec<Tensor> = inputs.iter().map(|(_, t)| t.clone()).collect();
        let plan = Arc::new(pipeline::plan(&graph, &Options::new(device.clone())).unwrap());
        let executor = hypatia_cpu::Executor::new(plan.clone(), 2).unwrap().poisoned();
        for (i, (got, w)) in executor.run(&tensors).unwrap().iter().zip(&want).enumerate() {
            let what = format!("{dtype} {shape:?} {pad}, output {i}\n{plan}\n{}", graph.to_text());
            compare(got, &w.to_tensor().unwrap(), w.dtype, coarsest(&graph), &what);
        }
        if shape.iter().all(|n| *n > 1) {
            assert_eq!(as_they_lie(&plan), 2, "{dtype} {shape:?} {pad}\n{plan}");
        }
    }
}

/// A layer of rows whose batch was put behind the sequence, with a bias, a residual in that order
/// and an activation; the sum over the sequence is a result too.
fn moved(dtype: DType, [b, s, k, n]: [usize; 4]) -> (Graph, Inputs) {
    let mut rng = ChaCha8Rng::seed_from_u64(18);
    let mut g = Graph::new(hypatia_library::load(&[]).unwrap());
    let shapes: [&[usize]; 4] = [&[b, s, k], &[k, n], &[n], &[s, b, n]];
    let inputs: Inputs = shapes
        .iter()
        .zip(["x", "w", "bias", "rest"])
        .map(|(shape, name)| {
            let values: Vec<f64> = (0..shape.iter().product()).map(|_| rng.random_range(-1.0..1.0)).collect();
            (name.to_string(), Tensor::from_f64(dtype, shape, &values).unwrap())
        })
        .collect();
    let [x, w, bias, rest] = [0, 1, 2, 3].map(|i: usize| g.input(inputs[i].0.clone(), ty(dtype, shapes[i])));
    let turned = g.builtin(BuiltinOp::Transpose, &[x], vec![list(&[1, 0, 2])]).unwrap()[0];
    let y = g.builtin(BuiltinOp::Matmul, &[turned, w], vec![]).unwrap()[0];
    let y = g.call("add", &[y, bias], &[]).unwrap()[0];
    let y = g.call("add", &[y, rest], &[]).unwrap()[0];
    let y = g.call("tanh", &[y], &[]).unwrap()[0];
    let back = g.builtin(BuiltinOp::Transpose, &[y], vec![list(&[1, 0, 2])]).unwrap()[0];
    let twice = g.builtin(BuiltinOp::Transpose, &[back], vec![list(&[1, 2, 0])]).unwrap()[0];
    let sums = g.call("softmax", &[twice], &[]).unwrap()[0];
    g.output("sums", sums);
    (g, inputs)
}

const MOVED: [[usize; 4]; 6] = [[2, 5, 8, 6], [4, 19, 64, 32], [3, 7, 5, 9], [1, 4, 8, 8], [2, 0, 8, 8], [3, 4, 0, 5]];

#[test]
fn rows_with_the_batch_behind_the_sequence_agree_on_the_cpu() {
    let device = hypatia_target::device::Device::named("h200").unwrap();
    for (dtype, shape) in FLOATS.into_iter().flat_map(|d| MOVED.map(|shape| (d, shape))) {
        let (graph, inputs) = moved(dtype, shape);
        let want = evaluate(&graph, &inputs, Mode::Rounded).unwrap();
        let tensors: Vec<Tensor> = inputs.iter().map(|(_, t)| t.clone()).collect();
        let plan = Arc::new(pipeline::plan(&graph, &Options::new(device.clone())).unwrap());
        let executor = hypatia_cpu::Executor::new(plan.clone(), 2).unwrap().poisoned();
        for (got, w) in executor.run(&tensors).unwrap().iter().zip(&want) {
            let what = format!("{dtype} {shape:?}\n{plan}\n{}", graph.to_text());
            compare(got, &w.to_tensor().unwrap(), w.dtype, coarsest(&graph), &what);
        }
        // The rows are multiplied as they lie: without a copy, batch first.
        let [b, s, k, _] = shape;
        let products = plan.steps.iter().flat_map(|step| match &step.action {
            Action::Gemm(g) => Some(g.clone()),
            Action::Call(call) => call.product().cloned(),
            _ => None,
        });
        let lie = products.map(|g| [g.batch, vec![g.m]].concat()).all(|rows| rows == [b, s]);
        assert!(lie || [b, s, k].iter().any(|n| *n < 2), "{dtype} {shape:?}\n{plan}");
    }
}

#[test]
fn rows_with_the_batch_behind_the_sequence_agree_on_a_gpu() {
    let all: Vec<_> = FLOATS.into_iter().flat_map(|d| MOVED.map(|shape| (d, shape))).collect();
    let Some(gpu) = gpu(all.len()) else { return };
    for (dtype, shape) in all {
        let (graph, inputs) = moved(dtype, shape);
        let what = format!("{dtype} {shape:?}");
        agrees(&gpu, &graph, &inputs, &what).unwrap_or_else(|why| panic!("{what}: {why}"));
    }
}

/// Nothing is measured, so the call is taken if the library supports it.
#[test]
fn heads_agree_with_the_reference_on_a_gpu() {
    let count = all().count();
    let few = cases(count as u64) as usize;
    let Some(gpu) = gpu(few) else { return };
    let mut called = [0; 2];
    for (dtype, shape, pad) in all().step_by(count.div_ceil(few.max(1))) {
        let (graph, inputs) = case(dtype, shape, pad);
        let what = format!("{dtype} {shape:?} {pad}");
        agrees(&gpu, &graph, &inputs, &what).unwrap_or_else(|why| panic!("{what}: {why}"));
        let (plan, executor) = executor(&gpu, &graph, true).unwrap();
        let made = as_they_lie(&plan);
        let one = executor.launches() == plan.launches();
        if made > 0 && !one {
            println!("{what}: {} launches for {} steps", executor.launches(), plan.launches());
        }
        called[usize::from(one)] += usize::from(made > 0);
    }
    println!("products of heads as they lie: {} of {} plans", called[1], called[0] + called[1]);
    assert!(called[1] > 0, "the library takes no lists of addresses");
}

/// Both variants are timed; each of them, taken from a file, gives the right result, also over
/// the caller's memory.
#[test]
fn both_ways_over_heads_agree_on_a_gpu() {
    let shapes = [[8, 128, 12, 64], [2, 33, 3, 8], [1, 40, 4, 16], [4, 197, 12, 64]];
    let Some(gpu) = gpu(shapes.len() * 2) else { return };
    for (shape, dtype) in shapes.into_iter().flat_map(|s| [DType::BF16, DType::F32].map(|d| (s, d))) {
        let (graph, inputs) = case(dtype, shape, 8);
        let want = evaluate(&graph, &inputs, Mode::Rounded).unwrap();
        let tensors: Vec<Tensor> = inputs.iter().map(|(_, t)| t.clone()).collect();
        let plan = Arc::new(pipeline::plan(&graph, &Options::new(gpu.profile())).unwrap());
        let mut tuner = Tuner::without_cache(Duration::from_secs(600));
        let measured = Executor::new(plan.clone(), gpu.clone(), &mut tuner).unwrap().poisoned();
        println!("{dtype} {shape:?}: {} launches for {} steps", measured.launches(), plan.launches());
        let ways: Vec<_> = tuner.choices().filter(|c| c.problem.starts_with("one call")).cloned().collect();
        for way in &ways {
            let [us, first] = [way.us, way.first_us].map(|t| t.unwrap_or(f64::NAN));
            println!("  {} {us:.2} us, as they lie {first:.2}", way.problem);
        }
        let mut launches = Vec::new();
        for algorithm in [[1; 8], [2; 8]] {
            let mut file = TuningFile::default();
            ways.iter().for_each(|way| file.insert(crate::tuning::Choice { algorithm, ..way.clone() }));
            let mut tuner = Tuner::without_cache(Duration::ZERO).with_file(file);
            let executor = Executor::new(plan.clone(), gpu.clone(), &mut tuner).unwrap().poisoned();
            for (i, (got, w)) in executor.run(&tensors).unwrap().iter().zip(&want).enumerate() {
                let what = format!("{dtype} {shape:?}, way {}, output {i}\n{plan}", algorithm[0]);
                compare(got, &w.to_tensor().unwrap(), w.dtype, coarsest(&graph), &what);
            }
            launches.push(executor.launches());
            at_addresses(&gpu, &executor, &tensors);
        }
        assert!(ways.is_empty() || launches[0] < launches[1], "{launches:?}\n{plan}");
    }
}

/// Runs over inputs at other addresses agree, whatever ran before.
fn at_addresses(gpu: &Arc<Gpu>, executor: &Executor, inputs: &[Tensor]) {
    use crate::memory::DeviceMemory;
    let want = executor.run(inputs).unwrap();
    let stream = gpu.context().new_stream().unwrap();
    let room = |bytes: usize| DeviceMemory::new(&stream, bytes.max(1)).unwrap();
    let sets: Vec<(Vec<DeviceMemory>, Vec<DeviceMemory>)> = (0..3)
        .map(|_| {
            let outputs = want.iter().map(|t| room(t.bytes().len())).collect();
            (inputs.iter().map(|t| room(t.bytes().len())).collect(), outputs)
        })
        .collect();
    let mut resident = executor.resident().unwrap();
    for round in 0..6 {
        let (ins, outs) = &sets[round % 3];
        // The other sets are overwritten, so that a stale address list would show.
        for (other, _) in &sets {
            other.iter().for_each(|memory| memory.fill(0xff).unwrap());
        }
        ins.iter().zip(inputs).for_each(|(memory, t)| memory.upload(t.bytes()).unwrap());
        stream.synchronize().unwrap();
        let at = |all: &[DeviceMemory]| all.iter().map(DeviceMemory::address).collect::<Vec<_>>();
        // SAFETY: the memory is as large as the plan's types, and lives on.
        unsafe { resident.run_at(&at(ins), &at(outs)) }.unwrap();
        resident.synchronize().unwrap();
        for (memory, want) in outs.iter().zip(&want) {
            let mut got = vec![0; want.bytes().len()];
            memory.download(0, &mut got).unwrap();
            assert!(got == want.bytes(), "round {round}");
        }
    }
}
