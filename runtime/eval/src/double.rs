//! Numbers of twice the digits of f64: the sum of two of them.
//!
//! In: f64 numbers. Out: arithmetic to about 104 bits, and the builtin functions to 93 or more, in
//! the range of f64. Invariant: `low` is at most half a unit of `high`, and 0 where `high` is not
//! finite; there, and for the signs of zeros, the result is that of f64.
//!
//! A sum of numbers of very different magnitudes stays exact: `1e30 + x` holds every digit of x.
//! Methods: Dekker 1971, Knuth's sum, and the functions by series after a reduction. The tests hold
//! all of it against numbers of 60 digits.

use std::cmp::Ordering;
use std::ops::{Add, Div, Mul, Neg, Sub};

use hypatia_dsl::builtin::BuiltinScalar;
use hypatia_dsl::scalar::float;

use super::number::Number;

/// A number as the sum of two.
#[derive(Clone, Copy, Debug)]
pub struct Double {
    /// The nearest f64.
    pub high: f64,
    /// The rest.
    pub low: f64,
}

const fn pair(high: f64, low: f64) -> Double {
    Double { high, low }
}

const ONE: Double = pair(1.0, 0.0);
const LN_2: Double = pair(std::f64::consts::LN_2, 2.3190468138462996e-17);
/// 2 over the root of pi.
const TWO_OVER_ROOT_PI: Double = pair(std::f64::consts::FRAC_2_SQRT_PI, 1.533545961316588e-17);
/// Half of pi in three parts, so that multiples of it keep their digits.
const HALF_PI: [f64; 3] = [std::f64::consts::FRAC_PI_2, 6.123233995736766e-17, -1.4973849048591698e-33];
/// Beyond this, the reduction of an angle would need more digits of pi.
const FAR_ANGLE: f64 = (1u64 << 40) as f64;

/// The sum, and what rounding took from it.
fn two_sum(a: f64, b: f64) -> (f64, f64) {
    let s = a + b;
    let of_b = s - a;
    (s, (a - (s - of_b)) + (b - of_b))
}

/// The sum in normal form.
fn renormal(a: f64, b: f64) -> Double {
    let (s, rest) = two_sum(a, b);
    pair(s, if s.is_finite() { rest } else { 0.0 })
}

impl Double {
    fn is_finite(self) -> bool {
        self.high.is_finite()
    }

    fn is_negative(self) -> bool {
        self.high < 0.0
    }

    /// Times a power of two. In two steps: the power itself may leave the range.
    fn scaled(self, exponent: i32) -> Double {
        let half = exponent / 2;
        let (a, b) = (2f64.powi(half), 2f64.powi(exponent - half));
        renormal(self.high * a * b, self.low * a * b)
    }

    fn abs(self) -> Double {
        if self.high.is_sign_negative() { -self } else { self }
    }

    fn sqrt(self) -> Double {
        let root = self.high.sqrt();
        if !root.is_finite() || root == 0.0 {
            return pair(root, 0.0);
        }
        // Far from the ends of the range, where the square of the root has no second part.
        let shift = 2 * (root.log2() as i32);
        if shift.abs() > 400 {
            return self.scaled(-shift).sqrt().scaled(shift / 2);
        }
        let rest = self - pair(root, 0.0) * pair(root, 0.0);
        renormal(root, rest.high / (2.0 * root))
    }

    /// e^x - 1 for small x, without a loss near 0.
    fn expm1_near(self) -> Double {
        const HALVINGS: i32 = 9;
        let r = self.scaled(-HALVINGS);
        // r + r^2/2! + ...: at |r| below 1/1024, ten terms.
        let mut sum = Double::of(0.0);
        for k in (1..=11).rev() {
            sum = (ONE + sum) * r / Double::of(f64::from(k));
        }
        for _ in 0..HALVINGS {
            sum = sum + sum + sum * sum;
        }
        sum
    }

    fn exp(self) -> Double {
        if self.high > 709.8 || self.high < -745.2 || !self.is_finite() {
            return Double::of(float(BuiltinScalar::Exp, self.high, 0.0));
        }
        let k = (self.high / LN_2.high).round();
        let rest = self - LN_2 * Double::of(k);
        (ONE + rest.expm1_near()).scaled(k as i32)
    }

    fn expm1(self) -> Double {
        match self.high.abs() {
            v if v < 1e-290 => self,
            v if v < 0.35 => self.expm1_near(),
            _ => self.exp() - ONE,
        }
    }

    /// log(1 + x) for small x: the series of twice the inverse hyperbolic tangent of x / (2 + x).
    fn log1p_near(self) -> Double {
        let z = self / (Double::of(2.0) + self);
        let square = z * z;
        let mut sum = Double::of(0.0);
        for k in (0..8).rev() {
            sum = sum * square + ONE / Double::of(f64::from(2 * k + 1));
        }
        (z * sum) + (z * sum)
    }

    fn log1p(self) -> Double {
        match self.high.abs() {
            v if v < 1e-290 => self,
            v if v < 1e-3 => self.log1p_near(),
            _ => (ONE + self).log(),
        }
    }

