//! Products whose factors are computed where they are read, against the reference: weights of 8
//! bits with scales of columns and of groups, zero points, casts, scales along the sums,
//! activations in front, pairs; few and more rows, both orders of the right factor, ragged sizes,
//! every tiling that the library declares; what keeps the work apart.
use hypatia_dsl::builtin::BuiltinOp;
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::AttrValue;
use hypatia_dsl::kernel::{GemvTiling, StoredTiling, Tiling, WarpTiling};
use rand::prelude::*;
use rand_chacha::ChaCha8Rng;

use super::tiled::{Inputs, agrees_by, forced, source, tiled_step};
use super::{cases, gpu, planned};
use super::{emulated, gemv};
use crate::lowering::timed::Timed;
use crate::nvrtc::{Nvrtc, NvrtcError};
use crate::tiled;
use hypatia_eval::{Mode, evaluate};
use hypatia_graph::{Graph, Value};
use hypatia_pipeline as pipeline;
use hypatia_plan::{Action, CallStep, Called, Options, Plan};
use hypatia_target::device::Device;
use hypatia_tensor::tensor::Tensor;
use hypatia_testing::random::{coarsest, compare};
use hypatia_testing::{list, ty};

/// Rows, columns, length of the sums; groups have 32 elements.
const SHAPES: [[usize; 3]; 6] = [[1, 64, 256], [1, 40, 96], [7, 104, 544], [8, 200, 288], [13, 88, 320], [29, 48, 64]];
/// Likewise, with more rows than the template of few rows takes.
const TALL: [[usize; 3]; 6] =
    [[40, 64, 256], [64, 136, 96], [50, 72, 544], [33, 320, 64], [61, 264, 288], [64, 8, 1056]];
/// How the factors are computed.
const WORK: [&str; 10] = [
    "bytes",
    "scaled",
    "groups",
    "zero points",
    "whole zero points",
    "wide",
    "along",
    "left",
    "left, scaled",
    "masked",
];

struct Case {
    graph: Graph,
    inputs: Inputs,
    rng: ChaCha8Rng,
    half: DType,
}

impl Case {
    fn new(half: DType) -> Case {
        let graph = Graph::new(hypatia_library::load(&[]).unwrap());
        Case { graph, inputs: Vec::new(), rng: ChaCha8Rng::seed_from_u64(5), half }
    }

    fn input(&mut self, dtype: DType, shape: &[usize]) -> Value {
        let range = match dtype {
            DType::I8 => -128.0..128.0,
            DType::U8 => 0.0..256.0,
            _ => -1.0..1.0,
        };
        let value = |_| {
            let v: f64 = self.rng.random_range(range.clone());
            if dtype.is_float() { v } else { v.floor() }
        };
        let values: Vec<f64> = (0..shape.iter().product()).map(value).collect();
        let name = format!("x{}", self.inputs.len());
        let v = self.graph.input(&name, ty(dtype, shape));
        self.inputs.push((name, Tensor::from_f64(dtype, shape, &values).unwrap()));
        v
    }

    fn call(&mut self, name: &str, operands: &[Value]) -> Value {
        self.graph.call(name, operands, &[]).unwrap()[0]
    }

    fn builtin(&mut self, op: BuiltinOp, v: Value, attrs: Vec<AttrValue>) -> Value {
        self.graph.builtin(op, &[v], attrs).unwrap()[0]
    }

    fn half(&mut self, v: Value) -> Value {
        self.builtin(BuiltinOp::Cast, v, vec![AttrValue::DType(self.half)])
    }

