//! Types of applications: results and errors.
#![allow(clippy::unwrap_used)]

use super::testing::{core, ty};
use super::*;
use crate::builtin::BuiltinOp;
use crate::ir::{
    AExpr, AFn, CostFormulas, DTypePat, DimPat, OpBody, OpDef, OpId, Origin, Param, ParamKind, Program, RestPat, Sort,
    TypePat, Var,
};
use crate::shape::Dim;

fn int(i: i64) -> AttrValue {
    AttrValue::Dim(Dim::from(i))
}
fn sym(s: &str) -> AttrValue {
    AttrValue::Dim(Dim::symbol(s))
}
fn list(items: &[i64]) -> AttrValue {
    AttrValue::List(items.iter().map(|i| int(*i)).collect())
}
const T: AttrValue = AttrValue::Bool(true);
const F: AttrValue = AttrValue::Bool(false);

/// Result types, or the error with its hint, as text.
fn apply(op: BuiltinOp, attrs: &[AttrValue], operands: &[&str]) -> String {
    let p = core();
    let operands: Vec<Option<TensorType>> = operands.iter().map(|t| Some(ty(t))).collect();
    match apply_op(&p, p.builtin_op(op).unwrap(), attrs, &operands) {
        Ok(types) => types.iter().map(TensorType::to_string).collect::<Vec<_>>().join(" "),
        Err(e) => match &e.hint {
            Some(hint) => format!("{e}; {hint}"),
            None => e.to_string(),
        },
    }
}

#[track_caller]
fn starts(got: String, wanted: &str) {
    assert!(got.starts_with(wanted), "{got}\nagainst\n{wanted}");
}

#[test]
fn matmul() {
    let mm = |a: &str, b: &str| apply(BuiltinOp::Matmul, &[], &[a, b]);
    assert_eq!(mm("f32[batch,k]", "f32[k,n]"), "f32[batch, n]");
    assert_eq!(mm("f32[8,1,2,3]", "f32[5,3,4]"), "f32[8, 5, 2, 4]");
    assert_eq!(mm("f32[0,3]", "f32[3,0]"), "f32[0, 0]");
    assert_eq!(
        mm("f32[128,256]", "f32[255,512]"),
        "matmul: the inner sizes must agree, but `a` is f32[128, 256] and `b` is f32[255, 512]: 256 and 255 \
         [H0304]; the last axis of the first operand must equal the second-last axis of the second"
    );
    starts(mm("f32[2,k]", "f32[j,4]"), "matmul: the inner sizes cannot be shown to agree: `a`");
    assert!(mm("f32[2,3]", "f32[4,3]").ends_with("transpose the second operand"));
    assert!(mm("f32[3,2]", "f32[3,4]").ends_with("transpose the first operand"));
    starts(mm("f32[3]", "f32[3,4]"), "matmul: `a` must have at least 2 axes, but is f32[3] [H0301]");
    starts(mm("f32[2,3]", "f16[3,4]"), "matmul: the operands must have the same element type, but `a` is f32[2, 3]");
    starts(mm("bool[2,3]", "bool[3,4]"), "matmul: `a` must contain numbers, but is bool[2, 3] [H0302]");
    starts(mm("f32[2,2,3]", "f32[5,3,4]"), "matmul: the leading axes do not broadcast");
    starts(mm("f32[b,2,3]", "f32[c,3,4]"), "matmul: the leading axes do not broadcast");
    assert_eq!(apply(BuiltinOp::Matmul, &[], &["f32[2,3]"]), "matmul: takes (a, b), but 1 operands is given [H0307]");
    let to = [AttrValue::DType(DType::F32)];
    assert_eq!(apply(BuiltinOp::Gemm, &to, &["bf16[2,3]", "bf16[3,4]", "f32[4]"]), "f32[2, 4]");
}

