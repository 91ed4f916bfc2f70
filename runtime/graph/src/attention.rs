//! Attention in a graph: a product, a softmax of its result, and a product with the values.
//!
//! In: the graph of an op's body, optimised. Out: what it multiplies, and the term of its scores;
//! `None` for any other graph. Invariant: nothing but the softmax reads the scores, and nothing but
//! the second product reads the weights, so that neither has to be stored.

use std::collections::HashMap;

use hypatia_dsl::builtin::BuiltinOp;
use hypatia_dsl::ir::{InView, OpBody};
use hypatia_dsl::kernel::attention::softmax_of;
use hypatia_dsl::kernel::derive_rowwise_over;
use hypatia_dsl::scalar::{Literal, Term, TermBuilder, TermId, TermNode, prune};
use hypatia_dsl::typing::TensorType;

use super::{Graph, NodeId, NodeKind, Product, Value};

/// Scalar functions in a row between the products.
const MAX_DEPTH: usize = 32;

/// The parts of an attention.
#[derive(Clone, Debug)]
pub struct Attention {
    /// Queries `[.., m, d]`, keys `[.., d, n]` and values `[.., n, e]`.
    pub factors: [Value; 3],
    /// What the scores' term reads; each broadcasts to `[.., m, n]`.
    pub reads: Vec<Value>,
    /// The score, from the product of a query and a key.
    pub term: Term,
    /// True if rows that the softmax makes NaN are 0.
    pub safe: bool,
}

impl Attention {
    /// The attention that is a graph's only result.
    pub fn of(graph: &Graph) -> Option<Attention> {
        let [(_, out)] = graph.outputs.as_slice() else { return None };
        let ([weights, values], beside, term) = product(graph, *out)?;
        if !beside.is_empty() || term != Product::plain() {
            return None;
        }
        let soft = graph.node(weights.node);
        let NodeKind::Op { op, attrs, .. } = &soft.kind else { return None };
        let types: Vec<Option<TensorType>> = soft.operands.iter().map(|v| v.map(|v| graph.ty(v).clone())).collect();
        let (kernel, space) = derive_rowwise_over(&graph.program, *op, attrs, &types, &soft.results).ok()?;
        let (of_row, safe) = softmax_of(&graph.program, &kernel)?;
        // The softmax runs over the keys, which are the last axis.
        let axes = space.tensors.last()?;
        let of_keys =
            |(i, parts): (usize, &Vec<usize>)| (i + 1 == axes.len()) == parts.iter().all(|a| *a >= space.outer);
        if !axes.iter().enumerate().filter(|(_, parts)| !parts.is_empty()).all(of_keys) {
            return None;
        }
        let operands: Vec<Value> = soft.operands.iter().flatten().copied().collect();
        let mut scores = Scores::new(graph, weights.node);
        let mut leaves: Vec<TermId> = Vec::new();
        for operand in operands {
            let at = scores.value(operand, 0)?;
            leaves.push(at);
        }
        let root = scores.substituted(&of_row, &leaves);
        let [queries, keys] = scores.factors?;
        // Every axis of the scores comes from the product.
        let shape = &soft.results.first()?.shape;
        if graph.ty(keys).shape.last() != shape.last() || !scores.is_closed(*out) {
            return None;
        }
        let term = prune(&scores.terms.finish(vec![root]));
        Some(Attention { factors: [queries, keys, values], reads: scores.reads, term, safe })
    }
}

/// Collects what stands between a product and a softmax.
struct Scores<'a> {
    graph: &'a Graph,
    /// Nodes whose results are not stored.
    region: Vec<NodeId>,
    factors: Option<[Value; 2]>,
    terms: TermBuilder,
    reads: Vec<Value>,
    /// The terms of values that were seen before.
    known: HashMap<Value, TermId>,
    /// Whether scalar functions lead from a product to a node.
    leads: HashMap<NodeId, bool>,
}

