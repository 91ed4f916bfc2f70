//! Reductions, and the index of a maximum or minimum.

use hypatia_dsl::builtin::{BuiltinOp, BuiltinScalar};
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::AttrValue;
use hypatia_dsl::shape::{Dim, product};

use super::super::context::{Ctx, Out, int, ints};
use super::super::symbolic::{self, Sym};
use hypatia_graph::Value;

/// The parameters of a reduction: the operand, its axes, and whether they stay with size 1. `axes`
/// is `None` if the node leaves its operand unchanged.
struct Reduction {
    x: Value,
    axes: Option<Vec<i64>>,
    keepdims: bool,
}

/// Reads a reduction; `input_since` is the version from which the axes are an operand.
fn parameters(ctx: &mut Ctx, input_since: i64) -> Out<Reduction> {
    let by_input = ctx.since >= input_since;
    ctx.arity(1, if by_input { 2 } else { 1 }, 1)?;
    let x = ctx.value(0)?;
    let rank = ctx.shape_of(x).len();
    let keepdims = ctx.attrs.flag("keepdims", true)?;
    let noop = by_input && ctx.attrs.flag("noop_with_empty_axes", false)?;
    let named = if !by_input {
        ctx.attrs.ints("axes")?.map(<[i64]>::to_vec)
    } else if ctx.has(1) {
        Some(ctx.numbers(1, "axes")?)
    } else {
        None
    };
    let named: Vec<i64> = ctx.axes(&named.unwrap_or_default(), rank)?.into_iter().map(|a| a as i64).collect();
    let axes = match named.is_empty() {
        false => Some(named),
        true if noop => None,
        true => Some((0..rank as i64).collect()),
    };
    Ok(Reduction { x, axes, keepdims })
}

/// A builtin reduction of `f(x)`.
fn plain(ctx: &mut Ctx, input_since: i64, op: BuiltinOp, f: impl FnOnce(&mut Ctx, Value) -> Out<Value>) -> Out<Value> {
    let w = parameters(ctx, input_since)?;
    let Some(axes) = w.axes else { return Ok(w.x) };
    let x = f(ctx, w.x)?;
    if axes.is_empty() { Ok(x) } else { ctx.reduce(op, x, &axes, w.keepdims) }
}

fn same(_: &mut Ctx, x: Value) -> Out<Value> {
    Ok(x)
}

fn square(ctx: &mut Ctx, x: Value) -> Out<Value> {
    ctx.builtin(BuiltinScalar::Mul, &[x, x])
}

/// The sum, the product, the maximum or the minimum of a whole symbolic vector.
fn symbolically(ctx: &Ctx, op: BuiltinOp) -> Out<Option<Sym>> {
    let Some(sym) = ctx.sym(0).filter(|s| s.shape.len() == 1 && s.dtype != DType::Bool) else { return Ok(None) };
    let axes = match ctx.inputs.get(1) {
        Some(Some(_)) => ctx.numbers(1, "axes")?,
        _ => ctx.attrs.ints("axes")?.map(<[i64]>::to_vec).unwrap_or_default(),
    };
    if ctx.attrs.flag("noop_with_empty_axes", false)? || axes.len() > 1 || axes.iter().any(|a| ![0, -1].contains(a)) {
        return Ok(None);
    }
    let all = match op {
        BuiltinOp::Prod => product(&sym.items),
        BuiltinOp::Amax => symbolic::extreme(BuiltinScalar::Max, &sym.items),
        BuiltinOp::Amin => symbolic::extreme(BuiltinScalar::Min, &sym.items),
        _ => sym.items.iter().try_fold(Dim::from(0), |a, d| a.checked_add(d)),
    };
    let shape = if ctx.attrs.flag("keepdims", true)? { vec![1] } else { vec![] };
    Ok(all.and_then(|d| Sym::new(sym.dtype, shape, vec![d])))
}

/// Sum.
pub fn sum(ctx: &mut Ctx) -> Out {
    if let Some(s) = symbolically(ctx, BuiltinOp::Sum)? {
        return Ok(vec![s.into()]);
    }
    Ok(vec![plain(ctx, 13, BuiltinOp::Sum, same)?.into()])
}

/// Product.
pub fn prod(ctx: &mut Ctx) -> Out {
    if let Some(s) = symbolically(ctx, BuiltinOp::Prod)? {
        return Ok(vec![s.into()]);
    }
    Ok(vec![plain(ctx, 18, BuiltinOp::Prod, same)?.into()])
}

/// Mean. ONNX leaves the mean of no elements undefined; here it is NaN.
pub fn mean(ctx: &mut Ctx) -> Out {
    if !ctx.ty(0)?.dtype.is_float() {
        return ctx.unsupported("the mean of integers; cast to float first");
    }
    Ok(vec![plain(ctx, 18, BuiltinOp::Mean, same)?.into()])
}

/// Largest element.
pub fn max(ctx: &mut Ctx) -> Out {
    extreme(ctx, BuiltinOp::Amax)
}

/// Smallest element.
pub fn min(ctx: &mut Ctx) -> Out {
    extreme(ctx, BuiltinOp::Amin)
}

