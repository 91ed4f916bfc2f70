//! Gradients of gathers and scatters.
//!
//! In: the op, the gradient of its result. Out: the gradient of the data, with the gradients of an
//! element that was read several times added up; of a scatter also that of the updates. Invariant:
//! indices below 0 count from the end, in both directions.

use hypatia_dsl::builtin::{BuiltinOp, BuiltinScalar};
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::AttrValue;
use hypatia_dsl::shape::{Dim, Shape, product};
use hypatia_tensor::error::{Error, Result};

use super::emit::size;
use super::{Applied, Backward};
use crate::Value;

impl Backward<'_> {
    /// The slices' gradients are added at the rows that they were read from.
    pub(super) fn gather(&mut self, a: &Applied) -> Result<()> {
        let (x, indices, gradient) = (a.operand(0)?, a.operand(1)?, a.gradient()?);
        if !self.wants(x) {
            return Ok(());
        }
        let (shape, many) = (self.emit.shape(x), self.emit.rank(indices));
        let axis = a.axis(0, shape.len())?;
        // The axes of the indices first.
        let rank = self.emit.rank(gradient);
        let perm: Vec<usize> = (axis..axis + many).chain(0..axis).chain(axis + many..rank).collect();
        let updates = self.emit.transpose(gradient, &perm)?;
        let indices = self.emit.flat(indices)?;
        let mut rows: Shape = self.emit.shape(indices);
        rows.extend(shape.iter().enumerate().filter(|(i, _)| *i != axis).map(|(_, d)| d.clone()));
        let updates = self.emit.reshape(updates, rows)?;
        let sums = self.emit.scatter_add(shape[axis].clone(), indices, updates)?;
        let perm: Vec<usize> = (1..=axis).chain([0]).chain(axis + 1..shape.len()).collect();
        let part = self.emit.transpose(sums, &perm)?;
        self.add(x, part)
    }

    /// Each gradient is added at the row-major position of its element. One index for each row, as
    /// cross-entropy has, needs no sums: the gradient stands where the axis has that index.
    pub(super) fn gather_elements(&mut self, a: &Applied) -> Result<()> {
        let (x, indices, gradient) = (a.operand(0)?, a.operand(1)?, a.gradient()?);
        if !self.wants(x) {
            return Ok(());
        }
        let (shape, among) = (self.emit.shape(x), self.emit.shape(indices));
        let axis = a.axis(0, shape.len())?;
        let mut single = shape.clone();
        single[axis] = Dim::from(1);
        if among == single {
            let (index, along) = (self.counted_from_start(indices, &shape[axis])?, self.iota(&shape, axis)?);
            let here = self.emit.call(BuiltinScalar::Eq, &[along, index])?;
            let part = self.emit.only_where(here, gradient)?;
            return self.add(x, part);
        }
        let mut at = Vec::with_capacity(shape.len());
        for (i, size) in shape.iter().enumerate() {
            at.push(if i == axis { self.counted_from_start(indices, size)? } else { self.iota(&among, i)? });
        }
        let position = self.position(&shape, &at)?;
        let (position, updates) = (self.emit.flat(position)?, self.emit.flat(gradient)?);
        let sums = self.emit.scatter_add(size(product(&shape))?, position, updates)?;
        let part = self.emit.reshape(sums, shape)?;
        self.add(x, part)
    }

    /// The same for slices: their position among the leading axes.
    pub(super) fn gather_nd(&mut self, a: &Applied) -> Result<()> {
        let (x, indices, gradient) = (a.operand(0)?, a.operand(1)?, a.gradient()?);
        if !self.wants(x) {
            return Ok(());
        }
        let (shape, mut among) = (self.emit.shape(x), self.emit.shape(indices));
        let batch = usize::try_from(a.int(0)?).map_err(|_| Error::Internal("a negative batch".into()))?;
        let last = among.len() - 1;
        let Some(parts) = among.pop().and_then(|d| d.as_const()) else {
            return Err(Error::Type("gather_nd has a gradient where the size of the last axis is known".into()));
        };
        let leading = batch + parts as usize;
        let mut at = Vec::with_capacity(leading);
        for (i, size) in shape.iter().enumerate().take(leading) {
            at.push(if i < batch {
                self.iota(&among, i)?
            } else {
                let j = (i - batch) as i64;
                let part = self.emit.slice(indices, last, Dim::from(j), Dim::from(j + 1), 1)?;
                let part = self.emit.reshape(part, among.clone())?;
                self.counted_from_start(part, size)?
            });
        }
        let position = self.position(&shape[..leading], &at)?;
        let position = self.emit.flat(position)?;
        let mut rows: Shape = self.emit.shape(position);
        rows.extend_from_slice(&shape[leading..]);
        let updates = self.emit.reshape(gradient, rows)?;
        let sums = self.emit.scatter_add(size(product(&shape[..leading]))?, position, updates)?;
        let part = self.emit.reshape(sums, shape)?;
        self.add(x, part)
    }

    /// The index along an axis, in i64.
    fn iota(&mut self, shape: &[Dim], axis: usize) -> Result<Value> {
        let attrs = [shape.to_vec().into(), (axis as i64).into(), DType::I64.into()];
        self.emit.op(BuiltinOp::Iota, &[], &attrs)
    }

    /// A size as a number in i64.
    fn whole(&mut self, d: &Dim) -> Result<Value> {
        match d.as_const() {
            Some(n) => self.emit.number(DType::I64, n as f64),
            None => self.emit.op(BuiltinOp::Size, &[], &[d.clone().into()]),
        }
    }

    /// Indices in i64, those below 0 counted from the end.
    fn counted_from_start(&mut self, indices: Value, length: &Dim) -> Result<Value> {
        let indices = self.emit.cast(indices, DType::I64)?;
        let (zero, length) = (self.emit.number(DType::I64, 0.0)?, self.whole(length)?);
        let below = self.emit.call(BuiltinScalar::Lt, &[indices, zero])?;
        let moved = self.emit.add(indices, length)?;
        self.emit.call(BuiltinScalar::Select, &[below, moved, indices])
    }

    /// The row-major position of an element of that shape.
    fn position(&mut self, shape: &[Dim], at: &[Value]) -> Result<Value> {
        let Some((first, rest)) = at.split_first() else {
            return Err(Error::Type("a gather without any index has no gradient".into()));
        };
        let mut position = *first;
        for (i, index) in rest.iter().enumerate() {
            let length = self.whole(&shape[i + 1])?;
            let row = self.emit.mul(position, length)?;
            position = self.emit.add(row, *index)?;
        }
        Ok(position)
    }

    /// With "set", rows that were replaced have gradient 0, and of several updates of a row the
    /// last one has its gradient. With "add", both have it.
    pub(super) fn scatter(&mut self, a: &Applied) -> Result<()> {
        let (x, indices, updates, gradient) = (a.operand(0)?, a.operand(1)?, a.operand(2)?, a.gradient()?);
        let how = match a.attrs.first() {
            Some(AttrValue::Str(how)) => how.as_str(),
            _ => "",
        };
        let replaces = match how {
            "set" => true,
            "add" => false,
            _ => return Err(Error::Type(format!("`scatter` with how = \"{how}\" has no gradient").into())),
        };
        if self.wants(x) {
            let part = if replaces {
                let ty = self.emit.ty(updates).clone();
                let zeros = self.emit.full(&ty, 0.0)?;
                self.emit.op(BuiltinOp::Scatter, &[gradient, indices, zeros], &[AttrValue::Str("set".into())])?
            } else {
                gradient
            };
            self.add(x, part)?;
        }
        if self.wants(updates) {
            let mut part = self.emit.op(BuiltinOp::Gather, &[gradient, indices], &[0.into()])?;
            if replaces {
                let last = self.last_of_each(x, indices, updates)?;
                part = self.emit.only_where(last, part)?;
            }
            self.add(updates, part)?;
        }
        Ok(())
    }

    /// Whether an update is the last one of its row, as a truth value that broadcasts to updates.
    fn last_of_each(&mut self, x: Value, indices: Value, updates: Value) -> Result<Value> {
        let mut ty = self.emit.ty(x).clone();
        (ty.dtype, ty.shape) = (DType::I64, vec![ty.shape[0].clone()]);
        let mut shape = self.emit.shape(indices);
        let order = self.iota(&shape, 0)?;
        let none = self.emit.full(&ty, 0.0)?;
        let last = self.emit.op(BuiltinOp::Scatter, &[none, indices, order], &[AttrValue::Str("set".into())])?;
        let last = self.emit.op(BuiltinOp::Gather, &[last, indices], &[0.into()])?;
        let last = self.emit.call(BuiltinScalar::Eq, &[last, order])?;
        shape.resize(self.emit.rank(updates), Dim::from(1));
        self.emit.reshape(last, shape)
    }
}
