//! Moves in turn as one: a concatenation of parts of a concatenation, padding or copy, in any
//! order.
//!
//! In: a plan for a GPU whose buffers are not placed yet. Out: the same plan, in which steps that
//! only move elements read where the first of them does (a roll and a partition into windows is
//! one launch). Invariant: pieces do not overlap and cover the result; each is read along strides,
//! its innermost axis as it lies.

use std::ops::Range;

use super::pieces::{Piece, pieces};
use super::{Joined, MOST_PARTS, Part, Work, reader};
use crate::prologue::{Readers, readers};
use crate::view::{View, row_major};
use crate::{Action, BufferId, Plan, Step};

/// Joins moves, the last ones of a chain first.
pub(super) fn compose(plan: &mut Plan) {
    loop {
        let readers = readers(plan);
        let found = (0..plan.steps.len()).rev().find_map(|at| composed(plan, &readers, at));
        let Some(joined) = found else { break };
        joined.apply(plan);
    }
}

fn moves(step: &Step) -> bool {
    matches!(step.action, Action::Concat(_) | Action::Pad(_) | Action::Copy) && step.kernel.is_none()
}

/// The step at that place, if it moves elements, with the moves that make what it reads and the
/// pointwise work of its only reader.
fn composed(plan: &Plan, readers: &Readers, at: usize) -> Option<Joined> {
    let step = Some(&plan.steps[at]).filter(|s| moves(s))?;
    let (whole, mut found) = pieces(step)?;
    let mut places = vec![at];
    let mut apart: Vec<BufferId> = Vec::new();
    while let Some((buffer, i)) = found.iter().find_map(|p| maker(plan, readers, p.read.buffer, &apart)) {
        let (made, inner) = pieces(&plan.steps[i])?;
        match through(&found, &made, &inner) {
            Some(more) => {
                found = more;
                places.push(i);
            }
            None => apart.push(buffer),
        }
    }
    if places.len() == 1 {
        return None;
    }
    let worked = reader(plan, readers, &whole).and_then(|i| Some((i, Work::of(&plan.steps[i], &whole)?)));
    let place = worked.as_ref().map_or(at, |(i, _)| *i);
    let part = |p: &Piece| worked.as_ref().map_or_else(|| Part::moved(&whole, p), |(_, work)| work.on(p));
    places.push(place);
    Joined::of(plan, places, place, found.iter().map(part).collect())
}

/// The step that moves elements to a buffer which one step alone reads.
fn maker(plan: &Plan, readers: &Readers, buffer: BufferId, but: &[BufferId]) -> Option<(BufferId, usize)> {
    if readers.get(&buffer).is_none_or(|r| r.len() != 1) || but.contains(&buffer) {
        return None;
    }
    let makes = |s: &Step| moves(s) && s.writes.iter().any(|w| w.buffer == buffer);
    Some((buffer, plan.steps.iter().position(makes)?))
}

/// These pieces, where they read `made` by what its pieces read; `None` if strides cannot say it,
/// or with more parts than a launch has.
fn through(found: &[Piece], made: &View, inner: &[Piece]) -> Option<Vec<Piece>> {
    let mut out = Vec::new();
    for piece in found {
        if piece.read.buffer != made.buffer {
            out.push(Piece { region: piece.region.clone(), read: piece.read.clone() });
            continue;
        }
        if piece.read.dtype != made.dtype {
            return None;
        }
        let reading = Reading::of(&piece.read, made)?;
        for q in inner {
            out.extend(reading.pieces(piece, q)?);
        }
    }
    let whole_rows =
        |p: &Piece| p.read.strides.last().is_none_or(|s| (0..=1).contains(s) || p.read.shape.ends_with(&[1]));
    (out.len() <= MOST_PARTS && out.iter().all(whole_rows)).then_some(out)
}

/// How a view reads a tensor that lies row-major: along each axis of the tensor, from a place on,
/// by axes of the view, each with a step.
struct Reading {
    axes: Vec<(usize, Vec<(usize, usize)>)>,
}

