//! Ops that pick elements by index.

use hypatia_dsl::builtin::{BuiltinOp, BuiltinScalar};
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::AttrValue;
use hypatia_dsl::shape::Dim;

use super::super::context::{Ctx, Out, dims, int};
use super::super::symbolic::Sym;
use crate::graph::Value;

/// Slices along an axis.
pub(in super::super) fn gather(ctx: &mut Ctx) -> Out {
    ctx.arity(2, 2, 1)?;
    let axis = ctx.attrs.int_or("axis", 0)?;
    let axis = ctx.axis(axis, ctx.ty(0)?.shape.len())?;
    in_range(ctx, axis)?;
    if axis == 0
        && let (Some(x), Some(i)) = (ctx.sym(0), ctx.sym(1))
        && let Some(s) = x.gather(&i)
    {
        return Ok(vec![s.into()]);
    }
    let (x, i) = (ctx.value(0)?, ctx.value(1)?);
    Ok(vec![ctx.op(BuiltinOp::Gather, &[x, i], vec![int(axis as i64)])?.into()])
}

/// Checks constant indices, so that a wrong model is told of before it runs.
fn in_range(ctx: &Ctx, axis: usize) -> Out<()> {
    let size = ctx.ty(0)?.shape.get(axis).and_then(Dim::as_const);
    let known = ctx.sym(1).map(|s| s.items.iter().filter_map(Dim::as_const).collect::<Vec<_>>());
    if let (Some(size), Some(indices)) = (size, known)
        && let Some(bad) = indices.iter().find(|i| **i >= size || **i < -size)
    {
        return ctx.wrong(format!("the index {bad} is outside of axis {axis}, which has size {size}"));
    }
    Ok(())
}

/// One element for each index.
pub(in super::super) fn gather_elements(ctx: &mut Ctx) -> Out {
    ctx.arity(2, 2, 1)?;
    let axis = ctx.attrs.int_or("axis", 0)?;
    let axis = ctx.axis(axis, ctx.ty(0)?.shape.len())?;
    in_range(ctx, axis)?;
    let (x, i) = (ctx.value(0)?, ctx.value(1)?);
    Ok(vec![ctx.op(BuiltinOp::GatherElements, &[x, i], vec![int(axis as i64)])?.into()])
}

/// Slices by tuples of indices.
pub(in super::super) fn gather_nd(ctx: &mut Ctx) -> Out {
    ctx.arity(2, 2, 1)?;
    let batch = ctx.attrs.int_or("batch_dims", 0)?;
    let (x, i) = (ctx.value(0)?, ctx.value(1)?);
    Ok(vec![ctx.op(BuiltinOp::GatherNd, &[x, i], vec![int(batch)])?.into()])
}

/// The index along `axis` of a shape, as i64.
fn iota(ctx: &mut Ctx, shape: &[Dim], axis: usize) -> Out<Value> {
    ctx.op(BuiltinOp::Iota, &[], vec![dims(shape), int(axis as i64), AttrValue::DType(DType::I64)])
}

/// `a` where `c`, else `b`, for truth values too.
fn choose(ctx: &mut Ctx, c: Value, a: Value, b: Value) -> Out<Value> {
    if ctx.dtype_of(a) != DType::Bool {
        return ctx.builtin(BuiltinScalar::Select, &[c, a, b]);
    }
    let not = ctx.builtin(BuiltinScalar::Not, &[c])?;
    let (yes, no) = (ctx.builtin(BuiltinScalar::And, &[c, a])?, ctx.builtin(BuiltinScalar::And, &[not, b])?);
    ctx.builtin(BuiltinScalar::Or, &[yes, no])
}

/// The size of the new axis: a number of any type, or a size.
fn depth(ctx: &Ctx) -> Out<Dim> {
    let ty = ctx.ty(1)?;
    let number = match ty.dtype.is_float() {
        true => ctx
            .builder
            .constant(&ctx.bound(1)?)
            .map(|t| t.to_f64().iter().map(|v| Dim::from(*v as i64)).collect::<Vec<_>>()),
        false => ctx.sym(1).map(|s| s.items),
    };
    match number.as_deref() {
        Some([d]) if d.as_const().is_none_or(|c| c >= 0) => Ok(d.clone()),
        Some(_) => ctx.wrong("the depth should be one number of at least 0"),
        None => ctx.unsupported("the depth must be known when the model is imported"),
    }
}

