//! The builtin ops of core.hyp, for the tests in this folder.
#![allow(clippy::unwrap_used)]

use crate::ast::{ExprKind, ItemKind, ParamType, UnaryOp};
use crate::builtin::{BuiltinOp, BuiltinScalar};
use crate::dtype::{DType, Kind};
use crate::ir::*;
use crate::shape::Dim;
use crate::source::{SourceFile, SourceMap};

use super::TensorType;

/// Parses a type: `f32[2, b]`.
pub fn ty(text: &str) -> TensorType {
    let (dtype, dims) = text.split_once('[').unwrap();
    let dims = dims.strip_suffix(']').unwrap();
    let dim = |d: &str| {
        let product = d.trim().split('*').map(|f| f.parse::<i64>().map_or_else(|_| Dim::symbol(f), Dim::from));
        product.reduce(|a, b| a.checked_mul(&b).unwrap()).unwrap()
    };
    let shape = if dims.is_empty() { Vec::new() } else { dims.split(',').map(dim).collect() };
    TensorType { dtype: DType::from_name(dtype).unwrap(), shape }
}

/// A program with the builtin ops and scalars. Operand types are not checked against patterns.
pub fn core() -> Program {
    let text = include_str!("../../../rules/core.hyp");
    let mut sources = SourceMap::new();
    let id = sources.add(SourceFile { name: "core.hyp".into(), path: None, text: text.into(), embedded: true });
    let (file, diagnostics) = crate::parse::parse(&sources, id);
    assert!(diagnostics.is_empty());
    let mut program = Program::default();
    for item in file.items {
        match item.kind {
            ItemKind::Op(op) => program.ops.push(builtin(&op)),
            ItemKind::Scalar(s) => {
                let f = BuiltinScalar::from_name(&s.name.node).unwrap();
                let params = s.params.iter().map(|p| p.name.node.clone()).zip(f.params().iter().copied()).collect();
                program.scalars.push(ScalarDef {
                    name: s.name.node,
                    doc: String::new(),
                    origin: Origin::default(),
                    params,
                    result: f.result(),
                    body: ScalarBody::Builtin(f),
                    grads: Vec::new(),
                    device: None,
                });
            }
            _ => {}
        }
    }
    assert!(program.scalars.iter().all(|s| matches!(s.result, Kind::Bool | Kind::Number)));
    program
}

fn builtin(op: &crate::ast::Op) -> OpDef {
    let any = TypePat { dtype: DTypePat::Any, prefix: vec![], rest: Some(RestPat::Any), suffix: vec![] };
    let params = op.params.iter().map(|p| {
        let kind = match &p.ty {
            ParamType::Tensor(_) => ParamKind::Tensor { ty: any.clone(), optional: p.optional, variadic: p.variadic },
            ParamType::Named(n) if n.node == "scalar" => ParamKind::Term,
            ParamType::Named(n) => {
                let ty = match n.node.as_str() {
                    "int" => AttrType::Int,
                    "axis" => AttrType::Axis,
                    "axes" => AttrType::Axes,
                    "ints" => AttrType::Ints,
                    "float" => AttrType::Float,
                    "bool" => AttrType::Bool,
                    "dtype" => AttrType::DType,
                    "dim" => AttrType::Dim,
                    "dims" => AttrType::Dims,
                    "string" => AttrType::Str,
                    other => panic!("attribute type {other}"),
                };
                let default = p.default.as_ref().map(|e| match &e.kind {
                    ExprKind::Number { value, .. } => AttrValue::Dim(Dim::from(*value as i64)),
                    ExprKind::Bool(b) => AttrValue::Bool(*b),
                    ExprKind::Str(s) => AttrValue::Str(s.clone()),
                    ExprKind::Unary(UnaryOp::Neg, _) => AttrValue::Dim(Dim::from(-1)),
                    other => panic!("default {other:?}"),
                });
                ParamKind::Attr { ty, default }
            }
        };
        Param { name: p.name.node.clone(), kind }
    });
    OpDef {
        name: op.name.node.clone(),
        doc: String::new(),
        origin: Origin::default(),
        vars: op.params.iter().map(|p| Var { name: p.name.node.clone(), sort: Sort::Tensor }).collect(),
        params: params.collect(),
        bounds: vec![],
        results: vec![any.clone()],
        variadic_result: false,
        requires: vec![],
        body: OpBody::Builtin(BuiltinOp::from_name(&op.name.node).unwrap()),
        grad: None,
        cost: CostFormulas::default(),
        domain: None,
    }
}
