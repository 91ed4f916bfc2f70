//! The executor against the reference on random graphs: ragged sizes, 0, 1, NaN, infinities, every
//! element type, views in between, poisoned memory.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use hypatia_dsl::builtin::BuiltinOp;
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::AttrValue;

use super::Executor;
use super::simd::{Isa, limit};
use hypatia_eval::{Mode, evaluate};
use hypatia_graph::{Graph, Value};
use hypatia_pipeline as pipeline;
use hypatia_plan::Options;
use hypatia_target::device::Device;
use hypatia_tensor::tensor::Tensor;
use hypatia_testing::random::{FLOATS, Random, coarsest, compare};
use hypatia_testing::{int, list, program, ty};

fn check(seed: u64, wild: bool) {
    let mut r = Random::new(seed);
    r.build(wild);
    agrees(&r, seed);
}

fn agrees(r: &Random, seed: u64) {
    let want = evaluate(&r.graph, &r.inputs, Mode::Rounded).unwrap();
    let inputs: Vec<Tensor> = r.inputs.iter().map(|(_, t)| t.clone()).collect();
    let epsilon = coarsest(&r.graph);
    // The seeds alternate between instruction sets.
    limit([Isa::Avx512, Isa::Avx2, Isa::Portable][seed as usize % 3]);
    for (cluster, threads) in [(true, 1), (true, 3), (false, 1)] {
        let options = Options { cluster, ..Options::new(Device::named("cpu").unwrap()) };
        let plan = Arc::new(pipeline::plan(&r.graph, &options).unwrap());
        let executor = Executor::new(plan.clone(), threads).unwrap().poisoned();
        for run in 0..2 {
            let got = if run == 0 { executor.run(&inputs).unwrap() } else { in_place(&executor, &inputs) };
            for (i, (g, w)) in got.iter().zip(&want).enumerate() {
                let what = format!(
                    "seed {seed}, cluster {cluster}, threads {threads}, run {run}, output {i}\n{plan}\n{}",
                    r.graph.to_text()
                );
                compare(g, &w.to_tensor().unwrap(), w.dtype, epsilon, &what);
            }
        }
    }
}

/// A run on memory of the caller, at addresses that are multiples of the element size and of no
/// larger power of two.
fn in_place(executor: &Executor, inputs: &[Tensor]) -> Vec<Tensor> {
    let room = |dtype: DType, bytes: usize| vec![0xa5u8; bytes + 3 * dtype.size() + 64];
    let start = |memory: &[u8], size: usize| memory.as_ptr().align_offset(64) + size;
    let mut memory: Vec<Vec<u8>> = Vec::new();
    let mut from = Vec::new();
    for t in inputs {
        let mut m = room(t.dtype(), t.bytes().len());
        let at = start(&m, t.dtype().size());
        m[at..at + t.bytes().len()].copy_from_slice(t.bytes());
        memory.push(m);
        from.push(at..at + t.bytes().len());
    }
    let slices: Vec<&[u8]> = memory.iter().zip(&from).map(|(m, r)| &m[r.clone()]).collect();
    let views: Vec<_> = executor.plan().outputs.iter().map(|(_, v)| (v.dtype, v.shape.clone(), v.len())).collect();
    let mut rooms: Vec<Vec<u8>> = views.iter().map(|(d, _, n)| room(*d, n * d.size())).collect();
    let ranges: Vec<_> = rooms.iter().zip(&views).map(|(m, (d, _, n))| (start(m, d.size()), n * d.size())).collect();
    let mut outs: Vec<&mut [u8]> = rooms.iter_mut().zip(&ranges).map(|(m, (at, n))| &mut m[*at..*at + n]).collect();
    executor.run_in_place(&slices, &mut outs).unwrap();
    let made = outs.iter().zip(&views).map(|(b, (d, s, _))| Tensor::from_bytes(*d, s, b).unwrap()).collect();
    for (m, (at, n)) in rooms.iter().zip(&ranges) {
        assert!(m[..*at].iter().chain(&m[at + n..]).all(|b| *b == 0xa5), "a write outside of an output");
    }
    made
}

