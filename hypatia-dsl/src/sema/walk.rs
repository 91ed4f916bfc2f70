//! Traversals of patterns and right sides.
//!
//! Invariant: variables are visited in the order in which a matcher meets them.

use crate::ir::{AExpr, AttrPat, Build, BuildArg, DTypePat, DimPat, Head, Pat, RestPat, TypePat, VarId};

/// Calls `f` for every occurrence of a variable in a pattern.
pub(crate) fn pat_vars(p: &Pat, f: &mut dyn FnMut(VarId)) {
    match p {
        Pat::Any | Pat::Lit { .. } | Pat::Absent => {}
        Pat::Var(v) | Pat::Optional(v) => f(*v),
        Pat::Bind(v, p) => {
            f(*v);
            pat_vars(p, f);
        }
        Pat::Typed(p, t) => {
            pat_vars(p, f);
            type_vars(t, f);
        }
        Pat::Node(n) => {
            if let Head::Region(v) = n.head {
                f(v);
            }
            n.args.iter().for_each(|p| pat_vars(p, f));
            if let Some(rest) = &n.rest {
                if let Some(each) = &rest.each {
                    pat_vars(&each.element, f);
                    f(each.item);
                }
                f(rest.var);
            }
            n.attrs.iter().for_each(|a| attr_vars(a, f));
        }
        Pat::OneOf(l) => l.iter().for_each(|p| pat_vars(p, f)),
    }
}

/// Visits the variables of a type.
pub(crate) fn type_vars(t: &TypePat, f: &mut dyn FnMut(VarId)) {
    match &t.dtype {
        DTypePat::Var(v) => f(*v),
        DTypePat::Expr(e) => expr_vars(e, f),
        DTypePat::Any | DTypePat::Is(_) => {}
    }
    for d in t.prefix.iter().chain(&t.suffix) {
        match d {
            DimPat::Var(v) => f(*v),
            DimPat::Expr(e) => expr_vars(e, f),
            DimPat::Any => {}
        }
    }
    match &t.rest {
        Some(RestPat::Var(v)) => f(*v),
        Some(RestPat::Expr(e)) => expr_vars(e, f),
        Some(RestPat::Any) | None => {}
    }
}

/// Visits the variables of an attribute's pattern.
pub(crate) fn attr_vars(a: &AttrPat, f: &mut dyn FnMut(VarId)) {
    match a {
        AttrPat::Any | AttrPat::Rest(None) => {}
        AttrPat::Var(v) | AttrPat::Rest(Some(v)) => f(*v),
        AttrPat::Is(e) => expr_vars(e, f),
        AttrPat::List(l) => l.iter().for_each(|a| attr_vars(a, f)),
    }
}

/// Visits the variables of an attribute expression, including those of comprehensions.
pub(crate) fn expr_vars(e: &AExpr, f: &mut dyn FnMut(VarId)) {
    match e {
        AExpr::Value(_) | AExpr::Device(_) => {}
        AExpr::Var(v) | AExpr::Fact(_, v) => f(*v),
        AExpr::List(l) | AExpr::Call(_, l) => l.iter().for_each(|e| expr_vars(e, f)),
        AExpr::Spread(a) | AExpr::Neg(a) | AExpr::Not(a) => expr_vars(a, f),
        AExpr::Index(a, b) | AExpr::Binary(_, a, b) => {
            expr_vars(a, f);
            expr_vars(b, f);
        }
        AExpr::Comprehension { element, var, over, condition } => {
            f(*var);
            expr_vars(over, f);
            expr_vars(element, f);
            condition.iter().for_each(|c| expr_vars(c, f));
        }
        AExpr::If(a, b, c) => [a, b, c].into_iter().for_each(|e| expr_vars(e, f)),
        AExpr::SameAccumulator(a, b, c) => [a, b, c].into_iter().for_each(|v| f(*v)),
    }
}

/// Visits the variables of a right side.
pub(crate) fn build_vars(b: &Build, f: &mut dyn FnMut(VarId)) {
    match b {
        Build::Var(v) => f(*v),
        Build::Number(e) => expr_vars(e, f),
        Build::Absent => {}
        Build::Else(v, b) => {
            f(*v);
            build_vars(b, f);
        }
        Build::Frozen(b) => build_vars(b, f),
        Build::If(c, a, b) => {
            expr_vars(c, f);
            build_vars(a, f);
            build_vars(b, f);
        }
        Build::Node(n) => {
            if let Head::Region(v) = n.head {
                f(v);
            }
            for a in &n.args {
                match a {
                    BuildArg::One(b) => build_vars(b, f),
                    BuildArg::Spread(v) => f(*v),
                    BuildArg::Each { element, item, over } => {
                        f(*over);
                        f(*item);
                        build_vars(element, f);
                    }
                }
            }
            n.attrs.iter().for_each(|a| expr_vars(a, f));
        }
    }
}

/// Rebuilds a pattern bottom-up.
pub(crate) fn visit_pat(p: Pat, f: &mut dyn FnMut(Pat) -> Pat) -> Pat {
    let p = match p {
        Pat::Bind(v, p) => Pat::Bind(v, Box::new(visit_pat(*p, f))),
        Pat::Typed(p, t) => Pat::Typed(Box::new(visit_pat(*p, f)), t),
        Pat::Node(mut n) => {
            n.args = n.args.into_iter().map(|p| visit_pat(p, f)).collect();
            if let Some(each) = n.rest.as_mut().and_then(|rest| rest.each.as_mut()) {
                each.element = visit_pat(std::mem::replace(&mut each.element, Pat::Any), f);
            }
            Pat::Node(n)
        }
        Pat::OneOf(l) => Pat::OneOf(l.into_iter().map(|p| visit_pat(p, f)).collect()),
        other => other,
    };
    f(p)
}
