//! Products that generated kernels may compute together with their neighbours.
//!
//! In: a step of a plan for a GPU. Out: the product that it computes, with its whole epilogue, and
//! what it reads. Invariant: a library's call is none, since its kernel has a part of the epilogue;
//! a user's template is one, since it stays a candidate where what joins it keeps it as fallback.

use hypatia_dsl::builtin::BuiltinOp;
use hypatia_dsl::ir::{Backend, Head, KernelId, Pat, Program};
use hypatia_dsl::scalar::{Term, TermBuilder, TermId, TermNode};

use super::{Action, Called, GemmStep, Plan, Step, View};
use hypatia_target::device::Device;

/// The compute capability from which templates multiply by warps.
const AMPERE: u32 = 80;

/// The kernel of the Program that multiplies in tiles, if the device can run it.
pub(super) fn tiles(program: &Program, device: &Device) -> Option<KernelId> {
    let gemm = program.builtin_op(BuiltinOp::Gemm)?;
    let multiplies = |pattern: &Pat| matches!(pattern, Pat::Node(n) if n.head == Head::Op(gemm));
    let found = program.kernels.iter().position(|k| matches!(k.backend, Backend::Tiled) && multiplies(&k.pattern));
    found.filter(|_| !device.is_host() && device.sm >= AMPERE).map(|i| KernelId(i as u32))
}

/// Joins products of a plan with their neighbours. `of` gives the step of the product at a place
/// with what joins it, and the places of the latter; the last operand says which steps are parts of
/// others by now. Plans that must have the bits of others stay as they are.
pub(super) fn join(plan: &mut Plan, of: impl Fn(&Plan, KernelId, usize, &[bool]) -> Option<(Step, Vec<usize>)>) {
    if plan.allowed.is_exact() || plan.allowed.batch_invariant {
        return;
    }
    let Some(kernel) = tiles(&plan.program, &plan.device) else { return };
    let mut gone = vec![false; plan.steps.len()];
    for at in 0..plan.steps.len() {
        let joined = if gone[at] { None } else { of(plan, kernel, at, &gone) };
        if let Some((step, parts)) = joined {
            parts.iter().for_each(|i| gone[*i] = true);
            plan.steps[at] = step;
        }
    }
    let mut gone = gone.into_iter();
    plan.steps.retain(|_| gone.next() != Some(true));
}

/// The name of a step that consists of these.
pub(super) fn joined_name(parts: &[Step]) -> String {
    let mut names: Vec<&str> = parts.iter().map(|s| s.name.as_str()).filter(|n| !n.is_empty()).collect();
    names.dedup();
    names.join(" + ")
}

/// A product of a step with its whole epilogue.
pub(super) struct Whole<'p> {
    /// The product, or both products of one left factor.
    pub product: &'p GemmStep,
    /// Its number of factors.
    pub factors: usize,
    /// The factors, then what the epilogue reads.
    pub reads: &'p [View],
}

impl<'p> Whole<'p> {
    /// The product of a step, if it computes one.
    pub(super) fn of(program: &Program, step: &'p Step) -> Option<Whole<'p>> {
        let call = match &step.action {
            Action::Gemm(g) => return Some(Whole { product: g, factors: 2, reads: &step.reads }),
            Action::Call(call) => call,
            _ => return None,
        };
        let backend = &program.kernels[step.kernel?.index()].backend;
        let (product, factors) = match (&call.called, backend) {
            (Called::Product(g), Backend::Tiled) => (g, 2),
            (Called::Pair(g), Backend::Tiled) => (g, 3),
            (Called::Template(t), _) => (t.product.as_ref()?, 2),
            _ => return None,
        };
        Some(Whole { product, factors, reads: &step.reads[..call.reads] })
    }
}

/// The values of a term over these operands.
pub(super) fn substituted(terms: &mut TermBuilder, term: &Term, operands: &[TermId]) -> Vec<TermId> {
    let mut moved: Vec<TermId> = Vec::with_capacity(term.nodes.len());
    for node in &term.nodes {
        let id = match node {
            TermNode::In { input, .. } => operands[*input as usize],
            node => terms.add(node.map_args(|a| moved[a.0 as usize])),
        };
        moved.push(id);
    }
    term.roots.iter().map(|root| moved[root.0 as usize]).collect()
}