#[test]
fn memory_that_does_not_fit_is_refused() {
    let mut g = Graph::new(program());
    let x = g.input("x", ty(DType::F32, &[2, 3]));
    let y = g.builtin_scalar(hypatia_dsl::builtin::BuiltinScalar::Exp, &[x]).unwrap();
    g.output("y", y);
    // The same value twice, and an input: copied.
    g.output("again", y);
    g.output("same", x);
    let plan = Arc::new(pipeline::plan(&g, &Options::new(Device::cpu())).unwrap());
    let executor = Executor::new(plan, 1).unwrap();
    let (x, mut y) = ([0.0f32; 6], [[7.0f32; 7]; 3]);
    let mut run = |from: &[u8], short: usize| {
        let outs = y.iter_mut().map(|y| &mut bytemuck::cast_slice_mut(y)[..24 - short]);
        let result = executor.run_in_place(&[from], &mut outs.collect::<Vec<_>>());
        result.map_err(|e| e.to_string())
    };
    let bytes: &[u8] = bytemuck::cast_slice(&x);
    assert_eq!(run(&bytes[..20], 0).unwrap_err(), "the memory of `x` has 20 bytes, but f32[2, 3] has 24");
    assert_eq!(run(bytes, 4).unwrap_err(), "the memory of `y` has 20 bytes, but f32[2, 3] has 24");
    let odd = [0u8; 64];
    let at = odd.as_ptr().align_offset(4) + 1;
    let unaligned = run(&odd[at..at + 24], 0).unwrap_err();
    assert_eq!(unaligned, "the memory of `x` is not aligned to 4 bytes, the size of f32");
    run(bytes, 0).unwrap();
    assert_eq!(y.map(|y| y[..6].to_vec()), [vec![1.0; 6], vec![1.0; 6], vec![0.0; 6]]);
    assert!(y.iter().all(|y| y[6] == 7.0));
}

#[test]
fn random_graphs_agree_with_the_reference() {
    for seed in 0..300 {
        check(seed, false);
    }
}

#[test]
fn two_products_of_one_operand_agree_with_the_reference() {
    for seed in 0..60 {
        let mut r = Random::new(seed);
        r.pair();
        agrees(&r, seed);
    }
}

#[test]
fn special_values_agree_with_the_reference() {
    for seed in 1000..1200 {
        check(seed, true);
    }
}

/// A graph of one op on f32, run on this many threads.
fn run_one(shape: &[usize], threads: usize, build: impl Fn(&mut Graph, Value) -> Value) -> Vec<f32> {
    let mut g = Graph::new(hypatia_library::load(&[]).unwrap());
    let x = g.input("x", ty(DType::F32, shape));
    let y = build(&mut g, x);
    g.output("y", y);
    let plan = Arc::new(pipeline::plan(&g, &Options::new(Device::cpu())).unwrap());
    let n: usize = shape.iter().product();
    let values: Vec<f64> = (0..n).map(|i| ((i * 7919) % 1000) as f64 / 250.0 - 2.0).collect();
    let x = Tensor::from_f64(DType::F32, shape, &values).unwrap();
    let out = Executor::new(plan, threads).unwrap().run(&[x]).unwrap();
    bytemuck::cast_slice(out[0].bytes()).to_vec()
}

#[test]
fn bits_do_not_depend_on_the_number_of_threads() {
    for (name, shape) in [("softmax", &[257, 129][..]), ("gelu", &[511, 301]), ("softmax", &[3, 9000])] {
        let one = run_one(shape, 1, |g, x| g.call(name, &[x], &[]).unwrap()[0]);
        let four = run_one(shape, 4, |g, x| g.call(name, &[x], &[]).unwrap()[0]);
        assert!(one.iter().zip(&four).all(|(a, b)| a.to_bits() == b.to_bits()), "{name} {shape:?}");
    }
    let product = |g: &mut Graph, x: Value| {
        let w: Vec<f64> = (0..300 * 210).map(|i| (i % 31) as f64 / 16.0 - 1.0).collect();
        let w = g.constant(Tensor::from_f64(DType::F32, &[300, 210], &w).unwrap());
        g.builtin(BuiltinOp::Matmul, &[x, w], vec![]).unwrap()[0]
    };
    let reduce = |axes: &'static [usize]| {
        move |g: &mut Graph, x: Value| {
            g.builtin(BuiltinOp::Sum, &[x], vec![list(axes), AttrValue::Bool(false)]).unwrap()[0]
        }
    };
    assert_eq!(run_one(&[333, 300], 1, product), run_one(&[333, 300], 4, product));
    for axes in [&[0][..], &[1], &[0, 2], &[1, 2]] {
        assert_eq!(run_one(&[40, 50, 60], 1, reduce(axes)), run_one(&[40, 50, 60], 4, reduce(axes)), "{axes:?}");
    }
}

