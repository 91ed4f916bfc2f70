//! Attention in tiles, against the reference: every tiling that the library declares, ragged sizes,
//! heads as a projection leaves them, grouped heads, masks of all kinds, hidden rows, poisoned
//! results, repeated runs; and which masks become intervals.
use std::time::Duration;

use hypatia_dsl::builtin::BuiltinOp;
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::AttrValue;
use hypatia_dsl::kernel::StoredTiling;
use hypatia_dsl::kernel::attention::{AttentionKernel, AttentionProblem, AttentionTiling};
use hypatia_dsl::kernel::attention_sm80::WarpAttentionTiling;
use hypatia_dsl::scalar::{TermBuilder, TermNode};
use rand::prelude::*;
use rand_chacha::ChaCha8Rng;

use super::{cases, gpu, planned};
use crate::lowering::attention::GeneratedAttention;
use crate::lowering::tiled_attention::TiledAttention;
use crate::tiled::{self, Tilings};
use crate::tune::machine;
use crate::tuner::Tuner;
use crate::tuning::{Choice, TuningFile};
use crate::{Executor, Gpu};
use hypatia_eval::{Mode, evaluate};
use hypatia_graph::{Graph, Value};
use hypatia_plan::{Action, CallStep, Called, Plan, Step};
use hypatia_target::device::Device;
use hypatia_templates::instances::Body;
use hypatia_tensor::tensor::Tensor;
use hypatia_testing::random::{coarsest, compare};
use hypatia_testing::{int, list, ty};

pub(super) type Inputs = Vec<(String, Tensor)>;

/// Batch, heads, queries, keys, elements of a query, elements of a value.
pub(super) const SHAPES: [[usize; 6]; 7] = [
    [1, 1, 128, 128, 64, 64],
    [2, 3, 197, 197, 64, 64],
    [1, 2, 70, 300, 128, 128],
    [2, 2, 1, 77, 32, 32],
    [1, 2, 130, 16, 16, 24],
    [1, 2, 500, 500, 80, 96],
    [1, 1, 260, 260, 256, 256],
];

/// What stands between the products.
pub(super) const SCORES: [&str; 13] = [
    "plain",
    "causal",
    "causal by a sum",
    "window",
    "mask",
    "padding",
    "rows without keys",
    "causal for each sequence",
    "number",
    "the lowest number",
    "hidden by the lowest number",
    "alibi",
    "softcap, bias",
];

/// Scores with work on the result behind them: a gate of the merged heads, a factor and a number of
/// each head, the share that a sink leaves.
pub(super) const FINISHES: [&str; 6] =
    ["plain; gate", "causal; heads", "mask; gate", "softcap, bias; heads", "plain; sink", "padding; gate"];

/// Whether a mask of these scores is known when the plan is made, so that tiles are skipped.
fn has_intervals(scores: &str) -> bool {
    ["causal", "causal by a sum", "window", "rows without keys", "the lowest number"].contains(&scores)
}

struct Case {
    graph: Graph,
    inputs: Inputs,
    rng: ChaCha8Rng,
    dtype: DType,
}

impl Case {
    fn input(&mut self, shape: &[usize], of: impl Fn(usize, f64) -> f64) -> Value {
        let values: Vec<f64> = (0..shape.iter().product()).map(|i| of(i, self.rng.random_range(-1.0..1.0))).collect();
        let name = format!("x{}", self.inputs.len());
        let v = self.graph.input(&name, ty(self.dtype, shape));
        self.inputs.push((name, Tensor::from_f64(self.dtype, shape, &values).unwrap()));
        v
    }

    fn call(&mut self, name: &str, operands: &[Value]) -> Value {
        self.graph.call(name, operands, &[]).unwrap()[0]
    }

    fn number(&mut self, n: f64) -> Value {
        self.graph.constant(Tensor::from_f64(self.dtype, &[], &[n]).unwrap())
    }

    fn constant(&mut self, dtype: DType, shape: &[usize], of: impl Fn(usize) -> f64) -> Value {
        let values: Vec<f64> = (0..shape.iter().product()).map(of).collect();
        self.graph.constant(Tensor::from_f64(dtype, shape, &values).unwrap())
    }

    fn transposed(&mut self, v: Value, axes: &[usize]) -> Value {
        self.graph.builtin(BuiltinOp::Transpose, &[v], vec![list(axes)]).unwrap()[0]
    }

