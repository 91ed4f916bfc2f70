//! Attention by warps: every tiling that the library declares against the reference, on a host
//! without a GPU and on every GPU from Ampere on; ragged heads, rows that begin anywhere, heads as
//! a projection leaves them, masks of all kinds; where it is a candidate.
use std::time::Duration;

use hypatia_dsl::dtype::DType;
use hypatia_dsl::kernel::attention_sm80::WarpAttentionTiling;
use hypatia_templates::instances::Body;

use super::attention::{FEW, FINISHES, SCORES, SHAPES, SHARED, agree, attention_step, case, generated, grouped};
use super::emulated::{self, Case};
use super::{gpu, planned};
use crate::Executor;
use crate::lowering::attention::GeneratedAttention;
use crate::tuner::Tuner;
use hypatia_eval::{Mode, evaluate};
use hypatia_graph::Graph;
use hypatia_pipeline as pipeline;
use hypatia_plan::{Action, Options, Plan};
use hypatia_target::device::Device;
use hypatia_testing::random::{coarsest, compare};

/// Heads whose rows begin anywhere, and one of each width of copies.
const RAGGED: [[usize; 6]; 6] = [
    [1, 2, 65, 65, 63, 63],
    [2, 1, 40, 130, 20, 36],
    [1, 2, 100, 33, 1, 2],
    [1, 1, 130, 70, 250, 254],
    [2, 3, 1, 77, 66, 34],
    [1, 1, 200, 200, 100, 100],
];

fn ampere() -> Device {
    Device::named("a100").unwrap()
}

/// The tilings that the library declares.
fn declared() -> Vec<WarpAttentionTiling> {
    let some = planned(&ampere(), &case(DType::BF16, SHAPES[0], true, "plain").0);
    let kernel = some.program.kernels.iter().find(|k| k.name == "attention_tiles").unwrap();
    WarpAttentionTiling::all(&kernel.tune)
}

/// Scores, with and without work on the result.
fn scores_of(at: usize) -> &'static str {
    let all = [&SCORES[..], &FINISHES].concat();
    all[at % all.len()]
}

fn by_warps(plan: &Plan) -> bool {
    matches!(generated(plan), Some(GeneratedAttention::Warps(_)))
}

fn optimized(graph: &Graph) -> Graph {
    let options = hypatia_optimize::Options { device: ampere(), ..hypatia_optimize::Options::default() };
    pipeline::optimize(graph, &options).unwrap().graph
}

#[test]
fn attention_of_warps_reads_as_one_would_write_it() {
    if !std::path::Path::new(env!("CARGO_MANIFEST_DIR")).exists() {
        return eprintln!("SKIPPED: a golden file, where there are no sources");
    }
    let (graph, _) = case(DType::BF16, [2, 3, 256, 256, 64, 64], false, "causal");
    let plan = planned(&ampere(), &graph);
    let launches = generated(&plan).unwrap().launches(&WarpAttentionTiling::named(&[]).unwrap().words());
    insta::assert_snapshot!(launches[0].0.emit(&plan.program).unwrap().text);
}

/// One launch for each kind of scores and each head, on every GPU from Ampere on; on Hopper for
/// what the copy engine cannot move.
#[test]
fn every_score_is_one_launch_from_ampere_on() {
    for (i, scores) in SCORES.iter().enumerate() {
        for (j, shape) in SHAPES.into_iter().chain(RAGGED).enumerate() {
            let device = Device::named(["a100", "l40s", "rtx4090", "b200"][(i + j) % 4]).unwrap();
            let (graph, _) = case(DType::BF16, shape, i % 2 == 0, scores);
            let plan = planned(&device, &graph);
            let alone = plan.steps.iter().filter(|s| !matches!(s.action, Action::Pointwise(_))).count();
            assert!(by_warps(&plan) && alone == 1, "{scores} {shape:?} {}\n{plan}", device.name);
        }
    }
    let hopper = Device::named("h200").unwrap();
    for (shape, apart, expected) in
        [(SHAPES[1], false, false), ([1, 2, 65, 65, 63, 63], true, true), ([1, 2, 65, 65, 60, 60], false, true)]
    {
        let plan = planned(&hopper, &case(DType::BF16, shape, apart, "causal").0);
        assert_eq!(by_warps(&plan), expected, "{shape:?}\n{plan}");
    }
}

/// `hypatia gen --model` writes the kernel that a plan launches: Hopper's there, else that of
/// warps.
#[test]
fn what_runs_is_what_gen_writes() {
    for (target, arch) in [("h200", Some("sm_90a")), ("a100", None), ("b200", None)] {
        let plan = planned(&Device::named(target).unwrap(), &case(DType::BF16, SHAPES[0], false, "causal").0);
        let written = crate::generate::of_plan(&plan, None);
        let [instance] = written.instances.as_slice() else { panic!("{written:?}\n{plan}") };
        assert_eq!((instance.kind, instance.body.only_arch()), ("tiled attention", arch), "{target}");
    }
}

