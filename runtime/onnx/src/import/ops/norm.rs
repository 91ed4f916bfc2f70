//! Normalisations and softmax.

use hypatia_dsl::builtin::{BuiltinOp, BuiltinScalar};
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::AttrValue;
use hypatia_dsl::shape::{Dim, product};

use super::super::context::{Bound, Ctx, Out, dims, int};
use super::super::tensor;
use hypatia_graph::Value;

/// Softmax or log-softmax along one axis.
pub fn softmax(ctx: &mut Ctx) -> Out {
    ctx.arity(1, 1, 1)?;
    let x = ctx.value(0)?;
    let axis = ctx.attrs.int_or("axis", -1)?;
    let axis = ctx.axis(axis, ctx.shape_of(x).len())?;
    let name = ctx.name(0)?;
    Ok(vec![ctx.call(name, &[Some(x)], &[("axis", int(axis as i64))])?.into()])
}

/// The operand with the normalised axes joined into one, `[.., prod]`, in the compute type.
struct Flat {
    /// The operand in the compute type, with its own shape.
    wide: Value,
    /// The operand with the normalised axes joined.
    joined: Value,
    axis: usize,
    stash: DType,
}

/// Joins the axes from `axis` on, and casts to the `stash_type`. f64 is never narrowed.
fn flat(ctx: &mut Ctx) -> Out<Flat> {
    let x = ctx.value(0)?;
    let ty = ctx.type_of(x);
    let axis = ctx.attrs.int_or("axis", -1)?;
    let axis = ctx.axis(axis, ty.shape.len())?;
    let code = ctx.attrs.int_or("stash_type", 1)?;
    let stash = tensor::dtype(i32::try_from(code).unwrap_or(-1))?;
    if !stash.is_float() {
        return ctx.wrong(format!("stash_type {stash} is not a float"));
    }
    let stash = if ty.dtype.size() > stash.size() { ty.dtype } else { stash };
    let wide = ctx.cast(x, stash)?;
    let Some(last) = product(&ty.shape[axis..]) else { return ctx.wrong("the shape is too large") };
    let joined = ctx.reshape(wide, &[&ty.shape[..axis], &[last]].concat())?;
    Ok(Flat { wide, joined, axis, stash })
}

/// A scale or bias as a vector over the joined axis; `None` if it varies along other axes.
fn vector(ctx: &mut Ctx, v: Value, flat: &Flat) -> Out<Option<Value>> {
    let normalised = ctx.shape_of(flat.wide)[flat.axis..].to_vec();
    let mut shape = ctx.shape_of(v);
    while shape.len() > normalised.len() && shape[0] == Dim::from(1) {
        shape.remove(0);
    }
    if shape.len() > normalised.len() {
        return Ok(None);
    }
    let v = ctx.cast(v, flat.stash)?;
    let v = ctx.reshape(v, &shape)?;
    let v = ctx.expand(v, &normalised)?;
    let last = ctx.shape_of(flat.joined).pop().unwrap_or(Dim::from(1));
    Ok(Some(ctx.reshape(v, &[last])?))
}

/// A vector of ones over the joined axis.
fn ones(ctx: &mut Ctx, flat: &Flat) -> Out<Value> {
    let last = ctx.shape_of(flat.joined).pop().unwrap_or(Dim::from(1));
    let one = ctx.number(flat.stash, 1.0)?;
    ctx.expand(one, &[last])
}

/// Applies a scale and a bias that the normalisation itself did not take, then casts to the
/// operand's type.
fn finish(ctx: &mut Ctx, y: Value, flat: &Flat, scale: Option<Value>, bias: Option<Value>) -> Out<Value> {
    let mut y = ctx.reshape(y, &ctx.shape_of(flat.wide))?;
    for (v, f) in [(scale, BuiltinScalar::Mul), (bias, BuiltinScalar::Add)] {
        if let Some(v) = v {
            let v = ctx.cast(v, flat.stash)?;
            y = ctx.builtin(f, &[y, v])?;
        }
    }
    let to = ctx.ty(0)?.dtype;
    ctx.cast(y, to)
}

