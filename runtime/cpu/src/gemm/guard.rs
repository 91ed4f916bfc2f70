//! Guarded products: each tile is held against its checksums, and computed again where they differ.
//!
//! In: a tile, and what may disturb it in tests. Out: accumulators that are right, and a
//! [`Mismatch`] for each tile that was not. Invariant: a clean run reports nothing. Checksums only
//! raise a suspicion. The kernel gives the same bits each time, so other bits the second time prove
//! that one of both was disturbed. The same bits are wrong only if an element is further from its
//! sum in f64 than any order of rounding can take it; then the kernel is, and plain f64 sums take
//! its place.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError, RwLock};

use hypatia_dsl::dtype::DType;

use super::checksum::{Summed, Sums, Suspect};
use super::int::{self, Integer};
use super::pack::Matrix;
use super::{Target, Tile};
use crate::memory::Bytes;
use crate::threads::Address;
use hypatia_tensor::error::Result;

/// A tile whose accumulators were wrong. They were computed again, and the results are right.
#[derive(Clone, Debug, PartialEq)]
pub struct Mismatch {
    /// The step of the plan.
    pub step: usize,
    /// The element of the step's product that was wrong first.
    pub element: usize,
    /// What it was.
    pub got: f64,
    /// What it should have been.
    pub want: f64,
    /// What was wrong.
    pub cause: Cause,
}

/// Why accumulators are wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The same work gave another result the second time: memory or the processor failed.
    Transient,
    /// The kernel gave the same wrong result again.
    Kernel,
}

/// What tests do to accumulators before they are checked.
#[derive(Debug)]
pub enum Fault {
    /// Inverts a bit of one element, once.
    Flip {
        /// The step of the plan.
        step: usize,
        /// The element of its product.
        element: usize,
        /// The bit, from the lowest.
        bit: u32,
        /// Whether that was done.
        done: AtomicBool,
    },
    /// Doubles elements whenever they are computed, as a wrong kernel might.
    Kernel {
        /// The step of the plan.
        step: usize,
        /// One element in this many.
        one_in: usize,
    },
}

/// What the checks of a run have found, and the faults that a test puts into the run.
#[derive(Default)]
pub struct Checks {
    /// What was found since it was last asked for.
    pub found: Mutex<Vec<Mismatch>>,
    /// What disturbs the run, in tests.
    pub faults: RwLock<Vec<Fault>>,
}

impl Checks {
    /// Lets the faults of a test act on the result of a step that is no product.
    pub fn disturb_result(&self, step: usize, dtype: DType, out: &mut [u8]) {
        if dtype == DType::F32 {
            self.disturb(step, 0, bytemuck::cast_slice_mut::<u8, f32>(out), |v| v * 2.0);
        }
    }

    /// Lets the faults of a test act on elements of a step's result, from `first` on.
    fn disturb<T: bytemuck::Pod>(&self, of: usize, first: usize, values: &mut [T], double: impl Fn(T) -> T) {
        for fault in self.faults.read().unwrap_or_else(PoisonError::into_inner).iter() {
            match fault {
                Fault::Flip { step, element, bit, done } if *step == of => {
                    let Some(value) = element.checked_sub(first).and_then(|at| values.get_mut(at)) else { continue };
                    if !done.swap(true, Ordering::Relaxed) {
                        bytemuck::bytes_of_mut(value)[*bit as usize / 8] ^= 1 << (bit % 8);
                    }
                }
                Fault::Kernel { step, one_in } if *step == of => {
                    let chosen = values.iter_mut().enumerate().filter(|(i, _)| (first + i).is_multiple_of(*one_in));
                    chosen.for_each(|(_, v)| *v = double(*v));
                }
                _ => {}
            }
        }
    }
}

/// The checks of one step's product.
#[derive(Clone, Copy)]
pub struct Guard<'a> {
    /// The step of the plan.
    pub step: usize,
    /// Those of the run.
    pub checks: &'a Checks,
    /// True once the kernel was found to be wrong.
    pub wrong: &'a AtomicBool,
}