    /// Queries, keys and values as one projection leaves them: parts of `[b, rows, 3 * h * d]`.
    fn merged(&mut self, [b, h, rows, d]: [usize; 4]) -> [Value; 3] {
        let all = self.input(&[b, rows, 3 * h * d], |_, x| x * 2.0);
        [0, 1, 2].map(|part| {
            let (from, to) = ((part * h * d) as i64, ((part + 1) * h * d) as i64);
            let cut =
                self.graph.builtin(BuiltinOp::Slice, &[all], vec![int(2), int(from), int(to), int(1)]).unwrap()[0];
            let shape = list(&[b, rows, h, d]);
            let heads = self.graph.builtin(BuiltinOp::Reshape, &[cut], vec![shape]).unwrap()[0];
            self.transposed(heads, &[0, 2, 1, 3])
        })
    }

    /// Each head `each` times, as exporters repeat heads of keys and values.
    fn repeated(&mut self, v: Value, [b, g, rows, d]: [usize; 4], each: usize) -> Value {
        let mut shaped = |op, v, shape: &[usize]| self.graph.builtin(op, &[v], vec![list(shape)]).unwrap()[0];
        let apart = shaped(BuiltinOp::Reshape, v, &[b, g, 1, rows, d]);
        let all = shaped(BuiltinOp::Expand, apart, &[b, g, each, rows, d]);
        shaped(BuiltinOp::Reshape, all, &[b, g * each, rows, d])
    }

    /// Attention beside whose keys a number of each head takes its share (a sink).
    fn shared(&mut self, [q, k, v]: [Value; 3], [h, d]: [usize; 2]) -> Value {
        let dtype = self.dtype;
        let scale = AttrValue::Float(1.0 / (d as f64).sqrt());
        let both = self.graph.call("attention_lse", &[q, k, v], &[("scale", scale)]).unwrap();
        let sink = self.input(&[h, 1, 1], |_, x| x * 3.0);
        let cast = |graph: &mut Graph, v: Value, to: DType| {
            graph.builtin(BuiltinOp::Cast, &[v], vec![AttrValue::DType(to)]).unwrap()[0]
        };
        let [out, sink] = [both[0], sink].map(|v| cast(&mut self.graph, v, DType::F32));
        let less = self.call("sub", &[both[1], sink]);
        let share = self.call("sigmoid", &[less]);
        let shared = self.call("mul", &[out, share]);
        cast(&mut self.graph, shared, dtype)
    }

    /// Heads `[b, h, rows, d]`, in memory as they are or as `[b, rows, h, d]`.
    fn heads(&mut self, [b, h, rows, d]: [usize; 4], apart: bool) -> Value {
        if apart {
            return self.input(&[b, h, rows, d], |_, x| x * 2.0);
        }
        let v = self.input(&[b, rows, h, d], |_, x| x * 2.0);
        self.transposed(v, &[0, 2, 1, 3])
    }
}

/// Attention with those scores. Queries, keys and values are parts of one projection if their sizes
/// allow it and they are not apart.
pub(super) fn case(dtype: DType, shape: [usize; 6], apart: bool, scores: &str) -> (Graph, Inputs) {
    grouped(dtype, shape, 1, apart, scores)
}

