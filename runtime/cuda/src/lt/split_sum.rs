//! Long f32 sums, split into slices.
//!
//! In: an f32 product over many terms. Out: products over slices of the terms, launched one after
//! another, each adding to the result of the previous ones. Invariant: only the last slice has the
//! epilogue; slices begin at addresses with the alignment of the operands.
//!
//! An accumulator that adds `l` terms of size `1 / sqrt(k)` sequentially has an error of about
//! `eps * sqrt(l) / 2`, and the worst of millions an error ten times as large: 2e-5 for 4096 terms,
//! 8e-6 in three slices. Slices cost 1 to 4 % of the time (docs/adr/0013-long-sums-in-parts.md).

use super::{Algorithm, Description, Lt, Matrix, Product, sys};
use hypatia_dsl::dtype::DType;
use hypatia_target::cublaslt::Epilogue;
use hypatia_tensor::error::Result;

/// Maximum number of terms that an f32 accumulator adds sequentially.
const LONGEST: usize = 1536;
/// Number of results above which the worst error is large enough to matter. Smaller products would
/// be dominated by launch overhead.
const MANY: usize = 1 << 20;
/// The length of a slice is a multiple of this many elements: 64 bytes.
const ALIGNED: usize = 16;

/// A product over a long sum, as products over slices of it.
pub(super) struct SplitSum {
    /// Terms of each slice except the last.
    pub length: usize,
    /// Number of slices.
    pub count: usize,
    /// The description of all slices except the last: without an epilogue.
    pub plain: Description,
    /// The library's A, our B: of each slice except the last, and of the last.
    pub a: [Matrix; 2],
    /// The library's B, our A, likewise.
    pub b: [Matrix; 2],
}

/// True if the sums of a product are too long for one accumulator. Where their order must not
/// depend on the number of rows, the length of the sums decides alone.
fn needed(p: &Product) -> bool {
    let f32 = p.dtype == DType::F32 && p.out == DType::F32 && !p.tf32;
    let results = p.batch.saturating_mul(p.m).saturating_mul(p.n);
    let simple = !p.epilogue.has_aux() && !p.epilogue.stores_sums();
    f32 && simple && !p.uses_pointer_arrays() && p.k > LONGEST && (results >= MANY || p.in_order)
}

/// Length of each slice except the last, and the number of slices.
fn cut(k: usize) -> (usize, usize) {
    let length = k.div_ceil(k.div_ceil(LONGEST)).next_multiple_of(ALIGNED);
    (length, k.div_ceil(length))
}

/// Strides along the terms of A and of B, in elements.
fn steps(p: &Product) -> [usize; 2] {
    // Terms are contiguous in a row of A and strided in a column of B; the reverse if stored
    // transposed.
    [if p.a.transposed { p.a.ld } else { 1 }, if p.b.transposed { 1 } else { p.b.ld }]
        .map(|step| step.unsigned_abs() as usize)
}

impl SplitSum {
    /// The slices of a product, if it needs any.
    pub fn of(p: &Product) -> Result<Option<SplitSum>> {
        if !needed(p) {
            return Ok(None);
        }
        let (length, count) = cut(p.k);
        let last = p.k - length * (count - 1);
        let a = |k| Matrix::new(p, p.dtype, [p.n, k], &p.b);
        let b = |k| Matrix::new(p, p.dtype, [k, p.m], &p.a);
        Ok(Some(SplitSum {
            length,
            count,
            plain: Description::new(&Product { epilogue: Epilogue::Default, ..*p })?,
            a: [a(length)?, a(last)?],
            b: [b(length)?, b(last)?],
        }))
    }

    /// Byte offsets in our A and our B from the first term to the first term of a slice.
    pub fn offsets(&self, p: &Product, slice: usize) -> [u64; 2] {
        steps(p).map(|step| (slice * self.length * step * p.dtype.size()) as u64)
    }

    /// True if an algorithm runs the last slice, with the first description, and the others,
    /// with the second.
    pub fn accept(&self, lt: &Lt, algorithm: &Algorithm, descriptions: [&Description; 2], d: &Matrix) -> bool {
        let runs = |(description, slice): (&Description, usize)| {
            // SAFETY: all-zero bytes are a valid result: a plain structure of numbers.
            let mut answer: sys::cublasLtMatmulHeuristicResult_t = unsafe { std::mem::zeroed() };
            let (what, a, b, d) = (description.0, self.a[slice].0, self.b[slice].0, d.0);
            // SAFETY: all handles are alive, and so is the algorithm that the library gave.
            let status =
                unsafe { sys::cublasLtMatmulAlgoCheck(lt.handle, what, a, b, d, d, &algorithm.raw, &raw mut answer) };
            status == sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS && answer.workspaceSize <= algorithm.workspace
        };
        descriptions.into_iter().zip([1, 0]).all(runs)
    }
}

/// True if an algorithm adds no more terms sequentially than an accumulator should.
pub(super) fn short_enough(p: &Product, algorithm: &Algorithm) -> bool {
    p.k.div_ceil(algorithm.split().max(1)) <= LONGEST
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::Layout;
    use super::*;

    fn product(m: usize, n: usize, k: usize) -> Product {
        let side = |transposed, ld: usize| Layout {
            transposed,
            ld: ld as i64,
            batch_stride: 0,
            outer_stride: 0,
            alignment: 64,
        };
        Product {
            m,
            n,
            k,
            batch: 1,
            outer: 1,
            dtype: DType::F32,
            out: DType::F32,
            tf32: false,
            a: side(false, k),
            b: side(false, n),
            d: side(false, n),
            epilogue: Epilogue::Default,
            bias: DType::F32,
            workspace: 0,
            in_order: false,
            added: None,
        }
    }

    #[test]
    fn slices_cover_all_terms_and_none_is_long() {
        for k in (LONGEST + 1..5 * LONGEST).chain([11_008, 1 << 20]) {
            let (length, count) = cut(k);
            let last = k - length * (count - 1);
            assert!(
                length <= LONGEST && length % ALIGNED == 0 && (1..=length).contains(&last),
                "{k}: {length} {count}"
            );
        }
        assert_eq!(cut(4096), (1376, 3));
    }

    #[test]
    fn long_sums_of_many_results_in_f32_alone_are_cut() {
        let long = product(4096, 4096, 4096);
        assert!(needed(&long));
        let others = [
            product(4096, 4096, LONGEST),
            product(16, 4096, 4096),
            Product { tf32: true, ..long },
            Product { dtype: DType::F64, out: DType::F64, ..long },
            Product { dtype: DType::BF16, ..long },
            Product { outer: 2, ..long },
            Product { epilogue: Epilogue::BgradA, ..long },
            Product { epilogue: Epilogue::GeluAux, ..long },
        ];
        assert!(others.iter().all(|p| !needed(p)));
        assert!(needed(&Product { in_order: true, ..product(16, 4096, 4096) }));
    }

    #[test]
    fn terms_lie_along_the_rows_of_a_and_the_columns_of_b() {
        let p = product(8, 24, 4096);
        assert_eq!(steps(&p), [1, 24]);
        let turned = Product {
            a: Layout { transposed: true, ld: 8, ..p.a },
            b: Layout { transposed: true, ld: 4096, ..p.b },
            ..p
        };
        assert_eq!(steps(&turned), [8, 1]);
    }
}
