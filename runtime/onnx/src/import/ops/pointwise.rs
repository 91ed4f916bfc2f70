//! Element-wise ops.

use hypatia_dsl::builtin::BuiltinScalar;
use hypatia_dsl::dtype::DType;

use super::super::context::{Bound, Ctx, Out, internal};
use super::super::symbolic;
use super::super::tensor;
use hypatia_graph::Value;
use hypatia_tensor::tensor::Tensor;

/// The scalar `names[0]` applied to all operands, or to them in reverse order.
pub fn scalar(ctx: &mut Ctx, swapped: bool) -> Out {
    let name = ctx.name(0)?;
    let arity = arity(ctx, name)?;
    ctx.arity(arity, arity, 1)?;
    if name == BuiltinScalar::Div.name() {
        ctx.divides_by(1)?;
    }
    if swapped {
        ctx.inputs.truncate(arity);
        ctx.inputs.reverse();
    }
    if let Some(sym) = symbolically(ctx, name) {
        return Ok(vec![sym]);
    }
    let operands = values(ctx, arity)?;
    Ok(vec![ctx.scalar(name, &operands)?.into()])
}

/// The scalar `names[0]` applied to the operands and to attributes as constants.
pub fn with(ctx: &mut Ctx, attrs: &[(&str, f32)]) -> Out {
    let name = ctx.name(0)?;
    let own = arity(ctx, name)?
        .checked_sub(attrs.len())
        .ok_or_else(|| internal("a scalar of the table takes fewer parameters than it has attributes"))?;
    ctx.arity(own, own, 1)?;
    let mut operands = values(ctx, own)?;
    let dtype = ctx.dtype_of(operands[0]);
    for (attr, default) in attrs {
        let value = ctx.attrs.float_or(attr, *default)?;
        operands.push(ctx.number(dtype, f64::from(value))?);
    }
    Ok(vec![ctx.scalar(name, &operands)?.into()])
}

/// The binary scalar `names[0]`, folded over any number of operands.
pub fn fold(ctx: &mut Ctx) -> Out {
    let count = ctx.inputs.len();
    ctx.arity(1, count.max(1), 1)?;
    let name = ctx.name(0)?;
    if let (Some(f), Some(syms)) = (BuiltinScalar::from_name(name), ctx.syms())
        && let Some((first, rest)) = syms.split_first()
        && let Some(sym) = rest.iter().try_fold(first.clone(), |all, next| symbolic::pointwise(f, &[&all, next]))
    {
        return Ok(vec![sym.into()]);
    }
    let operands = values(ctx, count)?;
    let mut all = operands[0];
    for next in &operands[1..] {
        all = ctx.scalar(name, &[all, *next])?;
    }
    Ok(vec![all.into()])
}

/// The mean of any number of operands.
pub fn mean(ctx: &mut Ctx) -> Out {
    let count = ctx.inputs.len() as f64;
    let all = fold(ctx)?;
    let Some(sum) = all.first().and_then(|b| b.value) else { return ctx.wrong("it has no inputs") };
    let count = ctx.number(ctx.dtype_of(sum), count)?;
    Ok(vec![ctx.builtin(BuiltinScalar::Div, &[sum, count])?.into()])
}

fn arity(ctx: &Ctx, name: &str) -> Out<usize> {
    match ctx.builder.graph.program.find_scalar(name) {
        Some(id) => Ok(ctx.builder.graph.program.scalar(id).params.len()),
        None => ctx.unsupported(format!("the rules define no scalar `{name}`")),
    }
}

fn values(ctx: &mut Ctx, count: usize) -> Out<Vec<Value>> {
    (0..count).map(|i| ctx.value(i)).collect()
}

/// The symbolic result, if the scalar is a builtin and all operands are symbolic sizes.
fn symbolically(ctx: &Ctx, name: &str) -> Option<Bound> {
    let f = BuiltinScalar::from_name(name)?;
    let syms = ctx.syms()?;
    symbolic::pointwise(f, &syms.iter().collect::<Vec<_>>()).map(Bound::from)
}

/// Equality, of booleans too.
pub fn equal(ctx: &mut Ctx) -> Out {
    ctx.arity(2, 2, 1)?;
    if let Some(sym) = symbolically(ctx, BuiltinScalar::Eq.name()) {
        return Ok(vec![sym]);
    }
    let (a, b) = (ctx.value(0)?, ctx.value(1)?);
    if ctx.dtype_of(a) == DType::Bool && ctx.dtype_of(b) == DType::Bool {
        let differ = ctx.builtin(BuiltinScalar::Xor, &[a, b])?;
        return Ok(vec![ctx.builtin(BuiltinScalar::Not, &[differ])?.into()]);
    }
    Ok(vec![ctx.builtin(BuiltinScalar::Eq, &[a, b])?.into()])
}

