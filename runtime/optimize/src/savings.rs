//! What rules say that they save, where the cost model cannot know.
//!
//! In: an application of a rule with `saves`. Out: how much it claims, and the nodes of both sides.
//! Invariant: a claim is known, finite and at least 0; where it is not, the estimate of the cost
//! model counts.

use hypatia_dsl::ir::{AttrValue, Rule, RuleId, SavesUnit};
use hypatia_dsl::typing;
use hypatia_target::device::Device;

use super::analysis::EGraph;
use super::candidate::Candidate;
use super::language::Node;
use super::matcher::{Match, MatchFacts};

/// The value of a symbolic size in a claim, and in costs before the size is known.
pub const ASSUMED_SIZE: i64 = 8;

/// What an application of a rule saves.
#[derive(Clone, Debug)]
pub struct Claimed {
    amount: f64,
    unit: SavesUnit,
}

impl Claimed {
    /// What a rule claims for a match whose guards hold.
    pub fn of(egraph: &EGraph, rule: &Rule, m: &Match) -> Option<Claimed> {
        let saves = rule.saves.as_ref()?;
        let facts = MatchFacts { egraph, bindings: &m.bindings, device: None, candidate: Candidate::none() };
        let amount = match typing::eval(&saves.amount, &m.values, &facts)? {
            AttrValue::Dim(d) => d.eval(&|_| Some(ASSUMED_SIZE))? as f64,
            AttrValue::Float(v) => v,
            _ => return None,
        };
        (amount.is_finite() && amount >= 0.0).then_some(Claimed { amount, unit: saves.unit })
    }

    /// In microseconds: bytes take the time that the device's memory needs for them.
    pub fn micros(&self, device: &Device) -> f64 {
        match self.unit {
            SavesUnit::Micros => self.amount,
            SavesUnit::Bytes => self.amount / device.bandwidth * 1e6,
        }
    }
}

/// An application of a rule with `saves`.
#[derive(Clone, Debug)]
pub struct Saving {
    /// The rule.
    pub rule: RuleId,
    /// What it claims.
    pub claimed: Claimed,
    /// The nodes of the left side.
    pub matched: Vec<Node>,
    /// The nodes of the right side, its root last.
    pub made: Vec<Node>,
}
