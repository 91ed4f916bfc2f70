//! The checker of proofs: steps by known laws, then equality of polynomials.
//!
//! In: two terms, and the steps of a proof. Out: whether it proves them equal. Invariant: a step
//! that its law does not allow at its place refuses the proof.
//!
//! Over the reals, what the steps leave is compared as polynomials whose indeterminates are
//! variables, functions of polynomials, inverses, and numbers of many digits. `x * (1 / x)` is not
//! 1. Bit for bit, it is compared as written, up to the order of operands that commute to the bit.

use std::collections::BTreeMap;

use hypatia_dsl::builtin::BuiltinScalar::{self, *};

use super::Proved;
use crate::noise::is_short;

/// One element of a tensor.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Term {
    /// An element of a variable, or of an op that nothing is assumed about.
    Leaf(String),
    /// A number.
    Number(f64),
    /// A builtin.
    Call(BuiltinScalar, Vec<Term>),
    /// Another function: a variable that stands for one, or a conversion.
    Apply(String, Box<Term>),
    /// A sum or a mean over indices: what it is, how the names of its indices begin, and a summand.
    Sum(String, String, Box<Term>),
}

/// The function that a product applies to what it stores: to round to its type. Over the reals it
/// is none.
pub(super) const STORE: &str = "store";

/// A law by which a term may be replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Law {
    /// `x * 1`, `x / 1`, `x - 0`, `x ** 1`
    Neutral,
    /// `-(-x)`, `x - (-y)`, `x + (-y)`, `x * (-y)`, `(-x) * y`, `x * -1`
    Signs,
    /// `abs(-x)`, `abs(abs(x))`
    Abs,
    /// `not not c`, `c and true`, `c or false`
    Logic,
    /// `select(not c, x, y)`, `select(c, x, x)`
    Select,
    /// `select(x < 0, 0, x)` is `max(x, 0)`
    Positive,
    /// Powers of 2, 3, 1/2, -1/2 and -1; `rsqrt`
    Power,
    /// `sqrt(x * x)`
    Root,
    /// `expm1`, `log1p`
    Near,
    /// `y / (1 + exp(-x))` is `y * (1 - 1 / (1 + exp(x)))`
    Logistic,
    /// `tanh(x)` is `1 - 2 / (1 + exp(2 * x))`
    Tanh,
    /// What a product stores is what it has computed.
    Store,
}

impl Law {
    pub(super) const ALL: [Law; 12] = [
        Law::Neutral,
        Law::Signs,
        Law::Abs,
        Law::Logic,
        Law::Select,
        Law::Positive,
        Law::Power,
        Law::Root,
        Law::Near,
        Law::Logistic,
        Law::Tanh,
        Law::Store,
    ];

    /// Whether it changes no bit of an ordinary number.
    pub(super) fn keeps_bits(self) -> bool {
        matches!(self, Law::Neutral | Law::Signs | Law::Abs | Law::Logic | Law::Select)
    }

