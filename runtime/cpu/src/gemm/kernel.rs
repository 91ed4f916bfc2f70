//! Microkernels of matrix products: a block of the result in registers.
//!
//! In: pointers and strides. Out: `c = a b` or `c += a b` for up to [`Kernel::rows`] rows and one
//! or several panels of columns. Invariant: each element is one chain of multiply-adds in the order
//! of k, so its bits do not depend on the tiling of the result.

use crate::simd::{Isa, isa};
use crate::widen::Widen;

/// A block of work. `a` is row-major with unit stride along k; `b` is read `panel` columns at a
/// time.
pub struct Block<E> {
    /// Length of the sums.
    pub k: usize,
    /// Element (0, 0) of the left operand.
    pub a: *const E,
    /// Row stride of `a`.
    pub a_row: usize,
    /// Element (0, 0) of the right operand.
    pub b: *const E,
    /// Row stride of `b`.
    pub b_k: usize,
    /// Panel stride of `b`.
    pub b_panel: usize,
    /// Element (0, 0) of the result.
    pub c: *mut E,
    /// Row stride of `c`.
    pub c_row: usize,
    /// Columns of the result. Panels of `b` are always full.
    pub columns: usize,
    /// Adds to the present result.
    pub add: bool,
}

/// Computes a block of a number of rows and panels.
type Run<E> = unsafe fn(usize, usize, &Block<E>);

/// The kernels of one instruction set for one type.
#[derive(Clone, Copy)]
pub struct Kernel<E> {
    /// Maximum number of rows of a block.
    pub rows: usize,
    /// Columns of a panel.
    pub panel: usize,
    run: Run<E>,
}

impl<E> Kernel<E> {
    /// Number of panels that a block of `rows` rows takes at once. With few rows, a single panel
    /// would leave too few independent sums to hide latency.
    pub fn panels(&self, rows: usize) -> usize {
        match rows {
            1 => 4,
            2 | 3 => 2,
            _ => 1,
        }
    }

    /// Runs a block of `rows` rows, at most [`Kernel::rows`], and `panels` panels: 1, or
    /// [`Kernel::panels`].
    ///
    /// # Safety
    /// For every `i < rows`, `l < block.k`, `p < panels` and `j < panel`, the elements
    /// `a[i * a_row + l]` and `b[p * b_panel + l * b_k + j]` can be read, and for
    /// `j < min(columns, panels * panel)` the elements `c[i * c_row + j]` can be read and written,
    /// and are used by no other thread.
    pub unsafe fn run(&self, rows: usize, panels: usize, block: &Block<E>) {
        // SAFETY: the caller's promise is the kernel's. The kernel was chosen by `isa`, which has
        // asked the processor for the instructions that it uses.
        unsafe { (self.run)(rows, panels, block) }
    }
}

/// Element types of the kernels.
pub trait Float: Widen {
    /// The best kernels of this machine.
    fn kernel() -> Kernel<Self>;
    /// The kernel of this type among `kernels`.
    fn of(kernels: &Kernels) -> Kernel<Self>;
}

/// The kernels that a step was prepared for.
#[derive(Clone, Copy)]
pub struct Kernels {
    f32: Kernel<f32>,
    f64: Kernel<f64>,
}

impl Kernels {
    /// The best kernels of this machine.
    pub fn best() -> Kernels {
        Kernels { f32: f32::kernel(), f64: f64::kernel() }
    }
}

/// Vectors of one instruction set.
///
/// # Safety
/// The methods need the instruction set; pointers must be valid for that many elements.
trait Simd: Copy {
    type E: Copy;
    type V: Copy;
    const LANES: usize;
    unsafe fn zero() -> Self::V;
    unsafe fn splat(p: *const Self::E) -> Self::V;
    unsafe fn load(p: *const Self::E) -> Self::V;
    unsafe fn store(p: *mut Self::E, v: Self::V);
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn load_partial(p: *const Self::E, n: usize) -> Self::V;
    unsafe fn store_partial(p: *mut Self::E, v: Self::V, n: usize);
}

