//! Gathers as parts: what each element of the result reads.
//!
//! In: a step that gathers. Out: a part with one pick, in the shape of its result. Invariant: the
//! table's view does not move along the axis that the index replaces.

use hypatia_dsl::ir::InView;
use hypatia_dsl::kernel::PICKED;
use hypatia_dsl::scalar::{Term, TermBuilder, TermNode};

use super::Part;
use crate::view::View;
use crate::{Pick, Step};

/// An input, as a term.
fn input(input: u32) -> Term {
    let mut terms = TermBuilder::new();
    let root = terms.add(TermNode::In { input, view: InView::Broadcast });
    terms.finish(vec![root])
}

/// The part that picks from the second read by the first one. Both have the shape of the result.
/// `None` for an empty table: no element of it has the shape of the result.
fn picked(step: &Step, indices: View, table: View, (stride, size): (isize, usize)) -> Option<Part> {
    if step.reads.iter().any(View::is_empty) {
        return None;
    }
    let pick = Pick { index: input(0), table: 1, stride: usize::try_from(stride).ok()?, size };
    Some(Part {
        term: input(PICKED),
        reads: vec![indices, table],
        writes: vec![step.writes[0].clone()],
        picks: vec![pick],
    })
}

/// A gather of slices along an axis.
pub(super) fn gather(step: &Step, axis: usize) -> Option<Part> {
    let ([table, indices], [out]) = (step.reads.as_slice(), step.writes.as_slice()) else { return None };
    let rank = indices.shape.len();
    let (before, behind) = (&table.strides[..axis], &table.strides[axis + 1..]);
    let of_indices = [&vec![0; axis][..], &indices.strides, &vec![0; behind.len()]].concat();
    let of_table = [before, &vec![0; rank], behind].concat();
    let seen = |view: &View, strides: Vec<isize>| View { shape: out.shape.clone(), strides, ..view.clone() };
    picked(step, seen(indices, of_indices), seen(table, of_table), (table.strides[axis], table.shape[axis]))
}

/// A gather of single elements along an axis.
pub(super) fn gather_elements(step: &Step, axis: usize) -> Option<Part> {
    let ([table, indices], [out]) = (step.reads.as_slice(), step.writes.as_slice()) else { return None };
    let mut strides = table.strides.clone();
    strides[axis] = 0;
    let of_table = View { shape: out.shape.clone(), strides, ..table.clone() };
    picked(step, indices.clone(), of_table, (table.strides[axis], table.shape[axis]))
}
