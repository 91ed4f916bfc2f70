//! Checksums of products: clean products of every template, of the library, and of hostile values
//! raise no suspicion; an inverted bit of an accumulator is found, and the run repeated; a kernel
//! that is wrong is suspected again.
use std::sync::Arc;
use std::time::Duration;

use hypatia_dsl::builtin::BuiltinOp;
use hypatia_dsl::dtype::DType;
use hypatia_dsl::kernel::{StoredTiling, Tiling, WarpTiling};
use rand::prelude::*;
use rand_chacha::ChaCha8Rng;

use super::tiled::{Case, Inputs, case, forced, tiled_step};
use super::{cases, gpu, pair};
use crate::exec::Disturbance;
use crate::lowering::timed::Timed;
use crate::tuner::Tuner;
use crate::{Executor, Gpu, tiled};
use hypatia_eval::{Mode, evaluate};
use hypatia_graph::Graph;
use hypatia_pipeline as pipeline;
use hypatia_plan::{Checks, Options, Plan};
use hypatia_target::device::Device;
use hypatia_tensor::compare::{Comparison, Tolerance};
use hypatia_tensor::tensor::Tensor;
use hypatia_testing::random::{coarsest, compare};

/// Products, rows, columns, length of the sums.
const SHAPES: [[usize; 4]; 5] =
    [[1, 128, 128, 64], [1, 304, 520, 200], [2, 200, 264, 72], [1, 1, 1024, 256], [1, 72, 2200, 776]];
/// Likewise, with rows that are not whole 16 bytes.
const UNEVEN: [[usize; 4]; 4] = [[1, 65, 131, 75], [2, 200, 100, 90], [3, 7, 9, 5], [1, 301, 1257, 2]];
/// Whether each factor is transposed in memory.
const ORDERS: [[bool; 2]; 4] = [[false, true], [false, false], [true, false], [true, true]];

/// The plan of an optimised graph that is checked.
fn checked(device: &Device, graph: &Graph, checks: Checks) -> Arc<Plan> {
    let options = hypatia_optimize::Options { device: device.clone(), ..hypatia_optimize::Options::default() };
    let graph = pipeline::optimize(graph, &options).unwrap().graph;
    Arc::new(pipeline::plan(&graph, &Options { checks, ..Options::new(device.clone()) }).unwrap())
}

/// An executor of a checked plan, whose tiled step is computed by that tiling; by the library
/// without one. `None` if the tiling does not fit.
fn executor(gpu: &Arc<Gpu>, graph: &Graph, checks: Checks, tiling: Option<&StoredTiling>) -> Option<Executor> {
    let plan = checked(&gpu.profile(), graph, checks);
    let mut tuner = Tuner::without_cache(Duration::ZERO);
    if let Some(tiling) = tiling {
        tuner = tuner.with_file(tiled_step(&plan).and_then(|_| forced(gpu, &plan, tiling))?);
    }
    let executor = Executor::new(plan, gpu.clone(), &mut tuner).unwrap().poisoned();
    assert_eq!(tuner.counts().file, usize::from(tiling.is_some()), "{tiling:?} does not run");
    Some(executor)
}

fn tensors(inputs: &Inputs) -> Vec<Tensor> {
    inputs.iter().map(|(_, t)| t.clone()).collect()
}

/// A few tilings of each template, and none.
fn some_tilings() -> Vec<Option<StoredTiling>> {
    let hopper = [
        vec![("tile_m", 64), ("tile_n", 64), ("consumers", 1)],
        vec![("tile_m", 128), ("tile_n", 128), ("pingpong", 1), ("cluster_n", 2)],
        vec![("tile_m", 64), ("tile_n", 256), ("consumers", 2)],
        vec![("tile_m", 128), ("tile_n", 128), ("consumers", 1)],
        vec![("tile_m", 64), ("tile_n", 128), ("split_k", 2)],
        vec![("tile_m", 64), ("tile_n", 64), ("consumers", 1), ("split_k", 4)],
    ];
    let warps = [
        vec![("tile_m", 64), ("tile_n", 64), ("tile_k", 64)],
        vec![("tile_m", 128), ("tile_n", 128), ("tile_k", 32), ("warps", 8)],
        vec![("tile_m", 32), ("tile_n", 32), ("tile_k", 128), ("split_k", 2)],
    ];
    let hopper = hopper.iter().map(|t| Tiling::named(t).map(|t| t.words()));
    let warps = warps.iter().map(|t| WarpTiling::named(t).map(|t| t.words()));
    let all: Vec<Option<StoredTiling>> = hopper.chain(warps).collect();
    assert!(all.iter().all(Option::is_some), "{all:?}");
    all.into_iter().chain([None]).collect()
}

