//! The policy for approximate rules: the one place that decides which of them may be used.
//!
//! In: a rule's claim, and the number of mantissa bits that are kept of its result. Out: yes or no.
//! Invariant: unless the user asks for more, the error of a rule disappears in the rounding of the
//! result.

use crate::dtype::DType;
use crate::ir::Class;

/// Which rules of class `approx` may be used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Approx {
    /// None.
    None,
    /// Those whose bound is below half a unit in the last place of the result.
    #[default]
    Rounded,
    /// All.
    All,
}

/// Mantissa bits that a product in TF32 keeps of its operands.
pub const TF32_BITS: i32 = 10;

/// Explicit mantissa bits of a type: the precision that a result keeps.
pub fn mantissa_bits(dtype: DType) -> i32 {
    match dtype {
        DType::F32 => 23,
        DType::F16 => 10,
        DType::BF16 => 7,
        // Integers and booleans hide no error.
        _ => 52,
    }
}

impl Approx {
    /// Whether a rule of that class may be used where `kept` mantissa bits of its result are kept.
    /// The absolute part of its bound is weighed against a result of 1.
    pub fn allows(self, class: Class, kept: i32) -> bool {
        match (class, self) {
            (Class::Exact | Class::Finite | Class::Rounds, _) | (_, Approx::All) => true,
            (Class::Approx { .. }, Approx::None) => false,
            (Class::Approx { rel, abs }, Approx::Rounded) => (rel + abs) * 2f64.powi(kept) < 0.5,
        }
    }

    /// The policy of that name: `all` or `none`.
    pub fn named(name: &str) -> Option<Approx> {
        match name {
            "all" => Some(Approx::All),
            "none" => Some(Approx::None),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_rounding_hides_needs_no_leave() {
        let unit = 2f64.powi(-23);
        let allows = |approx: Approx, units, kept| approx.allows(Class::Approx { rel: units * unit, abs: 0.0 }, kept);
        for kept in [mantissa_bits(DType::F16), mantissa_bits(DType::BF16), TF32_BITS] {
            assert!(allows(Approx::Rounded, 128.0, kept));
        }
        assert!(!allows(Approx::Rounded, 4096.0, mantissa_bits(DType::F16)));
        assert!(allows(Approx::Rounded, 4095.0, mantissa_bits(DType::F16)));
        assert!(!allows(Approx::Rounded, 0.5, mantissa_bits(DType::F32)));
        assert!(allows(Approx::All, 1e9, mantissa_bits(DType::F32)));
        assert!(!allows(Approx::None, 0.0, mantissa_bits(DType::BF16)));
        assert!(Approx::None.allows(Class::Rounds, 23));
        // Both parts count.
        let both = |part| Approx::Rounded.allows(Class::Approx { rel: part, abs: part }, mantissa_bits(DType::F16));
        assert!(both(2f64.powi(-13)) && !both(2f64.powi(-12)));
    }
}
