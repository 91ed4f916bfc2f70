//! Workspace: scratch memory of steps on a device, and how the work is split.
//!
//! In: sizes of cumulative sums, sorts, scatters and sums over rows. Out: views that follow the
//! results of their steps. Invariant: empty steps need no workspace. The views determine how the
//! work is split, so executors need no other information.

use hypatia_dsl::dtype::DType;
use hypatia_dsl::kernel::{CumsumKernel, SORT_TILE, SumSplit};

use super::Lower;
use crate::view::View;
use crate::{Action, Step};
use hypatia_graph::prim::Cumsum;
use hypatia_tensor::error::Result;

/// With at least this many adjacent lines, each line has a thread.
const SIDE_BY_SIDE: usize = 32;
/// Pieces of work that fill a device: blocks, or threads with a piece each.
const BLOCKS: usize = 1 << 10;
const THREADS: usize = 1 << 17;
/// Shorter lines are not split: number of elements for a block and for a thread.
const FEW: [usize; 2] = [1 << 13, 1 << 8];
/// Maximum number of chunks of a line: each adds up the sums of those before it.
const MOST: usize = 256;

/// How a cumulative sum is split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScanSplit {
    /// Number of outer lines, elements of a line, number of adjacent (inner) lines.
    pub sizes: [usize; 3],
    /// True if a thread processes a line or a chunk of it; otherwise a block does.
    pub columns: bool,
    /// Number of chunks of a line.
    pub chunks: usize,
    /// Number of elements of a chunk.
    pub length: usize,
}

impl ScanSplit {
    /// The split of the sums along `axis` of a shape.
    pub fn new(shape: &[usize], axis: usize) -> ScanSplit {
        let sizes = [shape[..axis].iter().product(), shape[axis], shape[axis + 1..].iter().product()];
        let [outer, size, inner] = sizes;
        let columns = inner >= SIDE_BY_SIDE;
        let lines: usize = (outer * inner).max(1);
        let wanted = if columns { THREADS } else { BLOCKS }.div_ceil(lines);
        let chunks = wanted.min(size.div_ceil(FEW[usize::from(columns)])).clamp(1, MOST);
        let length = size.div_ceil(chunks).max(1);
        ScanSplit { sizes, columns, chunks: size.div_ceil(length).max(1), length }
    }

    /// Number of lines, outer times inner.
    pub fn lines(&self) -> usize {
        self.sizes[0] * self.sizes[2]
    }
}

impl Lower<'_> {
    /// The workspace of an action with result `out` on a device.
    pub(super) fn workspace(&mut self, action: &Action, reads: &[View], out: &View) -> Result<Vec<View>> {
        let mut needed: Vec<(DType, Vec<usize>)> = Vec::new();
        match action {
            _ if self.plan.device.is_host() || out.is_empty() => {}
            Action::Cumsum(Cumsum { axis, .. }) => {
                let split = ScanSplit::new(&out.shape, *axis);
                if split.chunks > 1 {
                    needed.push((CumsumKernel::sums(out.dtype), vec![split.chunks - 1, split.lines()]));
                }
            }
            Action::Argsort(axis, _) if out.shape[*axis] > SORT_TILE => {
                let size = out.shape[*axis];
                needed.push((DType::I64, vec![out.len() / size, size]));
            }
            Action::Scatter(_) => {
                let count = reads.get(1).map_or(0, View::len);
                // The sort order of the updates; a long one is merged between two buffers.
                let places = if count > SORT_TILE { 2 } else { usize::from(count > 0) };
                needed.extend(vec![(DType::I64, vec![count]); places]);
            }
            Action::Rowwise(r) => {
                let groups = r.layout.groups_of_sums();
                if let Some((dtype, split)) = r.kernel.sum_type().zip(SumSplit::of(&r.kernel, r.rows, r.n, groups)) {
                    needed.push((dtype, vec![split.parts, r.kernel.sums.len() * groups * r.n]));
                }
            }
            _ => {}
        }
        needed.into_iter().map(|(dtype, shape)| self.fresh(dtype, &shape)).collect()
    }
}

impl Step {
    /// The workspace of the step: the views after its results.
    pub fn workspace(&self) -> &[View] {
        match &self.action {
            Action::Cumsum(_) | Action::Argsort(..) | Action::Scatter(_) => self.writes.get(1..).unwrap_or_default(),
            Action::Rowwise(r) if !r.kernel.sums.is_empty() => {
                self.writes.get(r.kernel.outputs.len() + r.kernel.sums.len()..).unwrap_or_default()
            }
            _ => &[],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_cover_a_line_once_and_none_is_empty() {
        let sizes = [0, 1, 2, 31, 32, 255, 256, 257, 8191, 8193, 100_000, 1 << 20, (1 << 22) + 1];
        for size in sizes {
            for (outer, inner) in [(1, 1), (3, 1), (1, 31), (1, 32), (5, 100), (2000, 1), (1, 1 << 18), (0, 4), (4, 0)]
            {
                let p = ScanSplit::new(&[outer, size, inner], 1);
                assert!(p.chunks * p.length >= size && (p.chunks - 1) * p.length <= size.saturating_sub(1), "{p:?}");
                assert!(p.chunks <= MOST && p.sizes == [outer, size, inner] && p.columns == (inner >= SIDE_BY_SIDE));
            }
        }
        assert_eq!(ScanSplit::new(&[1 << 20], 0).chunks, 128);
        assert_eq!(ScanSplit::new(&[4096, 4096], 1).chunks, 1);
    }
}
