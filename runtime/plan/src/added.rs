//! Joins products of the library with the pass that adds a matrix to them.
//!
//! In: a plan for a GPU whose buffers are not placed yet. Out: the same plan, in which a product in
//! f32 and the pass that alone reads it, and adds a matrix of its size, are one call of the library
//! with both as its fallback: a residual, the sum of two products. A bias that the pass adds, too,
//! becomes the call's. Invariant: the pass does nothing but add; what it adds lies as the result
//! does.
//!
//! The library adds in another order than two steps do, so plans that must not round otherwise keep
//! them. In 16 bits generated products do all of the work, whatever it is; in f32 such a call may
//! be timed beside one.

use hypatia_dsl::builtin::BuiltinScalar;
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::{Backend, InView, KernelId, Program};
use hypatia_dsl::numerics::Numerics;
use hypatia_dsl::scalar::{Term, TermBuilder, TermId, TermNode};
use hypatia_target::cublaslt::Epilogue;

use super::prologue::seen;
use super::view::collapse;
use super::whole::joined_name;
use super::{Action, BufferId, Called, Checks, GemmStep, Plan, PointwiseStep, Step, View};

/// Joins such products of a plan, also where they are fallbacks.
pub(super) fn cluster(plan: &mut Plan) {
    let free = plan.allowed.numerics != Numerics::Exact && !plan.allowed.batch_invariant;
    if !free || plan.checks != Checks::Off {
        return;
    }
    let Some(kernels) = Kernels::of(&plan.program) else { return };
    let program = plan.program.clone();
    let outputs: Vec<BufferId> = plan.outputs.iter().map(|(_, v)| v.buffer).collect();
    let mut steps = std::mem::take(&mut plan.steps);
    join(&program, &kernels, &mut steps, &outputs);
    plan.steps = steps;
}

/// The kernels that name the library's product, with a bias and without.
struct Kernels {
    plain: KernelId,
    bias: KernelId,
}

impl Kernels {
    fn of(program: &Program) -> Option<Kernels> {
        let named = |wanted: Epilogue| {
            let at = program.kernels.iter().position(|k| k.backend == Backend::Cublaslt(wanted))?;
            Some(KernelId(u32::try_from(at).ok()?))
        };
        Some(Kernels { plain: named(Epilogue::Default)?, bias: named(Epilogue::Bias)? })
    }
}

/// Joins these steps, whose results in `kept` something else reads.
fn join(program: &Program, kernels: &Kernels, steps: &mut Vec<Step>, kept: &[BufferId]) {
    for step in steps.iter_mut() {
        if let Action::Call(call) = &mut step.action {
            let own: Vec<BufferId> = step.writes[..call.writes].iter().map(|w| w.buffer).collect();
            join(program, kernels, &mut call.fallback, &own);
        }
    }
    let mut at = 0;
    while at < steps.len() {
        let Some((step, pass)) = joined(program, kernels, steps, at, kept) else {
            at += 1;
            continue;
        };
        steps[pass] = step;
        steps.remove(at);
    }
}

/// The product at that place with the pass that alone reads it, and the place of the pass.
fn joined(program: &Program, kernels: &Kernels, steps: &[Step], at: usize, kept: &[BufferId]) -> Option<(Step, usize)> {
    let step = &steps[at];
    let Action::Gemm(g) = &step.action else { return None };
    let ([a, b, own @ ..], [made]) = (step.reads.as_slice(), step.writes.as_slice()) else { return None };
    let has_bias = match &program.kernels[step.kernel?.index()].backend {
        Backend::Cublaslt(Epilogue::Default) => false,
        Backend::Cublaslt(Epilogue::Bias) => true,
        _ => return None,
    };
    if made.dtype != DType::F32 || a.dtype != DType::F32 || !is_one_call(g, [a, b], made) || kept.contains(&made.buffer)
    {
        return None;
    }
    let reads = |(_, s): &(usize, &Step)| s.reads.iter().any(|r| r.buffer == made.buffer);
    let readers: Vec<usize> = steps.iter().enumerate().filter(reads).map(|(i, _)| i).collect();
    let [pass] = readers[..] else { return None };
    let work = steps.get(pass).filter(|s| s.kernel.is_none())?;
    let between = || steps.get(at + 1..pass).into_iter().flatten().flat_map(|s| &s.writes);
    if pass <= at || between().any(|w| step.reads.iter().any(|r| r.buffer == w.buffer)) {
        return None;
    }
    let (Action::Pointwise(p), [out]) = (&work.action, work.writes.as_slice()) else { return None };
    let Sum { matrix, row } = Sum::of(program, p, work, made)?;
    let (bias, kernel) = match (has_bias, row) {
        (true, None) => (own.first().cloned(), kernels.bias),
        (false, Some(row)) => (Some(row), kernels.bias),
        (false, None) => (None, kernels.plain),
        (true, Some(_)) => return None,
    };
    let reads: Vec<View> = [a.clone(), b.clone()].into_iter().chain(bias).chain([matrix]).collect();
    let term = sum(program, reads.len() - 2)?;
    let out = View { shape: made.shape.clone(), strides: made.strides.clone(), ..out.clone() };
    let parts = vec![step.clone(), work.clone()];
    let called = Called::Sum(GemmStep { term, ..g.clone() });
    let joined = Step::call(&joined_name(&parts), called, reads, vec![out], parts);
    Some((Step { kernel: Some(kernel), ..joined }, pass))
}

