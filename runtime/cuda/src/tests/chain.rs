//! Products in turn in one kernel, against the reference: every tiling, 2 to 8 layers of even and
//! ragged widths, both orders of weights, rows of biases, numbers and several scalars, poisoned
//! results; what keeps products apart; the measured choice.
use std::sync::Arc;
use std::time::Duration;

use hypatia_dsl::dtype::DType;
use hypatia_dsl::kernel::chain::ChainTiling;

use super::tiled::{Case, Inputs, agrees_by, check, source, tiled_step};
use super::{cases, gpu, planned};
use crate::Executor;
use crate::nvrtc::{Nvrtc, NvrtcError};
use crate::tuner::{Effort, Tuner};
use hypatia_dsl::builtin::BuiltinOp;
use hypatia_graph::{Graph, Value};
use hypatia_plan::{Action, CallStep, Called, Plan};
use hypatia_target::device::Device;
use hypatia_testing::list;

/// Rows, and widths from the input to the result.
const SHAPES: [(usize, &[usize]); 9] = [
    (200, &[64, 64, 64, 64, 64]),
    (1, &[128, 128, 128]),
    (65, &[16, 16, 16, 16, 16, 16, 16, 16, 16]),
    (300, &[256, 256, 256]),
    (63, &[40, 24, 104, 200, 8]),
    (17, &[64, 256, 64]),
    (129, &[8, 80, 48, 24]),
    (33, &[37, 23, 100, 7]),
    (257, &[128, 96, 33, 1]),
];
/// The functions of the layers, in turn.
const SCALARS: [&[&str]; 5] =
    [&["relu"], &["gelu", "silu"], &["tanh", "scaled", "exp"], &["sigmoid", "none"], &["scaled", "mish"]];

/// Products in turn with biases and these functions; the last one has a bias alone.
fn case(dtype: DType, (rows, widths): (usize, &[usize]), by_k: bool, scalars: &[&str]) -> (Graph, Inputs) {
    let mut c = Case::new(dtype);
    let x = c.input(&[rows, widths[0]]);
    let y = layers(&mut c, x, widths, by_k, scalars);
    c.graph.output("y", y);
    (c.graph, c.inputs)
}

fn layers(c: &mut Case, x: Value, widths: &[usize], by_k: bool, scalars: &[&str]) -> Value {
    let mut y = x;
    for (l, pair) in widths.windows(2).enumerate() {
        let weight = c.factor(1, [pair[0], pair[1]], by_k);
        let scale = c.input(&[1]);
        y = c.graph.builtin(BuiltinOp::Matmul, &[y, weight], vec![]).unwrap()[0];
        // Sums of about one.
        let bias = c.input(&[pair[1]]);
        y = c.call("add", &[y, bias]);
        if l + 2 < widths.len() {
            y = match scalars[l % scalars.len()] {
                "none" => y,
                "scaled" => c.call("mul", &[y, scale]),
                name => c.call(name, &[y]),
            };
        }
    }
    y
}

/// The numbers of products of the chains of a plan.
fn chains(plan: &Plan) -> Vec<usize> {
    let of = |action: &Action| match action {
        Action::Call(CallStep { called: Called::Chain(layers), .. }) => Some(layers.len()),
        _ => None,
    };
    plan.steps.iter().filter_map(|s| of(&s.action)).collect()
}

fn device(name: &str) -> Device {
    Device::named(name).unwrap()
}

#[test]
fn products_in_turn_are_one_step_on_gpus_with_matrix_units() {
    for (i, shape) in SHAPES.into_iter().enumerate() {
        for target in ["h200", "a100"] {
            let plan = planned(&device(target), &case(DType::BF16, shape, i % 2 == 0, SCALARS[i % 5]).0);
            assert_eq!((plan.steps.len(), chains(&plan)), (1, vec![shape.1.len() - 1]), "{shape:?} {target}\n{plan}");
            let (_, call) = tiled_step(&plan).unwrap();
            assert_eq!(call.fallback.len(), shape.1.len() - 1, "{plan}");
        }
        let plan = planned(&device("cpu"), &case(DType::BF16, shape, false, SCALARS[i % 5]).0);
        assert_eq!(chains(&plan), [0; 0], "{plan}");
    }
}

#[test]
fn what_needs_an_intermediate_keeps_products_apart() {
    let of = |dtype: DType, widths: &[usize], change: &dyn Fn(&mut Case, Value) -> Value| {
        let mut c = Case::new(dtype);
        let x = c.input(&[64, widths[0]]);
        let h = layers(&mut c, x, &widths[..2], false, &["relu"]);
        let h = change(&mut c, h);
        let y = layers(&mut c, h, &widths[1..], false, &["relu"]);
        c.graph.output("y", y);
        chains(&planned(&device("h200"), &c.graph))
    };
    let same = |_: &mut Case, h: Value| h;
    let none: [usize; 0] = [];
    assert_eq!(of(DType::BF16, &[64, 64, 64], &same), [2]);
    assert_eq!(of(DType::F32, &[64, 64, 64], &same), none);
    assert_eq!(of(DType::BF16, &[64, 264, 64], &same), none);
    // A result of its own, another element of each row, and a result with rows of its own.
    let stored = |c: &mut Case, h: Value| {
        c.graph.output("h", h);
        h
    };
    assert_eq!(of(DType::BF16, &[64, 64, 64], &stored), none);
    assert_eq!(of(DType::BF16, &[64, 64, 64, 64], &stored), [2]);
    let residual = |c: &mut Case, h: Value| {
        let x = c.input(&[64, 64]);
        c.call("add", &[h, x])
    };
    assert_eq!(of(DType::BF16, &[64, 64, 64], &residual), none);
    let turned = |c: &mut Case, h: Value| c.graph.builtin(BuiltinOp::Transpose, &[h], vec![list(&[1, 0])]).unwrap()[0];
    assert_eq!(of(DType::BF16, &[64, 64, 64], &turned), none);
    // Long ones are divided.
    assert_eq!(of(DType::BF16, &[64; 11], &same), [8, 2]);
}

