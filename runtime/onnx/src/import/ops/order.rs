//! Ops that sort elements, scatter them to indices, or select them by a mask or length.

use hypatia_dsl::builtin::{BuiltinOp, BuiltinScalar};
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::AttrValue;
use hypatia_dsl::shape::{Dim, product, show_shape};

use super::super::context::{Bound, Ctx, Out, dims, int};
use super::super::symbolic::Sym;
use hypatia_graph::Value;
use hypatia_tensor::tensor::Tensor;

/// The index along `axis` of a shape, as i64.
fn iota(ctx: &mut Ctx, shape: &[Dim], axis: usize) -> Out<Value> {
    ctx.op(BuiltinOp::Iota, &[], vec![dims(shape), int(axis as i64), AttrValue::DType(DType::I64)])
}

/// A size as a tensor of rank 0.
fn size(ctx: &mut Ctx, d: &Dim) -> Out<Value> {
    match Sym::new(DType::I64, vec![], vec![d.clone()]) {
        Some(s) => ctx.builder.materialise(&s.into()),
        None => ctx.unsupported("the formula of a size is too long"),
    }
}

/// The rank's shape with this size along one axis, and 1 along all others.
fn line(rank: usize, axis: usize, size: &Dim) -> Vec<Dim> {
    let mut shape = vec![Dim::from(1); rank];
    shape[axis] = size.clone();
    shape
}

/// Normalises indices to i64: negative ones count from the end.
fn from_front(ctx: &mut Ctx, indices: Value, axis_size: &Dim) -> Out<Value> {
    let indices = ctx.cast(indices, DType::I64)?;
    let (axis_size, zero) = (size(ctx, axis_size)?, ctx.number(DType::I64, 0.0)?);
    let negative = ctx.builtin(BuiltinScalar::Lt, &[indices, zero])?;
    let wrapped = ctx.builtin(BuiltinScalar::Add, &[indices, axis_size])?;
    ctx.builtin(BuiltinScalar::Select, &[negative, wrapped, indices])
}

/// The first elements in sorted order, and their indices.
pub fn top_k(ctx: &mut Ctx) -> Out {
    ctx.arity(2, 2, 2)?;
    // ONNX leaves the order of unsorted results open.
    ctx.attrs.ignore("sorted");
    let x = ctx.value(0)?;
    let shape = ctx.shape_of(x);
    let axis = ctx.attrs.int_or("axis", -1)?;
    let axis = ctx.axis(axis, shape.len())?;
    let largest = ctx.attrs.flag("largest", true)?;
    let [k] = &ctx.sizes(1, "k")?[..] else { return ctx.wrong("k should be one number") };
    if k.known_le(&shape[axis]) == Some(false) || k.known_le(&Dim::from(-1)) == Some(true) {
        return ctx.wrong(format!("k should be 0 to {}, the size of the axis, but is {k}", shape[axis]));
    }
    let order = ctx.op(BuiltinOp::Argsort, &[x], vec![int(axis as i64), AttrValue::Bool(largest)])?;
    let attrs = vec![int(axis as i64), int(0), AttrValue::Dim(k.clone()), int(1)];
    let places = ctx.op(BuiltinOp::Slice, &[order], attrs)?;
    let values = ctx.op(BuiltinOp::GatherElements, &[x, places], vec![int(axis as i64)])?;
    Ok(vec![values.into(), places.into()])
}

/// The reduction that the attribute `reduction` names.
fn reduction(ctx: &Ctx, since: i64) -> Out<AttrValue> {
    let name = if ctx.since >= since { ctx.attrs.text_or("reduction", "none")? } else { "none".into() };
    match name.as_str() {
        "none" => Ok(AttrValue::Str("set".into())),
        "add" | "mul" => Ok(AttrValue::Str(name)),
        "min" | "max" if ctx.since >= 18 => Ok(AttrValue::Str(name)),
        other => ctx.wrong(format!("there is no reduction `{other}`")),
    }
}

