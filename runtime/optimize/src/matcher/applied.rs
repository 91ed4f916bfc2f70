//! One application in a graph, with its term, as a host of the matcher: does a kernel compute it?
//!
//! In: an op, its term, and what is known of its operands. Out: a host with one node for each
//! value. Invariant: a term is one value. It is compared with a pattern as a whole, modulo
//! commutativity and association and with defined functions inlined, at a cost near linear in its
//! size: walking would expand shared parts as trees. A view that no known size contradicts is a
//! match, since the planner checks views on the sizes.

use std::sync::Arc;

use egg::Id;
use hypatia_dsl::ir::{AttrValue, Fact, InView, NodePat, OpId, ParamKind, Pat, Program, VarId};
use hypatia_dsl::scalar::{Term, TermPattern, match_modulo_ac};
use hypatia_dsl::shape::Dim;
use hypatia_dsl::typing::{Facts, TensorType, type_fact};
use hypatia_graph::Known;

use super::host::Host;
use super::{Binding, Discriminant, Node, Payload};
use crate::analysis::has_several_results;
use crate::candidate::Candidate;
use crate::language::{AttrsId, LeafId};

/// An application.
pub struct Applied<'p> {
    program: &'p Arc<Program>,
    nodes: Vec<Node>,
    values: Vec<Value>,
    attrs: Vec<Vec<AttrValue>>,
}

/// A value of the application.
enum Value {
    /// A tensor; `None` if nothing is known of it.
    Tensor(Option<Known>),
    Absent,
    /// A term, and the tensors that are its inputs.
    Term(Term, Vec<Id>),
    /// The op, or one of its results.
    Result(Option<TensorType>),
}

impl<'p> Applied<'p> {
    /// Empty: no application yet.
    pub fn new(program: &'p Arc<Program>) -> Applied<'p> {
        Applied { program, nodes: Vec::new(), values: Vec::new(), attrs: Vec::new() }
    }

    fn push(&mut self, node: Node, value: Value) -> Id {
        self.nodes.push(node);
        self.values.push(value);
        Id::from(self.nodes.len() - 1)
    }

    fn leaf(&self) -> Node {
        Node::leaf(Payload::Leaf(LeafId(self.nodes.len() as u32)))
    }

    /// Adds a tensor; `None` if nothing is known of it.
    pub fn tensor(&mut self, known: Option<Known>) -> Id {
        self.push(self.leaf(), Value::Tensor(known))
    }

    /// Adds an absent optional operand.
    pub fn absent(&mut self) -> Id {
        self.push(Node::leaf(Payload::Absent), Value::Absent)
    }

    /// Adds a term whose inputs are these tensors.
    pub fn term(&mut self, term: Term, inputs: Vec<Id>) -> Id {
        self.push(self.leaf(), Value::Term(term, inputs))
    }

    /// Adds an op on these operands, including its term. Returns its results. Their types may be
    /// unknown.
    pub fn op(&mut self, op: OpId, attrs: Vec<AttrValue>, operands: &[Id], results: &[TensorType]) -> Vec<Id> {
        self.attrs.push(attrs);
        let payload = Payload::Op(op, AttrsId(self.attrs.len() as u32 - 1));
        let several = has_several_results(self.program.op(op));
        let ty = results.first().filter(|_| !several).cloned();
        let id = self.push(Node::new(payload, operands.iter().copied()), Value::Result(ty));
        if !several {
            return vec![id];
        }
        let result = |(i, ty): (usize, &TensorType)| {
            self.push(Node::new(Payload::Output(i as u32), [id]), Value::Result(Some(ty.clone())))
        };
        results.iter().enumerate().map(result).collect()
    }

    fn value(&self, id: Id) -> Option<&Value> {
        self.values.get(usize::from(id))
    }
}

impl Host for Applied<'_> {
    fn program(&self) -> &Arc<Program> {
        self.program
    }

    fn find(&self, value: Id) -> Id {
        value
    }

    fn nodes(&self, value: Id) -> &[Node] {
        self.nodes.get(usize::from(value)).map_or(&[], std::slice::from_ref)
    }

    fn is_whole_term(&self, value: Id) -> bool {
        matches!(self.value(value), Some(Value::Term(..)))
    }

