//! Batches of matrix products, as a library accepts them: with one stride from each matrix to the
//! next.
//!
//! In: the leading axes of a product and views of its operands. Out: the number of library calls,
//! whether copying the operands so that one call suffices costs less, and the steps of the product.
//! Where several calls or copies would be needed, a call with an array of matrix addresses is kept
//! beside them, and the executor measures which is faster. Invariant: an operand that all matrices
//! share is not copied.

use hypatia_dsl::ir::KernelId;

use super::Lower;
use crate::view::{View, collapse, row_major};
use crate::{Action, Called, GemmStep};
use hypatia_target::device::Device;
use hypatia_tensor::error::Result;

impl Lower<'_> {
    /// Whether each operand of a product should be copied.
    pub(super) fn worth_copying(&self, step: &GemmStep, views: &[View]) -> [bool; 2] {
        match views {
            [a, b, ..] if !self.plan.device.is_host() && a.dtype.is_float() => {
                worth_copying(&self.plan.device, &step.batch, a, b)
            }
            _ => [false; 2],
        }
    }

    /// The product of two operands with result `shape`, and the two broadcast to it, copied if that
    /// makes them one batch.
    pub(super) fn factors(&mut self, name: &str, sides: [&View; 2], shape: &[usize]) -> Result<(GemmStep, Vec<View>)> {
        let (step, mut views) = self.operands(name, sides, shape)?;
        let copied = self.worth_copying(&step, &views);
        self.copy_operands(name, &mut views, copied)?;
        Ok((step, views))
    }

    fn copy_operands(&mut self, name: &str, views: &mut [View], copied: [bool; 2]) -> Result<()> {
        for (view, _) in views.iter_mut().zip(copied).filter(|(_, copied)| *copied) {
            *view = self.dense_matrices(view, name)?;
        }
        Ok(())
    }

    /// Adds a product whose epilogue that kernel computes. Copies its first two operands as
    /// requested.
    pub(super) fn multiply(
        &mut self,
        name: &str,
        kernel: Option<KernelId>,
        step: GemmStep,
        (given, copied): (Vec<View>, [bool; 2]),
        out: View,
    ) -> Result<()> {
        let as_they_lie = self.uses_pointer_arrays(&step, &given);
        let (first, kept) = (self.plan.steps.len(), self.copies.clone());
        let mut views = given.clone();
        self.copy_operands(name, &mut views, copied)?;
        self.step(name, Action::Gemm(step.clone()), views, vec![out.clone()]);
        self.set_kernel(kernel);
        if as_they_lie {
            let fallback = self.plan.steps.split_off(first);
            // Copies made inside are not available outside.
            self.copies = kept;
            self.call_or_fallback(name, None, Called::Product(step), given, vec![out], fallback);
        }
        Ok(())
    }

    /// Whether a library can take the matrices of a product by address where no single stride
    /// reaches them all.
    fn uses_pointer_arrays(&self, step: &GemmStep, views: &[View]) -> bool {
        let [a, b] = views else { return false };
        let floats = !self.plan.device.is_host() && step.acc.is_float();
        let scaled = step.scale(&self.plan.program).is_some();
        let full = step.k > 0 && views.iter().all(|v| !v.is_empty());
        // Which of the two runs is measured, and they need not add up in the same order.
        let open = !self.plan.allowed.batch_invariant;
        floats && scaled && full && open && calls(&step.batch, a, b) > 1
    }
}

/// Number of library calls of a product: one for each matrix of the axes that cannot be merged with
/// the innermost one.
fn calls(batch: &[usize], a: &View, b: &View) -> usize {
    let lead = batch.len();
    let shared = b.strides[..lead].iter().zip(batch).all(|(stride, size)| *stride == 0 || *size == 1);
    // All matrices share the right operand: the leading axes are rows of the left one, if they
    // collapse to one axis.
    if shared && collapse(&a.shape[..=lead], &[a.strides[..=lead].to_vec()]).0.len() == 1 {
        return 1;
    }
    let strides = [a.strides[..lead].to_vec(), b.strides[..lead].to_vec(), row_major(batch)];
    let (axes, _) = collapse(batch, &strides);
    axes[..axes.len() - 1].iter().product()
}

