//! Pointwise ops, and ops that make tensors from attributes.
//!
//! In: operands, and the shape of the result. Out: the result. Invariant: each element is computed
//! by itself, in row-major order.

use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::Program;
use hypatia_dsl::scalar::Term;
use hypatia_dsl::scalar::typed::{Source, inlined};

use super::Mode;
use super::number::Number;
use super::scalars::{BLOCK, Block};
use super::value::{RefTensor, Val, convert};
use hypatia_tensor::error::{Error, Result};

/// Strides with which an operand of shape `from` is read at the indices of `to`; 0 where it
/// broadcasts.
fn broadcast_strides(from: &[usize], to: &[usize]) -> Result<Vec<usize>> {
    let skip = to.len().checked_sub(from.len());
    let mut strides = vec![0; to.len()];
    let mut step = 1;
    for (i, size) in from.iter().enumerate().rev() {
        let at = skip.map(|s| s + i).filter(|at| *size == 1 || *size == to[*at]);
        let at = at.ok_or_else(|| Error::Internal(format!("{from:?} does not broadcast to {to:?}")))?;
        strides[at] = if *size == 1 { 0 } else { step };
        step *= size;
    }
    Ok(strides)
}

/// Walks the indices of a shape in row-major order, keeping one offset for each list of strides.
pub(super) struct Walk<'a> {
    shape: &'a [usize],
    index: Vec<usize>,
    strides: Vec<Vec<usize>>,
    /// Offsets at the present index.
    pub offsets: Vec<usize>,
}

impl<'a> Walk<'a> {
    pub(super) fn new(shape: &'a [usize], strides: Vec<Vec<usize>>) -> Walk<'a> {
        Walk { shape, index: vec![0; shape.len()], offsets: vec![0; strides.len()], strides }
    }

    pub(super) fn broadcast(shape: &'a [usize], operands: &[&[usize]]) -> Result<Walk<'a>> {
        let strides = operands.iter().map(|s| broadcast_strides(s, shape)).collect::<Result<_>>()?;
        Ok(Walk::new(shape, strides))
    }

    pub(super) fn step(&mut self) {
        for axis in (0..self.shape.len()).rev() {
            self.index[axis] += 1;
            for (offset, s) in self.offsets.iter_mut().zip(&self.strides) {
                *offset += s[axis];
            }
            if self.index[axis] < self.shape[axis] {
                return;
            }
            for (offset, s) in self.offsets.iter_mut().zip(&self.strides) {
                *offset -= s[axis] * self.shape[axis];
            }
            self.index[axis] = 0;
        }
    }
}

/// The first root of `term` at every element of `shape`, rounded once to `dtype`.
pub(super) fn pointwise<R: Number>(
    program: &Program,
    term: &Term,
    acc: Option<&RefTensor<R>>,
    operands: &[&RefTensor<R>],
    dtype: DType,
    shape: &[usize],
    mode: Mode,
) -> Result<RefTensor<R>> {
    let dtypes: Vec<DType> = operands.iter().map(|t| t.dtype).collect();
    let typed = inlined(program, term, acc.map(|t| t.dtype), &dtypes)?;
    let root = *typed.roots.first().ok_or_else(|| Error::Internal("a term without a root".into()))? as usize;
    let mut out = RefTensor::zeros(dtype, shape)?;
    let mut walk = Walk::broadcast(shape, &operands.iter().map(|t| t.shape.as_slice()).collect::<Vec<_>>())?;
    let mut offsets = vec![[0; BLOCK]; operands.len()];
    let mut block = Block::of(&typed);
    for start in (0..out.len()).step_by(BLOCK) {
        let n = (out.len() - start).min(BLOCK);
        for j in 0..n {
            for (of, at) in offsets.iter_mut().zip(&walk.offsets) {
                of[j] = *at;
            }
            walk.step();
        }
        block.eval(&typed, mode, n, |source, values| {
            for (j, v) in values.iter_mut().enumerate() {
                *v = match source {
                    Source::Acc => acc.map_or(Val::F(R::of(f64::NAN)), |t| t.at(start + j)),
                    Source::In(k) => operands[k as usize].at(offsets[k as usize][j]),
                };
            }
        });
        for (j, v) in block.at(root)[..n].iter().enumerate() {
            out.set(start + j, convert(*v, dtype, mode.rounds()));
        }
    }
    Ok(out)
}

/// Conversion of every element. In Exact mode floats are not rounded.
pub(super) fn cast<R: Number>(x: &RefTensor<R>, to: DType, mode: Mode) -> Result<RefTensor<R>> {
    let mut out = RefTensor::zeros(to, &x.shape)?;
    for i in 0..x.len() {
        out.set(i, convert(x.at(i), to, mode.rounds()));
    }
    Ok(out)
}

/// The index along an axis.
pub(super) fn iota<R: Number>(dtype: DType, shape: &[usize], axis: usize, mode: Mode) -> Result<RefTensor<R>> {
    let mut out = RefTensor::zeros(dtype, shape)?;
    let inner: usize = shape[axis + 1..].iter().product();
    for i in 0..out.len() {
        let at = (i / inner.max(1)) % shape[axis];
        out.set(i, convert(Val::I(at as i64), dtype, mode.rounds()));
    }
    Ok(out)
}

/// One value everywhere. It is part of the op's type, so it is rounded in either mode.
pub(super) fn full<R: Number>(dtype: DType, shape: &[usize], value: f64) -> Result<RefTensor<R>> {
    let mut out = RefTensor::zeros(dtype, shape)?;
    let v = convert(Val::F(R::of(value)), dtype, true);
    for i in 0..out.len() {
        out.set(i, v);
    }
    Ok(out)
}
