//! Pooling: windows of each channel of an image, reduced.
//!
//! In: a reduction of windows on an image with its channels last. Out: the same reduction, whose
//! operand and result are views with the channels last: the planner makes one step of it.
//! Invariant: only windows that a kernel reduces are left to it.

use hypatia_dsl::builtin::BuiltinOp;
use hypatia_dsl::ir::AttrValue;
use hypatia_dsl::kernel::{PoolKernel, Reduction, WindowAxis};
use hypatia_tensor::error::Result;

use super::{Axes, Channels, FIRST, LAST, Lies};
use crate::{Node, NodeKind};

/// The reduction of windows; `None` if it is not by all of a window that a kernel reduces.
pub(super) fn reduced(pass: &mut Channels, op: BuiltinOp, node: &Node) -> Result<Option<Vec<Lies>>> {
    let (Some(v), NodeKind::Op { attrs, .. }) = (node.operands.first().copied().flatten(), &node.kind) else {
        return Ok(None);
    };
    let made = pass.graph.node(v.node);
    let NodeKind::Op { attrs: of_windows, .. } = &made.kind else { return Ok(None) };
    let whole = attrs.as_slice() == [[4i64, 5].into(), AttrValue::Bool(false)];
    if !whole || !fits(pass, op, made).unwrap_or(false) {
        return Ok(None);
    }
    let image = pass.of(v).value;
    let first = pass.transposed(image, &FIRST)?;
    let windows = pass.one(BuiltinOp::Windows, &[first], of_windows.clone())?;
    let reduced = pass.one(op, &[windows], attrs.clone())?;
    let value = pass.transposed(reduced, &LAST)?;
    Ok(Some(vec![Lies { value, axes: Axes::Last }]))
}

/// Whether a kernel reduces these windows; `None` if their sizes are not known.
fn fits(pass: &Channels, op: BuiltinOp, windows: &Node) -> Option<bool> {
    let NodeKind::Op { attrs, .. } = &windows.kind else { return None };
    let lists: Vec<Vec<usize>> = attrs.iter().map(list).collect::<Option<_>>()?;
    let [sizes, strides, dilations] = lists.as_slice() else { return None };
    let image = pass.graph.ty(windows.operands.first().copied()??);
    let of = |shape: &[hypatia_dsl::shape::Dim], axis: usize| {
        shape.get(axis).and_then(|d| d.as_const()).and_then(|n| usize::try_from(n).ok())
    };
    let counts = &windows.results.first()?.shape;
    let axis = |i: usize| {
        let (size, stride, dilation) = (*sizes.get(i)?, *strides.get(i)?, *dilations.get(i)?);
        let (image, out) = (of(&image.shape, 2 + i)?, of(counts, 2 + i)?);
        Some(WindowAxis { image, out, size, stride, dilation, before: 0 }.plain())
    };
    let kind = match op {
        BuiltinOp::Amax => Reduction::Max,
        BuiltinOp::Amin => Reduction::Min,
        BuiltinOp::Sum => Reduction::Sum,
        BuiltinOp::Mean => Reduction::Mean,
        _ => return None,
    };
    Some(PoolKernel::fits([axis(0)?, axis(1)?], of(&image.shape, 1)?, image.dtype, kind))
}

/// A list of sizes; `None` for another attribute.
fn list(a: &AttrValue) -> Option<Vec<usize>> {
    let size = |a: &AttrValue| match a {
        AttrValue::Dim(d) => d.as_const().and_then(|n| usize::try_from(n).ok()),
        _ => None,
    };
    match a {
        AttrValue::List(list) => list.iter().map(size).collect(),
        _ => None,
    }
}
