//! Sums over all rows, one a column: gradients of biases and of the scales of norms.
//!
//! In: a row-wise kernel with [`RowwiseKernel::sums`], the number and length of its rows. Out: how
//! blocks share the rows. Each block adds up some of them ([`RowSumsKernel`]); then the sums of all
//! blocks are added up ([`JoinSumsKernel`]). Invariant: the order of each sum follows from the
//! sizes alone, so that results do not change from run to run.

use crate::dtype::DType;

use super::RowwiseKernel;

/// Multiprocessors of a large GPU, and threads of each that add up rows, if a thread has one pack
/// of a row or several. More would write more sums than they save time, or lack registers.
const MULTIPROCESSORS: usize = 132;
const RESIDENT: [usize; 2] = [1024, 512];
/// Elements of a pack, of the types with 16 bits.
const PACK: usize = 8;
/// The most packs that a thread keeps.
const MOST: usize = 4;
/// Threads that may share a row within a warp, in blocks of 512, and as a block.
const LANES: [usize; 4] = [4, 8, 16, 32];
const BLOCKS: [usize; 2] = [256, 512];
/// The most sums of a kernel: a thread keeps each of its columns' sums in registers.
pub const MAX_SUMS: usize = 3;

/// How blocks share rows whose columns they add up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SumSplit {
    /// Threads that share a row.
    pub threads: usize,
    /// Threads of a block.
    pub block: usize,
    /// Blocks of a multiprocessor.
    pub beside: usize,
    /// Blocks, each with a sum of every column.
    pub parts: usize,
}

impl SumSplit {
    /// The split of `rows` rows of `n` elements; `None` if rows are too long for it.
    pub fn of(rows: usize, n: usize) -> Option<SumSplit> {
        let holds = |threads: usize| n <= threads * PACK * MOST;
        // Elements for which there is room in the packs: the fewest, of these the fewest packs.
        let room = |threads: usize| n.div_ceil(threads * PACK) * threads * PACK;
        let lanes = LANES.into_iter().filter(|t| holds(*t)).min_by_key(|t| (room(*t), n.div_ceil(t * PACK)));
        let alone = || BLOCKS.into_iter().find(|t| holds(*t));
        let (threads, block) = lanes.map(|t| (t, 512)).or_else(|| alone().map(|t| (t, t)))?;
        let resident = RESIDENT[usize::from(n > threads * PACK)];
        let parts = rows.div_ceil(block / threads).clamp(1, MULTIPROCESSORS * resident / block);
        Some(SumSplit { threads, block, beside: resident / block, parts })
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
    /// How blocks share the rows.
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
}

impl RowwiseKernel {
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

    #[test]
    fn blocks_share_rows_of_any_length_up_to_the_longest() {
        for n in [0, 1, 96, 128, 129, 768, 1024, 1025, 4096, 8192, 8193, 16384] {
            for rows in [0, 1, 63, 2048, 1 << 20] {
                let split = SumSplit::of(rows, n).unwrap();
                assert!(n <= split.threads * 32 && split.block.is_multiple_of(split.threads), "{split:?}");
                assert!((1..=528).contains(&split.parts) && (split.parts - 1) * split.together() <= rows);
            }
        }
        assert_eq!(SumSplit::of(64, 16385), None);
    }
}