    fn compare_term<'r>(&self, pattern: &'r NodePat, term: Id, op: Id) -> Option<Vec<(&'r Pat, Id)>> {
        let Some(Value::Term(term, inputs)) = self.value(term) else { return None };
        let epilogue = TermPattern::closed_node(pattern).ok()?;
        let out = self.type_of(op).map(|t| t.shape.as_slice());
        let fits = |p: u32, t: u32| {
            let have = inputs.get(t as usize).and_then(|id| self.type_of(*id));
            epilogue
                .reads
                .get(p as usize)
                .zip(have)
                .is_some_and(|((_, view), have)| out.is_none_or(|out| may_be_read(*view, &have.shape, out)))
        };
        let chosen = match_modulo_ac(self.program, &epilogue.term, term, &fits)?;
        // What simplification removed from the pattern has no input.
        let read = |((pat, _), input): (&(&'r Pat, InView), &u32)| Some((*pat, *inputs.get(*input as usize)?));
        Some(epilogue.reads.iter().zip(&chosen).filter_map(read).collect())
    }

    fn attrs(&self, attrs: AttrsId) -> &[AttrValue] {
        self.attrs.get(attrs.0 as usize).map_or(&[], Vec::as_slice)
    }

    fn takes_term(&self, op: OpId, operand: usize) -> bool {
        self.program.op(op).operands().nth(operand).is_some_and(|(_, p)| p.kind == ParamKind::Term)
    }

    fn type_of(&self, value: Id) -> Option<&TensorType> {
        match self.value(value)? {
            Value::Tensor(known) => known.as_ref().map(|k| &k.ty),
            Value::Result(ty) => ty.as_ref(),
            Value::Absent | Value::Term(..) => None,
        }
    }

    /// Kernels are chosen by types: no pattern of a kernel is about the value of an operand.
    fn number(&self, _value: Id) -> Option<f64> {
        None
    }

    fn is_absent(&self, value: Id) -> bool {
        matches!(self.value(value), Some(Value::Absent))
    }

    fn is_constant(&self, value: Id) -> bool {
        matches!(self.value(value), Some(Value::Tensor(Some(known))) if known.constant)
    }

    fn users(&self, value: Id) -> Vec<Id> {
        let uses = |(_, n): &(usize, &Node)| n.children.contains(&value);
        self.nodes.iter().enumerate().filter(uses).map(|(i, _)| Id::from(i)).collect()
    }

    fn use_count(&self, value: Id) -> usize {
        self.users(value).len()
    }

    fn everywhere(&self, heads: Option<&[Discriminant]>) -> Vec<Id> {
        let wanted = |n: &Node| heads.is_none_or(|heads| heads.contains(&n.payload.discriminant()));
        self.nodes.iter().enumerate().filter(|(_, n)| wanted(n)).map(|(i, _)| Id::from(i)).collect()
    }

    fn facts<'a>(&'a self, bindings: &'a [Binding]) -> impl Facts + 'a {
        AppliedFacts { host: self, bindings }
    }

    fn candidate(&self) -> &Candidate {
        Candidate::none()
    }
}

/// Facts about the bindings of a match.
struct AppliedFacts<'a, 'p> {
    host: &'a Applied<'p>,
    bindings: &'a [Binding],
}

impl Facts for AppliedFacts<'_, '_> {
    fn fact(&self, fact: Fact, var: VarId) -> Option<AttrValue> {
        let id = match self.bindings.get(var.index())? {
            Binding::Absent if fact == Fact::Present => return Some(AttrValue::Bool(false)),
            Binding::Classes(ids) if fact == Fact::Count => return Some(AttrValue::Dim(Dim::from(ids.len() as i64))),
            Binding::Class(id) => *id,
            _ => return None,
        };
        match (fact, self.host.value(id)?) {
            (Fact::Present, _) => Some(AttrValue::Bool(true)),
            (Fact::Const, Value::Tensor(known)) => known.as_ref().map(|k| AttrValue::Bool(k.constant)),
            _ => type_fact(fact, self.host.type_of(id)?),
        }
    }
}

/// False if an operand of that shape, broadcast to the output, is certainly not read with that
/// view.
pub fn may_be_read(view: InView, shape: &[Dim], out: &[Dim]) -> bool {
    // For an axis of the output, counted from the last: whether the operand is certainly broadcast
    // along it, and whether it certainly is not.
    let axis = |back: usize| {
        let size = |s: &[Dim]| s.len().checked_sub(back + 1).and_then(|i| s[i].as_const());
        let (missing, many) = (shape.len() <= back, size(out).is_some_and(|n| n > 1));
        let repeated = many && (missing || size(shape) == Some(1));
        (repeated, !missing && size(shape).is_some_and(|n| n > 1))
    };
    let mut lead = (1..out.len()).map(axis);
    match view {
        InView::Broadcast => true,
        InView::Full => !(0..out.len()).any(|back| axis(back).0),
        InView::Row => !axis(0).0 && !lead.any(|(_, varies)| varies),
        InView::Col => !axis(0).1 && !lead.any(|(repeated, _)| repeated),
    }
}
