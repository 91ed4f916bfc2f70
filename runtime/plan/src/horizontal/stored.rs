//! What a step of several parts makes, stored where the only reader would move it.
//!
//! In: a step of several parts that fill a buffer, and parts of which one moves that to a place of
//! its own. Out: the parts of both, without the buffer. Invariant: each element is stored once, at
//! the place where the move would put it.
//!
//! A rotation of a part of each head is a concatenation within a concatenation.

use super::through::Through;
use super::{Part, identity, parts_of};
use crate::Step;

/// These parts, of which the one that moves what a step makes is replaced by the step's parts;
/// `None` if it does more, or not all of it is moved.
pub(super) fn with_stored(maker: &Step, parts: &[Part]) -> Option<Vec<Part>> {
    let made = parts_of(maker)?;
    let buffer = maker.writes.first()?.buffer;
    let reads = |p: &&Part| p.reads.iter().any(|v| v.buffer == buffer);
    let mut movers = parts.iter().filter(reads);
    let (Some(mover), None) = (movers.next(), movers.next()) else { return None };
    let ([read], [to]) = (mover.reads.as_slice(), mover.writes.as_slice()) else { return None };
    if mover.term != identity() || !mover.picks.is_empty() || !read.is_contiguous() || to.dtype != read.dtype {
        return None;
    }
    let written = || made.iter().flat_map(|p| &p.writes);
    let whole = written().all(|w| w.buffer == buffer)
        && written().map(|w| w.len()).sum::<usize>() == read.len()
        && written().map(|w| w.offset).min() == Some(read.offset);
    let stored = |p: &Part| {
        let writes = p.writes.iter().map(|w| Through::of(w, read)?.seen(to)).collect::<Option<Vec<_>>>()?;
        Some(Part { writes, ..p.clone() })
    };
    let stored: Vec<Part> = made.iter().filter(|_| whole).map(stored).collect::<Option<_>>()?;
    let others = parts.iter().filter(|p| !reads(p)).cloned();
    (!stored.is_empty()).then(|| others.chain(stored).collect())
}
