//! Plans on a GPU against the reference: random graphs with ragged sizes, 0, 1, NaN, infinities,
//! every element type, views in between, poisoned memory; products with every layout and epilogue.
//!
//! Without a GPU each test reports how many cases it skips. `HYPATIA_NEED_GPU=1` makes that a
//! failure, for machines with a GPU.
#![allow(clippy::unwrap_used)]

mod across;
mod added;
mod attention;
mod attention_grad;
mod attention_sm80;
mod bytes;
mod chain;
mod checksums;
mod deep_terms;
mod emulated;
mod gemv;
mod heads;
mod horizontal;
mod image_windows;
mod images_of_warps;
mod irregular;
mod joint;
mod joint_rows;
mod launcher;
mod lookups;
pub(crate) mod lost_waits;
mod moves;
mod pair;
mod pool;
mod precision;
mod prologue;
mod reductions;
mod reordered;
mod repeat;
mod results;
mod rows;
mod scalars;
mod templates;
mod tf32;
mod tiled;
mod training;
mod unfold;
mod weight_layout;
mod windows;
mod windows_groups;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use hypatia_dsl::builtin::{BuiltinOp, BuiltinScalar};
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::{AttrValue, InView};
use hypatia_dsl::scalar::{Term, TermNode};
use rand::prelude::*;
use rand_chacha::ChaCha8Rng;

use crate::memory::DeviceMemory;
use crate::tuner::{Counts, Effort, Tuner};
use crate::tuning::{Choice, TuningFile};
use crate::{Executor, Gpu};
use hypatia_cache::{Kind, Store};
use hypatia_eval::{Mode, evaluate};
use hypatia_graph::Graph;
use hypatia_pipeline as pipeline;
use hypatia_plan::{Options, Plan};
use hypatia_tensor::error::Error;
use hypatia_tensor::tensor::Tensor;
use hypatia_testing::random::{Random, coarsest, compare};
use hypatia_testing::{gpu_or_skip, int, list, program, ty};

/// The GPU; without one, reports how many cases are skipped.
fn gpu(cases: usize) -> Option<Arc<Gpu>> {
    gpu_or_skip(Gpu::open(0), cases)
}

fn executor(gpu: &Arc<Gpu>, graph: &Graph, cluster: bool) -> Result<(Arc<Plan>, Executor), Error> {
    let options = Options { cluster, ..Options::new(gpu.profile()) };
    let plan = Arc::new(pipeline::plan(graph, &options)?);
    let mut tuner = Tuner::without_cache(Duration::ZERO);
    Ok((plan.clone(), Executor::new(plan, gpu.clone(), &mut tuner)?.poisoned()))
}

/// NVRTC, from the build folder too; says that a test is skipped where there is none.
fn compiler() -> Option<crate::nvrtc::Nvrtc> {
    let local = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/nvrtc");
    crate::nvrtc::Nvrtc::find(&[local]).map_err(|why| eprintln!("SKIPPED: {why}")).ok()
}

/// The plan of an optimised graph for a device.
fn planned(device: &hypatia_target::device::Device, graph: &Graph) -> Arc<Plan> {
    planned_with(&Options::new(device.clone()), graph)
}

fn planned_with(how: &Options, graph: &Graph) -> Arc<Plan> {
    let options = hypatia_optimize::Options { device: how.device.clone(), ..hypatia_optimize::Options::default() };
    let graph = pipeline::optimize(graph, &options).unwrap().graph;
    Arc::new(pipeline::plan(&graph, how).unwrap())
}

/// Runs a graph and compares it; returns the reason if the GPU has no kernel for a step.
fn agrees(gpu: &Arc<Gpu>, graph: &Graph, inputs: &[(String, Tensor)], what: &str) -> Result<(), String> {
    let want = evaluate(graph, inputs, Mode::Rounded).unwrap();
    let tensors: Vec<Tensor> = inputs.iter().map(|(_, t)| t.clone()).collect();
    let epsilon = coarsest(graph);
    for cluster in [true, false] {
        let (plan, executor) = match executor(gpu, graph, cluster) {
            Ok(made) => made,
            Err(Error::Device(why)) if why.contains("CUDA kernel") => {
                return Err(why.split(": ").last().unwrap_or_default().to_string());
            }
            Err(e) => panic!("{what}: {e}"),
        };
        for run in 0..2 {
            let got = executor.run(&tensors).unwrap_or_else(|e| panic!("{what}: {e}\n{plan}"));
            for (i, (g, w)) in got.iter().zip(&want).enumerate() {
                let what = format!("{what}, cluster {cluster}, run {run}, output {i}\n{plan}\n{}", graph.to_text());
                compare(g, &w.to_tensor().unwrap(), w.dtype, epsilon, &what);
            }
        }
    }
    Ok(())
}

