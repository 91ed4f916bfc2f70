//! Scores in a graph: functions of products of queries and keys that nothing has to store.
//!
//! In: the graph of an op's body, optimised; values that are scores, or made of them. Out: a term
//! of each, over one product or two. Invariant: a term is what the nodes compute, but for
//! intermediate rounding; nodes that are not stored are listed.

use std::collections::HashMap;

use hypatia_dsl::builtin::BuiltinOp;
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::{AttrValue, InView, OpBody, Program};
use hypatia_dsl::kernel::{RowwiseKernel, derive_rowwise_over};
use hypatia_dsl::scalar::{Literal, Term, TermBuilder, TermId, TermNode};
use hypatia_dsl::typing::TensorType;

use super::{Graph, NodeId, NodeKind, Product, Value};

/// Scalar functions in a row between the products.
const MAX_DEPTH: usize = 32;

/// What a row-wise kernel computes the softmax, or the like, of; and whether rows of NaN are
/// replaced.
type Recognise = fn(&Program, &RowwiseKernel) -> Option<(Term, bool)>;

/// Collects what stands between products and what reads their scores.
pub(super) struct Scores<'a> {
    graph: &'a Graph,
    /// Nodes whose results are not stored.
    region: Vec<NodeId>,
    /// The factors of the products, of which there are at most this many; terms call the first one
    /// `acc`, the other one the second accumulator.
    pub products: Vec<[Value; 2]>,
    most: usize,
    pub terms: TermBuilder,
    /// What the terms read.
    pub reads: Vec<Value>,
    /// The terms of values that were seen before.
    known: HashMap<Value, TermId>,
    /// Whether scalar functions lead from a product to a node.
    leads: HashMap<NodeId, bool>,
}

