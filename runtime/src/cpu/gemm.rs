//! Matrix products by the `gemm` crate, and their epilogues while the tile is warm.
//!
//! Holds always: operands are read through any strides; f16 and bf16 are widened to f32, in whole
//! buffers so that strides stay as they are; a panel of rows goes through the epilogue before the next
//! one is multiplied.

use hypatia_dsl::dtype::DType;

use super::reference::wrap;
use crate::error::{Error, Result};

/// Bytes of a panel of accumulators: small enough to be in the cache when the epilogue reads it.
pub const PANEL: usize = 1 << 20;
/// Rows of a panel at least: the right operand is packed anew for each panel.
const MIN_ROWS: usize = 192;

/// Rows of a panel for rows of `n` accumulators of that many bytes.
pub fn panel_rows(m: usize, n: usize, size: usize) -> usize {
    (PANEL / (n.max(1) * size)).max(MIN_ROWS).min(m.max(1))
}

/// An operand: where its element (0, 0) is, and its strides.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a, T> {
    /// The buffer.
    pub data: &'a [T],
    /// Element (0, 0).
    pub offset: isize,
    /// Distance of rows.
    pub row: isize,
    /// Distance of columns.
    pub column: isize,
}

impl<T> Matrix<'_, T> {
    /// True if each element of a matrix of that size lies in the buffer.
    fn fits(&self, rows: usize, columns: usize) -> bool {
        if rows == 0 || columns == 0 {
            return true;
        }
        let ends = [(rows - 1) as isize * self.row, (columns - 1) as isize * self.column];
        let low = self.offset + ends.iter().filter(|e| **e < 0).sum::<isize>();
        let high = self.offset + ends.iter().filter(|e| **e > 0).sum::<isize>();
        low >= 0 && (high as usize) < self.data.len()
    }
}

/// Types that the library multiplies.
pub trait Library: bytemuck::Pod {
    /// 0
    const ZERO: Self;
    /// 1
    const ONE: Self;
}
impl Library for f32 {
    const ZERO: f32 = 0.0;
    const ONE: f32 = 1.0;
}
impl Library for f64 {
    const ZERO: f64 = 0.0;
    const ONE: f64 = 1.0;
}

/// `out = a b` for floats; `out` is row-major `[m, n]`.
pub fn multiply<T: Library>(
    (m, k, n): (usize, usize, usize),
    a: Matrix<'_, T>,
    b: Matrix<'_, T>,
    out: &mut [T],
    threads: usize,
) -> Result<()> {
    if !a.fits(m, k) || !b.fits(k, n) || out.len() != m * n {
        return Err(Error::Internal(format!("a product of {m}x{k} and {k}x{n} reaches beyond its operands")));
    }
    if m == 0 || n == 0 {
        return Ok(());
    }
    if k == 0 {
        out.fill(T::ZERO);
        return Ok(());
    }
    let parallelism =
        if threads > 1 && m * n * k > 1 << 18 { gemm::Parallelism::Rayon(threads) } else { gemm::Parallelism::None };
    // SAFETY: `fits` holds for both operands, so every element (i, j) of a and b that the library reads
    // lies in `data`; `out` has exactly m * n elements and is borrowed mutably, so nothing else reads or
    // writes it. T is f32 or f64, which the library multiplies as such.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            out.as_mut_ptr(),
            1,
            n as isize,
            false,
            a.data.as_ptr().offset(a.offset),
            a.column,
            a.row,
            b.data.as_ptr().offset(b.offset),
            b.column,
            b.row,
            T::ZERO,
            T::ONE,
            false,
            false,
            false,
            parallelism,
        );
    }
    Ok(())
}

/// An integer type and its way to and from i64.
pub trait Integer: bytemuck::Pod {
    /// Widens.
    fn wide(self) -> i64;
    /// Takes the low bits.
    fn narrow(v: i64) -> Self;
}
macro_rules! integers {
    ($($t:ty),*) => { $(impl Integer for $t {
        fn wide(self) -> i64 { self as i64 }
        fn narrow(v: i64) -> $t { v as $t }
    })* };
}
integers!(i64, i32, i8, u8);

/// `out = a b` for integers, which wrap.
pub fn multiply_int<T: Integer>(
    dtype: DType,
    (m, k, n): (usize, usize, usize),
    a: Matrix<'_, T>,
    b: Matrix<'_, T>,
    out: &mut [T],
) -> Result<()> {
    if !a.fits(m, k) || !b.fits(k, n) || out.len() != m * n {
        return Err(Error::Internal(format!("a product of {m}x{k} and {k}x{n} reaches beyond its operands")));
    }
    for i in 0..m {
        for j in 0..n {
            let mut sum = 0i64;
            for l in 0..k {
                let x = a.data[(a.offset + i as isize * a.row + l as isize * a.column) as usize].wide();
                let y = b.data[(b.offset + l as isize * b.row + j as isize * b.column) as usize].wide();
                sum = wrap(dtype, sum.wrapping_add(x.wrapping_mul(y)));
            }
            out[i * n + j] = T::narrow(sum);
        }
    }
    Ok(())
}
