//! Products that read their weights transposed, against the reference: forced by choices of a file,
//! measured, cached, and over the caller's memory. Ragged sizes, every float type, weights on
//! either side and in either order, epilogues with a bias.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::Duration;

use hypatia_dsl::builtin::BuiltinOp;
use hypatia_dsl::dtype::DType;
use rand::prelude::*;
use rand_chacha::ChaCha8Rng;

use super::gpu;
use crate::gemm::Terms;
use crate::memory::DeviceMemory;
use crate::tuner::{Effort, Tuner};
use crate::tuning::{Choice, PACKED, TuningFile};
use crate::{Executor, Gpu, gemm, weight_layout};
use hypatia_cache::{Kind, Store};
use hypatia_eval::{Mode, evaluate};
use hypatia_graph::{Graph, Value};
use hypatia_optimize as optimize;
use hypatia_pipeline as pipeline;
use hypatia_plan::{Action, Options, Plan, Step, Storage};
use hypatia_target::cublaslt::Epilogue;
use hypatia_target::device::Device;
use hypatia_tensor::tensor::Tensor;
use hypatia_testing::random::{coarsest, compare};
use hypatia_testing::{int, list, ty};

const FLOATS: [DType; 4] = [DType::BF16, DType::F16, DType::F32, DType::F64];
/// Rows, terms, columns.
const SHAPES: [[usize; 3]; 6] = [[64, 32, 96], [5, 7, 3], [33, 129, 17], [1, 40, 24], [128, 768, 256], [200, 1601, 33]];
/// How the weight is multiplied, and the epilogue.
const FORMS: [&str; 5] = ["plain", "turned, relu", "gelu_tanh", "left", "batch, bias"];

type Inputs = Vec<(String, Tensor)>;

fn random(rng: &mut ChaCha8Rng, dtype: DType, shape: &[usize]) -> Tensor {
    let values: Vec<f64> = (0..shape.iter().product()).map(|_| rng.random_range(-1.0..1.0)).collect();
    Tensor::from_f64(dtype, shape, &values).unwrap()
}

fn matmul(g: &mut Graph, a: Value, b: Value) -> Value {
    g.builtin(BuiltinOp::Matmul, &[a, b], vec![]).unwrap()[0]
}

/// A product with a weight, of that form.
fn case(dtype: DType, [m, k, n]: [usize; 3], form: &str) -> (Graph, Inputs) {
    let mut rng = ChaCha8Rng::seed_from_u64(23);
    let mut g = Graph::new(hypatia_library::load(&[]).unwrap());
    let shape = if form.starts_with("batch") { vec![3, m, k] } else { vec![m, k] };
    if form == "left" {
        let (w, x) = (random(&mut rng, dtype, &[m, k]), random(&mut rng, dtype, &[k, n]));
        let (w, v) = (g.constant(w), g.input("x", ty(dtype, x.shape())));
        let y = matmul(&mut g, w, v);
        g.output("y", y);
        return (g, vec![("x".to_string(), x)]);
    }
    let turned = form.starts_with("turned");
    let w = random(&mut rng, dtype, &if turned { [n, k] } else { [k, n] });
    let (x, bias) = (random(&mut rng, dtype, &shape), random(&mut rng, dtype, &[n]));
    let v = g.input("x", ty(dtype, &shape));
    let mut w = g.constant(w);
    if turned {
        w = g.builtin(BuiltinOp::Transpose, &[w], vec![list(&[1, 0])]).unwrap()[0];
    }
    let mut y = matmul(&mut g, v, w);
    if form != "plain" {
        let bias = g.constant(bias);
        y = g.call("add", &[y, bias], &[]).unwrap()[0];
    }
    if let Some(f) = ["relu", "gelu_tanh"].into_iter().find(|f| form.ends_with(f)) {
        y = g.call(f, &[y], &[]).unwrap()[0];
    }
    g.output("y", y);
    (g, vec![("x".to_string(), x)])
}

fn planned(device: &Device, graph: &Graph) -> Arc<Plan> {
    let options = optimize::Options { device: device.clone(), ..optimize::Options::default() };
    let graph = pipeline::optimize(graph, &options).unwrap().graph;
    Arc::new(pipeline::plan(&graph, &Options::new(device.clone())).unwrap())
}

fn agrees(executor: &Executor, graph: &Graph, inputs: &Inputs, what: &str) {
    let want = evaluate(graph, inputs, Mode::Rounded).unwrap();
    let tensors: Vec<Tensor> = inputs.iter().map(|(_, t)| t.clone()).collect();
    for (i, (got, w)) in executor.run(&tensors).unwrap().iter().zip(&want).enumerate() {
        let what = format!("{what}, output {i}\n{}", executor.plan().noted(&executor.notes()));
        compare(got, &w.to_tensor().unwrap(), w.dtype, coarsest(graph), &what);
    }
}