/// The same, where this many heads share keys and values.
pub(super) fn grouped(
    dtype: DType,
    [b, h, m, n, d, e]: [usize; 6],
    each: usize,
    apart: bool,
    scores: &str,
) -> (Graph, Inputs) {
    let graph = Graph::new(hypatia_library::load(&[]).unwrap());
    let mut c = Case { graph, inputs: Vec::new(), rng: ChaCha8Rng::seed_from_u64(7), dtype };
    let [q, k, v] = match !apart && m == n && d == e && each == 1 {
        true => c.merged([b, h, m, d]),
        false => {
            let g = h / each;
            let [q, k] = [(h, m), (g, n)].map(|(heads, rows)| c.heads([b, heads, rows, d], apart));
            [q, k, c.heads([b, g, n, e], apart)]
        }
    };
    let [k, v] = match each {
        1 => [k, v],
        _ => [c.repeated(k, [b, h / each, n, d], each), c.repeated(v, [b, h / each, n, e], each)],
    };
    let kt = c.transposed(k, &[0, 1, 3, 2]);
    let product = c.graph.builtin(BuiltinOp::Matmul, &[q, kt], vec![]).unwrap()[0];
    let scale = c.number(1.0 / (d as f64).sqrt());
    let mut y = c.call("mul", &[product, scale]);
    let ahead = n as isize - m as isize;
    let (scores, finish) = scores.split_once("; ").unwrap_or((scores, ""));
    let seen = |i: usize| (i % n) as isize <= (i / n) as isize + ahead.max(0);
    let hides = |hidden: bool| if hidden { f64::NEG_INFINITY } else { 0.0 };
    let mut soft = "softmax";
    match scores {
        "plain" => {}
        "causal" | "window" | "rows without keys" => {
            let near = |i: usize| scores != "window" || (i / n) as isize + ahead.max(0) - 40 < (i % n) as isize;
            let some = |i: usize| scores != "rows without keys" || (i / n) % 3 != 1;
            let keep = c.constant(DType::Bool, &[m, n], |i| f64::from(u8::from(seen(i) && near(i) && some(i))));
            let other = c.number(f64::NEG_INFINITY);
            y = c.call("select", &[keep, y, other]);
            if scores == "rows without keys" {
                soft = "safe_softmax";
            }
        }
        "causal by a sum" => {
            let mask = c.constant(dtype, &[1, 1, m, n], |i| hides(!seen(i)));
            y = c.call("add", &[y, mask]);
        }
        "causal for each sequence" => {
            let mask =
                c.constant(dtype, &[b, 1, m, n], |i| hides(!seen(i % (m * n)) || (i / n / m == 1 && i % n == 0)));
            y = c.call("add", &[y, mask]);
            soft = "safe_softmax";
        }
        "the lowest number" => {
            let mask = c.constant(dtype, &[b, 1, m, n], |i| if seen(i % (m * n)) { 0.0 } else { -dtype.largest() });
            y = c.call("add", &[y, mask]);
        }
        "hidden by the lowest number" => {
            let mask = c.input(&[m, n], |i, _| if i / n % 3 != 1 && seen(i) { 0.0 } else { -dtype.largest() });
            y = c.call("add", &[y, mask]);
        }
        "number" => {
            let number = c.input(&[1], |_, x| x);
            y = c.call("add", &[y, number]);
        }
        "mask" => {
            let mask = c.input(&[m, n], |_, x| hides(x > 0.5));
            y = c.call("add", &[y, mask]);
            soft = "safe_softmax";
        }
        "padding" => {
            let mask = c.input(&[b, 1, 1, n], |i, _| hides(i % n > n / 2));
            y = c.call("add", &[y, mask]);
        }
        "softcap, bias" => {
            let (cap, by) = (c.number(5.0), c.number(0.2));
            let bias = c.input(&[h, m, n], |_, x| x);
            let (less, more) = (c.call("mul", &[y, by]), cap);
            let bounded = c.call("tanh", &[less]);
            let capped = c.call("mul", &[bounded, more]);
            y = c.call("add", &[capped, bias]);
        }
        "alibi" => {
            let slopes = c.input(&[h, 1, 1], |_, x| x.abs());
            let places = c.constant(dtype, &[1, n], |i| -(i as f64) / 16.0);
            let bias = c.call("mul", &[slopes, places]);
            y = c.call("add", &[y, bias]);
        }
        other => panic!("{other}"),
    }
    let mut out = match finish {
        "sink" => c.shared([q, k, v], [h, d]),
        _ => {
            let soft = c.call(soft, &[y]);
            c.graph.builtin(BuiltinOp::Matmul, &[soft, v], vec![]).unwrap()[0]
        }
    };
    if finish == "heads" {
        let (by, more) = (c.input(&[h, 1, 1], |_, x| x), c.input(&[e], |_, x| x));
        let scaled = c.call("mul", &[out, by]);
        out = c.call("add", &[scaled, more]);
    }
    // As the next product reads it.
    let out = c.transposed(out, &[0, 2, 1, 3]);
    let mut out = c.graph.builtin(BuiltinOp::Reshape, &[out], vec![list(&[b, m, h * e])]).unwrap()[0];
    if finish == "gate" {
        let gate = c.input(&[b, m, h * e], |_, x| x * 4.0);
        let open = c.call("sigmoid", &[gate]);
        out = c.call("mul", &[out, open]);
    }
    c.graph.output("y", out);
    (c.graph, c.inputs)
}

/// The attention of a plan, if it has one.
pub(super) fn attention_step(plan: &Plan) -> Option<(&Step, &CallStep)> {
    plan.steps.iter().find_map(|step| match &step.action {
        Action::Call(e) if matches!(e.called, Called::Attention(_)) => Some((step, e)),
        _ => None,
    })
}

/// How it is generated.
pub(super) fn generated(plan: &Plan) -> Option<GeneratedAttention> {
    let (step, e) = attention_step(plan)?;
    let Called::Attention(a) = &e.called else { return None };
    GeneratedAttention::of(plan, a, &step.reads[..e.reads], &step.writes[..e.writes])
}

fn tiled_attention(plan: &Plan) -> Option<TiledAttention> {
    match generated(plan)? {
        GeneratedAttention::Hopper(tiled) => Some(tiled),
        GeneratedAttention::Warps(_) => None,
    }
}

#[test]
fn attention_reads_as_one_would_write_it() {
    if !std::path::Path::new(env!("CARGO_MANIFEST_DIR")).exists() {
        return eprintln!("SKIPPED: a golden file, where there are no sources");
    }
    let (graph, _) = case(DType::BF16, [2, 3, 256, 256, 64, 64], false, "causal");
    let plan = planned(&Device::named("h200").unwrap(), &graph);
    let launches = tiled_attention(&plan).unwrap().tiled(AttentionTiling::named(&[]).unwrap());
    insta::assert_snapshot!(launches[0].0.emit(&plan.program).unwrap().text);
}

