//! Shape functions of the builtin ops.
//!
//! In: attribute values (normalised) and operand types; the number of operands is already checked.
//! Out: result types, or an error that names the op and the operand, what was expected and what was
//! found. Invariant: a result type holds for all values of the symbols with which the op is
//! applicable. Whether a slice or a window lies inside its operand is checked again once the
//! symbols have values.

use crate::builtin::{BuiltinOp, SCATTER_REDUCTIONS, ScatterReduction, scatter_reduction};
use crate::dtype::DType;
use crate::ir::AttrValue;
use crate::shape::{self, Dim, show_shape};

use super::call::{Call, Types, agree, one};
use super::eval::{permutation, position, reduce};
use super::show::BROADCAST_HINT;
use super::{TensorType, codes, show_value, window};

/// The result types of a builtin op.
pub(super) fn apply(call: &Call, op: BuiltinOp) -> Types {
    use BuiltinOp::*;
    match op {
        Matmul => matmul(call, 1, None),
        Gemm => matmul(call, 1, Some(call.dtype(0)?)),
        Gemm2 => pair(call, call.dtype(0)?),
        Conv => window::conv(call, None),
        ConvGemm => window::conv(call, Some(call.dtype(5)?)),
        Windows => window::windows(call),
        Cast => one(call.dtype(0)?, call.operand(0)?.shape.clone()),
        Reshape => reshape(call),
        Transpose => transpose(call),
        Expand => expand(call),
        Slice => slice(call),
        Concat => concat(call),
        Split => split(call),
        Pad => pad(call),
        Gather => gather(call),
        GatherElements => gather_elements(call),
        GatherNd => gather_nd(call),
        Sum | Mean | Amax | Amin | Prod => reduction(call, op == Mean),
        Cumsum => cumsum(call),
        Scatter => scatter(call),
        Argmax => argmax(call),
        Argsort => argsort(call),
        Iota => iota(call),
        Full => one(call.dtype(2)?, call.sizes(0)?),
        Size => one(DType::I64, Vec::new()),
    }
}

/// The product of the first operand and operand `right`.
fn matmul(call: &Call, right: usize, to: Option<DType>) -> Types {
    const VECTOR: &str = "add a second axis to a vector with `reshape`";
    let a = call.at_least(0, 2).map_err(|e| e.hint(VECTOR))?;
    let b = call.at_least(right, 2).map_err(|e| e.hint(VECTOR))?;
    call.needs_factors(0, to)?;
    call.needs_factors(right, to)?;
    let bytes = a.dtype.is_byte() && b.dtype.is_byte();
    if !(bytes && to.is_some()) {
        call.same_dtype(right)?;
    }
    let (ra, rb) = (a.shape.len(), b.shape.len());
    let (k, k2) = (&a.shape[ra - 1], &b.shape[rb - 2]);
    let known = k.known_eq(k2);
    if known != Some(true) {
        let text = format!(
            "the inner sizes {} `{}` is {a} and `{}` is {b}: {k} and {k2}",
            agree(known),
            call.operand_name(0),
            call.operand_name(right)
        );
        let error = call.error(codes::SIZE, text).about(right);
        return Err(if *k == b.shape[rb - 1] {
            error.hint(if right == 1 { "transpose the second operand" } else { "transpose it" })
        } else if a.shape[ra - 2] == *k2 {
            error.hint("transpose the first operand")
        } else {
            error.hint("the last axis of the first operand must equal the second-last axis of the second")
        });
    }
    let batch = shape::broadcast(&a.shape[..ra - 2], &b.shape[..rb - 2]).ok_or_else(|| {
        let (s, t) = (show_shape(&a.shape[..ra - 2]), show_shape(&b.shape[..rb - 2]));
        let text = format!(
            "the leading axes do not broadcast: `{}` is {a} and `{}` is {b}, so {s} meets {t}",
            call.operand_name(0),
            call.operand_name(right)
        );
        call.error(codes::BROADCAST, text).about(right).hint(BROADCAST_HINT)
    })?;
    let mut out = batch;
    out.extend([a.shape[ra - 2].clone(), b.shape[rb - 1].clone()]);
    one(to.unwrap_or(a.dtype), out)
}

/// Two products of the first operand, of the same shape.
fn pair(call: &Call, to: DType) -> Types {
    let (first, second) = (matmul(call, 1, Some(to))?, matmul(call, 2, Some(to))?);
    if first == second {
        return Ok(first);
    }
    let (b, c) = (call.operand(1)?, call.operand(2)?);
    let (b_name, c_name) = (call.operand_name(1), call.operand_name(2));
    let text = format!("its two products must have the same shape, but `{b_name}` is {b} and `{c_name}` is {c}");
    Err(call.error(codes::SIZE, text).about(2).hint("give both right operands the same shape"))
}

