//! Products of bytes against the reference: both signs of both factors, ragged sizes, batches,
//! results of all types, extreme values, sums that wrap; as weights that lie by rows, and in the
//! kernel of any device.
#![allow(clippy::unwrap_used)]

use hypatia_dsl::builtin::BuiltinOp;
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::AttrValue;
use hypatia_dsl::kernel::{StoredTiling, WarpTiling};
use hypatia_graph::{Graph, Value};
use hypatia_plan::{Action, Options};
use hypatia_target::device::Device;
use hypatia_tensor::tensor::Tensor;
use hypatia_testing::{list, ty};

use super::emulated::{self, Case};
use super::tiled::{Inputs, agrees_by, all_tilings, source, spread, tiled_step};
use super::{cases, gpu, planned};
use crate::nvrtc::{Nvrtc, NvrtcError};
use hypatia_eval::{Mode, evaluate};

/// A graph under construction.
struct Made {
    graph: Graph,
    inputs: Inputs,
}

impl Made {
    fn new() -> Made {
        Made { graph: Graph::new(hypatia_library::load(&[]).unwrap()), inputs: Vec::new() }
    }

    fn input(&mut self, dtype: DType, shape: &[usize], value: impl Fn(usize) -> f64) -> Value {
        let name = format!("x{}", self.inputs.len());
        let values: Vec<f64> = (0..shape.iter().product()).map(value).collect();
        self.inputs.push((name.clone(), Tensor::from_f64(dtype, shape, &values).unwrap()));
        self.graph.input(name, ty(dtype, shape))
    }

    fn cast(&mut self, x: Value, to: DType) -> Value {
        self.graph.builtin(BuiltinOp::Cast, &[x], vec![AttrValue::DType(to)]).unwrap()[0]
    }

    fn call(&mut self, name: &str, args: &[Value]) -> Value {
        self.graph.call(name, args, &[]).unwrap()[0]
    }
}

/// What is done with the sums.
const RESULTS: [&str; 4] = ["sums", "scaled", "requantised", "bias"];
/// Products, rows, columns, length of the sums.
const SHAPES: [[usize; 4]; 6] =
    [[1, 64, 64, 64], [1, 65, 131, 76], [2, 33, 90, 100], [3, 7, 9, 4], [1, 130, 40, 300], [1, 1, 96, 128]];

/// The whole range of a type, its ends more often.
fn byte(dtype: DType, seed: usize) -> impl Fn(usize) -> f64 {
    let (low, high) = if dtype == DType::I8 { (-128, 127) } else { (0, 255) };
    move |i| {
        let at = (i * 2654435761 + seed * 40503) >> 7;
        f64::from(match at % 7 {
            0 => low,
            1 => high,
            _ => low + (at / 7 % 256) as i32,
        })
    }
}

/// A product of factors of these types, whose right one lies by columns.
fn product([a, b]: [DType; 2], [batch, m, n, k]: [usize; 4], result: &str) -> (Graph, Inputs) {
    let mut c = Made::new();
    let lead: &[usize] = if batch > 1 { &[batch] } else { &[] };
    let x = c.input(a, &[lead, &[m, k]].concat(), byte(a, 1));
    let w = c.input(b, &[lead, &[n, k]].concat(), byte(b, 2));
    let axes: &[usize] = if batch > 1 { &[0, 2, 1] } else { &[1, 0] };
    let w = c.graph.builtin(BuiltinOp::Transpose, &[w], vec![list(axes)]).unwrap()[0];
    let y = finished(&mut c, [x, w], [m, n], result);
    c.graph.output("y", y);
    (c.graph, c.inputs)
}

fn finished(c: &mut Made, factors: [Value; 2], [m, n]: [usize; 2], result: &str) -> Value {
    let factors = factors.map(|v| c.cast(v, DType::I32));
    let sums = c.graph.builtin(BuiltinOp::Matmul, &factors, vec![]).unwrap()[0];
    let small = |i: usize| 0.001 + (i % 13) as f64 * 0.0005;
    match result {
        "sums" => sums,
        "bias" => {
            // Near the ends of i32, where sums wrap.
            let bias = c.input(DType::I32, &[n], |i| if i % 2 == 0 { 2147483640.0 } else { -2147483640.0 });
            c.call("add", &[sums, bias])
        }
        "scaled" => {
            let y = c.cast(sums, DType::F32);
            let (rows, columns) = (c.input(DType::F32, &[m, 1], small), c.input(DType::F32, &[n], small));
            let y = c.call("mul", &[y, rows]);
            let y = c.call("mul", &[y, columns]);
            c.cast(y, DType::BF16)
        }
        _ => {
            let y = c.cast(sums, DType::F32);
            let scale = c.input(DType::F32, &[n], small);
            let y = c.call("mul", &[y, scale]);
            let y = c.call("round", &[y]);
            // Saturates: it is not clipped.
            c.cast(y, DType::I8)
        }
    }
}

