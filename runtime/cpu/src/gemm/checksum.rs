//! Checksums of products: sums of a tile's operands against sums of its accumulators.
//!
//! In: the blocks of a tile as the kernels read them, and the accumulators before the epilogue.
//! Out: whether a row's sum over some columns is further from the operands' than rounding takes it.
//! Invariant: a sum is linear, so `sum_j (a b)_ij = sum_k a_ik (sum_j b_kj)`; the right side costs
//! a small part of the product. A suspicion is no verdict: see [`super::guard`].
//!
//! Source: K.-H. Huang, J. A. Abraham, "Algorithm-Based Fault Tolerance for Matrix Operations",
//! IEEE Transactions on Computers, 1984. Here a checksum covers a few columns only, so that the
//! rounding of many others cannot hide an error.

use std::ops::{AddAssign, Mul};

use super::Target;
use super::kernel::{Block, Float};
use crate::simd::dispatch;

/// Columns that share a checksum, at least.
const GROUP: usize = 128;
/// Residuals beyond this many units are suspicious. A unit is the type's epsilon times the root of
/// the squares of a row, times that of the squares of a group (of sums of a few of its elements).
/// Random operands give residuals of half a unit, whatever the number of terms; where all errors
/// have one sign, as with constant operands, the bound may be exceeded without a fault.
const UNITS: f64 = 8.0;
/// Partial sums that are kept apart, so that they are vectors.
const LANES: usize = 32;

/// The rows of a group of panels in memory.
#[derive(Clone, Copy)]
pub struct Panels {
    /// Rows.
    k: usize,
    /// Distance of rows.
    row: usize,
    /// Panels.
    count: usize,
    /// Distance of panels.
    panel: usize,
    /// Columns of a panel, and of the last one.
    width: [usize; 2],
}

/// The element types of products with checksums. Sums within a block are taken in the type itself:
/// in as many parts as there are lanes, they round less than the product's own chains do.
pub trait Summed: Float + Default + AddAssign + Mul<Output = Self> {
    /// The distance from 1 to the next number.
    const EPSILON: f64;
    /// The largest number.
    const LARGEST: f64;
    /// Exactly the same number.
    fn wide(self) -> f64;
    /// The nearest number.
    fn narrow(v: f64) -> Self;
    /// True if both are stored alike.
    fn same_bits(self, other: Self) -> bool;
    /// Elements of a row of a panel that are added at once.
    const WIDTH: usize;
    /// The sum of each row of a group of panels, and the sum of squares of partial sums. `lanes` is
    /// scratch memory of [`Summed::WIDTH`] elements for each row.
    fn sum_panels(b: &[Self], panels: Panels, lanes: &mut [Self], sums: &mut [Self]) -> f64;
    /// Adds the product of a row with each group of `e` to `sums`, and returns the sum of squares
    /// of the row.
    fn multiply_row(a: &[Self], e: &[Self], sums: &mut [f64]) -> f64;
    /// The sum.
    fn sum(values: &[Self]) -> f64;
}

