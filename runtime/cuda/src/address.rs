//! Addresses of operands: symbolic in a plan, numbers in an instance of it.
//!
//! In: views of a plan, and the base addresses of one instance's memory. Out: device addresses.
//! Invariant: a [`Location`] names no instance, so launches serve all of them.

use hypatia_plan::{Plan, Storage, View};

/// Bytes of the workspace, which launches use one after another. NVIDIA recommends this size for
/// products on Hopper.
pub const WORKSPACE: usize = 32 << 20;

/// Byte offset into the memory of reports: what a test wants changed.
pub const FAULT: usize = 0;
/// What the checksums of the first step found.
pub const REPORTS: usize = 64;
/// Bytes of a step's reports.
pub const REPORT: usize = 32;

/// The location of an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Location {
    /// The buffer.
    pub storage: Storage,
    /// The output whose memory takes the buffer's place; see [`Plan::outside`].
    pub outside: Option<usize>,
    /// Byte offset from the buffer's start.
    pub bytes: usize,
}

impl Location {
    /// The location of a view's first element.
    pub fn of(plan: &Plan, view: &View) -> Location {
        Location {
            storage: plan.buffers[view.buffer.index()].storage,
            outside: plan.outside(view.buffer),
            bytes: view.offset * view.dtype.size(),
        }
    }
}

/// Base addresses of one instance's memory.
#[derive(Clone)]
pub struct Bases {
    /// Addresses of the inputs.
    pub inputs: Vec<u64>,
    /// Addresses of the constants.
    pub constants: Vec<u64>,
    /// Addresses of the transposed constants.
    pub transposed: Vec<u64>,
    /// Addresses of the outputs that take the place of buffers; the others are not read.
    pub outputs: Vec<u64>,
    /// Address of the arena.
    pub arena: u64,
    /// Address of the workspace.
    pub workspace: u64,
    /// Address of what products and comparisons exchange; 0 if nothing is checked.
    pub sums: u64,
    /// Address of the address lists.
    pub lists: u64,
    /// Address of the memory of reports, which the host sees; 0 if nothing is checked.
    pub reports: u64,
}

/// The addresses of all outputs where they are in that arena: then no buffer lies outside of it.
pub fn outputs_in(plan: &Plan, arena: u64) -> Vec<u64> {
    let place = |view: &View| match plan.buffers[view.buffer.index()].storage {
        Storage::Arena(offset) => arena + offset as u64,
        Storage::Input(_) | Storage::Constant(_) => 0,
    };
    plan.outputs.iter().map(|(_, view)| place(view)).collect()
}

impl Bases {
    /// The address of a location.
    pub fn address(&self, at: &Location) -> u64 {
        at.bytes as u64
            + match (at.outside, at.storage) {
                (Some(output), _) => self.outputs[output],
                (None, Storage::Input(i)) => self.inputs[i],
                (None, Storage::Constant(i)) => self.constants[i],
                (None, Storage::Arena(offset)) => self.arena + offset as u64,
            }
    }
}
