//! Products of integers, which wrap in their own type.

use std::ops::Range;

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
    /// The sum, modulo the type's range.
    fn plus(self, other: Self) -> Self {
        Self::narrow(self.wide().wrapping_add(other.wide()))
    }
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

/// Integers as a matrix of rows of that length.
pub fn by_rows(values: &[i32], length: usize) -> Matrix<'_> {
    Matrix { bytes: bytemuck::cast_slice(values), dtype: DType::I32, offset: 0, row: length as isize, column: 1 }
}

/// Rows and columns of a matrix of bytes in i32, row by row.
pub fn widened(from: Matrix<'_>, (rows, columns): (Range<usize>, Range<usize>)) -> Result<Vec<i32>> {
    if !from.fits(rows.end, columns.end) {
        return Err(Error::Internal(format!("a matrix of {}x{} reaches beyond its buffer", rows.end, columns.end)));
    }
    let signed = from.dtype == DType::I8;
    let places = rows.flat_map(|i| columns.clone().map(move |j| (i as isize, j as isize)));
    let element = |(i, j): (isize, isize)| {
        let byte = from.bytes[(from.offset + i * from.row + j * from.column) as usize];
        if signed { i32::from(byte as i8) } else { i32::from(byte) }
    };
    Ok(places.map(element).collect())
}

/// The sum of row `first` of `a b`, from the sums of the rows of `b`.
pub fn row_sum<T: Integer>(
    dtype: DType,
    (first, k, n): (usize, usize, usize),
    a: Matrix<'_>,
    b: Matrix<'_>,
) -> Result<T> {
    if !b.fits(k, n) {
        return Err(Error::Internal(format!("a matrix of {k}x{n} reaches beyond its buffer")));
    }
    let y: &[T] = bytemuck::cast_slice(b.bytes);
    let element = |l: usize, j: usize| y[(b.offset + l as isize * b.row + j as isize * b.column) as usize];
    let sums: Vec<T> = (0..k).map(|l| (0..n).fold(T::narrow(0), |sum, j| sum.plus(element(l, j)))).collect();
    let sums = Matrix { bytes: bytemuck::cast_slice(&sums), dtype: b.dtype, offset: 0, row: 1, column: 1 };
    let mut out = [T::narrow(0)];
    multiply(dtype, (first, k, 1), a, sums, &mut out)?;
    Ok(out[0])
}