impl Reading {
    /// `None` for a view that is not along axes.
    fn of(view: &View, made: &View) -> Option<Reading> {
        let ends = row_major(&made.shape);
        let mut left = view.offset.checked_sub(made.offset)?;
        let mut taken = vec![false; view.shape.len()];
        let mut axes = Vec::new();
        for (size, end) in made.shape.iter().zip(&ends) {
            let (end, first) = (end.unsigned_abs(), left / end.unsigned_abs().max(1));
            left -= first * end;
            let mut along: Vec<(usize, usize)> = Vec::new();
            for (axis, (count, stride)) in view.shape.iter().zip(&view.strides).enumerate() {
                let step = usize::try_from(*stride).ok()?;
                if !taken[axis] && *count > 1 && step >= end && step > 0 {
                    taken[axis] = true;
                    along.push((axis, step / end));
                    if !step.is_multiple_of(end) {
                        return None;
                    }
                }
            }
            let last = first + along.iter().map(|(axis, step)| step * (view.shape[*axis] - 1)).sum::<usize>();
            if last >= *size || along.len() > 2 {
                return None;
            }
            along.sort_by_key(|(_, step)| std::cmp::Reverse(*step));
            axes.push((first, along));
        }
        Some(Reading { axes })
    }

    /// The parts of a piece that read a piece of the tensor.
    fn pieces(&self, piece: &Piece, inner: &Piece) -> Option<Vec<Piece>> {
        // Ranges of all axes of the view, of each box.
        let mut boxes: Vec<Vec<Range<usize>>> = vec![piece.read.shape.iter().map(|n| 0..*n).collect()];
        for ((first, along), (start, count)) in self.axes.iter().zip(&inner.region) {
            let inside = start.saturating_sub(*first)..(start + count).saturating_sub(*first);
            let own = match along.as_slice() {
                [] if (*start..start + count).contains(first) => continue,
                [] => return Some(Vec::new()),
                [(axis, step)] => vec![vec![(*axis, reached(inside, *step, piece.read.shape[*axis]))]],
                [(outer, step), (axis, unit)] => {
                    let sizes = [piece.read.shape[*outer], piece.read.shape[*axis]];
                    let ranges = in_two(inside, [*step, *unit], sizes);
                    ranges.into_iter().map(|[a, b]| vec![(*outer, a), (*axis, b)]).collect()
                }
                _ => return None,
            };
            boxes = boxes
                .iter()
                .flat_map(|b| {
                    own.iter().map(|ranges| {
                        let mut b = b.clone();
                        ranges.iter().for_each(|(axis, range)| b[*axis] = range.clone());
                        b
                    })
                })
                .filter(|b| b.iter().all(|r| !r.is_empty()))
                .collect();
            if boxes.len() > MOST_PARTS {
                return None;
            }
        }
        boxes.iter().map(|b| self.piece(piece, inner, b)).collect()
    }

    /// A box of a piece, which reads that piece of the tensor.
    fn piece(&self, piece: &Piece, inner: &Piece, ranges: &[Range<usize>]) -> Option<Piece> {
        let region = piece.region.iter().zip(ranges).map(|((first, _), r)| (first + r.start, r.len())).collect();
        let mut strides = vec![0; ranges.len()];
        let mut offset = inner.read.offset as isize;
        for ((place, along), ((first, _), stride)) in self.axes.iter().zip(inner.region.iter().zip(&inner.read.strides))
        {
            let begin = place + along.iter().map(|(axis, step)| step * ranges[*axis].start).sum::<usize>();
            offset += stride * isize::try_from(begin.checked_sub(*first)?).ok()?;
            along.iter().for_each(|(axis, step)| strides[*axis] = stride * *step as isize);
        }
        let shape = ranges.iter().map(Range::len).collect();
        let read = View { offset: usize::try_from(offset).ok()?, shape, strides, ..inner.read.clone() };
        Some(Piece { region, read })
    }
}

/// The indices below `size` that, `step` apart, lie in that range.
fn reached(inside: Range<usize>, step: usize, size: usize) -> Range<usize> {
    inside.start.div_ceil(step).min(size)..inside.end.div_ceil(step).min(size)
}

/// The same of pairs of indices with two steps, as boxes.
fn in_two(inside: Range<usize>, [outer, unit]: [usize; 2], sizes: [usize; 2]) -> Vec<[Range<usize>; 2]> {
    let mut boxes: Vec<[Range<usize>; 2]> = Vec::new();
    for i in 0..sizes[0] {
        let at = i * outer;
        let own = inside.start.saturating_sub(at)..inside.end.saturating_sub(at);
        let own = reached(own, unit, sizes[1]);
        match boxes.last_mut() {
            Some([rows, columns]) if *columns == own && rows.end == i => rows.end += 1,
            _ if own.is_empty() => {}
            _ => boxes.push([i..i + 1, own]),
        }
    }
    boxes
}