#[test]
fn views() {
    use BuiltinOp::*;
    assert_eq!(apply(Reshape, &[AttrValue::List(vec![sym("b"), int(12)])], &["f32[b,3,4]"]), "f32[b, 12]");
    assert_eq!(apply(Reshape, &[AttrValue::List(vec![int(6), sym("b")])], &["f32[2*b,3]"]), "f32[6, b]");
    starts(
        apply(Reshape, &[list(&[5])], &["f32[2,3]"]),
        "reshape: the number of elements must stay the same, but `x` is f32[2, 3] (6) and the new shape is [5] (5)",
    );
    starts(apply(Reshape, &[list(&[-1])], &["f32[2,3]"]), "reshape: attribute `shape = [-1]` contains -1");
    starts(apply(Reshape, &[AttrValue::List(vec![sym("c")])], &["f32[b]"]), "reshape: the number of elements cannot");
    assert_eq!(apply(Transpose, &[list(&[2, 0, 1])], &["f32[2,3,b]"]), "f32[b, 2, 3]");
    for bad in [&[0, 0][..], &[0, 2], &[0], &[-1, 0]] {
        starts(apply(Transpose, &[list(bad)], &["f32[2,3]"]), "transpose: attribute `perm = [");
    }
    assert_eq!(apply(Expand, &[list(&[4, 2, 3])], &["f32[2,1]"]), "f32[4, 2, 3]");
    starts(apply(Expand, &[list(&[2, 3])], &["f32[b,3]"]), "expand: `x` is f32[b, 3] and does not broadcast");
    starts(apply(Expand, &[list(&[1, 3])], &["f32[2,3]"]), "expand:");
    assert_eq!(apply(Cast, &[AttrValue::DType(DType::I8)], &["f32[b]"]), "i8[b]");
}

#[test]
fn slices() {
    let slice = |x: &str, start: AttrValue, stop: AttrValue, step: i64| {
        apply(BuiltinOp::Slice, &[int(-1), start, stop, int(step)], &[x])
    };
    assert_eq!(slice("f32[2,10]", int(1), int(9), 3), "f32[2, 3]");
    assert_eq!(slice("f32[2,10]", int(9), int(-1), -3), "f32[2, 4]");
    assert_eq!(slice("f32[2,10]", int(9), int(3), 1), "f32[2, 0]");
    assert_eq!(slice("f32[2,0]", int(-1), int(-1), -1), "f32[2, 0]");
    assert_eq!(slice("f32[n]", int(0), sym("n"), 1), "f32[n]");
    assert_eq!(slice("f32[2*n]", sym("n"), AttrValue::Dim(ty("f32[2*n]").shape[0].clone()), 1), "f32[n]");
    starts(slice("f32[2,10]", int(0), int(11), 1), "slice: attribute `stop = 11` must lie in 0..=10");
    starts(slice("f32[2,10]", int(-2), int(5), 1), "slice: attribute `start = -2` must lie in 0..=10");
    assert_eq!(slice("f32[n]", int(0), int(4), 1), "f32[4]");
    assert_eq!(slice("f32[8]", int(0), sym("n"), 1), "f32[n]");
    starts(slice("f32[8]", sym("b"), sym("n"), 2), "slice: it cannot be shown that `stop` (n) is not before `start`");
    starts(slice("f32[4]", int(0), int(4), 0), "slice: attribute `step = 0` must not be 0");
    starts(slice("f32[4]", int(3), int(0), i64::MIN), "slice: a size of the result is too large");
    starts(apply(BuiltinOp::Slice, &[int(2), int(0), int(0), int(1)], &["f32[4]"]), "slice: attribute `axis = 2`");
    starts(apply(BuiltinOp::Slice, &[int(0), int(0), int(0), int(1)], &["f32[]"]), "slice: attribute `axis = 0` names");
}

#[test]
fn joining_and_cutting() {
    use BuiltinOp::*;
    assert_eq!(apply(Concat, &[int(1)], &["f32[2,n]", "f32[2,n]", "f32[2,3]"]), "f32[2, 2*n + 3]");
    starts(
        apply(Concat, &[int(1)], &["f32[2,3]", "f32[4,3]"]),
        "concat: the sizes of all axes except 1 must agree, but operand 0 is f32[2, 3] and",
    );
    starts(apply(Concat, &[int(0)], &["f32[2]", "f32[2,1]"]), "concat: operands must have the same number of axes");
    starts(apply(Concat, &[int(0)], &["f32[2]", "f16[2]"]), "concat: the operands must have the same element type");
    assert!(apply(Concat, &[int(0)], &[]).contains("H0307") || apply(Concat, &[int(0)], &[]).contains("H0303"));
    let big = format!("f32[{}]", i64::MAX);
    starts(apply(Concat, &[int(0)], &[&big, &big]), "concat: a size of the result is too large");
    let pieces = AttrValue::List(vec![sym("n"), int(3)]);
    assert_eq!(apply(Split, &[int(0), list(&[1, 2, 0])], &["f32[3,4]"]), "f32[1, 4] f32[2, 4] f32[0, 4]");
    starts(apply(Split, &[int(0), pieces], &["f32[5]"]), "split: attribute `sizes = [n, 3]` cannot be shown to add up");
    starts(apply(Split, &[int(0), list(&[1, 1])], &["f32[3]"]), "split: attribute `sizes = [1, 1]` must add up");
    assert_eq!(apply(Pad, &[list(&[1, 0]), list(&[-1, 2])], &["f32[2,n]", "f32[]"]), "f32[2, n + 2]");
    starts(
        apply(Pad, &[list(&[0]), list(&[-3])], &["f32[2]", "f32[]"]),
        "pad: the padded size of axis 0 of f32[2] is negative",
    );
    starts(
        apply(Pad, &[list(&[0]), list(&[-3])], &["f32[n]", "f32[]"]),
        "pad: the padded size of axis 0 of f32[n] may be negative",
    );
    starts(apply(Pad, &[list(&[0]), list(&[0, 0])], &["f32[2]", "f32[]"]), "pad: attribute `after = [0, 0]`");
    starts(apply(Pad, &[list(&[0]), list(&[0])], &["f32[2]", "f32[1]"]), "pad: `value` must be one value of rank 0");
}