    /// What the law makes of a term; `None` if it is not about this one.
    pub(super) fn apply(self, term: &Term) -> Option<Term> {
        let Term::Call(f, args) = term else {
            return match (self, term) {
                (Law::Store, Term::Apply(name, x)) if name == STORE => Some((**x).clone()),
                _ => None,
            };
        };
        let (x, y) = (args.first()?, args.get(1).unwrap_or(args.first()?));
        let is = |t: &Term, v: f64| matches!(t, Term::Number(n) if n.to_bits() == v.to_bits());
        let not_one = |f: BuiltinScalar, x: &Term| Some(call(f, [x.clone()]));
        match (self, f) {
            (Law::Neutral, Mul | Div | Pow) if is(y, 1.0) && args.len() == 2 => Some(x.clone()),
            (Law::Neutral, Mul) if is(x, 1.0) => Some(y.clone()),
            (Law::Neutral, Sub) if is(y, 0.0) => Some(x.clone()),
            (Law::Signs, Neg) => under(x, Neg).cloned(),
            (Law::Signs, Sub) => Some(call(Add, [x.clone(), under(y, Neg)?.clone()])),
            (Law::Signs, Add) => match (under(x, Neg), under(y, Neg)) {
                (_, Some(y)) => Some(call(Sub, [x.clone(), y.clone()])),
                (Some(x), None) => Some(call(Sub, [y.clone(), x.clone()])),
                (None, None) => None,
            },
            (Law::Signs, Mul) if is(y, -1.0) => not_one(Neg, x),
            (Law::Signs, Mul) => match (under(x, Neg), under(y, Neg)) {
                (Some(x), _) => not_one(Neg, &call(Mul, [x.clone(), y.clone()])),
                (_, Some(y)) => not_one(Neg, &call(Mul, [x.clone(), y.clone()])),
                (None, None) => None,
            },
            (Law::Abs, Abs) => match x {
                Term::Call(Neg, inner) => not_one(Abs, inner.first()?),
                Term::Call(Abs, _) => Some(x.clone()),
                _ => None,
            },
            (Law::Logic, Not) => under(x, Not).cloned(),
            (Law::Logic, And) if is(y, 1.0) => Some(x.clone()),
            (Law::Logic, Or) if is(y, 0.0) => Some(x.clone()),
            (Law::Select, Select) if args.get(1)? == args.get(2)? => Some(y.clone()),
            (Law::Select, Select) => {
                Some(Term::Call(Select, vec![under(x, Not)?.clone(), args.get(2)?.clone(), y.clone()]))
            }
            (Law::Positive, Select) => match x {
                Term::Call(Lt, c) if is(c.get(1)?, 0.0) && is(y, 0.0) && c.first()? == args.get(2)? => {
                    Some(call(Max, [args.get(2)?.clone(), Term::Number(0.0)]))
                }
                _ => None,
            },
            (Law::Power, Pow) => power(x, y),
            (Law::Power, Rsqrt) => Some(call(Div, [Term::Number(1.0), call(Sqrt, [x.clone()])])),
            (Law::Root, Sqrt) => match x {
                Term::Call(Mul, m) if m.first()? == m.get(1)? => not_one(Abs, m.first()?),
                _ => None,
            },
            (Law::Near, Expm1) => Some(call(Sub, [call(Exp, [x.clone()]), Term::Number(1.0)])),
            (Law::Near, Log1p) => not_one(Log, &call(Add, [Term::Number(1.0), x.clone()])),
            (Law::Logistic, Div) => {
                let u = under(logistic(y)?, Neg)?;
                let rest = call(Sub, [Term::Number(1.0), call(Div, [Term::Number(1.0), one_and_exp(u)])]);
                Some(call(Mul, [x.clone(), rest]))
            }
            (Law::Tanh, Tanh) => {
                let double = call(Mul, [Term::Number(2.0), x.clone()]);
                Some(call(Sub, [Term::Number(1.0), call(Div, [Term::Number(2.0), one_and_exp(&double)])]))
            }
            _ => None,
        }
    }
}

pub(super) fn call<const N: usize>(f: BuiltinScalar, args: [Term; N]) -> Term {
    Term::Call(f, args.to_vec())
}

/// The argument, if the term is this function of one.
fn under(t: &Term, f: BuiltinScalar) -> Option<&Term> {
    match t {
        Term::Call(g, args) if *g == f => args.first(),
        _ => None,
    }
}

fn one_and_exp(u: &Term) -> Term {
    call(Add, [Term::Number(1.0), call(Exp, [u.clone()])])
}

/// The exponent in `1 + exp(u)`.
fn logistic(t: &Term) -> Option<&Term> {
    match t {
        Term::Call(Add, args) => match args.as_slice() {
            [Term::Number(1.0), e] | [e, Term::Number(1.0)] => under(e, Exp),
            _ => None,
        },
        _ => None,
    }
}

fn power(x: &Term, y: &Term) -> Option<Term> {
    let Term::Number(n) = y else { return None };
    let one = || Term::Number(1.0);
    let root = || call(Sqrt, [x.clone()]);
    Some(match *n {
        2.0 => call(Mul, [x.clone(), x.clone()]),
        3.0 => call(Mul, [call(Mul, [x.clone(), x.clone()]), x.clone()]),
        0.5 => root(),
        -0.5 => call(Div, [one(), root()]),
        -1.0 => call(Div, [one(), x.clone()]),
        _ => return None,
    })
}

