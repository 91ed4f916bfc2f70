//! Tiled products with an epilogue, against the reference: every tiling that the library declares,
//! ragged sizes, both orders of both factors, batches, all kinds of operands, poisoned results;
//! the measured choice; repeated runs.
use std::sync::Arc;
use std::time::Duration;

use hypatia_dsl::builtin::BuiltinOp;
use hypatia_dsl::dtype::DType;
use hypatia_dsl::kernel::{StoredTiling, Tiling, WarpTiling};
use rand::prelude::*;
use rand_chacha::ChaCha8Rng;

use super::{cases, gpu, planned};
use crate::lowering::product::GeneratedProduct;
use crate::lowering::timed::Timed;
use crate::tiled::{self, Tilings};
use crate::tune::machine;
use crate::tuner::{Effort, Tuner};
use crate::tuning::{Choice, Machine, TuningFile};
use crate::{Executor, Gpu};
use hypatia_eval::{Mode, evaluate};
use hypatia_graph::{Graph, Value};
use hypatia_plan::{Action, CallStep, Plan, Step};
use hypatia_target::device::Device;
use hypatia_templates::cuda::CudaSource;
use hypatia_tensor::tensor::Tensor;
use hypatia_testing::random::{coarsest, compare};
use hypatia_testing::{list, ty};

pub(super) type Inputs = Vec<(String, Tensor)>;

/// Products, rows, columns, length of the sums.
const SHAPES: [[usize; 4]; 6] =
    [[1, 128, 128, 64], [1, 304, 520, 200], [2, 200, 264, 72], [3, 8, 8, 8], [1, 1, 1024, 256], [1, 520, 392, 776]];
/// Likewise, with rows that are not whole 16 bytes.
const UNEVEN: [[usize; 4]; 5] =
    [[1, 65, 131, 75], [2, 200, 100, 90], [3, 7, 9, 5], [1, 301, 257, 1], [1, 130, 514, 300]];
/// Epilogues: of a bias, of operands of the result's shape, of one column, of one number.
const EPILOGUES: [&str; 7] = ["silu", "bias, gelu", "residual", "gate", "gate, residual", "column", "number, select"];

pub(super) struct Case {
    pub graph: Graph,
    pub inputs: Inputs,
    rng: ChaCha8Rng,
    dtype: DType,
    whole: bool,
}

impl Case {
    pub fn new(dtype: DType) -> Case {
        let graph = Graph::new(hypatia_library::load(&[]).unwrap());
        Case { graph, inputs: Vec::new(), rng: ChaCha8Rng::seed_from_u64(31), dtype, whole: false }
    }

    /// One whose inputs are -1, 0 and 1: sums of products are exact, in 16 bits too, so that
    /// nothing but an error changes how they compare with others.
    pub fn of_whole_numbers(dtype: DType) -> Case {
        Case { whole: true, ..Case::new(dtype) }
    }

    pub fn input(&mut self, shape: &[usize]) -> Value {
        let mut value = || match self.whole {
            true => f64::from(self.rng.random_range(-1..=1)),
            false => self.rng.random_range(-1.0..1.0),
        };
        let values: Vec<f64> = (0..shape.iter().product()).map(|_| value()).collect();
        let name = format!("x{}", self.inputs.len());
        let v = self.graph.input(&name, ty(self.dtype, shape));
        self.inputs.push((name, Tensor::from_f64(self.dtype, shape, &values).unwrap()));
        v
    }

    pub fn call(&mut self, name: &str, operands: &[Value]) -> Value {
        self.graph.call(name, operands, &[]).unwrap()[0]
    }

    /// A factor of `rows` by `columns`, in memory as it is or transposed.
    pub fn factor(&mut self, batch: usize, [rows, columns]: [usize; 2], transposed: bool) -> Value {
        let lead: &[usize] = if batch > 1 { &[batch] } else { &[] };
        let shape = if transposed { [columns, rows] } else { [rows, columns] };
        let v = self.input(&[lead, &shape].concat());
        let axes: &[usize] = if batch > 1 { &[0, 2, 1] } else { &[1, 0] };
        match transposed {
            true => self.graph.builtin(BuiltinOp::Transpose, &[v], vec![list(axes)]).unwrap()[0],
            false => v,
        }
    }
}