/// Scatters slices to index tuples: the operand's indexed axes are joined into rows.
pub fn scatter_nd(ctx: &mut Ctx) -> Out {
    ctx.arity(3, 3, 1)?;
    let how = reduction(ctx, 16)?;
    let (x, at, updates) = (ctx.value(0)?, ctx.value(1)?, ctx.value(2)?);
    let (shape, places) = (ctx.shape_of(x), ctx.shape_of(at));
    let Some((depth, outer)) = places.split_last() else { return ctx.wrong("the indices should have at least rank 1") };
    let depth = depth.as_const().and_then(|d| usize::try_from(d).ok()).filter(|d| *d >= 1 && *d <= shape.len());
    let Some(depth) = depth else {
        return ctx.wrong(format!(
            "the last axis of the indices {} should have 1 to {} elements, one for each indexed axis of {}",
            show_shape(&places),
            shape.len(),
            show_shape(&shape)
        ));
    };
    let mut row: Option<Value> = None;
    for (i, axis_size) in shape[..depth].iter().enumerate() {
        let attrs = vec![int(outer.len() as i64), int(i as i64), int(i as i64 + 1), int(1)];
        let index = ctx.op(BuiltinOp::Slice, &[at], attrs)?;
        let index = from_front(ctx, index, axis_size)?;
        row = Some(match row {
            None => index,
            Some(row) => {
                let axis_size = size(ctx, axis_size)?;
                let row = ctx.builtin(BuiltinScalar::Mul, &[row, axis_size])?;
                ctx.builtin(BuiltinScalar::Add, &[row, index])?
            }
        });
    }
    let Some(row) = row else { return ctx.wrong("indices without entries") };
    let (Some(rows), Some(count)) = (product(&shape[..depth]), product(outer)) else {
        return ctx.wrong("the operand is too large");
    };
    let inner = &shape[depth..];
    let row = ctx.reshape(row, std::slice::from_ref(&count))?;
    let flat = ctx.reshape(x, &[&[rows], inner].concat())?;
    let updates = ctx.reshape(updates, &[&[count], inner].concat())?;
    let y = ctx.op(BuiltinOp::Scatter, &[flat, row, updates], vec![how])?;
    Ok(vec![ctx.reshape(y, &shape)?.into()])
}

/// Scatters elements to indices along an axis: the operand is flattened to a vector.
pub fn scatter_elements(ctx: &mut Ctx) -> Out {
    ctx.arity(3, 3, 1)?;
    let how = reduction(ctx, 16)?;
    let (x, at, updates) = (ctx.value(0)?, ctx.value(1)?, ctx.value(2)?);
    let (shape, places) = (ctx.shape_of(x), ctx.shape_of(at));
    let axis = ctx.attrs.int_or("axis", 0)?;
    let axis = ctx.axis(axis, shape.len())?;
    if places.len() != shape.len() || ctx.shape_of(updates) != places {
        return ctx
            .wrong("operand, indices and updates should have the same rank, and indices and updates the same shape");
    }
    // An index out of range along another axis would address an element of the next row.
    let inside = |(i, (a, b)): (usize, (&Dim, &Dim))| i == axis || a.known_le(b) == Some(true);
    if !places.iter().zip(&shape).enumerate().all(inside) {
        return ctx.wrong(format!(
            "the indices {} should not be larger than the operand {} along any other axis",
            show_shape(&places),
            show_shape(&shape)
        ));
    }
    let mut element: Option<Value> = None;
    for (i, axis_size) in shape.iter().enumerate() {
        let index = match i == axis {
            true => from_front(ctx, at, axis_size)?,
            false => iota(ctx, &line(places.len(), i, &places[i]), i)?,
        };
        element = Some(match element {
            None => index,
            Some(e) => {
                let axis_size = size(ctx, axis_size)?;
                let e = ctx.builtin(BuiltinScalar::Mul, &[e, axis_size])?;
                ctx.builtin(BuiltinScalar::Add, &[e, index])?
            }
        });
    }
    let (Some(element), Some(all), Some(count)) = (element, product(&shape), product(&places)) else {
        return ctx.wrong("the operand has rank 0 or is too large");
    };
    let element = ctx.expand(element, &places)?;
    let element = ctx.reshape(element, std::slice::from_ref(&count))?;
    let (flat, updates) = (ctx.reshape(x, &[all])?, ctx.reshape(updates, &[count])?);
    let y = ctx.op(BuiltinOp::Scatter, &[flat, element, updates], vec![how])?;
    Ok(vec![ctx.reshape(y, &shape)?.into()])
}