    /// A right factor of k by n, in memory [n, k] if `by_k` says so.
    fn right(&mut self, work: &str, [k, n]: [usize; 2], by_k: bool) -> Value {
        let shape = |k: usize, n: usize| if by_k { [n, k] } else { [k, n] };
        let (whole, line) = (shape(k, n), shape(1, n));
        let w = match work {
            "groups" => {
                let of = |k: usize, g: usize| if by_k { vec![n, k, g] } else { vec![k, g, n] };
                let (q, s) = (self.input(DType::I8, &of(k / 32, 32)), self.input(self.half, &of(k / 32, 1)));
                let q = self.half(q);
                let w = self.call("mul", &[q, s]);
                self.builtin(BuiltinOp::Reshape, w, vec![list(&whole)])
            }
            "zero points" => {
                let (q, z) = (self.input(DType::U8, &whole), self.input(DType::U8, &line));
                let [q, z] = [q, z].map(|v| self.half(v));
                let (w, s) = (self.call("sub", &[q, z]), self.input(DType::F32, &line));
                let s = self.half(s);
                self.call("mul", &[w, s])
            }
            // Such differences wrap around.
            "whole zero points" => {
                let (q, z) = (self.input(DType::I8, &whole), self.input(DType::I8, &line));
                let w = self.call("sub", &[q, z]);
                self.half(w)
            }
            "wide" => {
                let w = self.input(DType::F32, &whole);
                self.half(w)
            }
            "along" => {
                let (w, s) = (self.input(self.half, &whole), self.input(self.half, &shape(k, 1)));
                self.call("mul", &[w, s])
            }
            "masked" => {
                let (w, m) = (self.input(self.half, &whole), self.input(DType::F32, &whole));
                let m = self.half(m);
                self.call("mul", &[w, m])
            }
            "bytes" => {
                let q = self.input(DType::I8, &whole);
                self.half(q)
            }
            "left" => self.input(self.half, &whole),
            _ => {
                let (q, s) = (self.input(DType::I8, &whole), self.input(self.half, &line));
                let q = self.half(q);
                self.call("mul", &[q, s])
            }
        };
        if by_k { self.builtin(BuiltinOp::Transpose, w, vec![list(&[1, 0])]) } else { w }
    }

    fn left(&mut self, work: &str, [m, k]: [usize; 2]) -> Value {
        let x = self.input(self.half, &[m, k]);
        if !work.starts_with("left") {
            return x;
        }
        let (y, s) = (self.input(self.half, &[m, k]), self.input(self.half, &[k]));
        let x = self.call("silu", &[x]);
        let y = self.call("mul", &[y, s]);
        self.call("mul", &[x, y])
    }

    fn done(mut self, y: Value) -> (Graph, Inputs) {
        self.graph.output("y", y);
        (self.graph, self.inputs)
    }
}

/// A product with a bias and SiLU, or two with a gate.
fn case(half: DType, [m, n, k]: [usize; 3], by_k: bool, work: &str, pair: bool) -> (Graph, Inputs) {
    let mut c = Case::new(half);
    let x = c.left(work, [m, k]);
    let w = c.right(work, [k, n], by_k);
    let y = c.graph.builtin(BuiltinOp::Matmul, &[x, w], vec![]).unwrap()[0];
    if pair {
        let v = c.right(work, [k, n], by_k);
        let z = c.graph.builtin(BuiltinOp::Matmul, &[x, v], vec![]).unwrap()[0];
        let y = c.call("silu", &[y]);
        let y = c.call("mul", &[y, z]);
        return c.done(y);
    }
    let bias = c.input(half, &[n]);
    let y = c.call("add", &[y, bias]);
    let y = c.call("silu", &[y]);
    c.done(y)
}

fn numbered(shapes: &[[usize; 3]], at: usize, pair: bool) -> (String, (Graph, Inputs)) {
    let half = if at.is_multiple_of(3) { DType::F16 } else { DType::BF16 };
    // Shapes and work have a common factor.
    let shape = shapes[(at + at / WORK.len()) % shapes.len()];
    let (work, by_k) = (WORK[at % WORK.len()], (at / 2).is_multiple_of(2));
    let order = if by_k { "by k" } else { "by columns" };
    (format!("{half} {shape:?} {work} {order} pair {pair}"), case(half, shape, by_k, work, pair))
}

fn device(name: &str) -> Device {
    Device::named(name).unwrap()
}

/// The number of steps of the first product's factors that are computed where they are read.
fn computed(plan: &Plan) -> Vec<usize> {
    let of = |action: &Action| match action {
        Action::Call(CallStep { called: Called::Prologue(p), fallback, .. }) => {
            assert!(p.factors.iter().any(|f| f.term().is_some()));
            Some(fallback.len() - 1)
        }
        _ => None,
    };
    plan.steps.iter().filter_map(|s| of(&s.action)).collect()
}

/// The tilings of a template that a kernel declares.
fn of_kernel(kernel: &str, words: impl Fn(&[(String, Vec<i64>)]) -> Vec<StoredTiling>) -> Vec<StoredTiling> {
    let some = planned(&device("a100"), &case(DType::BF16, SHAPES[0], true, "bytes", false).0);
    words(&some.program.kernels.iter().find(|k| k.name == kernel).unwrap().tune)
}

fn declared(kernel: &str) -> Vec<StoredTiling> {
    of_kernel(kernel, |tune| GemvTiling::all(tune).iter().map(GemvTiling::words).collect())
}

fn of_warps() -> Vec<StoredTiling> {
    of_kernel("tiles", |tune| WarpTiling::all(tune).iter().map(WarpTiling::words).collect())
}

