//! Element types of tensors, and the kinds of values in scalar terms.
//!
//! In: names, and numbers in f64. Out: sizes, ranges, compute types, rounding. Invariant: this is
//! the one list of element types; every other table goes by it.

mod float8;

use std::fmt;

pub use float8::{F8E4M3, F8E5M2};
use serde::{Deserialize, Serialize};

/// Element type of a tensor.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum DType {
    /// IEEE binary64.
    F64,
    /// IEEE binary32.
    F32,
    /// IEEE binary16.
    F16,
    /// bfloat16: the upper half of a binary32.
    BF16,
    /// 8 bits, 4 of exponent and 3 of fraction, without infinities; up to 448. Stored only.
    F8E4M3,
    /// 8 bits, 5 of exponent and 2 of fraction; up to 57344. Stored only.
    F8E5M2,
    /// Signed 64-bit integer.
    I64,
    /// Signed 32-bit integer.
    I32,
    /// Signed 8-bit integer.
    I8,
    /// Unsigned 8-bit integer.
    U8,
    /// One byte, 0 or 1.
    Bool,
}

/// The kind of a scalar value, independent of its width.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum Kind {
    /// A floating-point or integer number.
    Number,
    /// A boolean.
    Bool,
}

impl DType {
    /// All element types, in the order shown to users.
    pub const ALL: [DType; 11] = [
        DType::F64,
        DType::F32,
        DType::F16,
        DType::BF16,
        DType::F8E4M3,
        DType::F8E5M2,
        DType::I64,
        DType::I32,
        DType::I8,
        DType::U8,
        DType::Bool,
    ];

    /// The name in a `.hyp` file.
    pub fn name(self) -> &'static str {
        match self {
            DType::F64 => "f64",
            DType::F32 => "f32",
            DType::F16 => "f16",
            DType::BF16 => "bf16",
            DType::F8E4M3 => "f8e4m3",
            DType::F8E5M2 => "f8e5m2",
            DType::I64 => "i64",
            DType::I32 => "i32",
            DType::I8 => "i8",
            DType::U8 => "u8",
            DType::Bool => "bool",
        }
    }

    /// The element type of that name.
    pub fn from_name(name: &str) -> Option<DType> {
        DType::ALL.into_iter().find(|d| d.name() == name)
    }

    /// The element type that other languages know by that name: `float32`, `half`, `double`.
    pub fn known_elsewhere_as(name: &str) -> Option<DType> {
        Some(match name.to_ascii_lowercase().as_str() {
            "float" | "float32" | "fp32" | "single" => DType::F32,
            "double" | "float64" | "fp64" => DType::F64,
            "half" | "float16" | "fp16" => DType::F16,
            "bfloat16" | "bfloat" => DType::BF16,
            "fp8" | "f8" | "float8" | "f8e4m3fn" | "e4m3" | "e4m3fn" | "float8_e4m3fn" | "float8e4m3fn" => {
                DType::F8E4M3
            }
            "e5m2" | "float8_e5m2" | "float8e5m2" => DType::F8E5M2,
            "long" | "int64" => DType::I64,
            "int" | "int32" => DType::I32,
            "int8" => DType::I8,
            "byte" | "uint8" => DType::U8,
            "boolean" => DType::Bool,
            _ => return None,
        })
    }

    /// Size of one element in bytes.
    pub fn size(self) -> usize {
        match self {
            DType::F64 | DType::I64 => 8,
            DType::F32 | DType::I32 => 4,
            DType::F16 | DType::BF16 => 2,
            DType::F8E4M3 | DType::F8E5M2 | DType::I8 | DType::U8 | DType::Bool => 1,
        }
    }

    /// True for the floating-point types, those that are [stored only](DType::only_stored) too.
    pub fn is_float(self) -> bool {
        self.computes_in_floats() || self.only_stored()
    }

    /// True for f64, f32, f16 and bf16: what `float` means in a `.hyp` file.
    pub fn computes_in_floats(self) -> bool {
        matches!(self, DType::F64 | DType::F32 | DType::F16 | DType::BF16)
    }

    /// True for f8e4m3 and f8e5m2: numbers in memory, moved, cast, and multiplied in wider sums.
    /// No function takes them and no sum is rounded to them after each step.
    pub fn only_stored(self) -> bool {
        matches!(self, DType::F8E4M3 | DType::F8E5M2)
    }

    /// True for the integer types; `bool` is not one of them.
    pub fn is_int(self) -> bool {
        matches!(self, DType::I64 | DType::I32 | DType::I8 | DType::U8)
    }

    /// True for i8 and u8.
    pub fn is_byte(self) -> bool {
        matches!(self, DType::I8 | DType::U8)
    }

    /// The type in which the products of a sum are added up: f64 for f64, f32 for the other floats,
    /// i32 for integers of 8 bits, else the type itself.
    pub fn accumulator(self) -> DType {
        match self {
            d if d.is_float() => d.compute(),
            d if d.is_byte() => DType::I32,
            d => d,
        }
    }

    /// The kind of a scalar of this type.
    pub fn kind(self) -> Kind {
        if self == DType::Bool { Kind::Bool } else { Kind::Number }
    }

    /// The type in which kernels compute with elements of this type: f64 for f64, f32 for the other
    /// floats, i64 for integers, bool for bool.
    pub fn compute(self) -> DType {
        match self {
            DType::F64 => DType::F64,
            DType::F32 | DType::F16 | DType::BF16 | DType::F8E4M3 | DType::F8E5M2 => DType::F32,
            DType::I64 | DType::I32 | DType::I8 | DType::U8 => DType::I64,
            DType::Bool => DType::Bool,
        }
    }

    /// `value` rounded once to this type (ties to even), then widened to f64. Integers truncate
    /// toward zero and saturate; bool is `value != 0`.
    #[inline]
    pub fn round(self, value: f64) -> f64 {
        match self {
            DType::F64 => value,
            DType::F32 => value as f32 as f64,
            DType::F16 => to_f16(value).to_f64(),
            DType::BF16 => to_bf16(value).to_f64(),
            DType::F8E4M3 => to_f8e4m3(value).to_f64(),
            DType::F8E5M2 => to_f8e5m2(value).to_f64(),
            DType::I64 => value as i64 as f64,
            DType::I32 => value as i32 as f64,
            DType::I8 => value as i8 as f64,
            DType::U8 => value as u8 as f64,
            DType::Bool => (value != 0.0) as u8 as f64,
        }
    }

    /// The largest finite value of a float type; 0 for other types.
    pub fn largest(self) -> f64 {
        match self {
            DType::F64 => f64::MAX,
            DType::F32 => f32::MAX as f64,
            DType::F16 => 65_504.0,
            DType::BF16 => 2f64.powi(127) * (2.0 - 2f64.powi(-7)),
            DType::F8E4M3 => 448.0,
            DType::F8E5M2 => 57_344.0,
            _ => 0.0,
        }
    }

    /// Machine epsilon: the distance from 1.0 to the next larger value; 0 for types that are not
    /// floats. Tolerances are derived from it.
    pub fn epsilon(self) -> f64 {
        match self {
            DType::F64 => f64::EPSILON,
            DType::F32 => f32::EPSILON as f64,
            DType::F16 => 2f64.powi(-10),
            DType::BF16 => 2f64.powi(-7),
            DType::F8E4M3 => 2f64.powi(-3),
            DType::F8E5M2 => 2f64.powi(-2),
            _ => 0.0,
        }
    }
}

