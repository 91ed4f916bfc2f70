//! Ops that make tensors from attributes and sizes, and ops that pass their operand on.

use hypatia_dsl::builtin::{BuiltinOp, BuiltinScalar};
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::AttrValue;
use hypatia_dsl::shape::{Dim, product, show_shape};

use super::super::context::{Bound, Ctx, Out, dims, int};
use super::super::symbolic::{LARGEST, Sym};
use super::super::tensor;
use hypatia_tensor::tensor::Tensor;

/// Maximum number of elements of a float range.
const LONGEST: f64 = (1u64 << 24) as f64;

/// A constant tensor as a value: symbolic if it is a small tensor of integers.
fn given(ctx: &mut Ctx, t: Tensor) -> Bound {
    match Sym::from_tensor(&t) {
        Some(s) => s.into(),
        None => ctx.builder.graph.constant(t).into(),
    }
}

/// A constant from an attribute.
pub fn constant(ctx: &mut Ctx) -> Out {
    ctx.arity(0, 0, 1)?;
    let int_tensor = |shape: &[usize], v: &[i64]| Tensor::from_slice(shape, v);
    let tensor = if let Some(t) = ctx.attrs.tensor("value")? {
        Some(tensor::read(t, ctx.dir)?)
    } else if let Some(i) = ctx.attrs.int("value_int")? {
        int_tensor(&[], &[i])
    } else if let Some(v) = ctx.attrs.ints("value_ints")? {
        int_tensor(&[v.len()], v)
    } else if let Some(f) = ctx.attrs.float("value_float")? {
        Tensor::from_slice(&[], &[f])
    } else if let Some(v) = ctx.attrs.floats("value_floats")? {
        Tensor::from_slice(&[v.len()], v)
    } else {
        return ctx.unsupported("a constant that is neither a tensor nor numbers (text, sparse)");
    };
    match tensor {
        Some(t) => Ok(vec![given(ctx, t)]),
        None => ctx.wrong("its value could not be read"),
    }
}

/// Fills a shape with one value.
pub fn constant_of_shape(ctx: &mut Ctx) -> Out {
    ctx.arity(1, 1, 1)?;
    let value = match ctx.attrs.tensor("value")? {
        Some(t) => tensor::read(t, ctx.dir)?,
        None => match Tensor::zeros(DType::F32, &[]) {
            Some(t) => t,
            None => return ctx.wrong("its value could not be made"),
        },
    };
    let Some(value) = value.reshaped(&[]) else { return ctx.wrong("its value should be one number") };
    let shape = ctx.sizes(0, "the shape")?;
    if shape.iter().any(|d| d.as_const().is_some_and(|c| c < 0)) {
        return ctx.wrong(format!("the shape {} has a negative size", show_shape(&shape)));
    }
    let concrete: Option<Vec<usize>> =
        shape.iter().map(|d| d.as_const().and_then(|c| usize::try_from(c).ok())).collect();
    if let (Some(c), Some(s)) = (concrete, Sym::from_tensor(&value))
        && let Some(s) = s.expand(&c)
    {
        return Ok(vec![s.into()]);
    }
    let value = ctx.builder.graph.constant(value);
    Ok(vec![ctx.expand(value, &shape)?.into()])
}

