//! Kernels over lines and positions: integer matrix products, running sums (cumsum), sorts,
//! scatters.
//!
//! In: element types and ranks. Out: descriptions that `hypatia-templates` prints. Invariant: sizes
//! and strides are run-time arguments; equal operands give bitwise equal results on every run, as
//! no result depends on the order of threads.

use crate::builtin::ScatterReduction;
use crate::dtype::DType;

/// The number of elements that one block sorts in shared memory. Longer lines are sorted in tiles
/// of this size, which are then merged.
pub const SORT_TILE: usize = 2048;

/// A product of integer matrices. It wraps around in the element type.
#[derive(Clone, Debug, PartialEq)]
pub struct ProductKernel {
    /// An identifier.
    pub name: String,
    /// A description.
    pub doc: String,
    /// Element types of both factors. Sums are of their accumulator's type, and wrap.
    pub factors: [DType; 2],
    /// Element type of the result.
    pub dtype: DType,
    /// How many axes number the products (batch axes).
    pub batch: usize,
}

/// What a kernel does for a running sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Running {
    /// All of it.
    Whole,
    /// The sum of each chunk of a line; runs before [`Running::Chunks`].
    Sums,
    /// All of it, with the chunks in parallel: each starts from the sums of the chunks before it.
    Chunks,
}

/// Running sums (cumsum) along one axis.
#[derive(Clone, Debug, PartialEq)]
pub struct CumsumKernel {
    /// An identifier.
    pub name: String,
    /// A description.
    pub doc: String,
    /// Element type.
    pub dtype: DType,
    /// Exclusive: the sum leaves out the element itself.
    pub exclusive: bool,
    /// Sums run from the end of the axis instead of from its start.
    pub reverse: bool,
    /// What this kernel does.
    pub role: Running,
    /// True for one thread per line, for adjacent lines; false for one block per line.
    pub columns: bool,
}

impl CumsumKernel {
    /// The accumulator type: f64 for floats, i64 for integers.
    pub fn sums(dtype: DType) -> DType {
        if dtype.is_float() { DType::F64 } else { DType::I64 }
    }
}

/// What a kernel does for a sort.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sorting {
    /// Sorts tiles of [`SORT_TILE`] elements, each on its own.
    Tiles,
    /// Merges pairs of sorted runs.
    Merge,
}

/// Argsort along one axis: a stable sort, with NaN as the largest element.
#[derive(Clone, Debug, PartialEq)]
pub struct SortKernel {
    /// An identifier.
    pub name: String,
    /// A description.
    pub doc: String,
    /// Element type of the operand. Positions are i64.
    pub dtype: DType,
    /// How many axes number the lines.
    pub outer: usize,
    /// Sorts in descending order.
    pub descending: bool,
    /// The operand holds indices into an axis. Negative indices, which count from the end, sort by
    /// the position that they refer to; out-of-range indices sort before all others.
    pub indices: bool,
    /// What this kernel does.
    pub role: Sorting,
}

/// Scatters rows: combines rows with the rows that indices name, one after the other, in a result
/// that already holds the data.
#[derive(Clone, Debug, PartialEq)]
pub struct ScatterKernel {
    /// An identifier.
    pub name: String,
    /// A description.
    pub doc: String,
    /// Element type of the rows.
    pub dtype: DType,
    /// Element type of the indices.
    pub index: DType,
    /// How rows are combined.
    pub reduction: ScatterReduction,
}
