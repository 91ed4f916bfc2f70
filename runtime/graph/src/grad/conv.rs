//! Gradients of convolutions and of sliding windows.
//!
//! In: the convolution, the gradient of its result. Out: the gradients of input and filter, each as
//! one convolution. Invariant: strides, dilations, padding and groups of any size are admitted.
//! Source: V. Dumoulin and F. Visin, "A guide to convolution arithmetic for deep learning", 2016.

use hypatia_dsl::builtin::BuiltinOp;
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::AttrValue;
use hypatia_dsl::shape::{Dim, Shape, product};
use hypatia_dsl::typing::TensorType;
use hypatia_tensor::error::Result;

use super::emit::size;
use super::{Applied, Backward};
use crate::Value;

/// The attributes of a convolution, and its sizes.
struct Shapes {
    strides: Vec<i64>,
    before: Vec<i64>,
    after: Vec<i64>,
    dilations: Vec<i64>,
    groups: i64,
    x: Shape,
    w: Shape,
}

impl Backward<'_> {
    pub(super) fn conv(&mut self, a: &Applied) -> Result<()> {
        let gradient = a.gradient()?;
        self.conv_factors(a, gradient)
    }

    /// Adds to the gradients of input and filter.
    pub(super) fn conv_factors(&mut self, a: &Applied, gradient: Value) -> Result<()> {
        let (x, w) = (a.operand(0)?, a.operand(1)?);
        let of = Shapes {
            strides: a.ints(0)?,
            before: a.ints(1)?,
            after: a.ints(2)?,
            dilations: a.ints(3)?,
            groups: a.int(4)?,
            x: self.emit.shape(x),
            w: self.emit.shape(w),
        };
        if self.wants(x) {
            let part = self.conv_input(&of, w, gradient)?;
            self.add(x, part)?;
        }
        if self.wants(w) {
            let part = self.conv_filter(&of, x, gradient)?;
            self.add(w, part)?;
        }
        Ok(())
    }

    /// The gradient by the input: the result's gradient, with zeros between its elements where the
    /// convolution has strides, convolved with the filter, whose windows are reversed and whose
    /// channels are exchanged in each group.
    fn conv_input(&mut self, of: &Shapes, w: Value, gradient: Value) -> Result<Value> {
        let n = of.strides.len();
        let (mut before, mut after) = (vec![Dim::from(0); n + 2], vec![Dim::from(0); n + 2]);
        let mut spread = gradient;
        for i in 0..n {
            spread = self.emit.spread(spread, i + 2, of.strides[i])?;
            let reach = size(size(of.w[i + 2].checked_sub(&Dim::from(1)))?.checked_mul(&Dim::from(of.dilations[i])))?;
            before[i + 2] = size(reach.checked_sub(&Dim::from(of.before[i])))?;
            // As many windows as the input has elements.
            let have = size(self.emit.ty(spread).shape[i + 2].checked_add(&before[i + 2]))?;
            let need = size(of.x[i + 2].checked_add(&reach))?;
            after[i + 2] = size(need.checked_sub(&have))?;
        }
        let spread = self.emit.pad(spread, before, after)?;
        let filter = self.exchanged(of, w)?;
        let ones = vec![1; n];
        self.emit.op(
            BuiltinOp::Conv,
            &[spread, filter],
            &attrs(&ones, &vec![0; n], &vec![0; n], &of.dilations, of.groups),
        )
    }

    /// `[groups * o, i, ..]` as `[groups * i, o, ..]`, windows reversed.
    fn exchanged(&mut self, of: &Shapes, w: Value) -> Result<Value> {
        let mut filter = w;
        for axis in 2..of.w.len() {
            filter = self.emit.reversed(filter, axis)?;
        }
        let filter = self.split_groups(filter, of.groups)?;
        let mut perm: Vec<usize> = (0..of.w.len() + 1).collect();
        perm.swap(1, 2);
        let filter = self.emit.transpose(filter, &perm)?;
        let mut shape = self.emit.shape(filter);
        let channels = size(shape[0].checked_mul(&shape[1]))?;
        shape.splice(0..2, [channels]);
        self.emit.reshape(filter, shape)
    }

    /// The first axis as groups and what is in each.
    fn split_groups(&mut self, v: Value, groups: i64) -> Result<Value> {
        let mut shape = self.emit.shape(v);
        let each = size(shape[0].floor_div(&Dim::from(groups)))?;
        shape.splice(0..1, [Dim::from(groups), each]);
        self.emit.reshape(v, shape)
    }

    /// The gradient by the filter: the input convolved with the result's gradient, the batch as
    /// channels. Strides and dilations change places. Windows that the strides left out are cut.
    fn conv_filter(&mut self, of: &Shapes, x: Value, gradient: Value) -> Result<Value> {
        let n = of.strides.len();
        // [batch, groups * c, ..] as [c, groups * batch, ..].
        let mut shape = self.emit.shape(x);
        let (batch, each) = (shape[0].clone(), size(shape[1].floor_div(&Dim::from(of.groups)))?);
        shape.splice(1..2, [Dim::from(of.groups), each.clone()]);
        let input = self.emit.reshape(x, shape)?;
        let mut perm = vec![2, 1, 0];
        perm.extend(3..n + 3);
        let input = self.emit.transpose(input, &perm)?;
        let mut shape = self.emit.shape(input);
        shape.splice(1..3, [size(batch.checked_mul(&Dim::from(of.groups)))?]);
        let input = self.emit.reshape(input, shape)?;
        let mut perm = vec![1, 0];
        perm.extend(2..n + 2);
        let filter = self.emit.transpose(gradient, &perm)?;
        let attrs = attrs(&of.dilations, &of.before, &of.after, &of.strides, of.groups);
        let mut whole = self.emit.op(BuiltinOp::Conv, &[input, filter], &attrs)?;
        for axis in 2..n + 2 {
            whole = self.emit.slice(whole, axis, Dim::from(0), of.w[axis].clone(), 1)?;
        }
        self.emit.transpose(whole, &perm)
    }

    /// Windows overlap: each element's gradient is a sum over the windows that hold it. The indices
    /// of the elements, seen through the same windows, say where each gradient belongs.
    pub(super) fn windows(&mut self, a: &Applied) -> Result<()> {
        let (x, gradient) = (a.operand(0)?, a.gradient()?);
        if !self.wants(x) {
            return Ok(());
        }
        let shape = self.emit.shape(x);
        let n = a.ints(0)?.len();
        let outer = shape.len() - n;
        let count = size(product(&shape[outer..]))?;
        let ty = TensorType { dtype: DType::I64, shape: vec![count.clone()] };
        let iota = [ty.shape.clone().into(), 0.into(), ty.dtype.into()];
        let indices = self.emit.op(BuiltinOp::Iota, &[], &iota)?;
        let indices = self.emit.reshape(indices, shape[outer..].to_vec())?;
        let indices = self.emit.op(BuiltinOp::Windows, &[indices], &a.attrs)?;
        let indices = self.emit.flat(indices)?;
        // The axes of windows first, those before them last.
        let rank = self.emit.rank(gradient);
        let perm: Vec<usize> = (outer..rank).chain(0..outer).collect();
        let updates = self.emit.transpose(gradient, &perm)?;
        let mut rows: Shape = vec![self.emit.shape(indices)[0].clone()];
        rows.extend_from_slice(&shape[..outer]);
        let updates = self.emit.reshape(updates, rows)?;
        let sums = self.emit.scatter_add(count, indices, updates)?;
        let perm: Vec<usize> = (1..=outer).chain([0]).collect();
        let part = self.emit.transpose(sums, &perm)?;
        let part = self.emit.reshape(part, shape)?;
        self.add(x, part)
    }
}

fn attrs(strides: &[i64], before: &[i64], after: &[i64], dilations: &[i64], groups: i64) -> [AttrValue; 5] {
    let list = |l: &[i64]| AttrValue::List(l.iter().map(|v| AttrValue::from(*v)).collect());
    [list(strides), list(before), list(after), list(dilations), groups.into()]
}