fn reshape(call: &Call) -> Types {
    let x = call.operand(0)?;
    let to = call.sizes(0)?;
    let (Some(from_count), Some(to_count)) = (shape::product(&x.shape), shape::product(&to)) else {
        return Err(call.overflow());
    };
    match from_count.known_eq(&to_count) {
        Some(true) => one(x.dtype, to),
        known => {
            let how =
                if known == Some(false) { "must stay the same, but" } else { "cannot be shown to stay the same:" };
            let text = format!(
                "the number of elements {how} `{}` is {x} ({from_count}) and the new shape is {} ({to_count})",
                call.operand_name(0),
                show_shape(&to)
            );
            Err(call.error(codes::SIZE, text).about(0))
        }
    }
}

fn transpose(call: &Call) -> Types {
    let x = call.operand(0)?;
    let rank = x.shape.len();
    let perm = match call.attr(0)? {
        AttrValue::List(items) if items.len() == rank => permutation(items),
        _ => None,
    };
    match perm {
        Some(perm) => one(x.dtype, perm.into_iter().map(|i| x.shape[i].clone()).collect()),
        None => {
            let why = format!("must name each of the {rank} axes of {x} once, counted from 0");
            let axes: Vec<String> = (0..rank).rev().map(|i| i.to_string()).collect();
            Err(call.bad_attr(0, &why).hint(format!("`perm = [{}]` reverses all axes", axes.join(", "))))
        }
    }
}

fn expand(call: &Call) -> Types {
    let x = call.operand(0)?;
    let to = call.sizes(0)?;
    if shape::broadcast(&x.shape, &to).as_ref() == Some(&to) {
        return one(x.dtype, to);
    }
    let text = format!("`{}` is {x} and does not broadcast to {}", call.operand_name(0), show_shape(&to));
    Err(call.error(codes::BROADCAST, text).about(0).hint(BROADCAST_HINT))
}

fn slice(call: &Call) -> Types {
    let x = call.at_least(0, 1)?;
    let axis = call.axis(0, x.shape.len())?;
    let (start, stop, step) = (call.size(1)?, call.size(2)?, call.int(3)?);
    if step == 0 {
        return Err(call.bad_attr(3, "must not be 0"));
    }
    let size = &x.shape[axis];
    // Forward: 0..=size. Backward: from size - 1 down to -1, which is before the first element.
    let shift = Dim::from(if step > 0 { 0 } else { -1 });
    let top = size.checked_add(&shift).ok_or_else(|| call.overflow())?;
    for (i, bound) in [(1, &start), (2, &stop)] {
        // A bound that depends on a symbol is assumed to be in range; it is checked again when the
        // symbol has a value.
        if shift.known_le(bound) == Some(false) || bound.known_le(&top) == Some(false) {
            let why = format!("must lie in {shift}..={top}: axis {axis} of {x} has size {size}");
            let hint = match bound.known_le(&top) {
                Some(false) => "stop where the axis ends, or slice an axis of another size",
                _ => "count from the front: negative positions are not allowed here",
            };
            return Err(call.bad_attr(i, &why).hint(hint));
        }
    }
    let span = if step > 0 { stop.checked_sub(&start) } else { start.checked_sub(&stop) };
    let span = span.ok_or_else(|| call.overflow())?;
    let count = match (Dim::from(0).known_le(&span), span.known_le(&Dim::from(0))) {
        (_, Some(true)) => Dim::from(0),
        // A slice that may be empty, with a step greater than one.
        (None, None) if step.unsigned_abs() > 1 => {
            let text = format!("it cannot be shown that `stop` ({stop}) is not before `start` ({start})");
            return Err(call.error(codes::SIZE, text));
        }
        _ => {
            let step = step.checked_abs().ok_or_else(|| call.overflow())?;
            let rounded = span.checked_add(&Dim::from(step - 1)).ok_or_else(|| call.overflow())?;
            rounded.floor_div(&Dim::from(step)).ok_or_else(|| call.overflow())?
        }
    };
    let mut out = x.shape.clone();
    out[axis] = count;
    one(x.dtype, out)
}

fn concat(call: &Call) -> Types {
    let first = call.at_least(0, 1)?;
    let axis = call.axis(0, first.shape.len())?;
    let mut total = first.shape[axis].clone();
    for (i, x) in call.operands.iter().enumerate().skip(1) {
        call.same_dtype(i)?;
        if x.shape.len() != first.shape.len() {
            let text =
                format!("operands must have the same number of axes, but operand 0 is {first} and operand {i} is {x}");
            return Err(call.error(codes::RANK, text).about(i));
        }
        for (k, (a, b)) in first.shape.iter().zip(&x.shape).enumerate() {
            let known = a.known_eq(b);
            if k != axis && known != Some(true) {
                let text = format!(
                    "the sizes of all axes except {axis} {} operand 0 is {first} and operand {i} is {x}: axis {k} \
                     is {a} and {b}",
                    agree(known)
                );
                return Err(call.error(codes::SIZE, text).about(i));
            }
        }
        total = total.checked_add(&x.shape[axis]).ok_or_else(|| call.overflow())?;
    }
    let mut out = first.shape.clone();
    out[axis] = total;
    one(first.dtype, out)
}