/// A new axis that is on at each index, off elsewhere.
pub(in super::super) fn one_hot(ctx: &mut Ctx) -> Out {
    ctx.arity(3, 3, 1)?;
    let indices = ctx.value(0)?;
    let depth = depth(ctx)?;
    let mut shape = ctx.shape_of(indices);
    let axis = ctx.attrs.int_or("axis", -1)?;
    let axis = ctx.axis(axis, shape.len() + 1)?;
    shape.insert(axis, Dim::from(1));
    let mut ones = vec![Dim::from(1); shape.len()];
    ones[axis] = depth.clone();
    let counted = iota(ctx, &ones, axis)?;
    let indices = ctx.cast(indices, DType::I64)?;
    let indices = ctx.reshape(indices, &shape)?;
    // Negative indices count from the end.
    let Some(depth) = Sym::new(DType::I64, vec![], vec![depth]) else { return ctx.wrong("the depth is too large") };
    let depth = ctx.builder.materialise(&depth.into())?;
    let zero = ctx.number(DType::I64, 0.0)?;
    let below = ctx.builtin(BuiltinScalar::Lt, &[indices, zero])?;
    let wrapped = ctx.builtin(BuiltinScalar::Add, &[indices, depth])?;
    let indices = ctx.builtin(BuiltinScalar::Select, &[below, wrapped, indices])?;
    let here = ctx.builtin(BuiltinScalar::Eq, &[indices, counted])?;
    let values = ctx.value(2)?;
    if ctx.shape_of(values) != [Dim::from(2)] {
        return ctx.wrong("its values should be two: off and on");
    }
    let one_of = |ctx: &mut Ctx, i: i64| {
        let part = ctx.op(BuiltinOp::Slice, &[values], vec![int(0), int(i), int(i + 1), int(1)])?;
        ctx.reshape(part, &[])
    };
    let (off, on) = (one_of(ctx, 0)?, one_of(ctx, 1)?);
    Ok(vec![choose(ctx, here, on, off)?.into()])
}

/// The upper or lower triangle of the last two axes, zero elsewhere.
pub(in super::super) fn trilu(ctx: &mut Ctx) -> Out {
    ctx.arity(1, 2, 1)?;
    let x = ctx.value(0)?;
    let shape = ctx.shape_of(x);
    let upper = ctx.attrs.flag("upper", true)?;
    let [.., m, n] = &shape[..] else { return ctx.wrong("it needs at least two axes") };
    let rows = iota(ctx, &[m.clone(), Dim::from(1)], 0)?;
    let columns = iota(ctx, &[Dim::from(1), n.clone()], 1)?;
    let mut diagonal = rows;
    if let Some(k) = ctx.maybe(1)? {
        let k = ctx.reshape(k, &[])?;
        diagonal = ctx.builtin(BuiltinScalar::Add, &[rows, k])?;
    }
    let sides = if upper { [diagonal, columns] } else { [columns, diagonal] };
    let kept = ctx.builtin(BuiltinScalar::Le, &sides)?;
    let dtype = ctx.dtype_of(x);
    if dtype == DType::Bool {
        return Ok(vec![ctx.builtin(BuiltinScalar::And, &[kept, x])?.into()]);
    }
    let zero = ctx.number(dtype, 0.0)?;
    Ok(vec![choose(ctx, kept, x, zero)?.into()])
}

/// Sums of all elements up to each along an axis: of a triangle of copies, so that no infinity meets a
/// zero.
pub(in super::super) fn cumulative_sum(ctx: &mut Ctx) -> Out {
    cumulative(ctx, BuiltinOp::Sum, 0.0)
}

/// Products of all elements up to each along an axis.
pub(in super::super) fn cumulative_product(ctx: &mut Ctx) -> Out {
    cumulative(ctx, BuiltinOp::Prod, 1.0)
}

/// A reduction of all elements up to each; `none` is that of no element.
fn cumulative(ctx: &mut Ctx, op: BuiltinOp, none: f64) -> Out {
    ctx.arity(2, 2, 1)?;
    let x = ctx.value(0)?;
    let mut shape = ctx.shape_of(x);
    let axis = match ctx.numbers(1, "the axis")?[..] {
        [a] => ctx.axis(a, shape.len())?,
        _ => return ctx.wrong("the axis should be one number"),
    };
    let (exclusive, reverse) = (ctx.attrs.flag("exclusive", false)?, ctx.attrs.flag("reverse", false)?);
    let size = shape[axis].clone();
    // Axis `axis` is where a sum ends, the one behind it what it adds up.
    let mut ends = vec![Dim::from(1); shape.len() + 1];
    let mut items = ends.clone();
    ends[axis] = size.clone();
    items[axis + 1] = size;
    let (ends, items) = (iota(ctx, &ends, axis)?, iota(ctx, &items, axis + 1)?);
    let sides = if reverse { [ends, items] } else { [items, ends] };
    let taken = ctx.builtin(if exclusive { BuiltinScalar::Lt } else { BuiltinScalar::Le }, &sides)?;
    shape.insert(axis, Dim::from(1));
    let copies = ctx.reshape(x, &shape)?;
    let none = ctx.number(ctx.dtype_of(x), none)?;
    let triangle = ctx.builtin(BuiltinScalar::Select, &[taken, copies, none])?;
    Ok(vec![ctx.reduce(op, triangle, &[axis as i64 + 1], false)?.into()])
}