macro_rules! summed {
    ($t:ty, $width:literal, $sum_panels:ident, $multiply_row:ident, $sum:ident) => {
        dispatch! {
            fn $sum_panels(b: &[$t], panels: Panels, lanes: &mut [$t], sums: &mut [$t]) -> f64 {
                let mut squares = [0.0; $width];
                lanes.fill(0.0);
                for p in 0..panels.count {
                    let width = panels.width[usize::from(p + 1 == panels.count)];
                    let panel = &b[p * panels.panel..];
                    for (t, lanes) in lanes.as_chunks_mut::<$width>().0.iter_mut().enumerate() {
                        let (parts, rest) = panel[t * panels.row..][..width].as_chunks::<$width>();
                        for part in parts {
                            for i in 0..$width {
                                lanes[i] += part[i];
                            }
                        }
                        for (i, v) in rest.iter().enumerate() {
                            lanes[i] += v;
                        }
                    }
                }
                for (lanes, sum) in lanes.as_chunks_mut::<$width>().0.iter_mut().zip(sums) {
                    for i in 0..$width {
                        squares[i] += lanes[i] * lanes[i];
                    }
                    *sum = total(lanes);
                }
                f64::from(total(&mut squares))
            }
        }
        dispatch! {
            fn $multiply_row(a: &[$t], e: &[$t], sums: &mut [f64]) -> f64 {
                for (e, sum) in e.chunks_exact(a.len()).zip(sums) {
                    *sum += f64::from(dot(a, e));
                }
                f64::from(dot(a, a))
            }
        }
        dispatch! {
            fn $sum(values: &[$t]) -> f64 {
                let mut lanes = [0.0; LANES];
                let (parts, rest) = values.as_chunks::<LANES>();
                for part in parts {
                    for i in 0..LANES {
                        lanes[i] += part[i];
                    }
                }
                for (i, v) in rest.iter().enumerate() {
                    lanes[i] += v;
                }
                f64::from(total(&mut lanes))
            }
        }
        impl Summed for $t {
            const EPSILON: f64 = <$t>::EPSILON as f64;
            const LARGEST: f64 = <$t>::MAX as f64;
            fn wide(self) -> f64 {
                f64::from(self)
            }
            fn narrow(v: f64) -> $t {
                v as $t
            }
            fn same_bits(self, other: $t) -> bool {
                self.to_bits() == other.to_bits()
            }
            const WIDTH: usize = $width;
            fn sum_panels(b: &[$t], panels: Panels, lanes: &mut [$t], sums: &mut [$t]) -> f64 {
                $sum_panels(b, panels, lanes, sums)
            }
            fn multiply_row(a: &[$t], e: &[$t], sums: &mut [f64]) -> f64 {
                $multiply_row(a, e, sums)
            }
            fn sum(values: &[$t]) -> f64 {
                $sum(values)
            }
        }
    };
}
summed!(f32, 16, sum_panels_f32, multiply_row_f32, sum_f32);
summed!(f64, 8, sum_panels_f64, multiply_row_f64, sum_f64);

/// The product of two rows.
#[inline(always)]
fn dot<T: Summed>(x: &[T], y: &[T]) -> T {
    let mut lanes = [T::ZERO; LANES];
    let ((x, last_x), (y, last_y)) = (x.as_chunks::<LANES>(), y.as_chunks::<LANES>());
    for (x, y) in x.iter().zip(y) {
        for i in 0..LANES {
            lanes[i] += x[i] * y[i];
        }
    }
    for (i, (x, y)) in last_x.iter().zip(last_y).enumerate() {
        lanes[i] += *x * *y;
    }
    total(&mut lanes)
}

/// The sum of all lanes, by halves: one after the other, each addition would wait for the last.
#[inline(always)]
fn total<T: Copy + AddAssign, const N: usize>(lanes: &mut [T; N]) -> T {
    let mut half = N / 2;
    while half > 0 {
        for i in 0..half {
            lanes[i] += lanes[i + half];
        }
        half /= 2;
    }
    lanes[0]
}

/// The checksums of a tile.
#[derive(Default)]
pub struct Sums<T> {
    /// Groups of columns.
    groups: usize,
    /// For each row and group, what the accumulators must add up to.
    expected: Vec<f64>,
    /// The sum of squares of each row of the left operand.
    rows: Vec<f64>,
    /// The sum of squares of each group of columns of the right operand, or rather of sums of a few
    /// of its elements.
    columns: Vec<f64>,
    /// For each group, the sums of the rows of the right operand, of one block.
    sums: Vec<T>,
    /// Scratch memory.
    lanes: Vec<T>,
}

/// A row of a tile, and the columns that share its checksum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suspect {
    /// The row.
    pub row: usize,
    /// The columns.
    pub columns: std::ops::Range<usize>,
}

impl<T: Summed> Sums<T> {
    /// Begins a tile of these rows and columns.
    pub fn start(&mut self, rows: usize, columns: usize) {
        self.groups = columns.div_ceil(GROUP);
        for (values, len) in
            [(&mut self.expected, rows * self.groups), (&mut self.rows, rows), (&mut self.columns, self.groups)]
        {
            values.clear();
            values.resize(len, 0.0);
        }
    }