fn split(call: &Call) -> Types {
    let x = call.at_least(0, 1)?;
    let axis = call.axis(0, x.shape.len())?;
    let sizes = call.sizes(1)?;
    if sizes.is_empty() {
        return Err(call.bad_attr(1, "must name at least one piece"));
    }
    let total = sizes.iter().try_fold(Dim::from(0), |acc, d| acc.checked_add(d)).ok_or_else(|| call.overflow())?;
    let known = total.known_eq(&x.shape[axis]);
    if known != Some(true) {
        let how = if known == Some(false) { "must add up" } else { "cannot be shown to add up" };
        let why = format!("{how} to the size of axis {axis} of {x}: {total} instead of {}", x.shape[axis]);
        let value = show_value(call.attr(1)?);
        return Err(call.error(codes::SIZE, format!("attribute `{} = {value}` {why}", call.attr_name(1))).about(0));
    }
    let piece = |size: Dim| {
        let mut shape = x.shape.clone();
        shape[axis] = size;
        TensorType { dtype: x.dtype, shape }
    };
    Ok(sizes.into_iter().map(piece).collect())
}

fn pad(call: &Call) -> Types {
    let x = call.operand(0)?;
    let value = call.operand(1)?;
    if !value.shape.is_empty() {
        let text = format!("`{}` must be one value of rank 0, but is {value}", call.operand_name(1));
        return Err(call.error(codes::RANK, text).about(1));
    }
    call.same_dtype(1)?;
    let (before, after) = (call.list(0)?, call.list(1)?);
    for (i, list) in [(0, &before), (1, &after)] {
        if list.len() != x.shape.len() {
            return Err(call.bad_attr(i, &format!("must have one entry for each of the {} axes of {x}", x.shape.len())));
        }
    }
    let mut out = Vec::with_capacity(x.shape.len());
    for (i, size) in x.shape.iter().enumerate() {
        let padded = size.checked_add(&before[i]).and_then(|d| d.checked_add(&after[i]));
        let padded = padded.ok_or_else(|| call.overflow())?;
        match Dim::from(0).known_le(&padded) {
            Some(true) => out.push(padded),
            known => {
                let how = if known == Some(false) { "is" } else { "may be" };
                let text = format!(
                    "the padded size of axis {i} of {x} {how} negative: {size} + {} + {} = {padded}",
                    before[i], after[i]
                );
                return Err(call.error(codes::SIZE, text).about(0));
            }
        }
    }
    one(x.dtype, out)
}

fn gather(call: &Call) -> Types {
    let x = call.at_least(0, 1)?;
    call.needs_indices(1)?;
    let axis = call.axis(0, x.shape.len())?;
    let mut out = x.shape[..axis].to_vec();
    out.extend_from_slice(&call.operand(1)?.shape);
    out.extend_from_slice(&x.shape[axis + 1..]);
    one(x.dtype, out)
}

fn gather_elements(call: &Call) -> Types {
    let x = call.at_least(0, 1)?;
    call.needs_indices(1)?;
    let indices = call.operand(1)?;
    let axis = call.axis(0, x.shape.len())?;
    let (xn, inn) = (call.operand_name(0), call.operand_name(1));
    if x.shape.len() != indices.shape.len() {
        let text =
            format!("the operands must have the same number of axes, but `{xn}` is {x} and `{inn}` is {indices}");
        return Err(call.error(codes::RANK, text).about(1));
    }
    for (k, (size, wanted)) in x.shape.iter().zip(&indices.shape).enumerate() {
        let known = wanted.known_le(size);
        if k != axis && known != Some(true) {
            let how = if known == Some(false) { "must not be" } else { "cannot be shown not to be" };
            let text = format!("`{inn}` {how} larger than `{xn}` along axis {k}: {indices} and {x}");
            return Err(call.error(codes::SIZE, text).about(1));
        }
    }
    one(x.dtype, indices.shape.clone())
}

