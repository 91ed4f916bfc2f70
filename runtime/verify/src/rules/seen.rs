//! What the instances of one element type have shown.
//!
//! In: observations. Out: the class that holds. Invariant: an observation is never taken back, so
//! more instances make the class weaker or leave it.

use hypatia_dsl::ir::Class;

use crate::check::Observation;
use crate::claim::approx_of;

/// Rounding decides about few steps; integers that are farther apart are others.
const MOST_STEPS: u32 = 16;

/// What was observed for one element type.
#[derive(Default)]
pub(super) struct Seen {
    pub(super) bits: bool,
    pub(super) finite_bits: bool,
    pub(super) meaning: bool,
    pub(super) structure: bool,
    pub(super) rounding: bool,
    pub(super) integer: bool,
    /// The largest number of steps between two integers.
    pub(super) steps: u64,
    /// Indices differed at ties.
    pub(super) tied: bool,
    pub(super) broken: bool,
    /// How far apart the sides are beyond `rounds`, as a part of 1 and of the value.
    pub(super) apart: f64,
    /// The number of instances without empty tensors.
    pub(super) full: usize,
}

impl Seen {
    pub(super) fn add(&mut self, o: &Observation) {
        self.bits |= o.bits.is_some();
        self.finite_bits |= o.finite_bits.is_some();
        self.meaning |= o.value.is_some();
        self.structure |= o.structure.is_some();
        self.rounding |= o.rounding.is_some();
        self.integer |= o.integer.is_some();
        self.steps = self.steps.max(o.steps);
        self.tied |= o.tied;
        self.broken |= o.broken.is_some() || o.no_body.is_some();
        self.apart = self.apart.max(o.apart);
    }

    /// The class that holds; none if the rule is false.
    pub(super) fn derived(&self) -> Option<Class> {
        if self.broken {
            None
        } else if !self.bits {
            Some(Class::Exact)
        } else if !self.finite_bits {
            Some(Class::Finite)
        } else if !self.meaning && !self.structure && !self.rounding {
            match u32::try_from(self.steps) {
                _ if !self.integer && self.tied => Some(Class::Ties),
                _ if !self.integer => Some(Class::Rounds),
                Ok(steps) if steps <= MOST_STEPS => Some(Class::Within(steps)),
                _ => None,
            }
        } else if !self.structure && self.apart > 0.0 {
            Some(approx_of(self.apart))
        } else {
            None
        }
    }
}