/// Layer normalisation; mean and inverse standard deviation are optional outputs.
pub fn layer(ctx: &mut Ctx) -> Out {
    ctx.arity(2, 3, 3)?;
    let eps = f64::from(ctx.attrs.float_or("epsilon", 1e-5)?);
    let flat = flat(ctx)?;
    let (scale, bias) = (ctx.value(1)?, ctx.maybe(2)?);
    let full = ctx.shape_of(flat.wide);
    for (v, what) in [(Some(scale), "Scale"), (bias, "B")] {
        if let Some(v) = v {
            ctx.fits(&ctx.shape_of(v), &full, what)?;
        }
    }
    let scale_vector = vector(ctx, scale, &flat)?;
    let bias_vector = match bias {
        // If the scale is applied later, so is the bias.
        Some(b) if scale_vector.is_some() => vector(ctx, b, &flat)?,
        _ => None,
    };
    let inner = match scale_vector {
        Some(s) => s,
        None => ones(ctx, &flat)?,
    };
    let name = ctx.name(0)?;
    let y = ctx.call(name, &[Some(flat.joined), Some(inner), bias_vector], &[("eps", AttrValue::Float(eps))])?;
    let late_scale = if scale_vector.is_none() { Some(scale) } else { None };
    let late_bias = if bias_vector.is_none() { bias } else { None };
    let y = finish(ctx, y, &flat, late_scale, late_bias)?;
    let mut results: Vec<Bound> = vec![y.into()];
    if ctx.wanted(1) || ctx.wanted(2) {
        let (mean, inverse) = moments(ctx, &flat, eps)?;
        results.extend([Bound::from(mean), Bound::from(inverse)]);
    }
    Ok(results)
}

/// Mean and 1 / sqrt(variance + eps); the normalised axes are kept with size 1.
fn moments(ctx: &mut Ctx, flat: &Flat, eps: f64) -> Out<(Value, Value)> {
    let rank = ctx.shape_of(flat.wide).len() as i64;
    let axes: Vec<i64> = (flat.axis as i64..rank).collect();
    let mean = ctx.reduce(BuiltinOp::Mean, flat.wide, &axes, true)?;
    let off = ctx.builtin(BuiltinScalar::Sub, &[flat.wide, mean])?;
    let square = ctx.builtin(BuiltinScalar::Mul, &[off, off])?;
    let variance = ctx.reduce(BuiltinOp::Mean, square, &axes, true)?;
    let eps = ctx.number(flat.stash, eps)?;
    let sum = ctx.builtin(BuiltinScalar::Add, &[variance, eps])?;
    Ok((mean, ctx.builtin(BuiltinScalar::Rsqrt, &[sum])?))
}

/// RMS normalisation: division by the root of the mean square.
pub fn rms(ctx: &mut Ctx) -> Out {
    ctx.arity(2, 2, 1)?;
    let eps = f64::from(ctx.attrs.float_or("epsilon", 1e-5)?);
    let flat = flat(ctx)?;
    let scale = ctx.value(1)?;
    ctx.fits(&ctx.shape_of(scale), &ctx.shape_of(flat.wide), "scale")?;
    let inner = vector(ctx, scale, &flat)?;
    let late = if inner.is_none() { Some(scale) } else { None };
    let inner = match inner {
        Some(s) => s,
        None => ones(ctx, &flat)?,
    };
    let name = ctx.name(0)?;
    let y = ctx.call(name, &[Some(flat.joined), Some(inner)], &[("eps", AttrValue::Float(eps))])?;
    Ok(vec![finish(ctx, y, &flat, late, None)?.into()])
}

/// A vector over groups of channels as `[C, 1, 1, ...]`, for operands `[N, C, ...]`.
fn channels_of_groups(ctx: &mut Ctx, i: usize, shape: &[Dim], groups: &Dim, what: &str) -> Out<Value> {
    let v = ctx.value(i)?;
    if ctx.shape_of(v) != [groups.clone()] {
        return ctx.wrong(format!("{what} should be a vector over the {groups} groups of channels"));
    }
    let Some(each) = shape[1].div_exact(groups) else { return ctx.wrong("the groups do not divide the channels") };
    let v = ctx.reshape(v, &[groups.clone(), Dim::from(1)])?;
    let v = ctx.expand(v, &[groups.clone(), each])?;
    let mut wide = vec![Dim::from(1); shape.len() - 1];
    wide[0] = shape[1].clone();
    ctx.reshape(v, &wide)
}

/// A vector over the channels as `[C, 1, 1, ...]`, for operands `[N, C, ...]`.
fn channels(ctx: &mut Ctx, i: usize, shape: &[Dim], what: &str) -> Out<Value> {
    let v = ctx.value(i)?;
    if ctx.shape_of(v) != shape[1..2] {
        return ctx.wrong(format!("{what} should be a vector over the {} channels", shape[1]));
    }
    let mut wide = vec![Dim::from(1); shape.len() - 1];
    wide[0] = shape[1].clone();
    ctx.reshape(v, &wide)
}