/// A law at a place: the argument to follow at each level.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Step {
    pub law: Law,
    pub place: Vec<usize>,
}

/// Steps for each side.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Proof {
    pub left: Vec<Step>,
    pub right: Vec<Step>,
}

/// Whether the proof shows that both terms are equal in this sense.
pub(super) fn holds(proof: &Proof, left: &Term, right: &Term, sense: Proved) -> bool {
    let replay = |term: &Term, steps: &[Step]| steps.iter().try_fold(term.clone(), |t, s| step(&t, s, sense));
    let (Some(left), Some(right)) = (replay(left, &proof.left), replay(right, &proof.right)) else { return false };
    match sense {
        Proved::Bits => written(&left) == written(&right),
        Proved::Reals => match (polynomial(&left), polynomial(&right)) {
            (Some(l), Some(r)) => l == r,
            _ => false,
        },
    }
}

/// One step; `None` if the law is not about the term at that place, or not true in this sense.
pub(super) fn step(term: &Term, step: &Step, sense: Proved) -> Option<Term> {
    fn at(term: &Term, place: &[usize], law: Law) -> Option<Term> {
        let Some((first, rest)) = place.split_first() else { return law.apply(term) };
        match term {
            Term::Call(f, args) => {
                let mut args = args.clone();
                *args.get_mut(*first)? = at(args.get(*first)?, rest, law)?;
                Some(Term::Call(*f, args))
            }
            Term::Apply(name, x) if *first == 0 => Some(Term::Apply(name.clone(), Box::new(at(x, rest, law)?))),
            Term::Sum(name, index, x) if *first == 0 => {
                Some(Term::Sum(name.clone(), index.clone(), Box::new(at(x, rest, law)?)))
            }
            _ => None,
        }
    }
    (sense == Proved::Reals || step.law.keeps_bits()).then(|| at(term, &step.place, step.law))?
}

/// A term as text, with the operands of functions that commute in order.
fn written(t: &Term) -> String {
    match t {
        Term::Leaf(name) => name.clone(),
        Term::Number(v) => format!("#{:x}", v.to_bits()),
        Term::Apply(name, x) | Term::Sum(name, _, x) => format!("{name}({})", written(x)),
        Term::Call(f, args) => function(*f, args.iter().map(written).collect()),
    }
}

fn function(f: BuiltinScalar, mut args: Vec<String>) -> String {
    if f.commutes() {
        args.sort();
    }
    format!("{f:?}({})", args.join(","))
}

/// Sums of products of indeterminates, with exact coefficients.
type Polynomial = BTreeMap<Vec<String>, f64>;

/// The polynomial of a term; `None` where a coefficient has too many digits.
fn polynomial(t: &Term) -> Option<Polynomial> {
    let of = |i: usize, args: &[Term]| polynomial(args.get(i)?);
    let inner = |args: &[Term]| args.iter().map(|a| Some(format!("{:?}", polynomial(a)?))).collect::<Option<Vec<_>>>();
    Some(match t {
        Term::Number(v) if is_short(*v) && v.is_finite() => constant(*v),
        Term::Number(v) => indeterminate(format!("#{:x}", v.to_bits())),
        Term::Leaf(name) => indeterminate(name.clone()),
        Term::Apply(name, x) => indeterminate(format!("{name}({:?})", polynomial(x)?)),
        Term::Sum(name, index, x) => linear(name, index, &polynomial(x)?)?,
        Term::Call(Add, args) => sum(&of(0, args)?, &of(1, args)?)?,
        Term::Call(Sub, args) => sum(&of(0, args)?, &product(&constant(-1.0), &of(1, args)?)?)?,
        Term::Call(Neg, args) => product(&constant(-1.0), &of(0, args)?)?,
        Term::Call(Mul, args) => product(&of(0, args)?, &of(1, args)?)?,
        Term::Call(Div, args) => product(&of(0, args)?, &inverse(&of(1, args)?)?)?,
        Term::Call(f, args) => indeterminate(function(*f, inner(args)?)),
    })
}