/// `MR` rows by `W` vectors; `PER` vectors are a panel.
///
/// # Safety
/// As [`Kernel::run`], and the processor has the instructions of `S`.
#[inline(always)]
unsafe fn block<S: Simd, const MR: usize, const W: usize, const PER: usize>(g: &Block<S::E>) {
    // SAFETY: loads of a and b are at the very indices that the caller promises, stores to c at
    // columns below `columns`: whole vectors where all of them are, parts elsewhere.
    unsafe {
        let mut acc = [[S::zero(); W]; MR];
        let (mut a, mut b) = (g.a, g.b);
        for _ in 0..g.k {
            let mut right = [S::zero(); W];
            for (w, v) in right.iter_mut().enumerate() {
                *v = S::load(b.add((w / PER) * g.b_panel + (w % PER) * S::LANES));
            }
            for (i, row) in acc.iter_mut().enumerate() {
                let left = S::splat(a.add(i * g.a_row));
                for (sum, v) in row.iter_mut().zip(&right) {
                    *sum = S::fma(left, *v, *sum);
                }
            }
            a = a.wrapping_add(1);
            b = b.wrapping_add(g.b_k);
        }
        let whole = g.columns >= W * S::LANES;
        for (i, row) in acc.iter().enumerate() {
            for (w, sum) in row.iter().enumerate() {
                let at = g.c.wrapping_add(i * g.c_row + w * S::LANES);
                let n = if whole { S::LANES } else { g.columns.saturating_sub(w * S::LANES).min(S::LANES) };
                if n == S::LANES {
                    S::store(at, if g.add { S::add(S::load(at), *sum) } else { *sum });
                } else if n > 0 {
                    S::store_partial(at, if g.add { S::add(S::load_partial(at, n), *sum) } else { *sum }, n);
                }
            }
        }
    }
}

