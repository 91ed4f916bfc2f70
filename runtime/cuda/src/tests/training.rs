//! The library's calls for training on a GPU, against the reference, by the call and by the
//! fallback: aligned and ragged sizes, every layout of the operands, every element type.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use hypatia_dsl::builtin::BuiltinOp;
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::{AttrValue, Program};
use rand::prelude::*;
use rand_chacha::ChaCha8Rng;

use super::{agrees, cases, executor, gpu};
use crate::tuner::{Counts, Effort, Tuner};
use crate::{Executor, Gpu};
use hypatia_cache::{Kind, Store};
use hypatia_eval::{Mode, evaluate};
use hypatia_graph::{Graph, Value};
use hypatia_optimize as optimize;
use hypatia_pipeline as pipeline;
use hypatia_plan::{Action, Options, Plan, Step};
use hypatia_tensor::tensor::Tensor;
use hypatia_testing::random::{coarsest, compare};
use hypatia_testing::{list, ty};

/// The forms computed from a product `a b`, with their further results and operands.
const FORMS: [&str; 10] = [
    "GELU_AUX",
    "GELU_AUX_BIAS",
    "DGELU",
    "DGELU_BGRAD",
    "BGRADA",
    "BGRADB",
    "RELU_AUX",
    "RELU_AUX_BIAS",
    "DRELU",
    "DRELU_BGRAD",
];
const FLOATS: [DType; 4] = [DType::BF16, DType::F16, DType::F32, DType::F64];
/// Rows, columns, terms: multiples of 8, and others.
const SHAPES: [[usize; 3]; 9] = [
    [128, 256, 64],
    [64, 8, 24],
    [100, 72, 40],
    [33, 47, 65],
    [1, 8, 8],
    [17, 24, 5],
    [8, 16, 0],
    [33, 128, 65],
    [3, 384, 40],
];

type Inputs = Vec<(String, Tensor)>;

/// A graph of that form, as rules produce it, and its inputs. `turned` says which of the two
/// operands is a transpose.
fn case(program: &Arc<Program>, form: &str, dtype: DType, [m, n, k]: [usize; 3], turned: [bool; 2]) -> (Graph, Inputs) {
    let mut rng = ChaCha8Rng::seed_from_u64(5);
    let mut g = Graph::new(program.clone());
    let mut inputs = Inputs::new();
    let signs = form.contains("RELU");
    let mut input = |g: &mut Graph, name: &str, shape: &[usize]| {
        // Keeps sums of many terms in the range where GELU is curved.
        let size = 2.0 / (k.max(1) as f64).powf(0.25);
        // Tests of signs use sums that are exact in any order and are often 0.
        let step = |v: f64| if signs { (v * 4.0).round() / 4.0 } else { v };
        let values: Vec<f64> = (0..shape.iter().product()).map(|_| step(rng.random_range(-size..size))).collect();
        inputs.push((name.to_string(), Tensor::from_f64(dtype, shape, &values).unwrap()));
        g.input(name, ty(dtype, shape))
    };
    let mut side = |g: &mut Graph, name: &str, [rows, columns]: [usize; 2], turned: bool| {
        if !turned {
            return input(g, name, &[rows, columns]);
        }
        let v = input(g, name, &[columns, rows]);
        g.builtin(BuiltinOp::Transpose, &[v], vec![list(&[1, 0])]).unwrap()[0]
    };
    let (a, b) = (side(&mut g, "a", [m, k], turned[0]), side(&mut g, "b", [k, n], turned[1]));
    let keeps = [("keepdims", AttrValue::Bool(m % 2 == 0))];
    let results: Vec<Value> = match form {
        "GELU_AUX" => {
            let (op, none) = (program.find_op("gelu_layer").unwrap(), None);
            g.op(op, &[Some(a), Some(b), none], vec![], None).unwrap()
        }
        "GELU_AUX_BIAS" => {
            let bias = input(&mut g, "bias", &[n]);
            g.call("gelu_layer", &[a, b, bias], &[]).unwrap()
        }
        "DGELU" => {
            let pre = input(&mut g, "pre", &[m, n]);
            let (product, slope) = (g.call("matmul", &[a, b], &[]).unwrap()[0], g.call("gelu_tanh_grad", &[pre], &[]));
            g.call("mul", &[product, slope.unwrap()[0]], &[]).unwrap()
        }
        "DGELU_BGRAD" => {
            let pre = input(&mut g, "pre", &[m, n]);
            g.call("gelu_layer_grad", &[a, b, pre], &keeps).unwrap()
        }
        "RELU_AUX" => g.call("relu_layer", &[a, b], &[]).unwrap(),
        "RELU_AUX_BIAS" => {
            let bias = input(&mut g, "bias", &[n]);
            g.call("relu_layer_bias", &[a, b, bias], &[]).unwrap()
        }
        "DRELU" | "DRELU_BGRAD" => {
            let bytes: Vec<u8> = (0..m * n / 8).map(|i| (i * 37 % 251) as u8).collect();
            let bits = g.input("bits", ty(DType::U8, &[m, n / 8]));
            inputs.push(("bits".to_string(), Tensor::from_slice(&[m, n / 8], &bytes).unwrap()));
            match form {
                "DRELU" => g.call("relu_layer_back", &[a, b, bits], &[]).unwrap(),
                _ => g.call("relu_layer_grad", &[a, b, bits], &keeps).unwrap(),
            }
        }
        "BGRADA" => g.call("weight_grad", &[a, b], &keeps).unwrap(),
        _ => g.call("weight_grad_rows", &[a, b], &keeps).unwrap(),
    };
    for (i, v) in results.into_iter().enumerate() {
        g.output(format!("y{i}"), v);
    }
    if form == "DGELU" {
        let device = hypatia_target::device::Device::named("h200").unwrap();
        g = pipeline::optimize(&g, &optimize::Options { device, ..optimize::Options::default() }).unwrap().graph;
    }
    (g, inputs)
}

