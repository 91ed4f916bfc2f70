//! Products of few rows with an epilogue, against the reference: every tiling that the library
//! declares, rows from 1 to 32, ragged sizes, both orders of the right factor, batches, all kinds
//! of operands.
use std::sync::Arc;

use hypatia_dsl::dtype::DType;
use hypatia_dsl::kernel::{GemvTiling, StoredTiling};

use super::emulated::{self, Case};
use super::pair;
use super::tiled::{Inputs, agrees_by, case, source, tiled_step};
use super::{cases, gpu, planned};
use crate::lowering::product::GeneratedProduct;
use crate::lowering::timed::Timed;
use crate::{Gpu, tiled};
use hypatia_eval::{Mode, evaluate};
use hypatia_graph::Graph;
use hypatia_pipeline as pipeline;
use hypatia_plan::{Options, Plan};
use hypatia_target::device::Device;
use hypatia_templates::instances::Body;
use hypatia_testing::random::{coarsest, compare};

/// Products, rows, columns, length of the sums.
const SHAPES: [[usize; 4]; 9] = [
    [1, 1, 64, 256],
    [1, 1, 40, 8],
    [1, 7, 104, 520],
    [1, 8, 200, 264],
    [2, 3, 72, 96],
    [3, 1, 16, 1032],
    [1, 13, 88, 328],
    [1, 16, 24, 136],
    [1, 29, 48, 72],
];
/// Rows of the right factor that begin at no access, where k is its dense axis.
const UNEVEN: [[usize; 4]; 3] = [[1, 1, 131, 264], [1, 5, 33, 72], [2, 17, 7, 40]];
const EPILOGUES: [&str; 7] =
    ["silu", "bias, gelu", "gate, residual", "gate", "column, residual", "column", "number, select"];

/// What becomes of two products.
const OF_PAIRS: [&str; 6] = ["swiglu", "geglu", "sum", "biases", "residual", "scaled"];

/// The tilings that the library declares for that kernel.
fn declared(kernel: &str) -> Vec<GemvTiling> {
    let some = planned(&ampere(), &case(DType::BF16, SHAPES[0], [false, true], "silu").0);
    GemvTiling::all(&some.program.kernels.iter().find(|k| k.name == kernel).unwrap().tune)
}

fn ampere() -> Device {
    Device::named("a100").unwrap()
}

fn hopper() -> Device {
    Device::named("h200").unwrap()
}

pub(super) fn optimized(device: &Device, graph: &Graph) -> Graph {
    let options = hypatia_optimize::Options { device: device.clone(), ..hypatia_optimize::Options::default() };
    pipeline::optimize(graph, &options).unwrap().graph
}

/// A product with an epilogue, one for each number.
fn numbered(at: usize) -> (String, DType, (Graph, Inputs)) {
    let dtype = if at.is_multiple_of(3) { DType::F16 } else { DType::BF16 };
    let by_k = at.is_multiple_of(2);
    let shapes = if by_k { [&SHAPES[..], &UNEVEN].concat() } else { SHAPES.to_vec() };
    let (shape, epilogue) = (shapes[at / 2 % shapes.len()], EPILOGUES[at % EPILOGUES.len()]);
    let what = format!("{dtype} {shape:?} {} {epilogue}", if by_k { "by k" } else { "by columns" });
    (what, dtype, case(dtype, shape, [false, by_k], epilogue))
}

/// Two products of one left operand, likewise.
fn numbered_pair(at: usize) -> (String, (Graph, Inputs)) {
    let dtype = if at.is_multiple_of(3) { DType::F16 } else { DType::BF16 };
    let (by_k, shape, epilogue) = (at.is_multiple_of(2), SHAPES[at / 2 % SHAPES.len()], OF_PAIRS[at % OF_PAIRS.len()]);
    let what = format!("{dtype} {shape:?} {} {epilogue}", if by_k { "by k" } else { "by columns" });
    (what, pair::case(dtype, shape, [false, by_k], epilogue))
}

/// True if a plan is one product of few rows for which this tiling fits.
fn fits(plan: &Plan, tiling: &StoredTiling) -> bool {
    let Some((step, e)) = tiled_step(plan) else { return false };
    let timed = Timed::of(plan, (step, e, tiled::kernel(plan, step).unwrap()));
    timed.is_some_and(|t| t.launches(tiling).iter().any(|(body, _)| matches!(body, Body::Gemv(_))))
}

