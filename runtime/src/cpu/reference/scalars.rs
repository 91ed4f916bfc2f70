//! Builtin scalar functions on single elements, and terms evaluated with them.
//!
//! Floats compute in f64. In Rounded mode each function's result is rounded to the lane it has, so f32
//! stays f32 inside a term. Integers are exact and wrap to their type after each function; division by 0
//! gives 0.

use hypatia_dsl::builtin::BuiltinScalar;
use hypatia_dsl::dtype::DType;

use super::Mode;
use super::value::{Val, convert, wrap};
use crate::cpu::flat::{Flat, FlatOp, Source};

/// A builtin of numbers in f64.
pub fn float(f: BuiltinScalar, x: f64, y: f64) -> f64 {
    use BuiltinScalar::*;
    match f {
        Add => x + y,
        Sub => x - y,
        Mul => x * y,
        Div => x / y,
        Neg => -x,
        Abs => x.abs(),
        Sign if x > 0.0 => 1.0,
        Sign if x < 0.0 => -1.0,
        Sign => x,
        Max | Min if x.is_nan() || y.is_nan() => f64::NAN,
        // Of +0 and -0, the sign decides.
        Max if x == y => {
            if x.is_sign_positive() {
                x
            } else {
                y
            }
        }
        Min if x == y => {
            if x.is_sign_negative() {
                x
            } else {
                y
            }
        }
        Max => {
            if x > y {
                x
            } else {
                y
            }
        }
        Min => {
            if x < y {
                x
            } else {
                y
            }
        }
        Pow => libm::pow(x, y),
        Fmod => x % y,
        Exp => libm::exp(x),
        Log => libm::log(x),
        Log1p => libm::log1p(x),
        Expm1 => libm::expm1(x),
        Sqrt => x.sqrt(),
        Rsqrt => 1.0 / x.sqrt(),
        Erf => libm::erf(x),
        Tanh => libm::tanh(x),
        Sin => libm::sin(x),
        Cos => libm::cos(x),
        Atan => libm::atan(x),
        Floor => x.floor(),
        Ceil => x.ceil(),
        Round => x.round_ties_even(),
        Trunc => x.trunc(),
        Eq | Lt | Le | Not | And | Or | Xor | Select | IsNan | IsInf => f64::NAN,
    }
}

/// A builtin of integers of that type, which wrap.
pub fn int(f: BuiltinScalar, dtype: DType, x: i64, y: i64) -> i64 {
    use BuiltinScalar::*;
    let v = match f {
        Add => x.wrapping_add(y),
        Sub => x.wrapping_sub(y),
        Mul => x.wrapping_mul(y),
        Div => {
            if y == 0 {
                0
            } else {
                x.wrapping_div(y)
            }
        }
        Fmod => {
            if y == 0 {
                0
            } else {
                x.wrapping_rem(y)
            }
        }
        Neg => x.wrapping_neg(),
        Abs => x.wrapping_abs(),
        Sign => x.signum(),
        Max => x.max(y),
        Min => x.min(y),
        Pow => power(x, y),
        Floor | Ceil | Round | Trunc => x,
        // Not defined on integers; typing keeps them out.
        _ => float(f, x as f64, y as f64) as i64,
    };
    wrap(dtype, v)
}

/// `x ** y`, wrapping; for a negative exponent the truncated reciprocal.
fn power(x: i64, y: i64) -> i64 {
    if y < 0 {
        return match x {
            1 => 1,
            -1 => {
                if y % 2 == 0 {
                    1
                } else {
                    -1
                }
            }
            _ => 0,
        };
    }
    let (mut base, mut left, mut out) = (x, y, 1i64);
    while left > 0 {
        if left & 1 == 1 {
            out = out.wrapping_mul(base);
        }
        base = base.wrapping_mul(base);
        left >>= 1;
    }
    out
}

/// A builtin on elements whose lane is `lane`.
pub fn apply(f: BuiltinScalar, lane: DType, args: [Val; 3], mode: Mode) -> Val {
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
        (IsInf, _) => Val::B(matches!(a, Val::F(x) if x.is_infinite())),
        (_, Val::F(x)) => {
            let v = float(f, x, b.f());
            Val::F(if mode == Mode::Rounded { lane.round(v) } else { v })
        }
        (_, a) => Val::I(int(f, lane, a.i(), b.i())),
    }
}

/// Evaluates a term at one element: `load` reads its sources. `values` is scratch space; afterwards it
/// holds one value for each step.
pub fn eval(flat: &Flat, mode: Mode, values: &mut Vec<Val>, load: impl Fn(Source) -> Val) {
    values.clear();
    let rounded = mode == Mode::Rounded;
    for step in &flat.steps {
        let v = match step.op {
            FlatOp::Load(source) => load(source),
            FlatOp::Lit(x) => convert(Val::F(x), step.lane, rounded),
            FlatOp::Apply(f, args) => {
                let at = |i: usize| values[args[i] as usize];
                let n = f.params().len();
                let zero = Val::B(false);
                let args = [at(0), if n > 1 { at(1) } else { zero }, if n > 2 { at(2) } else { zero }];
                apply(f, step.lane, args, mode)
            }
            FlatOp::Convert(a) => convert(values[a as usize], step.lane, rounded),
            FlatOp::Round(to, a) => convert(values[a as usize], to, rounded),
        };
        values.push(v);
    }
}
