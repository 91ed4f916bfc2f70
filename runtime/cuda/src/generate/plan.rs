//! The kernels that a plan launches, without library calls.
//!
//! In: a [`Plan`], and what was measured. Out: an [`Instance`] for each distinct kernel, and the
//! launches in order. Invariant: two steps that compute the same function on operands of the same
//! kinds share one kernel.

use hypatia_dsl::dtype::DType;
use hypatia_dsl::kernel::short::Shortener;
use hypatia_dsl::kernel::{Access, Operand, PointwiseKernel};
use hypatia_templates::cuda::identifier;

use std::collections::BTreeMap;

use super::write::StepEntry;
use super::{Body, Instance, Skipped};
use crate::fallback::FALLBACK;
use crate::lowering::timed::{Timed, kernel};
use crate::lowering::{Work, step_kernels};
use crate::tiled::problem_of;
use crate::tuning::TuningFile;
use hypatia_plan::{Action, CallStep, Called, GemmStep, Plan, Step, View, row_major};

/// The kernels and launches of a plan, for `gen`.
#[derive(Debug, Default)]
pub struct PlanKernels {
    /// The kernels, deduplicated.
    pub instances: Vec<Instance>,
    /// Steps without a kernel.
    pub skipped: Vec<Skipped>,
    /// The launches in order.
    pub steps: Vec<StepEntry>,
}

/// The kernels of a plan, and the steps that run them: of what is timed, the choice of a tuning
/// file, or what is predicted to be the fastest.
pub fn of_plan(plan: &Plan, tuning: Option<&TuningFile>) -> PlanKernels {
    let mut out = PlanKernels::default();
    // For each kernel, the names of the steps that run it.
    let mut named: Vec<Vec<String>> = Vec::new();
    let shortener = Shortener::new(&plan.program, &plan.allowed);
    for (i, step) in plan.steps.iter().enumerate() {
        let name = plan.step_name(i);
        for launch in launches(plan, step, tuning) {
            let (kind, body, work, runs) = match launch {
                Launch::Library => {
                    out.steps.push(StepEntry {
                        step: name.clone(),
                        kernel: None,
                        runs: "library".into(),
                        rows: None,
                        n: None,
                        sizes: BTreeMap::new(),
                    });
                    continue;
                }
                Launch::Kernel { kind, mut body, work, runs } => {
                    // In a plan for a GPU this was done already.
                    body.shorten(&shortener, plan.device.tf32);
                    (kind, *body, *work, runs)
                }
            };
            let known = out.instances.iter().position(|known| same(&known.body, &body));
            let at = known.unwrap_or_else(|| {
                let dtype = step.writes.first().map_or(DType::F32, |w| w.dtype);
                let kernel = format!("k{}_{kind}", out.instances.len());
                out.instances.push(Instance { kernel, kind, origin: String::new(), dtype, body });
                named.push(Vec::new());
                out.instances.len() - 1
            });
            named[at].push(name.clone());
            let kernel = Some(out.instances[at].kernel.clone());
            let (rows, n) = (Some(work.rows), Some(work.n));
            let strides = work.strides.into_iter().map(|(of, strides)| (of.strides_name(), strides));
            let sizes = work.sizes.into_iter().map(|(name, values)| (name.name(), values)).chain(strides).collect();
            out.steps.push(StepEntry { step: name.clone(), kernel, runs: runs.into(), rows, n, sizes });
        }
        if !matches!(step.action, Action::Gemm(_) | Action::Call(_)) && step_kernels(step).is_empty() {
            let reason = reason(&step.action);
            out.skipped.push(Skipped { kernel: step.name.clone(), dtype: None, reason });
        }
    }
    for (instance, steps) in out.instances.iter_mut().zip(named) {
        let kernel = identifier("", &format!("{}_{}", instance.kernel, instance.dtype));
        let (name, doc) = instance.body.labels();
        (*name, *doc) = (kernel, computes(&steps));
    }
    out
}

/// A launch of a step.
enum Launch {
    /// A library call, or a step without a kernel.
    Library,
    /// A kernel, with its work.
    Kernel { kind: &'static str, body: Box<Body>, work: Box<Work>, runs: &'static str },
}

fn launches(plan: &Plan, step: &Step, tuning: Option<&TuningFile>) -> Vec<Launch> {
    match &step.action {
        Action::Gemm(g) if g.acc.is_float() && (g.scale(&plan.program).is_some() || step.kernel.is_some()) => {
            vec![Launch::Library]
        }
        Action::Call(call) if !matches!(call.called, Called::Rows(_)) => {
            timed(plan, step, call, tuning).unwrap_or_else(|| vec![Launch::Library])
        }
        Action::Gemm(g) if g.acc.is_float() => {
            let (rows, n) = (g.batch.iter().product::<usize>() * g.m, g.n);
            let work = Box::new(Work { rows, n, ..Work::default() });
            let body = Box::new(Body::Pointwise(epilogue(g, step)));
            vec![Launch::Kernel { kind: "epilogue", body, work, runs: "product and kernel" }]
        }
        _ => {
            let launch = |(body, work): (Body, Work)| Launch::Kernel {
                kind: kind(&body),
                body: Box::new(body),
                work: Box::new(work),
                runs: "kernel",
            };
            let launches: Vec<Launch> = step_kernels(step).into_iter().map(launch).collect();
            if launches.is_empty() { vec![Launch::Library] } else { launches }
        }
    }
}

