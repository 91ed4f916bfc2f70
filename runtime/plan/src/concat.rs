//! Stores the gradients of attention where a concatenation would move them.
//!
//! In: a plan whose buffers are not placed yet, without copies that could be omitted. Out: the same
//! plan, in which the gradients of queries, keys and values of one merged projection lie in
//! one buffer. Invariant: a result is stored there only if nothing but the concatenation reads it;
//! they cover the whole buffer; the call's fallback ends with the concatenation.

use std::collections::{HashMap, HashSet};

use super::{Action, BufferId, Called, Plan, Step, View};

/// Merges each call whose results are concatenated with the concatenation.
pub(super) fn omit(plan: &mut Plan) {
    let mut readers: HashMap<BufferId, usize> = HashMap::new();
    for step in &plan.steps {
        step.reads.iter().for_each(|v| *readers.entry(v.buffer).or_insert(0) += 1);
    }
    plan.outputs.iter().for_each(|(_, v)| *readers.entry(v.buffer).or_insert(0) += 1);
    let mut gone: HashSet<usize> = HashSet::new();
    for at in 0..plan.steps.len() {
        let Action::Concat(axis) = plan.steps[at].action else { continue };
        let concat = &plan.steps[at];
        if concat.reads.iter().any(|v| readers.get(&v.buffer) != Some(&1)) {
            continue;
        }
        let makes = |step: &Step| {
            let Action::Call(e) = &step.action else { return false };
            let own = |v: &View| step.writes[..e.writes].iter().any(|w| w.buffer == v.buffer);
            matches!(e.called, Called::AttentionGrad(_)) && step.kernel.is_some() && concat.reads.iter().all(own)
        };
        let Some(maker) = plan.steps[..at].iter().position(makes) else { continue };
        if let Some(step) = stored_there(&plan.steps[maker], concat, axis) {
            plan.steps[maker] = step;
            gone.insert(at);
        }
    }
    let mut at = 0..;
    plan.steps.retain(|_| at.next().is_none_or(|i| !gone.contains(&i)));
}

/// A call and the concatenation of its results as one step; `None` if the kernel cannot store a
/// result in its part.
fn stored_there(maker: &Step, concat: &Step, axis: usize) -> Option<Step> {
    let Action::Call(e) = &maker.action else { return None };
    let mut writes = maker.writes[..e.writes].to_vec();
    let mut start = 0;
    for read in &concat.reads {
        let size = read.shape[axis];
        let part = concat.writes.first()?.sliced(axis, start, 1, size);
        start += size;
        let result = writes.iter_mut().find(|w| w.buffer == read.buffer)?;
        *result = moved(result, read, &part)?;
    }
    let fallback = [e.fallback.clone(), vec![concat.clone()]].concat();
    let step = Step::call(&maker.name, e.called.clone(), maker.reads[..e.reads].to_vec(), writes, fallback);
    Some(Step { kernel: maker.kernel, ..step })
}

/// The elements of `result`, a whole buffer, where a copy of `from`, the row-major view of that
/// buffer, to `part` has them. `None` if rows of the result would not lie side by side there.
fn moved(result: &View, from: &View, part: &View) -> Option<View> {
    if from.offset != 0 || !from.is_contiguous() || from.len() != result.len() || from.is_empty() {
        return None;
    }
    let stride = |(size, stride): (&usize, &isize)| {
        if *size == 1 {
            return Some(0);
        }
        // The axis of `from` along which that axis of the result lies as a whole.
        let along = |a: &usize| {
            let (own, count) = (from.strides[*a], from.shape[*a] as isize);
            count > 1 && *stride % own == 0 && stride * (*size as isize - 1) < own * count && *stride < own * count
        };
        let axis = (0..from.shape.len()).find(along)?;
        Some(stride / from.strides[axis] * part.strides[axis])
    };
    let strides = result.shape.iter().zip(&result.strides).map(stride).collect::<Option<Vec<isize>>>()?;
    (strides.last() == Some(&1)).then(|| View { strides, shape: result.shape.clone(), ..part.clone() })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use hypatia_dsl::dtype::DType;

    use super::*;

    #[test]
    fn a_result_is_moved_only_as_whole_rows() {
        let (from, to) = (BufferId(0), BufferId(1));
        let view = |b, shape: &[usize]| View::whole(b, DType::BF16, shape);
        // Heads of 5 elements, stored as [2, 3, 4 heads, 5].
        let heads = view(from, &[2, 3, 4, 5]).transposed(&[0, 2, 1, 3]);
        let read = view(from, &[2, 3, 20]);
        let part = view(to, &[2, 3, 50]).sliced(2, 20, 1, 20);
        let there = moved(&heads, &read, &part).unwrap();
        assert_eq!((there.offset, &there.strides[..], there.buffer), (20, &[150, 5, 50, 1][..], to));
        // Stored as [2, 4, 3, 5] and read as it lies: the rows of a head are apart in the part.
        let apart = moved(&view(from, &[2, 4, 3, 5]), &view(from, &[2, 4, 15]), &part.clone());
        assert_eq!(apart.unwrap().strides, [150, 50, 5, 1]);
        // An axis of the result across two axes that are read.
        assert!(moved(&view(from, &[120]), &read, &part).is_none());
        // A result whose elements are not side by side.
        assert!(moved(&view(from, &[6, 20]).transposed(&[1, 0]), &read, &part).is_none());
    }
}
