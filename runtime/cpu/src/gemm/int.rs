//! Products of integers, which wrap in their own type.

use hypatia_dsl::dtype::DType;

use super::pack::Matrix;
use hypatia_eval::wrap;
use hypatia_tensor::error::{Error, Result};

/// An integer type, and its conversion to and from i64.
pub trait Integer: bytemuck::Pod {
    /// Converts to i64.
    fn wide(self) -> i64;
    /// Truncates to the low bits.
    fn narrow(v: i64) -> Self;
}
macro_rules! integers {
    ($($t:ty),*) => { $(impl Integer for $t {
        fn wide(self) -> i64 { self as i64 }
        fn narrow(v: i64) -> $t { v as $t }
    })* };
}
integers!(i64, i32, i8, u8);

/// Rows of `a b` from `first` on, as many as `out` holds.
pub fn multiply<T: Integer>(
    dtype: DType,
    (first, k, n): (usize, usize, usize),
    a: Matrix<'_>,
    b: Matrix<'_>,
    out: &mut [T],
) -> Result<()> {
    let rows = out.len() / n.max(1);
    if !a.fits(first + rows, k) || !b.fits(k, n) {
        return Err(Error::Internal(format!("a product of {rows}x{k} and {k}x{n} reaches beyond its operands")));
    }
    let (x, y): (&[T], &[T]) = (bytemuck::cast_slice(a.bytes), bytemuck::cast_slice(b.bytes));
    for (i, row) in out.chunks_exact_mut(n.max(1)).enumerate() {
        for (j, o) in row.iter_mut().enumerate() {
            let mut sum = 0i64;
            for l in 0..k {
                let x = x[(a.offset + (first + i) as isize * a.row + l as isize * a.column) as usize].wide();
                let y = y[(b.offset + l as isize * b.row + j as isize * b.column) as usize].wide();
                sum = sum.wrapping_add(x.wrapping_mul(y));
            }
            *o = T::narrow(wrap(dtype, sum));
        }
    }
    Ok(())
}
