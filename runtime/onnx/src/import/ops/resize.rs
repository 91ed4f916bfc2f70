//! Resize: each axis separately, as a gather of neighbours and a weighted sum of them.
//!
//! In: sizes that are known at import. Out: for an axis that changes, its elements repeated, if
//! that is all; else a gather by constant indices and, unless one neighbour is enough, a product
//! with constant weights and a sum. Weights are computed in f64. Invariant: neighbours outside the
//! operand are clamped to its edge, and weights equal those of ONNX's own reference.

use hypatia_dsl::builtin::{BuiltinOp, BuiltinScalar};
use hypatia_dsl::dtype::DType;
use hypatia_dsl::shape::Dim;

use super::super::context::{Ctx, Out, int};
use hypatia_graph::Value;
use hypatia_tensor::tensor::Tensor;

/// Maximum total number of neighbours along an axis.
const LARGEST: usize = 1 << 22;

/// How an index of the result maps to a position in the operand.
#[derive(Clone, Copy, PartialEq)]
enum CoordinateTransform {
    HalfPixel,
    HalfPixelSymmetric,
    PytorchHalfPixel,
    AlignCorners,
    Asymmetric,
    CropAndResize,
}

/// The interpolation kind.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Nearest,
    Linear,
    Cubic,
}

/// The attributes.
struct ResizeAttrs {
    transform: CoordinateTransform,
    kind: Kind,
    rounding: String,
    antialias: bool,
    exclude_outside: bool,
    cubic: f64,
    outside: f64,
}

/// One axis.
struct Axis {
    scale: f64,
    input: i64,
    output: i64,
    region: (f64, f64),
}

fn attributes(ctx: &Ctx) -> Out<ResizeAttrs> {
    let transform = match ctx.attrs.text_or("coordinate_transformation_mode", "half_pixel")?.as_str() {
        "half_pixel" => CoordinateTransform::HalfPixel,
        "half_pixel_symmetric" => CoordinateTransform::HalfPixelSymmetric,
        "pytorch_half_pixel" => CoordinateTransform::PytorchHalfPixel,
        "align_corners" => CoordinateTransform::AlignCorners,
        "asymmetric" => CoordinateTransform::Asymmetric,
        "tf_crop_and_resize" => CoordinateTransform::CropAndResize,
        other => return ctx.wrong(format!("there is no coordinate_transformation_mode `{other}`")),
    };
    let kind = match ctx.attrs.text_or("mode", "nearest")?.as_str() {
        "nearest" => Kind::Nearest,
        "linear" => Kind::Linear,
        "cubic" => Kind::Cubic,
        other => return ctx.wrong(format!("there is no mode `{other}`")),
    };
    let rounding = ctx.attrs.text_or("nearest_mode", "round_prefer_floor")?;
    if !["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"].contains(&rounding.as_str()) {
        return ctx.wrong(format!("there is no nearest_mode `{rounding}`"));
    }
    Ok(ResizeAttrs {
        transform,
        kind,
        rounding,
        antialias: ctx.attrs.flag("antialias", false)?,
        exclude_outside: ctx.attrs.flag("exclude_outside", false)?,
        cubic: f64::from(ctx.attrs.float_or("cubic_coeff_a", -0.75)?),
        outside: f64::from(ctx.attrs.float_or("extrapolation_value", 0.0)?),
    })
}

/// The numbers of a constant operand of floats; `None` if it is absent or empty.
fn floats(ctx: &Ctx, i: usize, what: &str) -> Out<Option<Vec<f64>>> {
    if !ctx.has(i) {
        return Ok(None);
    }
    match ctx.builder.constant(&ctx.bound(i)?) {
        Some(t) if t.is_empty() => Ok(None),
        Some(t) => Ok(Some(t.to_f64())),
        None => ctx.unsupported(format!("{what} must be known when the model is imported")),
    }
}

/// The axes that may change: those of known size, each with its scale and sizes, and dynamic ones
/// whose elements are repeated, each with its factor.
#[derive(Default)]
struct Axes {
    known: Vec<(usize, Axis)>,
    repeated: Vec<(usize, i64)>,
}

