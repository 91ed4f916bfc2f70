//! Horizontal fusion: pointwise work of several index spaces becomes one launch.
//!
//! In: a plan for a GPU whose buffers are not placed yet. Out: the same plan with fewer launches. A
//! concatenation, a padding or a copy is done together with the pointwise work on its parts and on
//! its result, which then need no memory between them. Small work is computed again by each of its
//! readers. Small independent steps share a launch: it costs as much as moving megabytes.
//! Invariant: what one part writes no other part reads; a value is rounded as it would be stored.
//!
//! Gathers take part: what they read is a [`Pick`] of a part, whose index the part may compute.
//!
//! [`mod@pieces`] says which elements of a result come from where, [`through`] what a step reads
//! whose result is read through a view, [`picks`] what a gather reads; [`joining`] puts what a step
//! makes where a part reads it, and [`mod@moves`] makes one move of several, and [`stored`] stores
//! what several parts make where a move would put it.

mod again;
mod joining;
mod moves;
mod picks;
mod pieces;
mod share;
mod stored;
mod through;

use std::collections::HashMap;

use hypatia_dsl::ir::InView;
use hypatia_dsl::kernel::{Access, HORIZONTAL_AXES, Operand, PointwiseKernel};
use hypatia_dsl::scalar::{Term, TermBuilder, TermId, TermNode};

use self::again::spread;
use self::moves::compose;
use self::pieces::{Piece, cut, pieces};
pub(super) use self::share::Sharing;
use self::share::share;
use self::stored::with_stored;
use super::prologue::{Readers, readers, seen};
use super::view::{View, collapse, ends, refined, row_major};
use super::whole::{joined_name, substituted};
use super::{Action, BufferId, HorizontalPart, HorizontalStep, Pick, Plan, PointwiseStep, Step, Storage};

/// Maximum number of parts of a launch.
const MOST_PARTS: usize = 16;
/// Maximum number of 64-bit words of a launch's arguments: CUDA passes 4 KiB.
const MOST_WORDS: usize = 480;
/// Maximum number of operands and of nodes of a part's term.
const MOST_READS: usize = 24;
const MOST_NODES: usize = 400;
/// Maximum number of picks of a part.
const MOST_PICKS: usize = 4;
/// Maximum number of functions that are computed again where several parts read a value.
const MOST_AGAIN: usize = 1 << 22;
/// Functions that take as long as an element of a table, if each element has an index of its own.
const LOOKUP: usize = 8;

/// Joins the steps of a plan. Which ones it joins depends on their sizes.
pub(super) fn cluster(plan: &mut Plan, sharing: Sharing) {
    if plan.allowed.batch_invariant {
        return;
    }
    compose(plan);
    join(plan);
    spread(plan);
    share(plan, sharing);
    // What several steps read that share a launch now, one step reads.
    join(plan);
}

/// Joins pointwise work with its only reader, and with what only moves elements.
fn join(plan: &mut Plan) {
    loop {
        let readers = readers(plan);
        let makers = Makers::new(plan, &readers);
        let found = (0..plan.steps.len()).find_map(|at| joined(plan, (&readers, &makers), at));
        let Some(joined) = found else { break };
        joined.apply(plan);
    }
}

/// One part: what it computes of each element, with views of one shape.
#[derive(Clone)]
struct Part {
    term: Term,
    reads: Vec<View>,
    writes: Vec<View>,
    picks: Vec<Pick>,
}

/// A step that takes the place of others.
struct Joined {
    step: Step,
    /// Where it stands.
    at: usize,
    /// The others.
    gone: Vec<usize>,
}

impl Joined {
    /// These parts at `place` instead of the steps at `places`, if they are several and that is
    /// predicted to be faster.
    fn of(plan: &Plan, mut places: Vec<usize>, place: usize, parts: Vec<Part>) -> Option<Joined> {
        places.sort_unstable();
        places.dedup();
        let before: Vec<Step> = places.iter().map(|i| plan.steps[*i].clone()).collect();
        if before.len() == 1 {
            return None;
        }
        let step = step_of(joined_name(&before), parts)?;
        let seconds = |steps: &[Step]| steps.iter().map(|s| s.predicted(&plan.device)).sum::<f64>();
        let gone = places.into_iter().filter(|i| *i != place).collect();
        (seconds(std::slice::from_ref(&step)) < seconds(&before)).then_some(Joined { step, at: place, gone })
    }