fn all() -> impl Iterator<Item = (&'static str, DType, [usize; 3], [bool; 2])> {
    let every = FORMS.into_iter().flat_map(|form| {
        FLOATS.into_iter().flat_map(move |dtype| {
            SHAPES.into_iter().flat_map(move |shape| {
                [[false, false], [false, true], [true, false], [true, true]].map(|turned| (form, dtype, shape, turned))
            })
        })
    });
    // A row of bits must fill whole bytes; the bits describe an f32 accumulator.
    every.filter(|(form, dtype, [_, n, _], _)| !form.contains("RELU") || n % 8 == 0 && *dtype != DType::F64)
}

/// The steps of a plan that are one call or several launches.
fn steps_with_fallback(plan: &Plan) -> Vec<&Step> {
    let library = |s: &&Step| matches!(s.action, Action::Call(_)) && crate::tiled::kernel(plan, s).is_none();
    plan.steps.iter().flat_map(|s| beside(plan, s)).filter(library).collect()
}

/// What a generated product is timed beside; any other step itself.
fn beside<'a>(plan: &Plan, step: &'a Step) -> &'a [Step] {
    match &step.action {
        Action::Call(c) if crate::tiled::kernel(plan, step).is_some() => &c.fallback,
        _ => std::slice::from_ref(step),
    }
}

/// The meaning of a GPU plan, as the CPU runs it step by step.
#[test]
fn plans_with_calls_agree_with_the_reference_on_the_cpu() {
    let program = hypatia_library::load(&[]).unwrap();
    let device = hypatia_target::device::Device::named("h200").unwrap();
    let mut called = BTreeMap::new();
    for (form, dtype, shape, turned) in all() {
        let (graph, inputs) = case(&program, form, dtype, shape, turned);
        let want = evaluate(&graph, &inputs, Mode::Rounded).unwrap();
        let tensors: Vec<Tensor> = inputs.iter().map(|(_, t)| t.clone()).collect();
        let plan = Arc::new(pipeline::plan(&graph, &Options::new(device.clone())).unwrap());
        let executor = hypatia_cpu::Executor::new(plan.clone(), 2).unwrap().poisoned();
        let [_, n, _] = shape;
        let typed = dtype != DType::F64 && !(dtype == DType::F32 && form.starts_with("GELU"));
        let divides = if form.contains("RELU") { 128 } else { 8 };
        let has_call = typed && (form.starts_with("BGRAD") || n % divides == 0);
        let what = format!("{form} {dtype} {shape:?} {turned:?}\n{plan}");
        assert_eq!(steps_with_fallback(&plan).len(), usize::from(has_call), "{what}");
        *called.entry(form).or_insert(0) += usize::from(has_call);
        for (i, (got, w)) in executor.run(&tensors).unwrap().iter().zip(&want).enumerate() {
            let what = format!("{what}, output {i}\n{}", graph.to_text());
            compare(got, &w.to_tensor().unwrap(), w.dtype, coarsest(&graph), &what);
        }
    }
    assert_eq!(called.len(), FORMS.len());
    assert!(called.iter().all(|(form, n)| *n > if form.contains("RELU") { 20 } else { 30 }), "{called:?}");
}

/// Uses the call if the library supports it: nothing is measured, so the call is taken whatever its
/// cost.
#[test]
fn calls_for_training_agree_with_the_reference_on_a_gpu() {
    let count = all().count();
    let few = cases(count as u64) as usize;
    let Some(gpu) = gpu(few) else { return };
    let program = hypatia_library::load(&[]).unwrap();
    let mut called: BTreeMap<(&str, String), [usize; 2]> = BTreeMap::new();
    for (form, dtype, shape, turned) in all().step_by(count.div_ceil(few.max(1))) {
        let (graph, inputs) = case(&program, form, dtype, shape, turned);
        let what = format!("{form} {dtype} {shape:?} {turned:?}");
        agrees(&gpu, &graph, &inputs, &what).unwrap_or_else(|why| panic!("{what}: {why}"));
        let (plan, executor) = executor(&gpu, &graph, true).unwrap();
        if !steps_with_fallback(&plan).is_empty() {
            let counts = called.entry((form, dtype.to_string())).or_insert([0; 2]);
            counts[0] += usize::from(executor.launches() == plan.launches());
            counts[1] += 1;
        }
    }
    for ((form, dtype), [as_call, all]) in &called {
        println!("{form} {dtype}: {as_call} of {all} cases as one call");
    }
    // The calls that a transformer layer in bf16 needs.
    for form in ["GELU_AUX_BIAS", "DGELU", "RELU_AUX_BIAS", "DRELU"].into_iter().filter(|_| few == count) {
        let as_call = called.get(&(form, DType::BF16.to_string())).map_or(0, |c| c[0]);
        assert!(as_call > 0, "the library has no {form} for bf16: {called:?}");
    }
}

