//! Convolutions and pools: ops that move a window over the spatial axes (those after the channels).
//!
//! Invariant: padding that ONNX leaves implicit (`auto_pad`, `ceil_mode`, `output_shape`) is
//! resolved to a number on each side before anything enters the graph. A pool is a reduction of
//! windows of the padded operand.

use hypatia_dsl::builtin::{BuiltinOp, BuiltinScalar};
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::AttrValue;
use hypatia_dsl::shape::{Dim, Shape, product, show_shape};

use super::super::context::{Bound, Ctx, Out, dims, int, ints};
use super::non_finite;
use super::transposed::Transposed;
use hypatia_graph::Value;

/// The window parameters, with one entry per spatial axis.
struct Layout {
    sizes: Vec<i64>,
    strides: Vec<i64>,
    dilations: Vec<i64>,
    before: Vec<i64>,
    after: Vec<i64>,
}

/// A limit on attributes, so that sums of them do not overflow.
const LARGE: i64 = 1 << 31;

/// An attribute with one entry per axis.
fn list(ctx: &Ctx, name: &str, count: usize, default: i64, least: i64) -> Out<Vec<i64>> {
    let Some(list) = ctx.attrs.ints(name)? else { return Ok(vec![default; count]) };
    if list.len() != count || list.iter().any(|v| !(least..LARGE).contains(v)) {
        return ctx.wrong(format!("{name} should be {count} numbers of at least {least}, but is {list:?}"));
    }
    Ok(list.to_vec())
}

impl Layout {
    /// Whether windows neither overlap nor leave anything out, nor have padding.
    fn is_of_tiles(&self) -> bool {
        let none = |list: &[i64]| list.iter().all(|n| *n == 0);
        self.strides == self.sizes && self.dilations.iter().all(|d| *d == 1) && none(&self.before) && none(&self.after)
    }

    /// Reads the attributes for windows of `sizes` on axes of these sizes.
    fn read(ctx: &Ctx, sizes: Vec<i64>, axes: &[Dim], ceil: bool) -> Out<Layout> {
        let count = axes.len();
        let strides = list(ctx, "strides", count, 1, 1)?;
        let dilations = list(ctx, "dilations", count, 1, 1)?;
        let pads = list(ctx, "pads", 2 * count, 0, 0)?;
        let mut l = Layout { sizes, strides, dilations, before: pads[..count].to_vec(), after: pads[count..].to_vec() };
        match ctx.attrs.text_or("auto_pad", "NOTSET")?.as_str() {
            "NOTSET" => {}
            "VALID" => (l.before, l.after) = (vec![0; count], vec![0; count]),
            side @ ("SAME_UPPER" | "SAME_LOWER") => l.same(ctx, axes, side == "SAME_UPPER")?,
            other => {
                return ctx
                    .wrong(format!("auto_pad should be NOTSET, VALID, SAME_UPPER or SAME_LOWER, but is `{other}`"));
            }
        }
        if ceil {
            l.ceil(ctx, axes)?;
        }
        Ok(l)
    }

    /// The extent of a window, from its first to its last element.
    fn reach(&self, i: usize) -> i64 {
        self.sizes[i].saturating_sub(1).saturating_mul(self.dilations[i]).saturating_add(1)
    }

    /// SAME padding: the number of windows is the axis size divided by the stride, rounded up.
    fn same(&mut self, ctx: &Ctx, axes: &[Dim], upper: bool) -> Out<()> {
        for (i, size) in axes.iter().enumerate() {
            let total = match size.as_const() {
                Some(size) => {
                    let count = size.div_euclid(self.strides[i]) + i64::from(size % self.strides[i] != 0);
                    (count - 1)
                        .saturating_mul(self.strides[i])
                        .saturating_add(self.reach(i))
                        .saturating_sub(size)
                        .max(0)
                }
                None if self.strides[i] == 1 => self.reach(i) - 1,
                None => return ctx.unsupported(format!("auto_pad with a stride on an axis of dynamic size {size}")),
            };
            let (less, more) = (total / 2, total - total / 2);
            (self.before[i], self.after[i]) = if upper { (less, more) } else { (more, less) };
        }
        Ok(())
    }

