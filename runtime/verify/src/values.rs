//! Elements of random tensors.
//!
//! In: a distribution and an element type. Out: tensors whose elements have codes on the tape; code
//! 0 is the simplest element. The elements include the boundary values at which an otherwise true
//! rule may fail: halves, the limits of integer types, and the rule's own numbers. Invariant:
//! values lie in the element type's range; indices lie in the range of the axis that they index.

mod halfway;
mod levels;

use std::collections::BTreeSet;

use hypatia_dsl::dtype::DType;
use rand::Rng;

use super::constants::Constants;
use super::differ::ulp;
use super::source::Source;
use halfway::{Halfway, KINDS};
use hypatia_eval::{Data, RefTensor};
use hypatia_graph::Graph;
use hypatia_optimize::range_loss::smallest_normal;
use hypatia_tensor::tensor::Tensor;
pub use levels::{kinds_of_overflow, stands_for_another};
use levels::{levels, of_level, overflowing};

/// What kind of values an instance has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Distribution {
    /// Small integers: arithmetic on them is exact, and ties are frequent.
    Nice,
    /// Moderate numbers, including zeros.
    Ordinary,
    /// Moderate numbers and some large ones. Meaning is compared; precision is not (cancellation
    /// would hide it).
    Large,
    /// Moderate numbers and some NaNs.
    Nan,
    /// Also infinities, denormals, and the largest and smallest numbers.
    Extreme,
    /// Moderate numbers and some infinities. Nothing overflows, so only the rule itself can lose or
    /// make an infinity.
    Infinite,
    /// Constants so small, or so large, that two of them together leave the range of their type,
    /// and an operand that compensates for them. Only for rules that require constants.
    Far,
    /// Numbers next to this power of two, which types of fewer digits do not tell apart; where a
    /// type does not reach it, next to its largest integer, or to 1.
    Neighbours(u8),
    /// Numbers inside and beyond the ranges of the types that occur in the rule, and simple ones.
    Ends,
    /// Halves and integers, and their neighbours.
    Halves,
    /// Numbers next to this one of [`TWINS`]: operands and elements are neighbours of each other.
    Twins(u8),
    /// All elements are equal but for the last, which is the largest or the smallest; or all are 1,
    /// or negative, or integers of 8 bits the largest there are, or those of the largest magnitude.
    Last(u8),
    /// Numbers of few bits: integers from the whole range, around its eighths, and sums of two
    /// powers of two; the smallest numbers of a float type (1: only these), and 1 with two more
    /// bits.
    FewBits(u8),
    /// Moderate numbers; indices of the last places.
    LastPlaces,
    /// Numbers whose quotients and roots lie next to the middle between numbers of narrower types.
    Halfway,
    /// Whole tensors of one magnitude, which lies beyond a number of the rule or between two.
    Levels(u8),
    /// Numbers whose sums, squares, cubes, or products with a number of the rule leave the range.
    Overflowing(u8),
    /// Nothing but one infinity: -inf (0) or inf.
    Infinities(u8),
    /// Tensors of ordinary numbers, of -inf, and of both.
    Hidden,
    /// Values of one kind in large tensors, for statistics; see `ensemble`.
    Ensemble(Ensemble),
}

/// The kinds of values of ensembles. The kind of each tensor is one of several.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ensemble {
    /// N(0, 1).
    Normal,
    /// N(0, 1) beside a large offset: squares lose all digits of the spread. Operands that a guard
    /// requires to be constant have none: a constant that takes the offset away again is the
    /// model's own.
    Offset,
    /// N(0, 1) in long rows.
    LongRows,
    /// Tensors of different magnitudes up to the largest number of the type.
    Upper,
    /// Tensors of different magnitudes down to the smallest normal number of the type, and to what
    /// narrower types hold with a few digits only.
    Lower,
    /// Tensors of large magnitudes beside tensors of small ones, whose products are ordinary.
    Opposed,
    /// Wide spreads, magnitudes from 2^-12 to 2^12, zeros, halves, and the rule's own numbers.
    Hostile,
    /// Numbers around one of the rule's own, so near that a difference from it has half of the
    /// digits. Only for rules that have numbers.
    Near,
    /// Moderate magnitudes, with attributes such as a scale of 1000. Only for rules that have them.
    Scaled,
}

impl Ensemble {
    /// All kinds.
    pub const ALL: [Ensemble; 9] = [
        Ensemble::Normal,
        Ensemble::Offset,
        Ensemble::LongRows,
        Ensemble::Upper,
        Ensemble::Lower,
        Ensemble::Opposed,
        Ensemble::Hostile,
        Ensemble::Near,
        Ensemble::Scaled,
    ];

    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Ensemble::Normal => "values of N(0, 1)",
            Ensemble::Offset => "a large offset with a small spread",
            Ensemble::LongRows => "long rows",
            Ensemble::Upper => "the upper range of the type",
            Ensemble::Lower => "the lower range of the type",
            Ensemble::Opposed => "large values beside small ones",
            Ensemble::Hostile => "values of many magnitudes",
            Ensemble::Near => "values near the rule's own numbers",
            Ensemble::Scaled => "large scales",
        }
    }
}

