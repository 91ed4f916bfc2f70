//! Row-wise work of several tensors in one launch.
//!
//! In: row-wise kernels of a plan that do not depend on each other, with their sizes. Out: what
//! `hypatia-templates` prints as one kernel whose blocks are divided among them. Invariant: no part
//! adds up over rows, and each has sizes that are numbers: they are constants of the source.

use super::{RowLayout, RowwiseKernel};

/// Several row-wise kernels in one launch. Its operands are those of the first part, then those of
/// the next; so are its results.
#[derive(Clone, Debug, PartialEq)]
pub struct JointRowsKernel {
    /// An identifier.
    pub name: String,
    /// A description.
    pub doc: String,
    /// The parts.
    pub parts: Vec<RowsPart>,
}

/// A row-wise kernel with the sizes of its rows.
#[derive(Clone, Debug, PartialEq)]
pub struct RowsPart {
    /// What is computed.
    pub kernel: RowwiseKernel,
    /// Number of rows.
    pub rows: usize,
    /// Length of a row.
    pub n: usize,
    /// Where the elements lie.
    pub layout: RowLayout,
}
