//! Elements of random tensors.
//!
//! In: a flavour and an element type. Out: tensors whose elements have codes on the tape; code 0 is
//! the simplest element. Holds always: values lie in the element type's range; indices lie in the
//! range of the axis that they index.

use hypatia_dsl::dtype::DType;
use rand::Rng;

use super::source::Source;
use crate::tensor::Tensor;

/// What kind of values an instance has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Flavour {
    /// Small integers: arithmetic on them is exact, and ties are frequent.
    Nice,
    /// Moderate numbers, zeros among them.
    Ordinary,
    /// Moderate numbers and some large ones: meaning is compared, precision is not (cancellation would
    /// drown it).
    Large,
    /// Moderate numbers and some NaN.
    Nan,
    /// Infinities, denormals, the largest and the smallest numbers too.
    Extreme,
    /// Moderate numbers and some infinities: nothing overflows, so that an infinity is lost or made by the rule alone.
    Infinite,
}

impl Flavour {
    /// From the simplest on.
    pub const ALL: [Flavour; 6] =
        [Flavour::Nice, Flavour::Ordinary, Flavour::Large, Flavour::Nan, Flavour::Extreme, Flavour::Infinite];

    /// The word in reports.
    pub fn name(self) -> &'static str {
        match self {
            Flavour::Nice => "small integers",
            Flavour::Ordinary => "ordinary values",
            Flavour::Large => "large values",
            Flavour::Nan => "values with NaN",
            Flavour::Extreme => "extreme values",
            Flavour::Infinite => "values with infinities",
        }
    }
}

/// What is asked of one tensor's elements beyond the flavour.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Demand {
    /// All elements are equal.
    pub splat: bool,
    /// All elements are this number.
    pub is: Option<f64>,
    /// At least 0 and not NaN.
    pub nonnegative: bool,
    /// Above 0 and not NaN.
    pub positive: bool,
    /// No NaN and no infinity.
    pub finite: bool,
    /// Indices into an axis of that size.
    pub index: Option<i64>,
}

const NICE: [f64; 10] = [1.0, 2.0, 0.0, -1.0, 3.0, -2.0, 4.0, -3.0, 5.0, -0.0];
const CONTINUOUS: u32 = 4096;
/// Larger numbers, so that branches for large arguments are taken.
const LARGE: [f64; 14] =
    [7.5, -7.5, 19.25, -19.25, 130.5, -130.5, 3.3e3, -3.3e3, 2.5e5, -2.5e5, 1.7e9, -1.7e9, 6.1e12, -6.1e12];

/// Extreme elements of a float type.
fn extremes(dtype: DType) -> [f64; 14] {
    let (max, min, tiny) = match dtype {
        DType::F64 => (f64::MAX, f64::MIN_POSITIVE, 5e-324),
        DType::F32 => (f32::MAX as f64, f32::MIN_POSITIVE as f64, 1e-45),
        DType::F16 => (65504.0, 6.103515625e-5, 5.960464477539063e-8),
        _ => (3.3895313892515355e38, f32::MIN_POSITIVE as f64, 9.183549615799121e-41),
    };
    let inf = f64::INFINITY;
    [f64::NAN, inf, -inf, -0.0, 0.0, tiny, -tiny, min, -min, max, -max, 100.0, -100.0, 1e4]
}

/// A tensor of that type.
pub fn tensor(source: &mut Source, flavour: Flavour, dtype: DType, shape: &[usize], demand: &Demand) -> Option<Tensor> {
    let n = shape.iter().try_fold(1usize, |a, d| a.checked_mul(*d))?;
    let mut data = Vec::with_capacity(n);
    let distinct = if demand.splat || demand.is.is_some() { n.min(1) } else { n };
    for _ in 0..distinct {
        let v = match demand.is {
            Some(v) => v,
            None => element(source, flavour, dtype, demand, distinct),
        };
        data.push(dtype.round(v));
    }
    let first = data.first().copied().unwrap_or(0.0);
    data.resize(n, first);
    Tensor::from_f64(dtype, shape, &data)
}

fn element(source: &mut Source, flavour: Flavour, dtype: DType, demand: &Demand, elements: usize) -> f64 {
    if let Some(size) = demand.index {
        // 0, 1, ... size-1, -1, ... -size
        let code = source.element((2 * size).clamp(1, 1 << 20) as u32, |r| r.random_range(0..(2 * size).max(1) as u32));
        let code = code as i64;
        return if code < size { code as f64 } else { (size - 1 - code) as f64 };
    }
    let v = if dtype == DType::Bool {
        source.element(2, |r| r.random_range(0..2)) as f64
    } else if dtype.is_float() {
        float(source, flavour, dtype, elements)
    } else {
        NICE[source.element(9, |r| r.random_range(0..9)) as usize]
    };
    let v = if dtype == DType::U8 { v.abs() } else { v };
    let v = if (demand.finite || demand.nonnegative || demand.positive) && v.is_nan() { 1.0 } else { v };
    let v = if demand.finite && v.is_infinite() { 1.0 } else { v };
    let v = if demand.nonnegative || demand.positive { v.abs() } else { v };
    if demand.positive && v == 0.0 { 1.0 } else { v }
}

/// An element of a tensor of so many distinct ones: where there are few, each is special more often.
fn float(source: &mut Source, flavour: Flavour, dtype: DType, elements: usize) -> f64 {
    let nice = NICE.len() as u32;
    let all = nice + CONTINUOUS + 14;
    let seldom = f64::max(0.12, 0.35 / elements.max(1) as f64);
    let code = source.element(all, |r| {
        let (p_nice, p_special) = match flavour {
            Flavour::Nice => (1.0, 0.0),
            Flavour::Ordinary => (0.2, 0.0),
            Flavour::Large => (0.15, 0.3),
            Flavour::Nan => (0.2, seldom),
            Flavour::Extreme => (0.15, 0.35),
            Flavour::Infinite => (0.2, seldom),
        };
        let p: f64 = r.random();
        if p < p_nice {
            r.random_range(0..nice)
        } else if p < p_nice + p_special {
            let kinds = if flavour == Flavour::Nan { 1 } else { 14 };
            nice + CONTINUOUS + r.random_range(0..kinds)
        } else {
            nice + r.random_range(0..CONTINUOUS)
        }
    });
    if code < nice {
        NICE[code as usize]
    } else if code < nice + CONTINUOUS {
        // Spread over (-3, 3), never a short binary fraction.
        let k = (code - nice) as u64;
        let mixed = (k.wrapping_mul(2_654_435_761) % 1_000_003) as f64;
        mixed / 1_000_003.0 * 6.0 - 3.0
    } else {
        // A shrunk tape may name a special value where the flavour has none: take the flavour's.
        match flavour {
            Flavour::Extreme => extremes(dtype)[(code - nice - CONTINUOUS) as usize % 14],
            Flavour::Nan => f64::NAN,
            Flavour::Infinite if (code - nice - CONTINUOUS).is_multiple_of(2) => f64::INFINITY,
            Flavour::Infinite => f64::NEG_INFINITY,
            Flavour::Large => {
                let v = LARGE[(code - nice - CONTINUOUS) as usize % 14];
                if dtype.round(v).is_finite() { v } else { 19.25 }
            }
            _ => 1.0,
        }
    }
}
