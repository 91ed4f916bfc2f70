//! Reductions over small windows that slide along rows: pooling.
//!
//! In: a view whose results are neighbours, each the reduction of a small window. Out: the reduced
//! rows. Invariant: maxima and minima are computed in f32, which is exact; sums are computed in f64
//! and rounded once; bits do not depend on the number of threads.
//!
//! A row of results takes two passes. The first joins the rows of the windows element by element,
//! as stored. The second joins the elements of each window along that line, which is split by
//! stride so that neighbouring elements belong to neighbouring results.

use half::{bf16, f16};
use hypatia_dsl::dtype::{DType, to_bf16, to_f16};
use hypatia_dsl::kernel::Reduction;

use super::interp::{Dst, read};
use super::operand::{Offsets, Operand};
use super::rowwise::{identity, join};
use super::simd::dispatch;

/// Elements of a line that are processed at once.
const LINE: usize = 768;
/// Maximum stride between results, and between elements of a window: the elements between them are
/// read as well.
const NEAR: isize = 4;
/// Maximum number of elements along a window.
const LONG: usize = 32;

/// Kept or reduced axes: sizes and strides.
pub(super) type Axes = (Vec<usize>, Vec<isize>);

/// Pooling over a view: `kept` are the axes of the results, `gone` those of a window.
pub(super) struct Pooling<'a> {
    pub kind: Reduction,
    pub kept: &'a Axes,
    pub gone: &'a Axes,
    /// Offset of the first element.
    pub offset: isize,
    pub dtype: DType,
}

/// Line buffers of one type.
struct Lines<T> {
    /// A row of the windows, as read.
    row: [f32; LINE],
    /// The joined rows of the windows.
    whole: [T; LINE],
    /// The same line, split: every `step`-th element together.
    split: [T; LINE],
    results: [T; LINE],
}

/// One reduction step for each pair.
macro_rules! each {
    ($join:path, $kind:expr, $pairs:expr, $type:ty) => {
        match $kind {
            Reduction::Sum | Reduction::Mean => $pairs.for_each(|(a, b)| *a = $join(Reduction::Sum, *a, *b as $type)),
            Reduction::Prod => $pairs.for_each(|(a, b)| *a = $join(Reduction::Prod, *a, *b as $type)),
            Reduction::Max => $pairs.for_each(|(a, b)| *a = $join(Reduction::Max, *a, *b as $type)),
            Reduction::Min => $pairs.for_each(|(a, b)| *a = $join(Reduction::Min, *a, *b as $type)),
        }
    };
}

/// Defines the passes for both accumulator types.
macro_rules! passes {
    ($down:ident, $split:ident, $along:ident, $type:ty, $join:path) => {
        dispatch! {
            /// Joins a row of the windows to the line.
            fn $down(kind: Reduction, line: &mut [$type], values: &[f32]) {
                each!($join, kind, line.iter_mut().zip(values), $type)
            }
        }
        dispatch! {
            /// Joins an element of each window to its result.
            fn $along(kind: Reduction, results: &mut [$type], elements: &[$type]) {
                each!($join, kind, results.iter_mut().zip(elements), $type)
            }
        }
        dispatch! {
            /// Groups every `step`-th element together; `step` divides the length.
            fn $split(line: &[$type], step: usize, to: &mut [$type]) {
                let part = line.len() / step;
                match step {
                    1 => to[..part].copy_from_slice(line),
                    2 => {
                        let (even, odd) = to.split_at_mut(part);
                        for ((pair, e), o) in line.chunks_exact(2).zip(even).zip(odd) {
                            (*e, *o) = (pair[0], pair[1]);
                        }
                    }
                    _ => (0..step).for_each(|phase| {
                        let to = &mut to[phase * part..][..part];
                        to.iter_mut().zip(line.chunks_exact(step)).for_each(|(t, all)| *t = all[phase]);
                    }),
                }
            }
        }
    };
}
passes!(down_f64, split_f64, along_f64, f64, join);
passes!(down_f32, split_f32, along_f32, f32, join_f32);

/// As [`join`], without rounding: for maximum and minimum.
#[inline(always)]
fn join_f32(kind: Reduction, a: f32, b: f32) -> f32 {
    match kind {
        Reduction::Max if a > b || a.is_nan() || (a == b && a.is_sign_positive()) => a,
        Reduction::Min if a < b || a.is_nan() || (a == b && a.is_sign_negative()) => a,
        _ => b,
    }
}

/// The location of the windows for one line of results.
#[derive(Clone, Copy)]
struct Line {
    /// The first element.
    at: isize,
    /// Number of results.
    width: usize,
    /// Elements from the first to the last one of its windows, padded to a multiple of the stride
    /// between results.
    span: usize,
}

