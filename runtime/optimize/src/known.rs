//! Constant folding of classes.
//!
//! In: a constant class. Out: its elements, as the plan computes them. Invariant: the result is the
//! value of some node of the class, computed from the classes of other nodes without a cycle.
//!
//! Nothing is cached: only rules that compute constants ask, about the constants that they are
//! about to use. What they learn is noted ([`Context::note`](super::analysis::Context::note)): it
//! is all that depends on the elements of weights.

use std::cell::RefCell;
use std::sync::Arc;

use egg::Id;
use rustc_hash::FxHashMap;

use super::analysis::EGraph;
use super::analysis::{class_type, is_term};
use super::language::{LeafId, Node, Payload};
use super::lower::splat_tensor;
use super::range_loss::{Fold, Folded, FoldedCall, FoldedProduct, Operand};
use hypatia_graph::{Graph, Value, constant_value};
use hypatia_tensor::tensor::Tensor;

/// Maximum number of nodes of one constant expression.
const MAX_NODES: usize = 200;

/// The elements of a leaf.
type Elements<'a> = &'a dyn Fn(LeafId) -> Option<Arc<Tensor>>;

/// A description of what is lost, if leaves have those elements.
pub(super) fn loss(fold: &Fold, egraph: &EGraph, elements: Elements) -> Option<String> {
    let operands = fold.operands.iter().map(|c| constant(egraph, *c, elements)).collect::<Option<Vec<_>>>();
    let Some(operands) = operands else { return Some("what `build(...)` computes is not known".to_string()) };
    let program = &egraph.analysis.program;
    let Fold { function, dtype, shape, role, .. } = fold;
    match *function {
        Folded::Scalar(scalar) => FoldedCall { program, scalar, operands: &operands, dtype: *dtype, shape }.loss(*role),
        Folded::Product(op, attrs) => {
            let tensor = |(operand, class): (Operand, &Id)| match operand {
                Operand::Tensor(t) => Some(t),
                Operand::Number(_, v) => splat_tensor(class_type(egraph, *class)?, v).ok().map(Arc::new),
            };
            let operands = operands.into_iter().zip(&fold.operands).map(tensor).collect::<Option<Vec<_>>>();
            let Some(operands) = operands else { return Some("what `build(...)` computes is not known".to_string()) };
            let attrs = egraph.analysis.attrs(attrs);
            FoldedProduct { program, op, attrs, operands: &operands }.loss(egraph.analysis.folder)
        }
    }
}

/// The leaves that it depends on, through the nodes that compute them.
pub(super) fn leaves(fold: &Fold, egraph: &EGraph) -> Vec<LeafId> {
    let seen = RefCell::new(Vec::new());
    let note = |l: LeafId| {
        seen.borrow_mut().push(l);
        egraph.analysis.leaf(l).tensor.clone()
    };
    fold.operands.iter().for_each(|c| _ = constant(egraph, *c, &note));
    seen.into_inner()
}

/// The elements of a constant class, from those of leaves; `None` if they cannot be computed.
fn constant(egraph: &EGraph, id: Id, elements: Elements) -> Option<Operand> {
    let id = egraph.find(id);
    let dtype = class_type(egraph, id)?.dtype;
    if let Some(v) = egraph[id].data.value() {
        return Some(Operand::Number(dtype, v));
    }
    let leaf = |n: &Node| match n.payload {
        Payload::Leaf(l) => elements(l),
        _ => None,
    };
    if let Some(tensor) = egraph[id].nodes.iter().find_map(leaf) {
        return Some(Operand::Tensor(tensor));
    }
    let graph = Graph::new(egraph.analysis.program.clone());
    let mut constants = ConstantGraph { egraph, elements, graph, values: FxHashMap::default() };
    let value = constants.class(id)?;
    constant_value(egraph.analysis.folder, &constants.graph, value).map(|t| Operand::Tensor(Arc::new(t)))
}

/// A graph of constant classes.
struct ConstantGraph<'a> {
    egraph: &'a EGraph,
    elements: Elements<'a>,
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
            Payload::Leaf(l) => Some(vec![self.graph.constant((self.elements)(l)?)]),
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
