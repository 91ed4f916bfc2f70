//! Kernels that move elements and do not compute with them, and the search for a largest element.
//!
//! In: what an op moves, by its axes. Out: descriptions that `hypatia-templates` prints. Holds always: sizes, strides
//! and amounts are run-time arguments; ranks and counts are part of the kernel.

use crate::dtype::DType;

/// What is moved. The result is row-major.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Move {
    /// So many operands side by side along an axis of a result of that rank.
    Concat {
        /// Operands.
        count: usize,
        /// The axis.
        axis: usize,
        /// Axes of the result.
        rank: usize,
    },
    /// The second operand everywhere, then the first at a distance from the start of each axis.
    Pad {
        /// Axes of the result.
        rank: usize,
    },
    /// Slices along an axis, named by indices: the result is `[outer, indices, inner]`.
    Gather {
        /// Element type of the indices.
        index: DType,
    },
    /// One element for each index: the indices have the result's shape.
    GatherElements {
        /// Element type of the indices.
        index: DType,
        /// The axis that they count along.
        axis: usize,
        /// Axes of the result.
        rank: usize,
    },
    /// Slices named by tuples of indices: the result is `[batch, tuples, inner]`.
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
    /// What it is for.
    pub doc: String,
    /// What is moved.
    pub moves: Move,
    /// Element type of what is moved.
    pub dtype: DType,
}

/// Positions of largest elements along one axis; NaN is largest.
#[derive(Clone, Debug, PartialEq)]
pub struct ArgmaxKernel {
    /// An identifier.
    pub name: String,
    /// What it is for.
    pub doc: String,
    /// Element type of the operand. Positions are i64.
    pub dtype: DType,
    /// How many axes number the results; the axis that is searched stands behind them.
    pub outer: usize,
    /// Of equal ones the last position, else the first.
    pub last: bool,
}
