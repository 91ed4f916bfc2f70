//! Ops that rearrange elements: reshapes, transposes, slices, concatenations, pads.

use hypatia_dsl::builtin::BuiltinOp;
use hypatia_dsl::shape::{Dim, Shape, broadcast, product, show_shape};

use super::super::context::{Bound, Ctx, Out, dims, int};
use super::super::symbolic::{Sym, known_eq};
use hypatia_graph::Value;
use hypatia_tensor::tensor::Tensor;

/// An index from this on means "to the end".
const FAR: i64 = i32::MAX as i64;

/// Sizes as numbers, if all are concrete.
fn concrete(shape: &[Dim]) -> Option<Vec<usize>> {
    shape.iter().map(|d| d.as_const().and_then(|c| usize::try_from(c).ok())).collect()
}

/// Reshapes operand 0; symbolic sizes stay symbolic.
fn reshaped(ctx: &mut Ctx, shape: &[Dim]) -> Out {
    if let Some(sym) = ctx.sym(0)
        && let Some(s) = concrete(shape).and_then(|c| sym.reshaped(c))
    {
        return Ok(vec![s.into()]);
    }
    let x = ctx.value(0)?;
    Ok(vec![ctx.reshape(x, shape)?.into()])
}

/// Reshape: 0 copies a size, -1 is inferred.
pub fn reshape(ctx: &mut Ctx) -> Out {
    ctx.arity(2, 2, 1)?;
    let allow_zero = ctx.since >= 14 && ctx.attrs.flag("allowzero", false)?;
    let from = ctx.ty(0)?.shape;
    let mut to = ctx.sizes(1, "the shape")?;
    for (i, d) in to.iter_mut().enumerate() {
        if !allow_zero && d.as_const() == Some(0) {
            match from.get(i) {
                Some(copied) => *d = copied.clone(),
                None => {
                    return ctx.wrong(format!("the 0 at {i} copies a size, but the operand has rank {}", from.len()));
                }
            }
        }
    }
    let open: Vec<usize> = (0..to.len()).filter(|i| to[*i].as_const() == Some(-1)).collect();
    match open[..] {
        [] => {}
        [at] => to[at] = remaining(ctx, &from, &to, at)?,
        _ => return ctx.wrong(format!("the shape {} has more than one -1", show_shape(&to))),
    }
    if to.iter().any(|d| d.as_const().is_some_and(|c| c < 0)) {
        return ctx.wrong(format!("the shape {} has a negative size", show_shape(&to)));
    }
    let (have, want) = (product(&from), product(&to));
    match (have, want) {
        (Some(h), Some(w)) if known_eq(&h, &w) != Some(false) => reshaped(ctx, &to),
        _ => ctx.wrong(format!("{} cannot be reshaped to {}", show_shape(&from), show_shape(&to))),
    }
}

/// The size that gives `to` as many elements as `from`.
fn remaining(ctx: &Ctx, from: &[Dim], to: &[Dim], at: usize) -> Out<Dim> {
    let mut have = from.to_vec();
    let mut rest = Vec::new();
    // Sizes on both sides cancel, whatever their values are.
    for (_, d) in to.iter().enumerate().filter(|(i, _)| *i != at) {
        match have.iter().position(|h| h == d && h.as_const() != Some(0)) {
            Some(p) => drop(have.remove(p)),
            None => rest.push(d.clone()),
        }
    }
    let (Some(have), Some(rest)) = (product(&have), product(&rest)) else { return ctx.wrong("the shape is too large") };
    match have.div_exact(&rest) {
        Some(d) => Ok(d),
        None if have.as_const().is_some() && rest.as_const().is_some() => {
            ctx.wrong(format!("{} cannot be reshaped to {}", show_shape(from), show_shape(to)))
        }
        None => ctx.unsupported(format!(
            "the -1 in {} cannot be inferred from {}; give the model's inputs, so that their sizes are known",
            show_shape(to),
            show_shape(from)
        )),
    }
}