    fn log(self) -> Double {
        if !(self.high > 0.0 && self.is_finite()) {
            return Double::of(float(BuiltinScalar::Log, self.high, 0.0));
        }
        if self.high < 0.5 || self.high >= 2.0 {
            let exponent = self.high.log2().round() as i32;
            return LN_2 * Double::of(f64::from(exponent)) + self.scaled(-exponent).log();
        }
        let beyond = self - ONE;
        if beyond.high.abs() < 1e-3 {
            return beyond.log1p_near();
        }
        let near = Double::of(float(BuiltinScalar::Log, self.high, 0.0));
        near + (self * (-near).exp() - ONE).log1p_near()
    }

    fn pow(self, y: Double) -> Double {
        let plain = float(BuiltinScalar::Pow, self.high, y.high);
        let whole = y.low == 0.0 && y.high.fract() == 0.0;
        let edge = !self.is_finite() || !y.is_finite() || self.high == 0.0 || y.high == 0.0 || plain.is_nan();
        if edge || (self.is_negative() && !whole) {
            return Double::of(plain);
        }
        if whole && y.high.abs() <= 64.0 {
            let power = (0..y.high.abs() as u32).fold(ONE, |p, _| p * self);
            // A power that leaves the range only on the way is not lost.
            if power.is_finite() && power.high.abs() > 1e-290 {
                return if y.is_negative() { ONE / power } else { power };
            }
        }
        let size = (y * self.abs().log()).exp();
        if plain.is_sign_negative() { -size } else { size }
    }

    fn tanh(self) -> Double {
        let x = self.abs();
        let positive = if !x.is_finite() || x.high < 1e-290 || x.high > 350.0 {
            return Double::of(float(BuiltinScalar::Tanh, self.high, 0.0));
        } else if x.high < 1.0 {
            let e = (x + x).expm1();
            e / (e + Double::of(2.0))
        } else {
            // 1 less something, which stays exact however small that is.
            ONE - Double::of(2.0) / ((x + x).exp() + ONE)
        };
        if self.is_negative() { -positive } else { positive }
    }

    fn erf(self) -> Double {
        let x = self.abs();
        if !x.is_finite() || x.high < 1e-290 || x.high > 26.0 {
            return match x.high {
                v if v < 1e-290 => self * TWO_OVER_ROOT_PI,
                _ => Double::of(float(BuiltinScalar::Erf, self.high, 0.0)),
            };
        }
        let square = x * x;
        let decay = (-square).exp();
        let positive = if x.high < 6.0 {
            // Terms of one sign: nothing cancels.
            let (mut term, mut sum) = (x, x);
            for k in 1.. {
                term = term * (square + square) / Double::of(f64::from(2 * k + 1));
                sum = sum + term;
                if term.high < 1e-34 * sum.high {
                    break;
                }
            }
            TWO_OVER_ROOT_PI * decay * sum
        } else {
            let fraction = (1..=80).rev().fold(x, |f, k| x + Double::of(0.5 * f64::from(k)) / f);
            ONE - TWO_OVER_ROOT_PI * Double::of(0.5) * decay / fraction
        };
        if self.is_negative() { -positive } else { positive }
    }

    /// Sine and cosine.
    fn sin_cos(self) -> (Double, Double) {
        let plain = |v: f64| {
            let of = |f| Double::of(float(f, v, 0.0));
            (of(BuiltinScalar::Sin), of(BuiltinScalar::Cos))
        };
        if !self.is_finite() || self.high.abs() < 1e-290 {
            return plain(self.high);
        }
        if self.high.abs() > FAR_ANGLE {
            let ((s, c), (t, d)) = (plain(self.high), Double::of(self.low).sin_cos());
            return (s * d + c * t, c * d - s * t);
        }
        let k = (self.high / HALF_PI[0]).round();
        let [a, b, c] = HALF_PI.map(|part| Double::of(part) * Double::of(k));
        let r = self - a - b - c;
        let square = r * r;
        let series = |first: u32| {
            let mut sum = Double::of(0.0);
            for n in (1..=15).rev() {
                let at = f64::from(2 * n + first);
                sum = -(ONE + sum) * square / Double::of(at * (at - 1.0));
            }
            ONE + sum
        };
        let (s, c) = (r * series(1), series(0));
        match k.rem_euclid(4.0) as i64 {
            0 => (s, c),
            1 => (c, -s),
            2 => (-s, -c),
            _ => (-c, s),
        }
    }

    fn atan(self) -> Double {
        if !self.is_finite() || self.high.abs() < 1e-290 {
            return Double::of(float(BuiltinScalar::Atan, self.high, 0.0));
        }
        if self.high.abs() > 1.0 {
            let quarter = pair(HALF_PI[0], HALF_PI[1]);
            let rest = (ONE / self.abs()).atan();
            return if self.is_negative() { rest - quarter } else { quarter - rest };
        }
        let near = Double::of(float(BuiltinScalar::Atan, self.high, 0.0));
        let (s, c) = near.sin_cos();
        let rest = (self * c - s) / (c + self * s);
        near + rest
    }

