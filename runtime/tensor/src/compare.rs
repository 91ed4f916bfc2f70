//! How near two tensors must be to count as the same result.
//!
//! In: a result and its reference. Out: a [`Comparison`] that names the worst element. An element
//! agrees if
//!
//! ```text
//! |result - reference| <= rtol * (|reference| + scale)
//! ```
//!
//! * `rtol` is 1e-4, or 16 units in the last place of the float type that the result was computed
//!   in, if that is more. Errors of long chains of nodes add up: `rtol` grows with the root of
//!   their length, up to four times.
//! * `scale` is the magnitude that rounding in sums is relative to: elements that cancelled to
//!   nearly nothing have errors as large as their neighbours'. It is the root mean square of a
//!   normal distribution whose smallest quarter of magnitudes is that of the reference's distinct
//!   magnitudes. So neither a mask of -3.4e38 nor rows of another magnitude, up to three quarters
//!   of the elements, can hide an error in the others.
//!
//! Invariant: NaN and infinities agree only with themselves; integers and booleans must be equal.

use hypatia_dsl::dtype::DType;

use crate::error::{Error, Result};
use crate::tensor::Tensor;

/// The relative difference that is allowed for every element type: sums may be taken in another
/// order, and other libraries' functions differ.
pub const LEAST: f64 = 1e-4;
/// Units in the last place that one stretch of nodes may differ by, and the length of a stretch.
pub const UNITS: f64 = 16.0;
const STRETCH: f64 = 32.0;
/// The root mean square of a normal distribution, divided by that of the smallest quarter of its
/// magnitudes.
const QUARTER: f64 = 5.43;
/// Maximum number of elements that are sampled for the scale.
const SAMPLE: usize = 1 << 16;
/// How far rounding takes the results of another plan, in units of their scatter: in the mean
/// square of the elements, and at most.
const SCATTERS: f64 = 4.0;
const MOST_SCATTERS: f64 = 16.0;
/// With fewer elements, a quarter of them says little.
const FEW: usize = 16;
/// Elements beyond their bounds that rounding does not move: so many, and such a share of all that
/// are beyond, are no accident of a step that a rounding crossed.
const STEADY: usize = 4;
const STEADY_SHARE: f64 = 0.125;

/// How far a result may differ from its reference.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerance {
    /// The relative difference of an element.
    pub rtol: f64,
    /// The absolute difference of an element; `None`: `rtol` times the scale of the reference.
    pub atol: Option<f64>,
}

impl Tolerance {
    /// For a result computed in this element type by this many nodes in a row.
    pub fn of(dtype: DType, nodes: usize) -> Tolerance {
        let longer = (nodes as f64 / STRETCH).sqrt().clamp(1.0, 4.0);
        Tolerance { rtol: (UNITS * longer * dtype.epsilon()).max(LEAST), atol: None }
    }
}

/// The comparison of a result with its reference.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Comparison {
    /// The largest absolute difference; infinite if NaN or infinities do not agree.
    pub max_error: f64,
    /// The largest finite absolute value of the reference.
    pub max_reference: f64,
    /// Index of the worst element, in row-major order: the one whose difference is the largest
    /// share of its bound.
    pub worst: usize,
    /// The difference of that element.
    pub error: f64,
    /// The bound of that difference.
    pub bound: f64,
    /// True if all differences are within their bounds.
    pub ok: bool,
}

impl std::fmt::Display for Comparison {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let what = if self.ok { "agrees" } else { "differs" };
        write!(f, "{what}: max |error| {:.3e}, max |reference| {:.3e}", self.max_error, self.max_reference)?;
        write!(f, "; worst at element {}: {:.3e}, allowed {:.3e}", self.worst, self.error, self.bound)
    }
}

