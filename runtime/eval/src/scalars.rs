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
#[inline]
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

/// Elements that are evaluated together.
pub const BLOCK: usize = 256;

/// The values of a term's steps at the elements of a block: scratch space.
pub struct Block<R>(Vec<[Val<R>; BLOCK]>);

impl<R: Number> Block<R> {
    /// Space for a term.
    pub fn of(typed: &Typed) -> Block<R> {
        Block(vec![[Val::B(false); BLOCK]; typed.nodes.len()])
    }

    /// Evaluates a term at `n` elements, at most [`BLOCK`]: each step at all of them, then the
    /// next. `load` reads a source at these elements.
    pub fn eval(&mut self, typed: &Typed, mode: Mode, n: usize, mut load: impl FnMut(Source, &mut [Val<R>])) {
        let round = mode.rounds();
        for (i, step) in typed.nodes.iter().copied().enumerate() {
            let (before, rest) = self.0.split_at_mut(i);
            let out = &mut rest[0][..n];
            match step.op {
                TypedOp::Load(source) => load(source, out),
                TypedOp::Lit(Literal(x)) => out.fill(convert(Val::F(R::of(x)), step.ty, round)),
                TypedOp::Apply(f, args) => {
                    let count = f.params().len();
                    let [x, y, z] = args.map(|a| &before[a as usize]);
                    let zero = Val::B(false);
                    for (j, v) in out.iter_mut().enumerate() {
                        let y = if count > 1 { y[j] } else { zero };
                        let z = if count > 2 { z[j] } else { zero };
                        *v = apply(f, step.ty, [x[j], y, z], mode);
                    }
                }
                TypedOp::Convert(a) => convert_all(&before[a as usize], step.ty, round, out),
                TypedOp::Round(to, a) => convert_all(&before[a as usize], to, round, out),
            }
        }
    }

    /// The values of a step.
    pub fn at(&self, step: usize) -> &[Val<R>; BLOCK] {
        &self.0[step]
    }
}

fn convert_all<R: Number>(from: &[Val<R>], to: DType, round: bool, out: &mut [Val<R>]) {
    for (v, a) in out.iter_mut().zip(from) {
        *v = convert(*a, to, round);
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