impl<'a> Scores<'a> {
    /// Scores of this many products.
    pub fn new(graph: &'a Graph, most: usize) -> Scores<'a> {
        Scores {
            graph,
            region: Vec::new(),
            products: Vec::new(),
            most,
            terms: TermBuilder::new(),
            reads: Vec::new(),
            known: HashMap::new(),
            leads: HashMap::new(),
        }
    }

    /// The scores whose rows a node's row-wise kernel combines in a way that `recognise` knows.
    pub fn of_rows(&mut self, made: Value, recognise: Recognise) -> Option<(TermId, bool)> {
        let (graph, soft) = (self.graph, self.graph.node(made.node));
        let NodeKind::Op { op, attrs, .. } = &soft.kind else { return None };
        let types: Vec<Option<TensorType>> = soft.operands.iter().map(|v| v.map(|v| graph.ty(v).clone())).collect();
        let (kernel, space) = derive_rowwise_over(&graph.program, *op, attrs, &types, &soft.results).ok()?;
        let (of_row, safe) = recognise(&graph.program, &kernel)?;
        // A row runs over the keys, which are the last axis.
        let axes = space.tensors.iter().max_by_key(|axes| axes.iter().filter(|parts| !parts.is_empty()).count())?;
        let of_keys =
            |(i, parts): (usize, &Vec<usize>)| (i + 1 == axes.len()) == parts.iter().all(|a| *a >= space.outer);
        if !axes.iter().enumerate().filter(|(_, parts)| !parts.is_empty()).all(of_keys) {
            return None;
        }
        let operands = soft.operands.iter().flatten();
        let leaves = operands.map(|v| self.value(*v, 0)).collect::<Option<Vec<TermId>>>()?;
        Some((self.substituted(&of_row, &leaves), safe))
    }

    /// Says that a value is not stored.
    pub fn hide(&mut self, value: Value) {
        self.region.push(value.node);
    }

    /// Whether a value is not stored, or is a product whose terms are.
    pub fn hides(&self, value: Value) -> bool {
        let of_scores = |factors: &[Value; 2]| product(self.graph, value).is_some_and(|(own, ..)| own == *factors);
        self.region.contains(&value.node) || self.products.iter().any(of_scores)
    }

    /// The place of a product with these factors; `None` if there are too many.
    fn place(&mut self, factors: [Value; 2]) -> Option<usize> {
        let known = self.products.iter().position(|f| *f == factors);
        known.or_else(|| {
            let free = self.products.len() < self.most;
            free.then(|| self.products.push(factors))?;
            Some(self.products.len() - 1)
        })
    }

    /// The term of a value: a function of the product, or something that is read.
    pub fn value(&mut self, value: Value, depth: usize) -> Option<TermId> {
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
            // Terms compute in f32.
            NodeKind::Op { .. } if is_widening(self.graph, value) && self.is_computed_from_product(value, depth) => {
                self.region.push(value.node);
                self.value(*node.operands.iter().flatten().next()?, depth + 1)
            }
            NodeKind::Const(t) if t.len() == 1 && t.dtype().is_float() => {
                let number = t.to_f64().first().copied()?;
                Some(self.terms.add(TermNode::Lit(Literal(number))))
            }
            _ => match product(self.graph, value) {
                Some((factors, beside, term)) => match self.place(factors) {
                    Some(at) => {
                        self.region.push(value.node);
                        let leaves =
                            beside.iter().map(|v| self.value(*v, depth + 1)).collect::<Option<Vec<TermId>>>()?;
                        let term = if at == 0 { term } else { of_second(&term) };
                        Some(self.substituted(&term, &leaves))
                    }
                    None => Some(self.read(value)),
                },
                None => Some(self.read(value)),
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
        let through = matches!(node.kind, NodeKind::Scalar(_)) || is_widening(graph, value);
        let leads = match node.kind {
            _ if through && depth < MAX_DEPTH => {
                node.operands.iter().flatten().any(|v| self.is_computed_from_product(*v, depth + 1))
            }
            NodeKind::Scalar(_) => false,
            _ => product(graph, value).is_some(),
        };
        self.leads.insert(value.node, leads);
        leads
    }

    /// What is read, before it is converted to f32: terms compute in f32.
    fn read(&mut self, value: Value) -> TermId {
        let wider = is_widening(self.graph, value) && self.graph.ty(value).dtype == DType::F32;
        let value = match self.graph.node(value.node).operands.first() {
            Some(Some(from)) if wider && self.graph.ty(*from).dtype.size() < DType::F32.size() => *from,
            _ => value,
        };
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

    /// Whether nothing but the results reads what is not stored.
    pub fn is_closed(&self, outputs: &[(String, Value)]) -> bool {
        let inside = |id: NodeId| self.region.contains(&id);
        let own = |i: usize| inside(NodeId(i as u32)) || outputs.iter().any(|(_, v)| v.node.index() == i);
        let mut others = self.graph.nodes.iter().enumerate().filter(|(i, _)| !own(*i));
        !others.any(|(_, n)| n.operands.iter().flatten().any(|v| inside(v.node)))
            && !outputs.iter().any(|(_, v)| inside(v.node))
    }
}

/// A product: its factors, what its epilogue reads, and its epilogue.
pub(super) fn product(graph: &Graph, value: Value) -> Option<([Value; 2], Vec<Value>, Term)> {
    let node = graph.node(value.node);
    let NodeKind::Op { op, term, .. } = &node.kind else { return None };
    let OpBody::Builtin(BuiltinOp::Matmul | BuiltinOp::Gemm) = graph.program.op(*op).body else { return None };
    let mut operands = node.operands.iter().flatten().copied();
    let factors = [operands.next()?, operands.next()?];
    Some((factors, operands.collect(), term.clone().unwrap_or_else(Product::plain)))
}

/// A term whose accumulator is the second one.
fn of_second(term: &Term) -> Term {
    let mut term = term.clone();
    term.nodes.iter_mut().filter(|n| **n == TermNode::Acc).for_each(|n| *n = TermNode::Second);
    term
}

/// Whether a value is another one in another floating-point type.
pub(super) fn is_widening(graph: &Graph, value: Value) -> bool {
    let node = graph.node(value.node);
    let NodeKind::Op { op, .. } = &node.kind else { return false };
    let of = node.operands.iter().flatten().next();
    let floats = graph.ty(value).dtype.is_float() && of.is_some_and(|v| graph.ty(*v).dtype.is_float());
    floats && graph.program.op(*op).body == OpBody::Builtin(BuiltinOp::Cast)
}

/// The value whose last two axes a value has in the other order.
pub(super) fn untransposed(graph: &Graph, value: Value) -> Option<Value> {
    let node = graph.node(value.node);
    let NodeKind::Op { op, attrs, .. } = &node.kind else { return None };
    let [AttrValue::List(perm)] = attrs.as_slice() else { return None };
    let rank = perm.len();
    let mut swapped: Vec<usize> = (0..rank).collect();
    swapped.swap(rank.checked_sub(1)?, rank.checked_sub(2)?);
    let is =
        |(axis, wanted): (&AttrValue, usize)| matches!(axis, AttrValue::Dim(d) if d.as_const() == Some(wanted as i64));
    let turns = graph.program.op(*op).body == OpBody::Builtin(BuiltinOp::Transpose) && perm.iter().zip(swapped).all(is);
    node.operands.first().copied().flatten().filter(|_| turns)
}