fn of_hopper(kernel: &str) -> Vec<StoredTiling> {
    // Each block computes what it multiplies: no cluster.
    of_kernel(kernel, |tune| {
        Tiling::all(tune)
            .iter()
            .filter(|t| t.blocks() == 1 && (kernel == "tiles" || t.has_pairs()))
            .map(Tiling::words)
            .collect()
    })
}

fn fits(plan: &Plan, tiling: &StoredTiling) -> bool {
    let Some((step, e)) = tiled_step(plan) else { return false };
    let timed = Timed::of(plan, (step, e, tiled::kernel(plan, step).unwrap()));
    timed.is_some_and(|t| !t.launches(tiling).is_empty())
}

#[test]
fn work_on_factors_is_part_of_products() {
    let (few, warps, hopper) = (declared("tiles"), of_warps(), of_hopper("tiles"));
    for (shapes, target, tilings) in
        [(SHAPES, "h200", &few), (SHAPES, "a100", &warps), (TALL, "a100", &warps), (TALL, "h200", &hopper)]
    {
        for at in 0..shapes.len() * WORK.len() {
            let (what, (graph, _)) = numbered(&shapes, at, false);
            let plan = planned(&device(target), &graph);
            // Each tile of columns would compute the left factor of many rows again.
            let apart = shapes == TALL && WORK[at % WORK.len()].starts_with("left");
            if apart {
                assert!(matches!(plan.steps[0].action, Action::Pointwise(_)), "{what} {target}\n{plan}");
                continue;
            }
            assert_eq!((plan.steps.len(), computed(&plan).len()), (1, 1), "{what} {target}\n{plan}");
            assert!(tilings.iter().any(|t| fits(&plan, t)), "{what} {target}: no tiling fits\n{plan}");
        }
    }
    let (what, (graph, _)) = numbered(&SHAPES, 1, true);
    let plan = planned(&device("h200"), &graph);
    assert_eq!((plan.steps.len(), computed(&plan)), (1, vec![2]), "{what}\n{plan}");
    let plan = planned(&device("cpu"), &graph);
    assert_eq!(computed(&plan), [0; 0], "{plan}");
}

#[test]
fn what_is_needed_besides_is_stored() {
    let of = |m: usize, change: &dyn Fn(&mut Case, Value, Value) -> Value| {
        let mut c = Case::new(DType::BF16);
        let x = c.input(DType::BF16, &[m, 64]);
        let w = c.right("scaled", [64, 64], true);
        let y = change(&mut c, x, w);
        let (graph, _) = c.done(y);
        computed(&planned(&device("h200"), &graph))
    };
    let product = |c: &mut Case, x: Value, w: Value| {
        let y = c.graph.builtin(BuiltinOp::Matmul, &[x, w], vec![]).unwrap()[0];
        c.call("silu", &[y])
    };
    assert_eq!((of(4, &product), of(64, &product)), (vec![1], vec![1]));
    // Each tile of rows would compute the factor again.
    assert_eq!(of(65, &product), [0; 0]);
    // A result of its own, and a second reader.
    let stored = |c: &mut Case, x: Value, w: Value| {
        c.graph.output("w", w);
        product(c, x, w)
    };
    assert_eq!(of(4, &stored), [0; 0]);
    let twice = |c: &mut Case, x: Value, w: Value| {
        let y = product(c, x, w);
        product(c, y, w)
    };
    assert_eq!(of(4, &twice), [0; 0]);
}

/// A constant weight of 8 bits is not folded to one of 16 if few rows read it.
#[test]
fn weights_that_are_constants_stay_narrow() {
    let of = |m: usize, twice: bool| {
        let mut c = Case::new(DType::BF16);
        let [k, n] = [2048, 1024];
        let x = c.input(DType::BF16, &[m, k]);
        let q = c.graph.constant(Tensor::from_f64(DType::I8, &[n, k], &vec![3.0; n * k]).unwrap());
        let s = c.graph.constant(Tensor::from_f64(DType::F32, &[n, 1], &vec![0.5; n]).unwrap());
        let [q, s] = [q, s].map(|v| c.half(v));
        let w = c.call("mul", &[q, s]);
        let w = c.builtin(BuiltinOp::Transpose, w, vec![list(&[1, 0])]);
        let mut y = c.graph.builtin(BuiltinOp::Matmul, &[x, w], vec![]).unwrap()[0];
        if twice {
            let v = c.input(DType::BF16, &[m, k]);
            let z = c.graph.builtin(BuiltinOp::Matmul, &[v, w], vec![]).unwrap()[0];
            c.graph.output("z", z);
        }
        y = c.call("silu", &[y]);
        let (graph, _) = c.done(y);
        let plan = planned(&device("h200"), &graph);
        let narrow = plan.constants.iter().any(|t| t.dtype() == DType::I8);
        (plan.steps.len(), computed(&plan), narrow)
    };
    assert_eq!(of(4, false), (1, vec![1], true));
    assert_eq!(of(64, false), (1, vec![], false));
    // Two products read it, so it would be computed in a step of its own.
    assert_eq!(of(4, true), (2, vec![], false));
}

