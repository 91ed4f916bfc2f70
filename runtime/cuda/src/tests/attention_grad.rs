//! Log-sum-exp of attention, and its gradients, against the reference: every tiling that the
//! library declares, on a host without a GPU and on every GPU from Ampere on; ragged heads, rows
//! that begin anywhere, heads as a projection leaves them, masks of all kinds, rows without keys.
use std::collections::HashSet;
use std::time::Duration;

use hypatia_dsl::builtin::BuiltinOp;
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::AttrValue;
use hypatia_dsl::kernel::StoredTiling;
use hypatia_dsl::kernel::attention_grad::AttentionGradTiling;
use hypatia_dsl::numerics::Allowed;
use rand::prelude::*;
use rand_chacha::ChaCha8Rng;

use super::attention::{self, Inputs};
use super::emulated;
use super::{gpu, planned, planned_with};
use crate::lowering::Work;
use crate::lowering::attention_grad::GeneratedAttentionGrad;
use crate::tiled::{self, Tilings};
use crate::tune::machine;
use crate::tuner::Tuner;
use crate::tuning::{Choice, TuningFile};
use crate::{Executor, Gpu};
use hypatia_eval::{Mode, evaluate};
use hypatia_graph::{Graph, Value};
use hypatia_pipeline as pipeline;
use hypatia_plan::{Action, CallStep, Called, Options, Plan, Step};
use hypatia_target::device::Device;
use hypatia_templates::instances::Body;
use hypatia_tensor::tensor::Tensor;
use hypatia_testing::random::{coarsest, compare};
use hypatia_testing::{list, ty};

/// Batch, heads, queries, keys, elements of a query, elements of a value.
const SHAPES: [[usize; 6]; 10] = [
    [1, 1, 128, 128, 64, 64],
    [2, 3, 197, 197, 64, 64],
    [1, 2, 70, 200, 128, 128],
    [2, 2, 1, 77, 32, 32],
    [1, 2, 130, 16, 16, 24],
    [1, 2, 150, 150, 80, 96],
    [1, 2, 65, 65, 63, 63],
    [2, 1, 40, 130, 20, 36],
    [1, 2, 100, 33, 1, 2],
    [1, 1, 90, 90, 100, 100],
];

/// What masks the scores.
const MASKS: [&str; 6] = ["none", "causal", "window", "bias", "padding", "rows without keys"];

struct Case {
    graph: Graph,
    inputs: Inputs,
    rng: ChaCha8Rng,
    dtype: DType,
}

impl Case {
    fn input(&mut self, shape: &[usize], of: impl Fn(usize, f64) -> f64) -> Value {
        self.of_type(self.dtype, shape, of)
    }

    fn numbers(&mut self, shape: &[usize], of: impl Fn(usize, f64) -> f64) -> Value {
        self.of_type(DType::F32, shape, of)
    }

    fn of_type(&mut self, dtype: DType, shape: &[usize], of: impl Fn(usize, f64) -> f64) -> Value {
        let values: Vec<f64> = (0..shape.iter().product()).map(|i| of(i, self.rng.random_range(-1.0..1.0))).collect();
        let name = format!("x{}", self.inputs.len());
        let v = self.graph.input(&name, ty(dtype, shape));
        self.inputs.push((name, Tensor::from_f64(dtype, shape, &values).unwrap()));
        v
    }

    fn transposed(&mut self, v: Value) -> Value {
        self.graph.builtin(BuiltinOp::Transpose, &[v], vec![list(&[0, 2, 1, 3])]).unwrap()[0]
    }

    fn builtin(&mut self, op: BuiltinOp, v: Value, attrs: Vec<AttrValue>) -> Value {
        self.graph.builtin(op, &[v], attrs).unwrap()[0]
    }

    /// Heads `[b, h, rows, d]`, in memory as they are or as `[b, rows, h, d]`.
    fn heads(&mut self, [b, h, rows, d]: [usize; 4], apart: bool) -> Value {
        if apart {
            return self.input(&[b, h, rows, d], |_, x| x * 2.0);
        }
        let v = self.input(&[b, rows, h, d], |_, x| x * 2.0);
        self.transposed(v)
    }