/// Every tiling, on a host: index maps, what is copied when, scores, masks, the store.
#[test]
fn every_tiling_of_warps_agrees_with_the_reference_on_a_host() {
    let shapes: Vec<[usize; 6]> = RAGGED.into_iter().chain(SHAPES).filter(|[.., d, _]| *d < 256).collect();
    let mut at = 0;
    for tiling in declared() {
        let mut inputs = Vec::new();
        let mut cases = Vec::new();
        let mut graphs = Vec::new();
        while cases.is_empty() {
            at += 1;
            let (shape, scores) = (shapes[at * 5 % shapes.len()], scores_of(at * 3));
            let f16 = at % 3 == 0 && !scores.contains("lowest");
            let dtype = if f16 { DType::F16 } else { DType::BF16 };
            let (graph, given) = case(dtype, shape, at % 2 == 0, scores);
            let fits = generated(&planned(&ampere(), &graph)).is_some_and(|a| !a.launches(&tiling.words()).is_empty());
            if fits {
                let what = format!("{tiling:?} {dtype} {shape:?} {scores}");
                cases.push(Case { what, graph: optimized(&graph), inputs: given.clone() });
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
            compare(&got[0], &want[0].to_tensor().unwrap(), want[0].dtype, coarsest(&graphs[i]), &cases[i].what);
        }
    }
}

#[test]
fn every_tiling_of_warps_agrees_with_the_reference_on_a_gpu() {
    let all: Vec<_> = declared().iter().map(WarpAttentionTiling::words).collect();
    let shapes: Vec<([usize; 6], usize)> =
        SHAPES.into_iter().chain(RAGGED).map(|s| (s, 1)).chain(FEW.into_iter().filter(|(s, _)| s[3] > 1)).collect();
    agree(&all, 5, Some(&ampere()), |at| {
        let (shape, each) = shapes[at % shapes.len()];
        let scores = if each > 1 { SHARED[at % SHARED.len()] } else { SCORES[at % SCORES.len()] };
        ((shape, each), scores, at % 2 == 0)
    });
}

/// Tilings of every head compile for Ampere.
#[test]
fn attention_of_warps_compiles() {
    let Some(compiler) = super::compiler() else { return };
    let tilings = declared();
    for (i, shape) in SHAPES.into_iter().chain(RAGGED).enumerate() {
        let dtype = if i % 2 == 0 { DType::BF16 } else { DType::F16 };
        let (graph, _) = grouped(dtype, shape, 1, true, ["plain", "causal", "mask", "softcap, bias"][i % 4]);
        let plan = planned(&ampere(), &graph);
        let launches = |t: &WarpAttentionTiling| generated(&plan).unwrap().launches(&t.words());
        let fitting: Vec<_> = tilings.iter().map(launches).filter(|all| !all.is_empty()).collect();
        for (body, _) in fitting.into_iter().skip(i % 2).step_by(6).flatten() {
            assert!(matches!(body, Body::WarpAttention(_)) && body.only_arch().is_none());
            let source = body.emit(&plan.program).unwrap();
            compiler.compile(&source.text, "k.cu", "sm_80").unwrap();
        }
    }
}

/// Times of the tilings with the best predictions: a measurement, not a test.
#[test]
#[ignore = "a measurement"]
fn attention_of_warps_is_timed_on_a_gpu() {
    let Some(gpu) = gpu(1) else { return };
    for (shape, scores) in [
        ([8, 12, 128, 128, 64, 64], "plain"),
        ([4, 12, 1024, 1024, 64, 64], "causal"),
        ([2, 32, 2048, 2048, 128, 128], "causal"),
        ([32, 12, 197, 197, 64, 64], "plain"),
        ([8, 12, 500, 500, 63, 63], "plain"),
    ] {
        let [b, h, m, n, d, e] = shape;
        let half = if scores == "causal" { 0.5 } else { 1.0 };
        let work = 2.0 * half * (b * h * m * n * (d + e)) as f64;
        println!("{shape:?} {scores}");
        let (graph, _) = grouped(DType::BF16, shape, 1, true, scores);
        // The parts store their scores.
        let options = Options { memory: 8 << 30, ..Options::new(ampere()) };
        let plan = std::sync::Arc::new(pipeline::plan(&optimized(&graph), &options).unwrap());
        let (step, _) = attention_step(&plan).unwrap();
        let at = step.kernel.unwrap().index();
        let order = generated(&plan).unwrap().plausible(&plan.program.kernels[at], gpu.multiprocessors());
        for (place, words) in order.into_iter().take(8).enumerate() {
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
