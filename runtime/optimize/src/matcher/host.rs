//! What a pattern is matched against.
//!
//! In: a value, by its number. Out: the nodes that it may be, their operands and attributes, its
//! type and users. Holds always: the answers are about one state of the host; two numbers stand for
//! one value if [`Host::find`] gives the same for both. The matcher is compiled for each host
//! apart, so that the e-graph's pays nothing for the others.

use std::sync::Arc;

use egg::Id;
use hypatia_dsl::ir::{AttrValue, OpId, Program};
use hypatia_dsl::typing::{Facts, TensorType};

use super::prepare::Demand;
use super::{MatchFacts, Slot, View};
use crate::analysis::Sort;
use crate::candidate::Candidate;
use crate::language::{AttrsId, Discriminant, Node};

/// An e-graph, or an application in a graph with its term.
pub trait Host {
    /// The program whose ops and scalars the nodes name.
    fn program(&self) -> &Arc<Program>;
    /// The one number of a value.
    fn find(&self, value: Id) -> Id;
    /// The nodes that a value may be: several in an e-graph, one elsewhere.
    fn nodes(&self, value: Id) -> &[Node];
    /// Those of them that are looked up by that.
    fn holding(&self, value: Id, wanted: Discriminant) -> impl Iterator<Item = &Node> {
        self.nodes(value).iter().filter(move |n| n.payload.discriminant() == wanted)
    }
    /// False if a value certainly does not hold a pattern that demands that.
    fn may_hold(&self, _value: Id, _demand: &Demand) -> bool {
        true
    }
    /// The attributes of that id.
    fn attrs(&self, attrs: AttrsId) -> &[AttrValue];
    /// Whether that operand of an op is a term.
    fn takes_term(&self, op: OpId, operand: usize) -> bool;
    /// The type of a tensor.
    fn type_of(&self, value: Id) -> Option<&TensorType>;
    /// The number that all elements are.
    fn number(&self, value: Id) -> Option<f64>;
    /// Whether it is the operand that is not there.
    fn is_absent(&self, value: Id) -> bool;
    /// Whether it can be computed when the plan is made.
    fn is_constant(&self, value: Id) -> bool;
    /// Values that have it as an operand.
    fn users(&self, value: Id) -> Vec<Id>;
    /// How many nodes have it as an operand.
    fn use_count(&self, value: Id) -> usize;
    /// All values that hold such nodes; all values where `None`.
    fn everywhere(&self, heads: Option<&[Discriminant]>) -> Vec<Id>;
    /// Facts of what a match binds.
    fn facts<'a>(&'a self, slots: &'a [Slot]) -> impl Facts + 'a;
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

    fn may_hold(&self, value: Id, demand: &Demand) -> bool {
        self.may_demand(value, demand)
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

    fn facts<'a>(&'a self, slots: &'a [Slot]) -> impl Facts + 'a {
        MatchFacts { egraph: self, slots, device: None, candidate: self.candidate_of() }
    }

    fn candidate(&self) -> &Candidate {
        self.candidate_of()
    }
}