/// `Where`: of numbers or of booleans.
pub fn select(ctx: &mut Ctx) -> Out {
    ctx.arity(3, 3, 1)?;
    if let Some(sym) = symbolically(ctx, BuiltinScalar::Select.name()) {
        return Ok(vec![sym]);
    }
    let (c, a, b) = (ctx.value(0)?, ctx.value(1)?, ctx.value(2)?);
    if ctx.dtype_of(a) != DType::Bool {
        return Ok(vec![ctx.builtin(BuiltinScalar::Select, &[c, a, b])?.into()]);
    }
    let yes = ctx.builtin(BuiltinScalar::And, &[c, a])?;
    let not = ctx.builtin(BuiltinScalar::Not, &[c])?;
    let no = ctx.builtin(BuiltinScalar::And, &[not, b])?;
    Ok(vec![ctx.builtin(BuiltinScalar::Or, &[yes, no])?.into()])
}

/// Clamps from below and above; either limit may be absent.
pub fn clip(ctx: &mut Ctx) -> Out {
    ctx.arity(1, 3, 1)?;
    let single = |i: usize| !ctx.has(i) || ctx.sym(i).is_some_and(|s| s.items.len() == 1 && s.shape.len() < 2);
    if let Some(mut sym) = ctx.sym(0).filter(|s| single(1) && single(2) && s.dtype != DType::Bool) {
        let mut known = true;
        for (i, f) in [(1, BuiltinScalar::Max), (2, BuiltinScalar::Min)] {
            if let Some(limit) = ctx.sym(i) {
                let next = limit.reshaped(vec![]).and_then(|limit| symbolic::pointwise(f, &[&sym, &limit]));
                known &= next.is_some();
                sym = next.unwrap_or(sym);
            }
        }
        if known {
            return Ok(vec![sym.into()]);
        }
    }
    let mut x = ctx.value(0)?;
    for (i, f) in [(1, BuiltinScalar::Max), (2, BuiltinScalar::Min)] {
        if let Some(limit) = ctx.maybe(i)? {
            if !ctx.shape_of(limit).is_empty() && ctx.shape_of(limit) != [1.into()] {
                return ctx.wrong("min and max should be single numbers");
            }
            let limit = ctx.reshape(limit, &[])?;
            x = ctx.builtin(f, &[x, limit])?;
        }
    }
    Ok(vec![x.into()])
}

/// GELU through the error function or through tanh.
pub fn gelu(ctx: &mut Ctx) -> Out {
    ctx.arity(1, 1, 1)?;
    let name = match ctx.attrs.text_or("approximate", "none")?.as_str() {
        "none" => ctx.name(0)?,
        "tanh" => ctx.name(1)?,
        other => return ctx.wrong(format!("approximate should be `none` or `tanh`, but is `{other}`")),
    };
    let x = ctx.value(0)?;
    Ok(vec![ctx.scalar(name, &[x])?.into()])
}

/// x * sigmoid(alpha * x): a named scalar if alpha is 1.
pub fn swish(ctx: &mut Ctx) -> Out {
    ctx.arity(1, 1, 1)?;
    Ok(vec![swish_of(ctx)?.into()])
}

fn swish_of(ctx: &mut Ctx) -> Out<Value> {
    let x = ctx.value(0)?;
    let alpha = ctx.attrs.float_or("alpha", 1.0)?;
    if alpha == 1.0 {
        return ctx.scalar(ctx.name(0)?, &[x]);
    }
    let alpha = ctx.number(ctx.dtype_of(x), f64::from(alpha))?;
    ctx.scalar(ctx.name(1)?, &[x, alpha])
}

/// Swish of the gate, times the other operand of the same shape.
pub fn swiglu(ctx: &mut Ctx) -> Out {
    ctx.arity(2, 2, 1)?;
    let gate = swish_of(ctx)?;
    let up = ctx.value(1)?;
    if ctx.shape_of(gate) != ctx.shape_of(up) {
        return ctx.wrong("its operands should have one shape");
    }
    Ok(vec![ctx.builtin(BuiltinScalar::Mul, &[gate, up])?.into()])
}

/// Leaky ReLU with a slope for each element.
pub fn prelu(ctx: &mut Ctx) -> Out {
    ctx.arity(2, 2, 1)?;
    let (x, slope) = (ctx.value(0)?, ctx.value(1)?);
    ctx.fits(&ctx.shape_of(slope), &ctx.shape_of(x), "the slope")?;
    let name = ctx.name(0)?;
    Ok(vec![ctx.scalar(name, &[x, slope])?.into()])
}