#[test]
fn bits_of_pointwise_and_row_wise_work_do_not_depend_on_the_instructions() {
    for name in ["gelu", "gelu_tanh", "silu", "softmax", "softplus"] {
        let results = [Isa::Avx512, Isa::Avx2, Isa::Portable].map(|isa| {
            limit(isa);
            run_one(&[7, 613], 1, |g, x| g.call(name, &[x], &[]).unwrap()[0])
        });
        limit(Isa::Avx512);
        let same = |a: &[f32], b: &[f32]| a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits());
        assert!(same(&results[0], &results[1]) && same(&results[0], &results[2]), "{name}");
    }
}

#[test]
fn rows_of_any_length_agree_with_the_reference() {
    // Many rows in a block, rows of exactly one block, rows too long for the registers, and no
    // columns at all.
    let library = hypatia_library::load(&[]).unwrap();
    for (rows, n) in [(5, 1), (700, 3), (33, 24), (2, 512), (3, 513), (2, 8192), (2, 8193), (1, 20000), (3, 0), (0, 5)]
    {
        for dtype in FLOATS {
            let mut g = Graph::new(library.clone());
            let x = g.input("x", ty(dtype, &[rows, n]));
            let y = g.call("softmax", &[x], &[]).unwrap()[0];
            g.output("y", y);
            let values: Vec<f64> = (0..rows * n).map(|i| ((i * 31) % 97) as f64 / 20.0 - 2.0).collect();
            let x = Tensor::from_f64(dtype, &[rows, n], &values).unwrap();
            let want = evaluate(&g, &[("x".to_string(), x.clone())], Mode::Rounded).unwrap();
            let plan = Arc::new(pipeline::plan(&g, &Options::new(Device::cpu())).unwrap());
            let got = Executor::new(plan, 2).unwrap().poisoned().run(&[x]).unwrap();
            compare(&got[0], &want[0].to_tensor().unwrap(), dtype, dtype.epsilon(), &format!("{dtype} {rows}x{n}"));
        }
    }
}

#[test]
fn an_index_outside_is_an_error_that_names_the_first() {
    for (op, shape) in [(BuiltinOp::Gather, vec![40_000]), (BuiltinOp::GatherElements, vec![40_000, 2])] {
        let mut g = Graph::new(program());
        let x = g.input("x", ty(DType::F32, &[40_000, 2]));
        let ids = g.input("ids", ty(DType::I64, &shape));
        let y = g.builtin(op, &[x, ids], vec![int(0)]).unwrap()[0];
        g.output("y", y);
        let plan = Arc::new(pipeline::plan(&g, &Options::new(Device::cpu())).unwrap());
        let executor = Executor::new(plan, 3).unwrap();
        let x = Tensor::zeros(DType::F32, &[40_000, 2]).unwrap();
        let mut ids = vec![3i64; shape.iter().product()];
        (ids[20_000], ids[39_999]) = (40_000, -50_000);
        let ids = Tensor::from_slice(&shape, &ids).unwrap();
        let message = executor.run(&[x.clone(), ids]).unwrap_err().to_string();
        assert!(message.contains("index 40000 is out of range for an axis of size 40000"), "{message}");
        // The executor still works after an error.
        let ids = Tensor::from_slice(&shape, &vec![-40_000i64; shape.iter().product()]).unwrap();
        assert!(executor.run(&[x, ids]).is_ok());
    }
}