/// A file of measured choices; those for transposed weights are faster if `wins` says so.
fn file<'a>(choices: impl Iterator<Item = &'a Choice>, wins: impl Fn(&Choice) -> bool) -> TuningFile {
    let mut file = TuningFile::default();
    for choice in choices {
        let first = if wins(choice) { 2.0 } else { 0.5 };
        let packed = choice.problem.starts_with(PACKED);
        file.insert(match packed {
            true => Choice { us: Some(1.0), first_us: Some(first), ..choice.clone() },
            false => choice.clone(),
        });
    }
    file
}

/// A tuner with an unlimited budget, after measuring.
fn measured(gpu: &Arc<Gpu>, plan: &Arc<Plan>) -> Tuner {
    let mut tuner = Tuner::without_cache(Duration::from_secs(600));
    Executor::new(plan.clone(), gpu.clone(), &mut tuner).unwrap();
    tuner
}

fn from_file(gpu: &Arc<Gpu>, plan: &Arc<Plan>, file: TuningFile) -> Executor {
    let mut tuner = Tuner::without_cache(Duration::ZERO).with_file(file);
    Executor::new(plan.clone(), gpu.clone(), &mut tuner).unwrap().poisoned()
}

/// The weights of a plan that can be transposed: the step's index, the side, and the shape of the
/// constant.
fn weights(plan: &Plan) -> Vec<(usize, usize, Vec<usize>)> {
    let of = |(i, step): (usize, &Step)| {
        let Action::Gemm(g) = &step.action else { return None };
        let terms = Terms { epilogue: Epilogue::Default, tf32: false, addresses: false, in_order: false };
        let calls = gemm::calls(g, &step.reads, &step.writes[0], terms).unwrap();
        let (side, constant, _) = weight_layout::weight(plan, step, &calls)?;
        Some((i, side, plan.constants[constant].shape().to_vec()))
    };
    plan.steps.iter().enumerate().filter_map(of).collect()
}

#[test]
fn weights_of_a_plan_are_whole_constants() {
    let device = Device::named("h200").unwrap();
    for (dtype, [m, k, n], form) in FLOATS.into_iter().flat_map(|d| FORMS.map(|f| (d, SHAPES[0], f))) {
        // The library lacks this epilogue in f32: its product is timed beside a generated one.
        if (dtype, form) == (DType::F32, "gelu_tanh") {
            continue;
        }
        let (graph, _) = case(dtype, [m, k, n], form);
        let plan = planned(&device, &graph);
        let found: Vec<(usize, Vec<usize>)> =
            weights(&plan).into_iter().map(|(_, side, shape)| (side, shape)).collect();
        let (side, shape) = if form == "left" { (0, [m, k]) } else { (1, [k, n]) };
        let other = [shape[1], shape[0]];
        assert!(found == [(side, shape.to_vec())] || found == [(side, other.to_vec())], "{form}: {found:?}\n{plan}");
    }
    // Half of a constant does not qualify, nor does one matrix per batch element.
    let mut rng = ChaCha8Rng::seed_from_u64(37);
    for (w, x) in [(vec![64, 24], vec![8, 32]), (vec![3, 32, 24], vec![3, 8, 32])] {
        let mut g = Graph::new(hypatia_library::load(&[]).unwrap());
        let (mut w, x) = (g.constant(random(&mut rng, DType::F32, &w)), g.input("x", ty(DType::F32, &x)));
        if g.ty(w).shape.len() == 2 {
            w = g.builtin(BuiltinOp::Slice, &[w], [0, 32, 64, 1].map(int).to_vec()).unwrap()[0];
        }
        let y = matmul(&mut g, x, w);
        g.output("y", y);
        let plan = pipeline::plan(&g, &Options::new(device.clone())).unwrap();
        let whole = weights(&plan).into_iter().all(|(_, _, shape)| shape == [32, 24]);
        assert!(whole && weights(&plan).len() <= 1, "{plan}");
    }
}

