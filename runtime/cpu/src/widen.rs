//! The types in which floats are computed: f32, and f64 for f64.
//!
//! In: floats of any type in memory. Out: the same as f32 or f64. Invariant: widening is exact.

use hypatia_dsl::dtype::DType;

use super::interp::Dst;

/// A type that any float can be read into.
pub trait Widen: bytemuck::Pod + Send + Sync {
    /// Its element type.
    const DTYPE: DType;
    /// 0
    const ZERO: Self;
    /// NaN
    const NAN: Self;
    /// True unless it is infinite or NaN.
    fn is_finite(self) -> bool;
    /// A destination of [`read`](super::interp::read).
    fn dst(values: &mut [Self]) -> Dst<'_>;
    /// Transposes 8 by 8 elements: row i of `from` begins at `i * from_row`. Returns whether
    /// this was done.
    fn transpose8(_from: &[Self], _from_row: usize, _to: &mut [Self], _to_row: usize) -> bool {
        false
    }
}

impl Widen for f32 {
    const DTYPE: DType = DType::F32;
    const ZERO: f32 = 0.0;
    const NAN: f32 = f32::NAN;
    fn is_finite(self) -> bool {
        f32::is_finite(self)
    }
    fn dst(values: &mut [f32]) -> Dst<'_> {
        Dst::F32(values)
    }
    #[cfg(target_arch = "x86_64")]
    fn transpose8(from: &[f32], from_row: usize, to: &mut [f32], to_row: usize) -> bool {
        crate::simd::transpose8(from, from_row, to, to_row)
    }
}

impl Widen for f64 {
    const DTYPE: DType = DType::F64;
    const ZERO: f64 = 0.0;
    const NAN: f64 = f64::NAN;
    fn is_finite(self) -> bool {
        f64::is_finite(self)
    }
    fn dst(values: &mut [f64]) -> Dst<'_> {
        Dst::F64(values)
    }
}
