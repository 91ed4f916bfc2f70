//! Reductions over any axes, and argmax.
//!
//! Invariant: floats accumulate in f64 and are rounded once; integers wrap in their own type;
//! properties of a step's views are computed once; bits do not depend on the number of threads.

use half::{bf16, f16};
use hypatia_dsl::dtype::{DType, to_bf16, to_f16};
use hypatia_dsl::kernel::Reduction;

use super::interp::{BLOCK, Dst, read};
use super::operand::{Offsets, Operand};
use super::pooling::Pooling;
use super::rowwise::{STRANDS, accumulate, identity, join, reduce_rows, total};
use super::simd::dispatch;
use super::threads::Workers;
use hypatia_eval::{Val, scalars, wrap};
use hypatia_plan::{View, collapse};

/// Work with fewer elements than this runs on one thread.
const GRAIN: usize = 1 << 13;
/// Results of at most this many elements do not justify a loop of their own.
const FEW: usize = 64;

/// Writes element `i` of a float output, rounded once.
fn put_float(out: &mut [u8], dtype: DType, i: usize, v: f64) {
    match dtype {
        DType::F64 => bytemuck::cast_slice_mut::<u8, f64>(out)[i] = v,
        DType::F32 => bytemuck::cast_slice_mut::<u8, f32>(out)[i] = v as f32,
        DType::F16 => bytemuck::cast_slice_mut::<u8, f16>(out)[i] = to_f16(v),
        _ => bytemuck::cast_slice_mut::<u8, bf16>(out)[i] = to_bf16(v),
    }
}

fn put_int(out: &mut [u8], dtype: DType, i: usize, v: i64) {
    match dtype {
        DType::I64 => bytemuck::cast_slice_mut::<u8, i64>(out)[i] = v,
        DType::I32 => bytemuck::cast_slice_mut::<u8, i32>(out)[i] = v as i32,
        DType::I8 => out[i] = v as i8 as u8,
        _ => out[i] = v as u8,
    }
}

/// Calls `each` with offset, stride and length of every run of elements that are reduced together.
fn runs(shape: &[usize], strides: &[isize], at: isize, mut each: impl FnMut(isize, isize, usize)) {
    let (Some((inner, outer)), Some((step, steps))) = (shape.split_last(), strides.split_last()) else { return };
    let mut offsets = Offsets::new(outer, steps, at);
    for _ in 0..outer.iter().product::<usize>() {
        let mut done = 0;
        while done < *inner {
            let count = BLOCK.min(inner - done);
            each(offsets.at + done as isize * step, *step, count);
            done += count;
        }
        offsets.step();
    }
}

/// Scratch memory for elements.
struct Lines {
    narrow: [f32; BLOCK],
    wide: [f64; BLOCK],
}

fn reduce_floats(
    x: Operand<'_>,
    kind: Reduction,
    shape: &[usize],
    strides: &[isize],
    at: isize,
    lines: &mut Lines,
) -> f64 {
    let mut strands = [identity(kind); STRANDS];
    runs(shape, strides, at, |at, step, count| {
        if x.view.dtype == DType::F64 {
            let wide = &mut lines.wide[..count];
            read(x.bytes, DType::F64, at, step, Dst::F64(wide));
            for (i, v) in wide.iter().enumerate() {
                strands[i % STRANDS] = join(kind, strands[i % STRANDS], *v);
            }
        } else {
            let narrow = &mut lines.narrow[..count];
            read(x.bytes, x.view.dtype, at, step, Dst::F32(narrow));
            accumulate(kind, &mut strands, narrow);
        }
    });
    total(kind, &strands)
}

fn reduce_ints(x: Operand<'_>, kind: Reduction, shape: &[usize], strides: &[isize], at: isize) -> i64 {
    use hypatia_dsl::builtin::BuiltinScalar::{Add, Max, Min, Mul};
    let dtype = x.view.dtype;
    let (low, high) = match dtype {
        DType::I64 => (i64::MIN, i64::MAX),
        DType::I32 => (i32::MIN as i64, i32::MAX as i64),
        DType::I8 => (i8::MIN as i64, i8::MAX as i64),
        _ => (0, 255),
    };
    let (f, mut total) = match kind {
        Reduction::Sum | Reduction::Mean => (Add, 0),
        Reduction::Prod => (Mul, 1),
        Reduction::Max => (Max, low),
        Reduction::Min => (Min, high),
    };
    let mut values = [0i64; BLOCK];
    runs(shape, strides, at, |at, step, count| {
        read(x.bytes, dtype, at, step, Dst::Int(&mut values[..count]));
        values[..count].iter().for_each(|v| total = scalars::int(f, dtype, total, *v));
    });
    wrap(dtype, total)
}

fn reduce_bools(x: Operand<'_>, kind: Reduction, shape: &[usize], strides: &[isize], at: isize) -> bool {
    let all = matches!(kind, Reduction::Prod | Reduction::Min);
    let mut total = all;
    let mut values = [0u8; BLOCK];
    runs(shape, strides, at, |at, step, count| {
        read(x.bytes, DType::Bool, at, step, Dst::Bool(&mut values[..count]));
        let mut values = values[..count].iter().map(|v| *v != 0);
        total = if all { total && values.all(|v| v) } else { total || values.any(|v| v) };
    });
    total
}

