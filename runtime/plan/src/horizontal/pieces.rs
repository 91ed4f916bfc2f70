//! Concatenations, paddings and copies as pieces: which elements of a result come from where.
//!
//! In: a step that moves elements. Out: its result, and pieces that cover it. Invariant: pieces do
//! not overlap; each read has the shape of its region.

use crate::view::View;
use crate::{Action, Step};

/// First element and number of elements along each axis.
pub(super) type Region = Vec<(usize, usize)>;

/// A part of a result and what is stored there.
pub(super) struct Piece {
    pub region: Region,
    pub read: View,
}

/// A region of a view.
pub(super) fn cut(view: &View, region: &[(usize, usize)]) -> View {
    let along = |v: View, (axis, (first, count)): (usize, &(usize, usize))| v.sliced(axis, *first, 1, *count);
    region.iter().enumerate().fold(view.clone(), along)
}

fn whole(view: &View) -> Region {
    view.shape.iter().map(|size| (0, *size)).collect()
}

/// The result of a step, and its pieces that are not empty; `None` if it does more than move
/// elements.
pub(super) fn pieces(step: &Step) -> Option<(View, Vec<Piece>)> {
    let out = step.writes.first()?.clone();
    let pieces = match (&step.action, step.reads.as_slice()) {
        (Action::Copy, [from]) => vec![Piece { region: whole(&out), read: from.clone() }],
        (Action::Concat(axis), reads) => {
            let mut first = 0;
            let piece = |read: &View| {
                let mut region = whole(&out);
                region[*axis] = (first, read.shape[*axis]);
                first += read.shape[*axis];
                Piece { region, read: read.clone() }
            };
            reads.iter().map(piece).collect()
        }
        (Action::Pad(before), [x, fill]) => padded(&out, before, x, fill)?,
        _ => return None,
    };
    Some((out, pieces.into_iter().filter(|p| !p.read.is_empty()).collect()))
}

/// The operand inside, and the fill around it: for each axis the elements before and behind it,
/// over the operand's part of earlier axes and all of later ones.
fn padded(out: &View, before: &[i64], x: &View, fill: &View) -> Option<Vec<Piece>> {
    let mut region = whole(out);
    let mut read = x.clone();
    let mut pieces = Vec::new();
    for (axis, before) in before.iter().enumerate() {
        // Where the operand begins in the result, and where the result begins in the operand.
        let at = |n: i64| usize::try_from(n.max(0)).ok();
        let (place, skipped) = (at(*before)?.min(out.shape[axis]), at(-before)?.min(x.shape[axis]));
        let count = (x.shape[axis] - skipped).min(out.shape[axis] - place);
        for around in [(0, place), (place + count, out.shape[axis] - place - count)] {
            let mut region = region.clone();
            region[axis] = around;
            let shape: Vec<usize> = region.iter().map(|r| r.1).collect();
            pieces.push(Piece { region, read: one(fill).broadcast(&shape)? });
        }
        region[axis] = (place, count);
        read = read.sliced(axis, skipped, 1, count);
    }
    pieces.push(Piece { region, read });
    Some(pieces)
}

/// The only element of a view, without axes.
fn one(view: &View) -> View {
    View { shape: Vec::new(), strides: Vec::new(), ..view.clone() }
}
