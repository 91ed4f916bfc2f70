//! One application in a graph, with its term, as a host of the matcher: does a kernel compute it?
//!
//! In: an op, the types of its operands, its term. Out: a host with one node for each value.
//! Invariant: equal nodes of a term have one id. Terms, and the epilogues of the patterns that they
//! are matched with ([`kernel_rule`]), are inlined and simplified first, so that `gelu_tanh(acc)`
//! and its body are equal.

use std::sync::Arc;

use egg::Id;
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::{
    AExpr, AttrPat, AttrValue, Fact, Head, Kernel, NodePat, OpId, ParamKind, Pat, Program, Rule, Sort, VarId,
};
use hypatia_dsl::scalar::{Literal, Term, TermId, TermNode, expand, prune, simplify};
use hypatia_dsl::shape::Dim;
use hypatia_dsl::typing::{Facts, TensorType, type_fact};

use super::host::Host;
use super::{Discriminant, Node, Payload, Slot};
use crate::analysis::has_several_results;
use crate::candidate::Candidate;
use crate::language::{AttrsId, LeafId};

/// Maximum nesting of functions in an epilogue.
const MAX_DEPTH: usize = 200;

/// An application.
pub struct Applied<'p> {
    program: &'p Arc<Program>,
    nodes: Vec<Node>,
    known: Vec<Known>,
    attrs: Vec<Vec<AttrValue>>,
}

/// Properties of a value.
#[derive(Clone, Default)]
struct Known {
    ty: Option<TensorType>,
    constant: bool,
    number: Option<f64>,
}