impl Distribution {
    /// All distributions, simplest first.
    pub const ALL: [Distribution; 7] = [
        Distribution::Nice,
        Distribution::Ordinary,
        Distribution::Large,
        Distribution::Nan,
        Distribution::Extreme,
        Distribution::Infinite,
        Distribution::Far,
    ];

    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Distribution::Nice => "small integers",
            Distribution::Ordinary => "ordinary values",
            Distribution::Large => "large values",
            Distribution::Nan => "values with NaN",
            Distribution::Extreme => "extreme values",
            Distribution::Infinite => "values with infinities",
            Distribution::Far => "constants near the ends of the range",
            Distribution::Neighbours(_) => "neighbours of a power of two",
            Distribution::Ends => "the ends of the types' ranges",
            Distribution::Halves => "neighbours of halves and integers",
            Distribution::Twins(_) => "neighbours of each other",
            Distribution::Last(_) => "one element apart from equal ones",
            Distribution::FewBits(_) => "numbers of few bits",
            Distribution::LastPlaces => "indices of the last places",
            Distribution::Halfway => "numbers next to the middle of others",
            Distribution::Levels(_) => "numbers of one magnitude",
            Distribution::Overflowing(_) => "numbers at the end of a range",
            Distribution::Infinities(_) => "nothing but one infinity",
            Distribution::Hidden => "tensors of -inf",
            Distribution::Ensemble(kind) => kind.name(),
        }
    }
}

/// Requirements on one tensor's elements, beyond the distribution.
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
    /// Indices into an axis of this size.
    pub index: Option<i64>,
    /// These are the last ones of the axis.
    pub last: bool,
    /// Small integers only.
    pub small: bool,
    /// The range of the elements if the distribution is [`Distribution::Far`].
    pub far: Magnitude,
    /// Which of the alternatives of an ensemble, or of [`Distribution::Halfway`], the tensor has.
    pub alternative: usize,
}

/// Magnitudes of elements: powers of the smallest or the largest normal number of their type.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Magnitude {
    /// Ordinary.
    #[default]
    Near,
    /// The product of two such numbers is about as small as the type holds, or smaller.
    Small,
    /// The product of two such numbers is about as large as the type holds, or larger.
    Large,
    /// The sum of two such numbers is beyond what the type holds.
    Half,
    /// Such a number plus two of those is an ordinary number.
    AgainstHalves,
    /// Such a number combined with two small ones gives an ordinary result.
    AgainstSmall,
    /// Such a number combined with two large ones gives an ordinary result.
    AgainstLarge,
}

/// The number of magnitudes of far elements.
const MAGNITUDES: u32 = 64;

impl Magnitude {
    /// An element. Every range also contains 1, -1.5 and 0, so that a tensor mixes near and far
    /// elements.
    fn element(self, source: &mut Source, dtype: DType) -> f64 {
        let near = 3;
        let mixes = !matches!(self, Magnitude::Half | Magnitude::AgainstHalves);
        let code = source.element(near + 2 * MAGNITUDES, |r| match r.random_range(0..8) {
            0 if mixes => r.random_range(0..near),
            _ => near + r.random_range(0..2 * MAGNITUDES),
        });
        let Some(far) = code.checked_sub(near) else { return [1.0, -1.5, 0.0][code as usize % 3] };
        let part = f64::from(far / 2 % MAGNITUDES) / f64::from(MAGNITUDES);
        match self {
            Magnitude::Half => return dtype.largest() * (0.51 + 0.09 * part),
            Magnitude::AgainstHalves => return -dtype.largest() * (0.9 + 0.1 * part),
            _ => {}
        }
        let (least, largest) = (smallest_normal(dtype).log2(), dtype.largest().log2());
        let exponent = match self {
            Magnitude::Near | Magnitude::Half | Magnitude::AgainstHalves => 2.0 * part - 1.0,
            Magnitude::Small => least * (0.3 + 0.69 * part),
            Magnitude::Large => largest * (0.3 + 0.69 * part),
            Magnitude::AgainstSmall => -least * (0.5 + 0.45 * part),
            Magnitude::AgainstLarge => -largest * (0.5 + 0.4 * part),
        };
        let v = exponent.exp2();
        if far.is_multiple_of(2) { v } else { -v }
    }
}

/// How many bits of a number a narrower type loses below its normal range, at most.
const DIGITS_LOST: f64 = 12.0;
/// The number of codes of an ensemble's elements.
const MANY: u32 = 1 << 20;
/// The number of alternatives that a tensor of an ensemble has.
pub(super) const ALTERNATIVES: usize = 5;
/// The same of [`Distribution::Halfway`].
pub(super) const KINDS_OF_HALFWAY: usize = KINDS;