#[test]
fn gathers_and_reductions() {
    use BuiltinOp::*;
    assert_eq!(apply(Gather, &[int(1)], &["f32[2,3,4]", "i64[b,5]"]), "f32[2, b, 5, 4]");
    starts(apply(Gather, &[int(0)], &["f32[2]", "f32[1]"]), "gather: `indices` must contain integers, but is f32[1]");
    assert_eq!(apply(GatherElements, &[int(0)], &["f32[2,3]", "i64[7,3]"]), "f32[7, 3]");
    starts(
        apply(GatherElements, &[int(0)], &["f32[2,3]", "i64[7,4]"]),
        "gather_elements: `indices` must not be larger",
    );
    assert_eq!(apply(GatherNd, &[int(1)], &["f32[b,3,4]", "i64[b,5,1]"]), "f32[b, 5, 4]");
    starts(apply(GatherNd, &[int(0)], &["f32[2]", "i64[5,2]"]), "gather_nd: the last axis of `indices`");
    starts(apply(GatherNd, &[int(3)], &["f32[2]", "i64[5,2]"]), "gather_nd: attribute `batch = 3`");
    assert_eq!(apply(Sum, &[list(&[-1, 0]), F], &["f32[2,3,4]"]), "f32[3]");
    assert_eq!(apply(Mean, &[list(&[-1]), T], &["f32[b,4]"]), "f32[b, 1]");
    starts(
        apply(Mean, &[list(&[-1]), T], &["i64[4]"]),
        "mean: `x` must be f64, f32, f16 or bf16, but is i64[4] [H0302]",
    );
    starts(apply(Sum, &[list(&[0, -2]), T], &["f32[2,3]"]), "sum: attribute `axes = [0, -2]` names axis -2 twice");
    starts(
        apply(Sum, &[list(&[2]), T], &["f32[2,3]"]),
        "sum: attribute `axes = [2]` is out of range: the operand has rank 2, so it must be between -2 and 1",
    );
    assert_eq!(apply(Cumsum, &[int(-1), F, T], &["i32[b,4]"]), "i32[b, 4]");
    starts(apply(Cumsum, &[int(2), F, F], &["f32[b,4]"]), "cumsum: attribute `axis = 2`");
    starts(apply(Cumsum, &[int(0), F, F], &["bool[4]"]), "cumsum: `x` must contain numbers, but is bool[4]");
    assert_eq!(apply(Argmax, &[int(-1), F, F], &["f32[b,4]"]), "i64[b]");
    starts(apply(Argmax, &[int(-1), F, F], &["f32[b,0]"]), "argmax: axis 1 of `x` is empty");
    assert_eq!(apply(Iota, &[list(&[2, 3]), int(1), AttrValue::DType(DType::I64)], &[]), "i64[2, 3]");
    starts(apply(Iota, &[list(&[2, 3]), int(2), AttrValue::DType(DType::I64)], &[]), "iota: attribute `axis = 2`");
    assert_eq!(apply(Full, &[list(&[2]), int(0), AttrValue::DType(DType::F16)], &[]), "f16[2]");
    starts(apply(Full, &[list(&[-2]), int(0), AttrValue::DType(DType::F16)], &[]), "full: attribute `shape = [-2]`");
    assert_eq!(apply(Size, &[sym("n")], &[]), "i64[]");
    starts(apply(Cast, &[int(1)], &["f32[2]"]), "cast: attribute `to = 1` must be an element type such as f32");
}

