//! Guarded products: clean ones report nothing, disturbed ones are found and mended.
#![allow(clippy::unwrap_used)]

use rand::prelude::*;
use rand_chacha::ChaCha8Rng;

use super::guard::{Cause, Checks, Fault, Guard, Mismatch, Place};
use super::pack::Matrix;
use super::*;
use crate::simd::{Isa, limit};
use std::sync::atomic::AtomicBool;

/// The size of a product: rows, terms, columns.
type Size = [usize; 3];

/// Makes the value of an element.
type Values = fn(&mut ChaCha8Rng, usize) -> f64;

/// Sizes with one or many rows, terms and columns, whole and ragged tiles.
const SIZES: [Size; 9] = [
    [1, 1, 1],
    [1, 300, 70],
    [3, 5, 7],
    [5, 64, 257],
    [17, 600, 64],
    [64, 64, 64],
    [100, 33, 130],
    [2, 1000, 500],
    [48, 700, 96],
];

fn wide<T: Summed>(rng: &mut ChaCha8Rng, count: usize, value: impl Fn(&mut ChaCha8Rng, usize) -> f64) -> Vec<T> {
    (0..count).map(|i| T::narrow(value(rng, i))).collect()
}

/// Multiplies as one tile under checks: the result, and what was found.
fn guarded<T: Summed>([m, k, n]: Size, a: &[T], b: &[T], faults: Vec<Fault>) -> (Vec<T>, Vec<Mismatch>) {
    let matrix = |values, row: usize| Matrix {
        bytes: bytemuck::cast_slice(values),
        dtype: T::DTYPE,
        offset: 0,
        row: row as isize,
        column: 1,
    };
    let tile = Tile {
        kernel: T::kernel(),
        a: Left::Plain(matrix(a, k)),
        b: Right::Plain(matrix(b, n)),
        rows: 0..m,
        columns: 0..n,
        k,
        terms: K_BLOCK,
    };
    let mut out = vec![T::NAN; m * n];
    let (checks, wrong) = (Checks { faults: faults.into(), ..Checks::default() }, AtomicBool::new(false));
    let to = Target { base: Address(out.as_mut_ptr().cast()), row: n };
    let guard = Guard { step: 0, checks: &checks, wrong: &wrong };
    let (mut x, mut y) = (Bytes::default(), Bytes::default());
    // SAFETY: the tile lies in `out`, which nothing else uses.
    unsafe { guard::multiply(&tile, to, [&mut x, &mut y], (guard, Place { first: 0, row: n })) }.unwrap();
    (out, checks.found.into_inner().unwrap())
}

fn clean_runs_report_nothing<T: Summed>() {
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let normal = |rng: &mut ChaCha8Rng, _: usize| rng.sample::<f64, _>(rand::distr::StandardUniform) * 2.0 - 1.0;
    // What makes rounding agree among elements, cancel, overflow or have no scale.
    let values: [(&str, Values); 8] = [
        ("random", |rng, _| rng.random_range(-1.0..1.0)),
        ("constant", |_, _| 0.1),
        ("positive", |rng, _| rng.random_range(1.0..1.1)),
        ("alternating", |_, i| if i.is_multiple_of(2) { 1e6 / 3.0 } else { -1e6 / 3.0 }),
        ("one huge row", |rng, i| rng.random_range(-1.0..1.0) * if i < 40 { 1e12 } else { 1.0 }),
        ("zeros", |_, _| 0.0),
        ("tiny", |rng, _| rng.random_range(-1.0..1.0) * 1e-38),
        ("special", |rng, i| match i % 97 {
            5 => f64::INFINITY,
            50 => f64::NAN,
            70 => 3e38,
            _ => rng.random_range(-1.0..1.0),
        }),
    ];
    let plain: Vec<T> = wide(&mut rng, 1 << 19, normal);
    for size @ [m, k, n] in SIZES {
        for (name, value) in values {
            let (a, b) = (wide::<T>(&mut rng, m * k, value), wide::<T>(&mut rng, k * n, value));
            for (a, b) in [(&a, &b), (&a, &plain), (&plain, &b)] {
                let (got, found) = guarded(size, &a[..m * k], &b[..k * n], vec![]);
                assert_eq!(found, [], "{name} {size:?}");
                let (again, _) = guarded(size, &a[..m * k], &b[..k * n], vec![]);
                assert!(got.iter().zip(&again).all(|(x, y)| x.same_bits(*y)), "{name} {size:?}");
            }
        }
    }
}

#[test]
fn clean_products_report_nothing() {
    for isa in [Isa::Avx512, Isa::Avx2, Isa::Portable] {
        limit(isa);
        clean_runs_report_nothing::<f32>();
        clean_runs_report_nothing::<f64>();
    }
}

