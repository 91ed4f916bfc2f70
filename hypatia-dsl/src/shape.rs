//! Dimension algebra: sizes that are numbers or polynomials over symbols.
//!
//! In: sizes of tensors, and the arithmetic on them in types and attributes. Out: normal forms that
//! compare by value. Invariant: two `Dim`s compare equal if, as polynomials, they are equal for all
//! values of their symbols; symbols stand for integers of at least 0.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// A named size, such as a model's dynamic `batch`.
pub type Symbol = Arc<str>;

/// A product of powers of symbols and opaque quotients: `batch * n^2`. Empty for 1.
type Monomial = BTreeMap<Factor, u32>;

/// Limits on one size. Arithmetic that exceeds them fails like an overflow, so that no file or
/// model can make a size that is slow to compare or to print.
const MAX_TERMS: usize = 256;
const MAX_EXPONENT: u32 = 64;
const MAX_WEIGHT: usize = 1024;

/// A factor of a monomial.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
enum Factor {
    Symbol(Symbol),
    /// `floor(a / b)` that cannot be divided exactly.
    Quotient(Dim, Dim),
    /// `a mod b` that cannot be decided.
    Remainder(Dim, Dim),
}

impl Factor {
    /// True if it is at least 0 for all values of its symbols.
    fn is_nonnegative(&self) -> bool {
        let nonnegative = |d: &Dim| d.lower_bound().is_some_and(|b| b >= 0);
        match self {
            Factor::Symbol(_) => true,
            Factor::Quotient(a, b) => nonnegative(a) && nonnegative(b),
            Factor::Remainder(_, b) => nonnegative(b),
        }
    }
}

/// A factor of a term of a [`Dim`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum DimFactor {
    /// A named size.
    Symbol(Symbol),
    /// `floor(a / b)`
    Quotient(Dim, Dim),
    /// `a mod b`
    Remainder(Dim, Dim),
}

/// The size of an axis, or a difference of sizes: a polynomial with integer coefficients.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "Polynomial", from = "Polynomial")]
pub struct Dim(Repr);

/// The terms of a [`Dim`]: each has a coefficient and factors.
type Polynomial = Vec<(i64, Vec<DimFactor>)>;

impl From<Dim> for Polynomial {
    fn from(dim: Dim) -> Polynomial {
        dim.polynomial()
    }
}

impl From<Polynomial> for Dim {
    fn from(terms: Polynomial) -> Dim {
        Dim::from_polynomial(terms)
    }
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Repr {
    Const(i64),
    /// Coefficients by monomial: no zero coefficients, and at least one monomial other than 1.
    Poly(Arc<BTreeMap<Monomial, i64>>),
}

impl Dim {
    /// A symbolic size with that name.
    pub fn symbol(name: impl Into<Symbol>) -> Dim {
        let monomial = Monomial::from([(Factor::Symbol(name.into()), 1)]);
        Dim(Repr::Poly(Arc::new(BTreeMap::from([(monomial, 1)]))))
    }

    /// The number, if the size has no symbols.
    pub fn as_const(&self) -> Option<i64> {
        match self.0 {
            Repr::Const(c) => Some(c),
            Repr::Poly(_) => None,
        }
    }

    /// Its terms, each with a coefficient and factors: `2*b*b + 1` is `[(1, []), (2, [b, b])]`.
    pub fn polynomial(&self) -> Polynomial {
        let factor = |f: &Factor| match f {
            Factor::Symbol(s) => DimFactor::Symbol(s.clone()),
            Factor::Quotient(a, b) => DimFactor::Quotient(a.clone(), b.clone()),
            Factor::Remainder(a, b) => DimFactor::Remainder(a.clone(), b.clone()),
        };
        let factors = |m: &Monomial| m.iter().flat_map(|(f, e)| std::iter::repeat_n(factor(f), *e as usize)).collect();
        self.terms().iter().map(|(m, c)| (*c, factors(m))).collect()
    }

