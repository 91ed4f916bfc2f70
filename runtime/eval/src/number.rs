//! What the reference computes floats in: f64, or twice its digits.
//!
//! In: f64 numbers and integers. Out: the builtin scalar functions over one kind of number.
//! Invariant: each kind treats NaN, infinities and signs of zeros as f64 does, so that a program
//! means the same in each, up to the digits.

use std::fmt::Debug;
use std::ops::{Add, Div, Mul};

use hypatia_dsl::builtin::BuiltinScalar;
use hypatia_dsl::scalar::float;

/// A kind of real numbers.
pub trait Number:
    Copy + PartialEq + PartialOrd + Debug + Add<Output = Self> + Mul<Output = Self> + Div<Output = Self>
{
    /// The number itself.
    fn of(v: f64) -> Self;
    /// An integer, as precisely as the kind holds it.
    fn of_int(v: i64) -> Self;
    /// The nearest f64.
    fn near(self) -> f64;
    /// The integer towards zero; saturates, and NaN is 0.
    fn to_int(self) -> i64;
    /// A builtin from floats to a float; functions of one number ignore `y`.
    fn builtin(f: BuiltinScalar, x: Self, y: Self) -> Self;

    /// True for NaN.
    fn is_nan(self) -> bool {
        self.near().is_nan()
    }
}

impl Number for f64 {
    fn of(v: f64) -> f64 {
        v
    }

    fn of_int(v: i64) -> f64 {
        v as f64
    }

    fn near(self) -> f64 {
        self
    }

    fn to_int(self) -> i64 {
        self as i64
    }

    fn builtin(f: BuiltinScalar, x: f64, y: f64) -> f64 {
        float(f, x, y)
    }
}
