//! Horizontal fusion: pointwise work of several index spaces in one launch.
//!
//! In: parts that do not depend on each other. Out: a description that divides a launch's blocks
//! among them. Invariant: the operands of a part are the next of the launch's, in the order of the
//! parts; parts of one [`HorizontalPart`] share its code.

use super::{Access, PointwiseKernel};

/// Threads of a block.
pub const HORIZONTAL_BLOCK: usize = 256;

/// The code of a part.
#[derive(Clone, Debug, PartialEq)]
pub struct HorizontalPart {
    /// What each element is. Inputs are full, one element, or strided.
    pub kernel: PointwiseKernel,
    /// How each output is indexed: full or strided.
    pub stored: Vec<Access>,
    /// Elements of an access. Rows of the innermost axis are whole accesses.
    pub vector: usize,
}

impl HorizontalPart {
    /// The blocks of a part of that many elements: each thread computes one access.
    pub fn blocks(&self, elements: usize) -> usize {
        elements.div_ceil(self.vector).div_ceil(HORIZONTAL_BLOCK)
    }
}

/// Pointwise work of several index spaces.
#[derive(Clone, Debug, PartialEq)]
pub struct HorizontalKernel {
    /// An identifier.
    pub name: String,
    /// A description.
    pub doc: String,
    /// The parts that differ in more than sizes and addresses.
    pub codes: Vec<HorizontalPart>,
    /// The code of each part.
    pub parts: Vec<usize>,
}

impl HorizontalKernel {
    /// The kernel of these parts, in that order.
    pub fn of(name: &str, parts: impl IntoIterator<Item = HorizontalPart>) -> HorizontalKernel {
        let mut kernel =
            HorizontalKernel { name: name.into(), doc: String::new(), codes: Vec::new(), parts: Vec::new() };
        for part in parts {
            let at = kernel.codes.iter().position(|code| *code == part).unwrap_or_else(|| {
                kernel.codes.push(part);
                kernel.codes.len() - 1
            });
            kernel.parts.push(at);
        }
        kernel
    }
}
