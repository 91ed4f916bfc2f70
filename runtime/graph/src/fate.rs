//! What becomes of the candidates of a node: which of them a plan runs.
//!
//! In: a list of kernels, and what is known of the node's operands. Out: the candidates that run,
//! the first choice first, each with the next one as its fallback; for the others, why not.
//! Invariant: this is the one place that decides it. The planner adds only what it alone knows:
//! strides, checks, and whether the fallback stores its results as one launch would.

use std::fmt;

use hypatia_dsl::ir::{Backend, Pat, Program};
use hypatia_dsl::kernel::{RowSpace, RowwiseKernel, derive_rowwise_over};
use hypatia_dsl::typing::TensorType;
use hypatia_target::device::Device;
use serde::Serialize;

use crate::declared::DeclaredLaunch;
use crate::graph::kernels::{Candidate, Known, Strategy, is_pair};
use crate::{Graph, Node, NodeId, NodeKind};

/// What becomes of a way to compute a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fate {
    /// The plan's first choice.
    Taken,
    /// The plan's first choice, which runs only where it is measured to be faster than the next.
    Raced,
    /// It runs where the one before it is missing or measured to be slower.
    Fallback,
    /// It is not run: the one before it needs a fallback, which is one behind it.
    Skipped,
    /// It is not run: one before it has no fallback.
    Behind,
    /// It may not compute the node.
    Refused(String),
}

impl fmt::Display for Fate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fate::Taken => f.write_str("taken"),
            Fate::Raced => f.write_str("first choice; timed beside the next, the faster runs"),
            Fate::Fallback => f.write_str("runs if the one before is missing or measured to be slower"),
            Fate::Skipped => f.write_str("not run: a later one is the fallback"),
            Fate::Behind => f.write_str("not run: an earlier one is always there"),
            Fate::Refused(why) => write!(f, "not admitted: {why}"),
        }
    }
}

/// Which of the candidates of a node a plan runs, as places in their list: the first choice, and
/// behind each one that needs a fallback the one that is its fallback. `fits` tells which may run.
pub fn running(program: &Program, list: &[&Candidate], fits: &dyn Fn(&Candidate) -> bool) -> Vec<usize> {
    let mut run: Vec<usize> = Vec::new();
    for (at, candidate) in list.iter().enumerate() {
        let follows = run.last().is_none_or(|before| candidate.may_follow(program, list[*before]));
        if follows && fits(candidate) {
            run.push(at);
            if !candidate.needs_fallback(program) {
                break;
            }
        }
    }
    run
}

/// What becomes of each candidate of a node, where `refusal` tells what keeps one from running.
pub fn fates(program: &Program, list: &[&Candidate], refusal: &dyn Fn(&Candidate) -> Option<String>) -> Vec<Fate> {
    let refused: Vec<Option<String>> = list.iter().map(|c| refusal(c)).collect();
    let admitted: Vec<usize> = (0..list.len()).filter(|at| refused[*at].is_none()).collect();
    let fitting: Vec<&Candidate> = admitted.iter().map(|at| list[*at]).collect();
    let run: Vec<usize> = running(program, &fitting, &|_| true).into_iter().map(|i| admitted[i]).collect();
    let fate = |(at, why): (usize, Option<String>)| match (why, run.iter().position(|r| *r == at)) {
        (Some(why), _) => Fate::Refused(why),
        (None, Some(0)) if run.len() == 1 => Fate::Taken,
        (None, Some(0)) => Fate::Raced,
        (None, Some(_)) => Fate::Fallback,
        (None, None) if run.last().is_some_and(|last| at < *last) => Fate::Skipped,
        (None, None) => Fate::Behind,
    };
    refused.into_iter().enumerate().map(fate).collect()
}