    /// What is added to the scores.
    fn mask(&mut self, [b, h, m, n]: [usize; 4], mask: &str) -> Option<Value> {
        let hides = |hidden: bool| if hidden { f64::NEG_INFINITY } else { 0.0 };
        let ahead = n.saturating_sub(m);
        let causal = |i: usize| i % n > i / n + ahead;
        let constant = |case: &mut Case, of: &dyn Fn(usize) -> bool| {
            let values: Vec<f64> = (0..m * n).map(|i| hides(of(i))).collect();
            Some(case.graph.constant(Tensor::from_f64(case.dtype, &[m, n], &values).unwrap()))
        };
        match mask {
            "none" => None,
            "causal" => constant(self, &causal),
            "window" => constant(self, &|i| causal(i) || i % n + 40 <= i / n + ahead),
            "rows without keys" => constant(self, &|i| causal(i) || i / n % 3 == 1),
            "bias" => Some(self.input(&[h, m, n], |_, x| x)),
            "padding" => Some(self.input(&[b, 1, 1, n], |i, _| hides(i % n > n / 2))),
            other => panic!("{other}"),
        }
    }
}

/// A forward pass and the gradients of queries, keys and values, as products read them.
pub(super) fn case(dtype: DType, shape: [usize; 6], apart: bool, mask: &str) -> (Graph, Inputs) {
    built(dtype, shape, apart, mask, true)
}

/// The gradients alone, from a log-sum-exp and a sum that are given.
fn gradients_alone(dtype: DType, shape: [usize; 6], apart: bool, mask: &str) -> (Graph, Inputs) {
    built(dtype, shape, apart, mask, false)
}

fn built(dtype: DType, [b, h, m, n, d, e]: [usize; 6], apart: bool, mask: &str, forward: bool) -> (Graph, Inputs) {
    let graph = Graph::new(hypatia_library::load(&[]).unwrap());
    let mut c = Case { graph, inputs: Vec::new(), rng: ChaCha8Rng::seed_from_u64(7), dtype };
    let [q, k] = [[b, h, m, d], [b, h, n, d]].map(|shape| c.heads(shape, apart));
    let [v, dy] = [[b, h, n, e], [b, h, m, e]].map(|shape| c.heads(shape, apart));
    let mask_of = c.mask([b, h, m, n], mask);
    let scale = AttrValue::Float(1.0 / (d as f64).sqrt());
    let (y, l, r) = if forward {
        let safe = AttrValue::Bool(mask != "none" && mask != "bias");
        let operands: Vec<Value> = [q, k, v].into_iter().chain(mask_of).collect();
        let made = c.graph.call("attention_lse", &operands, &[("scale", scale.clone()), ("safe", safe)]).unwrap();
        let wide = [made[0], dy].map(|x| c.builtin(BuiltinOp::Cast, x, vec![AttrValue::DType(DType::F32)]));
        let both = c.graph.call("mul", &wide, &[]).unwrap()[0];
        let r = c.builtin(BuiltinOp::Sum, both, vec![list(&[3]), AttrValue::Bool(true)]);
        (Some(made[0]), made[1], r)
    } else {
        // Near what scores of this size have; infinite where a row has no keys.
        let ahead = n.saturating_sub(m);
        let hidden = |i: usize| match mask {
            "rows without keys" => i % m % 3 == 1,
            "window" => i % m + ahead >= n + 39,
            _ => false,
        };
        let l = c.numbers(&[b, h, m, 1], |i, x| if hidden(i) { f64::INFINITY } else { x + (n as f64).ln() + 1.0 });
        (None, l, c.numbers(&[b, h, m, 1], |_, x| x * 2.0))
    };
    let wide = mask_of.map(|m| c.builtin(BuiltinOp::Cast, m, vec![AttrValue::DType(DType::F32)]));
    let operands: Vec<Value> = [q, k, v, dy, l, r].into_iter().chain(wide).collect();
    let made = c.graph.call("attention_grad", &operands, &[("scale", scale)]).unwrap();
    let outputs = y.map(|y| (y, m, e)).into_iter().chain(made.into_iter().zip([(m, d), (n, d), (n, e)]).map(flat));
    let outputs: Vec<_> = outputs.collect();
    // Of a merged projection, the gradients are parts of one tensor.
    let merged = !apart && m == n;
    let mut parts = Vec::new();
    for (i, (v, rows, width)) in outputs.into_iter().enumerate() {
        // As the next product reads it.
        let turned = c.transposed(v);
        let joined = c.builtin(BuiltinOp::Reshape, turned, vec![list(&[b, rows, h * width])]);
        match merged && i >= usize::from(forward) {
            true => parts.push(joined),
            false => c.graph.output(format!("y{i}"), joined),
        }
    }
    if merged {
        let all = c.graph.builtin(BuiltinOp::Concat, &parts, vec![AttrValue::Dim(2.into())]).unwrap()[0];
        c.graph.output("all", all);
    }
    if forward {
        c.graph.output("l", l);
    }
    (c.graph, c.inputs)
}

