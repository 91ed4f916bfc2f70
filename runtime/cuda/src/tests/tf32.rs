//! Products in f32, with any epilogue in one launch: as they are, by the template of warps; by both
//! templates with factors that are rounded to TF32, where a run asks for it. Then results are those
//! of factors that are rounded to the nearest number, not cut off.
#![allow(clippy::unwrap_used)]
use std::sync::Arc;
use std::time::Duration;

use hypatia_dsl::dtype::DType;
use hypatia_dsl::kernel::{StoredTiling, Tiling, WarpTiling};
use hypatia_eval::{Mode, evaluate};
use hypatia_target::device::Device;
use hypatia_tensor::tensor::Tensor;

use super::tiled::{Inputs, agrees_by, all_tilings, case, compared, forced, source, spread, tiled_step};
use super::{cases, emulated, gpu, planned};
use crate::tuner::Tuner;
use crate::{Executor, Gpu};

/// Products, rows, columns, length of the sums: long ones, so that roundings to the nearest number
/// cancel.
const SHAPES: [[usize; 4]; 4] = [[1, 128, 128, 256], [1, 304, 520, 1000], [2, 200, 264, 420], [1, 65, 1024, 512]];
/// Both orders in which the dense axis is k, of both factors, and one that only warps multiply.
const ORDERS: [[bool; 2]; 2] = [[false, true], [true, false]];
const EPILOGUES: [&str; 3] = ["residual", "number", "bias, relu"];

fn on(name: &str) -> Device {
    Device::named(name).unwrap().with_tf32(true)
}

/// A product of numbers above zero: cutting off would make each of its results smaller.
fn positive(shape: [usize; 4], order: [bool; 2], epilogue: &str) -> (hypatia_graph::Graph, Inputs) {
    let (graph, mut inputs) = case(DType::F32, shape, order, epilogue);
    for (_, t) in &mut inputs {
        let values: Vec<f64> = t.to_f64().iter().map(|v| v.abs()).collect();
        *t = Tensor::from_f64(DType::F32, t.shape(), &values).unwrap();
    }
    (graph, inputs)
}

#[test]
fn products_in_tf32_are_one_launch_where_a_run_asks_for_it() {
    for (name, shape) in [("h200", SHAPES[0]), ("h200", [1, 65, 131, 75]), ("a100", SHAPES[1])] {
        let (graph, _) = case(DType::F32, shape, [false, true], "bias, silu, residual");
        let plan = planned(&on(name), &graph);
        assert!(plan.steps.len() == 1 && tiled_step(&plan).is_some(), "{name}\n{plan}");
        let plan = planned(&Device::named(name).unwrap(), &graph);
        assert!(plan.steps.len() == 1 && tiled_step(&plan).is_some(), "{name}\n{plan}");
        // Nothing is rounded where nobody asked for it.
        let [hopper, warps] = all_tilings(&plan);
        assert!(hopper.iter().all(|t| source(&plan, t).is_none()), "{name}");
        let texts: Vec<String> = warps.iter().filter_map(|t| source(&plan, t)).map(|s| s.text).collect();
        assert!(!texts.is_empty() && texts.iter().all(|t| !t.contains("tf32")), "{name}");
    }
    let rounded = |tilings: &[StoredTiling]| {
        let plan = planned(&on("h200"), &case(DType::F32, SHAPES[0], [false, true], "silu").0);
        tilings.iter().find_map(|t| source(&plan, t)).unwrap().text
    };
    let plain = |t: Option<StoredTiling>| vec![t.unwrap()];
    assert!(rounded(&plain(Tiling::named(&[]).map(|t| t.words()))).contains("k8.f32.tf32.tf32"));
    assert!(rounded(&plain(WarpTiling::named(&[]).map(|t| t.words()))).contains("tf32"));
}

#[test]
fn products_in_tf32_agree_with_exact_values_on_a_gpu() {
    let some = planned(&on("h200"), &case(DType::F32, SHAPES[0], [false, true], "silu").0);
    let tilings = all_tilings(&some);
    let Some(gpu) = gpu(tilings.iter().map(Vec::len).sum()) else { return };
    for (tilings, what) in tilings.iter().zip(["Hopper's", "warps'"]) {
        let most = cases(30) as usize;
        let ran: usize = spread(tilings, most).enumerate().map(|(at, t)| agrees(&gpu, at, t)).sum();
        println!("{ran} products in TF32 agree by {what} template");
        assert!(ran > 0 || (what == "Hopper's" && gpu.profile().sm != 90));
    }
}

