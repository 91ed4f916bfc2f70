//! Why a node cannot run: what keeps each kernel of its op from it.
//!
//! In: a node of the e-graph whose cost is that of nodes which cannot run. Out: a sentence.
//! Invariant: the reasons are those for which the cost model counts the node as impossible.

use egg::{Id, Language};
use hypatia_dsl::ir::{Backend, Kernel, OpBody, OpId};
use hypatia_dsl::typing::{eval_guard, show_expr};

use super::super::analysis::{EGraph, class_type};
use super::super::apply::implements;
use super::super::candidate::Candidate;
use super::super::kernels::{KernelPattern, unfit};
use super::super::language::{Node, Payload};
use super::super::matcher::{MatchFacts, match_application};
use super::{CostModel, IMPOSSIBLE, KERNEL_STEPS};

/// How deep below a node the reason is looked for.
const DEPTH: usize = 16;

impl CostModel {
    /// Why a node of a class cannot run, if it or something that only such a node computes cannot.
    pub fn why_impossible(&self, egraph: &EGraph, class: Id, node: &Node) -> Option<String> {
        self.blocked(egraph, class, node, DEPTH)
    }

    fn blocked(&self, egraph: &EGraph, class: Id, node: &Node, depth: usize) -> Option<String> {
        let cannot = |class: Id, node: &Node| self.node(egraph, &egraph[class], node) >= IMPOSSIBLE;
        if cannot(class, node)
            && let Payload::Op(op, _) = node.payload
            && let OpBody::Defined(_) = self.program.op(op).body
        {
            return Some(self.no_kernel(egraph, (class, node), op));
        }
        let depth = depth.checked_sub(1)?;
        let children = node.children().iter().map(|c| egraph.find(*c));
        let mut stuck = children.filter(|c| egraph[*c].nodes.iter().all(|n| cannot(*c, n)));
        stuck.find_map(|c| egraph[c].nodes.iter().find_map(|n| self.blocked(egraph, c, n, depth)))
    }

    /// What keeps each kernel of an op from an application of it.
    fn no_kernel(&self, egraph: &EGraph, application: (Id, &Node), op: OpId) -> String {
        let name = &self.program.op(op).name;
        let own = self.program.kernels.iter().filter(|k| implements(&k.pattern, op));
        let refused = own.filter_map(|k| {
            let why = self.refusal(egraph, application, k)?;
            Some(format!("kernel {} {why}", k.name))
        });
        let refused: Vec<String> = refused.collect();
        match refused.is_empty() {
            true => format!("`{name}` has no kernel, so its body would run in its place"),
            false => format!("no kernel of `{name}` is admissible on {}: {}", self.device.name, refused.join("; ")),
        }
    }

    /// What keeps a kernel from an application; `None` if nothing that is known does.
    fn refusal(&self, egraph: &EGraph, application: (Id, &Node), kernel: &Kernel) -> Option<String> {
        if let Some(why) = &kernel.not_generated {
            return Some(format!("cannot be generated: {why}"));
        }
        let on_gpus = matches!(kernel.backend, Backend::Template(_) | Backend::Cublaslt(_));
        if self.device.is_host() && on_gpus {
            return Some("runs on GPUs only".to_string());
        }
        if !kernel.can_be_planned() {
            return Some("declares no `grid` and `block` by which a plan could launch it".to_string());
        }
        let pattern = KernelPattern::of(&self.program, kernel);
        let matches = match_application(egraph, &pattern.search(), application, KERNEL_STEPS);
        let Some(m) = matches.first() else { return Some("is for another form of it".to_string()) };
        let candidate = Candidate::none();
        let facts = MatchFacts { egraph, bindings: &m.bindings, device: Some(&self.device), candidate };
        let guard = kernel.requires.iter().find(|g| eval_guard(g, &m.values, &facts) == Some(false));
        if let Some(guard) = guard {
            return Some(format!("requires {}", show_expr(&kernel.vars, guard)));
        }
        let dtype = class_type(egraph, application.0).map(|t| t.dtype);
        unfit(kernel, dtype).map(str::to_string)
    }
}
