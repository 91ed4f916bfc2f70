//! Ops that pick elements by index.

use hypatia_dsl::builtin::{BuiltinOp, BuiltinScalar};
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::{AttrValue, OpBody};
use hypatia_dsl::shape::Dim;

use super::super::context::{Ctx, Out, dims, int};
use super::super::symbolic::Sym;
use hypatia_graph::{Graph, Node, NodeKind, Value};

/// Gathers slices along an axis.
pub fn gather(ctx: &mut Ctx) -> Out {
    ctx.arity(2, 2, 1)?;
    let axis = ctx.attrs.int_or("axis", 0)?;
    let axis = ctx.axis(axis, ctx.ty(0)?.shape.len())?;
    in_range(ctx, axis)?;
    if let (Some(x), Some(i)) = (ctx.sym(0), ctx.sym(1))
        && let Some(s) = x.gather(&i, axis)
    {
        return Ok(vec![s.into()]);
    }
    let (x, i) = (ctx.value(0)?, ctx.value(1)?);
    Ok(vec![ctx.op(BuiltinOp::Gather, &[x, i], vec![int(axis as i64)])?.into()])
}

/// Checks constant indices, so that an invalid model is reported before it runs.
fn in_range(ctx: &Ctx, axis: usize) -> Out<()> {
    let size = ctx.ty(0)?.shape.get(axis).and_then(Dim::as_const);
    let known = ctx.sym(1).map(|s| s.items.iter().filter_map(Dim::as_const).collect::<Vec<_>>());
    if let (Some(size), Some(indices)) = (size, known)
        && let Some(bad) = indices.iter().find(|i| **i >= size || **i < -size)
    {
        return ctx.wrong(format!("the index {bad} is out of range for axis {axis}, which has size {size}"));
    }
    Ok(())
}

/// Gathers one element per index.
pub fn gather_elements(ctx: &mut Ctx) -> Out {
    ctx.arity(2, 2, 1)?;
    let axis = ctx.attrs.int_or("axis", 0)?;
    let axis = ctx.axis(axis, ctx.ty(0)?.shape.len())?;
    in_range(ctx, axis)?;
    let (x, i) = (ctx.value(0)?, ctx.value(1)?);
    Ok(vec![ctx.op(BuiltinOp::GatherElements, &[x, i], vec![int(axis as i64)])?.into()])
}

/// Gathers slices by index tuples.
pub fn gather_nd(ctx: &mut Ctx) -> Out {
    ctx.arity(2, 2, 1)?;
    let batch = ctx.attrs.int_or("batch_dims", 0)?;
    let (x, i) = (ctx.value(0)?, ctx.value(1)?);
    if batch == 0 {
        if let Some(y) = at_one_place(ctx, x, i)? {
            return Ok(vec![y.into()]);
        }
        if let Some(y) = counted(ctx, x, i)? {
            return Ok(vec![y.into()]);
        }
    }
    Ok(vec![ctx.op(BuiltinOp::GatherNd, &[x, i], vec![int(batch)])?.into()])
}

/// A gather at one constant tuple becomes slices, which copy nothing.
fn at_one_place(ctx: &mut Ctx, mut x: Value, indices: Value) -> Out<Option<Value>> {
    let NodeKind::Const(tuple) = &ctx.builder.graph.node(indices.node).kind else { return Ok(None) };
    let (tuple, shape, places) = (tuple.to_f64(), ctx.shape_of(x), ctx.shape_of(indices));
    let Some((depth, outer)) = places.split_last() else { return Ok(None) };
    if depth.as_const() != Some(tuple.len() as i64) || tuple.len() > shape.len() {
        return Ok(None);
    }
    let place = |(v, size): (&f64, &Dim)| {
        let (v, size) = (*v as i64, size.as_const()?);
        Some(if v < 0 { v.checked_add(size)? } else { v }).filter(|v| (0..size).contains(v))
    };
    let Some(start) = tuple.iter().zip(&shape).map(place).collect::<Option<Vec<i64>>>() else { return Ok(None) };
    for (axis, at) in start.into_iter().enumerate() {
        x = ctx.op(BuiltinOp::Slice, &[x], vec![int(axis as i64), int(at), int(at + 1), int(1)])?;
    }
    Ok(Some(ctx.reshape(x, &[outer, &shape[tuple.len()..]].concat())?))
}