impl<'a> Scores<'a> {
    /// Scores whose softmax is that node.
    fn new(graph: &'a Graph, soft: NodeId) -> Scores<'a> {
        Scores {
            graph,
            region: vec![soft],
            factors: None,
            terms: TermBuilder::new(),
            reads: Vec::new(),
            known: HashMap::new(),
            leads: HashMap::new(),
        }
    }

    /// The term of a value: a function of the product, or something that is read.
    fn value(&mut self, value: Value, depth: usize) -> Option<TermId> {
        if let Some(known) = self.known.get(&value) {
            return Some(*known);
        }
        if depth > MAX_DEPTH {
            return None;
        }
        let term = self.term(value, depth)?;
        self.known.insert(value, term);
        Some(term)
    }

    fn term(&mut self, value: Value, depth: usize) -> Option<TermId> {
        let node = self.graph.node(value.node);
        match &node.kind {
            NodeKind::Scalar(scalar) if self.is_computed_from_product(value, depth) => {
                self.region.push(value.node);
                let operands: Vec<Value> = node.operands.iter().flatten().copied().collect();
                let args = operands.iter().map(|v| self.value(*v, depth + 1)).collect::<Option<Vec<TermId>>>()?;
                Some(self.terms.add(TermNode::Call { scalar: *scalar, args: args.as_slice().into() }))
            }
            NodeKind::Const(t) if t.len() == 1 && t.dtype().is_float() => {
                let number = t.to_f64().first().copied()?;
                Some(self.terms.add(TermNode::Lit(Literal(number))))
            }
            _ => match product(self.graph, value) {
                Some((factors, beside, term)) if self.factors.is_none_or(|f| f == factors) => {
                    self.factors = Some(factors);
                    self.region.push(value.node);
                    let leaves: Vec<TermId> = beside.iter().map(|v| self.read(*v)).collect();
                    Some(self.substituted(&term, &leaves))
                }
                _ => Some(self.read(value)),
            },
        }
    }

    /// Whether scalar functions lead from a product to a value.
    fn is_computed_from_product(&mut self, value: Value, depth: usize) -> bool {
        if let Some(known) = self.leads.get(&value.node) {
            return *known;
        }
        let graph = self.graph;
        let node = graph.node(value.node);
        let leads = match node.kind {
            NodeKind::Scalar(_) if depth < MAX_DEPTH => {
                node.operands.iter().flatten().any(|v| self.is_computed_from_product(*v, depth + 1))
            }
            NodeKind::Scalar(_) => false,
            _ => product(graph, value).is_some(),
        };
        self.leads.insert(value.node, leads);
        leads
    }

    fn read(&mut self, value: Value) -> TermId {
        let at = self.reads.iter().position(|v| *v == value).unwrap_or_else(|| {
            self.reads.push(value);
            self.reads.len() - 1
        });
        self.terms.add(TermNode::In { input: at as u32, view: InView::Broadcast })
    }

    /// The term with these leaves in place of its first inputs.
    fn substituted(&mut self, term: &Term, leaves: &[TermId]) -> TermId {
        let mut map: Vec<TermId> = Vec::with_capacity(term.nodes.len());
        for node in &term.nodes {
            map.push(match node {
                TermNode::In { input, .. } if (*input as usize) < leaves.len() => leaves[*input as usize],
                node => self.terms.add(node.map_args(|a| map[a.0 as usize])),
            });
        }
        map[term.root().0 as usize]
    }

    /// Whether nothing outside of the attention reads what is not stored.
    fn is_closed(&self, out: Value) -> bool {
        let inside = |id: NodeId| self.region.contains(&id);
        let own = |i: usize| inside(NodeId(i as u32)) || i == out.node.index();
        let mut others = self.graph.nodes.iter().enumerate().filter(|(i, _)| !own(*i));
        !others.any(|(_, n)| n.operands.iter().flatten().any(|v| inside(v.node)))
            && !self.graph.outputs.iter().any(|(_, v)| inside(v.node))
    }
}

/// A product: its factors, what its epilogue reads, and its epilogue.
fn product(graph: &Graph, value: Value) -> Option<([Value; 2], Vec<Value>, Term)> {
    let node = graph.node(value.node);
    let NodeKind::Op { op, term, .. } = &node.kind else { return None };
    let OpBody::Builtin(BuiltinOp::Matmul | BuiltinOp::Gemm) = graph.program.op(*op).body else { return None };
    let mut operands = node.operands.iter().flatten().copied();
    let factors = [operands.next()?, operands.next()?];
    Some((factors, operands.collect(), term.clone().unwrap_or_else(Product::plain)))
}