    fn apply(self, plan: &mut Plan) {
        plan.steps[self.at] = self.step;
        let mut place = 0..;
        plan.steps.retain(|_| place.next().is_none_or(|i| !self.gone.contains(&i)));
    }
}

/// The elements of the operand.
fn identity() -> Term {
    let mut terms = TermBuilder::new();
    let root = terms.add(TermNode::In { input: 0, view: InView::Broadcast });
    terms.finish(vec![root])
}

/// A term whose accumulator is the input after the last.
fn without_acc(term: &Term, inputs: usize) -> Term {
    let read = |n: &TermNode| match n {
        TermNode::Acc => TermNode::In { input: inputs as u32, view: InView::Broadcast },
        n => n.clone(),
    };
    Term { nodes: term.nodes.iter().map(read).collect(), roots: term.roots.clone() }
}

/// A pointwise step as a part.
fn pointwise(p: &PointwiseStep, step: &Step) -> Part {
    let dense = row_major(&p.shape);
    Part {
        term: without_acc(&p.kernel.term, p.kernel.inputs.len()),
        reads: step.reads.iter().zip(&p.strides).map(|(v, strides)| seen(v, &p.shape, strides)).collect(),
        writes: step.writes.iter().map(|w| seen(w, &p.shape, &dense)).collect(),
        picks: Vec::new(),
    }
}

/// What a step computes, if parts can say it. Empty results have no parts.
fn parts_of(step: &Step) -> Option<Vec<Part>> {
    let parts = match &step.action {
        Action::Pointwise(p) => vec![pointwise(p, step)],
        Action::Gather(axis) => vec![picks::gather(step, *axis)?],
        Action::GatherElements(axis) => vec![picks::gather_elements(step, *axis)?],
        Action::Horizontal(h) => {
            let (mut reads, mut writes) = (step.reads.as_slice(), step.writes.as_slice());
            let mut parts = Vec::new();
            for p in &h.parts {
                let (own_reads, other_reads) = reads.split_at(p.step.strides.len());
                let (own_writes, other_writes) = writes.split_at(p.stored.len());
                let see = |views: &[View], strides: &[Vec<isize>]| -> Vec<View> {
                    views.iter().zip(strides).map(|(v, s)| seen(v, &p.step.shape, s)).collect()
                };
                parts.push(Part {
                    term: p.step.kernel.term.clone(),
                    reads: see(own_reads, &p.step.strides),
                    writes: see(own_writes, &p.stored),
                    picks: p.picks.clone(),
                });
                (reads, writes) = (other_reads, other_writes);
            }
            parts
        }
        _ => {
            let (whole, pieces) = pieces(step)?;
            pieces.iter().map(|p| Part::moved(&whole, p)).collect()
        }
    };
    let full = !parts.is_empty() && parts.iter().all(|p| p.writes.iter().all(|w| !w.is_empty()));
    full.then_some(parts)
}

impl Part {
    /// A piece of a result, as it is read.
    fn moved(whole: &View, piece: &Piece) -> Part {
        let (writes, reads) = (vec![cut(whole, &piece.region)], vec![piece.read.clone()]);
        Part { term: identity(), writes, reads, picks: Vec::new() }
    }

    /// The part as a plan has it.
    fn described(&self) -> HorizontalPart {
        let strides: Vec<Vec<isize>> = self.reads.iter().chain(&self.writes).map(|v| v.strides.clone()).collect();
        let (shape, mut strides) = collapse(&self.writes[0].shape, &strides);
        let stored = strides.split_off(self.reads.len());
        let dense = row_major(&shape);
        let table = |at: usize| self.picks.iter().any(|p| p.table == at);
        let access = |at: usize, s: &Vec<isize>| match () {
            () if table(at) => Access::Strided,
            () if *s == dense => Access::Full,
            () if s.iter().all(|x| *x == 0) => Access::Splat,
            () => Access::Strided,
        };
        let inputs = self.reads.iter().zip(&strides).enumerate();
        let inputs = inputs.map(|(at, (v, s))| Operand { dtype: v.dtype, access: access(at, s) });
        let kernel = PointwiseKernel {
            name: String::new(),
            doc: String::new(),
            inputs: inputs.collect(),
            outputs: self.writes.iter().map(|v| v.dtype).collect(),
            rank: shape.len(),
            term: self.term.clone(),
            acc: None,
        };
        HorizontalPart { step: PointwiseStep { kernel, shape, strides }, stored, picks: self.picks.clone() }
    }
}

