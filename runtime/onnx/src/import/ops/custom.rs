//! Nodes of custom domains: each becomes the op of a `.hyp` file.
//!
//! In: a node and the op that its domain and name stand for. Out: an application of the op.
//! Invariant: inputs are the op's operands in order, attributes have the op's names and types, and
//! an attribute that the node lacks has the op's default.

use hypatia_dsl::ir::{AttrType, AttrValue, OpId, ParamKind};
use hypatia_dsl::shape::Dim;

use super::super::context::{Bound, Ctx, Out};
use super::super::tensor;

/// Imports a node as an application of the op.
pub(in crate::import) fn apply(ctx: &mut Ctx, op: OpId) -> Out<Vec<Bound>> {
    let program = ctx.builder.graph.program.clone();
    let def = program.op(op);
    let (mut most, mut any_number) = (0, false);
    for (_, param) in def.operands() {
        match param.kind {
            ParamKind::Tensor { variadic, .. } => {
                most += 1;
                any_number |= variadic;
            }
            _ => {
                return ctx.unsupported(format!("its operand `{}` is an epilogue term, which no node has", param.name));
            }
        }
    }
    if ctx.inputs.len() > most && !any_number {
        return ctx.wrong(format!("`{}` takes {most} operands, but {} are given", def.name, ctx.inputs.len()));
    }
    let mut operands = Vec::new();
    for i in 0..ctx.inputs.len().max(if any_number { 0 } else { most }) {
        operands.push(ctx.maybe(i)?);
    }
    let mut attrs = Vec::new();
    for (_, param) in def.attrs() {
        let ParamKind::Attr { ty, .. } = param.kind else { continue };
        if let Some(value) = attribute(ctx, &param.name, ty)? {
            attrs.push((param.name.as_str(), value));
        }
    }
    let attrs = ctx.builder.graph.named_attrs(op, &attrs)?;
    let results = ctx.builder.graph.op(op, &operands, attrs, None)?;
    Ok(results.into_iter().map(Bound::from).collect())
}

/// The attribute of that name, if the node has it.
fn attribute(ctx: &Ctx, name: &str, ty: AttrType) -> Out<Option<AttrValue>> {
    let dim = |i: i64| AttrValue::Dim(Dim::from(i));
    let has = ctx.attrs.has(name);
    Ok(match ty {
        AttrType::Int | AttrType::Axis | AttrType::Dim => ctx.attrs.int(name)?.map(dim),
        AttrType::Ints | AttrType::Axes | AttrType::Dims => ctx.attrs.ints(name)?.map(AttrValue::from),
        AttrType::Float => ctx.attrs.float(name)?.map(|v| AttrValue::Float(f64::from(v))),
        AttrType::Floats => {
            let list = |l: &[f32]| AttrValue::List(l.iter().map(|v| AttrValue::Float(f64::from(*v))).collect());
            ctx.attrs.floats(name)?.map(list)
        }
        AttrType::Bool if has => Some(AttrValue::Bool(ctx.attrs.flag(name, false)?)),
        AttrType::Str if has => Some(AttrValue::Str(ctx.attrs.text_or(name, "")?)),
        AttrType::DType => {
            let code = ctx.attrs.int(name)?.map(|code| i32::try_from(code).unwrap_or(i32::MAX));
            code.map(tensor::dtype).transpose()?.map(AttrValue::DType)
        }
        AttrType::Bool | AttrType::Str => None,
    })
}
