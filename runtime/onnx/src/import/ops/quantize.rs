//! Linear quantisation to and from integers and 8-bit floats.

use hypatia_dsl::builtin::{BuiltinOp, BuiltinScalar};
use hypatia_dsl::dtype::DType;
use hypatia_dsl::shape::{Dim, show_shape};

use super::super::context::{Ctx, Out};
use super::super::tensor;
use super::pointwise::saturates;
use hypatia_graph::Value;

/// A scale or zero point that broadcasts to the operand, seen in blocks where it has some: per
/// tensor, per index of an axis, or per block along it.
fn spread(ctx: &mut Ctx, v: Value, shape: &[Dim], axis: Option<usize>, block: i64) -> Out<Value> {
    let have = ctx.shape_of(v);
    if have.iter().all(|d| *d == Dim::from(1)) && have.len() <= 1 {
        return ctx.reshape(v, &[]);
    }
    let Some(axis) = axis else { return ctx.wrong("the axis does not exist") };
    if have.len() == 1 && block == 0 {
        if have[0] != shape[axis] {
            return ctx.wrong(format!(
                "axis {axis} of {} needs a scale for each element, but there are {}",
                show_shape(shape),
                have[0]
            ));
        }
        let mut wide = vec![Dim::from(1); shape.len()];
        wide[axis] = have[0].clone();
        return ctx.reshape(v, &wide);
    }
    let blocks = Dim::from(block);
    if block < 1 || have.len() != shape.len() || have[axis].checked_mul(&blocks).as_ref() != Some(&shape[axis]) {
        return ctx.unsupported(format!(
            "scales {} that do not fit {} in blocks of {block}",
            show_shape(&have),
            show_shape(shape)
        ));
    }
    let mut apart = have;
    apart.insert(axis + 1, Dim::from(1));
    ctx.reshape(v, &apart)
}

/// The operand's shape with the axis cut into blocks, if its scale has one for each: nothing is
/// repeated in memory then.
fn in_blocks(ctx: &Ctx, scale: Value, shape: &[Dim], axis: Option<usize>, block: i64) -> Option<Vec<Dim>> {
    let (have, axis) = (ctx.shape_of(scale), axis?);
    let many = have.len() > 1 || have.iter().any(|d| *d != Dim::from(1));
    let mut apart =
        have.get(axis).filter(|_| block > 0 && many && have.len() == shape.len()).map(|_| shape.to_vec())?;
    apart[axis] = have[axis].clone();
    apart.insert(axis + 1, Dim::from(block));
    Some(apart)
}

/// The axis and the block size; some versions have no block size.
fn axis_and_block(ctx: &Ctx, rank: usize) -> Out<(Option<usize>, i64)> {
    let axis = ctx.attrs.int_or("axis", 1)?;
    let block = if ctx.since >= 21 { ctx.attrs.int_or("block_size", 0)? } else { 0 };
    Ok((ctx.axis(axis, rank).ok(), block))
}

/// The element type that an attribute names, if it is set.
fn named(ctx: &Ctx, attr: &str, since: i64) -> Out<Option<DType>> {
    match if ctx.since >= since { ctx.attrs.int_or(attr, 0)? } else { 0 } {
        0 => Ok(None),
        code => Ok(Some(tensor::dtype(i32::try_from(code).unwrap_or(-1))?)),
    }
}

/// The least and the largest value of a type that is quantised to.
pub(super) fn limits(ctx: &Ctx, to: DType) -> Out<[f64; 2]> {
    match to {
        DType::U8 => Ok([0.0, 255.0]),
        DType::I8 => Ok([-128.0, 127.0]),
        DType::F8E4M3 | DType::F8E5M2 => Ok([-to.largest(), to.largest()]),
        other => ctx.unsupported(format!("quantisation to {other}")),
    }
}

/// Whole numbers in a float type, plus a zero point, within these limits.
pub(super) fn shifted(ctx: &mut Ctx, y: Value, zero: Option<Value>, limits: Option<[f64; 2]>) -> Out<Value> {
    let (mut y, dtype) = (y, ctx.dtype_of(y));
    if let Some(zero) = zero {
        let zero = ctx.cast(zero, dtype)?;
        y = ctx.builtin(BuiltinScalar::Add, &[y, zero])?;
    }
    if let Some([low, high]) = limits {
        let (low, high) = (ctx.number(dtype, low)?, ctx.number(dtype, high)?);
        y = ctx.builtin(BuiltinScalar::Max, &[y, low])?;
        y = ctx.builtin(BuiltinScalar::Min, &[y, high])?;
    }
    Ok(y)
}