/// Pointwise work that computes what other work makes where it reads that; `None` if strides cannot
/// say what it reads.
pub(super) fn within(maker: &Step, reader: &Step) -> Option<Step> {
    let made = parts_of(maker)?.pop()?;
    let part = parts_of(reader)?.pop()?;
    let part = part.refined(&made.writes[0].shape).with(&made).or_else(|| part.split(&made)?.with(&made))?;
    step_of(joined_name(&[maker.clone(), reader.clone()]), vec![part])
}

/// The words of a part's arguments.
fn words(part: &HorizontalPart) -> usize {
    let tensors = part.step.strides.len() + part.stored.len();
    tensors + (tensors + 1) * part.step.shape.len() + 1 + 2 * part.picks.len()
}

/// The step of these parts; `None` if they are none, or too many for a launch.
fn step_of(name: String, parts: Vec<Part>) -> Option<Step> {
    if let [Part { term, reads, writes, picks }] = parts.as_slice()
        && picks.is_empty()
        && writes.iter().all(|w| w.is_contiguous())
    {
        let step = PointwiseStep::of(term.clone(), reads, writes, None);
        return Some(Step::new(name, Action::Pointwise(step), reads.clone(), writes.clone()));
    }
    let described: Vec<HorizontalPart> = parts.iter().map(Part::described).collect();
    let fits = |p: &HorizontalPart| p.step.shape.len() <= HORIZONTAL_AXES;
    if parts.is_empty() || !described.iter().all(fits) {
        return None;
    }
    if parts.len() > MOST_PARTS || described.iter().map(words).sum::<usize>() > MOST_WORDS {
        return None;
    }
    let reads = parts.iter().flat_map(|p| p.reads.clone()).collect();
    let writes: Vec<View> = parts.iter().flat_map(|p| p.writes.clone()).collect();
    Some(Step::new(name, Action::Horizontal(HorizontalStep { parts: described }), reads, writes))
}

/// The step at that place with the pointwise work on what it reads, and on its result if it only
/// moves elements.
fn joined(plan: &Plan, (readers, makers): (&Readers, &Makers), at: usize) -> Option<Joined> {
    let moves = matches!(plan.steps[at].action, Action::Concat(_) | Action::Pad(_) | Action::Copy);
    let (place, mut parts) = match moves.then(|| worked_on(plan, readers, at)).flatten() {
        Some(found) => found,
        None => (at, parts_of(&plan.steps[at]).filter(|_| plan.steps[at].kernel.is_none())?),
    };
    let mut places = vec![place, at];
    let mut apart = Vec::new();
    while let Some(i) = parts.iter().flat_map(|p| &p.reads).find_map(|v| makers.of(v, &[&*places, &*apart].concat())) {
        let joined = with_made(&plan.steps[i], &parts);
        match joined.filter(|more| step_of(String::new(), more.clone()).is_some()) {
            Some(more) => {
                parts = more;
                places.push(i);
            }
            None => apart.push(i),
        }
    }
    Joined::of(plan, places, place, parts)
}

/// The parts of what only moves elements, with the pointwise work of its only reader, and the
/// reader's place.
fn worked_on(plan: &Plan, readers: &Readers, at: usize) -> Option<(usize, Vec<Part>)> {
    let (whole, pieces) = pieces(&plan.steps[at])?;
    let place = reader(plan, readers, &whole)?;
    let work = Work::of(&plan.steps[place], &whole)?;
    Some((place, pieces.iter().map(|p| work.on(p)).collect()))
}

/// The only step that reads a result, if nothing else does and it is pointwise.
fn reader(plan: &Plan, readers: &Readers, whole: &View) -> Option<usize> {
    let [only] = readers.get(&whole.buffer)?.as_slice() else { return None };
    plan.steps.get(*only).is_some_and(|s| matches!(s.action, Action::Pointwise(_))).then_some(*only)
}

/// The pointwise steps, gathers and copies whose results one step alone reads, by result: not those
/// of constants alone.
struct Makers(HashMap<BufferId, usize>);

