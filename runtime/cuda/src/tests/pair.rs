//! Two products of one left operand in one kernel, against the reference: every tiling that the
//! library declares, ragged sizes, both orders of all factors, batches, biases, residuals, poisoned
//! results; what keeps them apart; the measured choice.
use hypatia_dsl::builtin::BuiltinOp;
use hypatia_dsl::dtype::DType;
use hypatia_dsl::kernel::{StoredTiling, Tiling, WarpTiling};

use super::tiled::{Case, Inputs, agrees_by, measured_choice_agrees, source, tiled_step};
use super::{cases, emulated, gpu, planned};
use crate::nvrtc::{Nvrtc, NvrtcError};
use hypatia_eval::{Mode, evaluate};
use hypatia_graph::Graph;
use hypatia_plan::{Action, CallStep, Called, Plan};
use hypatia_target::device::Device;
use hypatia_testing::random::{coarsest, compare};

/// Products, rows, columns, length of the sums.
const SHAPES: [[usize; 4]; 7] = [
    [1, 128, 128, 64],
    [1, 304, 520, 200],
    [2, 200, 264, 72],
    [3, 8, 8, 8],
    [1, 1, 1024, 256],
    [1, 520, 392, 776],
    [1, 264, 72, 328],
];
/// Likewise, with rows that are not whole 16 bytes.
const UNEVEN: [[usize; 4]; 4] = [[1, 65, 132, 76], [2, 40, 100, 90], [3, 7, 9, 5], [1, 33, 200, 64]];
/// What becomes of the two products.
const EPILOGUES: [&str; 6] = ["swiglu", "geglu", "sum", "biases", "residual", "scaled"];
/// Whether the left and the right factors are transposed in memory.
const ORDERS: [[bool; 2]; 4] = [[false, true], [false, false], [true, false], [true, true]];

/// Two products with that epilogue.
pub(super) fn case(
    dtype: DType,
    [batch, m, n, k]: [usize; 4],
    [left, right]: [bool; 2],
    epilogue: &str,
) -> (Graph, Inputs) {
    let mut c = Case::new(dtype);
    let a = c.factor(batch, [m, k], left);
    let [mut gate, mut up] = [0, 1].map(|_| {
        let w = c.factor(batch, [k, n], right);
        c.graph.builtin(BuiltinOp::Matmul, &[a, w], vec![]).unwrap()[0]
    });
    if epilogue == "biases" {
        [gate, up] = [gate, up].map(|y| {
            let bias = c.input(&[n]);
            c.call("add", &[y, bias])
        });
    }
    let lead: &[usize] = if batch > 1 { &[batch] } else { &[] };
    let y = match epilogue {
        "sum" => c.call("add", &[gate, up]),
        "geglu" => {
            let gate = c.call("gelu", &[gate]);
            c.call("mul", &[gate, up])
        }
        _ => {
            let gate = c.call("silu", &[gate]);
            c.call("mul", &[gate, up])
        }
    };
    let y = match epilogue {
        "residual" => {
            let x = c.input(&[lead, &[m, n]].concat());
            c.call("add", &[y, x])
        }
        "scaled" => {
            let scale = c.input(&[lead, &[m, 1]].concat());
            let y = c.call("mul", &[y, scale]);
            c.call("tanh", &[y])
        }
        _ => y,
    };
    c.graph.output("y", y);
    (c.graph, c.inputs)
}

/// Plans for a launcher: of two products with operands of every kind.
pub(super) fn plans() -> Vec<Plan> {
    let device = Device::named("h200").unwrap();
    let plan = |epilogue: &&str| planned(&device, &case(DType::BF16, SHAPES[2], ORDERS[1], epilogue).0);
    EPILOGUES.iter().map(|e| Plan::clone(&plan(e))).collect()
}

/// The call of a plan that is two products in one launch.
fn pair(plan: &Plan) -> Option<&CallStep> {
    tiled_step(plan).map(|(_, e)| e).filter(|e| matches!(e.called, Called::Pair(_)))
}

/// The tilings that the library declares.
fn tilings(plan: &Plan) -> Vec<Tiling> {
    let kernel = plan.program.kernels.iter().find(|k| k.name == "pair_tiles").unwrap();
    Tiling::all(&kernel.tune)
}