/// The elements of a constant operand; their values decide the result's size.
fn known(ctx: &Ctx, i: usize, what: &str) -> Out<std::sync::Arc<Tensor>> {
    match ctx.builder.constant(&ctx.bound(i)?) {
        Some(t) => Ok(t),
        None => ctx.unsupported(format!("the size of its result depends on {what}, which is not a constant")),
    }
}

fn constant(ctx: &mut Ctx, shape: &[usize], values: &[i64]) -> Out<Value> {
    match Tensor::from_slice(shape, values) {
        Some(t) => Ok(ctx.builder.graph.constant(t)),
        None => ctx.wrong("its indices could not be made"),
    }
}

/// Selects the slices where a constant mask is true.
pub fn compress(ctx: &mut Ctx) -> Out {
    ctx.arity(2, 2, 1)?;
    let mask = known(ctx, 1, "the condition")?;
    let mut x = ctx.value(0)?;
    let shape = ctx.shape_of(x);
    let axis = match ctx.attrs.int("axis")? {
        Some(a) => ctx.axis(a, shape.len())?,
        None => {
            let Some(all) = product(&shape) else { return ctx.wrong("the operand is too large") };
            x = ctx.reshape(x, &[all])?;
            0
        }
    };
    let chosen: Vec<i64> =
        mask.to_f64().iter().enumerate().filter(|(_, v)| **v != 0.0).map(|(i, _)| i as i64).collect();
    let Some(size) = ctx.shape_of(x)[axis].as_const() else {
        return ctx.unsupported(format!("axis {axis} has a dynamic size"));
    };
    if let Some(last) = chosen.last().filter(|last| **last >= size) {
        return ctx.wrong(format!("the condition selects element {last} of axis {axis}, which has {size} elements"));
    }
    let at = constant(ctx, &[chosen.len()], &chosen)?;
    Ok(vec![ctx.op(BuiltinOp::Gather, &[x, at], vec![int(axis as i64)])?.into()])
}

/// Indices of the nonzero elements of a constant.
pub fn non_zero(ctx: &mut Ctx) -> Out {
    ctx.arity(1, 1, 1)?;
    let x = known(ctx, 0, "its operand")?;
    let shape = x.shape().to_vec();
    let found: Vec<usize> = x.to_f64().iter().enumerate().filter(|(_, v)| **v != 0.0).map(|(i, _)| i).collect();
    let mut out = Vec::with_capacity(found.len() * shape.len());
    for axis in 0..shape.len() {
        let inner: usize = shape[axis + 1..].iter().product();
        out.extend(found.iter().map(|i| (i / inner % shape[axis]) as i64));
    }
    Ok(vec![constant(ctx, &[shape.len(), found.len()], &out)?.into()])
}

