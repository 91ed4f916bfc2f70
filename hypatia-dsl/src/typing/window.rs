//! Shape functions of convolutions and windows (pooling).
//!
//! In: applications of these builtins. Out: result types, or errors as in [`super::builtin`].
//! Invariant: a size that cannot yet be shown to hold a window is allowed, as the number of windows
//! is checked again once the symbols have values; a size that never holds a window is an error.

use crate::dtype::DType;
use crate::shape::Dim;

use super::call::{Call, Types, agree, one};
use super::{TypeError, codes};

/// The windows along one axis.
struct Axis {
    kernel: Dim,
    stride: i64,
    dilation: i64,
}

impl Axis {
    /// The number of windows along an axis of that size; `Err(true)` on overflow, `Err(false)` if
    /// no window fits.
    fn count(&self, size: &Dim) -> Result<Dim, bool> {
        let one = Dim::from(1);
        let reach = self.kernel.checked_sub(&one).and_then(|r| r.checked_mul(&Dim::from(self.dilation)));
        let spare = reach.and_then(|r| size.checked_sub(&r.checked_add(&one)?)).ok_or(true)?;
        if spare.known_le(&Dim::from(-1)) == Some(true) {
            return Err(false);
        }
        let steps = spare.floor_div(&Dim::from(self.stride)).ok_or(true)?;
        steps.checked_add(&Dim::from(1)).ok_or(true)
    }
}

/// The numbers in attribute `i`: one for each of `axes` axes, each at least `least`.
fn numbers(call: &Call, i: usize, axes: usize, least: i64) -> Result<Vec<i64>, TypeError> {
    let list = call.list(i)?;
    if list.len() != axes {
        let why = format!("must have {axes} entries, one for each axis that the windows move along");
        return Err(call.bad_attr(i, &why));
    }
    let known: Option<Vec<i64>> = list.iter().map(|d| d.as_const().filter(|v| *v >= least)).collect();
    known.ok_or_else(|| call.bad_attr(i, &format!("must contain numbers of at least {least}")))
}

fn counted(call: &Call, axis: &Axis, size: &Dim, at: usize) -> Result<Dim, TypeError> {
    axis.count(size).map_err(|overflow| {
        if overflow {
            return call.overflow();
        }
        let Axis { kernel, dilation, .. } = axis;
        let text = format!(
            "axis {at} is too small for a window of {kernel} elements with dilation {dilation}: its padded size is \
             {size}"
        );
        call.error(codes::SIZE, text).about(0)
    })
}

/// `conv`; with `to`, its form with a term.
pub(super) fn conv(call: &Call, to: Option<DType>) -> Types {
    const AXES: &str = "operands are [batch, channels, ..] and [channels, channels of a group, ..]";
    let x = call.at_least(0, 3).map_err(|e| e.hint(AXES))?;
    call.needs_factors(0, to)?;
    if !call.operand(0)?.dtype.is_float() {
        call.needs_floats(0)?;
    }
    call.same_dtype(1)?;
    let w = call.operand(1)?;
    let (xn, wn) = (call.operand_name(0), call.operand_name(1));
    if w.shape.len() != x.shape.len() {
        let text = format!("the operands must have the same number of axes, but `{xn}` is {x} and `{wn}` is {w}");
        return Err(call.error(codes::RANK, text).about(1).hint(AXES));
    }
    let axes = x.shape.len() - 2;
    let (strides, dilations) = (numbers(call, 0, axes, 1)?, numbers(call, 3, axes, 1)?);
    let (before, after) = (numbers(call, 1, axes, 0)?, numbers(call, 2, axes, 0)?);
    let groups = call.size(4)?;
    if groups.known_le(&Dim::from(0)) == Some(true) {
        return Err(call.bad_attr(4, "must be at least 1"));
    }
    let channels = w.shape[1].checked_mul(&groups).ok_or_else(|| call.overflow())?;
    let known = channels.known_eq(&x.shape[1]);
    if known != Some(true) {
        let text = format!(
            "the channels {} `{xn}` is {x} and `{wn}` is {w} with {groups} groups: {} and {channels}",
            agree(known),
            x.shape[1]
        );
        return Err(call.error(codes::SIZE, text).about(1));
    }
    if w.shape[0].div_exact(&groups).is_none() {
        let text = format!("{groups} groups must divide the {} channels of the result: `{wn}` is {w}", w.shape[0]);
        return Err(call.error(codes::SIZE, text).about(1));
    }
    let mut out = vec![x.shape[0].clone(), w.shape[0].clone()];
    for i in 0..axes {
        let kernel = w.shape[2 + i].clone();
        if kernel.known_le(&Dim::from(0)) == Some(true) {
            let text = format!("axis {} of `{wn}` must be a number of at least 1, but `{wn}` is {w}", 2 + i);
            return Err(call.error(codes::SIZE, text).about(1));
        }
        let padded =
            x.shape[2 + i].checked_add(&Dim::from(before[i])).and_then(|d| d.checked_add(&Dim::from(after[i])));
        let padded = padded.ok_or_else(|| call.overflow())?;
        out.push(counted(call, &Axis { kernel, stride: strides[i], dilation: dilations[i] }, &padded, 2 + i)?);
    }
    one(to.unwrap_or(x.dtype), out)
}

/// `windows`
pub(super) fn windows(call: &Call) -> Types {
    let x = call.operand(0)?;
    let axes = call.list(0)?.len();
    let Some(lead) = x.shape.len().checked_sub(axes) else {
        return Err(call.bad_attr(0, &format!("has {axes} entries, but `{}` is {x}", call.operand_name(0))));
    };
    let sizes = numbers(call, 0, axes, 1)?;
    let (strides, dilations) = (numbers(call, 1, axes, 1)?, numbers(call, 2, axes, 1)?);
    let mut out = x.shape[..lead].to_vec();
    for i in 0..axes {
        let axis = Axis { kernel: Dim::from(sizes[i]), stride: strides[i], dilation: dilations[i] };
        out.push(counted(call, &axis, &x.shape[lead + i], lead + i)?);
    }
    out.extend(sizes.into_iter().map(Dim::from));
    one(x.dtype, out)
}