/// Batch normalisation with the running statistics.
pub fn batch(ctx: &mut Ctx) -> Out {
    if ctx.attrs.flag("training_mode", false)? {
        return ctx.unsupported("training_mode = 1; export the model for inference");
    }
    ctx.arity(5, 5, 1)?;
    ctx.attrs.ignore("momentum");
    let eps = f64::from(ctx.attrs.float_or("epsilon", 1e-5)?);
    let x = ctx.value(0)?;
    let ty = ctx.type_of(x);
    if ty.shape.len() < 2 {
        return ctx.wrong("it needs batch and channels");
    }
    let scale = channels(ctx, 1, &ty.shape, "scale")?;
    let bias = channels(ctx, 2, &ty.shape, "B")?;
    let mean = channels(ctx, 3, &ty.shape, "the mean")?;
    let variance = channels(ctx, 4, &ty.shape, "the variance")?;
    // Since opset 14 scale, statistics and operand may have three types: all are cast to the
    // widest.
    let wide = [x, scale, bias, mean, variance]
        .iter()
        .map(|v| ctx.dtype_of(*v))
        .max_by_key(|d| (d.size(), *d == DType::F16))
        .unwrap_or(ty.dtype);
    let wide = if wide.size() == 2 { DType::F32 } else { wide };
    let [x, scale, bias, mean, variance] = [x, scale, bias, mean, variance].map(|v| ctx.cast(v, wide));
    let (x, scale, bias, mean, variance) = (x?, scale?, bias?, mean?, variance?);
    let eps = ctx.number(wide, eps)?;
    let variance = ctx.builtin(BuiltinScalar::Add, &[variance, eps])?;
    let root = ctx.builtin(BuiltinScalar::Sqrt, &[variance])?;
    let off = ctx.builtin(BuiltinScalar::Sub, &[x, mean])?;
    let y = ctx.builtin(BuiltinScalar::Div, &[off, root])?;
    let y = ctx.builtin(BuiltinScalar::Mul, &[y, scale])?;
    let y = ctx.builtin(BuiltinScalar::Add, &[y, bias])?;
    Ok(vec![ctx.cast(y, ty.dtype)?.into()])
}

/// What has a scale and a bias of its own.
#[derive(Clone, Copy, PartialEq)]
enum Scaled {
    Channels,
    Groups,
}

/// Normalises over groups of channels and all spatial axes.
fn grouped(ctx: &mut Ctx, groups: Dim, stash: DType, scaled: Scaled) -> Out {
    let x = ctx.value(0)?;
    let ty = ctx.type_of(x);
    if ty.shape.len() < 3 {
        return ctx.wrong("it needs batch, channels and at least one more axis");
    }
    let eps = f64::from(ctx.attrs.float_or("epsilon", 1e-5)?);
    let stash = if ty.dtype.size() > stash.size() { ty.dtype } else { stash };
    let Some(rest) = product(&ty.shape[1..]).and_then(|p| p.div_exact(&groups)) else {
        return ctx.wrong(format!("{groups} groups do not divide the {} channels", ty.shape[1]));
    };
    let mut along = |i: usize, what: &str| match scaled {
        Scaled::Channels => channels(ctx, i, &ty.shape, what),
        Scaled::Groups => channels_of_groups(ctx, i, &ty.shape, &groups, what),
    };
    let (scale, bias) = (along(1, "scale")?, along(2, "bias")?);
    let wide = ctx.cast(x, stash)?;
    let joined = ctx.reshape(wide, &[ty.shape[0].clone(), groups, rest])?;
    let flat = Flat { wide: joined, joined, axis: 2, stash };
    let (mean, inverse) = moments(ctx, &flat, eps)?;
    let off = ctx.builtin(BuiltinScalar::Sub, &[joined, mean])?;
    let y = ctx.builtin(BuiltinScalar::Mul, &[off, inverse])?;
    let y = ctx.reshape(y, &ty.shape)?;
    let (scale, bias) = (ctx.cast(scale, stash)?, ctx.cast(bias, stash)?);
    let y = ctx.builtin(BuiltinScalar::Mul, &[y, scale])?;
    let y = ctx.builtin(BuiltinScalar::Add, &[y, bias])?;
    Ok(vec![ctx.cast(y, ty.dtype)?.into()])
}