    /// Adds a block of the operands. Its first column is column `first` of the tile, and its
    /// squares of rows count if that is 0.
    ///
    /// # Safety
    /// As of [`Kernel::run`](super::kernel::Kernel::run), for all rows and columns of the block.
    pub unsafe fn add(&mut self, rows: usize, first: usize, panel: usize, block: &Block<T>) {
        if block.k == 0 || block.columns == 0 {
            return;
        }
        self.lanes.resize(T::WIDTH * block.k, T::ZERO);
        self.sums.clear();
        self.sums.resize(self.groups * block.k, T::ZERO);
        for range in groups(first, block.columns, panel) {
            let (count, group) = (range.len().div_ceil(panel), group_of(range.start, panel));
            let last = range.len() - (count - 1) * panel;
            let panels = Panels { k: block.k, row: block.b_k, count, panel: block.b_panel, width: [panel, last] };
            let len = (count - 1) * block.b_panel + (block.k - 1) * block.b_k + if count > 1 { panel } else { last };
            // SAFETY: the caller's promise; what lies between rows and panels is of the same
            // buffer.
            let b =
                unsafe { std::slice::from_raw_parts(block.b.add((range.start - first) / panel * block.b_panel), len) };
            let sums = &mut self.sums[group * block.k..][..panels.k];
            self.columns[group] += T::sum_panels(b, panels, &mut self.lanes, sums);
        }
        for row in 0..rows {
            // SAFETY: the caller's promise.
            let a = unsafe { std::slice::from_raw_parts(block.a.add(row * block.a_row), block.k) };
            let expected = &mut self.expected[row * self.groups..][..self.groups];
            let squares = T::multiply_row(a, &self.sums, expected);
            if first == 0 {
                self.rows[row] += squares;
            }
        }
    }

    /// The sums that rounding does not explain. `acc` are the accumulators of the tile.
    ///
    /// # Safety
    /// `acc` can be read for all rows and columns of the tile.
    pub unsafe fn suspects(&self, acc: Target, columns: usize, panel: usize) -> Vec<Suspect> {
        let groups = groups(0, columns, panel);
        let mut residuals = Vec::with_capacity(self.expected.len());
        for (row, squares) in self.rows.iter().enumerate() {
            // SAFETY: the caller's promise.
            let values = unsafe { std::slice::from_raw_parts(acc.base.0.cast::<T>().add(row * acc.row), columns) };
            for (group, range) in groups.iter().enumerate() {
                let got = T::sum(&values[range.clone()]);
                let scale = (squares * self.columns[group]).sqrt() * T::EPSILON;
                residuals.push(residual(got, self.expected[row * self.groups + group], scale));
            }
        }
        let suspicious = residuals.iter().enumerate().filter(|(_, r)| **r > UNITS);
        let named = |at: usize| Suspect { row: at / groups.len(), columns: groups[at % groups.len()].clone() };
        suspicious.map(|(at, _)| named(at)).collect()
    }
}

/// The distance of a sum from what it must be, in units of rounding. What the operands make
/// infinite or NaN cannot be judged.
fn residual(got: f64, expected: f64, scale: f64) -> f64 {
    if !expected.is_finite() || !scale.is_finite() {
        return 0.0;
    }
    match (got - expected).abs() {
        0.0 => 0.0,
        off if off.is_finite() => off / scale,
        _ => f64::INFINITY,
    }
}

/// The group of the panel that begins at a column: panels are not divided.
fn group_of(column: usize, panel: usize) -> usize {
    column / panel * panel / GROUP
}

/// The columns of each group, of those from `first` on: its first panel begins there.
fn groups(first: usize, columns: usize, panel: usize) -> Vec<std::ops::Range<usize>> {
    let mut found: Vec<std::ops::Range<usize>> = Vec::new();
    for column in (first..first + columns).step_by(panel) {
        let end = (first + columns).min(column + panel);
        match found.last_mut().filter(|range| group_of(range.start, panel) == group_of(column, panel)) {
            Some(range) => range.end = end,
            None => found.push(column..end),
        }
    }
    found
}
