//! Evaluation of terms: the semantics of every builtin scalar.
//!
//! In: a term and the values of its leaves. Out: the values of its roots. Devices are compared with
//! this definition:
//!
//! - Floats follow IEEE 754. Transcendental functions are libm's, in f64.
//! - [`Precision::F64`] is the real function as f64 computes it: casts between float types change
//!   nothing. [`Precision::F32`] rounds every literal and the result of every builtin to f32, and
//!   every cast to its type, as a kernel that computes in f32 does.
//! - `max` and `min` propagate NaN; of two zeros `max` returns +0, `min` returns -0.
//! - `sign` keeps NaN and zeros. `round` rounds ties to even. The result of `fmod` has the sign of
//!   its first operand.
//! - Integers are i64 and wrap; a cast to a narrower integer wraps, a cast from a float truncates
//!   and saturates (NaN gives 0). Integer `div` truncates; `div` and `fmod` by 0 give 0, `MIN / -1`
//!   wraps.
//! - A literal combined with an integer is an integer.

use crate::builtin::BuiltinScalar;
use crate::dtype::{DType, Kind};
use crate::ir::{Program, ScalarBody};

use super::build::{MAX_DEPTH, MAX_NODES};
use super::{Term, TermNode};

/// A value of a scalar.
#[derive(Clone, Copy, Debug)]
pub enum Value {
    /// A float of any width.
    F(f64),
    /// An integer of any width.
    I(i64),
    /// A boolean.
    B(bool),
}

impl PartialEq for Value {
    /// Floats compare by bits.
    fn eq(&self, other: &Value) -> bool {
        match (self, other) {
            (Value::F(a), Value::F(b)) => a.to_bits() == b.to_bits(),
            (Value::I(a), Value::I(b)) => a == b,
            (Value::B(a), Value::B(b)) => a == b,
            _ => false,
        }
    }
}

impl Value {
    /// As a float; booleans are 0 and 1.
    pub fn to_f64(self) -> f64 {
        match self {
            Value::F(f) => f,
            Value::I(i) => i as f64,
            Value::B(b) => b as u8 as f64,
        }
    }

    /// As an integer; floats truncate and saturate.
    pub fn to_i64(self) -> i64 {
        match self {
            Value::F(f) => f as i64,
            Value::I(i) => i,
            Value::B(b) => b as i64,
        }
    }

    /// As a boolean: true unless it is 0.
    pub fn to_bool(self) -> bool {
        match self {
            Value::F(f) => f != 0.0,
            Value::I(i) => i != 0,
            Value::B(b) => b,
        }
    }
}

/// The precision of float arithmetic.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Precision {
    /// f64; casts between floats are ignored.
    F64,
    /// Every builtin rounds its result to f32.
    F32,
}

impl Precision {
    fn round(self, value: f64) -> f64 {
        match self {
            Precision::F64 => value,
            Precision::F32 => value as f32 as f64,
        }
    }
}

/// The values of a term's leaves.
#[derive(Clone, Copy, Default)]
pub struct Leaves<'a> {
    /// The value of each `Param(i)`.
    pub params: &'a [Value],
    /// The value of `Acc`.
    pub acc: Option<Value>,
    /// The value of each `In { input: i, .. }`.
    pub inputs: &'a [Value],
}

/// Why a term has no value: it is malformed, or inlining it does not terminate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EvalError(pub String);

impl std::fmt::Display for EvalError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}
impl std::error::Error for EvalError {}

/// An intermediate value: a literal takes the type of the other operands.
#[derive(Clone, Copy)]
enum Intermediate {
    Lit(f64),
    Value(Value),
}

/// The values of the roots.
pub fn eval(program: &Program, term: &Term, leaves: Leaves, precision: Precision) -> Result<Vec<Value>, EvalError> {
    let mut run = Run { program, leaves, precision, steps: 0 };
    let results = run.term(term, None, 0)?;
    Ok(results.into_iter().map(|s| run.value_of(s)).collect())
}

/// The only root in f64, for the given parameters. Booleans are 0 and 1.
pub fn eval_f64(program: &Program, term: &Term, params: &[f64]) -> Result<f64, EvalError> {
    let params: Vec<Value> = params.iter().map(|p| Value::F(*p)).collect();
    let values = eval(program, term, Leaves { params: &params, ..Leaves::default() }, Precision::F64)?;
    values.first().map(|v| v.to_f64()).ok_or_else(|| EvalError("the term has no result".into()))
}