/// Flattens to a matrix: the axes before `axis`, and the axes from it on.
pub fn flatten(ctx: &mut Ctx) -> Out {
    ctx.arity(1, 1, 1)?;
    let shape = ctx.ty(0)?.shape;
    let rank = shape.len() as i64;
    let axis = ctx.attrs.int_or("axis", 1)?;
    let at = if axis < 0 { axis.saturating_add(rank) } else { axis };
    if !(0..=rank).contains(&at) {
        return ctx.wrong(format!("the axis {axis} does not exist: the rank is {rank}"));
    }
    let (rows, columns) = shape.split_at(at as usize);
    match (product(rows), product(columns)) {
        (Some(r), Some(c)) => reshaped(ctx, &[r, c]),
        _ => ctx.wrong("the shape is too large"),
    }
}

/// Removes axes of size 1.
pub fn squeeze(ctx: &mut Ctx) -> Out {
    ctx.arity(1, 2, 1)?;
    let shape = ctx.ty(0)?.shape;
    let one = Dim::from(1);
    let axes = if ctx.has(1) {
        ctx.axes(&ctx.numbers(1, "axes")?, shape.len())?
    } else {
        if shape.iter().any(|d| known_eq(d, &one).is_none()) {
            return ctx.unsupported(format!("without axes, of {}: a dynamic size may be 1 or not", show_shape(&shape)));
        }
        (0..shape.len()).filter(|i| shape[*i] == one).collect()
    };
    for a in &axes {
        match known_eq(&shape[*a], &one) {
            Some(true) => {}
            Some(false) => return ctx.wrong(format!("axis {a} of {} is not 1", show_shape(&shape))),
            None => return ctx.unsupported(format!("axis {a} of {} is dynamic", show_shape(&shape))),
        }
    }
    let kept: Shape = shape.iter().enumerate().filter(|(i, _)| !axes.contains(i)).map(|(_, d)| d.clone()).collect();
    reshaped(ctx, &kept)
}

/// Inserts axes of size 1.
pub fn unsqueeze(ctx: &mut Ctx) -> Out {
    ctx.arity(2, 2, 1)?;
    let mut left = ctx.ty(0)?.shape.into_iter();
    let axes = ctx.numbers(1, "axes")?;
    let rank = left.len() + axes.len();
    let axes = ctx.axes(&axes, rank)?;
    let shape: Option<Shape> =
        (0..rank).map(|i| if axes.contains(&i) { Some(Dim::from(1)) } else { left.next() }).collect();
    match shape {
        Some(s) => reshaped(ctx, &s),
        None => ctx.wrong("its axes do not match the rank"),
    }
}

/// Transposes; without `perm` the axes are reversed.
pub fn transpose(ctx: &mut Ctx) -> Out {
    ctx.arity(1, 1, 1)?;
    let rank = ctx.ty(0)?.shape.len();
    let perm = match ctx.attrs.ints("perm")? {
        Some(p) => {
            let axes = ctx.axes(p, rank)?;
            if axes.len() != rank || p.iter().any(|a| *a < 0) {
                return ctx.wrong(format!("perm {p:?} is not a permutation of {rank} axes"));
            }
            p.to_vec()
        }
        None => (0..rank as i64).rev().collect(),
    };
    if rank < 2 {
        return Ok(vec![ctx.bound(0)?]);
    }
    if let Some(s) = ctx.sym(0).and_then(|s| s.transposed(&perm.iter().map(|p| *p as usize).collect::<Vec<_>>())) {
        return Ok(vec![s.into()]);
    }
    let x = ctx.value(0)?;
    Ok(vec![ctx.transpose(x, &perm)?.into()])
}

/// Broadcasts with a shape: a size of 1 there keeps the operand's size.
pub fn expand(ctx: &mut Ctx) -> Out {
    ctx.arity(2, 2, 1)?;
    let from = ctx.ty(0)?.shape;
    let shape = ctx.sizes(1, "the shape")?;
    if shape.iter().any(|d| d.as_const().is_some_and(|c| c < 0)) {
        return ctx.wrong(format!("the shape {} has a negative size", show_shape(&shape)));
    }
    let Some(to) = broadcast(&from, &shape) else {
        let (from, shape) = (show_shape(&from), show_shape(&shape));
        return ctx.wrong(format!(
            "{from} does not broadcast with {shape}; a dynamic size broadcasts only with itself and 1"
        ));
    };
    if let Some(s) = ctx.sym(0)
        && let Some(s) = concrete(&to).and_then(|c| s.expand(&c))
    {
        return Ok(vec![s.into()]);
    }
    let x = ctx.value(0)?;
    Ok(vec![ctx.expand(x, &to)?.into()])
}