#[test]
fn a_product_with_work_on_its_factors_reads_as_one_would_write_it() {
    if !std::path::Path::new(env!("CARGO_MANIFEST_DIR")).exists() {
        return eprintln!("SKIPPED: a golden file, where there are no sources");
    }
    let plan = planned(&device("a100"), &case(DType::BF16, SHAPES[0], true, "groups", false).0);
    insta::assert_snapshot!(source(&plan, &GemvTiling::named(&[]).unwrap().words()).unwrap().text);
    let plan = planned(&device("h200"), &case(DType::BF16, TALL[0], true, "groups", false).0);
    insta::assert_snapshot!("of_warps", source(&plan, &WarpTiling::named(&[]).unwrap().words()).unwrap().text);
    insta::assert_snapshot!("of_hopper", source(&plan, &Tiling::named(&[]).unwrap().words()).unwrap().text);
}

/// On a host: what each thread reads and computes. Each tiling has another case.
#[test]
fn factors_that_are_computed_agree_with_the_reference_on_a_host() {
    let (mut all, mut known) = (Vec::new(), Vec::new());
    let mut at = 0;
    let kinds = [
        (SHAPES, false, declared("tiles"), 3, "a100"),
        (SHAPES, true, declared("pair_tiles"), 5, "h200"),
        (TALL, false, of_warps(), 20, "a100"),
        (SHAPES, false, of_warps(), 25, "a100"),
    ];
    for (shapes, pair, tilings, steps, target) in kinds {
        let options = Options::new(device(target));
        for tiling in tilings.into_iter().step_by(steps) {
            // Wide tilings hold few of the cases.
            for _ in 0..20 {
                at += 1;
                let (what, (graph, inputs)) = numbered(&shapes, at, pair);
                let optimizing = hypatia_optimize::Options { device: device(target), ..Default::default() };
                let better = pipeline::optimize(&graph, &optimizing).unwrap().graph;
                if fits(&pipeline::plan(&better, &options).unwrap(), &tiling) {
                    let what = format!("{tiling:?} {what}");
                    let case = emulated::Case { what, graph: better, inputs: inputs.clone() };
                    all.push((case, tiling, options.clone()));
                    known.push((graph, inputs));
                    break;
                }
            }
        }
    }
    println!("{} cases", all.len());
    assert!(all.len() > 10);
    for ((case, tiling, options), (graph, inputs)) in all.into_iter().zip(&known) {
        let what = case.what.clone();
        let ran = match emulated::run_tiled(&[case], &options, Some(tiling)) {
            Ok(ran) => ran,
            Err(why) => return eprintln!("SKIPPED: {why}"),
        };
        let (_, got) = ran.into_iter().next().flatten().unwrap_or_else(|| panic!("{what} has no kernel"));
        let want = evaluate(graph, inputs, Mode::Rounded).unwrap();
        compare(&got[0], &want[0].to_tensor().unwrap(), want[0].dtype, coarsest(graph), &what);
    }
}

/// NVRTC accepts them; it needs no GPU.
#[test]
fn factors_that_are_computed_compile() {
    let nvrtc = match Nvrtc::get() {
        Ok(nvrtc) => nvrtc,
        Err(NvrtcError::NotFound(_)) => return eprintln!("SKIPPED: no NVRTC"),
        Err(e) => panic!("{e}"),
    };
    let kinds = [
        (SHAPES, false, declared("tiles"), 4, ["a100", "sm_80"]),
        (TALL, false, of_warps(), 12, ["a100", "sm_80"]),
        (TALL, false, of_hopper("tiles"), 4, ["h200", "sm_90a"]),
        (TALL, true, of_hopper("pair_tiles"), 1, ["h200", "sm_90a"]),
        (SHAPES, false, of_hopper("tiles"), 5, ["h200", "sm_90a"]),
    ];
    for (shapes, pair, tilings, steps, [target, arch]) in kinds {
        let mut compiled = 0;
        for (i, tiling) in tilings.iter().enumerate().step_by(steps) {
            let (what, (graph, _)) = numbered(&shapes, i / steps, pair);
            let plan = planned(&device(target), &graph);
            if fits(&plan, tiling) {
                let text = source(&plan, tiling).unwrap().text;
                nvrtc.compile(&text, "k.cu", arch).unwrap_or_else(|e| panic!("{tiling:?} {what}: {e}"));
                compiled += 1;
            }
        }
        assert!(compiled > 2, "{target}, pairs {pair}: {compiled} of {}", tilings.len());
    }
}