/// Reads the scale or size of each axis.
fn axes(ctx: &Ctx, shape: &[Dim], how: &ResizeAttrs) -> Out<Axes> {
    let named = match ctx.attrs.ints("axes")? {
        Some(a) if ctx.since >= 18 => ctx.axes(a, shape.len())?,
        _ => (0..shape.len()).collect(),
    };
    let region = floats(ctx, 1, "roi")?;
    let scales = floats(ctx, 2, "scales")?;
    let sizes = if ctx.has(3) && ctx.ty(3)?.shape != [Dim::from(0)] { Some(ctx.sizes(3, "sizes")?) } else { None };
    let count = match (&scales, &sizes) {
        (Some(s), None) => s.len(),
        (None, Some(s)) => s.len(),
        _ => return ctx.wrong("it needs either scales or sizes"),
    };
    if count != named.len() || region.as_ref().is_some_and(|r| r.len() != 2 * count) {
        return ctx
            .wrong(format!("scales or sizes should have an entry for each of {} axes, but have {count}", named.len()));
    }
    let mut out = Axes::default();
    for (i, axis) in named.iter().enumerate() {
        if sizes.as_ref().is_some_and(|s| s[i] == shape[*axis]) || scales.as_ref().is_some_and(|s| s[i] == 1.0) {
            // A dynamic size that does not change.
            if shape[*axis].as_const().is_none() {
                continue;
            }
        }
        let factor = match (&scales, &sizes) {
            (Some(s), _) => (s[i].fract() == 0.0).then_some(s[i] as i64),
            (None, Some(s)) => s[i].div_exact(&shape[*axis]).and_then(|d| d.as_const()),
            _ => None,
        };
        if let (None, Some(factor @ 1..)) = (shape[*axis].as_const(), factor)
            && how.repeats()
        {
            out.repeated.push((*axis, factor));
            continue;
        }
        let wanted = (scales.as_ref().map(|s| s[i]), sizes.as_ref().map(|s| &s[i]));
        let region = region.as_ref().map_or((0.0, 1.0), |r| (r[i], r[count + i]));
        out.known.push((*axis, scaled(ctx, (*axis, &shape[*axis]), wanted, region)?));
    }
    let policy = policy(ctx)?;
    // Scales are used as given: the policy for the aspect ratio applies to sizes only.
    if let (Some(sizes), Some(choose)) = (&sizes, policy) {
        if out.known.len() != sizes.len() {
            return ctx.unsupported("one scale for all axes, of which some are dynamic");
        }
        keep_aspect(&mut out.known, choose);
    }
    Ok(out)
}

/// An axis of known size that gets this scale or this size.
fn scaled(
    ctx: &Ctx,
    (axis, size): (usize, &Dim),
    (scale, wanted): (Option<f64>, Option<&Dim>),
    region: (f64, f64),
) -> Out<Axis> {
    let wanted = match wanted.map(Dim::as_const) {
        Some(None) => return ctx.unsupported(format!("a resize of axis {axis} to a dynamic size")),
        wanted => wanted.flatten(),
    };
    let Some(input) = size.as_const() else {
        return ctx.unsupported(format!("a resize of axis {axis}, whose size {size} is dynamic"));
    };
    let scale = match (scale, wanted) {
        (Some(s), _) => s,
        (None, Some(w)) => w as f64 / input as f64,
        _ => 1.0,
    };
    let output = wanted.unwrap_or((scale * input as f64).floor() as i64);
    if !(scale > 0.0 && scale.is_finite()) && input != 0 || !(0..1 << 31).contains(&output) {
        return ctx.wrong(format!("axis {axis} of size {input} cannot be scaled by {scale}"));
    }
    Ok(Axis { scale, input, output, region })
}

/// Chooses one of two scales.
type Choice = fn(f64, f64) -> f64;

/// How to choose the common scale of all axes; `None` if each has its own.
fn policy(ctx: &Ctx) -> Out<Option<Choice>> {
    // The attribute does not exist before opset 18.
    let name =
        if ctx.since >= 18 { ctx.attrs.text_or("keep_aspect_ratio_policy", "stretch")? } else { "stretch".into() };
    match name.as_str() {
        "stretch" => Ok(None),
        "not_larger" => Ok(Some(f64::min)),
        "not_smaller" => Ok(Some(f64::max)),
        other => ctx.wrong(format!("there is no keep_aspect_ratio_policy `{other}`")),
    }
}

/// Applies one scale to all axes.
fn keep_aspect(axes: &mut [(usize, Axis)], choose: Choice) {
    let Some(scale) = axes.iter().map(|(_, a)| a.scale).reduce(choose) else { return };
    for (_, a) in axes {
        (a.scale, a.output) = (scale, (scale * a.input as f64 + 0.5).floor() as i64);
    }
}

impl ResizeAttrs {
    /// True if an integer scale repeats each element consecutively: no position falls between two
    /// elements.
    fn repeats(&self) -> bool {
        let nearest = match self.transform {
            CoordinateTransform::Asymmetric => self.rounding == "floor",
            CoordinateTransform::HalfPixel => self.rounding.starts_with("round"),
            _ => false,
        };
        self.kind == Kind::Nearest && nearest
    }

