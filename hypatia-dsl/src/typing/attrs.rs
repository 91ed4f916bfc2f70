//! Normalisation of attribute values.
//!
//! In: the values as a file or a model gives them, some absent. Out: one value for each attribute
//! of the op: defaults filled in, numbers of the declared type, axes counted from the front and in
//! range. Invariant: normalisation is idempotent.

use crate::ir::{AttrType, AttrValue, OpDef, ParamKind};
use crate::shape::Dim;

use super::eval::{as_dim, as_number, position};
use super::{TypeError, attr_type_words, codes, show_value};

/// Normalises attribute values: one value for each attribute of `op`, in declaration order. `rank`
/// is that of the first tensor operand. If it is `None`, negative axes cannot be normalised and are
/// an error. The list of an attribute of type `axes` is a set, so it is sorted.
pub fn normalise_attrs(
    op: &OpDef,
    attrs: &[Option<AttrValue>],
    rank: Option<usize>,
) -> Result<Vec<AttrValue>, TypeError> {
    let declared = op.attrs().count();
    if attrs.len() > declared {
        let message = format!("{}: the number of attributes is {declared}, not {}", op.name, attrs.len());
        return Err(TypeError::new(codes::ATTRIBUTE, message));
    }
    let mut out = Vec::with_capacity(declared);
    for (i, (_, param)) in op.attrs().enumerate() {
        let ParamKind::Attr { ty, default } = &param.kind else { continue };
        let Some(value) = attrs.get(i).and_then(Option::as_ref).or(default.as_ref()) else {
            let message = format!("{}: attribute `{}` is missing and has no default", op.name, param.name);
            return Err(TypeError::new(codes::ATTRIBUTE, message));
        };
        let value = coerce(*ty, value, rank).map_err(|why| {
            let shown = show_value(value);
            TypeError::new(codes::ATTRIBUTE, format!("{}: attribute `{} = {shown}` {why}", op.name, param.name))
        })?;
        out.push(value);
    }
    Ok(out)
}

/// Converts a value to the declared type. The error is the end of a sentence that gives the reason.
fn coerce(ty: AttrType, value: &AttrValue, rank: Option<usize>) -> Result<AttrValue, String> {
    let wrong = || format!("must be {}", attr_type_words(ty));
    let each = |element: AttrType| match value {
        AttrValue::List(items) => items.iter().map(|v| coerce(element, v, rank)).collect(),
        _ => Err(wrong()),
    };
    match (ty, value) {
        (AttrType::Int | AttrType::Dim, AttrValue::Float(f)) => whole(*f).ok_or_else(wrong),
        // A body may hand on a size as an integer, such as the number of groups of a convolution.
        (AttrType::Int | AttrType::Dim, AttrValue::Dim(_)) => Ok(value.clone()),
        (AttrType::Float, AttrValue::Float(_) | AttrValue::Dim(_)) => {
            as_number(value).map(AttrValue::Float).ok_or_else(wrong)
        }
        (AttrType::Bool, AttrValue::Bool(_))
        | (AttrType::DType, AttrValue::DType(_))
        | (AttrType::Str, AttrValue::Str(_)) => Ok(value.clone()),
        (AttrType::Axis, AttrValue::Dim(d)) => axis(d.as_const().ok_or_else(wrong)?, rank),
        (AttrType::Axes, AttrValue::List(items)) => {
            let mut axes = Vec::with_capacity(items.len().min(64));
            for item in items {
                let index = as_dim(item).and_then(Dim::as_const).ok_or_else(wrong)?;
                let axis = axis(index, rank)?;
                if axes.contains(&axis) {
                    return Err(format!("names axis {index} twice"));
                }
                axes.push(axis);
            }
            axes.sort_by_key(|a| as_dim(a).and_then(Dim::as_const));
            Ok(AttrValue::List(axes))
        }
        (AttrType::Ints, _) => each(AttrType::Int).map(AttrValue::List).map_err(|_| wrong()),
        (AttrType::Floats, _) => each(AttrType::Float).map(AttrValue::List).map_err(|_| wrong()),
        (AttrType::Dims, _) => each(AttrType::Dim).map(AttrValue::List).map_err(|_| wrong()),
        _ => Err(wrong()),
    }
}

/// The integer that a float equals: quotients that the file computes may be such floats.
fn whole(f: f64) -> Option<AttrValue> {
    (f.fract() == 0.0 && f.abs() < 9_007_199_254_740_992.0).then(|| AttrValue::Dim(Dim::from(f as i64)))
}

fn axis(index: i64, rank: Option<usize>) -> Result<AttrValue, String> {
    let Some(rank) = rank else {
        return if index >= 0 {
            Ok(AttrValue::Dim(Dim::from(index)))
        } else {
            Err("counts from the end, but there is no operand to count in".into())
        };
    };
    match position(index, rank) {
        Some(i) => Ok(AttrValue::Dim(Dim::from(i as i64))),
        None if rank == 0 => Err("names an axis, but the operand has none".into()),
        None => {
            let last = rank - 1;
            Err(format!("is out of range: the operand has rank {rank}, so it must be between -{rank} and {last}"))
        }
    }
}