/// x / scale, rounded, plus the zero point, saturated to the type. An 8-bit float rounds at the
/// end.
pub fn quantize(ctx: &mut Ctx) -> Out {
    ctx.arity(2, 3, 1)?;
    let saturate = saturates(ctx)?;
    let (x, scale) = (ctx.value(0)?, ctx.value(1)?);
    let shape = ctx.shape_of(x);
    let (axis, block) = axis_and_block(ctx, shape.len())?;
    let zero = ctx.maybe(2)?;
    let stated = named(ctx, "output_dtype", 21)?;
    let to = zero.map(|z| ctx.dtype_of(z)).or(stated).unwrap_or(DType::U8);
    let limits = limits(ctx, to)?;
    let compute = named(ctx, "precision", 23)?.unwrap_or(ctx.dtype_of(scale));
    if !compute.is_float() {
        return ctx.unsupported(format!("division in {compute}"));
    }
    let apart = in_blocks(ctx, scale, &shape, axis, block);
    let scale = spread(ctx, scale, &shape, axis, block)?;
    let x = ctx.reshape(x, apart.as_ref().unwrap_or(&shape))?;
    let (x, scale) = (ctx.cast(x, compute)?, ctx.cast(scale, compute)?);
    let y = ctx.builtin(BuiltinScalar::Div, &[x, scale])?;
    let y = if to.only_stored() { y } else { ctx.builtin(BuiltinScalar::Round, &[y])? };
    // Narrow floats cannot represent all sums.
    let y = ctx.cast(y, if compute == DType::F64 { DType::F64 } else { DType::F32 })?;
    let zero = zero.map(|z| spread(ctx, z, &shape, axis, block)).transpose()?;
    let limits = (!to.only_stored() || saturate).then_some(limits);
    let y = shifted(ctx, y, zero, limits)?;
    let y = ctx.cast(y, to)?;
    Ok(vec![ctx.reshape(y, &shape)?.into()])
}

/// (x - zero point) * scale
pub fn dequantize(ctx: &mut Ctx) -> Out {
    ctx.arity(2, 3, 1)?;
    let (x, scale) = (ctx.value(0)?, ctx.value(1)?);
    let shape = ctx.shape_of(x);
    let (axis, block) = axis_and_block(ctx, shape.len())?;
    let to = named(ctx, "output_dtype", 23)?.unwrap_or(ctx.dtype_of(scale));
    let stored = ctx.dtype_of(x).only_stored();
    if !(ctx.dtype_of(x).is_int() || stored) || !to.computes_in_floats() {
        return ctx.unsupported(format!("dequantisation of {} to {to}", ctx.dtype_of(x)));
    }
    let apart = in_blocks(ctx, scale, &shape, axis, block);
    let scale = spread(ctx, scale, &shape, axis, block)?;
    let x = ctx.reshape(x, apart.as_ref().unwrap_or(&shape))?;
    // Differences of bytes are exact in i32, those of 8-bit floats in the type of the result.
    let between = if stored { to } else { DType::I32 };
    let mut y = ctx.cast(x, between)?;
    if let Some(z) = ctx.maybe(2)? {
        let z = spread(ctx, z, &shape, axis, block)?;
        let z = ctx.cast(z, between)?;
        y = ctx.builtin(BuiltinScalar::Sub, &[y, z])?;
    }
    let (y, scale) = (ctx.cast(y, to)?, ctx.cast(scale, to)?);
    let y = ctx.builtin(BuiltinScalar::Mul, &[y, scale])?;
    Ok(vec![ctx.reshape(y, &shape)?.into()])
}

/// Dynamic quantisation to u8 by the operand's own range, extended to include 0. Scale and zero
/// point are outputs too.
pub fn dynamic(ctx: &mut Ctx) -> Out {
    ctx.arity(1, 1, 3)?;
    let x = ctx.value(0)?;
    let dtype = ctx.dtype_of(x);
    if dtype != DType::F32 {
        return ctx.unsupported(format!("quantisation of {dtype}"));
    }
    let all: Vec<i64> = (0..ctx.shape_of(x).len() as i64).collect();
    let number = |ctx: &mut Ctx, v: f64| ctx.number(dtype, v);
    let (zero, most) = (number(ctx, 0.0)?, number(ctx, 255.0)?);
    let high = ctx.reduce(BuiltinOp::Amax, x, &all, false)?;
    let high = ctx.builtin(BuiltinScalar::Max, &[high, zero])?;
    let low = ctx.reduce(BuiltinOp::Amin, x, &all, false)?;
    let low = ctx.builtin(BuiltinScalar::Min, &[low, zero])?;
    let range = ctx.builtin(BuiltinScalar::Sub, &[high, low])?;
    let scale = ctx.builtin(BuiltinScalar::Div, &[range, most])?;
    let whole = |ctx: &mut Ctx, v: Value| {
        let v = ctx.builtin(BuiltinScalar::Round, &[v])?;
        let v = ctx.builtin(BuiltinScalar::Max, &[v, zero])?;
        ctx.builtin(BuiltinScalar::Min, &[v, most])
    };
    let offset = ctx.builtin(BuiltinScalar::Div, &[low, scale])?;
    let offset = ctx.builtin(BuiltinScalar::Neg, &[offset])?;
    let offset = whole(ctx, offset)?;
    let y = ctx.builtin(BuiltinScalar::Div, &[x, scale])?;
    let y = ctx.builtin(BuiltinScalar::Round, &[y])?;
    let y = ctx.builtin(BuiltinScalar::Add, &[y, offset])?;
    let y = whole(ctx, y)?;
    Ok(vec![ctx.cast(y, DType::U8)?.into(), scale.into(), ctx.cast(offset, DType::U8)?.into()])
}