    /// Builds a size from its terms: the inverse of [`Dim::polynomial`].
    pub fn from_polynomial(terms: Polynomial) -> Dim {
        let mut out: BTreeMap<Monomial, i64> = BTreeMap::new();
        for (coefficient, factors) in terms {
            let mut monomial = Monomial::new();
            for f in factors {
                let factor = match f {
                    DimFactor::Symbol(s) => Factor::Symbol(s),
                    DimFactor::Quotient(a, b) => Factor::Quotient(a, b),
                    DimFactor::Remainder(a, b) => Factor::Remainder(a, b),
                };
                *monomial.entry(factor).or_insert(0) += 1;
            }
            let slot = out.entry(monomial).or_insert(0);
            *slot = slot.saturating_add(coefficient);
        }
        Dim::from_terms(out)
    }

    fn terms(&self) -> BTreeMap<Monomial, i64> {
        match &self.0 {
            Repr::Const(0) => BTreeMap::new(),
            Repr::Const(c) => BTreeMap::from([(Monomial::new(), *c)]),
            Repr::Poly(p) => (**p).clone(),
        }
    }

    fn from_terms(mut terms: BTreeMap<Monomial, i64>) -> Dim {
        terms.retain(|_, c| *c != 0);
        match terms.len() {
            0 => Dim(Repr::Const(0)),
            1 if terms.contains_key(&Monomial::new()) => Dim(Repr::Const(terms[&Monomial::new()])),
            _ => Dim(Repr::Poly(Arc::new(terms))),
        }
    }

    /// Sum; `None` if a coefficient overflows.
    pub fn checked_add(&self, other: &Dim) -> Option<Dim> {
        if let (Some(a), Some(b)) = (self.as_const(), other.as_const()) {
            return a.checked_add(b).map(Dim::from);
        }
        let mut terms = self.terms();
        for (m, c) in other.terms() {
            let slot = terms.entry(m).or_insert(0);
            *slot = slot.checked_add(c)?;
        }
        (terms.len() <= MAX_TERMS).then(|| Dim::from_terms(terms))
    }

    /// Product; `None` if a coefficient overflows.
    pub fn checked_mul(&self, other: &Dim) -> Option<Dim> {
        if let (Some(a), Some(b)) = (self.as_const(), other.as_const()) {
            return a.checked_mul(b).map(Dim::from);
        }
        let mut terms: BTreeMap<Monomial, i64> = BTreeMap::new();
        for (ma, ca) in self.terms() {
            for (mb, cb) in other.terms() {
                let mut m = ma.clone();
                for (f, e) in mb {
                    let exponent = m.entry(f).or_insert(0);
                    *exponent += e;
                    if *exponent > MAX_EXPONENT {
                        return None;
                    }
                }
                let slot = terms.entry(m).or_insert(0);
                *slot = slot.checked_add(ca.checked_mul(cb)?)?;
                if terms.len() > MAX_TERMS {
                    return None;
                }
            }
        }
        Some(Dim::from_terms(terms))
    }

    /// Difference; `None` on overflow.
    pub fn checked_sub(&self, other: &Dim) -> Option<Dim> {
        self.checked_add(&other.checked_mul(&Dim::from(-1))?)
    }

    /// Exact polynomial division `self / other`: `other` divides every coefficient and monomial.
    /// `None` if that cannot be shown, or if `other` has more than one term or is 0.
    pub fn div_exact(&self, other: &Dim) -> Option<Dim> {
        if self == other && other.as_const() != Some(0) {
            return Some(Dim::from(1));
        }
        let divisor = other.terms();
        if divisor.len() != 1 {
            return None;
        }
        let (dm, dc) = divisor.into_iter().next()?;
        let mut out = BTreeMap::new();
        for (mut m, c) in self.terms() {
            if c.checked_rem(dc)? != 0 {
                return None;
            }
            for (f, e) in &dm {
                let have = m.get(f).copied().unwrap_or(0);
                if have < *e {
                    return None;
                }
                if have == *e {
                    m.remove(f);
                } else {
                    m.insert(f.clone(), have - e);
                }
            }
            out.insert(m, c.checked_div(dc)?);
        }
        Some(Dim::from_terms(out))
    }