/// A product with that epilogue.
pub(super) fn case(dtype: DType, [batch, m, n, k]: [usize; 4], [a, b]: [bool; 2], epilogue: &str) -> (Graph, Inputs) {
    let mut c = Case::new(dtype);
    let (a, b) = (c.factor(batch, [m, k], a), c.factor(batch, [k, n], b));
    let mut y = c.graph.builtin(BuiltinOp::Matmul, &[a, b], vec![]).unwrap()[0];
    let lead: &[usize] = if batch > 1 { &[batch] } else { &[] };
    let full = [lead, &[m, n]].concat();
    for part in epilogue.split(", ") {
        y = match part {
            "bias" => {
                let bias = c.input(&[n]);
                c.call("add", &[y, bias])
            }
            "column" => {
                let scale = c.input(&[lead, &[m, 1]].concat());
                let y = c.call("mul", &[y, scale]);
                c.call("tanh", &[y])
            }
            "number" => {
                let scale = c.input(&[1]);
                c.call("mul", &[y, scale])
            }
            "select" => {
                let other = c.input(&full);
                let above = c.call("lt", &[other, y]);
                c.call("select", &[above, y, other])
            }
            "residual" => {
                let x = c.input(&full);
                c.call("add", &[y, x])
            }
            "gate" => {
                let x = c.input(&full);
                let y = c.call("silu", &[y]);
                c.call("mul", &[y, x])
            }
            name => c.call(name, &[y]),
        };
    }
    c.graph.output("y", y);
    (c.graph, c.inputs)
}

/// The tiled step of a plan that consists of it.
pub(super) fn tiled_step(plan: &Plan) -> Option<(&Step, &CallStep)> {
    match plan.steps.as_slice() {
        [step @ Step { action: Action::Call(e), .. }] if tiled::kernel(plan, step).is_some() => Some((step, e)),
        _ => None,
    }
}

/// The tilings of both templates that the library declares: Hopper's, and those of warps.
pub(super) fn all_tilings(plan: &Plan) -> [Vec<StoredTiling>; 2] {
    let tune = &plan.program.kernels.iter().find(|k| k.name == "tiles").unwrap().tune;
    let (hopper, warps) = (Tiling::all(tune), WarpTiling::all(tune));
    [hopper.iter().map(Tiling::words).collect(), warps.iter().map(WarpTiling::words).collect()]
}

/// The source of a plan's only step for a tiling, if a template computes the step and it fits.
pub(super) fn source(plan: &Plan, tiling: &StoredTiling) -> Option<CudaSource> {
    let (step, e) = tiled_step(plan).unwrap_or_else(|| panic!("not one tiled step:\n{plan}"));
    let timed = Timed::of(plan, (step, e, tiled::kernel(plan, step).unwrap()))?;
    Some(timed.launches(tiling).first()?.0.emit(&plan.program).unwrap())
}

#[test]
fn a_tiled_product_reads_as_one_would_write_it() {
    if !std::path::Path::new(env!("CARGO_MANIFEST_DIR")).exists() {
        return eprintln!("SKIPPED: a golden file, where there are no sources");
    }
    let (graph, _) = case(DType::BF16, [1, 256, 512, 256], [false, true], "bias, silu, residual");
    let plan = planned(&Device::named("h200").unwrap(), &graph);
    let tiling = Tiling::named(&[("tile_m", 128), ("pingpong", 1), ("cluster_n", 2)]).unwrap();
    insta::assert_snapshot!(source(&plan, &tiling.words()).unwrap().text);
    let split = Tiling::named(&[("tile_n", 64), ("consumers", 1), ("split_k", 4)]).unwrap();
    insta::assert_snapshot!("a_split_product", source(&plan, &split.words()).unwrap().text);
    let (graph, _) = case(DType::BF16, [1, 256, 512, 251], [false, true], "bias, silu, residual");
    let plan = planned(&Device::named("a100").unwrap(), &graph);
    let tiling = WarpTiling::named(&[("tile_k", 64), ("split_k", 2)]).unwrap();
    insta::assert_snapshot!(source(&plan, &tiling.words()).unwrap().text);
}

