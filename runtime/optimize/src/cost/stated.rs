//! Counts what rules say that they save.
//!
//! In: applications of rules with `saves`. Out: costs of nodes that take the place of estimates.
//! Invariant: the right side of such an application costs what its left side is estimated at, less
//! the saving: what was measured, or else what the rule claims. The difference is at its root, and
//! where the root costs less than that, at the nodes below it.

use egg::Language;

use super::super::analysis::EGraph;
use super::super::language::Node;
use super::super::savings::Saving;
use super::{Cost, CostModel, IMPOSSIBLE, TRIFLE};

impl CostModel {
    /// Replaces the costs that an earlier call stated. The e-graph must be rebuilt.
    pub fn state<'s>(&mut self, egraph: &EGraph, savings: impl Iterator<Item = &'s Saving>) {
        self.stated.clear();
        for saving in savings {
            for (node, cost) in self.counted(egraph, saving).into_iter().flatten() {
                self.stated.entry(node).and_modify(|c| *c = (*c).min(cost)).or_insert(cost);
            }
        }
    }

    /// The microseconds that an application saves, as they are counted.
    pub fn saved(&self, saving: &Saving) -> f64 {
        let measured = self.measured.get(&self.program.rules[saving.rule.index()].base_name);
        measured.copied().unwrap_or_else(|| saving.claimed.micros(&self.device))
    }

    /// The nodes of the right side whose costs follow from a saving, and these costs.
    fn counted(&self, egraph: &EGraph, saving: &Saving) -> Option<Vec<(Node, Cost)>> {
        let total = |nodes: &[(Node, Cost)]| nodes.iter().map(|(_, cost)| *cost).fold(0, Cost::saturating_add);
        let left = total(&self.costs(egraph, &saving.matched)?);
        let mut right = self.costs(egraph, &saving.made)?;
        let wanted = (left as f64 - self.saved(saving) * 1e6).max(0.0) as Cost;
        let estimated = total(&right);
        if wanted > estimated {
            let (root, cost) = right.pop()?;
            return Some(vec![(root, cost.saturating_add(wanted - estimated))]);
        }
        let mut excess = estimated - wanted;
        for (_, cost) in right.iter_mut().rev() {
            let less = excess.min(cost.saturating_sub(TRIFLE));
            (*cost, excess) = (*cost - less, excess - less);
        }
        Some(right)
    }

    /// Distinct nodes with their costs; `None` if one of them cannot run.
    fn costs(&self, egraph: &EGraph, nodes: &[Node]) -> Option<Vec<(Node, Cost)>> {
        let mut costs: Vec<(Node, Cost)> = Vec::with_capacity(nodes.len());
        for node in nodes {
            let node = node.clone().map_children(|c| egraph.find(c));
            if costs.iter().any(|(n, _)| *n == node) {
                continue;
            }
            let class = egraph.lookup(node.clone())?;
            let cost = self.node(egraph, &egraph[class], &node);
            if cost >= IMPOSSIBLE {
                return None;
            }
            costs.push((node, cost));
        }
        Some(costs)
    }
}
