//! Builtin scalar functions on single elements, and terms evaluated with them.
//!
//! Floats compute in the evaluator's kind of numbers. In Rounded mode each function's result is
//! rounded to its compute type, so f32 stays f32 inside a term. Integers are exact and wrap to
//! their type after each function; division by 0 gives 0.

use hypatia_dsl::builtin::BuiltinScalar;
use hypatia_dsl::dtype::DType;
use hypatia_dsl::scalar::Literal;
use hypatia_dsl::scalar::typed::{Source, Typed, TypedOp};

use super::Mode;
use super::number::Number;
use super::value::{Val, convert, rounded, wrap};

pub use hypatia_dsl::scalar::float;

/// A builtin of integers of that type, which wrap.
pub fn int(f: BuiltinScalar, dtype: DType, x: i64, y: i64) -> i64 {
    wrap(dtype, hypatia_dsl::scalar::int(f, x, y))
}

/// A builtin on elements whose lane is `lane`.
pub fn apply<R: Number>(f: BuiltinScalar, lane: DType, args: [Val<R>; 3], mode: Mode) -> Val<R> {
    use BuiltinScalar::*;
    let [a, b, c] = args;
    match (f, a) {
        (Eq, Val::F(x)) => Val::B(x == b.f()),
        (Lt, Val::F(x)) => Val::B(x < b.f()),
        (Le, Val::F(x)) => Val::B(x <= b.f()),
        (Eq, _) => Val::B(a.i() == b.i()),
        (Lt, _) => Val::B(a.i() < b.i()),
        (Le, _) => Val::B(a.i() <= b.i()),
        (Not, _) => Val::B(!a.b()),
        (And, _) => Val::B(a.b() && b.b()),
        (Or, _) => Val::B(a.b() || b.b()),
        (Xor, _) => Val::B(a.b() != b.b()),
        (Select, _) => {
            if a.b() {
                b
            } else {
                c
            }
        }
        (IsNan, _) => Val::B(matches!(a, Val::F(x) if x.is_nan())),
        (IsInf, _) => Val::B(matches!(a, Val::F(x) if x.near().is_infinite())),
        (_, Val::F(x)) => {
            let v = R::builtin(f, x, b.f());
            Val::F(if mode.rounds() { rounded(lane, v) } else { v })
        }
        (_, a) => Val::I(int(f, lane, a.i(), b.i())),
    }
}

/// Evaluates a term at one element: `load` reads its sources. `values` is scratch space; afterwards
/// it holds one value for each step.
pub fn eval<R: Number>(typed: &Typed, mode: Mode, values: &mut Vec<Val<R>>, load: impl Fn(Source) -> Val<R>) {
    values.clear();
    let round = mode.rounds();
    for step in typed.nodes.iter().copied() {
        let v = match step.op {
            TypedOp::Load(source) => load(source),
            TypedOp::Lit(Literal(x)) => convert(Val::F(R::of(x)), step.ty, round),
            TypedOp::Apply(f, args) => {
                let at = |i: usize| values[args[i] as usize];
                let n = f.params().len();
                let zero = Val::B(false);
                let args = [at(0), if n > 1 { at(1) } else { zero }, if n > 2 { at(2) } else { zero }];
                apply(f, step.ty, args, mode)
            }
            TypedOp::Convert(a) => convert(values[a as usize], step.ty, round),
            TypedOp::Round(to, a) => convert(values[a as usize], to, round),
        };
        values.push(v);
    }
}

/// What `scatter` makes of an element and one that comes to it.
pub fn join<R: Number>(f: BuiltinScalar, dtype: DType, a: Val<R>, b: Val<R>) -> Val<R> {
    match (a, b) {
        (Val::F(x), Val::F(y)) => Val::F(R::builtin(f, x, y)),
        _ => Val::I(int(f, dtype, a.i(), b.i())),
    }
}

/// The order of elements in which NaN is largest.
pub fn ascending<R: Number>(a: Val<R>, b: Val<R>) -> std::cmp::Ordering {
    match (a, b) {
        (Val::F(x), Val::F(y)) => x.partial_cmp(&y).unwrap_or_else(|| x.is_nan().cmp(&y.is_nan())),
        _ => a.i().cmp(&b.i()),
    }
}