/// Instance normalisation: each channel of each sample separately.
pub fn instance(ctx: &mut Ctx) -> Out {
    ctx.arity(3, 3, 1)?;
    match ctx.ty(0)?.shape.get(1) {
        Some(c) => grouped(ctx, c.clone(), DType::F32, Scaled::Channels),
        None => ctx.wrong("it needs batch, channels and at least one more axis"),
    }
}

/// Group normalisation. Before opset 21, each group has a scale and a bias; since, each channel.
pub fn group(ctx: &mut Ctx) -> Out {
    ctx.arity(3, 3, 1)?;
    let scaled = if ctx.since < 21 { Scaled::Groups } else { Scaled::Channels };
    let Some(groups) = ctx.attrs.int("num_groups")? else { return ctx.wrong("num_groups is missing") };
    let code = ctx.attrs.int_or("stash_type", 1)?;
    let stash = tensor::dtype(i32::try_from(code).unwrap_or(-1))?;
    let channels = ctx.ty(0)?.shape.get(1).cloned();
    if groups < 1 || !stash.is_float() || channels.and_then(|c| c.div_exact(&Dim::from(groups))).is_none() {
        return ctx.wrong(format!("{groups} groups do not divide the channels, or the stash_type is not a float"));
    }
    grouped(ctx, Dim::from(groups), stash, scaled)
}

/// The p-norm: the p-th root of the sum of the p-th powers of absolute values.
pub(super) fn p_norm(ctx: &mut Ctx, x: Value, p: i64, axes: &[i64], keepdims: bool) -> Out<Value> {
    let dtype = ctx.dtype_of(x);
    match p {
        1 => {
            let x = ctx.builtin(BuiltinScalar::Abs, &[x])?;
            ctx.reduce(BuiltinOp::Sum, x, axes, keepdims)
        }
        2 => {
            let x = ctx.builtin(BuiltinScalar::Mul, &[x, x])?;
            let sum = ctx.reduce(BuiltinOp::Sum, x, axes, keepdims)?;
            ctx.builtin(BuiltinScalar::Sqrt, &[sum])
        }
        3.. => {
            let x = ctx.builtin(BuiltinScalar::Abs, &[x])?;
            let (up, down) = (ctx.number(dtype, p as f64)?, ctx.number(dtype, 1.0 / p as f64)?);
            let x = ctx.builtin(BuiltinScalar::Pow, &[x, up])?;
            let sum = ctx.reduce(BuiltinOp::Sum, x, axes, keepdims)?;
            ctx.builtin(BuiltinScalar::Pow, &[sum, down])
        }
        _ => ctx.wrong(format!("p should be at least 1, but is {p}")),
    }
}

/// Division by the norm along an axis; rows of zeros stay zero.
pub fn lp_norm(ctx: &mut Ctx) -> Out {
    ctx.arity(1, 1, 1)?;
    let x = ctx.value(0)?;
    let axis = ctx.attrs.int_or("axis", -1)?;
    let axis = ctx.axis(axis, ctx.shape_of(x).len())?;
    let p = ctx.attrs.int_or("p", 2)?;
    if ![1, 2].contains(&p) {
        return ctx.wrong(format!("p should be 1 or 2, but is {p}"));
    }
    let norm = p_norm(ctx, x, p, &[axis as i64], true)?;
    let zero = ctx.number(ctx.dtype_of(x), 0.0)?;
    let empty = ctx.builtin(BuiltinScalar::Eq, &[norm, zero])?;
    let y = ctx.builtin(BuiltinScalar::Div, &[x, norm])?;
    Ok(vec![ctx.builtin(BuiltinScalar::Select, &[empty, zero, y])?.into()])
}

