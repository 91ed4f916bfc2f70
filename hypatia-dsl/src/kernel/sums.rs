//! Sums over all rows, one a column: gradients of biases and of the scales of norms.
//!
//! In: a row-wise kernel with [`RowwiseKernel::sums`], the number and length of its rows. Out: how
//! blocks share the rows. Each block adds up some of them ([`RowSumsKernel`]); then the sums of all
//! blocks are added up ([`JoinSumsKernel`]). Invariant: the order of each sum follows from the
//! sizes alone, so that results do not change from run to run.

use crate::dtype::DType;

use super::RowwiseKernel;

/// Threads that add up rows: 512 for each multiprocessor of a large GPU. More blocks would write
/// more sums than they save time.
const THREADS: usize = 132 * 512;
/// The longest row, the threads that share a row, and those of a block. A thread keeps up to 32
/// elements.
const TEAMS: [(usize, usize, usize); 4] = [(128, 8, 512), (1 << 10, 32, 512), (1 << 13, 256, 256), (1 << 14, 512, 512)];
/// The most sums of a kernel: a thread keeps each of its columns' sums in registers.
pub const MAX_SUMS: usize = 3;

/// How blocks share rows whose columns they add up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SumSplit {
    /// Threads that share a row.
    pub threads: usize,
    /// Threads of a block.
    pub block: usize,
    /// Blocks, each with a sum of every column.
    pub parts: usize,
}

impl SumSplit {
    /// The split of `rows` rows of `n` elements; `None` if rows are too long for it.
    pub fn of(rows: usize, n: usize) -> Option<SumSplit> {
        let (_, threads, block) = TEAMS.into_iter().find(|(longest, ..)| n <= *longest)?;
        Some(SumSplit { threads, block, parts: rows.div_ceil(block / threads).clamp(1, THREADS / block) })
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
                assert!((1..=264).contains(&split.parts) && (split.parts - 1) * split.together() <= rows);
            }
        }
        assert_eq!(SumSplit::of(64, 16385), None);
    }
}