    /// `floor(self / other)`: the exact quotient if there is one, else a number if both are
    /// numbers, else an opaque quotient. `None` for division by 0.
    pub fn floor_div(&self, other: &Dim) -> Option<Dim> {
        if let Some(d) = self.div_exact(other) {
            return Some(d);
        }
        match (self.as_const(), other.as_const()) {
            (_, Some(0)) => None,
            (Some(a), Some(b)) => {
                let q = a.checked_div(b)?;
                Some(Dim::from(if a % b != 0 && (a < 0) != (b < 0) { q - 1 } else { q }))
            }
            _ => Dim::opaque(self, other, Factor::Quotient),
        }
    }

    /// `self mod other`, with the sign of `other`. `None` for division by 0.
    pub fn rem(&self, other: &Dim) -> Option<Dim> {
        if self.div_exact(other).is_some() {
            return Some(Dim::from(0));
        }
        match (self.as_const(), other.as_const()) {
            (_, Some(0)) => None,
            (Some(a), Some(b)) => {
                let r = a.checked_rem(b)?;
                Some(Dim::from(if r != 0 && (r < 0) != (b < 0) { r + b } else { r }))
            }
            _ => Dim::opaque(self, other, Factor::Remainder),
        }
    }

    /// An opaque quotient or remainder; `None` past the limit on nesting.
    fn opaque(a: &Dim, b: &Dim, make: fn(Dim, Dim) -> Factor) -> Option<Dim> {
        let mut budget = MAX_WEIGHT;
        a.weigh(&mut budget)?;
        b.weigh(&mut budget)?;
        let monomial = Monomial::from([(make(a.clone(), b.clone()), 1)]);
        Some(Dim(Repr::Poly(Arc::new(BTreeMap::from([(monomial, 1)])))))
    }

    /// Charges the budget for each factor, nested factors included; `None` when the budget is used
    /// up.
    fn weigh(&self, budget: &mut usize) -> Option<()> {
        let Repr::Poly(poly) = &self.0 else { return Some(()) };
        for factor in poly.keys().flat_map(|m| m.keys()) {
            *budget = budget.checked_sub(1)?;
            if let Factor::Quotient(a, b) | Factor::Remainder(a, b) = factor {
                a.weigh(budget)?;
                b.weigh(budget)?;
            }
        }
        Some(())
    }

    /// A measure of complexity: the number of factors with their exponents, over all terms. Code
    /// that computes with sizes from a file keeps this small.
    pub fn complexity(&self) -> usize {
        let factor = |f: &Factor| match f {
            Factor::Symbol(_) => 1,
            Factor::Quotient(a, b) | Factor::Remainder(a, b) => 1 + a.complexity() + b.complexity(),
        };
        let monomial = |m: &Monomial| 1 + m.iter().map(|(f, e)| factor(f) * *e as usize).sum::<usize>();
        match &self.0 {
            Repr::Const(_) => 1,
            Repr::Poly(p) => p.keys().map(monomial).sum(),
        }
    }

    /// A lower bound, if one can be shown: symbols are at least 0.
    pub fn lower_bound(&self) -> Option<i64> {
        let poly = match &self.0 {
            Repr::Const(c) => return Some(*c),
            Repr::Poly(p) => p,
        };
        let mut bound = 0;
        for (m, c) in poly.iter() {
            if m.is_empty() {
                bound = c.checked_add(bound)?;
            } else if *c < 0 {
                return None;
            } else if !m.keys().all(Factor::is_nonnegative) {
                // `floor((n - 1) / 2)` is at least -1.
                let [(Factor::Quotient(a, b), 1)] = m.iter().collect::<Vec<_>>()[..] else { return None };
                let (least, by) = (a.lower_bound()?, b.as_const().filter(|b| *b > 0)?);
                bound = c.checked_mul(least.div_euclid(by).min(0))?.checked_add(bound)?;
            }
        }
        Some(bound)
    }

