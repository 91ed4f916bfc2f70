//! A term in which left sides of rules are found.
//!
//! In: a term, what is known of its leaves, and a rule. Out: what the holes of the rule's left side
//! stand for. Invariant: a match computes f32 throughout, its inner nodes are used nowhere else,
//! and all guards are known to hold.

use crate::dtype::DType;
use crate::ir::{AttrValue, Fact, Program, VarId};
use crate::scalar::typed::{LeafType, types};
use crate::scalar::{Term, TermId, TermNode};
use crate::shape::Dim;
use crate::typing::{Bindings, Facts, eval_guard};

use super::rule::TermRule;

/// What is known of the leaves of a term.
pub(super) struct Leaves<'l> {
    pub types: LeafType<'l>,
    /// The number of elements along a row, if it is known.
    pub elements: &'l dyn Fn(&TermNode) -> Option<i64>,
}

/// A term with what rules ask of its nodes.
pub(super) struct Subject<'a> {
    program: &'a Program,
    term: &'a Term,
    types: Vec<Option<DType>>,
    uses: Vec<u32>,
    elements: Vec<Option<i64>>,
}

impl<'a> Subject<'a> {
    /// `None` if the term is ill-typed.
    pub fn of(program: &'a Program, term: &'a Term, number: DType, leaves: &Leaves<'_>) -> Option<Subject<'a>> {
        let types = types(program, term, number, leaves.types).ok()?;
        let mut uses = vec![0u32; term.nodes.len()];
        let args = term.nodes.iter().flat_map(TermNode::args);
        args.chain(&term.roots).for_each(|a| uses[a.0 as usize] += 1);
        let mut elements: Vec<Option<i64>> = Vec::with_capacity(term.nodes.len());
        for node in &term.nodes {
            let of_args = || node.args().iter().map(|a| elements[a.0 as usize]).try_fold(1, |m, n| Some(n?.max(m)));
            elements.push(match node {
                TermNode::Lit(_) => Some(1),
                TermNode::Call { .. } | TermNode::Cast { .. } => of_args(),
                leaf => (leaves.elements)(leaf),
            });
        }
        Some(Subject { program, term, types, uses, elements })
    }

    /// What the holes of a rule's left side stand for, if it matches here and its guards hold.
    pub fn find(&self, rule: &TermRule<'_>, at: TermId) -> Option<Vec<TermId>> {
        // An inner node with other uses is computed in any case.
        let fits = |at: TermId, inner: bool| {
            let i = at.0 as usize;
            self.types[i] == Some(DType::F32) && (!inner || self.uses[i] == 1)
        };
        let bound = rule.left.find(self.program, self.term, at, &fits)?;
        let facts = HoleFacts { subject: self, rule, bound: &bound };
        let holds = |g| eval_guard(g, &Bindings::default(), &facts) == Some(true);
        rule.rule.requires.iter().chain(&rule.rule.prefer).all(holds).then_some(bound)
    }
}

/// Facts of the nodes that a rule's variables are bound to.
struct HoleFacts<'m> {
    subject: &'m Subject<'m>,
    rule: &'m TermRule<'m>,
    bound: &'m [TermId],
}

impl Facts for HoleFacts<'_> {
    fn fact(&self, fact: Fact, var: VarId) -> Option<AttrValue> {
        let hole = self.rule.left.holes.iter().position(|h| *h == Some(var))?;
        let elements = self.subject.elements[self.bound.get(hole)?.0 as usize]?;
        (fact == Fact::Numel).then(|| AttrValue::Dim(Dim::from(elements)))
    }
}