/// Tests for infinities of one sign or both.
pub fn is_inf(ctx: &mut Ctx) -> Out {
    ctx.arity(1, 1, 1)?;
    let x = ctx.value(0)?;
    let negative = ctx.attrs.flag("detect_negative", true)?;
    let positive = ctx.attrs.flag("detect_positive", true)?;
    let mut found = ctx.builtin(BuiltinScalar::IsInf, &[x])?;
    if !(negative && positive) {
        let zero = ctx.number(ctx.dtype_of(x), 0.0)?;
        let sides = match (negative, positive) {
            (true, _) => vec![x, zero],
            (_, true) => vec![zero, x],
            // Neither sign: no element is both below and above 0.
            _ => vec![zero, zero],
        };
        let side = ctx.builtin(BuiltinScalar::Lt, &sides)?;
        found = ctx.builtin(BuiltinScalar::And, &[found, side])?;
    }
    Ok(vec![found.into()])
}

/// Powers. The exponent may have another type than the base; the base decides the result's type.
pub fn pow(ctx: &mut Ctx) -> Out {
    ctx.arity(2, 2, 1)?;
    let (base, exponent) = (ctx.ty(0)?.dtype, ctx.ty(1)?.dtype);
    let known = ctx.builder.constant(&ctx.bound(1)?);
    if base.is_int() {
        // ONNX leaves integers to negative powers undefined.
        let natural = exponent.is_int() && known.as_ref().is_some_and(|t| t.to_f64().iter().all(|v| *v >= 0.0));
        if !natural {
            return ctx
                .unsupported("an integer to a power that is not a constant integer of at least 0; cast to float");
        }
    }
    let x = ctx.value(0)?;
    if base == exponent {
        let y = ctx.value(1)?;
        return Ok(vec![ctx.builtin(BuiltinScalar::Pow, &[x, y])?.into()]);
    }
    // A constant that the base's type represents exactly.
    let exact = known.and_then(|t| {
        let values = t.to_f64();
        Tensor::from_f64(base, t.shape(), &values).filter(|c| c.to_f64() == values)
    });
    if let Some(t) = exact {
        let y = ctx.builder.graph.constant(t);
        return Ok(vec![ctx.builtin(BuiltinScalar::Pow, &[x, y])?.into()]);
    }
    if !base.is_float() {
        return ctx.unsupported(format!("a power of {base} with an exponent of {exponent}"));
    }
    let y = ctx.value(1)?;
    let (x, y) = (ctx.cast(x, DType::F64)?, ctx.cast(y, DType::F64)?);
    let power = ctx.builtin(BuiltinScalar::Pow, &[x, y])?;
    Ok(vec![ctx.cast(power, base)?.into()])
}

/// Remainders with the sign of the divisor, or with `fmod` of the dividend.
pub fn modulo(ctx: &mut Ctx) -> Out {
    ctx.arity(2, 2, 1)?;
    let truncated = ctx.attrs.flag("fmod", false)?;
    if !truncated && ctx.since < 28 && ctx.ty(0)?.dtype.is_float() {
        return ctx.wrong("fmod must be 1 for floats");
    }
    ctx.divides_by(1)?;
    let sym = match (truncated, ctx.sym(0), ctx.sym(1)) {
        (true, ..) => symbolically(ctx, BuiltinScalar::Fmod.name()),
        (false, Some(a), Some(b)) => symbolic::modulo(&a, &b).map(Bound::from),
        _ => None,
    };
    if let Some(sym) = sym {
        return Ok(vec![sym]);
    }
    let (a, b) = (ctx.value(0)?, ctx.value(1)?);
    if truncated {
        return Ok(vec![ctx.builtin(BuiltinScalar::Fmod, &[a, b])?.into()]);
    }
    let name = ctx.name(0)?;
    Ok(vec![ctx.scalar(name, &[a, b])?.into()])
}

/// Cast to a given element type.
pub fn cast(ctx: &mut Ctx) -> Out {
    ctx.arity(1, 1, 1)?;
    // Concerns float8e8m0 only.
    ctx.attrs.ignore("round_mode");
    let Some(to) = ctx.attrs.int("to")? else { return ctx.wrong("the attribute `to` is missing") };
    let to = tensor::dtype(i32::try_from(to).unwrap_or(-1))?;
    convert(ctx, to)
}

/// Cast to the element type of another operand.
pub fn cast_like(ctx: &mut Ctx) -> Out {
    ctx.arity(2, 2, 1)?;
    ctx.attrs.ignore("round_mode");
    let to = ctx.ty(1)?.dtype;
    convert(ctx, to)
}

fn convert(ctx: &mut Ctx, to: DType) -> Out {
    let saturate = saturates(ctx)?;
    let integer = |d| matches!(d, DType::I64 | DType::I32 | DType::Bool);
    if integer(to)
        && let Some(sym) = ctx.sym(0).and_then(|s| s.cast(to))
    {
        return Ok(vec![sym.into()]);
    }
    let x = ctx.value(0)?;
    let x = if saturate { within_range(ctx, x, to)? } else { x };
    Ok(vec![ctx.cast(x, to)?.into()])
}