/// NVRTC accepts all kernels of checked products; it needs no GPU.
#[test]
fn the_kernels_of_checksums_compile() {
    let Some(compiler) = super::compiler() else { return };
    let mut compiled = 0;
    for (i, tiling) in some_tilings().iter().flatten().enumerate() {
        let device = Device::named(if Tiling::of_words(tiling).is_some() { "h200" } else { "a100" }).unwrap();
        let checks = if i % 2 == 0 { Checks::On } else { Checks::Disturbed };
        let (graph, _) = case(DType::BF16, SHAPES[1], ORDERS[i % 4], "bias, silu");
        let plan = checked(&device, &graph, checks);
        let (step, e) = tiled_step(&plan).unwrap();
        let timed = Timed::of(&plan, (step, e, tiled::kernel(&plan, step).unwrap())).unwrap();
        let launches = timed.launches(tiling);
        assert_eq!(launches.len(), 3, "the product, the sums of its right factor, the comparison");
        for (body, _) in launches {
            let source = body.emit(&plan.program).unwrap();
            compiler.compile(&source.text, "k.cu", body.only_arch().unwrap_or("sm_80")).unwrap();
            compiled += 1;
        }
    }
    for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64] {
        // A device without generated products in f32.
        let mut device = Device::named("a100").unwrap();
        device.sm = if dtype == DType::F32 { 75 } else { device.sm };
        let plan = checked(&device, &case(dtype, SHAPES[0], ORDERS[0], "relu").0, Checks::On);
        for step in &plan.steps {
            for (body, _) in crate::steps::checks_of(&plan, step) {
                compiler.compile(&body.emit(&plan.program).unwrap().text, "k.cu", "sm_80").unwrap();
                compiled += 1;
            }
        }
    }
    assert_eq!(compiled, 31);
}

/// Kernels whose accumulators nobody sees are not used where products are checked.
#[test]
fn checked_plans_show_their_accumulators() {
    for epilogue in ["relu", "bias, relu", "gelu"] {
        for device in ["h200", "a100"] {
            let device = Device::named(device).unwrap();
            let (graph, _) = case(DType::F64, SHAPES[0], ORDERS[0], epilogue);
            let plan = checked(&device, &graph, Checks::On);
            assert_eq!(plan.steps.len(), 2, "a product and a pass\n{plan}");
            let products = plan.steps.iter().filter(|s| crate::steps::checks_of(&plan, s).len() == 2).count();
            assert_eq!(products, 1, "{plan}");
            assert!(checked(&device, &graph, Checks::Off).steps.len() < 3);
        }
    }
}

#[test]
fn checked_products_agree_and_raise_no_suspicion_on_a_gpu() {
    let tilings = some_tilings();
    let Some(gpu) = gpu(tilings.len() * 9) else { return };
    let (mut ran, mut at) = (0, 0);
    for tiling in &tilings {
        for shape in SHAPES.into_iter().chain(UNEVEN) {
            at += 1;
            let dtype =
                [DType::BF16, DType::F16, DType::F32, DType::F64][if tiling.is_none() { at % 4 } else { at % 2 }];
            let epilogue = ["silu", "bias, gelu", "residual"][at % 3];
            let (graph, inputs) = case(dtype, shape, ORDERS[at % 4], epilogue);
            let Some(executor) = executor(&gpu, &graph, Checks::On, tiling.as_ref()) else { continue };
            let what = format!("{tiling:?} {dtype} {shape:?} {:?} {epilogue}", ORDERS[at % 4]);
            let want = evaluate(&graph, &inputs, Mode::Rounded).unwrap();
            let got = executor.run(&tensors(&inputs)).unwrap();
            for (got, want) in got.iter().zip(&want) {
                compare(got, &want.to_tensor().unwrap(), want.dtype, coarsest(&graph), &what);
            }
            assert_eq!(executor.suspicions(), [], "{what}");
            let notes: Vec<&str> = executor.notes().into_iter().map(|(_, note)| note).collect();
            assert!(notes.iter().any(|note| note.ends_with("checked")), "{what}: {notes:?}");
            ran += 1;
        }
    }
    for (i, epilogue) in ["swiglu", "sum", "biases"].iter().enumerate() {
        let (graph, inputs) = pair::case(DType::BF16, SHAPES[i], ORDERS[i], epilogue);
        let tiling = Tiling::named(&[("tile_m", 64), ("tile_n", 128)]).unwrap().words();
        let Some(executor) = executor(&gpu, &graph, Checks::On, Some(&tiling)) else { continue };
        executor.run(&tensors(&inputs)).unwrap();
        assert_eq!(executor.suspicions(), [], "{epilogue}");
        ran += 1;
    }
    println!("{ran} checked products agree");
    assert!(ran > 40, "{ran}");
}