#[test]
fn a_product_of_few_rows_reads_as_one_would_write_it() {
    if !std::path::Path::new(env!("CARGO_MANIFEST_DIR")).exists() {
        return eprintln!("SKIPPED: a golden file, where there are no sources");
    }
    let (graph, _) = case(DType::BF16, [1, 2, 512, 256], [false, true], "bias, silu, residual");
    let plan = planned(&ampere(), &graph);
    insta::assert_snapshot!(source(&plan, &GemvTiling::named(&[]).unwrap().words()).unwrap().text);
}

/// Runs cases on a host by one tiling each, and compares the results with the reference.
fn agree_on_a_host(device: &Device, tiling: GemvTiling, mut next: impl FnMut() -> (String, (Graph, Inputs))) -> bool {
    let (mut all, mut known) = (Vec::new(), Vec::new());
    // A tiling of one product may have too many sums or words for two.
    for _ in 0..40 {
        if all.len() == 3 {
            break;
        }
        let (what, (graph, inputs)) = next();
        let better = optimized(device, &graph);
        if fits(&pipeline::plan(&better, &Options::new(device.clone())).unwrap(), &tiling.words()) {
            all.push(Case { what: format!("{tiling:?} {what}"), graph: better, inputs: inputs.clone() });
            known.push((graph, inputs));
        }
    }
    let ran = match emulated::run_tiled(&all, &Options::new(device.clone()), Some(tiling.words())) {
        Ok(ran) => ran,
        Err(why) => {
            eprintln!("SKIPPED: {why}");
            return false;
        }
    };
    for ((ran, case), (graph, inputs)) in ran.into_iter().zip(&all).zip(&known) {
        let (_, got) = ran.unwrap_or_else(|| panic!("{} has no kernel", case.what));
        let want = evaluate(graph, inputs, Mode::Rounded).unwrap();
        compare(&got[0], &want[0].to_tensor().unwrap(), want[0].dtype, coarsest(graph), &case.what);
    }
    true
}

/// On a host, where a compiler takes seconds for each of these: what each thread reads and
/// multiplies, the sums, the epilogue. Every other tiling has each value of each parameter.
#[test]
fn tilings_agree_with_the_reference_on_a_host() {
    let mut at = 0;
    let mut next = || {
        at += 5;
        let (what, _, case) = numbered(at);
        (what, case)
    };
    let all = declared("tiles").into_iter().step_by(3);
    all.map_while(|tiling| agree_on_a_host(&ampere(), tiling, &mut next).then_some(())).for_each(drop);
}

/// Likewise of two products of one left operand.
#[test]
fn tilings_of_pairs_agree_with_the_reference_on_a_host() {
    let mut at = 0;
    let mut next = || {
        at += 5;
        numbered_pair(at)
    };
    let all = declared("pair_tiles").into_iter().step_by(5);
    all.map_while(|tiling| agree_on_a_host(&hopper(), tiling, &mut next).then_some(())).for_each(drop);
}

#[test]
fn every_tiling_of_few_rows_agrees_with_the_reference_on_a_gpu() {
    let (all, pairs) = (declared("tiles"), declared("pair_tiles"));
    let Some(gpu) = gpu((all.len() + pairs.len()) * 8) else { return };
    let mut ran = [0; 2];
    let mut agree = |of_pairs: bool, tiling: &GemvTiling, what: String, case: (Graph, Inputs)| {
        if fits(&planned(&gpu.profile(), &case.0), &tiling.words()) {
            let agrees = agrees_by(&gpu, &case, &tiling.words(), &format!("{tiling:?} {what}"));
            ran[usize::from(of_pairs)] += usize::from(agrees);
        }
    };
    for (i, tiling) in all.iter().enumerate().take(cases(1000) as usize) {
        for at in i * 8..i * 8 + 8 {
            let (what, _, case) = numbered(at);
            agree(false, tiling, what, case);
        }
    }
    for (i, tiling) in pairs.iter().enumerate().take(cases(1000) as usize) {
        for at in i * 8..i * 8 + 8 {
            let (what, case) = numbered_pair(at);
            agree(true, tiling, what, case);
        }
    }
    println!("{} products of few rows agree, and {} pairs", ran[0], ran[1]);
    assert!(ran[0] > 0 && (ran[1] > 0 || gpu.profile().sm != 90));
}