impl Candidate {
    /// Whether it can be the fallback of that one. A user's template or a tiled product is timed
    /// beside what would run without it, which may need a fallback too. Any other launch is timed
    /// beside steps that are always there: those of an op are its parts.
    fn may_follow(&self, program: &Program, before: &Candidate) -> bool {
        let backend = before.kernel().map(|k| &program.kernels[k.index()].backend);
        match (backend, &before.strategy) {
            (Some(Backend::Tiled), _) if before.tiles_products(program) => self.kernel() != before.kernel(),
            (Some(Backend::Template(_)), _) => self.kernel() != before.kernel(),
            (_, Strategy::Call) => matches!(self.strategy, Strategy::Composed(_)),
            _ => !self.needs_fallback(program),
        }
    }

    /// True for a tiled kernel that applies the whole epilogue of a product, or of two.
    fn tiles_products(&self, program: &Program) -> bool {
        let kernel = self.kernel().map(|k| &program.kernels[k.index()]);
        let whole = |pattern: &Pat| match self.strategy {
            Strategy::Whole => true,
            Strategy::Call => is_pair(program, pattern),
            _ => false,
        };
        kernel.is_some_and(|k| matches!(k.backend, Backend::Tiled) && whole(&k.pattern))
    }

    /// What keeps it from computing a node with these operands, as far as they tell; `None` if
    /// nothing does.
    pub fn refusal(
        &self,
        program: &Program,
        known: &dyn Fn(usize) -> Option<Known>,
        device: &Device,
    ) -> Option<String> {
        let matched = self.matched.as_ref()?;
        if !matched.holds(program, known, device) {
            return Some("a guard does not hold for these sizes".into());
        }
        let kernel = &program.kernels[matched.kernel.index()];
        let is_template = matches!(kernel.backend, Backend::Template(_));
        let idle = is_template && DeclaredLaunch::all(kernel, matched, known, device).is_empty();
        idle.then(|| DeclaredLaunch::why_none(kernel, matched, known, device))
    }
}

impl Graph {
    /// What keeps a candidate of a node from computing it; `None` if nothing does.
    fn refusal(&self, node: &Node, candidate: &Candidate, device: &Device) -> Option<String> {
        if self.conv_sizes(node).is_some_and(|c| !c.are_products()) {
            return Some("so few filters of a group are sums, not a product".into());
        }
        let known = |operand: usize| self.seen_by_kernels(node, operand);
        candidate.refusal(&self.program, &known, device).or_else(|| {
            let underivable = matches!(candidate.strategy, Strategy::Rowwise) && self.rowwise(node).is_none();
            underivable.then(|| "the op's body gives no row-wise kernel for these sizes".into())
        })
    }

    /// What becomes of each candidate of a node.
    pub fn fates(&self, node: &Node, device: &Device) -> Vec<Fate> {
        let list: Vec<&Candidate> = node.kernels.list.iter().collect();
        fates(&self.program, &list, &|c| self.refusal(node, c, device))
    }

    /// The candidates of a node that a plan runs; see [`running`]. Empty without a list for that
    /// device.
    pub fn running<'n>(&self, node: &'n Node, device: &Device) -> Vec<&'n Candidate> {
        let list: Vec<&Candidate> = node.kernels.list.iter().filter(|_| node.kernels.device == device.name).collect();
        let run = running(&self.program, &list, &|c| self.refusal(node, c, device).is_none());
        run.into_iter().map(|at| list[at]).collect()
    }

    /// The first choice for a node; `None` without a list for that device. The planner also looks
    /// at strides.
    pub fn chosen_kernel(&self, node: NodeId, device: &Device) -> Option<&Candidate> {
        self.running(self.node(node), device).first().copied()
    }

    /// The row-wise kernel of a defined op's node.
    pub fn rowwise(&self, node: &Node) -> Option<(RowwiseKernel, RowSpace)> {
        let NodeKind::Op { op, attrs, .. } = &node.kind else { return None };
        let operands: Vec<Option<TensorType>> = node.operands.iter().map(|v| v.map(|v| self.ty(v).clone())).collect();
        derive_rowwise_over(&self.program, *op, attrs, &operands, &node.results).ok()
    }
}
