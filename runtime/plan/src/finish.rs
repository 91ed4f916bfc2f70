//! Joins attention with the pointwise work on its result.
//!
//! In: a plan for a GPU whose buffers are not placed yet. Out: the same plan, in which an attention
//! and the pointwise step that alone reads its result are one step, with both as its fallback: a
//! gate, a factor of each head, a sink's share. Invariant: a result is rounded as it would be
//! stored; the work sees each element once, wherever it lies.

use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::InView;
use hypatia_dsl::scalar::{Term, TermBuilder, TermId, TermNode};

use super::prologue::{Readers, readers, seen};
use super::view::row_major;
use super::whole::{joined_name, substituted};
use super::{Action, AttentionStep, CallStep, Called, Plan, PointwiseStep, Step, View, horizontal};

/// Joins each attention with the work on its result.
pub(super) fn cluster(plan: &mut Plan) {
    // Which steps are joined depends on their sizes.
    if plan.allowed.batch_invariant {
        return;
    }
    let is_attention = |s: &Step| matches!(&s.action, Action::Call(CallStep { called: Called::Attention(_), .. }));
    let mut at = 0;
    while at < plan.steps.len() {
        if is_attention(&plan.steps[at])
            && let Some(Joined { step, reader, gone }) = joined(plan, &readers(plan), at)
        {
            // What it reads is there in front of its reader.
            plan.steps[reader] = step;
            let mut place = 0..;
            plan.steps.retain(|_| place.next().is_none_or(|i| !gone.contains(&i)));
        } else {
            at += 1;
        }
    }
}

/// An attention with the work on its result.
struct Joined {
    step: Step,
    /// The place of that work, where the step stands.
    reader: usize,
    /// The places of the attention, and of work on the log-sum-exp that only the work reads.
    gone: Vec<usize>,
}

/// The attention at that place with the work on its result.
fn joined(plan: &Plan, readers: &Readers, at: usize) -> Option<Joined> {
    let step = &plan.steps[at];
    let Action::Call(CallStep { called: Called::Attention(a), reads, writes, .. }) = &step.action else { return None };
    step.kernel?;
    let (own, results) = (&step.reads[..*reads], &step.writes[..*writes]);
    let [reader] = readers.get(&results[0].buffer)?.as_slice() else { return None };
    let after = plan.steps.get(*reader).filter(|s| is_work(s))?;
    let on_lse = match &results[1..] {
        [] => None,
        [lse] => work_on(plan, readers, lse, *reader)?,
        _ => return None,
    };
    // Nothing in between changes what the attention reads.
    let between = || plan.steps[at + 1..*reader].iter().flat_map(|s| &s.writes);
    let kept = !between().any(|w| step.reads.iter().any(|r| r.buffer == w.buffer));
    if !kept || a.beside > 0 || !a.is_plain() {
        return None;
    }
    let gone: Vec<usize> = std::iter::once(at).chain(on_lse).collect();
    let work = match on_lse {
        Some(i) => horizontal::within(&plan.steps[i], after)?,
        None => after.clone(),
    };
    let Action::Pointwise(p) = &work.action else { return None };
    let (finish, beside, out) = finished(p, &work, results)?;
    let called = AttentionStep { lse: false, finish, beside: beside.len(), ..a.clone() };
    let parts: Vec<Step> = gone.iter().chain([reader]).map(|i| plan.steps[*i].clone()).collect();
    let joined = Step::call(&joined_name(&parts), Called::Attention(called), [own, &beside].concat(), vec![out], parts);
    Some(Joined { step: Step { kernel: step.kernel, ..joined }, reader: *reader, gone })
}

/// The work on a log-sum-exp whose result the step at `reader` alone reads, if that step does not
/// read the log-sum-exp itself; `None` if anything else reads it.
fn work_on(plan: &Plan, readers: &Readers, lse: &View, reader: usize) -> Option<Option<usize>> {
    let [first] = readers.get(&lse.buffer)?.as_slice() else { return None };
    if *first == reader {
        return Some(None);
    }
    let made = plan.steps.get(*first).filter(|s| is_work(s))?.writes.first()?;
    (readers.get(&made.buffer)?.as_slice() == [reader]).then_some(Some(*first))
}