#[test]
fn a_chain_reads_as_one_would_write_it() {
    if !std::path::Path::new(env!("CARGO_MANIFEST_DIR")).exists() {
        return eprintln!("SKIPPED: a golden file, where there are no sources");
    }
    let (graph, _) = case(DType::BF16, (256, &[64, 48, 40]), true, &["silu"]);
    let plan = planned(&device("h200"), &graph);
    let tiling = ChainTiling::Groups { groups: 3, stages: 2, ring: 0 };
    insta::assert_snapshot!(source(&plan, &tiling.words()).unwrap().text);
    let tiling = ChainTiling::Warps { rows: 16, cluster: 4 };
    insta::assert_snapshot!(source(&plan, &tiling.words()).unwrap().text);
}

/// NVRTC accepts every tiling; it needs no GPU.
#[test]
fn every_tiling_of_a_chain_compiles() {
    let nvrtc = match Nvrtc::get() {
        Ok(nvrtc) => nvrtc,
        Err(NvrtcError::NotFound(_)) => return eprintln!("SKIPPED: no NVRTC"),
        Err(e) => panic!("{e}"),
    };
    let plan = |(i, shape): (usize, (usize, &'static [usize]))| {
        (shape, planned(&device("h200"), &case(DType::BF16, shape, i % 2 == 0, SCALARS[i % 5]).0))
    };
    let plans: Vec<_> = SHAPES.into_iter().enumerate().map(plan).collect();
    let mut compiled = 0;
    for (i, tiling) in ChainTiling::all().iter().enumerate() {
        let (shape, plan) = &plans[(i * 4 + 3) % plans.len()];
        if let Some(source) = source(plan, &tiling.words()) {
            let arch = if tiling.is_hopper() { "sm_90a" } else { "sm_80" };
            nvrtc.compile(&source.text, "chain.cu", arch).unwrap_or_else(|e| panic!("{tiling:?} {shape:?}: {e}"));
            compiled += 1;
        }
    }
    assert!(compiled > 12, "{compiled}");
}

#[test]
fn every_tiling_of_a_chain_agrees_with_the_reference_on_a_gpu() {
    let plans = SHAPES.map(|shape| planned(&device("h200"), &case(DType::BF16, shape, true, SCALARS[0]).0));
    let fits = |(t, i): &(ChainTiling, usize)| source(&plans[*i], &t.words()).is_some();
    let pairs = ChainTiling::all().into_iter().flat_map(|t| (0..SHAPES.len()).map(move |i| (t, i)));
    let pairs: Vec<_> = pairs.filter(fits).collect();
    let Some(gpu) = gpu(pairs.len()) else { return };
    // Fewer cases are spread over all tilings.
    let apart = pairs.len().div_ceil(cases(1000) as usize);
    let mut ran = 0;
    for (at, (tiling, shape)) in pairs.into_iter().enumerate().step_by(apart) {
        let shape = SHAPES[shape];
        let dtype = if at % 4 == 0 { DType::F16 } else { DType::BF16 };
        let (by_k, scalars) = (at % 3 != 0, SCALARS[at % SCALARS.len()]);
        let what = format!("{tiling:?} {dtype} {shape:?} by k {by_k} {scalars:?}");
        ran += usize::from(agrees_by(&gpu, &case(dtype, shape, by_k, scalars), &tiling.words(), &what));
    }
    println!("{ran} chains agree");
    assert!(ran > 0);
}

/// The quickest runs: one launch, or the products in turn.
#[test]
fn the_measured_choice_of_a_chain_agrees_on_a_gpu() {
    let Some(gpu) = gpu(4) else { return };
    let shapes: [(usize, &[usize]); 4] =
        [(65536, &[64; 5]), (256, &[256; 3]), (4096, &[256; 5]), (9001, &[128, 40, 128])];
    for shape in shapes {
        let (graph, inputs) = case(DType::BF16, shape, false, &["relu"]);
        let plan = planned(&gpu.profile(), &graph);
        let folder = tempfile::tempdir().unwrap();
        let store = hypatia_cache::Store::open(folder.path(), hypatia_cache::Kind::Choice);
        let mut tuner = Tuner::with_store(Arc::new(store), Duration::from_secs(60), Effort::Unknown);
        let executor = Executor::new(plan.clone(), gpu.clone(), &mut tuner).unwrap().poisoned();
        check(&executor, &graph, &inputs, "measured");
        let chain = tuner.choices().find(|c| c.problem.contains("chain")).unwrap();
        println!("{shape:?}: {:?} us {:?} fallback {:?}", chain.algorithm, chain.us, chain.first_us);
        assert!(chain.us <= chain.first_us);
    }
}