#[test]
fn scalars_broadcast_and_keep_their_type() {
    use crate::builtin::BuiltinScalar;
    let p = core();
    let apply = |f: BuiltinScalar, operands: &[&str]| {
        let operands: Vec<TensorType> = operands.iter().map(|t| ty(t)).collect();
        match apply_scalar(&p, p.builtin_scalar(f).unwrap(), &operands) {
            Ok(t) => t.to_string(),
            Err(e) => e.to_string(),
        }
    };
    use BuiltinScalar::*;
    assert_eq!(apply(Add, &["f32[b,1,4]", "f32[3,1]"]), "f32[b, 3, 4]");
    assert_eq!(apply(Lt, &["i64[2]", "i64[]"]), "bool[2]");
    assert_eq!(apply(Select, &["bool[2,1]", "f16[3]", "f16[]"]), "f16[2, 3]");
    starts(apply(Add, &["f32[2]", "f16[2]"]), "add: all numbers must have the same element type");
    starts(apply(Add, &["f32[b]", "f32[4]"]), "add: the shapes [b] and [4] do not broadcast [H0305]");
    starts(apply(Exp, &["i64[2]"]), "exp: needs a float element type");
    starts(apply(And, &["f32[2]", "bool[2]"]), "and: operand `a` must be bool");
    starts(apply(Add, &["bool[2]", "bool[2]"]), "add: operand `a` must be a number");
    starts(apply(Add, &["f32[2]"]), "add: takes 2 operands");
}

/// `op f(x: T[..s, 2 * k], w: T[k], b: T[k]?, eps: float) -> T[..broadcast(s, s), k]`
fn defined() -> (Program, OpId) {
    let mut p = core();
    let var = |name: &str, sort| Var { name: name.into(), sort };
    let (s, k, t) = (VarId(4), VarId(5), VarId(6));
    let two_k = AExpr::Binary(crate::ast::BinaryOp::Mul, Box::new(AExpr::Value(int(2))), Box::new(AExpr::Var(k)));
    let tensor = |prefix: Vec<DimPat>, rest: Option<RestPat>, optional: bool| {
        let ty = TypePat { dtype: DTypePat::Var(t), prefix: vec![], rest, suffix: prefix };
        ParamKind::Tensor { ty, optional, variadic: false }
    };
    let param = |name: &str, kind| Param { name: name.into(), kind };
    let both = AExpr::Call(AFn::Broadcast, vec![AExpr::Var(s), AExpr::Var(s)]);
    p.ops.push(OpDef {
        name: "f".into(),
        doc: String::new(),
        origin: Origin::default(),
        vars: vec![
            var("x", Sort::Tensor),
            var("w", Sort::Tensor),
            var("b", Sort::Tensor),
            var("eps", Sort::Attr),
            var("s", Sort::Shape),
            var("k", Sort::Attr),
            var("T", Sort::DType),
        ],
        params: vec![
            param("x", tensor(vec![DimPat::Expr(two_k)], Some(RestPat::Var(s)), false)),
            param("w", tensor(vec![DimPat::Var(k)], None, false)),
            param("b", tensor(vec![DimPat::Var(k)], None, true)),
            param("eps", ParamKind::Attr { ty: crate::ir::AttrType::Float, default: Some(AttrValue::Float(1e-5)) }),
        ],
        bounds: vec![(t, vec![DType::F32, DType::F16])],
        results: vec![TypePat {
            dtype: DTypePat::Var(t),
            prefix: vec![],
            rest: Some(RestPat::Expr(both)),
            suffix: vec![DimPat::Var(k)],
        }],
        variadic_result: false,
        requires: vec![AExpr::Binary(
            crate::ast::BinaryOp::Gt,
            Box::new(AExpr::Var(VarId(3))),
            Box::new(AExpr::Value(AttrValue::Float(0.0))),
        )],
        body: OpBody::Defined(vec![]),
        grad: None,
        cost: CostFormulas::default(),
        domain: None,
    });
    let id = OpId(p.ops.len() as u32 - 1);
    (p, id)
}