    /// Increases the padding at the end so that a partial last window counts too, unless it begins
    /// in that padding.
    fn ceil(&mut self, ctx: &Ctx, axes: &[Dim]) -> Out<()> {
        for (i, size) in axes.iter().enumerate().filter(|(i, _)| self.strides[*i] > 1) {
            let Some(size) = size.as_const() else {
                return ctx.unsupported(format!("ceil_mode on an axis of dynamic size {size}"));
            };
            let padded = size.saturating_add(self.before[i]).saturating_add(self.after[i]);
            let spare = padded.saturating_sub(self.reach(i));
            if spare < 0 {
                continue;
            }
            let begin = (spare / self.strides[i] + 1) * self.strides[i];
            let cut = spare % self.strides[i] != 0 && begin < size.saturating_add(self.before[i]);
            self.after[i] += if cut { begin - spare } else { 0 };
        }
        Ok(())
    }

    fn attrs(&self) -> [AttrValue; 4] {
        [ints(&self.strides), ints(&self.before), ints(&self.after), ints(&self.dilations)]
    }
}

/// The spatial axes.
fn spatial(ctx: &Ctx, x: Value) -> Out<Shape> {
    match ctx.shape_of(x).split_at_checked(2) {
        Some((_, axes)) if !axes.is_empty() => Ok(axes.to_vec()),
        _ => ctx.wrong("it needs batch, channels and at least one more axis"),
    }
}

/// The sizes of a filter; `kernel_shape` must repeat them if it is given.
fn filter_sizes(ctx: &Ctx, w: Value, count: usize) -> Out<Vec<i64>> {
    let shape = ctx.shape_of(w);
    let sizes: Option<Vec<i64>> = shape.iter().skip(2).map(Dim::as_const).collect();
    let Some(sizes) = sizes.filter(|s| s.len() == count && s.iter().all(|k| *k >= 1)) else {
        return ctx.wrong(format!(
            "filters should have {count} spatial axes of known sizes, but have shape {}",
            show_shape(&shape)
        ));
    };
    if ctx.attrs.ints("kernel_shape")?.is_some_and(|k| k != sizes) {
        return ctx.wrong(format!("kernel_shape should be {sizes:?}, the sizes of the filters"));
    }
    Ok(sizes)
}

/// Convolution, with a bias for each channel.
pub fn conv(ctx: &mut Ctx) -> Out {
    ctx.arity(2, 3, 1)?;
    let (x, w) = (ctx.value(0)?, ctx.value(1)?);
    let y = convolved(ctx, x, w)?;
    biased(ctx, y)
}

/// The convolution that a node's attributes describe, of these operands.
pub(super) fn convolved(ctx: &mut Ctx, x: Value, w: Value) -> Out<Value> {
    let axes = spatial(ctx, x)?;
    let sizes = filter_sizes(ctx, w, axes.len())?;
    let layout = Layout::read(ctx, sizes, &axes, false)?;
    let groups = ctx.attrs.int_or("group", 1)?;
    ctx.op(BuiltinOp::Conv, &[x, w], [&layout.attrs()[..], &[int(groups)]].concat())
}

/// Adds operand 2 to the channels.
fn biased(ctx: &mut Ctx, y: Value) -> Out {
    let Some(b) = ctx.maybe(2)? else { return Ok(vec![y.into()]) };
    let shape = ctx.shape_of(y);
    if ctx.shape_of(b) != shape[1..2] {
        return ctx.wrong(format!("the bias should be a vector over the {} channels", shape[1]));
    }
    let mut wide = vec![Dim::from(1); shape.len() - 1];
    wide[0] = shape[1].clone();
    let b = ctx.reshape(b, &wide)?;
    Ok(vec![ctx.builtin(BuiltinScalar::Add, &[y, b])?.into()])
}