impl Comparison {
    /// Compares the elements that are finite in both.
    ///
    /// # Errors
    /// If shapes or kinds of element types differ.
    pub fn of_finite(got: &Tensor, want: &Tensor, tolerance: Tolerance) -> Result<Comparison> {
        if !got.dtype().is_float() || got.shape() != want.shape() {
            return Comparison::of(got, want, tolerance);
        }
        let pairs: Vec<(f64, f64)> = got.to_f64().into_iter().zip(want.to_f64()).collect();
        let both = |(g, w): &(f64, f64)| g.is_finite() && w.is_finite();
        let part = |dtype: DType, one: &dyn Fn(&(f64, f64)) -> f64| {
            let kept: Vec<f64> = pairs.iter().map(|p| if both(p) { one(p) } else { 0.0 }).collect();
            Tensor::from_f64(dtype, got.shape(), &kept).ok_or_else(|| Error::Internal("elements of a result".into()))
        };
        Comparison::of(&part(got.dtype(), &|p| p.0)?, &part(want.dtype(), &|p| p.1)?, tolerance)
    }

    /// Compares a result with its reference.
    pub fn of(got: &Tensor, want: &Tensor, tolerance: Tolerance) -> Result<Comparison> {
        if got.dtype().is_float() != want.dtype().is_float() || got.shape() != want.shape() {
            let show = |t: &Tensor| format!("{}{:?}", t.dtype(), t.shape());
            return Err(Error::Input(format!("the result is {}, but the reference is {}", show(got), show(want))));
        }
        let (g, w) = (got.to_f64(), want.to_f64());
        let bound = bound(want, &w, tolerance);
        let mut c = Comparison { max_error: 0.0, max_reference: 0.0, worst: 0, error: 0.0, bound: 0.0, ok: true };
        let mut most = -1.0;
        for (i, (g, w)) in g.iter().zip(&w).enumerate() {
            if w.is_finite() {
                c.max_reference = c.max_reference.max(w.abs());
            }
            let error = if g == w || (g.is_nan() && w.is_nan()) { 0.0 } else { (g - w).abs() };
            let error = if error.is_nan() { f64::INFINITY } else { error };
            c.max_error = c.max_error.max(error);
            let bound = bound(*w);
            let share =
                if error > bound && bound == 0.0 { f64::INFINITY } else { error / bound.max(f64::MIN_POSITIVE) };
            if share > most {
                (most, c.worst, c.error, c.bound) = (share, i, error, bound);
            }
            c.ok &= error <= bound;
        }
        Ok(c)
    }
}

/// How far an element may be from its reference, which is one of `values`, the elements of `want`.
fn bound(want: &Tensor, values: &[f64], tolerance: Tolerance) -> impl Fn(f64) -> f64 + use<> {
    let floats = want.dtype().is_float();
    // The reference may be less precise than the result.
    let rtol = tolerance.rtol.max(if floats { want.dtype().epsilon() } else { 0.0 });
    let atol = if floats { tolerance.atol.unwrap_or_else(|| tolerance.rtol * scale(values)) } else { 0.0 };
    move |w: f64| if floats && w.is_finite() { atol + rtol * w.abs() } else { 0.0 }
}

/// True if rounding explains how `got` differs from `want`: it is no further away than results of
/// the same function are whose roundings were moved at random. Elements beyond their bounds are
/// off by at most [`SCATTERS`] times the scatter of these results in the mean square, and none of
/// them by more than [`MOST_SCATTERS`].
///
/// NaN and infinities scatter nowhere.
pub fn is_noise(got: &Tensor, want: &Tensor, moved: &[&Tensor], tolerance: Tolerance) -> bool {
    let same = |t: &Tensor| t.shape() == want.shape() && t.dtype().is_float() == want.dtype().is_float();
    if moved.is_empty() || !same(got) || !moved.iter().all(|m| same(m)) {
        return false;
    }
    let (g, w) = (got.to_f64(), want.to_f64());
    let moved: Vec<Vec<f64>> = moved.iter().map(|m| m.to_f64()).collect();
    let bound = bound(want, &w, tolerance);
    let (mut square, mut beyond) = (0.0, 0.0);
    for (i, (g, w)) in g.into_iter().zip(w).enumerate() {
        if g == w || (g.is_nan() && w.is_nan()) {
            continue;
        }
        let excess = (g - w).abs() - bound(w);
        if excess <= 0.0 {
            continue;
        }
        let distances = moved.iter().map(|m| m[i] - w).filter(|d| d.is_finite());
        let (sum, n) = distances.fold((0.0, 0.0), |(sum, n), d| (sum + d * d, n + 1.0));
        let scatters = excess / (sum / n).sqrt();
        // It is NaN for infinities, and infinite for elements that do not move.
        if scatters.is_nan() || scatters > MOST_SCATTERS {
            return false;
        }
        square += scatters * scatters;
        beyond += 1.0;
    }
    square <= SCATTERS * SCATTERS * beyond
}

