//! Buffers: the memory of a plan's values.
//!
//! In: nothing; `lower` makes them and `arena` places them. Out: what views and steps refer to.
//! Invariant: an offset into the arena is a multiple of [`ALIGNMENT`].

use hypatia_dsl::dtype::DType;

/// A buffer of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BufferId(pub u32);

impl BufferId {
    /// As an index into `Plan::buffers`.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Where a buffer is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Storage {
    /// The input with that index.
    Input(usize),
    /// The constant with that index.
    Constant(usize),
    /// Byte offset into the arena, a multiple of [`ALIGNMENT`].
    Arena(usize),
}

/// Alignment of buffers in the arena, in bytes.
pub const ALIGNMENT: usize = 64;

/// Memory for one value.
#[derive(Clone, Debug, PartialEq)]
pub struct Buffer {
    /// Element type.
    pub dtype: DType,
    /// Number of elements.
    pub len: usize,
    /// Where it is stored.
    pub storage: Storage,
}