impl Ensemble {
    /// An element of a tensor that has this alternative. Code 0 is the centre.
    fn element(self, source: &mut Source, alternative: usize, dtype: DType, special: &SpecialValues) -> f64 {
        let code = source.element(MANY, |r| r.random_range(0..MANY));
        let noise = if code == 0 { 0.0 } else { normal(code) };
        let share = f64::from(code.wrapping_mul(40_503) % MANY) / f64::from(MANY);
        let v = match (self, alternative) {
            (Ensemble::Offset, 0 | 1) => noise + 1.4 / dtype.epsilon().sqrt(),
            (Ensemble::Offset, 2 | 3) => noise - 1.4 / dtype.epsilon().sqrt(),
            (Ensemble::Upper, 0..=3) => noise * (dtype.largest().log2() * [0.35, 0.6, 0.95, 0.99][alternative]).exp2(),
            (Ensemble::Lower, 0..=2) => noise * (smallest_normal(dtype).log2() * [0.35, 0.7, 1.0][alternative]).exp2(),
            (Ensemble::Lower, _) if special.least > 0.0 => noise * special.least * (-DIGITS_LOST * share).exp2(),
            (Ensemble::Opposed, 0..=3) => {
                noise * (dtype.largest().log2() * [0.35, -0.35, 0.45, -0.45][alternative]).exp2()
            }
            (Ensemble::Hostile, _) => match code % 16 {
                0 => 0.0,
                1 => HALVES[(code / 16) as usize % HALVES.len()],
                2 if !special.elements.is_empty() => special.elements[(code / 16) as usize % special.elements.len()],
                3 | 4 => noise * (24.0 * share - 12.0).exp2(),
                _ => noise * [1.0, 30.0, 300.0, 1e-3, 30.0][alternative % ALTERNATIVES],
            },
            (Ensemble::Scaled, _) => noise * [100.0, 0.01, 30.0, 1.0, 100.0][alternative % ALTERNATIVES],
            (Ensemble::Near, _) if alternative < 2 * special.own.len() => {
                special.centre(alternative) * (1.0 + noise * dtype.epsilon().sqrt())
            }
            _ => noise,
        };
        v.clamp(-dtype.largest(), dtype.largest())
    }
}

/// A number of N(0, 1) for each code (Box and Muller).
fn normal(code: u32) -> f64 {
    let mixed = u64::from(code).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let unit = |bits: u64| ((bits & 0xffff_ffff) as f64 + 0.5) / 4_294_967_296.0;
    (-2.0 * unit(mixed).ln()).sqrt() * (std::f64::consts::TAU * unit(mixed >> 32)).cos()
}

/// Boundary values of functions, beyond those that every type has.
#[derive(Clone, Debug, Default)]
pub struct SpecialValues {
    elements: Vec<f64>,
    /// The rule's own numbers, without their neighbours.
    own: Vec<f64>,
    /// The largest integer.
    limit: f64,
    /// Numbers around the ends of the ranges of other types.
    ends: Vec<f64>,
    /// The smallest normal number of the other type whose is the largest, if it is larger than this
    /// type's; otherwise 0.
    least: f64,
    /// Numbers for [`Distribution::Halfway`].
    halfway: Halfway,
    /// The magnitudes of all numbers of the rule, and what lies beyond them and between.
    magnitudes: Vec<f64>,
    levels: Vec<f64>,
}

/// Halves: the boundaries of rounding to integers.
const HALVES: [f64; 7] = [0.5, -0.5, 1.5, 2.5, -1.5, -2.5, 3.5];

impl SpecialValues {
    /// The special values for a tensor of a graph: halves, the rule's own numbers as far as the
    /// distribution allows, and the rounding boundaries of the graph's narrower types.
    pub fn of(distribution: Distribution, dtype: DType, numbers: &Constants, graph: &Graph) -> SpecialValues {
        let own = numbers.elements(dtype);
        let whole = |v: f64| (v * 2.0).fract() == 0.0;
        let fits = |v: &&f64| match distribution {
            Distribution::Nice => whole(**v) && v.abs() <= 64.0,
            Distribution::Ordinary | Distribution::Nan | Distribution::Infinite | Distribution::Far => v.abs() <= 100.0,
            _ => true,
        };
        let mut out: Vec<f64> = Vec::new();
        if dtype.is_float() {
            out.extend(HALVES);
            let narrower = |d: &DType| d.is_float() && d.epsilon() > dtype.epsilon();
            let casts = graph.nodes.iter().flat_map(|n| &n.results).any(|t| narrower(&t.dtype));
            if distribution != Distribution::Nice && casts {
                [DType::F32, DType::BF16, DType::F16, DType::F8E4M3, DType::F8E5M2]
                    .iter()
                    .filter(|d| narrower(d))
                    .for_each(|d| ties(*d, dtype, &mut out));
            }
        }
        out.extend(own.iter().filter(fits));
        // In some distributions no integer overflows a float type: an overflow would excuse every
        // other difference.
        let floats = graph.nodes.iter().flat_map(|n| &n.results).map(|t| t.dtype).filter(|d| d.is_float());
        let limit = match distribution {
            Distribution::Nice => 5.0,
            Distribution::Ordinary | Distribution::Nan | Distribution::Far => {
                floats.map(DType::largest).fold(f64::INFINITY, f64::min)
            }
            _ => f64::INFINITY,
        };
        let others = graph.nodes.iter().flat_map(|n| &n.results).map(|t| t.dtype).chain(numbers.dtypes.iter().copied());
        let mut special =
            SpecialValues { elements: out, own: numbers.centres.clone(), limit, ..SpecialValues::default() };
        match distribution {
            Distribution::Ends => special.ends = ends(dtype, others.collect()),
            Distribution::Ensemble(Ensemble::Lower) if dtype.is_float() => {
                let least = others.filter(|d| d.is_float()).map(smallest_normal).fold(0.0, f64::max);
                special.least = if least > smallest_normal(dtype) { least } else { 0.0 };
            }
            Distribution::Levels(_) => special.levels = levels(&numbers.magnitudes, dtype),
            Distribution::Overflowing(_) => special.magnitudes = numbers.magnitudes.clone(),
            Distribution::Halfway if dtype.is_float() => {
                let others: BTreeSet<DType> = others.collect();
                let narrower = others.into_iter().filter(|d| d.is_float() && d.epsilon() > dtype.epsilon());
                special.halfway = Halfway::of(dtype, narrower, &special.own);
            }
            _ => {}
        }
        special
    }