/// They compile for Ampere.
#[test]
fn products_of_few_rows_compile() {
    let Some(compiler) = super::compiler() else { return };
    let compiles = |device: Device, arch: &str, tiling: &GemvTiling, graph: Graph| {
        let plan = planned(&device, &graph);
        if fits(&plan, &tiling.words()) {
            compiler.compile(&source(&plan, &tiling.words()).unwrap().text, "k.cu", arch).unwrap();
        }
    };
    for (i, tiling) in declared("tiles").iter().enumerate().step_by(3) {
        compiles(ampere(), "sm_80", tiling, numbered(i).2.0);
    }
    for (i, tiling) in declared("pair_tiles").iter().enumerate().step_by(4) {
        compiles(hopper(), "sm_90a", tiling, numbered_pair(i).1.0);
    }
}

/// Few rows are timed by this template first, beside the library too, unless a product is checked
/// or is small.
#[test]
fn few_rows_take_their_own_template() {
    let first = |shape: [usize; 4], epilogue: &str| {
        let (graph, _) = case(DType::BF16, shape, [false, true], epilogue);
        let plan = planned(&hopper(), &graph);
        let (step, e) = tiled_step(&plan)?;
        let product =
            GeneratedProduct::of(&plan, e.product().unwrap(), &step.reads[..e.reads], &step.writes[..1]).unwrap();
        let all = product.plausible(tiled::kernel(&plan, step).unwrap(), 132);
        Some(GemvTiling::of_words(&all[0]).is_some())
    };
    assert_eq!(first([1, 1, 2048, 2048], "bias"), Some(true));
    assert_eq!(first([1, 16, 5632, 2048], "gate"), Some(true));
    assert_eq!(first([1, 256, 2048, 2048], "gate"), Some(false));
    // The library has this epilogue, and compiling takes longer than it could gain.
    assert_eq!(first([1, 1, 32, 64], "bias"), None);
}

/// Times of tilings, in the order of their predictions: a measurement, not a test.
#[test]
#[ignore = "a measurement"]
fn few_rows_are_timed_on_a_gpu() {
    let Some(gpu) = gpu(1) else { return };
    for (pair, shape) in [
        (false, [1, 1, 2048, 2048]),
        (false, [1, 1, 512, 2048]),
        (false, [1, 1, 2048, 5504]),
        (true, [1, 1, 5504, 2048]),
        (false, [1, 1, 32000, 2048]),
        (false, [1, 1, 4096, 4096]),
        (false, [1, 1, 4096, 14336]),
        (false, [1, 16, 4096, 4096]),
    ] {
        let [_, m, n, k] = shape;
        let bytes = (n * k * if pair { 2 } else { 1 } + m * (n + k)) * 2;
        let graph = match pair {
            true => pair::case(DType::BF16, shape, [false, true], "swiglu").0,
            false => case(DType::BF16, shape, [false, true], "residual").0,
        };
        time_tilings(&gpu, &graph, bytes, &format!("{shape:?} pair {pair}"));
    }
}

/// Prints the times of a product's tilings in the order of their predictions, where the L2 cache
/// does not hold its operands.
pub(super) fn time_tilings(gpu: &Arc<Gpu>, graph: &Graph, bytes: usize, what: &str) {
    let mut plan = Plan::clone(&planned(&gpu.profile(), graph));
    // A model that the L2 cache cannot hold.
    let mut filler = plan.inputs[0].clone();
    filler.shape = vec![32 << 20];
    plan.inputs.push(filler);
    let (step, e) = tiled_step(&plan).unwrap();
    let timed = Timed::of(&plan, (step, e, tiled::kernel(&plan, step).unwrap())).unwrap();
    let at = step.kernel.unwrap().index();
    let all = timed.plausible(&plan.program.kernels[at], gpu.multiprocessors());
    println!("{what}: {} KiB, {:.2} us at 4.4 TB/s", bytes >> 10, bytes as f64 / 4.4e6);
    for (place, words) in all.into_iter().enumerate() {
        let Some(tiling) = GemvTiling::of_words(&words) else { continue };
        let mut plan = Plan::clone(&plan);
        let program = Arc::make_mut(&mut plan.program);
        let one = |name: &str, value: usize| (name.to_string(), vec![value as i64]);
        program.kernels[at].tune =
            vec![one("tile_n", tiling.columns), one("warps", tiling.warps), one("unroll", tiling.unroll)];
        let mut tuner = crate::tuner::Tuner::without_cache(std::time::Duration::from_secs(60));
        crate::exec::Executor::new(plan.into(), gpu.clone(), &mut tuner).unwrap();
        for c in tuner.choices() {
            let (us, first) = (c.us.unwrap_or(f64::NAN), c.first_us.unwrap_or(f64::NAN));
            println!("  {place} {tiling:?} {us:.2} us, {:.2} TB/s; the parts {first:.2} us", bytes as f64 / us / 1e6);
        }
    }
}
