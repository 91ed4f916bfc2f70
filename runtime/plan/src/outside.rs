//! Results that a caller's memory may hold instead of the arena.
//!
//! In: a plan. Out: the output whose memory may take a buffer's place in a run. Invariant: such a
//! buffer holds that output and nothing else, and no step writes it over an operand.

use super::buffer::{BufferId, Storage};
use super::plan::Plan;
use super::step::{Action, Step};

impl Plan {
    /// The output whose memory may take the buffer's place: no step and no other output notices.
    /// Where several outputs are the whole buffer, it is the first of them.
    pub fn outside(&self, id: BufferId) -> Option<usize> {
        let buffer = &self.buffers[id.index()];
        if !matches!(buffer.storage, Storage::Arena(_)) {
            return None;
        }
        let whole = self.outputs.iter().position(|(_, view)| {
            let all = view.offset == 0 && view.len() == buffer.len && view.is_contiguous();
            view.buffer == id && all && !view.is_empty()
        });
        whole.filter(|_| !self.steps.iter().any(|step| writes_over(step, id)))
    }
}

/// True if the step writes the buffer over an operand.
fn writes_over(step: &Step, id: BufferId) -> bool {
    let parts = match &step.action {
        Action::Call(call) => call.fallback.as_slice(),
        _ => &[],
    };
    let over = step.writes.iter().zip(&step.in_place).any(|(write, over)| write.buffer == id && over.is_some());
    over || parts.iter().any(|part| writes_over(part, id))
}
