//! Kernel descriptions: what a generated kernel computes, apart from the machine it runs on.
//!
//! In: pointwise regions and row-wise ops of a plan, or of a `.hyp` file. Out: the CPU executor
//! interprets them, `hypatia-templates` prints them. Holds always: a term's `In { input }` indexes
//! `inputs`, and for row-wise kernels, from `inputs.len()` on, the results of earlier `steps`.

mod body;
mod derive;
mod interpret;
mod layout;
mod lines;
mod moves;
pub mod short;
mod space;
#[cfg(test)]
mod tests;

use crate::dtype::DType;
use crate::scalar::Term;

pub use body::fits_a_kernel;
pub use derive::{derive_pointwise, derive_rowwise, derive_rowwise_over};
pub use interpret::interpret_rowwise;
pub use layout::{RowLayout, RowSpace};
pub use lines::{CumsumKernel, ProductKernel, Running, SORT_TILE, ScatterKernel, SortKernel, Sorting};
pub use moves::{ArgmaxKernel, Move, MoveKernel};

/// How an operand of a pointwise kernel is indexed, the output being `[outer, n]` row-major.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// Same index as the output.
    Full,
    /// One element for all.
    Splat,
    /// `[n]`, the same for every row: index modulo n.
    Row,
    /// `[outer]`, one element a row: index divided by n.
    Col,
    /// Anything else that is an affine function of the output's (collapsed) multi-index: a stride
    /// for each axis of `PointwiseKernel::rank`, 0 where broadcast. The strides are run-time
    /// arguments of the kernel.
    Strided,
}

/// An operand.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Operand {
    /// Element type in memory.
    pub dtype: DType,
    /// How it is indexed.
    pub access: Access,
}

/// One output element from one element of each input.
#[derive(Clone, Debug, PartialEq)]
pub struct PointwiseKernel {
    /// An identifier, unique in its plan or file.
    pub name: String,
    /// What it is for, in words: rule and file it comes from.
    pub doc: String,
    /// Inputs.
    pub inputs: Vec<Operand>,
    /// Element types of the outputs, one for each root of `term`. All have the same shape.
    pub outputs: Vec<DType>,
    /// Rank of the collapsed iteration space; 2 if no operand is `Strided`.
    pub rank: usize,
    /// The values: leaves are `In`, and `Acc` for the result of the gemm that it follows.
    pub term: Term,
    /// If the kernel follows a gemm: the type of the accumulator buffer it reads at `Full`.
    pub acc: Option<DType>,
}

impl PointwiseKernel {
    /// True if it walks all elements as one row: every operand has them all, or a single one.
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
    /// Largest, NaN if any is NaN.
    Max,
    /// Smallest, NaN if any is NaN.
    Min,
    /// Product.
    Prod,
}

/// How an operand of a row-wise kernel is indexed, the work being `[rows, n]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RowAccess {
    /// `[rows, n]`
    Full,
    /// `[n]`
    PerColumn,
    /// `[rows]`
    PerRow,
    /// One element.
    Splat,
    /// Anything else that is an affine function of the axes that number the rows and those that make a row:
    /// a stride for each of `RowwiseKernel::axes`. The strides are run-time arguments of the kernel.
    Strided,
}

/// Reductions over rows of `[rows, n]`, then outputs that may use their results: softmax,
/// LayerNorm, RMSNorm and what users define so.
#[derive(Clone, Debug, PartialEq)]
pub struct RowwiseKernel {
    /// An identifier.
    pub name: String,
    /// What it is for.
    pub doc: String,
    /// Inputs.
    pub inputs: Vec<(DType, RowAccess)>,
    /// Reductions in order. Step `i`'s result is `In { input: inputs.len() + i }` for later steps
    /// and outputs, in the compute type.
    pub steps: Vec<(Reduction, Term)>,
    /// Outputs: element type, whether one a row (`PerRow`), or one for each element (`Full`, or
    /// `Strided` where the rows do not lie along its last axis), and the value.
    pub outputs: Vec<(DType, RowAccess, Term)>,
    /// How many axes number the rows, and how many make a row; 1 and 1 if nothing is `Strided`.
    pub axes: [usize; 2],
}

impl RowwiseKernel {
    /// True if an operand or a result is read or written with strides.
    pub fn strided(&self) -> bool {
        let mut all = self.inputs.iter().map(|i| i.1).chain(self.outputs.iter().map(|o| o.1));
        all.any(|a| a == RowAccess::Strided)
    }
}