struct Run<'a> {
    program: &'a Program,
    leaves: Leaves<'a>,
    precision: Precision,
    steps: usize,
}

impl Run<'_> {
    /// The value of an intermediate result: a literal that nothing gave a type is a float.
    fn value_of(&self, result: Intermediate) -> Value {
        match result {
            Intermediate::Lit(x) => Value::F(self.precision.round(x)),
            Intermediate::Value(v) => v,
        }
    }

    fn term(
        &mut self,
        term: &Term,
        params: Option<&[Intermediate]>,
        depth: u32,
    ) -> Result<Vec<Intermediate>, EvalError> {
        let missing = |what: &str| EvalError(format!("the term reads {what} that has no value"));
        if depth > MAX_DEPTH {
            return Err(EvalError(format!("scalar calls are nested more than {MAX_DEPTH} levels deep")));
        }
        let mut results: Vec<Intermediate> = Vec::with_capacity(term.nodes.len());
        for node in &term.nodes {
            self.steps += 1;
            if self.steps > MAX_NODES * 16 {
                return Err(EvalError("the term is too large once its scalars are inlined".into()));
            }
            let result = match node {
                TermNode::Param(i) => match params {
                    Some(p) => *p.get(*i as usize).ok_or_else(|| missing("a parameter"))?,
                    None => {
                        Intermediate::Value(*self.leaves.params.get(*i as usize).ok_or_else(|| missing("a parameter"))?)
                    }
                },
                TermNode::Acc => Intermediate::Value(self.leaves.acc.ok_or_else(|| missing("an accumulator"))?),
                TermNode::Second => return Err(missing("a second accumulator")),
                TermNode::In { input, .. } => {
                    Intermediate::Value(*self.leaves.inputs.get(*input as usize).ok_or_else(|| missing("an input"))?)
                }
                TermNode::Lit(l) => Intermediate::Lit(l.0),
                TermNode::Cast { to, arg } => {
                    let value = self.value_of(results[arg.0 as usize]);
                    Intermediate::Value(cast(value, *to, self.precision))
                }
                TermNode::Call { scalar, args } => {
                    let args: Vec<Intermediate> = args.iter().map(|a| results[a.0 as usize]).collect();
                    let def = self.program.scalars.get(scalar.index()).ok_or_else(|| missing("a scalar"))?;
                    match &def.body {
                        ScalarBody::Builtin(f) => Intermediate::Value(self.builtin(*f, &args)?),
                        ScalarBody::Term(body) => {
                            let inner = self.term(body, Some(&args), depth + 1)?;
                            *inner.first().ok_or_else(|| missing("a result"))?
                        }
                    }
                }
            };
            results.push(result);
        }
        Ok(term.roots.iter().map(|r| results[r.0 as usize]).collect())
    }

    fn builtin(&self, f: BuiltinScalar, args: &[Intermediate]) -> Result<Value, EvalError> {
        if args.len() != f.params().len() {
            return Err(EvalError(format!("{} takes {} arguments, not {}", f.name(), f.params().len(), args.len())));
        }
        let integers = args.iter().any(|a| matches!(a, Intermediate::Value(Value::I(_))));
        let mut values = [Value::B(false); 3];
        for (value, arg) in values.iter_mut().zip(args) {
            *value = match arg {
                Intermediate::Lit(x) if integers => Value::I(*x as i64),
                arg => self.value_of(*arg),
            };
        }
        Ok(apply(f, &values[..args.len()], self.precision))
    }
}

/// A cast; see the module documentation.
fn cast(value: Value, to: DType, precision: Precision) -> Value {
    if to == DType::Bool {
        return Value::B(value.to_bool());
    }
    if to.is_int() {
        return Value::I(match value {
            Value::F(f) => to.round(f) as i64,
            value => wrap(to, value.to_i64()),
        });
    }
    let value = value.to_f64();
    Value::F(if precision == Precision::F64 { value } else { to.round(value) })
}

/// An integer wrapped to the range of its type.
fn wrap(dtype: DType, value: i64) -> i64 {
    match dtype {
        DType::I32 => value as i32 as i64,
        DType::I8 => value as i8 as i64,
        DType::U8 => value as u8 as i64,
        _ => value,
    }
}