/// Concatenates operands.
pub fn concat(ctx: &mut Ctx) -> Out {
    let count = ctx.inputs.len();
    ctx.arity(1, count.max(1), 1)?;
    let rank = ctx.ty(0)?.shape.len();
    let Some(axis) = ctx.attrs.int("axis")? else { return ctx.wrong("the axis is missing") };
    let axis = ctx.axis(axis, rank)?;
    if let Some(parts) = ctx.syms()
        && let Some(s) = Sym::concat(&parts.iter().collect::<Vec<_>>(), axis)
    {
        return Ok(vec![s.into()]);
    }
    let parts: Vec<Value> = (0..count).map(|i| ctx.value(i)).collect::<Out<_>>()?;
    if let [one] = parts[..] {
        return Ok(vec![one.into()]);
    }
    Ok(vec![ctx.op(BuiltinOp::Concat, &parts, vec![int(axis as i64)])?.into()])
}

/// Splits along an axis: into given sizes, or into equal ones.
pub fn split(ctx: &mut Ctx) -> Out {
    let count = ctx.outputs.len();
    ctx.arity(1, 2, count)?;
    let shape = ctx.ty(0)?.shape;
    let axis = ctx.attrs.int_or("axis", 0)?;
    let axis = ctx.axis(axis, shape.len())?;
    let size = &shape[axis];
    let stated = if ctx.since >= 18 { ctx.attrs.int("num_outputs")? } else { None };
    if stated.is_some_and(|n| n != count as i64) {
        return ctx.wrong(format!("num_outputs is not {count}, the number of its outputs"));
    }
    let sizes = if ctx.has(1) {
        if stated.is_some() {
            return ctx.wrong("sizes and num_outputs are both given");
        }
        ctx.sizes(1, "the sizes")?
    } else {
        equal_pieces(ctx, size, count, stated.is_some())?
    };
    let total = sizes.iter().try_fold(Dim::from(0), |a, d| a.checked_add(d));
    let negative = sizes.iter().any(|d| d.as_const().is_some_and(|c| c < 0));
    if sizes.len() != count || negative || total.as_ref().is_none_or(|t| known_eq(t, size) == Some(false)) {
        return ctx.wrong(format!("pieces of {} for {count} outputs do not add up to {size}", show_shape(&sizes)));
    }
    if let Some(pieces) = ctx.sym(0).and_then(|s| pieces_of(&s, axis, &sizes)) {
        return Ok(pieces.into_iter().map(Bound::from).collect());
    }
    let x = ctx.value(0)?;
    let pieces = ctx.builder.graph.builtin(BuiltinOp::Split, &[x], vec![int(axis as i64), dims(&sizes)])?;
    Ok(pieces.into_iter().map(Bound::from).collect())
}

/// Consecutive slices of these sizes.
fn pieces_of(sym: &Sym, axis: usize, sizes: &[Dim]) -> Option<Vec<Sym>> {
    let mut start = 0i64;
    let mut piece = |d: &Dim| {
        let stop = start.checked_add(d.as_const()?)?;
        sym.slice(axis, std::mem::replace(&mut start, stop), stop, 1)
    };
    sizes.iter().map(&mut piece).collect()
}

/// The sizes of equal parts; with `ragged` the last may be smaller.
fn equal_pieces(ctx: &Ctx, size: &Dim, count: usize, ragged: bool) -> Out<Vec<Dim>> {
    let number = Dim::from(count as i64);
    if let Some(each) = size.div_exact(&number) {
        return Ok(vec![each; count]);
    }
    let Some(size) = size.as_const() else {
        return ctx.unsupported(format!("{count} equal pieces of the dynamic size {size}, which may not be divisible"));
    };
    if !ragged || count == 0 {
        return ctx.wrong(format!("an axis of size {size} cannot be split into {count} equal pieces"));
    }
    let each = (size + count as i64 - 1) / count as i64;
    let last = size - each * (count as i64 - 1);
    if last < 0 {
        return ctx.wrong(format!("an axis of size {size} is too short for {count} pieces"));
    }
    let mut pieces = vec![Dim::from(each); count];
    pieces[count - 1] = Dim::from(last);
    Ok(pieces)
}

