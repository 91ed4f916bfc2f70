//! Steps that move elements: copies, concatenation, padding, gathers. Elements are words of 1 to 8
//! bytes.
//!
//! Invariant: properties of a step's views are computed once, when the plan is prepared.

use std::sync::Mutex;

use bytemuck::Pod;
use hypatia_dsl::builtin::{BuiltinScalar, ScatterReduction};
use hypatia_dsl::dtype::{DType, to_bf16, to_f16};
use smallvec::SmallVec;

use super::operand::{Offsets, Operand};
use super::threads::Workers;
use super::widen::Widen;
use hypatia_eval::Val;
use hypatia_eval::scalars::join;
use hypatia_plan::{View, collapse, row_major};
use hypatia_tensor::error::{Error, Result};

/// Work with fewer bytes than this runs on one thread.
const GRAIN: usize = 1 << 15;
/// Columns that are transposed at once.
const TRANSPOSED: usize = 256;

/// Calls a function with the word type for an element size.
macro_rules! by_size {
    ($size:expr, $f:ident, $($arg:expr),*) => {
        match $size {
            1 => $f::<u8>($($arg),*),
            2 => $f::<u16>($($arg),*),
            4 => $f::<u32>($($arg),*),
            _ => $f::<u64>($($arg),*),
        }
    };
}

/// A copy from a window of one buffer to a window of another.
#[derive(Clone, Debug)]
pub struct StridedCopy {
    /// Collapsed sizes.
    shape: SmallVec<[usize; 6]>,
    /// Strides of the source and of the result.
    strides: [SmallVec<[isize; 6]>; 2],
    /// Element 0 of the source and of the result.
    offsets: [isize; 2],
    /// Bytes of an element.
    size: usize,
    /// True if the window is the whole result, in its order.
    whole: bool,
}

impl StridedCopy {
    /// Copies a view to the window that begins at `offset` and has these strides.
    fn new(view: &View, offset: isize, strides: &[isize]) -> StridedCopy {
        let (shape, both) = if view.is_empty() {
            (vec![0], vec![vec![0]; 2])
        } else {
            collapse(&view.shape, &[view.strides.clone(), strides.to_vec()])
        };
        let strides = std::array::from_fn(|i| SmallVec::from_slice(&both[i]));
        let offsets = [view.offset as isize, offset];
        let whole = offset == 0 && strides[1][..] == row_major(&shape)[..];
        StridedCopy { shape: shape.into(), strides, offsets, size: view.dtype.size(), whole }
    }

    /// Copies the elements of a view in row-major order.
    pub fn copy(view: &View) -> StridedCopy {
        StridedCopy::new(view, 0, &row_major(&view.shape))
    }

    /// Concatenates operands along `axis` of a result of `shape`.
    pub fn concat(views: &[View], axis: usize, shape: &[usize]) -> Vec<StridedCopy> {
        let strides = row_major(shape);
        let mut at = 0;
        let window = |v: &View| {
            let w = StridedCopy::new(v, at as isize * strides[axis], &strides);
            at += v.shape[axis];
            w
        };
        views.iter().map(window).collect()
    }

    /// Writes the fill everywhere, then places `x` with `before[i]` elements of padding before it
    /// along axis i.
    pub fn pad(x: &View, fill: &View, before: &[i64], shape: &[usize]) -> [StridedCopy; 2] {
        // The fill is one element, broadcast with strides of 0.
        let everywhere = View { shape: shape.to_vec(), strides: vec![0; shape.len()], ..fill.clone() };
        let strides = row_major(shape);
        let mut view = x.clone();
        let mut at = 0;
        for axis in 0..shape.len() {
            // Element i of x goes to i + before; elements outside the result are cropped.
            let skip = (-before[axis]).clamp(0, view.shape[axis] as i64) as usize;
            let to = before[axis].max(0);
            let room = (shape[axis] as i64 - to).max(0) as usize;
            let count = (view.shape[axis] - skip).min(room);
            view = view.sliced(axis, skip, 1, count);
            at += to as isize * strides[axis];
        }
        [StridedCopy::copy(&everywhere), StridedCopy::new(&view, at, &strides)]
    }

    fn rows(&self) -> usize {
        self.shape[..self.shape.len() - 1].iter().product()
    }