/// NaN handling: the library keeps NaN or replaces it by 0, with either bit; every other row must
/// be right.
#[test]
fn a_nan_before_a_relu_stays_in_its_row_on_a_gpu() {
    let dtypes = [DType::F32, DType::F16, DType::BF16];
    let Some(gpu) = gpu(dtypes.len()) else { return };
    let program = hypatia_library::load(&[]).unwrap();
    for dtype in dtypes {
        let (graph, mut inputs) = case(&program, "RELU_AUX_BIAS", dtype, [64, 256, 64], [false, true]);
        let mut values = inputs[0].1.to_f64();
        values[5 * 64 + 7] = f64::NAN;
        inputs[0].1 = Tensor::from_f64(dtype, &[64, 64], &values).unwrap();
        let want = evaluate(&graph, &inputs, Mode::Rounded).unwrap();
        let want: Vec<Tensor> = want.iter().map(|w| w.to_tensor().unwrap()).collect();
        let (plan, executor) = executor(&gpu, &graph, true).unwrap();
        assert_eq!((plan.launches(), executor.launches()), (1, 1), "{dtype}: not one call\n{plan}");
        let got = executor.run(&inputs.into_iter().map(|(_, t)| t).collect::<Vec<_>>()).unwrap();
        let (y, exact) = (got[0].to_f64(), want[0].to_f64());
        for (i, (g, w)) in y.iter().zip(&exact).enumerate() {
            let fits = if i / 256 == 5 { g.is_nan() || *g == 0.0 } else { (g - w).abs() <= 0.02 * (1.0 + w.abs()) };
            assert!(fits, "{dtype} element {i}: {g} instead of {w}");
        }
        let rows = |t: &Tensor| [&t.bytes()[..5 * 32], &t.bytes()[6 * 32..]].concat();
        assert_eq!(rows(&got[1]), rows(&want[1]), "{dtype}: signs");
        let kept = y[5 * 256..6 * 256].iter().filter(|v| v.is_nan()).count();
        println!("{dtype}: {kept} of 256 NaN kept, their bits {:x?}", &got[1].bytes()[5 * 32..5 * 32 + 4]);
    }
}

/// Both variants are timed once; the choice is cached, and the result is right with either.
#[test]
fn the_faster_way_is_chosen_and_kept_on_a_gpu() {
    let shapes = [[64, 64, 64], [512, 1024, 256], [4096, 4096, 1024]];
    let Some(gpu) = gpu(shapes.len() * FORMS.len()) else { return };
    let program = hypatia_library::load(&[]).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let store = Arc::new(Store::open(folder.path(), Kind::Choice));
    for (form, shape) in FORMS.into_iter().flat_map(|f| shapes.map(|s| (f, s))) {
        let (graph, inputs) = case(&program, form, DType::BF16, shape, [false, form == "GELU_AUX_BIAS"]);
        let tensors: Vec<Tensor> = inputs.iter().map(|(_, t)| t.clone()).collect();
        let plan = Arc::new(pipeline::plan(&graph, &Options::new(gpu.profile())).unwrap());
        let (first, counts) = start(&gpu, &plan, &store);
        let (second, again) = start(&gpu, &plan, &store);
        let what = format!("{form} {shape:?}: {} launches, {counts:?}\n{plan}", first.launches());
        println!("{}", what.lines().next().unwrap_or_default());
        assert_eq!((first.launches(), again.measured), (second.launches(), 0), "{what}, then {again:?}");
        if shape[0] <= 512 {
            let want = evaluate(&graph, &inputs, Mode::Rounded).unwrap();
            for (got, w) in first.run(&tensors).unwrap().iter().zip(&want) {
                compare(got, &w.to_tensor().unwrap(), w.dtype, coarsest(&graph), &what);
            }
        }
    }
}

fn start(gpu: &Arc<Gpu>, plan: &Arc<Plan>, store: &Arc<Store>) -> (Executor, Counts) {
    let mut tuner = Tuner::with_store(store.clone(), Duration::from_secs(600), Effort::Unknown);
    let executor = Executor::new(plan.clone(), gpu.clone(), &mut tuner).unwrap().poisoned();
    (executor, tuner.counts())
}