/// Transposed convolution: a convolution of the operand, with zeros inserted between its elements,
/// and the reversed filters.
pub fn conv_transpose(ctx: &mut Ctx) -> Out {
    ctx.arity(2, 3, 1)?;
    let (x, w) = (ctx.value(0)?, ctx.value(1)?);
    let axes = spatial(ctx, x)?;
    let sizes = filter_sizes(ctx, w, axes.len())?;
    let groups = ctx.attrs.int_or("group", 1)?;
    let layout = transposed_layout(ctx, sizes, &axes)?;
    if groups == 1 && layout.is_of_tiles() {
        let y = tiled(ctx, [x, w], &axes, &layout.sizes)?;
        return biased(ctx, y);
    }
    let reach = |i: usize| layout.reach(i) - 1;
    let before = (0..axes.len()).map(|i| reach(i) - layout.before[i]).collect();
    let after = (0..axes.len()).map(|i| reach(i) - layout.after[i]).collect();
    let Layout { strides, dilations, .. } = layout;
    let y = non_finite::transposed(ctx, [x, w], &Transposed { strides, dilations, groups, before, after })?;
    biased(ctx, y)
}

/// A transposed convolution whose strides are the sizes of its filters: each element becomes a tile
/// of its own, so it is a product with all filters, and its rows are put where they belong.
fn tiled(ctx: &mut Ctx, [x, w]: [Value; 2], axes: &[Dim], sizes: &[i64]) -> Out<Value> {
    let (of_x, of_w) = (ctx.shape_of(x), ctx.shape_of(w));
    let count = axes.len();
    let tile: Vec<Dim> = sizes.iter().map(|k| Dim::from(*k)).collect();
    let rows = product(&[&of_w[1..2], &tile[..]].concat());
    let places = product(axes);
    let (Some(rows), Some(places)) = (rows, places) else { return ctx.wrong("the result is too large") };
    let filters = ctx.reshape(w, &[of_w[0].clone(), rows])?;
    let filters = ctx.transpose(filters, &[1, 0])?;
    let x = ctx.reshape(x, &[of_x[0].clone(), of_x[1].clone(), places])?;
    let y = ctx.op(BuiltinOp::Matmul, &[filters, x], vec![])?;
    let apart: Vec<Dim> = [&[of_x[0].clone(), of_w[1].clone()], &tile[..], axes].concat();
    let y = ctx.reshape(y, &apart)?;
    // Each axis of the image, and that of the tiles behind it.
    let pairs = (0..count).flat_map(|i| [2 + count + i, 2 + i]);
    let order: Vec<i64> = [0, 1].into_iter().chain(pairs).map(|axis| axis as i64).collect();
    let y = ctx.transpose(y, &order)?;
    let wide: Option<Vec<Dim>> = axes.iter().zip(&tile).map(|(d, k)| d.checked_mul(k)).collect();
    let Some(wide) = wide else { return ctx.wrong("the result is too large") };
    ctx.reshape(y, &[&apart[..2], &wide[..]].concat())
}

/// The layout of a transposed convolution; `after` is reduced by `output_padding`.
fn transposed_layout(ctx: &Ctx, sizes: Vec<i64>, axes: &[Dim]) -> Out<Layout> {
    let count = axes.len();
    let strides = list(ctx, "strides", count, 1, 1)?;
    let dilations = list(ctx, "dilations", count, 1, 1)?;
    let pads = list(ctx, "pads", 2 * count, 0, 0)?;
    let more = list(ctx, "output_padding", count, 0, 0)?;
    let mut l = Layout { sizes, strides, dilations, before: pads[..count].to_vec(), after: pads[count..].to_vec() };
    let auto = ctx.attrs.text_or("auto_pad", "NOTSET")?;
    let wanted = ctx.attrs.ints("output_shape")?.map(<[i64]>::to_vec);
    let wanted = match wanted {
        Some(w) if w.len() == count + 2 => Some(w[2..].to_vec()),
        Some(w) if w.len() != count => {
            return ctx.wrong(format!("output_shape should have {count} sizes, but is {w:?}"));
        }
        w => w,
    };
    for (i, size) in axes.iter().enumerate() {
        // The total padding that gives the requested output size.
        let total = match (&wanted, auto.as_str()) {
            (Some(w), _) => match size.as_const() {
                Some(size) => {
                    let full =
                        (size - 1).saturating_mul(l.strides[i]).saturating_add(more[i]).saturating_add(l.reach(i));
                    Some(full.saturating_sub(w[i]))
                }
                None => return ctx.unsupported(format!("output_shape on an axis of dynamic size {size}")),
            },
            (None, "SAME_UPPER" | "SAME_LOWER") => Some(l.reach(i) + more[i] - l.strides[i]),
            (None, "NOTSET") => None,
            (None, "VALID") => Some(0),
            (None, other) => {
                return ctx
                    .wrong(format!("auto_pad should be NOTSET, VALID, SAME_UPPER or SAME_LOWER, but is `{other}`"));
            }
        };
        if let Some(total) = total {
            let half = total.div_euclid(2);
            (l.before[i], l.after[i]) = if auto == "SAME_UPPER" { (half, total - half) } else { (total - half, half) };
        }
        l.after[i] -= more[i];
    }
    Ok(l)
}

