//! Bit-exact simplification.
//!
//! In: a term. Out: a term that evaluates to the same bits for every value of its leaves, including
//! NaN (except its payload), infinities, -0 and denormals, in f64, in f32 and on integers. So:
//!
//! - `x * 1`, `1 * x`, `x / 1`, `x - 0`, `x + (-0)`, `-(-x)`, `not not b` give the operand;
//! - `a - (-b)` is `a + b`, `a + (-b)` is `a - b`, `(-a) * (-b)` is `a * b`;
//! - `max(x, x)`, `min(x, x)`, `b and b`, `b or b`, `select(c, x, x)` give the operand;
//! - idempotent functions (`abs`, `sign`, `floor` and similar, casts) are applied once; `abs(-x)`
//!   is `abs(x)`;
//! - a function of literals is folded if f64, f32 and, for integral literals, integers agree.
//!
//! Not exact, although they look harmless: `x + 0` (-0 becomes +0), `x * 0` (NaN, infinities,
//! signs), `0 - x` (+0 for +0), `x - x` (NaN), `x / x`.

use crate::builtin::BuiltinScalar;
use crate::ir::{Program, ScalarBody, ScalarId};

use super::eval::{Precision, Value, apply};
use super::{Term, TermBuilder, TermId, TermNode};

/// The simplified term; dead nodes are removed and equal nodes deduped.
pub fn simplify(program: &Program, term: &Term) -> Term {
    let mut s = Simplify { program, out: TermBuilder::new() };
    let mut map: Vec<TermId> = Vec::with_capacity(term.nodes.len());
    for node in &term.nodes {
        let id = match node {
            TermNode::Call { scalar, args } => {
                let args: Vec<TermId> = args.iter().map(|a| map[a.0 as usize]).collect();
                s.call(*scalar, args)
            }
            TermNode::Cast { to, arg } => {
                let arg = map[arg.0 as usize];
                match s.out.node(arg) {
                    TermNode::Cast { to: inner, .. } if inner == to => arg,
                    _ => s.out.add(TermNode::Cast { to: *to, arg }),
                }
            }
            leaf => s.out.add(leaf.clone()),
        };
        map.push(id);
    }
    let roots = term.roots.iter().map(|r| map[r.0 as usize]).collect();
    s.out.finish(roots)
}

struct Simplify<'a> {
    program: &'a Program,
    out: TermBuilder,
}