#[test]
fn defined_ops_go_by_their_declaration() {
    let (p, id) = defined();
    let eps = [AttrValue::Float(1e-5)];
    let apply = |operands: &[Option<&str>], attrs: &[AttrValue]| {
        let operands: Vec<Option<TensorType>> = operands.iter().map(|t| t.map(ty)).collect();
        match apply_op(&p, id, attrs, &operands) {
            Ok(types) => types[0].to_string(),
            Err(e) => e.to_string(),
        }
    };
    assert_eq!(apply(&[Some("f32[b,8]"), Some("f32[4]"), None], &eps), "f32[b, 4]");
    assert_eq!(apply(&[Some("f32[b,8]"), Some("f32[4]")], &eps), "f32[b, 4]");
    assert_eq!(apply(&[Some("f32[2*n]"), Some("f32[n]"), Some("f32[n]")], &eps), "f32[n]");
    assert_eq!(
        apply(&[Some("f32[3,8]"), Some("f32[5]"), None], &eps),
        "f: `w` must be T[k] with T = f32, k = 4, but is f32[5]: axis 0 is 5, not 4 [H0304]"
    );
    assert_eq!(
        apply(&[Some("f32[3,7]"), Some("f32[5]"), None], &eps),
        "f: `x` must be T[..s, 2 * k], but is f32[3, 7]: axis 1 = 7 cannot be of that form [H0304]"
    );
    starts(
        apply(&[Some("f32[3,8]"), Some("f16[4]"), None], &eps),
        "f: `w` must be T[k] with T = f32, k = 4, but is f16[4]",
    );
    starts(apply(&[Some("f32[3,8]"), Some("f32[4,1]"), None], &eps), "f: `w` must be T[k] with");
    starts(
        apply(&[Some("f64[8]"), Some("f64[4]"), None], &eps),
        "f: the element type T must be f32 or f16, but is f64",
    );
    starts(apply(&[Some("f32[8]"), None, None], &eps), "f: operand `w` is absent, but it is required [H0307]");
    starts(apply(&[Some("f32[8]")], &eps), "f: takes (x, w, b?), but 1 operand");
    assert_eq!(
        apply(&[Some("f32[8]"), Some("f32[4]"), None], &[AttrValue::Float(0.0)]),
        "f: requires eps > 0.0, which is false [H0306]"
    );
    starts(apply(&[Some("f32[8]"), Some("f32[4]"), None], &[T]), "f: attribute `eps = true` must be a number [H0303]");
}

#[test]
fn attributes_have_one_form() {
    let p = core();
    let sum = p.op(p.builtin_op(BuiltinOp::Sum).unwrap());
    let normal = normalise_attrs(sum, &[Some(list(&[-1, 0]))], Some(3)).unwrap();
    assert_eq!(normal, [list(&[0, 2]), T]);
    let again: Vec<Option<AttrValue>> = normal.iter().cloned().map(Some).collect();
    assert_eq!(normalise_attrs(sum, &again, Some(3)).unwrap(), normal);
    let e = normalise_attrs(sum, &[None], Some(3)).unwrap_err();
    assert_eq!(e.to_string(), "sum: attribute `axes` is missing and has no default [H0303]");
}

proptest::proptest! {
    /// Extreme operands and attributes give a type or an error, never a panic.
    #[test]
    fn nothing_panics(
        op in 0..BuiltinOp::ALL.len(),
        dims in proptest::collection::vec(proptest::collection::vec(0..9usize, 0..4), 0..4),
        attrs in proptest::collection::vec(0..14usize, 0..4),
    ) {
        let sizes = [0, 1, 2, 3, i64::MAX, i64::MAX / 2, 1 << 33];
        let dim = |i: &usize| sizes.get(*i).map_or_else(|| Dim::symbol(["b", "n"][*i % 2]), |s| Dim::from(*s));
        let operands: Vec<Option<TensorType>> = dims
            .iter()
            .map(|d| Some(TensorType { dtype: DType::F32, shape: d.iter().map(dim).collect() }))
            .collect();
        let value = |i: usize| match i {
            0 => int(0), 1 => int(1), 2 => int(-1), 3 => int(i64::MIN), 4 => int(i64::MAX), 5 => T, 6 => sym("b"),
            7 => list(&[]), 8 => list(&[0, 1]), 9 => list(&[i64::MIN, i64::MAX]), 10 => list(&[1, 1, 1]),
            11 => AttrValue::DType(DType::F16), 12 => AttrValue::Float(f64::NAN), _ => AttrValue::Str("x".into()),
        };
        let attrs: Vec<AttrValue> = attrs.into_iter().map(value).collect();
        let p = core();
        let id = p.builtin_op(BuiltinOp::ALL[op]).unwrap();
        let _ = apply_op(&p, id, &attrs, &operands);
    }
}