impl Makers {
    fn new(plan: &Plan, readers: &Readers) -> Makers {
        let alone = |step: &Step| {
            let of = |w: &View| readers.get(&w.buffer).map_or(&[] as &[usize], Vec::as_slice);
            of(&step.writes[0]).len() == 1 && step.writes.iter().all(|w| of(w) == of(&step.writes[0]))
        };
        let makes = |step: &Step| match &step.action {
            Action::Pointwise(_) | Action::Gather(_) | Action::GatherElements(_) | Action::Copy => true,
            // A gather that is joined already, and the parts of a result.
            Action::Horizontal(h) if h.parts.len() == 1 => step.writes.iter().all(View::is_contiguous),
            Action::Horizontal(_) => step.writes.iter().all(|w| w.buffer == step.writes[0].buffer),
            _ => false,
        };
        let joins = |step: &Step| makes(step) && step.kernel.is_none();
        let steps = plan.steps.iter().enumerate();
        let makers = steps.filter(|(_, s)| joins(s) && !of_constants(plan, s) && alone(s));
        Makers(makers.flat_map(|(i, s)| s.writes.iter().map(move |w| (w.buffer, i))).collect())
    }

    /// The place of the step that makes what is read, unless it is one of these.
    fn of(&self, view: &View, but: &[usize]) -> Option<usize> {
        self.0.get(&view.buffer).copied().filter(|i| !but.contains(i))
    }
}

/// These parts, with what a step makes computed where they read it; `None` if strides cannot say
/// what that reads, or if much is computed again.
fn with_made(maker: &Step, parts: &[Part]) -> Option<Vec<Part>> {
    if matches!(&maker.action, Action::Horizontal(h) if h.parts.len() > 1) {
        return with_stored(maker, parts);
    }
    let made = parts_of(maker)?.pop()?;
    let own = |v: &&View| made.writes.iter().any(|w| w.buffer == v.buffer);
    if matches!(maker.action, Action::Copy) && !parts.iter().all(|p| p.only_indexes(&own)) {
        let all: Vec<Part> = parts.iter().flat_map(|p| p.blocks(&made.writes[0])).collect();
        let with = |p: &Part| p.with(&made).or_else(|| p.split(&made)?.with(&made));
        let all: Vec<Part> = all.iter().map(with).collect::<Option<_>>()?;
        // Otherwise the copy moves elements in an order that is better than theirs.
        return all.iter().all(Part::is_by_rows).then_some(all);
    }
    let elements: usize = parts.iter().map(|p| p.evaluated(&own)).sum();
    let calls = made.term.nodes.iter().filter(|n| matches!(n, TermNode::Call { .. })).count();
    let again = elements > made.writes.iter().map(View::len).sum::<usize>();
    let lookups: usize = made.picks.iter().map(|p| if made.shares(p) { 1 } else { LOOKUP }).sum();
    if again && elements.saturating_mul(calls + lookups) > MOST_AGAIN {
        return None;
    }
    let with = |part: &Part| part.refined(&made.writes[0].shape).with(&made).or_else(|| part.split(&made)?.with(&made));
    parts.iter().map(with).collect()
}

impl Part {
    /// The same part over more axes, if both it and work of that shape are over these.
    fn refined(&self, shape: &[usize]) -> Part {
        let part = || {
            let shape = refined(&self.writes[0].shape, shape)?;
            let seen = |views: &[View]| views.iter().map(|v| v.reshaped(&shape)).collect::<Option<Vec<View>>>();
            let (reads, writes) = (seen(&self.reads)?, seen(&self.writes)?);
            Some(Part { term: self.term.clone(), reads, writes, picks: self.picks.clone() })
        };
        part().unwrap_or_else(|| self.clone())
    }

    /// The same part with its axes divided where those of `made` end, in whatever order it reads
    /// them; `None` if there is nothing to divide.
    fn split(&self, made: &Part) -> Option<Part> {
        let ends: Vec<usize> = ends(&made.writes[0].shape);
        let mut shape = Vec::new();
        for (axis, size) in self.writes[0].shape.iter().enumerate() {
            let read = self.reads.iter().filter(|v| made.writes.iter().any(|w| w.buffer == v.buffer));
            let strides = read.map(|v| v.strides[axis].unsigned_abs()).filter(|s| *s > 0);
            let within = |s: usize| ends.iter().filter(move |e| e.is_multiple_of(s)).map(move |e| *e / s);
            let mut cuts: Vec<usize> = strides.flat_map(within).filter(|c| *c > 1 && c < size).collect();
            cuts.extend([1, *size]);
            cuts.sort_unstable();
            cuts.dedup();
            match cuts.windows(2).all(|w| w[1].is_multiple_of(w[0])) {
                true if *size > 1 => shape.extend(cuts.windows(2).rev().map(|w| w[1] / w[0])),
                _ => shape.push(*size),
            }
        }
        let seen = |views: &[View]| views.iter().map(|v| v.reshaped(&shape)).collect::<Option<Vec<View>>>();
        let divided = shape.len() > self.writes[0].shape.len();
        let part = Part { reads: seen(&self.reads)?, writes: seen(&self.writes)?, ..self.clone() };
        divided.then_some(part)
    }

