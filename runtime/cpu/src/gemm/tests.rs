//! Products against f64 sums, on every instruction set of this machine.
#![allow(clippy::unwrap_used)]

use hypatia_dsl::dtype::DType;
use rand::prelude::*;
use rand_chacha::ChaCha8Rng;

use super::pack::{Matrix, pack, packed_len};
use super::*;
use crate::simd::{Isa, limit};
use crate::widen::Widen;

struct Case {
    m: usize,
    k: usize,
    n: usize,
    /// Strides of rows and columns of both operands.
    a: [isize; 2],
    b: [isize; 2],
}

fn values(rng: &mut ChaCha8Rng, count: usize) -> Vec<f32> {
    (0..count).map(|_| rng.random_range(-1.0..1.0)).collect()
}

/// Computes the product of a case in tiles of `rows` by `columns`.
fn product(case: &Case, a: &[f32], b: &[f32], packs: bool, rows: usize, columns: usize) -> Vec<f32> {
    product_of(case, a, b, packs, [rows, columns], K_BLOCK)
}

/// The same with so many terms summed at once.
fn product_of(case: &Case, a: &[f32], b: &[f32], packs: bool, [rows, columns]: [usize; 2], terms: usize) -> Vec<f32> {
    let matrix = |values: &'_ [f32], strides: [isize; 2]| {
        let bytes: &[u8] = bytemuck::cast_slice(values);
        // Leaked: tests are short, and a matrix borrows its buffer.
        let bytes: &'static [u8] = Box::leak(bytes.to_vec().into_boxed_slice());
        Matrix { bytes, dtype: DType::F32, offset: 0, row: strides[0], column: strides[1] }
    };
    let (a, b) = (matrix(a, case.a), matrix(b, case.b));
    let panel = f32::kernel().panel;
    let mut panels = vec![0f32; packed_len(case.k, case.n, panel)];
    pack(b, 0..case.k, 0..case.n, panel, &mut panels);
    let mut out = vec![f32::NAN; case.m * case.n];
    let (mut x, mut y) = (Bytes::default(), Bytes::default());
    for row in (0..case.m).step_by(rows) {
        for column in (0..case.n).step_by(columns) {
            let right = if packs { Right::Packed(panels.as_slice()) } else { Right::Plain(b) };
            let tile = Tile {
                kernel: f32::kernel(),
                a: super::Left::Plain(a),
                b: right,
                rows: row..case.m.min(row + rows),
                columns: column..case.n.min(column + columns),
                k: case.k,
                terms,
            };
            let base = Address(out[row * case.n + column..].as_mut_ptr().cast());
            // SAFETY: the tile lies in `out`, which nothing else uses.
            unsafe { tile.multiply(Target { base, row: case.n }, [&mut x, &mut y], None) }.unwrap();
        }
    }
    out
}

fn check(case: &Case, a: &[f32], b: &[f32], what: &str) {
    let panel = f32::kernel().panel;
    let whole = product(case, a, b, true, case.m.max(1), case.n.next_multiple_of(panel).max(1));
    for i in 0..case.m {
        for j in 0..case.n {
            let at = |s: [isize; 2], i: usize, j: usize| (i as isize * s[0] + j as isize * s[1]) as usize;
            let term = |l: usize| a[at(case.a, i, l)] as f64 * b[at(case.b, l, j)] as f64;
            let want: f64 = (0..case.k).map(term).sum();
            let got = whole[i * case.n + j] as f64;
            let bound = 1e-6 * (case.k as f64).max(1.0);
            assert!(
                (got - want).abs() <= bound,
                "{what} {}x{}x{} [{i}, {j}]: {got}, not {want}",
                case.m,
                case.k,
                case.n
            );
        }
    }
    // The bits do not depend on the tiling, nor on the layout of the right operand.
    for (packs, rows, columns) in [(true, 5, panel), (false, case.m.max(1), case.n.max(1)), (false, 3, 2 * panel)] {
        let other = product(case, a, b, packs, rows, columns);
        let same = whole.iter().zip(&other).all(|(x, y)| x.to_bits() == y.to_bits());
        assert!(same, "{what} {}x{}x{}: tiles of {rows} by {columns} differ", case.m, case.k, case.n);
    }
}