fn gather_nd(call: &Call) -> Types {
    let x = call.at_least(0, 1)?;
    call.needs_indices(1)?;
    let batch = call.int(0)?;
    let indices = call.operand(1)?;
    let (xn, inn) = (call.operand_name(0), call.operand_name(1));
    let limit = x.shape.len().min(indices.shape.len());
    let Some(batch) = usize::try_from(batch).ok().filter(|b| *b < limit) else {
        let why = format!("must be at least 0 and below the number of axes of both operands ({x} and {indices})");
        return Err(call.bad_attr(0, &why));
    };
    for (a, b) in x.shape.iter().zip(&indices.shape).take(batch) {
        let known = a.known_eq(b);
        if known != Some(true) {
            let text = format!("the first {batch} axes {} `{xn}` is {x} and `{inn}` is {indices}", agree(known));
            return Err(call.error(codes::SIZE, text).about(1));
        }
    }
    let Some((tuple, outer)) = indices.shape.split_last() else {
        return Err(call.error(codes::RANK, format!("`{inn}` must have at least 1 axis, but is {indices}")).about(1));
    };
    let depth = tuple.as_const().and_then(|d| usize::try_from(d).ok());
    let Some(depth) = depth.filter(|d| *d <= x.shape.len() - batch) else {
        let text = format!(
            "the last axis of `{inn}` must be a number of at most {}, but is {tuple}: it names axes of `{xn}`, \
             which is {x}",
            x.shape.len() - batch
        );
        return Err(call.error(codes::SIZE, text).about(1));
    };
    let mut out = outer.to_vec();
    out.extend_from_slice(&x.shape[batch + depth..]);
    one(x.dtype, out)
}

fn reduction(call: &Call, floats_only: bool) -> Types {
    let x = call.operand(0)?;
    if floats_only {
        call.needs_floats(0)?;
    }
    call.needs_numbers(0)?;
    let keep = call.flag(1)?;
    let mut axes = Vec::new();
    for axis in call.list(0)? {
        let axis = axis.as_const().and_then(|a| position(a, x.shape.len()));
        let why = || call.bad_attr(0, &format!("is out of range: `{}` is {x}", call.operand_name(0)));
        axes.push(axis.ok_or_else(why)?);
    }
    one(x.dtype, reduce(&x.shape, &axes, keep))
}

fn cumsum(call: &Call) -> Types {
    let x = call.at_least(0, 1)?;
    call.needs_numbers(0)?;
    call.axis(0, x.shape.len())?;
    call.flag(1)?;
    call.flag(2)?;
    one(x.dtype, x.shape.clone())
}

fn argmax(call: &Call) -> Types {
    let x = call.at_least(0, 1)?;
    call.needs_numbers(0)?;
    let axis = call.axis(0, x.shape.len())?;
    if x.shape[axis].as_const() == Some(0) {
        let text = format!("axis {axis} of `{}` is empty, so it has no largest element: {x}", call.operand_name(0));
        return Err(call.error(codes::SIZE, text).about(0));
    }
    one(DType::I64, reduce(&x.shape, &[axis], call.flag(1)?))
}

fn argsort(call: &Call) -> Types {
    let x = call.at_least(0, 1)?;
    call.needs_numbers(0)?;
    call.axis(0, x.shape.len())?;
    call.flag(1)?;
    one(DType::I64, x.shape.clone())
}

fn scatter(call: &Call) -> Types {
    let x = call.at_least(0, 1)?;
    call.needs_indices(1)?;
    let (indices, updates) = (call.operand(1)?, call.operand(2)?);
    let (xn, inn, un) = (call.operand_name(0), call.operand_name(1), call.operand_name(2));
    call.same_dtype(2)?;
    if indices.shape.len() != 1 {
        return Err(call.error(codes::RANK, format!("`{inn}` must have 1 axis, but is {indices}")).about(1));
    }
    let wanted = [&indices.shape[..], &x.shape[1..]].concat();
    let same = wanted.len() == updates.shape.len() && wanted.iter().zip(&updates.shape).all(|(a, b)| a == b);
    if !same {
        let text = format!(
            "`{un}` must have one row of `{xn}` per index, {}, but is {updates}: `{xn}` is {x} and `{inn}` is \
             {indices}",
            show_shape(&wanted)
        );
        return Err(call.error(codes::SIZE, text).about(2));
    }
    let how = match call.attr(0)? {
        AttrValue::Str(name) => scatter_reduction(name),
        _ => None,
    };
    match how {
        None => {
            let names: Vec<String> = SCATTER_REDUCTIONS.iter().map(|(n, _)| format!("\"{n}\"")).collect();
            Err(call.bad_attr(0, &format!("must be one of {}", names.join(", "))))
        }
        Some(ScatterReduction::Combine(_)) => {
            call.needs_numbers(0)?;
            one(x.dtype, x.shape.clone())
        }
        Some(ScatterReduction::Replace) => one(x.dtype, x.shape.clone()),
    }
}

fn iota(call: &Call) -> Types {
    let shape = call.sizes(0)?;
    call.axis(1, shape.len())?;
    let to = call.dtype(2)?;
    if to == DType::Bool {
        return Err(call.bad_attr(2, "must be a numeric element type"));
    }
    one(to, shape)
}