fn flat((v, (rows, width)): (Value, (usize, usize))) -> (Value, usize, usize) {
    (v, rows, width)
}

fn optimized(graph: &Graph) -> Graph {
    let options = hypatia_optimize::Options { device: ampere(), ..hypatia_optimize::Options::default() };
    pipeline::optimize(graph, &options).unwrap().graph
}

fn ampere() -> Device {
    Device::named("a100").unwrap()
}

/// The gradients of a plan, if it has some as kernels.
fn gradients(plan: &Plan) -> Option<(&Step, &CallStep)> {
    plan.steps.iter().find_map(|step| match &step.action {
        Action::Call(e) if matches!(e.called, Called::AttentionGrad(_)) => Some((step, e)),
        _ => None,
    })
}

fn generated(plan: &Plan) -> Option<GeneratedAttentionGrad> {
    let (step, e) = gradients(plan)?;
    let Called::AttentionGrad(a) = &e.called else { return None };
    GeneratedAttentionGrad::of(plan, a, &step.reads[..e.reads], &step.writes[..e.writes])
}

/// The tilings that the library declares.
fn declared() -> Vec<AttentionGradTiling> {
    let some = planned(&ampere(), &case(DType::BF16, SHAPES[0], true, "none").0);
    let kernel = some.program.kernels.iter().find(|k| k.name == "attention_grad_tiles").unwrap();
    AttentionGradTiling::all(&kernel.tune)
}

/// Two kernels for each kind of scores and each head, on every GPU from Ampere on. A single query
/// is left to the parts: its transposes are views of another kind.
#[test]
fn both_passes_are_kernels_from_ampere_on() {
    for (i, mask) in MASKS.iter().enumerate() {
        for (j, shape) in SHAPES.into_iter().enumerate() {
            let device = Device::named(["a100", "h200", "rtx4090", "b200"][(i + j) % 4]).unwrap();
            let (graph, _) = case(DType::BF16, shape, i % 2 == 0, mask);
            let plan = planned(&device, &graph);
            let forward = plan
                .steps
                .iter()
                .any(|s| matches!(&s.action, Action::Call(CallStep { called: Called::Attention(a), .. }) if a.lse));
            let backward = generated(&plan);
            assert!(forward, "{mask} {shape:?} {}\n{plan}", device.name);
            assert_eq!(backward.is_some(), shape[2] > 1 && shape[4] > 1, "{mask} {shape:?} {}\n{plan}", device.name);
            let moved = plan.steps.iter().any(|s| matches!(s.action, Action::Concat(_)));
            assert!(backward.is_none() || !moved, "{mask} {shape:?} {}\n{plan}", device.name);
            let skips = ["causal", "window", "rows without keys"].contains(mask);
            assert!(backward.is_none_or(|b| b.skips() == skips), "{mask} {shape:?}\n{plan}");
        }
    }
    let large = planned(&ampere(), &case(DType::BF16, [1, 1, 64, 64, 160, 64], true, "none").0);
    assert!(generated(&large).is_none(), "{large}");
}

/// Every tiling, on a host: index maps, what is copied when, weights, slopes, masks, the store.
#[test]
fn every_tiling_agrees_with_the_reference_on_a_host() {
    let mut at = 0;
    for tiling in declared() {
        let (mut cases, mut graphs, mut inputs) = (Vec::new(), Vec::new(), Vec::new());
        while cases.len() < 2 {
            at += 1;
            // One case of any kind, and one in which whole tiles of queries attend to no key.
            let (shape, mask) = match cases.len() {
                0 => (SHAPES[at * 3 % SHAPES.len()], MASKS[at * 5 % MASKS.len()]),
                _ => ([1, 2, 130, 16, 16, 24], "window"),
            };
            let dtype = if at.is_multiple_of(3) { DType::F16 } else { DType::BF16 };
            let (graph, given) = gradients_alone(dtype, shape, at.is_multiple_of(2), mask);
            if generated(&planned(&ampere(), &graph)).is_some_and(|a| !a.launches(&tiling.words()).is_empty()) {
                let what = format!("{tiling:?} {dtype} {shape:?} {mask}");
                cases.push(emulated::Case { what, graph: optimized(&graph), inputs: given.clone() });
                inputs.push(given);
                graphs.push(graph);
            }
        }
        let ran = match emulated::run_tiled(&cases, &Options::new(ampere()), Some(tiling.words())) {
            Ok(ran) => ran,
            Err(why) => return eprintln!("SKIPPED: {why}"),
        };
        for (i, ran) in ran.into_iter().enumerate() {
            let (_, got) = ran.unwrap_or_else(|| panic!("{} has no kernel", cases[i].what));
            let want = evaluate(&graphs[i], &inputs[i], Mode::Rounded).unwrap();
            for (g, w) in got.iter().zip(&want) {
                compare(g, &w.to_tensor().unwrap(), w.dtype, coarsest(&graphs[i]), &cases[i].what);
            }
        }
    }
}