    /// What the elements of a tensor with this alternative lie around: one of the rule's numbers,
    /// of either sign.
    fn centre(&self, alternative: usize) -> f64 {
        let number = self.own.get(alternative / 2).copied().unwrap_or(1.0);
        if alternative.is_multiple_of(2) { number } else { -number }
    }
}

/// Numbers halfway between neighbours of a narrower type, and numbers slightly off: a type of
/// intermediate width rounds the latter to the midpoint (double rounding).
fn ties(narrow: DType, wide: DType, out: &mut Vec<f64>) {
    let little = if wide == DType::F64 { 2f64.powi(-40) } else { 2f64.powi(-20) };
    for middle in [1.0 + 0.5 * narrow.epsilon(), 1.0 + 1.5 * narrow.epsilon()] {
        out.extend([middle, middle + little, middle - little, -middle - little]);
    }
}

/// Numbers below the normal range of a float type, between two that it holds.
fn lower_ends(dtype: DType) -> impl Iterator<Item = f64> {
    let [tiny, least] = [5, 7].map(|i| extremes(dtype)[i]);
    let few = [0.3, 0.6, 1.3, 2.7, 5.4].map(|steps| steps * tiny);
    few.into_iter().chain([0.25, 0.5, 1.0].map(|part| part * least + 0.3 * tiny))
}

/// Numbers around the ends of the ranges of those types that hold less than this one.
fn ends(dtype: DType, others: BTreeSet<DType>) -> Vec<f64> {
    let mut out = Vec::new();
    let largest = if dtype.is_float() { dtype.largest() } else { range(dtype).1 };
    for other in others.into_iter().filter(|d| *d != dtype && *d != DType::Bool) {
        if other.is_float() {
            let (most, unit) = (other.largest(), ulp(other, other.largest()));
            let near = [0.0, 0.25, 0.5, 0.75].map(|part| most + part * unit);
            out.extend(near.into_iter().chain([1.25, 1.9, 2.0, 4.0, 0.75, 0.5].map(|part| part * most)));
            if dtype.is_float() && extremes(other)[5] > extremes(dtype)[5] {
                out.extend(lower_ends(other));
            }
        } else {
            let (least, most) = range(other);
            out.extend([0.0, 1.0, 0.5, -0.5, most].map(|step| most + step));
            out.extend([0.0, 1.0, 0.5, -0.5].map(|step| step - least));
        }
    }
    out.retain(|v| *v <= largest);
    out
}

/// The least and the largest number of an integer type.
fn range(dtype: DType) -> (f64, f64) {
    match dtype {
        DType::I8 => (i8::MIN.into(), i8::MAX.into()),
        DType::U8 => (0.0, u8::MAX.into()),
        DType::I32 => (i32::MIN.into(), i32::MAX.into()),
        _ => (i64::MIN as f64, i64::MAX as f64),
    }
}

/// Numbers whose neighbours are tried; between two powers of two, many products of them are equal.
pub const TWINS: [f64; 17] =
    [1.0, 1.5, 1.75, 0.5, 2.5, 3.0, 0.1, 28.5, 1.9, 127.5, 7.0, 1.4, 100.0, 0.3, -1.6, 1000.0, -1e5];

/// The number that is so many steps above or below this one, in its type.
fn beside(dtype: DType, v: f64, steps: i32) -> f64 {
    let most = 0.5 * dtype.largest();
    (0..steps.abs()).fold(dtype.round(v.clamp(-most, most)), |v, _| {
        let away = f64::from(steps.signum()) * ulp(dtype, v);
        // Towards 0, the neighbour of a power of two is half as far away.
        let near = dtype.round(v + 0.5 * away);
        if near != v && (v + 0.5 * away) == near { near } else { dtype.round(v + away) }
    })
}