#[test]
fn products_are_right_on_every_instruction_set() {
    for isa in [Isa::Portable, Isa::Avx2, Isa::Avx512] {
        limit(isa);
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let sizes = [0usize, 1, 2, 3, 5, 7, 13, 14, 15, 29, 31, 33, 64];
        for round in 0..60 {
            let mut size = || *sizes.choose(&mut rng).unwrap();
            let (m, k, n) = (size(), if round % 8 == 0 { 600 } else { size() }, size());
            let a = values(&mut rng, m * k);
            let b = values(&mut rng, k * n);
            let (wide_a, wide_b) = ([k as isize, 1], [n as isize, 1]);
            let (tall_a, tall_b) = ([1, m as isize], [1, k as isize]);
            for (sa, sb) in [(wide_a, wide_b), (tall_a, wide_b), (wide_a, tall_b), (tall_a, tall_b)] {
                check(&Case { m, k, n, a: sa, b: sb }, &a, &b, &format!("{isa:?}"));
            }
        }
    }
    limit(Isa::Avx512);
}

/// With few rows, the errors are at most 0.7 of those of one chain of 128 terms, and any tiling
/// gives the same bits.
#[test]
fn sums_of_few_rows_have_small_errors() {
    let (m, n) = (3, 200);
    for k in [64, 128, 256, 768] {
        let mut rng = ChaCha8Rng::seed_from_u64(2);
        let (a, b) = (values(&mut rng, m * k), values(&mut rng, k * n));
        let case = Case { m, k, n, a: [k as isize, 1], b: [n as isize, 1] };
        let error = |got: &[f32]| -> f64 {
            let term = |i: usize, l: usize| a[i / n * k + l] as f64 * b[l * n + i % n] as f64;
            let want = |i: usize| (0..k).map(|l| term(i, l)).sum::<f64>();
            got.iter().enumerate().map(|(i, v)| (*v as f64 - want(i)).powi(2)).sum::<f64>().sqrt()
        };
        let terms = free_terms(m, k);
        let free = product_of(&case, &a, &b, true, [m, n.next_multiple_of(f32::kernel().panel)], terms);
        let other = product_of(&case, &a, &b, false, [2, 2 * f32::kernel().panel], terms);
        assert!(free.iter().zip(&other).all(|(x, y)| x.to_bits() == y.to_bits()), "{k}");
        let plain = product(&case, &a, &b, true, m, n.next_multiple_of(f32::kernel().panel));
        assert!(error(&free) <= 0.7 * error(&plain), "{k}: {} of {}", error(&free), error(&plain));
    }
    assert_eq!([free_terms(17, 768), free_terms(1, 0), free_terms(1, 1 << 20)], [K_BLOCK, FEWEST_TERMS, K_BLOCK]);
}

#[test]
fn special_values_stay_in_their_rows_and_columns() {
    let (m, k, n) = (20, 40, 50);
    let (mut a, mut b) = (vec![1f32; m * k], vec![1f32; k * n]);
    a[3 * k + 7] = f32::NAN;
    b[11 * n + 49] = f32::INFINITY;
    let case = Case { m, k, n, a: [k as isize, 1], b: [n as isize, 1] };
    for packs in [true, false] {
        let out = product(&case, &a, &b, packs, 14, f32::kernel().panel);
        for (i, v) in out.iter().enumerate() {
            match (i / n, i % n) {
                (3, _) => assert!(v.is_nan(), "{i}"),
                (_, 49) => assert_eq!(*v, f32::INFINITY, "{i}"),
                _ => assert_eq!(*v, k as f32, "{i}"),
            }
        }
    }
}