/// Slices along axes.
pub fn slice(ctx: &mut Ctx) -> Out {
    ctx.arity(3, 5, 1)?;
    let shape = ctx.ty(0)?.shape;
    let (starts, ends) = (ctx.sizes(1, "starts")?, ctx.sizes(2, "ends")?);
    let axes = match ctx.has(3) {
        true => ctx.axes(&ctx.numbers(3, "axes")?, shape.len())?,
        false => (0..starts.len()).collect(),
    };
    let steps = if ctx.has(4) { ctx.numbers(4, "steps")? } else { vec![1; starts.len()] };
    if [ends.len(), axes.len(), steps.len()].iter().any(|n| *n != starts.len()) || axes.len() > shape.len() {
        return ctx.wrong("starts, ends, axes and steps differ in length");
    }
    let mut bound = ctx.bound(0)?;
    for (i, axis) in axes.into_iter().enumerate() {
        let size = &shape[axis];
        let (start, stop) = match steps[i] {
            0 | i64::MIN => return ctx.wrong("a step must not be 0"),
            step => range(ctx, size, &starts[i], &ends[i], step)?,
        };
        if steps[i] == 1 && start == Dim::from(0) && stop == *size {
            continue;
        }
        let known = (start.as_const(), stop.as_const());
        if let (Some(sym), (Some(a), Some(b))) = (&bound.sym, known)
            && let Some(s) = sym.slice(axis, a, b, steps[i])
        {
            bound = s.into();
            continue;
        }
        let x = ctx.builder.materialise(&bound)?;
        let attrs = vec![
            int(axis as i64),
            hypatia_dsl::ir::AttrValue::Dim(start),
            hypatia_dsl::ir::AttrValue::Dim(stop),
            int(steps[i]),
        ];
        bound = ctx.op(BuiltinOp::Slice, &[x], attrs)?.into();
    }
    Ok(vec![bound])
}

/// A range as positions in the axis. If the size or an index is symbolic, the index is assumed to
/// lie inside the axis; specialization checks that later.
fn range(ctx: &Ctx, size: &Dim, start: &Dim, stop: &Dim, step: i64) -> Out<(Dim, Dim)> {
    let from_end = |d: &Dim| match d.as_const() {
        Some(c) if c < 0 => size.checked_add(d),
        _ => Some(d.clone()),
    };
    let far = |d: &Dim| d.as_const().is_some_and(|c| c >= FAR);
    let before = |d: &Dim| d.as_const().is_some_and(|c| c <= -FAR);
    let last = size.checked_sub(&Dim::from(1));
    let (low, high) = if step > 0 { (Dim::from(0), Some(size.clone())) } else { (Dim::from(-1), last) };
    let place = |d: &Dim, first: bool| {
        let low = if first { Dim::from(0) } else { low.clone() };
        if far(d) {
            return high.clone();
        }
        if before(d) {
            return Some(low);
        }
        let at = from_end(d)?;
        match (at.as_const(), low.as_const(), high.as_ref()?.as_const()) {
            (Some(a), Some(l), Some(h)) => Some(Dim::from(a.max(l).min(h))),
            _ => Some(at),
        }
    };
    let (Some(start), Some(stop)) = (place(start, true), place(stop, false)) else {
        return ctx.wrong("an index overflows");
    };
    // Canonical form of an empty range.
    let stop = match (start.as_const(), stop.as_const()) {
        (Some(a), Some(b)) if (step > 0 && b < a) || (step < 0 && b > a) => start.clone(),
        _ => stop,
    };
    Ok((start, stop))
}

/// The shape, or a slice of it.
pub fn shape(ctx: &mut Ctx) -> Out {
    ctx.arity(1, 1, 1)?;
    let shape = ctx.ty(0)?.shape;
    let rank = shape.len() as i64;
    let (start, end) = match ctx.since >= 15 {
        true => (ctx.attrs.int_or("start", 0)?, ctx.attrs.int_or("end", rank)?),
        false => (0, rank),
    };
    let place = |i: i64| (if i < 0 { i.saturating_add(rank) } else { i }).clamp(0, rank) as usize;
    let (start, end) = (place(start), place(end));
    let part = shape.get(start..end.max(start)).unwrap_or_default().to_vec();
    match Sym::vector(part) {
        Some(s) => Ok(vec![s.into()]),
        None => ctx.unsupported("the formula of a size is too long"),
    }
}