/// A sum of products, summed over indices: factors that read none of them stand outside.
fn linear(name: &str, index: &str, summand: &Polynomial) -> Option<Polynomial> {
    let mut out = Polynomial::new();
    for (monomial, v) in summand {
        let (inside, mut all): (Vec<String>, Vec<String>) = monomial.iter().cloned().partition(|f| f.contains(index));
        all.push(format!("{name}({inside:?})"));
        all.sort();
        out = sum(&out, &Polynomial::from([(all, *v)]))?;
    }
    Some(out)
}

fn constant(v: f64) -> Polynomial {
    if v == 0.0 { Polynomial::new() } else { Polynomial::from([(Vec::new(), v)]) }
}

fn indeterminate(name: String) -> Polynomial {
    Polynomial::from([(vec![name], 1.0)])
}

fn sum(a: &Polynomial, b: &Polynomial) -> Option<Polynomial> {
    let mut out = a.clone();
    for (monomial, v) in b {
        let old = out.remove(monomial).unwrap_or(0.0);
        let new = Some(old + v).filter(|new| new - old == *v && new - v == old)?;
        if new != 0.0 {
            out.insert(monomial.clone(), new);
        }
    }
    Some(out)
}

/// The limit of a polynomial's terms.
const MOST_TERMS: usize = 256;

fn product(a: &Polynomial, b: &Polynomial) -> Option<Polynomial> {
    let mut out = Polynomial::new();
    for (m, v) in a {
        for (n, w) in b {
            let mut monomial: Vec<String> = m.iter().chain(n).cloned().collect();
            monomial.sort();
            let exact = Some(v * w).filter(|p| v.mul_add(*w, -p) == 0.0 && p.is_normal())?;
            out = sum(&out, &Polynomial::from([(monomial, exact)]))?;
        }
    }
    (out.len() <= MOST_TERMS).then_some(out)
}

fn inverse(p: &Polynomial) -> Option<Polynomial> {
    const OF: &str = "1/";
    match p.iter().next() {
        None => None,
        Some((monomial, v)) if p.len() == 1 => {
            let turned = |name: &String| name.strip_prefix(OF).map_or(format!("{OF}{name}"), str::to_string);
            let mut monomial: Vec<String> = monomial.iter().map(turned).collect();
            let exact = Some(1.0 / v).filter(|i| i * v == 1.0 && 1.0 / i == *v);
            // The inverse of 3 is no short number: it is an indeterminate.
            if exact.is_none_or(|i| i.abs().log2().fract() != 0.0) {
                monomial.push(format!("{OF}#{:x}", v.to_bits()));
            }
            monomial.sort();
            let coefficient = exact.filter(|i| i.abs().log2().fract() == 0.0).unwrap_or(1.0);
            Some(Polynomial::from([(monomial, coefficient)]))
        }
        Some(_) => Some(indeterminate(format!("{OF}({p:?})"))),
    }
}

#[cfg(test)]
mod tests {
    use hypatia_dsl::scalar::float;

    use super::*;

    fn x() -> Term {
        Term::Leaf("x".into())
    }

    fn at(law: Law, place: &[usize]) -> Step {
        Step { law, place: place.to_vec() }
    }