/// The windows of an operand padded with `fill`; the window axes come last.
fn windows(ctx: &mut Ctx, x: Value, layout: &Layout, fill: f64) -> Out<Value> {
    let lead = ctx.shape_of(x).len() - layout.sizes.len();
    let amounts =
        |list: &[i64]| -> Vec<Dim> { std::iter::repeat_n(&0, lead).chain(list).map(|v| Dim::from(*v)).collect() };
    let (before, after) = (amounts(&layout.before), amounts(&layout.after));
    let mut x = x;
    if before.iter().chain(&after).any(|d| *d != Dim::from(0)) {
        let fill = ctx.number(ctx.dtype_of(x), fill)?;
        x = ctx.op(BuiltinOp::Pad, &[x, fill], vec![dims(&before), dims(&after)])?;
    }
    let attrs = vec![ints(&layout.sizes), ints(&layout.strides), ints(&layout.dilations)];
    ctx.op(BuiltinOp::Windows, &[x], attrs)
}

/// The window axes.
fn window_axes(ctx: &Ctx, windows: Value, layout: &Layout) -> Vec<i64> {
    let rank = ctx.shape_of(windows).len() as i64;
    (rank - layout.sizes.len() as i64..rank).collect()
}

/// Reads the layout of a pool; with `ceil`, partial last windows count.
fn pool(ctx: &Ctx, x: Value, ceil: bool) -> Out<Layout> {
    let axes = spatial(ctx, x)?;
    if ctx.attrs.ints("kernel_shape")?.is_none() {
        return ctx.wrong("kernel_shape is missing");
    }
    let sizes = list(ctx, "kernel_shape", axes.len(), 1, 1)?;
    Layout::read(ctx, sizes, &axes, ceil)
}

/// The lowest value of an element type.
fn lowest(dtype: DType) -> f64 {
    match dtype {
        DType::I64 => i64::MIN as f64,
        DType::I32 => f64::from(i32::MIN),
        DType::I8 => -128.0,
        DType::U8 | DType::Bool => 0.0,
        _ => f64::NEG_INFINITY,
    }
}

/// The maximum of each window, and its index in the operand.
pub fn max(ctx: &mut Ctx) -> Out {
    ctx.arity(1, 1, 2)?;
    let x = ctx.value(0)?;
    let ceil = ctx.attrs.flag("ceil_mode", false)?;
    let columns_first = ctx.attrs.flag("storage_order", false)?;
    let layout = pool(ctx, x, ceil)?;
    let all = windows(ctx, x, &layout, lowest(ctx.dtype_of(x)))?;
    let axes = window_axes(ctx, all, &layout);
    let y = ctx.reduce(BuiltinOp::Amax, all, &axes, false)?;
    let mut results: Vec<Bound> = vec![y.into()];
    if ctx.wanted(1) {
        results.push(positions(ctx, x, all, &layout, columns_first)?.into());
    }
    Ok(results)
}