/// The attribute `saturate`, which concerns casts to 8-bit floats only.
pub fn saturates(ctx: &mut Ctx) -> Out<bool> {
    Ok(ctx.attrs.int_or("saturate", 1)? != 0)
}

/// What a cast to an 8-bit float saturates: numbers beyond its range, infinities too, become its
/// ends. NaN stays NaN. A value that cannot leave the range is returned as it is.
fn within_range(ctx: &mut Ctx, x: Value, to: DType) -> Out<Value> {
    let from = ctx.dtype_of(x);
    let inside = matches!(from, DType::Bool | DType::I8 | DType::U8) || from == to;
    if !to.only_stored() || inside || (from, to) == (DType::F8E4M3, DType::F8E5M2) {
        return Ok(x);
    }
    let x = if from.only_stored() { ctx.cast(x, from.compute())? } else { x };
    let from = ctx.dtype_of(x);
    let (low, high) = (ctx.number(from, -to.largest())?, ctx.number(from, to.largest())?);
    let x = ctx.builtin(BuiltinScalar::Max, &[x, low])?;
    ctx.builtin(BuiltinScalar::Min, &[x, high])
}

/// Shifts bits left or right. A shift that is negative, or at least as wide as the type, gives 0,
/// or -1 for a right shift of a negative number.
pub fn bit_shift(ctx: &mut Ctx) -> Out {
    ctx.arity(2, 2, 1)?;
    let (x, y) = (ctx.value(0)?, ctx.value(1)?);
    let dtype = ctx.dtype_of(x);
    if !dtype.is_int() {
        return ctx.wrong(format!("only integers can be shifted, but the operand is {dtype}"));
    }
    let bits = 8.0 * dtype.size() as f64;
    let left = match ctx.attrs.text_or("direction", "")?.as_str() {
        "LEFT" => true,
        "RIGHT" => false,
        other => return ctx.wrong(format!("the direction should be LEFT or RIGHT, but is `{other}`")),
    };
    let number = |ctx: &mut Ctx, v: f64| ctx.number(DType::I64, v);
    let (x, y) = (ctx.cast(x, DType::I64)?, ctx.cast(y, DType::I64)?);
    let (zero, one, two) = (number(ctx, 0.0)?, number(ctx, 1.0)?, number(ctx, 2.0)?);
    // A right shift by all bits except the sign bit already gives the result of every larger shift.
    let width = number(ctx, if left || dtype == DType::U8 { bits } else { bits - 1.0 })?;
    let below = ctx.builtin(BuiltinScalar::Lt, &[y, width])?;
    let natural = ctx.builtin(BuiltinScalar::Le, &[zero, y])?;
    let inside = ctx.builtin(BuiltinScalar::And, &[below, natural])?;
    let amount = ctx.builtin(BuiltinScalar::Select, &[inside, y, zero])?;
    let (shifted, beyond) = if left {
        // In two steps, because i64 cannot represent the power of 2 that shifts by 63 bits.
        let half = ctx.builtin(BuiltinScalar::Div, &[amount, two])?;
        let rest = ctx.builtin(BuiltinScalar::Sub, &[amount, half])?;
        let (half, rest) =
            (ctx.builtin(BuiltinScalar::Pow, &[two, half])?, ctx.builtin(BuiltinScalar::Pow, &[two, rest])?);
        let z = ctx.builtin(BuiltinScalar::Mul, &[x, half])?;
        (ctx.builtin(BuiltinScalar::Mul, &[z, rest])?, zero)
    } else {
        let power = ctx.builtin(BuiltinScalar::Pow, &[two, amount])?;
        let minus = ctx.builtin(BuiltinScalar::Neg, &[one])?;
        let negative = ctx.builtin(BuiltinScalar::Lt, &[x, zero])?;
        // Floor division: for a negative number, -1 - (-1 - x) / 2^y.
        let mirrored = ctx.builtin(BuiltinScalar::Sub, &[minus, x])?;
        let from = ctx.builtin(BuiltinScalar::Select, &[negative, mirrored, x])?;
        let quotient = ctx.builtin(BuiltinScalar::Div, &[from, power])?;
        let back = ctx.builtin(BuiltinScalar::Sub, &[minus, quotient])?;
        let fill = ctx.builtin(BuiltinScalar::Select, &[negative, minus, zero])?;
        (ctx.builtin(BuiltinScalar::Select, &[negative, back, quotient])?, fill)
    };
    let z = ctx.builtin(BuiltinScalar::Select, &[inside, shifted, beyond])?;
    Ok(vec![ctx.cast(z, dtype)?.into()])
}