/// A half or an integer, or a neighbour of one.
fn half(source: &mut Source, dtype: DType) -> f64 {
    let code = source.element(3 * HALF_STEPS, |r| {
        let most = [8, 8, 64, HALF_STEPS][r.random_range(0..4)];
        3 * r.random_range(0..most) + r.random_range(0..3)
    });
    let (at, step) = (code / 3, [0, -1, 1][code as usize % 3]);
    let v = if at == 0 { 0.0 } else { beside(dtype, f64::from(at) * 0.5, step) };
    // Each second half is negative: small ones are next to each other in magnitude.
    if at % 4 == 3 { -v } else { v }
}

/// The number of halves that are tried.
const HALF_STEPS: u32 = 512;

const NICE: [f64; 10] = [1.0, 2.0, 0.0, -1.0, 3.0, -2.0, 4.0, -3.0, 5.0, -0.0];
const CONTINUOUS: u32 = 4096;
/// The number of codes reserved for special elements: an upper bound.
const SPECIAL: u32 = 512;
/// Larger numbers, so that branches for large arguments are taken, and some small ones. A large
/// number times a small one is ordinary, while the product of two small ones underflows.
const LARGE: [f64; 14] =
    [7.5, 6.1e4, 19.25, -19.25, 130.5, -130.5, 3.3e3, -3.3e3, 2.5e5, -2.5e5, 1.7e9, -6.1e12, 1.1e-4, -1.7e-24];

/// Extreme elements of a float type.
fn extremes(dtype: DType) -> [f64; 14] {
    let (max, min, tiny) = match dtype {
        DType::F64 => (f64::MAX, f64::MIN_POSITIVE, 5e-324),
        DType::F32 => (f32::MAX as f64, f32::MIN_POSITIVE as f64, 1e-45),
        DType::F16 => (65504.0, 6.103515625e-5, 5.960464477539063e-8),
        DType::F8E4M3 => (448.0, 0.015625, 0.001953125),
        DType::F8E5M2 => (57344.0, 6.103515625e-5, 1.52587890625e-5),
        _ => (3.3895313892515355e38, f32::MIN_POSITIVE as f64, 9.183549615799121e-41),
    };
    let inf = f64::INFINITY;
    [f64::NAN, inf, -inf, -0.0, 0.0, tiny, -tiny, min, -min, max, -max, 100.0, -100.0, 1e4]
}

/// Integers at the limits of this type and of other types.
fn integers(dtype: DType) -> Vec<i64> {
    let powers = [7u32, 8, 11, 15, 16, 24, 31, 32, 53];
    let around = powers.iter().flat_map(|p| [(1i64 << p) - 1, 1 << p, (1 << p) + 1]);
    let moderate = [6, 7, 9, 10, 11, 64, 100, 200, 1000, 65504, 65520];
    let positive: Vec<i64> = moderate.into_iter().chain(around).collect();
    let (least, largest) = match dtype {
        DType::I32 => (i32::MIN as i64, i32::MAX as i64),
        DType::I8 => (i8::MIN as i64, i8::MAX as i64),
        DType::U8 => (0, 255),
        _ => (i64::MIN, i64::MAX),
    };
    let ends = [largest, least, largest - 1, least + 1];
    let both = positive.into_iter().flat_map(|v| [v, -v]);
    ends.into_iter().chain(both.filter(|v| (least..=largest).contains(v))).collect()
}

/// A tensor of this type.
pub fn tensor(
    source: &mut Source,
    distribution: Distribution,
    dtype: DType,
    shape: &[usize],
    demand: &Demand,
    special: &SpecialValues,
) -> Option<Tensor> {
    if dtype.is_int() {
        return whole(source, distribution, dtype, shape, demand, special);
    }
    let n = shape.iter().try_fold(1usize, |a, d| a.checked_mul(*d))?;
    if let (Distribution::Last(kind), None) = (distribution, demand.is) {
        let data: Vec<f64> = (0..n).map(|i| last(kind, i + 1 == n, dtype, demand)).collect();
        return Tensor::from_f64(dtype, shape, &data);
    }
    let mut data = Vec::with_capacity(n);
    let distinct = if demand.splat || demand.is.is_some() { n.min(1) } else { n };
    for _ in 0..distinct {
        let v = match demand.is {
            Some(v) => v,
            None => element(source, distribution, dtype, demand, distinct, special),
        };
        data.push(dtype.round(v));
    }
    let first = data.first().copied().unwrap_or(0.0);
    data.resize(n, first);
    Tensor::from_f64(dtype, shape, &data)
}

