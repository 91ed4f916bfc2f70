//! How far guards are from holding.
//!
//! In: a left side whose inputs have no values yet. Out: for each guard, a number that is 0 where
//! shapes and attributes do not refute it, and that shrinks as these come closer to it.
//! Invariant: what depends on values counts as met, since nobody knows it yet.

use hypatia_dsl::ast::BinaryOp;
use hypatia_dsl::ir::{AExpr, AttrValue, Fact, VarId};
use hypatia_dsl::typing::{Bindings, Facts, eval, eval_guard};
use hypatia_graph::GraphFacts;

use super::Generator;

/// What shapes and types say, before inputs have values.
struct Shapes<'a>(GraphFacts<'a>);

impl Facts for Shapes<'_> {
    fn fact(&self, fact: Fact, var: VarId) -> Option<AttrValue> {
        match fact {
            Fact::Const
            | Fact::Value
            | Fact::NonNegative
            | Fact::Positive
            | Fact::Finite
            | Fact::Uniform
            | Fact::Uses => None,
            Fact::Shape | Fact::DType | Fact::Rank | Fact::Present | Fact::Numel | Fact::Count | Fact::Shapes => {
                self.0.fact(fact, var)
            }
        }
    }
}

impl Generator<'_, '_> {
    /// How far each of the conditions is from what it is to be; each counts for at most 1.
    pub(super) fn unmet(&self) -> Vec<f64> {
        let facts = Shapes(GraphFacts { graph: &self.graph, env: &self.env });
        let mut known = self.env.attrs.clone();
        for (var, e) in &self.rule.lets {
            if let Some(value) = eval(e, &known, &facts) {
                known.values.insert(*var, value);
            }
        }
        let measure = Measure { known: &known, facts: &facts };
        self.hints.atoms.iter().map(|(e, holds)| part(measure.distance(e, *holds))).collect()
    }
}

/// A distance as a part of 1, so that no guard outweighs the others.
fn part(distance: f64) -> f64 {
    if distance.is_finite() { distance / (1.0 + distance) } else { 1.0 }
}

struct Measure<'a> {
    known: &'a Bindings,
    facts: &'a dyn Facts,
}

impl Measure<'_> {
    /// How far a condition is from being `wanted`; 0 if it is, or if it is not known.
    fn distance(&self, e: &AExpr, wanted: bool) -> f64 {
        match e {
            AExpr::Not(a) => self.distance(a, !wanted),
            AExpr::Binary(op @ (BinaryOp::And | BinaryOp::Or), a, b) => {
                let (a, b) = (self.distance(a, wanted), self.distance(b, wanted));
                if (*op == BinaryOp::And) == wanted { part(a) + part(b) } else { a.min(b) }
            }
            AExpr::Binary(op, a, b) => match (eval_guard(e, self.known, self.facts), self.sides(a, b)) {
                (Some(holds), Some((a, b))) if holds != wanted => between(*op, wanted, &a, &b),
                (Some(holds), None) if holds != wanted => 1.0,
                _ => 0.0,
            },
            _ => match eval_guard(e, self.known, self.facts) {
                Some(holds) if holds != wanted => 1.0,
                _ => 0.0,
            },
        }
    }

    fn sides(&self, a: &AExpr, b: &AExpr) -> Option<(AttrValue, AttrValue)> {
        Some((eval(a, self.known, self.facts)?, eval(b, self.known, self.facts)?))
    }
}

/// How far two values are from the relation that they are not in.
fn between(op: BinaryOp, wanted: bool, a: &AttrValue, b: &AttrValue) -> f64 {
    match (op, wanted) {
        (BinaryOp::Eq, true) | (BinaryOp::Ne, false) => apart(a, b),
        (BinaryOp::In, true) => match b {
            AttrValue::List(l) => l.iter().map(|b| apart(a, b)).fold(f64::INFINITY, f64::min),
            _ => 1.0,
        },
        // A bound that is missed by 0 excludes the bound itself.
        (BinaryOp::Lt | BinaryOp::Le | BinaryOp::Gt | BinaryOp::Ge, _) => apart(a, b).max(0.5),
        _ => 1.0,
    }
}

/// How far two values are from being equal.
fn apart(a: &AttrValue, b: &AttrValue) -> f64 {
    match (a, b) {
        (AttrValue::List(a), AttrValue::List(b)) if a.len() == b.len() => {
            a.iter().zip(b).map(|(a, b)| part(apart(a, b))).sum()
        }
        (AttrValue::List(a), AttrValue::List(b)) => (a.len() + b.len()) as f64 + a.len().abs_diff(b.len()) as f64,
        (a, b) => match (number(a), number(b)) {
            (Some(a), Some(b)) => (a - b).abs(),
            _ => f64::from(a != b),
        },
    }
}

fn number(v: &AttrValue) -> Option<f64> {
    match v {
        AttrValue::Dim(d) => d.as_const().map(|n| n as f64),
        AttrValue::Float(f) => Some(*f),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hypatia_dsl::shape::Dim;

    fn list(sizes: &[i64]) -> AttrValue {
        AttrValue::List(sizes.iter().map(|d| AttrValue::Dim(Dim::from(*d))).collect())
    }

    /// The distance shrinks with each element that comes closer, and a missing one counts most.
    #[test]
    fn closer_lists_are_less_apart() {
        let wanted = list(&[4, 1, 7]);
        let steps = [&[9, 9, 9, 9][..], &[9, 9, 9], &[9, 1, 9], &[5, 1, 9], &[5, 1, 7], &[4, 1, 7]];
        let apart: Vec<f64> = steps.iter().map(|s| apart(&list(s), &wanted)).collect();
        assert!(apart.windows(2).all(|w| w[1] < w[0]), "{apart:?}");
        assert_eq!(apart.last(), Some(&0.0));
    }

    /// A strict bound that is missed by nothing is missed.
    #[test]
    fn bounds_that_are_missed_are_apart() {
        let (a, b) = (AttrValue::from(3), AttrValue::from(3));
        assert!(between(BinaryOp::Lt, true, &a, &b) > 0.0);
        assert!(between(BinaryOp::Ge, false, &a, &b) > 0.0);
        let far = between(BinaryOp::Ge, true, &AttrValue::from(3), &AttrValue::from(9));
        let near = between(BinaryOp::Ge, true, &AttrValue::from(8), &AttrValue::from(9));
        assert!(near < far);
    }
}