#[test]
fn every_epilogue_is_one_tiled_step_from_ampere_on() {
    for device in ["h200", "a100"].map(|name| Device::named(name).unwrap()) {
        for (i, epilogue) in EPILOGUES.iter().enumerate() {
            for shape in SHAPES.into_iter().chain(UNEVEN) {
                let (graph, _) = case(DType::BF16, shape, [i % 2 == 0, i % 3 == 0], epilogue);
                let plan = planned(&device, &graph);
                // The library adds a residual of one row as a bias; few rows are timed beside it.
                assert!(
                    plan.steps.len() == 1 && tiled_step(&plan).is_some(),
                    "{epilogue} {shape:?} {}\n{plan}",
                    device.name
                );
            }
        }
    }
    // A type without such kernels.
    let (graph, _) = case(DType::F64, SHAPES[0], [false, false], "silu");
    let plan = planned(&Device::named("h200").unwrap(), &graph);
    assert!(tiled_step(&plan).is_none() && plan.steps.len() == 2, "{plan}");
}

/// The template follows from the device and from where rows begin.
#[test]
fn templates_are_chosen_by_device_and_alignment() {
    let templates = |target: &str, shape: [usize; 4]| {
        let (graph, _) = case(DType::F16, shape, [false, true], "bias, silu");
        let plan = planned(&Device::named(target).unwrap(), &graph);
        let [hopper, warps] = all_tilings(&plan);
        let (step, e) = tiled_step(&plan).unwrap();
        let product =
            GeneratedProduct::of(&plan, e.product().unwrap(), &step.reads[..e.reads], &step.writes[..1]).unwrap();
        let all = product.plausible(tiled::kernel(&plan, step).unwrap(), 132);
        (hopper.contains(&all[0]), [hopper, warps].map(|own| own.iter().any(|t| all.contains(t))))
    };
    assert_eq!(templates("h200", [1, 1024, 1024, 1024]), (true, [true, true]));
    assert_eq!(templates("h200", [1, 1024, 1024, 1023]), (false, [false, true]));
    assert_eq!(templates("h200", [1, 1024, 1023, 1024]), (false, [false, true]));
    assert_eq!(templates("a100", [1, 1024, 1024, 1024]), (false, [false, true]));
}

/// A file that says that a tiling is the fastest, and the step's problem.
pub(super) fn forced(gpu: &Gpu, plan: &Plan, tiling: &StoredTiling) -> Option<TuningFile> {
    let (step, e) = tiled_step(plan).unwrap_or_else(|| panic!("not one tiled step:\n{plan}"));
    let kernel = tiled::kernel(plan, step).unwrap();
    source(plan, tiling)?;
    // The kernel at hand may declare other tilings, and none that fits.
    let work = Timed::of(plan, (step, e, kernel))?;
    if !work.plausible(kernel, gpu.multiprocessors()).contains(tiling) {
        return None;
    }
    let tilings = Tilings::of(gpu, plan, (step, e, kernel), &mut Tuner::without_cache(Duration::ZERO)).unwrap()?;
    let mut file = TuningFile::default();
    file.insert(Choice {
        machine: machine(gpu),
        problem: tilings.problem,
        algorithm: *tiling,
        workspace: 0,
        us: Some(1.0),
        first_us: Some(2.0),
        candidates: 2,
    });
    Some(file)
}

pub(super) fn check(executor: &Executor, graph: &Graph, inputs: &Inputs, what: &str) -> Vec<Tensor> {
    let tensors: Vec<Tensor> = inputs.iter().map(|(_, t)| t.clone()).collect();
    let got = executor.run(&tensors).unwrap();
    compared(&got, graph, inputs, what);
    got
}

