//! The names that an expression or an item mentions.
//!
//! In: a syntax tree. Out: the paths in it that may name a declaration. Invariant: nesting of any
//! depth is safe, since nothing here recurses over expressions.

use crate::ast::{DimExpr, Expect, Expr, ExprKind, ItemKind, Path, TestStatement};

/// Calls `f` for every path that may name a declaration; the flag is true if the path is applied.
/// Uses an explicit stack instead of recursion.
pub(crate) fn mentions(e: &Expr, f: &mut dyn FnMut(&Path, bool)) {
    let mut stack = vec![e];
    while let Some(e) = stack.pop() {
        match &e.kind {
            ExprKind::Path(p) => f(p, false),
            ExprKind::Call { callee, args, .. } => {
                f(callee, true);
                stack.extend(args.iter().map(|a| &a.value));
            }
            ExprKind::Result(x, _) | ExprKind::Spread(Some(x)) | ExprKind::Unary(_, x) | ExprKind::Bind(_, x) => {
                stack.push(x)
            }
            ExprKind::Typed(x, t) => {
                stack.push(x);
                stack.extend(t.dims.iter().filter_map(|d| match d {
                    DimExpr::Dim(e) => Some(e),
                    DimExpr::Rest(e, _) => e.as_ref(),
                }));
            }
            ExprKind::Index(a, b) | ExprKind::Binary(_, a, b) | ExprKind::Else(a, b) | ExprKind::Near(a, b) => {
                stack.extend([&**a, &**b]);
            }
            ExprKind::List(l) | ExprKind::Set(l) | ExprKind::Alternatives(l) | ExprKind::Tuple(l) => stack.extend(l),
            ExprKind::Comprehension { element, over, condition, .. } => {
                stack.extend([&**element, &**over]);
                stack.extend(condition.as_deref());
            }
            ExprKind::If(a, b, c) => stack.extend([&**a, &**b, &**c]),
            _ => {}
        }
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