    /// Wrong proofs are refused: a law at the wrong place, one that is not about the term, one that
    /// does not keep bits, steps that lead elsewhere, and terms that differ.
    #[test]
    fn wrong_proofs_are_refused() {
        let minus = |t: Term| call(Neg, [t]);
        let twice = minus(minus(x()));
        let good = Proof { left: vec![at(Law::Signs, &[])], right: Vec::new() };
        assert!(holds(&good, &twice, &x(), Proved::Bits));
        for left in [
            vec![],
            vec![at(Law::Signs, &[0])],
            vec![at(Law::Signs, &[1])],
            vec![at(Law::Abs, &[])],
            vec![at(Law::Signs, &[]), at(Law::Signs, &[])],
        ] {
            let proof = Proof { left, right: Vec::new() };
            assert!(!holds(&proof, &twice, &x(), Proved::Bits), "{proof:?}");
        }
        assert!(!holds(&good, &twice, &minus(x()), Proved::Bits));
        assert!(!holds(&good, &minus(minus(minus(x()))), &x(), Proved::Reals));
        // True over the reals alone.
        let root = call(Sqrt, [call(Mul, [x(), x()])]);
        let proof = Proof { left: vec![at(Law::Root, &[])], right: Vec::new() };
        assert!(holds(&proof, &root, &call(Abs, [x()]), Proved::Reals));
        assert!(!holds(&proof, &root, &call(Abs, [x()]), Proved::Bits));
        assert!(!holds(&proof, &root, &x(), Proved::Reals));
    }

    #[test]
    fn sums_are_linear() {
        let leaf = |name: &str| Term::Leaf(name.into());
        let sum = |x: Term| Term::Sum("sum".into(), "k1.".into(), Box::new(x));
        let mul = |a: &str, b: &str| call(Mul, [leaf(a), leaf(b)]);
        let equal = |a: &Term, b: &Term| holds(&Proof::default(), a, b, Proved::Reals);
        let scaled = call(Mul, [sum(leaf("x@k1.0")), leaf("c@i0.0")]);
        assert!(equal(&sum(mul("x@k1.0", "c@i0.0")), &scaled));
        assert!(!holds(&Proof::default(), &sum(mul("x@k1.0", "c@i0.0")), &scaled, Proved::Bits));
        assert!(!equal(&sum(mul("x@k1.0", "c@k1.0")), &call(Mul, [sum(leaf("x@k1.0")), leaf("c@k1.0")])));
        let apart = call(Add, [sum(leaf("x@k1.0")), sum(leaf("y@k1.0"))]);
        assert!(equal(&sum(call(Add, [leaf("x@k1.0"), leaf("y@k1.0")])), &apart));
        // The sum of a number is not the number, and a sum of products no product of sums.
        assert!(!equal(&sum(Term::Number(1.0)), &Term::Number(1.0)));
        assert!(!equal(&sum(mul("x@k1.0", "y@k1.0")), &call(Mul, [sum(leaf("x@k1.0")), sum(leaf("y@k1.0"))])));
    }

    #[test]
    fn polynomials_tell_functions_apart() {
        let (y, n) = (Term::Leaf("y".into()), Term::Number);
        let none = Proof::default();
        let equal = |a: &Term, b: &Term| holds(&none, a, b, Proved::Reals);
        let add = |a: &Term, b: &Term| call(Add, [a.clone(), b.clone()]);
        let mul = |a: &Term, b: &Term| call(Mul, [a.clone(), b.clone()]);
        let div = |a: &Term, b: &Term| call(Div, [a.clone(), b.clone()]);
        assert!(equal(&mul(&add(&x(), &y), &x()), &add(&mul(&x(), &x()), &mul(&x(), &y))));
        assert!(!equal(&mul(&add(&x(), &y), &x()), &add(&mul(&x(), &x()), &mul(&y, &y))));
        assert!(equal(&div(&x(), &n(4.0)), &mul(&x(), &n(0.25))));
        // The inverse of 3 has no end, and 1/3 as f64 is another number.
        assert!(!equal(&div(&x(), &n(3.0)), &mul(&x(), &n(1.0 / 3.0))));
        assert!(!equal(&div(&x(), &n(3.0)), &x()));
        assert!(!equal(&div(&x(), &n(3.0)), &div(&x(), &n(-3.0))));
        // 0 / 0 is not 1.
        assert!(!equal(&div(&x(), &x()), &n(1.0)));
        assert!(equal(&div(&n(1.0), &div(&n(1.0), &x())), &x()));
        assert!(!equal(&div(&n(1.0), &n(0.0)), &n(0.0)));
        // Sums of numbers with too many digits are not compared at all.
        assert!(!equal(&add(&n(1e300), &n(1.0)), &n(1e300)));
        assert!(!equal(&call(Max, [x(), y.clone()]), &call(Min, [x(), y.clone()])));
        assert!(equal(&call(Max, [x(), y.clone()]), &call(Max, [y.clone(), x()])));
        assert!(!equal(&call(Lt, [x(), y.clone()]), &call(Lt, [y, x()])));
    }