    /// To an integer, where `whole` rounds an f64.
    fn rounded(self, whole: fn(f64) -> f64) -> Double {
        let high = whole(self.high);
        if high != self.high {
            return Double::of(high);
        }
        if self.low == 0.0 { pair(high, 0.0) } else { renormal(high, whole(self.low)) }
    }

    fn trunc(self) -> Double {
        self.rounded(if self.is_negative() { f64::ceil } else { f64::floor })
    }

    fn nearest_even(self) -> Double {
        let below = self.rounded(f64::floor);
        let over = (self - below - Double::of(0.5)).high;
        let odd = (below.scaled(-1) - below.scaled(-1).rounded(f64::floor)).high != 0.0;
        let nearest = if over > 0.0 || (over == 0.0 && odd) { below + ONE } else { below };
        // -0.3 rounds to -0.
        if nearest.high == 0.0 { Double::of(0f64.copysign(self.high)) } else { nearest }
    }

    fn remainder(self, y: Double) -> Double {
        if self.low == 0.0 && y.low == 0.0 || !self.is_finite() || !y.is_finite() || y.high == 0.0 {
            return Double::of(self.high % y.high);
        }
        self - (self / y).trunc() * y
    }
}

impl PartialEq for Double {
    fn eq(&self, other: &Double) -> bool {
        self.high == other.high && self.low == other.low
    }
}

impl PartialOrd for Double {
    fn partial_cmp(&self, other: &Double) -> Option<Ordering> {
        match self.high.partial_cmp(&other.high)? {
            Ordering::Equal => self.low.partial_cmp(&other.low),
            order => Some(order),
        }
    }
}

impl Neg for Double {
    type Output = Double;
    fn neg(self) -> Double {
        pair(-self.high, -self.low)
    }
}

impl Add for Double {
    type Output = Double;
    fn add(self, other: Double) -> Double {
        let (s, e) = two_sum(self.high, other.high);
        if !s.is_finite() || s == 0.0 && e == 0.0 && self.low == 0.0 && other.low == 0.0 {
            return pair(s, 0.0);
        }
        let (t, f) = two_sum(self.low, other.low);
        let sum = renormal(s, e + t);
        renormal(sum.high, sum.low + f)
    }
}

impl Sub for Double {
    type Output = Double;
    fn sub(self, other: Double) -> Double {
        self + -other
    }
}

impl Mul for Double {
    type Output = Double;
    fn mul(self, other: Double) -> Double {
        let p = self.high * other.high;
        if !p.is_finite() || p == 0.0 {
            return pair(p, 0.0);
        }
        let e = self.high.mul_add(other.high, -p);
        renormal(p, e + (self.high * other.low + self.low * other.high))
    }
}

impl Div for Double {
    type Output = Double;
    fn div(self, other: Double) -> Double {
        let first = self.high / other.high;
        if !first.is_finite() || first == 0.0 || !other.is_finite() {
            return pair(first, 0.0);
        }
        let rest = self - other * Double::of(first);
        let second = rest.high / other.high;
        if !second.is_finite() {
            return pair(first, 0.0);
        }
        let rest = rest - other * Double::of(second);
        let third = rest.high / other.high;
        let sum = renormal(first, second);
        renormal(sum.high, sum.low + if third.is_finite() { third } else { 0.0 })
    }
}

impl Number for Double {
    fn of(v: f64) -> Double {
        pair(v, 0.0)
    }

    fn of_int(v: i64) -> Double {
        let high = v as f64;
        pair(high, (i128::from(v) - high as i128) as f64)
    }

    fn near(self) -> f64 {
        self.high
    }

    fn to_int(self) -> i64 {
        let whole = self.trunc();
        let sum = (whole.high as i128).saturating_add(whole.low as i128);
        sum.clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64
    }

    fn builtin(f: BuiltinScalar, x: Double, y: Double) -> Double {
        use BuiltinScalar::*;
        match f {
            Add => x + y,
            Sub => x - y,
            Mul => x * y,
            Div => x / y,
            Neg => -x,
            Abs => x.abs(),
            Max | Min if x.is_nan() || y.is_nan() => Double::of(f64::NAN),
            // Of two zeros, the sign decides.
            Max if x == y => {
                if x.high.is_sign_positive() {
                    x
                } else {
                    y
                }
            }
            Min if x == y => {
                if x.high.is_sign_negative() {
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
            Pow => x.pow(y),
            Fmod => x.remainder(y),
            Exp => x.exp(),
            Log => x.log(),
            Log1p => x.log1p(),
            Expm1 => x.expm1(),
            Sqrt => x.sqrt(),
            Rsqrt => ONE / x.sqrt(),
            Erf => x.erf(),
            Tanh => x.tanh(),
            Sin => x.sin_cos().0,
            Cos => x.sin_cos().1,
            Atan => x.atan(),
            Floor => x.rounded(f64::floor),
            Ceil => x.rounded(f64::ceil),
            Trunc => x.trunc(),
            Round => x.nearest_even(),
            Sign | Eq | Lt | Le | Not | And | Or | Xor | Select | IsNan | IsInf => Double::of(float(f, x.high, y.high)),
        }
    }
}