/// Where a tile lies in the product of its step.
#[derive(Clone, Copy)]
pub struct Place {
    /// The element at which it begins.
    pub first: usize,
    /// The distance of its rows.
    pub row: usize,
}

impl Guard<'_> {
    fn report(&self, place: Place, (row, column): (usize, usize), [got, want]: [f64; 2], cause: Cause) {
        let element = place.first + row * place.row + column;
        let mismatch = Mismatch { step: self.step, element, got, want, cause };
        self.checks.found.lock().unwrap_or_else(PoisonError::into_inner).push(mismatch);
    }
}

/// Multiplies a tile, and checks it.
///
/// # Safety
/// As of [`Tile::multiply`].
pub(super) unsafe fn multiply<T: Summed>(
    tile: &Tile<'_, T>,
    to: Target,
    [a, b]: [&mut Bytes; 2],
    (guard, place): (Guard<'_>, Place),
) -> Result<()> {
    let (height, width, panel) = (tile.rows.len(), tile.columns.len(), tile.kernel.panel);
    if guard.wrong.load(Ordering::Relaxed) {
        // SAFETY: the caller's promise.
        return unsafe { Exact::of(tile, to, [a, b]) }.map(|exact| unsafe { exact.store::<T>(to) });
    }
    let mut sums = Sums::<T>::default();
    let disturb = |to: Target| {
        for row in 0..height {
            // SAFETY: a row of the tile, which the caller promises.
            let values = unsafe { row_of::<T>(to, row, width) };
            guard.checks.disturb(guard.step, place.first + row * place.row, values, |v| T::narrow(v.wide() * 2.0));
        }
    };
    // SAFETY: the caller's promise.
    let suspects = unsafe {
        tile.multiply(to, [&mut *a, &mut *b], Some(&mut sums))?;
        disturb(to);
        sums.suspects(to, width, panel)
    };
    if suspects.is_empty() {
        return Ok(());
    }
    let mut again = vec![T::ZERO; height * width];
    let target = Target { base: Address(again.as_mut_ptr().cast()), row: width };
    // SAFETY: the memory is as large as the tile.
    unsafe { tile.multiply(target, [&mut *a, &mut *b], None)? };
    disturb(target);
    let mut changed = None;
    for row in 0..height {
        // SAFETY: a row of the tile, which the caller promises.
        let values = unsafe { row_of::<T>(to, row, width) };
        let second = &again[row * width..][..width];
        let differs = values.iter().zip(second).position(|(x, y)| !x.same_bits(*y));
        changed = changed.or(differs.map(|column| ((row, column), [values[column].wide(), second[column].wide()])));
        values.copy_from_slice(second);
    }
    if let Some((at, values)) = changed {
        guard.report(place, at, values, Cause::Transient);
        // SAFETY: the caller's promise.
        if unsafe { sums.suspects(to, width, panel) }.is_empty() {
            return Ok(());
        }
    }
    // SAFETY: the caller's promise.
    let exact = unsafe { Exact::of(tile, to, [a, b])? };
    if let Some((at, values)) = exact.contradicts(&again, &suspects) {
        // Other threads find the same.
        if !guard.wrong.swap(true, Ordering::Relaxed) {
            guard.report(place, at, values, Cause::Kernel);
        }
        // SAFETY: the caller's promise.
        unsafe { exact.store::<T>(to) };
    }
    Ok(())
}

/// A row of a tile.
///
/// # Safety
/// It can be read and written, and nothing else uses it meanwhile.
unsafe fn row_of<'a, T>(to: Target, row: usize, width: usize) -> &'a mut [T] {
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts_mut(to.base.0.cast::<T>().add(row * to.row), width) }
}

/// A tile in f64.
struct Exact {
    width: usize,
    /// Terms of each sum.
    k: usize,
    sums: Vec<f64>,
    /// Sums of the magnitudes of the terms.
    magnitudes: Vec<f64>,
}