/// Multiprocessors of the GPU for which a tiling is predicted.
const MULTIPROCESSORS: usize = 132;

/// The kernels of a call whose kernel is timed: the launches that were measured or are predicted to
/// be the fastest.
fn timed(plan: &Plan, step: &Step, call: &CallStep, tuning: Option<&TuningFile>) -> Option<Vec<Launch>> {
    let kernel = kernel(plan, step)?;
    let timed = Timed::of(plan, (step, call, kernel))?;
    let first = timed.plausible(kernel, MULTIPROCESSORS).into_iter().next()?;
    let problem = || problem_of(plan, (step, call, kernel), &timed, MULTIPROCESSORS);
    let choice =
        tuning.zip(tuning.and_then(|_| problem())).and_then(|(file, p)| file.choices().find(|c| c.problem == p));
    if choice.is_some_and(|c| c.algorithm == FALLBACK) {
        return Some(call.fallback.iter().flat_map(|step| launches(plan, step, tuning)).collect());
    }
    let first = choice.map(|c| c.algorithm).filter(|c| !timed.launches(c).is_empty()).unwrap_or(first);
    let launch = |(body, work): (Body, Work)| Launch::Kernel {
        kind: kind(&body),
        body: Box::new(body),
        work: Box::new(work),
        runs: "kernel",
    };
    let launches: Vec<Launch> = timed.launches(&first).into_iter().map(launch).collect();
    (!launches.is_empty()).then_some(launches)
}

/// The purpose of a kernel: the nodes whose steps run it.
fn computes(steps: &[String]) -> String {
    let shown = steps.iter().take(4).map(String::as_str).collect::<Vec<_>>().join(", ");
    match steps.len() {
        0..=4 => format!("Computes {shown} of the model."),
        n => format!("Computes {shown} and {} more of the model.", n - 4),
    }
}

fn kind(body: &Body) -> &'static str {
    match body {
        Body::Pointwise(_) | Body::InPlace(..) | Body::Horizontal(_) => "pointwise",
        Body::Rowwise(_) | Body::JointRows(_) | Body::RowSums(_) | Body::JoinSums(_) => "rowwise",
        Body::Gemm(_) | Body::WarpGemm(_) | Body::Gemv(_) | Body::Chain(_) => "product",
        Body::BlockSums(_) | Body::Checksum(_) | Body::Disturb(_) => "checksum",
        Body::Attention(_) | Body::WarpAttention(_) | Body::AttentionJoin(_) | Body::AttentionGrad(_) => {
            "tiled attention"
        }
        Body::Windows(_) | Body::ChannelWindows(_) | Body::GroupWindows(_) => "windows",
        Body::Move(_) => "move",
        Body::Unfold(_) => "unfold",
        Body::Pool(_) => "pool",
        Body::Argmax(_) => "search",
        Body::Product(_) => "product",
        Body::Cumsum(_) => "cumsum",
        Body::Sort(_) => "sort",
        Body::Scatter(_) => "scatter",
        Body::Template(_) => "template",
    }
}

fn reason(action: &Action) -> String {
    let word = format!("{action:?}");
    let word = word.split(|c: char| !c.is_ascii_alphabetic()).next().unwrap_or_default().to_lowercase();
    format!("{word} has no generated kernel yet")
}

/// True if both compute the same function, regardless of names.
fn same(a: &Body, b: &Body) -> bool {
    let bare = |body: &Body| {
        let mut body = body.clone();
        let (name, doc) = body.labels();
        name.clear();
        doc.clear();
        body
    };
    bare(a) == bare(b)
}

/// The pointwise pass after a matrix product.
fn epilogue(gemm: &GemmStep, step: &Step) -> PointwiseKernel {
    let mut shape = gemm.batch.clone();
    shape.extend([gemm.m, gemm.n]);
    let inputs: Vec<Operand> =
        step.reads.iter().skip(2).map(|view| Operand { dtype: view.dtype, access: access(view, &shape) }).collect();
    let strided = inputs.iter().any(|o| o.access == Access::Strided);
    PointwiseKernel {
        name: String::new(),
        doc: String::new(),
        inputs,
        outputs: step.writes.iter().map(|w| w.dtype).collect(),
        rank: if strided { shape.len() } else { 2 },
        term: gemm.term.clone(),
        acc: Some(gemm.acc),
    }
}

/// The access pattern of an operand that is broadcast to `shape`.
fn access(view: &View, shape: &[usize]) -> Access {
    if view.shape != shape || shape.is_empty() {
        return Access::Strided;
    }
    let (last, lead) = (shape.len() - 1, &shape[..shape.len() - 1]);
    let zero = |i: usize| shape[i] == 1 || view.strides[i] == 0;
    let like = |range: std::ops::Range<usize>, strides: &[isize]| {
        range.into_iter().all(|i| shape[i] == 1 || view.strides[i] == strides[i])
    };
    if (0..=last).all(zero) {
        Access::Splat
    } else if like(0..shape.len(), &row_major(shape)) {
        Access::Full
    } else if (0..last).all(zero) && view.strides[last] == 1 {
        Access::Row
    } else if zero(last) && like(0..last, &row_major(lead)) {
        Access::Col
    } else {
        Access::Strided
    }
}
