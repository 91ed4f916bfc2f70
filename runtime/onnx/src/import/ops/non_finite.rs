//! Transposed convolutions whose filters hold infinities or NaN.
//!
//! In: an operand, filters, and the ordinary convolution that the transposed one becomes. Out: the
//! result as ONNX defines it. The ordinary convolution multiplies the filters with the zeros that
//! it has between the elements and around them; the transposed one has no such products. Finite
//! filters do not show the difference, but 0 times an infinity is NaN. Invariant: the result has an
//! infinity or NaN exactly where a product of an element with a non-finite entry makes one.
//!
//! Only filters that are constants are looked at.

use std::sync::Arc;

use half::{bf16, f16};
use hypatia_dsl::builtin::BuiltinScalar;
use hypatia_dsl::dtype::DType;

use super::super::context::{Ctx, Out, internal};
use super::transposed::Transposed;
use hypatia_graph::Value;
use hypatia_tensor::tensor::Tensor;

/// The transposed convolution of an operand and filters.
pub(super) fn transposed(ctx: &mut Ctx, [x, w]: [Value; 2], how: &Transposed) -> Out<Value> {
    match ctx.builder.constant(&w.into()).filter(|t| !is_finite(t)) {
        None => {
            let x = how.spread(ctx, x)?;
            how.convolve(ctx, x, w)
        }
        Some(filters) => exact(ctx, x, &filters, how),
    }
}

fn is_finite(t: &Tensor) -> bool {
    match t.dtype() {
        DType::F64 => t.as_slice::<f64>().is_none_or(|s| s.iter().all(|v| v.is_finite())),
        DType::F32 => t.as_slice::<f32>().is_none_or(|s| s.iter().all(|v| v.is_finite())),
        DType::F16 => t.as_slice::<f16>().is_none_or(|s| s.iter().all(|v| v.is_finite())),
        DType::BF16 => t.as_slice::<bf16>().is_none_or(|s| s.iter().all(|v| v.is_finite())),
        _ => true,
    }
}

/// Convolves with finite filters, and adds infinities and NaN where products make them: separate
/// convolutions count those products for each result.
fn exact(ctx: &mut Ctx, x: Value, filters: &Arc<Tensor>, how: &Transposed) -> Out<Value> {
    let dtype = ctx.dtype_of(x);
    let (zero, one) = (ctx.number(dtype, 0.0)?, ctx.number(dtype, 1.0)?);
    let ones = ctx.expand(one, &ctx.shape_of(x))?;
    let (x, element) = (how.spread(ctx, x)?, how.spread(ctx, ones)?);
    let mark = |ctx: &mut Ctx, low: Value, high: Value| {
        let below = ctx.builtin(BuiltinScalar::Lt, &[low, high])?;
        ctx.cast(below, dtype)
    };
    let (positive, negative) = (mark(ctx, zero, x)?, mark(ctx, x, zero)?);
    // The elements that are zero; NaN is counted with them, since either makes NaN.
    let others = ctx.builtin(BuiltinScalar::Sub, &[element, positive])?;
    let others = ctx.builtin(BuiltinScalar::Sub, &[others, negative])?;

    let up = marked(ctx, filters, |v| v == f64::INFINITY)?;
    let down = marked(ctx, filters, |v| v == f64::NEG_INFINITY)?;
    let infinite = marked(ctx, filters, f64::is_infinite)?;
    let undefined = marked(ctx, filters, f64::is_nan)?;
    // An infinite element meets an entry of the same sign, so that its product keeps its sign.
    let finite = filled(ctx, filters, |v| {
        if v.is_finite() {
            v
        } else if v < 0.0 {
            -1.0
        } else {
            1.0
        }
    })?;
    let mut y = how.convolve(ctx, x, finite)?;
    for (products, result) in [
        ([(positive, up), (negative, down)], f64::INFINITY),
        ([(positive, down), (negative, up)], f64::NEG_INFINITY),
        ([(others, infinite), (element, undefined)], f64::NAN),
    ] {
        for (x, w) in products {
            let Some(w) = w else { continue };
            let count = how.convolve(ctx, x, w)?;
            let any = ctx.builtin(BuiltinScalar::Lt, &[zero, count])?;
            let result = ctx.number(dtype, result)?;
            let result = ctx.builtin(BuiltinScalar::Select, &[any, result, zero])?;
            y = ctx.builtin(BuiltinScalar::Add, &[y, result])?;
        }
    }
    Ok(y)
}

/// Filters with 1 where the entry is as asked, and 0 elsewhere; `None` if there is no such entry.
fn marked(ctx: &mut Ctx, filters: &Tensor, is: impl Fn(f64) -> bool) -> Out<Option<Value>> {
    if !filters.to_f64().into_iter().any(&is) {
        return Ok(None);
    }
    filled(ctx, filters, |v| if is(v) { 1.0 } else { 0.0 }).map(Some)
}

/// Filters with other entries.
fn filled(ctx: &mut Ctx, filters: &Tensor, entry: impl Fn(f64) -> f64) -> Out<Value> {
    let entries: Vec<f64> = filters.to_f64().into_iter().map(entry).collect();
    let made = Tensor::from_f64(filters.dtype(), filters.shape(), &entries);
    Ok(ctx.builder.graph.constant(made.ok_or_else(|| internal("filters could not be made"))?))
}