/// Values that rounding hits hardest.
const HOSTILE: [&str; 7] = ["ones", "cancelling", "huge", "tiny", "nan", "infinite", "outliers"];

fn hostile(kind: &str, i: usize, random: &mut ChaCha8Rng) -> f64 {
    let sign = if i.is_multiple_of(2) { 1.0 } else { -1.0 };
    let one = random.random_range(0.5..1.0);
    match kind {
        "ones" => 1.0,
        "cancelling" => sign * (1.0 + one / 256.0),
        "huge" => sign * one * 3e4,
        "tiny" => sign * one * 1e-7,
        "nan" if i % 997 == 5 => f64::NAN,
        "infinite" if i % 997 == 5 => sign * f64::INFINITY,
        "outliers" if i.is_multiple_of(61) => 500.0 * one,
        _ => sign * one,
    }
}

#[test]
fn hostile_values_raise_no_suspicion_on_a_gpu() {
    let Some(gpu) = gpu(HOSTILE.len() * 3 * 4) else { return };
    let tilings = some_tilings();
    let mut random = ChaCha8Rng::seed_from_u64(5);
    let mut suspected = Vec::new();
    let mut ran = 0;
    for kind in HOSTILE {
        for (i, tiling) in [&tilings[1], &tilings[6], &tilings[9]].into_iter().enumerate() {
            for dtype in [DType::BF16, DType::F16, DType::F32, DType::F64] {
                let (graph, mut inputs) = case(dtype, [1, 200, 1032, 2048], ORDERS[i], "silu");
                for (_, t) in &mut inputs {
                    let len: usize = t.shape().iter().product();
                    let values: Vec<f64> = (0..len).map(|i| hostile(kind, i, &mut random)).collect();
                    *t = Tensor::from_f64(dtype, t.shape(), &values).unwrap();
                }
                let Some(executor) = executor(&gpu, &graph, Checks::On, tiling.as_ref()) else { continue };
                executor.run(&tensors(&inputs)).unwrap();
                suspected.extend(executor.suspicions().into_iter().map(|s| format!("{kind} {dtype} {i}: {s:?}")));
                ran += 1;
            }
        }
    }
    println!("{ran} hostile products");
    assert!(suspected.is_empty() && ran >= HOSTILE.len() * 7, "{ran}: {}", suspected.join("\n"));
}

/// A product of random numbers with an epilogue that hides nothing.
fn plain_case(dtype: DType, shape: [usize; 4]) -> (Graph, Inputs) {
    let [_, m, n, k] = shape;
    let mut c = Case::new(dtype);
    let (a, b, other) = (c.factor(1, [m, k], false), c.factor(1, [k, n], true), c.input(&[m, n]));
    let y = c.graph.builtin(BuiltinOp::Matmul, &[a, b], vec![]).unwrap()[0];
    let y = c.call("add", &[y, other]);
    c.graph.output("y", y);
    (c.graph, c.inputs)
}