    /// The value of a term where `x` has this value, and every other leaf is 0.75.
    fn value(t: &Term, x: f64) -> f64 {
        let all = |args: &[Term]| args.iter().map(|a| value(a, x)).collect::<Vec<f64>>();
        let truth = |b: bool| f64::from(u8::from(b));
        match t {
            Term::Leaf(name) if name == "x" => x,
            Term::Leaf(_) => 0.75,
            Term::Number(v) => *v,
            // A sum over one index.
            Term::Apply(_, inner) | Term::Sum(_, _, inner) => value(inner, x),
            Term::Call(f, args) => match (f, all(args).as_slice()) {
                (Select, [c, a, _]) if *c != 0.0 => *a,
                (Select, [_, _, b]) => *b,
                (Lt, [a, b]) => truth(a < b),
                (Not, [a]) => truth(*a == 0.0),
                (And, [a, b]) => truth(*a != 0.0 && *b != 0.0),
                (Or, [a, b]) => truth(*a != 0.0 || *b != 0.0),
                (f, [a]) => float(*f, *a, 0.0),
                (f, [a, b]) => float(*f, *a, *b),
                _ => f64::NAN,
            },
        }
    }

    /// Each law, at numbers: both sides have the same value.
    #[test]
    fn laws_hold_at_numbers() {
        let (y, n) = (Term::Leaf("y".into()), Term::Number);
        let c = call(Lt, [x(), y.clone()]);
        let minus = |t: Term| call(Neg, [t]);
        let terms = [
            call(Mul, [x(), n(1.0)]),
            call(Mul, [n(1.0), x()]),
            call(Div, [x(), n(1.0)]),
            call(Sub, [x(), n(0.0)]),
            call(Pow, [x(), n(1.0)]),
            minus(minus(x())),
            call(Sub, [x(), minus(y.clone())]),
            call(Add, [x(), minus(y.clone())]),
            call(Add, [minus(x()), y.clone()]),
            call(Mul, [x(), minus(y.clone())]),
            call(Mul, [minus(x()), y.clone()]),
            call(Mul, [x(), n(-1.0)]),
            call(Abs, [minus(x())]),
            call(Abs, [call(Abs, [x()])]),
            call(Not, [call(Not, [c.clone()])]),
            call(And, [c.clone(), n(1.0)]),
            call(Or, [c.clone(), n(0.0)]),
            call(Select, [call(Not, [c.clone()]), x(), y.clone()]),
            call(Select, [c, x(), x()]),
            call(Select, [call(Lt, [x(), n(0.0)]), n(0.0), x()]),
            call(Pow, [x(), n(2.0)]),
            call(Pow, [x(), n(3.0)]),
            call(Pow, [x(), n(0.5)]),
            call(Pow, [x(), n(-0.5)]),
            call(Pow, [x(), n(-1.0)]),
            call(Rsqrt, [x()]),
            call(Sqrt, [call(Mul, [x(), x()])]),
            call(Expm1, [x()]),
            call(Log1p, [x()]),
            call(Div, [y.clone(), one_and_exp(&minus(x()))]),
            call(Tanh, [x()]),
            Term::Apply(STORE.into(), Box::new(x())),
        ];
        let mut used = 0;
        for term in &terms {
            for law in Law::ALL {
                let Some(other) = law.apply(term) else { continue };
                used += 1;
                for v in [-2.5, -0.5, 0.3, 0.75, 4.0] {
                    let (a, b) = (value(term, v), value(&other, v));
                    let near = (a - b).abs() <= 1e-14 * (1.0 + a.abs()) || a.is_nan() && b.is_nan();
                    assert!(near, "{law:?}: {term:?} is {a}, {other:?} is {b} at {v}");
                }
            }
        }
        assert!(used >= terms.len(), "only {used} laws apply");
    }
}