    /// Whether neighbours in a row share the index of a pick: they are read in one access.
    fn shares(&self, pick: &Pick) -> bool {
        let fixed = |input: u32| self.reads.get(input as usize).is_some_and(|v| v.strides.last() == Some(&0));
        let along = self.reads.get(pick.table).is_some_and(|v| v.strides.last() == Some(&1));
        along && pick.index.nodes.iter().all(|n| if let TermNode::In { input, .. } = n { fixed(*input) } else { true })
    }

    /// The same in several parts, which begin and end with the rows, or other blocks, of a tensor
    /// that they read, or lie within one.
    fn blocks(&self, made: &View) -> Vec<Part> {
        let along = |parts: Vec<Part>, axis: usize| parts.iter().flat_map(|p| p.blocks_along(axis, made)).collect();
        (0..self.writes[0].shape.len()).fold(vec![self.clone()], along)
    }

    fn blocks_along(&self, axis: usize, made: &View) -> Vec<Part> {
        let mut parts = vec![self.clone()];
        // Those of a few elements first.
        for block in ends(&made.shape) {
            parts = parts.iter().flat_map(|p| p.blocks_of(block, axis, made)).collect();
        }
        parts
    }

    /// The same for blocks of so many elements.
    fn blocks_of(&self, block: usize, axis: usize, made: &View) -> Vec<Part> {
        let ranges = || {
            let view = self.reads.iter().find(|v| v.buffer == made.buffer)?;
            let (step, count) = (usize::try_from(view.strides[axis]).ok()?, view.shape[axis]);
            let size = Some(block / step.max(1)).filter(|_| step > 0 && block > step && block.is_multiple_of(step))?;
            let first = view.offset.checked_sub(made.offset)? % block / step;
            let (head, within) = ((size - first) % size, first + count <= size);
            let tail = (count.checked_sub(head)?) % size;
            (!within).then_some([(0, head), (head, count - tail), (count - tail, count)])
        };
        let cut = |(start, end): (usize, usize)| {
            let of = |v: &View| v.sliced(axis, start, 1, end - start);
            let (reads, writes) = (self.reads.iter().map(of).collect(), self.writes.iter().map(of).collect());
            Part { reads, writes, ..self.clone() }
        };
        match ranges() {
            Some(all) => all.into_iter().filter(|(start, end)| start < end).map(cut).collect(),
            None => vec![self.clone()],
        }
    }

    /// Whether all of its views have rows of whole accesses along the innermost axis.
    fn is_by_rows(&self) -> bool {
        /// Bytes of an access.
        const ACCESS: usize = 16;
        let by_rows = |v: &View| match (v.strides.last(), v.shape.last()) {
            (Some(1), Some(n)) => (n * v.dtype.size()).is_multiple_of(ACCESS),
            (stride, _) => stride.is_none_or(|s| *s == 0),
        };
        self.reads.iter().chain(&self.writes).all(by_rows)
    }

    /// How often the elements of these reads are asked for. Neighbours that share an index ask for
    /// it once, and for a number that all elements share.
    fn evaluated(&self, these: &impl Fn(&&View) -> bool) -> usize {
        /// Neighbours in an access, as a rule.
        const SHARED: usize = 4;
        let only_indexes = self.only_indexes(these);
        let shared =
            |v: &View| v.strides.iter().all(|s| *s == 0) || only_indexes && v.strides.last().is_some_and(|s| *s == 0);
        let of = |v: &View| match shared(v) {
            true => v.len() / SHARED,
            false => v.len(),
        };
        self.reads.iter().filter(these).map(of).sum()
    }

    /// Whether these reads are part of indices alone.
    fn only_indexes(&self, these: &impl Fn(&&View) -> bool) -> bool {
        let is = |input: u32| self.reads.get(input as usize).is_some_and(|v| these(&v));
        let reads = |n: &TermNode| matches!(n, TermNode::In { input, .. } if is(*input));
        !self.term.nodes.iter().any(reads)
    }
}

/// Pointwise work on a concatenation, a padding or a copy.
struct Work {
    term: Term,
    /// Its operands in the shape of the result that it works on; `None` for that result.
    reads: Vec<Option<View>>,
    writes: Vec<View>,
}