    /// Whether two sizes are equal: `Some(true)` for all values of the symbols, `Some(false)` for
    /// no values (the difference is never 0), `None` if it depends on the symbols.
    pub fn known_eq(&self, other: &Dim) -> Option<bool> {
        if self == other {
            return Some(true);
        }
        let difference = self.checked_sub(other)?;
        let apart = |d: &Dim| d.lower_bound().is_some_and(|b| b > 0);
        if apart(&difference) || difference.checked_mul(&Dim::from(-1)).is_some_and(|d| apart(&d)) {
            return Some(false);
        }
        None
    }

    /// Whether `self <= other`: `Some(true)` for all values of the symbols, `Some(false)` for no
    /// values, `None` if it depends on the symbols.
    pub fn known_le(&self, other: &Dim) -> Option<bool> {
        if other.checked_sub(self)?.lower_bound().is_some_and(|b| b >= 0) {
            return Some(true);
        }
        if self.checked_sub(other)?.lower_bound().is_some_and(|b| b > 0) {
            return Some(false);
        }
        None
    }

    /// Evaluates the size with the symbols' values. `None` if a symbol has no value, on division by
    /// 0 and on overflow.
    pub fn eval(&self, lookup: &dyn Fn(&str) -> Option<i64>) -> Option<i64> {
        let mut sum = 0i64;
        for (m, c) in self.terms() {
            let mut product = c;
            for (f, e) in &m {
                let v = match f {
                    Factor::Symbol(s) => lookup(s)?,
                    Factor::Quotient(a, b) => {
                        Dim::from(a.eval(lookup)?).floor_div(&Dim::from(b.eval(lookup)?))?.as_const()?
                    }
                    Factor::Remainder(a, b) => {
                        Dim::from(a.eval(lookup)?).rem(&Dim::from(b.eval(lookup)?))?.as_const()?
                    }
                };
                for _ in 0..*e {
                    product = product.checked_mul(v)?;
                }
            }
            sum = sum.checked_add(product)?;
        }
        Some(sum)
    }

    /// Substitutes sizes for symbols; symbols without a substitute stay. `None` on overflow and
    /// division by 0.
    pub fn substitute(&self, lookup: &dyn Fn(&str) -> Option<Dim>) -> Option<Dim> {
        let mut sum = Dim::from(0);
        for (m, c) in self.terms() {
            let mut product = Dim::from(c);
            for (f, e) in &m {
                let v = match f {
                    Factor::Symbol(s) => lookup(s).unwrap_or_else(|| Dim::symbol(s.clone())),
                    Factor::Quotient(a, b) => a.substitute(lookup)?.floor_div(&b.substitute(lookup)?)?,
                    Factor::Remainder(a, b) => a.substitute(lookup)?.rem(&b.substitute(lookup)?)?,
                };
                for _ in 0..*e {
                    product = product.checked_mul(&v)?;
                }
            }
            sum = sum.checked_add(&product)?;
        }
        Some(sum)
    }

    /// The distinct symbols in it.
    pub fn symbols(&self) -> Vec<Symbol> {
        fn walk(d: &Dim, out: &mut Vec<Symbol>) {
            for m in d.terms().keys() {
                for f in m.keys() {
                    match f {
                        Factor::Symbol(s) if !out.contains(s) => out.push(s.clone()),
                        Factor::Symbol(_) => {}
                        Factor::Quotient(a, b) | Factor::Remainder(a, b) => {
                            walk(a, out);
                            walk(b, out);
                        }
                    }
                }
            }
        }
        let mut out = Vec::new();
        walk(self, &mut out);
        out
    }
}

impl From<i64> for Dim {
    fn from(value: i64) -> Dim {
        Dim(Repr::Const(value))
    }
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let poly = match &self.0 {
            Repr::Const(c) => return write!(f, "{c}"),
            Repr::Poly(p) => p,
        };
        for (i, (m, c)) in poly.iter().rev().enumerate() {
            let sign = if *c < 0 { "-" } else { "+" };
            match i {
                0 if *c < 0 => f.write_str("-")?,
                0 => {}
                _ => write!(f, " {sign} ")?,
            }
            let mut factors = Vec::new();
            if c.unsigned_abs() != 1 || m.is_empty() {
                factors.push(c.unsigned_abs().to_string());
            }
            for (factor, e) in m {
                let text = match factor {
                    Factor::Symbol(s) => s.to_string(),
                    Factor::Quotient(a, b) => format!("floor(({a}) / ({b}))"),
                    Factor::Remainder(a, b) => format!("(({a}) % ({b}))"),
                };
                factors.extend(std::iter::repeat_n(text, *e as usize));
            }
            f.write_str(&factors.join("*"))?;
        }
        Ok(())
    }
}