#[test]
fn narrow_floats_are_widened_while_they_are_packed() {
    let b: Vec<half::bf16> = (0..12).map(|i| half::bf16::from_f32(i as f32)).collect();
    let bytes: &[u8] = bytemuck::cast_slice(&b);
    let matrix = Matrix { bytes, dtype: DType::BF16, offset: 0, row: 1, column: 4 };
    let mut to = vec![f32::NAN; packed_len(4, 3, 8)];
    pack(matrix, 0..4, 0..3, 8, &mut to);
    for l in 0..4 {
        for j in 0..8 {
            let want = if j < 3 { (j * 4 + l) as f32 } else { f32::ZERO };
            assert_eq!(to[l * 8 + j], want, "{l} {j}");
        }
    }
}

#[test]
fn a_product_beyond_its_operands_is_refused() {
    let bytes = vec![0u8; 4 * 6];
    let a = Matrix { bytes: &bytes, dtype: DType::F32, offset: 0, row: 3, column: 1 };
    let tile = Tile::<f32> {
        kernel: f32::kernel(),
        a: super::Left::Plain(a),
        b: Right::Plain(a),
        rows: 0..2,
        columns: 0..3,
        k: 3,
        terms: K_BLOCK,
    };
    let mut out = vec![0f32; 6];
    let base = Address(out.as_mut_ptr().cast());
    let (mut x, mut y) = (Bytes::default(), Bytes::default());
    // SAFETY: `out` has room for two rows of three.
    let result = unsafe { tile.multiply(Target { base, row: 3 }, [&mut x, &mut y], None) };
    assert!(result.unwrap_err().to_string().contains("reaches beyond"));
}

#[test]
fn products_of_bytes_are_exact() {
    let mut rng = ChaCha8Rng::seed_from_u64(5);
    for (m, k, n, turned) in [(1, 1, 1, false), (7, 129, 33, true), (40, 300, 70, false), (3, 0, 5, false)] {
        for [of_a, of_b] in [[DType::I8, DType::I8], [DType::U8, DType::I8], [DType::U8, DType::U8]] {
            // The ends of both types, so that sums are as large as they can be.
            let mut bytes = |count: usize| -> Vec<u8> {
                (0..count).map(|_| *[0x80, 0x7f, 0xff, 1, 0].choose(&mut rng).unwrap()).collect()
            };
            let (a, b) = (bytes(m * k), bytes(k * n));
            let of_right = if turned { [1, k as isize] } else { [n as isize, 1] };
            let left = Matrix { bytes: &a, dtype: of_a, offset: 0, row: k as isize, column: 1 };
            let right = Matrix { bytes: &b, dtype: of_b, offset: 0, row: of_right[0], column: of_right[1] };
            let value = |v: u8, d: DType| if d == DType::I8 { i32::from(v as i8) } else { i32::from(v) };
            let sum = |i: usize, j: usize| -> i32 {
                let at = |l: usize| (l as isize * of_right[0] + j as isize * of_right[1]) as usize;
                (0..k).map(|l| value(a[i * k + l], of_a) * value(b[at(l)], of_b)).sum()
            };
            let panel = f32::kernel().panel;
            let mut panels = vec![0f32; packed_len(k, n, panel)];
            pack(right, 0..k, 0..n, panel, &mut panels);
            for packs in [false, true] {
                let b = if packs { Right::Packed(panels.as_slice()) } else { Right::Plain(right) };
                let (kernel, a) = (f32::kernel(), super::Left::Plain(left));
                let tile = Tile { kernel, a, b, rows: 0..m, columns: 0..n, k, terms: K_BLOCK };
                let mut out = vec![i32::MIN; m * n];
                let to = Target { base: Address(out.as_mut_ptr().cast()), row: n };
                let (mut x, mut y, mut z) = (Bytes::default(), Bytes::default(), Bytes::default());
                // SAFETY: the tile is all of `out`, which nothing else uses.
                unsafe { tile.multiply_bytes(to, [&mut x, &mut y], &mut z) }.unwrap();
                let want: Vec<i32> = (0..m * n).map(|at| sum(at / n, at % n)).collect();
                assert_eq!(out, want, "{m} {k} {n} {of_a} {of_b}, packed: {packs}");
            }
        }
    }
}
