//! The extraction problem of an e-graph, and the graph that a choice stands for.
//!
//! In: a rebuilt e-graph, its outputs and a cost model. Out: a [`Problem`] over numbers, and the
//! chosen nodes of a [`Choice`]. Invariant: only classes that an output could need have a number.

use egg::Id;
use rustc_hash::FxHashMap;

use super::analysis::EGraph;
use super::cost::{Cost, CostModel};
use super::language::Node;
use super::problem::{Choice, Problem};

/// A chosen graph inside the e-graph.
#[derive(Clone, Debug, Default)]
pub struct ChosenGraph {
    /// The node of each needed class, children canonical.
    pub chosen: FxHashMap<Id, Node>,
    /// Needed classes, children first.
    pub order: Vec<Id>,
    /// What it costs.
    pub cost: Cost,
}

/// The extraction problem of a rebuilt e-graph, whose nodes have canonical children.
pub struct BuiltProblem<'e> {
    /// The problem with classes as numbers.
    pub problem: Problem,
    /// The class of each number.
    pub ids: Vec<Id>,
    /// The nodes of all classes, in the problem's order.
    nodes: Vec<&'e Node>,
    /// The number of each class.
    index: Vec<u32>,
}

/// The number of a class that no output needs.
const NO_NUMBER: u32 = u32::MAX;

impl<'e> BuiltProblem<'e> {
    /// Everything that the outputs, and optionally another class, could need. Outputs are stored;
    /// the other class is not.
    pub fn new(egraph: &'e EGraph, outputs: &[Id], also: Option<Id>, model: &CostModel) -> BuiltProblem<'e> {
        let mut index = vec![NO_NUMBER; egraph.nodes().len()];
        let mut ids = Vec::with_capacity(egraph.number_of_classes());
        let mut number = |id: Id, ids: &mut Vec<Id>| {
            let number = &mut index[usize::from(id)];
            if *number == NO_NUMBER {
                *number = ids.len() as u32;
                ids.push(id);
            }
            *number
        };
        let mut problem = Problem::with_capacity(egraph.number_of_classes(), egraph.total_size());
        let mut nodes = Vec::with_capacity(egraph.total_size());
        // Outputs are numbered first.
        problem.roots = outputs.iter().map(|o| number(egraph.find(*o), &mut ids)).collect();
        let given = ids.len();
        problem.roots.extend(also.map(|class| number(egraph.find(class), &mut ids)));
        problem.roots.sort_unstable();
        problem.roots.dedup();
        let mut at = 0;
        while at < ids.len() {
            let class = &egraph[ids[at]];
            // A node that needs its own class cannot be chosen.
            for node in class.nodes.iter().filter(|n| !n.children.contains(&class.id)) {
                let mut cost = model.node(egraph, class, node);
                if at < given {
                    cost = cost.saturating_add(model.stored(egraph, class, node));
                }
                problem.add_node(cost, node.children.iter().map(|c| number(*c, &mut ids)));
                nodes.push(node);
            }
            problem.end_class();
            at += 1;
        }
        BuiltProblem { problem, ids, nodes, index }
    }

    /// The graph of a choice; `None` if it is cyclic.
    pub fn candidates(&self, choice: &Choice) -> Option<ChosenGraph> {
        let order = self.problem.order(choice)?;
        let cost = self.problem.cost_of(&order, choice);
        let mut chosen = FxHashMap::with_capacity_and_hasher(order.len(), Default::default());
        for class in order.iter().map(|c| *c as usize) {
            if let Some(i) = choice[class] {
                chosen.insert(self.ids[class], self.nodes(class)[i as usize].clone());
            }
        }
        Some(ChosenGraph { chosen, order: order.iter().map(|c| self.ids[*c as usize]).collect(), cost })
    }

    /// The nodes of a class.
    pub fn nodes(&self, class: usize) -> &[&'e Node] {
        &self.nodes[self.problem.range(class)]
    }

    /// The number of a class, if an output could need it.
    pub fn at(&self, egraph: &EGraph, class: Id) -> Option<usize> {
        let number = *self.index.get(usize::from(egraph.find(class)))?;
        (number != NO_NUMBER).then_some(number as usize)
    }

    /// The choice of these nodes, where they still exist.
    pub fn choice_of<'n>(&self, egraph: &EGraph, chosen: impl Iterator<Item = (&'n Id, &'n Node)>) -> Choice {
        let mut choice: Choice = vec![None; self.ids.len()];
        for (class, node) in chosen {
            let Some(i) = self.at(egraph, *class) else { continue };
            let same = |n: &&Node| {
                let children = || n.children.iter().zip(&node.children);
                n.payload == node.payload
                    && n.children.len() == node.children.len()
                    && children().all(|(a, b)| *a == egraph.find(*b))
            };
            if let Some(k) = self.nodes(i).iter().position(same) {
                choice[i] = Some(k as u32);
            }
        }
        choice
    }
}