#[test]
fn a_flipped_bit_is_found_and_the_run_repeated_on_a_gpu() {
    let tilings = some_tilings();
    let flips = cases(100) as usize;
    let Some(gpu) = gpu(tilings.len() * flips) else { return };
    let mut random = ChaCha8Rng::seed_from_u64(6);
    let (mut caught, mut all, mut large) = (0, 0, 0);
    for (i, tiling) in tilings.iter().enumerate() {
        let dtype = if i % 3 == 2 { DType::F16 } else { DType::BF16 };
        let shape = [1, 304, 520, 1000];
        let (graph, inputs) = plain_case(dtype, shape);
        let Some(executor) = executor(&gpu, &graph, Checks::Disturbed, tiling.as_ref()) else { continue };
        let inputs = tensors(&inputs);
        let want = executor.run(&inputs).unwrap();
        assert_eq!(executor.suspicions(), [], "{tiling:?}");
        let width = if tiling.is_none() { dtype.size() * 8 } else { 32 };
        for _ in 0..flips {
            let (at, bit) = ([random.random_range(0..304), random.random_range(0..520)], random.random_range(0..width));
            executor.disturb(Disturbance::Flip { at, bit: bit as u32 }).unwrap();
            let got = executor.run(&inputs).unwrap();
            let found = executor.suspicions();
            let what = format!("{tiling:?} {dtype}: bit {bit} of {at:?}");
            // The top bits of the exponent.
            large += usize::from(bit == width - 2 || bit == width - 3);
            all += 1;
            match found.as_slice() {
                [] => {
                    // Ten times the tolerance with which plans are compared.
                    let tolerance = Tolerance { rtol: 10.0 * Tolerance::of(dtype, 1).rtol, atol: None };
                    let compared = Comparison::of(&got[0], &want[0], tolerance).unwrap();
                    assert!(compared.ok, "{what} was not found: {compared}");
                }
                [one] => {
                    assert!(!one.repeated && one.at[0] == at[0] && one.at[1] <= at[1], "{what}: {one:?}");
                    assert_eq!(got[0].bytes(), want[0].bytes(), "{what}: not mended");
                    caught += 1;
                }
                more => panic!("{what}: {more:?}"),
            }
        }
    }
    println!("{caught} of {all} flipped bits found, {large} of them in the top of the exponent");
    assert!(caught >= large && large > 0);
}

#[test]
fn a_kernel_that_stays_wrong_is_suspected_again_on_a_gpu() {
    let tilings = some_tilings();
    let Some(gpu) = gpu(tilings.len()) else { return };
    for tiling in &tilings {
        let (graph, inputs) = plain_case(DType::BF16, [1, 304, 520, 1000]);
        let Some(executor) = executor(&gpu, &graph, Checks::Disturbed, tiling.as_ref()) else { continue };
        let inputs = tensors(&inputs);
        executor.run(&inputs).unwrap();
        executor.disturb(Disturbance::Double(128)).unwrap();
        executor.run(&inputs).unwrap();
        let found = executor.suspicions();
        assert!(matches!(found.as_slice(), [one] if one.repeated), "{tiling:?}: {found:?}");
        // What was judged right raises no suspicion again.
        executor.accept(found[0].step, f32::INFINITY);
        executor.run(&inputs).unwrap();
        assert_eq!(executor.suspicions(), []);
        executor.disturb(Disturbance::Nothing).unwrap();
    }
}

/// Sums of a constant weight are computed once; the launch is not among those of a run.
#[test]
fn weights_are_summed_up_once_on_a_gpu() {
    let Some(gpu) = gpu(2) else { return };
    let mut launches = Vec::new();
    for constant in [false, true] {
        let mut c = Case::new(DType::BF16);
        let x = c.factor(1, [64, 256], false);
        let w = match constant {
            false => c.factor(1, [256, 136], true),
            true => {
                let values: Vec<f64> = (0..256 * 136).map(|i| f64::from(i % 17) / 16.0 - 0.5).collect();
                c.graph.constant(Tensor::from_f64(DType::BF16, &[256, 136], &values).unwrap())
            }
        };
        let y = c.graph.builtin(BuiltinOp::Matmul, &[x, w], vec![]).unwrap()[0];
        c.graph.output("y", y);
        let executor = executor(&gpu, &c.graph, Checks::On, None).unwrap();
        for _ in 0..2 {
            executor.run(&tensors(&c.inputs)).unwrap();
            assert_eq!(executor.suspicions(), []);
        }
        launches.push(executor.launches());
    }
    assert_eq!(launches, [3, 2]);
}