fn extreme(ctx: &mut Ctx, op: BuiltinOp) -> Out {
    if let Some(s) = symbolically(ctx, op)? {
        return Ok(vec![s.into()]);
    }
    if ctx.ty(0)?.dtype != DType::Bool {
        return Ok(vec![plain(ctx, 18, op, same)?.into()]);
    }
    // Booleans are reduced as 0 and 1.
    let all = plain(ctx, 18, op, |ctx, x| ctx.cast(x, DType::U8))?;
    Ok(vec![ctx.cast(all, DType::Bool)?.into()])
}

/// Rejects a reduction that leaves its operand unchanged: ONNX does not define what then happens to
/// the function around the reduction.
fn decided(ctx: &Ctx) -> Out<()> {
    if ctx.attrs.flag("noop_with_empty_axes", false)? && (!ctx.has(1) || ctx.numbers(1, "axes")?.is_empty()) {
        return ctx.unsupported("noop_with_empty_axes without axes");
    }
    Ok(())
}

/// Sum of squares.
pub fn sum_square(ctx: &mut Ctx) -> Out {
    decided(ctx)?;
    Ok(vec![plain(ctx, 18, BuiltinOp::Sum, square)?.into()])
}

/// Sum of absolute values.
pub fn l1(ctx: &mut Ctx) -> Out {
    decided(ctx)?;
    let all = plain(ctx, 18, BuiltinOp::Sum, |ctx, x| ctx.builtin(BuiltinScalar::Abs, &[x]))?;
    Ok(vec![all.into()])
}

/// Root of the sum of squares. In 16 bits the squares of numbers whose root is finite overflow, so
/// they are computed in f32.
pub fn l2(ctx: &mut Ctx) -> Out {
    decided(ctx)?;
    let dtype = ctx.ty(0)?.dtype;
    let wide = if dtype.is_float() { dtype.compute() } else { dtype };
    let all = plain(ctx, 18, BuiltinOp::Sum, |ctx, x| {
        let x = ctx.cast(x, wide)?;
        square(ctx, x)
    })?;
    let root = ctx.builtin(BuiltinScalar::Sqrt, &[all])?;
    Ok(vec![ctx.cast(root, dtype)?.into()])
}

/// Logarithm of the sum.
pub fn log_sum(ctx: &mut Ctx) -> Out {
    decided(ctx)?;
    let all = plain(ctx, 18, BuiltinOp::Sum, same)?;
    Ok(vec![ctx.builtin(BuiltinScalar::Log, &[all])?.into()])
}

/// Logarithm of the sum of exponentials, without overflow.
pub fn log_sum_exp(ctx: &mut Ctx) -> Out {
    decided(ctx)?;
    let w = parameters(ctx, 18)?;
    let Some(axes) = w.axes.filter(|a| !a.is_empty()) else {
        // log(exp(x)): x itself.
        return Ok(vec![w.x.into()]);
    };
    let name = ctx.name(0)?;
    let kept = ctx.call(name, &[Some(w.x)], &[("axes", ints(&axes))])?;
    if w.keepdims {
        return Ok(vec![kept.into()]);
    }
    let shape: Vec<Dim> = ctx
        .shape_of(kept)
        .into_iter()
        .enumerate()
        .filter(|(i, _)| !axes.contains(&(*i as i64)))
        .map(|(_, d)| d)
        .collect();
    Ok(vec![ctx.reshape(kept, &shape)?.into()])
}

/// Index of the largest element.
pub fn arg_max(ctx: &mut Ctx) -> Out {
    ctx.arity(1, 1, 1)?;
    let x = ctx.value(0)?;
    index_of_largest(ctx, x)
}

/// Index of the smallest element: the index of the largest after an order-reversing map. -1 - x
/// cannot overflow where -x can.
pub fn arg_min(ctx: &mut Ctx) -> Out {
    ctx.arity(1, 1, 1)?;
    let mut x = ctx.value(0)?;
    x = if ctx.dtype_of(x).is_float() {
        ctx.builtin(BuiltinScalar::Neg, &[x])?
    } else {
        x = ctx.cast(x, DType::I64)?;
        let minus_one = ctx.number(DType::I64, -1.0)?;
        ctx.builtin(BuiltinScalar::Sub, &[minus_one, x])?
    };
    index_of_largest(ctx, x)
}

fn index_of_largest(ctx: &mut Ctx, x: Value) -> Out {
    let rank = ctx.shape_of(x).len();
    let axis = ctx.attrs.int_or("axis", 0)?;
    let axis = ctx.axis(axis, rank)?;
    let keepdims = ctx.attrs.flag("keepdims", true)?;
    let last = ctx.attrs.flag("select_last_index", false)?;
    let attrs = vec![int(axis as i64), AttrValue::Bool(keepdims), AttrValue::Bool(last)];
    Ok(vec![ctx.op(BuiltinOp::Argmax, &[x], attrs)?.into()])
}

/// Mean over all spatial axes.
pub fn global_average(ctx: &mut Ctx) -> Out {
    global(ctx, BuiltinOp::Mean)
}

/// Maximum over all spatial axes.
pub fn global_max(ctx: &mut Ctx) -> Out {
    global(ctx, BuiltinOp::Amax)
}

fn global(ctx: &mut Ctx, op: BuiltinOp) -> Out {
    ctx.arity(1, 1, 1)?;
    let x = ctx.value(0)?;
    let rank = ctx.shape_of(x).len() as i64;
    if rank < 3 {
        return ctx.wrong("it needs batch, channels and at least one more axis");
    }
    Ok(vec![ctx.reduce(op, x, &(2..rank).collect::<Vec<_>>(), true)?.into()])
}