/// Inverts each bit of an element in turn. Each change that is beyond `beyond` times the magnitude
/// of a typical element must be found, and the result must be the undisturbed one.
fn flips<T: Summed>(bits: u32, beyond: f64) {
    let mut rng = ChaCha8Rng::seed_from_u64(2);
    let (mut large, mut caught) = (0, 0);
    for size @ [m, k, n] in SIZES {
        let value = |rng: &mut ChaCha8Rng, _: usize| rng.random_range(-1.0..1.0);
        let (a, b) = (wide::<T>(&mut rng, m * k, value), wide::<T>(&mut rng, k * n, value));
        let (want, _) = guarded(size, &a, &b, vec![]);
        let typical = (want.iter().map(|v| v.wide() * v.wide()).sum::<f64>() / want.len() as f64).sqrt();
        for bit in 0..bits {
            let element = rng.random_range(0..m * n);
            let fault = Fault::Flip { step: 0, element, bit, done: AtomicBool::new(false) };
            let (got, found) = guarded(size, &a, &b, vec![fault]);
            let mut flipped = want[element];
            bytemuck::bytes_of_mut(&mut flipped)[bit as usize / 8] ^= 1 << (bit % 8);
            let off = (flipped.wide() - want[element].wide()).abs();
            let is_large = off.is_nan() || off > beyond * (typical + want[element].wide().abs());
            large += usize::from(is_large);
            let [Mismatch { cause: Cause::Transient, element: at, .. }] = found[..] else {
                assert_eq!(found, []);
                continue;
            };
            assert_eq!(at, element);
            caught += usize::from(is_large);
            assert!(got.iter().zip(&want).all(|(x, y)| x.same_bits(*y)), "{size:?} bit {bit}");
        }
    }
    assert!(large > 50, "{large}");
    assert_eq!(caught, large);
}

#[test]
fn changed_bits_are_found_and_mended() {
    // Ten times the tolerance with which plans are compared.
    flips::<f32>(32, 1e-3);
    flips::<f64>(64, 1e-11);
}

#[test]
fn a_wrong_kernel_is_replaced() {
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    for size @ [m, k, n] in SIZES.into_iter().filter(|[m, _, n]| m * n >= 100) {
        let value = |rng: &mut ChaCha8Rng, _: usize| rng.random_range(-1.0..1.0);
        let (a, b) = (wide::<f32>(&mut rng, m * k, value), wide::<f32>(&mut rng, k * n, value));
        let (want, _) = guarded(size, &a, &b, vec![]);
        let (got, found) = guarded(size, &a, &b, vec![Fault::Kernel { step: 0, one_in: 100 }]);
        assert_eq!(found.iter().map(|m| m.cause).collect::<Vec<_>>(), [Cause::Kernel], "{size:?}");
        for (g, w) in got.iter().zip(&want) {
            assert!((g - w).abs() <= 1e-5 * (k as f32).sqrt(), "{size:?}: {g}, not {w}");
        }
    }
}

#[test]
fn integers_are_exact() {
    let mut rng = ChaCha8Rng::seed_from_u64(4);
    let [m, k, n] = [3, 20, 50];
    let (a, b): (Vec<i32>, Vec<i32>) =
        ((0..m * k).map(|_| rng.random()).collect(), (0..k * n).map(|_| rng.random()).collect());
    let matrix =
        |values, row| Matrix { bytes: bytemuck::cast_slice(values), dtype: DType::I32, offset: 0, row, column: 1 };
    let run = |faults: Vec<Fault>| {
        let (checks, wrong) = (Checks { faults: faults.into(), ..Checks::default() }, AtomicBool::new(false));
        let guard = Guard { step: 0, checks: &checks, wrong: &wrong };
        let mut out = vec![0i32; m * n];
        for (row, out) in out.chunks_mut(n).enumerate() {
            let place = Place { first: row * n, row: n };
            let sides = [matrix(&a, k as isize), matrix(&b, n as isize)];
            guard::multiply_integers(DType::I32, (row, k, n), sides, out, (guard, place)).unwrap();
        }
        (out, checks.found.into_inner().unwrap())
    };
    let (want, found) = run(vec![]);
    assert_eq!(found, []);
    for bit in 0..32 {
        let fault = Fault::Flip { step: 0, element: 60, bit, done: AtomicBool::new(false) };
        let (got, found) = run(vec![fault]);
        assert_eq!((got == want, found.len(), found[0].element, found[0].cause), (true, 1, 60, Cause::Transient));
    }
}
