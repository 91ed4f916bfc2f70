//! Operations that disappear with an absent operand.
//!
//! In: an application in a body or right side, and which optional operands are absent. Out: its
//! remaining operand. Invariant: `p + (b else 0)` with `b` absent *means* `p`, as do `p - (b else
//! 0)`, `p * (b else 1)` and `p / (b else 1)`, with either order of `+` and `*`. So a layer without
//! a bias adds nothing, and its -0 stays -0. Every stage that gives a body its meaning calls this
//! module.

use crate::builtin::BuiltinScalar;
use crate::ir::{AExpr, AttrValue, Build, BuildArg, BuildNode, Head, Program, ScalarBody, VarId};

/// The operand that replaces the whole application, if the other operand is an absent operand whose
/// fallback is the neutral element.
pub fn without_absent<'b>(program: &Program, n: &'b BuildNode, absent: &dyn Fn(VarId) -> bool) -> Option<&'b Build> {
    let Head::Scalar(id) = n.head else { return None };
    let ScalarBody::Builtin(scalar) = program.scalars.get(id.index())?.body else { return None };
    let unit = match scalar {
        BuiltinScalar::Add | BuiltinScalar::Sub => 0.0,
        BuiltinScalar::Mul | BuiltinScalar::Div => 1.0,
        _ => return None,
    };
    let [BuildArg::One(a), BuildArg::One(b)] = n.args.as_slice() else { return None };
    let stands_for = |build: &Build| match build {
        Build::Else(v, other) if absent(*v) => match &**other {
            Build::Number(AExpr::Value(AttrValue::Float(x))) => *x == unit,
            Build::Number(AExpr::Value(AttrValue::Dim(d))) => d.as_const().is_some_and(|d| d as f64 == unit),
            _ => false,
        },
        _ => false,
    };
    match (stands_for(a), stands_for(b)) {
        (_, true) => Some(a),
        (true, _) if scalar.commutes() => Some(b),
        _ => None,
    }
}