/// A matrix with ones on a diagonal.
pub fn eye_like(ctx: &mut Ctx) -> Out {
    ctx.arity(1, 1, 1)?;
    let ty = ctx.ty(0)?;
    let to = match ctx.attrs.int("dtype")? {
        Some(code) => super::super::tensor::dtype(i32::try_from(code).unwrap_or(-1))?,
        None => ty.dtype,
    };
    let k = ctx.attrs.int_or("k", 0)?;
    let [m, n] = &ty.shape[..] else { return ctx.wrong("the operand should be a matrix") };
    let rows = iota(ctx, &[m.clone(), Dim::from(1)], 0)?;
    let columns = iota(ctx, &[Dim::from(1), n.clone()], 1)?;
    let k = ctx.number(DType::I64, k as f64)?;
    let rows = ctx.builtin(BuiltinScalar::Add, &[rows, k])?;
    let on = ctx.builtin(BuiltinScalar::Eq, &[rows, columns])?;
    Ok(vec![ctx.cast(on, to)?.into()])
}

/// Reverses the first elements of each sequence.
pub fn reverse_sequence(ctx: &mut Ctx) -> Out {
    ctx.arity(2, 2, 1)?;
    let (x, lengths) = (ctx.value(0)?, ctx.value(1)?);
    let shape = ctx.shape_of(x);
    let (batch, time) = (ctx.attrs.int_or("batch_axis", 1)?, ctx.attrs.int_or("time_axis", 0)?);
    if shape.len() < 2 || ![[0, 1], [1, 0]].contains(&[batch, time]) {
        return ctx.wrong(format!(
            "batch_axis and time_axis should be axes 0 and 1 of the operand {}, but are {batch} and {time}",
            show_shape(&shape)
        ));
    }
    let (batch, time) = (batch as usize, time as usize);
    if ctx.shape_of(lengths) != shape[batch..=batch] {
        return ctx.wrong("sequence_lens should have an entry for each sequence");
    }
    let lengths = ctx.cast(lengths, DType::I64)?;
    let lengths = ctx.reshape(lengths, &line(shape.len(), batch, &shape[batch]))?;
    let steps = iota(ctx, &line(shape.len(), time, &shape[time]), time)?;
    let one = ctx.number(DType::I64, 1.0)?;
    let last = ctx.builtin(BuiltinScalar::Sub, &[lengths, one])?;
    let turned = ctx.builtin(BuiltinScalar::Sub, &[last, steps])?;
    let within = ctx.builtin(BuiltinScalar::Lt, &[steps, lengths])?;
    let at = ctx.builtin(BuiltinScalar::Select, &[within, turned, steps])?;
    let at = ctx.expand(at, &shape)?;
    Ok(vec![ctx.op(BuiltinOp::GatherElements, &[x, at], vec![int(time as i64)])?.into()])
}

/// Crops or zero-pads both sides to a given size.
pub fn center_crop_pad(ctx: &mut Ctx) -> Out {
    ctx.arity(2, 2, 1)?;
    let x = ctx.value(0)?;
    let shape = ctx.shape_of(x);
    let wanted = ctx.numbers(1, "the shape")?;
    let axes = match ctx.attrs.ints("axes")? {
        Some(a) => ctx.axes(a, shape.len())?,
        None => (0..shape.len()).collect(),
    };
    if axes.len() != wanted.len() || wanted.iter().any(|w| !(0..1 << 31).contains(w)) {
        return ctx.wrong(format!("the shape should have a size for each of {} axes, but is {wanted:?}", axes.len()));
    }
    let (mut before, mut after) = (vec![Dim::from(0); shape.len()], vec![Dim::from(0); shape.len()]);
    for (axis, wanted) in axes.into_iter().zip(wanted) {
        let Some(have) = shape[axis].as_const() else { return ctx.unsupported("an axis of dynamic size") };
        let more = wanted - have;
        // An odd element goes to the end; a crop begins at half of the surplus, rounded down.
        let front = if more >= 0 { more / 2 } else { -(-more / 2) };
        (before[axis], after[axis]) = (Dim::from(front), Dim::from(more - front));
    }
    let zero = ctx.number(ctx.dtype_of(x), 0.0)?;
    Ok(vec![Bound::from(ctx.op(BuiltinOp::Pad, &[x, zero], vec![dims(&before), dims(&after)])?)])
}