impl Pooling<'_> {
    /// True if results and window elements are adjacent in memory, or nearly so.
    pub fn fit(&self) -> bool {
        let near = |axes: &Axes| axes.1.last().is_some_and(|step| (1..=NEAR).contains(step));
        let narrow = matches!(self.dtype, DType::F32 | DType::F16 | DType::BF16);
        let short = self.gone.0.last().is_some_and(|n| *n <= LONG) && !self.gone.0.contains(&0);
        narrow && near(self.kept) && near(self.gone) && short && self.kept.0.last().is_some_and(|n| *n >= 8)
    }

    /// Computes `count` results from `first` on into `out`.
    pub fn run(&self, x: Operand<'_>, out: &mut [u8], first: usize, count: usize) {
        let size = self.dtype.size();
        let out = &mut out[..count * size];
        match self.kind {
            Reduction::Max | Reduction::Min => {
                let mut lines =
                    Lines { row: [0.0; LINE], whole: [0f32; LINE], split: [0f32; LINE], results: [0f32; LINE] };
                self.lines(first, count, |done, line| {
                    self.extremes(x, line, &mut lines);
                    store(&lines.results[..line.width], &mut out[done * size..][..line.width * size], self.dtype);
                });
            }
            _ => {
                let windows: usize = self.gone.0.iter().product();
                let share = if self.kind == Reduction::Mean { windows as f64 } else { 1.0 };
                let mut lines =
                    Lines { row: [0.0; LINE], whole: [0f64; LINE], split: [0f64; LINE], results: [0f64; LINE] };
                self.lines(first, count, |done, line| {
                    self.sums(x, line, &mut lines);
                    lines.results[..line.width].iter_mut().for_each(|v| *v /= share);
                    store(&lines.results[..line.width], &mut out[done * size..][..line.width * size], self.dtype);
                });
            }
        }
    }

    /// Calls `each` with the number of results before a line, and the line.
    fn lines(&self, first: usize, count: usize, mut each: impl FnMut(usize, Line)) {
        let ((inner, step), (along, apart)) = (last(self.kept), last(self.gone));
        let reach = (along - 1) * apart + 1;
        let most = (LINE - reach) / step;
        let mut done = 0;
        while done < count {
            let width = (inner - (first + done) % inner).min(count - done).min(most);
            let at = Offsets::from(&self.kept.0, &self.kept.1, self.offset, first + done).at;
            each(done, Line { at, width, span: ((width - 1) * step + reach).next_multiple_of(step) });
            done += width;
        }
    }

    /// Calls `each` with the elements of each row of a line's windows.
    fn rows(&self, x: Operand<'_>, line: Line, values: &mut [f32; LINE], mut each: impl FnMut(&[f32])) {
        let ((_, step), (along, apart)) = (last(self.kept), last(self.gone));
        let values = &mut values[..(line.width - 1) * step + (along - 1) * apart + 1];
        let rank = self.gone.0.len() - 1;
        let mut offsets = Offsets::new(&self.gone.0[..rank], &self.gone.1[..rank], line.at);
        for _ in 0..self.gone.0[..rank].iter().product() {
            read(x.bytes, self.dtype, offsets.at, 1, Dst::F32(values));
            each(values);
            offsets.step();
        }
    }

    /// Calls `each` with the start, in a split line, of the elements at the same position in their
    /// windows.
    fn elements(&self, line: Line, each: impl FnMut(usize)) {
        let ((_, step), (along, apart)) = (last(self.kept), last(self.gone));
        (0..along).map(|i| i * apart % step * (line.span / step) + i * apart / step).for_each(each);
    }

    fn extremes(&self, x: Operand<'_>, line: Line, lines: &mut Lines<f32>) {
        let (kind, nothing) = (self.kind, identity(self.kind) as f32);
        lines.whole[..line.span].fill(nothing);
        lines.results[..line.width].fill(nothing);
        let Lines { row, whole, split, results } = lines;
        self.rows(x, line, row, |row| down_f32(kind, whole, row));
        split_f32(&whole[..line.span], last(self.kept).1, &mut split[..line.span]);
        self.elements(line, |from| along_f32(kind, &mut results[..line.width], &split[from..]));
    }

    fn sums(&self, x: Operand<'_>, line: Line, lines: &mut Lines<f64>) {
        let (kind, nothing) = (self.kind, identity(self.kind));
        lines.whole[..line.span].fill(nothing);
        lines.results[..line.width].fill(nothing);
        let Lines { row, whole, split, results } = lines;
        self.rows(x, line, row, |row| down_f64(kind, whole, row));
        split_f64(&whole[..line.span], last(self.kept).1, &mut split[..line.span]);
        self.elements(line, |from| along_f64(kind, &mut results[..line.width], &split[from..]));
    }
}

/// Writes results, rounded once.
fn store<T: Copy + Into<f64>>(results: &[T], out: &mut [u8], dtype: DType) {
    let wide = results.iter().map(|v| -> f64 { (*v).into() });
    match dtype {
        DType::F16 => bytemuck::cast_slice_mut::<u8, f16>(out).iter_mut().zip(wide).for_each(|(o, v)| *o = to_f16(v)),
        DType::BF16 => {
            bytemuck::cast_slice_mut::<u8, bf16>(out).iter_mut().zip(wide).for_each(|(o, v)| *o = to_bf16(v));
        }
        _ => bytemuck::cast_slice_mut::<u8, f32>(out).iter_mut().zip(wide).for_each(|(o, v)| *o = v as f32),
    }
}

/// Size and stride of the innermost axis; both are positive if windows [fit](Pooling::fit).
fn last(axes: &Axes) -> (usize, usize) {
    let step = axes.1.last().map_or(1, |step| step.unsigned_abs());
    (axes.0.last().copied().unwrap_or(1), step)
}
