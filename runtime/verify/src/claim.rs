//! What a rule claims, and the class of what was measured.
//!
//! In: a rule and an element type, or a distance of both sides. Out: a class. Invariant: one place
//! says which of several claims counts.

use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::{Claim, Class, Rule};

/// What a rule claims for an element type: `rounds` by default.
pub(super) fn claim(rule: &Rule, dtype: DType) -> Class {
    claim_for(&rule.claims, dtype)
}

/// The claim among these that counts for an element type.
pub(super) fn claim_for(claims: &[Claim], dtype: DType) -> Class {
    let named = claims.iter().find(|c| c.dtypes.contains(&dtype));
    let any = || claims.iter().find(|c| c.dtypes.is_empty());
    named.or_else(any).map_or(Class::Rounds, |c| c.class)
}

/// The class of sides that are so far apart, as a part of 1 and of the value.
pub(super) fn approx_of(apart: f64) -> Class {
    // Two digits, rounded up.
    let step = 10f64.powf(apart.max(1e-300).log10().floor() - 1.0);
    let part = if apart > 0.0 { (apart / step).ceil() * step } else { 0.0 };
    // The product of both has more digits.
    let part = format!("{part:.1e}").parse().unwrap_or(part);
    Class::Approx { rel: part, abs: part }
}