/// One launch for each kind of scores, with the result stored where the next product reads it.
#[test]
fn every_score_is_one_launch_on_hopper() {
    let device = Device::named("h200").unwrap();
    for (i, scores) in SCORES.iter().enumerate() {
        for shape in SHAPES {
            let (graph, _) = case(DType::BF16, shape, i % 2 == 0, scores);
            let plan = planned(&device, &graph);
            let what = format!("{scores} {shape:?}\n{plan}");
            let alone = plan.steps.iter().filter(|s| !matches!(s.action, Action::Pointwise(_))).count();
            assert!(attention_step(&plan).is_some() && alone == 1, "{what}");
            let tiled = tiled_attention(&plan).unwrap_or_else(|| panic!("{what}"));
            let launches = tiled.tiled(AttentionTiling::named(&[("tile_n", 64)]).unwrap());
            let [(_, work)] = launches.as_slice() else { panic!("{what}") };
            // A single query attends to all keys here, and one sequence has one mask.
            let all = shape[2] == 1 || *scores == "causal for each sequence";
            assert!(all || work.data.is_empty() != has_intervals(scores), "{what}");
        }
    }
    for (dtype, shape, target) in [
        (DType::BF16, [1, 1, 64, 64, 264, 64], "h200"),
        (DType::F32, SHAPES[0], "h200"),
        (DType::F32, SHAPES[0], "a100"),
        (DType::F32, SHAPES[0], "cpu"),
    ] {
        let plan = planned(&Device::named(target).unwrap(), &case(dtype, shape, true, "plain").0);
        assert!(attention_step(&plan).is_none(), "{dtype} {shape:?} {target}\n{plan}");
    }
}

/// Tiles of keys that a mask hides are skipped, and those that it hides nothing of are not masked.
#[test]
fn a_causal_mask_skips_half_of_the_tiles() {
    let ranges = |scores: &str| {
        let (graph, _) = case(DType::BF16, [1, 1, 300, 300, 64, 64], true, scores);
        let plan = planned(&Device::named("h200").unwrap(), &graph);
        let tiling = AttentionTiling::named(&[("tile_n", 64), ("consumers", 1)]).unwrap();
        tiled_attention(&plan).unwrap().tiled(tiling)[0].1.data[0].1.clone()
    };
    let causal = [0, 1, 0, 0, 0, 2, 0, 1, 0, 3, 0, 2, 0, 4, 0, 3, 0, 5, 0, 4];
    assert_eq!((ranges("causal").as_slice(), ranges("causal by a sum").as_slice()), (&causal[..], &causal[..]));
    // A row sees itself and 39 keys before it.
    assert_eq!(ranges("window"), [0, 1, 1, 1, 0, 2, 2, 2, 1, 3, 3, 3, 2, 4, 4, 4, 3, 5, 5, 5]);
}

