//! Operations that an absent operand takes with it.
//!
//! In: an application in a body or right side, and which optional operands are absent. Out: what is left of it. Holds
//! always: `p + (b else 0)` with `b` absent *means* `p`, as do `p - (b else 0)`, `p * (b else 1)` and `p / (b else 1)`,
//! with either order of `+` and `*`. So a layer without a bias adds nothing, and its -0 stays -0; everyone who
//! gives a body its meaning asks here.

use crate::builtin::BuiltinScalar;
use crate::ir::{AExpr, AttrValue, Build, BuildArg, BuildNode, Head, Program, ScalarBody, VarId};

/// The operand that is the whole application, if the other one stands for an absent operand by a number that changes
/// nothing.
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
