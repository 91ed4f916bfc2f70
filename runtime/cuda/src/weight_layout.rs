//! Transposed weights, where they are faster.
//!
//! In: a product with a weight: an operand that is a whole constant matrix of the plan. Out: the
//! same product, reading the weight transposed, if that is measured to be faster. Invariant:
//! without a measurement the weight is read as stored; the transposed product is timed in
//! alternation with the best algorithm for the weight as stored; a [`Tuner`] caches the result like
//! the choice of an algorithm.
//!
//! The library has different kernels for the two orders. No known rule predicts which is faster: of
//! 262 products that were timed on an H200, 30 take 3 to 45 % less, 43 take 3 to 51 % more
//! (docs/adr/0014-packed-weights.md).

use std::sync::Arc;

use super::device::Gpu;
use super::gemm::Calls;
use super::launch::{Product, TransposedProduct};
use super::lt::{Layout, Matmul, Product as Call};
use super::tune::{self, Tuner, footprint};
use hypatia_plan::{Plan, Step, Storage};
use hypatia_tensor::error::Result;

/// The product over the transposed weight, if there is one.
pub(super) fn transposed(plan: &Plan, step: &Step, calls: &Calls, scale: f64) -> Result<Option<TransposedProduct>> {
    let Some((side, constant, product)) = weight(plan, step, calls) else { return Ok(None) };
    Ok(Some(TransposedProduct { side, constant, matmul: Matmul::new(product)?.scaled(scale), taken: false }))
}

/// The operand of a product that is a weight, the constant, and the product over its transpose.
pub(super) fn weight(plan: &Plan, step: &Step, calls: &Calls) -> Option<(usize, usize, Call)> {
    if calls.offsets.len() != 1 || calls.product.uses_pointer_arrays() {
        return None;
    }
    // If both operands are constants, the right one counts: models multiply by weights from the
    // right.
    [1, 0].into_iter().find_map(|side| {
        let view = &step.reads[side];
        let Storage::Constant(constant) = plan.buffers[view.buffer.index()].storage else { return None };
        let product =
            over_transpose(&calls.product, side, plan.constants[constant].shape()).filter(|_| view.offset == 0)?;
        Some((side, constant, product))
    })
}

/// A product with A or B, a whole matrix of that shape, replaced by its transpose.
fn over_transpose(p: &Call, side: usize, shape: &[usize]) -> Option<Call> {
    let (layout, [rows, columns]) = if side == 0 { (p.a, [p.m, p.k]) } else { (p.b, [p.k, p.n]) };
    let stored = if layout.transposed { [columns, rows] } else { [rows, columns] };
    let [lines, along] = stored;
    let whole = shape == stored && layout.ld == along as i64;
    // A vector has the same layout in both orders.
    if !whole || layout.batch_stride != 0 || lines < 2 || along < 2 {
        return None;
    }
    let layout = Layout { transposed: !layout.transposed, ld: lines as i64, ..layout };
    Some(if side == 0 { Call { a: layout, ..*p } } else { Call { b: layout, ..*p } })
}

/// Uses the transposed weight if that is measured to be faster.
pub(super) fn choose(gpu: &Arc<Gpu>, plan: &Plan, product: &mut Product, tuner: &mut Tuner) -> Result<()> {
    let Product { matmul, algorithms, transposed: Some(other), .. } = product else { return Ok(()) };
    let Some(best) = algorithms.first().filter(|_| !other.taken) else { return Ok(()) };
    if let Some(faster) = tune::faster_than(tuner, gpu, &mut other.matmul, (matmul, best), footprint(plan))? {
        std::mem::swap(matmul, &mut other.matmul);
        (*algorithms, other.taken) = (faster, true);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use hypatia_dsl::dtype::DType;

    use super::*;
    use hypatia_target::cublaslt::Epilogue;

    fn side(transposed: bool, ld: i64) -> Layout {
        Layout { transposed, ld, batch_stride: 0, outer_stride: 0, alignment: 64 }
    }

    /// `[5, 3] x [3, 7]`, row-major.
    fn product() -> Call {
        Call {
            m: 5,
            n: 7,
            k: 3,
            batch: 1,
            outer: 1,
            dtype: DType::BF16,
            out: DType::BF16,
            tf32: false,
            a: side(false, 3),
            b: side(false, 7),
            d: side(false, 7),
            epilogue: Epilogue::Bias,
            bias: DType::BF16,
            workspace: 0,
            in_order: false,
            added: None,
        }
    }

    #[test]
    fn the_other_order_has_lines_of_the_other_length() {
        let p = product();
        assert_eq!(over_transpose(&p, 1, &[3, 7]), Some(Call { b: side(true, 3), ..p }));
        assert_eq!(over_transpose(&p, 0, &[5, 3]), Some(Call { a: side(true, 5), ..p }));
        // The reverse: a weight that the model stores as [n, k].
        let back = over_transpose(&p, 1, &[3, 7]).and_then(|other| over_transpose(&other, 1, &[7, 3]));
        assert_eq!(back, Some(p));
        // All matrices of a batch may share the weight.
        let batch = Call { batch: 4, ..p };
        assert_eq!(over_transpose(&batch, 1, &[3, 7]), Some(Call { b: side(true, 3), ..batch }));
    }

    #[test]
    fn parts_of_constants_batches_and_lines_have_no_other_order() {
        let p = product();
        for (what, p, shape) in [
            ("another shape", p, &[7, 3][..]),
            ("columns of more", Call { b: side(false, 9), ..p }, &[3, 9]),
            ("rows of more", p, &[6, 7]),
            ("a matrix of several", p, &[1, 3, 7]),
            ("a vector", p, &[21]),
            ("one for each of a batch", Call { batch: 2, b: Layout { batch_stride: 21, ..p.b }, ..p }, &[3, 7]),
            ("a line", Call { k: 1, b: side(false, 7), ..p }, &[1, 7]),
            ("a column", Call { n: 1, b: side(false, 1), ..p }, &[3, 1]),
        ] {
            assert_eq!(over_transpose(&p, 1, shape), None, "{what}");
        }
    }
}