/// The index in the operand of each window's maximum.
fn positions(ctx: &mut Ctx, x: Value, all: Value, layout: &Layout, columns_first: bool) -> Out<Value> {
    let shape = ctx.shape_of(x);
    let Some(count) = product(&shape) else { return ctx.wrong("the operand is too large") };
    let attrs = vec![dims(&[count]), int(0), AttrValue::DType(DType::I64)];
    let mut index = ctx.op(BuiltinOp::Iota, &[], attrs)?;
    if columns_first {
        let mut turned = shape.clone();
        turned[2..].reverse();
        let rank = shape.len() as i64;
        index = ctx.reshape(index, &turned)?;
        index = ctx.transpose(index, &[0, 1].into_iter().chain((2..rank).rev()).collect::<Vec<_>>())?;
    }
    let index = ctx.reshape(index, &shape)?;
    let index = windows(ctx, index, layout, 0.0)?;
    let wide = ctx.shape_of(all);
    let lead = wide.len() - layout.sizes.len();
    let Some(taps) = product(&wide[lead..]) else { return ctx.wrong("the window is too large") };
    let flat = [&wide[..lead], &[taps]].concat();
    let (all, index) = (ctx.reshape(all, &flat)?, ctx.reshape(index, &flat)?);
    let attrs = vec![int(lead as i64), AttrValue::Bool(true), AttrValue::Bool(false)];
    let at = ctx.op(BuiltinOp::Argmax, &[all], attrs)?;
    let picked = ctx.op(BuiltinOp::GatherElements, &[index, at], vec![int(lead as i64)])?;
    ctx.reshape(picked, &wide[..lead])
}

/// The mean of each window: over its elements inside the operand, or including the padding.
pub fn average(ctx: &mut Ctx) -> Out {
    ctx.arity(1, 1, 1)?;
    let x = ctx.value(0)?;
    let ceil = ctx.attrs.flag("ceil_mode", false)?;
    let with_pads = ctx.attrs.flag("count_include_pad", false)?;
    let layout = pool(ctx, x, ceil)?;
    let plain = pool(ctx, x, false)?;
    let none = |l: &Layout| l.before.iter().chain(&l.after).all(|v| *v == 0);
    let all = windows(ctx, x, &layout, 0.0)?;
    let axes = window_axes(ctx, all, &layout);
    let same = layout.after == plain.after;
    if none(&layout) || (with_pads && same) {
        return Ok(vec![ctx.reduce(BuiltinOp::Mean, all, &axes, false)?.into()]);
    }
    // The number of elements of each window that count.
    let dtype = ctx.dtype_of(x);
    let one = ctx.number(dtype, 1.0)?;
    let mut inside = spatial(ctx, x)?;
    let mut around = layout;
    if with_pads {
        for (i, size) in inside.iter_mut().enumerate() {
            let padded = size.checked_add(&Dim::from(around.before[i] + plain.after[i]));
            let Some(padded) = padded else { return ctx.wrong("the padding is too large") };
            (*size, around.before[i]) = (padded, 0);
            around.after[i] -= plain.after[i];
        }
    }
    let ones = ctx.expand(one, &inside)?;
    let ones = windows(ctx, ones, &around, 0.0)?;
    let axes_of_ones = window_axes(ctx, ones, &around);
    let count = ctx.reduce(BuiltinOp::Sum, ones, &axes_of_ones, false)?;
    let sum = ctx.reduce(BuiltinOp::Sum, all, &axes, false)?;
    Ok(vec![ctx.builtin(BuiltinScalar::Div, &[sum, count])?.into()])
}

/// The p-norm of each window.
pub fn lp(ctx: &mut Ctx) -> Out {
    ctx.arity(1, 1, 1)?;
    let x = ctx.value(0)?;
    let ceil = ctx.attrs.flag("ceil_mode", false)?;
    let layout = pool(ctx, x, ceil)?;
    let p = ctx.attrs.int_or("p", 2)?;
    let all = windows(ctx, x, &layout, 0.0)?;
    let axes = window_axes(ctx, all, &layout);
    Ok(vec![super::norm::p_norm(ctx, all, p, &axes, false)?.into()])
}

/// The p-norm over all spatial axes.
pub fn global_lp(ctx: &mut Ctx) -> Out {
    ctx.arity(1, 1, 1)?;
    let x = ctx.value(0)?;
    let count = spatial(ctx, x)?.len() as i64;
    let p = ctx.attrs.int_or("p", 2)?;
    Ok(vec![super::norm::p_norm(ctx, x, p, &(2..2 + count).collect::<Vec<_>>(), true)?.into()])
}