/// Number of elements.
pub fn size(ctx: &mut Ctx) -> Out {
    ctx.arity(1, 1, 1)?;
    let count = product(&ctx.ty(0)?.shape);
    match count.and_then(|d| Sym::new(hypatia_dsl::dtype::DType::I64, vec![], vec![d])) {
        Some(s) => Ok(vec![s.into()]),
        None => ctx.unsupported("the formula of the number of elements is too long"),
    }
}

/// Tiles: repeats the operand along each axis.
pub fn tile(ctx: &mut Ctx) -> Out {
    ctx.arity(2, 2, 1)?;
    let shape = ctx.ty(0)?.shape;
    let repeats = ctx.sizes(1, "the repeats")?;
    if repeats.len() != shape.len() || repeats.iter().any(|d| d.as_const().is_some_and(|c| c < 0)) {
        return ctx.wrong(format!(
            "repeats should have a number for each axis of {}, but are {}",
            show_shape(&shape),
            show_shape(&repeats)
        ));
    }
    if let (Some(sym), Some(repeats)) = (ctx.sym(0), concrete(&repeats))
        && let Some(s) = sym.tiled(&repeats)
    {
        return Ok(vec![s.into()]);
    }
    let one = Dim::from(1);
    let (mut between, mut wide, mut joined) = (Vec::new(), Vec::new(), Vec::new());
    for (d, r) in shape.iter().zip(&repeats) {
        if *r != one {
            between.push(one.clone());
            wide.push(r.clone());
        }
        between.push(d.clone());
        wide.push(d.clone());
        match d.checked_mul(r) {
            Some(p) => joined.push(p),
            None => return ctx.wrong("the result is too large"),
        }
    }
    let x = ctx.value(0)?;
    let x = ctx.reshape(x, &between)?;
    let x = ctx.expand(x, &wide)?;
    Ok(vec![ctx.reshape(x, &joined)?.into()])
}

/// Pads a tensor with a constant, or with copies of its elements.
pub fn pad(ctx: &mut Ctx) -> Out {
    ctx.arity(2, if ctx.since >= 18 { 4 } else { 3 }, 1)?;
    let mode = ctx.attrs.text_or("mode", "constant")?;
    let x = ctx.value(0)?;
    let shape = ctx.shape_of(x);
    let axes = match ctx.since >= 18 && ctx.has(3) {
        true => ctx.axes(&ctx.numbers(3, "axes")?, shape.len())?,
        false => (0..shape.len()).collect(),
    };
    let pads = ctx.sizes(1, "pads")?;
    if pads.len() != 2 * axes.len() {
        return ctx.wrong(format!(
            "pads should have two numbers for each of {} axes, but are {}",
            axes.len(),
            show_shape(&pads)
        ));
    }
    let (mut before, mut after) = (vec![Dim::from(0); shape.len()], vec![Dim::from(0); shape.len()]);
    for (i, a) in axes.iter().enumerate() {
        before[*a] = pads[i].clone();
        after[*a] = pads[axes.len() + i].clone();
    }
    if mode != "constant" {
        return pad_by_copies(ctx, x, &mode, &before, &after);
    }
    let dtype = ctx.dtype_of(x);
    let value = match ctx.maybe(2)? {
        Some(v) => ctx.reshape(v, &[])?,
        None => ctx.number(dtype, 0.0)?,
    };
    if before.iter().chain(&after).all(|d| *d == Dim::from(0)) {
        return Ok(vec![x.into()]);
    }
    Ok(vec![ctx.op(BuiltinOp::Pad, &[x, value], vec![dims(&before), dims(&after)])?.into()])
}

