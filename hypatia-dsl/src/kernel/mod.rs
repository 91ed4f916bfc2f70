//! Kernel descriptions: what a generated kernel computes, independent of the machine that it runs
//! on.
//!
//! In: pointwise regions and row-wise ops of a plan or a `.hyp` file. Out: the CPU executor
//! interprets them, and `hypatia-templates` prints them. Invariant: a term's `In { input }` indexes
//! `inputs`. In row-wise kernels, indices from `inputs.len()` on refer to the results of earlier
//! `steps`.

pub mod attention;
pub mod attention_grad;
pub mod attention_sm80;
mod body;
pub mod chain;
mod channel_windows;
mod checksum;
mod derive;
mod gemm;
mod gemm_sm80;
mod gemv;
mod group_windows;
mod horizontal;
mod image_windows;
mod interpret;
mod joint_rows;
mod layout;
mod lines;
mod moves;
mod pool;
mod prologue;
mod reduced;
mod region;
pub mod short;
mod space;
mod sums;
#[cfg(test)]
mod tests;
mod tune;
mod unfold;
mod windows;

use crate::dtype::DType;
use crate::scalar::{Term, TermNode};

pub use body::{fits_a_kernel, reduction};
pub use channel_windows::ChannelWindowsKernel;
pub use checksum::{
    BlockSumsKernel, ChecksumKernel, Compared, DisturbKernel, RowSums, bytes_of_sum, sum_type, sums_in_memory,
};
pub use derive::{derive_pointwise, derive_rowwise, derive_rowwise_over};
pub use gemm::{GemmKernel, TILE_K, TUNE, Tiling};
pub use gemm_sm80::{Factor, WARP_TUNE, WarpGemm, WarpTiling};
pub use gemv::{GEMV_TUNE, GemvKernel, GemvTiling, MOST_ROWS};
pub use group_windows::{ChannelGroups, GroupTile, GroupWindowsKernel};
pub use horizontal::{
    Across, HORIZONTAL_AXES, HORIZONTAL_BLOCK, HorizontalKernel, HorizontalPart, MOST_NARROW, PICKED, Pick, TILE_LANES,
    picks_behind,
};
pub use image_windows::{ImageWindows, WindowBounds};
pub use interpret::interpret_rowwise;
pub use joint_rows::{JointRowsKernel, RowsPart};
pub use layout::{RowLayout, RowSpace};
pub use lines::{CumsumKernel, ProductKernel, Running, SORT_TILE, ScatterKernel, SortKernel, Sorting};
pub use moves::{ArgmaxKernel, Move, MoveKernel};
pub use pool::PoolKernel;
pub use prologue::{Accesses, FactorAccess, FactorInput, Prologue, UNIT, Walked};
pub use reduced::{Along, Reduced};
pub use region::{ColumnSum, RowOperand, RowRegion, RowValue, SharedWork};
pub use sums::{JoinSumsKernel, MAX_SUMS, ROWS_AHEAD, RowSumsKernel, SumSplit};
pub use tune::{StoredTiling, Table, parameters};
pub use unfold::UnfoldKernel;
pub use windows::{WindowAxis, WindowTile, WindowsKernel};

/// The access mode of a pointwise kernel's operand: how it is indexed. The output is `[outer, n]`
/// row-major.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// The same index as the output.
    Full,
    /// A single element for all.
    Splat,
    /// `[n]`, broadcast over rows: index modulo n.
    Row,
    /// `[outer]`, one element per row: index divided by n.
    Col,
    /// Any other affine function of the output's (collapsed) multi-index: a stride for each axis of
    /// `PointwiseKernel::rank`, 0 where the operand is broadcast. The strides are run-time
    /// arguments of the kernel.
    Strided,
}

/// An operand.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Operand {
    /// Element type in memory.
    pub dtype: DType,
    /// Its access mode.
    pub access: Access,
}