/// A prepared reduction: kept and reduced axes, both collapsed.
#[derive(Clone, Debug)]
pub struct Reduce {
    kind: Reduction,
    kept: (Vec<usize>, Vec<isize>),
    gone: (Vec<usize>, Vec<isize>),
    /// Number of elements per result.
    count: usize,
    offset: isize,
    dtype: DType,
    /// Each result by itself, in strands, as row-wise kernels compute it.
    in_strands: bool,
}

/// The given axes of a view in order, collapsed.
fn collapsed(view: &View, axes: impl Iterator<Item = usize>) -> (Vec<usize>, Vec<isize>) {
    let (shape, strides): (Vec<usize>, Vec<isize>) = axes.map(|a| (view.shape[a], view.strides[a])).unzip();
    if shape.contains(&0) {
        return (vec![0], vec![0]);
    }
    let (shape, mut strides) = collapse(&shape, &[strides]);
    (shape, strides.pop().unwrap_or_default())
}

impl Reduce {
    /// Reduces a view over `axes`; the result is row-major over the kept axes.
    /// With `in_strands`, floats are summed in the order in which row-wise kernels sum them.
    pub fn new(view: &View, kind: Reduction, axes: &[usize], in_strands: bool) -> Reduce {
        Reduce {
            kind,
            kept: collapsed(view, (0..view.shape.len()).filter(|a| !axes.contains(a))),
            gone: collapsed(view, axes.iter().copied()),
            count: axes.iter().map(|a| view.shape[*a]).product(),
            offset: view.offset as isize,
            dtype: view.dtype,
            in_strands,
        }
    }

    /// True if there is enough work for several threads.
    pub fn is_shared(&self) -> bool {
        self.kept.0.iter().product::<usize>() * self.count > 2 * GRAIN
    }

    /// Reduces.
    pub fn run(&self, workers: &Workers<'_>, x: Operand<'_>, out: &mut [u8]) {
        let units: usize = self.kept.0.iter().product();
        let size = self.dtype.size();
        // Column-wise: neighbours in memory belong to different results, which are accumulated side
        // by side. Results of a few elements each, such as small windows, are handled the same way.
        let apart = self.kept.1.last() == Some(&1) && !matches!(self.gone.1.last(), Some(1));
        let few = self.count <= FEW && self.kept.1.last().is_some_and(|step| *step > 0);
        let columns = (apart || few)
            && self.kept.0.last().is_some_and(|n| *n >= 8)
            && matches!(self.dtype, DType::F32 | DType::F16 | DType::BF16);
        let rows = self.are_rows();
        let (kept, gone) = (&self.kept, &self.gone);
        let windows = Pooling { kind: self.kind, kept, gone, offset: self.offset, dtype: self.dtype };
        workers.chunks(&mut [out], &[size], units, GRAIN.div_ceil(self.count.max(1)), |first, count, outs, _| {
            if rows {
                self.rows(x, outs[0], first, count);
            } else if self.in_strands {
                self.one_by_one(x, outs[0], first, count);
            } else if windows.fit() {
                windows.run(x, outs[0], first, count);
            } else if columns {
                self.columns(x, outs[0], first, count);
            } else {
                self.one_by_one(x, outs[0], first, count);
            }
        });
    }

    /// True if the elements of each result lie side by side, and behind those of the one before.
    fn are_rows(&self) -> bool {
        let packed = |(shape, strides): &(Vec<usize>, Vec<isize>), step: usize| match (&shape[..], &strides[..]) {
            ([], []) => true,
            ([_], [stride]) => *stride == step as isize,
            _ => false,
        };
        self.dtype == DType::F32 && self.count > 0 && packed(&self.gone, 1) && packed(&self.kept, self.count)
    }

    /// Computes results from `first` on, each that of a row, with the bits of
    /// [`Reduce::one_by_one`].
    fn rows(&self, x: Operand<'_>, out: &mut [u8], first: usize, count: usize) {
        let values: &[f32] = bytemuck::cast_slice(x.bytes);
        let mut results = [0f64; BLOCK];
        for done in (0..count).step_by(BLOCK) {
            let width = BLOCK.min(count - done);
            let at = self.offset as usize + (first + done) * self.count;
            reduce_rows(self.kind, &values[at..at + width * self.count], self.count, &mut results[..width]);
            for (i, result) in results[..width].iter().enumerate() {
                put_float(out, self.dtype, done + i, *result);
            }
        }
    }