/// Runs a product by that tiling, twice over poisoned memory; 0 if the tiling does not fit.
fn agrees(gpu: &Arc<Gpu>, at: usize, tiling: &StoredTiling) -> usize {
    let (shape, order, epilogue) = (SHAPES[at % SHAPES.len()], ORDERS[at % 5 / 4], EPILOGUES[at % EPILOGUES.len()]);
    let (graph, inputs) = positive(shape, order, epilogue);
    let plan = planned(&gpu.profile().with_tf32(true), &graph);
    let Some(file) = tiled_step(&plan).and_then(|_| forced(gpu, &plan, tiling)) else { return 0 };
    let what = format!("{tiling:?} {shape:?} {order:?} {epilogue}");
    let mut tuner = Tuner::without_cache(Duration::ZERO).with_file(file);
    let executor = Executor::new(plan.clone(), gpu.clone(), &mut tuner).unwrap().poisoned();
    assert_eq!((executor.launches(), tuner.counts().file), (1, 1), "{what}\n{plan}");
    let tensors: Vec<Tensor> = inputs.iter().map(|(_, t)| t.clone()).collect();
    let [first, second] = [0, 1].map(|_| executor.run(&tensors).unwrap().remove(0));
    assert_eq!(first.bytes(), second.bytes(), "{what}: runs differ");
    let want = evaluate(&graph, &inputs, Mode::Exact).unwrap()[0].to_f64();
    // A factor is off by at most half a unit of 2^-10, either way: over more than 200 terms that is
    // less than a fifth of it. Cut off factors would be too small by a whole unit together.
    let worst = first.to_f64().iter().zip(&want).map(|(got, want)| (got - want).abs() / want.abs()).fold(0.0, f64::max);
    assert!(worst <= 2f64.powi(-12), "{what}: off by {worst:e}");
    1
}

/// Every order of both factors, rows that begin at any element, ragged tiles, sums of groups of
/// warps.
const EXACT: [[usize; 4]; 5] = [[1, 65, 131, 75], [2, 40, 100, 90], [3, 7, 9, 5], [1, 70, 64, 1], [1, 128, 72, 96]];
const LARGE: [[usize; 4]; 5] =
    [[1, 304, 520, 1000], [1, 128, 128, 256], [2, 200, 264, 420], [1, 65, 1024, 512], [1, 1000, 300, 77]];
const ALL_ORDERS: [[bool; 2]; 4] = [[false, true], [false, false], [true, false], [true, true]];
const ANY: [&str; 4] = ["bias, gelu", "gate, residual", "column", "number, select"];

#[test]
fn emulated_products_in_f32_agree_with_the_reference() {
    let named = |values: &[(&str, i64)]| WarpTiling::named(values).unwrap().words();
    for tiling in [named(&[]), named(&[("tile_m", 32), ("tile_n", 32), ("tile_k", 64), ("split_k", 2), ("stages", 3)])]
    {
        let of = |at: usize| {
            let (shape, order, epilogue) = (EXACT[at % 5], ALL_ORDERS[at % 4], ANY[at / 4 % 4]);
            let (graph, inputs) = case(DType::F32, shape, order, epilogue);
            emulated::Case { what: format!("{tiling:?} {shape:?} {order:?} {epilogue}"), graph, inputs }
        };
        let all: Vec<emulated::Case> = (0..10).map(of).collect();
        let made = match emulated::run_tiled(
            &all,
            &hypatia_plan::Options::new(Device::named("a100").unwrap()),
            Some(tiling),
        ) {
            Ok(made) => made,
            Err(why) => return println!("SKIPPED {} emulated products: {why}", all.len()),
        };
        for (case, made) in all.iter().zip(made) {
            let (plan, got) = made.unwrap_or_else(|| panic!("{}: not run", case.what));
            assert!(tiled_step(&plan).is_some(), "{}\n{plan}", case.what);
            compared(&got, &case.graph, &case.inputs, &case.what);
        }
    }
}

#[test]
fn products_in_f32_agree_with_the_reference_on_a_gpu() {
    let some = planned(&Device::named("h200").unwrap(), &case(DType::F32, SHAPES[0], [false, true], "silu").0);
    let [_, warps] = all_tilings(&some);
    let Some(gpu) = gpu(warps.len()) else { return };
    let mut ran = 0;
    for (at, tiling) in spread(&warps, cases(60) as usize).enumerate() {
        let (shape, order, epilogue) = ([EXACT, LARGE][at % 2][at % 5], ALL_ORDERS[at % 4], ANY[at / 4 % 4]);
        let what = format!("{tiling:?} {shape:?} {order:?} {epilogue}");
        ran += usize::from(agrees_by(&gpu, &case(DType::F32, shape, order, epilogue), tiling, &what));
    }
    println!("{ran} products in f32 agree");
    assert!(ran > 0);
}
