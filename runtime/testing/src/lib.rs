//! What tests of several modules share: a Program that holds the builtins, and a few scalars and
//! ops.
#![allow(clippy::unwrap_used)]

pub mod joint;
pub mod random;
pub mod rows;

use std::sync::Arc;

use hypatia_dsl::builtin::{BuiltinOp, BuiltinScalar};
use hypatia_dsl::dtype::{DType, Kind};
use hypatia_dsl::ir::{
    AttrType, AttrValue, DTypePat, OpBody, OpDef, Origin, Param, ParamKind, Program, RestPat, ScalarBody, ScalarDef,
    Sort, TypePat, Var,
};
use hypatia_dsl::scalar::{Literal, Term, TermNode};
use hypatia_dsl::shape::Dim;
use hypatia_dsl::typing::TensorType;
use hypatia_tensor::error::Error;

/// What opening a GPU gave; without one, reports how many cases are skipped. `HYPATIA_NEED_GPU=1`
/// makes that a failure, for machines with a GPU.
pub fn gpu_or_skip<G>(opened: Result<G, Error>, cases: usize) -> Option<G> {
    match opened {
        Ok(gpu) => Some(gpu),
        Err(e) if std::env::var_os("HYPATIA_NEED_GPU").is_some() => panic!("{e}"),
        Err(e) => {
            let why = e.to_string();
            eprintln!("SKIPPED {cases} cases on a GPU: {}", why.lines().next().unwrap_or_default());
            None
        }
    }
}

/// A type of numbers.
pub fn ty(dtype: DType, shape: &[usize]) -> TensorType {
    TensorType { dtype, shape: shape.iter().map(|d| Dim::from(*d as i64)).collect() }
}

/// A list of numbers as an attribute.
pub fn list(values: &[usize]) -> AttrValue {
    AttrValue::List(values.iter().map(|v| int(*v as i64)).collect())
}

/// A number as an attribute.
pub fn int(v: i64) -> AttrValue {
    AttrValue::Dim(Dim::from(v))
}

fn attrs(op: BuiltinOp) -> &'static [AttrType] {
    use AttrType::*;
    match op {
        BuiltinOp::Matmul => &[],
        BuiltinOp::Gemm | BuiltinOp::Gemm2 | BuiltinOp::Cast => &[DType],
        BuiltinOp::Conv => &[Ints, Ints, Ints, Ints, Int],
        BuiltinOp::ConvGemm => &[Ints, Ints, Ints, Ints, Int, DType],
        BuiltinOp::Windows => &[Ints, Ints, Ints],
        BuiltinOp::Reshape | BuiltinOp::Expand => &[Dims],
        BuiltinOp::Transpose => &[Ints],
        BuiltinOp::Slice => &[Axis, Dim, Dim, Int],
        BuiltinOp::Concat | BuiltinOp::Gather | BuiltinOp::GatherElements => &[Axis],
        BuiltinOp::Split => &[Axis, Dims],
        BuiltinOp::Pad => &[Dims, Dims],
        BuiltinOp::GatherNd => &[Int],
        BuiltinOp::Scatter => &[Str],
        BuiltinOp::Argsort => &[Axis, Bool],
        BuiltinOp::Sum | BuiltinOp::Mean | BuiltinOp::Amax | BuiltinOp::Amin | BuiltinOp::Prod => &[Axes, Bool],
        BuiltinOp::Argmax | BuiltinOp::Cumsum => &[Axis, Bool, Bool],
        BuiltinOp::Iota => &[Dims, Int, DType],
        BuiltinOp::Full => &[Dims, Float, DType],
        BuiltinOp::Size => &[Dim],
    }
}

fn op(builtin: BuiltinOp) -> OpDef {
    use BuiltinOp::*;
    let operands = match builtin {
        Iota | Full | Size => 0,
        Scatter | Gemm2 => 3,
        Matmul | Gemm | Conv | ConvGemm | Pad | Gather | GatherElements | GatherNd => 2,
        _ => 1,
    };
    let any = TypePat { dtype: DTypePat::Any, prefix: vec![], rest: Some(RestPat::Any), suffix: vec![] };
    let mut params: Vec<Param> = (0..operands)
        .map(|i| Param {
            name: format!("x{i}"),
            kind: ParamKind::Tensor { ty: any.clone(), optional: false, variadic: builtin == Concat },
        })
        .collect();
    if builtin.accumulator().is_some() {
        params.push(Param { name: "e".into(), kind: ParamKind::Term });
    }
    for (i, ty) in attrs(builtin).iter().enumerate() {
        params.push(Param { name: format!("a{i}"), kind: ParamKind::Attr { ty: *ty, default: None } });
    }
    let sort = |p: &Param| match &p.kind {
        ParamKind::Tensor { variadic: true, .. } => Sort::Tensors,
        ParamKind::Tensor { .. } => Sort::Tensor,
        ParamKind::Term => Sort::Term,
        ParamKind::Attr { .. } => Sort::Attr,
    };
    OpDef {
        name: builtin.name().into(),
        doc: String::new(),
        origin: Origin::default(),
        vars: params.iter().map(|p| Var { name: p.name.clone(), sort: sort(p) }).collect(),
        params,
        bounds: Vec::new(),
        results: vec![any],
        variadic_result: builtin == Split,
        requires: Vec::new(),
        body: OpBody::Builtin(builtin),
        grad: None,
        cost: Default::default(),
        domain: None,
    }
}

fn scalar(name: &str, params: &[Kind], result: Kind, body: ScalarBody) -> ScalarDef {
    ScalarDef {
        name: name.into(),
        doc: String::new(),
        origin: Origin::default(),
        params: params.iter().enumerate().map(|(i, k)| (format!("x{i}"), *k)).collect(),
        result,
        body,
        grads: Vec::new(),
        device: None,
    }
}

/// Every builtin, and `gelu`, a scalar with a body.
pub fn program() -> Arc<Program> {
    let mut p = Program::default();
    for s in BuiltinScalar::ALL {
        p.scalars.push(scalar(s.name(), s.params(), s.result(), ScalarBody::Builtin(*s)));
    }
    p.ops = BuiltinOp::ALL.iter().map(|b| op(*b)).collect();
    let mut t = Term::empty();
    let x = t.add(TermNode::Param(0));
    let lit = |t: &mut Term, v| t.add(TermNode::Lit(Literal(v)));
    let call = |t: &mut Term, f, args: &[_]| {
        let scalar = p.builtin_scalar(f).unwrap();
        t.add(TermNode::Call { scalar, args: args.to_vec() })
    };
    let (half, one, root) = (lit(&mut t, 0.5), lit(&mut t, 1.0), lit(&mut t, std::f64::consts::FRAC_1_SQRT_2));
    let scaled = call(&mut t, BuiltinScalar::Mul, &[x, root]);
    let erf = call(&mut t, BuiltinScalar::Erf, &[scaled]);
    let sum = call(&mut t, BuiltinScalar::Add, &[one, erf]);
    let left = call(&mut t, BuiltinScalar::Mul, &[half, x]);
    let out = call(&mut t, BuiltinScalar::Mul, &[left, sum]);
    t.roots.push(out);
    p.scalars.push(scalar("gelu", &[Kind::Number], Kind::Number, ScalarBody::Term(t)));
    Arc::new(p)
}