/// Likewise, of the template of warps.
fn tilings_of_warps(plan: &Plan) -> Vec<StoredTiling> {
    let kernel = plan.program.kernels.iter().find(|k| k.name == "pair_tiles").unwrap();
    WarpTiling::all(&kernel.tune).iter().map(WarpTiling::words).collect()
}

#[test]
fn two_products_of_one_operand_are_one_step_from_ampere_on() {
    for device in ["h200", "a100"].map(|name| Device::named(name).unwrap()) {
        for (i, epilogue) in EPILOGUES.iter().enumerate() {
            for (j, shape) in SHAPES.into_iter().enumerate() {
                let plan = planned(&device, &case(DType::BF16, shape, ORDERS[(i + j) % 4], epilogue).0);
                let call = pair(&plan).unwrap_or_else(|| panic!("{epilogue} {shape:?}\n{plan}"));
                // Two products, the second of which reads the other.
                let products = call.fallback.iter().filter(|s| matches!(s.action, Action::Gemm(_) | Action::Call(_)));
                assert_eq!(products.count(), 2, "{plan}");
                assert!(tilings_of_warps(&plan).iter().any(|t| source(&plan, t).is_some()), "{epilogue} {shape:?}");
            }
        }
    }
    let apart = |device: &str, dtype: DType| {
        let plan = planned(&Device::named(device).unwrap(), &case(dtype, SHAPES[1], ORDERS[0], "swiglu").0);
        assert!(
            plan.steps.iter().all(|s| !matches!(&s.action, Action::Call(CallStep { called: Called::Pair(_), .. })))
        );
        plan.steps.len()
    };
    assert_eq!((apart("a100", DType::F64), apart("h200", DType::F64)), (3, 3));
}

#[test]
fn two_products_read_as_one_would_write_them() {
    if !std::path::Path::new(env!("CARGO_MANIFEST_DIR")).exists() {
        return eprintln!("SKIPPED: a golden file, where there are no sources");
    }
    let plan = planned(&Device::named("h200").unwrap(), &case(DType::BF16, [1, 256, 512, 256], ORDERS[0], "biases").0);
    let tiling = Tiling::named(&[("tile_m", 64), ("tile_n", 256), ("cluster_m", 2)]).unwrap();
    insta::assert_snapshot!(source(&plan, &tiling.words()).unwrap().text);
}

/// NVRTC accepts every tiling; it needs no GPU.
#[test]
fn every_tiling_of_two_products_compiles() {
    let nvrtc = match Nvrtc::get() {
        Ok(nvrtc) => nvrtc,
        Err(NvrtcError::NotFound(_)) => return eprintln!("SKIPPED: no NVRTC"),
        Err(e) => panic!("{e}"),
    };
    let device = Device::named("h200").unwrap();
    let plans = [0, 1].map(|i| planned(&device, &case(DType::BF16, SHAPES[1], ORDERS[i], EPILOGUES[3 + i]).0));
    let mut compiled = 0;
    for (i, tiling) in tilings(&plans[0]).iter().enumerate() {
        if let Some(source) = source(&plans[i % 2], &tiling.words()) {
            nvrtc.compile(&source.text, "pair.cu", "sm_90a").unwrap_or_else(|e| panic!("{tiling:?}: {e}"));
            compiled += 1;
        }
    }
    assert!(compiled > 4, "{compiled}");
}

#[test]
fn every_tiling_of_two_products_agrees_with_the_reference_on_a_gpu() {
    let some = planned(&Device::named("h200").unwrap(), &case(DType::BF16, SHAPES[0], ORDERS[0], "swiglu").0);
    let tilings = tilings(&some);
    let Some(gpu) = gpu(tilings.len() * SHAPES.len()) else { return };
    if gpu.profile().sm != 90 {
        return eprintln!("SKIPPED: not Hopper");
    }
    // Some tilings are for single products.
    let tilings: Vec<Tiling> = tilings.into_iter().filter(|t| source(&some, &t.words()).is_some()).collect();
    let (mut ran, mut at) = (0, 0);
    for tiling in tilings.iter().take(cases(1000) as usize) {
        for shape in SHAPES {
            at += 1;
            let dtype = if at % 4 == 0 { DType::F16 } else { DType::BF16 };
            let (order, epilogue) = (ORDERS[at % 5 % 4], EPILOGUES[at % EPILOGUES.len()]);
            let what = format!("{tiling:?} {dtype} {shape:?} {order:?} {epilogue}");
            ran += usize::from(agrees_by(&gpu, &case(dtype, shape, order, epilogue), &tiling.words(), &what));
        }
    }
    println!("{ran} pairs of products agree");
    assert!(ran > 0);
}

