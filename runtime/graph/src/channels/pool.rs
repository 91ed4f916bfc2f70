//! Pooling by small windows: each result is computed from the elements of its window, which are
//! views of the image.
//!
//! In: a reduction of windows on an image with its channels last. Out: pointwise work on a shifted
//! view for each place in a window. Threads side by side then read channels side by side; a row for
//! each window would be a few elements far apart. Invariant: sums of 16-bit elements are rounded
//! once.

use hypatia_dsl::builtin::{BuiltinOp, BuiltinScalar};
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::AttrValue;
use hypatia_tensor::error::{Error, Result};

use super::{Axes, Channels, Lies};
use crate::{Node, NodeKind, Value};

/// The most elements of a window: each takes the registers of an address.
const MOST: usize = 13;

/// The reduction of windows; `None` if it is not by all of a small window.
pub(super) fn reduced(pass: &mut Channels, op: BuiltinOp, node: &Node) -> Result<Option<Vec<Lies>>> {
    let (Some(v), NodeKind::Op { attrs, .. }) = (node.operands.first().copied().flatten(), &node.kind) else {
        return Ok(None);
    };
    let whole = attrs.as_slice() == [[4i64, 5].into(), AttrValue::Bool(false)];
    let NodeKind::Op { attrs, .. } = &pass.graph.node(v.node).kind else { return Ok(None) };
    let lists: Option<Vec<Vec<i64>>> = attrs.iter().map(list).collect();
    let Some([sizes, strides, dilations]) = lists.as_deref() else { return Ok(None) };
    let dtype = pass.graph.ty(v).dtype;
    let places = sizes.iter().product::<i64>();
    if !whole || !dtype.is_float() || !(1..=MOST as i64).contains(&places) {
        return Ok(None);
    }
    let sums = matches!(op, BuiltinOp::Sum | BuiltinOp::Mean);
    let wide = if sums && dtype.compute() != dtype { dtype.compute() } else { dtype };
    let how = match op {
        BuiltinOp::Amax => BuiltinScalar::Max,
        BuiltinOp::Amin => BuiltinScalar::Min,
        _ => BuiltinScalar::Add,
    };
    let counts: Vec<Option<i64>> = pass.graph.ty(v).shape[2..4].iter().map(|d| d.as_const()).collect();
    let image = pass.of(v).value;
    let mut made: Option<Value> = None;
    for place in 0..places {
        let mut part = image;
        for (axis, at) in [place / sizes[1], place % sizes[1]].into_iter().enumerate() {
            let Some(count) = counts[axis] else { return Ok(None) };
            let (start, step) = (at * dilations[axis], strides[axis]);
            let stop = start + (count - 1) * step + 1;
            let attrs = vec![(axis as i64 + 1).into(), start.into(), stop.into(), step.into()];
            part = pass.one(BuiltinOp::Slice, &[part], attrs)?;
        }
        let part = cast(pass, part, wide)?;
        made = Some(match made {
            Some(before) => pass.out.builtin_scalar(how, &[before, part])?,
            None => part,
        });
    }
    let mut made = made.ok_or_else(|| Error::Internal("windows of nothing".into()))?;
    if op == BuiltinOp::Mean {
        let share = pass.out.number(wide, 1.0 / places as f64)?;
        made = pass.out.builtin_scalar(BuiltinScalar::Mul, &[made, share])?;
    }
    let value = cast(pass, made, dtype)?;
    Ok(Some(vec![Lies { value, axes: Axes::Last }]))
}

fn cast(pass: &mut Channels, v: Value, to: DType) -> Result<Value> {
    if pass.out.ty(v).dtype == to { Ok(v) } else { pass.one(BuiltinOp::Cast, &[v], vec![to.into()]) }
}

/// A list of numbers; `None` for another attribute.
fn list(a: &AttrValue) -> Option<Vec<i64>> {
    match a {
        AttrValue::List(list) => {
            list.iter().map(|a| if let AttrValue::Dim(d) = a { d.as_const() } else { None }).collect()
        }
        _ => None,
    }
}
