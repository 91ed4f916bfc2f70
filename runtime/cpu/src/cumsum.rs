//! Cumulative sums along an axis.
//!
//! Invariant: floats accumulate in f64, and each result is rounded once; integers wrap in their own
//! type; bits do not depend on the number of threads.

use half::{bf16, f16};
use hypatia_dsl::dtype::DType;

use super::interp::BLOCK;
use super::operand::Operand;
use super::threads::Workers;
use hypatia_graph::prim::Cumsum;

/// Work with fewer elements than this runs on one thread.
const GRAIN: usize = 1 << 13;

/// Sums a contiguous tensor. Each thread gets whole slices of the axes before the summed one.
pub fn cumsum(workers: &Workers<'_>, x: Operand<'_>, how: Cumsum, out: &mut [u8]) {
    let shape = &x.view.shape;
    let (size, inner): (usize, usize) = (shape[how.axis], shape[how.axis + 1..].iter().product());
    let (outer, stretch) = (shape[..how.axis].iter().product(), size * inner * x.view.dtype.size());
    let x_bytes = &x.bytes[x.view.offset * x.view.dtype.size()..];
    workers.chunks(&mut [out], &[stretch], outer, GRAIN.div_ceil((size * inner).max(1)), |first, count, outs, _| {
        let bytes = &x_bytes[first * stretch..(first + count) * stretch];
        let out = &mut outs[0][..count * stretch];
        macro_rules! sum {
            ($t:ty, $sum:ty, $wide:expr, $narrow:expr) => {{
                let (x, out): (&[$t], &mut [$t]) = (bytemuck::cast_slice(bytes), bytemuck::cast_slice_mut(out));
                for (x, out) in x.chunks(size * inner).zip(out.chunks_mut(size * inner)) {
                    columns::<$t, $sum>(x, out, inner, how, $wide, $narrow);
                }
            }};
        }
        macro_rules! wrapped {
            ($t:ty) => {
                sum!($t, i64, |sum, v: $t| i64::wrapping_add(sum, v as i64), |sum| sum as $t)
            };
        }
        match x.view.dtype {
            DType::F64 => sum!(f64, f64, |sum, v: f64| sum + v, |sum| sum),
            DType::F32 => sum!(f32, f64, |sum, v: f32| sum + v as f64, |sum| sum as f32),
            DType::F16 => sum!(f16, f64, |sum, v: f16| sum + v.to_f64(), f16::from_f64),
            DType::BF16 => sum!(bf16, f64, |sum, v: bf16| sum + v.to_f64(), bf16::from_f64),
            DType::I64 => wrapped!(i64),
            DType::I32 => wrapped!(i32),
            DType::I8 => wrapped!(i8),
            _ => wrapped!(u8),
        }
    });
}

/// Sums along the rows, a block of adjacent columns at once.
#[inline(always)]
fn columns<T: Copy, S: Copy + Default>(
    x: &[T],
    out: &mut [T],
    inner: usize,
    how: Cumsum,
    wide: impl Fn(S, T) -> S,
    narrow: impl Fn(S) -> T,
) {
    let rows = x.len() / inner.max(1);
    for first in (0..inner).step_by(BLOCK) {
        let width = BLOCK.min(inner - first);
        let mut sums = [S::default(); BLOCK];
        let sums = &mut sums[..width];
        for row in 0..rows {
            let at = if how.reverse { rows - 1 - row } else { row } * inner + first;
            let (x, out) = (&x[at..at + width], &mut out[at..at + width]);
            for ((sum, v), o) in sums.iter_mut().zip(x).zip(out) {
                let next = wide(*sum, *v);
                *o = narrow(if how.exclusive { *sum } else { next });
                *sum = next;
            }
        }
    }
}
