//! The names that an expression or an item mentions.
//!
//! In: a syntax tree. Out: the paths in it that may name a declaration. Invariant: nesting of any
//! depth is safe, since nothing here recurses over expressions.

use std::collections::HashSet;

use crate::ast::{DimExpr, Expect, Expr, ExprKind, ItemKind, Path, TestStatement};

/// Calls `f` for every path that may name a declaration; the flag is true if the path is applied.
pub(crate) fn mentions(e: &Expr, f: &mut dyn FnMut(&Path, bool)) {
    let mut stack = vec![e];
    while let Some(e) = stack.pop() {
        match &e.kind {
            ExprKind::Path(p) => f(p, false),
            ExprKind::Call { callee, .. } => f(callee, true),
            _ => {}
        }
        stack.extend(parts(e));
    }
}

/// The names in an expression that may be functions or element types.
pub(crate) fn names<'e>(e: &'e Expr, out: &mut HashSet<&'e str>) {
    let mut stack = vec![e];
    while let Some(e) = stack.pop() {
        match &e.kind {
            ExprKind::Path(p) => out.extend(p.parts.last().map(|n| n.node.as_str())),
            ExprKind::Call { callee, types, .. } => {
                out.extend(callee.parts.last().into_iter().chain(types).map(|n| n.node.as_str()));
            }
            ExprKind::Typed(_, t) => out.extend([t.dtype.node.as_str()]),
            _ => {}
        }
        stack.extend(parts(e));
    }
}

/// The expressions of which one is made directly.
fn parts(e: &Expr) -> Vec<&Expr> {
    match &e.kind {
        ExprKind::Call { args, .. } => args.iter().map(|a| &a.value).collect(),
        ExprKind::Result(x, _) | ExprKind::Spread(Some(x)) | ExprKind::Unary(_, x) | ExprKind::Bind(_, x) => vec![x],
        ExprKind::Typed(x, t) => {
            let dims = t.dims.iter().filter_map(|d| match d {
                DimExpr::Dim(e) => Some(e),
                DimExpr::Rest(e, _) => e.as_ref(),
            });
            std::iter::once(&**x).chain(dims).collect()
        }
        ExprKind::Index(a, b) | ExprKind::Binary(_, a, b) | ExprKind::Else(a, b) | ExprKind::Near(a, b) => {
            vec![a, b]
        }
        ExprKind::List(l) | ExprKind::Set(l) | ExprKind::Alternatives(l) | ExprKind::Tuple(l) => l.iter().collect(),
        ExprKind::Comprehension { element, over, condition, .. } => {
            [&**element, &**over].into_iter().chain(condition.as_deref()).collect()
        }
        ExprKind::If(a, b, c) => vec![a, b, c],
        _ => Vec::new(),
    }
}

/// The paths that an item's expressions mention.
pub(crate) fn item_mentions(kind: &ItemKind, f: &mut dyn FnMut(&Path, bool)) {
    match kind {
        ItemKind::Scalar(x) => x.body.iter().chain(&x.grads).for_each(|e| mentions(e, f)),
        ItemKind::Op(x) => {
            let of_grad = x.grad.iter().flat_map(|g| std::iter::once(&g.body).chain(g.lets.iter().map(|l| &l.1)));
            x.body.iter().chain(x.lets.iter().map(|l| &l.1)).chain(of_grad).for_each(|e| mentions(e, f));
        }
        ItemKind::Pattern(x) => mentions(&x.body, f),
        ItemKind::Rule(x) => {
            [&x.lhs, &x.rhs].into_iter().chain(x.lets.iter().map(|l| &l.1)).for_each(|e| mentions(e, f));
            x.binders.iter().for_each(|b| mentions(&b.family, f));
        }
        ItemKind::Kernel(x) => mentions(&x.pattern, f),
        ItemKind::Family(x) => mentions(&x.members, f),
        ItemKind::Test(x) => {
            for s in &x.statements {
                match s {
                    TestStatement::Given(l) => l.iter().for_each(|e| mentions(e, f)),
                    TestStatement::Expect(Expect::Compare(e) | Expect::Equal(e) | Expect::Becomes(e)) => mentions(e, f),
                    _ => {}
                }
            }
        }
        ItemKind::Use(_) | ItemKind::RuleSet(_) | ItemKind::Contract(_) => {}
    }
}
