//! When comparisons of products with their checksums run.
//!
//! In: the launches of a plan in order, each comparison after its product. Out: the same launches,
//! with the comparisons after the steps that the plan names ([`Plan::compared_behind`]), several
//! in one launch, and the bytes that products and comparisons exchange. Invariant: until a
//! comparison has run, no other product writes what it exchanges with its own product.

use super::kernel::KernelLaunch;
use super::launch::{Comparisons, Launch};
use hypatia_plan::Plan;

/// Alignment of what a product and its comparison exchange.
const ALIGNMENT: usize = 256;

/// Comparisons that wait, and the memory that is taken meanwhile.
#[derive(Default)]
struct Waiting {
    /// With their steps.
    kernels: Vec<(usize, KernelLaunch)>,
    /// Bytes of it; and the most that there ever were.
    taken: usize,
    most: usize,
}

/// Moves comparisons after the steps where several run at once.
pub(super) fn gather(plan: &Plan, launches: Vec<(usize, Launch)>) -> (Vec<(usize, Launch)>, usize) {
    let behind = plan.compared_behind();
    let last = |step: usize| behind.get(step).copied().unwrap_or(step);
    let mut out = Vec::with_capacity(launches.len());
    let mut waiting = Waiting::default();
    let mut launches = launches.into_iter().peekable();
    while let Some((step, launch)) = launches.next() {
        if let Some(launch) = waiting.add(step, launch) {
            out.push((step, launch));
        }
        // What is due after a step that launches nothing is due after the one before it.
        let next = launches.peek().map_or(plan.steps.len(), |(next, _)| *next);
        if next != step {
            let due = waiting.take(|step| last(step) < next);
            if !due.steps.is_empty() {
                out.push((step, Launch::Checks(due)));
            }
        }
    }
    (out, waiting.most)
}

impl Waiting {
    /// Gives the launch its own part of the memory. Comparisons stay here.
    fn add(&mut self, step: usize, launch: Launch) -> Option<Launch> {
        match launch {
            Launch::Kernel(mut kernel) => {
                kernel.reports_as(step);
                kernel.move_sums(self.taken);
                Some(Launch::Kernel(kernel))
            }
            Launch::Checks(checks) => {
                for mut kernel in checks.sums.into_iter().chain(checks.kernels) {
                    kernel.reports_as(step);
                    kernel.move_sums(self.taken);
                    // What compares comes last.
                    if kernel.reports() {
                        self.taken += kernel.exchanged().next_multiple_of(ALIGNMENT);
                        self.most = self.most.max(self.taken);
                    }
                    self.kernels.push((step, kernel));
                }
                None
            }
            other => Some(other),
        }
    }

    fn take(&mut self, is_due: impl Fn(usize) -> bool) -> Comparisons {
        let (due, waiting) = std::mem::take(&mut self.kernels).into_iter().partition(|(step, _)| is_due(*step));
        self.kernels = waiting;
        if self.kernels.is_empty() {
            self.taken = 0;
        }
        joined(due)
    }
}

/// Few launches of these kernels.
fn joined(kernels: Vec<(usize, KernelLaunch)>) -> Comparisons {
    let mut out = Comparisons::default();
    for (step, kernel) in kernels {
        if !kernel.reports() {
            out.sums.push(kernel);
            continue;
        }
        out.steps.push(step);
        let left = out.kernels.iter_mut().try_fold(kernel, |kernel, launch| launch.join(kernel));
        out.kernels.extend(left);
    }
    out
}