/// A case with its casts in front of products taken into them.
fn optimised(what: &str, graph: &Graph, inputs: &Inputs) -> Case {
    let device = Device::named("a100").unwrap();
    let options = hypatia_optimize::Options { device, ..hypatia_optimize::Options::default() };
    let graph = hypatia_pipeline::optimize(graph, &options).unwrap().graph;
    Case { what: what.into(), graph, inputs: inputs.clone() }
}

const TYPES: [[DType; 2]; 4] =
    [[DType::I8, DType::I8], [DType::U8, DType::I8], [DType::I8, DType::U8], [DType::U8, DType::U8]];

/// Cases of all types, shapes and results; as many as there are shapes times results.
fn all() -> impl Iterator<Item = (String, (Graph, Inputs))> {
    SHAPES.into_iter().enumerate().flat_map(|(i, shape)| {
        RESULTS.into_iter().enumerate().map(move |(j, result)| {
            let types = TYPES[(i + j) % TYPES.len()];
            (format!("{types:?} {shape:?} {result}"), product(types, shape, result))
        })
    })
}

fn tilings() -> Vec<StoredTiling> {
    let mut of_warps = all_tilings(&planned(&Device::named("a100").unwrap(), &all().next().unwrap().1.0))[1].clone();
    // A step takes 32 elements of k, and each group of warps has an even number of them.
    of_warps.retain(|words| WarpTiling::of_words(words).is_some_and(|t| t.depth.is_multiple_of(64 * t.split)));
    of_warps
}

/// The same of shapes that the copy engine moves.
fn all_on_hopper() -> impl Iterator<Item = (String, (Graph, Inputs))> {
    let shapes = [[1, 64, 64, 64], [1, 65, 144, 80], [2, 33, 96, 112], [3, 7, 16, 16], [1, 300, 272, 1040]];
    let shapes = shapes.into_iter().chain([[1, 1, 96, 128], [1, 130, 48, 304]]).enumerate();
    shapes.flat_map(|(i, shape)| {
        RESULTS.into_iter().enumerate().map(move |(j, result)| {
            let types = TYPES[(i + j) % TYPES.len()];
            (format!("{types:?} {shape:?} {result}"), product(types, shape, result))
        })
    })
}

fn tilings_on_hopper() -> Vec<StoredTiling> {
    all_tilings(&planned(&Device::named("h200").unwrap(), &all().next().unwrap().1.0))[0].clone()
}

/// NVRTC accepts Hopper's template for bytes; it needs no GPU.
#[test]
fn products_of_bytes_compile_for_hopper() {
    let nvrtc = match Nvrtc::get() {
        Ok(nvrtc) => nvrtc,
        Err(NvrtcError::NotFound(_)) => return eprintln!("SKIPPED: no NVRTC"),
        Err(e) => panic!("{e}"),
    };
    let plans: Vec<_> =
        all_on_hopper().map(|(_, (graph, _))| planned(&Device::named("h200").unwrap(), &graph)).collect();
    let mut compiled = 0;
    for (i, tiling) in spread(&tilings_on_hopper(), 40).enumerate() {
        let Some(source) = source(&plans[i % plans.len()], tiling) else { continue };
        nvrtc.compile(&source.text, "bytes.cu", "sm_90a").unwrap_or_else(|e| panic!("{tiling:?}: {e}"));
        compiled += 1;
    }
    assert!(compiled > 10, "{compiled}");
}

#[test]
fn products_of_bytes_are_one_tiled_step_from_ampere_on() {
    for device in ["h200", "a100"].map(|name| Device::named(name).unwrap()) {
        for (what, (graph, _)) in all() {
            let plan = planned(&device, &graph);
            assert!(plan.steps.len() == 1 && tiled_step(&plan).is_some(), "{what} {}\n{plan}", device.name);
        }
    }
}