/// A kernel that computes each output element from one element of each input.
#[derive(Clone, Debug, PartialEq)]
pub struct PointwiseKernel {
    /// An identifier, unique in its plan or file.
    pub name: String,
    /// A description: the rule and the file that it comes from.
    pub doc: String,
    /// Inputs.
    pub inputs: Vec<Operand>,
    /// Element types of the outputs, one for each root of `term`. All outputs have the same shape.
    pub outputs: Vec<DType>,
    /// Rank of the collapsed iteration space; 2 if no operand is `Strided`.
    pub rank: usize,
    /// The output values. Leaves are `In`, and `Acc` for the result of the preceding gemm.
    pub term: Term,
    /// If the kernel follows a gemm: the type of the accumulator buffer, which it reads with
    /// `Full`.
    pub acc: Option<DType>,
}

impl PointwiseKernel {
    /// True if it treats all elements as one row: every operand is full or a splat.
    pub fn is_flat(&self) -> bool {
        self.inputs.iter().all(|o| matches!(o.access, Access::Full | Access::Splat))
    }
}

/// A reduction over a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reduction {
    /// Sum.
    Sum,
    /// Sum divided by the row's length.
    Mean,
    /// Maximum; NaN if any element is NaN.
    Max,
    /// Minimum; NaN if any element is NaN.
    Min,
    /// Product.
    Prod,
}

impl Reduction {
    /// Its name in a plan.
    pub fn name(self) -> &'static str {
        match self {
            Reduction::Sum => "sum",
            Reduction::Mean => "mean",
            Reduction::Max => "max",
            Reduction::Min => "min",
            Reduction::Prod => "prod",
        }
    }
}

/// The access mode of a row-wise kernel's operand. The iteration space is `[rows, n]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RowAccess {
    /// `[rows, n]`
    Full,
    /// `[n]`
    PerColumn,
    /// `[rows]`
    PerRow,
    /// `[rows, groups of a row]`, for outputs: see `RowwiseKernel::groups`.
    PerGroup,
    /// One element.
    Splat,
    /// Any other affine function of the axes that number the rows and those that make up a row: a
    /// stride for each of `RowwiseKernel::axes`. The strides are run-time arguments of the kernel.
    Strided,
    /// `[rows of a table, n]`: which row is read for each row is said by one of
    /// `RowwiseKernel::gathers`.
    Gathered,
    /// An element of a table at a place that an operand with strides says for each element: one of
    /// `RowwiseKernel::gathers`. The strides are those of the table's other axes.
    Picked,
    /// 0, 1, 2 and so on along a row. An operand holds them, too.
    Position,
}

/// Reductions over groups of elements that lie side by side in a row, all of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Groups {
    /// The first step over groups; all steps after it are over groups too.
    pub first: usize,
    /// Elements of a group, which divides the length of a row.
    pub size: usize,
}

/// An operand whose rows another operand picks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GatheredRows {
    /// The operand that is read.
    pub table: usize,
    /// The operand with its rows: one integer a row of the kernel, contiguous, for a `Gathered`
    /// table; any with strides for a `Picked` one. A negative one counts from the end.
    pub index: usize,
    /// The axis of the table along which the index counts.
    pub axis: usize,
    /// How many rows the table has: its size along that axis.
    pub rows: usize,
    /// Elements from one of these rows to the next.
    pub width: usize,
}

/// Elements from which on a row is long: where rows are few, plans cut them in pieces.
pub const LONG_ROW: usize = 1 << 15;

/// Reductions over rows of `[rows, n]`, then outputs that may use their results: softmax,
/// LayerNorm, RMSNorm and similar ops that users define.
#[derive(Clone, Debug, PartialEq)]
pub struct RowwiseKernel {
    /// An identifier.
    pub name: String,
    /// A description: the rule and the file that it comes from.
    pub doc: String,
    /// Inputs.
    pub inputs: Vec<(DType, RowAccess)>,
    /// Reductions in order. The result of step `i` is `In { input: inputs.len() + i }` in later
    /// steps and in outputs, in the compute type.
    pub steps: Vec<(Reduction, Term)>,
    /// Outputs: element type, access mode and value. The access mode is `PerRow` for one value per
    /// row, `PerGroup` for one per group, `Full` for one per element, or `Strided` where the rows
    /// do not lie along the output's last axis.
    pub outputs: Vec<(DType, RowAccess, Term)>,
    /// Sums over all rows, one a column: element type and value. Their results follow the outputs.
    pub sums: Vec<(DType, Term)>,
    /// How many axes number the rows, and how many make up a row; 1 and 1 if nothing is `Strided`.
    pub axes: [usize; 2],
    /// Where the rows of `Gathered` and `Picked` operands come from.
    pub gathers: Vec<GatheredRows>,
    /// Steps over groups of a row's elements, if there are any. Results of a row do not depend on
    /// these: a group is reduced when its elements are stored.
    pub groups: Option<Groups>,
}

