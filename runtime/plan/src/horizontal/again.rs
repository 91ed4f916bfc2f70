//! Small work that each of its readers computes again.
//!
//! In: a plan for a GPU whose buffers are not placed yet. Out: the same plan without pointwise
//! steps whose readers, all of which parts can describe, are predicted to compute them sooner than
//! the launch takes. Invariant: a value is rounded as it would be stored.

use super::{of_constants, parts_of, step_of, with_made};
use crate::prologue::{Readers, readers};
use crate::whole::joined_name;
use crate::{Action, Plan, Step, View};

/// Elements of the readers up to which they read what the work reads: more of them take longer than
/// a launch, as each operand has its own strides.
const MOST_READ: usize = 1 << 19;

/// Gives such work to its readers.
pub(super) fn spread(plan: &mut Plan) {
    let mut of_all = readers(plan);
    let mut at = 0;
    while at < plan.steps.len() {
        let Some(steps) = computed_again(plan, &of_all, at) else {
            at += 1;
            continue;
        };
        steps.into_iter().for_each(|(place, step)| plan.steps[place] = step);
        plan.steps.remove(at);
        of_all = readers(plan);
    }
}

/// The readers of the step at that place with its work, if there are several and that is sooner.
fn computed_again(plan: &Plan, readers: &Readers, at: usize) -> Option<Vec<(usize, Step)>> {
    let maker = &plan.steps[at];
    let Action::Pointwise(work) = &maker.action else { return None };
    if work.kernel.acc.is_some() || maker.kernel.is_some() || of_constants(plan, maker) {
        return None;
    }
    let mut places: Vec<usize> =
        maker.writes.iter().filter_map(|w| readers.get(&w.buffer)).flatten().copied().collect();
    places.sort_unstable();
    places.dedup();
    let elements = |i: &usize| plan.steps.get(*i).and_then(|s| s.writes.first()).map_or(0, View::len);
    if places.iter().map(elements).sum::<usize>() > MOST_READ {
        return None;
    }
    let mut joined = Vec::new();
    for place in &places {
        // An output has no reading step.
        let reader = plan.steps.get(*place).filter(|s| s.kernel.is_none())?;
        let parts = match reader.action {
            Action::Pointwise(_) | Action::Horizontal(_) => parts_of(reader)?,
            _ => return None,
        };
        joined.push((*place, step_of(joined_name(&[maker.clone(), reader.clone()]), with_made(maker, &parts)?)?));
    }
    let seconds = |step: &Step| step.predicted(&plan.device);
    let before = seconds(maker) + places.iter().map(|i| seconds(&plan.steps[*i])).sum::<f64>();
    let after: f64 = joined.iter().map(|(_, step)| seconds(step)).sum();
    (places.len() > 1 && after < before).then_some(joined)
}
