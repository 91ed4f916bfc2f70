//! The ways in which guards can hold.
//!
//! In: the guards of a rule. Out: lists of conditions, each with whether it holds; the guards hold
//! if all of one list is so. Invariant: in each list at most one side of an `or` holds, but for one
//! list in which both do; there are at most [`MOST`] lists.
//!
//! A rule that requires `positive(x) or rank(x) == 1` is applied to any `x` of rank 1. An instance
//! that satisfies both conditions, because each of them is sought, never shows whether one of them
//! is enough.

use hypatia_dsl::ast::BinaryOp;
use hypatia_dsl::ir::{AExpr, AttrValue};

/// Conditions, each with whether it holds.
pub type Way<'a> = Vec<(&'a AExpr, bool)>;

/// The most ways that are tried.
const MOST: usize = 16;
/// Conditions within more brackets than this are one condition.
const DEEPEST: usize = 64;

/// The ways in which all guards hold.
pub fn ways(guards: &[AExpr]) -> Vec<Way<'_>> {
    let each: Vec<Vec<Way>> = guards.iter().map(|g| of(g, true, 0)).collect();
    let count = each.iter().fold(1usize, |n, ways| n.saturating_mul(ways.len()));
    // A step that shares no divisor with the counts visits all ways of each guard.
    let step = if count > MOST { 7919 } else { 1 };
    let one = |i: usize| {
        let mut at = i.wrapping_mul(step);
        let mut way = Way::new();
        for ways in &each {
            way.extend(ways.get(at % ways.len()).into_iter().flatten());
            at /= ways.len();
        }
        way
    };
    (0..count.min(MOST)).map(one).filter(|way| consistent(way)).collect()
}

/// The ways in which a condition is what is `wanted`.
fn of(e: &AExpr, wanted: bool, depth: usize) -> Vec<Way<'_>> {
    let under = |e, wanted| of(e, wanted, depth + 1);
    match e {
        _ if depth > DEEPEST => vec![vec![(e, wanted)]],
        AExpr::Not(a) => under(a, !wanted),
        AExpr::Binary(op @ (BinaryOp::And | BinaryOp::Or), a, b) => {
            let (ways_a, ways_b) = (under(a, wanted), under(b, wanted));
            if (*op == BinaryOp::And) == wanted {
                return cross(&ways_a, &ways_b);
            }
            // One alone, or, once, both.
            let (no_a, no_b) = ([vec![(&**a, !wanted)]], [vec![(&**b, !wanted)]]);
            let together = cross(&ways_a[..ways_a.len().min(1)], &ways_b[..ways_b.len().min(1)]);
            few([cross(&no_a, &ways_b), cross(&ways_a, &no_b), together].concat())
        }
        AExpr::If(c, a, b) => {
            few([cross(&under(c, true), &under(a, wanted)), cross(&under(c, false), &under(b, wanted))].concat())
        }
        _ => [vec![(e, wanted)]].into_iter().filter(|way| consistent(way)).collect(),
    }
}

/// Each of one list with each of the other.
fn cross<'a>(a: &[Way<'a>], b: &[Way<'a>]) -> Vec<Way<'a>> {
    let pairs = a.iter().flat_map(|a| b.iter().map(move |b| [&a[..], &b[..]].concat()));
    few(pairs.filter(|way| consistent(way)).collect())
}

fn few(mut ways: Vec<Way<'_>>) -> Vec<Way<'_>> {
    ways.truncate(MOST);
    ways
}

/// False if a condition is to hold and not to hold, or is a truth value that it is not to be.
fn consistent(way: &[(&AExpr, bool)]) -> bool {
    way.iter().all(|(e, holds)| {
        let other = matches!(e, AExpr::Value(AttrValue::Bool(b)) if b != holds);
        !other && !way.iter().any(|(other, o)| o != holds && other == e)
    })
}

/// True if all facts in a condition are asked for where it holds: no side of an `or`, no negation.
/// A constant whose elements differ has no value, so `value(c) != 1` is true of it.
pub fn is_plain(e: &AExpr) -> bool {
    match e {
        AExpr::Not(_) | AExpr::If(..) | AExpr::Binary(BinaryOp::Or | BinaryOp::Ne | BinaryOp::NotIn, ..) => false,
        AExpr::Binary(BinaryOp::And, a, b) => is_plain(a) && is_plain(b),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hypatia_dsl::ir::VarId;

    fn var(i: u32) -> AExpr {
        AExpr::Var(VarId(i))
    }

    fn or(a: AExpr, b: AExpr) -> AExpr {
        AExpr::Binary(BinaryOp::Or, Box::new(a), Box::new(b))
    }

    fn shown(guards: &[AExpr]) -> Vec<Vec<(u32, bool)>> {
        let index = |e: &AExpr| if let AExpr::Var(v) = e { v.0 } else { 99 };
        ways(guards).iter().map(|w| w.iter().map(|(e, holds)| (index(e), *holds)).collect()).collect()
    }

    /// One side of an `or` holds alone, the other one does, or both do.
    #[test]
    fn each_side_of_an_or_holds_alone() {
        let found = shown(&[or(var(0), var(1)), var(2)]);
        let wanted = [[(0, false), (1, true)], [(0, true), (1, false)], [(0, true), (1, true)]];
        assert_eq!(found.len(), wanted.len());
        assert!(wanted.iter().all(|w| found.iter().any(|f| f[..2] == w[..] && f[2] == (2, true))), "{found:?}");
    }

    /// `not (a and not b)` is `not a or b`; `if` takes either branch.
    #[test]
    fn negations_reach_the_conditions() {
        let not = |e: AExpr| AExpr::Not(Box::new(e));
        let and = AExpr::Binary(BinaryOp::And, Box::new(var(0)), Box::new(not(var(1))));
        let found = shown(&[not(and)]);
        assert_eq!(found.len(), 3);
        assert!(found.contains(&vec![(0, true), (1, true)]) && found.contains(&vec![(0, false), (1, true)]));
        let branch = [AExpr::If(Box::new(var(0)), Box::new(var(1)), Box::new(AExpr::Value(AttrValue::Bool(true))))];
        assert_eq!(shown(&branch)[0], [(0, true), (1, true)]);
        assert_eq!(shown(&branch)[1][0], (0, false));
    }

    /// Nothing is tried that contradicts itself, and many alternatives stay few.
    #[test]
    fn ways_are_few_and_consistent() {
        // 99 is `not v0`, which does not hold.
        let found = shown(&[or(var(0), AExpr::Not(Box::new(var(0))))]);
        assert_eq!(found, [[(0, false), (0, false)], [(0, true), (99, false)]]);
        assert!(shown(&[AExpr::Value(AttrValue::Bool(false))]).is_empty());
        assert!(shown(&[var(0), AExpr::Not(Box::new(var(0)))]).is_empty());
        let many: Vec<AExpr> = (0..5).map(|i| or(var(2 * i), or(var(20 + i), var(2 * i + 1)))).collect();
        let found = shown(&many);
        assert!(found.len() <= MOST);
        let alone = |i: u32| found.iter().any(|w| w.contains(&(i, true)));
        assert!((0..10).all(alone), "{found:?}");
    }
}