/// True if elements of `got` are beyond their bounds where no moved rounding takes the reference:
/// whatever rounding does to other elements explains nothing of these.
pub fn is_off_where_steady(got: &Tensor, want: &Tensor, moved: &[&Tensor], tolerance: Tolerance) -> bool {
    if moved.is_empty() || moved.iter().any(|m| m.shape() != want.shape()) || got.shape() != want.shape() {
        return false;
    }
    let (g, w) = (got.to_f64(), want.to_f64());
    let moved: Vec<Vec<f64>> = moved.iter().map(|m| m.to_f64()).collect();
    let bound = bound(want, &w, tolerance);
    let (mut beyond, mut steady) = (0usize, 0usize);
    for (i, (g, w)) in g.into_iter().zip(w).enumerate() {
        let excess = (g - w).abs() - bound(w);
        if excess > 0.0 {
            let farthest = moved.iter().map(|m| (m[i] - w).abs()).fold(0.0, f64::max);
            beyond += 1;
            steady += usize::from(excess > MOST_SCATTERS * farthest);
        }
    }
    steady >= STEADY && steady as f64 > STEADY_SHARE * beyond as f64
}

/// True if `got` is about as close to `truth` as `other` is, by its mean square and by its worst
/// element; integers are close to integers too. Where `other` has NaN or an infinity, which
/// rounding does not make, `got` must have the same.
pub fn no_less_precise(got: &Tensor, other: &Tensor, truth: &Tensor) -> bool {
    if got.shape() != truth.shape() || other.shape() != truth.shape() || got.dtype() == DType::Bool {
        return false;
    }
    let (mut square, mut worst) = ([0.0f64; 2], [0.0f64; 2]);
    for ((g, o), t) in got.to_f64().into_iter().zip(other.to_f64()).zip(truth.to_f64()) {
        if !(g.is_finite() && o.is_finite() && t.is_finite()) {
            if g.to_bits() != o.to_bits() && !(g.is_nan() && o.is_nan()) {
                return false;
            }
            continue;
        }
        for (i, error) in [(g - t).abs(), (o - t).abs()].into_iter().enumerate() {
            square[i] += error * error;
            worst[i] = worst[i].max(error);
        }
    }
    // Twice the error of the unfused plan: one more rounding step, not another function.
    square[0] <= 4.0 * square[1] && worst[0] <= 4.0 * worst[1]
}

