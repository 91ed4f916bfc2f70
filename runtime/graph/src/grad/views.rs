//! Gradients of views, of joined and cut tensors, and of casts.
//!
//! In: the op, the gradient of its result. Out: the gradient of its operand, as a view where the op
//! is one. Invariant: an element that the result does not hold has gradient 0.

use hypatia_dsl::ir::AttrValue;
use hypatia_dsl::shape::{Dim, Shape};
use hypatia_tensor::error::{Error, Result};

use super::emit::size;
use super::{Applied, Backward};

impl Backward<'_> {
    pub(super) fn cast(&mut self, a: &Applied) -> Result<()> {
        let (x, gradient) = (a.operand(0)?, a.gradient()?);
        if !self.emit.dtype(x).is_float() {
            return Ok(());
        }
        let part = self.emit.cast(gradient, self.emit.dtype(x))?;
        self.add(x, part)
    }

    pub(super) fn reshape(&mut self, a: &Applied) -> Result<()> {
        let (x, gradient) = (a.operand(0)?, a.gradient()?);
        let part = self.emit.reshape(gradient, self.emit.shape(x))?;
        self.add(x, part)
    }

    pub(super) fn transpose(&mut self, a: &Applied) -> Result<()> {
        let (x, gradient) = (a.operand(0)?, a.gradient()?);
        let rank = self.emit.rank(x) as i64;
        let mut inverse = vec![0; rank as usize];
        for (i, p) in a.ints(0)?.into_iter().enumerate() {
            let p = if p < 0 { p + rank } else { p };
            *inverse.get_mut(p as usize).ok_or_else(|| Error::Internal(format!("axis {p} of rank {rank}")))? = i;
        }
        let part = self.emit.transpose(gradient, &inverse)?;
        self.add(x, part)
    }

    pub(super) fn expand(&mut self, a: &Applied) -> Result<()> {
        let (x, gradient) = (a.operand(0)?, a.gradient()?);
        let shape = self.emit.shape(x);
        let part = self.emit.unbroadcast(gradient, &shape)?;
        self.add(x, part)
    }

    /// Zeros around; a stepped slice gets zeros in between, one with a negative step is reversed
    /// first.
    pub(super) fn slice(&mut self, a: &Applied) -> Result<()> {
        let (x, mut part) = (a.operand(0)?, a.gradient()?);
        let axis = a.axis(0, self.emit.rank(x))?;
        let (AttrValue::Dim(start), step) = (&a.attrs[1], a.int(3)?) else {
            return Err(Error::Internal("a slice without a start".into()));
        };
        let whole = self.emit.ty(x).shape[axis].clone();
        let count = self.emit.ty(part).shape[axis].clone();
        if count.as_const() == Some(0) {
            return Ok(());
        }
        let mut first = start.clone();
        if step < 0 {
            part = self.emit.reversed(part, axis)?;
            // The last element that is taken.
            let back = size(size(count.checked_sub(&Dim::from(1)))?.checked_mul(&Dim::from(step)))?;
            first = size(first.checked_add(&back))?;
        }
        let part = self.emit.spread(part, axis, step.abs())?;
        let used = size(self.emit.ty(part).shape[axis].checked_add(&first))?;
        let after = size(whole.checked_sub(&used))?;
        let part = self.emit.pad_axis(part, axis, first, after)?;
        self.add(x, part)
    }

    pub(super) fn concat(&mut self, a: &Applied) -> Result<()> {
        let gradient = a.gradient()?;
        let axis = a.axis(0, self.emit.rank(gradient))?;
        let mut start = Dim::from(0);
        for v in a.operands.iter().flatten() {
            let stop = size(start.checked_add(&self.emit.ty(*v).shape[axis]))?;
            if self.wants(*v) {
                let part = self.emit.slice(gradient, axis, start, stop.clone(), 1)?;
                self.add(*v, part)?;
            }
            start = stop;
        }
        Ok(())
    }

    pub(super) fn split(&mut self, a: &Applied) -> Result<()> {
        let x = a.operand(0)?;
        let axis = a.axis(0, self.emit.rank(x))?;
        let mut parts = Vec::with_capacity(a.results.len());
        for (result, given) in a.results.iter().zip(&a.given) {
            let ty = self.emit.ty(*result).clone();
            parts.push(match given {
                Some(gradient) => *gradient,
                None => self.emit.full(&ty, 0.0)?,
            });
        }
        let part = self.emit.concat(&parts, axis)?;
        self.add(x, part)
    }

    /// What was added is cut, what was cut is 0. The value that surrounds gets the rest.
    pub(super) fn pad(&mut self, a: &Applied) -> Result<()> {
        let (x, value, gradient) = (a.operand(0)?, a.operand(1)?, a.gradient()?);
        let (before, after) = (amounts(&a.attrs[0])?, amounts(&a.attrs[1])?);
        let opposite = |l: &Shape| l.iter().map(|d| size(d.checked_mul(&Dim::from(-1)))).collect::<Result<Shape>>();
        if self.wants(x) {
            let part = self.emit.pad(gradient, opposite(&before)?, opposite(&after)?)?;
            self.add(x, part)?;
        }
        if self.wants(value) {
            let mut inside = self.emit.ty(x).clone();
            inside.dtype = self.emit.dtype(gradient);
            let zeros = self.emit.full(&inside, 0.0)?;
            let one = self.emit.number(inside.dtype, 1.0)?;
            let attrs = [before.into(), after.into()];
            let outside = self.emit.op(hypatia_dsl::builtin::BuiltinOp::Pad, &[zeros, one], &attrs)?;
            let part = self.emit.mul(gradient, outside)?;
            let all: Vec<usize> = (0..self.emit.rank(part)).collect();
            let part = self.emit.sum(part, &all, false)?;
            self.add(value, part)?;
        }
        Ok(())
    }
}

fn amounts(attr: &AttrValue) -> Result<Shape> {
    let size = |v: &AttrValue| match v {
        AttrValue::Dim(d) => Some(d.clone()),
        _ => None,
    };
    let list = match attr {
        AttrValue::List(l) => l.iter().map(size).collect(),
        _ => None,
    };
    list.ok_or_else(|| Error::Internal("an amount of padding is no size".into()))
}