/// Pointwise work with one result.
fn is_work(step: &Step) -> bool {
    let alone = step.writes.len() == 1 && step.kernel.is_none();
    alone && matches!(&step.action, Action::Pointwise(p) if p.kernel.acc.is_none())
}

/// The work as a term of an element of the result and of the log-sum-exp, what it reads besides,
/// and where it stores; along the axes of the result.
fn finished(p: &PointwiseStep, work: &Step, results: &[View]) -> Option<(Term, Vec<View>, View)> {
    let ([out], [made, lse @ ..]) = (work.writes.as_slice(), results) else { return None };
    if out.dtype != made.dtype || out.is_empty() {
        return None;
    }
    let reads: Vec<View> = work.reads.iter().zip(&p.strides).map(|(v, strides)| seen(v, &p.shape, strides)).collect();
    let axes = Axes::of(made, reads.iter().find(|v| v.buffer == made.buffer)?)?;
    let mut terms = TermBuilder::new();
    let mut beside: Vec<View> = Vec::new();
    let mut values: Vec<TermId> = Vec::new();
    for view in &reads {
        let view = axes.seen(view)?;
        let node = if view.buffer == made.buffer {
            if !same_place(&view, made) {
                return None;
            }
            let acc = terms.add(TermNode::Acc);
            TermNode::Cast { to: made.dtype, arg: acc }
        } else if let Some(lse) = lse.iter().find(|l| l.buffer == view.buffer) {
            if !same_place(&view, &lse.broadcast(&made.shape)?) {
                return None;
            }
            TermNode::Second
        } else {
            let input = beside.iter().position(|v| *v == view).unwrap_or_else(|| {
                beside.push(view);
                beside.len() - 1
            });
            // A thread of a tiled kernel has no registers for wider numbers.
            if beside[input].dtype.compute().size() > DType::F32.size() {
                return None;
            }
            TermNode::In { input: input as u32, view: InView::Broadcast }
        };
        values.push(terms.add(node));
    }
    let roots = substituted(&mut terms, &p.kernel.term, &values);
    let out = axes.seen(&seen(out, &p.shape, &row_major(&p.shape)))?;
    // A row of results is stored at once.
    let dense = out.shape.last() == Some(&1) || out.strides.last() == Some(&1);
    dense.then(|| (terms.finish(roots), beside, out))
}

/// Whether two views of one shape are of the same elements.
fn same_place(a: &View, b: &View) -> bool {
    let along = |axis: usize| a.shape[axis] == 1 || a.strides[axis] == b.strides[axis];
    a.offset == b.offset && a.shape == b.shape && (0..a.shape.len()).all(along)
}

/// The axes of a result that fills its memory, in whatever order, and those of its reader.
struct Axes {
    /// The axes of the reader as the result lies in memory, the outermost first.
    of_reader: Vec<usize>,
    /// The sizes of the result in memory.
    sizes: Vec<usize>,
    /// The place of each axis of the result among these.
    places: Vec<usize>,
}

impl Axes {
    /// Of a result that is read so.
    fn of(made: &View, read: &View) -> Option<Axes> {
        let (order, of_reader) = (in_memory(made), in_memory(read));
        let lies = made.transposed(&order);
        let place = |axis: usize| order.iter().position(|a| *a == axis);
        let places = (0..order.len()).map(place).collect::<Option<Vec<usize>>>()?;
        let whole = lies.is_contiguous() && read.transposed(&of_reader).is_contiguous() && read.len() == made.len();
        whole.then_some(Axes { of_reader, sizes: lies.shape, places })
    }

    /// A view along the reader's axes, along those of the result.
    fn seen(&self, view: &View) -> Option<View> {
        Some(view.transposed(&self.of_reader).reshaped(&self.sizes)?.transposed(&self.places))
    }
}

/// The axes of a view from the one whose neighbours lie farthest apart.
fn in_memory(view: &View) -> Vec<usize> {
    let mut order: Vec<usize> = (0..view.shape.len()).collect();
    order.sort_by_key(|a| std::cmp::Reverse(view.strides[*a]));
    order
}
