//! Weights in the other order, where that is faster.
//!
//! In: a product with a weight: an operand that is a whole constant of the plan, a matrix. Out: the same product, which
//! reads the weight with rows and columns exchanged, where that is measured to be faster. Holds always: without a
//! measurement the weight is read as it lies; the other order is timed in turns with the best algorithm of the order as it
//! lies, and what was found is kept by a [`Tuner`] as the choice of an algorithm is.
//!
//! The library has other kernels for the other order. Which is faster follows no rule that is known: of 262 products that were
//! timed on an H200, 30 take 3 to 45 % less, 43 take 3 to 51 % more (docs/adr/0014-packed-weights.md).

use std::sync::Arc;

use super::device::Gpu;
use super::gemm::Calls;
use super::lt::{Layout, Matmul, Product as Call};
use super::steps::{Product, footprint};
use super::tune::{self, Tuner};
use hypatia_plan::{Place, Plan, Step};
use hypatia_tensor::error::Result;

/// A product over the other order of a weight.
pub(super) struct Other {
    /// The weight: A or B, by its place among the operands.
    pub side: usize,
    /// The constant that it is, by its index in the plan.
    pub constant: usize,
    /// The product; that over the order as it lies, once this one is taken.
    matmul: Matmul,
    /// True if the product reads this order.
    pub taken: bool,
}

impl Other {
    /// What it computes.
    pub fn product(&self) -> &Call {
        self.matmul.product()
    }
}

/// The product over the other order of a weight, if it has one.
pub(super) fn other(plan: &Plan, step: &Step, calls: &Calls, scale: f64) -> Result<Option<Other>> {
    let Some((side, constant, product)) = weight(plan, step, calls) else { return Ok(None) };
    Ok(Some(Other { side, constant, matmul: Matmul::new(product)?.scaled(scale), taken: false }))
}

/// The side of a product that is a weight, the constant, and the product over its other order.
pub(super) fn weight(plan: &Plan, step: &Step, calls: &Calls) -> Option<(usize, usize, Call)> {
    if calls.offsets.len() != 1 || calls.product.by_addresses() {
        return None;
    }
    // Of two constants the right one: models multiply by weights from the right.
    [1, 0].into_iter().find_map(|side| {
        let view = &step.reads[side];
        let Place::Constant(constant) = plan.buffers[view.buffer.index()].place else { return None };
        let product = turned(&calls.product, side, plan.constants[constant].shape()).filter(|_| view.offset == 0)?;
        Some((side, constant, product))
    })
}

/// A product whose A or B is a whole matrix of that shape, over the other order of it.
fn turned(p: &Call, side: usize, shape: &[usize]) -> Option<Call> {
    let (layout, [rows, columns]) = if side == 0 { (p.a, [p.m, p.k]) } else { (p.b, [p.k, p.n]) };
    let stored = if layout.transposed { [columns, rows] } else { [rows, columns] };
    let [lines, along] = stored;
    let whole = shape == stored && layout.ld == along as i64;
    // One line of elements lies the same in both orders.
    if !whole || layout.batch_stride != 0 || lines < 2 || along < 2 {
        return None;
    }
    let layout = Layout { transposed: !layout.transposed, ld: lines as i64, ..layout };
    Some(if side == 0 { Call { a: layout, ..*p } } else { Call { b: layout, ..*p } })
}

/// Takes the other order of a product's weight if that is measured to be faster.
pub(super) fn settle(gpu: &Arc<Gpu>, plan: &Plan, product: &mut Product, tuner: &mut Tuner) -> Result<()> {
    let Product { matmul, algorithms, other: Some(other), .. } = product else { return Ok(()) };
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
    use crate::lt::Epilogue;

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
        }
    }

    #[test]
    fn the_other_order_has_lines_of_the_other_length() {
        let p = product();
        assert_eq!(turned(&p, 1, &[3, 7]), Some(Call { b: side(true, 3), ..p }));
        assert_eq!(turned(&p, 0, &[5, 3]), Some(Call { a: side(true, 5), ..p }));
        // And back: a weight that the model has as [n, k].
        let back = turned(&p, 1, &[3, 7]).and_then(|other| turned(&other, 1, &[7, 3]));
        assert_eq!(back, Some(p));
        // All matrices of a batch may share it.
        let batch = Call { batch: 4, ..p };
        assert_eq!(turned(&batch, 1, &[3, 7]), Some(Call { b: side(true, 3), ..batch }));
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
            assert_eq!(turned(&p, 1, shape), None, "{what}");
        }
    }
}