    /// True if there is enough work for several threads.
    pub fn is_shared(&self) -> bool {
        self.whole && self.shape.iter().product::<usize>() * self.size > 2 * GRAIN
    }

    /// Moves the elements.
    pub fn run(&self, workers: &Workers<'_>, from: &[u8], out: &mut [u8]) {
        if !self.is_shared() {
            return by_size!(self.size, walk, self, from, out, self.offsets[1], 0..self.rows());
        }
        let row = self.shape.last().copied().unwrap_or(0) * self.size;
        if self.rows() == 1 {
            // A single long row is divided among threads by elements.
            return workers.chunks(
                &mut [out],
                &[self.size],
                row / self.size,
                GRAIN / self.size,
                |first, count, outs, _| {
                    let mut part = self.clone();
                    part.offsets[0] += first as isize * self.strides[0][0];
                    part.shape[0] = count;
                    by_size!(self.size, walk, &part, from, outs[0], 0, 0..1);
                },
            );
        }
        workers.chunks(&mut [out], &[row], self.rows(), GRAIN.div_ceil(row), |first, count, outs, _| {
            let skip = -(first as isize) * (row / self.size) as isize;
            by_size!(self.size, walk, self, from, outs[0], skip, first..first + count);
        });
    }
}

/// Copies the rows of a window; `offset` is where the result of the whole window begins in `out`.
fn walk<T: Pod>(w: &StridedCopy, from: &[u8], out: &mut [u8], offset: isize, rows: std::ops::Range<usize>) {
    let (src, dst): (&[T], &mut [T]) = (bytemuck::cast_slice(from), bytemuck::cast_slice_mut(out));
    let Some((inner, outer)) = w.shape.split_last() else { return };
    if *inner == 0 {
        return;
    }
    let steps = |axis: usize| [w.strides[0][axis], w.strides[1][axis]];
    // Rows along the next axis are copied together; there is one row if there is no such axis.
    let (lines, step, lead) = match outer.split_last() {
        Some((lines, lead)) => ((*lines).max(1), steps(lead.len()), lead),
        None => (1, [0, 0], outer),
    };
    let mut row = rows.start;
    while row < rows.end {
        let first = row % lines;
        let count = (lines - first).min(rows.end - row);
        let (mut a, mut b, mut rest) = (w.offsets[0], offset, row / lines);
        for (axis, size) in lead.iter().enumerate().rev() {
            let i = (rest % size) as isize;
            (a, b, rest) = (a + i * w.strides[0][axis], b + i * w.strides[1][axis], rest / size);
        }
        let at = [a + first as isize * step[0], b + first as isize * step[1]];
        plane(src, dst, at, (count, step), (*inner, steps(outer.len())));
        row += count;
    }
}

/// Copies elements along two axes: by square blocks if source and result are contiguous along
/// different axes; with the longer axis innermost if neither is contiguous.
fn plane<T: Pod>(
    src: &[T],
    dst: &mut [T],
    [mut a, mut b]: [isize; 2],
    (mut lines, mut line): (usize, [isize; 2]),
    (mut count, mut step): (usize, [isize; 2]),
) {
    let turns = step[1] == 1 && line[0] == 1 && step[0] > 0 && line[1] > 0 && lines.min(count) >= 8;
    if turns {
        let (src, dst) = (&src[a as usize..], &mut dst[b as usize..]);
        return transpose(src, dst, [lines, count], [step[0] as usize, line[1] as usize]);
    }
    if step != [1, 1] && count < 16 && lines > count {
        (lines, line, count, step) = (count, step, lines, line);
    }
    let [ia, ib] = step;
    for _ in 0..lines {
        if ia == 1 && ib == 1 {
            let (a, b) = (a as usize, b as usize);
            dst[b..b + count].copy_from_slice(&src[a..a + count]);
        } else if ib == 1 {
            let to = &mut dst[b as usize..b as usize + count];
            if ia == 0 {
                to.fill(src[a as usize]);
            } else {
                to.iter_mut().enumerate().for_each(|(i, o)| *o = src[(a + i as isize * ia) as usize]);
            }
        } else if ia == 1 && ib > 0 {
            let from = &src[a as usize..a as usize + count];
            dst[b as usize..].iter_mut().step_by(ib as usize).zip(from).for_each(|(o, v)| *o = *v);
        } else {
            for i in 0..count as isize {
                dst[(b + i * ib) as usize] = src[(a + i * ia) as usize];
            }
        }
        (a, b) = (a + line[0], b + line[1]);
    }
}