/// A tensor of integers.
fn whole(
    source: &mut Source,
    distribution: Distribution,
    dtype: DType,
    shape: &[usize],
    demand: &Demand,
    special: &SpecialValues,
) -> Option<Tensor> {
    let n = shape.iter().try_fold(1usize, |a, d| a.checked_mul(*d))?;
    let distinct = if demand.splat || demand.is.is_some() { n.min(1) } else { n };
    let own = special.elements.iter().filter(|v| v.abs() < 1e18).map(|v| *v as i64);
    let all = integers(dtype).into_iter().chain(own).filter(|v| (*v as f64).abs() <= special.limit);
    let ends = special.ends.iter().flat_map(|v| [*v as i64, (-v) as i64]).filter(|v| *v as f64 >= range(dtype).0);
    let table: Vec<i64> = match distribution {
        _ if demand.small => Vec::new(),
        Distribution::Ends => ends.collect(),
        _ => all.collect(),
    };
    let spread = !demand.small && demand.index.is_none();
    if let (Distribution::Last(kind), true, None) = (distribution, spread, demand.is) {
        let data = (0..n).map(|i| last(kind, i + 1 == n, dtype, demand) as i64).collect();
        return RefTensor::<f64> { dtype, shape: shape.to_vec(), data: Data::I(data) }.to_tensor().ok();
    }
    let mut data: Vec<i64> = (0..distinct)
        .map(|_| match demand.is {
            Some(v) => dtype.round(v) as i64,
            None if let (Distribution::Neighbours(power), true) = (distribution, spread) => {
                whole_neighbour(source, dtype, power)
            }
            None if matches!(distribution, Distribution::FewBits(_)) && spread => few_bits_whole(source, dtype, demand),
            None => integer(source, dtype, demand, &table),
        })
        .collect();
    data.resize(n, data.first().copied().unwrap_or(0));
    RefTensor::<f64> { dtype, shape: shape.to_vec(), data: Data::I(data) }.to_tensor().ok()
}

/// The kind of [`Distribution::Last`] whose elements are all negative: of many, chance makes one
/// positive.
pub const NEGATIVE: u8 = 5;

/// An element of [`Distribution::Last`].
fn last(kind: u8, at_end: bool, dtype: DType, demand: &Demand) -> f64 {
    let usual = if demand.positive { 1.0 } else { 0.0 };
    match (kind, at_end && !demand.splat) {
        (0, true) => usual + 1.0,
        (1, true) if demand.positive || demand.nonnegative || matches!(dtype, DType::U8) => usual,
        (1, true) if dtype != DType::Bool => -1.0,
        (1, _) if dtype == DType::Bool => f64::from(!at_end),
        (0 | 1, _) => usual,
        (NEGATIVE, at_end) if !demand.positive && !demand.nonnegative && !matches!(dtype, DType::U8 | DType::Bool) => {
            if at_end {
                -2.0
            } else {
                -1.0
            }
        }
        (3, _) if matches!(dtype, DType::I8 | DType::U8) => range(dtype).1,
        (4, _) if dtype == DType::I8 => range(dtype).0,
        (4, _) if dtype == DType::U8 => range(dtype).1,
        _ => 1.0,
    }
}

/// The number of steps from a power of two to its neighbours.
const STEPS: u32 = 8;

fn whole_neighbour(source: &mut Source, dtype: DType, power: u8) -> i64 {
    let step = i64::from(source.element(STEPS, |r| r.random_range(0..STEPS)));
    let (largest, room) = (integers(dtype)[0], i64::from(STEPS));
    let base = 1i64.checked_shl(power.into()).filter(|b| *b > 0 && *b <= largest - room);
    base.unwrap_or(largest - room + 1) + step
}

fn neighbour(source: &mut Source, dtype: DType, power: u8) -> f64 {
    let step = f64::from(source.element(STEPS, |r| r.random_range(0..STEPS)));
    let base = 2f64.powi(power.into());
    let unit = ulp(dtype, base).max(1.0);
    if base + f64::from(STEPS) * unit <= dtype.largest() && power < 63 {
        base + step * unit
    } else {
        1.0 + step * dtype.epsilon()
    }
}

/// The number of codes of numbers of few bits.
const FEW_BITS: u32 = 1 << 20;

