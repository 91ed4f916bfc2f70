//! Library calls with a fallback, for calls that the library may lack or that may be slower.
//!
//! In: an op with a body and the kernel that computes it in one call, or a product with such an
//! epilogue. Out: one step with the call and its fallback steps. Invariant: the fallback computes
//! what the call does, into the same buffers, so that an executor may run either. Additional memory
//! of the fallback is workspace of the step.

use hypatia_dsl::ir::KernelId;

use super::Lower;
use crate::prepare::Call;
use crate::view::row_major;
use crate::{GemmStep, Step, Storage, View};
use hypatia_graph::{Node, NodeId, Value};
use hypatia_tensor::error::{Error, Result};

impl Lower<'_> {
    /// A node that the library computes in one call. Its first two operands are those of a product,
    /// the others are read by the epilogue. The first result is that of the product, the other one
    /// is an additional result of the epilogue.
    pub(super) fn called(&mut self, id: NodeId, node: &Node, call: &Call) -> Result<()> {
        let operands = node.operands.iter().flatten().map(|v| self.value(*v)).collect::<Result<Vec<View>>>()?;
        let [a, b, beside @ ..] = operands.as_slice() else {
            return Err(Error::Internal("a product of one operand".into()));
        };
        let (_, shape) = self.ty(Value { node: id, output: 0 })?;
        let (product, mut reads) = self.factors(&node.name, [a, b], &shape)?;
        for view in beside {
            reads.push(self.contiguous(view, &node.name)?);
        }
        let (fallback, results) = self.steps_of(&call.fallback, &operands)?;
        for (output, view) in results.iter().enumerate() {
            self.values.insert(Value { node: id, output: output as u32 }, view.clone());
        }
        // The call stores whole buffers, each distinct.
        let own = |(i, v): (usize, &View)| {
            let buffer = &self.plan.buffers[v.buffer.index()];
            let whole = v.offset == 0 && v.len() == buffer.len && v.strides == row_major(&v.shape);
            let alone = results[..i].iter().all(|w| w.buffer != v.buffer);
            let written = fallback.iter().any(|s| s.writes.iter().any(|w| w.buffer == v.buffer));
            matches!(buffer.storage, Storage::Arena(_)) && whole && alone && written
        };
        if results.iter().enumerate().all(own) {
            self.call_or_fallback(&node.name, Some(call.kernel), product, reads, results, fallback);
        } else {
            self.plan.steps.extend(fallback);
        }
        Ok(())
    }

    /// Adds a step that is either one call, which stores `writes`, or the fallback steps
    /// `fallback`.
    pub(super) fn call_or_fallback(
        &mut self,
        name: &str,
        kernel: Option<KernelId>,
        product: GemmStep,
        reads: Vec<View>,
        writes: Vec<View>,
        fallback: Vec<Step>,
    ) {
        let step = Step::call(name, product, reads, writes, fallback);
        self.plan.steps.push(Step { kernel, ..step });
    }
}
