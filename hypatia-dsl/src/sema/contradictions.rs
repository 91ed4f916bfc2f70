//! Expectations of a test of which only one can hold.
//!
//! In: what a test expects, as it is written and as it was read. Out: an error at the later of two
//! expectations that exclude each other. Invariant: a test without an error may pass as far as its
//! expectations tell, so that a failure is that of a rule.

use crate::ast::{self, BinaryOp};
use crate::diag::Diagnostic;
use crate::ir::Expect;
use crate::source::Span;

use super::code;

/// An error for the first two that exclude each other.
pub(super) fn contradiction(all: &[(&ast::Expect, Expect)]) -> Option<Diagnostic> {
    let mut pairs = all.iter().enumerate().flat_map(|(at, b)| all[..at].iter().map(move |a| (a, b)));
    let (said, (earlier, _), (later, _)) = pairs.find_map(|(a, b)| excluded(&a.1, &b.1).map(|said| (said, a, b)))?;
    let d = Diagnostic::error(code::EXPECTATION, format!("this test cannot pass: {said}"), span(later));
    Some(
        d.label("excludes an expectation before it")
            .also(span(earlier), "this one")
            .hint("remove one of them, or write two tests"),
    )
}

/// What two expectations say, if both cannot hold.
fn excluded(a: &Expect, b: &Expect) -> Option<String> {
    match (a, b) {
        (Expect::Launches(p, m), Expect::Launches(q, n)) => {
            none_fits([(*p, *m), (*q, *n)]).then(|| "no number of launches is both".into())
        }
        (Expect::Count(x, p, m), Expect::Count(y, q, n)) if x == y => {
            none_fits([(*p, *m), (*q, *n)]).then(|| "no number of nodes is both".into())
        }
        (Expect::Fires(x, m), Expect::Fires(y, n)) if x == y && m != n => {
            Some(format!("`{x}` cannot fire and not fire"))
        }
        (Expect::Matches(x, m), Expect::Matches(y, n)) if x == y && m != n => {
            Some(format!("`{x}` cannot match and not match"))
        }
        (Expect::Fires(x, true), Expect::Matches(y, false)) | (Expect::Matches(y, false), Expect::Fires(x, true))
            if x == y =>
        {
            Some(format!("`{x}` cannot fire where it does not match"))
        }
        _ => None,
    }
}

/// True if no count satisfies both comparisons. If any does, then one beside their numbers does.
fn none_fits(both: [(BinaryOp, i64); 2]) -> bool {
    let fits = |count: i64, (op, n): (BinaryOp, i64)| match op {
        BinaryOp::Eq => count == n,
        BinaryOp::Ne => count != n,
        BinaryOp::Lt => count < n,
        BinaryOp::Le => count <= n,
        BinaryOp::Gt => count > n,
        BinaryOp::Ge => count >= n,
        _ => true,
    };
    let beside = |(_, n): (BinaryOp, i64)| [n.saturating_sub(1), n, n.saturating_add(1), n.saturating_add(2)];
    let mut counts = both.into_iter().flat_map(beside).chain([0]).filter(|count| *count >= 0);
    !counts.any(|count| both.iter().all(|c| fits(count, *c)))
}

fn span(e: &ast::Expect) -> Span {
    match e {
        ast::Expect::Compare(e) | ast::Expect::Equal(e) | ast::Expect::Becomes(e) => e.span,
        ast::Expect::Error(name) => name.span,
        ast::Expect::Fires(path, _) | ast::Expect::Matches(path, _) => path.span,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_that_exclude_each_other_are_found() {
        use BinaryOp::{Eq, Ge, Gt, Le, Lt, Ne};
        let excluded =
            [[(Eq, 1), (Eq, 2)], [(Le, 0), (Gt, 0)], [(Lt, 3), (Ge, 3)], [(Eq, 2), (Ne, 2)], [(Lt, 1), (Ne, 0)]];
        assert!(excluded.into_iter().all(none_fits));
        let fine = [[(Eq, 1), (Le, 2)], [(Ge, 1), (Le, 1)], [(Ne, 0), (Ne, 1)], [(Gt, 3), (Gt, 9)], [(Lt, 2), (Ne, 0)]];
        assert!(!fine.into_iter().any(none_fits));
    }
}
