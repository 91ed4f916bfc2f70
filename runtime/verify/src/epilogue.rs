//! Lifted rules inside epilogues.
//!
//! In: a rule whose two sides hold only scalars, so that it works on tensors and inside epilogues.
//! Out: the same rule over gemms: its variables stand for parts of the epilogue. Invariant: a rule
//! that cannot be expressed there (types, several roots, facts on the right side) gives nothing
//! rather than a different rule.

use hypatia_dsl::builtin::BuiltinOp;
use hypatia_dsl::ir::{
    AExpr, AFn, AttrPat, Build, BuildArg, BuildNode, Fact, Head, NodePat, Pat, Program, Rule, Sort, Var, VarId,
};

/// `gemm(a, b, left) => gemm(a, b, right)` for a lifted rule `left => right`.
pub(super) fn inside_epilogue(program: &Program, rule: &Rule) -> Option<Rule> {
    let ([left], [right]) = (rule.lhs.as_slice(), rule.rhs.as_slice()) else { return None };
    let gemm = Head::Op(program.builtin_op(BuiltinOp::Gemm)?);
    if !rule.pointwise || !is_term(left) || !builds_term(right) {
        return None;
    }
    let mut inside = rule.clone();
    for var in &mut inside.vars {
        if var.sort == Sort::Tensor {
            var.sort = Sort::Term;
        }
    }
    let mut fresh = |name: &str, sort: Sort| {
        inside.vars.push(Var { name: name.into(), sort });
        VarId(inside.vars.len() as u32 - 1)
    };
    let (a, b, to) = (fresh("a", Sort::Tensor), fresh("b", Sort::Tensor), fresh("to", Sort::DType));
    inside.lhs = vec![Pat::Node(NodePat {
        head: gemm,
        args: vec![Pat::Var(a), Pat::Var(b), left.clone()],
        rest: None,
        attrs: vec![AttrPat::Var(to)],
        output: 0,
    })];
    let args = [Build::Var(a), Build::Var(b), right.clone()];
    inside.rhs = vec![Build::Node(BuildNode {
        head: gemm,
        args: args.into_iter().map(BuildArg::One).collect(),
        attrs: vec![AExpr::Var(to)],
        output: 0,
    })];
    inside.requires.push(over_floats(a));
    Some(inside)
}

/// Restricts a rule to floats: epilogues of integer products are exact, and not every function has
/// a value there. Tensors cover the integers.
pub(super) fn over_floats(a: VarId) -> AExpr {
    AExpr::Call(AFn::IsFloat, vec![AExpr::Fact(Fact::DType, a)])
}

fn is_term(pat: &Pat) -> bool {
    match pat {
        Pat::Any | Pat::Var(_) | Pat::Lit { .. } => true,
        Pat::Bind(_, p) => is_term(p),
        Pat::OneOf(pats) => pats.iter().all(is_term),
        Pat::Node(n) => matches!(n.head, Head::Scalar(_)) && n.args.iter().all(is_term),
        Pat::Typed(..) | Pat::Absent | Pat::Optional(_) => false,
    }
}

fn builds_term(build: &Build) -> bool {
    match build {
        Build::Var(_) => true,
        Build::Number(e) => matches!(e, AExpr::Value(_)),
        Build::Node(n) => {
            let one = |a: &BuildArg| matches!(a, BuildArg::One(b) if builds_term(b));
            matches!(n.head, Head::Scalar(_)) && n.args.iter().all(one)
        }
        Build::Else(..) | Build::Frozen(_) | Build::Absent | Build::If(..) => false,
    }
}