/// Applies a builtin. The numbers among the values are all floats or all integers.
pub fn apply(f: BuiltinScalar, args: &[Value], precision: Precision) -> Value {
    use BuiltinScalar::*;
    let at = |i: usize| args.get(i).copied().unwrap_or(Value::B(false));
    let (a, b) = (at(0), at(1));
    let integers = matches!((a, b), (Value::I(_), _) | (_, Value::I(_)));
    match f {
        Eq if integers => Value::B(a.to_i64() == b.to_i64()),
        Lt if integers => Value::B(a.to_i64() < b.to_i64()),
        Le if integers => Value::B(a.to_i64() <= b.to_i64()),
        Eq => Value::B(a.to_f64() == b.to_f64()),
        Lt => Value::B(a.to_f64() < b.to_f64()),
        Le => Value::B(a.to_f64() <= b.to_f64()),
        Not => Value::B(!a.to_bool()),
        And => Value::B(a.to_bool() && b.to_bool()),
        Or => Value::B(a.to_bool() || b.to_bool()),
        Xor => Value::B(a.to_bool() != b.to_bool()),
        Select => {
            if a.to_bool() {
                b
            } else {
                at(2)
            }
        }
        IsNan => Value::B(a.to_f64().is_nan()),
        IsInf => Value::B(a.to_f64().is_infinite()),
        _ if integers && !f.float_only() => Value::I(int(f, a.to_i64(), b.to_i64())),
        _ => Value::F(precision.round(float(f, a.to_f64(), b.to_f64()))),
    }
}

