//! Gradients of reductions and running sums.
//!
//! In: the reduction, the gradient of its result. Out: the gradient of its operand. Invariant: of
//! equal largest elements each gets the same share, as in PyTorch's `amax`; a product has the right
//! gradient at zeros too.

use hypatia_dsl::builtin::{BuiltinOp, BuiltinScalar};
use hypatia_dsl::ir::AttrValue;
use hypatia_dsl::shape::Dim;
use hypatia_tensor::error::Result;

use super::{Applied, Backward};
use crate::Value;

impl Backward<'_> {
    /// The reduced axes.
    fn reduced(&self, a: &Applied, x: Value) -> Result<Vec<usize>> {
        let rank = self.emit.rank(x);
        let mut axes: Vec<usize> =
            a.ints(0)?.into_iter().map(|v| if v < 0 { v + rank as i64 } else { v } as usize).collect();
        axes.sort_unstable();
        axes.dedup();
        Ok(axes)
    }

    /// A value of the result's shape, with an axis of size 1 for each reduced one.
    fn kept(&mut self, v: Value, x: Value, axes: &[usize]) -> Result<Value> {
        let mut shape = self.emit.shape(x);
        axes.iter().for_each(|i| shape[*i] = Dim::from(1));
        self.emit.reshape(v, shape)
    }

    pub(super) fn sum(&mut self, a: &Applied) -> Result<()> {
        let (x, gradient) = (a.operand(0)?, a.gradient()?);
        let axes = self.reduced(a, x)?;
        let part = self.kept(gradient, x, &axes)?;
        let part = self.emit.expand(part, self.emit.shape(x))?;
        self.add(x, part)
    }

    pub(super) fn mean(&mut self, a: &Applied) -> Result<()> {
        let (x, gradient) = (a.operand(0)?, a.gradient()?);
        let axes = self.reduced(a, x)?;
        let shape = self.emit.shape(x);
        let count = self.emit.count(self.emit.dtype(gradient), &shape, &axes)?;
        let part = self.emit.call(BuiltinScalar::Div, &[gradient, count])?;
        let part = self.kept(part, x, &axes)?;
        let part = self.emit.expand(part, shape)?;
        self.add(x, part)
    }

    pub(super) fn extreme(&mut self, a: &Applied) -> Result<()> {
        let (x, gradient) = (a.operand(0)?, a.gradient()?);
        let axes = self.reduced(a, x)?;
        let result = self.kept(a.results[0], x, &axes)?;
        let equal = self.emit.call(BuiltinScalar::Eq, &[x, result])?;
        // Counts beyond 2048 are no f16.
        let dtype = self.emit.dtype(x);
        let ones = self.emit.cast(equal, dtype.compute())?;
        let count = self.emit.sum(ones, &axes, true)?;
        let part = self.kept(gradient, x, &axes)?;
        let part = self.emit.cast(part, dtype.compute())?;
        let part = self.emit.call(BuiltinScalar::Div, &[part, count])?;
        let part = self.emit.cast(part, dtype)?;
        let part = self.emit.expand(part, self.emit.shape(x))?;
        let part = self.emit.only_where(equal, part)?;
        self.add(x, part)
    }

    /// The product of the others: the product divided by the element if there is no zero; the
    /// product of what is no zero at the only zero; 0 otherwise.
    pub(super) fn prod(&mut self, a: &Applied) -> Result<()> {
        let (x, gradient) = (a.operand(0)?, a.gradient()?);
        let axes = self.reduced(a, x)?;
        let (dtype, within) = (self.emit.dtype(x), self.emit.dtype(x).compute());
        let number = self.emit.cast(x, within)?;
        let (zero, one) = (self.emit.number(within, 0.0)?, self.emit.number(within, 1.0)?);
        let is_zero = self.emit.call(BuiltinScalar::Eq, &[number, zero])?;
        let others = self.emit.call(BuiltinScalar::Select, &[is_zero, one, number])?;
        let others = self.emit.op(BuiltinOp::Prod, &[others], &[super::emit::axes(&axes), true.into()])?;
        let zeros = self.emit.cast(is_zero, within)?;
        let zeros = self.emit.sum(zeros, &axes, true)?;
        let without = self.emit.call(BuiltinScalar::Div, &[others, number])?;
        // One zero: only its own gradient. Without any, only the others'.
        let as_number = self.emit.cast(is_zero, within)?;
        let alone = self.emit.call(BuiltinScalar::Eq, &[zeros, as_number])?;
        let slope = self.emit.call(BuiltinScalar::Select, &[is_zero, others, without])?;
        let slope = self.emit.only_where(alone, slope)?;
        let part = self.kept(gradient, x, &axes)?;
        let part = self.emit.cast(part, within)?;
        let part = self.emit.mul(part, slope)?;
        let part = self.emit.cast(part, dtype)?;
        self.add(x, part)
    }

    /// A running sum in the other direction.
    pub(super) fn cumsum(&mut self, a: &Applied) -> Result<()> {
        let (x, gradient) = (a.operand(0)?, a.gradient()?);
        let attrs = [a.attrs[0].clone(), a.flag(1).into(), AttrValue::Bool(!a.flag(2))];
        let part = self.emit.op(BuiltinOp::Cumsum, &[gradient], &attrs)?;
        self.add(x, part)
    }
}
