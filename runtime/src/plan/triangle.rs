//! Running sums on devices that have no kernel for them: sums over a triangle of copies.
//!
//! In: a graph. Out: the same without running sums. Holds always: no infinity meets a zero, so what is not summed
//! changes nothing; the triangle takes as much memory as the axis is long times the operand.

use hypatia_dsl::builtin::{BuiltinOp, BuiltinScalar};
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::AttrValue;
use hypatia_dsl::shape::Dim;

use crate::error::{Error, Result};
use crate::graph::prim::{Prim, sizes};
use crate::graph::{Graph, Value};

/// The running sums of `x` that these attributes ask for.
pub(super) fn cumsum(g: &mut Graph, x: Option<Value>, attrs: &[AttrValue]) -> Result<Vec<Value>> {
    let wrong = || Error::Internal("a running sum of nothing, or along no axis".into());
    let x = x.ok_or_else(wrong)?;
    let (mut shape, dtype) = (g.ty(x).shape.clone(), g.ty(x).dtype);
    let known = sizes(&shape, &|_| None)?;
    let Prim::Cumsum(how) = Prim::read(BuiltinOp::Cumsum, attrs, &|_| None, &[&known], &known)? else {
        return Err(wrong());
    };
    let axis = how.axis;
    let size = shape.get(axis).cloned().ok_or_else(wrong)?;
    let dims = |shape: &[Dim]| AttrValue::List(shape.iter().cloned().map(AttrValue::Dim).collect());
    let int = |v: usize| AttrValue::Dim(Dim::from(v as i64));
    // Axis `axis` is where a sum ends, the one behind it what it adds up.
    let counted = |g: &mut Graph, along: usize| {
        let mut line = vec![Dim::from(1); shape.len() + 1];
        line[along] = size.clone();
        g.builtin(BuiltinOp::Iota, &[], vec![dims(&line), int(along), AttrValue::DType(DType::I64)])
    };
    let (ends, items) = (counted(g, axis)?[0], counted(g, axis + 1)?[0]);
    let sides = if how.reverse { [ends, items] } else { [items, ends] };
    let taken = g.builtin_scalar(if how.exclusive { BuiltinScalar::Lt } else { BuiltinScalar::Le }, &sides)?;
    shape.insert(axis, Dim::from(1));
    let copies = g.builtin(BuiltinOp::Reshape, &[x], vec![dims(&shape)])?[0];
    let zero = g.number(dtype, 0.0)?;
    let triangle = g.builtin_scalar(BuiltinScalar::Select, &[taken, copies, zero])?;
    let axes = AttrValue::List(vec![int(axis + 1)]);
    g.builtin(BuiltinOp::Sum, &[triangle], vec![axes, AttrValue::Bool(false)])
}
