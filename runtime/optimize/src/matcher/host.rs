//! The interface to what a pattern is matched against.
//!
//! In: the id of a value. Out: its possible nodes, their operands and attributes, its type and
//! users. Invariant: the answers are about one state of the host; two ids are the same value if
//! [`Host::find`] returns the same for both. The matcher is monomorphised for each host, so that
//! the e-graph's matcher pays nothing for the others.

use std::rc::Rc;
use std::sync::Arc;

use egg::Id;
use hypatia_dsl::ir::{AttrValue, NodePat, OpId, Pat, Program};
use hypatia_dsl::typing::{Facts, TensorType};

use super::pattern_index::PatternId;
use super::sums::SumOperands;
use super::{Binding, MatchFacts, View};
use crate::analysis::Sort;
use crate::candidate::Candidate;
use crate::language::{AttrsId, Discriminant, LabelSet, Node};

/// An e-graph, or one application in a graph with its term.
pub trait Host {
    /// The program that defines the ops and scalars of the nodes.
    fn program(&self) -> &Arc<Program>;
    /// The canonical id of a value.
    fn find(&self, value: Id) -> Id;
    /// The nodes of a value: several in an e-graph, otherwise one.
    fn nodes(&self, value: Id) -> &[Node];
    /// Its nodes with that discriminant.
    fn holding(&self, value: Id, wanted: Discriminant) -> impl Iterator<Item = &Node> {
        self.nodes(value).iter().filter(move |n| n.payload.discriminant() == wanted)
    }
    /// False if that pattern of an index certainly does not match at a value.
    fn may_match(&self, _value: Id, _pattern: PatternId) -> bool {
        true
    }
    /// The labels of a value's nodes, if they are known.
    fn labels(&self, _value: Id) -> LabelSet {
        LabelSet::ALL
    }
    /// The operands of a value as a sum whose nodes have that discriminant, which `find` finds.
    /// Every rule on sums asks for them.
    fn sum_operands(&self, _value: Id, _sum: Discriminant, find: impl FnOnce() -> SumOperands) -> Rc<SumOperands> {
        Rc::new(find())
    }
    /// Whether the value is a term that is compared with patterns as a whole, not walked.
    fn is_whole_term(&self, _value: Id) -> bool {
        false
    }
    /// Compares such a term, of the op `op`, with a pattern: the pattern of each tensor that it
    /// reads, and that tensor. `None` if it does not match.
    fn compare_term<'r>(&self, _pattern: &'r NodePat, _term: Id, _op: Id) -> Option<Vec<(&'r Pat, Id)>> {
        None
    }
    /// The attributes of that id.
    fn attrs(&self, attrs: AttrsId) -> &[AttrValue];
    /// Whether that operand of an op is a term.
    fn takes_term(&self, op: OpId, operand: usize) -> bool;
    /// The type of a tensor.
    fn type_of(&self, value: Id) -> Option<&TensorType>;
    /// The number that all elements equal.
    fn number(&self, value: Id) -> Option<f64>;
    /// Whether it is an absent optional operand.
    fn is_absent(&self, value: Id) -> bool;
    /// Whether it is computed when the plan is made.
    fn is_constant(&self, value: Id) -> bool;
    /// Values that have it as an operand.
    fn users(&self, value: Id) -> Vec<Id>;
    /// How many nodes have it as an operand.
    fn use_count(&self, value: Id) -> usize;
    /// All values that hold nodes with these heads; all values if `None`.
    fn everywhere(&self, heads: Option<&[Discriminant]>) -> Vec<Id>;
    /// Facts about the bindings of a match.
    fn facts<'a>(&'a self, bindings: &'a [Binding]) -> impl Facts + 'a;
    /// The candidate.
    fn candidate(&self) -> &Candidate;
}

impl Host for View<'_> {
    fn program(&self) -> &Arc<Program> {
        &self.analysis.program
    }

    fn find(&self, value: Id) -> Id {
        (**self).find(value)
    }

    fn nodes(&self, value: Id) -> &[Node] {
        &self[value].nodes
    }

    fn holding(&self, value: Id, wanted: Discriminant) -> impl Iterator<Item = &Node> {
        self.nodes_holding(value, wanted)
    }

    fn may_match(&self, value: Id, pattern: PatternId) -> bool {
        self.may_be(value, pattern)
    }

    fn labels(&self, value: Id) -> LabelSet {
        self[value].data.labels
    }

    fn sum_operands(&self, value: Id, sum: Discriminant, find: impl FnOnce() -> SumOperands) -> Rc<SumOperands> {
        self.operands_of(value, sum, find)
    }

    fn attrs(&self, attrs: AttrsId) -> &[AttrValue] {
        self.analysis.attrs(attrs)
    }

    fn takes_term(&self, op: OpId, operand: usize) -> bool {
        self.analysis.takes_term(op, operand)
    }

    fn type_of(&self, value: Id) -> Option<&TensorType> {
        self.analysis.data_type(&self[value].data)
    }

    fn number(&self, value: Id) -> Option<f64> {
        self[value].data.value()
    }

    fn is_absent(&self, value: Id) -> bool {
        self[value].data.sort == Sort::Absent
    }

    fn is_constant(&self, value: Id) -> bool {
        self[value].data.constant
    }

    fn users(&self, value: Id) -> Vec<Id> {
        self[value].parents().map(|p| Host::find(self, p)).collect()
    }

    fn use_count(&self, value: Id) -> usize {
        self[value].parents().len()
    }

    fn everywhere(&self, heads: Option<&[Discriminant]>) -> Vec<Id> {
        match heads {
            Some(heads) => heads.iter().filter_map(|h| self.classes_for_op(h)).flatten().collect(),
            None => self.classes().map(|c| c.id).collect(),
        }
    }

    fn facts<'a>(&'a self, bindings: &'a [Binding]) -> impl Facts + 'a {
        MatchFacts { egraph: self, bindings, device: None, candidate: self.candidate_of() }
    }

    fn candidate(&self) -> &Candidate {
        self.candidate_of()
    }
}