/// A gather whose index tuples are iotas: `x[i, j]` at `[i, .., j]`. It is the operand, broadcast.
/// Exporters write masks in this form.
fn counted(ctx: &mut Ctx, x: Value, indices: Value) -> Out<Option<Value>> {
    let (shape, places) = (ctx.shape_of(x), ctx.shape_of(indices));
    let Some(entries) = counting(&ctx.builder.graph, indices).filter(|e| e.len() <= shape.len()) else {
        return Ok(None);
    };
    let (outer, rest) = (&places[..places.len() - 1], &shape[entries.len()..]);
    // An axis of size 1 has only one valid index.
    let wide = entries.iter().zip(&shape).filter(|(_, size)| size.as_const() != Some(1));
    let Some(axes) = wide.map(|(axis, size)| axis.map(|axis| (axis, size))).collect::<Option<Vec<_>>>() else {
        return Ok(None);
    };
    let ascend = axes.windows(2).all(|w| w[0].0 < w[1].0);
    if !ascend || axes.iter().any(|(axis, size)| outer.get(*axis) != Some(*size)) {
        return Ok(None);
    }
    let mut line = vec![Dim::from(1); outer.len()];
    axes.iter().for_each(|(axis, size)| line[*axis] = (*size).clone());
    let y = ctx.reshape(x, &[&line[..], rest].concat())?;
    Ok(Some(ctx.expand(y, &[outer, rest].concat())?))
}

/// For each entry of the index tuples along the last axis, the axis along which it is an iota (0,
/// 1, 2, and constant along all other axes), if there is one. `None` if the tuples are not a
/// concatenation of entries.
fn counting(graph: &Graph, tuples: Value) -> Option<Vec<Option<usize>>> {
    let node = graph.node(tuples.node);
    let last = graph.ty(tuples).shape.len().checked_sub(1)?;
    if let NodeKind::Const(t) = &node.kind {
        let entries = *t.shape().last()?;
        let values = t.to_f64();
        let entry = |e| counts(&t.shape()[..last], |i| values.get(i * entries + e).copied());
        return Some((0..entries).map(entry).collect());
    }
    let whole = Dim::from(1);
    match builtin(graph, node) {
        Some((BuiltinOp::Concat, [AttrValue::Dim(axis)])) if axis.as_const() == Some(last as i64) => {
            let parts: Vec<Value> = node.operands.iter().flatten().copied().collect();
            let single = parts.iter().all(|v| graph.ty(*v).shape.last() == Some(&whole));
            single.then(|| parts.iter().map(|v| counts_along(graph, *v)).collect())
        }
        _ if graph.ty(tuples).shape.last() == Some(&whole) => Some(vec![counts_along(graph, tuples)]),
        _ => None,
    }
}

/// The axis along which a tensor is an iota.
fn counts_along(graph: &Graph, v: Value) -> Option<usize> {
    let node = graph.node(v.node);
    let shape = &graph.ty(v).shape;
    if let NodeKind::Const(t) = &node.kind {
        let values = t.to_f64();
        return counts(t.shape(), |i| values.get(i).copied());
    }
    let (op, attrs) = builtin(graph, node)?;
    let before = || {
        let v = node.operands.first().copied().flatten()?;
        Some((counts_along(graph, v)?, &graph.ty(v).shape))
    };
    match (op, attrs) {
        (BuiltinOp::Iota, [_, AttrValue::Dim(axis), _]) => usize::try_from(axis.as_const()?).ok(),
        (BuiltinOp::Cast, _) if graph.ty(v).dtype.is_int() => before().map(|(axis, _)| axis),
        (BuiltinOp::Expand, _) => {
            let (axis, from) = before()?;
            let to = axis + shape.len().checked_sub(from.len())?;
            (shape.get(to) == from.get(axis)).then_some(to)
        }
        // Axes of size 1 can be added or removed.
        (BuiltinOp::Reshape, _) => {
            let (axis, from) = before()?;
            let wide = |shape: &[Dim]| (0..shape.len()).filter(|i| shape[*i].as_const() != Some(1)).collect::<Vec<_>>();
            let (old, new) = (wide(from), wide(shape));
            let same = old.len() == new.len() && old.iter().zip(&new).all(|(a, b)| from[*a] == shape[*b]);
            let at = old.iter().position(|a| *a == axis).filter(|_| same)?;
            new.get(at).copied()
        }
        _ => None,
    }
}

/// The axis along which elements of this shape are an iota.
fn counts(shape: &[usize], element: impl Fn(usize) -> Option<f64>) -> Option<usize> {
    let len: usize = shape.iter().product();
    (0..shape.len()).find(|axis| {
        let inner: usize = shape[axis + 1..].iter().product();
        shape[*axis] > 1 && (0..len).all(|i| element(i) == Some((i / inner % shape[*axis]) as f64))
    })
}