impl Simplify<'_> {
    fn builtin(&self, scalar: ScalarId) -> Option<BuiltinScalar> {
        match self.program.scalars.get(scalar.index())?.body {
            ScalarBody::Builtin(f) => Some(f),
            ScalarBody::Term(_) => None,
        }
    }

    fn literal(&self, id: TermId) -> Option<f64> {
        match self.out.node(id) {
            TermNode::Lit(l) => Some(l.0),
            _ => None,
        }
    }

    /// True if the node is that number, compared by bits.
    fn is(&self, id: TermId, value: f64) -> bool {
        self.literal(id).is_some_and(|v| v.to_bits() == value.to_bits())
    }

    /// The arguments, if the node applies that builtin.
    fn applied(&self, id: TermId, f: BuiltinScalar) -> Option<&[TermId]> {
        match self.out.node(id) {
            TermNode::Call { scalar, args } if self.builtin(*scalar) == Some(f) => Some(args),
            _ => None,
        }
    }

    fn call(&mut self, scalar: ScalarId, args: Vec<TermId>) -> TermId {
        let Some(f) = self.builtin(scalar) else { return self.out.call(scalar, args) };
        if let Some(id) = self.unchanged(f, &args) {
            return id;
        }
        if let Some(value) = self.folded(f, &args) {
            return self.out.lit(value);
        }
        if let Some((f, args)) = self.shorter(f, &args)
            && let Some(scalar) = self.program.builtin_scalar(f)
        {
            return self.call(scalar, args);
        }
        self.out.call(scalar, args)
    }

    /// The argument that is the result.
    fn unchanged(&self, f: BuiltinScalar, args: &[TermId]) -> Option<TermId> {
        use BuiltinScalar::*;
        match (f, args) {
            (Mul, &[a, b]) if self.is(b, 1.0) => Some(a),
            (Mul, &[a, b]) if self.is(a, 1.0) => Some(b),
            (Div, &[a, b]) if self.is(b, 1.0) => Some(a),
            (Sub, &[a, b]) if self.is(b, 0.0) => Some(a),
            (Add, &[a, b]) if self.is(b, -0.0) => Some(a),
            (Add, &[a, b]) if self.is(a, -0.0) => Some(b),
            (Max | Min | And | Or, &[a, b]) if a == b => Some(a),
            (Select, &[_, a, b]) if a == b => Some(a),
            (Neg | Not, &[a]) => self.applied(a, f).and_then(|inner| inner.first().copied()),
            (Abs | Sign, &[a]) if self.applied(a, f).is_some() => Some(a),
            (Floor | Ceil | Round | Trunc, &[a]) => {
                [Floor, Ceil, Round, Trunc].into_iter().any(|g| self.applied(a, g).is_some()).then_some(a)
            }
            _ => None,
        }
    }

    /// An application of another builtin with the same bits as result.
    fn shorter(&self, f: BuiltinScalar, args: &[TermId]) -> Option<(BuiltinScalar, Vec<TermId>)> {
        use BuiltinScalar::*;
        let inside = |id: TermId| self.applied(id, Neg).and_then(|inner| inner.first().copied());
        match (f, args) {
            (Sub, &[a, b]) => inside(b).map(|b| (Add, vec![a, b])),
            (Add, &[a, b]) => match (inside(a), inside(b)) {
                (_, Some(b)) => Some((Sub, vec![a, b])),
                (Some(a), None) => Some((Sub, vec![b, a])),
                _ => None,
            },
            (Mul | Div, &[a, b]) => match (inside(a), inside(b)) {
                (Some(a), Some(b)) => Some((f, vec![a, b])),
                _ => None,
            },
            (Abs, &[a]) => inside(a).map(|a| (Abs, vec![a])),
            _ => None,
        }
    }

    /// Folds a function of literals, if all precisions agree on the result.
    fn folded(&self, f: BuiltinScalar, args: &[TermId]) -> Option<f64> {
        let numbers: Vec<f64> = args.iter().map(|a| self.literal(*a)).collect::<Option<_>>()?;
        let floats = |p: Precision| {
            let rounded = |x: f64| if p == Precision::F32 { x as f32 as f64 } else { x };
            let values: Vec<Value> = numbers.iter().map(|x| Value::F(rounded(*x))).collect();
            match apply(f, &values, p) {
                Value::F(x) => Some(x),
                _ => None,
            }
        };
        let (wide, narrow) = (floats(Precision::F64)?, floats(Precision::F32)?);
        if (wide as f32).to_bits() != (narrow as f32).to_bits() || wide.is_nan() {
            return None;
        }
        let integral = |x: &f64| x.fract() == 0.0 && x.abs() < 9_007_199_254_740_992.0;
        if !f.float_only() && numbers.iter().all(integral) {
            let values: Vec<Value> = numbers.iter().map(|x| Value::I(*x as i64)).collect();
            match apply(f, &values, Precision::F64) {
                // A literal -0 combined with an integer is 0.
                Value::I(i) if i as f64 == wide => {}
                _ => return None,
            }
        }
        Some(wide)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::testing::{library, term};
    use super::super::{Leaves, Literal, eval, show_term};
    use super::*;
    use proptest::prelude::*;

    fn shown(text: &str) -> String {
        let p = library();
        let t = simplify(&p, &term(&p, &["x", "y"], text));
        show_term(&p, &t, &["x".into(), "y".into()])
    }

    #[test]
    fn exact_rules_fire_and_others_do_not() {
        for (text, wanted) in [
            ("x * 1 + 1 * y", "x + y"),
            ("x / 1 - 0", "x"),
            ("x + -0.0", "x"),
            ("--x", "x"),
            ("x - -y", "x + y"),
            ("x + -y", "x - y"),
            ("-x * -y", "x * y"),
            ("abs(-abs(x))", "abs(x)"),
            ("floor(round(x))", "round(x)"),
            ("max(x, x)", "x"),
            ("select(x < y, x, x)", "x"),
            ("cast<f16>(cast<f16>(x))", "cast<f16>(x)"),
            ("cast<f16>(cast<f32>(x))", "cast<f16>(cast<f32>(x))"),
            ("2 * 3 + x", "6 + x"),
            ("0.5 * 0.5 * x", "0.25 * x"),
            // f32 and f64 results differ.
            ("16777216.5 + 1 + x", "16777216.5 + 1 + x"),
            // Integer division gives 3.
            ("7 / 2 * x", "7 / 2 * x"),
            ("x + 0", "x + 0"),
            ("x * 0", "x * 0"),
            ("0 - x", "0 - x"),
            ("x - x", "x - x"),
            ("x / x", "x / x"),
        ] {
            assert_eq!(shown(text), wanted, "{text}");
        }
    }

    /// A term over two parameters from a list of choices.
    fn build(p: &Program, choices: &[(u8, u8, u8)]) -> Term {
        use BuiltinScalar::*;
        let literals = [0.0, -0.0, 1.0, -1.0, 2.0, 0.1, f64::INFINITY];
        let mut b = TermBuilder::new();
        let mut ids: Vec<TermId> = (0..2).map(|i| b.add(TermNode::Param(i))).collect();
        for (op, a, c) in choices {
            let at = |i: u8| ids[i as usize % ids.len()];
            let (x, y) = (at(*a), at(*c));
            let id = match op % 14 {
                0 => b.builtin(p, Add, vec![x, y]),
                1 => b.builtin(p, Sub, vec![x, y]),
                2 => b.builtin(p, Mul, vec![x, y]),
                3 => b.builtin(p, Div, vec![x, y]),
                4 => b.builtin(p, Neg, vec![x]),
                5 => b.builtin(p, Abs, vec![x]),
                6 => b.builtin(p, Max, vec![x, y]),
                7 => b.builtin(p, Min, vec![x, y]),
                8 => b.builtin(p, Floor, vec![x]),
                9 => b.builtin(p, Sign, vec![x]),
                10 => b.builtin(p, Round, vec![x]),
                11 => Some(b.add(TermNode::Cast { to: crate::dtype::DType::F16, arg: x })),
                _ => Some(b.add(TermNode::Lit(Literal(literals[*a as usize % literals.len()])))),
            };
            ids.push(id.unwrap());
        }
        let root = *ids.last().unwrap();
        b.finish(vec![root])
    }

    proptest! {
        /// All bits are equal, except NaN payloads.
        #[test]
        fn simplify_is_exact(
            choices in prop::collection::vec((any::<u8>(), any::<u8>(), any::<u8>()), 1..14),
            x in prop::num::f64::ANY, y in prop::num::f64::ANY, special in 0..6usize,
        ) {
            let p = library();
            let t = build(&p, &choices);
            let s = simplify(&p, &t);
            let x = [x, 0.0, -0.0, f64::NAN, f64::INFINITY, 1e-40][special];
            for precision in [Precision::F64, Precision::F32] {
                let round = |v: f64| if precision == Precision::F32 { v as f32 as f64 } else { v };
                let params = [Value::F(round(x)), Value::F(round(y))];
                let value = |t: &Term| {
                    eval(&p, t, Leaves { params: &params, ..Leaves::default() }, precision).unwrap()[0].to_f64()
                };
                let (a, b) = (value(&t), value(&s));
                let text = show_term(&p, &t, &[]);
                prop_assert!(a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan()), "{text}: {a} became {b}");
            }
            prop_assert!(super::super::equal_modulo_ac(&p, &t, &s));
            prop_assert_eq!(simplify(&p, &s), s);
        }

    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        /// Printing and parsing gives the same function.
        #[test]
        fn print_and_parse(choices in prop::collection::vec((any::<u8>(), any::<u8>(), any::<u8>()), 1..10)) {
            let p = library();
            let t = simplify(&p, &build(&p, &choices));
            let text = show_term(&p, &t, &["x".into(), "y".into()]);
            let back = simplify(&p, &term(&p, &["x", "y"], &text));
            prop_assert_eq!(show_term(&p, &back, &["x".into(), "y".into()]), text);
        }
    }
}