    /// How often each element is repeated, if the result is each of them repeated as often.
    fn factor(&self, a: &Axis) -> Option<i64> {
        let factor = a.output.checked_div(a.input).filter(|f| *f > 0 && f.checked_mul(a.input) == Some(a.output))?;
        let is_that = |i: i64| {
            let Some((at, weights)) = self.neighbours(a, i) else { return false };
            at.iter().zip(weights).all(|(at, w)| w == 0.0 || (w == 1.0 && *at == i / factor))
        };
        let few = self.kind == Kind::Nearest && usize::try_from(a.output).is_ok_and(|n| n <= LARGEST);
        (few && (0..a.output).all(is_that)).then_some(factor)
    }

    /// The position of result `i` in the operand; `None` outside a cropped region.
    fn position(&self, a: &Axis, i: i64) -> Option<f64> {
        let (x, input, output) = (i as f64, a.input as f64, a.scale * a.input as f64);
        let half = (x + 0.5) / a.scale - 0.5;
        Some(match self.transform {
            CoordinateTransform::HalfPixel => half,
            CoordinateTransform::HalfPixelSymmetric => input / 2.0 * (1.0 - a.output as f64 / output) + half,
            CoordinateTransform::PytorchHalfPixel => {
                if output == 1.0 {
                    -0.5
                } else {
                    half
                }
            }
            CoordinateTransform::AlignCorners => {
                if output == 1.0 {
                    0.0
                } else {
                    x * (input - 1.0) / (output - 1.0)
                }
            }
            CoordinateTransform::Asymmetric => x / a.scale,
            CoordinateTransform::CropAndResize => {
                let (start, end) = a.region;
                let at = match output == 1.0 {
                    true => (end - start) * (input - 1.0) / 2.0,
                    false => x * (end - start) * (input - 1.0) / (output - 1.0),
                };
                let at = at + start * (input - 1.0);
                return (0.0..=input - 1.0).contains(&at).then_some(at);
            }
        })
    }

    /// Weights of the neighbours of a position that lies `ratio` after its left neighbour.
    fn weights(&self, ratio: f64, scale: f64) -> Vec<f64> {
        let scale = if self.antialias { scale.min(1.0) } else { 1.0 };
        let a = self.cubic;
        let cubic = |x: f64| match x.abs() {
            x if x <= 1.0 => (a + 2.0) * x * x * x - (a + 3.0) * x * x + 1.0,
            x if x < 2.0 => a * x * x * x - 5.0 * a * x * x + 8.0 * a * x - 4.0 * a,
            _ => 0.0,
        };
        let weigh = |reach: f64, f: &dyn Fn(f64) -> f64| -> Vec<f64> {
            let start = (-reach / scale).floor() as i64 + 1;
            let all: Vec<f64> = (start..2 - start).map(|i| f(scale * (i as f64 - ratio))).collect();
            let total: f64 = all.iter().sum();
            all.into_iter().map(|w| if self.antialias { w / total } else { w }).collect()
        };
        match self.kind {
            Kind::Linear => weigh(1.0, &|x| (1.0 - x.abs()).clamp(0.0, 1.0)),
            Kind::Cubic => weigh(2.0, &cubic),
            Kind::Nearest => {
                let right = match self.rounding.as_str() {
                    _ if ratio == 1.0 => true,
                    "round_prefer_floor" => ratio > 0.5,
                    "round_prefer_ceil" => ratio >= 0.5,
                    "floor" => false,
                    _ => true,
                };
                vec![f64::from(!right), f64::from(right)]
            }
        }
    }

    /// Neighbours of result `i` and their weights.
    fn neighbours(&self, a: &Axis, i: i64) -> Option<(Vec<i64>, Vec<f64>)> {
        let x = self.position(a, i)?;
        // At an element's own position, the element before it counts as the left neighbour.
        let left = x.ceil() as i64 - 1;
        let mut weights = self.weights(x - left as f64, a.scale);
        let start = left + 1 - weights.len() as i64 / 2;
        let at: Vec<i64> = (0..weights.len() as i64).map(|k| start.saturating_add(k)).collect();
        if self.exclude_outside {
            for (w, _) in weights.iter_mut().zip(&at).filter(|(_, i)| !(0..a.input).contains(*i)) {
                *w = 0.0;
            }
            let total: f64 = weights.iter().sum();
            let total = if total == 0.0 { 1.0 } else { total };
            weights.iter_mut().for_each(|w| *w /= total);
        }
        Some((at.into_iter().map(|i| i.clamp(0, a.input - 1)).collect(), weights))
    }
}