fn builtin<'g>(graph: &Graph, node: &'g Node) -> Option<(BuiltinOp, &'g [AttrValue])> {
    match &node.kind {
        NodeKind::Op { op, attrs, .. } => match graph.program.op(*op).body {
            OpBody::Builtin(b) => Some((b, attrs)),
            OpBody::Defined(_) => None,
        },
        _ => None,
    }
}

/// The index along `axis` of a shape, as i64.
fn iota(ctx: &mut Ctx, shape: &[Dim], axis: usize) -> Out<Value> {
    ctx.op(BuiltinOp::Iota, &[], vec![dims(shape), int(axis as i64), AttrValue::DType(DType::I64)])
}

/// Select: `a` where `c`, else `b`; booleans are supported too.
fn choose(ctx: &mut Ctx, c: Value, a: Value, b: Value) -> Out<Value> {
    if ctx.dtype_of(a) != DType::Bool {
        return ctx.builtin(BuiltinScalar::Select, &[c, a, b]);
    }
    let not = ctx.builtin(BuiltinScalar::Not, &[c])?;
    let (yes, no) = (ctx.builtin(BuiltinScalar::And, &[c, a])?, ctx.builtin(BuiltinScalar::And, &[not, b])?);
    ctx.builtin(BuiltinScalar::Or, &[yes, no])
}

/// The size of the new axis: a constant of any type, or a symbolic size.
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

/// One-hot: a new axis with the on value at each index and the off value elsewhere.
pub fn one_hot(ctx: &mut Ctx) -> Out {
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
        return ctx.wrong("it should have two values: off and on");
    }
    let one_of = |ctx: &mut Ctx, i: i64| {
        let part = ctx.op(BuiltinOp::Slice, &[values], vec![int(0), int(i), int(i + 1), int(1)])?;
        ctx.reshape(part, &[])
    };
    let (off, on) = (one_of(ctx, 0)?, one_of(ctx, 1)?);
    Ok(vec![choose(ctx, here, on, off)?.into()])
}

/// The upper or lower triangle of the last two axes, zero elsewhere.
pub fn trilu(ctx: &mut Ctx) -> Out {
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

/// The operand of a cumulative op, its axis, and whether it is exclusive or in reverse.
fn cumulative(ctx: &mut Ctx) -> Out<(Value, usize, [bool; 2])> {
    ctx.arity(2, 2, 1)?;
    let x = ctx.value(0)?;
    let rank = ctx.shape_of(x).len();
    let axis = match ctx.numbers(1, "the axis")?[..] {
        [a] => ctx.axis(a, rank)?,
        _ => return ctx.wrong("the axis should be one number"),
    };
    Ok((x, axis, [ctx.attrs.flag("exclusive", false)?, ctx.attrs.flag("reverse", false)?]))
}

/// Cumulative sums along an axis.
pub fn cumulative_sum(ctx: &mut Ctx) -> Out {
    let (x, axis, how) = cumulative(ctx)?;
    let attrs = [vec![int(axis as i64)], how.map(AttrValue::Bool).to_vec()].concat();
    Ok(vec![ctx.op(BuiltinOp::Cumsum, &[x], attrs)?.into()])
}

/// Cumulative products along an axis, as products over a triangle of copies, so that no infinity
/// meets a zero.
pub fn cumulative_product(ctx: &mut Ctx) -> Out {
    let (x, axis, [exclusive, reverse]) = cumulative(ctx)?;
    let mut shape = ctx.shape_of(x);
    let size = shape[axis].clone();
    // Axis `axis` is the position of the result, and the next axis holds the elements to multiply.
    let mut ends = vec![Dim::from(1); shape.len() + 1];
    let mut items = ends.clone();
    ends[axis] = size.clone();
    items[axis + 1] = size;
    let (ends, items) = (iota(ctx, &ends, axis)?, iota(ctx, &items, axis + 1)?);
    let sides = if reverse { [ends, items] } else { [items, ends] };
    let taken = ctx.builtin(if exclusive { BuiltinScalar::Lt } else { BuiltinScalar::Le }, &sides)?;
    shape.insert(axis, Dim::from(1));
    let copies = ctx.reshape(x, &shape)?;
    let one = ctx.number(ctx.dtype_of(x), 1.0)?;
    let triangle = ctx.builtin(BuiltinScalar::Select, &[taken, copies, one])?;
    Ok(vec![ctx.reduce(BuiltinOp::Prod, triangle, &[axis as i64 + 1], false)?.into()])
}