/// The magnitude that rounding is relative to: see the top of this file.
fn scale(values: &[f64]) -> f64 {
    let step = values.len().div_ceil(SAMPLE).max(1) | 1;
    let magnitudes = values.iter().step_by(step).map(|v| v.abs());
    let mut sorted: Vec<f64> = magnitudes.filter(|v| v.is_finite() && *v > 0.0).collect();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted.dedup();
    let Some(largest) = sorted.last().copied() else { return 0.0 };
    let quarter = &sorted[..sorted.len().div_ceil(4)];
    // Divided by the largest of them, so that squares stay finite.
    let top = quarter[quarter.len() - 1];
    let square = quarter.iter().map(|v| (v / top) * (v / top)).sum::<f64>() / quarter.len() as f64;
    let normal = (top * square.sqrt() * QUARTER).min(largest);
    if sorted.len() < FEW { normal.max((largest / 256.0).min(1e6 * normal)) } else { normal }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use rand::prelude::*;
    use rand_chacha::ChaCha8Rng;

    fn f32s(values: &[f64]) -> Tensor {
        Tensor::from_f64(DType::F32, &[values.len()], values).unwrap()
    }

    /// Whether values that are off by `error` in their first element agree with these.
    fn passes(values: &[f64], error: f64) -> bool {
        let mut off = values.to_vec();
        off[0] += error;
        Comparison::of(&f32s(&off), &f32s(values), Tolerance::of(DType::F32, 1)).unwrap().ok
    }

    /// Numbers of about that magnitude, small ones among them.
    fn normal(n: usize, magnitude: f64) -> Vec<f64> {
        let mut rng = ChaCha8Rng::seed_from_u64(7);
        (0..n).map(|_| (0..12).map(|_| rng.random_range(-0.5..0.5)).sum::<f64>() * magnitude).collect()
    }

    #[test]
    fn the_scale_is_that_of_the_ordinary_elements() {
        for magnitude in [1e-20, 1.0, 1e20] {
            let s = scale(&normal(20_000, magnitude)) / magnitude;
            assert!((0.7..1.4).contains(&s), "{s}");
        }
        assert_eq!(scale(&[]), 0.0);
        assert_eq!(scale(&[0.0, f64::NAN, f64::INFINITY]), 0.0);
        assert!(scale(&[3e-4, 2.1]) > 1e-3, "two numbers, one of which cancelled");
    }

    #[test]
    fn outliers_hide_nothing() {
        for outlier in [1e5, -3.4e38] {
            for share in [1, 32, 60] {
                let mut values = normal(128, 1.0);
                values[128 - share..].iter_mut().enumerate().for_each(|(i, v)| *v = outlier * (1.0 - i as f64 / 1e3));
                assert!(!passes(&values, 0.01), "{share} elements of {outlier}");
                assert!(passes(&values, 2e-5), "{share} elements of {outlier}");
            }
            // A mask is one value, however often it stands there.
            let mut masked = normal(32, 1.0);
            masked.extend([outlier; 1000]);
            assert!(!passes(&masked, 0.01) && passes(&masked, 2e-5));
        }
    }

    #[test]
    fn what_cancelled_is_measured_by_its_neighbours() {
        let mut values = normal(64, 1.0);
        values[0] = 1e-9;
        assert!(passes(&values, 1e-5) && !passes(&values, 1e-2));
        values[0] = 0.0;
        assert!(passes(&values, 1e-5) && !passes(&values, 1e-2));
    }

    #[test]
    fn a_result_may_be_off_by_as_much_as_the_plain_one_is() {
        let truth = normal(1000, 1.0);
        let off = |by: f64, sign: f64| -> Tensor {
            let values = truth.iter().enumerate().map(|(i, v)| v + sign * by * ((i * 7919 % 13) as f64 / 6.0 - 1.0));
            f32s(&values.collect::<Vec<_>>())
        };
        let exact = f32s(&truth);
        assert!(no_less_precise(&off(0.05, -1.0), &off(0.05, 1.0), &exact));
        assert!(no_less_precise(&exact, &off(0.05, 1.0), &exact));
        assert!(!no_less_precise(&off(0.15, -1.0), &off(0.05, 1.0), &exact));
        let mut one = truth.clone();
        one[3] += 1.0;
        assert!(!no_less_precise(&f32s(&one), &off(0.05, 1.0), &exact), "one wrong element");
        one[3] = f64::NAN;
        assert!(!no_less_precise(&f32s(&one), &off(0.05, 1.0), &exact));
        assert!(no_less_precise(&f32s(&one), &f32s(&one), &exact));
    }

    #[test]
    fn what_the_scatter_of_rounding_explains_is_noise() {
        let t = Tolerance::of(DType::F32, 1);
        // The first half cancelled: its elements are noise. The others are as they are.
        let sample = |shift: usize, by: f64| -> Tensor {
            let noise = normal(200, 1e-9);
            f32s(&(0..128).map(|i| if i < 64 { by * noise[i + shift] } else { 1.0 + i as f64 }).collect::<Vec<_>>())
        };
        let want = sample(0, 1.0);
        let moved: Vec<Tensor> = (1..9).map(|shift| sample(shift, 1.0)).collect();
        let moved: Vec<&Tensor> = moved.iter().collect();
        let differs = |got: &Tensor| !Comparison::of(got, &want, t).unwrap().ok;
        let noise = sample(20, 1.0);
        assert!(differs(&noise) && is_noise(&noise, &want, &moved, t));
        let more = sample(20, 10.0);
        assert!(differs(&more) && !is_noise(&more, &want, &moved, t), "ten times the noise");
        for (at, by) in [(3, 1e-7), (100, 1.0), (100, f64::NAN), (100, f64::INFINITY)] {
            let mut wrong = noise.to_f64();
            wrong[at] += by;
            assert!(!is_noise(&f32s(&wrong), &want, &moved, t), "element {at} off by {by}");
        }
        assert!(!is_noise(&noise, &want, &[], t));
    }

    /// `sin(1e6 relu(x))`: rounding takes the sines anywhere, and the zeros nowhere.
    #[test]
    fn elements_that_no_rounding_moves_are_not_excused_by_others() {
        let n = 512;
        let mut rng = ChaCha8Rng::seed_from_u64(7);
        let mut sines = |moves: bool| -> Vec<f64> {
            (0..n)
                .map(|i| if i % 2 == 0 { if moves { rng.random_range(-1.0..1.0) } else { 0.0 } } else { 0.0 })
                .collect()
        };
        let want = sines(true);
        let moved: Vec<Tensor> = (0..8).map(|_| f32s(&sines(true))).collect();
        let moved: Vec<&Tensor> = moved.iter().collect();
        let t = Tolerance::of(DType::F32, 4);
        let other = sines(true);
        assert!(!is_off_where_steady(&f32s(&other), &f32s(&want), &moved, t), "sines elsewhere");
        let wrong: Vec<f64> = other.iter().enumerate().map(|(i, v)| if i % 2 == 1 { 0.5 } else { *v }).collect();
        assert!(is_off_where_steady(&f32s(&wrong), &f32s(&want), &moved, t), "no zeros");
        // A step that one rounding crossed, and none of the moved ones.
        let mut one = other;
        one[1] = 1.0;
        assert!(!is_off_where_steady(&f32s(&one), &f32s(&want), &moved, t));
        assert!(!is_off_where_steady(&f32s(&wrong), &f32s(&want), &[], t), "nothing is known");
    }

    #[test]
    fn nan_and_infinities_agree_with_themselves_only() {
        let special = f32s(&[f64::NAN, f64::INFINITY, 1.0]);
        let t = Tolerance::of(DType::F32, 1);
        assert!(Comparison::of(&special, &special, t).unwrap().ok);
        for other in [[1.0, f64::INFINITY, 1.0], [f64::NAN, f64::NEG_INFINITY, 1.0], [f64::NAN, 3e38, 1.0]] {
            assert!(!Comparison::of(&f32s(&other), &special, t).unwrap().ok);
            assert!(!Comparison::of(&special, &f32s(&other), t).unwrap().ok);
        }
        let ints = |v: &[f64]| Tensor::from_f64(DType::I64, &[2], v).unwrap();
        assert!(!Comparison::of(&ints(&[1e6, 2.0]), &ints(&[1e6 + 1.0, 2.0]), t).unwrap().ok);
        assert!(Comparison::of(&ints(&[1.0, 2.0]), &f32s(&[1.0, 2.0]), t).is_err());
    }
}