/// A file that says that a tiling is the fastest.
fn forced(gpu: &Gpu, plan: &Plan, words: &StoredTiling) -> Option<TuningFile> {
    let (step, e) = gradients(plan)?;
    if generated(plan)?.launches(words).is_empty() {
        return None;
    }
    let kernel = tiled::kernel(plan, step).unwrap();
    let tilings = Tilings::of(gpu, plan, (step, e, kernel), &mut Tuner::without_cache(Duration::ZERO)).unwrap()?;
    let mut file = TuningFile::default();
    file.insert(Choice {
        machine: machine(gpu),
        problem: tilings.problem,
        algorithm: *words,
        workspace: 0,
        us: Some(1.0),
        first_us: Some(2.0),
        candidates: 2,
    });
    Some(file)
}

/// Forward and backward, with each tiling, against the reference: what attention's own templates
/// keep is what the gradients need.
#[test]
fn every_tiling_agrees_with_the_reference_on_a_gpu() {
    const ROUNDS: usize = 6;
    let tilings = declared();
    let Some(gpu) = gpu(tilings.len() * ROUNDS) else { return };
    let profile = gpu.profile();
    let (mut ran, mut at) = (0, 0);
    for tiling in &tilings {
        for _ in 0..ROUNDS {
            at += 1;
            let (shape, mask) = (SHAPES[at % SHAPES.len()], MASKS[at * 5 % MASKS.len()]);
            let dtype = if at.is_multiple_of(4) { DType::F16 } else { DType::BF16 };
            let (graph, inputs) = case(dtype, shape, at.is_multiple_of(2), mask);
            let plan = planned(&profile, &graph);
            let Some(file) = forced(&gpu, &plan, &tiling.words()) else { continue };
            let mut tuner = Tuner::without_cache(Duration::ZERO).with_file(file);
            let executor = Executor::new(plan.clone(), gpu.clone(), &mut tuner).unwrap().poisoned();
            let what = format!("{tiling:?} {dtype} {shape:?} {mask}");
            assert_eq!(tuner.counts().file, 1, "{what}\n{plan}");
            let want = evaluate(&graph, &inputs, Mode::Rounded).unwrap();
            let tensors: Vec<Tensor> = inputs.iter().map(|(_, t)| t.clone()).collect();
            let got = executor.run(&tensors).unwrap();
            for (i, (g, w)) in got.iter().zip(&want).enumerate() {
                compare(g, &w.to_tensor().unwrap(), w.dtype, coarsest(&graph), &format!("{what}, result {i}"));
            }
            let again = executor.run(&tensors).unwrap();
            assert!(got.iter().zip(&again).all(|(a, b)| a.bytes() == b.bytes()), "{what}: runs differ");
            ran += 1;
        }
    }
    println!("{ran} gradients of attention agree");
    assert!(ran > 0);
}