    fn one_by_one(&self, x: Operand<'_>, out: &mut [u8], first: usize, count: usize) {
        let (shape, strides) = (self.gone.0.as_slice(), self.gone.1.as_slice());
        let mut lines = Lines { narrow: [0.0; BLOCK], wide: [0.0; BLOCK] };
        let mut offsets = Offsets::from(&self.kept.0, &self.kept.1, self.offset, first);
        for i in 0..count {
            let at = offsets.at;
            match self.dtype {
                DType::Bool => out[i] = reduce_bools(x, self.kind, shape, strides, at) as u8,
                d if d.is_int() => put_int(out, d, i, reduce_ints(x, self.kind, shape, strides, at)),
                d => put_float(out, d, i, self.finished(reduce_floats(x, self.kind, shape, strides, at, &mut lines))),
            }
            offsets.step();
        }
    }

    fn finished(&self, total: f64) -> f64 {
        if self.kind == Reduction::Mean { total / self.count as f64 } else { total }
    }

    /// Computes results from `first` on, a block of neighbours at once; each uses one strand.
    fn columns(&self, x: Operand<'_>, out: &mut [u8], first: usize, count: usize) {
        let (inner, step) = (self.kept.0.last().copied().unwrap_or(1), self.kept.1.last().copied().unwrap_or(1));
        let mut sums = [0f64; BLOCK];
        let mut values = [0f32; BLOCK];
        let mut done = 0;
        while done < count {
            let width = (inner - (first + done) % inner).min(count - done).min(BLOCK);
            let at = Offsets::from(&self.kept.0, &self.kept.1, self.offset, first + done).at;
            sums[..width].fill(identity(self.kind));
            let mut offsets = Offsets::new(&self.gone.0, &self.gone.1, at);
            for _ in 0..self.count {
                read(x.bytes, self.dtype, offsets.at, step, Dst::F32(&mut values[..width]));
                join_all(self.kind, &mut sums[..width], &values[..width]);
                offsets.step();
            }
            for (i, sum) in sums[..width].iter().enumerate() {
                put_float(out, self.dtype, done + i, self.finished(*sum));
            }
            done += width;
        }
    }
}

dispatch! {
    /// Joins each value to the accumulator of its column.
    fn join_all(kind: Reduction, sums: &mut [f64], values: &[f32]) {
        macro_rules! each {
            ($kind:expr) => {
                for i in 0..sums.len().min(values.len()) {
                    sums[i] = join($kind, sums[i], values[i] as f64);
                }
            };
        }
        match kind {
            Reduction::Sum | Reduction::Mean => each!(Reduction::Sum),
            Reduction::Prod => each!(Reduction::Prod),
            Reduction::Max => each!(Reduction::Max),
            Reduction::Min => each!(Reduction::Min),
        }
    }
}

/// Index of the largest element along an axis; NaN counts as largest.
pub fn argmax(workers: &Workers<'_>, x: Operand<'_>, axis: usize, last: bool, out: &mut [u8]) {
    let (kept, kept_strides) = collapsed(x.view, (0..x.view.shape.len()).filter(|a| *a != axis));
    let (size, stride) = (x.view.shape[axis], x.view.strides[axis]);
    if size == 0 {
        return out.fill(0);
    }
    let units = out.len() / size_of::<i64>();
    workers.chunks(&mut [out], &[size_of::<i64>()], units, GRAIN.div_ceil(size.max(1)), |first, _, outs, _| {
        let out: &mut [i64] = bytemuck::cast_slice_mut(outs[0]);
        let mut offsets = Offsets::from(&kept, &kept_strides, x.view.offset as isize, first);
        for o in out.iter_mut() {
            let at = |i: usize| x.element(offsets.at + i as isize * stride);
            let (mut best, mut value) = (0, at(0));
            for i in 1..size {
                let next = at(i);
                let (greater, equal) = match (value, next) {
                    (Val::F(a), Val::F(b)) => {
                        (b > a || (b.is_nan() && !a.is_nan()), a == b || (a.is_nan() && b.is_nan()))
                    }
                    (a, b) => (b.i() > a.i(), a.i() == b.i()),
                };
                if greater || (last && equal) {
                    (best, value) = (i, next);
                }
            }
            *o = best as i64;
            offsets.step();
        }
    });
}

/// Argsort: the indices along an axis in sorted order.
pub fn argsort(x: Operand<'_>, axis: usize, descending: bool, out: &mut [u8]) {
    let (kept, kept_strides) = collapsed(x.view, (0..x.view.shape.len()).filter(|a| *a != axis));
    let out: &mut [i64] = bytemuck::cast_slice_mut(out);
    let (size, stride) = (x.view.shape[axis], x.view.strides[axis]);
    let inner: usize = x.view.shape[axis + 1..].iter().product();
    let mut offsets = Offsets::new(&kept, &kept_strides, x.view.offset as isize);
    let mut order: Vec<(Val, i64)> = Vec::with_capacity(size);
    for line in 0..kept.iter().product() {
        order.clear();
        order.extend((0..size).map(|i| (x.element(offsets.at + i as isize * stride), i as i64)));
        order
            .sort_by(|(a, _), (b, _)| if descending { scalars::ascending(*b, *a) } else { scalars::ascending(*a, *b) });
        let first = line / inner.max(1) * inner * size + line % inner.max(1);
        for (i, (_, from)) in order.iter().enumerate() {
            out[first + i * inner] = *from;
        }
        offsets.step();
    }
}