/// A transpose: element i of line j goes from `i * from + j` to `j * to + i`.
fn transpose<T: Pod>(src: &[T], dst: &mut [T], [lines, count]: [usize; 2], [from, to]: [usize; 2]) {
    // Blocks of columns whose cache lines stay in the L1 cache until all lines are done.
    for first in (0..count).step_by(TRANSPOSED) {
        let columns = first..count.min(first + TRANSPOSED);
        for j in (0..lines).step_by(8) {
            let height = 8.min(lines - j);
            for i in columns.clone().step_by(8) {
                let width = 8.min(columns.end - i);
                let (source, target) = (&src[i * from + j..], &mut dst[j * to + i..]);
                if height == 8 && width == 8 && size_of::<T>() == size_of::<f32>() {
                    let (source, target) = (bytemuck::cast_slice(source), bytemuck::cast_slice_mut(target));
                    if f32::transpose8(source, from, target, to) {
                        continue;
                    }
                }
                for y in 0..height {
                    for x in 0..width {
                        target[y * to + x] = source[x * from + y];
                    }
                }
            }
        }
    }
}

/// Index `i` of a contiguous view of integers.
fn index_at(ids: Operand<'_>, i: usize) -> i64 {
    let i = i + ids.view.offset;
    match ids.view.dtype {
        DType::I64 => bytemuck::cast_slice::<u8, i64>(ids.bytes)[i],
        DType::I32 => bytemuck::cast_slice::<u8, i32>(ids.bytes)[i] as i64,
        DType::I8 => ids.bytes[i] as i8 as i64,
        _ => ids.bytes[i] as i64,
    }
}

/// An error if an index lies outside of an axis of that size.
pub fn check(ids: Operand<'_>, size: usize) -> Result<()> {
    if ids.view.is_empty() {
        return Ok(());
    }
    let mut offsets = Offsets::new(&ids.view.shape, &ids.view.strides, ids.view.offset as isize);
    for _ in 0..ids.view.len() {
        resolve(ids.element(offsets.at).i(), size)?;
        offsets.step();
    }
    Ok(())
}

fn resolve(value: i64, size: usize) -> Result<usize> {
    let at = if value < 0 { value.checked_add(size as i64).unwrap_or(-1) } else { value };
    usize::try_from(at).ok().filter(|v| *v < size).ok_or_else(|| Error::outside(value, size))
}

/// Copies rows of `inner` elements of `x`, row i from element `at(i)`. Returns the first error.
fn rows(
    workers: &Workers<'_>,
    x: Operand<'_>,
    out: &mut [u8],
    (count, inner): (usize, usize),
    at: impl Fn(usize) -> Result<usize> + Sync,
) -> Result<()> {
    let size = x.view.dtype.size();
    let failed: Mutex<Option<(usize, Error)>> = Mutex::new(None);
    let grain = GRAIN.div_ceil((inner * size).max(32));
    workers.chunks(&mut [out], &[inner * size], count, grain, |first, count, outs, _| {
        for i in 0..count {
            match at(first + i) {
                Ok(at) => {
                    let at = (x.view.offset + at) * size;
                    outs[0][i * inner * size..(i + 1) * inner * size].copy_from_slice(&x.bytes[at..at + inner * size]);
                }
                Err(e) => {
                    let mut failed = failed.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                    if failed.as_ref().is_none_or(|(known, _)| first + i < *known) {
                        *failed = Some((first + i, e));
                    }
                    return;
                }
            }
        }
    });
    let failed = failed.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    failed.map_or(Ok(()), |(_, e)| Err(e))
}

/// Gathers slices of `x` along `axis`, one per index. Both views are contiguous.
pub fn gather(workers: &Workers<'_>, x: Operand<'_>, ids: Operand<'_>, axis: usize, out: &mut [u8]) -> Result<()> {
    let shape = &x.view.shape;
    let (size, inner) = (shape[axis], shape[axis + 1..].iter().product::<usize>());
    let (outer, count) = (shape[..axis].iter().product::<usize>(), ids.view.len());
    let at = |i: usize| Ok(((i / count) * size + resolve(index_at(ids, i % count), size)?) * inner);
    rows(workers, x, out, (outer * count, inner), at)
}

