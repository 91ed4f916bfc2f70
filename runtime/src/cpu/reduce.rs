//! Reductions over any axes, and argmax.
//!
//! Holds always: floats accumulate in f64 and are rounded once; integers wrap in their own type.

use half::{bf16, f16};
use hypatia_dsl::dtype::DType;
use hypatia_dsl::kernel::Reduction;

use super::interp::{BLOCK, Dst, read};
use super::moves::Source;
use super::reference::{Val, scalars, wrap};
use super::rowwise::{accumulate, identity, join};
use crate::plan::{View, collapse};

/// Writes element `i` of a float output, rounded once.
fn put_float(out: &mut [u8], dtype: DType, i: usize, v: f64) {
    match dtype {
        DType::F64 => bytemuck::cast_slice_mut::<u8, f64>(out)[i] = v,
        DType::F32 => bytemuck::cast_slice_mut::<u8, f32>(out)[i] = v as f32,
        DType::F16 => bytemuck::cast_slice_mut::<u8, f16>(out)[i] = f16::from_f64(v),
        _ => bytemuck::cast_slice_mut::<u8, bf16>(out)[i] = bf16::from_f64(v),
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

/// The offsets of all indices of a shape, in row-major order.
struct Offsets<'a> {
    shape: &'a [usize],
    strides: &'a [isize],
    index: Vec<usize>,
    at: isize,
}

impl<'a> Offsets<'a> {
    fn new(shape: &'a [usize], strides: &'a [isize], at: isize) -> Offsets<'a> {
        Offsets { shape, strides, index: vec![0; shape.len()], at }
    }

    fn step(&mut self) {
        for axis in (0..self.shape.len()).rev() {
            self.index[axis] += 1;
            self.at += self.strides[axis];
            if self.index[axis] < self.shape[axis] {
                return;
            }
            self.at -= self.strides[axis] * self.shape[axis] as isize;
            self.index[axis] = 0;
        }
    }
}

/// Calls `each` with memory offset, stride and length of every run of elements that are reduced together.
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

fn reduce_floats(x: Source<'_>, kind: Reduction, shape: &[usize], strides: &[isize], at: isize) -> f64 {
    let mut strands = [identity(kind); 8];
    let (mut narrow, mut wide) = ([0f32; BLOCK], [0f64; BLOCK]);
    runs(shape, strides, at, |at, step, count| {
        if x.view.dtype == DType::F64 {
            read(x.bytes, DType::F64, at, step, Dst::F64(&mut wide[..count]));
            for (i, v) in wide[..count].iter().enumerate() {
                strands[i % 8] = join(kind, strands[i % 8], *v);
            }
        } else {
            read(x.bytes, x.view.dtype, at, step, Dst::F32(&mut narrow[..count]));
            accumulate(kind, &mut strands, &narrow[..count]);
        }
    });
    strands.into_iter().fold(identity(kind), |a, b| join(kind, a, b))
}

fn reduce_ints(x: Source<'_>, kind: Reduction, shape: &[usize], strides: &[isize], at: isize) -> i64 {
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

fn reduce_bools(x: Source<'_>, kind: Reduction, shape: &[usize], strides: &[isize], at: isize) -> bool {
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

/// Axes of a view that stay, and those that do not, with their strides; the latter collapsed.
fn parts(view: &View, axes: &[usize]) -> [(Vec<usize>, Vec<isize>); 2] {
    let pick = |wanted: bool| {
        let kept = (0..view.shape.len()).filter(|a| axes.contains(a) == wanted);
        kept.map(|a| (view.shape[a], view.strides[a])).unzip::<_, _, Vec<usize>, Vec<isize>>()
    };
    let (shape, strides) = pick(true);
    let (shape, mut strides) = collapse(&shape, &[strides]);
    [pick(false), (shape, strides.pop().unwrap_or_default())]
}

/// Reduces over `axes`; the result is row-major over the axes that stay.
pub fn reduce(x: Source<'_>, kind: Reduction, axes: &[usize], out: &mut [u8]) {
    let [(kept, kept_strides), (shape, strides)] = parts(x.view, axes);
    let count: usize = axes.iter().map(|a| x.view.shape[*a]).product();
    let mut offsets = Offsets::new(&kept, &kept_strides, x.view.offset as isize);
    for i in 0..kept.iter().product() {
        let at = offsets.at;
        match x.view.dtype {
            DType::Bool => out[i] = reduce_bools(x, kind, &shape, &strides, at) as u8,
            d if d.is_int() => put_int(out, d, i, reduce_ints(x, kind, &shape, &strides, at)),
            d => {
                let total = reduce_floats(x, kind, &shape, &strides, at);
                put_float(out, d, i, if kind == Reduction::Mean { total / count as f64 } else { total });
            }
        }
        offsets.step();
    }
}

/// Position of the largest element along an axis; NaN is largest.
pub fn argmax(x: Source<'_>, axis: usize, last: bool, out: &mut [u8]) {
    let [(kept, kept_strides), _] = parts(x.view, &[axis]);
    let out: &mut [i64] = bytemuck::cast_slice_mut(out);
    let (size, stride) = (x.view.shape[axis], x.view.strides[axis]);
    let mut offsets = Offsets::new(&kept, &kept_strides, x.view.offset as isize);
    for o in out.iter_mut() {
        let at = |i: usize| element(x, offsets.at + i as isize * stride);
        let mut best = 0;
        for i in 1..size {
            let (greater, equal) = match (at(best), at(i)) {
                (Val::F(a), Val::F(b)) => (b > a || (b.is_nan() && !a.is_nan()), a == b || (a.is_nan() && b.is_nan())),
                (a, b) => (b.i() > a.i(), a.i() == b.i()),
            };
            if greater || (last && equal) {
                best = i;
            }
        }
        *o = best as i64;
        offsets.step();
    }
}

fn element(x: Source<'_>, at: isize) -> Val {
    let (mut f, mut d, mut i, mut b) = ([0f32], [0f64], [0i64], [0u8]);
    match x.view.dtype {
        DType::F64 => {
            read(x.bytes, DType::F64, at, 1, Dst::F64(&mut d));
            Val::F(d[0])
        }
        DType::Bool => {
            read(x.bytes, DType::Bool, at, 1, Dst::Bool(&mut b));
            Val::B(b[0] != 0)
        }
        dtype if dtype.is_int() => {
            read(x.bytes, dtype, at, 1, Dst::Int(&mut i));
            Val::I(i[0])
        }
        dtype => {
            read(x.bytes, dtype, at, 1, Dst::F32(&mut f));
            Val::F(f[0] as f64)
        }
    }
}
