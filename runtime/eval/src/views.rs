//! Ops that move elements and compute nothing, and scatters.
//!
//! In: an operand, indices or sizes. Out: its elements in another order or shape. Invariant: an
//! index outside of its axis is an error.

use hypatia_dsl::builtin::ScatterReduction;

use super::number::Number;
use super::ops::Walk;
use super::value::{Data, RefTensor, Val, convert};
use super::{Mode, scalars};
use hypatia_tensor::error::{Error, Result};

fn row_major(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; shape.len()];
    for i in (1..shape.len()).rev() {
        strides[i - 1] = strides[i] * shape[i];
    }
    strides
}

/// The elements of `x` that `source` names for each position of the result; `None` takes `fill`.
fn pick<R: Number>(
    x: &RefTensor<R>,
    shape: &[usize],
    fill: Val<R>,
    mut source: impl FnMut(usize) -> Result<Option<usize>>,
) -> Result<RefTensor<R>> {
    let mut out = RefTensor::zeros(x.dtype, shape)?;
    for i in 0..out.len() {
        let v = match source(i)? {
            Some(at) if at < x.len() => x.at(at),
            Some(at) => return Err(Error::Internal(format!("element {at} of a tensor of {}", x.len()))),
            None => fill,
        };
        out.set(i, v);
    }
    Ok(out)
}

pub(super) fn reshape<R: Number>(x: &RefTensor<R>, shape: &[usize]) -> Result<RefTensor<R>> {
    let n: usize = shape.iter().product();
    if n != x.len() {
        return Err(Error::Internal(format!("reshape of {:?} to {shape:?}", x.shape)));
    }
    Ok(RefTensor { shape: shape.to_vec(), ..x.clone() })
}

pub(super) fn transpose<R: Number>(x: &RefTensor<R>, perm: &[usize]) -> Result<RefTensor<R>> {
    let strides = row_major(&x.shape);
    let shape: Vec<usize> = perm.iter().map(|p| x.shape[*p]).collect();
    let mut walk = Walk::new(&shape, vec![perm.iter().map(|p| strides[*p]).collect()]);
    pick(x, &shape, Val::B(false), |_| {
        let at = walk.offsets[0];
        walk.step();
        Ok(Some(at))
    })
}

pub(super) fn expand<R: Number>(x: &RefTensor<R>, shape: &[usize]) -> Result<RefTensor<R>> {
    let mut walk = Walk::broadcast(shape, &[&x.shape])?;
    pick(x, shape, Val::B(false), |_| {
        let at = walk.offsets[0];
        walk.step();
        Ok(Some(at))
    })
}

/// Sizes before, at and after an axis, multiplied.
pub(super) fn around(shape: &[usize], axis: usize) -> (usize, usize, usize) {
    (shape[..axis].iter().product(), shape[axis], shape[axis + 1..].iter().product())
}

pub(super) fn slice<R: Number>(
    x: &RefTensor<R>,
    axis: usize,
    start: i64,
    step: i64,
    count: usize,
) -> Result<RefTensor<R>> {
    let mut shape = x.shape.clone();
    shape[axis] = count;
    let (_, size, inner) = around(&x.shape, axis);
    pick(x, &shape, Val::B(false), |i| {
        let (o, a, r) = (i / (inner * count), i / inner % count, i % inner);
        let at = usize::try_from(start + a as i64 * step).ok().filter(|at| *at < size);
        let at = at.ok_or_else(|| Error::Internal("a slice beyond its operand".into()))?;
        Ok(Some((o * size + at) * inner + r))
    })
}

pub(super) fn concat<R: Number>(xs: &[&RefTensor<R>], axis: usize, shape: &[usize]) -> Result<RefTensor<R>> {
    let first = xs.first().ok_or_else(|| Error::Internal("concat of nothing".into()))?;
    let mut out = RefTensor::zeros(first.dtype, shape)?;
    let (outer, size, inner) = around(shape, axis);
    let mut before = 0;
    for x in xs {
        let mine = x.shape[axis];
        for o in 0..outer {
            for j in 0..mine * inner {
                out.set((o * size + before) * inner + j, x.at(o * mine * inner + j));
            }
        }
        before += mine;
    }
    Ok(out)
}

pub(super) fn split<R: Number>(x: &RefTensor<R>, axis: usize, sizes: &[usize]) -> Result<Vec<RefTensor<R>>> {
    let mut start = 0;
    let mut out = Vec::new();
    for size in sizes {
        out.push(slice(x, axis, start, 1, *size)?);
        start += *size as i64;
    }
    Ok(out)
}

