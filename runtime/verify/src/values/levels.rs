//! Numbers of one magnitude, where a rule's own numbers or the end of a range decide.
//!
//! In: the numbers of a rule and an element type. Out: elements of whole tensors that lie beyond
//! each of these numbers, or between two of them; and elements whose sums, squares, cubes, or
//! products with these numbers leave the range of the type. Invariant: they lie in the range of the
//! type themselves.

use hypatia_dsl::dtype::DType;

use crate::source::Source;
use rand::Rng;

/// How far from a number of the rule the farther magnitudes lie.
const FAR: f64 = 30.0;
/// Larger numbers of a rule, and smaller ones, may stand for an infinity or for nothing.
const LARGE: f64 = 100.0;
const SMALL: f64 = 1e-3;
/// Other powers of the largest number whose sums, squares and cubes leave the range.
const ROOTS: [f64; 3] = [1.0, 1.0 / 2.0, 1.0 / 3.0];
/// The number of codes of elements.
const CODES: u32 = 1 << 16;
/// Of so many elements, one is simple.
const SIMPLE: u32 = 6;

/// Whether one of these numbers may stand for something else than itself.
pub fn stands_for_another(numbers: &[f64]) -> bool {
    numbers.iter().any(|n| *n >= LARGE || *n <= SMALL)
}

/// Magnitudes beyond these and between them, for an element type; the most telling first.
pub(super) fn levels(numbers: &[f64], dtype: DType) -> Vec<f64> {
    let (Some(least), Some(most)) = (numbers.first(), numbers.last()) else { return Vec::new() };
    let room = 0.6 * dtype.largest();
    let gaps = numbers.windows(2).filter(|p| p[1] > 1.5 * p[0]).map(|p| (p[0] * p[1]).sqrt());
    let near = [room.min(2.0 * most)].into_iter().chain(gaps.rev()).chain([0.5 * least]);
    let far = numbers.iter().rev().flat_map(|n| [n * FAR, n / FAR]);
    let mut out: Vec<f64> = Vec::new();
    for v in near.chain(far).filter(|v| *v <= room && dtype.round(*v) != 0.0) {
        if !out.contains(&v) {
            out.push(v);
        }
    }
    out
}

/// An element of a tensor of one magnitude: kinds of two magnitudes follow each other, and their
/// signs are negative, and in turn positive or mixed.
pub(super) fn of_level(source: &mut Source, kind: u8, levels: &[f64]) -> f64 {
    let code = source.element(CODES, |r| r.random_range(0..CODES));
    let Some(level) = levels.get(usize::from(kind / 2) % levels.len().max(1)) else { return 1.0 };
    let v = level * (1.0 + f64::from(code / 2) / f64::from(CODES) * 0.6);
    match kind % 4 {
        1 => v,
        3 if code % 2 == 1 => v,
        _ => -v,
    }
}

/// An element whose sum with another, square, cube, or product with a number of the rule is too
/// large, or a simple one.
pub(super) fn overflowing(source: &mut Source, kind: u8, dtype: DType, numbers: &[f64]) -> f64 {
    let code = source.element(CODES, |r| r.random_range(0..CODES));
    let (sign, rest) = (if code.is_multiple_of(2) { 1.0 } else { -1.0 }, code / 2);
    if rest % SIMPLE == 0 {
        return sign * [1.0, 2.0, 0.0, 0.5][(rest / SIMPLE % 4) as usize];
    }
    let part = f64::from(rest) / f64::from(CODES / 2);
    let most = dtype.largest();
    let factors = || numbers.iter().filter(|n| **n > 1.5);
    let kind = usize::from(kind) % kinds_of_overflow(numbers);
    let v = match (ROOTS.get(kind), kind.checked_sub(ROOTS.len()).and_then(|at| factors().nth(at))) {
        (Some(1.0), _) => most * (0.55 + 0.44 * part),
        (Some(root), _) => most.powf(*root) * (0.9 + 2.0 * part),
        (None, Some(factor)) => most / factor * (0.9 + 2.0 * part),
        (None, None) => 1.0,
    };
    sign * v.min(most)
}

/// The number of kinds of such elements.
pub fn kinds_of_overflow(numbers: &[f64]) -> usize {
    ROOTS.len() + numbers.iter().filter(|n| **n > 1.5).count()
}