impl Exact {
    /// Sums the terms one by one.
    ///
    /// # Safety
    /// As of [`Tile::multiply`]; nothing is written.
    unsafe fn of<T: Summed>(tile: &Tile<'_, T>, to: Target, memory: [&mut Bytes; 2]) -> Result<Exact> {
        let (height, width, panel) = (tile.rows.len(), tile.columns.len(), tile.kernel.panel);
        let zeros = || vec![0.0; height * width];
        let mut exact = Exact { width, k: tile.k, sums: zeros(), magnitudes: zeros() };
        tile.blocks(to, memory, |first, block| {
            for row in 0..height {
                for column in 0..block.columns {
                    let at = row * width + first + column;
                    for l in 0..block.k {
                        let b = column / panel * block.b_panel + l * block.b_k + column % panel;
                        // SAFETY: elements of the block's operands.
                        let (x, y) = unsafe { (*block.a.add(row * block.a_row + l), *block.b.add(b)) };
                        let term = x.wide() * y.wide();
                        exact.sums[at] += term;
                        exact.magnitudes[at] += term.abs();
                    }
                }
            }
        })?;
        Ok(exact)
    }

    /// The first of the suspects' elements that no order of rounding explains: row and column, and
    /// what it is and should be.
    fn contradicts<T: Summed>(&self, got: &[T], suspects: &[Suspect]) -> Option<((usize, usize), [f64; 2])> {
        let elements = suspects.iter().flat_map(|s| s.columns.clone().map(|column| (s.row, column)));
        elements.map(|at| (at, at.0 * self.width + at.1)).find_map(|(at, i)| {
            let (got, want) = (got[i].wide(), self.sums[i]);
            // N. J. Higham, "Accuracy and Stability of Numerical Algorithms", section 3.1: k terms
            // differ by no more than gamma_k times their magnitudes.
            let roundings = (self.k as f64 + 2.0) * (T::EPSILON + f64::EPSILON) / 2.0;
            let bound = roundings / (1.0 - roundings).max(0.5) * self.magnitudes[i];
            let overflows = self.magnitudes[i] + bound >= T::LARGEST;
            let explained =
                overflows || !want.is_finite() || (got - want).abs() <= bound + f64::from(f32::MIN_POSITIVE);
            (!explained).then_some((at, [got, want]))
        })
    }

    /// Stores the sums.
    ///
    /// # Safety
    /// As of [`Tile::multiply`].
    unsafe fn store<T: Summed>(&self, to: Target) {
        for (row, sums) in self.sums.chunks(self.width.max(1)).enumerate() {
            // SAFETY: the caller's promise.
            let values = unsafe { row_of::<T>(to, row, self.width) };
            values.iter_mut().zip(sums).for_each(|(v, sum)| *v = T::narrow(*sum));
        }
    }
}

/// Multiplies rows of integers, and checks them: sums of integers are exact, modulo their range.
pub fn multiply_integers<T: Integer + PartialEq>(
    dtype: DType,
    (first, k, n): (usize, usize, usize),
    [a, b]: [Matrix<'_>; 2],
    out: &mut [T],
    (guard, place): (Guard<'_>, Place),
) -> Result<()> {
    let double = |v: T| T::narrow(v.wide().wrapping_mul(2).wrapping_add(1));
    int::multiply(dtype, (first, k, n), a, b, out)?;
    guard.checks.disturb(guard.step, place.first, out, double);
    if int::row_sum::<T>(dtype, (first, k, n), a, b)? == out.iter().fold(T::narrow(0), |sum, v| sum.plus(*v)) {
        return Ok(());
    }
    let before = out.to_vec();
    int::multiply(dtype, (first, k, n), a, b, out)?;
    if let Some(column) = before.iter().zip(&*out).position(|(x, y)| x != y) {
        let values = [before[column], out[column]].map(|v| v.wide() as f64);
        guard.report(place, (0, column), values, Cause::Transient);
    }
    Ok(())
}