#[test]
fn a_product_of_bytes_reads_as_one_would_write_it() {
    if !std::path::Path::new(env!("CARGO_MANIFEST_DIR")).exists() {
        return eprintln!("SKIPPED: a golden file, where there are no sources");
    }
    let (graph, _) = product([DType::U8, DType::I8], [1, 64, 128, 256], "requantised");
    let plan = planned(&Device::named("a100").unwrap(), &graph);
    let tiling = WarpTiling::named(&[("tile_k", 128), ("split_k", 2)]).unwrap();
    insta::assert_snapshot!(source(&plan, &tiling.words()).unwrap().text);
}

/// The template of warps, emulated, by tilings of all kinds.
#[test]
fn tilings_of_bytes_agree_with_the_reference_on_a_host() {
    let options = Options::new(Device::named("a100").unwrap());
    let made: Vec<(String, (Graph, Inputs))> = all().collect();
    let of_all = tilings();
    let mut ran = 0;
    for (i, tiling) in spread(&of_all, 8).enumerate() {
        // Half of the cases each: they take as long to compile as to run.
        let made: Vec<_> = made.iter().skip(i % 2).step_by(2).collect();
        let cases: Vec<Case> = made.iter().map(|(what, (graph, inputs))| optimised(what, graph, inputs)).collect();
        let results = match emulated::run_tiled(&cases, &options, Some(*tiling)) {
            Ok(results) => results,
            Err(why) => return eprintln!("SKIPPED: {why}"),
        };
        for ((what, (graph, inputs)), got) in made.into_iter().zip(results) {
            // The tiling may not fit.
            let Some((plan, got)) = got else { continue };
            assert!(tiled_step(&plan).is_some(), "{what}\n{plan}");
            ran += 1;
            let want = evaluate(graph, inputs, Mode::Rounded).unwrap();
            let want = want[0].to_tensor().unwrap();
            assert_eq!(got[0].bytes(), want.bytes(), "{what} by {tiling:?}");
        }
    }
    println!("{ran} products of bytes agree");
    assert!(ran > 60, "only {ran} products ran");
}

/// Products that no template computes: k is odd, or not the dense axis.
#[test]
fn other_products_of_bytes_have_a_kernel_of_any_device() {
    let mut cases = Vec::new();
    for (types, [m, n, k]) in TYPES.into_iter().zip([[65, 33, 77], [1, 300, 3], [40, 17, 129], [5, 5, 1]]) {
        let mut c = Made::new();
        let (a, b) = (c.input(types[0], &[m, k], byte(types[0], 3)), c.input(types[1], &[k, n], byte(types[1], 4)));
        let y = finished(&mut c, [a, b], [m, n], "sums");
        c.graph.output("y", y);
        cases.push(optimised(&format!("{types:?} {m} {n} {k}"), &c.graph, &c.inputs));
    }
    let options = Options::new(Device::named("a100").unwrap());
    let results = match emulated::run_with(&cases, &options) {
        Ok(results) => results,
        Err(why) => return eprintln!("SKIPPED: {why}"),
    };
    for (case, got) in cases.iter().zip(results) {
        let (plan, got) = got.unwrap();
        assert_eq!(plan.steps.len(), 1, "{}\n{plan}", case.what);
        assert!(plan.steps.iter().all(|s| matches!(s.action, Action::Gemm(_))), "{}\n{plan}", case.what);
        let want = evaluate(&case.graph, &case.inputs, Mode::Rounded).unwrap();
        assert_eq!(got[0].bytes(), want[0].to_tensor().unwrap().bytes(), "{}", case.what);
    }
}

