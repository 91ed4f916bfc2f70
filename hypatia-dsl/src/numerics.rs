//! The rounding contract of a run: which rules may fire, by what they claim of their precision.
//!
//! In: a rule's claim, and the number of mantissa bits that are kept of its result. Out: yes or no.
//! Invariant: this is the one place that decides; unless the user asks for less, the error of a
//! rule disappears in the rounding of the result.

use std::collections::HashSet;

use crate::dtype::DType;
use crate::ir::{Class, Program, Rule};

/// Which classes of rules a run may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Numerics {
    /// `exact` alone: the plan gives bit for bit what the plan without rules gives.
    Exact,
    /// All but `approx`; of these, the rules whose bound is below half a unit in the last place of
    /// the result.
    #[default]
    Rounds,
    /// All.
    Fast,
}

/// Mantissa bits that a product in TF32 keeps of its operands.
pub const TF32_BITS: i32 = 10;

/// Explicit mantissa bits of a type: the precision that a result keeps.
pub fn mantissa_bits(dtype: DType) -> i32 {
    match dtype {
        DType::F32 => 23,
        DType::F16 => 10,
        DType::BF16 => 7,
        DType::F8E4M3 => 3,
        DType::F8E5M2 => 2,
        // Integers and booleans hide no error.
        _ => 52,
    }
}

impl Numerics {
    /// All of them, strictest first.
    pub const ALL: [Numerics; 3] = [Numerics::Exact, Numerics::Rounds, Numerics::Fast];

    /// Whether a rule of that class may be used where `kept` mantissa bits of its result are kept.
    /// The absolute part of its bound is weighed against a result of 1.
    pub fn allows(self, class: Class, kept: i32) -> bool {
        match (class, self) {
            (Class::Exact, _) | (_, Numerics::Fast) => true,
            (_, Numerics::Exact) => false,
            (Class::Finite | Class::Rounds | Class::Within(_) | Class::Ties, Numerics::Rounds) => true,
            (Class::Approx { rel, abs }, Numerics::Rounds) => (rel + abs) * 2f64.powi(kept) < 0.5,
        }
    }

    /// Whether a rule may fire for values of that type. A rule without a claim is one that claims
    /// `rounds`; but an op or a scalar whose body is computed in the type of its result is that
    /// body.
    pub fn allows_rule(self, rule: &Rule, dtype: DType) -> bool {
        let kept = mantissa_bits(dtype);
        if rule.claims.is_empty() {
            let same = rule.derived && dtype.compute() == dtype;
            return self.allows(if same { Class::Exact } else { Class::Rounds }, kept);
        }
        let mut claims = rule.claims.iter().filter(|c| c.dtypes.is_empty() || c.dtypes.contains(&dtype));
        claims.any(|c| self.allows(c.class, kept))
    }

    /// The contract of that name.
    pub fn named(name: &str) -> Option<Numerics> {
        Numerics::ALL.into_iter().find(|n| n.name() == name)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Numerics::Exact => "exact",
            Numerics::Rounds => "rounds",
            Numerics::Fast => "fast",
        }
    }
}

/// Which rules and kernels a run may use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allowed {
    /// By what they claim of their precision.
    pub numerics: Numerics,
    /// Disabled rules, families of rules or rulesets.
    pub disabled: HashSet<String>,
    /// Only kernels that add up in an order that does not depend on how many rows there are.
    pub batch_invariant: bool,
}

impl Allowed {
    /// Whether a rule is disabled.
    pub fn is_off(&self, program: &Program, rule: &Rule) -> bool {
        !self.disabled.is_empty() && self.disabled.iter().any(|name| rule.is_named(program, name))
    }

    /// Whether results must be the bits of the plan without rules.
    pub fn is_exact(&self) -> bool {
        self.numerics == Numerics::Exact
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_rounding_hides_needs_no_leave() {
        let unit = 2f64.powi(-23);
        let allows =
            |numerics: Numerics, units, kept| numerics.allows(Class::Approx { rel: units * unit, abs: 0.0 }, kept);
        for kept in [mantissa_bits(DType::F16), mantissa_bits(DType::BF16), TF32_BITS] {
            assert!(allows(Numerics::Rounds, 128.0, kept));
        }
        assert!(!allows(Numerics::Rounds, 4096.0, mantissa_bits(DType::F16)));
        assert!(allows(Numerics::Rounds, 4095.0, mantissa_bits(DType::F16)));
        assert!(!allows(Numerics::Rounds, 0.5, mantissa_bits(DType::F32)));
        assert!(allows(Numerics::Fast, 1e9, mantissa_bits(DType::F32)));
        assert!(!allows(Numerics::Exact, 0.0, mantissa_bits(DType::BF16)));
        // Both parts count.
        let both = |part| Numerics::Rounds.allows(Class::Approx { rel: part, abs: part }, mantissa_bits(DType::F16));
        assert!(both(2f64.powi(-13)) && !both(2f64.powi(-12)));
    }

    #[test]
    fn exact_allows_nothing_weaker() {
        for class in [Class::Finite, Class::Rounds, Class::Within(1), Class::Ties] {
            assert!(!Numerics::Exact.allows(class, 23) && Numerics::Rounds.allows(class, 23));
        }
        assert!(Numerics::Exact.allows(Class::Exact, 23));
        assert_eq!(Numerics::ALL.map(|n| Numerics::named(n.name())), Numerics::ALL.map(Some));
    }
}