/// Whether each operand should be copied.
fn worth_copying(device: &Device, batch: &[usize], a: &View, b: &View) -> [bool; 2] {
    let dense = |v: &View| View { strides: row_major(&v.shape), offset: 0, ..v.clone() };
    let repeated =
        |v: &View| v.strides[..batch.len()].iter().zip(batch).any(|(stride, size)| *stride == 0 && *size > 1);
    let seconds = |copied: [bool; 2]| {
        let mut all = 0.0;
        for (view, copied) in [a, b].into_iter().zip(copied) {
            if copied {
                all += device.launch + 2.0 * (view.len() * view.dtype.size()) as f64 / device.bandwidth;
            }
        }
        let side = |v: &View, copied: bool| if copied { dense(v) } else { v.clone() };
        all + calls(batch, &side(a, copied[0]), &side(b, copied[1])) as f64 * device.launch
    };
    let mut best = [false, false];
    for choice in [[true, false], [false, true], [true, true]] {
        let copies_shared = choice[0] && repeated(a) || choice[1] && repeated(b);
        let needless = choice[0] && a.is_contiguous() || choice[1] && b.is_contiguous();
        if !copies_shared && !needless && seconds(choice) < seconds(best) {
            best = choice;
        }
    }
    best
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use hypatia_dsl::dtype::DType;

    use super::*;
    use crate::BufferId;

    /// Adjacent heads, `[batch, sequence, 3, heads, width]`, viewed as `[batch, heads, sequence,
    /// width]`.
    fn heads(batch: usize, sequence: usize, heads: usize, width: usize) -> View {
        let all = View::whole(BufferId(0), DType::BF16, &[batch, sequence, 3, heads, width]);
        let one = all.sliced(2, 0, 1, 1).transposed(&[0, 2, 3, 1, 4]);
        View {
            shape: vec![batch, heads, sequence, width],
            strides: [0, 2, 3, 4].map(|a| one.strides[a]).to_vec(),
            ..one
        }
    }

    #[test]
    fn many_small_calls_are_worth_copies_and_few_large_ones_are_not() {
        let device = Device::named("h200").unwrap();
        let q = heads(8, 128, 12, 64);
        let k = q.transposed(&[0, 1, 3, 2]);
        assert_eq!(calls(&[8, 12], &q, &k), 8);
        assert_eq!(worth_copying(&device, &[8, 12], &q, &k), [true, true]);
        let q = heads(2, 16384, 12, 64);
        let k = q.transposed(&[0, 1, 3, 2]);
        assert_eq!(calls(&[2, 12], &q, &k), 2);
        assert_eq!(worth_copying(&device, &[2, 12], &q, &k), [false, false]);
        // One sequence is one batch without copies.
        let q = heads(1, 128, 12, 64);
        assert_eq!(calls(&[1, 12], &q, &q.transposed(&[0, 1, 3, 2])), 1);
    }

    #[test]
    fn what_is_dense_or_shared_makes_one_call() {
        let x = View::whole(BufferId(0), DType::F32, &[4, 3, 5, 6]);
        let w = View::whole(BufferId(1), DType::F32, &[6, 7]).broadcast(&[4, 3, 6, 7]).unwrap();
        assert_eq!(calls(&[4, 3], &x, &w), 1);
        let device = Device::named("h200").unwrap();
        assert_eq!(worth_copying(&device, &[4, 3], &x, &w), [false, false]);
        assert_eq!(
            calls(&[], &View::whole(BufferId(0), DType::F32, &[5, 6]), &View::whole(BufferId(1), DType::F32, &[6, 7])),
            1
        );
    }
}
