//! Kernels over lines and places: products of integers, running sums, sorts, scatters.
//!
//! In: element types and ranks. Out: descriptions that `hypatia-templates` prints. Holds always: sizes and strides are run-time
//! arguments; equal operands give equal bits on every run, as no result depends on which thread comes first.

use crate::builtin::Joining;
use crate::dtype::DType;

/// Elements that one block sorts in shared memory; longer lines are sorted in tiles of so many, which are then merged.
pub const SORT_TILE: usize = 2048;

/// A product of integer matrices, which wraps around in their own type.
#[derive(Clone, Debug, PartialEq)]
pub struct ProductKernel {
    /// An identifier.
    pub name: String,
    /// What it is for.
    pub doc: String,
    /// Element type of operands and result.
    pub dtype: DType,
    /// How many axes number the products.
    pub batch: usize,
}

/// Part of a running sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Running {
    /// All of it.
    Whole,
    /// The sum of each chunk of a line, before [`Running::Chunks`].
    Sums,
    /// All of it, chunks beside each other, each from the sums of those before it.
    Chunks,
}

/// Sums of all elements up to each along one axis.
#[derive(Clone, Debug, PartialEq)]
pub struct CumsumKernel {
    /// An identifier.
    pub name: String,
    /// What it is for.
    pub doc: String,
    /// Element type.
    pub dtype: DType,
    /// Not the element itself.
    pub exclusive: bool,
    /// Those behind it instead of those before it.
    pub reverse: bool,
    /// Which part of the work.
    pub part: Running,
    /// A thread a line, for lines that lie side by side; else a block a line.
    pub columns: bool,
}

impl CumsumKernel {
    /// The type in which sums are kept: f64 for floats, i64 for integers.
    pub fn sums(dtype: DType) -> DType {
        if dtype.is_float() { DType::F64 } else { DType::I64 }
    }
}

/// Part of a sort.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sorting {
    /// Tiles of [`SORT_TILE`] elements, each by itself.
    Tiles,
    /// Pairs of sorted runs into one.
    Merge,
}

/// Positions in order along one axis: equal elements as they stand, NaN largest.
#[derive(Clone, Debug, PartialEq)]
pub struct SortKernel {
    /// An identifier.
    pub name: String,
    /// What it is for.
    pub doc: String,
    /// Element type of the operand. Positions are i64.
    pub dtype: DType,
    /// How many axes number the lines.
    pub outer: usize,
    /// The largest first.
    pub descending: bool,
    /// The operand holds indices into an axis: those that count from its end stand where they lead, those that are
    /// outside before all others.
    pub indices: bool,
    /// Which part of the work.
    pub part: Sorting,
}

/// Rows joined with others that indices name, one after the other, in a result that holds the rows already.
#[derive(Clone, Debug, PartialEq)]
pub struct ScatterKernel {
    /// An identifier.
    pub name: String,
    /// What it is for.
    pub doc: String,
    /// Element type of the rows.
    pub dtype: DType,
    /// Element type of the indices.
    pub index: DType,
    /// How they are joined.
    pub how: Joining,
}