#[test]
fn packed_weights_agree_with_the_reference_on_a_gpu() {
    let Some(gpu) = gpu(FLOATS.len() * SHAPES.len()) else { return };
    let mut packed = 0;
    for (i, (dtype, shape)) in FLOATS.into_iter().flat_map(|d| SHAPES.map(|s| (d, s))).enumerate() {
        for form in [FORMS[i % FORMS.len()], FORMS[(i + 2) % FORMS.len()]] {
            let (graph, inputs) = case(dtype, shape, form);
            let plan = planned(&gpu.profile(), &graph);
            let tuner = measured(&gpu, &plan);
            let what = format!("{dtype} {shape:?} {form}");
            let executor = from_file(&gpu, &plan, file(tuner.choices(), |_| true));
            let has = tuner.choices().any(|c| c.problem.starts_with(PACKED));
            // A generated product that is faster than its fallback reads the weight as it lies.
            let own = plan.steps.iter().any(|s| crate::lowering::timed::kernel(&plan, s).is_some());
            let notes = executor.notes().len();
            let as_measured = notes == usize::from(has) || own && notes == 0;
            let choices: Vec<_> = tuner.choices().collect();
            assert!(as_measured, "{what}: {notes} packed, own product {own}\n{choices:#?}\n{plan}");
            packed += executor.notes().len();
            agrees(&executor, &graph, &inputs, &what);
            let as_it_lies = from_file(&gpu, &plan, file(tuner.choices(), |_| false));
            assert_eq!(as_it_lies.notes(), [], "{what}");
            agrees(&as_it_lies, &graph, &inputs, &what);
            if notes > 0 {
                assert!(executor.plan().noted(&executor.notes()).to_string().contains(", packed  #"), "{what}");
            }
        }
    }
    println!("{packed} of {} products read their weight transposed", 2 * FLOATS.len() * SHAPES.len());
    assert!(packed > FLOATS.len() * SHAPES.len());
}

/// One weight is read in both orders and is also a result: each product decides separately.
#[test]
fn a_weight_in_both_orders_is_there_twice_on_a_gpu() {
    let Some(gpu) = gpu(FLOATS.len()) else { return };
    for dtype in FLOATS {
        let mut rng = ChaCha8Rng::seed_from_u64(29);
        let mut g = Graph::new(hypatia_library::load(&[]).unwrap());
        let w = Arc::new(random(&mut rng, dtype, &[72, 40]));
        let inputs: Inputs =
            [("x", 48), ("z", 16)].map(|(name, m)| (name.to_string(), random(&mut rng, dtype, &[m, 72]))).to_vec();
        let constant = g.constant(w.clone());
        for (name, x) in &inputs {
            let v = g.input(name.clone(), ty(dtype, x.shape()));
            let y = matmul(&mut g, v, constant);
            g.output(format!("of {name}"), y);
        }
        g.output("w", constant);
        let plan = Arc::new(pipeline::plan(&g, &Options::new(gpu.profile())).unwrap());
        assert_eq!(weights(&plan).len(), 2);
        let tuner = measured(&gpu, &plan);
        let wide = |c: &Choice| c.problem.contains(" 48x40x72 ");
        let choices = file(tuner.choices(), wide);
        let executor = from_file(&gpu, &plan, choices.clone());
        let notes = executor.notes();
        assert_eq!(notes.len(), 1, "{plan}\n{}", choices.to_text());
        assert_eq!(plan.steps[notes[0].0].writes[0].shape, [48, 40]);
        agrees(&executor, &g, &inputs, &format!("{dtype}"));
        // The same memory serves another plan, whatever that reads.
        let other = from_file(&gpu, &plan, file(tuner.choices(), |_| true));
        agrees(&other, &g, &inputs, &format!("{dtype}, the other plan"));
        drop(executor);
        agrees(&other, &g, &inputs, &format!("{dtype}, alone"));
        at_addresses(&gpu, &other, &inputs, &w);
    }
}

/// Resident runs, over their own memory and over the caller's memory.
fn at_addresses(gpu: &Arc<Gpu>, executor: &Executor, inputs: &Inputs, w: &Tensor) {
    let tensors: Vec<Tensor> = inputs.iter().map(|(_, t)| t.clone()).collect();
    let want = executor.run(&tensors).unwrap();
    let mut resident = executor.resident().unwrap();
    resident.upload(&tensors).unwrap();
    resident.run_on_device().unwrap();
    (0..want.len()).for_each(|i| assert_eq!(resident.download(i).unwrap().bytes(), want[i].bytes()));
    assert!(matches!(
        executor.plan().buffers[executor.plan().outputs[2].1.buffer.index()].storage,
        Storage::Constant(_)
    ));
    assert_eq!(resident.download(2).unwrap().bytes(), w.bytes());
    let stream = gpu.context().new_stream().unwrap();
    let room = |t: &Tensor| DeviceMemory::new(&stream, t.bytes().len()).unwrap();
    let (ins, outs): (Vec<_>, Vec<_>) = (tensors.iter().map(room).collect(), want.iter().map(room).collect());
    ins.iter().zip(&tensors).for_each(|(memory, t)| memory.upload(t.bytes()).unwrap());
    stream.synchronize().unwrap();
    let at = |all: &[DeviceMemory]| all.iter().map(DeviceMemory::address).collect::<Vec<_>>();
    // SAFETY: the memory is as large as the plan's types, and lives on.
    unsafe { resident.run_at(&at(&ins), &at(&outs)) }.unwrap();
    resident.synchronize().unwrap();
    for (memory, want) in outs.iter().zip(&want) {
        let mut got = vec![0; want.bytes().len()];
        memory.download(0, &mut got).unwrap();
        assert!(got == want.bytes());
    }
}

