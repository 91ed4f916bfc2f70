//! Constants in the layout in which steps read them.
//!
//! In: a lowered plan, and the model's constants. Out: the same plan, in which no step copies a
//! view of a constant: the copy is a constant of its own, made once. Invariant: a constant that
//! grows by this, because an axis is repeated, has at most [`MOST_GROWN`] bytes; larger ones are
//! copied in each run, in memory that other steps share.

use std::collections::HashSet;
use std::sync::Arc;

use super::{Action, BufferId, Plan, Step, Storage, View};
use hypatia_graph::Constants;
use hypatia_tensor::tensor::Tensor;

/// Bytes of a constant that has more elements than what it is made of.
const MOST_GROWN: usize = 64 << 20;

/// Makes the copies of constants.
pub(super) fn fold(plan: &mut Plan, known: &mut Constants) {
    let mut copies = Vec::new();
    collect(&plan.steps, &mut copies);
    let mut made: HashSet<BufferId> = HashSet::new();
    for (from, to) in copies {
        let Storage::Constant(at) = plan.buffers[from.buffer.index()].storage else { continue };
        let source = plan.constants[at].clone();
        if from.len() > source.len() && from.len() * from.dtype.size() > MOST_GROWN {
            continue;
        }
        let layout = (from.offset, from.shape.clone(), from.strides.clone());
        let Some(tensor) = known.laid_out(&source, layout, &|| gathered(&source, &from)) else { continue };
        let at = plan.constants.iter().position(|t| Arc::ptr_eq(t, &tensor)).unwrap_or_else(|| {
            plan.constants.push(tensor);
            plan.constants.len() - 1
        });
        plan.buffers[to.buffer.index()].storage = Storage::Constant(at);
        made.insert(to.buffer);
    }
    if !made.is_empty() {
        omit(&mut plan.steps, &made);
    }
}

/// What is copied, and the whole buffer that it is copied to, in fallbacks too.
fn collect(steps: &[Step], out: &mut Vec<(View, View)>) {
    for step in steps {
        match (&step.action, step.reads.as_slice(), step.writes.as_slice()) {
            (Action::Copy, [from], [to]) => out.push((from.clone(), to.clone())),
            (Action::Call(call), ..) => collect(&call.fallback, out),
            _ => {}
        }
    }
}

/// Removes the copies to these buffers.
fn omit(steps: &mut Vec<Step>, made: &HashSet<BufferId>) {
    steps.retain(|s| s.action != Action::Copy || !s.writes.iter().any(|w| made.contains(&w.buffer)));
    for step in steps {
        if let Action::Call(call) = &mut step.action {
            omit(&mut call.fallback, made);
        }
    }
}

/// The elements of a view of a tensor, in row-major order.
fn gathered(source: &Tensor, view: &View) -> Option<Tensor> {
    let size = view.dtype.size();
    let mut tensor = Tensor::zeros(view.dtype, &view.shape)?;
    let (from, to) = (source.bytes(), tensor.bytes_mut());
    let mut index = vec![0; view.shape.len()];
    let mut at = view.offset as isize;
    for element in to.chunks_exact_mut(size) {
        element.copy_from_slice(from.get(at as usize * size..(at as usize + 1) * size)?);
        for axis in (0..index.len()).rev() {
            index[axis] += 1;
            at += view.strides[axis];
            if index[axis] < view.shape[axis] {
                break;
            }
            at -= view.strides[axis] * index[axis] as isize;
            index[axis] = 0;
        }
    }
    Some(tensor)
}
