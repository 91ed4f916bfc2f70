//! Checksums of matrix products (K.-H. Huang, J. A. Abraham, "Algorithm-Based Fault Tolerance for
//! Matrix Operations", IEEE Transactions on Computers C-33, 1984).
//!
//! In: the element types of a product, and what is known of its accumulators. Out: the kernels that
//! hold them against sums of the factors. A sum is linear: the accumulators of a row, added up over
//! a block of columns, are that row of the left factor times the sums of the right factor's rows
//! over the block ([`BlockSumsKernel`]), which cost a small part of the product
//! ([`ChecksumKernel`]). Invariant: no result of the product is changed.

use crate::dtype::DType;

/// Whether a generated product stores sums of its accumulators, besides its results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum RowSums {
    /// Nothing.
    #[default]
    Off,
    /// Each group of threads stores the sum of its part of a row.
    Stored,
    /// Likewise, and a test may change accumulators first.
    Disturbed,
}

/// Sums of the right factor's rows over blocks of columns, each with the sum of squares of the same
/// elements.
#[derive(Clone, Debug, PartialEq)]
pub struct BlockSumsKernel {
    /// An identifier.
    pub name: String,
    /// A description.
    pub doc: String,
    /// Element type of the factor.
    pub factor: DType,
    /// Element type of the sums.
    pub sums: DType,
    /// True if matrix units multiply the sums.
    pub by_units: bool,
    /// True for two factors, which are added up together.
    pub pair: bool,
}

/// What a checksum compares with the sums.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Compared {
    /// Sums of accumulators, which the product stored for parts of each row.
    Accumulators,
    /// The result: the accumulators times a factor, rounded.
    Result {
        /// Its element type.
        dtype: DType,
        /// The factor.
        scale: f64,
        /// Columns of a block: a multiple of 32.
        width: usize,
    },
}

/// The comparison: each row of the left factor, times the sums.
#[derive(Clone, Debug, PartialEq)]
pub struct ChecksumKernel {
    /// An identifier.
    pub name: String,
    /// A description.
    pub doc: String,
    /// Element type of the left factor.
    pub factor: DType,
    /// True if matrix units multiply its rows, of bf16.
    pub by_units: bool,
    /// With them: true if eight neighbours of a row and of the sums lie side by side in whole 16
    /// bytes.
    pub packs: bool,
    /// True if the product rounds its operands to TF32.
    pub tf32: bool,
    /// What is compared.
    pub compared: Compared,
}

/// A kernel that changes the elements of a result, for tests.
#[derive(Clone, Debug, PartialEq)]
pub struct DisturbKernel {
    /// An identifier.
    pub name: String,
    /// A description.
    pub doc: String,
    /// Element type of the result.
    pub dtype: DType,
}

/// The type in which the factors are added up.
pub fn sum_type(factor: DType) -> DType {
    if factor == DType::F64 { DType::F64 } else { DType::F32 }
}

/// The element type of such sums in memory.
pub fn sums_in_memory(sums: DType, by_units: bool) -> DType {
    if by_units { DType::BF16 } else { sums }
}

/// Bytes of a sum in memory, with its sum of squares.
pub fn bytes_of_sum(sums: DType, by_units: bool) -> usize {
    if by_units { 4 * DType::BF16.size() } else { 2 * sums.size() }
}
