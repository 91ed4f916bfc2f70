//! Transposed convolutions as ordinary ones.
//!
//! In: an operand, filters, and how they are convolved. Out: the operand with zeros between its
//! elements, and its convolution with the reversed filters. Invariant: paddings below 0 crop
//! elements.

use hypatia_dsl::builtin::BuiltinOp;
use hypatia_dsl::shape::Dim;

use super::super::context::{Ctx, Out, dims, int, ints};
use hypatia_graph::Value;

/// A transposed convolution as an ordinary one.
pub(super) struct Transposed {
    pub strides: Vec<i64>,
    pub dilations: Vec<i64>,
    pub groups: i64,
    /// The padding of the ordinary convolution; what is negative crops elements.
    pub before: Vec<i64>,
    pub after: Vec<i64>,
}

impl Transposed {
    /// The operand with zeros between its elements, cropped.
    pub(super) fn spread(&self, ctx: &mut Ctx, mut x: Value) -> Out<Value> {
        for (i, stride) in self.strides.iter().enumerate() {
            x = spread(ctx, x, 2 + i, *stride)?;
        }
        // Padding beyond the filter's extent crops elements. The padding at the end may also exceed
        // that extent.
        let cut = |list: &[i64]| -> Vec<Dim> { [0, 0].iter().chain(list).map(|v| Dim::from((*v).min(0))).collect() };
        let (front, back) = (cut(&self.before), cut(&self.after));
        if front.iter().chain(&back).all(|d| *d == Dim::from(0)) {
            return Ok(x);
        }
        let zero = ctx.number(ctx.dtype_of(x), 0.0)?;
        ctx.op(BuiltinOp::Pad, &[x, zero], vec![dims(&front), dims(&back)])
    }

    /// The convolution of a spread operand.
    pub(super) fn convolve(&self, ctx: &mut Ctx, x: Value, w: Value) -> Out<Value> {
        let w = reversed(ctx, w, self.groups)?;
        let kept = |list: &[i64]| ints(&list.iter().map(|v| (*v).max(0)).collect::<Vec<_>>());
        let strides = ints(&vec![1; self.before.len()]);
        let dilations = ints(&self.dilations);
        let attrs = vec![strides, kept(&self.before), kept(&self.after), dilations, int(self.groups)];
        ctx.op(BuiltinOp::Conv, &[x, w], attrs)
    }
}

/// Inserts `stride - 1` zeros between the elements along an axis.
fn spread(ctx: &mut Ctx, x: Value, axis: usize, stride: i64) -> Out<Value> {
    if stride == 1 {
        return Ok(x);
    }
    let shape = ctx.shape_of(x);
    let mut apart = shape.clone();
    apart.insert(axis + 1, Dim::from(1));
    let mut behind = vec![Dim::from(0); apart.len()];
    let nothing = behind.clone();
    behind[axis + 1] = Dim::from(stride - 1);
    let mut joined = shape;
    let Some(total) = joined[axis].checked_mul(&Dim::from(stride)) else { return ctx.wrong("the stride is too large") };
    joined[axis] = total;
    let x = ctx.reshape(x, &apart)?;
    let zero = ctx.number(ctx.dtype_of(x), 0.0)?;
    let x = ctx.op(BuiltinOp::Pad, &[x, zero], vec![dims(&nothing), dims(&behind)])?;
    let x = ctx.reshape(x, &joined)?;
    // Removes the zeros after the last element, which do not lie between two elements.
    let mut behind = vec![Dim::from(0); joined.len()];
    let nothing = behind.clone();
    behind[axis] = Dim::from(1 - stride);
    let zero = ctx.number(ctx.dtype_of(x), 0.0)?;
    ctx.op(BuiltinOp::Pad, &[x, zero], vec![dims(&nothing), dims(&behind)])
}

/// Filters `[c, o / groups, ..]` as `[o, c / groups, ..]`, with each spatial axis reversed.
fn reversed(ctx: &mut Ctx, mut w: Value, groups: i64) -> Out<Value> {
    let shape = ctx.shape_of(w);
    let each = if groups >= 1 { shape[0].div_exact(&Dim::from(groups)) } else { None };
    let (Some(each), Some(all)) = (each, shape[1].checked_mul(&Dim::from(groups))) else {
        return ctx.wrong(format!("{groups} groups do not divide the {} channels", shape[0]));
    };
    for (axis, size) in shape.iter().enumerate().skip(2) {
        let Some(size) = size.as_const() else { return ctx.wrong("a filter of dynamic size") };
        let attrs = vec![int(axis as i64), int(size - 1), int(-1), int(-1)];
        w = ctx.op(BuiltinOp::Slice, &[w], attrs)?;
    }
    let split = [&[Dim::from(groups), each.clone(), shape[1].clone()], &shape[2..]].concat();
    let w = ctx.reshape(w, &split)?;
    let mut perm: Vec<i64> = (0..split.len() as i64).collect();
    perm.swap(1, 2);
    let w = ctx.transpose(w, &perm)?;
    ctx.reshape(w, &[&[all, each], &shape[2..]].concat())
}