#[test]
fn factors_that_are_computed_agree_with_the_reference_on_a_gpu() {
    let kinds = [
        (SHAPES, false, declared("tiles")),
        (SHAPES, true, declared("pair_tiles")),
        (TALL, false, of_warps()),
        (TALL, false, of_hopper("tiles")),
        (TALL, true, of_hopper("pair_tiles")),
        (SHAPES, false, of_warps()),
        (SHAPES, false, of_hopper("tiles")),
    ];
    let Some(gpu) = gpu(kinds.iter().map(|(.., tilings)| tilings.len() * 3).sum()) else { return };
    for (shapes, pair, tilings) in kinds {
        let mut ran = 0;
        for (i, tiling) in tilings.iter().enumerate().take(cases(1000) as usize) {
            for at in i * 3..i * 3 + 3 {
                let (what, case) = numbered(&shapes, at, pair);
                if fits(&planned(&gpu.profile(), &case.0), tiling) {
                    ran += usize::from(agrees_by(&gpu, &case, tiling, &format!("{tiling:?} {what}")));
                }
            }
        }
        println!("{ran} products with work on their factors agree");
        assert!(ran > 0 || tilings_need_hopper(&gpu, &tilings), "none of {tilings:?}");
    }
}

/// True for Hopper's tilings on another GPU.
fn tilings_need_hopper(gpu: &crate::device::Gpu, tilings: &[StoredTiling]) -> bool {
    gpu.profile().sm != 90 && tilings.iter().all(|t| Tiling::of_words(t).is_some())
}

/// Times of tilings, in the order of their predictions: a measurement, not a test.
#[test]
#[ignore = "a measurement"]
fn factors_that_are_computed_are_timed_on_a_gpu() {
    let Some(gpu) = gpu(1) else { return };
    for (work, [m, n, k]) in [("scaled", [16, 4096, 4096]), ("scaled", [1, 4096, 4096]), ("groups", [1, 4096, 4096])] {
        let (graph, _) = case(DType::BF16, [m, n, k], true, work, false);
        gemv::time_tilings(&gpu, &graph, n * k, &format!("{work} {m}x{n}x{k}"));
    }
}

/// Times of the most plausible tilings of products of more rows, and of the parts: a measurement,
/// not a test.
#[test]
#[ignore = "a measurement"]
fn factors_of_many_rows_are_timed_on_a_gpu() {
    let Some(gpu) = gpu(1) else { return };
    let all = [
        ([64, 4096, 4096], "scaled", false),
        ([64, 4096, 4096], "groups", false),
        ([64, 11008, 4096], "wide", false),
        ([64, 4096, 4096], "scaled", true),
    ];
    for (shape, work, pair) in all {
        let (graph, inputs) = case(DType::BF16, shape, true, work, pair);
        let plan = planned(&gpu.profile(), &graph);
        let (step, e) = tiled_step(&plan).unwrap_or_else(|| panic!("{plan}"));
        let kernel = tiled::kernel(&plan, step).unwrap();
        let timed = Timed::of(&plan, (step, e, kernel)).unwrap();
        let tensors: Vec<Tensor> = inputs.iter().map(|(_, t)| t.clone()).collect();
        let time = |file: crate::tuning::TuningFile| {
            let mut tuner = crate::tuner::Tuner::without_cache(std::time::Duration::ZERO).with_file(file);
            let made = crate::exec::Executor::new(plan.clone(), gpu.clone(), &mut tuner).unwrap();
            made.timer(&tensors).unwrap().steps(30).unwrap().iter().sum::<f64>()
        };
        println!("{shape:?} {work} pair {pair}: the parts {:.1} us", time(crate::tuning::TuningFile::default()));
        let plausible = timed.plausible(kernel, gpu.multiprocessors());
        let mut of_kind = [0; 2];
        for words in plausible {
            let kinds = [Tiling::of_words(&words).is_some(), WarpTiling::of_words(&words).is_some()];
            let Some(kind) = kinds.iter().position(|is| *is).filter(|k| of_kind[*k] < 4) else { continue };
            of_kind[kind] += 1;
            let Some(file) = forced(&gpu, &plan, &words) else { continue };
            println!("  {words:?} {:.1} us", time(file));
        }
    }
}
