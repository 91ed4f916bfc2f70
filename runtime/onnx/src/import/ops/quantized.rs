//! Products and convolutions of quantised operands (the QOperator format).
//!
//! In: integers of 8 bits, their zero points and scales. Out: sums in i32, or these scaled to the
//! result's own quantisation. Invariant: sums of products are exact, but for those of QLinearConv,
//! which are computed in f32.

use hypatia_dsl::builtin::{BuiltinOp, BuiltinScalar};
use hypatia_dsl::dtype::DType;
use hypatia_dsl::shape::Dim;

use super::super::context::{Ctx, Out};
use super::quantize::{limits, shifted};
use super::window;
use hypatia_graph::Value;

/// Which axis of an operand a zero point or a scale may have an entry for.
#[derive(Clone, Copy)]
enum Along {
    /// The rows of a left factor: the axis before the last.
    Rows,
    /// The columns of a right factor: the last axis.
    Columns,
    /// The filters of a convolution: the first of so many axes.
    Filters(usize),
    /// None: one number for all.
    Nothing,
}

/// A zero point or a scale as it broadcasts: one number, one for each entry of that axis, or of the
/// rank that it has.
fn along(ctx: &mut Ctx, v: Value, axis: Along) -> Out<Value> {
    match (&ctx.shape_of(v)[..], axis) {
        ([n], _) if *n == Dim::from(1) => ctx.reshape(v, &[]),
        ([n], Along::Rows) => ctx.reshape(v, &[n.clone(), Dim::from(1)]),
        ([n], Along::Filters(rank)) => {
            let ones = vec![Dim::from(1); rank.saturating_sub(1)];
            ctx.reshape(v, &[vec![n.clone()], ones].concat())
        }
        _ => Ok(v),
    }
}

/// Operand `i`, of 8-bit integers, minus the zero point at `zero`, which may be absent, in i32.
fn centred(ctx: &mut Ctx, i: usize, zero: usize, axis: Along) -> Out<Value> {
    let x = ctx.value(i)?;
    if !ctx.dtype_of(x).is_byte() {
        return ctx.wrong(format!("an operand of {}; i8 or u8 was expected", ctx.dtype_of(x)));
    }
    let x = ctx.cast(x, DType::I32)?;
    let Some(z) = ctx.maybe(zero)? else { return Ok(x) };
    let z = ctx.cast(z, DType::I32)?;
    let z = along(ctx, z, axis)?;
    ctx.builtin(BuiltinScalar::Sub, &[x, z])
}

fn multiplied(ctx: &mut Ctx, sides: [Value; 2]) -> Out<Value> {
    if sides.iter().any(|x| ctx.shape_of(*x).len() < 2) {
        return ctx.unsupported("a vector as an operand; give it a second axis");
    }
    ctx.op(BuiltinOp::Matmul, &sides, vec![])
}

/// Sums in f32, times a scale, as integers of the zero point's type.
fn requantised(ctx: &mut Ctx, sums: Value, scale: Value, zero: Value) -> Out {
    let to = ctx.dtype_of(zero);
    if !to.is_byte() {
        return ctx.unsupported(format!("quantisation to {to}"));
    }
    let limits = limits(ctx, to)?;
    let y = ctx.builtin(BuiltinScalar::Mul, &[sums, scale])?;
    let y = ctx.builtin(BuiltinScalar::Round, &[y])?;
    let y = shifted(ctx, y, Some(zero), Some(limits))?;
    Ok(vec![ctx.cast(y, to)?.into()])
}

/// The scales of both operands by that of the result, in f32.
fn rescale(ctx: &mut Ctx, of: [(usize, Along); 3]) -> Out<Value> {
    let mut scale = |(i, axis): (usize, Along)| {
        let scale = ctx.value(i)?;
        let scale = ctx.cast(scale, DType::F32)?;
        along(ctx, scale, axis)
    };
    let [left, right, result] = [scale(of[0])?, scale(of[1])?, scale(of[2])?];
    let both = ctx.builtin(BuiltinScalar::Mul, &[left, right])?;
    ctx.builtin(BuiltinScalar::Div, &[both, result])
}

/// A matrix product of 8-bit integers minus their zero points, in 32 bits.
pub fn matmul_integer(ctx: &mut Ctx) -> Out {
    ctx.arity(2, 4, 1)?;
    let sides = [centred(ctx, 0, 2, Along::Rows)?, centred(ctx, 1, 3, Along::Columns)?];
    Ok(vec![multiplied(ctx, sides)?.into()])
}

/// A matrix product of quantised operands, quantised: operand, scale and zero point of either side,
/// then scale and zero point of the result.
pub fn matmul_linear(ctx: &mut Ctx) -> Out {
    ctx.arity(8, 8, 1)?;
    let sides = [centred(ctx, 0, 2, Along::Rows)?, centred(ctx, 3, 5, Along::Columns)?];
    let sums = multiplied(ctx, sides)?;
    let sums = ctx.cast(sums, DType::F32)?;
    let scale = rescale(ctx, [(1, Along::Rows), (4, Along::Columns), (6, Along::Rows)])?;
    let zero = ctx.value(7)?;
    let zero = along(ctx, zero, Along::Rows)?;
    requantised(ctx, sums, scale, zero)
}

/// A convolution of 8-bit integers minus their zero points, in 32 bits. Sums in f64 are exact.
pub fn conv_integer(ctx: &mut Ctx) -> Out {
    ctx.arity(2, 4, 1)?;
    let w = ctx.value(1)?;
    let rank = ctx.shape_of(w).len();
    let x = centred(ctx, 0, 2, Along::Nothing)?;
    let w = centred(ctx, 1, 3, Along::Filters(rank))?;
    let (x, w) = (ctx.cast(x, DType::F64)?, ctx.cast(w, DType::F64)?);
    let y = window::convolved(ctx, x, w)?;
    Ok(vec![ctx.cast(y, DType::I32)?.into()])
}

/// A convolution of quantised operands, quantised; the bias is i32, in units of both scales.
pub fn conv_linear(ctx: &mut Ctx) -> Out {
    ctx.arity(8, 9, 1)?;
    let w = ctx.value(3)?;
    let rank = ctx.shape_of(w).len();
    let x = centred(ctx, 0, 2, Along::Nothing)?;
    let w = centred(ctx, 3, 5, Along::Filters(rank))?;
    let (x, w) = (ctx.cast(x, DType::F32)?, ctx.cast(w, DType::F32)?);
    let mut sums = window::convolved(ctx, x, w)?;
    // Scales and a bias have an entry for each channel of the result.
    let channels = Along::Filters(rank.saturating_sub(1));
    if let Some(bias) = ctx.maybe(8)? {
        let bias = ctx.cast(bias, DType::F32)?;
        let bias = along(ctx, bias, channels)?;
        sums = ctx.builtin(BuiltinScalar::Add, &[sums, bias])?;
    }
    let scale = rescale(ctx, [(1, Along::Nothing), (4, channels), (6, Along::Nothing)])?;
    let zero = ctx.value(7)?;
    let zero = along(ctx, zero, Along::Nothing)?;
    requantised(ctx, sums, scale, zero)
}