/// A builtin from floats to a float, in f64; functions of one number ignore `y`. NaN for builtins
/// of other kinds.
pub fn float(f: BuiltinScalar, x: f64, y: f64) -> f64 {
    use BuiltinScalar::*;
    match f {
        Add => x + y,
        Sub => x - y,
        Mul => x * y,
        Div => x / y,
        Neg => -x,
        Abs => x.abs(),
        Sign => {
            if x > 0.0 {
                1.0
            } else if x < 0.0 {
                -1.0
            } else {
                x
            }
        }
        Max => extremum(x, y, x > y || x == y && x.is_sign_positive()),
        Min => extremum(x, y, x < y || x == y && x.is_sign_negative()),
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

/// `x` if it comes `first`, else `y`; NaN if one of them is NaN. Of two equal numbers, the sign
/// decides between zeros.
fn extremum(x: f64, y: f64, first: bool) -> f64 {
    if x.is_nan() || y.is_nan() {
        return f64::NAN;
    }
    if first { x } else { y }
}

/// A builtin from integers to an integer, wrapping; the results of float functions are rounded
/// toward 0.
pub fn int(f: BuiltinScalar, x: i64, y: i64) -> i64 {
    use BuiltinScalar::*;
    match f {
        Add => x.wrapping_add(y),
        Sub => x.wrapping_sub(y),
        Mul => x.wrapping_mul(y),
        Div | Fmod if y == 0 => 0,
        Div => x.wrapping_div(y),
        Fmod => x.wrapping_rem(y),
        Neg => x.wrapping_neg(),
        Abs => x.wrapping_abs(),
        Sign => x.signum(),
        Max => x.max(y),
        Min => x.min(y),
        Pow => power(x, y),
        Floor | Ceil | Round | Trunc => x,
        _ => float(f, x as f64, y as f64) as i64,
    }
}

/// `x ** y`, wrapping; a negative exponent gives the truncated reciprocal.
fn power(x: i64, y: i64) -> i64 {
    if y < 0 {
        return match x {
            1 => 1,
            -1 if y % 2 == 0 => 1,
            -1 => -1,
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

/// The kind of each node of a term, for parameters of these kinds.
pub(super) fn kinds(program: &Program, term: &Term, params: &[Kind]) -> Vec<Kind> {
    let mut out = Vec::with_capacity(term.nodes.len());
    for node in &term.nodes {
        out.push(match node {
            TermNode::Param(i) => params.get(*i as usize).copied().unwrap_or(Kind::Number),
            TermNode::Acc | TermNode::Second | TermNode::In { .. } | TermNode::Lit(_) => Kind::Number,
            TermNode::Call { scalar, .. } => program.scalars.get(scalar.index()).map_or(Kind::Number, |d| d.result),
            TermNode::Cast { to, .. } => to.kind(),
        });
    }
    out
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use BuiltinScalar::*;

    const INF: f64 = f64::INFINITY;
    const NAN: f64 = f64::NAN;

    #[track_caller]
    fn bits(got: f64, wanted: f64) {
        assert!(got.to_bits() == wanted.to_bits() || (got.is_nan() && wanted.is_nan()), "{got} against {wanted}");
    }

    #[test]
    fn max_and_min_propagate_nan_and_order_zeros() {
        for (a, b) in [(NAN, 1.0), (1.0, NAN), (NAN, NAN), (NAN, INF)] {
            bits(float(Max, a, b), NAN);
            bits(float(Min, a, b), NAN);
        }
        for (a, b) in [(0.0, -0.0), (-0.0, 0.0)] {
            bits(float(Max, a, b), 0.0);
            bits(float(Min, a, b), -0.0);
        }
        bits(float(Max, -0.0, -0.0), -0.0);
        bits(float(Min, 0.0, 0.0), 0.0);
        bits(float(Max, -INF, 3.0), 3.0);
        bits(float(Min, INF, 3.0), 3.0);
    }

    #[test]
    fn special_values() {
        for (x, sign) in [(NAN, NAN), (-0.0, -0.0), (0.0, 0.0), (INF, 1.0), (-1e-310, -1.0)] {
            bits(float(Sign, x, 0.0), sign);
        }
        bits(float(Round, 2.5, 0.0), 2.0);
        bits(float(Round, -0.4, 0.0), -0.0);
        bits(float(Fmod, -7.5, 2.0), -1.5);
        bits(float(Fmod, 7.5, -2.0), 1.5);
        bits(float(Fmod, 1.0, 0.0), NAN);
        bits(float(Rsqrt, 0.0, 0.0), INF);
        bits(float(Rsqrt, -0.0, 0.0), -INF);
        bits(float(Rsqrt, INF, 0.0), 0.0);
        bits(float(Erf, -INF, 0.0), -1.0);
        bits(float(Tanh, INF, 0.0), 1.0);
        bits(float(Exp, -INF, 0.0), 0.0);
        bits(float(Log, 0.0, 0.0), -INF);
        bits(float(Pow, NAN, 0.0), 1.0);
        bits(float(Pow, -8.0, 1.0 / 3.0), NAN);
        for x in [NAN, INF, -INF, -0.0] {
            let is = |f| apply(f, &[Value::F(x)], Precision::F64).to_bool();
            assert_eq!((is(IsNan), is(IsInf)), (x.is_nan(), x.is_infinite()));
            let same = apply(Eq, &[Value::F(x), Value::F(x)], Precision::F64);
            assert_eq!(same, Value::B(!x.is_nan()));
        }
        assert_eq!(apply(Le, &[Value::F(-0.0), Value::F(0.0)], Precision::F64), Value::B(true));
    }

    #[test]
    fn integers_wrap() {
        assert_eq!(int(Add, i64::MAX, 1), i64::MIN);
        assert_eq!(int(Div, -7, 2), -3);
        assert_eq!(int(Div, 7, 0), 0);
        assert_eq!(int(Div, i64::MIN, -1), i64::MIN);
        assert_eq!(int(Fmod, -7, 2), -1);
        assert_eq!(int(Fmod, i64::MIN, -1), 0);
        assert_eq!(int(Abs, i64::MIN, 0), i64::MIN);
        assert_eq!(int(Pow, 3, 4), 81);
        assert_eq!(int(Pow, 2, -1), 0);
        assert_eq!(int(Pow, -1, -3), -1);
        // Above 2^53 a conversion through f64 would lose digits.
        let big = Value::I((1 << 53) + 1);
        assert_eq!(apply(Lt, &[Value::I(1 << 53), big], Precision::F64), Value::B(true));
    }

    #[test]
    fn f32_rounds_like_f32() {
        for (x, y) in [(0.1f32, 0.2f32), (1e30, 1e10), (3.0, 7.0), (1e-40, 0.3), (16_777_217.0, 0.5)] {
            let (a, b) = (Value::F(x as f64), Value::F(y as f64));
            for (f, wanted) in [(Add, x + y), (Sub, x - y), (Mul, x * y), (Div, x / y), (Fmod, x % y)] {
                bits(apply(f, &[a, b], Precision::F32).to_f64(), wanted as f64);
            }
            bits(apply(Sqrt, &[a], Precision::F32).to_f64(), x.sqrt() as f64);
        }
    }
}
