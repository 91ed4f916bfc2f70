//! Constant folding of classes.
//!
//! In: a constant class. Out: its elements, as the plan computes them. Invariant: the result is the
//! value of some node of the class, computed from the classes of other nodes without a cycle.
//!
//! Nothing is cached: only rules that compute constants ask, about the constants that they are
//! about to use.

use std::sync::Arc;

use egg::Id;
use rustc_hash::FxHashMap;

use super::analysis::EGraph;
use super::analysis::{class_type, is_term};
use super::language::{Node, Payload};
use super::lower::splat_tensor;
use super::range_loss::Operand;
use hypatia_graph::{Graph, Value, constant_value};

/// Maximum number of nodes of one constant expression.
const MAX_NODES: usize = 200;

/// The elements of a constant class; `None` if they cannot be computed.
pub(super) fn constant(egraph: &EGraph, id: Id) -> Option<Operand> {
    let id = egraph.find(id);
    let dtype = class_type(egraph, id)?.dtype;
    if let Some(v) = egraph[id].data.value() {
        return Some(Operand::Number(dtype, v));
    }
    let leaf = |n: &Node| match n.payload {
        Payload::Leaf(l) => egraph.analysis.leaf(l).tensor.clone(),
        _ => None,
    };
    if let Some(tensor) = egraph[id].nodes.iter().find_map(leaf) {
        return Some(Operand::Tensor(tensor));
    }
    let mut constants =
        ConstantGraph { egraph, graph: Graph::new(egraph.analysis.program.clone()), values: FxHashMap::default() };
    let value = constants.class(id)?;
    constant_value(egraph.analysis.folder, &constants.graph, value).map(|t| Operand::Tensor(Arc::new(t)))
}

/// A graph of constant classes.
struct ConstantGraph<'a> {
    egraph: &'a EGraph,
    graph: Graph,
    /// By class: its results; `None` while it is being visited, or if it is absent or cannot be
    /// computed.
    values: FxHashMap<Id, Option<Vec<Value>>>,
}

impl ConstantGraph<'_> {
    fn class(&mut self, id: Id) -> Option<Value> {
        self.results(id)?.first().copied()
    }

    fn results(&mut self, id: Id) -> Option<Vec<Value>> {
        let id = self.egraph.find(id);
        if let Some(known) = self.values.get(&id) {
            return known.clone();
        }
        if !self.egraph[id].data.constant || self.values.len() >= MAX_NODES {
            return None;
        }
        self.values.insert(id, None);
        let found = self.egraph[id].nodes.iter().find_map(|n| self.node(n));
        self.values.insert(id, found.clone());
        found
    }

    fn node(&mut self, node: &Node) -> Option<Vec<Value>> {
        let analysis = &self.egraph.analysis;
        match node.payload {
            Payload::Leaf(l) => Some(vec![self.graph.constant(analysis.leaf(l).tensor.clone()?)]),
            Payload::Splat(ty, bits) => {
                let tensor = splat_tensor(analysis.ty(ty), f64::from_bits(bits)).ok()?;
                Some(vec![self.graph.constant(Arc::new(tensor))])
            }
            Payload::Scalar(s) => {
                let operands = node.children.iter().map(|c| self.class(*c)).collect::<Option<Vec<_>>>()?;
                self.graph.scalar(s, &operands).ok().map(|v| vec![v])
            }
            Payload::Op(op, attrs) => {
                let absent = |c: &Id| self.egraph[*c].nodes.iter().any(|n| n.payload == Payload::Absent);
                let mut operands = Vec::with_capacity(node.children.len());
                for child in &node.children {
                    operands.push(if absent(child) { None } else { Some(self.class(*child)?) });
                }
                self.graph.op(op, &operands, analysis.attrs(attrs).to_vec(), None).ok()
            }
            Payload::Output(i) => {
                let of = self.results(node.children[0])?;
                of.get(i as usize).map(|v| vec![*v])
            }
            p => {
                debug_assert!(is_term(p) || p == Payload::Absent);
                None
            }
        }
    }
}