/// By the template of warps, emulated on a host: both orders of the factors, rows that are not
/// whole 16 bytes, sums that warps share.
#[test]
fn emulated_pairs_of_warps_agree_with_the_reference() {
    let device = Device::named("a100").unwrap();
    let some = planned(&device, &case(DType::BF16, UNEVEN[0], ORDERS[0], "swiglu").0);
    let tilings = tilings_of_warps(&some);
    for (i, tiling) in super::tiled::spread(&tilings, 4).enumerate() {
        let of = |(j, shape): (usize, &[usize; 4])| {
            let (order, epilogue) = (ORDERS[(i + j) % 4], EPILOGUES[(i + j) % EPILOGUES.len()]);
            let (graph, inputs) = case([DType::BF16, DType::F16][j % 2], *shape, order, epilogue);
            let graph = hypatia_pipeline::optimize(&graph, &optimizing(&device)).unwrap().graph;
            emulated::Case { what: format!("{tiling:?} {shape:?} {order:?} {epilogue}"), graph, inputs }
        };
        let all: Vec<emulated::Case> = UNEVEN.iter().enumerate().map(of).collect();
        let made = match emulated::run_tiled(&all, &hypatia_plan::Options::new(device.clone()), Some(*tiling)) {
            Ok(made) => made,
            Err(why) => return println!("SKIPPED {} emulated pairs: {why}", all.len()),
        };
        let mut ran = 0;
        for (case, made) in all.iter().zip(made) {
            // The tiling does not fit all layouts.
            let Some((_, got)) = made else { continue };
            ran += 1;
            let want = evaluate(&case.graph, &case.inputs, Mode::Rounded).unwrap();
            for (got, w) in got.iter().zip(&want) {
                compare(got, &w.to_tensor().unwrap(), w.dtype, coarsest(&case.graph), &case.what);
            }
        }
        assert!(ran > 0, "{tiling:?}");
    }
}

fn optimizing(device: &Device) -> hypatia_optimize::Options {
    hypatia_optimize::Options { device: device.clone(), ..hypatia_optimize::Options::default() }
}

/// The template of warps multiplies them on Hopper, too.
#[test]
fn every_tiling_of_warps_of_two_products_agrees_on_a_gpu() {
    let some = planned(&Device::named("h200").unwrap(), &case(DType::BF16, SHAPES[0], ORDERS[0], "swiglu").0);
    let tilings = tilings_of_warps(&some);
    let Some(gpu) = gpu(tilings.len()) else { return };
    let shapes = [&SHAPES[..], &UNEVEN].concat();
    let (mut ran, mut at) = (0, 0);
    for tiling in super::tiled::spread(&tilings, cases(60) as usize) {
        for _ in 0..3 {
            at += 1;
            let dtype = if at % 4 == 0 { DType::F16 } else { DType::BF16 };
            let (shape, order, epilogue) =
                (shapes[at % shapes.len()], ORDERS[at % 5 % 4], EPILOGUES[at % EPILOGUES.len()]);
            let what = format!("{tiling:?} {dtype} {shape:?} {order:?} {epilogue}");
            ran += usize::from(agrees_by(&gpu, &case(dtype, shape, order, epilogue), tiling, &what));
        }
    }
    println!("{ran} pairs of products of warps agree");
    assert!(ran > 0);
}

/// The quickest runs: one launch, or the products in turn.
#[test]
fn the_measured_choice_of_two_products_agrees_on_a_gpu() {
    let Some(gpu) = gpu(3) else { return };
    for shape in [[1, 1024, 1408, 512], [1, 16, 2048, 1024], [2, 64, 64, 64]] {
        measured_choice_agrees(&gpu, &case(DType::BF16, shape, ORDERS[0], "swiglu"), &format!("{shape:?}"));
    }
}
