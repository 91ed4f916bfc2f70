//! Differences between results, and how much of a difference rounding allows.
//!
//! In: the elements of two results. Out: the first [`Difference`] that exceeds rounding. Invariant:
//! NaN equals NaN, and a bound follows from the element type and the largest element.

use hypatia_dsl::dtype::DType;

use hypatia_eval::{RefTensor, Val};
use hypatia_graph::show_number;

/// A difference between the two sides.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// The index of the root.
    pub root: usize,
    /// Index of the element, row-major.
    pub index: usize,
    /// The left side's element.
    pub left: f64,
    /// The right side's element.
    pub right: f64,
    /// The element as a real number, if it was computed.
    pub exact: Option<f64>,
    /// Both elements if they are integers, which f64 may not hold exactly.
    pub whole: Option<(i64, i64)>,
}

impl Difference {
    /// The difference between one element of the left and of the right side.
    pub(super) fn between(
        root: usize,
        index: usize,
        left: &RefTensor,
        right: &RefTensor,
        exact: Option<f64>,
    ) -> Difference {
        let (l, r) = (left.at(index), right.at(index));
        let whole = match (l, r) {
            (Val::I(l), Val::I(r)) => Some((l, r)),
            _ => None,
        };
        Difference { root, index, left: l.f(), right: r.f(), exact, whole }
    }

    /// Both elements as text.
    pub fn shown(&self) -> (String, String) {
        match self.whole {
            Some((l, r)) => (l.to_string(), r.to_string()),
            None => (show_number(self.left), show_number(self.right)),
        }
    }

    /// Both elements as this type holds them, where nothing computes in it and they differ there.
    pub fn shown_in(&self, dtype: DType) -> (String, String) {
        let (l, r) = (dtype.round(self.left), dtype.round(self.right));
        match dtype.only_stored() && l != r && !(l.is_nan() && r.is_nan()) {
            true => (show_number(l), show_number(r)),
            false => self.shown(),
        }
    }

    /// Names the side that is further from the real number, where that is known.
    pub fn less_precise(&self) -> Option<String> {
        let x = self.exact.filter(|_| self.left != self.right && self.left.is_finite() && self.right.is_finite())?;
        let (l, r) = ((self.left - x).abs(), (self.right - x).abs());
        let which = match l.total_cmp(&r) {
            std::cmp::Ordering::Less => "the right side is less precise",
            std::cmp::Ordering::Greater => "the left side is less precise",
            std::cmp::Ordering::Equal => "both sides are equally far from it",
        };
        Some(format!("the exact value is {}: {which}", show_number(x)))
    }
}

/// The first element whose difference exceeds the rounding of its element type: some units in the
/// last place of the largest element. Elements for which `excused` is true are skipped.
pub fn far_apart(
    root: usize,
    got: &RefTensor,
    wanted: &RefTensor,
    excused: &dyn Fn(usize) -> bool,
) -> Option<Difference> {
    let (a, b) = (got.to_f64(), wanted.to_f64());
    let tolerance = tolerance(wanted.dtype, &b);
    let same = |l: f64, r: f64| l == r || (l.is_nan() && r.is_nan()) || (l - r).abs() <= tolerance;
    let index = (0..a.len().min(b.len())).find(|i| !same(a[*i], b[*i]) && !excused(*i))?;
    Some(Difference { root, index, left: a[index], right: b[index], exact: None, whole: None })
}

/// How much a result may differ from these expected elements.
pub fn tolerance(dtype: DType, wanted: &[f64]) -> f64 {
    let largest = wanted.iter().filter(|v| v.is_finite()).fold(0.0f64, |m, v| m.max(v.abs()));
    let units = match dtype {
        DType::F64 => 256.0,
        DType::F32 => 64.0,
        _ => 8.0,
    };
    units * dtype.epsilon() * largest
}

/// `[1, 2]` from a row-major index.
pub fn position(index: usize, shape: &[usize]) -> String {
    let mut rest = index;
    let mut at: Vec<usize> = shape
        .iter()
        .rev()
        .map(|d| {
            let i = rest % (*d).max(1);
            rest /= (*d).max(1);
            i
        })
        .collect();
    at.reverse();
    format!("{at:?}")
}

/// The distance between neighbouring values of the type near `v`.
pub fn ulp(dtype: DType, v: f64) -> f64 {
    let (least_exponent, eps) = match dtype {
        DType::F64 => (-1022, f64::EPSILON),
        DType::F32 => (-126, f32::EPSILON as f64),
        DType::F16 => (-14, dtype.epsilon()),
        DType::BF16 => (-126, dtype.epsilon()),
        DType::F8E4M3 => (-6, dtype.epsilon()),
        DType::F8E5M2 => (-14, dtype.epsilon()),
        _ => return 1.0,
    };
    let v = v.abs();
    let exponent =
        if v == 0.0 || !v.is_finite() { least_exponent } else { (v.log2().floor() as i32).max(least_exponent) };
    eps * 2f64.powi(exponent)
}
