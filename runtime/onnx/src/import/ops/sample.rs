//! Sampling at positions given by another tensor.
//!
//! In: `GridSample`, for planes and volumes. Out: a gather for each combination of neighbours along
//! the axes, weighted and summed. Invariant: a gathered index lies inside the operand, whatever the
//! positions are.

use hypatia_dsl::builtin::{BuiltinOp, BuiltinScalar};
use hypatia_dsl::dtype::DType;
use hypatia_dsl::shape::{Dim, product};

use super::super::context::{Ctx, Out, int};
use hypatia_graph::Value;

/// The padding mode: values outside the operand.
#[derive(Clone, Copy, PartialEq)]
enum PaddingMode {
    Zeros,
    Border,
    Reflection,
}

/// One axis of the operand.
struct Axis {
    size: i64,
    low: f64,
    high: f64,
}

/// A neighbour along an axis: its index, its weight unless it is the only one, and whether it lies
/// inside.
#[derive(Clone, Copy)]
struct Neighbour {
    index: Value,
    weight: Option<Value>,
    inside: Option<Value>,
}

/// `f(x, number)` in the type of `x`.
fn with(ctx: &mut Ctx, f: BuiltinScalar, x: Value, number: f64) -> Out<Value> {
    let number = ctx.number(ctx.dtype_of(x), number)?;
    ctx.builtin(f, &[x, number])
}

fn clamp(ctx: &mut Ctx, x: Value, low: f64, high: f64) -> Out<Value> {
    let x = with(ctx, BuiltinScalar::Max, x, low)?;
    with(ctx, BuiltinScalar::Min, x, high)
}

/// Reflects `x` at both ends until it lies between them.
fn reflect(ctx: &mut Ctx, x: Value, axis: &Axis) -> Out<Value> {
    let span = axis.high - axis.low;
    if span <= 0.0 {
        return clamp(ctx, x, axis.low, axis.low);
    }
    let away = with(ctx, BuiltinScalar::Sub, x, axis.low)?;
    let away = ctx.builtin(BuiltinScalar::Abs, &[away])?;
    let rest = with(ctx, BuiltinScalar::Fmod, away, span)?;
    let turns = with(ctx, BuiltinScalar::Div, away, span)?;
    let turns = ctx.builtin(BuiltinScalar::Trunc, &[turns])?;
    let odd = with(ctx, BuiltinScalar::Fmod, turns, 2.0)?;
    let odd = with(ctx, BuiltinScalar::Eq, odd, 1.0)?;
    let forth = with(ctx, BuiltinScalar::Add, rest, axis.low)?;
    let back = ctx.number(ctx.dtype_of(x), axis.high)?;
    let back = ctx.builtin(BuiltinScalar::Sub, &[back, rest])?;
    ctx.builtin(BuiltinScalar::Select, &[odd, back, forth])
}

/// Weights of the neighbours of positions that lie `fraction` after their left neighbour.
fn weights(ctx: &mut Ctx, mode: &str, fraction: Value) -> Out<Vec<(f64, Value)>> {
    let one = ctx.number(ctx.dtype_of(fraction), 1.0)?;
    let left = ctx.builtin(BuiltinScalar::Sub, &[one, fraction])?;
    if mode == "linear" {
        return Ok(vec![(0.0, left), (1.0, fraction)]);
    }
    const A: f64 = -0.75;
    // (((c3 x + c2) x) + c1) x + c0
    let polynomial = |ctx: &mut Ctx, x: Value, c: [f64; 4]| {
        let y = with(ctx, BuiltinScalar::Mul, x, c[3])?;
        let y = with(ctx, BuiltinScalar::Add, y, c[2])?;
        let y = ctx.builtin(BuiltinScalar::Mul, &[y, x])?;
        let y = with(ctx, BuiltinScalar::Add, y, c[1])?;
        let y = ctx.builtin(BuiltinScalar::Mul, &[y, x])?;
        with(ctx, BuiltinScalar::Add, y, c[0])
    };
    let near = [1.0, 0.0, -(A + 3.0), A + 2.0];
    let far = [-4.0 * A, 8.0 * A, -5.0 * A, A];
    let (beyond_left, beyond_right) =
        (with(ctx, BuiltinScalar::Add, fraction, 1.0)?, with(ctx, BuiltinScalar::Add, left, 1.0)?);
    Ok(vec![
        (-1.0, polynomial(ctx, beyond_left, far)?),
        (0.0, polynomial(ctx, fraction, near)?),
        (1.0, polynomial(ctx, left, near)?),
        (2.0, polynomial(ctx, beyond_right, far)?),
    ])
}