/// Compares results with those of the reference.
pub(super) fn compared(got: &[Tensor], graph: &Graph, inputs: &Inputs, what: &str) {
    let want = evaluate(graph, inputs, Mode::Rounded).unwrap();
    for (got, want) in got.iter().zip(&want) {
        compare(got, &want.to_tensor().unwrap(), want.dtype, coarsest(graph), what);
    }
}

#[test]
fn every_tiling_agrees_with_the_reference_on_a_gpu() {
    let some = planned(&Device::named("h200").unwrap(), &case(DType::BF16, SHAPES[0], [false, false], "silu").0);
    let [hopper, warps] = all_tilings(&some);
    let Some(gpu) = gpu(hopper.len() * 3) else { return };
    let most = cases(120) as usize;
    if gpu.profile().sm == 90 {
        agree(&gpu, spread(&hopper, most), &SHAPES);
    }
    agree(&gpu, spread(&warps, most / 2), &[&SHAPES[..], &UNEVEN].concat());
}

/// Runs a graph of one tiled step by that tiling, twice over poisoned memory: both results are the
/// reference's, with the same bits. False if it is not one such step, or the tiling does not fit.
pub(super) fn agrees_by(gpu: &Arc<Gpu>, (graph, inputs): &(Graph, Inputs), tiling: &StoredTiling, what: &str) -> bool {
    let plan = planned(&gpu.profile(), graph);
    let Some(file) = tiled_step(&plan).and_then(|_| forced(gpu, &plan, tiling)) else { return false };
    let mut tuner = Tuner::without_cache(Duration::ZERO).with_file(file);
    let executor = Executor::new(plan.clone(), gpu.clone(), &mut tuner).unwrap().poisoned();
    assert_eq!((executor.launches(), tuner.counts().file), (plan.launches(), 1), "{what}\n{plan}");
    let [first, second] = [0, 1].map(|_| check(&executor, graph, inputs, what));
    assert_eq!(first[0].bytes(), second[0].bytes(), "{what}: runs differ");
    true
}

/// At most so many of these tilings, at an odd distance, so that they have each value of each
/// parameter.
pub(super) fn spread(all: &[StoredTiling], most: usize) -> impl Iterator<Item = &StoredTiling> {
    all.iter().step_by(all.len().div_ceil(most.max(1)).max(1) | 1)
}

/// Runs products with these tilings.
fn agree<'t>(gpu: &Arc<Gpu>, tilings: impl Iterator<Item = &'t StoredTiling>, shapes: &[[usize; 4]]) {
    let orders = [[false, true], [false, false], [true, false], [true, true]];
    let (mut ran, mut at) = (0, 0);
    for tiling in tilings {
        for _ in 0..2 {
            at += 1;
            let dtype = if at % 4 == 0 { DType::F16 } else { DType::BF16 };
            let (shape, order, epilogue) =
                (shapes[at % shapes.len()], orders[at % 5 % 4], EPILOGUES[at % EPILOGUES.len()]);
            let what = format!("{tiling:?} {dtype} {shape:?} {order:?} {epilogue}");
            ran += usize::from(agrees_by(gpu, &case(dtype, shape, order, epilogue), tiling, &what));
        }
    }
    println!("{ran} tiled products agree");
    assert!(ran > 0);
}

/// Runs a graph by the launches that are measured to be the quickest: the results are the
/// reference's, and no choice is slower than its fallback.
pub(super) fn measured_choice_agrees(gpu: &Arc<Gpu>, (graph, inputs): &(Graph, Inputs), what: &str) {
    let plan = planned(&gpu.profile(), graph);
    let folder = tempfile::tempdir().unwrap();
    let store = hypatia_cache::Store::open(folder.path(), hypatia_cache::Kind::Choice);
    let mut tuner = Tuner::with_store(store.into(), Duration::from_secs(60), Effort::Unknown);
    let executor = Executor::new(plan, gpu.clone(), &mut tuner).unwrap().poisoned();
    check(&executor, graph, inputs, what);
    for choice in tuner.choices().filter(|c| c.problem.starts_with("tiled")) {
        println!("{what}: {:?} us {:?} fallback {:?}", choice.algorithm, choice.us, choice.first_us);
        assert!(choice.us <= choice.first_us);
    }
}