/// A file that says that a tiling is the fastest.
fn forced(gpu: &Gpu, plan: &Plan, words: &StoredTiling) -> Option<TuningFile> {
    let (step, e) = attention_step(plan)?;
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

/// Few queries: batch, heads, queries, keys, elements of a query, elements of a value; and how many
/// heads share keys and values.
pub(super) const FEW: [([usize; 6], usize); 6] = [
    ([1, 8, 1, 2048, 128, 128], 4),
    ([2, 12, 1, 777, 64, 64], 1),
    ([1, 6, 3, 300, 32, 32], 3),
    ([3, 8, 1, 129, 80, 96], 8),
    ([1, 4, 70, 1000, 128, 128], 2),
    ([1, 2, 1, 1, 16, 256], 2),
];

/// Scores whose heads may share keys and values.
pub(super) const SHARED: [&str; 7] =
    ["plain", "causal", "causal by a sum", "window", "mask", "rows without keys", "hidden by the lowest number"];

/// The parts of split keys for few queries, and one launch for many.
#[test]
fn few_queries_split_the_keys() {
    let device = Device::named("h200").unwrap();
    for (shape, each) in FEW {
        for scores in SHARED {
            let [b, h, m, n, ..] = shape;
            let (graph, _) = grouped(DType::BF16, shape, each, true, scores);
            let plan = planned(&device, &graph);
            let tiled = tiled_attention(&plan).unwrap_or_else(|| panic!("{shape:?} {scores}\n{plan}"));
            // A mask with rows of its own for each query does not fit several heads.
            let packs = m < 64 && (m == 1 || !["mask", "hidden by the lowest number"].contains(&scores));
            let heads = if packs { b * h / each } else { b * h };
            let [batch, queries, keys, _] = generated(&plan).unwrap().sizes();
            assert_eq!([batch, queries, keys], [heads, b * h * m / heads, n], "{shape:?} {scores}");
            let tiling = AttentionTiling::named(&[("tile_n", 64), ("consumers", 1), ("chunk", 128)]).unwrap();
            let launches = tiled.tiled(tiling);
            let [(_, sums), (_, join)] = launches.as_slice() else { panic!("{launches:?}") };
            assert_eq!(join.rows, b * h * m);
            assert_eq!(sums.rows, heads * n.div_ceil(128) * queries.next_multiple_of(64));
            assert_eq!(sums.rooms, join.rooms);
            assert_eq!(
                sums.data.first().map(|(_, v)| v.len()),
                (!sums.data.is_empty()).then(|| queries.div_ceil(64) * 4)
            );
        }
    }
    let fastest = |shape, each| {
        let plan = planned(&device, &grouped(DType::BF16, shape, each, true, "plain").0);
        let (step, _) = attention_step(&plan).unwrap();
        let kernel = tiled::kernel(&plan, step).unwrap();
        tiled_attention(&plan).unwrap().plausible(&AttentionTiling::all(&kernel.tune), 132)
    };
    let decode = fastest([1, 32, 1, 2048, 128, 128], 4);
    assert!(decode[0].chunk > 0 && decode[1].chunk == 0, "{decode:?}");
    let wide = fastest([8, 32, 1, 2048, 128, 128], 1);
    assert!(wide.iter().all(|t| t.chunk == 0), "{wide:?}");
}

/// What a tiling computes in a test: sizes, heads that share keys and values, scores, the heads'
/// place in memory.
pub(super) type Chosen = (([usize; 6], usize), &'static str, bool);

/// Each of these tilings, where it fits, against the reference in as many rounds; planned for the
/// GPU that is there, or for another one.
pub(super) fn agree(
    tilings: &[StoredTiling],
    rounds: usize,
    target: Option<&Device>,
    choose: impl Fn(usize) -> Chosen,
) {
    let Some(gpu) = gpu(tilings.len() * rounds) else { return };
    if target.is_none() && !gpu.runs_clusters() {
        return eprintln!("SKIPPED: tiled attention is for Hopper");
    }
    let profile = target.cloned().unwrap_or_else(|| gpu.profile());
    let (mut ran, mut at) = (0, 0);
    for tiling in tilings.iter().take(cases(1000) as usize) {
        for _ in 0..rounds {
            at += 1;
            let ((shape, each), scores, apart) = choose(at);
            // The lowest number of f16 does not swallow a score.
            let f16 = at % 4 == 0 && !scores.contains("lowest");
            let dtype = if f16 { DType::F16 } else { DType::BF16 };
            let (graph, inputs) = grouped(dtype, shape, each, apart, scores);
            let plan = planned(&profile, &graph);
            let Some(file) = forced(&gpu, &plan, tiling) else { continue };
            let mut tuner = Tuner::without_cache(Duration::ZERO).with_file(file);
            let executor = Executor::new(plan.clone(), gpu.clone(), &mut tuner).unwrap().poisoned();
            let what = format!("{tiling:?} {dtype} {shape:?} {scores}");
            assert_eq!(tuner.counts().file, 1, "{what}\n{plan}");
            let want = evaluate(&graph, &inputs, Mode::Rounded).unwrap();
            let tensors: Vec<Tensor> = inputs.iter().map(|(_, t)| t.clone()).collect();
            let got = executor.run(&tensors).unwrap();
            compare(&got[0], &want[0].to_tensor().unwrap(), want[0].dtype, coarsest(&graph), &what);
            assert_eq!(executor.run(&tensors).unwrap()[0].bytes(), got[0].bytes(), "{what}: runs differ");
            ran += 1;
        }
    }
    println!("{ran} attentions agree");
    assert!(ran > 0);
}

/// The tilings that the library declares, with keys split or not.
fn declared(split: bool) -> Vec<StoredTiling> {
    let some = planned(&Device::named("h200").unwrap(), &case(DType::BF16, SHAPES[0], true, "plain").0);
    let kernel = some.program.kernels.iter().find(|k| k.name == "attention_tiles").unwrap();
    let possible = |t: &AttentionTiling| t.chunk == 0 || t.consumers == 1 && t.chunk.is_multiple_of(t.keys);
    let tilings = AttentionTiling::all(&kernel.tune);
    tilings.iter().filter(|t| (t.chunk > 0) == split && possible(t)).map(AttentionTiling::words).collect()
}

#[test]
fn every_tiling_of_attention_agrees_with_the_reference_on_a_gpu() {
    agree(&declared(false), 5, None, |at| ((SHAPES[at % SHAPES.len()], 1), SCORES[at % SCORES.len()], at % 2 == 0));
}

#[test]
fn every_split_of_keys_agrees_with_the_reference_on_a_gpu() {
    let chosen = |at: usize| (FEW[at % FEW.len()], SHARED[at % SHARED.len()], (at / FEW.len()).is_multiple_of(2));
    agree(&declared(true), 9, None, chosen);
}

/// Work on a result is part of the launch, where the result is stored as the next product reads it.
#[test]
fn work_on_the_result_is_part_of_the_launch() {
    for target in ["h200", "a100"] {
        for (i, scores) in FINISHES.iter().enumerate() {
            let (graph, _) = case(DType::BF16, SHAPES[i], i % 2 == 0, scores);
            let plan = planned(&Device::named(target).unwrap(), &graph);
            let [step] = plan.steps.as_slice() else { panic!("{scores} on {target}\n{plan}") };
            let Action::Call(CallStep { called: Called::Attention(a), .. }) = &step.action else { panic!("{plan}") };
            assert!(a.finish.nodes.len() > 1 && !a.lse, "{plan}");
            assert!(generated(&plan).is_some(), "{plan}");
        }
    }
    // What something else reads, too, is stored, and so is what its work sees in another order.
    let (mut graph, _) = case(DType::BF16, SHAPES[0], true, "plain");
    let y = graph.outputs[0].1;
    let twice = graph.call("add", &[y, y], &[]).unwrap()[0];
    graph.output("twice", twice);
    let plan = planned(&Device::named("h200").unwrap(), &graph);
    assert_eq!(plan.steps.len(), 2, "{plan}");
    let (mut graph, _) = case(DType::BF16, SHAPES[0], true, "plain");
    let y = graph.outputs.remove(0).1;
    let turned = graph.builtin(BuiltinOp::Transpose, &[y], vec![list(&[0, 2, 1])]).unwrap()[0];
    let other = graph.input("other", ty(DType::BF16, &[1, 64, 128]));
    let sum = graph.call("add", &[turned, other], &[]).unwrap()[0];
    graph.output("sum", sum);
    let plan = planned(&Device::named("h200").unwrap(), &graph);
    assert!(plan.steps.len() == 2, "{plan}");
}

#[test]
fn work_on_the_result_agrees_with_the_reference_on_a_gpu() {
    let chosen = |at: usize| ((SHAPES[at % SHAPES.len()], 1), FINISHES[at % FINISHES.len()], at.is_multiple_of(2));
    agree(&declared(false), 3, None, chosen);
    let few = |at: usize| (FEW[at % FEW.len()], FINISHES[at / 2 % FINISHES.len()], at.is_multiple_of(2));
    agree(&declared(true), 3, None, few);
}

/// The kernel that joins chunks, on a host: chunks without any key that a query attends to, rows
/// without one, a NaN among the scores, more chunks than a warp has lanes, several rounds of
/// values.
#[test]
fn chunks_are_joined_as_if_summed_at_once() {
    const CHUNK: usize = 128;
    for (([b, h, m, n, d, e], each), safe) in [
        (([2, 4, 1, 1000, 16, 24], 2), true),
        (([1, 6, 3, 300, 16, 200], 3), false),
        (([1, 1, 2, 5000, 16, 16], 1), true),
    ] {
        let scores = if safe { "mask" } else { "plain" };
        let (graph, inputs) =
            grouped(DType::BF16, [b, h, m, n, d, e], each, true, if m == 1 { scores } else { "plain" });
        let plan = planned(&Device::named("h200").unwrap(), &graph);
        let tiling = AttentionTiling::named(&[("tile_n", 64), ("consumers", 1), ("chunk", CHUNK as i64)]).unwrap();
        let launches = tiled_attention(&plan).unwrap().tiled(tiling);
        let (Body::AttentionJoin(kernel), work) = &launches[1] else { panic!("{launches:?}") };
        // The scores as they are; the weights are powers of e.
        let mut terms = TermBuilder::new();
        let root = terms.add(TermNode::Acc);
        let problem = AttentionProblem { safe, term: terms.finish(vec![root]), ..kernel.problem.clone() };
        let kernel = AttentionKernel { problem, ..kernel.clone() };
        let source = Body::AttentionJoin(kernel.clone()).emit(&plan.program).unwrap();
        let mut rng = ChaCha8Rng::seed_from_u64(3);
        let (chunks, width) = (n.div_ceil(CHUNK), kernel.problem.padded_value());
        let (mut sums, mut tops, mut want) = (Vec::new(), Vec::new(), vec![0.0; b * m * h * e]);
        for row in 0..b * h * m {
            // Row 1 sees no key, and others not those of every third chunk.
            let hidden = |j: usize| row == 1 || row % 2 == 0 && j / CHUNK % 3 == 1;
            let mut score = |j: usize| match () {
                () if hidden(j) => f64::NEG_INFINITY,
                () if row == 2 && j == n - 1 => f64::NAN,
                () => rng.random_range(-20.0..20.0),
            };
            let scores: Vec<f64> = (0..n).map(&mut score).collect();
            let values: Vec<f64> = (0..n * e).map(|_| rng.random_range(-1.0..1.0)).collect();
            let largest = |s: &[f64]| s.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weight = |s: f64, top: f64| if top == f64::NEG_INFINITY { 0.0 * s.exp() } else { (s - top).exp() };
            let weighted = |from: usize, to: usize, top: f64, i: usize| -> f64 {
                (from..to).map(|j| weight(scores[j], top) * values[j * e + i]).sum()
            };
            for chunk in scores.chunks(CHUNK).enumerate() {
                let (from, top) = (chunk.0 * CHUNK, largest(chunk.1));
                tops.extend([top as f32, chunk.1.iter().map(|s| weight(*s, top)).sum::<f64>() as f32]);
                let value = |i| if i < e { weighted(from, from + chunk.1.len(), top, i) as f32 } else { 0.0 };
                sums.extend((0..width).map(value));
            }
            let top = largest(&scores);
            let total: f64 = scores.iter().map(|s| weight(*s, top)).sum();
            // Heads `[b, h, m, e]`, in memory as they are or as `[b, m, h, e]`.
            let (seq, head, query) = (row / (h * m), row / m % h, row % m);
            let place = if m == 1 || each == 1 { (seq * m + query) * h + head } else { row };
            for i in 0..e {
                let y = weighted(0, n, top, i) / total;
                want[place * e + i] = if safe && y.is_nan() { 0.0 } else { y };
            }
        }
        assert_eq!(
            (sums.len(), tops.len(), inputs.is_empty()),
            (b * h * m * chunks * width, b * h * m * chunks * 2, false)
        );
        let bytes = |v: &[f32]| v.iter().flat_map(|x| x.to_ne_bytes()).collect::<Vec<u8>>();
        let reads = [("sums", &bytes(&sums)[..]), ("tops", &bytes(&tops))];
        let made = match super::emulated::alone(&source, work, &reads, want.len() * 2) {
            Ok(made) => made,
            Err(why) => return eprintln!("SKIPPED: {why}"),
        };
        let got = Tensor::from_bytes(DType::BF16, &[want.len()], &made).unwrap();
        let want = Tensor::from_f64(DType::BF16, &[want.len()], &want).unwrap();
        compare(&got, &want, DType::BF16, DType::BF16.epsilon() / 20.0, &format!("{b} {h} {m} {n} {e} {safe}"));
    }
}

/// Every tiling for few queries compiles, for sizes with and without padding, masks and intervals.
#[test]
fn split_attention_compiles() {
    let Some(compiler) = super::compiler() else { return };
    for (i, (shape, each)) in FEW.into_iter().enumerate() {
        let dtype = if i % 2 == 0 { DType::BF16 } else { DType::F16 };
        let (graph, _) = grouped(dtype, shape, each, true, ["plain", "causal", "mask"][i % 3]);
        let plan = planned(&Device::named("h200").unwrap(), &graph);
        for keys in [64, 128] {
            let tiling = AttentionTiling { keys, consumers: 1, chunk: 256 };
            for (body, _) in tiled_attention(&plan).unwrap().tiled(tiling) {
                let source = body.emit(&plan.program).unwrap();
                if let Ok(folder) = std::env::var("HYPATIA_SOURCES") {
                    let name = format!("{folder}/{i}_{keys}_{}.cu", source.args.len());
                    std::fs::write(name, &source.text).unwrap();
                }
                compiler.compile(&source.text, "k.cu", body.only_arch().unwrap_or("sm_80")).unwrap();
            }
        }
    }
}

/// Kernels with work on the result compile, for whole sums and for chunks.
#[test]
fn work_on_the_result_compiles() {
    let Some(compiler) = super::compiler() else { return };
    for (i, scores) in FINISHES.iter().enumerate() {
        let dtype = if i % 2 == 0 { DType::BF16 } else { DType::F16 };
        for (target, shape, words) in [
            ("h200", SHAPES[i], AttentionTiling::named(&[("tile_n", 64)]).unwrap().words()),
            ("h200", [1, 2, 1, 300, 80, 96], AttentionTiling { keys: 64, consumers: 1, chunk: 128 }.words()),
            ("a100", SHAPES[i], WarpAttentionTiling::named(&[]).unwrap().words()),
        ] {
            let plan = planned(&Device::named(target).unwrap(), &case(dtype, shape, true, scores).0);
            // Parts of few scores with a log-sum-exp are predicted to be faster.
            if shape[2] == 1 && scores.contains("sink") {
                continue;
            }
            let attention = generated(&plan).unwrap_or_else(|| panic!("{scores} {shape:?} {target}\n{plan}"));
            let launches = attention.launches(&words);
            assert!(!launches.is_empty(), "{scores} {shape:?} {target}");
            for (body, _) in launches {
                let source = body.emit(&plan.program).unwrap();
                let compiled = compiler.compile(&source.text, "k.cu", body.only_arch().unwrap_or("sm_80"));
                compiled.unwrap_or_else(|e| panic!("{scores} {shape:?} {target}: {e}\n{}", source.text));
            }
        }
    }
}

/// What a NaN among the keys, the values or the queries spoils, with split keys and without.
#[test]
fn a_nan_spoils_what_reads_it_on_a_gpu() {
    let tilings = [0, 128].map(|chunk| AttentionTiling::named(&[("tile_n", 64), ("consumers", 1), ("chunk", chunk)]));
    let Some(gpu) = gpu(tilings.len() * 3) else { return };
    if !gpu.runs_clusters() {
        return eprintln!("SKIPPED: tiled attention is for Hopper");
    }
    let (shape, each) = ([2, 4, 1, 500, 64, 64], 2);
    for tiling in tilings.into_iter().flatten() {
        for spoiled in 0..3 {
            let (graph, mut inputs) = grouped(DType::BF16, shape, each, true, "plain");
            let mut values = inputs[spoiled].1.to_f64();
            values[70] = f64::NAN;
            let (name, tensor) = &inputs[spoiled];
            inputs[spoiled] = (name.clone(), Tensor::from_f64(DType::BF16, tensor.shape(), &values).unwrap());
            let plan = planned(&gpu.profile(), &graph);
            let mut tuner =
                Tuner::without_cache(Duration::ZERO).with_file(forced(&gpu, &plan, &tiling.words()).unwrap());
            let executor = Executor::new(plan.clone(), gpu.clone(), &mut tuner).unwrap().poisoned();
            let want = evaluate(&graph, &inputs, Mode::Rounded).unwrap();
            let tensors: Vec<Tensor> = inputs.iter().map(|(_, t)| t.clone()).collect();
            let what = format!("{tiling:?}, input {spoiled}");
            compare(
                &executor.run(&tensors).unwrap()[0],
                &want[0].to_tensor().unwrap(),
                DType::BF16,
                coarsest(&graph),
                &what,
            );
        }
    }
}

/// Times of each tiling for few queries: a measurement, not a test.
#[test]
#[ignore = "a measurement"]
fn few_queries_are_timed_on_a_gpu() {
    let Some(gpu) = gpu(1) else { return };
    for (shape, each) in [
        ([1, 32, 1, 2048, 128, 128], 4),
        ([1, 32, 1, 8192, 128, 128], 4),
        ([1, 32, 1, 32768, 128, 128], 4),
        ([8, 32, 1, 2048, 128, 128], 4),
        ([1, 32, 1, 2048, 64, 64], 4),
        ([1, 32, 1, 2048, 128, 128], 1),
        ([1, 12, 1, 1024, 64, 64], 1),
        ([1, 28, 1, 4096, 128, 128], 7),
    ] {
        let [b, h, _, n, d, e] = shape;
        let bytes = b * h / each * n * (d + e) * 2;
        println!("{shape:?}, {each} heads share keys, {} KiB of keys and values", bytes >> 10);
        let (graph, _) = grouped(DType::BF16, shape, each, true, "plain");
        let plan = planned(&gpu.profile(), &graph);
        let (step, _) = attention_step(&plan).unwrap();
        let at = step.kernel.unwrap().index();
        let order = tiled_attention(&plan).unwrap();
        let all = AttentionTiling::all(&plan.program.kernels[at].tune);
        for (place, tiling) in order.plausible(&all, gpu.multiprocessors()).into_iter().enumerate() {
            if tiling.consumers > 1 {
                continue;
            }
            let mut plan = Plan::clone(&plan);
            let program = std::sync::Arc::make_mut(&mut plan.program);
            let one = |name: &str, value: usize| (name.to_string(), vec![value as i64]);
            program.kernels[at].tune =
                vec![one("tile_n", tiling.keys), one("consumers", 1), one("chunk", tiling.chunk)];
            let mut tuner = Tuner::without_cache(Duration::from_secs(60));
            Executor::new(plan.into(), gpu.clone(), &mut tuner).unwrap();
            for c in tuner.choices().filter(|c| c.problem.contains("attention")) {
                let (us, parts) = (c.us.unwrap_or(f64::NAN), c.first_us.unwrap_or(f64::NAN));
                let rate = bytes as f64 / us / 1e6;
                println!("  {place} {tiling:?} {us:.2} us, {rate:.2} TB/s; the parts {parts:.2} us");
            }
        }
    }
}