/// Products of floats whose results are quantised: rounded, and saturated by the cast alone.
#[test]
fn products_of_floats_are_stored_as_bytes_on_a_host() {
    let options = Options::new(Device::named("a100").unwrap());
    let mut made = Vec::new();
    for (to, [m, n, k]) in [(DType::I8, [64, 64, 64]), (DType::U8, [33, 70, 40]), (DType::I8, [5, 9, 24])] {
        let mut c = Made::new();
        let whole = |i: usize| ((i * 7) % 13) as f64 - 6.0;
        let (a, b) = (c.input(DType::BF16, &[m, k], whole), c.input(DType::BF16, &[k, n], whole));
        let y = c.graph.builtin(BuiltinOp::Matmul, &[a, b], vec![]).unwrap()[0];
        let y = c.cast(y, DType::F32);
        let scale = c.input(DType::F32, &[], |_| 1.25);
        let y = c.call("mul", &[y, scale]);
        let y = c.call("round", &[y]);
        let y = c.cast(y, to);
        c.graph.output("y", y);
        made.push((format!("{to} {m} {n} {k}"), c.graph, c.inputs));
    }
    let cases: Vec<Case> = made.iter().map(|(what, graph, inputs)| optimised(what, graph, inputs)).collect();
    let of_all = all_tilings(&planned(&Device::named("a100").unwrap(), &cases[0].graph))[1].clone();
    let mut ran = 0;
    for tiling in spread(&of_all, 6) {
        let results = match emulated::run_tiled(&cases, &options, Some(*tiling)) {
            Ok(results) => results,
            Err(why) => return eprintln!("SKIPPED: {why}"),
        };
        for ((what, graph, inputs), got) in made.iter().zip(results) {
            let Some((plan, got)) = got else { continue };
            assert!(tiled_step(&plan).is_some(), "{what}\n{plan}");
            ran += 1;
            // The product is not rounded to 16 bits in between.
            let want = evaluate(graph, inputs, Mode::Exact).unwrap();
            assert_eq!(got[0].bytes(), want[0].to_tensor().unwrap().bytes(), "{what} by {tiling:?}");
        }
    }
    assert!(ran > 0);
}

/// A weight that lies by rows is stored by columns.
#[test]
fn a_weight_of_bytes_is_stored_with_its_sums_dense() {
    let (m, n, k) = (64, 96, 128);
    let mut c = Made::new();
    let x = c.input(DType::I8, &[m, k], byte(DType::I8, 5));
    let value = byte(DType::I8, 6);
    let values: Vec<f64> = (0..k * n).map(value).collect();
    let w = c.graph.constant(Tensor::from_f64(DType::I8, &[k, n], &values).unwrap());
    let y = finished(&mut c, [x, w], [m, n], "sums");
    c.graph.output("y", y);
    let case = optimised("a weight", &c.graph, &c.inputs);
    let options = Options::new(Device::named("a100").unwrap());
    let plan = planned(&Device::named("a100").unwrap(), &case.graph);
    let (step, _) = tiled_step(&plan).unwrap_or_else(|| panic!("not one tiled step\n{plan}"));
    assert_eq!(step.reads[1].strides, [1, k as isize], "{plan}");
    let want = evaluate(&case.graph, &case.inputs, Mode::Rounded).unwrap();
    let mut ran = 0;
    for tiling in spread(&tilings(), 6) {
        match emulated::run_tiled(std::slice::from_ref(&case), &options, Some(*tiling)) {
            Ok(results) => {
                for (_, got) in results.into_iter().flatten() {
                    ran += 1;
                    assert_eq!(got[0].bytes(), want[0].to_tensor().unwrap().bytes());
                }
            }
            Err(why) => return eprintln!("SKIPPED: {why}"),
        }
    }
    assert!(ran > 0);
}

#[test]
fn every_tiling_of_bytes_agrees_with_the_reference_on_a_gpu() {
    let of_all = tilings();
    let Some(gpu) = gpu(of_all.len()) else { return };
    let made: Vec<(String, (Graph, Inputs))> = all().collect();
    let mut ran = 0;
    for (i, tiling) in spread(&of_all, cases(60) as usize).enumerate() {
        for (what, case) in made.iter().skip(i % 5).step_by(5) {
            ran += usize::from(agrees_by(&gpu, case, tiling, &format!("{tiling:?} {what}")));
        }
    }
    let made: Vec<(String, (Graph, Inputs))> = all_on_hopper().collect();
    for (i, tiling) in spread(&tilings_on_hopper(), cases(120) as usize).enumerate() {
        for (what, case) in made.iter().skip(i % 5).step_by(5) {
            ran += usize::from(agrees_by(&gpu, case, tiling, &format!("{tiling:?} {what}")));
        }
    }
    println!("{ran} products of bytes agree");
    assert!(ran > 0);
}
