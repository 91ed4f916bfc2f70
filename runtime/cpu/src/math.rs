//! Elementary functions in f32 as loops that compilers vectorise: no branches, no calls, no tables.
//!
//! Accurate to a few ULP over all floats (tests compare with libm); NaN gives NaN; infinities and
//! denormals are handled.

/// Adding and subtracting this rounds to an integer (ties to even) where |x| < 2^22.
const MAGIC: f32 = 12_582_912.0;

/// 2^n for -126 <= n <= 127.
#[inline(always)]
fn power_of_two(n: i32) -> f32 {
    f32::from_bits(((n + 127) << 23) as u32)
}

/// e^x
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    // Beyond these bounds the result is 0 or infinite. NaN fails both comparisons and propagates.
    let x = if x < -110.0 { -110.0 } else { x };
    let x = if x > 90.0 { 90.0 } else { x };
    let shifted = x * std::f32::consts::LOG2_E + MAGIC;
    let n = shifted - MAGIC;
    // ln 2 in two parts: the first has few bits, so that its product with n is exact.
    let r = x - n * 0.693_359_4;
    let r = r + n * 2.121_944_4e-4;
    // e^r for |r| <= ln(2) / 2 by its series; the next term is below 1e-8.
    let p = 1.0 / 5040.0;
    let p = p * r + 1.0 / 720.0;
    let p = p * r + 1.0 / 120.0;
    let p = p * r + 1.0 / 24.0;
    let p = p * r + 1.0 / 6.0;
    let p = p * r + 0.5;
    let p = p * r * r + r + 1.0;
    // Two factors: 2^n itself may be infinite or denormal even if the product is not.
    let n = (shifted.to_bits() as i32).wrapping_sub(MAGIC.to_bits() as i32).clamp(-200, 200);
    let half = n >> 1;
    p * power_of_two(half) * power_of_two(n - half)
}

/// Hyperbolic tangent.
#[inline(always)]
pub fn tanh(x: f32) -> f32 {
    let z = x * x;
    let p = -5.704_988_7e-3;
    let p = p * z + 2.063_909e-2;
    let p = p * z - 5.373_971_6e-2;
    let p = p * z + 1.333_144_2e-1;
    let p = p * z - 3.333_328e-1;
    let small = p * z * x + x;
    let a = x.abs();
    let large = 1.0 - 2.0 / (exp(a + a) + 1.0);
    // NaN takes the second branch, which propagates it. The sign of zero is lost on the way.
    let magnitude = if a < 0.625 { small } else { large };
    magnitude.copysign(x)
}

/// Error function: a polynomial near 0, `1 - e^q(|x|)` elsewhere.
#[inline(always)]
pub fn erf(x: f32) -> f32 {
    let a = x.abs();
    // From 4 on the result is 1 in f32.
    let t = if a > 4.0 { 4.0 } else { a };
    let s = t * t;
    let q = -1.728_534_7e-5 * t + 3.831_971_3e-4;
    let u = -3.883_964_4e-3 * t + 2.425_462_2e-2;
    let q = q * s + u;
    let q = q * t - 1.067_778_8e-1;
    let q = q * t - 6.348_467e-1;
    let q = q * t - 1.287_175_1e-1;
    let q = q * t - t;
    let large = 1.0 - exp(q);
    let p = -5.967_617e-4;
    let p = p * s + 4.991_194_2e-3;
    let p = p * s - 2.676_813_5e-2;
    let p = p * s + 1.128_199_3e-1;
    let p = p * s - 3.761_253_4e-1;
    let p = p * s + 1.283_791_7e-1;
    let small = p * x + x;
    let magnitude = if a > 0.927_734_4 { large } else { small };
    magnitude.copysign(x)
}

/// Maximum; NaN if either is NaN; +0 is larger than -0. It selects whole values only, so that
/// vectorised code evaluates both sides.
#[inline(always)]
pub fn max(a: f32, b: f32) -> f32 {
    // For equal values, the bits that both have: +0 if the zeros differ.
    let equal = f32::from_bits(a.to_bits() & b.to_bits());
    let larger = if a > b { a } else { b };
    let larger = if a == b { equal } else { larger };
    if a.is_nan() { a } else { larger }
}

/// Minimum; NaN if either is NaN; -0 is smaller than +0.
#[inline(always)]
pub fn min(a: f32, b: f32) -> f32 {
    let equal = f32::from_bits(a.to_bits() | b.to_bits());
    let smaller = if a < b { a } else { b };
    let smaller = if a == b { equal } else { smaller };
    if a.is_nan() { a } else { smaller }
}