/// Defines a function that selects the kernel for a number of rows and panels.
macro_rules! kernels {
    ($name:ident, $simd:ty, $e:ty, $per:literal, [$($mr:literal)*], [$($(#[$feature:meta])+)?]) => {
        /// # Safety
        /// As [`Kernel::run`], and the processor has the instructions.
        unsafe fn $name(rows: usize, panels: usize, g: &Block<$e>) {
            /// # Safety
            /// As [`Kernel::run`], and the processor has the instructions.
            $($(#[$feature])+)?
            unsafe fn one<const MR: usize, const W: usize>(g: &Block<$e>) {
                // SAFETY: the caller's promise.
                unsafe { block::<$simd, MR, W, $per>(g) }
            }
            // SAFETY: the caller's promise, for this many rows and panels.
            unsafe {
                match (rows, panels) {
                    (1, 4) => one::<1, { 4 * $per }>(g),
                    (2, 2) => one::<2, { 2 * $per }>(g),
                    (3, 2) => one::<3, { 2 * $per }>(g),
                    $(($mr, 1) => one::<$mr, $per>(g),)*
                    _ => debug_assert!(false, "no kernel for {rows} rows and {panels} panels"),
                }
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::{Block, Kernel, Simd, block};

    macro_rules! simd {
        ($name:ident, $e:ty, $v:ty, $lanes:literal, $zero:ident, $splat:ident, $load:ident, $store:ident, $fma:ident,
         $add:ident, |$n:ident| $mask:expr, |$lp:ident, $lm:ident| $lpart:expr,
         |$sp:ident, $sm:ident, $sv:ident| $spart:expr) => {
            #[derive(Clone, Copy)]
            pub struct $name;
            // SAFETY of all of these: the caller has the instruction set, and pointers that are
            // valid for that many elements; none needs alignment.
            #[allow(clippy::undocumented_unsafe_blocks)]
            impl Simd for $name {
                type E = $e;
                type V = $v;
                const LANES: usize = $lanes;
                #[inline(always)]
                unsafe fn zero() -> $v {
                    unsafe { $zero() }
                }
                #[inline(always)]
                unsafe fn splat(p: *const $e) -> $v {
                    unsafe { $splat(*p) }
                }
                #[inline(always)]
                unsafe fn load(p: *const $e) -> $v {
                    unsafe { $load(p) }
                }
                #[inline(always)]
                unsafe fn store(p: *mut $e, v: $v) {
                    unsafe { $store(p, v) }
                }
                #[inline(always)]
                unsafe fn fma(a: $v, b: $v, c: $v) -> $v {
                    unsafe { $fma(a, b, c) }
                }
                #[inline(always)]
                unsafe fn add(a: $v, b: $v) -> $v {
                    unsafe { $add(a, b) }
                }
                #[inline(always)]
                unsafe fn load_partial($lp: *const $e, $n: usize) -> $v {
                    unsafe {
                        let $lm = $mask;
                        $lpart
                    }
                }
                #[inline(always)]
                unsafe fn store_partial($sp: *mut $e, $sv: $v, $n: usize) {
                    unsafe {
                        let $sm = $mask;
                        $spart
                    }
                }
            }
        };
    }

    simd!(
        F32x16,
        f32,
        __m512,
        16,
        _mm512_setzero_ps,
        _mm512_set1_ps,
        _mm512_loadu_ps,
        _mm512_storeu_ps,
        _mm512_fmadd_ps,
        _mm512_add_ps,
        |n| ((1u32 << n) - 1) as u16,
        |p, m| _mm512_maskz_loadu_ps(m, p),
        |p, m, v| _mm512_mask_storeu_ps(p, m, v)
    );
    simd!(
        F64x8,
        f64,
        __m512d,
        8,
        _mm512_setzero_pd,
        _mm512_set1_pd,
        _mm512_loadu_pd,
        _mm512_storeu_pd,
        _mm512_fmadd_pd,
        _mm512_add_pd,
        |n| ((1u32 << n) - 1) as u8,
        |p, m| _mm512_maskz_loadu_pd(m, p),
        |p, m, v| _mm512_mask_storeu_pd(p, m, v)
    );
    simd!(
        F32x8,
        f32,
        __m256,
        8,
        _mm256_setzero_ps,
        _mm256_set1_ps,
        _mm256_loadu_ps,
        _mm256_storeu_ps,
        _mm256_fmadd_ps,
        _mm256_add_ps,
        |n| _mm256_cmpgt_epi32(_mm256_set1_epi32(n as i32), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)),
        |p, m| _mm256_maskload_ps(p, m),
        |p, m, v| _mm256_maskstore_ps(p, m, v)
    );
    simd!(
        F64x4,
        f64,
        __m256d,
        4,
        _mm256_setzero_pd,
        _mm256_set1_pd,
        _mm256_loadu_pd,
        _mm256_storeu_pd,
        _mm256_fmadd_pd,
        _mm256_add_pd,
        |n| _mm256_cmpgt_epi64(_mm256_set1_epi64x(n as i64), _mm256_setr_epi64x(0, 1, 2, 3)),
        |p, m| _mm256_maskload_pd(p, m),
        |p, m, v| _mm256_maskstore_pd(p, m, v)
    );

    // 14 rows of two vectors: 28 sums, two vectors of the right operand and one of the left in 32
    // registers. With 16 registers, 6 rows of two vectors.
    kernels!(f32_avx512, F32x16, f32, 2, [1 2 3 4 5 6 7 8 9 10 11 12 13 14], [#[target_feature(enable = "avx512f")]]);
    kernels!(f64_avx512, F64x8, f64, 2, [1 2 3 4 5 6 7 8 9 10 11 12 13 14], [#[target_feature(enable = "avx512f")]]);
    kernels!(f32_avx2, F32x8, f32, 2, [1 2 3 4 5 6], [#[target_feature(enable = "avx2,fma")]]);
    kernels!(f64_avx2, F64x4, f64, 2, [1 2 3 4 5 6], [#[target_feature(enable = "avx2,fma")]]);

    pub const F32_AVX512: Kernel<f32> = Kernel { rows: 14, panel: 32, run: f32_avx512 };
    pub const F64_AVX512: Kernel<f64> = Kernel { rows: 14, panel: 16, run: f64_avx512 };
    pub const F32_AVX2: Kernel<f32> = Kernel { rows: 6, panel: 16, run: f32_avx2 };
    pub const F64_AVX2: Kernel<f64> = Kernel { rows: 6, panel: 8, run: f64_avx2 };
}

/// Four elements in whichever registers the compiler selects.
macro_rules! portable {
    ($name:ident, $e:ty) => {
        #[derive(Clone, Copy)]
        struct $name;
        // SAFETY of all of these: the caller has pointers that are valid for that many elements.
        #[allow(clippy::undocumented_unsafe_blocks)]
        impl Simd for $name {
            type E = $e;
            type V = [$e; 4];
            const LANES: usize = 4;
            #[inline(always)]
            unsafe fn zero() -> [$e; 4] {
                [0.0; 4]
            }
            #[inline(always)]
            unsafe fn splat(p: *const $e) -> [$e; 4] {
                [unsafe { *p }; 4]
            }
            #[inline(always)]
            unsafe fn load(p: *const $e) -> [$e; 4] {
                unsafe { p.cast::<[$e; 4]>().read_unaligned() }
            }
            #[inline(always)]
            unsafe fn store(p: *mut $e, v: [$e; 4]) {
                unsafe { p.cast::<[$e; 4]>().write_unaligned(v) }
            }
            #[inline(always)]
            unsafe fn fma(a: [$e; 4], b: [$e; 4], c: [$e; 4]) -> [$e; 4] {
                // Without an FMA instruction, `mul_add` would be a call.
                let one = |i: usize| {
                    if cfg!(target_arch = "aarch64") { a[i].mul_add(b[i], c[i]) } else { a[i] * b[i] + c[i] }
                };
                [one(0), one(1), one(2), one(3)]
            }
            #[inline(always)]
            unsafe fn add(a: [$e; 4], b: [$e; 4]) -> [$e; 4] {
                [a[0] + b[0], a[1] + b[1], a[2] + b[2], a[3] + b[3]]
            }
            #[inline(always)]
            unsafe fn load_partial(p: *const $e, n: usize) -> [$e; 4] {
                let mut v = [0.0; 4];
                unsafe { std::ptr::copy_nonoverlapping(p, v.as_mut_ptr(), n.min(4)) };
                v
            }
            #[inline(always)]
            unsafe fn store_partial(p: *mut $e, v: [$e; 4], n: usize) {
                unsafe { std::ptr::copy_nonoverlapping(v.as_ptr(), p, n.min(4)) };
            }
        }
    };
}
portable!(F32x4, f32);
portable!(F64x4, f64);
kernels!(f32_portable, F32x4, f32, 2, [1 2 3 4], []);
kernels!(f64_portable, F64x4, f64, 2, [1 2 3 4], []);

macro_rules! float {
    ($e:ident, $avx512:ident, $avx2:ident, $portable:ident) => {
        impl Float for $e {
            fn of(kernels: &Kernels) -> Kernel<$e> {
                kernels.$e
            }
            fn kernel() -> Kernel<$e> {
                match isa() {
                    #[cfg(target_arch = "x86_64")]
                    Isa::Avx512 => x86::$avx512,
                    #[cfg(target_arch = "x86_64")]
                    Isa::Avx2 => x86::$avx2,
                    _ => Kernel { rows: 4, panel: 8, run: $portable },
                }
            }
        }
    };
}
float!(f32, F32_AVX512, F32_AVX2, f32_portable);
float!(f64, F64_AVX512, F64_AVX2, f64_portable);