/// `HYPATIA_CASES` reduces the number of cases: a sanitizer is slow.
fn cases(all: u64) -> u64 {
    std::env::var("HYPATIA_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(all).min(all)
}

fn random_graphs(first: u64, count: u64, wild: bool) {
    let seeds = first..first + cases(count);
    let Some(gpu) = gpu(seeds.clone().count()) else { return };
    let mut left_out: BTreeMap<String, usize> = BTreeMap::new();
    let mut ran = 0;
    for seed in seeds {
        let mut r = Random::new(seed);
        r.build(wild);
        match agrees(&gpu, &r.graph, &r.inputs, &format!("seed {seed}")) {
            Ok(()) => ran += 1,
            Err(why) => *left_out.entry(why).or_insert(0) += 1,
        }
    }
    println!("{ran} random graphs agree; left out: {left_out:?}");
    assert!(ran > 0);
}

#[test]
fn random_graphs_agree_with_the_reference_on_a_gpu() {
    random_graphs(0, 1000, false);
}

#[test]
fn special_values_agree_with_the_reference_on_a_gpu() {
    random_graphs(5000, 300, true);
}

/// Row-wise kernels as compiled for one row length: a few lanes, a warp, blocks and clusters per
/// row; lengths that vector accesses divide and others; rows too long for registers. Also on a
/// slice with unaligned rows. Some rows contain NaN and infinities.
#[test]
fn rows_of_every_length_agree_with_the_exact_values_on_a_gpu() {
    let lengths =
        [1, 2, 7, 31, 96, 128, 197, 256, 768, 1000, 1024, 4096, 5003, 8192, 16_384, 20_000, 65_536, 65_537, 140_000];
    let floats = [DType::F32, DType::F16, DType::BF16, DType::F64];
    let Some(gpu) = gpu(lengths.len() * floats.len()) else { return };
    let program = hypatia_library::load(&[]).unwrap();
    let mut rng = ChaCha8Rng::seed_from_u64(11);
    for n in lengths.into_iter().take(cases(100) as usize) {
        for dtype in floats {
            rows_agree(&gpu, &program, &mut rng, [if n > 10_000 { 3 } else { 37 }, n], dtype, true);
        }
    }
}

/// Pointwise kernels as generated for little work, for more, and for more than the device runs at
/// once; alone and after a bias, in place and not, with a tail that vector accesses do not divide.
#[test]
fn pointwise_work_of_every_size_agrees_with_the_reference_on_a_gpu() {
    let sizes = [[3, 5], [129, 1024], [771, 1024], [1500, 2048], [1501, 2047]];
    let types = [DType::F32, DType::BF16, DType::F64, DType::I8];
    let Some(gpu) = gpu(sizes.len() * types.len()) else { return };
    let program = hypatia_library::load(&[]).unwrap();
    let mut rng = ChaCha8Rng::seed_from_u64(13);
    for (size, dtype) in sizes.into_iter().flat_map(|s| types.map(|d| (s, d))) {
        let mut g = Graph::new(program.clone());
        let mut inputs = Vec::new();
        let mut input = |g: &mut Graph, name: &str, shape: &[usize]| {
            let mut values: Vec<f64> = (0..shape.iter().product()).map(|_| rng.random_range(-4.0..4.0)).collect();
            if dtype.is_float() {
                values[0] = f64::NAN;
            }
            inputs.push((name.to_string(), Tensor::from_f64(dtype, shape, &values).unwrap()));
            g.input(name, ty(dtype, shape))
        };
        let (x, y, bias) = (input(&mut g, "x", &size), input(&mut g, "y", &size), input(&mut g, "bias", &size[1..]));
        let names: &[&str] = if dtype.is_float() { &["gelu", "mish", "silu"] } else { &["relu", "abs", "neg"] };
        for (i, name) in names.iter().enumerate() {
            let one = g.call(name, &[x], &[]).unwrap()[0];
            let two = g.call("mul", &[one, y], &[]).unwrap()[0];
            let three = g.call("add", &[two, bias], &[]).unwrap()[0];
            for (part, value) in [("a", one), ("b", two), ("c", three)] {
                g.output(format!("{part}{i}"), value);
            }
        }
        agrees(&gpu, &g, &inputs, &format!("{size:?} of {dtype}")).unwrap();
    }
}

/// Small work that is computed again for each element that reads it: of other shapes, of two
/// levels, and of a type that rounds.
#[test]
fn small_work_agrees_with_the_reference_on_a_host() {
    let program = hypatia_library::load(&[]).unwrap();
    let mut rng = ChaCha8Rng::seed_from_u64(14);
    let mut cases = Vec::new();
    for dtype in [DType::F32, DType::BF16, DType::I32] {
        let mut g = Graph::new(program.clone());
        let mut inputs = Vec::new();
        let mut input = |g: &mut Graph, name: &str, shape: &[usize]| {
            let values: Vec<f64> = (0..shape.iter().product()).map(|_| rng.random_range(-4.0..4.0)).collect();
            inputs.push((name.to_string(), Tensor::from_f64(dtype, shape, &values).unwrap()));
            g.input(name, ty(dtype, shape))
        };
        let x = input(&mut g, "x", &[3, 5, 7]);
        let (row, column) = (input(&mut g, "row", &[7]), input(&mut g, "column", &[5, 1]));
        let doubled = g.call("add", &[column, column], &[]).unwrap()[0];
        let small = g.call("mul", &[row, doubled], &[]).unwrap()[0];
        let (a, b) = (g.call("add", &[x, small], &[]).unwrap()[0], g.call("mul", &[x, doubled], &[]).unwrap()[0]);
        let all = g.call("sub", &[a, b], &[]).unwrap()[0];
        g.output("all", all);
        cases.push(emulated::Case { what: format!("small work of {dtype}"), graph: g, inputs });
    }
    let ran = match emulated::run(&cases) {
        Ok(ran) => ran,
        Err(why) => return eprintln!("SKIPPED: {why}"),
    };
    for (ran, case) in ran.into_iter().zip(&cases) {
        let (plan, got) = ran.unwrap();
        assert_eq!(plan.launches(), 1, "{plan}");
        let want = evaluate(&case.graph, &case.inputs, Mode::Rounded).unwrap();
        compare(&got[0], &want[0].to_tensor().unwrap(), want[0].dtype, coarsest(&case.graph), &case.what);
    }
}

/// Long rows, so many that each cluster of blocks processes several and prefetches the next one
/// into shared memory.
#[test]
fn streamed_rows_agree_with_the_exact_values_on_a_gpu() {
    let sizes = [[301, 20_000], [270, 16_640], [160, 40_008]];
    let floats = [DType::F32, DType::BF16];
    let Some(gpu) = gpu(sizes.len() * floats.len()) else { return };
    let program = hypatia_library::load(&[]).unwrap();
    let mut rng = ChaCha8Rng::seed_from_u64(12);
    // One case is enough for a sanitizer.
    let count = if cases(100) < 100 { 1 } else { sizes.len() };
    for (size, dtype) in sizes.into_iter().take(count).flat_map(|s| floats.map(|d| (s, d))) {
        rows_agree(&gpu, &program, &mut rng, size, dtype, false);
    }
}

/// Softmax, log-softmax and a normalisation over rows; with `slices`, also on unaligned rows.
fn rows_agree(
    gpu: &Arc<Gpu>,
    program: &Arc<hypatia_dsl::ir::Program>,
    rng: &mut ChaCha8Rng,
    [rows, n]: [usize; 2],
    dtype: DType,
    slices: bool,
) {
    let mut g = Graph::new(program.clone());
    let x = g.input("x", ty(dtype, &[rows, n + 1]));
    let mut slice = |from: usize| {
        let attrs = [1, from, from + n, 1].map(|v| int(v as i64)).to_vec();
        g.builtin(BuiltinOp::Slice, &[x], attrs).unwrap()[0]
    };
    let (head, tail) = (slice(0), slice(1));
    let whole = g.input("whole", ty(dtype, &[rows, n]));
    let scale: Vec<f64> = (0..n).map(|_| rng.random_range(0.5..1.5)).collect();
    let w = g.constant(Tensor::from_f64(dtype, &[n], &scale).unwrap());
    for (i, x) in [whole, head, tail].into_iter().take(if slices { 3 } else { 1 }).enumerate() {
        for (op, args) in [("softmax", vec![x]), ("log_softmax", vec![x]), ("layer_norm", vec![x, w, w])] {
            // A number that every type represents exactly; else the exact values would be those of
            // another number.
            let eps = ("eps", AttrValue::Float(2f64.powi(-10)));
            let attrs = if op == "layer_norm" { vec![eps] } else { Vec::new() };
            let y = g.call(op, &args, &attrs).unwrap()[0];
            g.output(format!("{op} {i}"), y);
        }
    }
    let data = |rng: &mut ChaCha8Rng, n: usize| {
        let mut values: Vec<f64> = (0..rows * n).map(|_| rng.random_range(-4.0..4.0)).collect();
        for (row, odd) in [(0, f64::NEG_INFINITY), (1, f64::NAN), (2, f64::INFINITY)] {
            values[row * n + rng.random_range(0..n)] = odd;
        }
        if let Some(row) = values.get_mut(3 * n..4 * n) {
            row.fill(f64::NEG_INFINITY);
        }
        Tensor::from_f64(dtype, &[rows, n], &values).unwrap()
    };
    let inputs = [("x".to_string(), data(rng, n + 1)), ("whole".to_string(), data(rng, n))];
    let want = evaluate(&g, &inputs, Mode::Exact).unwrap();
    let (plan, executor) = executor(gpu, &g, true).unwrap();
    let got = executor.run(&inputs.map(|(_, t)| t)).unwrap();
    // Reductions are computed in f32; the smallest f16 is far above the smallest f32.
    let computed = if dtype == DType::F64 { 1e-11 } else { 4e-6 };
    let epsilon = dtype.epsilon().max(computed);
    let least = if dtype == DType::F16 { 2f64.powi(-24) } else { 0.0 };
    for ((got, want), (name, _)) in got.iter().zip(&want).zip(&g.outputs) {
        let (got, want) = (got.to_f64(), want.to_f64());
        let most = want.iter().filter(|v| v.is_finite()).fold(0.0f64, |m, v| m.max(v.abs()));
        let near = |(g, w): (&f64, &f64)| match w.is_finite() {
            true => (g - w).abs() <= epsilon * w.abs() + computed * most + least,
            false => g == w || (g.is_nan() && w.is_nan()),
        };
        let off = got.iter().zip(&want).position(|pair| !near(pair));
        let at = off.map(|i| (i, got[i], want[i]));
        assert!(at.is_none(), "{name} of {rows} rows of {n} {dtype}: {at:?}\n{plan}");
    }
}

/// Resident runs and runs into given tensors agree with a plain run and allocate no memory.
#[test]
fn resident_runs_give_the_same_and_allocate_nothing_on_a_gpu() {
    let Some(gpu) = gpu(1) else { return };
    let mut g = Graph::new(hypatia_library::load(&[]).unwrap());
    let x = g.input("x", ty(DType::F32, &[64, 96]));
    let mut y = x;
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    for _ in 0..12 {
        let weights: Vec<f64> = (0..96 * 96).map(|_| rng.random_range(-0.2..0.2)).collect();
        let w = g.constant(Tensor::from_f64(DType::F32, &[96, 96], &weights).unwrap());
        y = g.builtin(BuiltinOp::Matmul, &[y, w], vec![]).unwrap()[0];
        y = g.call("softmax", &[y], &[]).unwrap()[0];
    }
    g.output("y", y);
    g.output("x", x);
    let (_, executor) = executor(&gpu, &g, true).unwrap();
    let random = |rng: &mut ChaCha8Rng| {
        let values: Vec<f64> = (0..64 * 96).map(|_| rng.random_range(-1.0..1.0)).collect();
        vec![Tensor::from_f64(DType::F32, &[64, 96], &values).unwrap()]
    };
    let mut resident = executor.resident().unwrap();
    let mut into: Vec<Tensor> = (0..2).map(|_| Tensor::zeros(DType::F32, &[64, 96]).unwrap()).collect();
    let free = || cudarc::driver::result::mem_get_info().unwrap().0;
    // Concurrent tests allocate memory too. One round without an allocation shows that none is
    // needed.
    let mut frugal = 0;
    for _ in 0..20 {
        let inputs = random(&mut rng);
        let want = executor.run(&inputs).unwrap();
        let before = free();
        executor.run_into(&inputs, &mut into).unwrap();
        assert!(into.iter().zip(&want).all(|(a, b)| a.bytes() == b.bytes()));
        resident.upload(&inputs).unwrap();
        resident.run_on_device().unwrap();
        for (i, want) in want.iter().enumerate() {
            assert_eq!(resident.download(i).unwrap().bytes(), want.bytes(), "output {i}");
        }
        frugal += usize::from(free() == before);
    }
    assert!(frugal > 0, "every round took device memory");
    assert_eq!(resident.input(0).unwrap().address, resident.output(1).unwrap().address, "an input that is an output");
    assert!(resident.input(1).is_none() && resident.output(2).is_none() && !resident.stream().is_null());
    assert!(resident.download(2).is_err() && executor.run_into(&random(&mut rng), &mut into[..1]).is_err());
    let count = 64;
    let started = std::time::Instant::now();
    (0..count).for_each(|_| resident.run_on_device().unwrap());
    let host = started.elapsed().as_secs_f64() * 1e6 / f64::from(count);
    resident.synchronize().unwrap();
    println!("a run on the device of {} steps takes the host {host:.2} us", executor.plan().launches());
}

/// Runs over the caller's memory: aligned and not, more sets of addresses than are cached, results
/// that are inputs.
#[test]
fn runs_at_callers_addresses_give_the_same_on_a_gpu() {
    let Some(gpu) = gpu(20) else { return };
    let mut g = Graph::new(hypatia_library::load(&[]).unwrap());
    let (x, b) = (g.input("x", ty(DType::F32, &[33, 40])), g.input("b", ty(DType::F32, &[40])));
    let mut rng = ChaCha8Rng::seed_from_u64(7);
    let mut random = |shape: &[usize]| {
        let values: Vec<f64> = (0..shape.iter().product::<usize>()).map(|_| rng.random_range(-1.0..1.0)).collect();
        Tensor::from_f64(DType::F32, shape, &values).unwrap()
    };
    let w = g.constant(random(&[40, 40]));
    let y = g.builtin(BuiltinOp::Matmul, &[x, w], vec![]).unwrap()[0];
    let y = g.call("add", &[y, b], &[]).unwrap()[0];
    let y = g.call("softmax", &[y], &[]).unwrap()[0];
    g.output("y", y);
    g.output("b", b);
    let (_, executor) = executor(&gpu, &g, true).unwrap();
    let mut resident = executor.resident().unwrap();
    let stream = gpu.context().new_stream().unwrap();
    let room = |bytes: usize| DeviceMemory::new(&stream, bytes + 64).unwrap();
    // Each set of addresses needs a graph; some sets are used again.
    let sets: Vec<[DeviceMemory; 4]> = (0..20).map(|_| [33 * 40 * 4, 40 * 4, 33 * 40 * 4, 40 * 4].map(room)).collect();
    for round in 0..60usize {
        let (set, shift) = (&sets[(round * 7) % 20], if round % 3 == 1 { 4 } else { 0 });
        let inputs = [random(&[33, 40]), random(&[40])];
        let want = executor.run(&inputs).unwrap();
        let at = |i: usize| set[i].address() + shift as u64;
        for (i, input) in inputs.iter().enumerate() {
            let bytes = [vec![0; shift], input.bytes().to_vec()].concat();
            set[i].upload(&bytes).unwrap();
            set[i + 2].fill(0xff).unwrap();
        }
        stream.synchronize().unwrap();
        // SAFETY: the memory is as large as the plan's types, and lives on.
        unsafe { resident.run_at(&[at(0), at(1)], &[at(2), at(3)]) }.unwrap();
        resident.synchronize().unwrap();
        for (i, want) in want.iter().enumerate() {
            let mut got = vec![0; want.bytes().len()];
            set[i + 2].download(shift, &mut got).unwrap();
            assert_eq!(got, want.bytes(), "output {i} of round {round}");
        }
    }
    let [x, b, y, c] = [0, 1, 2, 3].map(|i| sets[0][i].address());
    for (inputs, outputs, says) in [
        (&[x][..], &[y, c][..], "the plan has 2 inputs and 2 outputs, but 1 and 2 addresses were given"),
        (&[x, b], &[y, 0], "cannot start at the address 0x0"),
        (&[x, b + 2], &[y, c], "cannot start at the address"),
    ] {
        // SAFETY: nothing is run.
        let wrong = unsafe { resident.run_at(inputs, outputs) }.unwrap_err().to_string();
        assert!(wrong.contains(says), "{wrong}");
    }
}

/// Every layout of a product's operands that is a view, with the library's epilogues and others.
#[test]
fn products_of_every_layout_agree_with_the_reference_on_a_gpu() {
    let floats = [DType::F32, DType::F64, DType::F16, DType::BF16];
    let shapes = [(1, 1, 1), (1, 8, 16), (5, 7, 3), (16, 1, 8), (64, 32, 96), (33, 17, 129)];
    let cases = floats.len() * shapes.len() * 8;
    let Some(gpu) = gpu(cases) else { return };
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    let mut random = |dtype: DType, shape: &[usize]| {
        let values: Vec<f64> = (0..shape.iter().product()).map(|_| rng.random_range(-1.0..1.0)).collect();
        Tensor::from_f64(dtype, shape, &values).unwrap()
    };
    for dtype in floats {
        for (m, n, k) in shapes {
            for form in 0..8 {
                let (turn_a, turn_b, epilogue) = (form & 1 > 0, form & 2 > 0, form & 4 > 0);
                let mut g = Graph::new(program());
                let a = if turn_a { [2, k, m] } else { [2, m, k] };
                let b = if turn_b { vec![n, k] } else { vec![k, n] };
                let inputs = [("a", a.to_vec()), ("b", b), ("bias", vec![n])]
                    .map(|(name, shape)| (name.to_string(), random(dtype, &shape)));
                let [mut x, mut y, bias] =
                    [0, 1, 2].map(|i: usize| g.input(inputs[i].0.clone(), ty(dtype, inputs[i].1.shape())));
                if turn_a {
                    x = g.builtin(BuiltinOp::Transpose, &[x], vec![list(&[0, 2, 1])]).unwrap()[0];
                }
                if turn_b {
                    y = g.builtin(BuiltinOp::Transpose, &[y], vec![list(&[1, 0])]).unwrap()[0];
                }
                let out = if epilogue { biased(&mut g, [x, y, bias], dtype) } else { plain(&mut g, [x, y]) };
                g.output("y".to_string(), out);
                let what = format!("{dtype} {m}x{n}x{k}, form {form}");
                agrees(&gpu, &g, &inputs, &what).unwrap_or_else(|why| panic!("{what}: {why}"));
            }
        }
    }
}

/// A product whose algorithm is measured, then taken from the cache, then from a file, then
/// measured again because the library rejects the file's algorithm.
#[test]
fn choices_are_kept_and_checked_on_a_gpu() {
    let Some(gpu) = gpu(4) else { return };
    let mut g = Graph::new(program());
    let [x, y] = ["x", "y"].map(|name| g.input(name, ty(DType::F32, &[128, 128])));
    let out = plain(&mut g, [x, y]);
    g.output("z", out);
    let plan = Arc::new(pipeline::plan(&g, &Options::new(gpu.profile())).unwrap());
    let folder = tempfile::tempdir().unwrap();
    let store = |name: &str| Arc::new(Store::open(&folder.path().join(name), Kind::Choice));
    let start = |name: &str, file: &TuningFile| {
        let tuner = Tuner::with_store(store(name), Duration::from_secs(60), Effort::Unknown);
        let mut tuner = tuner.with_file(file.clone());
        let executor = Executor::new(plan.clone(), gpu.clone(), &mut tuner).unwrap();
        (tuner.counts(), tuner.choices().cloned().collect::<Vec<_>>(), tuner.rejected().len(), executor.origins())
    };
    let none = TuningFile::default();
    let (counts, choices, ..) = start("one", &none);
    assert_eq!(counts, Counts { measured: 1, ..Counts::default() });
    let (counts, again, _, origins) = start("one", &none);
    assert_eq!((counts, origins.compiled), (Counts { cached: 1, ..Counts::default() }, 0));
    assert_eq!(again, choices);
    let mut file = TuningFile::default();
    file.insert(choices[0].clone());
    let (counts, ..) = start("two", &file);
    assert_eq!(counts, Counts { file: 1, ..Counts::default() });
    file.insert(Choice { algorithm: [u64::MAX; 8], ..choices[0].clone() });
    let (counts, _, rejected, _) = start("three", &file);
    assert_eq!((counts, rejected), (Counts { measured: 1, ..Counts::default() }, 1));
}

fn plain(g: &mut Graph, [x, y]: [hypatia_graph::Value; 2]) -> hypatia_graph::Value {
    g.builtin(BuiltinOp::Matmul, &[x, y], vec![]).unwrap()[0]
}

/// `gelu(acc + row(bias))`
fn biased(g: &mut Graph, [x, y, bias]: [hypatia_graph::Value; 3], dtype: DType) -> hypatia_graph::Value {
    let p = g.program.clone();
    let mut t = Term::empty();
    let acc = t.add(TermNode::Acc);
    let read = t.add(TermNode::In { input: 0, view: InView::Broadcast });
    let sum = t.add(TermNode::Call { scalar: p.builtin_scalar(BuiltinScalar::Add).unwrap(), args: vec![acc, read] });
    let root = t.add(TermNode::Call { scalar: p.find_scalar("gelu").unwrap(), args: vec![sum] });
    t.roots.push(root);
    let gemm = p.builtin_op(BuiltinOp::Gemm).unwrap();
    g.op(gemm, &[Some(x), Some(y), Some(bias)], vec![AttrValue::DType(dtype)], Some(t)).unwrap()[0]
}

/// Planted faults for a sanitizer to find. If it misses these, its silence about other code means
/// nothing. They run only if `HYPATIA_PLANT` requests them.
mod planted {
    use hypatia_templates::cuda::Geometry;

    use super::*;
    use crate::address::{Bases, Location};
    use crate::kernel::{Argument, KernelLaunch};
    use crate::memory::DeviceMemory;
    use hypatia_plan::Storage;

    const SOURCE: &str = r#"
extern "C" __global__ void hypatia_past_the_end(int* p) { p[blockDim.x + threadIdx.x] = 1; }
extern "C" __global__ void hypatia_race(int* p) {
  __shared__ int x[1];
  if (threadIdx.x % 32 == 0) x[0] = threadIdx.x;
  p[threadIdx.x] = x[0];
}
extern "C" __global__ void hypatia_unwritten(int* p) { p[0] = p[1] + 1; }
"#;

    fn plant(kernel: &str) {
        if std::env::var_os("HYPATIA_PLANT").is_none() {
            println!("SKIPPED: a fault on purpose, for sanitizers");
            return;
        }
        let gpu = gpu(1).unwrap();
        let (modules, _) = crate::cubin::codes(&gpu, &[SOURCE.to_string()]).unwrap().load(&gpu).unwrap();
        let stream = gpu.context().new_stream().unwrap();
        let memory = DeviceMemory::new(&stream, 64 * 4).unwrap();
        let at = Argument::Address(Location { storage: Storage::Arena(0), outside: None, bytes: 0 });
        let function = modules[0].load_function(kernel).unwrap();
        let launch = KernelLaunch::new(function, Geometry::Declared, ([[1, 1, 1], [64, 1, 1]], 0), vec![at]).unwrap();
        let none = || vec![];
        let (inputs, constants, transposed, arena) = (none(), none(), none(), memory.address());
        let bases = Bases {
            inputs,
            constants,
            transposed,
            outputs: vec![],
            arena,
            workspace: 0,
            sums: 0,
            lists: 0,
            reports: 0,
        };
        // SAFETY: none: this is the fault that is to be found. It stays in the allocation's page.
        unsafe { launch.launch(&stream, &bases, false) }.unwrap();
        stream.synchronize().unwrap();
    }

    #[test]
    fn past_the_end() {
        plant("hypatia_past_the_end");
    }

    #[test]
    fn race() {
        plant("hypatia_race");
    }

    #[test]
    fn unwritten() {
        plant("hypatia_unwritten");
    }
}
