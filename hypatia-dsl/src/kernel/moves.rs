//! Kernels that move elements without arithmetic, and argmax.
//!
//! In: what an op moves, by its axes. Out: descriptions that `hypatia-templates` prints. Invariant:
//! sizes, strides and padding amounts are run-time arguments; ranks and counts are part of the
//! kernel.

use crate::dtype::DType;

/// A data movement. The result is row-major.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Move {
    /// Concatenates operands along an axis.
    Concat {
        /// Number of operands.
        count: usize,
        /// The axis.
        axis: usize,
        /// Rank of the result.
        rank: usize,
    },
    /// Padding: fills the result with the second operand, then writes the first at an offset from
    /// the start of each axis.
    Pad {
        /// Rank of the result.
        rank: usize,
    },
    /// Gathers slices along an axis by index: the result is `[outer, indices, inner]`.
    Gather {
        /// Element type of the indices.
        index: DType,
    },
    /// Gathers one element for each index; the indices have the result's shape.
    GatherElements {
        /// Element type of the indices.
        index: DType,
        /// The axis that the indices refer to.
        axis: usize,
        /// Rank of the result.
        rank: usize,
    },
    /// Gathers slices by index tuples: the result is `[batch, tuples, inner]`.
    GatherNd {
        /// Element type of the indices.
        index: DType,
        /// Length of a tuple.
        width: usize,
    },
}

/// A kernel that moves elements.
#[derive(Clone, Debug, PartialEq)]
pub struct MoveKernel {
    /// An identifier.
    pub name: String,
    /// A description.
    pub doc: String,
    /// The data movement.
    pub moves: Move,
    /// Element type of the moved data.
    pub dtype: DType,
}

/// Argmax: positions of the largest elements along one axis. NaN is largest.
#[derive(Clone, Debug, PartialEq)]
pub struct ArgmaxKernel {
    /// An identifier.
    pub name: String,
    /// A description.
    pub doc: String,
    /// Element type of the operand. Positions are i64.
    pub dtype: DType,
    /// How many axes number the results; the searched axis comes after them.
    pub outer: usize,
    /// Among equal elements: the last position if true, the first if false.
    pub last: bool,
}