/// A second start times nothing and chooses the same; a plan with guesses packs nothing.
#[test]
fn a_second_start_packs_the_same_weights_on_a_gpu() {
    let Some(gpu) = gpu(3) else { return };
    let folder = tempfile::tempdir().unwrap();
    let store = Arc::new(Store::open(folder.path(), Kind::Choice));
    for (i, shape) in [[4, 768, 768], [1024, 3072, 768], [256, 256, 512]].into_iter().enumerate() {
        let (graph, inputs) = case(DType::F32, shape, "turned, relu");
        let plan = planned(&gpu.profile(), &graph);
        let start = |time: u64, effort| {
            let mut tuner = Tuner::with_store(store.clone(), Duration::from_secs(time), effort);
            let executor = Executor::new(plan.clone(), gpu.clone(), &mut tuner).unwrap().poisoned();
            (executor.notes(), tuner.counts(), executor, tuner)
        };
        if i == 2 {
            // Without a time budget every choice is guessed, including the transposes. A later
            // start keeps the guesses; one with `Effort::Guessed` measures them.
            let (notes, counts, ..) = start(0, Effort::Unknown);
            assert_eq!((notes, counts.measured), (vec![], 0));
            assert_eq!(start(60, Effort::Unknown).1.measured, 0);
        }
        let (notes, counts, executor, tuner) = start(60, if i == 2 { Effort::Guessed } else { Effort::Unknown });
        assert_eq!(counts.measured, 2, "{shape:?}");
        for c in tuner.choices() {
            println!("{shape:?}: {:.2} us, {} {:.2}: {}", c.us.unwrap(), c.first(), c.first_us.unwrap(), c.problem);
        }
        agrees(&executor, &graph, &inputs, &format!("{shape:?}"));
        let (again, counts, ..) = start(60, Effort::Unknown);
        assert_eq!((again, counts.measured, counts.cached), (notes, 0, 2), "{shape:?}");
    }
}

/// A transpose changes no number: signs of 0, infinities, the smallest and the largest.
#[test]
fn packing_exchanges_rows_and_columns_on_a_gpu() {
    let shapes = [[2, 3], [7, 130], [129, 33], [768, 100], [1, 5]];
    let Some(gpu) = gpu(FLOATS.len() * shapes.len()) else { return };
    let special = [-0.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN, 1e-40, -6e-8, 65504.0, 1.0];
    for (dtype, [rows, columns]) in FLOATS.into_iter().flat_map(|d| shapes.map(|s| (d, s))) {
        let mut rng = ChaCha8Rng::seed_from_u64(31);
        let mut value = |i| if i % 3 == 0 { special[i / 3 % 8] } else { rng.random_range(-2.0..2.0) };
        let values: Vec<f64> = (0..rows * columns).map(&mut value).collect();
        let tensor = Arc::new(Tensor::from_f64(dtype, &[rows, columns], &values).unwrap());
        // With the matrix already on the device, and without.
        for given in [true, false] {
            let given = given.then(|| gpu.weight(&tensor, false).unwrap());
            let transposed = gpu.weight(&tensor, true).unwrap();
            drop(given);
            gpu.uploaded().unwrap();
            let mut bytes = vec![0; tensor.bytes().len()];
            transposed.memory.download(0, &mut bytes).unwrap();
            let turned = Tensor::from_bytes(dtype, &[columns, rows], &bytes).unwrap().to_f64();
            for (i, x) in tensor.to_f64().iter().enumerate() {
                let y = turned[i % columns * rows + i / columns];
                assert!(x.to_bits() == y.to_bits() || x.is_nan() && y.is_nan(), "{dtype} {rows}x{columns}: {x} {y}");
            }
        }
    }
}
