//! Library calls with a fallback, for calls that the library may lack or that may be slower.
//!
//! In: an op with a body and the kernel that computes it in one call, or a product with such an
//! epilogue. Out: one step with the call and its fallback steps. Invariant: the fallback computes
//! what the call does, into the same buffers, so that an executor may run either. Additional memory
//! of the fallback is workspace of the step.

use hypatia_dsl::ir::KernelId;

use super::lower::Lower;
use super::prepare::Call;
use super::view::row_major;
use super::{Action, EitherStep, GemmStep, Place, Step, View};
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
        let (apart, results) = self.steps_of(&call.apart, &operands)?;
        for (output, view) in results.iter().enumerate() {
            self.values.insert(Value { node: id, output: output as u32 }, view.clone());
        }
        // The call stores whole buffers, each distinct.
        let own = |(i, v): (usize, &View)| {
            let buffer = &self.plan.buffers[v.buffer.index()];
            let whole = v.offset == 0 && v.len() == buffer.len && v.strides == row_major(&v.shape);
            let alone = results[..i].iter().all(|w| w.buffer != v.buffer);
            let written = apart.iter().any(|s| s.writes.iter().any(|w| w.buffer == v.buffer));
            matches!(buffer.place, Place::Arena(_)) && whole && alone && written
        };
        if results.iter().enumerate().all(own) {
            self.either(&node.name, Some(call.kernel), product, reads, results, apart);
        } else {
            self.plan.steps.extend(apart);
        }
        Ok(())
    }

    /// Adds a step that is either one call, which stores `writes`, or the fallback steps `apart`.
    pub(super) fn either(
        &mut self,
        name: &str,
        kernel: Option<KernelId>,
        product: GemmStep,
        reads: Vec<View>,
        writes: Vec<View>,
        apart: Vec<Step>,
    ) {
        let step = either_step(name, product, reads, writes, apart);
        self.plan.steps.push(Step { kernel, ..step });
    }
}

/// A step that is either one call, which stores `writes`, or the fallback steps `apart`.
pub(super) fn either_step(
    name: &str,
    product: GemmStep,
    mut reads: Vec<View>,
    mut writes: Vec<View>,
    apart: Vec<Step>,
) -> Step {
    let either = EitherStep { product, reads: reads.len(), writes: writes.len(), apart };
    let stored = either.apart.iter().flat_map(|s| &s.writes);
    for view in stored {
        if !writes.iter().any(|w| w.buffer == view.buffer) {
            writes.push(view.clone());
        }
    }
    for view in either.apart.iter().flat_map(|s| &s.reads) {
        if !writes.iter().any(|w| w.buffer == view.buffer) && !reads.contains(view) {
            reads.push(view.clone());
        }
    }
    let in_place = vec![None; writes.len()];
    Step { name: name.to_string(), action: Action::Either(either), reads, writes, in_place, kernel: None }
}
