//! Leaves out the padding in front of pooling.
//!
//! In: a plan whose buffers are not placed yet. Out: the same plan, in which pooling reads the
//! image itself where a step pads it with what changes no result. Invariant: the padding is a
//! number that is known, and nothing else reads the padded image.

use hypatia_dsl::kernel::Reduction;

use super::{Action, BufferId, Plan, PoolStep, Step, Storage, View};

/// Joins each pooling with the step that pads its image.
pub(super) fn omit_padding(plan: &mut Plan) {
    let mut gone = vec![false; plan.steps.len()];
    for at in 0..plan.steps.len() {
        let Action::Pool(p) = &plan.steps[at].action else { continue };
        let Some((maker, joined)) = joined(plan, p, &plan.steps[at]) else { continue };
        gone[maker] = true;
        plan.steps[at] = joined;
    }
    let mut gone = gone.into_iter();
    plan.steps.retain(|_| gone.next() != Some(true));
}

/// The place of the step that pads the image of a pooling, and the pooling without it.
fn joined(plan: &Plan, p: &PoolStep, step: &Step) -> Option<(usize, Step)> {
    let [image] = step.reads.as_slice() else { return None };
    let maker = plan.steps.iter().position(|s| s.writes.iter().any(|w| w.buffer == image.buffer))?;
    let (Action::Pad(before), [padded, value]) = (&plan.steps[maker].action, plan.steps[maker].reads.as_slice()) else {
        return None;
    };
    let [n, c, h, w] = padded.shape[..] else { return None };
    let (rows, columns, seen) = match before[..] {
        [0, rows, columns, 0] => (rows, columns, padded.clone()),
        // Each channel is an image.
        [0, 0, rows, columns] => (rows, columns, padded.reshaped(&[n * c, h, w, 1])?),
        _ => return None,
    };
    let alone = readers(plan, image.buffer) == 1 && padded.is_contiguous();
    let kept = seen.shape[0] == image.shape[0] && seen.shape[3] == image.shape[3];
    if !alone || !kept || !is_neutral(plan, p.kind, value) {
        return None;
    }
    let mut windows = p.windows.clone();
    for (w, before) in windows.iter_mut().zip([rows, columns]) {
        w.before += usize::try_from(before).ok()?;
    }
    // Padding of less than nothing cuts the image: windows end where the result says.
    let cut = [(1, rows), (2, columns)];
    let cut = cut.iter().any(|(a, before)| image.shape[*a] < seen.shape[*a] + usize::try_from(*before).unwrap_or(0));
    let reads = vec![seen];
    (!cut).then(|| (maker, Step { action: Action::Pool(PoolStep { windows, kind: p.kind }), reads, ..step.clone() }))
}

/// The number of steps and results that read a buffer.
fn readers(plan: &Plan, buffer: BufferId) -> usize {
    let reads = |views: &[View]| views.iter().any(|v| v.buffer == buffer);
    let of_steps = plan.steps.iter().filter(|s| reads(&s.reads)).count();
    of_steps + plan.outputs.iter().filter(|(_, v)| v.buffer == buffer).count()
}

/// True if a view is one number that changes no result of the reduction.
fn is_neutral(plan: &Plan, kind: Reduction, value: &View) -> bool {
    let Storage::Constant(index) = &plan.buffers[value.buffer.index()].storage else { return false };
    let number = plan.constants.get(*index).filter(|t| t.len() == 1).map(|t| t.to_f64());
    let Some(number) = number.and_then(|all| all.first().copied()) else { return false };
    match kind {
        Reduction::Max => number == f64::NEG_INFINITY,
        Reduction::Min => number == f64::INFINITY,
        Reduction::Sum | Reduction::Mean => number == 0.0,
        Reduction::Prod => false,
    }
}