/// The neighbours of positions along an axis.
fn neighbours(
    ctx: &mut Ctx,
    at: Value,
    axis: &Axis,
    mode: &str,
    padding: PaddingMode,
    dtype: DType,
) -> Out<Vec<Neighbour>> {
    let at = if mode == "nearest" { ctx.builtin(BuiltinScalar::Round, &[at])? } else { at };
    let at = match padding {
        PaddingMode::Zeros => at,
        PaddingMode::Reflection => reflect(ctx, at, axis)?,
        PaddingMode::Border => {
            let below = with(ctx, BuiltinScalar::Lt, at, axis.low)?;
            let high = ctx.number(ctx.dtype_of(at), axis.high)?;
            let above = ctx.builtin(BuiltinScalar::Lt, &[high, at])?;
            let beyond = ctx.builtin(BuiltinScalar::Or, &[below, above])?;
            let clamped = clamp(ctx, at, 0.0, axis.size as f64 - 1.0)?;
            ctx.builtin(BuiltinScalar::Select, &[beyond, clamped, at])?
        }
    };
    let first = ctx.builtin(BuiltinScalar::Floor, &[at])?;
    let taps: Vec<(f64, Option<Value>)> = if mode == "nearest" {
        vec![(0.0, None)]
    } else {
        let fraction = ctx.builtin(BuiltinScalar::Sub, &[at, first])?;
        weights(ctx, mode, fraction)?.into_iter().map(|(t, w)| (t, Some(w))).collect()
    };
    let mut out = Vec::new();
    for (tap, weight) in taps {
        let index = with(ctx, BuiltinScalar::Add, first, tap)?;
        let kept = if padding == PaddingMode::Reflection { reflect(ctx, index, axis)? } else { index };
        let kept = clamp(ctx, kept, 0.0, axis.size as f64 - 1.0)?;
        let inside = match padding {
            PaddingMode::Zeros => Some(ctx.builtin(BuiltinScalar::Eq, &[kept, index])?),
            _ => None,
        };
        // NaN passes through clamps; here it becomes 0.
        let index = ctx.cast(kept, DType::I64)?;
        let weight = weight.map(|w| ctx.cast(w, dtype)).transpose()?;
        out.push(Neighbour { index, weight, inside });
    }
    Ok(out)
}

/// How values between elements are computed, and positions beyond the first and the last element.
fn modes(ctx: &Ctx) -> Out<(&'static str, PaddingMode)> {
    let mode = match ctx.attrs.text_or("mode", "linear")?.as_str() {
        "linear" | "bilinear" => "linear",
        "cubic" | "bicubic" => "cubic",
        "nearest" => "nearest",
        other => return ctx.wrong(format!("there is no mode `{other}`")),
    };
    let padding = match ctx.attrs.text_or("padding_mode", "zeros")?.as_str() {
        "zeros" => PaddingMode::Zeros,
        "border" => PaddingMode::Border,
        "reflection" => PaddingMode::Reflection,
        other => return ctx.wrong(format!("there is no padding_mode `{other}`")),
    };
    Ok((mode, padding))
}

