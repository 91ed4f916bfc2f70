//! The kernels that a plan launches, apart from library calls.
//!
//! In: a [`Plan`]. Out: an [`Instance`] for each different kernel. Holds always: two steps that compute
//! the same function of operands of the same kinds share one.

use hypatia_dsl::dtype::DType;
use hypatia_dsl::emit::cuda::identifier;
use hypatia_dsl::kernel::{Access, Operand, PointwiseKernel};

use super::steps::step_kernel;
use super::{Body, Instance, Skipped};
use crate::plan::{Action, GemmStep, Plan, Step, View, row_major};

/// The kernels of a plan, each once, and the steps that have none.
pub fn of_plan(plan: &Plan) -> (Vec<Instance>, Vec<Skipped>) {
    let (mut instances, mut skipped): (Vec<Instance>, Vec<Skipped>) = (Vec::new(), Vec::new());
    for step in &plan.steps {
        let (kind, body) = match &step.action {
            Action::Gemm(g) if g.scale(&plan.program).is_some() || step.kernel.is_some() => continue,
            Action::Gemm(g) => ("epilogue", Body::Pointwise(epilogue(g, step))),
            _ => match step_kernel(step) {
                Some((body, _)) => (kind(&body), body),
                None => {
                    skipped.push(Skipped { kernel: step.name.clone(), dtype: None, reason: reason(&step.action) });
                    continue;
                }
            },
        };
        if instances.iter().any(|known| same(&known.body, &body)) {
            continue;
        }
        let dtype = step.writes.first().map_or(DType::F32, |w| w.dtype);
        let mut instance =
            Instance { kernel: format!("k{}_{}", instances.len(), kind), kind, origin: String::new(), dtype, body };
        let (name, doc) = instance.body.labels();
        *name = identifier("", &format!("{}_{dtype}", instance.kernel));
        *doc = format!("Computes {} of the model.", if step.name.is_empty() { "a step" } else { &step.name });
        instances.push(instance);
    }
    (instances, skipped)
}

fn kind(body: &Body) -> &'static str {
    match body {
        Body::Pointwise(_) | Body::InPlace(..) => "pointwise",
        Body::Rowwise(_) => "rowwise",
        Body::Move(_) => "move",
        Body::Argmax(_) => "search",
        Body::Template(_) => "template",
    }
}

fn reason(action: &Action) -> String {
    let word = format!("{action:?}");
    let word = word.split(|c: char| !c.is_ascii_alphabetic()).next().unwrap_or_default().to_lowercase();
    format!("{word} has no generated kernel yet")
}

/// The same function, whatever it is called.
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

/// The pass behind a matrix product.
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

/// How an operand that is broadcast to `shape` is read.
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