impl<'p> Applied<'p> {
    /// Empty: no application yet.
    pub fn new(program: &'p Arc<Program>) -> Applied<'p> {
        Applied { program, nodes: Vec::new(), known: Vec::new(), attrs: Vec::new() }
    }

    fn push(&mut self, node: Node, known: Known) -> Id {
        self.nodes.push(node);
        self.known.push(known);
        Id::from(self.nodes.len() - 1)
    }

    /// The id of a node, which is added if it is new (hash-consing).
    fn share(&mut self, node: Node, number: Option<f64>) -> Id {
        match self.nodes.iter().position(|n| *n == node) {
            Some(at) => Id::from(at),
            None => self.push(node, Known { number, ..Known::default() }),
        }
    }

    /// Adds a tensor; `number` is the value of all its elements, if it is known.
    pub fn tensor(&mut self, ty: TensorType, constant: bool, number: Option<f64>) -> Id {
        let leaf = Node::leaf(Payload::Leaf(LeafId(self.nodes.len() as u32)));
        self.push(leaf, Known { ty: Some(ty), constant, number })
    }

    /// An absent optional operand.
    pub fn absent(&mut self) -> Id {
        self.share(Node::leaf(Payload::Absent), None)
    }

    /// Adds a term that reads these tensors; `None` if it is malformed.
    pub fn term(&mut self, term: &Term, reads: &[Id]) -> Option<Id> {
        let term = normal(self.program, term);
        let mut made: Vec<Id> = Vec::with_capacity(term.nodes.len());
        for node in &term.nodes {
            let at = |id: &TermId| made.get(id.0 as usize).copied();
            let (node, number) = match node {
                TermNode::Acc => (Node::leaf(Payload::Acc), None),
                TermNode::Lit(Literal(v)) => (Node::leaf(Payload::Lit(v.to_bits())), Some(*v)),
                TermNode::In { input, view } => (Node::new(Payload::In(*view), [*reads.get(*input as usize)?]), None),
                TermNode::Cast { to, arg } => (Node::new(Payload::TermCast(*to), [at(arg)?]), None),
                TermNode::Call { scalar, args } => {
                    let args = args.iter().map(at).collect::<Option<Vec<Id>>>()?;
                    (Node::new(Payload::Call(*scalar), args), None)
                }
                TermNode::Param(_) => return None,
            };
            let id = self.share(node, number);
            made.push(id);
        }
        made.get(term.roots.first()?.0 as usize).copied()
    }

    /// Adds an op on these operands, including terms. Returns its results.
    pub fn op(&mut self, op: OpId, attrs: Vec<AttrValue>, operands: &[Id], results: &[TensorType]) -> Vec<Id> {
        self.attrs.push(attrs);
        let payload = Payload::Op(op, AttrsId(self.attrs.len() as u32 - 1));
        let several = has_several_results(self.program.op(op));
        let ty = results.first().filter(|_| !several).cloned();
        let id = self.push(Node::new(payload, operands.iter().copied()), Known { ty, ..Known::default() });
        if !several {
            return vec![id];
        }
        let result = |(i, ty): (usize, &TensorType)| {
            let known = Known { ty: Some(ty.clone()), ..Known::default() };
            self.push(Node::new(Payload::Output(i as u32), [id]), known)
        };
        results.iter().enumerate().map(result).collect()
    }

    fn known(&self, value: Id) -> Option<&Known> {
        self.known.get(usize::from(value))
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

    fn attrs(&self, attrs: AttrsId) -> &[AttrValue] {
        self.attrs.get(attrs.0 as usize).map_or(&[], Vec::as_slice)
    }

    fn takes_term(&self, op: OpId, operand: usize) -> bool {
        self.program.op(op).operands().nth(operand).is_some_and(|(_, p)| p.kind == ParamKind::Term)
    }

    fn type_of(&self, value: Id) -> Option<&TensorType> {
        self.known(value)?.ty.as_ref()
    }

    fn number(&self, value: Id) -> Option<f64> {
        self.known(value)?.number
    }

    fn is_absent(&self, value: Id) -> bool {
        self.nodes(value).iter().any(|n| n.payload == Payload::Absent)
    }

    fn is_constant(&self, value: Id) -> bool {
        self.known(value).is_some_and(|k| k.constant)
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

    fn facts<'a>(&'a self, slots: &'a [Slot]) -> impl Facts + 'a {
        AppliedFacts { host: self, slots }
    }

    fn candidate(&self) -> &Candidate {
        Candidate::none()
    }
}

/// Facts about the bindings of a match.
struct AppliedFacts<'a, 'p> {
    host: &'a Applied<'p>,
    slots: &'a [Slot],
}

impl Facts for AppliedFacts<'_, '_> {
    fn fact(&self, fact: Fact, var: VarId) -> Option<AttrValue> {
        let known = match self.slots.get(var.index())? {
            Slot::Absent if fact == Fact::Present => return Some(AttrValue::Bool(false)),
            Slot::Classes(ids) if fact == Fact::Count => return Some(AttrValue::Dim(Dim::from(ids.len() as i64))),
            Slot::Class(id) => self.host.known(*id)?,
            _ => return None,
        };
        match fact {
            Fact::Present => Some(AttrValue::Bool(true)),
            Fact::Const => Some(AttrValue::Bool(known.constant)),
            Fact::Value => known.number.map(AttrValue::Float),
            _ => type_fact(fact, known.ty.as_ref()?),
        }
    }
}

/// The term inlined and simplified; unchanged if that would be too large.
fn normal(program: &Program, term: &Term) -> Term {
    match expand(program, term) {
        Ok(expanded) => prune(&simplify(program, &expanded)),
        Err(_) => term.clone(),
    }
}

/// A kernel's pattern as a rule that builds nothing, with its epilogue inlined and simplified.
pub fn kernel_rule(program: &Program, kernel: &Kernel) -> Rule {
    let mut pattern = kernel.pattern.clone();
    let mut inner = &mut pattern;
    while let Pat::Bind(_, p) | Pat::Typed(p, _) = inner {
        inner = p;
    }
    if let Pat::Node(NodePat { head: Head::Op(op), args, .. }) = inner {
        for (arg, (_, param)) in args.iter_mut().zip(program.op(*op).operands()) {
            let open = matches!(arg, Pat::Var(v) if kernel.vars.get(v.index()).is_some_and(|v| v.sort == Sort::Term));
            if param.kind == ParamKind::Term && !open {
                let mut reads = Vec::new();
                if let Some(term) = epilogue_term(arg, &mut reads) {
                    *arg = epilogue_pattern(&normal(program, &term), &reads).unwrap_or_else(|| arg.clone());
                }
            }
        }
    }
    Rule::of_pattern(&kernel.name, &kernel.origin, kernel.vars.clone(), pattern)
}

/// The pattern of an epilogue as a term, and the patterns of its reads, in the order in which they
/// are found.
pub fn epilogue_term(pat: &Pat, reads: &mut Vec<Pat>) -> Option<Term> {
    let mut term = Term::empty();
    let root = add_term(pat, reads, &mut term, 0)?;
    term.roots.push(root);
    Some(term)
}

fn add_term(pat: &Pat, reads: &mut Vec<Pat>, term: &mut Term, depth: usize) -> Option<TermId> {
    if depth > MAX_DEPTH {
        return None;
    }
    let node = match pat {
        Pat::Lit { value, near: None } => TermNode::Lit(Literal(*value)),
        Pat::Node(n) => match n.head {
            Head::Acc => TermNode::Acc,
            Head::In(view) => {
                let operand = n.args.first()?;
                let at = reads.iter().position(|p| p == operand).unwrap_or_else(|| {
                    reads.push(operand.clone());
                    reads.len() - 1
                });
                TermNode::In { input: at as u32, view }
            }
            Head::Scalar(scalar) => {
                let args = n.args.iter().map(|p| add_term(p, reads, term, depth + 1));
                TermNode::Call { scalar, args: args.collect::<Option<_>>()? }
            }
            Head::TermCast => {
                let arg = add_term(n.args.first()?, reads, term, depth + 1)?;
                let AttrPat::Is(AExpr::Value(AttrValue::DType(to))) = n.attrs.first()? else { return None };
                TermNode::Cast { to: *to, arg }
            }
            Head::Op(_) | Head::Region(_) => return None,
        },
        _ => return None,
    };
    Some(term.add(node))
}

/// The inverse of `epilogue_term`.
fn epilogue_pattern(term: &Term, reads: &[Pat]) -> Option<Pat> {
    let node = |head: Head, args: Vec<Pat>, to: Option<DType>| {
        let attrs = to.map(|t| AttrPat::Is(AExpr::Value(AttrValue::DType(t)))).into_iter().collect();
        Pat::Node(NodePat { head, args, rest: None, attrs, output: 0 })
    };
    let mut made: Vec<Pat> = Vec::with_capacity(term.nodes.len());
    for t in &term.nodes {
        let at = |id: &TermId| made.get(id.0 as usize).cloned();
        let pat = match t {
            TermNode::Acc => node(Head::Acc, Vec::new(), None),
            TermNode::Lit(Literal(value)) => Pat::Lit { value: *value, near: None },
            TermNode::In { input, view } => node(Head::In(*view), vec![reads.get(*input as usize)?.clone()], None),
            TermNode::Cast { to, arg } => node(Head::TermCast, vec![at(arg)?], Some(*to)),
            TermNode::Call { scalar, args } => {
                node(Head::Scalar(*scalar), args.iter().map(at).collect::<Option<_>>()?, None)
            }
            TermNode::Param(_) => return None,
        };
        made.push(pat);
    }
    made.get(term.roots.first()?.0 as usize).cloned()
}
