//! Steps that move elements: copies, concatenation, padding, gathers. Elements are words of 1 to 8 bytes.

use bytemuck::Pod;
use hypatia_dsl::dtype::DType;

use crate::error::{Error, Result};
use crate::plan::{View, collapse, row_major};

/// Memory and the view on it.
#[derive(Clone, Copy)]
pub struct Source<'a> {
    /// The whole buffer.
    pub bytes: &'a [u8],
    /// What of it.
    pub view: &'a View,
}

/// Calls with the word type of a dtype's size.
macro_rules! by_size {
    ($dtype:expr, $f:ident, $($arg:expr),*) => {
        match $dtype.size() {
            1 => $f::<u8>($($arg),*),
            2 => $f::<u16>($($arg),*),
            4 => $f::<u32>($($arg),*),
            _ => $f::<u64>($($arg),*),
        }
    };
}

/// Copies a window of one buffer to a window of another; `strides` and `offset` are those of `out`.
fn copy_window<T: Pod>(from: Source<'_>, out: &mut [u8], offset: isize, strides: &[isize]) {
    let view = from.view;
    if view.is_empty() {
        return;
    }
    let (src, dst): (&[T], &mut [T]) = (bytemuck::cast_slice(from.bytes), bytemuck::cast_slice_mut(out));
    let (shape, both) = collapse(&view.shape, &[view.strides.clone(), strides.to_vec()]);
    let (Some((inner, outer)), [sa, sb]) = (shape.split_last(), both.as_slice()) else { return };
    let rows: usize = outer.iter().product();
    let (ia, ib) = (sa[outer.len()], sb[outer.len()]);
    for row in 0..rows {
        let (mut a, mut b, mut rest) = (view.offset as isize, offset, row);
        for (axis, size) in outer.iter().enumerate().rev() {
            let i = (rest % size) as isize;
            (a, b, rest) = (a + i * sa[axis], b + i * sb[axis], rest / size);
        }
        if ia == 1 && ib == 1 {
            let (a, b) = (a as usize, b as usize);
            dst[b..b + inner].copy_from_slice(&src[a..a + inner]);
        } else {
            for i in 0..*inner as isize {
                dst[(b + i * ib) as usize] = src[(a + i * ia) as usize];
            }
        }
    }
}

/// The elements of a view in row-major order.
pub fn copy(from: Source<'_>, out: &mut [u8]) {
    let strides = row_major(&from.view.shape);
    by_size!(from.view.dtype, copy_window, from, out, 0, &strides);
}

/// Operands side by side along `axis` of a result of `shape`.
pub fn concat(xs: &[Source<'_>], axis: usize, shape: &[usize], out: &mut [u8]) {
    let strides = row_major(shape);
    let mut at = 0;
    for x in xs {
        by_size!(x.view.dtype, copy_window, *x, out, at as isize * strides[axis], &strides);
        at += x.view.shape[axis];
    }
}

/// `x` placed `before[i]` elements from the start of axis i, `fill` around it.
pub fn pad(x: Source<'_>, fill: Source<'_>, before: &[i64], shape: &[usize], out: &mut [u8]) {
    // The fill is one element: a view of it with strides of 0 covers the result.
    let everywhere = View { shape: shape.to_vec(), strides: vec![0; shape.len()], ..fill.view.clone() };
    copy(Source { bytes: fill.bytes, view: &everywhere }, out);
    let strides = row_major(shape);
    let mut view = x.view.clone();
    let mut at = 0;
    for axis in 0..shape.len() {
        // Element i of x goes to i + before; what falls outside is cut.
        let skip = (-before[axis]).clamp(0, view.shape[axis] as i64) as usize;
        let to = before[axis].max(0);
        let room = (shape[axis] as i64 - to).max(0) as usize;
        let count = (view.shape[axis] - skip).min(room);
        view = view.sliced(axis, skip, 1, count);
        at += to as isize * strides[axis];
    }
    by_size!(view.dtype, copy_window, Source { bytes: x.bytes, view: &view }, out, at, &strides);
}

/// Index `i` of a contiguous view of integers.
fn index_at(ids: Source<'_>, i: usize) -> i64 {
    let i = i + ids.view.offset;
    match ids.view.dtype {
        DType::I64 => bytemuck::cast_slice::<u8, i64>(ids.bytes)[i],
        DType::I32 => bytemuck::cast_slice::<u8, i32>(ids.bytes)[i] as i64,
        DType::I8 => ids.bytes[i] as i8 as i64,
        _ => ids.bytes[i] as i64,
    }
}

fn resolve(value: i64, size: usize) -> Result<usize> {
    let at = if value < 0 { value.checked_add(size as i64).unwrap_or(-1) } else { value };
    usize::try_from(at).ok().filter(|v| *v < size).ok_or_else(|| {
        Error::Input(format!("index {value} is outside an axis of size {size} (gather takes -{size} to {size} - 1)"))
    })
}

fn rows<T: Pod>(x: Source<'_>, out: &mut [u8], inner: usize, ats: impl Iterator<Item = Result<usize>>) -> Result<()> {
    let (src, dst): (&[T], &mut [T]) = (bytemuck::cast_slice(x.bytes), bytemuck::cast_slice_mut(out));
    for (to, at) in dst.chunks_exact_mut(inner.max(1)).zip(ats) {
        let at = x.view.offset + at?;
        to.copy_from_slice(&src[at..at + inner]);
    }
    Ok(())
}

/// Slices of `x` along `axis`, one for each index. Both views are contiguous.
pub fn gather(x: Source<'_>, ids: Source<'_>, axis: usize, out: &mut [u8]) -> Result<()> {
    let shape = &x.view.shape;
    let (size, inner) = (shape[axis], shape[axis + 1..].iter().product::<usize>());
    let (outer, count) = (shape[..axis].iter().product::<usize>(), ids.view.len());
    let at = |i: usize| Ok(((i / count) * size + resolve(index_at(ids, i % count), size)?) * inner);
    by_size!(x.view.dtype, rows, x, out, inner, (0..outer * count).map(at))
}

/// One element of `x` for each index.
pub fn gather_elements(x: Source<'_>, ids: Source<'_>, axis: usize, out: &mut [u8]) -> Result<()> {
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
    by_size!(x.view.dtype, rows, x, out, 1, (0..ids.view.len()).map(at))
}

/// Slices of `x` named by index tuples, after `batch` shared axes.
pub fn gather_nd(x: Source<'_>, ids: Source<'_>, batch: usize, out: &mut [u8]) -> Result<()> {
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
    by_size!(x.view.dtype, rows, x, out, inner, (0..lead.iter().product()).map(at))
}