/// Samples values at positions between -1 and 1 along each axis.
pub fn grid_sample(ctx: &mut Ctx) -> Out {
    ctx.arity(2, 2, 1)?;
    let (x, grid) = (ctx.value(0)?, ctx.value(1)?);
    let (shape, places) = (ctx.shape_of(x), ctx.shape_of(grid));
    let (mode, padding) = modes(ctx)?;
    let corners = ctx.attrs.flag("align_corners", false)?;
    let count = shape.len().saturating_sub(2);
    if count == 0
        || places.len() != shape.len()
        || places.last() != Some(&Dim::from(count as i64))
        || places[0] != shape[0]
    {
        return ctx.wrong("the grid should hold a position of the operand's axes for each result");
    }
    let dtype = ctx.dtype_of(x);
    let (Some(inner), Some(total)) = (product(&shape[2..]), product(&places[1..=count])) else {
        return ctx.wrong("the operand is too large");
    };
    let mut axes = Vec::new();
    for (i, size) in shape[2..].iter().enumerate() {
        let Some(size) = size.as_const().filter(|s| *s > 0) else {
            return ctx.unsupported(format!("an axis of dynamic size {size}, or an empty one"));
        };
        let edge = if corners { 0.0 } else { 0.5 };
        let axis = Axis { size, low: -edge, high: size as f64 - 1.0 + edge };
        // Positions list the last axis first.
        let last = count as i64 - 1 - i as i64;
        let at = ctx.op(BuiltinOp::Slice, &[grid], vec![int(count as i64 + 1), int(last), int(last + 1), int(1)])?;
        let at = ctx.reshape(at, &[shape[0].clone(), total.clone(), Dim::from(1)])?;
        // Maps -1..1 to the centres of the first and last elements, or to their outer edges.
        let span = if corners { size as f64 - 1.0 } else { size as f64 };
        let at = with(ctx, BuiltinScalar::Add, at, 1.0)?;
        let at = with(ctx, BuiltinScalar::Mul, at, span / 2.0)?;
        let at = with(ctx, BuiltinScalar::Sub, at, edge)?;
        axes.push((neighbours(ctx, at, &axis, mode, padding, dtype)?, size));
    }
    // Each element becomes a row with all its channels.
    let rows = ctx.reshape(x, &[shape[0].clone(), shape[1].clone(), inner])?;
    let rows = ctx.transpose(rows, &[0, 2, 1])?;
    let sum = blended(ctx, rows, &axes)?;
    let y = ctx.transpose(sum, &[0, 2, 1])?;
    Ok(vec![ctx.reshape(y, &[&shape[..2], &places[1..=count]].concat())?.into()])
}

/// The sum over all combinations of one neighbour along each axis, weighted. Each axis has its
/// neighbours and its size.
fn blended(ctx: &mut Ctx, rows: Value, axes: &[(Vec<Neighbour>, i64)]) -> Out<Value> {
    let mut sum: Option<Value> = None;
    let combinations: usize = axes.iter().map(|(n, _)| n.len()).product();
    for mut c in 0..combinations {
        let chosen: Vec<(Neighbour, i64)> = axes
            .iter()
            .map(|(n, size)| {
                let one = n[c % n.len()];
                c /= n.len();
                (one, *size)
            })
            .collect();
        let part = sampled(ctx, rows, &chosen)?;
        sum = Some(match sum {
            None => part,
            Some(s) => ctx.builtin(BuiltinScalar::Add, &[s, part])?,
        });
    }
    match sum {
        Some(sum) => Ok(sum),
        None => ctx.wrong("it has no axes"),
    }
}

/// Gathers the rows of one neighbour along each axis, weighted.
fn sampled(ctx: &mut Ctx, rows: Value, chosen: &[(Neighbour, i64)]) -> Out<Value> {
    let (mut index, mut weight, mut inside): (Option<Value>, Option<Value>, Option<Value>) = (None, None, None);
    let joined = |ctx: &mut Ctx, f, a: Option<Value>, b: Option<Value>| match (a, b) {
        (Some(a), Some(b)) => ctx.builtin(f, &[a, b]).map(Some),
        (a, b) => Ok(a.or(b)),
    };
    for (n, size) in chosen {
        index = Some(match index {
            None => n.index,
            Some(i) => {
                let i = with(ctx, BuiltinScalar::Mul, i, *size as f64)?;
                ctx.builtin(BuiltinScalar::Add, &[i, n.index])?
            }
        });
        weight = joined(ctx, BuiltinScalar::Mul, weight, n.weight)?;
        inside = joined(ctx, BuiltinScalar::And, inside, n.inside)?;
    }
    let Some(index) = index else { return ctx.wrong("it has no axes") };
    let mut part = ctx.op(BuiltinOp::GatherNd, &[rows, index], vec![int(1)])?;
    if let Some(weight) = weight {
        part = ctx.builtin(BuiltinScalar::Mul, &[part, weight])?;
    }
    if let Some(inside) = inside {
        let zero = ctx.number(ctx.dtype_of(part), 0.0)?;
        part = ctx.builtin(BuiltinScalar::Select, &[inside, part, zero])?;
    }
    Ok(part)
}