/// Any integer of 8 bits; of a wider type, one near an eighth of its range, or a sum of two powers
/// of two and its neighbours.
fn few_bits_whole(source: &mut Source, dtype: DType, demand: &Demand) -> i64 {
    let code = source.element(FEW_BITS, |r| r.random_range(0..FEW_BITS));
    let rest = i64::from(code / 4);
    // 0, -1, 1, -2, ...
    let step = |n: i64| if n % 2 == 0 { n / 2 } else { -(n + 1) / 2 };
    let bits: i64 = match dtype {
        DType::I8 | DType::U8 => 8,
        DType::I32 => 32,
        _ => 64,
    };
    let v = match (bits, code % 4) {
        (8, _) => i64::from(code),
        (_, 0) if rest % 2 == 0 => NICE[rest as usize / 2 % 9] as i64,
        // Neighbours that a type of so many digits does not tell apart.
        (_, 0) => (1i64 << [24, 53, 11, 8][rest as usize / 2 % 4].min(bits - 2)) + rest / 8 % 8,
        (_, 1 | 2) => (rest % 8).wrapping_shl(bits as u32 - 3).wrapping_add(step(rest / 8 % 33)),
        _ => {
            let (a, b) = (rest % (bits - 1), rest / 64 % (bits - 1));
            // Halfway between two numbers of 8, 11 or 24 digits.
            let b = if rest / 16_384 % 2 == 0 { b } else { (a - [8, 11, 24][rest as usize / 64 % 3]).max(0) };
            let v = (1i64 << a).wrapping_add(1 << b).wrapping_add(rest / 4096 % 3 - 1);
            if rest / 8192 % 2 == 0 { v } else { v.wrapping_neg() }
        }
    };
    let v = match dtype {
        DType::I8 => i64::from(v as i8),
        DType::U8 => i64::from(v as u8),
        DType::I32 => i64::from(v as i32),
        _ => v,
    };
    let v = if demand.nonnegative || demand.positive { v.checked_abs().unwrap_or(1) } else { v };
    let v = if dtype == DType::I8 && v > i64::from(i8::MAX) { 1 } else { v };
    if demand.positive && v == 0 { 1 } else { v }
}

/// A simple number, a few of the smallest numbers, or 1 and two smaller powers of two.
fn few_bits(source: &mut Source, dtype: DType, kind: u8) -> f64 {
    let code = source.element(FEW_BITS, |r| r.random_range(0..FEW_BITS));
    let rest = code / 4;
    let sign = if rest.is_multiple_of(2) { 1.0 } else { -1.0 };
    match code % 4 {
        0 if kind == 0 => NICE[rest as usize % NICE.len()],
        _ if kind == 1 => sign * f64::from(1 + rest / 2 % 9) * extremes(dtype)[5],
        1 => sign * f64::from(1 + rest / 2 % 9) * extremes(dtype)[5],
        _ => {
            let digits = (-dtype.epsilon().log2()) as u32;
            let (a, b) = (1 + rest / 2 % digits, 1 + rest / 128 % digits);
            let more = [0.0, 2f64.powi(-(b as i32))][(rest / 8192 % 2) as usize];
            sign * (1.0 + 2f64.powi(-(a as i32)) + more) * [1.0, 0.5, 2.0, 4.0][(rest / 16384 % 4) as usize]
        }
    }
}

/// How many places are the last ones of an axis.
const LAST_PLACES: u32 = 6;

fn integer(source: &mut Source, dtype: DType, demand: &Demand, table: &[i64]) -> i64 {
    if let Some(size) = demand.index {
        let size = size.min(range(dtype).1 as i64 + i64::from(dtype != DType::I64));
        if demand.last {
            let most = size.clamp(1, i64::from(LAST_PLACES)) as u32;
            return size - 1 - i64::from(source.element(most, |r| r.random_range(0..most)));
        }
        // 0, 1, ... size-1, -1, ... -size
        let all = if demand.nonnegative { size } else { 2 * size };
        let code = source.element(all.clamp(1, 1 << 20) as u32, |r| r.random_range(0..all.max(1) as u32));
        let code = code as i64;
        return if code < size { code } else { size - 1 - code };
    }
    let code = source.element(9 + CONTINUOUS, |r| match table.len() as u32 {
        n if n > 0 && r.random_bool(0.4) => 9 + r.random_range(0..n),
        _ => r.random_range(0..9),
    });
    let v = match table.len() {
        n if n > 0 && code >= 9 => table[(code - 9) as usize % n],
        _ => NICE[code as usize % 9] as i64,
    };
    let v = if dtype == DType::U8 || demand.nonnegative || demand.positive { v.checked_abs().unwrap_or(1) } else { v };
    if demand.positive && v == 0 { 1 } else { v }
}

fn element(
    source: &mut Source,
    distribution: Distribution,
    dtype: DType,
    demand: &Demand,
    elements: usize,
    special: &SpecialValues,
) -> f64 {
    let v = if dtype == DType::Bool {
        source.element(2, |r| r.random_range(0..2)) as f64
    } else if distribution == Distribution::Far {
        demand.far.element(source, dtype)
    } else if let Distribution::Neighbours(power) = distribution {
        neighbour(source, dtype, power)
    } else if distribution == Distribution::Ends {
        end(source, &special.ends)
    } else if distribution == Distribution::Halves {
        half(source, dtype)
    } else if let Distribution::Twins(at) = distribution {
        let steps = source.element(STEPS, |r| r.random_range(0..STEPS));
        beside(dtype, TWINS[usize::from(at) % TWINS.len()], steps as i32 - STEPS as i32 / 2)
    } else if let Distribution::FewBits(kind) = distribution {
        few_bits(source, dtype, kind)
    } else if distribution == Distribution::Halfway {
        special.halfway.number(demand.alternative, source.element(MANY, |r| r.random_range(0..MANY)))
    } else if let Distribution::Levels(kind) = distribution {
        of_level(source, kind, &special.levels)
    } else if let Distribution::Overflowing(kind) = distribution {
        overflowing(source, kind, dtype, &special.magnitudes)
    } else if let Distribution::Infinities(kind) = distribution {
        if kind == 0 { f64::NEG_INFINITY } else { f64::INFINITY }
    } else if distribution == Distribution::Hidden && hides(source, demand.alternative) {
        f64::NEG_INFINITY
    } else if let Distribution::Ensemble(kind) = distribution {
        kind.element(source, demand.alternative, dtype, special)
    } else {
        float(source, distribution, dtype, elements, special)
    };
    let v = if (demand.finite || demand.nonnegative || demand.positive) && v.is_nan() { 1.0 } else { v };
    let v = if demand.finite && v.is_infinite() { 1.0 } else { v };
    // -0 is not negative.
    let v = if demand.positive || (demand.nonnegative && v != 0.0) { v.abs() } else { v };
    if demand.positive && v == 0.0 { 1.0 } else { v }
}

