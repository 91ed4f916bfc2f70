//! Greedy rewriting, for comparison with the e-graph: what most compilers do.
//!
//! In: a graph and the options of the e-graph. Out: a graph, rewritten in place. Rulesets run in
//! their order, and the rules of each in the order of their files and lines. A rule is applied
//! wherever it matches before the next one is tried, and what it replaces is gone. Guards, rounding
//! classes and costs are those of the e-graph; a rewrite that costs more is not made. Invariant: no
//! graph occurs twice, so rewriting ends.

use std::collections::HashSet;

use hypatia_dsl::ir::RuleSetId;

use super::optimizer::Optimizer;
use super::rewrites::SEARCH_LIMITS;
use super::{Optimized, Options};
use hypatia_graph::{ConstantFolder, Graph};
use hypatia_tensor::error::Result;

/// Maximum number of rewrites for each node of the given graph.
const REWRITES_A_NODE: usize = 10;
/// The costs of two graphs that compute the same are equal up to this many microseconds.
const EQUAL: f64 = 1e-9;

/// Rewrites a graph with the rules of its program.
pub(super) fn optimize(graph: &Graph, options: &Options, folder: &'static dyn ConstantFolder) -> Result<Optimized> {
    let first = Optimizer::start(graph, options, folder)?;
    let before = first.before().clone();
    let mut rewriting = Rewriting {
        seen: HashSet::from([first.graph.to_text()]),
        left: REWRITES_A_NODE * first.graph.nodes.len().max(1),
        graph: first.graph.clone(),
        optimizer: Some(first),
        options,
        folder,
    };
    while rewriting.round()? {}
    let mut optimized = Optimizer::resume(rewriting.graph, options, folder)?.finish()?;
    (optimized.report.before, optimized.report.greedy) = (before, true);
    Ok(optimized)
}

/// A graph that is being rewritten.
struct Rewriting<'a> {
    graph: Graph,
    /// Every graph so far, as text.
    seen: HashSet<String>,
    /// How many rewrites may still be made.
    left: usize,
    /// The graph in an e-graph to which no rule has been applied.
    optimizer: Option<Optimizer<'a>>,
    options: &'a Options,
    folder: &'static dyn ConstantFolder,
}

impl Rewriting<'_> {
    /// Tries every rule once, in order. Returns whether one of them rewrote the graph.
    fn round(&mut self) -> Result<bool> {
        let program = self.graph.program.clone();
        let mut changed = false;
        for set in 0..program.rulesets.len() {
            let own = |i: &usize| program.rules[*i].ruleset == RuleSetId(set as u32);
            for rule in (0..program.rules.len()).filter(own) {
                while self.left > 0 && self.apply(rule)? {
                    changed = true;
                }
            }
        }
        Ok(changed && self.left > 0)
    }

    /// Applies a rule at the first place where it matches and costs nothing.
    fn apply(&mut self, rule: usize) -> Result<bool> {
        let mut tried = 0;
        loop {
            let mut optimizer = match self.optimizer.take() {
                Some(optimizer) => optimizer,
                None => Optimizer::resume(self.graph.clone(), self.options, self.folder)?,
            };
            match optimizer.rewrite(rule, tried, SEARCH_LIMITS) {
                Some(Some((graph, cost))) => {
                    if cost <= optimizer.cost() + EQUAL && self.seen.insert(graph.to_text()) {
                        (self.graph, self.left) = (graph, self.left - 1);
                        return Ok(true);
                    }
                }
                Some(None) => {}
                None => {
                    self.optimizer = Some(optimizer);
                    return Ok(false);
                }
            }
            tried += 1;
        }
    }
}
