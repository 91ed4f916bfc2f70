//! Sums over all rows, one a column: gradients of biases and of the scales of norms.
//!
//! In: a row-wise kernel with [`RowwiseKernel::sums`], the number and length of its rows. Out: how
//! blocks share the rows. Each block adds up some of them ([`RowSumsKernel`]); then the sums of all
//! blocks are added up ([`JoinSumsKernel`]). Invariant: the order of each sum follows from the
//! sizes alone, so that results do not change from run to run.

use crate::dtype::DType;

use super::{Reduction, RowAccess, RowwiseKernel};

/// Threads that add up whole rows: 512 for each multiprocessor of a large GPU. More blocks would
/// write more sums than they save time.
const THREADS: usize = 132 * 512;
/// The longest row, the threads that share a row, and those of a block. A thread keeps up to 32
/// elements.
const TEAMS: [(usize, usize, usize); 4] = [(128, 8, 512), (1 << 10, 32, 512), (1 << 13, 256, 256), (1 << 14, 512, 512)];
/// Blocks that keep most of a large GPU busy: if there are fewer, blocks of this size at least are
/// smaller.
const ENOUGH: usize = 96;
const SMALLEST: usize = 128;
/// The most sums of a kernel: a thread keeps each of its columns' sums in registers.
pub const MAX_SUMS: usize = 3;
/// Where rows are cut into tiles: threads of a block, blocks of a large GPU, and elements of a row
/// that a thread of a block has, as a rule.
const TILE_BLOCK: usize = 256;
const TILE_BLOCKS: usize = 132 * 4;
const OF_THREAD: usize = 8;
/// Rows that a thread reads at a time where rows are cut into tiles: loads of all of them are on
/// their way before the first is added.
pub const ROWS_AHEAD: usize = 4;

/// How blocks share the rows whose columns they add up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SumSplit {
    /// Threads that share a row, or a tile of it.
    pub threads: usize,
    /// Threads of a block.
    pub block: usize,
    /// Blocks with the same columns: each adds up some of a group's rows.
    pub parts: usize,
    /// Whether a block has a tile of each row, instead of the whole row.
    pub tiled: bool,
}

impl SumSplit {
    /// The split of `rows` rows of `n` elements, of which each of `groups` has sums of its own;
    /// `None` if rows are too long for it, or groups need whole rows.
    pub fn of(kernel: &RowwiseKernel, rows: usize, n: usize, groups: usize) -> Option<SumSplit> {
        let (_, threads, mut block) = TEAMS.into_iter().find(|(longest, ..)| n <= *longest)?;
        if kernel.adds_up_elements() {
            return Some(SumSplit::of_tiles(rows / groups.max(1), n, groups.max(1)));
        }
        if groups > 1 {
            return None;
        }
        while block > SMALLEST.max(threads) && rows.div_ceil(block / threads) < ENOUGH {
            block /= 2;
        }
        let parts = rows.div_ceil(block / threads).clamp(1, THREADS / block);
        Some(SumSplit { threads, block, parts, tiled: false })
    }

    fn of_tiles(rows: usize, n: usize, groups: usize) -> SumSplit {
        let block = TILE_BLOCK;
        let threads = n.div_ceil(OF_THREAD).next_power_of_two().clamp(4, 32);
        let tiles = n.div_ceil(threads * OF_THREAD).max(1);
        let most = rows.div_ceil(block / threads * ROWS_AHEAD);
        SumSplit { threads, block, parts: TILE_BLOCKS.div_ceil(tiles * groups).min(most).max(1), tiled: true }
    }

    /// Rows that a block computes at a time.
    pub fn together(&self) -> usize {
        self.block / self.threads
    }
}

/// The first kernel: the rows, and each block's sums over its own.
#[derive(Clone, Debug, PartialEq)]
pub struct RowSumsKernel {
    /// What is computed row by row, and what is added up.
    pub kernel: RowwiseKernel,
    /// The length of a row.
    pub n: usize,
    /// How many groups of neighbouring rows have sums of their own.
    pub groups: usize,
    /// How blocks share the rows of a group.
    pub split: SumSplit,
}

/// The second kernel: sums over the blocks of the first.
#[derive(Clone, Debug, PartialEq)]
pub struct JoinSumsKernel {
    /// An identifier.
    pub name: String,
    /// A description.
    pub doc: String,
    /// The type of the blocks' sums.
    pub sums: DType,
    /// The type of each result.
    pub outputs: Vec<DType>,
    /// How they are joined: sum, largest or smallest.
    pub kind: Reduction,
}

impl RowwiseKernel {
    /// Whether it adds up over rows what depends on no other element of its row: then blocks need
    /// not see whole rows.
    pub fn adds_up_elements(&self) -> bool {
        let whole = self.steps.is_empty() && self.groups.is_none() && self.gathers.is_empty();
        let read = self.inputs.iter().all(|i| i.1 != RowAccess::PerGroup);
        // Rows that lie elsewhere have one axis: the place of an element takes no division.
        let simple = !self.strided() || self.axes[1] == 1;
        let written = self.outputs.iter().all(|o| o.1 == RowAccess::Full);
        !self.sums.is_empty() && whole && simple && read && written
    }

    /// The type in which all sums over rows are added up; `None` if there are none.
    pub fn sum_type(&self) -> Option<DType> {
        let wide = self.sums.iter().any(|(dtype, _)| *dtype == DType::F64);
        (!self.sums.is_empty()).then_some(if wide { DType::F64 } else { DType::F32 })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::ir::InView;
    use crate::scalar::{Term, TermNode};

    /// The sums of the columns of one operand; with the sum of each row, if it sees whole rows.
    fn kernel(whole: bool) -> RowwiseKernel {
        let mut term = Term::empty();
        let root = term.add(TermNode::In { input: 0, view: InView::Broadcast });
        term.roots.push(root);
        RowwiseKernel {
            name: "sums".into(),
            doc: String::new(),
            inputs: vec![(DType::BF16, RowAccess::Full)],
            steps: if whole { vec![(Reduction::Sum, term.clone())] } else { Vec::new() },
            outputs: Vec::new(),
            sums: vec![(DType::F32, term)],
            axes: [1, 1],
            gathers: Vec::new(),
            groups: None,
        }
    }

    #[test]
    fn blocks_share_rows_of_any_length_up_to_the_longest() {
        for n in [0, 1, 96, 128, 129, 768, 1024, 1025, 4096, 8192, 8193, 16384] {
            for rows in [0, 1, 63, 2048, 1 << 20] {
                let split = SumSplit::of(&kernel(true), rows, n, 1).unwrap();
                assert!(n <= split.threads * 32 && split.block.is_multiple_of(split.threads), "{split:?}");
                assert!((1..=264).contains(&split.parts) && (split.parts - 1) * split.together() <= rows);
            }
        }
        assert_eq!(SumSplit::of(&kernel(true), 64, 16385, 1), None);
    }

    #[test]
    fn blocks_that_need_no_whole_rows_fill_a_device() {
        let of = |rows, n| SumSplit::of(&kernel(false), rows, n, 1).unwrap();
        // Rows of 64 elements are a tile of 8 threads; those of 2,048 are eight tiles of a warp.
        let few = of(100_352, 64);
        assert_eq!((few.tiled, few.threads, few.together(), few.parts), (true, 8, 32, 528));
        let wide = of(1568, 2048);
        assert_eq!((wide.threads, wide.together(), wide.parts), (32, 8, 49));
        for split in [of(0, 0), of(1, 1), of(3, 16384)] {
            assert!(split.parts == 1 && split.block.is_multiple_of(split.threads), "{split:?}");
        }
    }
}
