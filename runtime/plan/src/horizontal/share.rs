//! Independent steps in one launch.
//!
//! In: a plan for a GPU whose buffers are not placed yet. Out: the same plan, in which steps that
//! do not depend on each other are parts of one. Invariant: a step still runs after all that it
//! reads, and before all that read it.

use super::{of_constants, parts_of, step_of};
use crate::whole::joined_name;
use crate::{Action, BufferId, Plan, Step};

/// Bytes that a small step reads and writes at most.
const SMALL: f64 = (4 << 20) as f64;
/// How many steps lie between two small ones that share a launch, at most, and between others: what
/// is computed earlier takes memory for longer.
const APART: [usize; 2] = [16, 4];

/// Which independent steps share a launch.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Sharing {
    /// All that may.
    Any,
    /// Small ones.
    Small,
}

impl Sharing {
    /// Whether these steps, so many places apart, may share a launch.
    pub(crate) fn admits(self, steps: [&Step; 2], apart: usize) -> bool {
        let small = steps.iter().all(|s| s.is_small());
        apart <= APART[usize::from(!small)] && (small || self == Sharing::Any)
    }

    /// How far such steps lie apart, at most.
    pub(crate) const FARTHEST: usize = APART[0];
}

impl Step {
    fn is_small(&self) -> bool {
        self.work().bytes <= SMALL
    }
}

/// Gives independent steps one launch. Steps of any size gain by it: the last blocks of one run
/// beside the first of the next.
pub(super) fn share(plan: &mut Plan, sharing: Sharing) {
    let mut at = 1;
    while at < plan.steps.len() {
        let earlier =
            (at.saturating_sub(Sharing::FARTHEST)..at).rev().find_map(|i| Some((i, shared(plan, sharing, (i, at))?)));
        match earlier {
            // The later step is computed earlier, or the earlier one later.
            Some((i, Shared::Earlier(step))) => {
                plan.steps[i] = step;
                plan.steps.remove(at);
            }
            Some((i, Shared::Later(step))) => {
                plan.steps[at] = step;
                plan.steps.remove(i);
            }
            None => at += 1,
        }
    }
}

/// The launch that two steps share, and when it runs.
enum Shared {
    Earlier(Step),
    Later(Step),
}

/// The launch of two steps, the first one before the other.
fn shared(plan: &Plan, sharing: Sharing, (first, second): (usize, usize)) -> Option<Shared> {
    let steps = [&plan.steps[first], &plan.steps[second]];
    if !steps.iter().all(|s| may_share(plan, s)) || !sharing.admits(steps, second - first) {
        return None;
    }
    let small = steps.iter().all(|s| s.is_small());
    let reads = |step: &Step, of: &Step| step.reads.iter().any(|v| writes(of, v.buffer));
    let earlier = !plan.steps[first..second].iter().any(|s| reads(steps[1], s));
    // Large results of several parts are not delayed again.
    let delayed = matches!(&steps[0].action, Action::Horizontal(h) if h.parts.len() > 1) && !small;
    let later = || !delayed && !plan.steps[first + 1..=second].iter().any(|s| reads(s, steps[0]));
    if !earlier && !later() {
        return None;
    }
    let [one, other] = steps.map(parts_of);
    let step = step_of(joined_name(&steps.map(Step::clone)), [one?, other?].concat())?;
    Some(if earlier { Shared::Earlier(step) } else { Shared::Later(step) })
}

fn writes(step: &Step, buffer: BufferId) -> bool {
    step.writes.iter().any(|w| w.buffer == buffer)
}

/// True for a step whose work may be a part of a launch.
fn may_share(plan: &Plan, step: &Step) -> bool {
    let moves = match &step.action {
        Action::Pointwise(_) => !of_constants(plan, step),
        Action::Copy | Action::Concat(_) | Action::Pad(_) | Action::Horizontal(_) => true,
        Action::Gather(_) | Action::GatherElements(_) => true,
        _ => false,
    };
    moves && step.kernel.is_none()
}