pub(super) fn pad<R: Number>(x: &RefTensor<R>, fill: Val<R>, before: &[i64], shape: &[usize]) -> Result<RefTensor<R>> {
    let to = row_major(shape);
    let from = row_major(&x.shape);
    pick(x, shape, fill, |i| {
        let mut at = 0;
        for axis in 0..shape.len() {
            let index = (i / to[axis] % shape[axis]) as i64 - before[axis];
            match usize::try_from(index).ok().filter(|v| *v < x.shape[axis]) {
                Some(v) => at += v * from[axis],
                None => return Ok(None),
            }
        }
        Ok(Some(at))
    })
}

/// An index into an axis of that size; negative ones count from the end.
fn index(value: i64, size: usize) -> Result<usize> {
    let at = if value < 0 { value.checked_add(size as i64).unwrap_or(-1) } else { value };
    usize::try_from(at).ok().filter(|v| *v < size).ok_or_else(|| Error::outside(value, size))
}

fn indices<R: Number>(t: &RefTensor<R>) -> Result<&[i64]> {
    match &t.data {
        Data::I(v) => Ok(v),
        _ => Err(Error::Internal(format!("indices of type {}", t.dtype))),
    }
}

pub(super) fn gather<R: Number>(
    x: &RefTensor<R>,
    at: &RefTensor<R>,
    axis: usize,
    shape: &[usize],
) -> Result<RefTensor<R>> {
    let ids = indices(at)?.iter().map(|v| index(*v, x.shape[axis])).collect::<Result<Vec<_>>>()?;
    let (_, size, inner) = around(&x.shape, axis);
    let count = ids.len();
    pick(x, shape, Val::B(false), |i| {
        let (o, a, r) = (i / (inner * count), i / inner % count, i % inner);
        Ok(Some((o * size + ids[a]) * inner + r))
    })
}

pub(super) fn gather_elements<R: Number>(x: &RefTensor<R>, at: &RefTensor<R>, axis: usize) -> Result<RefTensor<R>> {
    let ids = indices(at)?;
    let from = row_major(&x.shape);
    let mut walk =
        Walk::new(&at.shape, vec![from.iter().enumerate().map(|(i, s)| if i == axis { 0 } else { *s }).collect()]);
    pick(x, &at.shape, Val::B(false), |i| {
        let base = walk.offsets[0];
        walk.step();
        Ok(Some(base + index(ids[i], x.shape[axis])? * from[axis]))
    })
}

pub(super) fn gather_nd<R: Number>(
    x: &RefTensor<R>,
    at: &RefTensor<R>,
    batch: usize,
    shape: &[usize],
) -> Result<RefTensor<R>> {
    let ids = indices(at)?;
    let width = at.shape.last().copied().unwrap_or(0);
    if batch + width > x.shape.len() || at.shape.len() <= batch {
        return Err(Error::Internal("gather_nd with too long indices".into()));
    }
    // Also where nothing is gathered, as `gather` does.
    ids.iter().enumerate().try_for_each(|(i, id)| index(*id, x.shape[batch + i % width]).map(drop))?;
    let from = row_major(&x.shape);
    let inner: usize = x.shape[batch + width..].iter().product();
    let per_batch: usize = at.shape[batch..at.shape.len() - 1].iter().product();
    let batch_size: usize = x.shape[batch..].iter().product();
    pick(x, shape, Val::B(false), |i| {
        let (row, r) = (i / inner, i % inner);
        let mut at = row / per_batch * batch_size + r;
        for k in 0..width {
            at += index(ids[row * width + k], x.shape[batch + k])? * from[batch + k];
        }
        Ok(Some(at))
    })
}

pub(super) fn scatter<R: Number>(
    x: &RefTensor<R>,
    at: &RefTensor<R>,
    updates: &RefTensor<R>,
    reduction: ScatterReduction,
    mode: Mode,
) -> Result<RefTensor<R>> {
    let mut out = x.clone();
    let rows = x.shape.first().copied().unwrap_or(0);
    let width: usize = x.shape[1..].iter().product();
    for (i, row) in indices(at)?.iter().enumerate() {
        let row = index(*row, rows)?;
        for column in 0..width {
            let (to, new) = (row * width + column, updates.at(i * width + column));
            let joined = match reduction {
                ScatterReduction::Replace => new,
                ScatterReduction::Combine(f) => {
                    convert(scalars::join(f, x.dtype, out.at(to), new), x.dtype, mode.rounds())
                }
            };
            out.set(to, joined);
        }
    }
    Ok(out)
}