/// Resizes by scales or to sizes.
pub fn resize(ctx: &mut Ctx) -> Out {
    ctx.arity(1, 4, 1)?;
    let how = attributes(ctx)?;
    if how.antialias && how.kind == Kind::Nearest {
        return ctx.unsupported("antialias with mode `nearest`");
    }
    let mut x = ctx.value(0)?;
    let dtype = ctx.dtype_of(x);
    if how.kind != Kind::Nearest && !dtype.is_float() {
        return ctx.unsupported(format!("interpolation of {dtype}"));
    }
    let axes = axes(ctx, &ctx.shape_of(x), &how)?;
    for (axis, factor) in axes.repeated {
        x = repeated(ctx, x, axis, factor)?;
    }
    for (axis, a) in axes.known {
        let whole = how.transform != CoordinateTransform::CropAndResize || a.region == (0.0, 1.0);
        if (a.scale - 1.0).abs() < 1e-9 && a.input == a.output && whole {
            continue;
        }
        if a.input == 0 && a.output > 0 {
            return ctx.wrong(format!("axis {axis} has no elements to interpolate"));
        }
        x = match how.factor(&a) {
            Some(factor) => repeated(ctx, x, axis, factor)?,
            None => along(ctx, x, axis, &a, &how)?,
        };
    }
    Ok(vec![x.into()])
}

/// Repeats each element of an axis `factor` times.
fn repeated(ctx: &mut Ctx, x: Value, axis: usize, factor: i64) -> Out<Value> {
    let (factor, mut joined) = (Dim::from(factor), ctx.shape_of(x));
    let mut single = joined.clone();
    single.insert(axis + 1, Dim::from(1));
    let mut wide = single.clone();
    wide[axis + 1] = factor.clone();
    let Some(all) = joined[axis].checked_mul(&factor) else { return ctx.wrong("the result is too large") };
    joined[axis] = all;
    let x = ctx.reshape(x, &single)?;
    let x = ctx.expand(x, &wide)?;
    ctx.reshape(x, &joined)
}

/// Resizes one axis.
fn along(ctx: &mut Ctx, x: Value, axis: usize, a: &Axis, how: &ResizeAttrs) -> Out<Value> {
    let rows: Vec<Option<(Vec<i64>, Vec<f64>)>> = (0..a.output).map(|i| how.neighbours(a, i)).collect();
    let taps = rows.iter().flatten().map(|(at, _)| at.len()).max().unwrap_or(1);
    if rows.len().saturating_mul(taps) > LARGEST {
        return ctx.unsupported(format!("a resize of axis {axis} to {} elements", a.output));
    }
    let constant = |ctx: &mut Ctx, t: Option<Tensor>| match t {
        Some(t) => Ok(ctx.builder.graph.constant(t)),
        None => ctx.wrong("its weights could not be made"),
    };
    let dtype = ctx.dtype_of(x);
    let y = if how.kind == Kind::Nearest {
        let pick = |row: &Option<(Vec<i64>, Vec<f64>)>| match row {
            Some((at, w)) => at[usize::from(w[1] == 1.0)],
            None => 0,
        };
        let at: Vec<i64> = rows.iter().map(pick).collect();
        let at = constant(ctx, Tensor::from_slice(&[at.len()], &at))?;
        ctx.op(BuiltinOp::Gather, &[x, at], vec![int(axis as i64)])?
    } else {
        let (mut at, mut weights) = (Vec::new(), Vec::new());
        for row in &rows {
            let (i, w) = row.clone().unwrap_or((vec![0; taps], vec![0.0; taps]));
            at.extend(i);
            weights.extend(w);
        }
        let mut wide = vec![1; ctx.shape_of(x).len() + 1];
        (wide[axis], wide[axis + 1]) = (rows.len(), taps);
        // Narrow floats are weighted in f32 and rounded once.
        let compute = dtype.compute();
        let at = constant(ctx, Tensor::from_slice(&[rows.len(), taps], &at))?;
        let weights = constant(ctx, Tensor::from_f64(compute, &wide, &weights))?;
        let near = ctx.op(BuiltinOp::Gather, &[x, at], vec![int(axis as i64)])?;
        let near = ctx.cast(near, compute)?;
        let near = ctx.builtin(BuiltinScalar::Mul, &[near, weights])?;
        let sum = ctx.reduce(BuiltinOp::Sum, near, &[axis as i64 + 1], false)?;
        ctx.cast(sum, dtype)?
    };
    if rows.iter().all(Option::is_some) {
        return Ok(y);
    }
    let mut wide = vec![1; ctx.shape_of(y).len()];
    wide[axis] = rows.len();
    let inside: Vec<f64> = rows.iter().map(|r| f64::from(r.is_some())).collect();
    let inside = constant(ctx, Tensor::from_f64(DType::Bool, &wide, &inside))?;
    let outside = ctx.number(dtype, how.outside)?;
    ctx.builtin(BuiltinScalar::Select, &[inside, y, outside])
}