/// x to the power of y. If all exponents of a block are the same small integer, the powers are
/// products: within one ULP.
#[inline(always)]
pub fn powers(x: &[f32], y: &[f32], out: &mut [f32]) {
    let exponent = y.first().copied().unwrap_or(1.0);
    let same = y.iter().all(|v| *v == exponent);
    macro_rules! each {
        ($f:expr) => {
            for i in 0..out.len().min(x.len()) {
                out[i] = $f(x[i]);
            }
        };
    }
    if same && exponent == 2.0 {
        each!(|x: f32| x * x)
    } else if same && exponent == 3.0 {
        each!(|x: f32| x * x * x)
    } else {
        for i in 0..out.len().min(x.len()).min(y.len()) {
            out[i] = x[i].powf(y[i]);
        }
    }
}

/// -1, 0 or 1; preserves NaN and the sign of zero.
#[inline(always)]
pub fn sign(x: f32) -> f32 {
    let one = 1f32.copysign(x);
    if x == 0.0 || x.is_nan() { x } else { one }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The largest error in f32 ULP, over floats of every exponent.
    fn worst(f: fn(f32) -> f32, reference: fn(f64) -> f64) -> (f64, f32) {
        let mut worst = (0.0, 0.0);
        for bits in (0..u32::MAX - 1009).step_by(1009) {
            let x = f32::from_bits(bits);
            let (got, want) = (f(x) as f64, reference(x as f64));
            if want.is_nan() || x.is_nan() {
                assert!(got.is_nan(), "f({x}) = {got}, expected NaN");
                continue;
            }
            let rounded = want as f32;
            if rounded.is_infinite() || got.is_infinite() {
                // At the overflow threshold one ULP decides.
                assert!(got == rounded as f64 || want.abs() > 3.402e38, "f({x}) = {got}, expected {want}");
                continue;
            }
            let up = f32::from_bits(rounded.abs().to_bits() + 1) as f64;
            let ulp = up - rounded.abs() as f64;
            let error = (got - want).abs() / ulp;
            if error > worst.0 {
                worst = (error, x);
            }
        }
        worst
    }

    #[test]
    fn functions_agree_with_libm() {
        for (name, f, reference, bound) in [
            ("exp", exp as fn(f32) -> f32, libm::exp as fn(f64) -> f64, 2.0),
            ("tanh", tanh, libm::tanh, 3.0),
            ("erf", erf, libm::erf, 4.0),
        ] {
            let (error, x) = worst(f, reference);
            assert!(error <= bound, "{name}({x}) is off by {error} ulp");
        }
    }

    #[test]
    fn special_values() {
        assert_eq!(exp(f32::INFINITY), f32::INFINITY);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(tanh(f32::NEG_INFINITY), -1.0);
        assert_eq!(erf(f32::INFINITY), 1.0);
        assert!(tanh(-0.0).is_sign_negative() && erf(-0.0).is_sign_negative());
        assert!(max(f32::NAN, 1.0).is_nan() && max(1.0, f32::NAN).is_nan());
        assert!(max(-0.0, 0.0).is_sign_positive() && min(0.0, -0.0).is_sign_negative());
    }

    #[test]
    fn larger_and_smaller_of_all_pairs_of_special_values() {
        let values = [0.0, -0.0, 1.0, -1.0, 1e-45, -1e-45, f32::MAX, f32::INFINITY, f32::NEG_INFINITY, f32::NAN];
        for a in values {
            for b in values {
                // As ordered integers, signed zeros differ.
                let order =
                    |v: f32| if v.is_sign_negative() { -(v.abs().to_bits() as i64) - 1 } else { v.to_bits() as i64 };
                let (low, high) = if order(a) < order(b) { (a, b) } else { (b, a) };
                if a.is_nan() || b.is_nan() {
                    assert!(max(a, b).is_nan() && min(a, b).is_nan(), "{a} {b}");
                } else {
                    assert_eq!(max(a, b).to_bits(), high.to_bits(), "max {a} {b}");
                    assert_eq!(min(a, b).to_bits(), low.to_bits(), "min {a} {b}");
                }
            }
            let want = if a.is_nan() || a == 0.0 { a } else { a.signum() };
            assert_eq!(sign(a).to_bits(), want.to_bits(), "sign {a}");
        }
    }

    #[test]
    fn powers_by_products_are_powers() {
        let x: Vec<f32> = (0..u32::MAX - 40_009).step_by(40_009).map(f32::from_bits).collect();
        for exponent in [2.0f32, 3.0, -1.5, 0.5, 0.0] {
            let (y, mut out) = (vec![exponent; x.len()], vec![0.0; x.len()]);
            powers(&x, &y, &mut out);
            for (x, got) in x.iter().zip(&out).filter(|(x, _)| !x.is_nan()) {
                let want = (*x as f64).powf(exponent as f64);
                let rounded = want as f32;
                let bound = (rounded.abs() as f64 * 2.4e-7).max(3e-45);
                let same = *got == rounded || (got.is_nan() && rounded.is_nan());
                assert!(same || (*got as f64 - want).abs() <= bound, "{x} ** {exponent} = {got}, not {want}");
            }
        }
        let mut out = [0.0; 2];
        powers(&[2.0, 3.0], &[3.0, 2.0], &mut out);
        assert_eq!(out, [8.0, 9.0]);
    }
}