impl fmt::Debug for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The sizes of a tensor's axes, outermost first.
pub type Shape = Vec<Dim>;

/// The text of a shape: `[2, batch, 64]`.
pub fn show_shape(shape: &[Dim]) -> String {
    let dims: Vec<String> = shape.iter().map(Dim::to_string).collect();
    format!("[{}]", dims.join(", "))
}

/// Number of elements; `None` on overflow.
pub fn product(shape: &[Dim]) -> Option<Dim> {
    shape.iter().try_fold(Dim::from(1), |acc, d| acc.checked_mul(d))
}

/// The broadcast shape by numpy's rules. `None` if sizes differ and neither is 1, or if a symbolic
/// size would have to be compared with another size: a symbolic size broadcasts only against itself
/// and 1.
pub fn broadcast(a: &[Dim], b: &[Dim]) -> Option<Shape> {
    let rank = a.len().max(b.len());
    let one = Dim::from(1);
    (0..rank)
        .map(|i| {
            let at = |s: &[Dim]| (i + s.len()).checked_sub(rank).map_or(one.clone(), |j| s[j].clone());
            let (x, y) = (at(a), at(b));
            if x == y || y == one {
                Some(x)
            } else if x == one {
                Some(y)
            } else {
                None
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn polynomials_normalise_and_divide() {
        let (b, n) = (Dim::symbol("b"), Dim::symbol("n"));
        let bn = b.checked_mul(&n).unwrap();
        let two_bn = bn.checked_mul(&Dim::from(2)).unwrap();
        assert_eq!(two_bn.div_exact(&n).unwrap(), b.checked_mul(&Dim::from(2)).unwrap());
        assert_eq!(two_bn.to_string(), "2*b*n");
        assert_eq!(bn.checked_sub(&bn).unwrap(), Dim::from(0));
        assert_eq!(b.known_eq(&n), None);
        assert_eq!(b.checked_add(&Dim::from(1)).unwrap().known_eq(&b), Some(false));
        assert_eq!(Dim::from(-7).floor_div(&Dim::from(2)), Some(Dim::from(-4)));
        assert_eq!(Dim::from(-7).rem(&Dim::from(2)), Some(Dim::from(1)));
        assert_eq!(b.floor_div(&Dim::from(0)), None);
        assert_eq!(b.floor_div(&Dim::from(2)).unwrap().eval(&|_| Some(7)), Some(3));
    }

    #[test]
    fn bounds_decide_comparisons() {
        let (b, n) = (Dim::symbol("b"), Dim::symbol("n"));
        let b1 = b.checked_add(&Dim::from(1)).unwrap();
        assert_eq!(b1.known_eq(&Dim::from(0)), Some(false));
        assert_eq!(b.known_eq(&Dim::from(0)), None);
        assert_eq!(b.known_le(&b1), Some(true));
        assert_eq!(b1.known_le(&b), Some(false));
        assert_eq!(b.known_le(&n), None);
        assert_eq!(b1.checked_mul(&n).unwrap().complexity(), 5);
        assert_eq!(Dim::from(0).known_le(&b.floor_div(&Dim::from(2)).unwrap()), Some(true));
        assert_eq!(Dim::from(i64::MIN).known_le(&Dim::from(i64::MAX)), None);
    }

    #[test]
    fn absurd_arithmetic_is_refused() {
        let big = Dim::from(i64::MAX);
        assert_eq!(big.checked_mul(&big), None);
        assert_eq!(Dim::from(i64::MIN).floor_div(&Dim::from(-1)), None);
        let mut d = Dim::symbol("n").checked_add(&Dim::symbol("m")).unwrap();
        let steps = (0..100).take_while(|_| d.checked_mul(&d.clone()).map(|x| d = x).is_some()).count();
        assert!(steps < 10);
        let mut d = Dim::symbol("n");
        let half = |d: &Dim| d.checked_add(&Dim::from(1)).and_then(|e| e.floor_div(d));
        let steps = (0..10_000).take_while(|_| half(&d).map(|x| d = x).is_some()).count();
        assert!(steps < 1000);
    }

    #[test]
    fn polynomials_are_taken_apart_and_put_together() {
        let (b, n) = (Dim::symbol("b"), Dim::symbol("n"));
        let q = b.floor_div(&n).unwrap();
        let d = b.checked_mul(&b).unwrap().checked_mul(&q).unwrap().checked_sub(&Dim::from(7)).unwrap();
        assert_eq!(Dim::from_polynomial(d.polynomial()), d);
        assert_eq!(Dim::from_polynomial(Dim::from(0).polynomial()), Dim::from(0));
    }

    #[test]
    fn symbols_do_not_broadcast() {
        let b = Dim::symbol("b");
        let (one, four) = (Dim::from(1), Dim::from(4));
        assert_eq!(
            broadcast(&[b.clone(), four.clone()], std::slice::from_ref(&four)),
            Some(vec![b.clone(), four.clone()])
        );
        assert_eq!(broadcast(std::slice::from_ref(&b), &[one]), Some(vec![b.clone()]));
        assert_eq!(broadcast(&[b], &[four]), None);
        assert_eq!(broadcast(&[Dim::from(0)], &[Dim::from(1)]), Some(vec![Dim::from(0)]));
    }

    /// Builds a size from a list of choices over the symbols `b` and `n`.
    fn build(choices: &[(u8, u8, u8)]) -> Vec<Dim> {
        let mut dims =
            vec![Dim::symbol("b"), Dim::symbol("n"), Dim::from(0), Dim::from(1), Dim::from(-3), Dim::from(4)];
        for (op, a, b) in choices {
            let (x, y) = (&dims[*a as usize % dims.len()], &dims[*b as usize % dims.len()]);
            let made = match op % 5 {
                0 => x.checked_add(y),
                1 => x.checked_sub(y),
                2 => x.checked_mul(y),
                3 => x.floor_div(y),
                _ => x.rem(y),
            };
            dims.extend(made);
        }
        dims
    }

    proptest::proptest! {
        /// What the predicates report as known holds for all values of the symbols, and symbolic
        /// arithmetic agrees with arithmetic on numbers.
        #[test]
        fn facts_hold_for_numbers(
            choices in proptest::collection::vec((0..5u8, 0..12u8, 0..12u8), 1..7),
            b in 0..9i64, n in 0..9i64,
        ) {
            let dims = build(&choices);
            let at = |s: &str| Some(if s == "b" { b } else { n });
            let dim = |s: &str| Some(Dim::from(if s == "b" { b } else { n }));
            for x in &dims {
                let Some(value) = x.eval(&at) else { continue };
                proptest::prop_assert_eq!(x.substitute(&dim), Some(Dim::from(value)));
                proptest::prop_assert!(x.lower_bound().is_none_or(|l| l <= value), "{} >= {:?}", x, x.lower_bound());
                for y in &dims {
                    let Some(other) = y.eval(&at) else { continue };
                    proptest::prop_assert!(x.known_eq(y).is_none_or(|k| k == (value == other)), "{x} == {y}");
                    proptest::prop_assert!(x.known_le(y).is_none_or(|k| k == (value <= other)), "{x} <= {y}");
                    if let Some(q) = x.floor_div(y).and_then(|q| q.eval(&at)).filter(|_| other != 0) {
                        proptest::prop_assert_eq!(q, (value as f64 / other as f64).floor() as i64, "{} / {}", x, y);
                    }
                }
            }
        }
    }
}