impl Work {
    /// The work of a pointwise step that reads this result only as a whole.
    fn of(step: &Step, whole: &View) -> Option<Work> {
        let Action::Pointwise(p) = &step.action else { return None };
        let Part { term, reads, writes, .. } = pointwise(p, step);
        let seen = |v: View| -> Option<Option<View>> {
            if v.buffer == whole.buffer {
                let all = v.is_contiguous() && v.offset == whole.offset && v.len() == whole.len();
                return all.then_some(None);
            }
            v.reshaped(&whole.shape).map(Some)
        };
        Some(Work {
            term,
            reads: reads.into_iter().map(seen).collect::<Option<_>>()?,
            writes: writes.iter().map(|w| w.reshaped(&whole.shape)).collect::<Option<_>>()?,
        })
    }

    /// The work on a piece.
    fn on(&self, piece: &Piece) -> Part {
        let mut terms = TermBuilder::new();
        let mut reads: Vec<View> = Vec::new();
        let view = |v: &Option<View>| v.as_ref().map_or_else(|| piece.read.clone(), |v| cut(v, &piece.region));
        let values: Vec<TermId> = self.reads.iter().map(|v| read(&mut terms, &mut reads, view(v))).collect();
        let roots = substituted(&mut terms, &self.term, &values);
        let writes = self.writes.iter().map(|w| cut(w, &piece.region)).collect();
        Part { term: terms.finish(roots), reads, writes, picks: Vec::new() }
    }
}

/// An element of an operand.
fn read(terms: &mut TermBuilder, reads: &mut Vec<View>, view: View) -> TermId {
    let input = reads.iter().position(|v| *v == view).unwrap_or_else(|| {
        reads.push(view);
        reads.len() - 1
    });
    terms.add(TermNode::In { input: input as u32, view: InView::Broadcast })
}

/// True for work on constants alone, which is planned in another way.
fn of_constants(plan: &Plan, step: &Step) -> bool {
    let constant = |v: &View| matches!(plan.buffers[v.buffer.index()].storage, Storage::Constant(_));
    step.reads.iter().all(constant)
}

impl HorizontalStep {
    /// The reads that are tables.
    pub(super) fn tables(&self) -> impl Iterator<Item = usize> {
        let mut first = 0;
        self.parts.iter().flat_map(move |p| {
            let own = first;
            first += p.step.strides.len();
            p.picks.iter().map(move |pick| own + pick.table)
        })
    }

    /// True if no operand needs strides, but for rows that are picked as they lie.
    pub(super) fn is_flat(&self) -> bool {
        self.parts.iter().all(|p| p.step.kernel.is_flat() || !p.picks.is_empty() && p.is_by_rows())
    }

    /// True if all parts read and store rows of neighbours.
    pub(super) fn is_by_rows(&self) -> bool {
        /// Elements of a row that several accesses read.
        const ROW: usize = 64;
        self.parts.iter().all(|p| p.is_by_rows() && p.step.shape.last().is_none_or(|n| *n >= ROW))
    }
}

impl HorizontalPart {
    /// True if neighbours lie side by side in all that is read and stored, or are one element.
    fn is_by_rows(&self) -> bool {
        let along = |s: &Vec<isize>| s.last().is_none_or(|s| (0..=1).contains(s));
        self.step.strides.iter().chain(&self.stored).all(along)
    }

    /// Elements of each of its results.
    pub fn len(&self) -> usize {
        self.step.shape.iter().product()
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use hypatia_dsl::dtype::DType;

    use super::*;

    #[test]
    fn what_is_not_stored_any_more_is_rounded_as_it_was() {
        let of = |id: u32, dtype: DType| View::whole(BufferId(id), dtype, &[6]);
        let reader = Part {
            term: identity(),
            reads: vec![of(1, DType::BF16)],
            writes: vec![of(2, DType::BF16)],
            picks: Vec::new(),
        };
        // An accumulator that a pass stores as it is, and a copy.
        for (from, casts) in [(DType::F32, 1), (DType::BF16, 0)] {
            let made = Part {
                term: identity(),
                reads: vec![of(0, from)],
                writes: vec![of(1, DType::BF16)],
                picks: Vec::new(),
            };
            let joined = reader.with(&made).unwrap();
            let cast = |n: &&TermNode| matches!(n, TermNode::Cast { to: DType::BF16, .. });
            assert_eq!(joined.term.nodes.iter().filter(cast).count(), casts, "{from}");
            assert_eq!(joined.reads, [of(0, from)]);
        }
    }
}