/// The alternatives of [`Distribution::Hidden`].
pub(super) const KINDS_OF_HIDDEN: usize = 4;

/// Whether an element of a tensor with this alternative is hidden: none, all, or most.
fn hides(source: &mut Source, alternative: usize) -> bool {
    match alternative {
        1 => true,
        2 => source.element(4, |r| r.random_range(0..4)) > 0,
        _ => false,
    }
}

/// One of these numbers, of either sign, or a simple one.
fn end(source: &mut Source, ends: &[f64]) -> f64 {
    const SIMPLE: [f64; 4] = [1.0, -1.5, 0.5, 0.0];
    let (simple, n) = (SIMPLE.len() as u32, 2 * ends.len() as u32);
    let code = source.element(simple + n, |r| match n {
        n if n > 0 && r.random_bool(0.7) => simple + r.random_range(0..n),
        _ => r.random_range(0..simple),
    });
    match code.checked_sub(simple).map(|at| (ends.get(at as usize / 2), at % 2)) {
        Some((Some(v), sign)) => *v * (1.0 - 2.0 * f64::from(sign)),
        _ => SIMPLE[code as usize % SIMPLE.len()],
    }
}

/// One element of a tensor with this many distinct elements: in a small tensor, each element is
/// special more often.
fn float(
    source: &mut Source,
    distribution: Distribution,
    dtype: DType,
    elements: usize,
    special: &SpecialValues,
) -> f64 {
    let nice = NICE.len() as u32;
    let ends = nice + CONTINUOUS;
    let all = ends + 14 + SPECIAL;
    let seldom = f64::max(0.12, 0.35 / elements.max(1) as f64);
    let code = source.element(all, |r| {
        let (p_nice, p_special) = match distribution {
            Distribution::Nice => (1.0, 0.0),
            Distribution::Ordinary | Distribution::LastPlaces => (0.2, 0.0),
            Distribution::Large => (0.15, 0.3),
            Distribution::Nan => (0.2, seldom),
            Distribution::Extreme => (0.15, 0.35),
            Distribution::Infinite => (0.2, seldom),
            _ => (1.0, 0.0),
        };
        let p: f64 = r.random();
        let own = special.elements.len().min(SPECIAL as usize) as u32;
        if own > 0 && r.random_bool(0.15) {
            ends + 14 + r.random_range(0..own)
        } else if p < p_nice {
            r.random_range(0..nice)
        } else if p < p_nice + p_special {
            let kinds = if distribution == Distribution::Nan { 1 } else { 14 };
            nice + CONTINUOUS + r.random_range(0..kinds)
        } else {
            nice + r.random_range(0..CONTINUOUS)
        }
    });
    if code < nice {
        NICE[code as usize]
    } else if code >= ends + 14 {
        let n = special.elements.len().max(1);
        special.elements.get((code - ends - 14) as usize % n).copied().unwrap_or(1.0)
    } else if code < ends {
        // Spread over (-3, 3), never a short binary fraction.
        let k = (code - nice) as u64;
        let mixed = (k.wrapping_mul(2_654_435_761) % 1_000_003) as f64;
        mixed / 1_000_003.0 * 6.0 - 3.0
    } else {
        // A shrunk tape may select a special value that this distribution lacks: use one of the
        // distribution's own.
        match distribution {
            Distribution::Extreme => extremes(dtype)[(code - nice - CONTINUOUS) as usize % 14],
            Distribution::Nan => f64::NAN,
            Distribution::Infinite if (code - nice - CONTINUOUS).is_multiple_of(2) => f64::INFINITY,
            Distribution::Infinite => f64::NEG_INFINITY,
            Distribution::Large => {
                let v = LARGE[(code - nice - CONTINUOUS) as usize % 14];
                if dtype.round(v).is_finite() && dtype.round(v) != 0.0 { v } else { 19.25 }
            }
            _ => 1.0,
        }
    }
}