/// An arithmetic progression.
pub fn range(ctx: &mut Ctx) -> Out {
    ctx.arity(3, 3, 1)?;
    ctx.attrs.ignore("stash_type");
    let dtype = ctx.ty(0)?.dtype;
    for i in 0..3 {
        let ty = ctx.ty(i)?;
        if ty.dtype != dtype || product(&ty.shape) != Some(Dim::from(1)) {
            return ctx.wrong(format!("start, limit and delta should be numbers of one type, but one is {ty}"));
        }
    }
    if dtype.is_float() {
        return float_range(ctx, dtype);
    }
    let one = |i| ctx.sym(i).and_then(|s| s.items.first().cloned());
    let (Some(start), Some(limit), Some(delta)) = (one(0), one(1), one(2)) else {
        return ctx.unsupported("start, limit and delta must be known when the model is imported");
    };
    let Some(step) = delta.as_const().filter(|d| *d != 0) else {
        return ctx.wrong(format!("the delta is {delta}, not a number other than 0"));
    };
    let span = limit.checked_sub(&start);
    let count = match span.as_ref().map(|s| (s.as_const(), s)) {
        Some((Some(s), _)) => {
            // ceil(s / step), at least 0.
            let (s, step) = (i128::from(s), i128::from(step));
            let whole = s.div_euclid(step) + i128::from(s.rem_euclid(step) != 0 && step > 0);
            i64::try_from(whole.max(0)).ok().map(Dim::from)
        }
        Some((None, s)) if step == 1 => Some(s.clone()),
        _ => None,
    };
    let Some(count) = count else {
        return ctx.unsupported("the number of elements cannot be computed from sizes");
    };
    if let (Some(a), Some(n)) = (start.as_const(), count.as_const())
        && n <= LARGEST as i64
    {
        let items = (0..n).map(|i| i.checked_mul(step).and_then(|o| a.checked_add(o)).map(Dim::from));
        let sym = items.collect::<Option<Vec<_>>>().and_then(|v| Sym::new(dtype, vec![v.len()], v));
        if let Some(s) = sym {
            return Ok(vec![s.into()]);
        }
    }
    let mut x = ctx.op(BuiltinOp::Iota, &[], vec![dims(&[count]), int(0), AttrValue::DType(dtype)])?;
    if step != 1 {
        let delta = ctx.value(2)?;
        let delta = ctx.reshape(delta, &[])?;
        x = ctx.builtin(BuiltinScalar::Mul, &[x, delta])?;
    }
    if start != Dim::from(0) {
        let start = ctx.value(0)?;
        let start = ctx.reshape(start, &[])?;
        x = ctx.builtin(BuiltinScalar::Add, &[x, start])?;
    }
    Ok(vec![x.into()])
}

fn float_range(ctx: &mut Ctx, dtype: DType) -> Out {
    let mut numbers = Vec::new();
    for i in 0..3 {
        match ctx.builder.constant(&ctx.bound(i)?).and_then(|t| t.to_f64().first().copied()) {
            Some(v) => numbers.push(v),
            None => return ctx.unsupported("start, limit and delta must be constants"),
        }
    }
    let [start, limit, delta] = numbers[..] else { return ctx.wrong("it needs three numbers") };
    let count = (dtype.round(limit - start) / delta).ceil().max(0.0);
    if !count.is_finite() || count > LONGEST {
        return ctx.unsupported(format!("a range of {count} elements"));
    }
    let values: Vec<f64> = (0..count as u64).map(|i| start + i as f64 * delta).collect();
    match Tensor::from_f64(dtype, &[values.len()], &values) {
        Some(t) => Ok(vec![ctx.builder.graph.constant(t).into()]),
        None => ctx.wrong("its values could not be made"),
    }
}

/// The operand itself.
pub fn identity(ctx: &mut Ctx) -> Out {
    ctx.arity(1, 1, 1)?;
    Ok(vec![ctx.bound(0)?])
}

/// At inference: the operand itself, and a mask that is true everywhere.
pub fn dropout(ctx: &mut Ctx) -> Out {
    ctx.arity(1, 3, 2)?;
    ctx.attrs.ignore("seed");
    if ctx.has(2) && ctx.sym(2).and_then(|s| s.consts()).is_none_or(|c| c != [0]) {
        return ctx.unsupported("training_mode; export the model for inference");
    }
    let mut results = vec![ctx.bound(0)?];
    if ctx.wanted(1) {
        let shape = ctx.ty(0)?.shape;
        let yes = ctx.number(DType::Bool, 1.0)?;
        results.push(ctx.expand(yes, &shape)?.into());
    }
    Ok(results)
}