/// Times of all tilings: a measurement, not a test.
#[test]
#[ignore = "a measurement"]
fn gradients_of_attention_are_timed_on_a_gpu() {
    let Some(gpu) = gpu(1) else { return };
    for (shape, mask) in [
        ([8, 12, 128, 128, 64, 64], "none"),
        ([32, 12, 197, 197, 64, 64], "none"),
        ([4, 12, 512, 512, 64, 64], "causal"),
        ([4, 12, 1024, 1024, 64, 64], "causal"),
        ([2, 32, 2048, 2048, 64, 64], "causal"),
        ([2, 32, 2048, 2048, 128, 128], "causal"),
    ] {
        let [b, h, m, n, d, e] = shape;
        let half = if mask == "causal" { 0.5 } else { 1.0 };
        let work = 2.0 * half * (b * h * m * n * (3 * d + 2 * e)) as f64;
        println!("{shape:?} {mask}");
        let (graph, _) = gradients_alone(DType::BF16, shape, false, mask);
        // The parts store their scores.
        let options = Options { memory: 16 << 30, ..Options::new(gpu.profile()) };
        let plan = std::sync::Arc::new(pipeline::plan(&optimized(&graph), &options).unwrap());
        let (step, _) = gradients(&plan).unwrap();
        let at = step.kernel.unwrap().index();
        let order = generated(&plan).unwrap().plausible(&plan.program.kernels[at], gpu.multiprocessors());
        for (place, words) in order.into_iter().enumerate() {
            let mut plan = Plan::clone(&plan);
            let program = std::sync::Arc::make_mut(&mut plan.program);
            let values = hypatia_dsl::kernel::parameters(&words).unwrap();
            program.kernels[at].tune = values.iter().map(|(n, v)| ((*n).to_string(), vec![*v])).collect();
            let mut tuner = Tuner::without_cache(Duration::from_secs(60));
            Executor::new(plan.into(), gpu.clone(), &mut tuner).unwrap();
            for c in tuner.choices().filter(|c| c.problem.contains("attention")) {
                let (us, parts) = (c.us.unwrap_or(f64::NAN), c.first_us.unwrap_or(f64::NAN));
                let rate = work / us / 1e6;
                println!("  {place} {values:?} {us:.2} us, {rate:.0} TFLOP/s; the parts {parts:.2} us");
            }
        }
    }
}

/// Tilings of every head compile for Ampere.
#[test]
fn gradients_of_attention_compile() {
    let Some(compiler) = super::compiler() else { return };
    let tilings = declared();
    for (i, shape) in SHAPES.into_iter().enumerate() {
        let dtype = if i.is_multiple_of(2) { DType::BF16 } else { DType::F16 };
        let (graph, _) = gradients_alone(dtype, shape, true, MASKS[i % MASKS.len()]);
        let plan = planned(&ampere(), &graph);
        let Some(generated) = generated(&plan) else { continue };
        let fitting = tilings.iter().map(|t| generated.launches(&t.words())).filter(|all| !all.is_empty());
        for (body, _) in fitting.skip(i % 2).step_by(4).flatten() {
            let source = body.emit(&plan.program).unwrap();
            compiler.compile(&source.text, "k.cu", "sm_80").unwrap();
        }
    }
}

/// The weights of attention and of its gradients are whole exponentials where no rule shortens
/// them; the kernels compile.
#[test]
fn rules_shorten_the_weights() {
    let local = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/nvrtc");
    let compiler = crate::nvrtc::Nvrtc::find(&[local]).inspect_err(|why| eprintln!("SKIPPED compiling: {why}")).ok();
    let emitted = |plan: &Plan, launches: Vec<(Body, Work)>| -> String {
        let sources = launches.into_iter().map(|(body, _)| {
            let text = body.emit(&plan.program).unwrap().text;
            compiler.iter().for_each(|c| drop(c.compile(&text, "k.cu", body.only_arch().unwrap_or("sm_80")).unwrap()));
            text
        });
        sources.collect()
    };
    for disabled in [false, true] {
        let disabled_rules = if disabled { ["short::exp".to_string()].into() } else { HashSet::new() };
        let allowed = Allowed { disabled: disabled_rules, ..Allowed::default() };
        let mut texts = Vec::new();
        for (device, scores) in [("h200", "plain"), ("h200", "mask"), ("a100", "plain"), ("a100", "mask")] {
            let options = Options { allowed: allowed.clone(), ..Options::new(Device::named(device).unwrap()) };
            let (graph, _) = attention::case(DType::BF16, [2, 3, 256, 256, 64, 64], false, scores);
            let plan = planned_with(&options, &graph);
            let (step, e) = attention::attention_step(&plan).unwrap();
            let kernel = crate::tiled::kernel(&plan, step).unwrap();
            let attended = attention::generated(&plan).unwrap();
            let tiling = attended.plausible(kernel, 132)[0];
            assert!(matches!(&e.called, Called::Attention(a) if a.short != disabled));
            texts.push(emitted(&plan, attended.launches(&tiling)));
        }
        let options = Options { allowed, ..Options::new(ampere()) };
        let (graph, _) = gradients_alone(DType::BF16, SHAPES[0], true, MASKS[0]);
        let plan = planned_with(&options, &graph);
        let gradients = generated(&plan).unwrap();
        let launches = declared().iter().map(|t| gradients.launches(&t.words())).find(|all| !all.is_empty());
        texts.push(emitted(&plan, launches.unwrap()));
        for text in texts {
            assert_eq!((text.contains("ex2.approx"), text.contains("expf(a)")), (!disabled, disabled), "{text}");
        }
    }
}