/// Pads each axis with a gather by constant indices.
fn pad_by_copies(ctx: &mut Ctx, mut x: Value, mode: &str, before: &[Dim], after: &[Dim]) -> Out {
    const LONGEST: i64 = 1 << 20;
    if !["edge", "reflect", "wrap"].contains(&mode) || (mode == "wrap" && ctx.since < 19) {
        return ctx.wrong(format!("mode `{mode}` is unknown, or newer than the opset"));
    }
    let shape = ctx.shape_of(x);
    for axis in 0..shape.len() {
        let (size, b, a) = match (shape[axis].as_const(), before[axis].as_const(), after[axis].as_const()) {
            (_, Some(0), Some(0)) => continue,
            (Some(s), Some(b), Some(a)) => (s, b, a),
            _ => return ctx.unsupported(format!("mode `{mode}` on an axis of dynamic size")),
        };
        let total = size.checked_add(b).and_then(|t| t.checked_add(a)).filter(|t| (0..=LONGEST).contains(t));
        let (Some(total), true) = (total, size > 0) else {
            return ctx
                .wrong(format!("an axis of size {size} cannot be padded with {b} and {a} copies of its elements"));
        };
        let index = |i: i64| {
            let at = i - b;
            match mode {
                "edge" => at.clamp(0, size - 1),
                "wrap" => at.rem_euclid(size),
                _ if size == 1 => 0,
                _ => {
                    let within = at.rem_euclid(2 * (size - 1));
                    within.min(2 * (size - 1) - within)
                }
            }
        };
        let indices: Vec<i64> = (0..total).map(index).collect();
        let Some(indices) = Tensor::from_slice(&[indices.len()], &indices) else { return ctx.wrong("too many pads") };
        let indices = ctx.builder.graph.constant(indices);
        x = ctx.op(BuiltinOp::Gather, &[x, indices], vec![int(axis as i64)])?;
    }
    Ok(vec![x.into()])
}

/// The operand `[b, c, h, w]` and the block size.
fn blocks(ctx: &mut Ctx) -> Out<(Value, Shape, Dim)> {
    ctx.arity(1, 1, 1)?;
    let x = ctx.value(0)?;
    let shape = ctx.shape_of(x);
    match ctx.attrs.int("blocksize")? {
        Some(b) if b > 0 && shape.len() == 4 => Ok((x, shape, Dim::from(b))),
        _ => ctx.wrong("it needs a blocksize and an operand of rank 4"),
    }
}

/// Reshape, transpose, reshape.
fn rearrange(ctx: &mut Ctx, x: Value, split: &[Dim], perm: &[i64], join: &[Option<Dim>]) -> Out {
    let Some(joined) = join.iter().cloned().collect::<Option<Vec<_>>>() else {
        return ctx.wrong("the block size does not divide the operand's axes");
    };
    let x = ctx.reshape(x, split)?;
    let x = ctx.transpose(x, perm)?;
    Ok(vec![ctx.reshape(x, &joined)?.into()])
}

/// Moves blocks from the channels into the plane.
pub fn depth_to_space(ctx: &mut Ctx) -> Out {
    let (x, s, b) = blocks(ctx)?;
    let mode = ctx.attrs.text_or("mode", "DCR")?;
    let Some(depth) = b.checked_mul(&b).and_then(|bb| s[1].div_exact(&bb)) else {
        return ctx.wrong("the block size does not divide the channels");
    };
    let join = [Some(s[0].clone()), Some(depth.clone()), s[2].checked_mul(&b), s[3].checked_mul(&b)];
    let (n, h, w) = (s[0].clone(), s[2].clone(), s[3].clone());
    match mode.as_str() {
        "DCR" => rearrange(ctx, x, &[n, b.clone(), b, depth, h, w], &[0, 3, 4, 1, 5, 2], &join),
        "CRD" => rearrange(ctx, x, &[n, depth, b.clone(), b, h, w], &[0, 1, 4, 2, 5, 3], &join),
        other => ctx.wrong(format!("there is no mode `{other}`")),
    }
}

/// Moves blocks from the plane into the channels.
pub fn space_to_depth(ctx: &mut Ctx) -> Out {
    let (x, s, b) = blocks(ctx)?;
    let mode = if ctx.since >= 28 { ctx.attrs.text_or("mode", "DCR")? } else { "DCR".into() };
    let (Some(h), Some(w)) = (s[2].div_exact(&b), s[3].div_exact(&b)) else {
        return ctx.wrong("the block size does not divide the plane");
    };
    let depth = b.checked_mul(&b).and_then(|bb| s[1].checked_mul(&bb));
    let join = [Some(s[0].clone()), depth, Some(h.clone()), Some(w.clone())];
    let split = [s[0].clone(), s[1].clone(), h, b.clone(), w, b];
    match mode.as_str() {
        "DCR" => rearrange(ctx, x, &split, &[0, 3, 5, 1, 2, 4], &join),
        "CRD" => rearrange(ctx, x, &split, &[0, 1, 3, 5, 2, 4], &join),
        other => ctx.wrong(format!("there is no mode `{other}`")),
    }
}