/// Normalises to mean 0 and standard deviation 1 over axes.
pub fn mean_variance(ctx: &mut Ctx) -> Out {
    ctx.arity(1, 1, 1)?;
    let x = ctx.value(0)?;
    let rank = ctx.shape_of(x).len();
    let axes = ctx.axes(ctx.attrs.ints("axes")?.unwrap_or(&[0, 2, 3]), rank)?;
    let axes: Vec<i64> = axes.into_iter().map(|a| a as i64).collect();
    let mean = ctx.reduce(BuiltinOp::Mean, x, &axes, true)?;
    let off = ctx.builtin(BuiltinScalar::Sub, &[x, mean])?;
    let square = ctx.builtin(BuiltinScalar::Mul, &[off, off])?;
    let variance = ctx.reduce(BuiltinOp::Mean, square, &axes, true)?;
    let deviation = ctx.builtin(BuiltinScalar::Sqrt, &[variance])?;
    // The body of ONNX's function adds this epsilon.
    let eps = ctx.number(ctx.dtype_of(x), 1e-9)?;
    let deviation = ctx.builtin(BuiltinScalar::Add, &[deviation, eps])?;
    Ok(vec![ctx.builtin(BuiltinScalar::Div, &[off, deviation])?.into()])
}

/// Local response normalisation: division by a power of the mean square of neighbouring channels.
pub fn local_response(ctx: &mut Ctx) -> Out {
    ctx.arity(1, 1, 1)?;
    let x = ctx.value(0)?;
    let (dtype, rank) = (ctx.dtype_of(x), ctx.shape_of(x).len());
    let Some(size) = ctx.attrs.int("size")?.filter(|s| (1..1 << 20).contains(s)) else {
        return ctx.wrong("it needs a size of at least 1");
    };
    if rank < 2 {
        return ctx.wrong("it needs batch and channels");
    }
    let number = |ctx: &mut Ctx, name: &str, default: f32, by: f64| {
        let v = f64::from(ctx.attrs.float_or(name, default)?);
        ctx.number(dtype, v * by)
    };
    let alpha = number(ctx, "alpha", 1e-4, 1.0 / size as f64)?;
    let (beta, bias) = (number(ctx, "beta", 0.75, 1.0)?, number(ctx, "bias", 1.0, 1.0)?);
    let square = ctx.builtin(BuiltinScalar::Mul, &[x, x])?;
    let around = |amount: i64| {
        let mut list = vec![Dim::from(0); rank];
        list[1] = Dim::from(amount);
        dims(&list)
    };
    let zero = ctx.number(dtype, 0.0)?;
    let before = (size - 1) / 2;
    let padded = ctx.op(BuiltinOp::Pad, &[square, zero], vec![around(before), around(size - 1 - before)])?;
    // Windows apply to the last axis, so transpose the channels there.
    let mut turn: Vec<i64> = (0..rank as i64).filter(|a| *a != 1).collect();
    turn.push(1);
    let last = ctx.transpose(padded, &turn)?;
    let one = AttrValue::List(vec![int(1)]);
    let windows = ctx.op(BuiltinOp::Windows, &[last], vec![AttrValue::List(vec![int(size)]), one.clone(), one])?;
    let sum = ctx.reduce(BuiltinOp::Sum, windows, &[rank as i64], false)?;
    let mut back: Vec<i64> = (0..rank as i64 - 1).collect();
    back.insert(1, rank as i64 - 1);
    let sum = ctx.transpose(sum, &back)?;
    let sum = ctx.builtin(BuiltinScalar::Mul, &[sum, alpha])?;
    let sum = ctx.builtin(BuiltinScalar::Add, &[sum, bias])?;
    let power = ctx.builtin(BuiltinScalar::Pow, &[sum, beta])?;
    Ok(vec![ctx.builtin(BuiltinScalar::Div, &[x, power])?.into()])
}

/// 1 at the first of the largest elements along an axis, else 0.
pub fn hardmax(ctx: &mut Ctx) -> Out {
    ctx.arity(1, 1, 1)?;
    let x = ctx.value(0)?;
    let ty = ctx.type_of(x);
    let axis = ctx.attrs.int_or("axis", -1)?;
    let axis = ctx.axis(axis, ty.shape.len())?;
    if ty.shape[axis] == Dim::from(0) {
        // There is no largest element, and no element to mark.
        return Ok(vec![x.into()]);
    }
    let attrs = vec![int(axis as i64), AttrValue::Bool(true), AttrValue::Bool(false)];
    let largest = ctx.op(BuiltinOp::Argmax, &[x], attrs)?;
    let mut line = vec![Dim::from(1); ty.shape.len()];
    line[axis] = ty.shape[axis].clone();
    let attrs = vec![dims(&line), int(axis as i64), AttrValue::DType(DType::I64)];
    let counted = ctx.op(BuiltinOp::Iota, &[], attrs)?;
    let here = ctx.builtin(BuiltinScalar::Eq, &[largest, counted])?;
    Ok(vec![ctx.cast(here, ty.dtype)?.into()])
}