/// Rows of a block whose elements are shared by the threads of several warps: one each lane.
pub const ROWS_OF_SLICES: usize = 32;
/// The most threads that share such a row, the fewest elements of each, and the most reductions
/// whose partial values fit into shared memory.
const MOST_SLICES: usize = 32;
const LEAST_OF_SLICE: usize = 8;
const MOST_SLICED: usize = 4;

impl RowwiseKernel {
    /// The most threads that may share each of `rows` neighbouring rows of `n` elements, where the
    /// elements of a row lie apart; 1 if the kernel cannot share rows.
    pub fn most_slices(&self, rows: usize, n: usize) -> usize {
        let can = self.sums.is_empty() && self.groups.is_none() && self.steps.len() <= MOST_SLICED;
        if can && rows >= ROWS_OF_SLICES { (n / LEAST_OF_SLICE).clamp(1, MOST_SLICES) } else { 1 }
    }

    /// True if an operand is read, or a result written, with strides.
    pub fn strided(&self) -> bool {
        let mut all = self.inputs.iter().map(|i| i.1).chain(self.outputs.iter().map(|o| o.1));
        all.any(|a| matches!(a, RowAccess::Strided | RowAccess::Picked))
    }

    /// Reads the indexes of `Picked` tables with strides: one is read wherever its table is.
    pub fn read_indexes_apart(&mut self) {
        for gathered in &self.gathers {
            if self.inputs[gathered.table].1 == RowAccess::Picked {
                self.inputs[gathered.index].1 = RowAccess::Strided;
            }
        }
    }

    /// True if each row is read once and nothing is kept of its elements: all steps read operands
    /// alone, which lie row after row or are one element, and a result is a function either of the
    /// steps or of the elements. Such rows may be of any length, and be reduced in pieces.
    pub fn folds(&self) -> bool {
        let operands = self.inputs.len();
        let reads = |term: &Term, may: &dyn Fn(usize) -> bool| {
            term.nodes.iter().all(|n| !matches!(n, TermNode::In { input, .. } if !may(*input as usize)))
        };
        let lies = |(dtype, access): &(DType, RowAccess)| {
            matches!(access, RowAccess::Full | RowAccess::Splat) && dtype.is_float()
        };
        !self.steps.is_empty()
            && self.inputs.iter().all(lies)
            && self.steps.iter().all(|(kind, term)| *kind != Reduction::Prod && reads(term, &|i| i < operands))
            && self.outputs.iter().all(|(dtype, access, term)| match access {
                RowAccess::PerRow => dtype.is_float() && reads(term, &|i| i >= operands),
                _ => *access == RowAccess::Full && reads(term, &|i| i < operands),
            })
            && self.sums.is_empty()
            && self.gathers.is_empty()
            && self.groups.is_none()
    }

    /// The number of steps over whole rows, which come first.
    pub fn row_steps(&self) -> usize {
        self.groups.map_or(self.steps.len(), |g| g.first)
    }

    /// The number of elements that a step reduces in rows of `n`.
    pub fn extent(&self, step: usize, n: usize) -> usize {
        self.groups.filter(|g| step >= g.first).map_or(n, |g| g.size)
    }

    /// The number of values that an output has in a row of `n`.
    pub fn stored(&self, access: RowAccess, n: usize) -> usize {
        match (access, self.groups) {
            (RowAccess::PerRow, _) => 1,
            (RowAccess::PerGroup, Some(g)) => n / g.size.max(1),
            _ => n,
        }
    }
}
