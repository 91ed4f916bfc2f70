//! Horizontal fusion: pointwise work of several index spaces in one launch.
//!
//! In: parts that do not depend on each other. Out: a description that divides a launch's blocks
//! among them. Invariant: the operands of a part are the next of the launch's, in the order of the
//! parts; parts of one [`HorizontalPart`] share its code. A pick reads no later one.

use super::{Access, Operand, PointwiseKernel};
use crate::dtype::DType;
use crate::scalar::{Term, TermNode};

/// Threads of a block.
pub const HORIZONTAL_BLOCK: usize = 256;

/// The most elements that a narrow kernel counts, and the farthest that an operand reaches: threads
/// of the last block count on, by an access of up to 16 elements each.
pub const MOST_NARROW: u64 = i32::MAX as u64 - (HORIZONTAL_BLOCK * 16) as u64;

/// Maximum number of axes of a part.
pub const HORIZONTAL_AXES: usize = 16;
/// The input of a part's terms that is its first pick.
pub const PICKED: u32 = 1 << 16;

/// An element of a table, at an index that a part computes. Beside the table it is 0 on a GPU, and
/// an error on a host.
#[derive(Clone, Debug, PartialEq)]
pub struct Pick {
    /// The index along an axis of the table, as an integer. A negative one counts from the end.
    pub index: Term,
    /// The operand that is the table: strided, and it does not move along that axis.
    pub table: usize,
    /// Whether the elements of an access have one index.
    pub shared: bool,
}

/// The same term with its picks as the inputs behind so many others.
pub fn picks_behind(term: &Term, others: usize) -> Term {
    let node = |n: &TermNode| match n {
        TermNode::In { input, view } if *input >= PICKED => {
            TermNode::In { input: *input - PICKED + others as u32, view: *view }
        }
        n => n.clone(),
    };
    Term { nodes: term.nodes.iter().map(node).collect(), roots: term.roots.clone() }
}

/// Operands whose elements lie side by side along another axis than the last one: they are read in
/// tiles along both, and turned in shared memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Across {
    /// The axis.
    pub axis: usize,
    /// The operands: strided.
    pub operands: Vec<usize>,
}

/// Lanes along a side of a tile of [`Across`]: each has an access.
pub const TILE_LANES: usize = 32;

/// The code of a part.
#[derive(Clone, Debug, PartialEq)]
pub struct HorizontalPart {
    /// What each element is. Inputs are full, one element, or strided.
    pub kernel: PointwiseKernel,
    /// How each output is indexed: full or strided.
    pub stored: Vec<Access>,
    /// What is read at computed places.
    pub picks: Vec<Pick>,
    /// Elements of an access. Rows of the innermost axis are whole accesses, and so are those of
    /// the axis of `across`.
    pub vector: usize,
    /// The operands that are turned, if any are. Such a part picks nothing.
    pub across: Option<Across>,
}

impl HorizontalPart {
    /// The kernel of one of its terms, whose picks are the operands behind the others.
    pub fn with_picks(&self, term: &Term, outputs: Vec<DType>) -> PointwiseKernel {
        let dtype = |p: &Pick| self.kernel.inputs.get(p.table).map_or(DType::F32, |o| o.dtype);
        let picked = self.picks.iter().map(|p| Operand { dtype: dtype(p), access: Access::Full });
        let mut kernel = self.kernel.clone();
        kernel.inputs.extend(picked);
        kernel.term = picks_behind(term, self.kernel.inputs.len());
        PointwiseKernel { outputs, ..kernel }
    }

    /// Bytes of the tiles of a block that are turned.
    pub fn turned(&self) -> usize {
        let side = TILE_LANES * self.vector;
        let of = |i: &usize| self.kernel.inputs.get(*i).map_or(0, |o| o.dtype.size());
        self.across.iter().flat_map(|a| &a.operands).map(of).sum::<usize>() * side * side
    }

    /// The blocks of a part of that shape: each thread computes one access, or each block a tile.
    pub fn blocks(&self, shape: &[usize]) -> usize {
        let elements: usize = shape.iter().product();
        let (Some(across), Some(row)) = (&self.across, shape.last()) else {
            return elements.div_ceil(self.vector).div_ceil(HORIZONTAL_BLOCK);
        };
        let lines = shape.get(across.axis).copied().unwrap_or(1);
        let tile = TILE_LANES * self.vector;
        elements / (lines * row).max(1) * lines.div_ceil(tile) * row.div_ceil(tile)
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
    /// Whether 32 bits count the elements of each part, and hold how far each of its operands and
    /// outputs reaches.
    pub narrow: bool,
    /// Whether an output may lie where an operand does that is indexed alike.
    pub in_place: bool,
}

impl HorizontalKernel {
    /// The kernel of these parts, in that order.
    pub fn of(name: &str, parts: impl IntoIterator<Item = HorizontalPart>) -> HorizontalKernel {
        let mut kernel = HorizontalKernel {
            name: name.into(),
            doc: String::new(),
            codes: Vec::new(),
            parts: Vec::new(),
            narrow: false,
            in_place: false,
        };
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