/// The quickest is chosen, kept, and run again; it is never slower than the fallback.
#[test]
fn the_measured_choice_is_kept_on_a_gpu() {
    let Some(gpu) = gpu(2) else { return };
    for shape in [[1, 2048, 2048, 512], [1, 64, 64, 64], [1, 512, 1001, 255]] {
        let (graph, inputs) = case(DType::BF16, shape, [false, true], "bias, silu, residual");
        let plan = planned(&gpu.profile(), &graph);
        let folder = tempfile::tempdir().unwrap();
        let store = Arc::new(hypatia_cache::Store::open(folder.path(), hypatia_cache::Kind::Choice));
        let mut tuner = Tuner::with_store(store.clone(), Duration::from_secs(60), Effort::Unknown);
        let executor = Executor::new(plan.clone(), gpu.clone(), &mut tuner).unwrap().poisoned();
        check(&executor, &graph, &inputs, "measured");
        let choice = tuner.choices().find(|c| c.problem.starts_with("tiled")).unwrap().clone();
        println!("{shape:?}: {:?} us {:?} fallback {:?}", choice.algorithm, choice.us, choice.first_us);
        assert!(choice.us <= choice.first_us);
        let mut again = Tuner::with_store(store, Duration::from_secs(60), Effort::Unknown);
        let executor = Executor::new(plan.clone(), gpu.clone(), &mut again).unwrap().poisoned();
        assert_eq!(again.counts().measured, 0);
        assert_eq!(again.choices().find(|c| c.problem == choice.problem).unwrap().algorithm, choice.algorithm);
        check(&executor, &graph, &inputs, "from the store");
    }
}

/// `hypatia gen --model` writes the kernel that a plan launches, not a library call.
#[test]
fn what_runs_is_what_gen_writes() {
    for (target, arch) in [("h200", Some("sm_90a")), ("a100", None)] {
        let plan = planned(&Device::named(target).unwrap(), &case(DType::BF16, SHAPES[0], [false, true], "silu").0);
        let written = crate::generate::of_plan(&plan, None);
        let [instance] = written.instances.as_slice() else { panic!("{written:?}\n{plan}") };
        assert_eq!(instance.body.only_arch(), arch, "{target}");
        assert_eq!(written.steps[0].kernel.as_ref(), Some(&instance.kernel), "{target}");
    }
}

/// It writes the tiling that a tuning file names, and the steps in turn where these were faster.
#[test]
fn gen_writes_what_was_measured() {
    let plan = planned(&Device::named("h200").unwrap(), &case(DType::BF16, SHAPES[0], [false, true], "silu").0);
    let (step, call) = tiled_step(&plan).unwrap();
    let kernel = tiled::kernel(&plan, step).unwrap();
    let work = Timed::of(&plan, (step, call, kernel)).unwrap();
    let problem = tiled::problem_of(&plan, (step, call, kernel), &work, 132).unwrap();
    let other = work.plausible(kernel, 132)[1];
    let written = |algorithm: StoredTiling| {
        let machine = Machine { device: "x".into(), driver: 1, library: 1, hypatia: "x".into() };
        let us = Some(1.0);
        let choice =
            Choice { machine, problem: problem.clone(), algorithm, workspace: 0, us, first_us: us, candidates: 2 };
        let mut file = TuningFile::default();
        file.insert(choice);
        crate::generate::of_plan(&plan, Some(&file))
    };
    let [instance] = &written(other).instances[..] else { panic!("no single kernel") };
    // But for names and comments.
    let code = |source: CudaSource| -> Vec<String> {
        let own = source.text.replace("k0_product_bf16", "product");
        own.lines().filter(|l| !l.starts_with("//")).map(str::to_string).collect()
    };
    let want = code(work.launches(&other).remove(0).0.emit(&plan.program).unwrap());
    let predicted = crate::generate::of_plan(&plan, None);
    let got = code(instance.body.emit(&plan.program).unwrap());
    assert!(got == want && got != code(predicted.instances[0].body.emit(&plan.program).unwrap()));
    // The product and a pass.
    let apart = written(crate::fallback::FALLBACK);
    assert!(apart.steps.iter().any(|s| s.runs != "kernel"), "{:?}", apart.steps);
}