/// `value` rounded once to f16. (`f16::from_f64` converts through f32, or drops low bits, and so
/// misrounds values next to the midpoint of two neighbours.)
pub fn to_f16(value: f64) -> half::f16 {
    half::f16::from_f32(to_odd(value))
}

/// `value` rounded once to bf16.
pub fn to_bf16(value: f64) -> half::bf16 {
    half::bf16::from_f32(to_odd(value))
}

/// `value` rounded once to f8e4m3.
pub fn to_f8e4m3(value: f64) -> F8E4M3 {
    F8E4M3::from_f32(to_odd(value))
}

/// `value` rounded once to f8e5m2.
pub fn to_f8e5m2(value: f64) -> F8E5M2 {
    F8E5M2::from_f32(to_odd(value))
}

/// Rounds to odd: `value` itself if f32 holds it, else the neighbouring f32 whose last bit is 1.
/// Rounding that further equals rounding `value` itself, because f32 has more than two bits more
/// than the narrower types.
fn to_odd(value: f64) -> f32 {
    let near = value as f32;
    let wide = near as f64;
    if wide == value || value.is_nan() || near.to_bits() & 1 == 1 {
        near
    } else if wide < value {
        near.next_up()
    } else {
        near.next_down()
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn narrow_types_round_once() {
        let little = 2f64.powi(-40);
        for dtype in DType::ALL.into_iter().filter(|d| d.is_float() && *d != DType::F64) {
            let eps = dtype.epsilon();
            let middle = 1.0 + eps / 2.0;
            assert_eq!(dtype.round(middle), 1.0);
            assert_eq!(dtype.round(middle + little), 1.0 + eps);
            assert_eq!(dtype.round(-middle - little), -1.0 - eps);
            assert_eq!(dtype.round(1.0 + 1.5 * eps), 1.0 + 2.0 * eps);
            assert_eq!(dtype.round(1.0 + 1.5 * eps - little), 1.0 + eps);
        }
        for dtype in [DType::F16, DType::BF16, DType::F8E4M3, DType::F8E5M2] {
            assert_eq!(dtype.round(dtype.largest()), dtype.largest());
            assert!(dtype.round(f64::NAN).is_nan() && dtype.round(-0.0).is_sign_negative());
            if dtype == DType::F8E4M3 {
                assert!(dtype.round(f64::MAX).is_nan() && dtype.round(f64::NEG_INFINITY).is_nan());
                continue;
            }
            assert_eq!(dtype.round(f64::MAX), f64::INFINITY);
            assert_eq!(dtype.round(f64::NEG_INFINITY), f64::NEG_INFINITY);
            assert_eq!(dtype.round(5e-324), 0.0);
        }
        // The midpoint of 0 and the smallest f16.
        assert_eq!(DType::F16.round(2f64.powi(-25)), 0.0);
        assert_eq!(DType::F16.round(2f64.powi(-25) * 1.000_000_1), 2f64.powi(-24));
    }
}
