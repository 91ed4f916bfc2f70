//! Matrix products.

use hypatia_dsl::builtin::{BuiltinOp, BuiltinScalar};
use hypatia_dsl::shape::Dim;

use super::super::context::{Ctx, Out};
use hypatia_graph::Value;

/// numpy's matmul: a vector is a row on the left and a column on the right.
pub fn matmul(ctx: &mut Ctx) -> Out {
    ctx.arity(2, 2, 1)?;
    let (mut a, mut b) = (ctx.value(0)?, ctx.value(1)?);
    let (left, right) = (ctx.shape_of(a), ctx.shape_of(b));
    if left.is_empty() || right.is_empty() {
        return ctx.wrong("a product needs operands of at least rank 1");
    }
    if let [k] = &left[..] {
        a = ctx.reshape(a, &[Dim::from(1), k.clone()])?;
    }
    if let [k] = &right[..] {
        b = ctx.reshape(b, &[k.clone(), Dim::from(1)])?;
    }
    let product = ctx.op(BuiltinOp::Matmul, &[a, b], vec![])?;
    let mut shape = ctx.shape_of(product);
    if right.len() == 1 {
        shape.pop();
    }
    if left.len() == 1 {
        shape.remove(shape.len() - if right.len() == 1 { 1 } else { 2 });
    }
    Ok(vec![ctx.reshape(product, &shape)?.into()])
}

/// alpha * A' * B' + beta * C, where A and B may be transposed and C broadcasts. With a beta of 0,
/// C is not read: its infinities and NaNs do not reach the result.
pub fn gemm(ctx: &mut Ctx) -> Out {
    ctx.arity(2, 3, 1)?;
    let (mut a, mut b) = (ctx.value(0)?, ctx.value(1)?);
    if ctx.shape_of(a).len() != 2 || ctx.shape_of(b).len() != 2 {
        return ctx.wrong("A and B should be matrices");
    }
    if ctx.attrs.flag("transA", false)? {
        a = ctx.transpose(a, &[1, 0])?;
    }
    if ctx.attrs.flag("transB", false)? {
        b = ctx.transpose(b, &[1, 0])?;
    }
    let (alpha, beta) = (ctx.attrs.float_or("alpha", 1.0)?, ctx.attrs.float_or("beta", 1.0)?);
    if ctx.dtype_of(a).is_int() && (alpha.fract() != 0.0 || beta.fract() != 0.0) {
        return ctx.unsupported("alpha or beta with a fraction on integers");
    }
    let product = ctx.op(BuiltinOp::Matmul, &[a, b], vec![])?;
    let mut result = scaled(ctx, product, alpha)?;
    if let Some(c) = ctx.maybe(2)? {
        ctx.fits(&ctx.shape_of(c), &ctx.shape_of(result), "C")?;
        if beta != 0.0 {
            let c = scaled(ctx, c, beta)?;
            result = ctx.builtin(BuiltinScalar::Add, &[result, c])?;
        }
    }
    Ok(vec![result.into()])
}

fn scaled(ctx: &mut Ctx, x: Value, factor: f32) -> Out<Value> {
    if factor == 1.0 {
        return Ok(x);
    }
    let factor = ctx.number(ctx.dtype_of(x), f64::from(factor))?;
    ctx.builtin(BuiltinScalar::Mul, &[x, factor])
}