/// `silu(a b + bias)` of the first rows of one matrix, whatever their number.
fn first_rows(dtype: DType, [rows, n, k]: [usize; 3]) -> (Graph, Inputs) {
    let mut c = Case::new(dtype);
    let (b, bias) = (c.factor(1, [k, n], true), c.input(&[n]));
    let a = c.factor(1, [rows, k], false);
    let y = c.graph.builtin(BuiltinOp::Matmul, &[a, b], vec![]).unwrap()[0];
    let y = c.call("add", &[y, bias]);
    let y = c.call("silu", &[y]);
    c.graph.output("y", y);
    (c.graph, c.inputs)
}

/// A row has the same bits in every tiling of a template that does not split k, and beside any
/// number of other rows: what a batch-invariant plan may rely on.
#[test]
fn tilings_do_not_decide_the_bits_of_a_row_on_a_gpu() {
    const SIZES: [usize; 2] = [264, 1096];
    const ROWS: [usize; 5] = [1, 7, 64, 129, 520];
    let some = planned(&Device::named("h200").unwrap(), &first_rows(DType::BF16, [64, SIZES[0], SIZES[1]]).0);
    let [hopper, warps] = all_tilings(&some);
    let whole = |t: &&StoredTiling| {
        let split = WarpTiling::of_words(t).map(|t| t.split).or(Tiling::of_words(t).map(|t| t.split));
        split == Some(1)
    };
    let hopper: Vec<StoredTiling> = hopper.iter().filter(whole).copied().collect();
    let warps: Vec<StoredTiling> = warps.iter().filter(whole).copied().collect();
    let Some(gpu) = gpu((hopper.len() + warps.len()) * ROWS.len()) else { return };
    let hopper = if gpu.profile().sm == 90 { hopper } else { Vec::new() };
    let (mut ran, mut of_templates) = (0, Vec::new());
    for tilings in [hopper, warps] {
        let mut known: Option<Vec<u8>> = None;
        for (at, tiling) in spread(&tilings, cases(40) as usize).enumerate() {
            let rows = [ROWS[at % ROWS.len()], ROWS[ROWS.len() - 1]];
            for rows in &rows[usize::from(at > 3 && at % 4 != 0)..] {
                let (graph, inputs) = first_rows(DType::BF16, [*rows, SIZES[0], SIZES[1]]);
                let plan = planned(&gpu.profile(), &graph);
                let Some(file) = tiled_step(&plan).and_then(|_| forced(&gpu, &plan, tiling)) else { continue };
                let mut tuner = Tuner::without_cache(Duration::ZERO).with_file(file);
                let executor = Executor::new(plan, gpu.clone(), &mut tuner).unwrap().poisoned();
                let what = format!("{tiling:?}, {rows} rows");
                let bits = check(&executor, &graph, &inputs, &what)[0].bytes().to_vec();
                let longest = known.get_or_insert_with(|| bits.clone());
                let both = bits.len().min(longest.len());
                assert!(bits[..both] == longest[..both], "{what}: other bits than the tilings before");
                if bits.len() > longest.len() {
                    *longest = bits;
                }
                ran += 1;
            }
        }
        of_templates.extend(known);
    }
    println!("{ran} products, the same bits in every tiling of a template");
    if let [hopper, warps] = of_templates.as_slice() {
        println!("the two templates have the same bits: {}", hopper == warps);
    }
    assert!(ran > 0);
}