/// Whether the library multiplies these by one call, into a result that lies row by row.
fn is_one_call(g: &GemmStep, [a, b]: [&View; 2], made: &View) -> bool {
    let lead = g.batch.len();
    let shared = b.strides[..lead].iter().zip(&g.batch).all(|(s, n)| *s == 0 || *n == 1);
    let sides = [a, made].map(|v| v.strides[..lead + 1].to_vec());
    let (rows, _) = collapse(&a.shape[..lead + 1], &sides);
    shared && rows.len() == 1 && made.is_contiguous() && !made.is_empty() && g.k > 0
}

/// What a pass adds to a product.
struct Sum {
    /// A matrix of its size.
    matrix: View,
    /// One number a column.
    row: Option<View>,
}

impl Sum {
    /// `None` if the pass does anything else.
    fn of(program: &Program, p: &PointwiseStep, work: &Step, made: &View) -> Option<Sum> {
        let [out] = work.writes.as_slice() else { return None };
        if out.dtype != DType::F32 || !out.is_contiguous() || p.kernel.term.roots.len() != 1 {
            return None;
        }
        let reads: Vec<View> =
            work.reads.iter().zip(&p.strides).map(|(v, strides)| seen(v, &p.shape, strides)).collect();
        let mut terms = Vec::new();
        addends(program, &p.kernel.term, p.kernel.term.root(), &mut terms)?;
        // The accumulator is the last read.
        let read = |at: &Option<u32>| reads.get(at.map_or(reads.len() - 1, |i| i as usize));
        let all: Vec<&View> = terms.iter().map(read).collect::<Option<_>>()?;
        let (products, others): (Vec<&View>, Vec<&View>) = all.into_iter().partition(|v| v.buffer == made.buffer);
        let whole = |v: &View| v.is_contiguous() && v.len() == made.len() && v.dtype == DType::F32;
        let [product] = products[..] else { return None };
        let along = |v: &View| {
            let strides = v.reshaped(&made.shape)?.strides;
            Some(View { shape: made.shape.clone(), strides, ..v.clone() })
        };
        let columns = *made.shape.last()?;
        let is_row = |v: &View| {
            let (last, lead) = v.strides.split_last()?;
            let still = lead.iter().zip(&v.shape).all(|(s, n)| *s == 0 || *n == 1);
            Some(still && (*last == 1 || columns == 1) && v.dtype == DType::F32)
        };
        let (matrices, rows): (Vec<&View>, Vec<&View>) = others.into_iter().partition(|v| whole(v));
        let row = match rows[..] {
            [] => None,
            [row] => Some(along(row).filter(|v| is_row(v) == Some(true))?),
            _ => return None,
        };
        let [matrix] = matrices[..] else { return None };
        (whole(product) && product.offset == made.offset).then(|| along(matrix))?.map(|matrix| Sum { matrix, row })
    }
}

/// The operands that a term adds up, if it does nothing else; the accumulator is `None`.
fn addends(program: &Program, term: &Term, at: TermId, out: &mut Vec<Option<u32>>) -> Option<()> {
    /// The product, a matrix and a row.
    const MOST: usize = 3;
    match &term.nodes[at.0 as usize] {
        TermNode::Acc => out.push(None),
        TermNode::In { input, .. } => out.push(Some(*input)),
        TermNode::Call { scalar, args } if program.builtin_scalar(BuiltinScalar::Add) == Some(*scalar) => {
            args.iter().try_for_each(|a| addends(program, term, *a, out))?;
        }
        _ => return None,
    }
    (out.len() <= MOST).then_some(())
}

/// The accumulator and so many operands, added up.
fn sum(program: &Program, operands: usize) -> Option<Term> {
    let mut terms = TermBuilder::new();
    let mut root = terms.add(TermNode::Acc);
    for input in 0..operands as u32 {
        let operand = terms.add(TermNode::In { input, view: InView::Broadcast });
        root = terms.builtin(program, BuiltinScalar::Add, vec![root, operand])?;
    }
    Some(terms.finish(vec![root]))
}
