//! Buffer placement in the arena.
//!
//! In: a plan with final steps and buffers. Out: the same with offsets. Invariant: two buffers that
//! are live during the same step do not overlap, except a pointwise result that reuses the memory
//! of an operand that dies there and is read at exactly the index that is written.

use std::collections::BTreeMap;

use super::checked::operands;
use super::{ALIGNMENT, Action, Plan, Step, Storage, View};
use hypatia_tensor::error::{Error, Result};

/// Free ranges of the arena.
#[derive(Default)]
struct Arena {
    /// Length by offset; adjacent ranges are merged.
    free: BTreeMap<usize, usize>,
    size: usize,
}

impl Arena {
    /// Allocates from the smallest range that is large enough (best fit), otherwise at the end.
    fn take(&mut self, len: usize) -> usize {
        let best = self.free.iter().filter(|(_, l)| **l >= len).min_by_key(|(_, l)| **l).map(|(o, l)| (*o, *l));
        if let Some((offset, have)) = best {
            self.free.remove(&offset);
            if have > len {
                self.free.insert(offset + len, have - len);
            }
            return offset;
        }
        // A free range at the very end grows.
        let tail = self.free.iter().next_back().map(|(o, l)| (*o, *l)).filter(|(o, l)| o + l == self.size);
        let offset = tail.map_or(self.size, |(o, _)| o);
        self.free.remove(&offset);
        self.size = offset + len;
        offset
    }

    fn give(&mut self, offset: usize, len: usize) {
        let (mut offset, mut len) = (offset, len);
        if let Some((o, l)) =
            self.free.range(..offset).next_back().map(|(o, l)| (*o, *l)).filter(|(o, l)| o + l == offset)
        {
            self.free.remove(&o);
            (offset, len) = (o, len + l);
        }
        if let Some(l) = self.free.remove(&(offset + len)) {
            len += l;
        }
        self.free.insert(offset, len);
    }
}

/// The last step that reads or writes each buffer, or after which a comparison reads it;
/// `steps.len()` for outputs.
pub(super) fn last_uses(plan: &Plan) -> Vec<usize> {
    let mut last = vec![0; plan.buffers.len()];
    for (i, step) in plan.steps.iter().enumerate() {
        step.reads.iter().chain(&step.writes).for_each(|v| last[v.buffer.index()] = i);
    }
    for (step, until) in plan.kept_for_checks() {
        operands(step).for_each(|v| last[v.buffer.index()] = last[v.buffer.index()].max(until));
    }
    plan.outputs.iter().for_each(|(_, v)| last[v.buffer.index()] = plan.steps.len());
    last
}

/// The read of a pointwise step that its write `j` may reuse: it dies here, is read nowhere else in
/// the step, at the index that is written, and its elements have the same type.
fn replaceable(plan: &Plan, step: &Step, at: usize, j: usize, last: &[usize]) -> Option<usize> {
    let Action::Pointwise(_) = &step.action else { return None };
    let out = &step.writes[j];
    step.reads.iter().position(|v| {
        let buffer = &plan.buffers[v.buffer.index()];
        let alone = step.reads.iter().filter(|w| w.buffer == v.buffer).count() == 1;
        let whole = v.offset == 0 && v.len() == buffer.len && v.is_contiguous() && v.shape == out.shape;
        matches!(buffer.storage, Storage::Arena(_))
            && last[v.buffer.index()] == at
            && alone
            && whole
            && v.dtype == out.dtype
    })
}

/// Places all buffers. `limit` is the maximum number of bytes of the arena and the outputs.
pub(super) fn assign(plan: &mut Plan, limit: usize) -> Result<()> {
    let last = last_uses(plan);
    let bytes = |len: usize, size: usize| {
        len.checked_mul(size).and_then(|b| b.max(1).checked_next_multiple_of(ALIGNMENT)).filter(|b| *b <= limit)
    };
    let mut arena = Arena::default();
    // The range that each arena buffer holds at present; a buffer whose memory was reused holds
    // nothing.
    let mut held: Vec<Option<(usize, usize)>> = vec![None; plan.buffers.len()];
    for i in 0..plan.steps.len() {
        let step = plan.steps[i].clone();
        let mut in_place = vec![None; step.writes.len()];
        for (j, write) in step.writes.iter().enumerate() {
            // Several results may be parts of one buffer.
            if step.writes[..j].iter().any(|w| w.buffer == write.buffer) {
                continue;
            }
            let buffer = &plan.buffers[write.buffer.index()];
            let Some(size) = bytes(buffer.len, buffer.dtype.size()) else {
                return Err(too_much(limit, &format!("{} alone is larger", result(plan, i, write))));
            };
            let taken: Option<usize> = replaceable(plan, &step, i, j, &last).filter(|r| !in_place.contains(&Some(*r)));
            let from = taken.and_then(|r| held[step.reads[r].buffer.index()].take());
            let slot = match from {
                Some(slot) => {
                    in_place[j] = taken;
                    slot
                }
                None => (arena.take(size), size),
            };
            held[write.buffer.index()] = Some(slot);
            plan.buffers[write.buffer.index()].storage = Storage::Arena(slot.0);
            if arena.size > limit {
                let what = result(plan, i, write);
                return Err(too_much(limit, &format!("{what} does not fit beside what is still needed then")));
            }
        }
        for v in step.reads.iter().chain(&step.writes) {
            if last[v.buffer.index()] == i
                && let Some((offset, len)) = held[v.buffer.index()].take()
            {
                arena.give(offset, len);
            }
        }
        plan.steps[i].in_place = in_place;
    }
    plan.arena = arena.size;
    let mut total = arena.size;
    for (name, v) in &plan.outputs {
        total = bytes(v.len(), v.dtype.size()).and_then(|b| total.checked_add(b)).unwrap_or(usize::MAX);
        if total > limit {
            return Err(too_much(limit, &format!("output `{name}` is {}{:?}", v.dtype, v.shape)));
        }
    }
    Ok(())
}

/// A result of a step for people: which op computes it, its type and its size.
fn result(plan: &Plan, step: usize, write: &View) -> String {
    let mebibytes = (write.len() as f64 * write.dtype.size() as f64) / f64::from(1 << 20);
    format!("the result of `{}`, {}{:?} of {mebibytes:.1} MiB,", plan.step_name(step), write.dtype, write.shape)
}

fn too_much(limit: usize, what: &str) -> Error {
    let most = limit >> 20;
    Error::Limit(format!(
        "{what}: intermediate results and outputs may take at most {most} MiB (`--memory MIB` allows another \
         number, `--dim NAME=N` makes a dynamic size smaller)"
    ))
}