/// Gathers one element of `x` per index.
pub fn gather_elements(
    workers: &Workers<'_>,
    x: Operand<'_>,
    ids: Operand<'_>,
    axis: usize,
    out: &mut [u8],
) -> Result<()> {
    let strides = row_major(&x.view.shape);
    let (size, shape) = (x.view.shape[axis], &ids.view.shape);
    let at = |i: usize| {
        let (mut rest, mut sum) = (i, 0);
        for a in (0..shape.len()).rev() {
            let index = rest % shape[a];
            rest /= shape[a];
            let index = if a == axis { resolve(index_at(ids, i), size)? } else { index };
            sum += index * strides[a] as usize;
        }
        Ok(sum)
    };
    rows(workers, x, out, (ids.view.len(), 1), at)
}

/// Gathers slices of `x` by index tuples, after `batch` shared axes.
pub fn gather_nd(workers: &Workers<'_>, x: Operand<'_>, ids: Operand<'_>, batch: usize, out: &mut [u8]) -> Result<()> {
    let (shape, strides) = (&x.view.shape, row_major(&x.view.shape));
    let Some((width, lead)) = ids.view.shape.split_last() else {
        return Err(Error::Internal("indices of rank 0".into()));
    };
    let inner: usize = shape[batch + width..].iter().product();
    let per_batch: usize = lead[batch..].iter().product();
    let batch_size: usize = shape[batch..].iter().product();
    let at = |row: usize| {
        let mut sum = row / per_batch * batch_size;
        for k in 0..*width {
            sum += resolve(index_at(ids, row * width + k), shape[batch + k])? * strides[batch + k] as usize;
        }
        Ok(sum)
    };
    rows(workers, x, out, (lead.iter().product(), inner), at)
}

/// Joins rows of `out`, which has that shape, with those of `updates`. Both operands are
/// contiguous.
pub fn scatter(
    ids: Operand<'_>,
    updates: Operand<'_>,
    reduction: ScatterReduction,
    shape: &[usize],
    out: &mut [u8],
) -> Result<()> {
    let (rows, dtype) = (shape[0], updates.view.dtype);
    let (width, size) = (shape[1..].iter().product::<usize>(), dtype.size());
    let one = View { offset: 0, shape: Vec::new(), strides: Vec::new(), ..updates.view.clone() };
    for i in 0..ids.view.len() {
        let row = resolve(index_at(ids, i), rows)?;
        let from = updates.view.offset + i * width;
        let old = &mut out[row * width * size..(row + 1) * width * size];
        let new = &updates.bytes[from * size..(from + width) * size];
        match reduction {
            ScatterReduction::Replace => old.copy_from_slice(new),
            // The sum in f64, rounded to f32, is the sum in f32.
            ScatterReduction::Combine(BuiltinScalar::Add) if dtype == DType::F32 => {
                let new: &[f32] = bytemuck::cast_slice(new);
                bytemuck::cast_slice_mut::<u8, f32>(old).iter_mut().zip(new).for_each(|(a, b)| *a += b);
            }
            ScatterReduction::Combine(f) => {
                for (column, old) in old.chunks_exact_mut(size).enumerate() {
                    let a = Operand { bytes: old, view: &one }.element(0);
                    let b = updates.element((from + column) as isize);
                    put(join(f, dtype, a, b), dtype, old);
                }
            }
        }
    }
    Ok(())
}

/// Stores one element, rounded once.
fn put(v: Val, dtype: DType, out: &mut [u8]) {
    match dtype {
        DType::F64 => out.copy_from_slice(&v.f().to_le_bytes()),
        DType::F32 => out.copy_from_slice(&(v.f() as f32).to_le_bytes()),
        DType::F16 => out.copy_from_slice(&to_f16(v.f()).to_le_bytes()),
        DType::BF16 => out.copy_from_slice(&to_bf16(v.f()).to_le_bytes()),
        // The low bytes of an integer are the narrower integer (little-endian).
        d => out.copy_from_slice(&v.i().to_le_bytes()[..d.size()]),
    }
}
